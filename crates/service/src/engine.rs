//! The engine of one service: the ports of its actors, and the copies of their sessions: lists, readers, files for
//! people, memory. Copies may be deleted and come back from the journals; no turn waits for them.

use std::{
    ops::Deref,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use async_trait::async_trait;
use tokio_util::task::TaskTracker;

use crate::{
    agent::{Observer, Ports, shared::Shared},
    consumers::{changes::Changes, memory::MemoryHandle, projector::ProjectorHandle, readers::Readers},
    follow::live::LiveHub,
    ids::{Seq, SessionId},
    service::SessionSummary,
    store::{DirectoryOwner, Frame, JournalPruner, Lease, ReadLimit, SessionIndex, StoreError},
    upkeep::journal_compaction::Schedule,
};

/// Newest events of a deleted session to keep for followers that have not read them yet.
const LAST_KEPT: usize = 64;
/// Most bytes of them.
const LAST_BYTES_KEPT: usize = 1024 * 1024;

/// Engine of a service.
pub(crate) struct Engine {
    /// Shared by its actors.
    pub(crate) ports: Arc<Ports>,
    pub(crate) derived: Arc<Derived>,
    /// Data directory that holds memory alone, if there is one.
    #[expect(dead_code, reason = "it is held, and released with the service")]
    pub(crate) owner: Option<DirectoryOwner>,
}

impl Deref for Engine {
    type Target = Ports;

    fn deref(&self) -> &Ports {
        &self.ports
    }
}

impl Engine {
    /// Deletes a session and all copies of it; followers by `live` are notified when that is durable.
    pub(crate) async fn delete(&self, session_id: SessionId, live: Option<&LiveHub>) -> Result<(), StoreError> {
        self.derived.delete(&self.ports, session_id, live).await
    }
}

/// Copies of the journals' content.
pub(crate) struct Derived {
    pub(crate) index: Arc<dyn SessionIndex>,
    pub(crate) readers: Arc<Readers>,
    /// What has changed in lists, for those who follow them.
    pub(crate) changes: Changes,
    pub(crate) pruner: Option<Arc<dyn JournalPruner>>,
    /// Sessions whose journals are due for compaction.
    pub(crate) schedule: Schedule,
    /// Keeps the sessions' files, if there are any.
    pub(crate) projector: Option<ProjectorHandle>,
    /// Takes in the messages, if there is a memory.
    pub(crate) memory: Option<MemoryHandle>,
    /// Tasks of sessions that left memory and whose rows are not durable yet.
    pub(crate) settling: TaskTracker,
    /// Directory of the sessions, if they are not in a database or in memory.
    pub(crate) data_dir: Option<PathBuf>,
    /// Held by the one examination of the directory that runs.
    pub(crate) examining: Arc<tokio::sync::Mutex<()>>,
}

impl Derived {
    pub(crate) fn new(
        index: Arc<dyn SessionIndex>,
        readers: Arc<Readers>,
        pruner: Option<Arc<dyn JournalPruner>>,
    ) -> Self {
        let (changes, schedule, settling) = (Changes::default(), Schedule::default(), TaskTracker::new());
        let (projector, memory, data_dir, examining) = (None, None, None, Arc::default());
        Self { index, readers, changes, pruner, schedule, projector, memory, settling, data_dir, examining }
    }

    /// Puts a session's summary into lists and notifies readers: the session has changed, or was found like this. Its
    /// records are durable.
    pub(crate) async fn publish(&self, summary: Arc<SessionSummary>, has_changed: bool) -> Result<(), StoreError> {
        let (session_id, last_seq) = (summary.session_id, summary.last_seq);
        let row = SessionSummary::clone(&summary);
        let put = if has_changed { self.index.put(row).await } else { self.index.put_found(row).await };
        self.changes.listed(summary);
        self.readers.touched(session_id, last_seq);
        put
    }

    /// Puts a session into lists as its records up to `durable` show it.
    pub(crate) async fn list(&self, shared: &Shared, durable: Seq) -> Result<(), StoreError> {
        let mut listed = shared.listed.lock().await;
        let Some(view) = shared.view(durable).filter(|view| view.summary.last_seq != *listed) else { return Ok(()) };
        self.publish(view.summary.clone(), *listed != 0).await?;
        *listed = view.summary.last_seq;
        // A deletion may have removed the row just before.
        if shared.is_deleted.load(Ordering::Acquire) { self.unlist(shared.session_id).await } else { Ok(()) }
    }

    /// Notes a change in lists that another node may have made; `None` is a deletion.
    pub(crate) fn heard(&self, session_id: SessionId, summary: Option<SessionSummary>) {
        match summary {
            Some(summary) => {
                let last_seq = summary.last_seq;
                if self.changes.lacks(session_id, Some(last_seq)) {
                    self.changes.listed(Arc::new(summary));
                }
                self.readers.touched(session_id, last_seq);
            }
            None if self.changes.lacks(session_id, None) => {
                self.changes.deleted(session_id);
                self.readers.delete_session(session_id);
            }
            None => {}
        }
    }

    /// Removes a session from lists.
    pub(crate) async fn unlist(&self, session_id: SessionId) -> Result<(), StoreError> {
        let removed = self.index.remove(session_id).await;
        self.changes.deleted(session_id);
        removed
    }

    /// Like [`Self::list`], for lists that may have an older state since.
    pub(crate) async fn list_again(&self, shared: &Shared, durable: Seq) -> Result<(), StoreError> {
        *shared.listed.lock().await = 0;
        self.list(shared, durable).await
    }
}

#[async_trait]
impl Observer for Derived {
    async fn published(&self, shared: &Shared, durable: Seq) {
        if let Err(error) = self.list(shared, durable).await {
            tracing::error!(%error, "could not update the session index; the next start will");
        }
    }

    fn turn_ended(&self, ports: &Ports, session_id: SessionId) {
        if self.pruner.is_some() {
            self.schedule.turn_ended(session_id, &ports.options.journal);
        }
    }

    fn owes(&self, session_id: SessionId, last_seq: Seq) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_behind(session_id, last_seq))
    }

    fn rests(&self, ports: &Ports, lease: Lease) {
        let (index, events) = (self.index.clone(), ports.events.clone());
        self.settling.spawn(async move {
            let settled = match index.committed().await {
                Ok(()) => events.release(lease).await,
                Err(error) => Err(error),
            };
            if let Err(error) = settled {
                tracing::warn!(session_id = %lease.session_id, %error, "could not release the session's lease; it will be checked again at the next start");
            }
        });
    }

    async fn delete(&self, ports: &Ports, session_id: SessionId, live: Option<&LiveHub>) -> Result<(), StoreError> {
        if let Some(memory) = self.memory.as_ref().filter(|_| !ports.is_stored()) {
            memory.catch_up().await;
        }
        if let Some(live) = live {
            live.begin_deletion(last_frames(ports, session_id, live).await);
        }
        let deleted = ports.events.delete(session_id).await;
        live.inspect(|live| live.end_deletion(deleted.is_ok()));
        deleted?;
        ports.blobs.forget(session_id).await;
        let forgotten = match &self.memory {
            // Its file may be opened only now: a failure that passes costs nothing.
            Some(memory) => match memory.forget_session(session_id).await {
                Err(_) => memory.forget_session(session_id).await,
                forgotten => forgotten,
            },
            None => Ok(()),
        };
        if let Err(error) = &forgotten {
            tracing::warn!(%session_id, %error, "deleting the session from memory failed; it stays listed until a retry succeeds");
        }
        // Otherwise the row stays: by it the next start finds the session, and deletes it again.
        if forgotten.is_ok() {
            self.unlist(session_id).await?;
        }
        if !ports.is_stored() {
            // The session left memory and was not deleted: readers keep what they have of it.
            return Ok(());
        }
        self.readers.delete_session(session_id);
        if let Err(error) = ports.snapshots.delete(&session_id).await {
            tracing::warn!(%session_id, %error, "the snapshot of a deleted session stays until the index is rebuilt");
        }
        Ok(())
    }
}

/// Reads the newest durable events of a session before its deletion, for followers that have not read them yet.
async fn last_frames(ports: &Ports, session_id: SessionId, live: &LiveHub) -> Vec<Frame> {
    if !live.is_followed() {
        return Vec::new();
    }
    let tail = ports.durable(session_id).await.unwrap_or(0);
    let (mut frames, mut after) = (Vec::<Frame>::new(), tail.saturating_sub(LAST_KEPT as u64));
    while let Ok(Some(page)) = ports.events.read(session_id, after, ReadLimit::frames(LAST_KEPT)).await {
        let Some(last) = page.frames.last() else { break };
        after = last.seq;
        frames.extend(page.frames);
        let mut bytes = 0;
        let newest = frames.iter().rev().take_while(|frame| {
            bytes += frame.line.len();
            bytes <= LAST_BYTES_KEPT
        });
        drop(frames.drain(..frames.len() - newest.count()));
    }
    frames
}
