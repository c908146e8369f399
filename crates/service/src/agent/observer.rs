//! The seam to whatever keeps copies of sessions. The engine knows nothing of lists, readers, files or memory.

use async_trait::async_trait;

use super::{Ports, shared::Shared};
use crate::{
    follow::live::LiveHub,
    ids::{Seq, SessionId},
    store::{Lease, StoreError},
};

/// Keeps copies of sessions in step with their actors.
#[async_trait]
pub(crate) trait Observer: Send + Sync {
    /// Takes in that everything of a session up to `durable` is durable.
    async fn published(&self, shared: &Shared, durable: Seq);

    /// Takes in that a turn has ended.
    fn turn_ended(&self, ports: &Ports, session_id: SessionId);

    /// Returns `true` while something of the session is yet to be taken in that is nowhere else.
    fn owes(&self, session_id: SessionId, last_seq: Seq) -> bool;

    /// Gives a lease back once the session's row is durable: the next start skips sessions without a lease. If the
    /// session is leased again in the meantime, that lease stays.
    fn rests(&self, ports: &Ports, lease: Lease);

    /// Deletes a session and all that is derived of it; those who follow it by `live` are notified when that is durable.
    async fn delete(&self, ports: &Ports, session_id: SessionId, live: Option<&LiveHub>) -> Result<(), StoreError>;
}
