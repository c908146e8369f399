//! What the agent changed in its folder: put back after a question, and after a kill. `transcripts/files.md` has the rest.

use std::{
    fs,
    process::{Command, Stdio},
};

use meerkat_testkit::until;

use crate::drive::{Ran, meerkat, ran, terminal::cli};

/// Puts back the files of the last session's first turn, for a person who types this.
fn asked(home: &std::sync::Arc<tempfile::TempDir>, typed: &str) -> Ran {
    let mut command = cli(&["sessions", "restore-files", "last", "--turn", "0"]).in_dir(home);
    command.below = Some(home.path().join("project"));
    command.on_terminal().stdin(typed).run()
}

#[test]
fn a_person_is_asked_before_files_are_put_back() {
    let home = cli(&[]).dir;
    let file = home.path().join("project/new.txt");
    fs::create_dir(home.path().join("project")).unwrap();
    let mut turn = cli(&["run", "--allow", "write", r#"@call write {"path":"new.txt","content":"x"} @say Done."#]);
    turn.below = Some(home.path().join("project"));
    assert_eq!(turn.in_dir(&home).run().code, 0);
    let refused = asked(&home, "n\n");
    assert!(
        refused.err.contains("new.txt: deleted") && refused.err.contains("Nothing was changed."),
        "{}",
        refused.err
    );
    assert!(file.exists(), "nothing happens without a yes");
    assert_eq!(asked(&home, "y\n").code, 0);
    assert!(!file.exists());
}

/// The first call's result comes first, so the files are changed long before their events.
#[test]
fn changes_whose_process_was_killed_before_their_events_are_put_back() {
    let home = meerkat_testkit::folder();
    let project = home.path().join("project");
    fs::create_dir_all(project.join(".git")).unwrap();
    fs::write(project.join("old.txt"), "one\n").unwrap();
    let script = r#"@call read {"path":"old.txt"} @step @call test_sleep {"ms":600000}
        @call write {"path":"late.txt","content":"x"} @call write {"path":"old.txt","content":"two\n"} @say Done."#;
    let command = |args: &[&str]| -> Command {
        let mut command = meerkat(&home, args);
        command.current_dir(&project).env("MEERKAT_TOOLS__TEST_DIR", home.path()).stderr(Stdio::null());
        command
    };
    let text = |name: &str| fs::read_to_string(project.join(name)).ok();
    let mut child = command(&["run", "--allow", "write", script]).spawn().unwrap();
    until("the files are changed", || text("late.txt").is_some() && text("old.txt").as_deref() == Some("two\n"));
    child.kill().unwrap();
    child.wait().unwrap();
    let list = ran(&mut command(&["sessions", "files", "last", "--json"])).json();
    let item = |name: &str, change: &str, bytes: u64, copy: Option<&str>| {
        serde_json::json!({
            "path": name, "change": change, "state": "as the agent left it", "turns": [0], "bytes": bytes, "copy": copy,
        })
    };
    let items = [item("late.txt", "created", 1, None), item("old.txt", "changed", 4, Some("kept"))];
    assert_eq!((&list["items"], &list["unknown"]), (&items.into(), &serde_json::json!([])));
    assert_eq!(ran(&mut command(&["sessions", "restore-files", "last", "--turn", "0", "--yes"])).code, 0);
    assert_eq!((text("late.txt"), text("old.txt").as_deref()), (None, Some("one\n")));
}
