//! Memory at work: searches for requests and for the tool, and the consumer that hands messages to it (`reader`).
//!
//! No turn waits for it.

mod reader;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    driver::{Control, Handle},
    readers::Readers,
};
use crate::{
    SessionError,
    clock::Clock,
    ids::{Seq, SessionId},
    memory::{SharedMemory, intake::Wanted},
    options::EngineOptions,
    service::{ForgetMemory, Reindexed, SearchHit, SearchMemory},
    store::EventStore,
};

/// Name of the reader.
pub(crate) const READER: &str = "memory";

/// Most time to catch up when the service ends.
const END_MAX: Duration = Duration::from_secs(2);
/// Most time that a session which leaves, and a journal's compaction, wait until earlier messages are taken in.
const CATCH_UP_MAX: Duration = Duration::from_secs(2);
/// Most time that a caller waits which has to be sure of it.
const SURE_WAIT_MAX: Duration = Duration::from_secs(30);

/// Memory of a service.
pub(crate) struct Memory {
    store: SharedMemory,
    events: Arc<dyn EventStore>,
    pub(crate) control: Arc<Control>,
    wanted: Wanted,
    /// Most time that a search waits until earlier messages are taken in.
    search_wait_max: Duration,
    /// True if sessions outlive the process: a missing one was deleted, and is forgotten.
    is_stored: bool,
    /// Held while sessions are read and taken in, so that none is taken in after its deletion.
    taking_in: tokio::sync::Mutex<()>,
    /// Place up to which everything is forgotten that nodes were asked to forget. Held while more is.
    forgotten: tokio::sync::Mutex<u64>,
    /// Held while the index is rebuilt.
    reindexing: tokio::sync::Mutex<()>,
    /// True if the reader had a reason to begin.
    is_begun: AtomicBool,
    /// True until the store is notified that it has everything again.
    is_lost: AtomicBool,
}

/// Memory as its service holds it.
pub(crate) type MemoryHandle = Handle<Memory>;

impl MemoryHandle {
    /// Makes the memory over a store.
    pub(crate) fn over(
        store: SharedMemory,
        events: Arc<dyn EventStore>,
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
        options: &EngineOptions,
        is_stored: bool,
    ) -> Self {
        let control = Control::new(READER, false, readers, clock);
        let memory = Memory {
            store,
            events,
            control: control.clone(),
            wanted: if options.memory.index_turns { Wanted::Turns } else { Wanted::Discarded },
            search_wait_max: Duration::from_millis(options.limits.wait_ms),
            is_stored,
            taking_in: tokio::sync::Mutex::default(),
            forgotten: tokio::sync::Mutex::default(),
            reindexing: tokio::sync::Mutex::default(),
            is_begun: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
        };
        Self::new(memory, &control)
    }

    /// Waits until it has caught up: a short time if the next start can do the rest.
    pub(crate) async fn end(&self) {
        let limit = if self.is_stored { END_MAX } else { END_MAX + SURE_WAIT_MAX };
        if !self.control.end(limit, SURE_WAIT_MAX).await && !self.is_stored {
            tracing::warn!("the last messages are not remembered: memory did not take them in");
        }
        if self.is_begun.load(Ordering::Acquire) {
            self.store.close().await;
        }
    }
}

impl Memory {
    /// Returns true if a session may not be taken in up to `seq`.
    pub(crate) fn is_behind(&self, session_id: SessionId, seq: Seq) -> bool {
        let mut behind = HashMap::from([(session_id, seq)]);
        self.control.readers.retain_behind(READER, &mut behind).is_ok() && !behind.is_empty()
    }

    /// Returns the seq up to which a session is taken in.
    pub(crate) async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError> {
        self.store.taken_in(session_id).await
    }

    /// Forgets a deleted session; nothing of it is taken in from now on.
    pub(crate) async fn forget_session(&self, session_id: SessionId) -> Result<(), SessionError> {
        let _taking_in = self.taking_in.lock().await;
        if self.is_stored {
            self.store.gone(session_id).await
        } else {
            Ok(self.control.readers.drop_row(session_id).await?)
        }
    }

    /// Waits a short time until what is durable is taken in: before a session in memory leaves, or a journal is
    /// compacted.
    pub(crate) async fn catch_up(&self) {
        self.look_for_loss().await;
        if !self.control.has_caught_up(CATCH_UP_MAX).await && !self.is_stored {
            tracing::warn!("a session leaves, and memory has not taken in all of its messages");
        }
    }

    /// Begins with every session again if the store was set aside while it was used: its checkpoints do not hold then,
    /// and nothing that they cover may be dropped.
    async fn look_for_loss(&self) {
        if !self.is_begun.load(Ordering::Acquire) || self.is_lost.load(Ordering::Acquire) {
            return;
        }
        let again = async {
            if self.store.needs_rebuild().await? {
                self.control.readers.trust(READER, true).await?;
                self.is_lost.store(true, Ordering::Release);
                self.control.readers.look_again();
            }
            Ok::<_, SessionError>(())
        };
        if let Err(error) = again.await {
            tracing::debug!(%error, "it is not known if memory has what it had");
        }
    }

    async fn catch_up_surely(&self) -> Result<(), SessionError> {
        self.look_for_loss().await;
        if self.control.has_caught_up(SURE_WAIT_MAX).await {
            return self.forget_with_others().await;
        }
        let why = "it has not taken in yet all that was said; try again later".to_owned();
        Err(SessionError::MemoryUnavailable { why })
    }

    /// Searches for a checked request, best hits first.
    pub(crate) async fn search(&self, request: SearchMemory) -> Result<Vec<SearchHit>, SessionError> {
        self.look_for_loss().await;
        self.control.has_caught_up(self.search_wait_max).await;
        self.forget_with_others().await?;
        Ok(self.store.search(request).await?.items)
    }

    /// Returns the message beside each hit.
    pub(crate) async fn beside(&self, hits: &[SearchHit]) -> Result<Vec<Option<String>>, SessionError> {
        self.store.beside(hits).await
    }

    /// Forgets for a checked request, at every node; returns the number of texts once no search finds them.
    pub(crate) async fn forget(&self, request: ForgetMemory) -> Result<u64, SessionError> {
        self.catch_up_surely().await?;
        let decided = self.store.to_forget(request).await?;
        // Otherwise the sweep could forget it first, and the answer would count nothing.
        let _forgetting = self.forgotten.lock().await;
        self.events.record_forgotten(&decided).await?;
        self.store.forget(decided).await
    }

    /// Waits until what was forgotten has left every file of memory here.
    pub(crate) async fn erased(&self) -> Result<(), SessionError> {
        self.store.erased().await
    }

    /// Forgets here what any node was asked to forget until now.
    pub(crate) async fn forget_with_others(&self) -> Result<(), SessionError> {
        if self.events.node().is_none() {
            return Ok(());
        }
        let known = *self.forgotten.lock().await;
        // Those who ask at the same time wait for the database beside each other, not in a line.
        if self.events.forgotten(known).await?.is_empty() {
            return Ok(());
        }
        let mut place = self.forgotten.lock().await;
        loop {
            let (places, decided): (Vec<u64>, _) = self.events.forgotten(*place).await?.into_iter().unzip();
            let Some(last) = places.last() else { return Ok(()) };
            self.store.forget(decided).await?;
            *place = *last;
        }
    }

    /// Lets the other nodes forget what only this one knows to be forgotten: its memory had a store of its own before,
    /// or an older version was asked.
    async fn tell_others(&self) -> Result<(), SessionError> {
        if self.events.node().is_some() {
            self.events.record_forgotten(&self.store.forgotten().await?).await?;
        }
        Ok(())
    }

    pub(crate) async fn reindex(&self) -> Result<Reindexed, SessionError> {
        let _reindexing = self.reindexing.lock().await;
        self.catch_up_surely().await?;
        let done = self
            .store
            .reindex(&|done, of| self.control.remaining.store(of.saturating_sub(done), Ordering::Relaxed))
            .await;
        self.control.remaining.store(0, Ordering::Relaxed);
        done
    }
}
