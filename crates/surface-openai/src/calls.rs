//! Outputs that calls get.

use std::{collections::BTreeMap, sync::Arc};

use meerkat_service::{
    ErrorCode, Seq, SessionError, SessionId, SessionService,
    follow::turn::answered,
    service::{AnswerCall, CancelQueued, InterruptTurn, TurnAccepted},
    session::event::Event,
};

use crate::{App, past::Records};

/// Answers the calls of a message, all or none. The same outputs again are taken to the end, or change nothing. Returns
/// the seq of the first answer, and the turn as its last one accepted it.
pub(crate) async fn take(
    app: &App,
    service: Arc<dyn SessionService>,
    session_id: SessionId,
    mut outputs: BTreeMap<String, String>,
) -> Result<(Seq, TurnAccepted), SessionError> {
    // Of two that answer at once, the second one sees no open call.
    let _one_at_a_time = app.turn_of(session_id).await;
    let others = || SessionError::invalid("input", "send the outputs of all calls that wait, and of no others");
    let calls = service.calls(&session_id).await?.items;
    let open: Vec<_> = calls.iter().filter_map(|call| outputs.remove_entry(&call.call_id)).collect();
    if !open.is_empty() && open.len() < calls.len() {
        return Err(others());
    }
    let mut accepted = Vec::new();
    let answer = async |(call_id, text)| answered(service.as_ref(), AnswerCall::text(session_id, call_id, text)).await;
    // What was answered before is compared, which changes nothing.
    for output in outputs {
        let again = answer(output).await;
        accepted.push(again.map_err(|error| match error.code() {
            ErrorCode::ItemNotFound if !open.is_empty() => others(),
            _ => error,
        })?);
    }
    if let (Some(first), false) = (accepted.iter().map(|accepted| accepted.seq).min(), open.is_empty()) {
        // They belong to the same message only if none came after them.
        let mut records = Records::after(service.as_ref(), session_id, first);
        while let Some(record) = records.next().await? {
            if matches!(record.event, Event::AssistantMessage(_)) {
                return Err(others());
            }
        }
    }
    for output in open {
        accepted.push(answer(output).await?);
    }
    let first = accepted.iter().map(|accepted| accepted.seq).min();
    let last = accepted.into_iter().max_by_key(|accepted| accepted.seq);
    first.zip(last).ok_or(SessionError::ItemNotFound("call"))
}

/// Ends a turn that may wait in the queue, run, or have ended meanwhile.
pub(crate) async fn end(service: &dyn SessionService, session_id: SessionId, turn: u32) -> Result<(), SessionError> {
    let mut ended = service.cancel_queued(CancelQueued { session_id, turn }).await.map(drop);
    // It is not in the queue, or it has started meanwhile.
    if ended.as_ref().is_err_and(|error| error.code() == ErrorCode::ItemNotFound) {
        ended = service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await.map(drop);
    }
    // Or it ended meanwhile.
    ended.or_else(|error| match error.code() {
        ErrorCode::SessionNotRunning | ErrorCode::ItemNotFound => Ok(()),
        _ => Err(error),
    })
}
