//! SIGTERM and SIGHUP end every command alike: running turns are settled, the exit code is 0, no socket is left. So does
//! Ctrl-C if the command does not use it itself; then the exit code is 130, at a server 0.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use meerkat_testkit::until;
use serde_json::json;

use crate::drive::{
    TOKEN, meerkat, meerkat_after,
    server::{Server, ask},
    signal,
};

const INITIALIZE: &str = concat!(
    r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"#,
    r#""clientInfo":{"name":"t","version":"1"}}}"#,
    "\n"
);

/// The same of the Agent Client Protocol, whose versions are numbers.
const BEGIN: &str = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}\n";

/// Commands that run for long: arguments, input, the text that shows that they are at work, and the exit code after Ctrl-C
/// if that ends them.
const COMMANDS: [(&[&str], &str, &str, Option<i32>); 7] = [
    (&["--json", "serve", "--rest", "--listen", "127.0.0.1:0"], "", "listening", Some(0)),
    (&["rpc"], "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"capabilities/get\"}\n", "jsonrpc", Some(0)),
    (&["mcp"], INITIALIZE, "protocolVersion", Some(0)),
    (&["chat"], "@say Hello.\n", "Hello.", None),
    (&["run", "--events", "@say Wait @stall"], "", "text_delta", None),
    (&["events", "last", "--since", "0", "--follow"], "", "turn completed", Some(130)),
    (&["acp"], BEGIN, "protocolVersion", Some(0)),
];

fn begin(mut command: Command, sent: &str, says: &str) -> Child {
    command.env("MEERKAT_TOKEN", TOKEN).env("MEERKAT_SERVE__DRAIN_MS", "300");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(sent.as_bytes()).unwrap();
    let mut said = Vec::new();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    while !String::from_utf8_lossy(&said).contains(says) {
        let bytes = stdout.fill_buf().unwrap();
        assert!(!bytes.is_empty(), "it ended with {:?}", String::from_utf8_lossy(&said));
        said.extend_from_slice(bytes);
        let read = bytes.len();
        stdout.consume(read);
    }
    child
}

/// The sockets below a folder.
fn sockets(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let found = entries.flat_map(|entry| match entry.file_type().unwrap() {
        kind if kind.is_dir() => sockets(&entry.path()),
        kind if kind.is_socket() => vec![entry.path()],
        _ => Vec::new(),
    });
    found.collect()
}

/// Nobody types the prompt that it waits for. Ctrl-C killed it and left the socket.
#[test]
fn a_command_that_reads_its_prompt_ends_in_order() {
    for (name, code) in [("TERM", 0), ("INT", 130)] {
        let dir = meerkat_testkit::folder();
        let mut command = meerkat(&dir, &["run", "-"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("it owns its data directory", || !sockets(dir.path()).is_empty());
        signal(&child, name);
        // To wait for a child would end its input.
        until("it ends", || child.try_wait().unwrap().is_some());
        assert_eq!((child.wait().unwrap().code(), sockets(dir.path())), (Some(code), Vec::new()), "{name}");
    }
}

/// A supervisor's first signal came while the data directory was being opened, and was lost or killed the process.
#[test]
fn a_signal_while_a_server_starts_is_kept() {
    let dir = meerkat_testkit::folder();
    // An owner that cannot be attached to holds up the start.
    let mut owner = begin(meerkat(&dir, COMMANDS[1].0), COMMANDS[1].1, COMMANDS[1].2);
    fs::remove_file(&sockets(dir.path())[0]).unwrap();
    let mut starting = meerkat(&dir, COMMANDS[0].0);
    starting.env("MEERKAT_TOKEN", TOKEN).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut starting = starting.spawn().unwrap();
    let caught = || fs::read_to_string(format!("/proc/{}/status", starting.id())).unwrap_or_default();
    let is_caught = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("SigCgt:").map(str::to_owned));
        line.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> 14 & 1 == 1)
    };
    until("it takes the signal", || is_caught(caught()));
    signal(&starting, "TERM");
    owner.kill().unwrap();
    owner.wait().unwrap();
    let mut said = String::new();
    starting.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(starting.wait().unwrap().code(), Some(0), "{said}");
}

#[test]
fn every_command_ends_the_same_way() {
    for (args, sent, says, left) in COMMANDS {
        for (name, code) in [("TERM", Some(0)), ("HUP", Some(0)), ("INT", left)] {
            if code.is_none() {
                continue;
            }
            let dir = meerkat_testkit::folder();
            assert!(meerkat(&dir, &["run", "Hello."]).output().unwrap().status.success());
            let mut child = begin(meerkat(&dir, args), sent, says);
            assert_eq!(sockets(dir.path()).len(), 1, "{args:?}");
            signal(&child, name);
            let mut rest = String::new();
            child.stdout.as_mut().unwrap().read_to_string(&mut rest).unwrap();
            assert_eq!(child.wait().unwrap().code(), code, "{args:?} {name}: {rest}");
            assert_eq!(sockets(dir.path()), Vec::<PathBuf>::new(), "{args:?} {name}");
            if args[0] == "run" {
                assert!(rest.contains("turn_interrupted"), "{rest}");
            }
        }
    }
}

/// The turn went on in the process that served it, and the exit code was 0.
#[test]
fn a_command_beside_a_server_ends_its_turn() {
    for (args, sent) in [(COMMANDS[4].0, ""), (&["chat"], "@say Wait @stall\n")] {
        let dir = meerkat_testkit::folder();
        let mut server = begin(meerkat(&dir, COMMANDS[0].0), "", "listening");
        let mut child = begin(meerkat(&dir, args), sent, "Wait");
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
        let events = meerkat(&dir, &["events", "last", "--since", "0", "--until", "turn_interrupted"]).output();
        assert!(events.unwrap().status.success());
        signal(&server, "TERM");
        assert_eq!(server.wait().unwrap().code(), Some(0));
    }
}

/// A server waited for every turn over a WebSocket. It would wait for an hour.
#[test]
fn a_second_signal_ends_a_server_at_once() {
    let mut server = Server::start(&[("MEERKAT_SERVE__DRAIN_MS", "3600000")]);
    let mut socket = server.websocket();
    let id = server.session();
    ask(&mut socket, 1, "turn/start", &json!({ "session_id": id, "prompt": "@say Wait @stall" }));
    let path = format!("/v1/sessions/{id}");
    until("its turn runs", || server.send_with_token("GET", &path, &[], "").json()["state"] == "running");
    server.terminate();
    // Signals that come together are one.
    until("it drains", || server.send_with_token("GET", "/readyz", &[], "").status == 503);
    assert_eq!(server.child.try_wait().unwrap(), None, "its turn runs");
    server.terminate();
    until("it ends", || server.child.try_wait().unwrap().is_some());
}

/// `nohup` makes a server ignore SIGHUP, and a script makes a background command ignore Ctrl-C.
#[test]
fn a_command_that_was_started_to_ignore_a_signal_goes_on() {
    for (name, (args, sent, says, _)) in [("HUP", COMMANDS[0]), ("INT", COMMANDS[5])] {
        let dir = meerkat_testkit::folder();
        assert!(meerkat(&dir, &["run", "Hello."]).output().unwrap().status.success());
        let mut child = begin(meerkat_after(&format!(r#"trap "" {name}"#), &dir, args), sent, says);
        signal(&child, name);
        signal(&child, name);
        assert_eq!(child.try_wait().unwrap(), None, "{name}");
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{name}");
    }
}
