//! The real program, killed or failed by its disk at every place, and checked by one oracle.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stderr, reason = "a test says where it was when it failed")]

#[path = "../../../service/src/campaigns.rs"]
mod campaigns;
#[path = "../drive/mod.rs"]
mod drive;

mod counts;
mod damage;
mod each;
mod every;
mod faults;
mod keys;
mod memory;
mod oracle;
mod places;
mod process;
mod projection;
mod random;
mod server;
mod shim;

/// Path of the program that is killed.
fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_meerkat").into()
}

/// True if its sessions outlive it.
const KEEPS_SESSIONS: bool = true;
