//! The rules of recovery, each by its number.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::common::{Reads, Rig, SMALL, Steps, long, of, session};
use crate::{
    ids::SessionId,
    store::directory::journal::{
        Disk as _, Limits, check, lock,
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{EventStore as _, ReadLimit, StoreError},
};

fn segment(id: SessionId, number: u64) -> PathBuf {
    let folder = format!("{:02x}", id.as_uuid().as_bytes()[15]);
    Path::new("journal").join(folder).join(id.to_string()).join(format!("{number}.1.mlog"))
}

/// Changes a session's segment between two processes.
fn after(rig: Rig, number: u64, change: impl FnOnce(&mut Vec<u8>)) -> Rig {
    let path = segment(session(1), number);
    let mut bytes = rig.disk.bytes(&path);
    change(&mut bytes);
    rig.disk.set_bytes(&path, bytes);
    rig.killed()
}

/// How long the segment is with each record that is appended; the last is its length now.
fn filled(limits: Limits, count: u64) -> (Rig, Vec<usize>) {
    let rig = Rig::on(SimulatedDisk::new(), limits, None);
    let lease = rig.lease(session(1)).unwrap();
    let mut ends = Vec::new();
    for seq in 1..=count {
        assert_eq!(rig.append(&lease, &[of(session(1), seq)]), Ok(seq));
        ends.push(rig.disk.bytes(&segment(session(1), 1)).len());
    }
    (rig, ends)
}

#[test]
fn r1_a_batch_that_was_not_written_to_its_end_is_dropped_as_a_whole_and_kept_aside() {
    let (rig, _) = filled(Limits::default(), 3);
    let lease = rig.lease(session(1)).unwrap();
    let whole = rig.disk.bytes(&segment(session(1), 1)).len();
    assert_eq!(rig.append(&lease, &[of(session(1), 4), of(session(1), 5)]), Ok(5));
    let full = rig.disk.bytes(&segment(session(1), 1)).len();
    for cut in [whole + 9, whole + 40, (whole + full) / 2, full - 1] {
        let rig = Rig::on(rig.disk.copy(), Limits::default(), None);
        let torn = rig.disk.bytes(&segment(session(1), 1))[whole..cut].to_vec();
        let rig = after(rig, 1, |bytes| bytes.truncate(cut));
        // Reading changes nothing.
        assert_eq!(rig.seqs(session(1)), [1, 2, 3]);
        assert_eq!(rig.disk.bytes(&segment(session(1), 1)).len(), cut);
        let lease = rig.lease(session(1)).unwrap();
        assert_eq!(lease.tail, 3);
        let repair = rig.store.tail_repair(session(1)).unwrap();
        assert_eq!(repair.bytes, (cut - whole) as u64);
        assert_eq!(rig.append(&lease, &[of(session(1), 4)]), Ok(4));
        assert_eq!(rig.disk.bytes(Path::new(&repair.quarantine)), torn);
        assert_eq!(rig.disk.bytes(&segment(session(1), 1)).len(), whole);
        assert_eq!(rig.store.tail_repair(session(1)), None);
        assert_eq!(rig.killed().seqs(session(1)), [1, 2, 3, 4]);
    }
}

#[test]
fn r1_zeros_behind_the_end_are_a_clean_end_and_are_cut_before_the_next_append() {
    let (rig, ends) = filled(Limits::default(), 2);
    let rig = after(rig, 1, |bytes| bytes.resize(ends[1] + 5000, 0));
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!((lease.tail, rig.store.tail_repair(session(1))), (2, None));
    assert_eq!(rig.append(&lease, &[of(session(1), 3)]), Ok(3));
    assert_eq!(rig.disk.bytes(&segment(session(1), 1)).len(), ends[1] + (ends[1] - ends[0]));
    assert_eq!(rig.killed().seqs(session(1)), [1, 2, 3]);
}

#[test]
fn r1_what_was_there_when_the_session_came_to_rest_is_no_torn_tail() {
    let (rig, ends) = filled(Limits::default(), 3);
    let lease = rig.lease(session(1)).unwrap();
    rig.release(lease);
    let rig = after(rig, 1, |bytes| bytes.truncate(ends[2] - 8));
    assert_eq!(rig.seqs(session(1)), [1, 2]);
    assert!(matches!(rig.lease(session(1)), Err(StoreError::Corrupted { last_good_seq: 2, .. })));
}

#[test]
fn r2_a_bad_record_before_a_later_batch_is_corruption_and_before_none_a_torn_tail() {
    let (rig, ends) = filled(Limits::default(), 5);
    for at in 0..ends[4] - 128 {
        // Every byte of every record counts; one of each eight is enough here.
        if at % 8 != at / 8 % 8 {
            continue;
        }
        let position = 128 + at;
        let rig = Rig::on(rig.disk.copy(), Limits::default(), None);
        let rig = after(rig, 1, |bytes| bytes[position] ^= 1 << (at % 7));
        let good = ends.iter().filter(|end| **end <= position).count() as u64;
        assert_eq!(rig.seqs(session(1)), (1..=good).collect::<Vec<_>>(), "byte {position}");
        match rig.lease(session(1)) {
            Ok(lease) => assert_eq!((good, lease.tail), (4, 4), "byte {position}"),
            Err(StoreError::Corrupted { last_good_seq, .. }) => assert_eq!(last_good_seq, good, "byte {position}"),
            Err(error) => panic!("byte {position}: {error}"),
        }
    }
}

#[test]
fn r3_damage_that_is_met_while_reading_ends_writing() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.grown(session(1), 30, 1000);
    let rig = after(rig, 1, |bytes| bytes[4000] ^= 1);
    let lease = rig.lease(session(1)).unwrap();
    let seqs = rig.seqs(session(1));
    assert!(seqs.len() < 8);
    let refused = rig.store.stage(&lease, &[of(session(1), 31)]).unwrap_err();
    assert!(matches!(refused, StoreError::Corrupted { .. }), "{refused}");
}

#[test]
fn r3_a_segment_without_its_header_costs_no_record_and_one_that_is_missing_only_its_own() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.grown(session(1), 30, 1000);
    let base_seq = |number| {
        let bytes = rig.disk.bytes(&segment(session(1), number));
        u64::from_le_bytes(bytes[48..56].try_into().unwrap())
    };
    for number in 1..=4 {
        let headless = after(Rig::on(rig.disk.copy(), SMALL, None), number, |bytes| bytes[20] ^= 1);
        assert_eq!(headless.seqs(session(1)), (1..=30).collect::<Vec<_>>(), "{number}");
        let refused = headless.lease(session(1)).unwrap_err();
        let before = base_seq(number) - 1;
        assert!(matches!(refused, StoreError::Corrupted { last_good_seq, .. } if last_good_seq == before), "{number}");
    }
    for number in 1..=3 {
        let disk = rig.disk.revived();
        disk.remove(&segment(session(1), number)).unwrap();
        let missing = Rig::on(disk, SMALL, None);
        let (before, behind) = (base_seq(number) - 1, base_seq(number + 1));
        let reads = missing.reads(session(1), 0, ReadLimit::frames(9)).unwrap();
        let seqs = |reads: &Reads| reads.frames.iter().map(|frame| frame.seq).collect::<Vec<_>>();
        assert_eq!((seqs(&reads), reads.stopped_after), ((1..=before).collect(), Some(before)), "{number}");
        let reads = missing.reads(session(1), 0, ReadLimit::frames(9).skipping_damage(true)).unwrap();
        assert_eq!(seqs(&reads), (1..=before).chain(behind..=30).collect::<Vec<_>>(), "{number}");
        assert_eq!(reads.lost, [(before + 1, behind - 1)], "{number}");
        assert!(matches!(missing.lease(session(1)), Err(StoreError::Corrupted { .. })), "{number}");
    }
}

/// A session with three records after a clean end, and where the second one ended.
fn resting() -> (Rig, usize) {
    let rig = Rig::new();
    let first = rig.filled(session(1), 2);
    let end = rig.disk.bytes(&segment(session(1), 1)).len();
    rig.append(&first, &[of(session(1), 3)]).unwrap();
    rig.release(first);
    (rig.killed(), end)
}

#[test]
fn r4_what_was_known_beside_a_journal_proves_its_loss() {
    let (rig, end) = resting();
    let (disk, known) = (rig.disk.copy(), rig.known.clone());
    let cut = |rig: Rig| after(rig, 1, |bytes| bytes.truncate(end));
    // It ends with a whole batch, so that nothing else tells.
    let rig = cut(rig);
    assert_eq!(rig.seqs(session(1)), [1, 2]);
    let lost = |rig: &Rig| matches!(rig.lease(session(1)), Err(StoreError::Corrupted { last_good_seq: 2, .. }));
    assert!(lost(&rig) && lost(&rig.killed()), "also the next time");
    // A journal that went on is not held to what it was.
    let rig = Rig::beside(known, disk.copy(), Limits::default(), None).unwrap();
    rig.release(rig.filled(session(1), 1));
    assert_eq!(rig.killed().lease(session(1)).unwrap().tail, 4);
    // Where nothing is known, it is what it seems to be.
    let rig = cut(Rig::on(disk, Limits::default(), None));
    assert_eq!(rig.lease(session(1)).unwrap().tail, 2);
}

#[test]
fn a_journal_is_passed_through_where_it_is_as_it_should_be_and_nobody_uses_it() {
    let lines = |rig: &Rig, after: usize| {
        let read = rig.read(session(1), usize::MAX).unwrap();
        read[after..].iter().map(|frame| frame.line.clone()).collect::<Vec<_>>()
    };
    let (rig, _) = filled(SMALL, 200);
    assert_eq!(rig.scan(session(1), 0), None, "it is in use");
    let due = lines(&rig, 0);
    let (disk, known, last) = (rig.disk.clone(), rig.known.clone(), segment(session(1), 2));
    assert!(disk.bytes(&segment(session(1), 3)).len() > 128, "it has three segments");
    // What is known beside the journal is ahead, or missing.
    for known in [known, Arc::default()] {
        let rig = || Rig::beside(known.copy(), disk.copy(), SMALL, None).unwrap();
        for after in [0, 1, 150, 198, 199, 200] {
            assert_eq!(rig().scan(session(1), after as u64).unwrap(), due[after..], "behind {after}");
        }
        assert_eq!(rig().scan(session(2), 0), None, "there is none");
        let mut bytes = disk.bytes(&last);
        bytes[1000] ^= 1;
        let damaged = rig();
        damaged.disk.set_bytes(&last, bytes);
        assert_eq!(damaged.scan(session(1), 0), None, "a byte is flipped");
    }
}

#[test]
fn a_session_in_which_nothing_is_open_rests_without_being_opened() {
    let unsettled = |rig: &Rig| rig.steps.drive(rig.store.unsettled()).unwrap();
    let rest = |rig: &Rig, seq| {
        rig.steps.drive(rig.store.rests(session(1), seq));
        while rig.steps.step() {}
    };
    let rig = filled(Limits::default(), 3).0.killed();
    assert_eq!(rig.scan(session(1), 2).map(|lines| lines.len()), Some(1));
    rest(&rig, 2);
    let rig = rig.killed();
    assert_eq!(unsettled(&rig), [session(1)], "it has gone on");
    assert_eq!(rig.seqs(session(1)), [1, 2, 3]);
    rest(&rig, 3);
    let rig = rig.killed();
    assert_eq!(unsettled(&rig), [session(1)], "somebody uses it");
    rest(&rig, 3);
    let rig = rig.killed();
    assert_eq!(unsettled(&rig), []);
    rig.filled(session(1), 1);
    assert_eq!(unsettled(&rig.killed()), [session(1)], "it is used again");
}

/// Somebody settles a session, and meanwhile another one deletes it; the process is killed before the index forgets it.
#[test]
fn a_session_that_is_deleted_while_it_is_settled_is_looked_at_by_the_next_start() {
    let rig = filled(Limits::default(), 3).0.killed();
    lock(&rig.known.listed).insert(session(1));
    assert_eq!(rig.scan(session(1), 0).map(|lines| lines.len()), Some(3));
    rig.steps.drive(rig.store.delete(session(1))).unwrap();
    rig.steps.drive(rig.store.rests(session(1), 3));
    while rig.steps.step() {}
    let rig = rig.killed();
    assert_eq!(rig.steps.drive(rig.store.unsettled()).unwrap(), [session(1)], "a list still shows it");
    lock(&rig.known.listed).clear();
    assert_eq!(rig.steps.drive(rig.store.unsettled()).unwrap(), []);
}

#[test]
fn what_is_lost_of_a_journal_is_not_passed_over() {
    let (rig, end) = resting();
    let cut = after(rig, 1, |bytes| bytes.truncate(end));
    for after in [0, 1, 2] {
        assert_eq!(cut.scan(session(1), after), None, "more is known of it");
    }
}

#[test]
fn what_is_known_to_be_durable_is_not_synced_when_it_is_opened() {
    let (rig, _) = resting();
    for (known, syncs) in [(rig.known.clone(), 0), (Arc::default(), 3)] {
        let rig = Rig::beside(known, rig.disk.copy(), Limits::default(), None).unwrap();
        rig.disk.take_counts();
        assert_eq!(rig.lease(session(1)).unwrap().tail, 3);
        let counts = rig.disk.take_counts();
        assert_eq!(counts.syncs + counts.dir_syncs, syncs);
    }
}

#[test]
fn r4_without_the_folder_of_marks_every_session_counts_as_active() {
    let rig = Rig::new();
    for n in 1..=3 {
        let lease = rig.filled(session(n), 1);
        rig.release(lease);
    }
    rig.filled(session(4), 1);
    let unsettled = |rig: &Rig| rig.steps.drive(rig.store.unsettled()).unwrap();
    assert_eq!(unsettled(&rig), [session(4)]);
    assert!(!rig.store.are_marks_lost());
    rig.disk.remove(Path::new("active")).unwrap();
    rig.disk.sync_dir(Path::new("")).unwrap();
    let all: Vec<_> = (1..=4).map(session).collect();
    // Whatever ends the process that makes the folder again, nobody takes an empty one for the whole.
    for fails_after in 0.. {
        let disk = rig.disk.revived();
        disk.fail(fails_after, Fault::Crash);
        let opened = Rig::try_on(disk.clone(), Limits::default(), None);
        for disk in [disk.revived(), disk.crashed(&mut Random(fails_after))] {
            let again = Rig::on(disk, Limits::default(), None);
            assert_eq!(unsettled(&again), all, "after {fails_after}");
        }
        if opened.is_ok() {
            assert!(fails_after > 5);
            break;
        }
    }
    let rig = Rig::on(rig.disk.revived(), Limits::default(), None);
    assert!(rig.store.are_marks_lost());
    // The next start knows it, too; a session that rests again is done with.
    let lease = rig.lease(session(2)).unwrap();
    rig.release(lease);
    let rig = rig.killed();
    assert_eq!(unsettled(&rig), [session(1), session(3), session(4)]);
    assert!(!rig.store.are_marks_lost());
    // What else somebody put there is no mark.
    rig.disk.create(Path::new("active/nonsense")).unwrap();
    assert_eq!(unsettled(&rig.killed()), [session(1), session(3), session(4)]);
}

/// Somebody removes the folder while the store is open.
#[test]
fn a_folder_of_marks_that_goes_comes_back_with_all_of_them() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    rig.release(rig.filled(session(2), 1));
    rig.disk.remove(Path::new("active")).unwrap();
    rig.filled(session(3), 1);
    for disk in [rig.disk.revived(), rig.disk.crashed(&mut Random(1))] {
        let again = Rig::on(disk, Limits::default(), None);
        assert_eq!(again.steps.drive(again.store.unsettled()).unwrap(), [session(1), session(3)]);
    }
}

/// The sync of a mark failed, and the process that comes next finds it in the system's memory.
#[test]
fn a_mark_that_may_not_be_durable_is_made_again_before_an_append_is_answered() {
    let rig = Rig::new();
    rig.release(rig.filled(session(1), 1));
    let lease = rig.lease(session(1)).unwrap();
    rig.disk.fill_syncs(true);
    assert!(rig.append(&lease, &[of(session(1), 2)]).is_err());
    rig.disk.fill_syncs(false);
    let rig = rig.killed();
    rig.filled(session(1), 1);
    for seed in 0..12 {
        let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
        assert_eq!(crashed.steps.drive(crashed.store.unsettled()).unwrap(), [session(1)], "{seed}");
    }
}

#[test]
fn a_deleted_session_is_looked_at_until_no_list_can_show_it_and_then_never_again() {
    let rig = Rig::new();
    let marks = |rig: &Rig| rig.steps.drive(rig.store.unsettled()).unwrap();
    for n in 1..=3 {
        rig.release(rig.filled(session(n), 1));
    }
    // The index has committed the first one's row, and nothing of its removal.
    lock(&rig.known.listed).insert(session(1));
    for n in 1..=2 {
        rig.steps.drive(rig.store.delete(session(n))).unwrap();
        while rig.steps.step() {}
    }
    assert_eq!(marks(&rig), [session(1)]);
    for restart in 0..3 {
        let limits = if restart == 1 { SMALL } else { Limits::default() };
        let disk = rig.disk.crashed(&mut Random(restart));
        let rig = Rig::beside(rig.known.copy(), disk, limits, None).unwrap();
        for _ in 0..40 * restart {
            rig.release(rig.filled(session(3), 1));
        }
        assert_eq!(marks(&rig), [session(1)], "restart {restart}");
        let rig = rig.killed();
        assert_eq!(marks(&rig), [session(1)], "restart {restart}");
        lock(&rig.known.listed).clear();
        assert_eq!(marks(&rig), [], "restart {restart}");
        while rig.steps.step() {}
        // Nothing is asked about it any more.
        lock(&rig.known.listed).insert(session(1));
        assert_eq!(marks(&rig.killed()), [], "restart {restart}");
    }
}

#[test]
fn many_deleted_sessions_leave_no_marks() {
    let rig = Rig::new();
    for n in 1..=50 {
        rig.release(rig.filled(session(n), 1));
        rig.steps.drive(rig.store.delete(session(n))).unwrap();
        while rig.steps.step() {}
        assert!(rig.store.context().marks.active().len() <= 1, "{n}");
    }
}

#[test]
fn r5_after_a_failed_sync_the_journal_goes_on_in_a_segment_that_names_the_durable_end() {
    let rig = Rig::new();
    let lease = rig.filled(session(1), 3);
    let end = rig.disk.bytes(&segment(session(1), 1)).len() as u64;
    // The write succeeds and the sync does not: the bytes are there, and are not the journal's.
    rig.disk.fail(1, Fault::Eio);
    assert!(matches!(rig.append(&lease, &[of(session(1), 4)]), Err(StoreError::Failed(_))));
    assert!(rig.disk.bytes(&segment(session(1), 1)).len() as u64 > end);
    assert!(matches!(rig.store.stage(&lease, &[of(session(1), 4)]), Err(StoreError::Failed(_))), "not fenced");
    assert_eq!(rig.seqs(session(1)), [1, 2, 3]);
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!(lease.tail, 3);
    let other = long(session(1), 4, 77);
    assert_eq!(rig.append(&lease, std::slice::from_ref(&other)), Ok(4));
    let header = rig.disk.bytes(&segment(session(1), 2));
    assert_eq!(u64::from_le_bytes(header[72..80].try_into().unwrap()), end);
    let rig = rig.killed();
    let frames = rig.read(session(1), 9).unwrap();
    assert_eq!(frames.len(), 4);
    assert_eq!(frames[3].line, crate::wire::encode_event(&other).unwrap());
    assert!(rig.lease(session(1)).is_ok());
}

#[test]
fn r5_a_cut_that_fails_is_not_asked_for_again() {
    let (rig, ends) = filled(Limits::default(), 3);
    let tails: [fn(&mut Vec<u8>); 2] = [|bytes| bytes.truncate(bytes.len() - 9), |bytes| bytes.resize(5000, 0)];
    for (tail, kept) in tails.into_iter().zip([2, 3]) {
        for at in 0.. {
            let rig = after(Rig::on(rig.disk.copy(), Limits::default(), None), 1, tail);
            let lease = rig.lease(session(1)).unwrap();
            rig.disk.fail(at, Fault::Eio);
            if rig.append(&lease, &[of(session(1), kept + 1)]).is_ok() {
                assert!(at >= 4, "{at}: the cut, its sync, the batch and its own");
                break;
            }
            let left = rig.disk.bytes(&segment(session(1), 1));
            rig.disk.take_counts();
            let lease = rig.lease(session(1)).unwrap();
            // If only the mark beside it failed, it is there.
            if lease.tail == kept {
                assert_eq!(rig.append(&lease, &[of(session(1), kept + 1)]), Ok(kept + 1), "at {at}");
            }
            if lease.tail == kept && left.len() == ends[kept as usize - 1] {
                // It was cut, and that may not be durable: another segment names the end of this one.
                assert_eq!(rig.disk.bytes(&segment(session(1), 1)), left, "at {at}");
                assert_eq!(rig.disk.take_counts().syncs, 1, "at {at}: only the new segment's");
            }
            for seed in 0..6 {
                let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), Limits::default(), None);
                assert_eq!(crashed.seqs(session(1)), (1..=kept + 1).collect::<Vec<_>>(), "at {at}, seed {seed}");
                crashed.filled(session(1), 1);
            }
        }
    }
}

#[test]
fn r5_a_fork_whose_sync_fails_counts_as_a_failure_of_the_disk() {
    let rig = Rig::new();
    rig.filled(session(1), 2);
    let fork = |rig: &Rig, child| rig.steps.drive(rig.store.fork(session(1), 1, &[of(session(child), 2)]));
    // Its folder, its segment and the bytes come before the syncs of the segment and of the folder.
    for at in 0..5 {
        let rig = Rig::on(rig.disk.copy(), Limits::default(), None);
        assert_eq!(rig.seqs(session(1)), [1, 2]);
        for child in [2, 3] {
            rig.disk.fail(at, Fault::Eio);
            assert!(matches!(fork(&rig, child), Err(StoreError::Failed(_))), "at {at}");
        }
        assert_eq!(matches!(fork(&rig, 4), Err(StoreError::ReadOnly(_))), at >= 3, "at {at}");
    }
}

#[test]
fn r5_a_second_failure_makes_the_store_read_only() {
    let rig = Rig::new();
    for n in 1..=2 {
        let lease = rig.filled(session(n), 2);
        rig.disk.fail(1, Fault::Eio);
        assert!(matches!(rig.append(&lease, &[of(session(n), 3)]), Err(StoreError::Failed(_))));
    }
    assert!(matches!(rig.lease(session(3)), Err(StoreError::ReadOnly(_))));
    assert!(matches!(rig.steps.drive(rig.store.room()), Err(StoreError::ReadOnly(_))));
    assert!(matches!(rig.steps.drive(rig.store.delete(session(1))), Err(StoreError::ReadOnly(_))));
    assert_eq!(rig.seqs(session(2)), [1, 2]);
    // The next start tries again.
    let rig = rig.killed();
    rig.filled(session(3), 1);
}

#[test]
fn r6_on_a_full_disk_running_turns_end_new_ones_wait_and_room_is_found_without_a_restart() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.filled(session(1), 3);
    rig.disk.limit(Some(rig.disk.used()));
    assert_eq!(rig.steps.drive(rig.store.room()), Ok(()));
    // The reserve takes what running turns still write; nothing remains of a batch that found no room.
    assert_eq!(rig.append(&lease, &[of(session(1), 4)]), Ok(4));
    assert_eq!(rig.steps.drive(rig.store.room()), Err(StoreError::Full));
    let other = rig.lease(session(2)).unwrap();
    assert_eq!(rig.append(&other, &[of(session(2), 1)]), Err(StoreError::Full));
    assert_eq!(rig.append(&lease, &[long(session(1), 5, 9000)]), Err(StoreError::Full));
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!(rig.append(&lease, &[of(session(1), 5)]), Ok(5));
    assert_eq!(rig.seqs(session(1)), [1, 2, 3, 4, 5]);
    assert!(rig.read(session(2), 9).is_none());
    // Another process can read, too.
    let rig = rig.killed();
    assert_eq!(rig.seqs(session(1)), [1, 2, 3, 4, 5]);
    assert_eq!(rig.steps.drive(rig.store.room()), Err(StoreError::Full));
    rig.disk.limit(None);
    assert_eq!(rig.steps.drive(rig.store.room()), Ok(()));
    rig.filled(session(2), 1);
    assert_eq!(rig.disk.bytes(Path::new("reserve")).len() as u64, SMALL.reserve_bytes);
}

#[test]
fn r6_looking_for_room_takes_none() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.filled(session(1), 1);
    let room = || rig.steps.drive(rig.store.room());
    rig.disk.limit(Some(rig.disk.used()));
    rig.append(&lease, &[of(session(1), 2)]).unwrap();
    // The turn that runs has what is left, and what comes free, until there is enough for both.
    let used = rig.disk.used();
    for more in [0, 1, SMALL.reserve_bytes, SMALL.reserve_bytes * 2 - 1] {
        rig.disk.limit(Some(used + more));
        rig.disk.take_counts();
        assert_eq!(room(), Err(StoreError::Full), "{more}");
        assert_eq!(rig.disk.take_counts(), Default::default(), "{more}");
    }
    rig.disk.limit(Some(used + SMALL.reserve_bytes * 2));
    assert_eq!(room(), Ok(()));
    assert_eq!(rig.disk.used(), used + SMALL.reserve_bytes);
}

#[test]
fn a_session_of_a_newer_format_is_read_where_it_can_be_and_not_written() {
    let (rig, _) = filled(Limits::default(), 2);
    let rig = after(rig, 1, |bytes| {
        bytes[8] = 2;
        let crc = crc32c::crc32c(&bytes[..120]);
        bytes[120..124].copy_from_slice(&crc.to_le_bytes());
    });
    assert_eq!(rig.lease(session(1)).unwrap_err(), StoreError::FormatNewer(session(1)));
}

#[test]
fn a_restart_in_the_middle_of_a_rollover_finds_the_same_records() {
    for crash_at in 0..40 {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
        let lease = rig.grown(session(1), 7, 1000);
        rig.disk.fail(crash_at, Fault::Crash);
        let mut acked = 7;
        for seq in 8..=10 {
            let Ok(ticket) = rig.store.stage(&lease, &[long(session(1), seq, 1000)]) else { break };
            if rig.wait(ticket).is_err() {
                break;
            }
            acked = seq;
        }
        let rig = Rig::on(rig.disk.crashed(&mut Random(crash_at)), SMALL, None);
        let seqs = rig.seqs(session(1));
        assert!(seqs.len() as u64 >= acked, "crash at {crash_at}");
        let tail = rig.lease(session(1)).unwrap().tail;
        rig.filled(session(1), 20);
        assert_eq!(rig.killed().seqs(session(1)), (1..=tail + 20).collect::<Vec<_>>());
    }
}

#[test]
fn a_page_has_no_more_bytes_than_are_wanted_and_one_frame_at_least() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.grown(session(1), 30, 1000);
    let line = |seq| crate::wire::encode_event(&long(session(1), seq, 1000)).unwrap().len();
    // Over the end of a segment, and from memory.
    for after in 0..30 {
        for bytes in [0, 1500, 5000, 1_000_000] {
            let page =
                rig.steps.drive(rig.store.read(session(1), after, ReadLimit { frames: 9, bytes, skips_damage: false }));
            let mut left = bytes;
            let wanted = (after + 1..=30).take(9).take_while(|&seq| {
                let fits = seq == after + 1 || line(seq) <= left;
                left = left.saturating_sub(line(seq));
                fits
            });
            let seqs: Vec<_> = page.unwrap().unwrap().frames.iter().map(|frame| frame.seq).collect();
            assert_eq!(seqs, wanted.collect::<Vec<_>>(), "{bytes} bytes after {after}");
        }
    }
}

#[test]
fn a_session_that_is_taken_up_again_while_it_comes_to_rest_is_marked_behind_that() {
    for is_staged_first in [false, true] {
        let rig = Rig::new();
        let lease = rig.filled(session(1), 1);
        let mut released = rig.store.release(lease);
        if !is_staged_first {
            assert!(Steps::peek(released.as_mut()).is_none(), "its mark is yet to be written");
        }
        let lease = Steps::peek(rig.store.lease(session(1))).unwrap().unwrap();
        let ticket = rig.store.stage(&lease, &[of(session(1), 2)]).unwrap();
        rig.steps.drive(released).unwrap();
        assert_eq!(rig.wait(ticket), Ok(2));
        for seed in 0..10 {
            let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), Limits::default(), None);
            assert_eq!(crashed.steps.drive(crashed.store.unsettled()).unwrap(), [session(1)], "{seed}");
            assert_eq!(crashed.lease(session(1)).unwrap().tail, 2, "{seed}");
        }
    }
}

/// A segment that is good by itself, of another life of the same session: it begins and ends with the same seqs.
#[test]
fn a_segment_that_was_put_in_anothers_place_is_found() {
    let lived = |first: u64| {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
        let lease = rig.lease(session(1)).unwrap();
        for seq in 1..=60 {
            let bytes = if seq == first { 11 } else { 10 };
            assert_eq!(rig.append(&lease, &[long(session(1), seq, bytes)]), Ok(seq));
        }
        rig.release(lease);
        rig.disk
    };
    let (disk, other) = (lived(2), lived(3));
    let damage = |disk: &SimulatedDisk| check(disk, session(1), |_| true, 0, &mut |_, _| {}).unwrap().unwrap().damage;
    assert_eq!((damage(&disk), damage(&other)), (None, None));
    let base_seq = |number| u64::from_le_bytes(disk.bytes(&segment(session(1), number))[48..56].try_into().unwrap());
    for number in [1, 2] {
        let disk = disk.copy();
        disk.set_bytes(&segment(session(1), number), other.bytes(&segment(session(1), number)));
        let found = damage(&disk).unwrap();
        // The last record before the place at which two do not belong together.
        assert_eq!(found.last_good_seq, base_seq(2) - 1, "{}", found.why);
        assert!(found.why.contains("does not go on from the end of"), "{}", found.why);
    }
}
