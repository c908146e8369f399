//! Readers: named consumers of all journals, each with a durable checkpoint per session. Records come again until they
//! are acknowledged; journals may be pruned up to the least checkpoint.
//!
//! No turn waits for this: without readers it costs a look at one number, with some a note that the session has more.
//! Checkpoints are copies in the index; what must outlive it is in the store of readers.

mod feed;
mod fetch;

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
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
    store::{BUILT_IN_READERS, EventStore, ReaderStore, Registration, SessionIndex, StoreError},
};
use feed::{Deletion, Feed};

/// Most readers that may be registered, besides the built-in ones.
const READERS_MAX: usize = 64;
/// Mark between a built-in reader and its node.
const AT: char = '@';
/// Time between two looks for what other nodes did with readers.
const LOOK: Duration = Duration::from_millis(200);

/// Readers of one service.
pub(crate) struct Readers {
    store: Arc<dyn ReaderStore>,
    events: Arc<dyn EventStore>,
    index: Arc<dyn SessionIndex>,
    clock: Arc<dyn Clock>,
    /// Number of readers; while it is 0, a change of a session costs nothing else.
    count: AtomicUsize,
    known: Mutex<BTreeMap<String, Known>>,
    /// Changes when a session has more records, or is deleted.
    touched: watch::Sender<u64>,
    /// Changes when a checkpoint moves, or a session or reader is deleted.
    moved: watch::Sender<u64>,
    /// Held while a checkpoint is moved, so that it never goes back.
    moving: tokio::sync::Mutex<()>,
    /// Read-locked by an acknowledgement until its end, write-locked while a reader is registered or deleted.
    registering: tokio::sync::RwLock<()>,
    /// Read-locked while journals are compacted, write-locked while a reader is registered or deleted.
    gate: tokio::sync::RwLock<()>,
    /// Held while a reader is scanned for.
    scanning: tokio::sync::Mutex<()>,
}

/// Registered or built-in reader.
struct Known {
    created_at: Timestamp,
    is_built_in: bool,
    feed: Feed,
    /// True if the feed has the sessions from before this process, or as many as it may have.
    is_scanned: bool,
    /// True if it has what its checkpoints say; until then nothing is pruned that it may want again.
    is_trusted: bool,
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

    /// Loads the registered readers. From then on changes are noted for them. In a store of several nodes the built-in
    /// ones are registered too, under the node's name, so that other nodes drop nothing that they have yet to read.
    pub(crate) async fn open(&self) -> Result<(), StoreError> {
        let mut gone = BTreeSet::new();
        for Registration { reader, created_at } in self.store.readers().await? {
            match reader.split_once(AT) {
                None => self.add(reader, created_at, false, true),
                Some((_, node)) if Some(node) == self.events.node() => drop(gone.insert(reader)),
                Some(_) => {}
            }
        }
        if self.events.node().is_some() {
            let built_in: Vec<(String, Timestamp)> = self
                .known()
                .iter()
                .filter(|(_, known)| known.is_built_in)
                .map(|(name, known)| (self.key(name).into_owned(), known.created_at))
                .collect();
            for (reader, created_at) in built_in {
                gone.remove(&reader);
                self.store.register(Registration { reader, created_at }).await?;
            }
        }
        for reader in gone {
            self.store.unregister(&reader).await?;
        }
        Ok(())
    }

    /// Returns a reader's name in the store: each node has built-in readers of its own.
    fn key<'a>(&self, reader: &'a str) -> Cow<'a, str> {
        match self.events.node().filter(|_| BUILT_IN_READERS.contains(&reader)) {
            Some(node) => format!("{reader}{AT}{node}").into(),
            None => reader.into(),
        }
    }

    /// Takes in what other nodes did with readers: who is registered, and how far each has come.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        if self.events.node().is_none() {
            return Ok(());
        }
        let _registering = self.registering.write().await;
        let stored = self.store.readers().await?;
        let stored: BTreeMap<String, Timestamp> = stored
            .into_iter()
            .map(|of| (of.reader, of.created_at))
            .filter(|(reader, _)| !reader.contains(AT))
            .collect();
        for (reader, created_at) in &stored {
            self.add(reader.clone(), *created_at, false, true);
        }
        let mut known = self.known();
        known.retain(|reader, known| known.is_built_in || stored.contains_key(reader));
        known.values_mut().filter(|known| !known.is_built_in).for_each(|known| known.feed.forget_checkpoints());
        self.count.store(known.len(), Ordering::Release);
        Ok(())
    }

    /// Adds a built-in reader, which is registered as long as this process lives. One that is not trusted has yet to
    /// find out if it has what its checkpoints say: see [`Self::trust`].
    pub(crate) fn add_built_in(&self, reader: &str, is_trusted: bool) {
        self.add(reader.to_owned(), self.clock.now(), true, is_trusted);
    }

    fn add(&self, reader: String, created_at: Timestamp, is_built_in: bool, is_trusted: bool) {
        let mut known = self.known();
        let feed = Feed::new(is_built_in);
        known.entry(reader).or_insert(Known { created_at, is_built_in, feed, is_scanned: false, is_trusted });
        self.count.store(known.len(), Ordering::Release);
    }

    /// Confirms that a built-in reader has what its checkpoints say; if what it had `is_lost`, it begins again with
    /// every session.
    pub(crate) async fn trust(&self, reader: &str, is_lost: bool) -> Result<(), SessionError> {
        // A scan meanwhile would go by the checkpoints that it had.
        let _scanning = self.scanning.lock().await;
        if is_lost {
            self.index.forget_reader(&self.key(reader)).await?;
            self.index.flush().await?;
        }
        self.with(reader, |known| {
            known.is_trusted = true;
            if is_lost {
                known.feed.forget_checkpoints();
                (known.is_scanned, known.feed.scanned_to) = (false, None);
            }
        })
    }

    /// Scans again for every reader: what changed since its scan was not noted.
    pub(crate) async fn scan_again(&self) {
        let _scanning = self.scanning.lock().await;
        for known in self.known().values_mut() {
            (known.is_scanned, known.feed.scanned_to) = (false, None);
        }
        notify(&self.touched);
    }

    /// Lists the sessions that a reader may be behind in now, with their last records.
    pub(crate) async fn behind(&self, reader: &str) -> Result<HashMap<SessionId, Seq>, SessionError> {
        self.scan(reader).await?;
        self.with(reader, |known| known.feed.behind())
    }

    /// Removes the sessions that the reader is done with by now, or rests in.
    pub(crate) fn retain_behind(
        &self,
        reader: &str,
        sessions: &mut HashMap<SessionId, Seq>,
    ) -> Result<(), SessionError> {
        self.with(reader, |known| sessions.retain(|session_id, seq| known.feed.is_behind(*session_id, *seq)))
    }

    /// Returns a channel that changes when a session has more records, or is deleted.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.touched.subscribe()
    }

    /// Returns a channel that changes when a reader is done with something.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Wakes the readers as if something had changed.
    pub(crate) fn look_again(&self) {
        notify(&self.touched);
    }

    /// Lists the deleted sessions that a built-in reader has yet to forget.
    pub(crate) fn deleted_of(&self, reader: &str) -> Result<Vec<Deletion>, SessionError> {
        self.with(reader, |known| known.feed.deletions())
    }

    /// Notes sessions that were deleted while this reader was not running.
    pub(crate) fn missed_deletions(&self, reader: &str, sessions: Vec<SessionId>) -> Result<(), SessionError> {
        self.with(reader, |known| sessions.into_iter().for_each(|session_id| known.feed.delete(session_id)))
    }

    /// Notes that a built-in reader has forgotten a deleted session.
    pub(crate) fn forgot(&self, reader: &str, deletion: Deletion) -> Result<(), SessionError> {
        self.with(reader, |known| known.feed.forgot(deletion))?;
        notify(&self.moved);
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads or changes a reader.
    fn with<T>(&self, reader: &str, look: impl FnOnce(&mut Known) -> T) -> Result<T, SessionError> {
        let mut known = self.known();
        known.get_mut(reader).map(look).ok_or_else(|| SessionError::ReaderNotFound(reader.to_owned()))
    }

    /// Notes that a session has durable records up to `last_seq`, and that its row says so.
    pub(crate) fn touched(&self, session_id: SessionId, last_seq: Seq) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        for known in self.known().values_mut() {
            known.feed.touched(session_id, last_seq);
        }
        notify(&self.touched);
    }

    /// Drops what is known of a deleted session. An import calls it too, before it makes a session under an old id.
    pub(crate) fn delete_session(&self, session_id: SessionId) {
        self.known().values_mut().for_each(|known| known.feed.delete(session_id));
        notify(&self.touched);
        notify(&self.moved);
    }

    /// Registers a reader; if it is registered already, nothing changes.
    pub(crate) async fn create(&self, reader: &str) -> Result<ReaderView, SessionError> {
        check_own(reader)?;
        self.refresh().await?;
        let gate = self.gate.write().await;
        let registering = self.registering.write().await;
        let (is_known, count) = {
            let known = self.known();
            (known.contains_key(reader), known.values().filter(|known| !known.is_built_in).count())
        };
        if !is_known && count >= READERS_MAX {
            return Err(SessionError::Limit { what: "readers", limit: READERS_MAX as u64 });
        }
        let created_at = self.clock.now();
        // One that is known, too: an attempt to delete it may have failed half-way.
        self.store.register(Registration { reader: reader.to_owned(), created_at }).await?;
        self.add(reader.to_owned(), created_at, false, true);
        // Counting what it is behind in may take a while, and nobody else waits for that.
        drop((registering, gate));
        self.view(reader).await
    }

    /// Deletes a reader; returns it as it was.
    pub(crate) async fn delete(&self, reader: &str) -> Result<ReaderView, SessionError> {
        check_own(reader)?;
        self.refresh().await?;
        let view = self.view(reader).await?;
        let _gate = self.gate.write().await;
        let _registering = self.registering.write().await;
        self.with(reader, |_| ())?;
        // First and durably, so that a later reader of this name begins at the beginning.
        self.index.forget_reader(&self.key(reader)).await?;
        self.index.flush().await?;
        self.store.unregister(reader).await?;
        {
            let mut known = self.known();
            known.remove(reader);
            self.count.store(known.len(), Ordering::Release);
        }
        notify(&self.touched);
        notify(&self.moved);
        Ok(view)
    }

    /// Lists the readers by name, with how far each is behind.
    pub(crate) async fn list(&self) -> Result<Page<ReaderView>, SessionError> {
        self.refresh().await?;
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
        let counted = match self.with(reader, |known| known.feed.is_cut)? {
            true => Some(self.count_behind(reader).await?),
            false => None,
        };
        self.with(reader, |known| {
            let (sessions_behind, records_behind) = counted.unwrap_or_else(|| known.feed.lag());
            let (reader, created_at, built_in) = (reader.to_owned(), known.created_at, known.is_built_in);
            ReaderView { reader, created_at, built_in, sessions_behind, records_behind }
        })
    }

    /// Acknowledges that a reader is done with a session up to a record. Durable when this returns.
    pub(crate) async fn acknowledge(&self, request: AcknowledgeReader) -> Result<Checkpoint, SessionError> {
        let AcknowledgeReader { reader, session_id, seq } = request;
        check_own(&reader)?;
        self.refresh().await?;
        let _acknowledging = self.registering.read().await;
        self.with(&reader, |_| ())?;
        let last_seq = self.events.tail(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
        check_cursor(self.events.as_ref(), session_id, seq, last_seq).await?;
        let seq = self.done(&reader, session_id, seq).await?;
        self.index.flush().await?;
        Ok(Checkpoint { reader, session_id, seq })
    }

    /// Moves a reader's checkpoint, never back; returns its place. It is durable when the index is next.
    pub(crate) async fn done(&self, reader: &str, session_id: SessionId, seq: Seq) -> Result<Seq, SessionError> {
        let _moving = self.moving.lock().await;
        let before = self.checkpoint(reader, session_id).await?;
        if seq > before {
            self.index.put_checkpoint(&self.key(reader), session_id, seq).await?;
            if self.events.tail(session_id).await?.is_none() {
                // The session was deleted meanwhile, and nothing is left of it.
                self.index.remove(session_id).await?;
                return Err(SessionError::NotFound(session_id));
            }
        }
        let seq = seq.max(before);
        self.with(reader, |known| known.feed.moved(session_id, seq))?;
        notify(&self.moved);
        Ok(seq)
    }

    /// Makes a built-in reader read a session from its beginning again. Durable when this returns.
    pub(crate) async fn restart(&self, reader: &str, session_id: SessionId) -> Result<(), StoreError> {
        let moving = self.moving.lock().await;
        self.index.reset_checkpoint(&self.key(reader), session_id).await?;
        let last_seq = self.events.tail(session_id).await?.ok_or(StoreError::NotFound(session_id))?;
        // The change counts from now on, even if it does not become durable.
        if let Some(known) = self.known().get_mut(reader) {
            known.feed.restart(session_id, last_seq);
        }
        notify(&self.touched);
        drop(moving);
        self.index.flush().await
    }

    /// Rests a session for a reader until it has records after `last_seq`.
    pub(crate) fn rest(&self, reader: &str, session_id: SessionId, last_seq: Seq) -> Result<(), SessionError> {
        self.with(reader, |known| known.feed.rest_until(session_id, last_seq))?;
        notify(&self.moved);
        Ok(())
    }

    /// Drops the row of a session that has left a service in memory.
    pub(crate) async fn drop_row(&self, session_id: SessionId) -> Result<(), StoreError> {
        self.index.remove(session_id).await
    }

    /// Waits until a reader is done with a record; returns how far it has come by then.
    pub(crate) async fn wait(&self, request: WaitReader) -> Result<Checkpoint, SessionError> {
        let WaitReader { reader, session_id, seq: wanted, wait_ms } = request;
        let mut moved = self.moved.subscribe();
        let mut deadline = self.clock.sleep(Duration::from_millis(wait_ms));
        let mut is_over = wait_ms == 0;
        loop {
            moved.borrow_and_update();
            self.refresh().await?;
            self.with(&reader, |_| ())?;
            if self.events.tail(session_id).await?.is_none() {
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
                () = self.clock.sleep(LOOK), if self.events.node().is_some() => {}
            }
        }
    }

    /// Returns how far a reader has come in a session.
    pub(crate) async fn checkpoint(&self, reader: &str, session_id: SessionId) -> Result<Seq, StoreError> {
        Ok(self.checkpoints(reader, &[session_id]).await?.first().copied().unwrap_or_default())
    }

    /// Returns how far a reader has come in each of these sessions. If the index was lost, it begins again.
    async fn checkpoints(&self, reader: &str, session_ids: &[SessionId]) -> Result<Vec<Seq>, StoreError> {
        self.index.checkpoints(&self.key(reader), session_ids).await
    }

    /// Keeps readers from being registered or deleted while the guard is held.
    pub(crate) async fn hold_gate(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// Returns the seq up to which every reader is durably done with a session, so that no record after it may be pruned;
    /// `None` if there is no reader.
    pub(crate) async fn watermark(&self, session_id: SessionId) -> Result<Option<Seq>, StoreError> {
        self.refresh().await?;
        let readers: Vec<_> = self.known().iter().map(|(reader, known)| (reader.clone(), known.is_trusted)).collect();
        let mut least = None;
        for (reader, is_trusted) in readers {
            let seq = if is_trusted { self.checkpoint(&reader, session_id).await? } else { 0 };
            least = Some(least.map_or(seq, |least: Seq| least.min(seq)));
        }
        // The checkpoints read above may not be durable before this; later moves do not count.
        self.index.flush().await?;
        Ok(least)
    }
}

/// Wakes everybody who waits on a channel.
fn notify(changes: &watch::Sender<u64>) {
    changes.send_modify(|version| *version = version.wrapping_add(1));
}

/// Refuses the names of built-in readers.
fn check_own(reader: &str) -> Result<(), SessionError> {
    if BUILT_IN_READERS.contains(&reader) {
        return Err(SessionError::invalid("reader", "this name belongs to a reader of meerkat's own; use another"));
    }
    Ok(())
}
