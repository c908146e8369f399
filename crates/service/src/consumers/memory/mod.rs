//! Memory at work: what searches it for requests and for the tool, and the consumer that hands to it what was
//! said (`reader`).
//!
//! It works beside the turns, and none waits for it.

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

/// The reader's name.
pub(crate) const READER: &str = "memory";

/// How long it may go on when the service ends.
const END_MAX: Duration = Duration::from_secs(2);
/// How long a search waits until what was said before it is taken in.
const SEARCH_WAIT_MAX: Duration = Duration::from_secs(2);
/// How long a caller waits who has to be sure of it.
const SURE_WAIT_MAX: Duration = Duration::from_secs(30);
/// How many times more hits than wanted are looked at, because a fork has said what its parent had.
const HITS_LOOKED_AT: usize = 8;

/// The memory of a service.
pub(crate) struct Memory {
    store: SharedMemory,
    events: Arc<dyn EventStore>,
    pub(crate) control: Arc<Control>,
    wanted: Wanted,
    /// If sessions outlive the process: one that is gone was deleted, and is forgotten.
    is_stored: bool,
    /// Held while sessions are read and taken in, so that none is whose deletion memory was told of.
    taking_in: tokio::sync::Mutex<()>,
    /// Held while the index is made again.
    reindexing: tokio::sync::Mutex<()>,
    /// If the reader had a reason to begin.
    is_begun: AtomicBool,
}

/// The memory as its service holds it.
pub(crate) type MemoryHandle = Handle<Memory>;

impl MemoryHandle {
    /// Makes the memory over a store, which takes in what the events say.
    pub(crate) fn over(
        store: SharedMemory,
        events: Arc<dyn EventStore>,
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
        (index_turns, is_stored): (bool, bool),
    ) -> Self {
        // What no journal keeps is tried again to the last.
        let control = Control::new((READER, false), readers, clock, !is_stored);
        let memory = Memory {
            store,
            events,
            control: control.clone(),
            wanted: if index_turns { Wanted::Turns } else { Wanted::Discarded },
            is_stored,
            taking_in: tokio::sync::Mutex::default(),
            reindexing: tokio::sync::Mutex::default(),
            is_begun: AtomicBool::new(false),
        };
        Self::new(memory, &control)
    }

    pub(crate) fn memory(&self) -> &Arc<Memory> {
        self
    }

    /// Begins to remember what is said in a service.
    pub(crate) fn begin(&self, host: FindHost) {
        self.control.drive(Run::new(Arc::clone(self)), host);
    }

    /// Waits until it has caught up, but not for long if the next start does the rest.
    pub(crate) async fn end(&self) {
        let limit = if self.is_stored { END_MAX } else { END_MAX + SURE_WAIT_MAX };
        if !self.control.end(limit, SURE_WAIT_MAX).await && !self.is_stored {
            tracing::warn!("what was said last is not remembered: memory did not take it in in time");
        }
        if self.is_begun.load(Ordering::Acquire) {
            self.store.close().await;
        }
    }
}

impl Memory {
    /// Whether a session may not be taken in up to `seq`.
    pub(crate) fn is_behind(&self, session_id: SessionId, seq: Seq) -> bool {
        let mut behind = HashMap::from([(session_id, seq)]);
        self.control.readers.retain_behind(READER, &mut behind).is_ok() && !behind.is_empty()
    }

    /// Up to where a session is taken in.
    pub(crate) async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError> {
        self.store.taken_in(session_id).await
    }

    /// A session is deleted, and nothing of it is taken in from now on.
    pub(crate) async fn gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        let _taking_in = self.taking_in.lock().await;
        if self.is_stored {
            self.store.gone(session_id).await
        } else {
            Ok(self.control.readers.left(session_id).await?)
        }
    }

    /// Waits for a while until what is durable is taken in: before a session in memory leaves, or a journal is compacted.
    pub(crate) async fn catch_up(&self) {
        if !self.control.has_caught_up(SEARCH_WAIT_MAX).await && !self.is_stored {
            tracing::warn!("a session leaves, and memory has not taken in all that was said");
        }
    }

    async fn catch_up_surely(&self) -> Result<(), SessionError> {
        if self.control.has_caught_up(SURE_WAIT_MAX).await {
            return Ok(());
        }
        let why = "it has not taken in yet all that was said; try again later".to_owned();
        Err(SessionError::MemoryUnavailable { why })
    }

    /// The best hits of a request that was checked, the best first. What a fork has of its parent comes once.
    pub(crate) async fn search(&self, mut request: SearchMemory) -> Result<Vec<SearchHit>, SessionError> {
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

/// Hits without those that say again, to the letter and the moment, what a better one does: a fork has its parent's
/// records. The older session stands for both.
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
