//! Quality and speed of memory's search, offline.
//!
//! `cargo bench -p meerkat-recall -- retrieval speed vectors crossover` runs the named parts, or all if none is named. `--locomo
//! PATH` and `--longmemeval PATH` measure those files too, `--endpoint URL` and `--model DIR` add the vectors of a server or
//! of a table, `--messages N` sets the size of `speed`. The corpora are generated from a seed; constants are
//! tuned on one, results reported on the other. Milliseconds are never asserted.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

mod agents;
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

/// Returns the value of an option.
pub(crate) fn option<'a>(args: &'a [String], name: &str) -> Option<&'a str> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1).map(String::as_str)
}

/// Part of the benchmark, with its arguments.
type Part = fn(&[String]);

fn main() {
    // Runs one part in a fresh process.
    if let Ok(role) = std::env::var(speed::ROLE) {
        return speed::in_child(&role);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parts: [(&str, Part); 4] = [
        ("retrieval", retrieval::run),
        ("speed", speed::run),
        ("vectors", vectors::run),
        ("crossover", vectors::crossover),
    ];
    let is_named = |name: &str| args.iter().any(|arg| arg == name);
    let all = !parts.iter().any(|(name, _)| is_named(name));
    for (name, part) in parts {
        if all || is_named(name) {
            part(&args);
        }
    }
}
