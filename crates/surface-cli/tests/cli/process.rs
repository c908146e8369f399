//! Effects that only a process has: its panics.

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
