//! Cost of a command, beside a bare spawn of the same one, in one interleaved run.

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use libtest_mimic::Trial;

use super::place::Place;

/// Pairs of a bare spawn and a confined command.
const ROUNDS: usize = 40;
/// Time that confinement may add: the goal is 3 ms, and the machine of a test is busy.
const MORE_MAX: Duration = Duration::from_millis(300);

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    std::iter::once(Trial::test("a_command_costs_little_more_than_a_bare_one", || {
        cost();
        Ok(())
    }))
}

#[expect(clippy::disallowed_methods, reason = "the promise is a time")]
#[expect(clippy::print_stderr, reason = "the figure is for people")]
fn cost() {
    let place = Place::new();
    place.succeeds("true");
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let mut bare = Command::new("/bin/bash");
        bare.args(["-c", "/bin/true; exit 0"]).env_clear().current_dir(&place.workspace);
        let output = bare.stdin(Stdio::null()).output().unwrap();
        times[0].push(begun.elapsed());
        assert!(output.status.success());
        let begun = Instant::now();
        place.succeeds("/bin/true; exit 0");
        times[1].push(begun.elapsed());
    }
    let [bare, confined] = times.map(|mut times| {
        times.sort_unstable();
        times[ROUNDS / 2]
    });
    let more = confined.saturating_sub(bare);
    eprintln!("a bare command {bare:?}, confined {confined:?}: {more:?} more");
    assert!(more < MORE_MAX, "confinement adds {more:?} to a command");
}
