//! Uploads: blobs of a session that no event names yet. A prompt may name one within a day, which makes it a blob like
//! any other; else it is deleted later.

use bytes::Bytes;
use futures::TryStreamExt as _;

use crate::{SessionError, agent::Ports, clock::Timestamp, ids::SessionId, service::Pieces, store::BlobWriter};

/// Milliseconds for which an upload waits for a prompt.
const KEPT_MS: i64 = 24 * 60 * 60 * 1000;

/// Returns the earliest time of an upload that can still be used.
pub(crate) fn since(ports: &Ports) -> Timestamp {
    Timestamp::from_millis(ports.world.clock.now().as_millis().saturating_sub(KEPT_MS))
}

/// Deletes a session's uploads that have waited too long. Nothing reads them any more, so those that cannot be deleted
/// now are deleted later.
pub(crate) async fn expire(ports: &Ports, session_id: SessionId) {
    if let Err(error) = ports.blobs.expire(session_id, since(ports)).await {
        tracing::warn!(%session_id, %error, "old uploads stay until the next round");
    }
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
    if let Some(piece) = ports.blobs.read_upload(session_id, blob, since(ports), offset, limit).await? {
        return Ok(piece);
    }
    // A prompt may have made the upload a blob in between.
    ports.blobs.read(session_id, blob, offset, limit).await?.ok_or(SessionError::ItemNotFound("blob"))
}

/// Writes a body of at most so many bytes.
pub(crate) async fn write(writer: &mut dyn BlobWriter, mut body: Pieces, limit: u64) -> Result<(), SessionError> {
    let mut bytes = 0;
    while let Some(piece) = body.try_next().await? {
        bytes += piece.len() as u64;
        if bytes > limit {
            return Err(SessionError::PayloadTooLarge { what: "upload", bytes, limit });
        }
        writer.write(&piece).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::{StreamExt as _, stream};

    use super::*;
    use crate::store::{BlobStore as _, MemoryBlobStore, StoreError, UPLOADS_BYTES_MAX, UPLOADS_MAX, check_uploads};

    #[tokio::test]
    async fn a_body_has_at_most_so_many_bytes() {
        let store = MemoryBlobStore::default();
        let sent = async |pieces: &[&'static [u8]]| {
            let body = stream::iter(pieces.to_vec()).map(|piece| Ok(Bytes::from_static(piece))).boxed();
            let mut writer = store.writer(SessionId::default());
            write(writer.as_mut(), body, 10).await.map_err(|error| error.body().details)
        };
        assert_eq!(sent(&[b"12345", b"67890"]).await, Ok(()));
        let refused = sent(&[b"12345", b"678901", b"never read"]).await.unwrap_err();
        assert_eq!(
            (&refused["what"], &refused["bytes"], &refused["limit"]),
            (&"upload".into(), &11.into(), &10.into())
        );
    }

    #[test]
    fn a_sessions_uploads_have_at_most_so_many_bytes_together() {
        assert_eq!(check_uploads(UPLOADS_MAX - 1, UPLOADS_BYTES_MAX - 7, 7), Ok(()));
        assert_eq!(check_uploads(0, 0, UPLOADS_BYTES_MAX), Ok(()));
        let full = |what, held, limit| Err(StoreError::UploadsFull { what, held, limit });
        let bytes = "bytes of unused uploads";
        assert_eq!(check_uploads(1, UPLOADS_BYTES_MAX - 7, 8), full(bytes, UPLOADS_BYTES_MAX - 7, UPLOADS_BYTES_MAX));
        assert_eq!(check_uploads(UPLOADS_MAX, 0, 0), full("unused uploads", 64, 64));
        let refused = SessionError::from(check_uploads(1, UPLOADS_BYTES_MAX - 7, 8).unwrap_err()).body();
        assert_eq!(refused.details["held"], UPLOADS_BYTES_MAX - 7);
    }
}
