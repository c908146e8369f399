//! What memory costs a process that ends right after its turn: syncs, counted exactly.

use meerkat_service::{Capabilities, Capability};

use crate::{
    process::Stage,
    shim::{NOT_INDEX, SYNCS, Shim},
};

/// The syncs of a `run`, but for those of the copies, which a thread of their own makes when it finds the time.
fn syncs(stage: &Stage, remembers: &str) -> u64 {
    let shim = Shim::new(&stage.data()).only(SYNCS).under(NOT_INDEX);
    let mut command = stage.command(&["run", "@say The kumquat is ripe."]);
    command.env("MEERKAT_MEMORY__ENABLED", remembers);
    shim.attach(&mut command);
    let ran = command.output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    shim.count()
}

/// Texts, vectors, what is to be found by, the graph and a look at an empty log were four commits and a sync more.
#[test]
fn memory_adds_one_commit_to_a_turn() {
    let (remembering, forgetful) = (Stage::empty(), Stage::empty());
    let added = || syncs(&remembering, "true") - syncs(&forgetful, "false");
    // A commit syncs its pages, and then the header that makes them count.
    let commit = if Capabilities::compiled().require(Capability::MemoryStore).is_ok() { 2 } else { 0 };
    assert_eq!(added(), 2 * commit, "a new file says also that it lacks no session");
    for _ in 0..3 {
        assert_eq!(added(), commit);
    }
}
