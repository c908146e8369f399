//! What can be asked of a session's actor.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::delegate::ChildEnded;
use crate::{
    SessionError,
    clock::Timestamp,
    compaction::CompactionConfig,
    ids::{Seq, TurnNumber},
    service::{AnswerCall, Changed, CompactionReceipt, DecideApproval, EditQueued, StartTurn, TurnHandle, TurnResult},
    session::{event::Event, reminder::SystemReminderType},
};

/// The way a turn's end reaches one who waits for it.
pub(crate) struct TurnWaiter {
    pub(crate) reply: Reply<TurnResult>,
    /// True if it also waits for calls of the turn that its caller has to answer.
    pub(crate) answers_calls: bool,
}

impl TurnWaiter {
    pub(crate) fn send(self, result: Result<TurnResult, SessionError>) {
        // The caller may have left.
        drop(self.reply.send(result));
    }
}

/// The way an answer goes back.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, SessionError>>;

/// A command and the way its answer goes back.
pub(crate) enum Command {
    /// Accept a turn. `hash` is that of a request with a key. A continuation goes on with the interrupted turn, and its
    /// prompt counts for nothing. A request that the configuration refuses has its `refusal`: only a turn that its key
    /// leads to answers it otherwise.
    StartTurn {
        request: Arc<StartTurn>,
        hash: String,
        is_continuation: bool,
        refusal: Option<SessionError>,
        reply: Reply<TurnHandle>,
    },
    /// Record a change that touches no turn.
    Record { change: Box<Change>, reply: Reply<Changed> },
    /// Let a turn go on that a former process left: somebody waits for it.
    GoOn { turn: TurnNumber },
    /// Decide a call.
    Decide { request: Box<DecideApproval>, reply: Reply<Changed> },
    /// Take the answer to a call that was requested; `hash` is that of the answer. Answers with its event and turn.
    AnswerCall { request: Arc<AnswerCall>, hash: String, reply: Reply<TurnHandle> },
    /// Take the end of a sub-agent.
    ChildEnded { ended: Arc<ChildEnded>, reply: Reply<()> },
    /// Take a turn out of the queue.
    CancelQueued { turn: TurnNumber, reply: Reply<Changed> },
    /// Change the prompt or the place of a turn in the queue.
    EditQueued { request: Box<EditQueued>, reply: Reply<Changed> },
    /// Delete the session; `is_forced` also deletes one that runs.
    Delete { is_forced: bool, reply: Reply<Changed> },
    /// Compact the live context, until the caller gives up.
    Compact { config: Option<CompactionConfig>, cancel: CancellationToken, reply: Reply<CompactionReceipt> },
    /// Report the effect of a compaction; nothing is recorded.
    PreviewCompaction { config: Option<CompactionConfig>, reply: Reply<CompactionReceipt> },
    /// Undo the newest compaction. If a compaction is named, it must be the newest.
    UndoCompaction { compaction: Option<Seq>, reply: Reply<Changed> },
    /// Take blobs away that no record up to `last_seq` names, unless something is recorded or made meanwhile.
    DropBlobs { names: BTreeSet<String>, last_seq: Seq, reply: Reply<()> },
    /// Leave memory, because another node has the session; answered then.
    GiveWay { reply: Reply<()> },
    /// Start no further turn; answered when none runs.
    Drain { drain_ms: u64, reply: Reply<()> },
}

impl Command {
    /// Answers it with an error, unhandled.
    pub(crate) fn refuse(self, error: &SessionError) {
        // The caller may have left.
        match self {
            Self::GoOn { .. } => {}
            Self::StartTurn { reply, .. } | Self::AnswerCall { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Record { reply, .. }
            | Self::Decide { reply, .. }
            | Self::CancelQueued { reply, .. }
            | Self::EditQueued { reply, .. }
            | Self::UndoCompaction { reply, .. }
            | Self::Delete { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::Compact { reply, .. } | Self::PreviewCompaction { reply, .. } => {
                drop(reply.send(Err(error.clone())));
            }
            Self::DropBlobs { reply, .. } | Self::ChildEnded { reply, .. } => drop(reply.send(Err(error.clone()))),
            Self::GiveWay { .. } => {}
            Self::Drain { reply, .. } => drop(reply.send(Ok(()))),
        }
    }
}

/// A change of a session outside of its turns.
#[derive(Clone)]
pub(crate) enum Change {
    /// Set a reminder.
    Remind(Box<Event>, SystemReminderType),
    /// Remove a reminder.
    ClearReminder(SystemReminderType),
    /// Pin a fact. In a running turn a call of its model pins it, and a text that is already pinned stays as it is.
    Pin { text: String, turn: Option<TurnNumber> },
    /// Remove a pin.
    Unpin(Seq),
    /// Change title and labels; `None` keeps the current value.
    Update { title: Option<String>, labels: Option<BTreeMap<String, String>> },
    /// Archive the session, or bring it back.
    Archive(bool),
    /// Record a summary of older events before some of them are dropped.
    SnapshotHistory { pruned_to: Seq, keys_up_to: Timestamp },
}
