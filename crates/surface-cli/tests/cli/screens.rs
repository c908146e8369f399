//! Chats at a terminal, as its screen shows them.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

use tempfile::TempDir;

use super::typed::Typed;
use crate::drive::{meerkat, ran};

fn chat(home: &TempDir, env: &[(&str, &str)]) -> Command {
    let mut command = meerkat(home, &["chat"]);
    command.env("MEERKAT_DATA_DIR", home.path().join("data")).envs(env.iter().copied());
    command
}

#[test]
fn a_screen_stays_in_order_through_a_paste_an_interrupt_a_resize_and_a_question() {
    let mut typed = Typed::start();
    typed.prompt();
    typed.paste("@say Two\nlines.");
    typed.keys("\r");
    typed.prompt();
    typed.keys("@say Half @stall\r");
    // The line that is typed has it too.
    typed.wait("\x1b[?2004l");
    typed.wait("Half");
    typed.interrupt();
    typed.prompt();
    typed.resize(50, 60);
    typed.keys("@call test_ask {\"name\":\"asked\",\"line\":\"x\"}\r");
    typed.question();
    typed.prompt();
    typed.keys("y\r");
    typed.prompt();
    let lines = typed.lines();
    let at = |text: &str| {
        let found = lines
            .iter()
            .position(|line| line == text || (text.ends_with('…') && line.starts_with(text.trim_end_matches('…'))));
        found.unwrap_or_else(|| panic!("{text:?} is not in {lines:#?}"))
    };
    let order = [
        "Two",
        "lines.",
        "scripted, …",
        "Half",
        "Interrupting; Ctrl-C again leaves.",
        "error: …",
        "Allow test_ask…",
        "test_ask asked: …",
    ];
    let places: Vec<usize> = order.iter().map(|text| at(text)).collect();
    assert!(places.is_sorted(), "{places:?}: {lines:#?}");
    assert!(lines.iter().all(|line| !line.contains("waiting for")), "{lines:#?}");
    assert!(typed.folder().join("asked").exists());
    typed.keys("\x04");
    typed.end();
}

#[test]
fn what_is_waited_for_is_shown_until_it_comes() {
    let mut typed = Typed::start();
    typed.prompt();
    // Only an interrupt ends this wait within the test.
    typed.keys("@fail overloaded retry_after_ms=30000 times=1 @say No.\r");
    typed.wait("retry in ");
    typed.wait(" s: scripted");
    typed.interrupt();
    typed.prompt();
    typed.keys("@fail overloaded retry_after_ms=1 times=1 @say Hi.\r");
    typed.prompt();
    typed.keys("@stall\r");
    typed.wait("waiting for scripted  ");
    typed.interrupt();
    typed.prompt();
    let lines = typed.lines();
    assert!(lines.contains(&"Hi.".to_owned()), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.contains("waiting for") || line.contains("retry in")), "{lines:#?}");
    typed.keys("\x04");
    typed.end();
}

#[test]
fn typed_lines_are_kept_for_later_chats_but_those_after_a_space() {
    let home = meerkat_testkit::folder();
    let mut typed = Typed::begin(chat(&home, &[]), home);
    for line in ["@say Once.\r", " @say Hidden.\r", "\x04"] {
        typed.prompt();
        typed.keys(line);
    }
    let (_, home) = typed.end();
    let file = home.path().join("data/chat_history");
    assert_eq!(fs::read_to_string(&file).unwrap(), "@say Once.\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);

    let mut typed = Typed::begin(chat(&home, &[]), home);
    typed.prompt();
    typed.keys("\x1b[A\r");
    typed.wait("tokens, session");
    assert!(typed.lines().contains(&"Once.".to_owned()), "{:#?}", typed.lines());
    typed.prompt();
    typed.keys("\x04");
    let (_, home) = typed.end();

    fs::remove_file(&file).unwrap();
    let mut typed = Typed::begin(chat(&home, &[("MEERKAT_CHAT__HISTORY", "false")]), home);
    for line in ["@say Once.\r", "\x04"] {
        typed.prompt();
        typed.keys(line);
    }
    let (_, _home) = typed.end();
    assert!(!file.exists());
}

#[test]
fn the_files_of_the_last_turn_are_put_back_once_somebody_agrees() {
    let home = meerkat_testkit::folder();
    let project = home.path().join("project");
    fs::create_dir_all(project.join(".git")).unwrap();
    let mut command = chat(&home, &[]);
    command.current_dir(&project);
    let mut typed = Typed::begin(command, home);
    typed.prompt();
    typed.keys("@call write {\"path\":\"new.txt\",\"content\":\"made\"} @say Copy me.\r");
    typed.question();
    typed.prompt();
    typed.keys("y\r");
    typed.prompt();
    let made = |folder: &Path| folder.join("new.txt").exists();
    for (answer, stays) in [("n\r", true), ("\r", true), ("y\r", false)] {
        assert!(made(&project));
        typed.keys("/undo\r");
        typed.wait("new.txt: deleted");
        typed.wait("[y/N] ");
        typed.prompt();
        typed.keys(answer);
        typed.prompt();
        assert_eq!(made(&project), stays, "{answer:?}");
    }
    typed.keys("/undo\r");
    typed.wait("left no file changed");
    typed.prompt();
    typed.keys("/copy\r");
    typed.wait("\x1b]52;c;Q29weSBtZS4=\x07");
    typed.wait("8 bytes were sent");
    typed.prompt();
    typed.keys("/model\r");
    typed.wait("scripted answers");
    typed.leave();
}

#[test]
fn a_session_is_opened_by_words_of_its_title() {
    let home = meerkat_testkit::folder();
    let data = home.path().join("data").display().to_string();
    for title in ["Fix the login", "Write docs", "Fix the docs"] {
        let done = ran(&mut meerkat(&home, &["--data-dir", &data, "run", "--title", title, "@say Done."]));
        assert_eq!(done.code, 0, "{}", done.err);
    }
    let mut typed = Typed::begin(meerkat(&home, &["--data-dir", &data, "chat", "last"]), home);
    typed.prompt();
    typed.keys("/open login FIX\r");
    typed.wait("from here on");
    typed.prompt();
    typed.keys("/show\r");
    typed.wait("title       Fix the login");
    typed.prompt();
    typed.keys("/open write\r");
    typed.wait("from here on");
    typed.prompt();
    typed.keys("/title Don't stop\r");
    typed.prompt();
    typed.keys("/show\r");
    typed.wait("title       Don't stop");
    typed.leave();
}

/// Denies the first call that waits, from another process.
#[track_caller]
fn deny_elsewhere(home: &Path) {
    let beside = |args: &[&str]| ran(meerkat(home, args).env("MEERKAT_DATA_DIR", home.join("data")));
    let view = beside(&["sessions", "show", "last", "--json"]).json();
    let call_id = view["pending_approvals"][0]["call_id"].as_str().unwrap().to_owned();
    let denied = beside(&["sessions", "deny", "last", &call_id]);
    assert_eq!(denied.code, 0, "{}", denied.err);
}

#[test]
fn a_line_that_was_begun_for_one_question_answers_no_other() {
    let asks = r#"@call test_ask {"name":"first","line":"x"} @call test_ask {"name":"second","line":"x"} @say Done."#;
    for args in [&["chat"][..], &["run", asks]] {
        let home = meerkat_testkit::folder();
        let mut command = meerkat(&home, args);
        command.env("MEERKAT_DATA_DIR", home.path().join("data")).env("MEERKAT_TOOLS__TEST_DIR", home.path());
        let mut typed = Typed::begin(command, home);
        let is_chat = args.len() == 1;
        if is_chat {
            typed.prompt();
            typed.keys(&format!("{asks}\r"));
        }
        typed.question();
        if is_chat {
            typed.prompt();
        }
        typed.keys("y");
        deny_elsewhere(typed.folder());
        typed.wait("answered elsewhere");
        typed.question();
        typed.keys("\r");
        typed.wait("That question is closed");
        typed.question();
        if is_chat {
            typed.prompt();
        }
        assert!(!typed.folder().join("second").exists(), "{}", typed.screen());
        typed.keys("y\r");
        if is_chat {
            typed.prompt();
            typed.keys("\x04");
        }
        let (screen, home) = typed.end();
        let are_run = ["first", "second"].map(|name| home.path().join(name).exists());
        assert_eq!(are_run, [false, true], "{screen}");
    }
}

#[test]
fn a_line_that_was_begun_for_a_form_fills_in_no_other() {
    let prompt = r#"@call test_form {"message":"First?"} @call test_form {"message":"Second?"} @echo last_result"#;
    let home = meerkat_testkit::folder();
    let mut command = meerkat(&home, &["run", prompt]);
    command.env("MEERKAT_DATA_DIR", home.path().join("data")).env("MEERKAT_TOOLS__TEST_DIR", home.path());
    let mut typed = Typed::begin(command, home);
    typed.wait("[test] name: text: ");
    typed.keys("Ann");
    deny_elsewhere(typed.folder());
    typed.wait("Second?");
    typed.wait("[test] name: text: ");
    typed.keys("\r");
    typed.wait("That question is closed");
    typed.wait("[test] name: text: ");
    typed.keys("Bob\r");
    typed.wait("[test] count: whole number [3]: ");
    typed.keys("\r");
    let (screen, _home) = typed.end();
    assert!(screen.contains(r#"accepted {"count":3,"name":"Bob"}"#), "{screen}");
}

#[test]
fn a_prompt_after_a_command_that_was_begun_beside_a_question_is_taken() {
    let home = meerkat_testkit::folder();
    let tools = home.path().display().to_string();
    let mut typed = Typed::begin(chat(&home, &[("MEERKAT_TOOLS__TEST_DIR", tools.as_str())]), home);
    typed.prompt();
    typed.keys("@call test_ask {\"name\":\"asked\",\"line\":\"x\"}\r");
    typed.question();
    typed.prompt();
    typed.keys("/mod");
    deny_elsewhere(typed.folder());
    typed.wait("answered elsewhere");
    typed.keys("el\r");
    typed.wait("scripted answers");
    typed.prompt();
    typed.keys("@say Taken.\r");
    // The line that is typed has it too.
    typed.wait("\x1b[?2004l");
    typed.wait("Taken.");
    typed.leave();
}

#[test]
fn a_question_does_not_mix_with_that_of_an_undo() {
    let home = meerkat_testkit::folder();
    let project = home.path().join("project");
    fs::create_dir_all(project.join(".git")).unwrap();
    let tools = project.display().to_string();
    let mut command = chat(&home, &[("MEERKAT_TOOLS__TEST_DIR", tools.as_str())]);
    command.current_dir(&project);
    let mut typed = Typed::begin(command, home);
    typed.prompt();
    let first = typed.screen().split("Session ").nth(1).unwrap().split(';').next().unwrap().to_owned();
    typed.keys("@call write {\"path\":\"new.txt\",\"content\":\"made\"} @say Made.\r");
    typed.question();
    typed.prompt();
    typed.keys("y\r");
    typed.prompt();
    typed.keys("/new\r");
    typed.prompt();
    typed.keys("@say Before one. @call test_ask {\"name\":\"one\",\"line\":\"x\"} @say Done one.\r");
    typed.wait("Allow test_ask {\"name\":\"one\"");
    typed.prompt();
    typed.keys(&format!("/open {first}\r"));
    typed.wait("from here on");
    typed.wait("Allow test_ask {\"name\":\"one\"");
    typed.prompt();
    // Another question beside it would make it unclear which of the two a line answers.
    typed.keys("/undo\r");
    typed.wait("or say --yes");
    typed.wait("Allow test_ask {\"name\":\"one\"");
    typed.prompt();
    typed.keys("y\r");
    typed.wait("Done one.");
    typed.prompt();
    let are_there = ["new.txt", "one"].map(|name| project.join(name).exists());
    assert_eq!(are_there, [true; 2], "{}", typed.screen());
    typed.keys("\x04");
    typed.end();
}
