//! Turns that are followed while they run, and cancelled with their request, like compactions.
//!
//! In the newest revision over HTTP a stream that closes cancels its request. Everywhere else only
//! `notifications/cancelled` does, and not a connection that drops or a stream that closes: the library cancels a
//! request's context for all of them, so the notification itself is listened to.

use std::{
    collections::{HashMap, VecDeque},
    future::pending,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ::http::request::Parts;
use meerkat_service::{
    SessionError, SessionService,
    follow::{
        FollowedLine,
        turn::{self, FollowedTurn, TurnStep, record_at},
    },
    service::{CompactSession, TurnAccepted, TurnHandle, TurnStatus},
    session::event::Event,
    wire,
};
use rmcp::{
    RoleServer,
    model::{InputRequiredResult, NotificationMetaObject, ProgressNotificationParam, ProgressToken, RequestId},
    service::{Peer, RequestContext},
};
use tokio_util::sync::CancellationToken;

use crate::{
    questions::{Questions, carry_on},
    rounds::{CallState, Rounds, asked_since, is_newest, waiting},
};

/// Cancelled ids that are kept for requests that have not begun. The library hands on both in any order.
const EARLY_MAX: usize = 64;
/// How long a client may leave a line unread before its progress ends.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Member of a progress notification with the event's line, for programs. Its message is words for people.
const EVENT: &str = "meerkat/event";

/// The requests of a client that it may cancel.
#[derive(Default)]
pub(crate) struct Cancellations(Mutex<Cancellable>);

#[derive(Default)]
struct Cancellable {
    running: HashMap<RequestId, CancellationToken>,
    early: VecDeque<RequestId>,
}

/// A request for a turn or a compaction, while it runs.
pub(crate) struct Request<'a> {
    all: &'a Cancellations,
    id: RequestId,
    cancelled: CancellationToken,
    ending: CancellationToken,
}

impl Request<'_> {
    /// Waits until the client cancels it. A server that ends closes its streams too, and that cancels nothing.
    async fn cancelled(&self) {
        self.cancelled.cancelled().await;
        if self.ending.is_cancelled() {
            pending().await
        }
    }
}

impl Cancellations {
    /// Begins a request to a server that ends with `ending`.
    pub(crate) fn begin(&self, context: &RequestContext<RoleServer>, ending: &CancellationToken) -> Request<'_> {
        let is_over_http = context.extensions.get::<Parts>().is_some();
        let cancelled = match is_over_http && is_newest(context) {
            true => context.ct.child_token(),
            false => CancellationToken::new(),
        };
        let mut asked = self.lock();
        // If an earlier request with this id was cancelled too late, this request's context is not cancelled.
        if context.ct.is_cancelled() && asked.early.contains(&context.id) {
            cancelled.cancel();
        }
        asked.running.insert(context.id.clone(), cancelled.clone());
        Request { all: self, id: context.id.clone(), cancelled, ending: ending.clone() }
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

    fn lock(&self) -> MutexGuard<'_, Cancellable> {
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

/// The answer for a turn.
pub(crate) enum Answer {
    /// It has ended, or is not waited for.
    End {
        /// The answer's bytes.
        body: Vec<u8>,
        /// It failed.
        is_failed: bool,
    },
    /// The client's person has to answer first.
    Ask(InputRequiredResult),
}

/// Answers for a turn: at once, or when it has ended and its events are sent, or when a person has to be asked.
pub(crate) async fn answer(
    service: &dyn SessionService,
    turn: TurnHandle,
    mut rounds: Option<Rounds>,
    request: &Request<'_>,
    context: &RequestContext<RoleServer>,
) -> Result<Answer, SessionError> {
    if !turn.wait {
        return Ok(Answer::End { body: turn.answer().await?, is_failed: false });
    }
    let accepted = turn.accepted.clone();
    let token = context.meta.get_progress_token();
    let mut progress = token.map(|token| Progress { peer: context.peer.clone(), token, sent: 0 });
    let mut questions = match is_newest(context) {
        true => None,
        false => Questions::new(service, &context.peer, accepted.session_id),
    };
    let mut seen = accepted.seq.saturating_sub(1);
    // What waits is looked at when a call begins to, and when the client has answered: from the first question on.
    let mut due = None;
    if let Some(rounds) = &mut rounds {
        rounds.decide(service).await?;
        if let Some(place) = &rounds.resumed {
            (seen, due) = (place.seen, Some(place.before));
        }
    }
    let follower = match progress.is_some() || questions.is_some() || rounds.is_some() {
        // The turn has its answer even if it cannot be followed.
        true => service.follow(&accepted.session_id, seen).await.ok(),
        false => None,
    };
    let mut turn = FollowedTurn::new(turn, follower);
    let mut is_cancelled = false;
    loop {
        if let Some(rounds) = &rounds
            && let Some(before) = due.take()
            && let Some(asked) = rounds.ask(service, CallState { accepted: accepted.clone(), seen, before }).await?
            && !request.cancelled.is_cancelled()
        {
            return Ok(Answer::Ask(asked));
        }
        tokio::select! {
            biased;
            () = request.cancelled(), if !is_cancelled => {
                is_cancelled = true;
                // Nothing may follow a cancellation.
                turn.stop_lines();
                stop(service, &accepted).await;
            }
            never = carry_on(&mut questions) => match never {},
            step = turn.next() => match step {
                TurnStep::Line(line) => {
                    seen = line.seq.unwrap_or(seen);
                    let before = asked_since(&accepted, &line.line);
                    due = before.filter(|_| rounds.is_some());
                    if let Some(questions) = &mut questions {
                        // What was asked before a text was steered is in no line that follows.
                        if let Some(before) = before.filter(|before| before + 1 < seen) {
                            let open = waiting(service, &accepted, before).await.unwrap_or_default();
                            open.into_iter().for_each(|call| questions.ask(call));
                        }
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
                    return Ok(Answer::End { body: wire::encode(&end)?, is_failed: end.status == TurnStatus::Failed });
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
    let ends = CancellationToken::new();
    let compaction = service.compact_until(asked, ends.clone());
    tokio::pin!(compaction);
    let compacted = tokio::select! {
        compacted = &mut compaction => compacted,
        () = request.cancelled() => {
            ends.cancel();
            compaction.await
        }
    };
    wire::encode(&compacted?)
}

/// Ends a turn in any state: a queued one leaves the queue, a running one is interrupted. A request that only steered a
/// turn or answered its call does not end it; if it cannot be found out what the request did, nothing ends.
async fn stop(service: &dyn SessionService, turn: &TurnAccepted) {
    let record = record_at(service, turn.session_id, turn.seq).await.ok().flatten();
    if record.is_some_and(|record| !matches!(record.event, Event::TurnSteered(_) | Event::CallAnswered(_))) {
        turn::stop(service, turn).await;
    }
}
