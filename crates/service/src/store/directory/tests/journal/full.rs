//! A disk without room for a sync alone: every answer is true of what becomes durable.

use std::collections::BTreeSet;

use super::common::{Rig, SMALL, of, session};
use crate::{
    clock::Timestamp,
    store::directory::journal::{
        layout::{segment_name, session_dir},
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{EventStore as _, StoreError},
};

/// Something that a store is asked for.
type Asked = fn(&Rig) -> Result<(), StoreError>;

fn create(rig: &Rig) -> Result<(), StoreError> {
    let lease = rig.lease(session(2))?;
    let done = rig.append(&lease, &[of(session(2), 1)]).map(drop);
    rig.steps.drive(rig.store.give_up(lease));
    done
}

fn append(rig: &Rig) -> Result<(), StoreError> {
    let lease = rig.lease(session(1))?;
    rig.append(&lease, &[of(session(1), lease.tail + 1)]).map(drop)
}

fn fork(rig: &Rig) -> Result<(), StoreError> {
    rig.steps.drive(rig.store.fork(session(1), 2, &[of(session(2), 3)]))
}

fn delete(rig: &Rig) -> Result<(), StoreError> {
    rig.steps.drive(rig.store.delete(session(1)))
}

fn prune(rig: &Rig) -> Result<(), StoreError> {
    let later = Timestamp::from_millis(i64::MAX / 1_000_000);
    rig.steps.drive(rig.store.prune(session(1), 9, &BTreeSet::from([1, 9]), later)).map(drop)
}

#[test]
fn what_is_refused_for_want_of_room_never_happened() {
    let asked: [(&str, Asked); 5] =
        [("create", create), ("append", append), ("fork", fork), ("delete", delete), ("prune", prune)];
    for (name, asked) in asked {
        let mut was_refused = false;
        for at in 0.. {
            let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
            let lease = rig.grown(session(1), 30, 300);
            rig.release(lease);
            let first = rig.disk.operations() + at;
            let mut done = Ok(());
            // More often than a broken disk may fail.
            for _ in 0..3 {
                rig.disk.fail(at, Fault::Full);
                done = asked(&rig);
                if done != Err(StoreError::Full) {
                    break;
                }
                was_refused = true;
                for seed in 0..12 {
                    let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
                    let what = format!("{name} at {at}, seed {seed}");
                    assert_eq!(crashed.seqs(session(1)), (1..=30).collect::<Vec<_>>(), "{what}");
                    assert!(crashed.read(session(2), 5).is_none(), "{what}");
                }
            }
            let is_over = rig.disk.operations() <= first;
            // Whatever is not known of one session, it is no failing disk.
            assert_eq!(rig.steps.drive(rig.store.room()), Ok(()), "{name} at {at}: {done:?}");
            if is_over {
                break;
            }
        }
        // What is appended may use the reserve.
        assert_eq!(was_refused, name != "append", "{name}");
    }
}

/// The folder was moved, and nobody knows whether it stays: the session goes on only when it is sure to be there.
#[test]
fn a_delete_without_room_for_its_sync_takes_nothing_with_it_later() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.release(rig.filled(session(1), 3));
    rig.disk.fill_syncs(true);
    for _ in 0..3 {
        assert!(matches!(delete(&rig), Err(StoreError::Failed(_))), "it may have happened");
    }
    rig.disk.fill_syncs(false);
    assert_eq!(rig.steps.drive(rig.store.room()), Ok(()));
    append(&rig).unwrap();
    for seed in 0..40 {
        let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
        assert_eq!(crashed.seqs(session(1)), [1, 2, 3, 4], "{seed}");
    }
}

/// Neither the sync nor the way back finds room: who asks again is answered when it is sure.
#[test]
fn a_delete_that_could_not_be_taken_back_is_made_sure_of_before_it_is_answered() {
    for at in 0.. {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
        rig.release(rig.filled(session(1), 3));
        rig.disk.fill_syncs(true);
        let before = rig.disk.operations();
        rig.disk.fail(at, Fault::Full);
        assert!(delete(&rig).is_err(), "at {at}");
        if rig.disk.operations() - before <= at {
            assert!(at >= 5, "{at}");
            break;
        }
        rig.disk.fill_syncs(false);
        delete(&rig).unwrap();
        for seed in 0..12 {
            let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
            assert!(crashed.read(session(1), 5).is_none(), "at {at}, seed {seed}");
        }
    }
}

/// Two turns meet the full disk at once, and the other one is first to release the reserve.
#[test]
fn every_turn_that_runs_has_its_share_of_the_reserve() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let [first, second] = [1, 2].map(|n| rig.filled(session(n), 1));
    rig.disk.limit(Some(rig.disk.used()));
    assert_eq!(rig.append(&first, &[of(session(1), 2)]), Ok(2));
    rig.disk.fail(0, Fault::Full);
    assert_eq!(rig.append(&second, &[of(session(2), 2)]), Ok(2));
}

/// What was durable cannot be read back when a sync of what follows fails: nothing is written behind it, and no other
/// session is kept from writing.
#[test]
fn nothing_is_acknowledged_behind_what_cannot_be_read() {
    for fault in [Fault::Full, Fault::Eio] {
        for is_later in [false, true] {
            // The header, or a record.
            for from in [0, 200] {
                let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
                let lease = rig.filled(session(1), 8);
                let wear_out = || rig.disk.wear_out(&session_dir(session(1)).join(segment_name(1, 1)), from);
                // The write comes first, then its sync; with all syncs full, no other segment can be begun yet.
                rig.disk.fail(1, fault);
                rig.disk.fill_syncs(is_later);
                if !is_later {
                    wear_out();
                }
                let what = format!("{fault:?}, {is_later}, from {from}");
                assert!(rig.append(&lease, &[of(session(1), 9)]).is_err(), "{what}");
                rig.disk.fill_syncs(false);
                if is_later {
                    wear_out();
                    let lease = rig.lease(session(1)).unwrap();
                    assert!(rig.append(&lease, &[of(session(1), 9)]).is_err(), "{what}");
                }
                let refused = rig.lease(session(1));
                assert!(matches!(refused, Err(StoreError::Corrupted { last_good_seq: 8, .. })), "{what}: {refused:?}");
                rig.filled(session(2), 2);
                assert_eq!(rig.steps.drive(rig.store.room()), Ok(()), "{what}");
            }
        }
    }
}
