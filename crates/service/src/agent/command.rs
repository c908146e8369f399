//! What can be asked of a session's actor.

use tokio::sync::oneshot;

use crate::{
    SessionError,
    ids::{Seq, TurnNumber},
    service::{Changed, StartTurn, TurnAccepted, TurnResult},
    session::{
        event::{Decision, Event},
        reminder::SystemReminderType,
    },
};

/// The way a turn's end reaches one who waits for it.
pub(crate) type TurnWaiter = oneshot::Sender<Result<TurnResult, SessionError>>;

/// A command and the way its answer goes back.
pub(crate) enum Command {
    /// Accept a turn.
    StartTurn { request: Box<StartTurn>, hash: String, reply: oneshot::Sender<Result<Acceptance, SessionError>> },
    /// Record a change that touches no turn.
    Record { change: Box<Change>, reply: oneshot::Sender<Result<Changed, SessionError>> },
    /// Decide a call.
    Decide {
        call_id: String,
        decision: Decision,
        reason: Option<String>,
        reply: oneshot::Sender<Result<Changed, SessionError>>,
    },
    /// Take a turn out of the queue.
    CancelQueued { turn: TurnNumber, reply: oneshot::Sender<Result<Changed, SessionError>> },
    /// Start no further turn; answered when none runs.
    Drain { drain_ms: u64, reply: oneshot::Sender<()> },
}

/// A change of a session outside of its turns.
pub(crate) enum Change {
    /// Set a reminder.
    Remind(Box<Event>, SystemReminderType),
    /// Remove a reminder.
    ClearReminder(SystemReminderType),
    /// Pin a fact.
    Pin(Box<Event>),
    /// Remove a pin.
    Unpin(Seq),
}

/// An accepted turn, and where its result will be.
pub(crate) struct Acceptance {
    pub(crate) accepted: TurnAccepted,
    pub(crate) result: oneshot::Receiver<Result<TurnResult, SessionError>>,
}
