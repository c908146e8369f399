//! A session that is imported is there whole or not at all, whenever the power fails or a write does.

use std::path::Path;

use async_trait::async_trait;
use bytes::Bytes;

use super::common::{Rig, SMALL, Steps, long, session};
use crate::{
    session::event::Record,
    store::directory::journal::{
        Disk as _,
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{BlobStore as _, EventStore as _, RecordSource, StoreError},
    wire::encode_event,
};

/// Records, three in a part, for several segments; perhaps with gaps between some of them.
struct Lines {
    next: u64,
    has_gaps: bool,
}

impl Lines {
    const fn new(has_gaps: bool) -> Self {
        Self { next: 1, has_gaps }
    }

    fn seqs(has_gaps: bool) -> Vec<u64> {
        (1..=COUNT).map(|n| if has_gaps { n + n / 3 } else { n }).collect()
    }
}

#[async_trait]
impl RecordSource for Lines {
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
        let from = self.next as usize - 1;
        self.next = (self.next + 3).min(COUNT + 1);
        Ok(Self::seqs(self.has_gaps)[from..self.next as usize - 1].iter().map(|seq| line(*seq)).collect())
    }
}

fn line(seq: u64) -> (Record, Bytes) {
    let record = long(session(1), seq, 1200);
    let line = encode_event(&record).unwrap();
    (record, line)
}

const COUNT: u64 = 25;

/// What is being made.
fn names(rig: &Rig) -> Vec<String> {
    rig.disk.list(Path::new("new")).unwrap()
}

/// Writes a blob for a session that is not there, and then makes it.
fn import(rig: &Rig, has_gaps: bool) -> Result<String, StoreError> {
    let blob = rig.blob(session(1), b"its blob")?;
    rig.steps.drive(rig.store.import(session(1), &mut Lines::new(has_gaps)))?;
    Ok(blob)
}

/// It holds all that was imported, with its blob, and can be gone on with.
fn check_whole(rig: &Rig, blob: &str, has_gaps: bool) {
    let frames = rig.read(session(1), 4).unwrap();
    assert_eq!(frames.iter().map(|frame| frame.seq).collect::<Vec<_>>(), Lines::seqs(has_gaps));
    assert!(frames.iter().all(|frame| frame.line == line(frame.seq).1));
    let read = rig.steps.drive(rig.blobs().read(session(1), blob, 0, 99)).unwrap();
    assert_eq!(read.as_deref(), Some(&b"its blob"[..]));
    let lease = rig.lease(session(1)).unwrap();
    assert_eq!(rig.append(&lease, &[line(lease.tail + 1).0]), Ok(lease.tail + 1));
    let seqs = Lines::seqs(has_gaps).into_iter().chain([lease.tail + 1]);
    assert_eq!(rig.seqs(session(1)), seqs.collect::<Vec<_>>());
}

fn prepared() -> SimulatedDisk {
    Rig::on(SimulatedDisk::new(), SMALL, None).disk.clone()
}

/// Imports on a disk that fails at every operation in turn, and looks at what is left after a power failure and after a
/// kill.
fn walk(fault: Fault, has_gaps: bool) {
    let prepared = prepared();
    let rig = Rig::on(prepared.copy(), SMALL, None);
    let before = rig.disk.operations();
    let blob = import(&rig, has_gaps).unwrap();
    let operations = rig.disk.operations() - before;
    assert!(rig.store.context().limits.segment_bytes * 2 < COUNT * 1200, "it is written in several segments");
    for (after, seed) in (0..operations).flat_map(|after| (0..4).map(move |seed| (after, seed))) {
        let rig = Rig::on(prepared.copy(), SMALL, None);
        rig.disk.fail(after, fault);
        let outcome = import(&rig, has_gaps);
        let disks = [rig.disk.crashed(&mut Random(after * 100 + seed)), rig.disk.revived()];
        for (disk, is_kill) in disks.into_iter().zip([false, true]) {
            if is_kill && rig.disk.has_lost() {
                continue;
            }
            let rig = Rig::on(disk, SMALL, None);
            match rig.read(session(1), 4) {
                Some(_) => check_whole(&rig, &blob, has_gaps),
                None => {
                    assert!(outcome.is_err(), "{fault:?} after {after}: what was acknowledged is gone");
                    assert_eq!(
                        import(&rig, has_gaps),
                        Ok(blob.clone()),
                        "{fault:?} after {after}: it cannot be tried again"
                    );
                    check_whole(&rig, &blob, has_gaps);
                }
            }
        }
    }
}

#[test]
fn an_import_survives_whole_or_not_at_all_when_the_power_fails() {
    walk(Fault::Crash, false);
    walk(Fault::Crash, true);
}

#[test]
fn an_import_survives_whole_or_not_at_all_when_a_write_fails() {
    for has_gaps in [false, true] {
        walk(Fault::Eio, has_gaps);
        walk(Fault::Full, has_gaps);
    }
}

#[test]
fn an_import_that_fails_leaves_nothing_behind_and_can_be_tried_again() {
    let rig = Rig::on(prepared(), SMALL, None);
    rig.blob(session(1), b"its blob").unwrap();
    assert_eq!(rig.steps.drive(rig.store.import(session(1), &mut Again)), Err(StoreError::OutOfOrder));
    assert_eq!(names(&rig), [""; 0]);
    let blob = import(&rig, false).unwrap();
    assert_eq!(names(&rig), [""; 0]);
    check_whole(&rig, &blob, false);
    assert!(matches!(import(&rig, false), Err(StoreError::Failed(_))), "it is there already");
}

/// The same record again and again.
struct Again;

#[async_trait]
impl RecordSource for Again {
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
        Ok(vec![line(1)])
    }
}

/// The deleted one had another end.
#[test]
fn what_comes_back_is_not_measured_by_what_was_deleted() {
    let rig = Rig::on(prepared(), SMALL, None);
    let lease = rig.filled(session(1), COUNT + 3);
    rig.release(lease);
    rig.steps.drive(rig.store.delete(session(1))).unwrap();
    let blob = import(&rig, false).unwrap();
    let rig = rig.killed();
    check_whole(&rig, &blob, false);
}

/// A session of the same id was deleted before, and another's deletion looks whether anything is left of that one.
#[test]
fn a_deletion_beside_an_import_takes_no_mark_from_it() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    for n in [1, 2] {
        rig.release(rig.filled(session(n), 1));
    }
    rig.steps.drive(rig.store.delete(session(1))).unwrap();
    while rig.steps.step() {}
    let marks = &rig.store.context().marks;
    let mut lines = Lines::new(false);
    let mut importing = rig.store.import(session(1), &mut lines);
    while !marks.is_active(session(1)) {
        assert!(Steps::peek(importing.as_mut()).is_none() && rig.steps.step(), "it has no name yet");
    }
    rig.steps.drive(rig.store.delete(session(2))).unwrap();
    while rig.steps.step() {}
    rig.steps.drive(importing).unwrap();
    assert!(marks.is_active(session(1)), "the next start looks at it");
    assert!(rig.steps.drive(rig.store.unsettled()).unwrap().contains(&session(1)));
}

/// Sessions share locks by the last bits of their ids: one that is copied slowly keeps none of them waiting.
#[test]
fn a_long_import_keeps_no_other_session_waiting() {
    /// Gives one part, and nothing after it until it is asked for the third time.
    struct Slow {
        lines: Lines,
        asked: u32,
    }
    #[async_trait]
    impl RecordSource for Slow {
        async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
            self.asked += 1;
            if self.asked == 2 {
                let mut is_first = true;
                std::future::poll_fn(|_| match std::mem::replace(&mut is_first, false) {
                    true => std::task::Poll::Pending,
                    false => std::task::Poll::Ready(()),
                })
                .await;
            }
            self.lines.next().await
        }
    }
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let mut slow = Slow { lines: Lines::new(false), asked: 0 };
    let mut importing = rig.store.import(session(1), &mut slow);
    while Steps::peek(importing.as_mut()).is_none() && rig.steps.step() {}
    // It waits for its source now.
    for n in [65, 129] {
        rig.filled(session(n), 1);
    }
    assert_eq!(rig.steps.drive(importing), Ok(()));
    assert_eq!(rig.seqs(session(1)), Lines::seqs(false));
}
