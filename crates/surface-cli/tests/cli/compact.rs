//! `compact`, its preview and its undoing: where the build lacks compaction they are refused.

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
