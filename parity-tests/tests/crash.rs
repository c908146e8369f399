//! What the crash tests of the default build hold for its memory, held for build C, where no journal is kept: there the
//! memory's own log is all that an index is made from.
//!
//! The tests are those of `surface-cli`, over the binary of that build.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stderr, reason = "a test says where it was when it failed")]
#![allow(dead_code, reason = "the tests of stored sessions use the rest")]

#[path = "../../crates/service/src/campaigns.rs"]
mod campaigns;
#[path = "../../crates/surface-cli/tests/crash/each.rs"]
mod each;
#[path = "../../crates/surface-cli/tests/crash/memory.rs"]
mod memory;
#[path = "../../crates/surface-cli/tests/crash/oracle.rs"]
mod oracle;
#[path = "../../crates/surface-cli/tests/crash/process.rs"]
mod process;
#[path = "../../crates/surface-cli/tests/crash/shim.rs"]
mod shim;

use std::{path::PathBuf, sync::OnceLock};

use meerkat_parity_tests::builds;

/// Its sessions end with their process.
const KEEPS_SESSIONS: bool = false;

/// The program that is killed.
fn program() -> PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    let made = || {
        let build = builds::all().unwrap().into_iter().find(|build| build.name == "C").unwrap();
        build.binaries().unwrap().join("meerkat")
    };
    PROGRAM.get_or_init(made).clone()
}

/// Where sessions are kept, their journals hold what was said.
#[test]
fn the_oracle_sees_a_swallowed_write_of_what_was_said() {
    memory::sees_a_swallowed_write("tamarind");
}
