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

use reader::Run;

use super::{
    FindHost,
    driver::{Control, Handle},
    readers::Readers,
};
use crate::{
    SessionError,
    clock::Clock,
    ids::{Seq, SessionId},
    memory::{SharedMemory, intake::Wanted},
    service::{ForgetMemory, Forgotten, Reindexed, SearchHit, SearchMemory},
    store::EventStore,
};

/// Name of the reader.
pub(crate) const READER: &str = "memory";

/// Most time to catch up when the service ends.
const END_MAX: Duration = Duration::from_secs(2);
/// Most time that a search waits until earlier messages are taken in.
const SEARCH_WAIT_MAX: Duration = Duration::from_secs(2);
/// Most time that a caller waits which has to be sure of it.
const SURE_WAIT_MAX: Duration = Duration::from_secs(30);
/// Most hits to look at for each wanted one, because a fork repeats what its parent said.
const HITS_LOOKED_AT: usize = 8;

/// Memory of a service.
pub(crate) struct Memory {
    store: SharedMemory,
    events: Arc<dyn EventStore>,
    pub(crate) control: Arc<Control>,
    wanted: Wanted,
    /// True if sessions outlive the process: a missing one was deleted, and is forgotten.
    is_stored: bool,
    /// Held while sessions are read and taken in, so that none is taken in after its deletion.
    taking_in: tokio::sync::Mutex<()>,
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
        (index_turns, is_stored): (bool, bool),
    ) -> Self {
        let control = Control::new(READER, false, readers, clock);
        let memory = Memory {
            store,
            events,
            control: control.clone(),
            wanted: if index_turns { Wanted::Turns } else { Wanted::Discarded },
            is_stored,
            taking_in: tokio::sync::Mutex::default(),
            reindexing: tokio::sync::Mutex::default(),
            is_begun: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
        };
        Self::new(memory, &control)
    }

    /// Begins to take in the messages of a service.
    pub(crate) fn begin(&self, host: FindHost) {
        self.control.drive(Run::new(Arc::clone(self)), host);
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
        if !self.control.has_caught_up(SEARCH_WAIT_MAX).await && !self.is_stored {
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
            return Ok(());
        }
        let why = "it has not taken in yet all that was said; try again later".to_owned();
        Err(SessionError::MemoryUnavailable { why })
    }

    /// Searches for a checked request, best hits first. Messages that a fork has of its parent come once.
    pub(crate) async fn search(&self, mut request: SearchMemory) -> Result<Vec<SearchHit>, SessionError> {
        self.look_for_loss().await;
        self.control.has_caught_up(SEARCH_WAIT_MAX).await;
        let limit = request.limit.unwrap_or_default();
        let mut asked = limit;
        loop {
            request.limit = Some(asked);
            let found = self.store.search(request.clone()).await?.items;
            let is_all = found.len() < asked || asked >= limit.saturating_mul(HITS_LOOKED_AT);
            let mut hits = once_each(found);
            if is_all || hits.len() >= limit {
                hits.truncate(limit);
                return Ok(hits);
            }
            asked = limit.saturating_mul(HITS_LOOKED_AT);
        }
    }

    pub(crate) async fn forget(&self, request: ForgetMemory) -> Result<Forgotten, SessionError> {
        self.catch_up_surely().await?;
        self.store.forget(request).await
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

/// Drops hits whose message and time equal those of a better one: a fork has its parent's records. The older session is
/// named for both.
fn once_each(hits: Vec<SearchHit>) -> Vec<SearchHit> {
    let (mut known, mut once) = (HashMap::new(), Vec::<SearchHit>::with_capacity(hits.len()));
    for hit in hits {
        let key = (hit.from_seq, hit.to_seq, hit.time, hit.role.clone(), hit.text.clone());
        let at = *known.entry(key).or_insert(once.len());
        match once.get_mut(at) {
            Some(better) => better.session_id = better.session_id.min(hit.session_id),
            None => once.push(hit),
        }
    }
    once
}
