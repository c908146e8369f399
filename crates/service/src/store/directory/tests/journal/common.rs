//! A store on a simulated disk, whose work is done step by step.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, Mutex},
    task::{Context as TaskContext, Poll, Waker},
};

use bytes::Bytes;

use crate::{
    ids::{Seq, SessionId},
    session::{event::Record, tests::pinned},
    store::directory::entry,
    store::directory::journal::{
        End, Entry, Executor, FileBlobs, KnownEnd, Limits, Near, Witness, lock,
        simulated::{Random, SimulatedDisk},
    },
    store::{BlobStore as _, EventStore as _, Frame, Lease, ReadLimit, RedbEventStore, StoreError, Ticket},
};

/// A job of the store.
type Job = Box<dyn FnOnce() + Send>;

/// Executor that does one job on request, in any order.
#[derive(Default)]
pub(super) struct Steps {
    jobs: Mutex<Vec<Job>>,
    random: Mutex<Option<Random>>,
}

impl Executor for Steps {
    fn run(&self, job: Job) {
        lock(&self.jobs).push(job);
    }

    fn drain(&self) {
        while self.step() {}
    }
}

impl Steps {
    /// In the order of a seed; without one, first come first served.
    pub(super) fn new(random: Option<Random>) -> Arc<Self> {
        Arc::new(Self { jobs: Mutex::default(), random: Mutex::new(random) })
    }

    /// Does one job; returns true if there was one.
    pub(super) fn step(&self) -> bool {
        let job = {
            let mut jobs = lock(&self.jobs);
            if jobs.is_empty() {
                return false;
            }
            let at = lock(&self.random).as_mut().map_or(0, |random| random.below(jobs.len() as u64));
            jobs.remove(at as usize)
        };
        job();
        true
    }

    /// Counts the jobs that are to be done.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.jobs).len()
    }

    /// Does jobs until a future is ready.
    pub(super) fn drive<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(answer) = future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
                return answer;
            }
            assert!(self.step(), "nothing is left to be done, and still it waits");
        }
    }

    /// Does no job; returns the answer of a future that is ready.
    pub(super) fn peek<T>(future: impl Future<Output = T> + Unpin) -> Option<T> {
        match std::pin::pin!(future).poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        }
    }
}

/// What is known beside the journals.
#[derive(Default)]
pub(super) struct Known {
    pub(super) ends: Mutex<BTreeMap<SessionId, KnownEnd>>,
    /// Sessions that a list may show.
    pub(super) listed: Mutex<BTreeSet<SessionId>>,
}

impl Known {
    /// What is known now; what the process that ends still does comes to nothing.
    pub(super) fn copy(&self) -> Arc<Self> {
        let (ends, listed) = (lock(&self.ends).clone(), lock(&self.listed).clone());
        Arc::new(Self { ends: Mutex::new(ends), listed: Mutex::new(listed) })
    }
}

impl Witness for Known {
    fn saw(&self, id: SessionId, end: End, near: Option<Near>) {
        lock(&self.ends).insert(id, KnownEnd { end, near });
    }

    fn end_of(&self, id: SessionId) -> Option<KnownEnd> {
        lock(&self.ends).get(&id).copied()
    }

    fn may_list(&self, id: SessionId) -> bool {
        lock(&self.listed).contains(&id)
    }

    fn lists_none(&self) -> bool {
        lock(&self.listed).is_empty()
    }
}

/// Small sizes, so that little is much.
pub(super) const SMALL: Limits =
    Limits { segment_bytes: 8 * 1024, cache_bytes: 2 * 1024, hot_max: 2, reserve_bytes: 4 * 1024 };

/// A store, its disk and its steps.
pub(super) struct Rig {
    pub(super) disk: SimulatedDisk,
    pub(super) steps: Arc<Steps>,
    pub(super) store: RedbEventStore,
    pub(super) known: Arc<Known>,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::on(SimulatedDisk::new(), Limits::default(), None)
    }

    pub(super) fn on(disk: SimulatedDisk, limits: Limits, random: Option<Random>) -> Self {
        Self::try_on(disk, limits, random).unwrap()
    }

    pub(super) fn try_on(
        disk: SimulatedDisk,
        limits: Limits,
        random: Option<Random>,
    ) -> Result<Self, crate::SessionError> {
        Self::beside(Arc::default(), disk, limits, random)
    }

    /// With what is known beside the journals.
    pub(super) fn beside(
        known: Arc<Known>,
        disk: SimulatedDisk,
        limits: Limits,
        random: Option<Random>,
    ) -> Result<Self, crate::SessionError> {
        let steps = Steps::new(random);
        let store = RedbEventStore::open_with(Arc::new(disk.clone()), None, known.clone(), steps.clone(), limits)?;
        Ok(Self { disk, steps, store, known })
    }

    /// The process ends and another opens what it left.
    pub(super) fn killed(self) -> Self {
        let (known, limits) = (self.known.copy(), self.store.context().limits);
        Self::beside(known, self.disk.revived(), limits, None).unwrap()
    }

    pub(super) fn lease(&self, id: SessionId) -> Result<Lease, StoreError> {
        self.steps.drive(self.store.lease(id))
    }

    /// Appends a batch and waits until it is durable.
    pub(super) fn append(&self, lease: &Lease, batch: &[Record]) -> Result<Seq, StoreError> {
        self.wait(self.store.stage(lease, batch)?)
    }

    pub(super) fn wait(&self, ticket: Ticket) -> Result<Seq, StoreError> {
        self.steps.drive(ticket.durable())
    }

    /// A session with so many more records, each a batch, and the lease on it.
    pub(super) fn filled(&self, id: SessionId, count: u64) -> Lease {
        self.grown(id, count, 10)
    }

    /// The same with records whose texts have so many bytes.
    pub(super) fn grown(&self, id: SessionId, count: u64, bytes: usize) -> Lease {
        let lease = self.lease(id).unwrap();
        for seq in lease.tail + 1..=lease.tail + count {
            assert_eq!(self.append(&lease, &[long(id, seq, bytes)]), Ok(seq));
        }
        lease
    }

    pub(super) fn release(&self, lease: Lease) {
        self.steps.drive(self.store.release(lease)).unwrap();
        while self.steps.step() {}
    }

    /// Every frame up to damage, in pages of `limit`; `None` if there is no such session.
    pub(super) fn read(&self, id: SessionId, limit: usize) -> Option<Vec<Frame>> {
        self.reads(id, 0, ReadLimit::frames(limit)).map(|reads| reads.frames)
    }

    /// Every frame after `after`, in pages, up to damage or past it; `None` if there is no such session.
    pub(super) fn reads(&self, id: SessionId, mut after: Seq, limit: ReadLimit) -> Option<Reads> {
        let mut reads = Reads::default();
        loop {
            let page = match self.steps.drive(self.store.read(id, after, limit)) {
                Err(StoreError::Corrupted { last_good_seq, .. }) => {
                    reads.stopped_after = Some(last_good_seq);
                    return Some(reads);
                }
                page => page.unwrap()?,
            };
            reads.lost.extend(page.lost);
            let Some(last) = page.frames.last() else { return Some(reads) };
            after = last.seq;
            reads.frames.extend(page.frames);
        }
    }

    /// The lines after `after`, read without opening the journal; `None` if that cannot be done.
    pub(super) fn scan(&self, id: SessionId, after: Seq) -> Option<Vec<Bytes>> {
        let lines: Arc<Mutex<Vec<Bytes>>> = Arc::default();
        let sink = lines.clone();
        let see = move |line: &Bytes| lock(&sink).push(line.clone());
        let is_whole = self.steps.drive(self.store.scan(id, after, Box::new(see))).unwrap();
        is_whole.then(|| std::mem::take(&mut *lock(&lines)))
    }

    pub(super) fn seqs(&self, id: SessionId) -> Vec<Seq> {
        self.read(id, 3).unwrap().iter().map(|frame| frame.seq).collect()
    }

    pub(super) fn blobs(&self) -> FileBlobs {
        FileBlobs::new(self.store.context().clone(), None)
    }

    pub(super) fn blob(&self, id: SessionId, bytes: &[u8]) -> Result<String, StoreError> {
        let mut writer = self.blobs().writer(id);
        self.steps.drive(writer.write(bytes))?;
        Ok(self.steps.drive(writer.finish())?.0)
    }
}

/// What pages had.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reads {
    pub(super) frames: Vec<Frame>,
    /// Ranges that were passed over.
    pub(super) lost: Vec<(Seq, Seq)>,
    /// The last good record that an error named.
    pub(super) stopped_after: Option<Seq>,
}

/// The n-th session; their folders differ.
pub(super) fn session(n: u128) -> SessionId {
    SessionId::from_uuid(uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + n))
}

/// A record of a session.
pub(super) fn of(session_id: SessionId, seq: Seq) -> Record {
    long(session_id, seq, 10)
}

/// The record that a repair appends.
pub(super) fn said(seq: Seq, _: &[(Seq, Seq)]) -> std::io::Result<Entry> {
    entry(&of(session(1), seq)).map_err(std::io::Error::other)
}

/// A record whose text has so many bytes, and begins with its seq.
pub(super) fn long(session_id: SessionId, seq: Seq, bytes: usize) -> Record {
    let text = format!("{seq} {}", "x".repeat(bytes));
    Record { session_id, ..pinned(seq, &text) }
}
