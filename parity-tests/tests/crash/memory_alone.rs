//! The crash tests of memory in build C, which keeps no journals: the memory's own log is the only source of its index.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stderr, reason = "a test says where it was when it failed")]
#![allow(dead_code, reason = "the tests of stored sessions use the rest")]

mod each;
mod memory;
mod oracle;
mod process;
mod shim;

use std::{path::PathBuf, sync::LazyLock};

use meerkat_parity_tests::builds;

/// The program that is killed.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| builds::meerkat("C").unwrap());

/// Whether its sessions outlive it.
const KEEPS_SESSIONS: bool = false;

/// In other builds the journals have these texts.
#[test]
fn the_oracle_sees_a_swallowed_write_of_what_was_said() {
    memory::sees_a_swallowed_write("tamarind");
}
