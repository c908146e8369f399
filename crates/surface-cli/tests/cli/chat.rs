//! `chat`, from a pipe: as text, and as the protocol of `--json`.

use meerkat_errors::ErrorCode;
use serde_json::{Value, json};

use crate::drive::terminal::{Talk, cli};

#[test]
fn lines_from_a_pipe_are_turns_in_order_and_commands() {
    let lines = "@say One.\n\n/call session/remind kind=environment \"text=first\\nsecond\"\n/pin 'the key is blue'\n@echo tail\n/frob\n/call session/unpin pin=5\n@say Last.\n";
    let ran = cli(&["chat"]).stdin(lines).run();
    assert_eq!(ran.code, 0);
    // A command's answer may come before the text of the turn that runs beside it; the next turn knows what it did.
    let one = ran.out.lines().position(|line| line == "One.");
    let tail = ran.out.lines().position(|line| line.starts_with("tail: "));
    assert!(one.is_some() && one < tail && ran.out.ends_with("\nLast.\n"), "{}", ran.out);
    assert!(ran.out.contains("second") && ran.out.contains("the key is blue"), "{}", ran.out);
    assert!(ran.err.contains("UNKNOWN_OPERATION") && ran.err.contains("ITEM_NOT_FOUND"), "{}", ran.err);
    assert!(cli(&["chat"]).stdin("/help\n/help deny\n").run().out.contains("CALL_ID"));
    assert_eq!(cli(&["chat"]).stdin("/quit\n@say Never.").run().out, "");
}

fn talk(args: &[&str]) -> (Talk, Value) {
    let mut talk = cli(&[&["chat", "--json"], args].concat()).with_tools().env("MEERKAT_TEST_SEED", "1").talk();
    let created = talk.next();
    (talk, created)
}

#[track_caller]
fn code(document: &Value) -> &str {
    document["code"].as_str().unwrap_or_else(|| panic!("{document} is no error"))
}

/// The answers of operations are those of the scenarios; here is what only a chat has.
#[test]
fn every_line_gets_one_document() {
    let (mut talk, created) = talk(&["--ephemeral", "--label", "a=b"]);
    let session = created["session_id"].as_str().unwrap().to_owned();
    assert_eq!(created, json!({ "session_id": session, "seq": 1, "created_at": "2026-01-01T00:00:00.000Z" }));
    assert_eq!(talk.ask("@say Hi.")["text"], "Hi.");
    assert_eq!(talk.ask(r#"/turn --budget-steps 2 "@say a\nb""#)["text"], "a\nb");
    assert_eq!(talk.ask("/events 6 --limit 1")["next_seq"], 7);
    assert_eq!(talk.ask("/events --until turn_completed")["seq"], 4);
    for line in ["", "/", "/pin 'open", "/pin", "/events --follow", "/turn --system x", "/memory forget --yes"] {
        assert_eq!(code(&talk.ask(line)), "INVALID_REQUEST", "{line}");
    }
    assert_eq!(code(&talk.ask("/frob")), "UNKNOWN_OPERATION");
    // Nobody is asked about a file or a deletion that there is no capability for.
    for line in ["/export -o file.tar", "/import file.tar", "/call session/retain", "/delete --force", "/resume"] {
        assert_eq!(code(&talk.ask(line)), "SESSION_PERSISTENCE_DISABLED", "{line}");
    }
    assert!(talk.ask("/help")["help"].as_str().unwrap().contains("/<COMMAND>"));
    assert_eq!(talk.ask("/model"), json!({ "model": null }));
    let second = talk.ask("/new --idempotency-key k");
    assert_eq!(second["seq"], 1);
    assert_eq!(talk.ask("/pin here")["session_id"], second["session_id"]);
    assert_eq!(talk.ask(&format!("/pin --session {session} there"))["session_id"], session);
    assert_eq!(talk.ask("/model scripted"), json!({ "model": "scripted" }));
    // One that cannot be used is not taken.
    assert_eq!(code(&talk.ask("/model claude-x")), "MODEL_NOT_CONFIGURED");
    assert_eq!(talk.ask("@say Hi.")["text"], "Hi.");
    assert_eq!(talk.ask("/quit"), json!({ "quit": true }));
    let (ran, left) = talk.end();
    assert_eq!((ran.code, left.len()), (0, 0));
}

#[test]
fn lines_are_answered_while_a_turn_runs() {
    let (mut talk, _) = talk(&[]);
    talk.say("/id turn @stall");
    talk.say("/id next @say Next.");
    assert_eq!(talk.ask("/id pin /pin x")["id"], "pin");
    assert_eq!(code(&talk.ask("/turn --policy reject @say No.")), "SESSION_BUSY");
    let queued = talk.ask("/turn --detach --policy queue @say Queued.");
    assert_eq!(talk.ask("/queue")["items"][0]["turn"], queued["turn"]);
    assert_eq!(talk.ask("/queue --cancel 1")["session_id"], queued["session_id"]);
    talk.say("/id stop /interrupt 0");
    let answers = [talk.next(), talk.next(), talk.next()];
    let of = |id: &str| &answers.iter().find(|answer| answer["id"] == id).unwrap()["answer"];
    assert_eq!(
        (&of("turn")["status"], &of("turn")["error"]["code"]),
        (&"interrupted".into(), &"TURN_INTERRUPTED".into())
    );
    assert_eq!(of("stop")["seq"], of("turn")["seq"]);
    assert_eq!(of("next")["text"], "Next.");
}

#[test]
fn a_line_that_cannot_be_taken_harms_no_other() {
    let mut input = b"@say \xff\n".to_vec();
    input.extend(vec![b'a'; 12 * 1024 * 1024]);
    input.extend(b"\n@say Still here.");
    let ran = cli(&["chat", "--json"]).stdin(input).run();
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((code(&lines[1]), code(&lines[2])), ("INVALID_REQUEST", "PAYLOAD_TOO_LARGE"));
    assert_eq!((lines.len(), &lines[3]["text"]), (4, &"Still here.".into()));
}

#[test]
fn ctrl_c_interrupts_the_turn_and_a_second_one_leaves() {
    let ran = cli(&["chat"]).stdin("@say One @stall\n@say Two.\n").interrupted_at("One", None).run();
    assert_eq!((ran.code, ran.out.as_str()), (0, "One\nTwo.\n"), "{}", ran.err);
    assert!(ran.err.contains("TURN_INTERRUPTED"), "{}", ran.err);
    let stubborn = "@say One @call test_sleep {\"ms\":600000,\"ignore_cancel\":true}\n";
    let left = cli(&["chat"])
        .with_tools()
        .env("MEERKAT_TOOLS__GRACE_MS", "600000")
        .stdin(stubborn)
        .interrupted_at("One\n", Some("Interrupting"))
        .run();
    assert_eq!(left.code, ErrorCode::TurnInterrupted.exit_code(), "{}", left.err);
}
