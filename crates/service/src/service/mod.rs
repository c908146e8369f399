//! [`SessionService`]: the contract that every surface calls and every runtime keeps.
//!
//! An operation whose capability is absent answers with that capability's code, before it looks at anything else.

mod answers;
mod operators;
mod requests;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

pub use answers::*;
pub use operators::*;
pub use requests::*;
pub(crate) use requests::{object, object_or_null};

use crate::{SessionError, capability::Capabilities, ids::SessionId, runtime::follow::Follower};

/// Everything that can be asked of meerkat, in process.
#[async_trait]
pub trait SessionService: Send + Sync {
    /// What this service can do.
    fn capabilities(&self) -> Capabilities;

    /// Waits until the service has settled what a former process left behind.
    async fn ready(&self) -> Result<(), SessionError> {
        Ok(())
    }

    /// Whether [`Self::ready`] would answer at once.
    ///
    /// # Errors
    /// Why no new work is taken.
    async fn check_ready(&self) -> Result<bool, SessionError> {
        Ok(true)
    }

    /// Makes a session.
    async fn create_session(&self, request: CreateSession) -> Result<SessionCreated, SessionError>;

    /// Accepts a turn: where it stands at once, its result when it has ended.
    async fn begin_turn(&self, request: StartTurn) -> Result<BegunTurn, SessionError>;

    /// Runs a turn and answers when it has ended. A turn that has started answers with its result, however it ends.
    async fn start_turn(&self, request: StartTurn) -> Result<TurnResult, SessionError> {
        self.begin_turn(request).await?.result.await
    }

    /// Accepts a turn and answers at once, when its input is recorded.
    async fn accept_turn(&self, request: StartTurn) -> Result<TurnAccepted, SessionError> {
        Ok(self.begin_turn(request).await?.accepted)
    }

    /// Ends the running turn; answers with the event that ended it.
    async fn interrupt(&self, request: InterruptTurn) -> Result<Changed, SessionError>;

    /// Answers a call that asks for approval. The same decision twice is one.
    async fn decide_approval(&self, request: DecideApproval) -> Result<Changed, SessionError>;

    /// The turns that wait, in order.
    async fn queue(&self, session_id: &SessionId) -> Result<Page<QueueItem>, SessionError>;

    /// Takes a turn out of the queue.
    async fn cancel_queued(&self, request: CancelQueued) -> Result<Changed, SessionError>;

    /// A page of events after a cursor, waiting for the first one if asked to.
    async fn events(&self, request: ReadEvents) -> Result<EventPage, SessionError>;

    /// Replays from a cursor and then follows, without a gap or a duplicate.
    async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError>;

    /// The same for whoever waits for a turn, and is told when the store fails under it. Who only watches goes on.
    async fn follow_turn(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError>;

    /// Sets a system reminder; the newest of a kind wins.
    async fn remind(&self, request: Remind) -> Result<Changed, SessionError>;

    /// The reminders in the order in which they were set.
    async fn reminders(&self, session_id: &SessionId) -> Result<Page<Reminder>, SessionError>;

    /// Removes a reminder.
    async fn clear_reminder(&self, request: ClearReminder) -> Result<Changed, SessionError>;

    /// Pins a fact.
    async fn pin(&self, request: PinFact) -> Result<Changed, SessionError>;

    /// The pins in the order in which they were set.
    async fn pins(&self, session_id: &SessionId) -> Result<Page<Pin>, SessionError>;

    /// Removes a pin.
    async fn unpin(&self, request: Unpin) -> Result<Changed, SessionError>;

    /// Ends the service: takes no new work, and waits for running turns up to `drain_ms` before it interrupts them.
    async fn shut_down(&self, drain_ms: u64);

    /// Like [`Self::resume`], as [`Self::begin_turn`] is like [`Self::start_turn`].
    async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<BegunTurn, SessionError>;

    /// Goes on with a session that a former process left behind.
    async fn resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnResult, SessionError> {
        self.begin_resume(session_id, request).await?.result.await
    }

    /// Shows a session.
    async fn read(&self, session_id: &SessionId) -> Result<SessionView, SessionError>;

    /// Pages through what was said.
    async fn history(&self, request: ReadHistory) -> Result<Page<HistoryItem>, SessionError>;

    /// Reads a body that stands in a blob.
    async fn blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError>;

    /// The same for a caller that waits for a turn: its answer is the caller's own, also if there is no store.
    async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError>;

    /// Lists sessions, what changed last first. A cursor is a place in that order: a session that changes while somebody
    /// pages comes first in the list when it is read again, and of all others none is skipped or shown twice.
    async fn list(&self, query: SessionQuery) -> Result<Page<SessionSummary>, SessionError>;

    /// Changes title and labels.
    async fn update(&self, request: UpdateSession) -> Result<Changed, SessionError>;

    /// Archives a session.
    async fn archive(&self, session_id: &SessionId) -> Result<Changed, SessionError>;

    /// Brings an archived session back.
    async fn unarchive(&self, session_id: &SessionId) -> Result<Changed, SessionError>;

    /// Deletes a session for good.
    async fn delete(&self, request: DeleteSession) -> Result<Changed, SessionError>;

    /// Makes a new session from the beginning of one.
    async fn fork(&self, request: ForkSession) -> Result<Changed, SessionError>;

    /// Registers a reader of all journals; where it is registered already, nothing changes.
    async fn create_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError>;

    /// Records that a reader is not done with. They come again until they are acknowledged.
    async fn fetch_reader(&self, request: FetchReader) -> Result<RecordPage, SessionError>;

    /// Says up to where a reader is done with a session.
    async fn acknowledge_reader(&self, request: AcknowledgeReader) -> Result<Checkpoint, SessionError>;

    /// Waits until a reader is done with a record; answers with how far it has come by then.
    async fn wait_reader(&self, request: WaitReader) -> Result<Checkpoint, SessionError>;

    /// Forgets a reader; answers with it as it was.
    async fn delete_reader(&self, request: NamedReader) -> Result<ReaderView, SessionError>;

    /// The readers, with how far each is behind.
    async fn list_readers(&self) -> Result<Page<ReaderView>, SessionError>;

    /// Drops records of a journal that nothing depends on any more.
    async fn compact_journal(&self, request: CompactJournal) -> Result<JournalCompactionReport, SessionError>;

    /// Makes the projection anew.
    async fn rebuild_projection(&self) -> Result<ProjectionRebuilt, SessionError>;

    /// Deletes the sessions that are too old or too many.
    async fn retain(&self, request: Retain) -> Result<Retained, SessionError>;

    /// A page of a session's bundle.
    async fn export_session(&self, request: ExportSession) -> Result<BundlePage, SessionError>;

    /// Takes a piece of a bundle in; with the last one its sessions are made.
    async fn import_bundle(&self, request: ImportBundle) -> Result<Imported, SessionError>;

    /// Compacts the live context now.
    async fn compact(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError>;

    /// The same, until `cancel` is: then it ends without a summary. Whatever else runs or waits is not touched, and a
    /// compaction whose receipt is recorded stands.
    async fn compact_until(
        &self,
        request: CompactSession,
        cancel: CancellationToken,
    ) -> Result<CompactionReceipt, SessionError> {
        let _ = cancel;
        self.compact(request).await
    }

    /// Shows what a compaction would do; calls no model.
    async fn preview_compaction(&self, request: CompactSession) -> Result<CompactionReceipt, SessionError>;

    /// Takes the latest compaction back.
    async fn undo_compaction(&self, request: UndoCompaction) -> Result<Changed, SessionError>;

    /// Searches what was said.
    async fn search_memory(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError>;

    /// Makes memory forget.
    async fn forget_memory(&self, request: ForgetMemory) -> Result<Forgotten, SessionError>;

    /// Passages that building the memory's index anew has yet to come to, where that is known here.
    async fn memory_to_index(&self) -> Option<u64> {
        None
    }

    /// Builds the memory's index anew.
    async fn reindex_memory(&self) -> Result<Reindexed, SessionError>;
}
