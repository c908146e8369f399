//! How well memory finds what was said, and how fast, offline.
//!
//! `cargo bench -p meerkat-service --bench memory -- retrieval speed vectors` runs the parts that are named, and all of
//! them where none is. `--locomo PATH` and `--longmemeval PATH` measure those files too, `--messages N` makes the part
//! `speed` smaller or larger. The corpora are made by a seed; constants are chosen by the one for tuning alone, and
//! what is said about memory is said of the other one. What the corpora are to tell apart is asserted, milliseconds
//! never are.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod baselines;
mod book;
mod corpus;
mod load;
#[allow(dead_code, reason = "the test on a small corpus looks at one category")]
mod metrics;
mod questions;
mod random;
mod ways;

mod retrieval;
mod speed;
mod vectors;

/// What stands behind an option.
pub(crate) fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1).map(String::as_str)
}

/// A part of the benchmark, with its arguments.
type Part = fn(&[String]);

fn main() {
    // A part that has to begin in a fresh process is this program once more.
    if let Ok(role) = std::env::var(speed::ROLE) {
        return speed::in_child(&role);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parts: [(&str, Part); 3] = [("retrieval", retrieval::run), ("speed", speed::run), ("vectors", vectors::run)];
    let is_named = |name: &str| args.iter().any(|arg| arg == name);
    let all = !parts.iter().any(|(name, _)| is_named(name));
    for (name, part) in parts {
        if all || is_named(name) {
            part(&args);
        }
    }
}
