//! Interface to the inbox: requests that one node leaves in the store for another, which has their session and works on
//! it. Nodes do not call each other.

use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

use super::StoreError;
use crate::ids::SessionId;

/// Time after which a letter that nobody has taken is taken back, and is not taken any more.
pub const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// Request for another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Node that has the session.
    pub node: String,
    /// The session.
    pub session_id: SessionId,
    /// Name of the operation.
    pub operation: String,
    /// Its parameters as JSON.
    pub params: String,
}

/// State of a letter, as its sender sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It waits, or is being answered.
    Open,
    /// Its answer, as it was given to [`Inbox::answer`].
    Answered(String),
    /// Nobody took it, and nobody will: its node has ended, or has nothing to do in the session any more.
    Returned,
    /// Its node took it and ended before it answered, or it is gone.
    Lost,
}

/// Letters between the nodes that share a store.
#[async_trait]
pub trait Inbox: Send + Sync {
    /// Leaves a letter under a new id; once, if it is left again because the reply went lost.
    async fn leave(&self, id: Uuid, letter: &Letter) -> Result<(), StoreError>;

    /// Returns what became of a letter. One that is no longer open is removed, an answer only behind its reply. With `is_over` one that nobody has taken
    /// is returned.
    async fn fate(&self, id: Uuid, is_over: bool) -> Result<Fate, StoreError>;

    /// Takes the letters for this node that were left within [`TAKEN_WITHIN`], except those at `work`, each once. One
    /// that was taken and is not at work comes again: what was taken went lost on its way here.
    async fn take(&self, work: &[Uuid]) -> Result<Vec<(Uuid, Letter)>, StoreError>;

    /// Answers a letter. If its sender does not ask any more, nothing happens.
    async fn answer(&self, id: Uuid, answer: String) -> Result<(), StoreError>;
}
