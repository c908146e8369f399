//! docs/agent.md is what these runs print: a bug is found, mended and tested at a terminal, over REST and JSON-RPC with a
//! kill between, and over MCP.
//!
//! `MEERKAT_BLESS=1` writes the page anew.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Stdio};

use meerkat_testkit::{needs, until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::typed::Typed;
use crate::drive::{
    meerkat,
    server::{SERVE, Server},
};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/agent.md");
const BUG: &str = "# Prints the mean of its arguments.\nsum=0\nfor value; do sum=$((sum + value)); done\n\
                   echo $((sum / ($# + 1)))\n";
const TEST: &str = "#!/bin/sh\n[ \"$(sh mean.sh 2 4)\" = 3 ] && echo ok\n";
const PROMPT: &str = r#"@say I look for the divisor. @call grep {"pattern":"sum /"} @say It is off by one.
    @call edit {"path":"mean.sh","old":"($# + 1)","new":"$#"}
    @step @call shell {"command":"./test.sh"} @say Fixed: the tests pass."#;
const PIPED: &str = r#"@call shell {"command":"./test.sh"} @call shell {"command":"curl -s https://example.com"}
    @call read {"path":"../../../etc/passwd"} @say Again."#;
const EDIT: &str = r#"@call edit {"path":"mean.sh","old":"($# + 1)","new":"$#"} @say Fixed."#;
const SERVED: &str = r#"@call mcp__other__session_list {} @say It has no sessions yet."#;
/// Confinement that the page shows. Elsewhere commands ask each time, and a rule is not proposed.
const WHOLE: &str = "confined: files, network, processes and git hooks apart";

/// Makes a home folder with the project.
fn home() -> TempDir {
    let home = TempDir::new().unwrap();
    let project = home.path().join("stats");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("mean.sh"), BUG).unwrap();
    fs::write(project.join("test.sh"), TEST).unwrap();
    fs::set_permissions(project.join("test.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    home
}

#[track_caller]
fn is_fixed(home: &TempDir) {
    let text = fs::read_to_string(home.path().join("stats/mean.sh")).unwrap();
    assert!(text.ends_with("echo $((sum / $#))\n"), "{text}");
}

fn configure(home: &TempDir, text: &str) {
    let folder = home.path().join(".config/meerkat");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("meerkat.toml"), text).unwrap();
}

/// Replaces what differs from run to run.
fn same(home: &TempDir, text: &str) -> String {
    let text = text.replace(&home.path().display().to_string(), "…");
    let masks = [
        ("hhhhhhhh-hhhh-hhhh-hhhh-hhhhhhhhhhhh", "01a20899-…"),
        ("0000-00-00T00:00:00.000Z", "2026-11-23T13:30:31.338Z"),
        ("(# ms)", "(12 ms)"),
        (": #.# s", ": 0.0 s"),
        ("127.0.0.1:#", "127.0.0.1:7670"),
    ];
    masks.iter().fold(text, |text, (pattern, shown)| mask(&text, pattern, shown))
}

/// Replaces what has a form: `h` is a hexadecimal digit, `0` a digit, `#` are some digits.
fn mask(text: &str, pattern: &str, shown: &str) -> String {
    let (mut masked, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let length = matched(rest.as_bytes(), pattern.as_bytes());
        masked.push_str(length.map_or(&rest[..first.len_utf8()], |_| shown));
        rest = &rest[length.unwrap_or(first.len_utf8())..];
    }
    masked
}

/// Counts the bytes at the beginning that have a form.
fn matched(text: &[u8], pattern: &[u8]) -> Option<usize> {
    pattern.iter().try_fold(0, |at, form| {
        let digits = text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let byte = *text.get(at)?;
        match form {
            b'h' => byte.is_ascii_hexdigit().then_some(at + 1),
            b'0' => (digits > 0).then_some(at + 1),
            b'#' => (digits > 0).then_some(at + digits),
            form => (*form == byte).then_some(at + 1),
        }
    })
}

/// Returns what a terminal shows in the end: a line that was drawn over is left out.
fn shown(screen: &str) -> String {
    let lines = screen.split('\n').map(|line| {
        let line = line.trim_end_matches('\r');
        line.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or_default().trim_end().to_owned()
    });
    let told = |line: &String| !line.starts_with("The scripted model answers");
    lines.filter(told).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// Runs a command in the project without a terminal, both outputs in one.
fn piped(home: &TempDir, args: &[&str]) -> String {
    let (mut output, writer) = std::io::pipe().unwrap();
    let mut command = meerkat(home, args);
    command.current_dir(home.path().join("stats")).stdin(Stdio::null());
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    path(&mut command);
    let mut child = command.spawn().unwrap();
    drop(command);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut output, &mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    same(home, &shown(&text))
}

fn path(command: &mut std::process::Command) {
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
}

/// Answers two questions. Returns what was shown, and whether commands are confined here.
fn terminal() -> (String, TempDir, bool) {
    let home = home();
    let mut command = meerkat(&home, &["run", PROMPT]);
    path(command.current_dir(home.path().join("stats")));
    let mut typed = Typed::begin(command, home);
    typed.wait("Allow edit?");
    typed.question();
    typed.keys("y\r");
    typed.wait("Allow shell?");
    typed.question();
    let is_whole = typed.screen().contains(WHOLE);
    typed.keys(if is_whole { "always\r" } else { "y\r" });
    let (screen, home) = typed.end();
    is_fixed(&home);
    assert!(screen.contains("exit code 0") && screen.contains("Fixed: the tests pass."), "{screen}");
    (same(&home, &shown(&screen)), home, is_whole)
}

fn serve(home: &TempDir) -> Server {
    let folder = home.path().join("stats");
    configure(home, &format!("[tools]\nfolders = {{ stats = {:?} }}\n", folder.display().to_string()));
    let mut command = meerkat(home, &SERVE);
    path(command.arg("--approve"));
    Server::run(command, &[], None)
}

/// Fields of an answer, as `jq -c` shows them.
fn only(answer: &Value, names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), answer[*name].clone())).collect::<serde_json::Map<_, _>>().into()
}

fn rest() -> (String, String) {
    let home = home();
    let mut lines = Vec::new();
    let mut server = serve(&home);
    let base = "http://127.0.0.1:7670";
    let sessions = "/v1/sessions";
    for body in [json!({ "workspace": "stats" }), json!({ "workspace": "/etc" })] {
        lines.push(format!("$ m -d '{body}' {base}{sessions}"));
        lines.push(server.send_with_token("POST", sessions, &[], &body.to_string()).body);
    }
    let id = serde_json::from_str::<Value>(&lines[1]).unwrap()["session_id"].as_str().unwrap().to_owned();
    let (session, turn) = (format!("{sessions}/{id}"), json!({ "prompt": EDIT, "attended": true }));
    lines.push(format!("$ m -H 'Prefer: respond-async' -d '{turn}' {base}{session}/turns"));
    let prefer = [("prefer", "respond-async")];
    lines.push(server.send_with_token("POST", &format!("{session}/turns"), &prefer, &turn.to_string()).body);
    let read = |server: &Server| server.send_with_token("GET", &session, &[], "").json();
    until("it waits", || read(&server)["state"] == "waiting");
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    lines.push("$ kill -9 $SERVER\n$ meerkat serve --rest --rpc --mcp --approve &".to_owned());
    let server = serve(&home);
    let view = only(&read(&server), &["state", "pending_approvals"]);
    lines.push(format!("$ m {base}{session} | jq -c '{{state, pending_approvals}}'\n{view}"));
    let decision = json!({
        "session_id": id, "call_id": view["pending_approvals"][0]["call_id"], "decision": "approve", "scope": "session",
    });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "turn/approve", "params": decision });
    let decided = server.rpc("turn/approve", &decision);
    lines.push(format!("$ m -d '{call}' {base}/rpc\n{decided}"));
    until("it ends", || read(&server)["state"] == "idle");
    is_fixed(&home);
    let seq = decided["result"]["seq"].as_u64().unwrap() - 1;
    let events = format!("{session}/events?since_seq={seq}");
    let page = server.send_with_token("GET", &events, &[], "").json();
    let types = page["items"].as_array().unwrap().iter().map(|event| event["type"].as_str().unwrap());
    let types: Vec<&str> = types.collect();
    let expected =
        ["approval_decided", "tool_allowed", "tool_started", "tool_finished", "assistant_message", "turn_completed"];
    assert_eq!(types, expected);
    let events = format!("$ m '{base}{events}' | jq -r '.items[].type'\n{}", types.join("\n"));
    (same(&home, &lines.join("\n")), same(&home, &events))
}

fn mcp() -> String {
    let home = home();
    let server = serve(&home);
    let mut lines = Vec::new();
    let mut call = |tool: &str, arguments: Value, names: &[&str]| {
        let result = server.mcp(tool, &arguments);
        let answer = &result["structuredContent"];
        lines.push(format!("> {tool} {arguments}\n{}", only(answer, names)));
        answer.clone()
    };
    let created = call("session_create", json!({ "workspace": "stats" }), &["session_id"]);
    let id = created["session_id"].clone();
    let start = json!({ "session_id": id, "prompt": PROMPT, "attended": true, "wait": false });
    call("turn_start", start, &["turn", "seq"]);
    let target = json!({ "session_id": id });
    let read = || server.mcp("session_read", &target)["structuredContent"].clone();
    let waiting = |name: &str| {
        until("a call waits", || read()["pending_approvals"][0]["name"] == name);
        read()["pending_approvals"][0]["call_id"].clone()
    };
    let decide = |call_id: &Value, scope: &str| json!({ "session_id": id, "call_id": call_id, "decision": "approve", "scope": scope });
    call("turn_approve", decide(&waiting("edit"), "once"), &["seq"]);
    let shell = waiting("shell");
    let refused = call("turn_approve", decide(&shell, "always"), &["code", "message"]);
    assert_eq!(refused["code"], "INVALID_REQUEST", "{refused}");
    call("turn_approve", decide(&shell, "session"), &["seq"]);
    until("it ends", || read()["state"] == "idle");
    is_fixed(&home);
    let page = call("session_events", json!({ "session_id": id, "since_seq": 0 }), &[]);
    lines.pop();
    let finished = page["items"].as_array().unwrap().iter().filter(|event| event["type"] == "tool_finished");
    let finished: Vec<String> =
        finished.map(|event| only(event, &["type", "name", "outcome", "output"]).to_string()).collect();
    assert_eq!(finished.len(), 3, "{finished:#?}");
    lines.push(format!("> session_events {}\n{}", json!({ "session_id": id, "since_seq": 0 }), finished.join("\n")));
    same(&home, &lines.join("\n"))
}

/// Calls a tool of a server, which is the program itself.
fn server() -> (String, String) {
    let home = home();
    let program = env!("CARGO_BIN_EXE_meerkat");
    let args = ["--data-dir", &home.path().join("other").display().to_string(), "mcp"].map(str::to_owned);
    configure(&home, &format!("[servers.other]\ncommand = {program:?}\nargs = {args:?}\napproval = \"reads\"\n"));
    let called = piped(&home, &["run", SERVED]);
    let listed = piped(&home, &["servers"]);
    assert!(called.contains("mcp__other__session_list succeeded"), "{called}");
    (called, listed)
}

#[test]
fn the_page_about_a_session_with_hands_is_what_the_program_prints() {
    let (terminal, home, is_confined) = terminal();
    needs!("a kernel that gives commands namespaces" => is_confined);
    let rule = fs::read_to_string(home.path().join(".config/meerkat/meerkat.toml")).unwrap();
    let unattended = piped(&home, &["run", PIPED]);
    let (rest, events) = rest();
    let (called, listed) = server();
    let blocks = [
        ("bug", BUG),
        ("test", TEST),
        ("prompt", PROMPT),
        ("terminal", &terminal),
        ("rule", &rule),
        ("piped_prompt", PIPED),
        ("piped", &unattended),
        ("rest", &rest),
        ("events", &events),
        ("mcp", &mcp()),
        ("server_prompt", SERVED),
        ("server", &called),
        ("servers", &listed),
    ];
    let page = blocks.iter().fold(include_str!("page.md").to_owned(), |page, (name, block)| {
        page.replace(&format!("{{{{{name}}}}}"), block.trim_end())
    });
    if std::env::var_os("MEERKAT_BLESS").is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(Path::new(PAGE)).unwrap();
    assert!(written == page, "MEERKAT_BLESS=1 writes docs/agent.md anew; it should be:\n{page}");
}
