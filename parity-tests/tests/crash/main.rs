//! The real program, killed or failed by its disk at every place, and checked by one oracle.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stderr, reason = "a test says where it was when it failed")]

#[path = "../../../crates/store-postgres/src/tests/cluster.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod cluster;
mod counts;
mod damage;
mod database;
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
mod repaired;
mod server;
mod shim;
mod shop;
mod slow;
mod tools;

use std::{path::PathBuf, sync::LazyLock};

// What `cluster` expects of the crate that it is in.
use meerkat_store_postgres::PostgresOptions;

/// The program that is killed, with every capability. Its sessions can be in a database, too.
static PROGRAM: LazyLock<PathBuf> = LazyLock::new(|| env!("CARGO_BIN_EXE_parity-meerkat").into());

/// Whether its sessions outlive it.
const KEEPS_SESSIONS: bool = true;
