//! Uploads: blobs of a session that no event names yet. A prompt may name one, which makes it a blob like any other;
//! else it goes after a day.

use bytes::Bytes;

use crate::{SessionError, agent::Ports, clock::Timestamp, ids::SessionId, store::StoreError};

/// Milliseconds for which an upload waits for a prompt.
const KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// Deletes a session's uploads that have waited too long.
pub(crate) async fn expire(ports: &Ports, session_id: SessionId) -> Result<(), StoreError> {
    let now = ports.world.clock.now().as_millis();
    ports.blobs.expire(session_id, Timestamp::from_millis(now.saturating_sub(KEPT_MS))).await
}

/// Reads a piece of a blob, or of an upload that has not waited too long.
pub(crate) async fn read(
    ports: &Ports,
    session_id: SessionId,
    blob: &str,
    offset: u64,
    limit: usize,
) -> Result<Bytes, SessionError> {
    if let Some(piece) = ports.blobs.read(session_id, blob, offset, limit).await? {
        return Ok(piece);
    }
    expire(ports, session_id).await?;
    ports.blobs.read_upload(session_id, blob, offset, limit).await?.ok_or(SessionError::ItemNotFound("blob"))
}
