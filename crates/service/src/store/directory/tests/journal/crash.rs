//! Whatever is under way when the power fails, or a process is killed, or a write fails: what was acknowledged is
//! there, byte for byte and in order; nothing is there that nobody wrote; and every session can be gone on with.
//!
//! `MEERKAT_CRASH_STATES` says how many crashes, `MEERKAT_CAMPAIGNS` that it is all of them; `MEERKAT_CRASH_SEED`
//! repeats the one that a failure names.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
};

use bytes::Bytes;
use meerkat_testkit::campaigns::Part;

use super::common::{Rig, SMALL, Steps, long, session};
use crate::{
    ids::{Seq, SessionId},
    store::directory::journal::simulated::{Fault, Random, SimulatedDisk},
    store::{BlobStore as _, EventStore as _, Frame, FramePage, Lease, ReadLimit, StoreError},
    wire::encode_event,
};

/// Crashes that are tried in a whole campaign.
const STATES: u64 = 10_000;
/// Crashes of one walk.
const STATES_PER_WALK: u64 = 3;
/// Kinds of walks, each of which tries its share.
const WALKS: u64 = 2;

/// What a session may and must hold.
#[derive(Clone, Default)]
struct Expected {
    /// The lines that were acknowledged or shown, from seq 1.
    acked: Vec<Bytes>,
    /// Lines whose fate nobody knows, by seq, each with its batch's last seq.
    maybe: BTreeMap<Seq, Vec<(Bytes, Seq)>>,
    blobs: BTreeSet<String>,
    /// True if something was acknowledged since the last release.
    is_unsettled: bool,
    /// A delete was asked for, and whether it was acknowledged.
    deleted: Option<bool>,
}

/// What a ticket says, once it does.
type Answer = Pin<Box<dyn Future<Output = Result<Seq, StoreError>>>>;

struct Walk {
    rig: Rig,
    random: Random,
    expected: BTreeMap<SessionId, Expected>,
    leases: BTreeMap<SessionId, (Lease, Seq)>,
    /// Answers that are yet to come, each with its session and last seq.
    tickets: Vec<(SessionId, Seq, Answer)>,
    next_session: u128,
}

impl Walk {
    fn step(&mut self) {
        match self.random.below(100) {
            0..45 => self.stage(),
            45..65 => drop(self.rig.steps.step()),
            65..80 => self.settle_tickets(true),
            80..86 => self.release(),
            86..90 => self.fork(),
            90..93 => self.delete(),
            93..97 => self.blob(),
            _ => self.verify_reads(true),
        }
        self.settle_tickets(false);
    }

    fn some_session(&mut self) -> SessionId {
        let n = self.random.below(4);
        if n < 3 && !self.expected.is_empty() {
            let at = self.random.below(self.expected.len() as u64) as usize;
            let id = *self.expected.keys().nth(at).unwrap();
            if self.expected[&id].deleted.is_none() {
                return id;
            }
        }
        self.next_session += 1;
        session(self.next_session)
    }

    fn stage(&mut self) {
        let id = self.some_session();
        let (lease, tail) = match self.leases.get(&id) {
            Some(known) => *known,
            None => match self.rig.lease(id) {
                Ok(lease) => (lease, lease.tail),
                Err(error) => return self.refused(error),
            },
        };
        let expected = self.expected.entry(id).or_default();
        assert!(tail >= expected.acked.len() as u64, "a lease knows less than was acknowledged");
        let count = 1 + self.random.below(3);
        let batch: Vec<_> = (tail + 1..=tail + count)
            .map(|seq| {
                let len = [10, 200, 600, 3000][self.random.below(4) as usize] + self.random.below(50) as usize;
                long(id, seq, len)
            })
            .collect();
        match self.rig.store.stage(&lease, &batch) {
            Ok(ticket) => {
                for record in &batch {
                    let line = encode_event(record).unwrap();
                    self.expected
                        .entry(id)
                        .or_default()
                        .maybe
                        .entry(record.seq)
                        .or_default()
                        .push((line, tail + count));
                }
                self.leases.insert(id, (lease, tail + count));
                self.tickets.push((id, tail + count, Box::pin(ticket.durable())));
            }
            Err(error) => {
                self.leases.remove(&id);
                self.refused(error);
            }
        }
    }

    /// Nothing but a failing disk is a reason to refuse.
    fn refused(&self, error: StoreError) {
        let is_excused =
            matches!(error, StoreError::Full | StoreError::Failed(_) | StoreError::ReadOnly(_) | StoreError::Fenced);
        assert!(is_excused, "refused: {error}");
    }

    /// Takes the answers that are there; with `waits`, until every answer is.
    fn settle_tickets(&mut self, waits: bool) {
        for (id, last, mut durable) in std::mem::take(&mut self.tickets) {
            let answer = match waits {
                true => Some(self.rig.steps.drive(durable.as_mut())),
                false => Steps::peek(durable.as_mut()),
            };
            match answer {
                Some(Ok(seq)) => {
                    assert_eq!(seq, last);
                    self.acknowledge(id, last);
                }
                Some(Err(error)) => {
                    self.leases.remove(&id);
                    // A session that could not be made takes its blobs along.
                    let expected = self.expected.get_mut(&id).unwrap();
                    if expected.acked.is_empty() {
                        expected.blobs.clear();
                    }
                    self.refused(error);
                }
                None => self.tickets.push((id, last, durable)),
            }
        }
    }

    /// Everything up to `last` is there for good: the newest that was staged at each seq.
    fn acknowledge(&mut self, id: SessionId, last: Seq) {
        let expected = self.expected.get_mut(&id).unwrap();
        for seq in expected.acked.len() as u64 + 1..=last {
            let line = expected.maybe[&seq].last().unwrap().0.clone();
            expected.acked.push(line);
        }
        expected.maybe = expected.maybe.split_off(&(last + 1));
        expected.is_unsettled = true;
    }

    fn release(&mut self) {
        let Some(&id) = self.leases.keys().next() else { return };
        self.settle_tickets(true);
        let Some((lease, _)) = self.leases.remove(&id) else { return };
        if self.rig.steps.drive(self.rig.store.release(lease)).is_ok() {
            self.expected.get_mut(&id).unwrap().is_unsettled = false;
        }
    }

    fn fork(&mut self) {
        let able = |expected: &&Expected| expected.deleted.is_none() && !expected.acked.is_empty();
        let Some(parent) = self.expected.iter().find(|(_, it)| able(it)).map(|(id, _)| *id) else { return };
        let at = 1 + self.random.below(self.expected[&parent].acked.len() as u64);
        self.next_session += 1;
        let child = session(self.next_session);
        let first = long(child, at + 1, 30);
        let mut expected =
            Expected { blobs: self.expected[&parent].blobs.clone(), is_unsettled: true, ..Expected::default() };
        let mut lines = self.expected[&parent].acked[..at as usize].to_vec();
        lines.push(encode_event(&first).unwrap());
        let outcome = self.rig.steps.drive(self.rig.store.fork(parent, at, std::slice::from_ref(&first)));
        match outcome {
            Ok(()) => expected.acked = lines,
            Err(error) => {
                self.refused(error);
                expected.blobs.clear();
                for (line, seq) in lines.into_iter().zip(1..) {
                    expected.maybe.insert(seq, vec![(line, at + 1)]);
                }
            }
        }
        self.expected.insert(child, expected);
    }

    fn delete(&mut self) {
        self.settle_tickets(true);
        let mut stored = self.expected.iter().filter(|(_, it)| !it.acked.is_empty());
        let Some((&id, _)) = stored.next_back() else { return };
        self.leases.remove(&id);
        let outcome = self.rig.steps.drive(self.rig.store.delete(id));
        self.expected.get_mut(&id).unwrap().deleted.get_or_insert(false);
        match outcome {
            Ok(()) => self.expected.get_mut(&id).unwrap().deleted = Some(true),
            Err(error) => self.refused(error),
        }
    }

    fn blob(&mut self) {
        let id = self.some_session();
        // Nobody has the id of a session whose making failed, although a crash may show it after all.
        let has_failed = |it: &Expected| it.acked.is_empty() && !it.maybe.is_empty() && !self.leases.contains_key(&id);
        if self.expected.get(&id).is_some_and(has_failed) {
            return;
        }
        let bytes = vec![b'b'; 1 + self.random.below(2000) as usize];
        match self.rig.blob(id, &bytes) {
            // A blob counts once a record can name it, and that is in a session that is there.
            Ok(name) => drop(self.expected.entry(id).or_default().blobs.insert(name)),
            Err(error) => self.refused(error),
        }
    }

    /// What is shown now is what may be there, and from now on must be.
    fn verify_reads(&mut self, may_fail: bool) {
        for (id, expected) in &mut self.expected {
            // Some are only passed through: what that shows must survive as well.
            let passed = if self.random.chance(30) && !may_fail { self.rig.scan(*id, 0) } else { None };
            let frames =
                |lines: Vec<Bytes>| lines.into_iter().zip(1..).map(|(line, seq)| Frame { seq, line }).collect();
            let page = match passed {
                Some(lines) => Ok(Some(FramePage { frames: frames(lines), ..FramePage::default() })),
                None => self.rig.steps.drive(self.rig.store.read(*id, 0, ReadLimit::frames(usize::MAX))),
            };
            let page = match page {
                Err(StoreError::Failed(_)) if may_fail => continue,
                page => page.unwrap_or_else(|error| panic!("{id} cannot be read: {error}")),
            };
            let Some(page) = page else {
                let may_be_gone = expected.acked.is_empty() || expected.deleted.is_some();
                assert!(may_be_gone, "{id} is gone, and {} events were acknowledged", expected.acked.len());
                if expected.deleted.is_some() && !may_fail {
                    expected.deleted = Some(true);
                }
                continue;
            };
            assert_ne!(expected.deleted, Some(true), "{id} came back");
            let found = page.frames.len();
            assert!(found >= expected.acked.len(), "{id} lost: {found} of {}", expected.acked.len());
            let mut end = None;
            for (frame, seq) in page.frames.iter().zip(1..) {
                assert_eq!(frame.seq, seq, "{id}");
                match expected.acked.get(seq as usize - 1) {
                    Some(line) => assert_eq!(frame.line, *line, "{id} at {seq}"),
                    None => {
                        let may_be = expected.maybe.get(&seq).into_iter().flatten();
                        let known = may_be.clone().filter(|(line, _)| *line == frame.line);
                        let ends: Vec<Seq> = known.map(|(_, end)| *end).collect();
                        assert!(!ends.is_empty(), "{id} has at {seq} what nobody wrote");
                        end = Some(ends);
                    }
                }
            }
            if let Some(ends) = end {
                assert!(ends.contains(&(found as u64)), "{id} holds a part of a batch, up to {found}");
                expected.acked = page.frames.iter().map(|frame| frame.line.clone()).collect();
                expected.maybe = expected.maybe.split_off(&(found as u64 + 1));
            }
        }
    }

    /// Another process opens the disk, with or without what stood beside the journals.
    fn restart(&mut self, disk: SimulatedDisk) {
        let known = if self.random.chance(70) { self.rig.known.copy() } else { Arc::default() };
        self.rig = Rig::beside(known, disk, SMALL, Some(Random(self.random.next()))).unwrap();
    }

    /// After a restart: everything is as it was acknowledged, and goes on.
    fn verify(&mut self, checks_marks: bool) {
        self.leases.clear();
        self.tickets.clear();
        let unsettled = self.rig.steps.drive(self.rig.store.unsettled()).unwrap();
        // Some have nothing to be done, and rest; a later append marks them again.
        for &id in &unsettled {
            if self.random.chance(30)
                && let Some(lines) = self.rig.scan(id, 0)
            {
                self.rig.steps.drive(self.rig.store.rests(id, lines.len() as Seq));
            }
        }
        let listed = self.rig.steps.drive(self.rig.store.sessions(None, usize::MAX)).unwrap();
        self.verify_reads(false);
        let ids: Vec<SessionId> = self.expected.keys().copied().collect();
        for id in ids {
            let expected = &self.expected[&id];
            if expected.deleted.is_some() {
                continue;
            }
            let tail = expected.acked.len() as u64;
            assert_eq!(listed.contains(&id), tail > 0, "{id} is listed where it is stored");
            assert!(
                !checks_marks || !expected.is_unsettled || tail == 0 || unsettled.contains(&id),
                "{id} is unmarked"
            );
            for blob in expected.blobs.iter().filter(|_| tail > 0) {
                let read = self.rig.steps.drive(self.rig.blobs().read(id, blob, 0, usize::MAX)).unwrap();
                assert!(read.is_some(), "{id} lost a blob");
            }
            let lease = self.rig.lease(id).unwrap_or_else(|error| panic!("{id} cannot be gone on with: {error}"));
            assert_eq!(lease.tail, tail, "{id}");
            let record = long(id, tail + 1, 20);
            assert_eq!(self.rig.append(&lease, std::slice::from_ref(&record)), Ok(tail + 1), "{id}");
            let expected = self.expected.get_mut(&id).unwrap();
            expected.acked.push(encode_event(&record).unwrap());
            expected.maybe.clear();
            expected.is_unsettled = true;
            // What was never stored has its blobs lost with it.
            if tail == 0 {
                expected.blobs.clear();
            }
        }
        self.verify_reads(false);
    }
}

fn walk(prepared: &SimulatedDisk, seed: u64, faults: &[Fault]) {
    let mut random = Random(seed);
    let steps = random.next();
    let rig = Rig::on(prepared.copy(), SMALL, Some(Random(steps)));
    let mut walk =
        Walk { rig, random, expected: BTreeMap::new(), leases: BTreeMap::new(), tickets: Vec::new(), next_session: 0 };
    for _ in 0..STATES_PER_WALK {
        let fault = faults[walk.random.below(faults.len() as u64) as usize];
        let after = walk.random.below(120);
        walk.rig.disk.fail(after, fault);
        for _ in 0..walk.random.below(60) {
            walk.step();
            if walk.rig.disk.is_down() {
                break;
            }
        }
        // Some restarts are kills, after which the system still has it all. Then what is shown must survive a power
        // failure at once. A process that starts after a failed sync does not learn of it.
        if walk.random.chance(40) && !walk.rig.disk.has_lost() {
            walk.restart(walk.rig.disk.revived());
            walk.leases.clear();
            walk.tickets.clear();
            walk.verify_reads(false);
        }
        let disk = walk.rig.disk.crashed(&mut walk.random);
        walk.restart(disk);
        walk.verify(true);
    }
}

/// A disk on which a store was opened once.
fn prepared() -> SimulatedDisk {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.disk.clone()
}

fn walks(faults: &[Fault], name: &str) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let prepared = prepared();
    let seeds = match number("MEERKAT_CRASH_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            0..number("MEERKAT_CRASH_STATES")
                .unwrap_or_else(|| Part::Journal.share(STATES))
                .div_ceil(STATES_PER_WALK * WALKS)
        }
    };
    for seed in seeds {
        let outcome = catch_unwind(AssertUnwindSafe(|| walk(&prepared, seed, faults)));
        if let Err(panic) = outcome {
            let said = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
            panic!("{name}: MEERKAT_CRASH_SEED={seed} repeats this: {said}");
        }
    }
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    walks(&[Fault::Crash], "crash");
}

#[test]
fn what_was_acknowledged_survives_failing_writes_and_crashes() {
    walks(&[Fault::Eio, Fault::Full], "fault");
}
