//! `run` at a terminal, and interrupted. The rest is in `transcripts/run.md`.

use meerkat_errors::ErrorCode;

use crate::drive::terminal::cli;

#[test]
fn control_sequences_never_pass_unless_they_are_asked_for() {
    let prompt = r"@say a\u{1b}[31mred\u{1b}]0;title\u{7}\u{202e}z @chunks 1 @say \u{9b}1mb\u{1b}[0m";
    let ran = cli(&["run", prompt]).on_terminal().run();
    assert_eq!(ran.out, "aredzb\n");
    assert!(cli(&["run", "--raw", prompt]).run().out.contains("\x1b[31m"));
    let events = cli(&["run", "--events", prompt]).run().out;
    assert!(!events.contains('\x1b') && events.contains("\\u001b"), "{events}");
    let failing = cli(&["run", "@call test_fail {\"message\":\"a\\u001b[31mb\"}"]).with_tools().run();
    assert!(!failing.err.contains('\x1b'), "{}", failing.err);
}

#[test]
fn reasoning_and_colours_are_for_a_terminal() {
    let prompt = "@think Well. @say Yes. @call x @say Done.";
    let piped = cli(&["run", prompt]).run();
    assert_eq!(piped.out, "Yes.\nDone.\n");
    assert!(!piped.err.contains("Well.") && piped.err.contains("x did not run"), "{}", piped.err);
    let shown = cli(&["run", prompt]).on_terminal().run();
    assert_eq!(shown.out, piped.out);
    assert!(shown.err.contains("Well.") && shown.err.contains("\x1b[2m"), "{}", shown.err);
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let plain = cli(&["run", prompt]).on_terminal().env(name, value).run();
        assert!(plain.err.contains("Well.") && !plain.err.contains('\x1b'), "{}", plain.err);
    }
}

/// It named the tool alone, and of a failure the first line.
#[test]
fn a_pipe_says_what_runs_and_why_it_failed() {
    let prompt = r#"@call test_echo {"text":"x"} @call test_fail {"message":"one\ntwo\nthree"} @say Done."#;
    let ran = cli(&["run", prompt]).with_tools().run();
    assert_eq!((ran.code, ran.out.as_str()), (0, "Done.\n"), "{}", ran.err);
    assert!(ran.err.contains("test_echo x runs\n"), "{}", ran.err);
    assert!(ran.err.contains("one\n  two\n  three\n"), "{}", ran.err);
}

/// Folders of a user are no project, and a session in one has no files. Its person is told, and a pipe is not.
#[test]
fn a_session_in_the_home_folder_says_that_it_has_no_files() {
    let home = || {
        let command = cli(&["run", "@echo tools"]);
        let dir = command.dir().display().to_string();
        command.env("HOME", &dir)
    };
    let ran = home().on_terminal().run();
    assert_eq!(ran.code, 0, "{}", ran.err);
    let told = |err: &str| err.contains("This session has no tools for files: ") && err.contains("--workspace");
    assert!(told(&ran.err), "{}", ran.err);
    assert!(!ran.out.contains("write"), "{}", ran.out);
    let piped = home().run();
    assert!(piped.code == 0 && !told(&piped.err), "{}", piped.err);
}

#[test]
fn ctrl_c_interrupts_and_a_second_one_leaves() {
    let ran = cli(&["run", "--events", "@say One @stall"]).interrupted_at("turn_started", None).run();
    assert_eq!(ran.code, ErrorCode::TurnInterrupted.exit_code());
    assert!(ran.out.lines().last().unwrap().contains(r#""type":"turn_interrupted""#), "{}", ran.out);
    let stubborn = r#"@call test_sleep {"ms":600000,"ignore_cancel":true}"#;
    let left = cli(&["run", "--events", stubborn])
        .with_tools()
        .env("MEERKAT_TOOLS__GRACE_MS", "600000")
        .interrupted_at("tool_started", Some("Interrupting"))
        .run();
    assert_eq!(left.code, ErrorCode::TurnInterrupted.exit_code());
    assert!(!left.out.contains("turn_interrupted"), "{}", left.out);
}

#[test]
fn a_call_that_needs_approval_is_asked_about_or_denied() {
    let prompt = r#"@call test_ask {"name":"a","line":"x"} @echo last_result"#;
    let answers = [("y\n", true), ("YES\n", true), ("n\n", false), ("", false)];
    // What is no answer denies nothing.
    let asked_again = [("what is it?\n\ny\n", true), ("/approve\n", true), ("no, never\n", false)];
    for (answer, is_run) in answers.into_iter().chain(asked_again) {
        let command = cli(&["run", prompt]).with_tools().on_terminal().env("NO_COLOR", "1").stdin(answer);
        let dir = command.dir.clone();
        let ran = command.run();
        assert!(ran.err.contains(r#"Allow test_ask {"name":"a","line":"x"}? y = once, n = no"#), "{}", ran.err);
        assert_eq!((ran.code, dir.path().join("a").exists()), (0, is_run), "{answer:?}: {}", ran.err);
    }
    let denied = cli(&["run", prompt]).with_tools().stdin("y\n").run();
    assert!(
        denied.out.contains("no person is there to ask") && denied.out.contains("--allow test_ask"),
        "{}",
        denied.out
    );
}

/// What a server asks is marked as its own, and is asked field by field.
#[test]
fn a_question_of_a_server_is_asked_field_by_field() {
    let prompt = r#"@call test_form {"message":"Who?\nAllow shell? y, n: "} @echo last_result"#;
    for (answers, expected) in [
        ("\nAnn\nmany\n7\n", r#"accepted {"count":7,"name":"Ann"}"#),
        ("Ann\n\n", r#"accepted {"count":3,"name":"Ann"}"#),
        ("/deny not now\n", "declined"),
        ("", "declined"),
    ] {
        let ran = cli(&["run", prompt]).with_tools().on_terminal().env("NO_COLOR", "1").stdin(answers).run();
        assert!(ran.out.contains(expected), "{answers:?}: {} {}", ran.out, ran.err);
        for line in ["The server test asks this during test_form", "[test] Who?\n", "[test] Allow shell? y, n: \n"] {
            assert!(ran.err.contains(line), "{line:?}: {}", ran.err);
        }
        assert!(ran.err.contains("[test] name: text: "), "{}", ran.err);
    }
    let ran = cli(&["run", prompt]).with_tools().stdin("Ann\n\n").run();
    assert!(ran.out.contains("declined"), "{}", ran.out);
    assert!(
        ran.err.contains("the server test asks: ") && ran.err.contains("no person attends the turn"),
        "{}",
        ran.err
    );
}

#[test]
fn every_retry_is_told_of() {
    // What passes is shown to those who look in time: this step is not over before its text is shown.
    let run = cli(&["run", "@fail overloaded times=2 @say Here. @stall"]).env("MEERKAT_TURN__RETRY_BASE_MS", "1");
    let ran = run.interrupted_at("Here.", None).run();
    assert_eq!((ran.code, ran.out.as_str()), (130, "Here.\n"), "{}", ran.err);
    assert!(ran.err.contains("call 1 failed") && ran.err.contains("call 2 failed"), "{}", ran.err);
}

#[test]
fn long_arguments_are_asked_about_in_few_lines() {
    let prompt = format!(r#"@call test_ask {{"name":"a","line":"{}end"}}"#, "x".repeat(60_000));
    let ran = cli(&["run", "-q", &prompt]).with_tools().on_terminal().env("NO_COLOR", "1").stdin("n\n").run();
    assert!(ran.err.len() < 8_000 && ran.err.contains("lines are not shown here.]"), "{}", ran.err);
    assert!(ran.err.contains("end\n") && ran.err.contains("v shows them all. y = once, "), "{}", ran.err);
}

#[test]
fn closed_output_ends_quietly() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    for args in [&["run", "-q", "x"][..], &["errors"], &["--help"], &["run", "-q", "--json", "x"]] {
        let mut command = cli(args);
        command.stdout = Box::new(Closed);
        let ran = command.run();
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }
}
