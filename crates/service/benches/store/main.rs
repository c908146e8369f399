//! Costs of sessions on a disk and of what is derived of them, next to the raw writes, syncs, scans or parses that they
//! cannot do without, each pair in one interleaved run.
//!
//! `cargo bench -p meerkat-service --bench store -- turns parallel` runs the named parts, or all if none
//! is named. What depends on the disk runs beneath the target folder; `MEERKAT_BENCH_DIR` names another place. What is
//! to show the store's own work runs in memory, on `/dev/shm`. Milliseconds are never asserted.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod common;

mod compaction;
mod derived;
mod long;
mod reopen;
mod resume;
mod turns;

fn main() {
    // A part that has to begin in a fresh process is this program once more.
    if let Some((role, place)) = common::role() {
        return match role.as_str() {
            "resume" => resume::in_child(&place),
            "write" => reopen::write(&place),
            "reopen" => reopen::in_child(&place),
            other => panic!("there is no role {other}"),
        };
    }
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let parts: [(&str, fn()); 8] = [
        ("turns", turns::alone),
        ("parallel", turns::parallel),
        ("long", long::late_against_early),
        ("resume", resume::long_session),
        ("reopen", reopen::after_a_kill),
        ("compaction", compaction::long),
        ("projection", derived::projection),
        ("beside", derived::beside),
    ];
    for (name, part) in parts {
        if named.is_empty() || named.iter().any(|asked| asked == name) {
            part();
        }
    }
}
