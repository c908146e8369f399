//! `run`, and the commands that need a capability.

use meerkat_errors::ErrorCode;
use meerkat_serve::Token;
use meerkat_service::{Capabilities, Capability};

use crate::drive::{NOBODY, meerkat_after, ran, terminal::cli};

#[test]
fn the_answer_is_on_standard_output_and_the_notice_on_standard_error() {
    let ran = cli(&["run", "@say Hello there."]).run();
    assert_eq!((ran.code, ran.out.as_str()), (0, "Hello there.\n"));
    assert!(ran.err.starts_with("The scripted model answers"), "{}", ran.err);
    let named = cli(&["run", "--model", "scripted", "@say Hello."]).run();
    assert_eq!((named.out.as_str(), named.err.as_str()), ("Hello.\n", ""), "a model that was named needs no notice");
    assert_eq!(cli(&["run", "-q", "@say Hello."]).run().err, "");
}

#[test]
fn the_prompt_comes_from_standard_input_too() {
    for args in [&["run"][..], &["run", "-"]] {
        assert_eq!(cli(args).stdin("@say From a pipe.\n").run().out, "From a pipe.\n");
    }
    assert_eq!(cli(&["run", "@say This one."]).stdin("@say Not this.").run().out, "This one.\n");
}

/// Codes and documents of failed turns are those of the scenarios; here is what people see.
#[test]
fn a_failed_turn_keeps_its_text_and_names_its_code() {
    let ran = cli(&["run", "@say Before. @fail rejected"]).run();
    assert_eq!((ran.code, ran.out.as_str()), (ErrorCode::ModelRejected.exit_code(), "Before.\n"), "{}", ran.err);
    assert!(ran.err.contains("MODEL_REJECTED"), "{}", ran.err);
    let budget = cli(&["run", "--budget-steps", "1", "@call x @step @say two"]).run();
    assert_eq!(budget.code, ErrorCode::BudgetExhausted.exit_code());
}

#[test]
fn bad_input_gets_its_code_and_prints_nothing() {
    let invalid = ErrorCode::InvalidRequest;
    cli(&["run", ""]).run().refused(invalid, "prompt: it is empty");
    cli(&["run"]).run().refused(invalid, "prompt: it is empty");
    cli(&["run"]).stdin(vec![b'a'; 10_000_000]).run().refused(ErrorCode::PayloadTooLarge, "more than 4194304 bytes");
    cli(&["run"]).stdin(vec![b'a', 0xff]).run().refused(invalid, "not UTF-8 at byte 1");
    cli(&["run", "--frob", "x"]).run().refused(invalid, "--frob");
    cli(&["run", "--budget-steps", "many", "x"]).run().refused(invalid, "--budget-steps");
    cli(&["run", "--policy", "later", "x"]).run().refused(invalid, "reject, queue, interrupt");
    cli(&["run", "--label", "x", "x"]).run().refused(invalid, "name=value");
    cli(&["run", "--session", NOBODY, "--system", "x", "x"]).run().refused(invalid, "--session");
    cli(&["run", "--detach", "x"]).run().refused(invalid, "/call turn/start");
    cli(&["run", "--tools", "no_such", "x"]).run().refused(ErrorCode::ToolNotFound, "no_such");
    cli(&["frob"]).run().refused(ErrorCode::UnknownOperation, "'frob'");
    cli(&["sessions", "frob"]).run().refused(ErrorCode::UnknownOperation, "'frob'");
    cli(&["resume"]).run().refused(invalid, "required arguments were not provided: <SESSION>");
    cli(&["sessions", "show", "nonsense"]).run().refused(invalid, "\"nonsense\" is not a session");
    let remind = ["call", "session/remind", &format!("session_id={NOBODY}"), "kind=frob", "text=x"];
    cli(&remind).run().refused(invalid, "claude_md");
    cli(&[]).run().refused(invalid, "Usage:");
    cli(&["run", "--model", "claude-x", "x"]).run().refused(ErrorCode::ModelNotConfigured, "set ANTHROPIC_API_KEY");
    let limited = cli(&["run"]).env("MEERKAT_LIMITS__PROMPT_BYTES", "9").stdin("@say 5678\n").run();
    assert_eq!(limited.out, "5678\n", "a new line at the end is no part of the prompt");
}

/// Arguments that cannot be parsed still say how they are answered.
#[test]
fn with_json_the_body_is_the_document() {
    for (args, code) in [
        (&["--json", "frob"][..], ErrorCode::UnknownOperation),
        (&["run", "--frob", "--json"], ErrorCode::InvalidRequest),
    ] {
        let ran = cli(args).run();
        assert_eq!((ran.code, &ran.json()["code"]), (code.exit_code(), &code.as_str().into()));
        assert!(ran.err.starts_with("error: "), "{}", ran.err);
    }
}

/// It is the disk's mistake, and none of meerkat's own.
#[test]
#[cfg(target_os = "linux")]
fn an_answer_that_cannot_be_written_fails_and_says_so() {
    let dir = meerkat_testkit::folder();
    let ran = ran(&mut meerkat_after("exec >/dev/full", &dir, &["run", "@say x"]));
    assert_eq!(ran.code, ErrorCode::Internal.exit_code(), "{}", ran.err);
    assert!(ran.err.contains("error: The output could not be written: No space left on device"), "{}", ran.err);
}

/// What a command does beside its request comes after the capability: no file is opened, no name looked up, nobody asked.
/// The other commands are the scenarios'.
#[test]
fn a_missing_capability_comes_first() {
    let (store, memory) = (ErrorCode::SessionPersistenceDisabled, ErrorCode::MemoryStoreDisabled);
    for (args, code) in [
        (&["resume", NOBODY, "go on"][..], store),
        (&["run", "--session", "last", "x"], store),
        (&["sessions", "show", "abcdef"], store),
        (&["sessions", "delete", NOBODY], store),
        (&["sessions", "history", NOBODY, "--all", "--full"], store),
        (&["sessions", "export", NOBODY, "-o", "no/such/folder"], store),
        (&["sessions", "export", "--all", "-o", "file.tar"], store),
        (&["sessions", "import", "no.tar", "--new-ids"], store),
        (&["call", "session/retain"], store),
        (&["call", "reader/wait", "reader=audit", &format!("session_id={NOBODY}"), "seq=3", "wait_ms=1"], store),
        (&["call", "projection/rebuild"], store),
        (&["memory", "forget"], memory),
        (&["memory", "reindex"], memory),
    ] {
        // The build has it, so it is switched off, and the text says so.
        let needed = if code == store { Capability::SessionStore } else { Capability::MemoryStore };
        let lacking = Capabilities::compiled().without_store().without_memory();
        let text = lacking.require(needed).unwrap_err().to_string();
        cli(&[args, &["--ephemeral"]].concat())
            .on_terminal()
            .env("NO_COLOR", "1")
            .env("MEERKAT_MEMORY__ENABLED", "false")
            .stdin("y\n")
            .run()
            .refused(code, &format!("error: {text}\n"));
    }
    for args in [&["events", NOBODY, "--follow"][..], &["chat", NOBODY]] {
        cli(args).run().refused(ErrorCode::SessionNotFound, NOBODY);
    }
}

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
fn why_an_answer_ended_early_is_on_standard_error() {
    for (prompt, word) in [
        ("@say It is @stop max_tokens", "max_tokens"),
        ("@say It @stop content_filter", "content_filter"),
        ("@say No. @stop refusal", "refusal"),
        ("@think Hm.", "empty"),
        ("@say Hi. @usage in=7 out=5", ""),
    ] {
        for command in [cli(&["run", prompt]), cli(&["chat"]).stdin(format!("{prompt}\n"))] {
            let ran = command.run();
            let is_said = ran.err.contains(&format!("({word})."));
            assert_eq!((ran.code, is_said), (0, !word.is_empty()), "{prompt}: {}", ran.err);
        }
    }
    let over = cli(&["run", "--budget-tokens", "10", "@say Hi. @usage in=7 out=5"]).run();
    assert!(over.code == 0 && over.err.contains("12 tokens") && over.err.contains("10"), "{}", over.err);
    let within = cli(&["run", "--budget-tokens", "12", "@say Hi. @usage in=7 out=5"]).run();
    assert!(!within.err.contains("budget of"), "{}", within.err);
}

#[test]
fn every_refusal_reads_as_a_sentence() {
    for args in [
        &["events"][..],
        &["sessions", "approve"],
        &["call", "session/pin", "txet=x"],
        &["run", "--budget-tokens", "x", "y"],
        &["run", "--policy", "foo", "x"],
        &["run", "--modle", "x", "y"],
        &["run", "--session", "last", "--system", "x", "y"],
        &["sessions", "list", "--label", "x"],
        &["rusn"],
    ] {
        let ran = cli(args).run();
        for wrong in [":;", ".;", "..", ";;", "or;", "For more information"] {
            assert!(ran.code != 0 && !ran.err.contains(wrong), "{args:?}: {wrong}: {}", ran.err);
        }
    }
    let missing = cli(&["sessions", "approve"]).run().err;
    assert!(missing.contains("required arguments were not provided: <SESSION> <CALL_ID>"), "{missing}");
    let words = cli(&["run", "hello", "world"]).run().err;
    assert!(words.contains("world: unexpected argument 'world' found"), "{words}");
    let nothing = cli(&["sessions", "export", "-o", "x.tar"]).run();
    nothing.refused(ErrorCode::InvalidRequest, "name the sessions to export, or say --all");
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

#[test]
fn keys_are_told_nowhere() {
    let key = "sk-ant-planted-0123456789";
    let with_key = |args: &[&str]| cli(args).env("ANTHROPIC_API_KEY", key).run();
    let said = with_key(&["run", "--model", "scripted", &format!("@say the key is {key}")]);
    assert_eq!(said.out, "the key is [redacted]\n");
    for ran in [
        with_key(&["config", "show", "--json"]),
        with_key(&["run", "--events", "--model", "scripted", &format!("@think {key} @fail rejected")]),
        cli(&["run", "--api-key", key]).run(),
        cli(&[&format!("--{key}"), "--json"]).run(),
        cli(&["run", "x"]).env("MEERKAT_TURN__MAX_STEPS", key).run(),
        cli(&["run", "-vvv", "--model", key, "x"]).run(),
    ] {
        assert!(!format!("{}{}", ran.out, ran.err).contains("planted"), "{}{}", ran.out, ran.err);
    }
}

/// Broken once: a prompt with the server's token went to the model and into the session, and a redacted bundle had it.
#[test]
fn the_token_of_the_projects_server_is_in_no_session() {
    let dir = cli(&[]).dir;
    let data = dir.path().join("data");
    let ours = |args: &[&str]| cli(args).in_dir(&dir).env("MEERKAT_DATA_DIR", &data.display().to_string());
    let in_variable = "a-token-of-the-variable";
    let in_file = Token::of_dir(&data).unwrap().0.text().to_owned();
    let prompt = format!("@say It is {in_variable} or {in_file}.");
    let said = ours(&["run", &prompt]).env("MEERKAT_TOKEN", in_variable).run();
    assert_eq!(said.out, "It is [redacted] or [redacted].\n", "{}", said.err);
    let events = ours(&["events", "last"]).run().out;
    assert!(events.contains("It is [redacted] or [redacted]."), "{events}");
    for secret in [in_variable, &in_file] {
        assert!(!events.contains(secret), "{events}");
    }
}

/// A copied event names the session that it came from; what is acknowledged is the fork's.
#[test]
fn a_reader_sees_under_which_session_to_acknowledge_a_forks_events() {
    let dir = cli(&[]).dir;
    let ours = |args: &[&str]| cli(args).in_dir(&dir);
    ours(&["run", "@say Hello."]).run();
    let fork = ours(&["sessions", "fork", "last", "--json"]).run().json();
    let fork = fork["session_id"].as_str().unwrap();
    ours(&["call", "reader/create", "reader=audit"]).run();
    let fetched = ours(&["call", "reader/fetch", "reader=audit", "--json"]).run().json();
    let items = fetched["items"].as_array().unwrap();
    let of_fork = items.iter().filter(|item| item["idempotency_key"].as_str().unwrap().starts_with(fork)).count();
    assert_eq!((of_fork, items.len()), (5, 9), "{fetched}");
}
