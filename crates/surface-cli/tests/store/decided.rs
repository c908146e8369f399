//! A turn whose call was approved just before its process was killed: short commands leave it as it is, and it goes on
//! once when it is asked for.

use std::{fs, io::BufRead as _, sync::mpsc};

use meerkat_errors::ErrorCode;
use meerkat_service::{
    SessionId,
    clock::{Clock as _, SystemClock},
    session::event::{ApprovalDecided, Decision, Event, Record, Scope},
    store::open_stores,
};
use meerkat_testkit::{until, until_some};
use serde_json::Value;

use super::{Stage, signal};

const PROMPT: &str = r#"@call test_ask {"name":"log","line":"asked","lasting":true} @say Done."#;

/// Leaves such a turn; returns its session and its call.
fn left_approved(stage: &Stage) -> (String, String) {
    let folder = stage.0.path().join(".config/meerkat");
    fs::create_dir_all(&folder).unwrap();
    let tools = format!("[tools]\ntest_dir = {:?}\n", stage.0.path().display().to_string());
    fs::write(folder.join("meerkat.toml"), tools).unwrap();
    let mut owner = stage.start(&["run", "--attended", "--events", PROMPT]);
    let asked: Value = serde_json::from_str(&owner.until("approval_requested")).unwrap();
    assert_eq!((&asked["seq"], &asked["preview"]), (&4.into(), &"+asked".into()));
    drop(owner);
    let [session_id, call_id] = ["session_id", "call_id"].map(|key| asked[key].as_str().unwrap().to_owned());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let events = open_stores(&stage.0.path().join("data")).unwrap().events;
        let session_id: SessionId = session_id.parse().unwrap();
        let lease = events.lease(session_id).await.unwrap();
        let (decision, scope) = (Decision::Approve, Scope::Once);
        let decided = ApprovalDecided { call_id: call_id.clone(), decision, scope, reason: None, answer: None };
        let (time, event) = (SystemClock::new().now(), Event::ApprovalDecided(decided));
        let record = Record { session_id, seq: 5, turn: Some(0), time, event };
        events.stage(&lease, &[record]).unwrap().durable().await.unwrap();
        events.give_up(lease).await;
    });
    (session_id, call_id)
}

/// A command that decides runs the turn, if no other process does: it says so, and stays no longer than it is let.
#[test]
fn a_command_that_decides_says_that_it_waits_for_the_turn() {
    let stage = Stage::new();
    let folder = stage.0.path().join(".config/meerkat");
    fs::create_dir_all(&folder).unwrap();
    let tools = format!("[tools]\ntest_dir = {:?}\n", stage.0.path().display().to_string());
    fs::write(folder.join("meerkat.toml"), tools).unwrap();
    let ask = r#"@call test_ask {"name":"log","line":"asked"}"#;
    let mut owner = stage.start(&["run", "--attended", "--events", &format!("{ask} @say On. @stall")]);
    let asked: Value = serde_json::from_str(&owner.until("approval_requested")).unwrap();
    signal(&owner.child, "KILL");
    owner.child.wait().unwrap();
    let [id, call_id] = ["session_id", "call_id"].map(|key| asked[key].as_str().unwrap());
    let mut decides = stage.start(&["sessions", "approve", id, call_id]);
    let (err, (sender, said)) = (decides.err(), mpsc::channel());
    std::thread::spawn(move || err.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    let told =
        until_some("it says that it waits", || said.try_iter().find(|line| line.contains("Waiting for the turn")));
    assert!(told.contains("Ctrl-C"), "{told}");
    let log = || fs::read_to_string(stage.0.path().join("log")).unwrap_or_default();
    until("its call has run", || log() == "asked\n");
    assert_eq!(stage.json(&["sessions", "show", id])["state"], "running");
    signal(&decides.child, "INT");
    decides.child.wait().unwrap();
    assert_eq!(log(), "asked\n");
    assert_eq!(stage.json(&["run", "--session", id, "@say Again."])["text"], "Again.");
    let turns = stage.json(&["call", "session/turns", &format!("session_id={id}")]);
    assert_eq!(turns["items"][1]["status"], "interrupted", "{turns}");
}

#[test]
fn an_approved_call_runs_once_and_only_when_its_turn_is_asked_for() {
    for ask in ["resume", "approve", "serve"] {
        let stage = Stage::new();
        let (id, call_id) = left_approved(&stage);
        let log = stage.0.path().join("log");
        for _ in 0..2 {
            assert_eq!(stage.json(&["sessions", "list"])["items"][0]["state"], "running");
            assert_eq!(stage.json(&["sessions", "show", &id])["last_seq"], 5);
            let refused = stage.run(&["run", "--session", &id, "@say Never."]);
            assert_eq!(refused.code, ErrorCode::SessionBusy.exit_code(), "{}", refused.err);
        }
        assert!(!log.exists());
        let _server = match ask {
            "resume" => {
                assert_eq!(stage.json(&["resume", &id])["text"], "Done.");
                None
            }
            "approve" => {
                assert_eq!(stage.json(&["sessions", "approve", &id, &call_id])["seq"], 5);
                None
            }
            _ => Some(stage.serve()),
        };
        assert_eq!(stage.run(&["events", &id, "--since", "5", "--until", "turn_completed"]).code, 0, "{ask}");
        assert_eq!(fs::read_to_string(&log).unwrap(), "asked\n", "{ask}");
    }
}
