//! `meerkat acp` as an editor has it: a process that is killed, and the session in the next one.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};

use meerkat_testkit::until;
use serde_json::{Value, json};

use crate::drive::meerkat;

/// Longest wait for a line.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of `meerkat acp` and its client.
struct Editor {
    child: Child,
    /// `None` when the client has left.
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Updates that were shown.
    shown: Vec<Value>,
}

impl Editor {
    fn start(dir: &Path) -> Self {
        Self::with(dir, &[])
    }

    fn with(dir: &Path, env: &[(&str, &str)]) -> Self {
        let mut command = meerkat(dir, &["acp"]);
        command.envs(env.iter().copied());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin: Some(stdin), lines, shown: Vec::new() }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_ref().unwrap(), "{message}").unwrap();
    }

    /// Reads up to a message, and keeps the updates before it.
    fn read_to(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            if what(&message) {
                return message;
            }
            if message["method"] == "session/update" {
                self.shown.push(message["params"]["update"].clone());
            }
        }
    }

    fn ask(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params }));
    }

    fn ends(&mut self, method: &str, params: Value) -> Value {
        self.ask(method, params);
        let answer = self.read_to(|message| message["id"] == method);
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    /// What a person sees: texts joined, and the calls.
    fn seen(&self) -> Vec<(String, String)> {
        let mut seen: Vec<(String, String)> = Vec::new();
        for update in &self.shown {
            let (kind, text) = match update["sessionUpdate"].as_str().unwrap() {
                "usage_update" | "user_message_chunk" | "available_commands_update" | "config_option_update" => {
                    continue;
                }
                kind @ ("agent_message_chunk" | "agent_thought_chunk") => {
                    (kind, update["content"]["text"].as_str().unwrap().to_owned())
                }
                kind => (kind, update.to_string()),
            };
            match seen.last_mut() {
                Some((last, before)) if last == kind => before.push_str(&text),
                _ => seen.push((kind.to_owned(), text)),
            }
        }
        seen
    }
}

impl Drop for Editor {
    fn drop(&mut self) {
        // It may have been killed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_killed_process_leaves_all_that_was_shown_and_the_call_that_waits() {
    let dir = meerkat_testkit::folder();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let prompt =
        |session: &Value, text: &str| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    let mut editor = Editor::start(dir.path());
    let session = editor.ends("session/new", json!({ "cwd": work, "mcpServers": [] }))["sessionId"].clone();
    editor.ends("session/prompt", prompt(&session, "@think Once. @say First."));
    let call = r#"@say Next. @call write {"path":"k.txt","content":"kept"} @say Done."#;
    editor.ask("session/prompt", prompt(&session, call));
    let is_question = |message: &Value| message["method"] == "session/request_permission";
    let asked = editor.read_to(is_question);
    editor.child.kill().unwrap();
    editor.child.wait().unwrap();
    let seen = editor.seen();

    let mut editor = Editor::start(dir.path());
    editor.ends("session/load", json!({ "sessionId": session, "cwd": work, "mcpServers": [] }));
    assert_eq!(editor.seen(), seen);
    let again = editor.read_to(is_question);
    assert_eq!(again["params"]["toolCall"]["toolCallId"], asked["params"]["toolCall"]["toolCallId"]);
    assert!(!work.join("k.txt").exists());
    let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
    editor.send(&json!({ "jsonrpc": "2.0", "id": again["id"], "result": result }));
    editor.read_to(|message| {
        message["params"]["update"]["content"]["text"].as_str().is_some_and(|text| text.contains("Done"))
    });
    assert_eq!(fs::read_to_string(work.join("k.txt")).unwrap(), "kept");
}

/// The editor is gone without a word, in the middle of a turn. What its user would have decided, the next one decides.
#[test]
fn an_editor_that_disappears_leaves_a_session_that_another_one_loads() {
    let dir = meerkat_testkit::folder();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let mut editor = Editor::start(dir.path());
    let session = editor.ends("session/new", json!({ "cwd": work, "mcpServers": [] }))["sessionId"].clone();
    editor.ends("session/set_mode", json!({ "sessionId": session, "modeId": "edit" }));
    let call = r#"@say Next. @call write {"path":"k.txt","content":"kept"} @say Done."#;
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": call }] });
    editor.ask("session/prompt", prompt);
    let is_question = |message: &Value| message["method"] == "session/request_permission";
    let asked = editor.read_to(is_question);
    // Both pipes: nothing more can be written either.
    editor.stdin = None;
    editor.lines = channel().1;
    until("the process has ended", || editor.child.try_wait().unwrap().is_some());
    assert!(!work.join("k.txt").exists());

    let mut next = Editor::start(dir.path());
    let loaded = next.ends("session/load", json!({ "sessionId": session, "cwd": work, "mcpServers": [] }));
    assert_eq!(loaded["modes"]["currentModeId"], "edit", "{loaded}");
    let again = next.read_to(is_question);
    assert_eq!(again["params"]["toolCall"]["toolCallId"], asked["params"]["toolCall"]["toolCallId"]);
    let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
    next.send(&json!({ "jsonrpc": "2.0", "id": again["id"], "result": result }));
    next.read_to(|message| {
        message["params"]["update"]["content"]["text"].as_str().is_some_and(|text| text.contains("Done"))
    });
    assert_eq!(fs::read_to_string(work.join("k.txt")).unwrap(), "kept");
}

/// Without any question the configuration lets a file be written; the mode `read` does not, and says so.
#[test]
fn a_mode_does_less_than_the_configuration_allows() {
    let dir = meerkat_testkit::folder();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let mut editor = Editor::with(dir.path(), &[("MEERKAT_TOOLS__ASK", "never")]);
    let opened = editor.ends("session/new", json!({ "cwd": work, "mcpServers": [] }));
    assert_eq!(opened["modes"]["currentModeId"], "full", "{opened}");
    let session = &opened["sessionId"];
    let call = r#"@call write {"path":"k.txt","content":"kept"} @echo last_result"#;
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": call }] });
    editor.ends("session/set_mode", json!({ "sessionId": session, "modeId": "read" }));
    editor.ends("session/prompt", prompt.clone());
    assert!(!work.join("k.txt").exists());
    assert!(editor.seen().iter().any(|(_, text)| text.contains("This turn may change nothing")), "{:?}", editor.seen());
    editor.ends("session/set_mode", json!({ "sessionId": session, "modeId": "full" }));
    editor.ends("session/prompt", prompt);
    assert_eq!(fs::read_to_string(work.join("k.txt")).unwrap(), "kept");
}
