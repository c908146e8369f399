//! The same request again and again, and a tool that must not run twice.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use meerkat_testkit::until_some;
use serde_json::{Value, json};

use crate::{
    oracle::{Known, check},
    process::{Stage, answer, with_tools},
    server::{Server, call},
    shim::{Act, Shim, Told},
};

const REQUESTS: usize = 100;

/// Sends the same turn over REST and RPC by turns from several clients; what was answered. It is killed after some
/// answers, where that is said.
fn ask(server: &Server, id: &str, prompt: &str, killed_after: Option<usize>) -> Vec<Value> {
    let (next, answered, answers) = (AtomicUsize::new(0), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= REQUESTS {
                        return;
                    }
                    let mut turn = json!({ "prompt": prompt, "idempotency_key": "once" });
                    let answer = if n % 2 == 0 {
                        server.ask("POST", &format!("/v1/sessions/{id}/turns"), &turn).map(|answer| answer.1)
                    } else {
                        turn["session_id"] = json!(id);
                        server
                            .rpc("turn/start", &turn)
                            .map(|answer| answer.unwrap_or_else(|code| json!({ "code": code })))
                    };
                    let Some(answer) = answer else { return };
                    answers.lock().unwrap().push(answer);
                    if killed_after == Some(answered.fetch_add(1, Ordering::Relaxed) + 1) {
                        server.kill();
                    }
                }
            });
        }
    });
    answers.into_inner().unwrap()
}

fn count(events: &Value, kind: &str) -> usize {
    events["items"].as_array().unwrap().iter().filter(|event| event["type"] == kind).count()
}

/// One turn, whatever is killed when.
fn once(stage: &Stage, id: &str, shim: Option<&Shim>, killed_after: Option<usize>) {
    let prompt = format!(r#"@call test_append {{"name":"effects","line":"{id}"}} @say Once."#);
    let server = stage.serve(shim);
    let before = ask(&server, id, &prompt, killed_after);
    drop(server);
    let server = stage.serve(None);
    let after = ask(&server, id, &prompt, None);
    assert_eq!(after.len(), REQUESTS);
    let events = server.get(&format!("/v1/sessions/{id}/events")).1;
    assert_eq!(count(&events, "turn_started"), 1, "{events}");
    assert!(count(&events, "assistant_message") <= 2, "{events}");
    assert!(stage.tool_lines("effects").len() <= 1);
    let is_done = count(&events, "turn_completed") == 1;
    assert_eq!(count(&events, "turn_completed") + count(&events, "turn_interrupted"), 1, "{events}");
    for answer in before.iter().chain(&after) {
        match is_done {
            true => assert_eq!((&answer["turn"], &answer["text"]), (&json!(0), &json!("Once.")), "{answer}"),
            false => assert_eq!(answer["code"].as_str().unwrap_or("TURN_INTERRUPTED"), "TURN_INTERRUPTED", "{answer}"),
        }
    }
    assert_eq!(server.end(), Some(0));
}

fn with_session() -> (Stage, String) {
    let stage = Stage::made();
    let server = stage.serve(None);
    let id = server.create();
    assert_eq!(server.end(), Some(0));
    (stage, id)
}

#[test]
fn a_hundred_identical_turns_a_kill_and_a_hundred_more_are_one_turn() {
    let (stage, id) = with_session();
    once(&stage, &id, None, Some(REQUESTS / 2));
}

#[test]
fn identical_turns_are_one_turn_wherever_the_first_of_them_is_killed() {
    for act in [Act::KillBefore, Act::KillTorn] {
        for at in 1..=10 {
            let (stage, id) = with_session();
            let shim = Shim::new(&stage.data()).under(&id).at(at, act);
            let _told = Told(format!("{act:?} at {at}"));
            once(&stage, &id, Some(&shim), None);
        }
    }
}

#[test]
fn a_tool_that_runs_once_is_never_run_again_by_itself() {
    // Where the kill strikes, and how often the effect happens.
    for (written, effects) in [(r#""type":"tool_started""#, 0), (r#""type":"tool_finished""#, 1)] {
        let (stage, known) = (Stage::made(), Arc::<Known>::default());
        let process = stage.rpc(&known, None);
        let id = process.create().unwrap();
        process.end();
        let shim = Shim::new(&stage.data()).holding(written).at(1, Act::KillBefore);
        let process = stage.rpc(&known, Some(&shim));
        process.follow(&id).unwrap();
        let prompt = format!(r#"@call test_append {{"name":"effects","line":"{id}"}} @say Done."#);
        process.turn(&id, &prompt).unwrap_err();
        assert_eq!(process.end(), None, "it was killed");
        assert_eq!(stage.tool_lines("effects").len(), effects, "{written}");

        let process = stage.rpc(&known, None);
        let next = process.turn(&id, "@say Next. @echo messages").unwrap();
        assert_eq!(next["status"], "completed", "{next}");
        let page = process.value("session/events", &json!({ "session_id": id })).unwrap();
        let events = page["items"].as_array().unwrap();
        let outcomes: Vec<&Value> =
            events.iter().filter(|event| event["type"] == "tool_finished").map(|event| &event["outcome"]).collect();
        // Without the durable intent nobody knows of a call, or knows that it did not run.
        assert!(outcomes.len() <= 1 && outcomes.iter().all(|outcome| **outcome != "succeeded"), "{page}");
        if effects == 1 {
            assert_eq!(outcomes, [&json!("unknown")], "{page}");
        }
        assert_eq!(process.end(), Some(0));
        assert_eq!(stage.tool_lines("effects").len(), effects, "{written}");
    }
}

/// A turn with a picture, an approval and calls of two tools, one client of which is killed at its `killed`th request, of
/// which it sends a part, and the server too if that is said. Two other clients go on.
fn with_killed_client(stage: &Stage, known: &Arc<Known>, killed: usize, part: f64, kills_server: bool) {
    let _told = Told(format!("its client at request {killed} after {part}, and its server: {kills_server}"));
    let mut server = stage.serve(None);
    known.creation_asked();
    let id = server.create();
    known.created(&id);
    let line = format!("{id} {killed} {part} {kills_server}");
    let prompt = format!(
        r#"@call look {{"n":1}} @call order {{"n":2}} @call test_ask {{"name":"effects","line":"{line}"}}
        @step @call order {{"n":3}} @echo results"#
    );
    known.prompt_asked(&prompt);
    let mut start = with_tools(&id, &prompt);
    start["idempotency_key"] = json!("once");
    let mut request = ("turn/start", start);
    for n in 0.. {
        if n == killed {
            drop(server.send("POST", "/rpc", &call(request.0, &request.1), part));
            if kills_server {
                drop(server);
                server = stage.serve(None);
            }
        }
        let ask = || server.rpc(request.0, &request.1).unwrap();
        let answers =
            std::thread::scope(|scope| [scope.spawn(ask), scope.spawn(ask)].map(|asked| asked.join().unwrap()));
        assert!(answers[0].is_ok() && answers[0] == answers[1], "{request:?}: {answers:?}");
        let next = until_some("it waits or ends", || {
            let view = server.get(&format!("/v1/sessions/{id}")).1;
            let calls = server.get(&format!("/v1/sessions/{id}/calls")).1;
            if let Some(asked) = view["pending_approvals"].get(0) {
                let approval = json!({ "session_id": id, "call_id": asked["call_id"], "decision": "approve" });
                return Some(Some(("turn/approve", approval)));
            }
            if let Some(open) = calls["items"].get(0) {
                let call_id = open["call_id"].as_str().unwrap();
                let text = format!("{call_id} {}", open["arguments"]);
                known.answered(&id, call_id, &text, None);
                return Some(Some(("turn/answer", answer(&id, call_id, &text))));
            }
            (view["state"] == "idle").then_some(None)
        });
        let Some(next) = next else {
            // The start, an approval, and three answers.
            assert!(n == 4 || kills_server, "it ended behind request {n}");
            break;
        };
        request = next;
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_client_that_is_killed_at_any_request_of_a_turn_with_calls_loses_none_and_answers_none_twice() {
    let (stage, known) = (Stage::made(), Arc::<Known>::default());
    for (part, kills_server) in [(0.0, false), (0.6, false), (1.0, false), (1.0, true)] {
        for killed in 0..5 {
            with_killed_client(&stage, &known, killed, part, kills_server);
        }
    }
    check(&stage, &known);
}
