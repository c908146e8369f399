//! Journal compaction on the disk: what stays is there to the byte, what goes gives its room back, and whatever
//! happens meanwhile, a segment is the old one or the new one.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    path::{Path, PathBuf},
    pin::pin,
    task::Poll,
};

use bytes::Bytes;

use super::common::{Rig, SMALL, long, of, said, session};
use crate::{
    clock::Timestamp,
    ids::Seq,
    store::directory::journal::{
        check,
        layout::session_dir,
        mend,
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{BlobStore as _, EventStore as _, ReadLimit, StoreError},
    wire::encode_event,
};

/// Longer ago than anything that was recorded.
const LATER: i64 = i64::MAX / 1_000_000;

/// A session over several segments.
fn filled(rig: &Rig, last: Seq) -> crate::store::Lease {
    let lease = rig.lease(session(1)).unwrap();
    for seq in lease.tail + 1..=last {
        rig.append(&lease, &[long(session(1), seq, 300)]).unwrap();
    }
    lease
}

fn lines(seqs: impl IntoIterator<Item = Seq>) -> Vec<(Seq, Bytes)> {
    seqs.into_iter().map(|seq| (seq, encode_event(&long(session(1), seq, 300)).unwrap())).collect()
}

fn found(rig: &Rig, limit: usize) -> Vec<(Seq, Bytes)> {
    rig.read(session(1), limit).unwrap().into_iter().map(|frame| (frame.seq, frame.line)).collect()
}

/// Drops every third record up to `up_to`, and all of the twenties.
fn stays(seq: Seq) -> bool {
    !seq.is_multiple_of(3) && !(20..30).contains(&seq)
}

fn keep(up_to: Seq) -> BTreeSet<Seq> {
    (1..=up_to).filter(|seq| stays(*seq)).collect()
}

fn prune(rig: &Rig, up_to: Seq) -> Result<u64, StoreError> {
    rig.steps.drive(rig.store.prune(session(1), up_to, &keep(up_to), Timestamp::from_millis(LATER)))
}

fn left(up_to: Seq, last: Seq) -> Vec<Seq> {
    (1..=last).filter(|seq| *seq > up_to || stays(*seq)).collect()
}

fn segments(rig: &Rig) -> Vec<String> {
    let disk: &dyn crate::store::directory::journal::Disk = &rig.disk;
    disk.list(&session_dir(session(1))).unwrap()
}

#[test]
fn what_stays_is_there_to_the_byte_and_what_goes_gives_its_room_back() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = filled(&rig, 60);
    let before = (rig.disk.used(), segments(&rig).len());
    assert!(before.1 > 2, "several segments");
    let gone = 60 - left(60, 60).len() as u64;
    assert_eq!(prune(&rig, 60), Ok(gone));
    // A record has at least the 300 bytes of its text.
    assert!(rig.disk.used() + gone * 300 < before.0, "{} of {}", rig.disk.used(), before.0);
    for limit in [1, 2, 7, 100] {
        assert_eq!(found(&rig, limit), lines(left(60, 60)), "in pages of {limit}");
    }
    assert_eq!(prune(&rig, 60), Ok(0), "a second one drops nothing");
    assert_eq!(rig.append(&lease, &[long(session(1), 61, 300)]), Ok(61));
    rig.release(lease);
    let rig = rig.killed();
    let due: Vec<Seq> = left(60, 61);
    assert_eq!(found(&rig, 3), lines(due.clone()));
    let lease = filled(&rig, 90);
    // What was compacted is compacted again, and what came since for the first time.
    assert_eq!(prune(&rig, 90), Ok((62..=90).filter(|seq| !stays(*seq)).count() as u64));
    assert_eq!(found(&rig, 5), lines(left(90, 90)));
    rig.release(lease);
    assert_eq!(found(&rig.killed(), 5), lines(left(90, 90)));
}

#[test]
fn nothing_above_the_seq_nothing_kept_and_nothing_young_goes() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    filled(&rig, 60);
    let all = BTreeSet::new();
    let none = rig.steps.drive(rig.store.prune(session(1), 60, &all, Timestamp::from_millis(0)));
    assert_eq!(none, Ok(0), "all of it is younger");
    let before = segments(&rig);
    assert_eq!(prune(&rig, 0), Ok(0));
    assert_eq!(segments(&rig), before, "nothing was sealed in vain");
    assert_eq!(prune(&rig, 31), Ok(31 - left(31, 31).len() as u64));
    assert_eq!(found(&rig, 9), lines(left(31, 60)));
    let nobody = rig.steps.drive(rig.store.prune(session(9), 60, &all, Timestamp::from_millis(LATER)));
    assert_eq!(nobody, Err(StoreError::NotFound(session(9))));
}

#[test]
fn a_segment_of_which_nothing_stays_is_passed_over() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = filled(&rig, 100);
    let parts = rig.steps.drive(rig.store.parts(session(1))).unwrap();
    assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{parts:?}");
    assert_eq!((parts[0].0, parts.last().unwrap().1), (1, 100));
    assert!(parts.len() == segments(&rig).len() && parts[parts.len() - 1].0 <= 100, "the last one is written");
    let keep: BTreeSet<Seq> = [1, 99].into();
    assert_eq!(rig.steps.drive(rig.store.prune(session(1), 99, &keep, Timestamp::from_millis(LATER))), Ok(97));
    // What was written is sealed, and the next one is yet to begin.
    let sealed = rig.steps.drive(rig.store.parts(session(1))).unwrap();
    assert_eq!(sealed, [&parts[..], &[(101, 100)]].concat());
    for limit in [1, 2, 100] {
        assert_eq!(found(&rig, limit), lines([1, 99, 100]));
    }
    let after = |after| {
        let page = rig.steps.drive(rig.store.read(session(1), after, ReadLimit::frames(9))).unwrap().unwrap();
        page.frames.iter().map(|frame| frame.seq).collect::<Vec<_>>()
    };
    for seq in 1..99 {
        assert_eq!(after(seq), [99, 100], "after {seq}");
    }
    assert_eq!(after(0), [1, 99, 100]);
    rig.release(lease);
    let rig = rig.killed();
    assert_eq!(found(&rig, 1), lines([1, 99, 100]));
    filled(&rig, 101);
}

/// Records of a journal that is pruned in part: each segment is as it was, or as it is to be.
fn is_a_mix(seqs: &[Seq], parts: &[(Seq, Seq)], up_to: Seq, last: Seq) -> bool {
    let whole = left(up_to, last);
    parts.iter().all(|(from, to)| {
        let of = |seqs: &[Seq]| seqs.iter().copied().filter(|seq| (from..=to).contains(&seq)).collect::<Vec<_>>();
        let now = of(seqs);
        now == of(&whole) || now == of(&(1..=last).collect::<Vec<_>>())
    })
}

/// The parts of what [`at_every_change`] begins with.
fn parts() -> Vec<(Seq, Seq)> {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    filled(&rig, 60);
    rig.steps.drive(rig.store.parts(session(1))).unwrap()
}

/// The store at each change that a compaction asks of the disk, and what it does then.
fn at_every_change(fault: Fault, check: impl Fn(&Rig, Result<u64, StoreError>, u64)) {
    let (prepared, changes) = {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
        let lease = filled(&rig, 60);
        rig.release(lease);
        let prepared = rig.disk.copy();
        let before = rig.disk.operations();
        prune(&rig, 50).unwrap();
        (prepared, rig.disk.operations() - before)
    };
    assert!(changes > 15, "a compaction is {changes} changes");
    for at in 0..changes {
        let rig = Rig::on(prepared.copy(), SMALL, None);
        // The same way as above: the journal is open before.
        found(&rig, 100);
        rig.disk.fail(at, fault);
        let done = prune(&rig, 50);
        check(&rig, done, at);
    }
}

#[test]
fn killed_at_every_write_a_segment_is_the_old_one_or_the_new_one() {
    let parts = parts();
    at_every_change(Fault::Crash, |rig, done, at| {
        assert!(done.is_err() || rig.disk.is_down(), "at {at}");
        for seed in 0..12 {
            // A killed process leaves what the system has; nobody is notified of a failed sync.
            let is_killed = seed == 0 && !rig.disk.has_lost();
            let disk = if is_killed { rig.disk.revived() } else { rig.disk.crashed(&mut Random(seed * 1000 + at)) };
            let rig = Rig::on(disk, SMALL, None);
            let now = found(&rig, 7);
            let seqs: Vec<Seq> = now.iter().map(|(seq, _)| *seq).collect();
            assert!(is_a_mix(&seqs, &parts, 50, 60), "at {at}, seed {seed}: {seqs:?}");
            assert_eq!(now, lines(seqs), "at {at}, seed {seed}");
            // It goes on: more is written, the rest is compacted, and a power failure in between loses nothing.
            let lease = filled(&rig, 62);
            prune(&rig, 50).unwrap();
            assert_eq!(found(&rig, 9), lines(left(50, 62)), "at {at}, seed {seed}");
            rig.release(lease);
            let numbers: BTreeSet<String> = segments(&rig).iter().map(|name| name[..1].to_owned()).collect();
            assert_eq!(segments(&rig).len(), numbers.len(), "at {at}, seed {seed}: one generation is left of each");
            let rig = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
            assert_eq!(found(&rig, 9), lines(left(50, 62)), "at {at}, seed {seed}, again");
        }
    });
}

/// A killed process has left both generations; the next one fails at once, before anything was made sure of.
#[test]
fn a_generation_that_was_left_goes_only_when_its_heir_is_sure_to_stay() {
    at_every_change(Fault::Crash, |rig, _, at| {
        if rig.disk.has_lost() {
            return;
        }
        let next = Rig::on(rig.disk.revived(), SMALL, None);
        let before: Vec<Seq> = found(&next, 9).iter().map(|(seq, _)| *seq).collect();
        for (later, fault) in
            (0..6).flat_map(|later| [Fault::Crash, Fault::Eio, Fault::Full].map(|fault| (later, fault)))
        {
            let next = Rig::on(rig.disk.revived(), SMALL, None);
            found(&next, 9);
            next.disk.fail(later, fault);
            drop(prune(&next, 50));
            // Where a sync failed, the next one answers well whatever the disk holds.
            drop(prune(&next, 50));
            for seed in 0..6 {
                let after = Rig::on(next.disk.crashed(&mut Random(seed)), SMALL, None);
                let seqs: Vec<Seq> = found(&after, 9).iter().map(|(seq, _)| *seq).collect();
                let what = format!("at {at}, {fault:?} at {later}");
                assert!(left(50, 60).iter().all(|seq| seqs.contains(seq)), "{what}: {before:?}, {seqs:?}");
            }
        }
    });
}

#[test]
fn where_the_disk_fails_or_is_full_nothing_is_lost_and_turns_go_on() {
    let parts = parts();
    for fault in [Fault::Eio, Fault::Full] {
        at_every_change(fault, |rig, done, at| {
            let seqs = rig.seqs(session(1));
            assert!(is_a_mix(&seqs, &parts, 50, 60), "{fault:?} at {at}: {seqs:?}");
            if let Ok(dropped) = done {
                assert_eq!(dropped, 60 - seqs.len() as u64, "{fault:?} at {at}: it says what it dropped");
            }
            let lease = rig.lease(session(1)).unwrap();
            assert_eq!(rig.append(&lease, &[long(session(1), 61, 300)]), Ok(61), "{fault:?} at {at}");
            prune(rig, 50).unwrap();
            assert_eq!(found(rig, 9), lines(left(50, 61)), "{fault:?} at {at}");
            rig.release(lease);
            let next = Rig::on(rig.disk.revived(), SMALL, None);
            assert_eq!(found(&next, 9), lines(left(50, 61)), "{fault:?} at {at}, after a restart");
        });
    }
}

/// Two pages of one segment that was replaced between them are no journal.
#[test]
fn a_page_says_whether_records_were_dropped_since_another() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    filled(&rig, 60);
    let page_of = |rig: &Rig, after, frames| {
        let limit = ReadLimit::frames(frames);
        rig.steps.drive(rig.store.read(session(1), after, limit)).unwrap().unwrap()
    };
    let page = |after, frames| page_of(&rig, after, frames);
    let parts = rig.steps.drive(rig.store.parts(session(1))).unwrap();
    let ((_, end), (last, _)) = (parts[0], parts[parts.len() - 1]);
    assert!(end > 2 && last < 59);
    // Within the first segment and at its end; within the last one, which memory has, and at the end of everything.
    let (places, before) = ([2, end, last, 60], |at| page(0, at as usize));
    let old = places.map(before);
    for (at, old) in places.into_iter().zip(&old) {
        assert_eq!(page(at, 9).version, old.version, "nothing has changed at {at}");
    }
    prune(&rig, 60).unwrap();
    for (at, old) in places.into_iter().zip(&old) {
        assert!(page(at, 9).version > old.version, "records were dropped, at {at}");
    }
    let version = page(0, 1).version;
    rig.release(rig.lease(session(1)).unwrap());
    let rig = Rig::on(rig.disk.revived(), SMALL, None);
    assert_eq!(page_of(&rig, 0, 1).version, version, "after a restart");
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!(rig.append(&lease, &[long(session(1), 61, 300)]), Ok(61));
    assert_eq!(page_of(&rig, 0, 1).version, version, "an append drops nothing");

    // Where all is dropped that followed a page in its segment, the next page says so too.
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    filled(&rig, 60);
    let old = page_of(&rig, 0, end as usize - 1);
    let keep = (1..=60).filter(|seq| *seq != end).collect();
    let pruned = rig.steps.drive(rig.store.prune(session(1), 60, &keep, Timestamp::from_millis(LATER)));
    assert_eq!(pruned, Ok(1));
    let next = page_of(&rig, end - 1, 9);
    assert_eq!((next.frames[0].seq, next.version), (end + 1, old.version + 1));
}

/// Everything at once, in any order: a compaction, reads from every place, appends.
#[test]
fn reads_and_appends_go_on_while_a_journal_is_compacted() {
    for seed in 0..60 {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, Some(Random(seed)));
        let lease = filled(&rig, 60);
        let keep = keep(55);
        let mut compaction = pin!(rig.store.prune(session(1), 55, &keep, Timestamp::from_millis(LATER)));
        let mut is_pruned = false;
        let (mut seq, mut after) = (60, 0);
        let mut random = Random(seed + 1000);
        while !is_pruned || seq < 75 {
            is_pruned = is_pruned
                || rig.steps.drive(poll_fn(|cx| match compaction.as_mut().poll(cx) {
                    Poll::Ready(done) => Poll::Ready(done == Ok(55 - left(55, 55).len() as u64)),
                    Poll::Pending => Poll::Ready(false),
                }));
            match random.below(3) {
                0 => drop(rig.steps.step()),
                1 => {
                    seq += 1;
                    assert_eq!(rig.append(&lease, &[long(session(1), seq, 300)]), Ok(seq), "seed {seed}");
                }
                _ => {
                    let page =
                        rig.steps.drive(rig.store.read(session(1), after, ReadLimit::frames(4))).unwrap().unwrap();
                    let read: Vec<_> = page.frames.into_iter().map(|frame| (frame.seq, frame.line)).collect();
                    assert_eq!(read, lines(read.iter().map(|(seq, _)| *seq)), "seed {seed}");
                    let to = read.last().map_or(seq, |(seq, _)| *seq);
                    let must = (after + 1..=to).filter(|seq| *seq > 55 || stays(*seq));
                    assert!(must.eq(read.iter().map(|(seq, _)| *seq).filter(|seq| *seq > 55 || stays(*seq))), "{seed}");
                    after = if to >= seq { random.below(60) } else { to };
                }
            }
        }
        assert_eq!(found(&rig, 9), lines(left(55, seq)), "seed {seed}");
    }
}

#[test]
fn a_fork_of_a_compacted_journal_goes_its_own_way() {
    for at in left(60, 60) {
        let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
        filled(&rig, 60);
        prune(&rig, 60).unwrap();
        let child = session(2);
        let own = [of(child, at + 1), of(child, at + 2)];
        rig.steps.drive(rig.store.fork(session(1), at, &own)).unwrap();
        let seqs = |rig: &Rig| rig.seqs(child);
        let mut due: Vec<Seq> = left(60, 60).into_iter().filter(|seq| *seq <= at).chain([at + 1, at + 2]).collect();
        assert_eq!(seqs(&rig), due, "at {at}");
        let rig = rig.killed();
        rig.steps.drive(rig.store.delete(session(1))).unwrap();
        assert_eq!(seqs(&rig), due, "at {at}");
        let lease = rig.lease(child).unwrap();
        assert_eq!(rig.append(&lease, &[of(child, at + 3)]), Ok(at + 3));
        due.push(at + 3);
        rig.release(lease);
        let rig = rig.killed();
        assert_eq!(seqs(&rig), due, "at {at}, opened again");
        let keep: BTreeSet<Seq> = [1].into();
        rig.steps.drive(rig.store.prune(child, at, &keep, Timestamp::from_millis(LATER))).unwrap();
        let due: Vec<Seq> = due.into_iter().filter(|seq| *seq == 1 || *seq > at).collect();
        assert_eq!(seqs(&rig.killed()), due, "at {at}, compacted itself");
    }
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    filled(&rig, 60);
    prune(&rig, 60).unwrap();
    let gone = rig.steps.drive(rig.store.fork(session(1), 24, &[of(session(2), 25)]));
    assert!(matches!(gone, Err(StoreError::Failed(_))), "{gone:?}");
}

#[test]
fn of_two_generations_the_newest_good_one_counts() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = filled(&rig, 60);
    let path = |generation: u32| -> PathBuf { session_dir(session(1)).join(format!("1.{generation}.mlog")) };
    let old = rig.disk.bytes(&path(1));
    prune(&rig, 10).unwrap();
    rig.release(lease);
    let disk: &dyn crate::store::directory::journal::Disk = &rig.disk;
    let put = |path: &Path, bytes: Vec<u8>| {
        drop(disk.create(path));
        rig.disk.set_bytes(path, bytes);
    };
    put(&path(1), old);
    let next = Rig::on(rig.disk.revived(), SMALL, None);
    assert_eq!(found(&next, 9), lines(left(10, 60)), "the newest counts");
    assert_eq!(prune(&next, 10), Ok(0));
    assert!(!segments(&next).contains(&"1.1.mlog".to_owned()), "the old one goes with the next compaction");
    let mut bytes = rig.disk.bytes(&path(2));
    bytes[40] ^= 1;
    put(&path(2), bytes);
    let next = Rig::on(rig.disk.revived(), SMALL, None);
    assert_eq!(found(&next, 9), lines(1..=60), "a bad header is none");
}

#[test]
fn a_compacted_segment_that_is_damaged_is_found_out() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = filled(&rig, 60);
    prune(&rig, 60).unwrap();
    rig.release(lease);
    let last = segments(&rig).into_iter().filter(|name| name.ends_with(".2.mlog")).max().unwrap();
    for name in ["1.2.mlog".to_owned(), last] {
        let path = session_dir(session(1)).join(name);
        let whole = rig.disk.bytes(&path);
        for at in (128..whole.len()).step_by(97) {
            let next = Rig::on(rig.disk.revived(), SMALL, None);
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            next.disk.set_bytes(&path, bytes);
            let seqs = next.seqs(session(1));
            assert!(seqs.len() < left(60, 60).len() && left(60, 60).starts_with(&seqs), "at {at}: {seqs:?}");
            let refused = next.lease(session(1));
            assert!(matches!(refused, Err(StoreError::Corrupted { .. })), "at {at}: {refused:?}");
        }
    }
}

/// What `meerkat doctor --repair` does.
#[test]
fn a_damaged_compacted_segment_keeps_its_good_records() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = filled(&rig, 60);
    let blob = rig.blob(session(1), b"What was said.").unwrap();
    prune(&rig, 60).unwrap();
    rig.release(lease);
    let path = session_dir(session(1)).join("2.2.mlog");
    let mut bytes = rig.disk.bytes(&path);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    rig.disk.set_bytes(&path, bytes);
    let look = || {
        let mut seqs = Vec::new();
        let checked = check(&rig.disk, session(1), |_| true, 0, &mut |seq, _| seqs.push(seq)).unwrap().unwrap();
        (checked, seqs)
    };
    let (checked, mut seqs) = look();
    assert_eq!(seqs.len() + 1, left(60, 60).len(), "{seqs:?}");
    let done = mend(&rig.disk, session(1), &checked, &mut said).unwrap();
    assert!(done.kept.is_some() && done.lost.len() == 1, "what was replaced is kept: {done:?}");
    seqs.push(61);
    let (checked, now) = look();
    assert_eq!((checked.damage, now), (None, seqs));
    // A compaction takes what only the records name that were cut off.
    let names = BTreeSet::from([blob.clone()]);
    rig.steps.drive(rig.blobs().remove(session(1), &names)).unwrap();
    let kept = format!("quarantine/{}.blobs-1/{blob}", session(1));
    assert_eq!(rig.disk.bytes(Path::new(&kept)), b"What was said.");
}
