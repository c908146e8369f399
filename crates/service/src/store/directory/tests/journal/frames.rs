//! The frame reader against bytes that were changed: it never panics, and what it returns was written, at its place.

use std::path::Path;

use meerkat_testkit::cases;
use proptest::prelude::*;

use super::common::{Rig, SMALL, long, session};
use crate::{
    store::directory::journal::simulated::SimulatedDisk,
    store::{EventStore as _, Frame, StoreError},
};

/// A journal of three segments, and what it holds.
fn journal() -> (SimulatedDisk, Vec<Frame>) {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.lease(session(1)).unwrap();
    let mut seq = 1;
    while seq < 26 {
        let batch: Vec<_> = (seq..seq + 1 + seq % 3).map(|seq| long(session(1), seq, 40 * seq as usize)).collect();
        seq += batch.len() as u64;
        rig.append(&lease, &batch).unwrap();
    }
    let frames = rig.read(session(1), 100).unwrap();
    (rig.disk.clone(), frames)
}

/// A change of a file.
#[derive(Clone, Debug)]
enum Mutation {
    Flip { at: usize, mask: u8 },
    Cut { at: usize },
    Zero { at: usize, len: usize },
    Copy { from: usize, to: usize, len: usize },
    Insert { at: usize, bytes: Vec<u8> },
    Remove { at: usize, len: usize },
    Append { bytes: Vec<u8> },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = || 0..12_000_usize;
    let bytes = || proptest::collection::vec(any::<u8>(), 1..200);
    prop_oneof![
        4 => (at(), 1..=255_u8).prop_map(|(at, mask)| Mutation::Flip { at, mask }),
        1 => at().prop_map(|at| Mutation::Cut { at }),
        2 => (at(), 1..2000_usize).prop_map(|(at, len)| Mutation::Zero { at, len }),
        2 => (at(), at(), 1..3000_usize).prop_map(|(from, to, len)| Mutation::Copy { from: from / 8 * 8, to: to / 8 * 8, len }),
        1 => (at(), bytes()).prop_map(|(at, bytes)| Mutation::Insert { at, bytes }),
        1 => (at(), 1..2000_usize).prop_map(|(at, len)| Mutation::Remove { at, len }),
        1 => bytes().prop_map(|bytes| Mutation::Append { bytes }),
    ]
}

fn apply(file: &mut Vec<u8>, mutation: Mutation) {
    let len_now = file.len();
    let within = |at: usize| at % len_now.max(1);
    match mutation {
        Mutation::Flip { at, mask } => file[within(at)] ^= mask,
        Mutation::Cut { at } => file.truncate(within(at)),
        Mutation::Zero { at, len } => {
            let at = within(at);
            let end = (at + len).min(len_now);
            file[at..end].fill(0);
        }
        Mutation::Copy { from, to, len } => {
            let (from, to) = (within(from), within(to));
            let len = len.min(len_now - from.max(to));
            file.copy_within(from..from + len, to);
        }
        Mutation::Insert { at, bytes } => drop(file.splice(within(at)..within(at), bytes)),
        Mutation::Remove { at, len } => {
            let at = within(at);
            drop(file.drain(at..(at + len).min(len_now)));
        }
        Mutation::Append { bytes } => file.extend(bytes),
    }
}

proptest! {
    #![proptest_config(cases(400))]

    #[test]
    fn what_a_changed_journal_gives_was_written_there(
        mutations in proptest::collection::vec((1..=3_u64, mutation()), 1..4),
    ) {
        thread_local!(static JOURNAL: (SimulatedDisk, Vec<Frame>) = journal());
        let (disk, written) = JOURNAL.with(|(disk, written)| (disk.copy(), written.clone()));
        for (number, mutation) in mutations {
            let folder = format!("journal/01/{}/{number}.1.mlog", session(1));
            let mut bytes = disk.bytes(Path::new(&folder));
            if !bytes.is_empty() {
                apply(&mut bytes, mutation);
                disk.set_bytes(Path::new(&folder), bytes);
            }
        }
        let rig = Rig::on(disk, SMALL, None);
        let check = |rig: &Rig| {
            let frames = rig.read(session(1), 7).unwrap();
            prop_assert!(frames.len() <= written.len());
            prop_assert_eq!(&frames[..], &written[..frames.len()]);
            Ok(frames.len() as u64)
        };
        check(&rig)?;
        match rig.lease(session(1)) {
            // A change at the very end is a torn tail; the journal goes on behind what is left.
            Ok(lease) => {
                let read = check(&rig)?;
                match rig.store.stage(&lease, &[long(session(1), lease.tail + 1, 5)]) {
                    Ok(ticket) => {
                        prop_assert_eq!(read, lease.tail);
                        prop_assert_eq!(rig.wait(ticket), Ok(lease.tail + 1));
                    }
                    // Reading has met it since.
                    Err(error) => prop_assert!(matches!(error, StoreError::Corrupted { .. }), "{}", error),
                }
            }
            Err(error) => prop_assert!(
                matches!(error, StoreError::Corrupted { .. } | StoreError::FormatNewer(_)),
                "{}", error
            ),
        }
    }
}
