//! [`RedbEventStore`]: events in journals. It knows the open journals, and the lease of each.
//!
//! Nothing here waits for redb: the journals are the truth, and redb has copies of them.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use meerkat_journal::{
    Context, Disk, Drops, End, Entry, Executor, Health, Import, KnownEnd, Limits, Log, Marks, OwnerLock, Pool,
    Prepared, READS_MAX, Witness, abandon, appear, bytes_of, candidates, discard, exists, fork_files, is_gone,
    is_unreadable, journal_bytes_of, lock, log_unlisted, on, page, parts, pass, prepare, replace, rewrite, seal,
    sessions_on, set_aside, store_id, unreadable,
};
use tokio::sync::watch;

use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId},
    session::event::{EventKind, Record},
    store::{EventStore, Frame, FramePage, Lease, LineSink, ReadLimit, RecordSource, StoreError, TailRepair, Ticket},
    wire::encode_event,
};

/// Most journals to keep open without a lease or a follower.
const IDLE_MAX: usize = 64;
/// Number of locks for the opening of journals; sessions share them by their id.
const OPENING_LOCKS: usize = 64;
/// Most deleted sessions to look at together with another deletion.
const GONE_MAX: usize = 16;

/// Events in journals, one per session. Lists and keys are in redb.
pub struct RedbEventStore {
    context: Arc<Context>,
    open: Mutex<Open>,
    /// Held while a journal is opened, created or deleted, so that no two of one session are ever open.
    opening: Arc<[tokio::sync::Mutex<()>; OPENING_LOCKS]>,
    /// Held while an import is copied, so that no two of one id write the same files.
    importing: [tokio::sync::Mutex<()>; OPENING_LOCKS],
    epochs: AtomicU64,
    /// Deleted sessions that the index may still list after a power failure, in order.
    deleted: Arc<Mutex<VecDeque<SessionId>>>,
    /// Held while a journal is compacted: one at a time needs little room and leaves the disk to turns.
    compacting: tokio::sync::Mutex<()>,
    /// True if it was not known at the start which sessions are active.
    are_marks_lost: bool,
    /// Kept as long as anything may be written.
    _owner: Option<Arc<OwnerLock>>,
}

#[derive(Default)]
struct Open {
    logs: HashMap<SessionId, Arc<Log>>,
    /// Journals that were not used when they were last checked, oldest first, each once.
    idle: VecDeque<SessionId>,
    /// The same ones.
    is_idle: HashSet<SessionId>,
}

impl Drop for RedbEventStore {
    fn drop(&mut self) {
        // The directory may have another owner only after the last write.
        self.context.executor.drain();
    }
}

impl RedbEventStore {
    /// Opens the journals on `disk`.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        owner: Option<Arc<OwnerLock>>,
        witness: Arc<dyn Witness>,
    ) -> Result<Self, SessionError> {
        let pool = Pool::new().map_err(|error| StoreError::Failed(format!("the store has no thread: {error}")))?;
        Self::open_with(disk, owner, witness, Arc::new(pool), Limits::default())
    }

    /// Opens the journals on `disk`; its work is done by `executor`.
    pub(crate) fn open_with(
        disk: Arc<dyn Disk>,
        owner: Option<Arc<OwnerLock>>,
        witness: Arc<dyn Witness>,
        executor: Arc<dyn Executor>,
        limits: Limits,
    ) -> Result<Self, SessionError> {
        let Prepared { is_new, are_marks_lost } = prepare(disk.as_ref(), witness.as_ref())?;
        let health = Arc::new(Health::new(limits.reserve_bytes));
        let marks = Marks::open(disk.clone(), executor.clone(), health.clone())?;
        if let Err(error) = health.make_reserve(disk.as_ref()) {
            tracing::warn!(%error, "the reserve for a full disk could not be made");
        }
        if is_new {
            seal(disk.as_ref()).map_err(|error| SessionError::StoreNotWritable {
                path: "format".to_owned(),
                why: error.to_string(),
            })?;
        }
        let (unsure, unsynced, returned, damaged, hot, listing) = Default::default();
        let context = Context {
            disk,
            executor,
            reading: tokio::sync::Semaphore::new(READS_MAX),
            health,
            marks: Arc::new(marks),
            witness,
            limits,
            knows,
            unsure,
            unsynced,
            returned,
            damaged,
            hot,
            listing,
        };
        Ok(Self {
            context: Arc::new(context),
            open: Mutex::default(),
            opening: Arc::new(std::array::from_fn(|_| tokio::sync::Mutex::default())),
            importing: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            epochs: AtomicU64::new(0),
            deleted: Arc::default(),
            compacting: tokio::sync::Mutex::default(),
            are_marks_lost,
            _owner: owner,
        })
    }

    /// Returns the context that its journals share.
    pub(crate) const fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Counts the journals in memory.
    #[cfg(test)]
    pub(super) fn open_count(&self) -> usize {
        lock(&self.open).logs.len()
    }

    /// Sums the bytes of a session, on a thread of the store.
    async fn sum(&self, id: SessionId, sum: fn(&dyn Disk, SessionId) -> io::Result<u64>) -> Result<u64, StoreError> {
        let disk = self.context.disk.clone();
        let sum = move || {
            sum(disk.as_ref(), id).map_err(|error| match is_unreadable(&error) {
                true => unreadable(id, &error),
                false => StoreError::Failed(error.to_string()),
            })
        };
        self.context.read(sum).await
    }

    /// Returns the journal if it is open.
    fn opened(&self, id: SessionId) -> Option<Arc<Log>> {
        lock(&self.open).logs.get(&id).filter(|log| !log.is_over()).cloned()
    }

    /// Returns the journal, opened if necessary; `None` if there is no such session, unless `may_create`.
    async fn log(&self, id: SessionId, may_create: bool) -> Result<Option<Arc<Log>>, StoreError> {
        if let Some(log) = self.opened(id) {
            return Ok(Some(log));
        }
        let _opening = self.opening(id).lock().await;
        if let Some(log) = self.opened(id) {
            return Ok(Some(log));
        }
        let context = self.context.clone();
        let log = on(self.context.executor.as_ref(), move || Log::open(context, id).map(Arc::new)).await?;
        if !may_create && !log.exists() {
            return Ok(None);
        }
        lock(&self.open).logs.insert(id, log.clone());
        if !may_create {
            self.release_journal(id);
        }
        Ok(Some(log))
    }

    fn opening(&self, id: SessionId) -> &tokio::sync::Mutex<()> {
        &self.opening[opening_of(id)]
    }

    /// Notes that the journal is not used for now. Checks two of those that waited longest, so that many become fewer:
    /// unused ones leave memory, the others wait again.
    fn release_journal(&self, id: SessionId) {
        let mut guard = lock(&self.open);
        let Open { logs, idle, is_idle } = &mut *guard;
        if logs.get(&id).is_some_and(|log| !log.exists() && log.is_idle()) {
            logs.remove(&id);
            return;
        }
        if is_idle.insert(id) {
            idle.push_back(id);
        }
        for _ in IDLE_MAX..idle.len().min(IDLE_MAX + 2) {
            let Some(oldest) = idle.pop_front() else { break };
            match logs.get(&oldest) {
                Some(log) if Arc::strong_count(log) > 1 || !log.is_idle() => idle.push_back(oldest),
                _ => {
                    logs.remove(&oldest);
                    is_idle.remove(&oldest);
                }
            }
        }
    }

    /// Writes a journal that has no name yet, part by part; returns its end.
    async fn import_files(&self, id: SessionId, records: &mut dyn RecordSource) -> Result<End, StoreError> {
        let (executor, context) = (self.context.executor.as_ref(), self.context.clone());
        let mut import = on(executor, move || Import::begin(context, id)).await?;
        loop {
            let part = records.next().await?;
            if part.is_empty() {
                return on(executor, move || import.end()).await;
            }
            let entries =
                part.into_iter().map(|(record, line)| verbatim(&record, line)).collect::<Result<Vec<_>, _>>()?;
            import = on(executor, move || import.add(&entries).map(|()| import)).await?;
        }
    }

    /// Gives a created and marked session its name; after a failure nothing of it remains.
    async fn appear(&self, id: SessionId, marked: Result<(), StoreError>) -> Result<(), StoreError> {
        let context = self.context.clone();
        on(self.context.executor.as_ref(), move || {
            let named = || appear(&context, id).map_err(|trouble| trouble.error(&context.health, id));
            marked.and_then(|()| named()).inspect_err(|_| abandon(&context, id))
        })
        .await
    }
}

/// Journal that was opened for a lease; it is not used if this is dropped.
struct Unused<'a> {
    store: &'a RedbEventStore,
    session_id: SessionId,
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        self.store.release_journal(self.session_id);
    }
}

/// Returns the number of a session's lock.
fn opening_of(id: SessionId) -> usize {
    id.as_uuid().as_bytes()[15] as usize % OPENING_LOCKS
}

/// Marks a session of which nothing is left; returns true if it is one. The caller holds its lock, or it might be
/// created meanwhile.
fn mark_if_gone(context: &Context, id: SessionId) -> bool {
    let is_gone = is_gone(context, id);
    if is_gone {
        // If the mark comes back, the next start finds the same.
        context.marks.mark_idle(id, Box::new(drop));
    }
    is_gone
}

/// Numbers an event's kind by a hash of its name.
fn kind_number(type_name: &str) -> u16 {
    let hash = crc32c::crc32c(type_name.as_bytes());
    // Both halves count; numbers below 16 are those of marks in a store of format 1.
    ((hash >> 16) as u16 ^ (hash & 0xFFFF) as u16).max(16)
}

/// Returns true if this version knows a kind of event.
pub(crate) fn knows(kind: u16) -> bool {
    static KNOWN: OnceLock<Vec<u16>> = OnceLock::new();
    let numbers = || EventKind::ALL.iter().map(|kind| kind_number(kind.name())).collect();
    KNOWN.get_or_init(numbers).contains(&kind)
}

/// Encodes a record for the journal.
pub(crate) fn entry(record: &Record) -> Result<Entry, StoreError> {
    verbatim(record, encode_event(record).map_err(|error| StoreError::Failed(error.to_string()))?)
}

/// Makes a journal's entry from a record and its existing line.
fn verbatim(record: &Record, line: Bytes) -> Result<Entry, StoreError> {
    let kind = kind_number(record.event.type_name());
    Entry::new(record.seq, kind, record.time.as_millis(), line)
}

#[async_trait]
impl EventStore for RedbEventStore {
    fn id(&self) -> Option<String> {
        let id = store_id(self.context.disk.as_ref());
        id.inspect_err(|error| tracing::warn!(%error, "this store has no id")).ok()
    }

    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        self.context.health.check_writable()?;
        let Some(log) = self.log(session_id, true).await? else { return Err(StoreError::NotFound(session_id)) };
        // Without a lease nobody gives the journal back, also if the caller leaves meanwhile.
        let unused = Unused { store: self, session_id };
        let leased = log.lease(self.epochs.fetch_add(1, Ordering::Relaxed) + 1).await?;
        std::mem::forget(unused);
        Ok(leased)
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        if let Some(log) = self.opened(lease.session_id) {
            log.release(lease.epoch).await;
            self.release_journal(lease.session_id);
        }
        Ok(())
    }

    async fn give_up(&self, lease: Lease) {
        if let Some(log) = self.opened(lease.session_id) {
            log.give_up(lease.epoch);
            // Only if the store alone holds the journal can it leave memory.
            drop(log);
            self.release_journal(lease.session_id);
        }
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        // Encoded before any lock is taken.
        let entries = batch.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let log = self.opened(lease.session_id).ok_or(StoreError::Fenced)?;
        log.stage(lease.epoch, entries)
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        match self.log(session_id, false).await? {
            Some(log) => page(&log, after, limit).await,
            None => Ok(None),
        }
    }

    fn at_hand(&self, session_id: SessionId, seq: Seq) -> Option<Frame> {
        self.opened(session_id)?.at_hand(seq)
    }

    fn lost_end(&self, session_id: SessionId) -> Option<StoreError> {
        self.opened(session_id)?.lost_end()
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        Ok(self.log(session_id, false).await?.and_then(|log| log.watch()))
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        let nothing = || StoreError::Failed("a fork has no record of its own".to_owned());
        let child = first.first().ok_or_else(nothing)?.session_id;
        let first = first.iter().map(entry).collect::<Result<Vec<_>, _>>()?;
        let source = self.log(parent, false).await?.filter(|log| log.exists()).ok_or(StoreError::NotFound(parent))?;
        if self.log(child, false).await?.is_some() {
            return Err(StoreError::Failed("the fork exists already".to_owned()));
        }
        let _opening = self.opening(child).lock().await;
        let made = on(self.context.executor.as_ref(), move || fork_files(&source, at, child, &first)).await;
        // A session never exists without its mark.
        let marked = match made {
            Ok(()) => self.context.marks.mark(child).await,
            Err(error) => Err(error),
        };
        self.appear(child, marked).await
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        let exists = || StoreError::Failed("the session exists already".to_owned());
        // The copy has no name yet, so sessions that share its lock need not wait for it.
        let _importing = self.importing[opening_of(session_id)].lock().await;
        if self.log(session_id, false).await?.is_some() {
            return Err(exists());
        }
        let copied = self.import_files(session_id, records).await;
        let _opening = self.opening(session_id).lock().await;
        if self.opened(session_id).is_some_and(|log| log.exists()) {
            return Err(exists());
        }
        let made = match copied {
            Ok(end) => {
                self.context.witness.saw(session_id, end, None);
                self.context.marks.mark(session_id).await
            }
            Err(error) => Err(error),
        };
        self.appear(session_id, made).await
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.sum(session_id, bytes_of).await
    }

    async fn journal_bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        self.sum(session_id, journal_bytes_of).await
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        let _opening = self.opening(session_id).lock().await;
        // Before followers are notified of its end: a read-only store keeps the session.
        self.context.health.check_writable()?;
        // Its row in the index may outlive it for a moment, so the mark makes the next start check it. A full disk is
        // no reason to keep it.
        match self.context.marks.mark(session_id).await {
            Ok(()) | Err(StoreError::Full) => {}
            Err(error) => return Err(error),
        }
        if let Some(log) = self.opened(session_id) {
            log.end().await;
        }
        let context = self.context.clone();
        let gone = on(self.context.executor.as_ref(), move || set_aside(&context, session_id)).await;
        lock(&self.open).logs.remove(&session_id);
        let trash = gone?;
        let (context, deleted, opening) = (self.context.clone(), self.deleted.clone(), self.opening.clone());
        self.context.executor.run(Box::new(move || {
            if let Some(trash) = trash {
                discard(&context, &trash);
            }
            // The index may have dropped earlier ones by now. One whose lock is held is checked another time.
            let before: Vec<_> = lock(&deleted).iter().take(GONE_MAX).copied().collect();
            let is_marked =
                |id: &SessionId| opening[opening_of(*id)].try_lock().is_ok_and(|_| mark_if_gone(&context, *id));
            let gone: Vec<_> = before.into_iter().filter(is_marked).collect();
            let mut deleted = lock(&deleted);
            deleted.retain(|id| !gone.contains(id));
            deleted.push_back(session_id);
        }));
        Ok(())
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        let mut active = self.context.marks.active();
        let (of, context) = (active.clone(), self.context.clone());
        let gone = move || Ok(of.into_iter().filter(|id| is_gone(&context, *id)).collect::<Vec<_>>());
        for id in on(self.context.executor.as_ref(), gone).await? {
            // A session that is being created does not exist yet, either.
            let _opening = self.opening(id).lock().await;
            let context = self.context.clone();
            if self.opened(id).is_none()
                && on(self.context.executor.as_ref(), move || Ok(mark_if_gone(&context, id))).await?
            {
                active.retain(|other| *other != id);
            }
        }
        Ok(active)
    }

    async fn scan(&self, session_id: SessionId, after: Seq, mut see: LineSink) -> Result<bool, StoreError> {
        // Nobody may open it meanwhile: an open journal may be ahead of what is read here.
        let _opening = self.opening(session_id).lock().await;
        if self.opened(session_id).is_some() {
            return Ok(false);
        }
        let context = self.context.clone();
        self.context.read(move || pass(&context, session_id, after, &mut *see)).await
    }

    async fn rests(&self, session_id: SessionId, last_seq: Seq) {
        let _opening = self.opening(session_id).lock().await;
        let (context, marks) = (self.context.clone(), &self.context.marks);
        if self.opened(session_id).is_some() || !marks.is_active(session_id) {
            return;
        }
        // A session that was deleted since is left to the next start, which drops its row.
        let end_of = move |context: &Context| {
            exists(context.disk.as_ref(), session_id).then(|| context.witness.end_of(session_id)).flatten()
        };
        let known = on(self.context.executor.as_ref(), move || Ok(end_of(&context))).await;
        if known.is_ok_and(|known| known.is_some_and(|KnownEnd { end, .. }| end.seq == last_seq)) {
            // If the mark comes back, the next start checks the session again.
            marks.mark_idle(session_id, Box::new(drop));
        }
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        let (number, known) = lock(&self.context.listing).clone();
        let all = match known {
            Some(all) => all,
            None => {
                let disk = self.context.disk.clone();
                let list = move || {
                    sessions_on(disk.as_ref(), &mut log_unlisted).map_err(|error| StoreError::Failed(error.to_string()))
                };
                let all = Arc::new(self.context.read(list).await?);
                let mut listing = lock(&self.context.listing);
                if listing.0 == number {
                    listing.1 = Some(all.clone());
                }
                all
            }
        };
        let start = all.partition_point(|id| Some(*id) <= after);
        Ok(all.iter().skip(start).take(limit).copied().collect())
    }

    fn are_marks_lost(&self) -> bool {
        self.are_marks_lost
    }

    fn tail_repair(&self, session_id: SessionId) -> Option<TailRepair> {
        self.opened(session_id).and_then(|log| log.tail_repair())
    }

    async fn room(&self) -> Result<(), StoreError> {
        if !self.context.health.is_full() {
            return self.context.health.check_writable();
        }
        let context = self.context.clone();
        on(self.context.executor.as_ref(), move || context.health.room(context.disk.as_ref())).await
    }
}

impl RedbEventStore {
    /// Lists the ranges of a journal's seqs, in order.
    pub(super) async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError> {
        let log = self.log(session_id, false).await?.ok_or(StoreError::NotFound(session_id))?;
        Ok(parts(&log))
    }

    /// Drops records, whatever readers say; returns their number.
    pub(super) async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        let _compacting = self.compacting.lock().await;
        let log = self.log(session_id, false).await?.ok_or(StoreError::NotFound(session_id))?;
        let drops = Arc::new(Drops { up_to, keep: keep.clone(), older_than: older_than.as_millis() });
        let (executor, mut dropped) = (self.context.executor.as_ref(), 0);
        let found = log.clone();
        for number in on(executor, move || candidates(&found, up_to)).await? {
            let Some(rewritten) = rewrite(&log, number, &drops).await? else { continue };
            dropped += rewritten.dropped;
            let _opening = self.opening(session_id).lock().await;
            let log = log.clone();
            on(executor, move || replace(&log, rewritten)).await?;
        }
        Ok(dropped)
    }
}
