//! Effects that only a process has: its panics, and completions that a shell asks it for.

use std::process::Command;

use meerkat_errors::ErrorCode;

use crate::drive::{meerkat, ran};

#[test]
fn a_panic_is_one_line_and_fails_the_turn_alone() {
    let dir = meerkat_testkit::folder();
    let mut command = meerkat(&dir, &["run", "-q", "@call test_panic"]);
    let ran = ran(command.env("MEERKAT_TOOLS__TEST_DIR", dir.path()));
    assert_eq!(ran.code, ErrorCode::Internal.exit_code());
    let [panic, error] = ran.err.lines().collect::<Vec<_>>()[..] else { panic!("{}", ran.err) };
    assert!(panic.starts_with("meerkat: panicked at ") && error.starts_with("error: "), "{}", ran.err);
}

#[test]
fn bash_completes_the_ids_of_sessions() {
    let dir = meerkat_testkit::folder();
    let script = ran(&mut meerkat(&dir, &["completions", "bash"])).out;
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
        let ran = ran(Command::new("bash").args(["--norc", "-c", &ask]).current_dir(dir.path()));
        assert_eq!((ran.out.trim_end(), ran.err.as_str()), (expected, ""), "{words}");
    }
}
