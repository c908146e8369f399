//! What only a process shows: its exit code, its signals, its panics.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Output, Stdio},
};

use meerkat_errors::ErrorCode;
use tempfile::TempDir;

pub(crate) fn meerkat(dir: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meerkat"));
    command.args(args).current_dir(dir.path()).env_clear().env("HOME", dir.path());
    command
}

fn output(args: &[&str]) -> Output {
    meerkat(&TempDir::new().unwrap(), args).output().unwrap()
}

#[test]
fn the_exit_code_is_that_of_the_table() {
    assert_eq!(output(&["--version"]).stdout, format!("meerkat {}\n", env!("CARGO_PKG_VERSION")).into_bytes());
    let hello = output(&["run", "hello"]);
    assert!(hello.status.success() && hello.stdout.starts_with(b"Hello!"));
    for (args, code) in [
        (&["run", ""][..], ErrorCode::InvalidRequest),
        (&["frob"], ErrorCode::UnknownOperation),
        (&["sessions", "list", "--ephemeral"], ErrorCode::SessionPersistenceDisabled),
        (&["run", "--config", "none", "x"], ErrorCode::ConfigInvalid),
    ] {
        let ran = output(args);
        assert_eq!(ran.status.code(), Some(code.exit_code().into()));
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty());
    }
}

#[test]
fn the_signal_interrupts_the_turn() {
    let dir = TempDir::new().unwrap();
    let mut child = meerkat(&dir, &["run", "--events", "@say One @stall"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(r#""type":"turn_started""#)));
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert!(lines.last().unwrap().contains(r#""type":"turn_interrupted""#));
    assert_eq!(child.wait().unwrap().code(), Some(ErrorCode::TurnInterrupted.exit_code().into()));
}

#[test]
fn a_panic_is_one_line_and_fails_the_turn_alone() {
    let dir = TempDir::new().unwrap();
    let mut command = meerkat(&dir, &["run", "-q", "@call test_panic"]);
    let ran = command.env("MEERKAT_TOOLS__TEST_DIR", dir.path()).output().unwrap();
    let err = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(ErrorCode::Internal.exit_code().into()));
    let [panic, error] = err.lines().collect::<Vec<_>>()[..] else { panic!("{err}") };
    assert!(panic.starts_with("meerkat: panicked at ") && error.starts_with("error: "), "{err}");
}

#[test]
fn bash_completes_the_ids_of_sessions() {
    let dir = TempDir::new().unwrap();
    let script = output(&["completions", "bash"]).stdout;
    std::fs::write(dir.path().join("completions"), script).unwrap();
    // In its place the binary of a build with sessions would answer.
    let stand_in = "meerkat() { [ \"$1\" = __complete-sessions ] && printf 'aa12abcd\\tOne\\nbb12abcd\\tTwo\\n'; }\n";
    for (words, expected) in [
        ("sessions show ''", "aa12abcd bb12abcd"),
        ("--data-dir /x sessions history --full bb", "bb12abcd"),
        ("resume aa", "aa12abcd"),
        ("run --session a", "aa12abcd"),
        ("sessions sh", "show"),
        ("sessions show --ra", "--raw"),
        ("sessions show aa12abcd a", ""),
    ] {
        let ask = format!(
            "{stand_in}. ./completions\nCOMP_WORDS=(meerkat {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
             _meerkat_with_sessions meerkat \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
             echo \"${{COMPREPLY[*]}}\""
        );
        let ran = Command::new("bash").args(["--norc", "-c", &ask]).current_dir(dir.path()).output().unwrap();
        let (out, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        assert_eq!((out.trim_end(), err.as_str()), (expected, ""), "{words}");
    }
}
