//! Processes that share a data directory: one owns it, the others attach to it.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[path = "drive/mod.rs"]
mod drive;

#[path = "store/answers.rs"]
mod answers;

#[path = "store/called.rs"]
mod called;

#[path = "store/decided.rs"]
mod decided;

#[path = "store/inodes.rs"]
mod inodes;

use std::{
    io::{BufRead as _, BufReader, Lines, Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::Arc,
};

use meerkat_errors::ErrorCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::drive::{Ran, meerkat, ran, signal, terminal::cli};

/// A folder with a data directory.
struct Stage(Arc<TempDir>);

/// A process that runs beside the test, and is ended with it.
struct Running {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

impl Stage {
    fn new() -> Self {
        Self(Arc::new(meerkat_testkit::folder()))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = meerkat(self.0.path(), args);
        command.env("MEERKAT_DATA_DIR", self.0.path().join("data")).env("MEERKAT_LIMITS__WAIT_MS", "60000");
        // A home folder gets no files of its own accord.
        command.env("MEERKAT_PROJECTION__DIR", self.0.path().join(".rkat"));
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Ran {
        ran(self.command(args).stdin(Stdio::null()))
    }

    /// The document of a command that does what it is meant to.
    #[track_caller]
    fn json(&self, args: &[&str]) -> Value {
        let ran = self.run(&[args, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran.json()
    }

    /// Waits until the files of a session have all of it.
    #[track_caller]
    fn projected(&self, id: &str) {
        let seq = &self.json(&["sessions", "show", id])["last_seq"];
        let (id, until) = (format!("session_id={id}"), format!("seq={seq}"));
        let wait = ["call", "reader/wait", "reader=projection", &id, &until, "wait_ms=60000"];
        assert_eq!(&self.json(&wait)["seq"], seq);
    }

    fn start(&self, args: &[&str]) -> Running {
        let command = &mut self.command(args);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, out }
    }

    /// A command in this process, with somebody at a terminal who types this.
    fn on_terminal(&self, args: &[&str], typed: &'static str) -> Ran {
        let data_dir = self.0.path().join("data").display().to_string();
        let files = self.0.path().join(".rkat").display().to_string();
        let command = cli(args).in_dir(&self.0).env("MEERKAT_DATA_DIR", &data_dir).env("NO_COLOR", "1");
        let command = command.env("MEERKAT_PROJECTION__DIR", &files);
        command.on_terminal().stdin(typed).run()
    }

    /// A server, when it is ready.
    fn serve(&self) -> Running {
        let mut server = self.start(&["serve", "--rest", "--no-auth", "--listen", "127.0.0.1:0", "--json"]);
        server.until("listening");
        server
    }
}

impl Running {
    /// The first line from here on that holds a text.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        self.out.by_ref().map(Result::unwrap).find(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text}"))
    }

    fn err(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.child.stderr.take().unwrap())
    }

    /// Ends its input, and answers with its exit code; `None` if it was killed.
    fn code(mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn a_variable_that_the_owner_does_not_have_is_named() {
    let stage = Stage::new();
    let _server = stage.serve();
    let refused = ran(stage.command(&["run", "x"]).env("MEERKAT_TURN__MAX_STEPS", "7"));
    assert_eq!(refused.code, ErrorCode::ConfigInvalid.exit_code(), "{}", refused.err);
    assert!(refused.err.contains("MEERKAT_TURN__MAX_STEPS"), "{}", refused.err);
    assert_eq!(ran(stage.command(&["run", "hello"]).env("MEERKAT_LOG__LEVEL", "error")).code, 0);
}

/// The list of an owner's servers has their state in it, and nothing of how they are reached.
#[test]
fn servers_are_listed_as_the_owner_has_them() {
    let stage = Stage::new();
    let config = stage.0.path().join(".config/meerkat");
    std::fs::create_dir_all(&config).unwrap();
    let closed = meerkat_testkit::refusing_address();
    let servers = format!(
        "[servers.far]\nurl = \"http://{closed}/mcp?key=hidden-in-a-query\"\n\n\
         [servers.gone]\ncommand = \"/nonexistent/server\"\nargs = [\"hidden-in-an-argument\"]\n"
    );
    std::fs::write(config.join("meerkat.toml"), servers).unwrap();
    let states = || -> Vec<String> {
        let items = stage.json(&["servers"])["items"].clone();
        let state = |item: &Value| item["state"].as_str().unwrap().to_owned();
        items.as_array().unwrap().iter().map(state).collect()
    };
    assert_eq!(states(), ["configured", "configured"]);
    let _server = stage.serve();
    assert_eq!(states(), ["configured", "configured"]);
    // The owner tries to list their tools.
    stage.json(&["tools"]);
    meerkat_testkit::until("both have failed", || states() == ["failed", "failed"]);
    let shown = stage.run(&["servers"]).out;
    let rows: Vec<&str> = shown.lines().collect();
    assert_eq!(rows[0].split_whitespace().collect::<Vec<_>>(), ["SERVER", "KIND", "STATE", "TOOLS", "TOKENS", "ERROR"]);
    assert_eq!(rows[1].split_whitespace().take(5).collect::<Vec<_>>(), ["far", "url", "failed", "0", "0"]);
    assert_eq!(rows[2].split_whitespace().take(5).collect::<Vec<_>>(), ["gone", "command", "failed", "0", "0"]);
    assert!(!shown.contains("hidden-in"), "{shown}");
}

/// The owner may have been started anywhere, by a service manager for one.
#[test]
fn an_attached_command_runs_programs_of_its_own_path() {
    let stage = Stage::new();
    let [project, programs] = ["project", "programs"].map(|name| stage.0.path().join(name));
    std::fs::create_dir(&project).unwrap();
    std::fs::create_dir(&programs).unwrap();
    std::fs::write(programs.join("only-here"), "#!/bin/sh\necho found\n").unwrap();
    std::fs::set_permissions(programs.join("only-here"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let _server = stage.serve();
    let prompt = "@call shell {\"command\": \"only-here\"} @say Done.";
    let args = ["run", "--workspace", "project", "--allow", "shell", "--events", prompt];
    let events = |path: &str| -> Vec<Value> {
        let ran = ran(stage.command(&args).env("PATH", path));
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let find = |events: &[Value], kind: &str| events.iter().find(|event| event["type"] == kind).unwrap().clone();
    let kept = format!("{}:/usr/bin:/bin", programs.display());
    let mine = events(&format!("programs:{kept}:"));
    assert_eq!(find(&mine, "turn_started")["search_path"], kept.as_str());
    let finished = find(&mine, "tool_finished");
    assert_eq!(finished["output"], "found\nexit code 0");
    assert_eq!(finished["confinement"], "landlock, seccomp, namespaces");
    let other = find(&events("/usr/bin:/bin"), "tool_finished");
    assert!(other["output"].as_str().unwrap().contains("not found"), "{other}");
}

#[test]
fn an_owner_that_does_not_answer_is_named() {
    let stage = Stage::new();
    let server = stage.serve();
    signal(&server.child, "STOP");
    let locked = stage.run(&["run", "x", "--json"]);
    signal(&server.child, "CONT");
    assert_eq!(locked.code, ErrorCode::StoreLocked.exit_code(), "{}", locked.err);
    assert_eq!(locked.json()["details"]["pid"], server.child.id());
}

#[test]
fn an_owner_that_ends_waits_for_the_turns_of_others() {
    let stage = Stage::new();
    let mut owner = stage.start(&["chat", "--json"]);
    owner.until("session_id");
    let mut attached = stage.start(&["run", "--events", "@say One. @stall"]);
    attached.until("turn_started");
    drop(owner.child.stdin.take());
    let said = owner.err().lines().map(Result::unwrap).find(|line| line.contains("attached commands"));
    assert!(said.is_some());
    signal(&attached.child, "INT");
    attached.until("turn_interrupted");
    assert_eq!(attached.code(), Some(ErrorCode::TurnInterrupted.exit_code().into()));
    assert_eq!(owner.code(), Some(0));
}

/// Broken once: from then on no session could have a folder.
#[test]
fn a_chat_that_takes_the_place_of_the_owner_makes_sessions_in_its_folder() {
    let stage = Stage::new();
    let project = stage.0.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let mut owner = stage.start(&["chat", "--json"]);
    owner.until("session_id");
    let mut attached = stage.start(&["chat", "--json"]);
    attached.until("session_id");
    assert_eq!(owner.code(), Some(0));
    let mut made = |id: u64| -> Value {
        attached.child.stdin.as_mut().unwrap().write_all(b"/new --workspace project\n").unwrap();
        let answer: Value = serde_json::from_str(&attached.until(&format!("\"line\":{id},"))).unwrap();
        answer["answer"].clone()
    };
    for id in 1..3 {
        let made = made(id);
        let session = made["session_id"].as_str().unwrap_or_else(|| panic!("{id}: {made}"));
        let shown = stage.json(&["sessions", "show", session]);
        assert_eq!(shown["workspace"].as_str(), project.canonicalize().unwrap().to_str(), "{id}");
    }
    assert_eq!(attached.code(), Some(0));
}

#[test]
fn when_the_owner_is_killed_another_takes_its_place() {
    let stage = Stage::new();
    let server = stage.serve();
    let mut attached = stage.start(&["run", "--events", "@say One. @stall"]);
    let started: Value = serde_json::from_str(&attached.until("turn_started")).unwrap();
    let id = started["session_id"].as_str().unwrap();
    signal(&server.child, "KILL");
    let last: Value = serde_json::from_str(&attached.until("turn_interrupted")).unwrap();
    assert_eq!(last["turn"], 0);
    let mut said = String::new();
    attached.err().read_to_string(&mut said).unwrap();
    assert!(said.contains("process that ran the turn") && said.contains(&format!("meerkat resume {id}")), "{said}");
    assert_eq!(attached.code(), Some(ErrorCode::TurnInterrupted.exit_code().into()));
    assert_eq!(stage.json(&["run", "--session", id, "@say Again."])["text"], "Again.");
}

#[test]
fn sessions_are_listed_shown_and_deleted_by_short_names() {
    let stage = Stage::new();
    let _server = stage.serve();
    let id = stage.json(&["run", "@say One."])["session_id"].as_str().unwrap().to_owned();
    let other = stage.json(&["run", "@say Two."])["session_id"].as_str().unwrap().to_owned();
    let list = stage.run(&["sessions", "list"]).out;
    assert_eq!(list.lines().count(), 3, "{list}");
    assert!(list.contains(&id) && list.contains(&other), "{list}");
    assert_eq!(stage.json(&["sessions", "show", "last"])["session_id"], other.as_str());
    assert_eq!(stage.json(&["sessions", "show", &id[28..]])["session_id"], id.as_str());
    let history = stage.run(&["sessions", "history", &id, "--all"]).out;
    assert!(history.contains("@say One.\n") && history.contains("\nOne.\n"), "{history}");
    let whole = stage.json(&["sessions", "history", &id]);
    assert_eq!(stage.json(&["sessions", "history", &id, "--all", "--full"]), whole);

    let kept = stage.run(&["sessions", "delete", &id]);
    assert_eq!(kept.code, ErrorCode::InvalidRequest.exit_code(), "{}", kept.err);
    assert_eq!(stage.json(&["sessions", "delete", &id[28..], "--yes"])["session_id"], id.as_str());
    assert_eq!(stage.run(&["sessions", "show", &id]).code, ErrorCode::SessionNotFound.exit_code());
}

#[test]
fn sessions_go_into_a_file_and_come_back() {
    let stage = Stage::new();
    let _server = stage.serve();
    let id = stage.json(&["run", "@say One."])["session_id"].as_str().unwrap().to_owned();
    let other = stage.json(&["run", "@long 1200000"])["session_id"].as_str().unwrap().to_owned();
    let file = |name: &str| stage.0.path().join(name);

    let written = stage.json(&["sessions", "export", &id, "last", "-o", "two.tar"]);
    let bytes = std::fs::read(file("two.tar")).unwrap();
    let path = file("two.tar").display().to_string();
    assert_eq!(written, json!({ "file": path, "bytes": bytes.len(), "sessions": [id, other] }));
    let mode = std::fs::metadata(file("two.tar")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // The newest first, as the list has them.
    assert_eq!(stage.json(&["sessions", "export", "--all", "-o", "all.tar"])["sessions"], json!([other, id]));
    assert_eq!(std::fs::metadata(file("all.tar")).unwrap().len(), bytes.len() as u64);

    let there = stage.json(&["sessions", "import", "two.tar"]);
    let skipped: Vec<&str> =
        there["skipped"].as_array().unwrap().iter().map(|it| it["session_id"].as_str().unwrap()).collect();
    assert_eq!((&there["sessions"], skipped), (&json!([]), vec![id.as_str(), other.as_str()]));
    let copies = stage.run(&["sessions", "import", "two.tar", "--new-ids"]);
    assert!(
        copies.out.lines().count() == 3 && copies.out.contains(&id) && copies.out.contains(&other),
        "{}",
        copies.out
    );
    stage.json(&["sessions", "delete", &id, "--yes"]);
    stage.json(&["sessions", "delete", &other, "--yes"]);
    let back = stage.json(&["sessions", "import", "two.tar"]);
    let ids: Vec<&str> =
        back["sessions"].as_array().unwrap().iter().map(|it| it["session_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [id.as_str(), other.as_str()]);
    // They have gone another way since.
    stage.json(&["run", "--session", &id, "@say Two."]);
    stage.json(&["sessions", "export", &id, "-o", "other.tar"]);
    stage.json(&["sessions", "delete", &id, "--yes"]);
    stage.json(&["sessions", "import", "two.tar"]);
    let there = stage.run(&["sessions", "import", "other.tar"]);
    assert_eq!(there.code, ErrorCode::BundleInvalid.exit_code(), "{}", there.err);
    std::fs::remove_file(file("other.tar")).unwrap();

    for (args, code) in [
        (["sessions", "export", "00000000-0000-7000-8000-000000000000", "-o", "x.tar"], ErrorCode::SessionNotFound),
        (["sessions", "export", "last", "-o", "none/x.tar"], ErrorCode::InvalidRequest),
        (["sessions", "import", "x.tar", "--new-ids", "--json"], ErrorCode::InvalidRequest),
    ] {
        assert_eq!(stage.run(&args).code, code.exit_code(), "{args:?}");
    }
    let mut names: Vec<_> = std::fs::read_dir(stage.0.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".rkat", "all.tar", "data", "two.tar"]);
}

#[test]
fn somebody_at_a_terminal_sees_how_far_it_is_and_is_asked() {
    let stage = Stage::new();
    let ran = stage.on_terminal(&["run", "@long 1200000"], "");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = stage.on_terminal(&["sessions", "export", "last", "-o", "one.tar"], "");
    assert!(ran.err.contains("] 0 of 1 session, 1.0 MiB") && ran.err.ends_with(" \r"), "{}", ran.err);
    assert!(ran.out.contains("one.tar"), "{}", ran.out);
    let ran = stage.on_terminal(&["sessions", "import", "one.tar", "--new-ids"], "");
    assert!(ran.err.contains("#---] 1.0 MiB of 1."), "{}", ran.err);
    let retain = stage.json(&["call", "session/retain", "max_sessions=1", "dry_run=true"]);
    assert_eq!((&retain["deleted"], retain["items"].as_array().unwrap().len()), (&json!(0), 1), "{retain}");
    assert_eq!(stage.json(&["call", "session/retain", "max_sessions=1"])["deleted"], 1);
}

#[test]
fn the_doctor_looks_beside_an_owner_and_after_one_that_was_killed() {
    let stage = Stage::new();
    let server = stage.serve();
    let id = stage.json(&["run", "--detach", "@stall"])["session_id"].as_str().unwrap().to_owned();
    assert_eq!(stage.run(&["events", &id, "--since", "0", "--until", "turn_started"]).code, 0);
    let beside = stage.json(&["doctor"]);
    assert_eq!((&beside["owner_pid"], &beside["findings"]), (&json!(server.child.id()), &json!([])));
    let locked = stage.run(&["doctor", "--repair"]);
    assert_eq!(locked.code, ErrorCode::StoreLocked.exit_code(), "{}", locked.err);
    signal(&server.child, "KILL");
    server.code();
    // It changes nothing, also where it is to mend: the next start does that.
    for args in [&["doctor"][..], &["doctor", "--repair"]] {
        let found = stage.json(args);
        let findings = found["findings"].as_array().unwrap();
        assert!(findings.iter().any(|finding| finding["check"] == "tool_call"), "{found}");
        for finding in findings {
            assert_eq!((&finding["severity"], &finding["mended"]), (&json!("warning"), &json!(false)), "{found}");
            let remedy = finding["remedy"].as_str().unwrap().to_lowercase();
            assert!(remedy.contains("next start") || remedy.contains("next turn"), "{found}");
        }
    }
    assert_eq!(stage.json(&["run", "--session", &id, "@say Again."])["text"], "Again.");
    stage.projected(&id);
    assert_eq!(stage.json(&["doctor"])["findings"], json!([]));
}
