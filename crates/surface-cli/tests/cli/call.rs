//! `call`: every operation by its name, in a process and in a chat.

use meerkat_errors::ErrorCode;
use meerkat_service::Operation;
use serde_json::{Value, json};

use crate::drive::terminal::cli;

/// What the other surfaces have by a table of their own, the command line has by this list.
#[test]
fn every_operation_is_listed_and_describes_its_parameters() {
    let listed = cli(&["call", "--json"]).run().json();
    let listed: Vec<&str> =
        listed["items"].as_array().unwrap().iter().map(|item| item["operation"].as_str().unwrap()).collect();
    let names = Operation::ALL.iter().map(|operation| operation.public_name());
    assert_eq!(listed, names.chain(["session/subscribe"]).collect::<Vec<_>>());
    for name in &listed {
        let ran = cli(&["call", name, "--help"]).run();
        assert!(ran.code == 0 && ran.out.contains(&format!("meerkat call {name}")), "{}{}", ran.out, ran.err);
    }
    let ran = cli(&["call"]).run();
    assert!(ran.code == 0 && ran.out.contains("reader/fetch") && ran.err.contains("--help"), "{}{}", ran.out, ran.err);
    let help = cli(&["call", "session/pin", "--help"]).run().out;
    let row = help.lines().find(|line| line.starts_with("text ")).unwrap();
    assert!(row.contains("string") && row.contains("required"), "{help}");
    let schema = cli(&["call", "session/pin", "-h", "--json"]).run().json();
    assert_eq!(schema["required"], json!(["session_id", "text"]));
}

#[test]
fn an_answer_is_a_document_or_names_and_values() {
    let dir = cli(&[]).dir;
    let ours = |args: &[&str]| cli(args).in_dir(&dir);
    let turn = ours(&["call", "session/create", "title=Here", "--json"]).run().json();
    let session = format!("session_id={}", turn["session_id"].as_str().unwrap());
    let said = ours(&["call", "turn/start", &session, "prompt=@say Hi.", "--json"]).run();
    assert_eq!((said.code, &said.json()["text"]), (0, &"Hi.".into()), "{}", said.err);
    let pinned = ours(&["call", "session/pin", "session_id=last", "text=a = b"]).run();
    assert!(pinned.out.lines().any(|line| line.starts_with("seq ")), "{}", pinned.out);
    let pins = ours(&["call", "session/pins", "-", "--json"]).stdin(r#"{"session_id":"last"}"#).run();
    assert_eq!(pins.json()["items"][0]["text"], "a = b");
    std::fs::write(dir.path().join("labels.json"), r#"{"session_id":"last","labels":{"a":"b"}}"#).unwrap();
    assert_eq!(ours(&["call", "session/update", "@labels.json"]).run().code, 0);
    let listed = ours(&["call", "session/list", "labels:={\"a\":\"b\"}", "limit=5", "--json"]).run().json();
    assert_eq!(listed["items"][0]["title"], "Here");
}

#[test]
fn events_follow_as_lines_up_to_a_type() {
    let dir = cli(&[]).dir;
    cli(&["run", "@say One."]).in_dir(&dir).run();
    let followed = ["call", "session/subscribe", "session_id=last", "since_seq=1", "until=turn_completed", "--json"];
    let ran = cli(&followed).in_dir(&dir).run();
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [first, .., last] = lines.as_slice() else { panic!("{}{}", ran.out, ran.err) };
    assert_eq!((ran.code, &first["seq"], &last["type"]), (0, &json!(2), &json!("turn_completed")));
}

/// The exit code is that of a turn's error, as it is for `run`.
#[test]
fn a_turn_that_fails_is_an_answer_and_an_exit_code() {
    let dir = cli(&[]).dir;
    cli(&["run", "@say One."]).in_dir(&dir).run();
    let failed = ["call", "turn/start", "session_id=last", "prompt=@fail rejected", "--json"];
    let ran = cli(&failed).in_dir(&dir).run();
    let code: Value = ran.json()["error"]["code"].clone();
    assert_eq!((ran.code, &code), (ErrorCode::ModelRejected.exit_code(), &"MODEL_REJECTED".into()), "{}", ran.err);
    let detached = ["call", "turn/start", "session_id=last", "prompt=@say Two.", "wait=false"];
    cli(&detached).in_dir(&dir).run().refused(ErrorCode::InvalidRequest, "the turn would end with this command");
}

#[test]
fn what_is_mistyped_runs_nothing_and_says_what_is_near() {
    let invalid = ErrorCode::InvalidRequest;
    cli(&["call", "session/lst"]).run().refused(ErrorCode::UnknownOperation, "did you mean `session/list`?");
    cli(&["call", "frob", "a=b"]).run().refused(ErrorCode::UnknownOperation, "`meerkat call` lists them");
    cli(&["call", "session/list", "limt=5"]).run().refused(invalid, "did you mean `limit`?");
    cli(&["call", "session/list", "limit=many"]).run().refused(invalid, "many");
    cli(&["call", "session/list", "labels=a"]).run().refused(invalid, "write labels:=JSON");
    cli(&["call", "session/list", "limit"]).run().refused(invalid, "NAME=TEXT or NAME:=JSON");
}

/// A build without a store has its sessions in one chat: there the calls are lines, also from a pipe.
#[test]
fn a_chat_takes_calls_about_its_session_from_a_pipe() {
    let lines = "@say One.\n/call session/pin 'text=the key is blue'\n/call session/pins\n/call session/frob\n/call\n";
    let ran = cli(&["chat", "--ephemeral"]).stdin(lines).run();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("the key is blue") && ran.out.contains("One."), "{}", ran.out);
    assert!(ran.err.contains("UNKNOWN_OPERATION") && ran.out.contains("reader/fetch"), "{}{}", ran.out, ran.err);
}
