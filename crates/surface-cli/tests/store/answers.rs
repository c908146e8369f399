//! What a command prints of an answer: the whole, whoever owns the data directory and however late it is read.

use std::{io::Read as _, process::Stdio};

use super::Stage;

/// The answer of `@long <bytes>`, and the end of its line.
#[track_caller]
fn check(printed: &str, bytes: usize) {
    assert!(printed.len() == bytes + 1 && !printed.contains("left out"), "{} bytes of {bytes}", printed.len());
}

#[test]
fn an_answer_is_whole_in_a_process_of_its_own_and_beside_a_server() {
    let stage = Stage::new();
    for bytes in [32_769, 200_000] {
        let prompt = format!("@long {bytes}");
        check(&stage.run(&["run", "-q", &prompt]).out, bytes);
        check(&stage.run(&["run", "-q", "--ephemeral", &prompt]).out, bytes);
        assert_eq!(stage.json(&["run", &prompt])["text"].as_str().unwrap().len(), bytes);
    }
    let _server = stage.serve();
    for bytes in [32_769, 200_000] {
        check(&stage.run(&["run", "-q", &format!("@long {bytes}")]).out, bytes);
    }
    let history = stage.run(&["sessions", "history", "last", "--full"]).out;
    assert!(history.len() > 200_000 && !history.contains("left out"), "{} bytes", history.len());
}

/// It begins when the turn has ended: by then most deltas are lost, and the pipe has long been full.
#[test]
fn a_reader_that_begins_late_gets_all() {
    for is_attached in [false, true] {
        let stage = Stage::new();
        let id = stage.json(&["run", "@say One."])["session_id"].as_str().unwrap().to_owned();
        let _server = is_attached.then(|| stage.serve());
        let mut command = stage.command(&["run", "-q", "--session", &id, "@long 300000"]);
        let mut slow = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The process itself serves this one where there is no server.
        let follow = ["events", &id, "--since", "4", "--until", "turn_completed"];
        assert_eq!(stage.run(&follow).code, 0);
        let (mut out, mut err) = (String::new(), String::new());
        slow.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        slow.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert_eq!((slow.wait().unwrap().code(), err.as_str()), (Some(0), ""));
        check(&out, 300_000);
    }
}
