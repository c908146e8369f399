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

use serde_json::{Value, json};

use crate::drive::meerkat;

/// Longest wait for a line.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of `meerkat acp` and its client.
struct Editor {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// Updates that were shown.
    shown: Vec<Value>,
}

impl Editor {
    fn start(dir: &Path) -> Self {
        let mut command = meerkat(dir, &["acp"]);
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
        Self { child, stdin, lines, shown: Vec::new() }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin, "{message}").unwrap();
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
                "usage_update" | "user_message_chunk" => continue,
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
