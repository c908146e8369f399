//! Bits that changed in a journal of many segments: whatever a reading gives was written, and where it stops it says so.

use std::{path::PathBuf, sync::Arc};

use meerkat_testkit::{Random, campaigns::Part, seed};

use super::common::{Known, Rig, SMALL, long, of, said, session};
use crate::{
    ids::{Seq, SessionId},
    store::directory::{
        entry,
        journal::{
            Disk as _, Mended, check,
            layout::session_dir,
            lock, mend, simulated,
            simulated::{Fault, SimulatedDisk},
        },
    },
    store::{EventStore as _, Frame, ReadLimit},
};

/// Places at which a bit is changed, and records of the session: few of both, unless a campaign is asked for.
fn sizes() -> (usize, u64) {
    if Part::Journal.is_whole() { (1000, 1200) } else { (60, 240) }
}

/// A session of many segments that came to rest, what is known of it beside its journal, and what it holds. Every third
/// batch has two records.
fn written(count: u64) -> (SimulatedDisk, Arc<Known>, Vec<Frame>) {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.lease(session(1)).unwrap();
    let mut seq = 1;
    while seq <= count {
        let batch: Vec<_> =
            (seq..=seq + u64::from(seq.is_multiple_of(3))).map(|seq| long(session(1), seq, 300)).collect();
        seq += batch.len() as u64;
        rig.append(&lease, &batch).unwrap();
    }
    rig.release(lease);
    let frames = rig.read(session(1), 100).unwrap();
    (rig.disk.clone(), rig.known.copy(), frames)
}

fn segments(disk: &SimulatedDisk, id: SessionId) -> Vec<PathBuf> {
    let names = disk.list(&session_dir(id)).unwrap().into_iter().filter(|name| name.ends_with(".mlog"));
    let paths = names.map(|name| session_dir(id).join(name));
    paths.filter(|path| !disk.bytes(path).is_empty()).collect()
}

/// Changes a bit somewhere in the journal; returns its place.
fn flip(disk: &SimulatedDisk, id: SessionId, random: &mut Random) -> String {
    let paths = segments(disk, id);
    let path = &paths[random.below(paths.len() as u64) as usize];
    let mut bytes = disk.bytes(path);
    // One of four is in a header or a first record.
    let end = if random.below(4) == 0 { 400 } else { bytes.len() as u64 };
    let at = random.below(end.min(bytes.len() as u64)) as usize;
    bytes[at] ^= 1 << random.below(8);
    disk.set_bytes(path, bytes);
    format!("{}, byte {at}", path.display())
}

fn seqs(frames: &[Frame]) -> Vec<Seq> {
    frames.iter().map(|frame| frame.seq).collect()
}

/// A reading that may not pass damage gives what is before it, and then an error that says where.
#[track_caller]
fn assert_stops(rig: &Rig, written: &[Frame], after: Seq, what: &str) {
    let reads = rig.reads(session(1), after, ReadLimit::frames(7)).unwrap();
    let expected = &written[after as usize..][..reads.frames.len()];
    assert!(reads.frames == expected, "{what}: {:?}", seqs(&reads.frames));
    let last = reads.frames.last().map_or(after, |frame| frame.seq);
    let is_end = last == written.len() as u64;
    assert_eq!(reads.stopped_after.is_none(), is_end, "{what}: it ends at {last} without a word");
}

/// A reading that passes damage gives all other records, and names what it left out.
#[track_caller]
fn assert_skips(rig: &Rig, written: &[Frame], what: &str) -> Vec<Frame> {
    let reads = rig.reads(session(1), 0, ReadLimit::frames(7).skipping_damage(true)).unwrap();
    let lost = |seq: Seq| reads.lost.iter().any(|(from, to)| (*from..=*to).contains(&seq));
    let last = reads.frames.last().map_or(0, |frame| frame.seq);
    let good: Vec<&Frame> = written.iter().filter(|frame| frame.seq <= last && !lost(frame.seq)).collect();
    assert!(reads.frames.iter().eq(good), "{what}: {:?}, lost {:?}", seqs(&reads.frames), reads.lost);
    // One bit costs one record, or two if it is in a place that the next one needs.
    assert!(reads.frames.len() + 2 >= written.len(), "{what}: {} records", reads.frames.len());
    reads.frames
}

#[test]
fn a_changed_bit_costs_its_record_and_no_reading_ends_there_in_silence() {
    let (places, count) = sizes();
    let (disk, known, written) = written(count);
    let open = |disk: &SimulatedDisk| Rig::beside(known.copy(), disk.revived(), SMALL, None).unwrap();
    let mut random = Random::new(seed());
    for _ in 0..places {
        let disk = disk.copy();
        let what = flip(&disk, session(1), &mut random);
        let rig = open(&disk);
        assert_stops(&rig, &written, 0, &what);
        assert_stops(&rig, &written, random.below(written.len() as u64), &what);
        let good = assert_skips(&rig, &written, &what);
        // It makes no difference where a reading begins, or what was found before.
        let rig = open(&disk);
        let after = good[random.below(good.len() as u64) as usize].seq;
        assert_stops(&rig, &written, after, &what);
    }
}

/// What `meerkat doctor --repair` does, with what is known beside the journal.
fn repair(disk: &SimulatedDisk, known: &Known, id: SessionId) -> Mended {
    let end = lock(&known.ends).remove(&id).map_or(0, |known| known.end.seq);
    let checked = check(disk, id, |_| true, end, &mut |_, _| {}).unwrap().unwrap();
    let mut record = |seq, _: &[(Seq, Seq)]| entry(&of(id, seq)).map_err(std::io::Error::other);
    mend(disk, id, &checked, &mut record).unwrap()
}

#[test]
fn a_repair_keeps_every_good_record_and_uses_no_seq_again_nor_does_that_of_a_fork() {
    let (places, count) = sizes();
    let (disk, known, written) = written(count);
    let rig = Rig::beside(known.copy(), disk.revived(), SMALL, None).unwrap();
    let at = written.len() as Seq / 2;
    rig.steps.drive(rig.store.fork(session(1), at, &[of(session(2), at + 1)])).unwrap();
    rig.release(rig.filled(session(2), 5));
    let (disk, known) = (rig.disk.revived(), rig.known.copy());
    let forked = rig.read(session(2), 100).unwrap();
    let mut random = Random::new(seed());
    for n in 0..places {
        // Half of the places are in the fork, which shares its parent's first segments.
        let (id, written) = if n % 2 == 0 { (session(1), &written) } else { (session(2), &forked) };
        let (disk, known) = (disk.copy(), known.copy());
        let what = flip(&disk, id, &mut random);
        let shown = written.len() as Seq;
        // It may be repaired again, after a kill at any moment or for nothing.
        let done = repair(&disk, &known, id);
        assert_eq!(done.end, shown + 1, "{what}: {done:?}");
        let checked = check(&disk, id, |_| true, 0, &mut |_, _| {}).unwrap().unwrap();
        assert_eq!(checked.damage, None, "{what}");
        let rig = Rig::beside(known.copy(), disk.revived(), SMALL, None).unwrap();
        let reads = rig.reads(id, 0, ReadLimit::frames(9)).unwrap();
        assert_eq!((reads.stopped_after, &reads.lost[..]), (None, &[][..]), "{what}");
        let is_lost = |seq: Seq| done.lost.iter().any(|(from, to)| (*from..=*to).contains(&seq));
        let good: Vec<&Frame> = written.iter().filter(|frame| !is_lost(frame.seq)).collect();
        assert!(good.len() + 2 >= written.len(), "{what}: {:?}", done.lost);
        let (last, kept) = reads.frames.split_last().unwrap();
        assert!(kept.iter().eq(good), "{what}: {:?}, lost {:?}", seqs(kept), done.lost);
        assert_eq!(last.seq, shown + 1, "{what}");
        let lease = rig.lease(id).unwrap();
        assert_eq!(lease.tail, shown + 1, "{what}");
        rig.append(&lease, &[long(id, shown + 2, 300)]).unwrap();
        rig.release(lease);
        assert_eq!(rig.killed().seqs(id).last(), Some(&(shown + 2)), "{what}");
    }
}

/// The index knows that the batch was acknowledged, so it was no write that was cut off.
#[test]
fn a_changed_bit_in_the_last_batch_costs_its_record_alone() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let lease = rig.lease(session(1)).unwrap();
    for batch in [1..=3, 4..=8] {
        rig.append(&lease, &batch.map(|seq| long(session(1), seq, 100)).collect::<Vec<_>>()).unwrap();
    }
    rig.release(lease);
    let (disk, known) = (rig.disk.clone(), rig.known.copy());
    let written = rig.read(session(1), 100).unwrap();
    for seq in 4..=8 {
        let (disk, known, what) = (disk.copy(), known.copy(), format!("record {seq}"));
        let path = &segments(&disk, session(1))[0];
        let (mut bytes, text) = (disk.bytes(path), format!("{seq} xxx"));
        let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
        bytes[at] ^= 1;
        disk.set_bytes(path, bytes);
        let rig = Rig::beside(known.copy(), disk.revived(), SMALL, None).unwrap();
        assert_stops(&rig, &written, 0, &what);
        let good: Vec<Seq> = (1..=8).filter(|other| *other != seq).collect();
        assert_eq!(seqs(&assert_skips(&rig, &written, &what)), good);
        let done = repair(&disk, &known, session(1));
        assert_eq!((done.end, done.lost), (9, vec![(seq, seq)]), "{what}");
        let rig = Rig::beside(known.copy(), disk.revived(), SMALL, None).unwrap();
        assert_eq!(rig.seqs(session(1)), [good, vec![9]].concat(), "{what}");
    }
}

#[test]
fn a_repair_that_is_killed_at_any_moment_can_be_done_again() {
    let (disk, known, written) = written(60);
    let paths = segments(&disk, session(1));
    // The end of the last one is known only by the segment that a repair adds.
    for damaged in [&paths[..2], &paths[paths.len() - 1..]] {
        let disk = disk.copy();
        for path in damaged {
            let mut bytes = disk.bytes(path);
            let at = bytes.len() / 3;
            bytes[at] ^= 1;
            disk.set_bytes(path, bytes);
        }
        killed_at_any_moment(&disk, &known, written.len() as Seq);
    }
}

fn killed_at_any_moment(disk: &SimulatedDisk, known: &Known, shown: Seq) {
    for at in 0.. {
        let broken = disk.copy();
        broken.fail(at, Fault::Crash);
        let checked = check(&broken, session(1), |_| true, shown, &mut |_, _| {}).unwrap().unwrap();
        let lost = checked.damage.clone().unwrap().lost;
        let is_done = mend(&broken, session(1), &checked, &mut said).is_ok();
        let after = broken.crashed(&mut simulated::Random(at));
        let checked = check(&after, session(1), |_| true, shown, &mut |_, _| {}).unwrap().unwrap();
        if checked.damage.is_some() {
            mend(&after, session(1), &checked, &mut said).unwrap();
        }
        let rig = Rig::beside(known.copy(), after, SMALL, None).unwrap();
        let found = rig.seqs(session(1));
        let is_lost = |seq: &Seq| lost.iter().any(|(from, to)| (*from..=*to).contains(seq));
        let good: Vec<Seq> = (1..=shown).filter(|seq| !is_lost(seq)).collect();
        assert_eq!(found.iter().copied().filter(|seq| *seq <= shown).collect::<Vec<_>>(), good, "at {at}");
        assert!(found.last() > Some(&shown), "at {at}: nothing says what is lost");
        if is_done {
            assert!(at > 8, "at {at}");
            break;
        }
    }
}
