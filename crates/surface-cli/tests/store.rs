//! Processes that share a data directory: one owns it, the others attach to it.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[path = "store/answers.rs"]
mod answers;

use std::{
    io::{self, BufRead as _, BufReader, Lines, Read as _, Write},
    os::unix::fs::PermissionsExt as _,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
};

use meerkat_errors::ErrorCode;
use meerkat_surface_cli::{Surroundings, Terminal, run};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A folder with a data directory.
struct Stage(TempDir);

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// A process that runs beside the test, and is ended with it.
struct Running {
    child: Child,
    out: Lines<BufReader<ChildStdout>>,
}

/// What a process printed, and its exit code.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Stage {
    /// The root of a project, whatever stands in the folders above it.
    fn new() -> Self {
        let stage = Self(TempDir::new().unwrap());
        std::fs::create_dir(stage.0.path().join(".rkat")).unwrap();
        stage
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meerkat"));
        command.args(args).current_dir(self.0.path()).env_clear().env("HOME", self.0.path());
        command.env("MEERKAT_DATA_DIR", self.0.path().join("data")).env("MEERKAT_LIMITS__WAIT_MS", "60000");
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
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Waits until the files of a session have all of it.
    #[track_caller]
    fn projected(&self, id: &str) {
        let seq = &self.json(&["sessions", "show", id])["last_seq"];
        let wait = ["readers", "wait", "projection", id, &seq.to_string(), "--wait-ms", "60000"];
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
        let (out, err) = (Kept::default(), Kept::default());
        let data_dir = self.0.path().join("data").into_os_string();
        let home = self.0.path().as_os_str().to_owned();
        let env = [("MEERKAT_DATA_DIR", data_dir), ("HOME", home), ("NO_COLOR", "1".into())];
        let terminal = Terminal {
            stdin: Box::new(typed.as_bytes()),
            stdout: Box::new(out.clone()),
            stderr: Box::new(err.clone()),
            are_terminals: [true; 3],
            has_editor: false,
            interrupts: None,
            around: Surroundings {
                env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
                dir: self.0.path().to_owned(),
            },
        };
        let code = run(std::iter::once("meerkat").chain(args.iter().copied()).map(Into::into).collect(), terminal);
        Ran { code: code.into(), out: out.text(), err: err.text() }
    }

    /// A server, when it is ready.
    fn serve(&self) -> Running {
        let mut server = self.start(&["serve", "--rest", "--no-auth", "--listen", "127.0.0.1:0", "--json"]);
        server.until("listening");
        server
    }
}

fn ran(command: &mut Command) -> Ran {
    let ran = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: ran.status.code().unwrap_or(-1), out: text(ran.stdout), err: text(ran.stderr) }
}

impl Running {
    /// The first line from here on that holds a text.
    #[track_caller]
    fn until(&mut self, text: &str) -> String {
        self.out.by_ref().map(Result::unwrap).find(|line| line.contains(text)).unwrap_or_else(|| panic!("no {text}"))
    }

    fn signal(&self, name: &str) {
        assert!(Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap().success());
    }

    fn err(&mut self) -> BufReader<ChildStderr> {
        BufReader::new(self.child.stderr.take().unwrap())
    }

    fn code(mut self) -> i32 {
        drop(self.child.stdin.take());
        self.child.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn exit(code: ErrorCode) -> i32 {
    code.exit_code().into()
}

#[test]
fn commands_work_beside_a_running_server() {
    let stage = Stage::new();
    let _server = stage.serve();
    let ended = stage.json(&["run", "@say One."]);
    assert_eq!((ended["status"].as_str(), ended["text"].as_str()), (Some("completed"), Some("One.")));
    let id = ended["session_id"].as_str().unwrap();
    assert_eq!(stage.json(&["run", "--session", id, "@say Two."])["turn"], 1);
    let accepted = stage.json(&["run", "--session", id, "--detach", "@stall"]);
    assert_eq!(accepted["turn"], 2);
    let mut follower = stage.start(&["events", id, "--since", "1", "--until", "turn_interrupted", "--json"]);
    follower.until(r#""type":"turn_completed""#);
    let interrupted = stage.json(&["sessions", "interrupt", id]);
    let last: Value = serde_json::from_str(&follower.until("turn_interrupted")).unwrap();
    assert_eq!(last["seq"], interrupted["seq"]);
    assert_eq!(follower.code(), 0);
    let unknown = stage.run(&["sessions", "pins", "00000000-0000-7000-8000-000000000000"]);
    assert_eq!(unknown.code, exit(ErrorCode::SessionNotFound), "{}", unknown.err);
}

#[test]
fn a_turn_is_detached_only_from_an_owner_that_goes_on() {
    let ran = Stage::new().run(&["run", "--detach", "x"]);
    assert_eq!(ran.code, exit(ErrorCode::InvalidRequest), "{}", ran.err);
}

#[test]
fn a_variable_that_the_owner_does_not_have_is_named() {
    let stage = Stage::new();
    let _server = stage.serve();
    let refused = ran(stage.command(&["run", "x"]).env("MEERKAT_TURN__MAX_STEPS", "7"));
    assert_eq!(refused.code, exit(ErrorCode::ConfigInvalid), "{}", refused.err);
    assert!(refused.err.contains("MEERKAT_TURN__MAX_STEPS"), "{}", refused.err);
    assert_eq!(ran(stage.command(&["run", "hello"]).env("MEERKAT_LOG__LEVEL", "error")).code, 0);
}

#[test]
fn an_owner_that_does_not_answer_is_named() {
    let stage = Stage::new();
    let server = stage.serve();
    server.signal("-STOP");
    let locked = stage.run(&["run", "x", "--json"]);
    server.signal("-CONT");
    assert_eq!(locked.code, exit(ErrorCode::StoreLocked), "{}", locked.err);
    let body: Value = serde_json::from_str(&locked.out).unwrap();
    assert_eq!(body["details"]["pid"], server.child.id());
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
    attached.signal("-INT");
    attached.until("turn_interrupted");
    assert_eq!(attached.code(), exit(ErrorCode::TurnInterrupted));
    assert_eq!(owner.code(), 0);
}

#[test]
fn when_the_owner_is_killed_another_takes_its_place() {
    let stage = Stage::new();
    let server = stage.serve();
    let mut attached = stage.start(&["run", "--events", "@say One. @stall"]);
    let started: Value = serde_json::from_str(&attached.until("turn_started")).unwrap();
    let id = started["session_id"].as_str().unwrap();
    server.signal("-KILL");
    let last: Value = serde_json::from_str(&attached.until("turn_interrupted")).unwrap();
    assert_eq!(last["turn"], 0);
    let mut said = String::new();
    attached.err().read_to_string(&mut said).unwrap();
    assert!(said.contains("process that ran the turn") && said.contains(&format!("meerkat resume {id}")), "{said}");
    assert_eq!(attached.code(), exit(ErrorCode::TurnInterrupted));
    assert_eq!(stage.json(&["run", "--session", id, "@say Again."])["text"], "Again.");
}

#[test]
fn with_nothing_to_resume_it_is_said_what_to_do() {
    let stage = Stage::new();
    assert_eq!(stage.run(&["run", "@say One."]).code, 0);
    let ran = stage.run(&["resume", "last"]);
    assert_eq!(ran.code, exit(ErrorCode::ItemNotFound));
    assert!(ran.err.contains("nothing to resume") && ran.err.contains("give a prompt"), "{}", ran.err);
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
    let candidates = stage.run(&["__complete-sessions", &id[28..32]]).out;
    assert!(candidates.starts_with(&id[28..]), "{candidates}");

    let kept = stage.run(&["sessions", "delete", &id]);
    assert_eq!(kept.code, exit(ErrorCode::InvalidRequest), "{}", kept.err);
    assert_eq!(stage.json(&["sessions", "delete", &id[28..], "--yes"])["session_id"], id.as_str());
    assert_eq!(stage.run(&["sessions", "show", &id]).code, exit(ErrorCode::SessionNotFound));
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

    let there = stage.run(&["sessions", "import", "two.tar"]);
    assert_eq!(there.code, exit(ErrorCode::BundleInvalid), "{}", there.err);
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

    for (args, code) in [
        (["sessions", "export", "00000000-0000-7000-8000-000000000000", "-o", "x.tar"], ErrorCode::SessionNotFound),
        (["sessions", "export", "last", "-o", "none/x.tar"], ErrorCode::InvalidRequest),
        (["sessions", "import", "x.tar", "--new-ids", "--json"], ErrorCode::InvalidRequest),
    ] {
        assert_eq!(stage.run(&args).code, exit(code), "{args:?}");
    }
    let mut names: Vec<_> = std::fs::read_dir(stage.0.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, [".rkat", "all.tar", "data", "two.tar"]);
}

#[test]
fn a_bundle_that_no_import_would_take_in_is_told_of() {
    let stage = Stage::new();
    stage.json(&["run", "@say One."]);
    for (limit, is_told) in [("1000", true), ("1000000", false)] {
        let mut command = stage.command(&["sessions", "export", "last", "-o", "one.tar"]);
        let ran = ran(command.env("MEERKAT_LIMITS__BUNDLE_BYTES", limit).stdin(Stdio::null()));
        assert_eq!((ran.code, ran.err.contains("limits.bundle_bytes")), (0, is_told), "{}", ran.err);
    }
}

#[test]
fn somebody_at_a_terminal_sees_how_far_it_is_and_is_asked() {
    let stage = Stage::new();
    let ran = stage.on_terminal(&["run", "@long 1200000"], "");
    assert_eq!(ran.code, 0, "{}", ran.err);
    let ran = stage.on_terminal(&["sessions", "export", "last", "-o", "one.tar"], "");
    assert!(ran.err.contains("] 0 of 1 sessions, 1.0 MiB") && ran.err.ends_with(" \r"), "{}", ran.err);
    assert!(ran.out.contains("one.tar"), "{}", ran.out);
    let ran = stage.on_terminal(&["sessions", "import", "one.tar", "--new-ids"], "");
    assert!(ran.err.contains("#---] 1.0 MiB of 1."), "{}", ran.err);
    let retain = ["sessions", "retain", "--max-sessions", "1"];
    let ran = stage.on_terminal(&retain, "n\n");
    let is_asked = ran.err.contains("1 would be deleted\nDelete these 1 sessions for good? [y/N] Nothing was deleted.");
    assert!(is_asked && ran.out.is_empty(), "{}", ran.err);
    assert!(stage.on_terminal(&retain, "y\n").out.ends_with("1 deleted\n"));
    let ran = stage.on_terminal(&retain, "");
    assert!(ran.out.ends_with("0 would be deleted\n") && !ran.err.contains('?'), "{}", ran.err);
}

#[test]
fn the_doctor_says_what_is_wrong_and_mends_it() {
    let stage = Stage::new();
    let none = stage.run(&["doctor"]);
    assert_eq!(none.code, 0, "{}", none.err);
    assert!(!stage.0.path().join("data").exists(), "looking makes nothing");
    let id = stage.json(&["run", "@say One."])["session_id"].as_str().unwrap().to_owned();
    for prompt in ["@say Two.", "@say Three."] {
        stage.json(&["run", "--session", &id, prompt]);
    }
    stage.projected(&id);
    let sound = stage.json(&["doctor"]);
    assert_eq!((&sound["sessions"], &sound["findings"]), (&json!(1), &json!([])));
    assert!(stage.run(&["doctor"]).out.ends_with(": nothing is wrong.\n"));

    let folder = stage.0.path().join("data/journal").join(&id[id.len() - 2..]).join(&id);
    let mut names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let path = names.find(|path| path.extension().is_some_and(|extension| extension == "mlog")).unwrap();
    let mut segment = std::fs::read(&path).unwrap();
    let at = segment.windows(7).position(|window| window == b"@say Tw").unwrap();
    segment[at] ^= 1;
    std::fs::write(&path, segment).unwrap();
    let damaged = stage.run(&["doctor"]);
    assert_eq!(damaged.code, 1, "{}{}", damaged.out, damaged.err);
    assert!(damaged.out.starts_with(&format!("error: session {id}: ")), "{}", damaged.out);
    assert!(damaged.out.contains("\n  Run `meerkat doctor --repair`.\n"), "{}", damaged.out);
    let mended = stage.run(&["doctor", "--repair"]);
    assert_eq!(mended.code, 0, "{}{}", mended.out, mended.err);
    // What the next start does comes first: the files still hold what was cut off.
    assert!(mended.out.starts_with("warning: ") && mended.out.contains("/.rkat is behind"), "{}", mended.out);
    assert!(mended.out.contains(&format!("\nmended: session {id}: ")), "{}", mended.out);
    assert_eq!(stage.json(&["run", "--session", &id, "@say Next."])["text"], "Next.");
    stage.projected(&id);
    assert_eq!(stage.json(&["doctor"])["findings"], json!([]));
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
    assert_eq!(locked.code, exit(ErrorCode::StoreLocked), "{}", locked.err);
    server.signal("-KILL");
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
