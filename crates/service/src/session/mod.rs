//! A session: its messages, its events, and the one way in which it changes.

pub mod event;
pub mod reminder;

mod apply;
mod calls;
mod compactions;
mod context;
mod effort;
mod entries;
mod follows;
mod fork;
mod history;
pub(crate) mod human;
mod imported;
mod lost;
mod outcome;
mod pruned;
pub(crate) mod snapshot;
mod state;
mod turn;
mod view;

#[cfg(test)]
pub(crate) mod tests;

pub use meerkat_words::message;

pub use context::{Context, ContextEntry, Summary};
pub use event::{CompactionAttempt, CompactionCounters};
pub use fork::ForkPoint;
pub use history::HistoryFold;
pub(crate) use pruned::{CONTEXT_RUNS_MAX, ForkedHistory};
pub use state::KEY_KEPT_MS;
pub(crate) use state::RULES_MAX;
pub use state::{ApplyError, Decided, KeyUse, Session, SessionFields};
pub(crate) use turn::TurnFold;
pub use turn::{
    Answered, Asked, CallProgress, CallState, Delegating, FormState, OpenTurn, QueuedTurn, Requested, SteeredText,
    TurnEnd,
};
pub use view::{SessionMeta, View};
