//! `compact`, its preview and its undoing, as people read them; where the build lacks compaction they are refused.

use meerkat_errors::ErrorCode;

use super::{cli, has_compaction};

/// A session that nobody made.
const SESSION: &str = "01900000-0000-7000-8000-000000000001";

#[test]
fn without_the_capability_all_of_it_is_refused() {
    for args in [&["compact", SESSION][..], &["compact", SESSION, "--preview"], &["compact", SESSION, "--undo"]] {
        let ran = cli(&[args, &["--ephemeral"]].concat()).run();
        match has_compaction() {
            true => ran.refused(ErrorCode::SessionNotFound, SESSION),
            false => {
                let code = ErrorCode::SessionCompactionDisabled;
                ran.refused(code, &format!("error: {}\n", code.message()));
            }
        }
    }
    let ran = cli(&["run", "--ephemeral", "--compact-threshold", "1000", "@say Hi."]).run();
    match has_compaction() {
        true => assert_eq!((ran.code, ran.out.as_str()), (0, "Hi.\n")),
        false => ran.refused(ErrorCode::SessionCompactionDisabled, ErrorCode::SessionCompactionDisabled.message()),
    }
}

#[test]
fn a_plan_a_receipt_and_an_undo_say_what_happened_to_the_context() {
    if !has_compaction() {
        return;
    }
    let lines = "@long 3000 @compaction @say Filler. @usage in=30 out=4 cached=20\n@say Two.\n/compact --preview\n/compact\n\
                 @echo messages\n/compact --undo\n@echo messages\n";
    let ran = cli(&["chat", "--ephemeral", "--compact-keep-turns", "1"]).stdin(lines).run();
    assert_eq!(ran.code, 0, "{}", ran.err);
    for part in [
        "This is a plan: nothing was changed, and no model was called.\n",
        "messages    2 would stay, 2 would go\n",
        "messages    2 stay, 2 went\n",
        "by          a summary that the model wrote\n",
        "cost        30 tokens in (20 cached), 4 out\n",
        // The summary, the turn that stayed, and the prompt.
        "messages: 4\n",
        ": 2 messages are back in the context.",
        // Three turns that were said, and the prompt.
        "messages: 7\n",
    ] {
        assert!(ran.out.contains(part), "{part:?} is missing in\n{}{}", ran.out, ran.err);
    }
}
