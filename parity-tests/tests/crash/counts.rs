//! Syncs that memory costs a process that ends right after its turn, counted exactly.

use crate::{
    process::Stage,
    shim::{Act, NOT_INDEX, SYNCS, Shim},
};

/// The syncs of a `run`, without those of the index, which a thread of its own does at any time.
fn syncs(stage: &Stage, remembers: &str, act: Act) -> u64 {
    let shim = Shim::new(&stage.data()).only(SYNCS).under(NOT_INDEX).at(1, act);
    let mut command = stage.command(&["run", "@say The kumquat is ripe."]);
    command.env("MEERKAT_MEMORY__ENABLED", remembers);
    shim.attach(&mut command);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    shim.count()
}

/// Checks the syncs that memory adds to four turns, the first of which makes its file; `first` happens to the first sync.
/// On a busy machine a process may end before memory has taken in its turn, or take longer than the time after which memory
/// begins by itself, and then there is a commit more: that try does not count.
fn check_added(first: Act, expected: [u64; 4]) {
    let tries = (0..TRIES).map(|_| {
        let (remembering, forgetful) = (Stage::empty(), Stage::empty());
        let added = |act| syncs(&remembering, "true", act).checked_sub(syncs(&forgetful, "false", Act::Pass));
        [first, Act::Pass, Act::Pass, Act::Pass].map(added)
    });
    let (expected, mut counted) = (expected.map(Some), Vec::new());
    assert!(tries.inspect(|added| counted.push(*added)).any(|added| added == expected), "{expected:?}: {counted:?}");
}

const TRIES: usize = 100;

/// Syncs that memory adds. A commit syncs its pages, and then the header that makes them valid; the first one is preceded by
/// one that makes the file.
const ADDED: [u64; 4] = [4, 2, 2, 2];

/// Texts, vectors, postings, the graph and a look at an empty log were once four commits and a sync more.
#[test]
fn memory_adds_one_commit_to_a_turn() {
    check_added(Act::Pass, ADDED);
}

#[test]
fn the_count_misses_a_swallowed_sync() {
    let mut expected = ADDED;
    expected[0] -= 1;
    check_added(Act::Swallow, expected);
}
