//! Turns that are followed while they run, and cancelled with their request, like compactions.
//!
//! Only `notifications/cancelled` cancels a turn, not a connection that drops or a stream that closes. The library
//! cancels a request's context for all of them, so the notification itself is listened to.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use meerkat_service::{
    SessionError, SessionService,
    follow::{
        FollowedLine,
        turn::{FollowedTurn, TurnStep, from_acceptance},
    },
    service::{CancelQueued, CompactSession, InterruptTurn, TurnAccepted, TurnHandle, TurnStatus},
    wire,
};
use rmcp::{
    RoleServer,
    model::{NotificationMetaObject, ProgressNotificationParam, ProgressToken, RequestId},
    service::{Peer, RequestContext},
};
use tokio_util::sync::CancellationToken;

use crate::questions::{Questions, carry_on};

/// Cancelled ids that are kept for requests that have not begun. The library hands on both in any order.
const EARLY_MAX: usize = 64;
/// How long a client may leave a line unread before its progress ends.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Member of a progress notification with the event's line, for programs. Its message is words for people.
const EVENT: &str = "meerkat/event";

/// The requests of a client that it may cancel.
#[derive(Default)]
pub(crate) struct Cancellations(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    running: HashMap<RequestId, CancellationToken>,
    early: VecDeque<RequestId>,
}

/// A request for a turn or a compaction, while it runs.
pub(crate) struct Request<'a> {
    all: &'a Cancellations,
    id: RequestId,
    cancelled: CancellationToken,
}

impl Cancellations {
    /// Begins a request.
    pub(crate) fn begin(&self, context: &RequestContext<RoleServer>) -> Request<'_> {
        let cancelled = CancellationToken::new();
        let mut asked = self.lock();
        // If an earlier request with this id was cancelled too late, this request's context is not cancelled.
        if context.ct.is_cancelled() && asked.early.contains(&context.id) {
            cancelled.cancel();
        }
        asked.running.insert(context.id.clone(), cancelled.clone());
        Request { all: self, id: context.id.clone(), cancelled }
    }

    /// Cancels a request.
    pub(crate) fn cancel(&self, id: RequestId) {
        let mut asked = self.lock();
        if let Some(cancelled) = asked.running.get(&id) {
            cancelled.cancel();
            return;
        }
        asked.early.truncate(EARLY_MAX - 1);
        asked.early.push_front(id);
    }

    fn lock(&self) -> MutexGuard<'_, Asked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.all.lock().running.remove(&self.id);
    }
}

/// A session's lines on their way to the client.
struct Progress {
    peer: Peer<RoleServer>,
    token: ProgressToken,
    sent: u32,
}

impl Progress {
    /// Sends a line; returns `false` if the client takes no more. The cursor waits for a slow client.
    async fn send(&mut self, line: &FollowedLine, cancelled: &CancellationToken) -> bool {
        self.sent += 1;
        let mut notification = ProgressNotificationParam::new(self.token.clone(), f64::from(self.sent));
        notification.message = wire::words(&line.line);
        let mut meta = NotificationMetaObject::default();
        meta.insert(EVENT.to_owned(), crate::wire::line(&line.line).into());
        notification.meta = Some(meta);
        tokio::select! {
            biased;
            () = cancelled.cancelled() => false,
            sent = tokio::time::timeout(STALL_MAX, self.peer.notify_progress(notification)) => matches!(sent, Ok(Ok(()))),
        }
    }
}

/// Answers for a turn: at once, or when it has ended and its events are sent. Returns also whether it failed.
pub(crate) async fn answer(
    service: &dyn SessionService,
    turn: TurnHandle,
    request: &Request<'_>,
    context: &RequestContext<RoleServer>,
) -> Result<(Vec<u8>, bool), SessionError> {
    if !turn.wait {
        return Ok((turn.answer().await?, false));
    }
    let accepted = turn.accepted.clone();
    let token = context.meta.get_progress_token();
    let mut progress = token.map(|token| Progress { peer: context.peer.clone(), token, sent: 0 });
    let mut questions = Questions::new(service, &context.peer, accepted.session_id);
    let follower = match progress.is_some() || questions.is_some() {
        // The turn has its answer even if it cannot be followed.
        true => from_acceptance(service, &accepted).await.ok(),
        false => None,
    };
    let mut turn = FollowedTurn::new(turn, follower);
    let mut is_cancelled = false;
    loop {
        tokio::select! {
            biased;
            () = request.cancelled.cancelled(), if !is_cancelled => {
                is_cancelled = true;
                // Nothing may follow a cancellation.
                turn.stop_lines();
                stop(service, &accepted).await;
            }
            never = carry_on(&mut questions) => match never {},
            step = turn.next() => match step {
                TurnStep::Line(line) => {
                    if let Some(questions) = &mut questions {
                        questions.see(&line.line);
                    }
                    // A client that reads nothing loses the rest.
                    if let Some(progress) = &mut progress {
                        // A person's answer counts meanwhile.
                        let is_read = tokio::select! {
                            is_read = progress.send(&line, &request.cancelled) => is_read,
                            never = carry_on(&mut questions) => match never {},
                        };
                        if !is_read {
                            turn.stop_lines();
                        }
                    }
                }
                TurnStep::Lost(_) => {}
                TurnStep::End(end) => {
                    let end = end?;
                    if let Some(questions) = questions {
                        questions.withdraw().await;
                    }
                    return Ok((wire::encode(&end)?, end.status == TurnStatus::Failed));
                }
            }
        }
    }
}

/// Answers for a compaction. If the request is cancelled, that compaction ends, and nothing else of the session.
pub(crate) async fn compact(
    service: &dyn SessionService,
    asked: CompactSession,
    request: &Request<'_>,
) -> Result<Vec<u8>, SessionError> {
    wire::encode(&service.compact_until(asked, request.cancelled.clone()).await?)
}

/// Ends a turn in any state: a queued one leaves the queue, a running one is interrupted.
async fn stop(service: &dyn SessionService, turn: &TurnAccepted) {
    let TurnAccepted { session_id, turn, .. } = *turn;
    if service.cancel_queued(CancelQueued { session_id, turn }).await.is_ok() {
        return;
    }
    if let Err(error) = service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await {
        tracing::debug!(%error, "a turn had ended before its request was cancelled");
    }
}
