//! What the agent changed in its folder, listed and put back.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::until;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    agent::{done, home, in_project},
    drive::{Ran, meerkat},
};

/// A project in a home folder of its own.
struct Project {
    home: Arc<TempDir>,
}

impl Project {
    fn new() -> Self {
        Self { home: home() }
    }

    fn path(&self, path: &str) -> PathBuf {
        let path = self.home.path().join("project").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    fn put(&self, path: &str, content: &str) {
        fs::write(self.path(path), content).unwrap();
    }

    fn text(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    fn run(&self, args: &[&str]) -> Ran {
        in_project(&self.home, args).run()
    }

    /// Runs a turn of the last session, or of a new one.
    fn turn(&self, command: &[&str], script: &str) {
        let args = [command, &["--allow", "edit,write,shell", script]].concat();
        done(self.run(&args));
    }

    /// Two turns: the first makes `new.txt` and edits `old.sh`, the second edits both.
    fn two_turns(&self) {
        self.put("old.sh", "one\n");
        fs::set_permissions(self.path("old.sh"), PermissionsExt::from_mode(0o750)).unwrap();
        let edit = |path: &str, old: &str, new: &str| {
            format!("@call edit {}", json!({ "path": path, "old": old, "new": new }))
        };
        let write = r#"@call write {"path":"sub/new.txt","content":"made\n"}"#;
        self.turn(&["run"], &format!("{write} {} @say One.", edit("old.sh", "one", "two")));
        let [new, old] = [edit("sub/new.txt", "made", "made again"), edit("old.sh", "two", "three")];
        self.turn(&["resume", "last"], &format!("{old} {new} @say Two."));
    }

    fn list(&self, more: &[&str]) -> Value {
        done(self.run(&[&["sessions", "files", "last", "--json"], more].concat())).json()
    }

    /// Paths and states.
    fn states(&self) -> Vec<(String, String)> {
        let text = |item: &Value, name: &str| item[name].as_str().unwrap().to_owned();
        let list = self.list(&[]);
        list["items"].as_array().unwrap().iter().map(|item| (text(item, "path"), text(item, "state"))).collect()
    }

    fn restore(&self, turn: &str) -> Ran {
        self.run(&["sessions", "restore-files", "last", "--turn", turn, "--yes"])
    }
}

const LEFT: &str = "as the agent left it";
const BEFORE: &str = "as it was before";

fn states(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(path, state)| ((*path).to_owned(), (*state).to_owned())).collect()
}

#[test]
fn what_the_agent_changed_is_listed_and_put_back() {
    let project = Project::new();
    project.two_turns();
    let list = project.list(&[]);
    let old =
        json!({ "path": "old.sh", "change": "changed", "state": LEFT, "turns": [0, 1], "bytes": 6, "copy": "kept" });
    let new = json!({
        "path": "sub/new.txt", "change": "created", "state": LEFT, "turns": [0, 1], "bytes": 11, "copy": null,
    });
    assert_eq!(list["items"], json!([old, new]));
    assert_eq!(project.list(&["--turn", "1"])["items"][1]["change"], "changed");
    let table = done(project.run(&["sessions", "files", "last"])).out;
    assert!(table.starts_with("PATH") && table.contains("old.sh") && table.contains(LEFT), "{table}");

    let ran = project.run(&["sessions", "restore-files", "last", "--turn", "1"]);
    ran.refused(ErrorCode::InvalidRequest, "--yes");
    let asked = in_project(&project.home, &["sessions", "restore-files", "last", "--turn", "1"]);
    let asked = asked.on_terminal().stdin("n\n").run();
    assert!(asked.err.contains("old.sh: put back") && asked.err.contains("Nothing was changed."), "{}", asked.err);
    assert_eq!(project.text("old.sh").as_deref(), Some("three\n"), "nothing happens without a yes");

    let asked = in_project(&project.home, &["sessions", "restore-files", "last", "--turn", "1"]);
    done(asked.on_terminal().stdin("y\n").run());
    assert_eq!(project.text("old.sh").as_deref(), Some("two\n"));
    assert_eq!(project.text("sub/new.txt").as_deref(), Some("made\n"));
    let done_now = done(project.run(&["sessions", "restore-files", "last", "--turn", "0", "--yes", "--json"])).json();
    let items = json!([{ "path": "old.sh", "done": "put back" }, { "path": "sub/new.txt", "done": "deleted" }]);
    assert_eq!(done_now["items"], items);
    assert_eq!((project.text("old.sh").as_deref(), project.text("sub/new.txt")), (Some("one\n"), None));
    assert_eq!(project.path("old.sh").metadata().unwrap().permissions().mode() & 0o777, 0o750);
    assert_eq!(project.states(), states(&[("old.sh", BEFORE), ("sub/new.txt", BEFORE)]));

    let again = done(project.restore("0"));
    assert!(again.err.contains("All files are as they were before turn 0"), "{}", again.err);
    assert_eq!(project.text("old.sh").as_deref(), Some("one\n"));
    // The agent is told that the file is another one now, and edits what is there.
    project.turn(&["resume", "last"], r#"@call edit {"path":"old.sh","old":"one","new":"four"} @say Three."#);
    done(project.restore("0"));
    assert_eq!(project.text("old.sh").as_deref(), Some("one\n"), "its own undoing is nobody else's change");
}

#[test]
fn nothing_is_put_back_if_somebody_else_changed_one_of_the_files() {
    let project = Project::new();
    project.two_turns();
    let outside = project.home.path().join("outside");
    let cases: [(&str, &dyn Fn(), &str); 4] = [
        ("changed since by someone else", &|| project.put("old.sh", "mine\n"), "changed by someone else"),
        ("gone", &|| fs::remove_file(project.path("old.sh")).unwrap(), "was deleted since"),
        (
            "link",
            &|| {
                fs::write(&outside, "three\n").unwrap();
                symlink(&outside, project.path("old.sh")).unwrap();
            },
            "is a link",
        ),
        (
            "read-only",
            &|| {
                fs::remove_file(project.path("old.sh")).unwrap();
                project.put("old.sh", "three\n");
                fs::set_permissions(project.path("old.sh"), PermissionsExt::from_mode(0o440)).unwrap();
            },
            "read-only",
        ),
    ];
    for (state, change, words) in cases {
        change();
        let listed = project.states().swap_remove(0).1;
        assert!(listed.contains(state), "{state}: {listed}");
        for turn in ["0", "1"] {
            project.restore(turn).refused(ErrorCode::InvalidRequest, words);
        }
        assert_eq!(project.text("sub/new.txt").as_deref(), Some("made again\n"), "{state}");
    }
    assert_eq!(fs::read_to_string(outside).unwrap(), "three\n");
}

#[test]
fn what_cannot_be_put_back_is_said() {
    let project = Project::new();
    project.run(&["sessions", "files", "last"]).refused(ErrorCode::InvalidRequest, "no session yet");
    project.put("large", &format!("one{}", "x".repeat(1024 * 1024)));
    let small = r#"@call write {"path":"small","content":"x"}"#;
    project.turn(&["run"], &format!(r#"{small} @call edit {{"path":"large","old":"one","new":"two"}} @say Done."#));
    assert_eq!(project.list(&[])["items"][0]["copy"], "not kept");
    let refused = project.restore("0");
    refused.refused(ErrorCode::InvalidRequest, "too large; name a later turn");
    refused.refused(ErrorCode::InvalidRequest, "leave a file as it is with --except PATH");
    assert_eq!(refused.err.matches("workspace").count(), 1, "{}", refused.err);
    assert!(project.text("small").is_some());
    let without = |path| ["sessions", "restore-files", "last", "--turn", "0", "--yes", "--except", path];
    project.run(&without("larg")).refused(ErrorCode::InvalidRequest, "--except: the agent changed no file larg");
    assert!(project.text("small").is_some());
    done(project.run(&without("large")));
    assert!(project.text("large").unwrap().starts_with("twox") && project.text("small").is_none());
    project.restore("1").refused(ErrorCode::ItemNotFound, "no such turn");
    project.turn(&["run"], "hello");
    let none = done(project.run(&["sessions", "files", "last"]));
    assert!(none.err.contains("No file was changed"), "{}", none.err);

    project.turn(&["run"], r#"@call write {"path":"a","content":"x"} @say Done."#);
    assert_eq!(project.list(&[])["unknown"], json!([]));
    let bundle = project.home.path().join("bundle");
    done(project.run(&["sessions", "export", "last", "--output", bundle.to_str().unwrap()]));
    done(project.run(&["sessions", "import", bundle.to_str().unwrap(), "--new-ids"]));
    project.restore("0").refused(ErrorCode::InvalidRequest, "no workspace");
    assert_eq!(project.states(), states(&[("a", "not compared")]));
    assert_eq!(project.text("a").as_deref(), Some("x"));
}

/// The first call's result comes first, so the files are changed long before their events.
#[test]
fn changes_whose_process_was_killed_before_their_events_are_put_back() {
    let project = Project::new();
    let folder = project.path("");
    project.put("old.txt", "one\n");
    let script = r#"@call read {"path":"old.txt"} @step @call test_sleep {"ms":600000}
        @call write {"path":"late.txt","content":"x"} @call write {"path":"old.txt","content":"two\n"} @say Done."#;
    let mut command: Command = meerkat(project.home.path(), &["run", "--allow", "write", script]);
    command.current_dir(&folder).env("MEERKAT_TOOLS__TEST_DIR", project.home.path()).stderr(Stdio::null());
    fs::create_dir_all(folder.join(".git")).unwrap();
    let mut child = command.spawn().unwrap();
    until("the files are changed", || {
        project.text("late.txt").is_some() && project.text("old.txt").as_deref() == Some("two\n")
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let list = project.list(&[]);
    assert_eq!(list["unknown"], json!([]));
    assert_eq!(project.states(), states(&[("late.txt", LEFT), ("old.txt", LEFT)]));
    done(project.restore("0"));
    assert_eq!((project.text("late.txt"), project.text("old.txt").as_deref()), (None, Some("one\n")));
}
