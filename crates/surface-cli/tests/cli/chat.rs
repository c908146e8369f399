//! `chat`, from a pipe: as text, and as answers with the numbers of their lines.

use std::io::Write as _;

use meerkat_errors::ErrorCode;
use serde_json::{Value, json};

use crate::drive::terminal::{Talk, cli};

#[test]
fn lines_from_a_pipe_are_turns_in_order_and_commands() {
    let lines = "@say One.\n\n/call session/remind kind=environment \"text=first\\nsecond\"\n/call session/pin 'text=the key is blue'\n@echo tail\n/frob\n/call session/unpin pin=5\n@say Last.\n";
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

/// They printed the ids and numbers of the answer.
#[test]
fn commands_of_a_chat_say_what_they_did() {
    let ran = cli(&["chat"]).stdin("/title One\n/new --title Two\n/title Three\n").run();
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert_eq!(ran.err.matches("The session has this title now.").count(), 2, "{}", ran.err);
    assert_eq!(ran.err.matches(" from here on.").count(), 1, "{}", ran.err);
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

/// Asks a line, and answers with the document, which carries the line's number.
#[track_caller]
fn asked(talk: &mut Talk, number: &mut u64, line: &str) -> Value {
    *number += 1;
    let mut answer = talk.ask(line);
    assert_eq!(answer["line"], *number, "{line}: {answer}");
    answer["answer"].take()
}

/// The answers of operations are those of the scenarios; here is what only a chat has.
#[test]
fn every_answer_has_the_number_of_its_line() {
    let (mut talk, created) = talk(&["--ephemeral", "--label", "a=b"]);
    let session = created["session_id"].as_str().unwrap().to_owned();
    assert_eq!(created, json!({ "session_id": session, "seq": 1, "created_at": "2026-01-01T00:00:00.000Z" }));
    let mut number = 0;
    let mut ask = |line: &str| asked(&mut talk, &mut number, line);
    assert_eq!(ask("@say Hi.")["text"], "Hi.");
    assert_eq!(ask("/call session/events since_seq=3 limit=1")["next_seq"], 4);
    assert_eq!(ask("/call session/subscribe until=turn_completed")["seq"], 4);
    let bad = ["/", "/call 'open", "/call session/pin", "/call session/subscribe", "/model", "/call session/pin txt=x"];
    for line in bad {
        let refused = ask(line);
        assert_eq!(code(&refused), "INVALID_REQUEST", "{line}");
    }
    assert_eq!(code(&ask("/frob")), "UNKNOWN_OPERATION");
    assert_eq!(code(&ask("/call session/frob")), "UNKNOWN_OPERATION");
    for operation in ["session/export", "session/retain", "session/delete", "session/resume"] {
        assert_eq!(code(&ask(&format!("/call {operation}"))), "SESSION_PERSISTENCE_DISABLED", "{operation}");
    }
    let second = ask("/new --idempotency-key k");
    assert_eq!(second["seq"], 1);
    assert_eq!(ask("/call session/pin text=here")["session_id"], second["session_id"]);
    assert_eq!(ask(&format!("/call session/pin session_id={session} text=there"))["session_id"], session);
    let third = ask("/call session/create");
    assert_ne!(third["session_id"], second["session_id"]);
    assert_eq!(ask("@say Hi.")["session_id"], second["session_id"], "a call does not change the chat's session");
    talk.say("/quit");
    let (ran, left) = talk.end();
    assert_eq!((ran.code, left.len()), (0, 0));
}

#[test]
fn lines_are_answered_while_a_turn_runs() {
    let (mut talk, _) = talk(&[]);
    talk.say("@stall");
    talk.say("@say Next.");
    let mut number = 2;
    let mut ask = |line: &str| asked(&mut talk, &mut number, line);
    assert!(ask("/call session/subscribe until=turn_started")["seq"].is_u64());
    assert!(ask("/call session/pin text=x")["seq"].is_u64());
    assert_eq!(code(&ask("/call turn/start 'prompt=@say No.'")), "SESSION_BUSY");
    let queued = ask("/call turn/start policy=queue wait=false 'prompt=@say Queued.'");
    assert_eq!(ask("/call turn/queue")["items"][0]["turn"], queued["turn"]);
    assert_eq!(ask("/call turn/cancel turn=1")["session_id"], queued["session_id"]);
    talk.say("/call turn/interrupt turn=0");
    let answers = [talk.next(), talk.next(), talk.next()];
    let of = |line: u64| &answers.iter().find(|answer| answer["line"] == line).unwrap()["answer"];
    assert_eq!((&of(1)["status"], &of(1)["error"]["code"]), (&"interrupted".into(), &"TURN_INTERRUPTED".into()));
    assert_eq!(of(9)["seq"], of(1)["seq"]);
    assert_eq!(of(2)["text"], "Next.");
}

/// The turn that an answer waits for may need a later line.
#[test]
fn lines_are_taken_while_an_answer_waits_for_its_turn() {
    let (mut talk, _) = talk(&[]);
    let mut number = 0;
    let tools = r#"client_tools:=[{"name":"look","description":"Looks.","input_schema":{"type":"object"}}]"#;
    let turn = format!("/call turn/start '{tools}' 'prompt=@call look {{}} @step @stall'");
    let waiting = asked(&mut talk, &mut number, &turn);
    let call_id = waiting["calls"][0]["call_id"].as_str().unwrap();
    talk.say(&format!("/call turn/answer call_id={call_id} outcome=succeeded wait=true"));
    number += 1;
    assert!(asked(&mut talk, &mut number, "/call session/subscribe until=call_answered")["seq"].is_u64());
    talk.say("/call turn/interrupt turn=0");
    let answers = [talk.next(), talk.next()];
    let of = |line: u64| &answers.iter().find(|answer| answer["line"] == line).unwrap()["answer"];
    assert_eq!(of(2)["status"], "interrupted");
    assert_eq!(of(4)["seq"], of(2)["seq"]);
}

/// A text for the running turn is recorded while the turn runs, and stays when it is interrupted. Without a turn it is a
/// prompt.
#[test]
fn a_text_steers_the_running_turn() {
    let ran = cli(&["chat"]).stdin("@stall\n/steer @say It's steered.\n/interrupt\n@echo messages\n").run();
    // Before it comes the answer to /interrupt.
    assert_eq!((ran.code, ran.out.lines().last()), (0, Some("messages: 3")), "{}", ran.err);
    assert!(ran.err.contains("steered: @say It's steered."), "{}", ran.err);
    assert_eq!(cli(&["chat"]).stdin("/steer @say Alone.\n").run().out, "Alone.\n");
    let other = "@stall\n/model scripted\n/new\n/steer @say Alone.\n";
    let ran = cli(&["chat"]).stdin(other).interrupted_at("Alone.", None).run();
    let note = "The text is for turn 0, which was not shown so far; scripted answers from the next prompt on.";
    assert!(ran.err.contains(note), "{}", ran.err);
}

/// What a line answers while a turn's text is being shown begins a line of its own.
#[test]
fn an_answer_beside_a_text_has_its_own_line() {
    let (lines, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"@say Begun @stall\n").unwrap();
    let mut writer = Some(writer);
    let chat = cli(&["chat"]).stdin_from(lines).when(0, "Begun", move || {
        // Its end closes the chat once the turn is over.
        let mut writer = writer.take().expect("the text is shown once");
        writer.write_all(b"/call session/pin 'text=the key is blue'\n/interrupt\n").unwrap();
    });
    let ran = chat.run();
    assert_eq!((ran.code, ran.out.lines().next()), (0, Some("Begun")), "{}{}", ran.out, ran.err);
    assert!(
        ran.out.lines().skip(1).all(|line| line.starts_with("session_id  ") || line.starts_with("seq  ")),
        "{}",
        ran.out
    );
}

/// An effort holds from the next turn on, in new sessions, too, and beside the session's other options.
#[test]
fn an_effort_is_for_the_turns_that_follow() {
    let lines = "/effort\n@echo options\n/effort high\n/effort\n@echo options\n/effort lots\n";
    let ran = cli(&["chat", "--seed", "7"]).stdin(lines).run();
    let said: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("options: ")).collect();
    let (seed, both) = (r#"{"seed":7}"#, r#"{"seed":7,"effort":"high"}"#);
    assert_eq!(said, [seed, both].map(|options| format!("options: {options}")), "{}", ran.err);
    for note in [
        "The effort of scripted is its vendor's choice; /effort LEVEL takes another.",
        "From here on the effort of scripted is high.",
        "The effort of scripted is high; /effort LEVEL takes another.",
        "possible values: none, low, medium, high, default",
    ] {
        assert!(ran.err.contains(note), "{note}: {}", ran.err);
    }
    assert_eq!(ran.err.matches("From here on").count(), 1, "{}", ran.err);
}

/// What the model does not have is refused by its name, when it is chosen: the effort, and the session's options.
#[test]
fn a_model_and_an_effort_that_do_not_fit_each_other_are_refused_when_they_are_chosen() {
    let chat = |args: &[&str], lines: &str| {
        let command = cli(&[&["chat"], args].concat()).env("OPENAI_API_KEY", "sk-0123456789");
        command.stdin(lines).run()
    };
    let refusal = "options.effort: gpt-4o does not take this option";
    for (args, lines, refusals, last) in [
        (&[][..], "/model gpt-4o\n/effort low\n/effort none\n/effort\n", 1, "The effort of gpt-4o is none;"),
        (&[], "/effort low\n/model gpt-4o\n/model\n", 1, "scripted answers;"),
        (&[], "/effort low\n/model gpt-4o\n/effort default\n/model gpt-4o\n/model\n", 1, "gpt-4o answers;"),
        (&["--effort", "low"], "/effort none\n/effort default\n/effort\n", 0, "The effort of scripted is low;"),
        (&["--effort", "low"], "/model gpt-4o\n/model\n", 1, "scripted answers;"),
        (&["--effort", "low"], "/effort none\n/model gpt-4o\n/model\n", 0, "gpt-4o answers;"),
    ] {
        let ran = chat(&[args, &["--model", "scripted"]].concat(), lines);
        assert_eq!((ran.code, ran.err.matches(refusal).count()), (0, refusals), "{lines}: {}", ran.err);
        assert!(ran.err.lines().last().is_some_and(|line| line.starts_with(last)), "{lines}: {}", ran.err);
        // A choice of this chat can be taken back.
        let says = ran.err.contains("; `/effort default` takes back the effort that you chose here");
        assert_eq!(says, lines.starts_with("/effort low\n/model"), "{lines}: {}", ran.err);
    }
}

#[test]
fn a_line_that_cannot_be_taken_harms_no_other() {
    let mut input = b"@say \xff\n".to_vec();
    input.extend(vec![b'a'; 12 * 1024 * 1024]);
    input.extend(b"\n@say Still here.");
    let ran = cli(&["chat", "--json"]).stdin(input).run();
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let codes = (code(&lines[1]["answer"]), code(&lines[2]["answer"]));
    assert_eq!(codes, ("INVALID_REQUEST", "PAYLOAD_TOO_LARGE"));
    assert_eq!((lines.len(), &lines[3]["answer"]["text"]), (4, &"Still here.".into()));
    assert_eq!(lines[3]["line"], 3);
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
