//! How a turn ended, read from its session's events: for whoever knows that it was accepted, and not the process that
//! runs it. It asks for nothing that would have to be asked for twice.

use crate::{
    SessionError,
    ids::SessionId,
    service::{ReadBlob, SessionService, TurnAccepted, TurnResult},
    session::{TurnFold, event::Event, message::Body},
    wire::decode_event,
};

/// Waits for the end of an accepted turn.
///
/// # Errors
/// `TURN_INTERRUPTED` where it left the queue unstarted, or its session was deleted; `STORE_FAILED` where the store
/// failed under it, as whoever waits for it in the process that runs it is told.
pub async fn result(service: &dyn SessionService, accepted: TurnAccepted) -> Result<TurnResult, SessionError> {
    let TurnAccepted { session_id, turn, seq } = accepted;
    let mut follower = service.follow_turn(&session_id, seq.saturating_sub(1)).await?;
    let mut fold = TurnFold::new(turn);
    while let Some(followed) = follower.next().await? {
        if followed.seq.is_none() {
            continue;
        }
        let record = std::str::from_utf8(&followed.line)
            .map_err(unreadable)
            .and_then(|line| decode_event(line).map_err(unreadable))?;
        if let Some(end) = fold.push(&record) {
            let mut text = String::new();
            for body in end.text.iter() {
                text.push_str(&whole(service, session_id, body).await?);
            }
            return Ok(end.result(session_id, text));
        }
        if record.turn == Some(turn) && matches!(record.event, Event::TurnDequeued(_)) {
            break;
        }
    }
    Err(SessionError::Interrupted { turn })
}

/// A body's whole text, for the caller who was given its reference in an answer or an event.
///
/// # Errors
/// Those of reading a blob.
pub async fn whole(service: &dyn SessionService, session_id: SessionId, body: &Body) -> Result<String, SessionError> {
    let blob = match body {
        Body::Inline(text) => return Ok(text.clone()),
        Body::Blob(blob) => &blob.blob,
    };
    let (mut bytes, mut next) = (Vec::new(), Some(0));
    while let Some(offset) = next {
        let request = ReadBlob { session_id, blob: blob.clone(), offset, limit: None };
        let page = service.answer_blob(request).await?;
        let piece = page.bytes().filter(|piece| !piece.is_empty() || page.next_offset.is_none());
        bytes.extend(piece.ok_or_else(|| unreadable("a blob's page is empty or no base64"))?);
        next = page.next_offset;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn unreadable(error: impl std::fmt::Display) -> SessionError {
    SessionError::Internal(format!("an answer could not be read: {error}"))
}
