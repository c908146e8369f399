//! `meerkat acp` as an editor has it: a process that is killed, and the session in the next one.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use meerkat_testkit::until;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::WebSocket;

use crate::drive::{
    meerkat, ran,
    server::{SERVE, Server, ask, text},
};

/// Longest wait for a line.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process of `meerkat acp` and its client.
struct Editor {
    child: Child,
    /// `None` when the client has left, or will say no more.
    stdin: Option<ChildStdin>,
    /// Asks the reader for the next line. It reads nothing else, and holds the pipe until this is dropped.
    wants: Option<Sender<()>>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
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
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let ((wants, wanted), (sender, lines)) = (channel(), channel());
        let reader = thread::spawn(move || {
            let mut stdout = BufReader::new(stdout).lines();
            while let (Ok(()), Some(Ok(line))) = (wanted.recv(), stdout.next()) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin: Some(stdin), wants: Some(wants), lines, reader: Some(reader), shown: Vec::new() }
    }

    /// Makes a session in a folder.
    fn session(&mut self, work: &Path) -> Value {
        self.ends("session/new", json!({ "cwd": work, "mcpServers": [] }))["sessionId"].clone()
    }

    /// Closes both pipes.
    fn leave(&mut self) {
        (self.stdin, self.wants) = (None, None);
        self.reader.take().unwrap().join().unwrap();
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_ref().unwrap(), "{message}").unwrap();
    }

    /// Reads up to a message, and keeps the updates before it.
    fn read_to(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        loop {
            self.wants.as_ref().unwrap().send(()).unwrap();
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
    // Nothing more can be written either.
    editor.leave();
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

fn prompt(session: &Value, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}

/// The preview of a change is bounded, and what runs is not: the question has all that a file gets.
#[test]
fn a_long_write_is_shown_whole_before_it_runs() {
    let dir = meerkat_testkit::folder();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    fs::write(work.join("old.txt"), "before\n".repeat(1000)).unwrap();
    fs::write(work.join("short.txt"), "before\n").unwrap();
    let mut editor = Editor::start(dir.path());
    let session = editor.session(&work);
    let reads = r#"@call read {"path":"old.txt"} @call read {"path":"short.txt"} @say Read."#;
    editor.ends("session/prompt", prompt(&session, reads));
    let long = format!("{}MIDDLE\n{}", "echo a\n".repeat(2000), "echo b\n".repeat(2000));
    for (path, content, is_whole) in
        [("new.txt", &*long, true), ("old.txt", &*long, true), ("short.txt", "after\n", false)]
    {
        let call = format!("@call write {} @say Done.", json!({ "path": path, "content": content }));
        editor.ask("session/prompt", prompt(&session, &call));
        let asked = editor.read_to(|message| message["method"] == "session/request_permission");
        let contents = asked["params"]["toolCall"]["content"].as_array().unwrap();
        let diff = contents.iter().find(|content| content["type"] == "diff");
        assert_eq!(diff.is_some(), is_whole, "{path}: {asked}");
        assert!(
            diff.is_none_or(|diff| diff["newText"] == content && diff["path"] == json!(work.join(path))),
            "{asked}"
        );
        let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
        editor.send(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }));
        editor.read_to(|message| message["id"] == "session/prompt");
        assert_eq!(fs::read_to_string(work.join(path)).unwrap(), content);
    }
}

/// The editor says nothing more, but reads on: what it has asked is answered, and the process ends.
#[test]
fn what_was_asked_before_the_end_of_the_input_is_answered() {
    let dir = meerkat_testkit::folder();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let mut editor = Editor::start(dir.path());
    let session = editor.session(&work);
    editor.ask("session/prompt", prompt(&session, "@say Wait @stall"));
    editor.ask("session/list", json!({}));
    editor.stdin = None;
    let (mut prompted, mut listed) = (Value::Null, Value::Null);
    while prompted.is_null() || listed.is_null() {
        let answer = editor.read_to(|message| message["result"].is_object());
        match answer["id"].as_str() {
            Some("session/prompt") => prompted = answer,
            _ => listed = answer,
        }
    }
    assert_eq!(prompted["result"]["stopReason"], "cancelled", "{prompted}");
    assert_eq!(listed["result"]["sessions"][0]["sessionId"], session, "{listed}");
    until("the process has ended", || editor.child.try_wait().unwrap().is_some());
}

/// Two processes with one data directory, whose configurations differ: the owner would perform what the other must not.
#[test]
fn a_process_that_allows_less_than_the_owner_does_not_attach() {
    let dir = meerkat_testkit::folder();
    let (work, home) = (dir.path().join("work"), dir.path().join("home"));
    let data = dir.path().join("data");
    let data = ("MEERKAT_DATA_DIR", data.to_str().unwrap());
    fs::create_dir(&work).unwrap();
    fs::create_dir_all(home.join(".config/meerkat")).unwrap();
    let file = home.join(".config/meerkat/meerkat.toml");
    let mut owner = Editor::with(dir.path(), &[data, ("MEERKAT_TOOLS__ASK", "never")]);
    let session = owner.session(&work);
    for (less, key) in [
        ("access = \"off\"\nask = \"never\"", "tools.access"),
        ("access = \"read\"\nask = \"never\"", "tools.access"),
        ("ask = \"always\"", "tools.ask"),
    ] {
        fs::write(&file, format!("[tools]\n{less}\n")).unwrap();
        for command in [&["acp"][..], &["serve", "--acp", "--listen", "127.0.0.1:0"]] {
            let mut command = meerkat(&home, command);
            command.envs([data]).stdin(Stdio::null());
            let refused = ran(&mut command);
            assert_eq!(refused.code, 31, "{less}: {} {}", refused.out, refused.err);
            assert!(refused.err.contains(key) && refused.err.contains("set the same"), "{less}: {}", refused.err);
        }
        // Commands without modes attach as before.
        let listed = ran(meerkat(&home, &["sessions", "list"]).envs([data]));
        assert_eq!(listed.code, 0, "{}", listed.err);
    }
    fs::write(&file, "[tools]\nask = \"never\"\n").unwrap();
    let mut other = Editor::with(&home, &[data]);
    other.ends("session/load", json!({ "sessionId": session, "cwd": work, "mcpServers": [] }));
    let call = r#"@call write {"path":"k.txt","content":"kept"} @say Done."#;
    other.ends("session/prompt", prompt(&session, call));
    assert_eq!(fs::read_to_string(work.join("k.txt")).unwrap(), "kept");
}

/// Over an owner, the mode that is shown is that of the turn: a tool that asks nothing is asked about in `edit`.
#[test]
fn a_mode_goes_over_an_owner() {
    let dir = meerkat_testkit::folder();
    let (work, test) = (dir.path().join("work"), dir.path().join("test"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&test).unwrap();
    let env = [("MEERKAT_TOOLS__TEST_DIR", test.to_str().unwrap())];
    let _owner = {
        let mut owner = Editor::with(dir.path(), &env);
        owner.session(&work);
        owner
    };
    let mut editor = Editor::with(dir.path(), &env);
    let opened = editor.ends("session/new", json!({ "cwd": work, "mcpServers": [] }));
    assert_eq!(opened["modes"]["currentModeId"], "edit", "{opened}");
    let call = r#"@call test_append {"name":"log","line":"x"} @say Done."#;
    editor.ask("session/prompt", prompt(&opened["sessionId"], call));
    let first =
        editor.read_to(|message| message["method"] == "session/request_permission" || !message["result"].is_null());
    assert_eq!(first["method"], "session/request_permission", "{first}");
    let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
    editor.send(&json!({ "jsonrpc": "2.0", "id": first["id"], "result": result }));
    editor.read_to(|message| message["id"] == "session/prompt");
    assert_eq!(fs::read_to_string(test.join("log")).unwrap(), "x\n");
}

/// The owner goes on with the compaction; the editor that has stopped it waits no more.
#[test]
fn a_compaction_of_an_owner_is_waited_for_until_it_is_stopped() {
    let dir = meerkat_testkit::folder();
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let mut owner = Editor::start(dir.path());
    let session = owner.session(&work);
    // The newest prompt scripts the summary, which never ends.
    for text in ["@long 4000", "@long 4000", "@long 4000", "@long 4000", "@long 4000", "@say Now. @compaction @stall"] {
        owner.ends("session/prompt", prompt(&session, text));
    }
    let mut editor = Editor::start(dir.path());
    editor.ends("session/resume", json!({ "sessionId": session, "cwd": work, "mcpServers": [] }));
    editor.ask("session/prompt", prompt(&session, "/compact"));
    editor.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } }));
    let answer = editor.read_to(|message| message["id"] == "session/prompt");
    assert_eq!(answer["result"]["stopReason"], "cancelled", "{answer}");
}

/// One list: what an editor may choose is what `meerkat models` calls usable.
#[test]
fn the_models_are_those_that_are_listed() {
    let dir = meerkat_testkit::folder();
    let env = [("OPENAI_API_KEY", "a-key-for-tests-0123456789"), ("MEERKAT_MODEL__NAME", "scripted")];
    let listed = ran(meerkat(dir.path(), &["--json", "models"]).envs(env));
    let listed: Value = serde_json::from_str(&listed.out).unwrap();
    let is_usable = |item: &&Value| item["usable"] == true && !item["model"].as_str().unwrap().ends_with("/<model>");
    let expected: Vec<&Value> =
        listed["items"].as_array().unwrap().iter().filter(is_usable).map(|item| &item["model"]).collect();
    assert!(expected.len() > 1, "{listed}");
    let mut editor = Editor::with(dir.path(), &env);
    let work = dir.path().join("work");
    fs::create_dir(&work).unwrap();
    let opened = editor.ends("session/new", json!({ "cwd": work, "mcpServers": [] }));
    let options = opened["configOptions"].as_array().unwrap();
    let model = options.iter().find(|option| option["id"] == "model").unwrap();
    let values: Vec<&Value> = model["options"].as_array().unwrap().iter().map(|value| &value["value"]).collect();
    assert_eq!((values, &model["currentValue"]), (expected, &json!("scripted")), "{model}");
}

/// Reads up to a message of a WebSocket.
fn read_to(socket: &mut WebSocket<std::net::TcpStream>, what: impl Fn(&Value) -> bool) -> Value {
    loop {
        let message: Value = serde_json::from_str(&text(socket).unwrap()).unwrap();
        if what(&message) {
            return message;
        }
    }
}

/// A client on the network works in the configured folders alone, and always asks; another one goes on with its session.
#[test]
fn over_a_websocket_a_session_is_in_a_configured_folder() {
    let dir = meerkat_testkit::folder();
    let (site, outside) = (dir.path().join("site"), dir.path().join("outside"));
    fs::create_dir_all(site.join("inner")).unwrap();
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, site.join("link")).unwrap();
    let folders = format!(r#"{{ site = "{}" }}"#, site.display());
    let env = [("MEERKAT_TOOLS__FOLDERS", folders.as_str()), ("MEERKAT_TOOLS__ASK", "never")];
    let server = Server::run(meerkat(dir.path(), &SERVE), &env, None);
    let mut socket = server.websocket_at("/acp");
    ask(&mut socket, 1, "initialize", &json!({ "protocolVersion": 1 }));
    assert_eq!(read_to(&mut socket, |message| message["id"] == 1)["result"]["protocolVersion"], 1);
    let new = |cwd: &Path| json!({ "cwd": cwd, "mcpServers": [] });
    for cwd in [&outside, &site.join("link"), &site.join("none"), &site.join("../outside"), dir.path()] {
        ask(&mut socket, 2, "session/new", &new(cwd));
        let refused = read_to(&mut socket, |message| message["id"] == 2);
        let data = &refused["error"]["data"];
        assert_eq!((&data["code"], &data["details"]["field"]), (&json!("INVALID_REQUEST"), &json!("cwd")), "{refused}");
        assert!(data["message"].as_str().unwrap().contains("tools.folders"), "{refused}");
    }
    ask(&mut socket, 3, "session/new", &new(&site.join("inner")));
    let opened = read_to(&mut socket, |message| message["id"] == 3)["result"].clone();
    let modes = opened["modes"]["availableModes"].as_array().unwrap();
    let modes: Vec<_> = modes.iter().map(|mode| mode["id"].as_str().unwrap()).collect();
    assert_eq!((modes, &opened["modes"]["currentModeId"]), (vec!["read", "edit"], &json!("edit")), "{opened}");
    let session = &opened["sessionId"];
    let call = r#"@say Next. @call write {"path":"k.txt","content":"kept"} @say Done."#;
    ask(&mut socket, 4, "session/prompt", &prompt(session, call));
    let is_question = |message: &Value| message["method"] == "session/request_permission";
    let asked = read_to(&mut socket, is_question);
    drop(socket);

    let mut socket = server.websocket_at("/acp");
    ask(&mut socket, 1, "session/load", &json!({ "sessionId": session, "cwd": site, "mcpServers": [] }));
    let again = read_to(&mut socket, is_question);
    assert_eq!(again["params"]["toolCall"]["toolCallId"], asked["params"]["toolCall"]["toolCallId"]);
    let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
    let answer = json!({ "jsonrpc": "2.0", "id": again["id"], "result": result });
    socket.send(tokio_tungstenite::tungstenite::Message::text(answer.to_string())).unwrap();
    read_to(&mut socket, |message| {
        message["params"]["update"]["content"]["text"].as_str().is_some_and(|text| text.contains("Done"))
    });
    assert_eq!(fs::read_to_string(site.join("inner/k.txt")).unwrap(), "kept");
    // It ends with the server.
    server.terminate();
    while text(&mut socket).is_some() {}
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
