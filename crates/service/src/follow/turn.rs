//! A followed turn: its session's lines, then its end. Every surface that shows a running turn uses [`FollowedTurn`],
//! so that no line comes after the end and the end before no line.
//!
//! [`result`] is for callers that know an accepted turn but not the process that runs it. It sends no request that must
//! not be repeated.

use std::{collections::BTreeSet, future::ready, sync::Arc};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Fuse},
};

use super::{FollowedLine, Follower};
use crate::{
    SessionError,
    ids::{Seq, SessionId},
    service::{
        AnswerCall, AnsweredCall, CancelQueued, InterruptTurn, ReadBlob, ReadEvents, SessionService, TurnAccepted,
        TurnHandle, TurnResult,
    },
    session::{
        TurnEnd, TurnFold,
        event::{Event, Record},
        message::Body,
    },
    wire::{decode_event, decode_live},
};

/// A turn whose events come before its end.
pub struct FollowedTurn {
    /// `None` after the last line; the end still comes.
    follower: Option<Follower>,
    result: Fuse<BoxFuture<'static, Result<TurnResult, SessionError>>>,
    /// The end, while lines before it are still missing.
    end: Option<Result<TurnResult, SessionError>>,
}

/// The next thing that is known of a followed turn.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once, and none is kept")]
pub enum TurnStep {
    /// A line of its session.
    Line(FollowedLine),
    /// Error that ends the lines. The turn's end still comes.
    Lost(SessionError),
    /// End of the turn. Nothing follows.
    End(Result<TurnResult, SessionError>),
}

impl FollowedTurn {
    /// Follows a turn by the lines of `follower`, or up to its end alone.
    #[must_use]
    pub fn new(turn: TurnHandle, follower: Option<Follower>) -> Self {
        Self { follower, result: turn.result.fuse(), end: None }
    }

    /// A turn that was not accepted: its refusal is its end.
    #[must_use]
    pub fn refused(error: SessionError) -> Self {
        Self { follower: None, result: ready(Err(error)).boxed().fuse(), end: None }
    }

    /// Shows no further line.
    pub fn stop_lines(&mut self) {
        self.follower = None;
    }

    /// The next line, or the end behind the last one. It can be dropped and called again.
    pub async fn next(&mut self) -> TurnStep {
        loop {
            let is_over = match &self.end {
                Some(Ok(result)) => self.follower.as_ref().is_none_or(|follower| follower.cursor() >= result.seq),
                // No event records such an end: the available lines come first.
                Some(Err(_)) => match next_line(&mut self.follower).now_or_never() {
                    Some(Ok(Some(line))) => return TurnStep::Line(line),
                    Some(Ok(None) | Err(_)) | None => true,
                },
                None => false,
            };
            if let Some(end) = self.end.take_if(|_| is_over) {
                return TurnStep::End(end);
            }
            tokio::select! {
                biased;
                end = &mut self.result => self.end = Some(end),
                line = next_line(&mut self.follower) => match line {
                    Ok(None) => self.follower = None,
                    Err(error) => {
                        self.follower = None;
                        return TurnStep::Lost(error);
                    }
                    Ok(Some(line)) => {
                        if self.end.is_none() {
                            self.end = (&mut self.result).now_or_never();
                        }
                        match &self.end {
                            // The turn ended while another turn's line was read.
                            Some(Ok(result)) if line.seq > Some(result.seq) => self.follower = None,
                            Some(_) | None => return TurnStep::Line(line),
                        }
                    }
                },
            }
        }
    }
}

async fn next_line(follower: &mut Option<Follower>) -> Result<Option<FollowedLine>, SessionError> {
    match follower {
        Some(follower) => follower.next().await,
        None => std::future::pending().await,
    }
}

/// Follows the session of an accepted turn from its acceptance on.
///
/// # Errors
/// Those of `follow`.
pub async fn from_acceptance(service: &dyn SessionService, accepted: &TurnAccepted) -> Result<Follower, SessionError> {
    service.follow(&accepted.session_id, accepted.seq.saturating_sub(1)).await
}

/// Waits for the end of an accepted turn.
///
/// # Errors
/// `TURN_INTERRUPTED` if it left the queue without starting, or its session was deleted; `STORE_FAILED` if the store
/// failed during the turn, like for callers in the process that runs it.
pub async fn result(service: &dyn SessionService, accepted: TurnAccepted) -> Result<TurnResult, SessionError> {
    result_or_calls(service, accepted, false).await
}

/// Answers a call, without waiting for its turn; returns the turn, whose acceptance is the answer.
///
/// # Errors
/// Those of the operation; `HISTORY_PRUNED` if the answer was given so long ago that its record was dropped.
pub async fn answered(service: &dyn SessionService, request: AnswerCall) -> Result<TurnAccepted, SessionError> {
    let session_id = request.session_id;
    let AnsweredCall::Recorded(changed) = service.answer_call(AnswerCall { wait: false, ..request }).await? else {
        return Err(SessionError::Internal("an answer that does not wait has waited".to_owned()));
    };
    let answer = record_at(service, session_id, changed.seq).await?;
    let turn = answer.and_then(|record| record.turn).ok_or(SessionError::HistoryPruned)?;
    Ok(TurnAccepted { session_id, turn, seq: changed.seq })
}

/// Reads one record of a session; `None` if it was dropped.
///
/// # Errors
/// Those of reading events.
pub async fn record_at(
    service: &dyn SessionService,
    session_id: SessionId,
    seq: Seq,
) -> Result<Option<Record>, SessionError> {
    let read = ReadEvents { limit: Some(1), ..ReadEvents::new(session_id, seq.saturating_sub(1)) };
    let page = service.events(read).await?;
    let line = page.items.first().map(|line| str::from_utf8(line).map_err(unreadable)).transpose()?;
    // Where records were dropped, a live line says so.
    let line = line.filter(|line| decode_live(line).is_err());
    let record = line.map(|line| decode_event(line).map_err(unreadable)).transpose()?;
    Ok(record.filter(|record| record.seq == seq))
}

/// Makes the handle of an accepted turn, for a caller that waits for its end or until it waits for its caller.
#[must_use]
pub fn handle(service: Arc<dyn SessionService>, accepted: TurnAccepted) -> TurnHandle {
    let of = accepted.clone();
    let result = async move { result_or_calls(service.as_ref(), of, true).await }.boxed();
    TurnHandle { accepted, wait: true, result }
}

/// Ends a turn in any state: a queued one leaves the queue, a running one is interrupted.
pub async fn stop(service: &dyn SessionService, turn: &TurnAccepted) {
    let TurnAccepted { session_id, turn, .. } = *turn;
    if service.cancel_queued(CancelQueued { session_id, turn }).await.is_ok() {
        return;
    }
    if let Err(error) = service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await {
        tracing::debug!(%error, "a turn had ended before it was cancelled");
    }
}

/// Waits for the end of an accepted turn; if its caller `answers_calls`, also until the turn waits for that after its
/// acceptance.
///
/// # Errors
/// Those of [`result`].
pub async fn result_or_calls(
    service: &dyn SessionService,
    accepted: TurnAccepted,
    answers_calls: bool,
) -> Result<TurnResult, SessionError> {
    let TurnAccepted { session_id, turn, seq } = accepted;
    let mut follower = service.follow_turn(&session_id, turn, seq.saturating_sub(1)).await?;
    let (mut fold, mut has_begun, mut requested) = (TurnFold::new(turn), false, BTreeSet::new());
    while let Some(followed) = follower.next().await? {
        if followed.seq.is_none() {
            continue;
        }
        let record = std::str::from_utf8(&followed.line)
            .map_err(unreadable)
            .and_then(|line| decode_event(line).map_err(unreadable))?;
        let started = match &record.event {
            Event::TurnSteered(steered) => Some(steered.started),
            Event::CallAnswered(answered) => Some(answered.started),
            _ => None,
        };
        if let (Some(started), false) = (started, has_begun) {
            // A text or an answer came later: the turn's beginning says which model answers.
            has_begun = true;
            follower = service.follow_turn(&session_id, turn, started.saturating_sub(1)).await?;
            continue;
        }
        has_begun = true;
        if let Some(end) = fold.push(&record) {
            return so_far(service, session_id, end).await;
        }
        let is_of_a_call = match &record.event {
            Event::CallRequested(request) => requested.insert(request.call_id.clone()),
            Event::ToolFinished(finished) => requested.remove(&finished.call_id),
            // It may have come while the turn waited.
            Event::TurnSteered(_) => true,
            _ => false,
        };
        // All calls of a message are requested at once: the session knows which of them are open.
        if answers_calls && is_of_a_call && record.seq >= seq && !requested.is_empty() {
            let mut calls = service.calls(&session_id).await?.items;
            calls.retain(|call| call.turn == turn);
            // Calls that come later in the journal wait, too, for what the model said between.
            if !calls.is_empty() && calls.iter().all(|call| requested.contains(&call.call_id)) {
                let waiting = so_far(service, session_id, fold.waiting(&calls)).await?;
                return Ok(TurnResult { calls, ..waiting });
            }
        }
        if record.turn == Some(turn) && matches!(record.event, Event::TurnDequeued(_)) {
            break;
        }
    }
    Err(SessionError::Interrupted { turn })
}

/// Makes the answer of what there is of a turn, with its text whole.
async fn so_far(service: &dyn SessionService, session_id: SessionId, end: TurnEnd) -> Result<TurnResult, SessionError> {
    let (mut text, mut last_at) = (String::new(), 0);
    for body in end.text.iter() {
        last_at = text.len();
        text.push_str(&whole(service, session_id, body).await?);
    }
    Ok(end.result(session_id, text, last_at))
}

/// Reads a body's whole text, for callers that have it from an answer or an event.
///
/// # Errors
/// Those of reading a blob.
pub async fn whole(service: &dyn SessionService, session_id: SessionId, body: &Body) -> Result<String, SessionError> {
    match body {
        Body::Inline(text) => Ok(text.clone()),
        Body::Blob(body) => {
            let bytes = blob(service, session_id, &body.blob).await?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

/// Reads a whole blob, for callers that have its name from an answer or an event.
///
/// # Errors
/// Those of reading a blob.
pub async fn blob(service: &dyn SessionService, session_id: SessionId, blob: &str) -> Result<Vec<u8>, SessionError> {
    let (mut bytes, mut next) = (Vec::new(), Some(0));
    while let Some(offset) = next {
        let request = ReadBlob { session_id, blob: blob.to_owned(), offset, limit: None };
        let page = service.answer_blob(request).await?;
        let piece = page.bytes().filter(|piece| !piece.is_empty() || page.next_offset.is_none());
        bytes.extend(piece.ok_or_else(|| unreadable("a blob's page is empty or no base64"))?);
        next = page.next_offset;
    }
    Ok(bytes)
}

fn unreadable(error: impl std::fmt::Display) -> SessionError {
    SessionError::Internal(format!("an answer could not be read: {error}"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::{StreamExt as _, stream};
    use tokio::sync::oneshot;

    use super::*;
    use crate::AgentBuildConfig;

    /// The last line that is shown, and the end behind it.
    async fn shown(mut turn: FollowedTurn) -> (u64, Result<TurnResult, SessionError>) {
        let mut last = 0;
        loop {
            match turn.next().await {
                TurnStep::Line(line) => last = line.seq.unwrap_or(last),
                TurnStep::Lost(error) => panic!("{error}"),
                TurnStep::End(end) => return (last, end),
            }
        }
    }

    #[tokio::test]
    async fn the_lines_of_a_turn_come_before_its_end_and_those_of_another_do_not() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let session = agent.create_session().await.unwrap();
        let first = agent.turn(&session, "@say One.").await.unwrap();
        let second = agent.turn(&session, "@say Two.").await.unwrap();
        let accepted = TurnAccepted { session_id: session.session_id, turn: first.turn, seq: session.seq + 1 };
        let handle = |result| TurnHandle { accepted: accepted.clone(), wait: true, result };
        // No event records an end without a result: the available lines come first.
        for (end, last) in [(Ok(first.clone()), first.seq), (Err(SessionError::StoreFailed), second.seq)] {
            let follower = from_acceptance(agent.service().as_ref(), &accepted).await.unwrap();
            let turn = FollowedTurn::new(handle(ready(end.clone()).boxed()), Some(follower));
            let (shown, ended) = shown(turn).await;
            assert_eq!((shown, ended.ok()), (last, end.ok()));
        }
        // The turn ends while another turn's line is read.
        let (done, result) = oneshot::channel();
        let (end, line) = (first.clone(), FollowedLine { seq: Some(first.seq + 1), line: Bytes::new() });
        let read = async move {
            done.send(Ok(end)).unwrap();
            Ok(line)
        };
        let follower = Follower::of_lines(accepted.seq, stream::once(read).chain(stream::pending()).boxed());
        let turn = FollowedTurn::new(handle(async move { result.await.unwrap() }.boxed()), Some(follower));
        assert_eq!(shown(turn).await.0, 0);
    }

    #[tokio::test]
    async fn a_turn_has_its_end_without_its_lines() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let session = agent.create_session().await.unwrap();
        let ended = agent.turn(&session, "@say One.").await.unwrap();
        let accepted = TurnAccepted { session_id: session.session_id, turn: ended.turn, seq: session.seq + 1 };
        let handle = || TurnHandle { accepted: accepted.clone(), wait: true, result: ready(Ok(ended.clone())).boxed() };
        let failing = stream::once(async { Err(SessionError::StoreFailed) }).chain(stream::pending());
        let mut turn = FollowedTurn::new(handle(), Some(Follower::of_lines(0, failing.boxed())));
        assert!(matches!(turn.next().await, TurnStep::Lost(SessionError::StoreFailed)));
        assert!(matches!(turn.next().await, TurnStep::End(Ok(_))));
        let mut turn = FollowedTurn::new(handle(), None);
        assert!(matches!(turn.next().await, TurnStep::End(Ok(_))));
    }
}
