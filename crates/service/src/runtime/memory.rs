//! Memory at work: what searches it for requests and for the tool, and (in `reader`) what hands to it what was said.
//!
//! It works beside the turns, and none waits for it.

mod reader;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    SessionError,
    clock::Clock,
    consumers::readers::Readers,
    ids::{Seq, SessionId},
    memory::{SharedMemory, intake::Wanted},
    service::{ForgetMemory, Forgotten, Reindexed, SearchHit, SearchMemory},
};

/// The reader's name.
pub(crate) const READER: &str = "memory";

/// How long it may go on when the service ends.
const END_MAX: Duration = Duration::from_secs(2);
/// How long a search waits until what was said before it is taken in.
const SEARCH_WAIT_MAX: Duration = Duration::from_secs(2);
/// The same for whoever has to be sure of it.
const SURE_WAIT_MAX: Duration = Duration::from_secs(30);
/// How many times more hits than wanted are looked at, because a fork has said what its parent had.
const HITS_LOOKED_AT: usize = 8;

/// Asks to be told whether everything is taken in.
type Ask = oneshot::Sender<bool>;

/// The memory of a service, and what its reader is told.
pub(crate) struct Memory {
    store: SharedMemory,
    readers: Arc<Readers>,
    clock: Arc<dyn Clock>,
    wanted: Wanted,
    /// Whether sessions outlive the process: one that is gone was deleted, and is forgotten.
    is_stored: bool,
    /// Held while sessions are read and taken in, so that none is whose deletion memory was told of.
    taking_in: tokio::sync::Mutex<()>,
    asks: mpsc::UnboundedSender<Ask>,
    /// Where they arrive, until the reader begins.
    asked: Mutex<Option<mpsc::UnboundedReceiver<Ask>>>,
    /// Held while the index is made anew.
    reindexing: tokio::sync::Mutex<()>,
    /// Passages that a rebuild of the index has yet to come to.
    remaining: AtomicU64,
    /// Whether the reader had a reason to begin.
    is_begun: AtomicBool,
    /// The reader ends when it has caught up.
    ending: CancellationToken,
    /// It ends at once.
    over: CancellationToken,
    task: TaskTracker,
}

/// The memory as its service holds it: who drops the service ends its reader.
pub(crate) struct MemoryHandle(Arc<Memory>);

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

impl MemoryHandle {
    /// A memory over a store. It takes in once it is told of a service.
    pub(crate) fn new(
        store: SharedMemory,
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
        index_turns: bool,
        is_stored: bool,
    ) -> Self {
        let (asks, asked) = mpsc::unbounded_channel();
        Self(Arc::new(Memory {
            store,
            readers,
            clock,
            wanted: if index_turns { Wanted::Turns } else { Wanted::Discarded },
            is_stored,
            taking_in: tokio::sync::Mutex::default(),
            asks,
            asked: Mutex::new(Some(asked)),
            reindexing: tokio::sync::Mutex::default(),
            remaining: AtomicU64::new(0),
            is_begun: AtomicBool::new(false),
            ending: CancellationToken::new(),
            over: CancellationToken::new(),
            task: TaskTracker::new(),
        }))
    }

    pub(crate) const fn memory(&self) -> &Arc<Memory> {
        &self.0
    }

    /// From now on it is told of what changes and what goes.
    pub(crate) fn register(&self) {
        self.0.readers.add_untrusted(READER);
    }

    /// Waits until it has caught up, but not for long where the next start does the rest.
    pub(crate) async fn end(&self) {
        let Memory { ending, over, task, clock, is_stored, .. } = self.0.as_ref();
        ending.cancel();
        task.close();
        let is_done = tokio::select! {
            biased;
            () = task.wait() => true,
            () = clock.sleep(END_MAX) => false,
        };
        if !is_done && *is_stored {
            over.cancel();
        }
        // What no journal keeps is taken in to the last.
        let taken_in = async {
            tokio::select! {
                biased;
                () = task.wait() => return,
                () = clock.sleep(SURE_WAIT_MAX) => over.cancel(),
            }
            if !is_stored {
                tracing::warn!("what was said last is not remembered: memory did not take it in in time");
            }
            task.wait().await;
        };
        taken_in.await;
        if self.0.is_begun.load(Ordering::Acquire) {
            self.0.store.close().await;
        }
    }
}

impl Memory {
    /// Whether a session may not be taken in up to `seq`.
    pub(crate) fn is_behind(&self, session_id: SessionId, seq: Seq) -> bool {
        let mut behind = HashMap::from([(session_id, seq)]);
        self.readers.retain_behind(READER, &mut behind).is_ok() && !behind.is_empty()
    }

    /// Up to where a session is taken in.
    pub(crate) async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError> {
        self.store.taken_in(session_id).await
    }

    /// Passages that a rebuild of the index has yet to come to.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining.load(Ordering::Relaxed)
    }

    /// A session is deleted, and nothing of it is taken in from now on.
    pub(crate) async fn gone(&self, session_id: SessionId) -> Result<(), SessionError> {
        let _taking_in = self.taking_in.lock().await;
        if self.is_stored { self.store.gone(session_id).await } else { Ok(self.readers.left(session_id).await?) }
    }

    /// Waits for a while until what is durable is taken in: before a session in memory leaves, or a journal is compacted.
    pub(crate) async fn catch_up(&self) {
        if !self.is_caught_up(SEARCH_WAIT_MAX).await && !self.is_stored {
            tracing::warn!("a session leaves, and memory has not taken in all that was said");
        }
    }

    /// Waits until everything is taken in that was durable before; says whether it is.
    async fn is_caught_up(&self, limit: Duration) -> bool {
        let (waiting, done) = oneshot::channel();
        if self.asks.send(waiting).is_err() {
            return false;
        }
        tokio::select! {
            biased;
            done = done => done.unwrap_or(false),
            () = self.clock.sleep(limit) => false,
        }
    }

    async fn catch_up_surely(&self) -> Result<(), SessionError> {
        if self.is_caught_up(SURE_WAIT_MAX).await {
            return Ok(());
        }
        let why = "it has not taken in yet all that was said; try again later".to_owned();
        Err(SessionError::MemoryUnavailable { why })
    }

    /// The best hits of a request that was checked, the best first. What a fork has of its parent comes once.
    pub(crate) async fn search(&self, mut request: SearchMemory) -> Result<Vec<SearchHit>, SessionError> {
        self.is_caught_up(SEARCH_WAIT_MAX).await;
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
        let done =
            self.store.reindex(&|done, of| self.remaining.store(of.saturating_sub(done), Ordering::Relaxed)).await;
        self.remaining.store(0, Ordering::Relaxed);
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
