//! Calls that wait for their caller while no server runs: each command opens the store for a moment.

use meerkat_errors::ErrorCode;
use serde_json::Value;

use super::Stage;

const TOOLS: &str = r#"client_tools:=[{"name":"look","description":"Looks.","input_schema":{"type":"object"}}]"#;

/// Runs a turn until its call waits; returns the call.
fn waiting(stage: &Stage, id: &str, prompt: &str) -> String {
    let turn = stage.json(&["call", "turn/start", &format!("session_id={id}"), &format!("prompt={prompt}")]);
    assert_eq!((&turn["status"], &turn["error"]), (&"waiting".into(), &Value::Null));
    turn["calls"][0]["call_id"].as_str().unwrap().to_owned()
}

#[test]
fn a_turn_goes_on_to_its_end_when_a_command_answers_its_call() {
    let stage = Stage::new();
    let created = stage.json(&["call", "session/create", TOOLS]);
    let id = created["session_id"].as_str().unwrap();
    let state = || stage.json(&["sessions", "list"])["items"][0]["state"].clone();
    let (session, last) = (format!("session_id={id}"), "@call look {} @echo last_result");
    for is_operation in [false, true] {
        let call_id = waiting(&stage, id, last);
        assert_eq!(state(), "waiting");
        assert_eq!(stage.json(&["sessions", "calls", id])["items"][0]["call_id"], call_id);
        let (call, value) = (format!("call_id={call_id}"), r#"content:=[{"type":"text","text":"A text."}]"#);
        let answer = match is_operation {
            false => vec!["sessions", "answer", id, &call_id, "A text.", "--value", r#"{"n":1.10}"#],
            true => vec!["call", "turn/answer", &session, &call, "outcome=succeeded", value],
        };
        let seq = stage.json(&answer)["seq"].as_u64().unwrap();
        assert_eq!(state(), "idle");
        let events = stage.json(&["call", "session/events", &session, &format!("since_seq={}", seq - 1)]);
        let types: Vec<&str> =
            events["items"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["call_answered", "tool_finished", "assistant_message", "turn_completed"]);
        let output = if is_operation { "A text." } else { "A text.\n{\"n\":1.10}" };
        assert_eq!(events["items"][1]["output"], output);
    }
}

#[test]
fn who_waits_for_a_turn_sees_that_it_failed() {
    let stage = Stage::new();
    let created = stage.json(&["call", "session/create", TOOLS]);
    let id = created["session_id"].as_str().unwrap();
    let code = ErrorCode::ModelRejected.exit_code();
    for is_operation in [false, true] {
        let call_id = waiting(&stage, id, "@call look {} @step @fail rejected");
        let (session, call) = (format!("session_id={id}"), format!("call_id={call_id}"));
        let ran = stage.run(&match is_operation {
            false => vec!["sessions", "answer", id, &call_id, "A text.", "--wait"],
            true => vec!["call", "turn/answer", &session, &call, "outcome=failed", "wait=true"],
        });
        assert_eq!(ran.code, code, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("MODEL_REJECTED"), "{}", ran.err);
    }
    // Without a wait nothing is known of the turn.
    let call_id = waiting(&stage, id, "@call look {} @step @fail rejected");
    assert_eq!(stage.run(&["sessions", "answer", id, &call_id, "A text."]).code, 0);
    assert_eq!(stage.json(&["sessions", "list"])["items"][0]["state"], "idle");
}
