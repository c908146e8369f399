//! `memory …`: what people see of hits, and what they are asked before something is forgotten.

use std::sync::Arc;

use meerkat_errors::ErrorCode;
use tempfile::TempDir;

use crate::drive::terminal::cli;

fn with_something_said() -> Arc<TempDir> {
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let said = cli(&["run", "@say The passphrase is persimmon."]).in_dir(&dir).run();
    assert_eq!(said.code, 0, "{}", said.err);
    dir
}

#[test]
fn hits_are_for_people_or_for_programs() {
    let dir = with_something_said();
    let search = ["memory", "search", "persimmons", "--role", "assistant"];
    let piped = cli(&search).in_dir(&dir).run();
    assert_eq!(piped.code, 0, "{}", piped.err);
    let lines: Vec<&str> = piped.out.lines().collect();
    assert!(lines[0].contains(":3  ") && lines[0].ends_with("  assistant"), "{}", piped.out);
    assert_eq!(lines[1], "  The passphrase is persimmon.");
    let shown = cli(&search).in_dir(&dir).on_terminal().run();
    assert!(shown.out.contains("is \u{1b}[1mpersimmon\u{1b}[0m."), "{:?}", shown.out);
    let plain = cli(&search).in_dir(&dir).on_terminal().env("NO_COLOR", "1").run();
    assert!(!plain.out.contains('\u{1b}') && plain.out.contains("persimmon"), "{:?}", plain.out);
    let json = cli(&[&search[..], &["--json"]].concat()).in_dir(&dir).run().json();
    assert_eq!(json["items"][0]["text"], "The passphrase is persimmon.");
    // The command that opens it does.
    let words: Vec<&str> = lines[2].strip_prefix("  meerkat ").unwrap().split(' ').collect();
    let opened = cli(&words).in_dir(&dir).run();
    assert!(opened.out.contains("The passphrase is persimmon."), "{}{}", opened.out, opened.err);
    let nothing = cli(&["memory", "search", "zyzzyva"]).in_dir(&dir).run();
    assert_eq!((nothing.code, nothing.out.as_str()), (0, "Nothing was found. Other words may find more.\n"));
}

#[test]
fn a_time_that_is_none_is_refused_with_the_form_that_is_one() {
    let dir = with_something_said();
    for (flag, time) in [("--since", "yesterday"), ("--until", "2026-01-01")] {
        let refused = cli(&["memory", "search", "persimmon", flag, time]).in_dir(&dir).run();
        refused.refused(ErrorCode::InvalidRequest, "as in 2026-01-01T00:00:00Z");
        assert!(!refused.err.contains("column") && refused.err.contains(&flag[2..]), "{}", refused.err);
    }
}

#[test]
fn nothing_is_forgotten_unasked() {
    let dir = with_something_said();
    let forget = ["memory", "forget", "--source", "assistant"];
    // What is missing comes first, whether somebody can be asked or not.
    for unnamed in [&["memory", "forget"][..], &["memory", "forget", "--from-seq", "1"]] {
        cli(unnamed).in_dir(&dir).run().refused(ErrorCode::InvalidRequest, "session_id");
        cli(unnamed).in_dir(&dir).on_terminal().stdin("y\n").run().refused(ErrorCode::InvalidRequest, "session_id");
    }
    cli(&forget).in_dir(&dir).run().refused(ErrorCode::InvalidRequest, "--yes");
    let refused = cli(&forget).in_dir(&dir).on_terminal().stdin("no\n").run();
    assert!(refused.err.contains("Forget all texts that match") && refused.err.contains("Nothing was forgotten."));
    let done = cli(&[&forget[..], &["--json"]].concat()).in_dir(&dir).on_terminal().stdin("y\n").run();
    assert_eq!(done.json()["forgotten"], 1);
    let found = cli(&["memory", "search", "persimmon", "--role", "assistant", "--json"]).in_dir(&dir).run();
    assert_eq!(found.json()["items"], serde_json::json!([]));
    let again = cli(&[&forget[..], &["--json", "--yes"]].concat()).in_dir(&dir).run();
    assert_eq!(again.json()["forgotten"], 0);
    assert_eq!(cli(&["memory", "reindex", "--json"]).in_dir(&dir).run().json()["indexed"], 1);
    // People are told that alone.
    let again = cli(&[&forget[..], &["--yes"]].concat()).in_dir(&dir).run();
    assert_eq!(again.out, "forgotten  0\n");
}
