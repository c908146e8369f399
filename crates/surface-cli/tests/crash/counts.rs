//! What memory costs a process that ends right after its turn: syncs, counted exactly.

use meerkat_service::{Capabilities, Capability};

use crate::{
    process::Stage,
    shim::{Act, NOT_INDEX, SYNCS, Shim},
};

/// The syncs of a `run`, but for those of the copies, which a thread of their own makes when it finds the time.
fn syncs(stage: &Stage, remembers: &str, act: Act) -> u64 {
    let shim = Shim::new(&stage.data()).only(SYNCS).under(NOT_INDEX).at(1, act);
    let mut command = stage.command(&["run", "@say The kumquat is ripe."]);
    command.env("MEERKAT_MEMORY__ENABLED", remembers);
    shim.attach(&mut command);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    shim.count()
}

/// What a new file costs a turn, and then three more turns, if the first sync with memory is swallowed or not.
fn added(first: Act) -> [u64; 4] {
    let (remembering, forgetful) = (Stage::empty(), Stage::empty());
    [first, Act::Pass, Act::Pass, Act::Pass]
        .map(|act| syncs(&remembering, "true", act) - syncs(&forgetful, "false", Act::Pass))
}

/// What is to be added. A commit syncs its pages, and then the header that makes them count.
fn expected() -> [u64; 4] {
    let commit = if Capabilities::compiled().require(Capability::MemoryStore).is_ok() { 2 } else { 0 };
    // A new file says also that it lacks no session.
    [2 * commit, commit, commit, commit]
}

/// Texts, vectors, what is to be found by, the graph and a look at an empty log were four commits and a sync more.
#[test]
fn memory_adds_one_commit_to_a_turn() {
    assert_eq!(added(Act::Pass), expected());
}

#[test]
fn the_count_misses_a_swallowed_sync() {
    let mut expected = expected();
    if expected[0] > 0 {
        expected[0] -= 1;
        assert_eq!(added(Act::Swallow), expected);
    }
}
