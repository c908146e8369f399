//! Readers: named consumers of all journals, each with a durable checkpoint per session. What is handed out comes again
//! until it is acknowledged; the least checkpoint is how far journals may be pruned.
//!
//! Nothing here is in the way of a turn: with no reader it costs a look at one number, with some a note that the
//! session has more. Checkpoints are copies in the index; what outlives it stands in the store of readers.

mod feed;
mod fetch;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::watch;

use crate::{
    SessionError,
    clock::{Clock, Timestamp},
    follow::check_cursor,
    ids::{Seq, SessionId},
    service::{AcknowledgeReader, Checkpoint, Page, ReaderView, WaitReader},
    store::{EventStore, ReaderStore, Registration, SessionIndex, StoreError},
};
use feed::Feed;

/// Readers that may be registered, besides the built-in ones.
const READERS_MAX: usize = 64;
/// Names that are kept for readers of meerkat's own.
const RESERVED: [&str; 2] = ["memory", "projection"];

/// The readers of one service.
pub(crate) struct Readers {
    store: Arc<dyn ReaderStore>,
    events: Arc<dyn EventStore>,
    index: Arc<dyn SessionIndex>,
    clock: Arc<dyn Clock>,
    /// How many there are; while it is 0, nothing else is looked at when a session changes.
    count: AtomicUsize,
    known: Mutex<BTreeMap<String, Known>>,
    /// Changes when a session has more records, or is gone.
    touched: watch::Sender<u64>,
    /// Changes when a checkpoint moves, or a session or reader is gone.
    moved: watch::Sender<u64>,
    /// Held while a checkpoint is moved, so that it never goes back.
    moving: tokio::sync::Mutex<()>,
    /// Held to the end by whoever acknowledges, and alone by whoever registers a reader or forgets one.
    registering: tokio::sync::RwLock<()>,
    /// Held together while journals are compacted, and alone while a reader comes or goes.
    gate: tokio::sync::RwLock<()>,
    /// Held while it is found out what a reader is behind in.
    scanning: tokio::sync::Mutex<()>,
}

/// A reader.
struct Known {
    created_at: Timestamp,
    is_built_in: bool,
    feed: Feed,
    /// Whether the feed holds what was there before this process.
    is_scanned: bool,
    /// Whether its checkpoints are those of what it keeps; until then nothing is pruned that it may want again.
    is_trusted: bool,
}

/// What the readers are done with in one session: nothing behind it may be pruned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// Every reader is done with records up to here.
    pub(crate) safe_up_to: Seq,
    /// The checkpoint of each.
    acknowledged: BTreeMap<String, Seq>,
}

impl Readers {
    pub(crate) fn new(
        store: Arc<dyn ReaderStore>,
        events: Arc<dyn EventStore>,
        index: Arc<dyn SessionIndex>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            store,
            events,
            index,
            clock,
            count: AtomicUsize::new(0),
            known: Mutex::default(),
            touched: watch::Sender::new(0),
            moved: watch::Sender::new(0),
            moving: tokio::sync::Mutex::default(),
            registering: tokio::sync::RwLock::default(),
            gate: tokio::sync::RwLock::default(),
            scanning: tokio::sync::Mutex::default(),
        }
    }

    /// Takes up the readers that are registered. From then on they are told of what changes.
    pub(crate) async fn open(&self) -> Result<(), StoreError> {
        for Registration { reader, created_at } in self.store.readers().await? {
            self.add(reader, created_at, false, true);
        }
        Ok(())
    }

    /// Takes up a reader of meerkat's own, which is registered as long as this process lives. One that is not trusted has
    /// yet to find out if it has what its checkpoints say: see [`Self::trust`].
    pub(crate) fn add_built_in(&self, reader: &str, is_trusted: bool) {
        self.add(reader.to_owned(), self.clock.now(), true, is_trusted);
    }

    fn add(&self, reader: String, created_at: Timestamp, is_built_in: bool, is_trusted: bool) {
        let mut known = self.known();
        let feed = Feed::new(is_built_in);
        known.entry(reader).or_insert(Known { created_at, is_built_in, feed, is_scanned: false, is_trusted });
        self.count.store(known.len(), Ordering::Release);
    }

    /// What a reader of meerkat's own keeps is what its checkpoints say; where it `is_lost`, it begins anew with every
    /// session.
    pub(crate) async fn trust(&self, reader: &str, is_lost: bool) -> Result<(), SessionError> {
        // Nobody finds out meanwhile what it is behind in: that would be by the checkpoints it had.
        let _scanning = self.scanning.lock().await;
        if is_lost {
            self.index.forget_reader(reader).await?;
            self.index.flush().await?;
        }
        self.with(reader, |known| {
            known.is_trusted = true;
            if is_lost {
                known.feed.unlearn();
                known.is_scanned = false;
            }
        })
    }

    /// The sessions that a reader may be behind in now, with their last records.
    pub(crate) async fn behind(&self, reader: &str) -> Result<HashMap<SessionId, Seq>, SessionError> {
        self.scan(reader).await?;
        self.with(reader, |known| known.feed.behind())
    }

    /// Takes those out that the reader is done with since, or rests in.
    pub(crate) fn retain_behind(
        &self,
        reader: &str,
        sessions: &mut HashMap<SessionId, Seq>,
    ) -> Result<(), SessionError> {
        self.with(reader, |known| sessions.retain(|session_id, seq| known.feed.is_behind(*session_id, *seq)))
    }

    /// Changes when a session has more records, or is gone.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.touched.subscribe()
    }

    /// Changes when a reader is done with something.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Deleted sessions that a reader of meerkat's own has yet to forget.
    pub(crate) fn gone_of(&self, reader: &str) -> Result<Vec<SessionId>, SessionError> {
        self.with(reader, |known| known.feed.gone_sessions())
    }

    /// Notes sessions that were deleted while the reader did not learn of it.
    pub(crate) fn note_gone(&self, reader: &str, sessions: Vec<SessionId>) -> Result<(), SessionError> {
        self.with(reader, |known| sessions.into_iter().for_each(|session_id| known.feed.gone(session_id)))
    }

    /// A reader of meerkat's own has forgotten a deleted session.
    pub(crate) fn forgot(&self, reader: &str, session_id: SessionId) -> Result<(), SessionError> {
        self.with(reader, |known| known.feed.forgot(session_id))?;
        tell(&self.moved);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a reader, or changes it.
    fn with<T>(&self, reader: &str, look: impl FnOnce(&mut Known) -> T) -> Result<T, SessionError> {
        let mut known = self.known();
        known.get_mut(reader).map(look).ok_or_else(|| SessionError::ReaderNotFound(reader.to_owned()))
    }

    /// A session has durable records up to `last_seq`, and its row says so.
    pub(crate) fn touched(&self, session_id: SessionId, last_seq: Seq) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        self.known().values_mut().for_each(|known| known.feed.touched(session_id, last_seq));
        tell(&self.touched);
    }

    /// A session is deleted, with all that is known of it. Whoever makes one under an id of its own choice says so, too,
    /// before it does.
    pub(crate) async fn gone(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.forget(session_id);
        self.store.forget(session_id).await
    }

    /// Nobody is behind in a session that is not there.
    fn forget(&self, session_id: SessionId) {
        self.known().values_mut().for_each(|known| known.feed.gone(session_id));
        tell(&self.touched);
        tell(&self.moved);
    }

    /// Registers a reader; where it is registered already, nothing changes.
    pub(crate) async fn create(&self, reader: &str) -> Result<ReaderView, SessionError> {
        check_own(reader)?;
        let gate = self.gate.write().await;
        let registering = self.registering.write().await;
        let (is_known, count) = {
            let known = self.known();
            (known.contains_key(reader), known.values().filter(|known| !known.is_built_in).count())
        };
        if !is_known {
            if count >= READERS_MAX {
                return Err(SessionError::Limit { what: "readers", limit: READERS_MAX as u64 });
            }
            let created_at = self.clock.now();
            self.store.register(Registration { reader: reader.to_owned(), created_at }).await?;
            self.add(reader.to_owned(), created_at, false, true);
        }
        // What it is behind in may take a while to count, and nobody is to wait for that.
        drop((registering, gate));
        self.view(reader).await
    }

    /// Forgets a reader; answers with it as it was.
    pub(crate) async fn delete(&self, reader: &str) -> Result<ReaderView, SessionError> {
        check_own(reader)?;
        let view = self.view(reader).await?;
        let _gate = self.gate.write().await;
        let _registering = self.registering.write().await;
        self.with(reader, |_| ())?;
        // First and durably, so that a reader that is registered under the same name later begins where all do.
        self.index.forget_reader(reader).await?;
        self.index.flush().await?;
        self.store.unregister(reader).await?;
        {
            let mut known = self.known();
            known.remove(reader);
            self.count.store(known.len(), Ordering::Release);
        }
        tell(&self.touched);
        tell(&self.moved);
        Ok(view)
    }

    /// The readers in the order of their names, with how far each is behind.
    pub(crate) async fn list(&self) -> Result<Page<ReaderView>, SessionError> {
        let names: Vec<String> = self.known().keys().cloned().collect();
        let mut views = Vec::with_capacity(names.len());
        for reader in names {
            match self.view(&reader).await {
                // It was deleted meanwhile.
                Err(SessionError::ReaderNotFound(_)) => {}
                view => views.push(view?),
            }
        }
        Ok(Page::whole(views))
    }

    async fn view(&self, reader: &str) -> Result<ReaderView, SessionError> {
        self.scan(reader).await?;
        self.look_at(reader, usize::MAX).await?;
        self.with(reader, |known| {
            let (sessions_behind, records_behind) = known.feed.lag();
            let (reader, created_at, built_in) = (reader.to_owned(), known.created_at, known.is_built_in);
            ReaderView { reader, created_at, built_in, sessions_behind, records_behind }
        })
    }

    /// A reader is done with a session up to a record. What this answers is durable.
    pub(crate) async fn acknowledge(&self, request: AcknowledgeReader) -> Result<Checkpoint, SessionError> {
        let AcknowledgeReader { reader, session_id, seq } = request;
        check_own(&reader)?;
        let _acknowledging = self.registering.read().await;
        self.with(&reader, |_| ())?;
        let tail = self.events.watch(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        let last_seq = *tail.borrow();
        check_cursor(self.events.as_ref(), session_id, seq, last_seq).await?;
        let seq = self.done(&reader, session_id, seq).await?;
        self.index.flush().await?;
        Ok(Checkpoint { reader, session_id, seq })
    }

    /// Moves a reader's checkpoint, never back; answers where it is. It is durable when the index next is.
    pub(crate) async fn done(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, SessionError> {
        let _moving = self.moving.lock().await;
        let before = self.checkpoint(reader, session_id).await?;
        if seq > before {
            self.index.put_checkpoint(reader, session_id, seq).await?;
            if self.events.watch(session_id).await?.is_none() {
                // It was deleted meanwhile, and nothing is left of it.
                self.index.remove(session_id).await?;
                return Err(SessionError::NotFound(session_id));
            }
        }
        let seq = seq.max(before);
        self.with(reader, |known| known.feed.moved(session_id, seq))?;
        tell(&self.moved);
        Ok(seq)
    }

    /// A reader of meerkat's own is to take a session in from its beginning again. Durable when this answers.
    pub(crate) async fn begin_anew(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError> {
        let moving = self.moving.lock().await;
        self.index.put_checkpoint(reader, session_id, 0).await?;
        let tail = self.events.watch(session_id).await?.ok_or(StoreError::NotFound(session_id))?;
        let last_seq = *tail.borrow();
        // Also where it does not become durable: it stands in memory from now on.
        if let Some(known) = self.known().get_mut(reader) {
            known.feed.again(session_id, last_seq);
        }
        tell(&self.touched);
        drop(moving);
        self.index.flush().await
    }

    /// A reader can do nothing with a session until there is more of it than `last_seq`.
    pub(crate) fn rest(&self, reader: &str, session_id: SessionId, last_seq: Seq) -> Result<(), SessionError> {
        self.with(reader, |known| known.feed.exhausted(session_id, last_seq))?;
        tell(&self.moved);
        Ok(())
    }

    /// A session has left a service in memory; nothing is known of it any more.
    pub(crate) async fn left(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.index.remove(session_id).await
    }

    /// Waits until a reader is done with a record; answers with how far it has come by then.
    pub(crate) async fn wait(&self, request: WaitReader) -> Result<Checkpoint, SessionError> {
        let WaitReader { reader, session_id, seq: wanted, wait_ms } = request;
        let mut moved = self.moved.subscribe();
        let mut deadline = self.clock.sleep(Duration::from_millis(wait_ms));
        let mut is_over = wait_ms == 0;
        loop {
            moved.borrow_and_update();
            self.with(&reader, |_| ())?;
            if self.events.watch(session_id).await?.is_none() {
                return Err(SessionError::NotFound(session_id));
            }
            let seq = self.checkpoint(&reader, session_id).await?;
            if seq >= wanted || is_over {
                return Ok(Checkpoint { reader, session_id, seq });
            }
            tokio::select! {
                biased;
                changed = moved.changed() => drop(changed),
                () = &mut deadline => is_over = true,
            }
        }
    }

    /// How far a reader has come in a session.
    pub(crate) async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError> {
        Ok(self.checkpoints(reader, &[session_id]).await?.first().copied().unwrap_or_default())
    }

    /// The same of many sessions. Where the index was lost, what pruning relied on is left; a reader of meerkat's own
    /// begins anew then.
    async fn checkpoints(&self, reader: &str, session_ids: &[SessionId]) -> Result<Vec<Seq>, StoreError> {
        let mut seqs = self.index.checkpoints(reader, session_ids).await?;
        if RESERVED.contains(&reader) {
            return Ok(seqs);
        }
        for (session_id, seq) in session_ids.iter().zip(&mut seqs) {
            let relied = self.store.relied(*session_id).await?;
            *seq = relied.get(reader).copied().unwrap_or_default().max(*seq);
        }
        Ok(seqs)
    }

    /// No reader comes or goes while this is held.
    pub(crate) async fn hold_gate(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// Whether every registration is certainly there; else nothing may be pruned.
    pub(crate) fn is_trusted(&self) -> bool {
        self.store.is_trusted()
    }

    /// Up to where every reader is durably done with a session; `None` where there is no reader.
    pub(crate) async fn watermark(&self, session_id: SessionId) -> Result<Option<Watermark>, StoreError> {
        let readers: Vec<_> = self.known().iter().map(|(reader, known)| (reader.clone(), known.is_trusted)).collect();
        let mut acknowledged = BTreeMap::new();
        for (reader, is_trusted) in readers {
            let seq = if is_trusted { self.checkpoint(&reader, session_id).await? } else { 0 };
            acknowledged.insert(reader, seq);
        }
        // What was read may not be durable before this; what is moved later does not count.
        self.index.flush().await?;
        let safe_up_to = acknowledged.values().min().copied();
        Ok(safe_up_to.map(|safe_up_to| Watermark { safe_up_to, acknowledged }))
    }

    /// Makes sure that no reader ever goes back behind a watermark, also where the index is lost. Before this has
    /// answered, nothing may be dropped.
    pub(crate) async fn rely(&self, session_id: SessionId, watermark: Watermark) -> Result<(), StoreError> {
        self.store.rely(session_id, watermark.acknowledged).await
    }
}

/// Whoever waits looks again.
fn tell(changes: &watch::Sender<u64>) {
    changes.send_modify(|version| *version = version.wrapping_add(1));
}

/// Readers of meerkat's own are nobody else's.
fn check_own(reader: &str) -> Result<(), SessionError> {
    if RESERVED.contains(&reader) {
        return Err(SessionError::invalid("reader", "this name belongs to a reader of meerkat's own; use another"));
    }
    Ok(())
}
