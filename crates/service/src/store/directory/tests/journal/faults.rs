//! A script meets an error at each of its writes, syncs and names in turn, and a full disk at each of its sizes.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use super::common::{Rig, SMALL, Steps, long, of, session};
use crate::{
    ids::Seq,
    store::directory::journal::{
        Disk as _,
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{EventStore as _, ReadLimit, StoreError},
};

/// Answers that a script got.
#[derive(Default)]
struct Told {
    acked: Seq,
    forked: Option<bool>,
    deleted: Option<bool>,
    was_refused: bool,
    refusals: Vec<StoreError>,
}

/// Creates, appends over a rollover, writes a blob, forks, deletes, rests, and comes back.
fn script(rig: &Rig) -> Told {
    let mut told = Told::default();
    let mut lease = None;
    for seq in 1..=12 {
        if told.acked + 1 != seq {
            break;
        }
        for _ in 0..3 {
            let held = match lease {
                Some(held) => Ok(held),
                None => rig.lease(session(1)),
            };
            let outcome = held.and_then(|held| {
                lease = Some(held);
                if held.tail + 1 > seq {
                    // A batch whose fate was unknown turned out to be there.
                    return Ok(held.tail);
                }
                rig.append(&held, &[long(session(1), seq, 1000)])
            });
            match outcome {
                Ok(_) => {
                    told.acked = seq;
                    break;
                }
                Err(error) => {
                    assert!(!matches!(error, StoreError::Corrupted { .. } | StoreError::FormatNewer(_)), "{error}");
                    told.was_refused = true;
                    told.refusals.push(error);
                    lease = None;
                }
            }
        }
        match seq {
            3 => {
                let blob = rig.blob(session(1), b"blob");
                told.was_refused |= blob.is_err();
                told.refusals.extend(blob.err());
            }
            5 => {
                let forked = rig.steps.drive(rig.store.fork(session(1), 2, &[of(session(2), 3)]));
                told.forked = Some(forked.is_ok());
                told.refusals.extend(forked.err());
            }
            7 => {
                let deleted = rig.steps.drive(rig.store.delete(session(2)));
                told.deleted = Some(deleted.is_ok());
                told.refusals.extend(deleted.err());
            }
            9 => {
                if let Some(lease) = lease.take() {
                    rig.release(lease);
                }
            }
            _ => {}
        }
    }
    told
}

fn check(rig: &Rig, told: &Told, what: &str) {
    let found = rig.read(session(1), 5).map_or(0, |frames| frames.len() as u64);
    assert!(found >= told.acked, "{what}: {found} of {}", told.acked);
    for (frame, seq) in rig.read(session(1), 50).unwrap_or_default().iter().zip(1..) {
        assert_eq!(frame.line, crate::wire::encode_event(&long(session(1), seq, 1000)).unwrap(), "{what}");
    }
    let child = rig.read(session(2), 50);
    match (told.forked, told.deleted) {
        (Some(true), None) => assert_eq!(child.unwrap().len(), 3, "{what}"),
        (_, Some(true)) => assert!(child.is_none(), "{what}"),
        _ => assert!(child.is_none_or(|frames| frames.len() == 3), "{what}"),
    }
}

#[test]
fn every_write_sync_and_name_may_fail_once() {
    let prepared = Rig::on(SimulatedDisk::new(), SMALL, None).disk.clone();
    let clean = Rig::on(prepared.copy(), SMALL, None);
    let before = clean.disk.operations();
    let told = script(&clean);
    assert_eq!((told.acked, told.forked, told.deleted, told.was_refused), (12, Some(true), Some(true), false));
    let operations = clean.disk.operations() - before;
    assert!(operations > 60, "{operations}");
    for fault in [Fault::Eio, Fault::Full] {
        for at in 0..operations {
            let what = format!("{fault:?} at {at}");
            let rig = Rig::on(prepared.copy(), SMALL, None);
            rig.disk.fail(at, fault);
            let told = script(&rig);
            assert_eq!(told.acked, 12, "{what}: one fault ends nothing");
            check(&rig, &told, &what);
            let crashed = Rig::on(rig.disk.crashed(&mut Random(at)), SMALL, None);
            check(&crashed, &told, &format!("{what}, then a crash"));
            let tail = crashed.lease(session(1)).unwrap().tail;
            assert_eq!(tail, 12, "{what}");
            crashed.filled(session(1), 1);
        }
    }
}

#[test]
fn a_disk_that_is_full_at_any_size_keeps_what_was_acknowledged_and_goes_on_when_there_is_room() {
    let prepared = Rig::on(SimulatedDisk::new(), SMALL, None).disk.clone();
    let used = prepared.used();
    for room in (0..24_000).step_by(397) {
        let rig = Rig::on(prepared.copy(), SMALL, None);
        rig.disk.limit(Some(used + room));
        let told = script(&rig);
        assert_eq!(told.was_refused, told.acked < 12, "room {room}");
        check(&rig, &told, &format!("room {room}"));
        rig.disk.limit(None);
        assert_eq!(rig.steps.drive(rig.store.room()), Ok(()), "room {room}");
        let tail = rig.filled(session(1), 1).tail;
        assert_eq!(tail, told.acked, "room {room}");
        let crashed = Rig::on(rig.disk.crashed(&mut Random(room)), SMALL, None);
        assert_eq!(crashed.seqs(session(1)).len() as u64, tail + 1, "room {room}");
    }
}

/// Bytes are free, and no file can be made any more.
#[test]
fn a_disk_that_has_no_inode_left_keeps_what_was_acknowledged_and_goes_on_when_there_is_one() {
    let prepared = Rig::on(SimulatedDisk::new(), SMALL, None).disk.clone();
    let mut was_refused = 0;
    for files in 0.. {
        let what = format!("{files} files");
        let rig = Rig::on(prepared.copy(), SMALL, None);
        rig.disk.limit_files(Some(files));
        let told = script(&rig);
        assert!(told.refusals.iter().all(|refusal| *refusal == StoreError::Full), "{what}: {:?}", told.refusals);
        check(&rig, &told, &what);
        if told.refusals.is_empty() {
            break;
        }
        was_refused += 1;
        rig.disk.limit_files(None);
        assert_eq!(rig.steps.drive(rig.store.room()), Ok(()), "{what}");
        let tail = rig.filled(session(1), 1).tail;
        assert_eq!(tail, told.acked, "{what}");
        while rig.steps.step() {}
        assert_eq!(rig.disk.list(Path::new("new")).unwrap(), Vec::<String>::new(), "{what}");
        let crashed = Rig::on(rig.disk.crashed(&mut Random(files as u64)), SMALL, None);
        assert_eq!(crashed.seqs(session(1)).len() as u64, tail + 1, "{what}");
    }
    assert!(was_refused > 5, "{was_refused}");
}

/// The reserve has one inode, which the mark of a session gets that comes to work again.
#[test]
fn r6_without_inodes_nothing_begins_before_those_that_run_have_enough() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.release(rig.filled(session(1), 1));
    while rig.steps.step() {}
    rig.disk.limit_files(Some(0));
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!(rig.append(&lease, &[of(session(1), 2)]), Ok(2));
    for (files, room) in [(0, Err(StoreError::Full)), (63, Err(StoreError::Full)), (64, Ok(()))] {
        rig.disk.limit_files(Some(files));
        assert_eq!(rig.steps.drive(rig.store.room()), room, "{files}");
    }
}

#[test]
fn a_session_that_could_not_be_made_leaves_nothing() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.filled(session(1), 1);
    rig.disk.limit(Some(rig.disk.used() - SMALL.reserve_bytes / 2));
    let names = || rig.disk.list(Path::new("new")).unwrap();
    for n in 2..10 {
        let lease = rig.lease(session(n)).unwrap();
        assert_eq!(rig.append(&lease, &[long(session(n), 1, 9000)]), Err(StoreError::Full));
        rig.steps.drive(rig.store.give_up(lease));
        assert_eq!((names(), rig.store.open_count()), (Vec::new(), 1), "{n}");
    }
}

#[test]
fn r6_a_session_that_is_only_being_made_leaves_the_reserve_to_turns_that_run() {
    for room in (0..2000).step_by(64) {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
        let running = rig.filled(session(1), 1);
        rig.disk.limit(Some(rig.disk.used() + room));
        let lease = rig.lease(session(2)).unwrap();
        assert_eq!(rig.append(&lease, &[long(session(2), 1, 9000)]), Err(StoreError::Full), "room {room}");
        assert_eq!(rig.disk.bytes(Path::new("reserve")).len() as u64, SMALL.reserve_bytes, "room {room}");
        assert_eq!(rig.append(&running, &[long(session(1), 2, 3000)]), Ok(2), "room {room}");
    }
}

#[test]
fn journals_leave_memory_when_nobody_uses_them_any_more() {
    let rig = Rig::new();
    let mut watches = Vec::new();
    for n in 1..=200 {
        rig.release(rig.filled(session(n), 1));
        watches.push(rig.steps.drive(rig.store.watch(session(n))).unwrap());
    }
    assert_eq!(rig.store.open_count(), 200);
    drop(watches);
    // A lease that is given up is as good as one that is given back.
    for n in 1..=200 {
        let lease = rig.lease(session(n)).unwrap();
        rig.steps.drive(rig.store.give_up(lease));
    }
    assert!(rig.store.open_count() <= 66, "{}", rig.store.open_count());
}

#[test]
fn a_list_that_was_made_while_a_session_appeared_is_not_kept() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    let ids = |rig: &Rig| rig.steps.drive(rig.store.sessions(None, 9)).unwrap();
    let lease = rig.lease(session(2)).unwrap();
    let ticket = rig.store.stage(&lease, &[of(session(2), 1)]).unwrap();
    assert_eq!(ids(&rig), [session(1)], "it was staged, and is not there yet");
    assert_eq!(rig.wait(ticket), Ok(1));
    assert_eq!(ids(&rig), [session(1), session(2)]);
    // One that has looked already, and has not said so, when a session goes.
    let mut listing = rig.store.sessions(None, 9);
    rig.filled(session(3), 1);
    assert!(Steps::peek(listing.as_mut()).is_none());
    assert!(rig.steps.step());
    rig.steps.drive(rig.store.delete(session(1))).unwrap();
    assert_eq!(rig.steps.drive(listing).unwrap().len(), 3);
    assert_eq!(ids(&rig), [session(2), session(3)]);
}

#[test]
fn a_store_that_panics_at_any_change_leaves_nobody_waiting_and_takes_no_more() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.filled(session(1), 1);
    let prepared = rig.killed().disk.copy();
    let (mut at, mut has_panicked) = (0, true);
    while has_panicked {
        let rig = Rig::on(prepared.copy(), SMALL, None);
        // One that exists and is long enough to be sealed, and one that is made.
        let leases = [session(1), session(2)].map(|id| rig.lease(id).unwrap());
        rig.disk.fail(at, Fault::Panic);
        let tickets = leases.map(|lease| {
            let record = long(lease.session_id, lease.tail + 1, 9000);
            rig.store.stage(&lease, &[record]).unwrap()
        });
        has_panicked = false;
        while catch_unwind(AssertUnwindSafe(|| rig.steps.step())).unwrap_or_else(|_| {
            has_panicked = true;
            true
        }) {}
        let answers = tickets.map(|ticket| Steps::peek(Box::pin(ticket.durable())).expect("an answer"));
        for answer in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert!(matches!(answer, StoreError::Failed(_) | StoreError::ReadOnly(_)), "at {at}: {answer}");
        }
        let room = rig.steps.drive(rig.store.room());
        assert_eq!(matches!(room, Err(StoreError::ReadOnly(_))), has_panicked, "at {at}: {room:?}");
        assert_eq!(rig.seqs(session(1))[0], 1, "at {at}");
        let rig = rig.killed();
        for (id, answer) in [session(1), session(2)].into_iter().zip(&answers) {
            let tail = rig.lease(id).unwrap().tail;
            assert!(answer.as_ref().map_or(0, |seq| *seq) <= tail, "at {at}");
            rig.filled(id, 1);
        }
        at += 1;
    }
    assert!(at > 15, "{at}");
}

/// Nothing remains of the mark, so the next append marks the session again.
#[test]
fn a_mark_that_found_no_room_does_not_count() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.release(rig.filled(session(1), 1));
    let lease = rig.lease(session(1)).unwrap();
    rig.disk.fill_syncs(true);
    assert!(rig.append(&lease, &[of(session(1), 2)]).is_err());
    assert!(!rig.store.context().marks.is_active(session(1)));
    rig.disk.fill_syncs(false);
    rig.filled(session(1), 1);
    for seed in 0..12 {
        let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
        assert_eq!(crashed.steps.drive(crashed.store.unsettled()), Ok(vec![session(1)]), "{seed}");
    }
}

/// A read-only store keeps the session, so its followers are not notified of an end.
#[test]
fn a_delete_that_cannot_be_ends_nothing() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.filled(session(1), 2);
    let tail = rig.steps.drive(rig.store.watch(session(1))).unwrap().unwrap();
    rig.store.context().health.end_writing("a test");
    let refused = rig.steps.drive(rig.store.delete(session(1)));
    assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
    assert_eq!((tail.has_changed().ok(), rig.seqs(session(1))), (Some(false), vec![1, 2]));
}

/// A caller that leaves while a lease waits for a commit has it no more, and nobody else has.
#[test]
fn a_lease_that_nobody_waits_for_keeps_no_journal_in_memory() {
    let rig = Rig::new();
    for n in 1..=200 {
        let lease = rig.filled(session(n), 1);
        let ticket = rig.store.stage(&lease, &[of(session(n), 2)]).unwrap();
        let mut second = rig.store.lease(session(n));
        assert!(Steps::peek(second.as_mut()).is_none(), "{n}");
        drop(second);
        assert_eq!(rig.wait(ticket), Ok(2));
        rig.release(lease);
    }
    assert!(rig.store.open_count() <= 66, "{}", rig.store.open_count());
}

/// The system may have forgotten that the batch is unwritten; then a second sync succeeds and writes nothing.
#[test]
fn a_batch_whose_sync_failed_is_written_again_after_a_kill() {
    for count in [1, 3] {
        for is_long in [false, true] {
            let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
            let lease = rig.filled(session(1), count);
            rig.disk.fill_syncs(true);
            // The write, its sync, the reserve, and then the next segment, which says that the batch does not count.
            rig.disk.fail(3, Fault::Eio);
            let record = long(session(1), count + 1, if is_long { 3000 } else { 10 });
            assert!(rig.append(&lease, &[record]).is_err());
            rig.disk.fill_syncs(false);
            let rig = rig.killed();
            let lease = rig.lease(session(1)).unwrap();
            assert_eq!(lease.tail, count + 1, "the page cache has it");
            assert_eq!(rig.append(&lease, &[of(session(1), count + 2)]), Ok(count + 2));
            for seed in 0..40 {
                let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
                assert_eq!(crashed.seqs(session(1)), (1..=count + 2).collect::<Vec<_>>(), "{count}, {is_long}, {seed}");
            }
        }
    }
}

/// An imported session has the id of the one before it, which is not unlinked yet.
#[test]
fn a_session_is_deleted_while_an_earlier_one_of_its_id_is_in_the_trash() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    for life in 1..=3 {
        rig.filled(session(1), life);
        rig.steps.drive(rig.store.delete(session(1))).unwrap_or_else(|error| panic!("life {life}: {error}"));
        // It cannot be unlinked yet.
        rig.disk.fail(0, Fault::Eio);
        while rig.steps.step() {}
        assert!(rig.read(session(1), 5).is_none(), "life {life}");
        for seed in 0..12 {
            let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
            assert!(crashed.read(session(1), 5).is_none(), "life {life}, seed {seed}");
        }
    }
    let rig = rig.killed();
    assert_eq!(rig.disk.list(Path::new("trash")).unwrap(), Vec::<String>::new());
}

/// Reads of old segments from a slow disk wait for one another, and leave threads to those who write.
#[test]
fn slow_reads_leave_threads_to_turns() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.grown(session(1), 30, 300);
    while rig.steps.step() {}
    let mut reads: Vec<_> = (0..200).map(|_| rig.store.read(session(1), 0, ReadLimit::frames(9))).collect();
    assert!(reads.iter_mut().all(|read| Steps::peek(read.as_mut()).is_none()), "they come from the disk");
    assert!(rig.steps.waiting() <= 32, "{} of the pool's 64 threads", rig.steps.waiting());
    assert_eq!(rig.append(&lease, &[of(session(1), 31)]), Ok(31));
    for read in reads {
        assert_eq!(rig.steps.drive(read).unwrap().unwrap().frames.len(), 9);
    }
}
