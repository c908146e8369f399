//! `init` at a terminal: what it asks, what it writes, and when it writes nothing.

use std::path::PathBuf;

use meerkat_errors::ErrorCode;
use tempfile::TempDir;

use super::{sources::Server, typed::Typed};
use crate::drive::{meerkat, ran};

/// The user's configuration in a home folder.
fn file(home: &TempDir) -> PathBuf {
    home.path().join(".config/meerkat/meerkat.toml")
}

/// Starts `init` in a home folder with this configuration, beside a server that speaks as Ollama does.
fn start(server: &Server, user: &str) -> Typed {
    let home = meerkat_testkit::folder();
    if !user.is_empty() {
        std::fs::create_dir_all(file(&home).parent().unwrap()).unwrap();
        std::fs::write(file(&home), user).unwrap();
    }
    let mut command = meerkat(&home, &["init"]);
    command.env("OLLAMA_HOST", &server.host);
    Typed::begin(command, home)
}

/// Answers question by question: what is asked, and what is typed.
#[track_caller]
fn talk(typed: &mut Typed, answers: &[(&str, &str)]) {
    for (question, answer) in answers {
        typed.wait(question);
        typed.keys(&format!("{answer}\r"));
    }
}

const OLLAMA: [(&str, &str); 3] = [("models come from?", "ollama"), ("Which model?", "2"), ("holds its key?", "")];

#[test]
fn three_answers_make_a_configuration_that_works() {
    let server = Server::ollama();
    let mut typed = start(&server, "");
    talk(&mut typed, &OLLAMA);
    talk(&mut typed, &[("name = \"ollama/qwen3:8b\"", "")]);
    let (screen, home) = typed.end();
    assert!(screen.contains("Nothing is written") && !file(&home).exists(), "Enter is no yes: {screen}");

    let mut typed = start(&server, "# mine\n[limits]\npins = 3 # few\n");
    talk(&mut typed, &[("models come from?", "nowhere"), ("not a possible answer", "ollama")]);
    talk(&mut typed, &OLLAMA[1..]);
    talk(&mut typed, &[("Write it? [y/N] ", "y")]);
    typed.wait("Next: meerkat run 'hello'");
    let (_, home) = typed.end();
    let written = std::fs::read_to_string(file(&home)).unwrap();
    assert_eq!(written, "# mine\n[limits]\npins = 3 # few\n\n[model]\nname = \"ollama/qwen3:8b\"\n");
    let answered = ran(meerkat(&home, &["run", "hello"]).env("OLLAMA_HOST", &server.host));
    assert_eq!((answered.code, answered.out.as_str()), (0, "Well.\n"), "{}", answered.err);
}

#[test]
fn a_key_is_named_and_never_written() {
    let server = Server::ollama();
    let mut typed = start(&server, "");
    talk(
        &mut typed,
        &[
            ("models come from?", "openrouter"),
            ("Which model?", "vendor/name"),
            ("holds its key?", "sk-or-0123456789abcdef0123456789"),
            ("not the name of a variable", "MY_KEY"),
            ("Write it?", "y"),
            ("set MY_KEY", ""),
        ],
    );
    let (screen, home) = typed.end();
    let written = std::fs::read_to_string(file(&home)).unwrap();
    let keys =
        "[model]\nname = \"openrouter/vendor/name\"\n\n[model.compatible.openrouter]\nkey_variable = \"MY_KEY\"\n";
    assert_eq!(written, keys);
    // Once, as the terminal's own echo.
    assert_eq!(screen.matches("sk-or-").count(), 1, "{screen}");

    let mut typed = start(&server, "");
    talk(&mut typed, &[("models come from?", "anthropic"), ("Which model?", ""), ("Write it?", "y")]);
    typed.wait("set ANTHROPIC_API_KEY");
    let (_, home) = typed.end();
    assert_eq!(std::fs::read_to_string(file(&home)).unwrap(), "[model]\nname = \"anthropic/claude-sonnet-5-5\"\n");
}

#[test]
fn a_key_is_no_name_of_a_model() {
    let server = Server::ollama();
    let mut typed = start(&server, "");
    talk(
        &mut typed,
        &[
            ("models come from?", "openrouter"),
            ("Which model?", "sk-or-0123456789abcdef0123456789"),
            ("not a possible answer", "vendor/name"),
            ("holds its key?", "none"),
            ("openrouter needs a key", ""),
            ("Write it?", "n"),
        ],
    );
    let (screen, home) = typed.end();
    // Once, as the terminal's own echo.
    assert_eq!(screen.matches("sk-or-").count(), 1, "{screen}");
    assert!(!file(&home).exists());
}

#[test]
fn none_removes_the_variable_of_a_key_after_a_yes() {
    let server = Server::ollama();
    let user = "[model.compatible.ollama]\nkey_variable = \"K\"\nwindow_tokens = 8192\n";
    for answer in ["n", "y"] {
        let mut typed = start(&server, user);
        talk(&mut typed, &OLLAMA[..2]);
        talk(&mut typed, &[("holds its key?", "none"), ("key_variable is \"K\" now. Remove it?", answer)]);
        if answer == "y" {
            talk(&mut typed, &[("Write it?", "y")]);
            typed.wait("Next: meerkat run 'hello'");
        }
        let (screen, home) = typed.end();
        let written = std::fs::read_to_string(file(&home)).unwrap();
        if answer == "n" {
            assert_eq!(written, user, "{screen}");
            continue;
        }
        assert!(!written.contains("key_variable") && written.contains("window_tokens = 8192\n"), "{written}");
        assert!(written.contains("name = \"ollama/qwen3:8b\"\n"), "{written}");
    }
}

#[test]
fn a_key_that_is_set_is_replaced_only_by_a_yes() {
    let server = Server::ollama();
    let user = "[model]\nname = \"gpt-5\" # mine\n";
    for (answer, is_written) in [("n", false), ("", false), ("y", true)] {
        let mut typed = start(&server, user);
        talk(&mut typed, &OLLAMA);
        talk(&mut typed, &[("model.name is \"gpt-5\"", answer)]);
        if is_written {
            talk(&mut typed, &[("Write it?", "y")]);
        }
        let (screen, home) = typed.end();
        let expected = if is_written { "[model]\nname = \"ollama/qwen3:8b\" # mine\n" } else { user };
        assert_eq!(std::fs::read_to_string(file(&home)).unwrap(), expected, "{screen}");
    }
}

#[test]
fn who_leaves_has_written_nothing() {
    let server = Server::ollama();
    for answers in 0..=OLLAMA.len() {
        // The end of the input.
        let mut typed = start(&server, "");
        talk(&mut typed, &OLLAMA[..answers]);
        let last = ["A number or a name", "A number or a name", "holds its key?", "Write it?"][answers];
        typed.wait(last);
        typed.keys("\x04");
        let (screen, home) = typed.end();
        assert!(screen.contains("Nothing is written") && !file(&home).exists(), "{screen}");
        // Ctrl-C, as the terminal sends it.
        let mut typed = start(&server, "");
        talk(&mut typed, &OLLAMA[..answers]);
        typed.wait(last);
        let home = typed.interrupted();
        assert!(!home.path().join(".config").exists());
    }
}

#[test]
fn without_a_terminal_it_says_what_to_do_instead() {
    let home = meerkat_testkit::folder();
    let refused = ran(&mut meerkat(&home, &["init"]));
    refused.refused(ErrorCode::InvalidRequest, "needs a terminal");
    assert!(refused.err.contains("--model ollama/") && refused.err.contains("docs/models.md"), "{}", refused.err);
    assert_eq!(std::fs::read_dir(&home).unwrap().count(), 0);
}
