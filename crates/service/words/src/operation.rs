//! The table of operations. A row gives an operation's names, request, answer, capability, effect and own errors.
//!
//! `operations!` hands the rows to another macro: the enum here, the trait's methods (`service`), the path from
//! parameters to bytes and the schemas (`wire`), a client's methods. Each surface has its own table of spellings; a
//! test checks that none misses an operation.

use meerkat_errors::ErrorCode;
use serde::{Deserialize, de::IgnoredAny};

use crate::capability::Capability;

/// Makes the request of a row from the arguments of its method.
#[doc(hidden)]
#[macro_export]
macro_rules! request_of {
    ($request:ident) => {
        $request {}
    };
    (OneSession $session_id:ident) => {
        OneSession { session_id: *$session_id }
    };
    ($request:ident $argument:ident) => {
        $argument
    };
}

/// Hands the rows of the table to a macro: with `all` every row whole, with `plain` what calls an operation, of the
/// rows that take a request and give an answer.
///
/// The other rows, `apart`, differ between surfaces or begin a turn; each consumer writes them by hand.
#[doc(hidden)]
#[macro_export]
macro_rules! operations {
    (all $make:ident apart { $( $apart:tt )* } plain { $( $plain:tt )* }) => { $make! { $( $apart )* $( $plain )* } };
    (plain $make:ident apart $apart:tt plain { $(
        $( #[$doc:meta] )+
        $operation:ident $public:literal = $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty,
        $request:ident, $needs:ident, $effect:ident, $refusals:tt;
    )* }) => {
        $make! { $( { $( #[$doc] )+ } $operation $name($( $argument: $type ),*) -> $answer, $request; )* }
    };
    ($rows:ident $make:ident) => { $crate::operations! { $rows $make
        apart {
            /// Creates a session.
            CreateSession "session/create" = create_session(request: CreateSession) -> SessionCreated, CreateSession, None, Changes, [
                SessionCompactionDisabled, ModelNotConfigured, ToolNotFound, IdempotencyConflict, SessionLimit,
            ];
            /// Runs a turn on a session.
            StartTurn "turn/start" = start_turn(request: StartTurn) -> TurnAnswer, StartTurn, None, Changes, [
                SessionCompactionDisabled, ModelNotConfigured, SessionBusy, SessionLimit, QueueFull, TurnInterrupted,
                IdempotencyConflict, SessionArchived,
            ];
            /// Continues a session that an earlier process left behind.
            Resume "session/resume" = resume(session_id: &SessionId, request: ResumeTurn) -> TurnAnswer, ResumeParams, SessionStore, Changes, [
                SessionCompactionDisabled, ModelNotConfigured, SessionBusy, QueueFull, TurnInterrupted,
                IdempotencyConflict, SessionArchived, ItemNotFound,
            ];
            /// Describes this build's capabilities.
            Capabilities "capabilities/get" = capabilities() -> CapabilitiesView, Nothing, None, Reads, [];
            /// Lists the error codes, or shows the page of one.
            Errors "errors/list" = errors(request: ListErrors) -> ErrorList, ListErrors, None, Reads, [];
        }
        plain {
            /// Ends the running turn.
            ///
            /// Answers with the event that ended it.
            Interrupt "turn/interrupt" = interrupt(request: InterruptTurn) -> Changed, InterruptTurn, None, Settles, [SessionNotRunning];
            /// Answers a call that asks for approval.
            ///
            /// Repeating a decision changes nothing.
            DecideApproval "turn/approve" = decide_approval(request: DecideApproval) -> Changed, DecideApproval, None, Settles, [
                ItemNotFound, IdempotencyConflict,
            ];
            /// Answers a call of a tool that the caller runs.
            ///
            /// Repeating an answer changes nothing.
            AnswerCall "turn/answer" = answer_call(request: AnswerCall) -> AnsweredCall, AnswerCall, None, Settles, [
                ItemNotFound, IdempotencyConflict,
            ];
            /// Lists the calls that wait for their caller.
            Calls "turn/calls" = calls(session_id: &SessionId) -> Page<OpenCall>, OneSession, None, Reads, [];
            /// Lists the queued turns.
            ///
            /// They are in the order in which they will run.
            Queue "turn/queue" = queue(session_id: &SessionId) -> Page<QueueItem>, OneSession, None, Reads, [];
            /// Removes a turn from the queue.
            CancelQueued "turn/cancel" = cancel_queued(request: CancelQueued) -> Changed, CancelQueued, None, Settles, [
                ItemNotFound,
            ];
            /// Changes the prompt or the place of a queued turn.
            EditQueued "turn/edit" = edit_queued(request: EditQueued) -> Changed, EditQueued, None, Settles, [
                ItemNotFound, SessionLimit,
            ];
            /// Reads or follows a session's events.
            ///
            /// Waits for the first one if asked to.
            Events "session/events" = events(request: ReadEvents) -> EventPage, ReadEvents, None, Reads, [CursorOutOfRange];
            /// Sets a system reminder.
            ///
            /// The newest of a kind wins.
            Remind "session/remind" = remind(request: Remind) -> Changed, Remind, None, Settles, [QueueFull, SessionArchived];
            /// Lists the system reminders.
            ///
            /// They are in the order in which they were set.
            Reminders "session/reminders" = reminders(session_id: &SessionId) -> Page<Reminder>, OneSession, None, Reads, [];
            /// Removes a system reminder.
            ClearReminder "session/clear_reminder" = clear_reminder(request: ClearReminder) -> Changed, ClearReminder, None, Settles, [
                ItemNotFound, SessionArchived,
            ];
            /// Pins a fact.
            Pin "session/pin" = pin(request: PinFact) -> Changed, PinFact, None, Changes, [QueueFull, SessionArchived];
            /// Lists the pins.
            ///
            /// They are in the order in which they were set.
            Pins "session/pins" = pins(session_id: &SessionId) -> Page<Pin>, OneSession, None, Reads, [];
            /// Removes a pin.
            Unpin "session/unpin" = unpin(request: Unpin) -> Changed, Unpin, None, Settles, [ItemNotFound, SessionArchived];
            /// Shows a session.
            Read "session/read" = read(session_id: &SessionId) -> SessionView, OneSession, SessionStore, Reads, [];
            /// Pages through the history.
            History "session/history" = history(request: ReadHistory) -> Page<HistoryItem>, ReadHistory, SessionStore, Reads, [];
            /// Lists a session's model calls and compactions.
            ///
            /// The newest come first, each model call with the window that it saw.
            Steps "session/steps" = steps(request: ReadHistory) -> Page<StepView>, ReadHistory, SessionStore, Reads, [];
            /// Lists a session's turns with their cost.
            ///
            /// The newest come first.
            Turns "session/turns" = turns(request: ReadHistory) -> Page<TurnView>, ReadHistory, SessionStore, Reads, [];
            /// Reads a body from a blob.
            Blob "session/blob" = blob(request: ReadBlob) -> BlobPage, ReadBlob, SessionStore, Reads, [ItemNotFound];
            /// Stores an image or a file for a prompt of a session.
            ///
            /// A prompt names it by its hash within a day, else it is deleted.
            PutBlob "session/put_blob" = put_blob(request: PutBlob) -> StoredBlob, PutBlob, SessionStore, Settles, [
                QueueFull, SessionArchived, SessionLimit,
            ];
            /// Lists sessions.
            List "session/list" = list(request: SessionQuery) -> Page<SessionSummary>, SessionQuery, SessionStore, Reads, [];
            /// Reads or follows the changes of the list.
            ///
            /// Begins with the whole list. Waits for the first change if asked to.
            Changes "session/changes" = changes(request: FollowSessions) -> ChangePage, FollowSessions, SessionStore, Reads, [];
            /// Lists the calls of all sessions that wait for a person or for their caller.
            Approvals "turn/approvals" = approvals(request: ListApprovals) -> Page<OpenApproval>, ListApprovals, SessionStore, Reads, [];
            /// Changes a session's title and labels.
            Update "session/update" = update(request: UpdateSession) -> Changed, UpdateSession, SessionStore, Settles, [SessionArchived];
            /// Archives a session.
            Archive "session/archive" = archive(session_id: &SessionId) -> Changed, OneSession, SessionStore, Settles, [SessionBusy];
            /// Restores an archived session.
            Unarchive "session/unarchive" = unarchive(session_id: &SessionId) -> Changed, OneSession, SessionStore, Settles, [];
            /// Deletes a session.
            ///
            /// This cannot be undone.
            Delete "session/delete" = delete(request: DeleteSession) -> Changed, DeleteSession, SessionStore, Destroys, [SessionBusy];
            /// Creates a session from the beginning of another one.
            Fork "session/fork" = fork(request: ForkSession) -> Changed, ForkSession, SessionStore, Changes, [
                SessionBusy, ItemNotFound, HistoryPruned,
            ];
            /// Exports a session as a bundle.
            ///
            /// Answers with a page of the bundle.
            ExportSession "session/export" = export_session(request: ExportSession) -> BundlePage, ExportSession, SessionStore, Reads, [];
            /// Imports sessions from a bundle.
            ///
            /// Takes one piece; the last one creates the sessions.
            ImportBundle "session/import" = import_bundle(request: ImportBundle) -> Imported, ImportBundle, SessionStore, Changes, [
                BundleInvalid, SessionLimit,
            ];
            /// Registers a reader of the journals.
            ///
            /// If it is already registered, nothing changes.
            CreateReader "reader/create" = create_reader(request: NamedReader) -> ReaderView, NamedReader, SessionStore, Settles, [
                SessionLimit,
            ];
            /// Hands a reader the records that it is not done with.
            ///
            /// They are returned again until they are acknowledged.
            FetchReader "reader/fetch" = fetch_reader(request: FetchReader) -> RecordPage, FetchReader, SessionStore, Reads, [
                ReaderNotFound, StoreFailed,
            ];
            /// Takes a reader's acknowledgement.
            ///
            /// It says up to which record the reader has handled a session.
            AcknowledgeReader "reader/acknowledge" = acknowledge_reader(request: AcknowledgeReader) -> Checkpoint, AcknowledgeReader, SessionStore, Settles, [
                ReaderNotFound, SessionNotFound, CursorOutOfRange,
            ];
            /// Waits until a reader has handled a record.
            ///
            /// Answers with the reader's checkpoint at that time.
            WaitReader "reader/wait" = wait_reader(request: WaitReader) -> Checkpoint, WaitReader, SessionStore, Reads, [
                ReaderNotFound, StoreFailed,
            ];
            /// Deletes a reader.
            ///
            /// Answers with the reader as it was.
            DeleteReader "reader/delete" = delete_reader(request: NamedReader) -> ReaderView, NamedReader, SessionStore, Destroys, [
                ReaderNotFound, StoreFailed,
            ];
            /// Lists the readers.
            ///
            /// Each says how far it is behind.
            ListReaders "reader/list" = list_readers() -> Page<ReaderView>, Nothing, SessionStore, Reads, [StoreFailed];
            /// Drops journal records that nothing depends on.
            CompactJournal "journal/compact" = compact_journal(request: CompactJournal) -> JournalCompactionReport, CompactJournal, SessionStore, Destroys, [

            ];
            /// Rebuilds the projection.
            RebuildProjection "projection/rebuild" = rebuild_projection() -> ProjectionRebuilt, Nothing, SessionStore, Settles, [];
            /// Examines the data directory.
            ///
            /// Reads every journal and repairs nothing.
            Diagnose "store/diagnose" = diagnose() -> Diagnosis, Nothing, SessionStore, Reads, [StoreNotWritable];
            /// Deletes sessions that are too old or too many.
            Retain "session/retain" = retain(request: Retain) -> Retained, Retain, SessionStore, Destroys, [];
            /// Compacts the live context.
            Compact "session/compact" = compact(request: CompactSession) -> CompactionReceipt, CompactSession, SessionCompaction, Changes, [
                SessionBusy, SessionLimit, SessionArchived, TurnInterrupted, ContextOverflow, CompactionNoProgress,
                CompactionPinLost, ModelNotConfigured, ModelUnauthorized, ModelRateLimited, ModelOverloaded,
                ModelTimeout, ModelStreamIncomplete, ModelContextExceeded, ModelRejected,
            ];
            /// Previews a compaction.
            ///
            /// Calls no model.
            PreviewCompaction "session/compact_preview" = preview_compaction(request: CompactSession) -> CompactionReceipt, CompactSession, SessionCompaction, Reads, [
                CompactionNoProgress, CompactionPinLost, ModelNotConfigured,
            ];
            /// Undoes the latest compaction.
            UndoCompaction "session/compact_undo" = undo_compaction(request: UndoCompaction) -> Changed, UndoCompaction, SessionCompaction, Changes, [
                SessionBusy, SessionArchived, ItemNotFound, HistoryPruned, ContextOverflow,
            ];
            /// Searches the texts of sessions.
            SearchMemory "memory/search" = search_memory(request: SearchMemory) -> Page<SearchHit>, SearchMemory, MemoryStore, Reads, [
                MemoryIndexUnavailable, SessionNotFound,
            ];
            /// Deletes texts from memory.
            ///
            /// It answers when no search finds them, and with `wait` when they have left every file.
            ForgetMemory "memory/forget" = forget_memory(request: ForgetMemory) -> Forgotten, ForgetMemory, MemoryStore, Destroys, [
                MemoryIndexUnavailable, SessionNotFound,
            ];
            /// Rebuilds the memory index.
            ReindexMemory "memory/reindex" = reindex_memory() -> Reindexed, Nothing, MemoryStore, Settles, [MemoryIndexUnavailable];
            /// Lists the tools that a session's model is offered next.
            ///
            /// Without a session, those of a new one. A tool that is left out says why.
            Tools "tool/list" = tools(request: ListTools) -> Page<ToolView>, ListTools, None, Reads, [
                SessionNotFound, SessionCorrupted, SessionFormatNewer, StoreFailed,
            ];
            /// Lists the configured servers of tools.
            ///
            /// They are in the order of their names.
            ToolServers "tool/servers" = tool_servers() -> Page<ToolServerView>, Nothing, None, Reads, [];
        }
    } };
}

/// Effect of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEffect {
    /// Changes nothing.
    Reads,
    /// Changes something; a repetition may change it again.
    Changes,
    /// Changes something; a repetition changes nothing more.
    Settles,
    /// Deletes something for good.
    Destroys,
}

/// Expands to the capability that a row names.
macro_rules! capability {
    (None) => {
        None
    };
    ($capability:ident) => {
        Some(Capability::$capability)
    };
}

macro_rules! declare {
    ($(
        #[doc = $summary:literal] $( #[doc = $more:literal] )*
        $operation:ident $public:literal = $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty,
        $request:ident, $needs:ident, $effect:ident, [$( $code:ident ),* $(,)?];
    )*) => {
        /// Operation that the service offers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation { $( #[doc = $summary] $operation, )* }

        impl Operation {
            /// Every operation, in the order of the table.
            pub const ALL: &'static [Self] = &[$( Self::$operation, )*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$operation => stringify!($name), )* }
            }

            /// Its name in public: what it is about, and what is done to it.
            #[must_use]
            pub const fn public_name(self) -> &'static str {
                match self { $( Self::$operation => $public, )* }
            }

            /// Its summary, in a sentence.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self { $( Self::$operation => $summary.trim_ascii(), )* }
            }

            /// The capability that it needs.
            #[must_use]
            pub const fn needs(self) -> Option<Capability> {
                match self { $( Self::$operation => capability!($needs), )* }
            }

            /// Its effect.
            #[must_use]
            pub const fn effect(self) -> OperationEffect {
                match self { $( Self::$operation => OperationEffect::$effect, )* }
            }

            /// Returns true if a request with these parameters may be performed twice.
            #[must_use]
            pub fn is_repeatable(self, params: &str) -> bool {
                #[derive(Default, Deserialize)]
                struct Telling {
                    turn: Option<IgnoredAny>,
                    idempotency_key: Option<IgnoredAny>,
                }
                let Telling { turn, idempotency_key } = serde_json::from_str(params).unwrap_or_default();
                match self {
                    // Without a turn it might interrupt the next one.
                    Self::Interrupt => turn.is_some(),
                    _ => {
                        matches!(self.effect(), OperationEffect::Reads | OperationEffect::Settles)
                            || idempotency_key.is_some()
                    }
                }
            }

            /// Errors of its own, besides those of a session, of the store and of a capability.
            #[must_use]
            pub const fn refusals(self) -> &'static [ErrorCode] {
                match self { $( Self::$operation => &[$( ErrorCode::$code ),*], )* }
            }

            /// Finds the operation with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|operation| operation.name() == name)
            }
        }
    };
}

operations!(all declare);
