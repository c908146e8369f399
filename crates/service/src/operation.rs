//! The operations of the service: name, the capability each needs, and what it does to the world.
//!
//! Each surface has a table of its own spellings; a test holds that none of these is missing there.

use crate::capability::Capability;

/// What an operation does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationEffect {
    /// It changes nothing.
    Reads,
    /// It changes something; twice may change twice.
    Changes,
    /// It changes something; twice is the same as once.
    Settles,
    /// It removes something for good.
    Destroys,
}

macro_rules! operations {
    ($( #[doc = $summary:literal] $variant:ident = $name:literal, $needs:expr, $effect:ident; )*) => {
        /// One thing that the service can be asked to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation { $( #[doc = $summary] $variant, )* }

        impl Operation {
            /// Every operation, in the order of the table.
            pub const ALL: &'static [Self] = &[$( Self::$variant, )*];

            /// Its name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $( Self::$variant => $name, )* }
            }

            /// What it does, in a sentence.
            #[must_use]
            pub const fn summary(self) -> &'static str {
                match self { $( Self::$variant => $summary.trim_ascii(), )* }
            }

            /// The capability that it needs.
            #[must_use]
            pub const fn needs(self) -> Option<Capability> {
                match self { $( Self::$variant => $needs, )* }
            }

            /// What it does to the world.
            #[must_use]
            pub const fn effect(self) -> OperationEffect {
                match self { $( Self::$variant => OperationEffect::$effect, )* }
            }

            /// The operation of this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $( $name => Some(Self::$variant), )* _ => None }
            }
        }
    };
}

const STORE: Option<Capability> = Some(Capability::SessionStore);
const MEMORY: Option<Capability> = Some(Capability::MemoryStore);
const COMPACTION: Option<Capability> = Some(Capability::SessionCompaction);

operations! {
    /// Makes a session.
    CreateSession = "create_session", None, Changes;
    /// Runs a turn on a session.
    StartTurn = "start_turn", None, Changes;
    /// Ends the running turn.
    Interrupt = "interrupt", None, Settles;
    /// Answers a call that asks for approval.
    DecideApproval = "decide_approval", None, Settles;
    /// Lists the turns that wait.
    Queue = "queue", None, Reads;
    /// Takes a turn out of the queue.
    CancelQueued = "cancel_queued", None, Settles;
    /// Reads or follows a session's events.
    Events = "events", None, Reads;
    /// Sets a system reminder.
    Remind = "remind", None, Settles;
    /// Lists the system reminders.
    Reminders = "reminders", None, Reads;
    /// Removes a system reminder.
    ClearReminder = "clear_reminder", None, Settles;
    /// Pins a fact.
    Pin = "pin", None, Changes;
    /// Lists the pins.
    Pins = "pins", None, Reads;
    /// Removes a pin.
    Unpin = "unpin", None, Settles;
    /// Goes on with a session that a former process left behind.
    Resume = "resume", STORE, Changes;
    /// Shows a session.
    Read = "read", STORE, Reads;
    /// Pages through what was said.
    History = "history", STORE, Reads;
    /// Reads a body that stands in a blob.
    Blob = "blob", STORE, Reads;
    /// Lists sessions.
    List = "list", STORE, Reads;
    /// Changes title and labels.
    Update = "update", STORE, Settles;
    /// Archives a session.
    Archive = "archive", STORE, Settles;
    /// Brings an archived session back.
    Unarchive = "unarchive", STORE, Settles;
    /// Deletes a session.
    Delete = "delete", STORE, Destroys;
    /// Makes a new session from the beginning of one.
    Fork = "fork", STORE, Changes;
    /// Writes a session into a bundle.
    ExportSession = "export_session", STORE, Reads;
    /// Makes sessions from a bundle.
    ImportBundle = "import_bundle", STORE, Changes;
    /// Registers a reader of the journals.
    CreateReader = "create_reader", STORE, Settles;
    /// Hands a reader the records that it is not done with.
    FetchReader = "fetch_reader", STORE, Reads;
    /// Takes a reader's acknowledgement.
    AcknowledgeReader = "acknowledge_reader", STORE, Settles;
    /// Waits until a reader is done with a record.
    WaitReader = "wait_reader", STORE, Reads;
    /// Forgets a reader.
    DeleteReader = "delete_reader", STORE, Destroys;
    /// Lists the readers.
    ListReaders = "list_readers", STORE, Reads;
    /// Drops records of a journal that nothing depends on.
    CompactJournal = "compact_journal", STORE, Destroys;
    /// Makes the projection anew.
    RebuildProjection = "rebuild_projection", STORE, Settles;
    /// Deletes sessions that are too old or too many.
    Retain = "retain", STORE, Destroys;
    /// Compacts the live context now.
    Compact = "compact", COMPACTION, Changes;
    /// Shows what a compaction would do.
    PreviewCompaction = "preview_compaction", COMPACTION, Reads;
    /// Takes the latest compaction back.
    UndoCompaction = "undo_compaction", COMPACTION, Changes;
    /// Searches what was said.
    SearchMemory = "search_memory", MEMORY, Reads;
    /// Makes memory forget.
    ForgetMemory = "forget_memory", MEMORY, Destroys;
    /// Builds the memory's index anew.
    ReindexMemory = "reindex_memory", MEMORY, Settles;
    /// Says what this build can do.
    Capabilities = "capabilities", None, Reads;
    /// Lists the error codes.
    Errors = "errors", None, Reads;
}
