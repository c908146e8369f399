//! `meerkat serve` as a process: its guard in front of every surface, its limits, its streams, and its end.

#![allow(clippy::disallowed_methods, reason = "patience is with the machine, and no part of what is tested")]
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[path = "../drive/mod.rs"]
mod drive;

mod console;
mod guard;
mod half_open;
mod limits;
mod memory;
mod numbers;
mod openai;
mod origins;
mod proxy;

mod acp;
mod asked;
mod backup;
mod disconnects;
mod ending;
mod endless;
mod signals;
mod stalled;
mod uploads;

use meerkat_store_postgres::PostgresOptions;
