//! A turn that is followed while it runs, and what happens where its client takes it, or a compaction, back.
//!
//! Only `notifications/cancelled` takes a turn back. A connection that drops or a stream that closes does not: the
//! library cancels a request's context for all of them alike, so the notification itself is listened to.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::FutureExt as _;
use meerkat_service::{
    SessionError, SessionService,
    follow::{FollowedLine, Follower},
    service::{BegunTurn, CancelQueued, CompactSession, InterruptTurn, TurnAccepted, TurnResult, TurnStatus},
    wire::{self, BegunCall},
};
use rmcp::{
    RoleServer,
    model::{NotificationMetaObject, ProgressNotificationParam, ProgressToken, RequestId},
    service::{Peer, RequestContext},
};
use tokio_util::sync::CancellationToken;

/// Cancelled ids that are kept for requests that have not begun. The library hands both on side by side.
const EARLY_MAX: usize = 64;
/// How long a client may leave a line unread before its progress ends.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Where progress, which is words for people, has the event's line for programs.
const EVENT: &str = "meerkat/event";

/// The turns that a client asked for and may take back.
#[derive(Default)]
pub(crate) struct Cancellations(Mutex<Asked>);

#[derive(Default)]
struct Asked {
    running: HashMap<RequestId, CancellationToken>,
    early: VecDeque<RequestId>,
}

/// A request for a turn, for as long as it runs.
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
        // An id that was used before may have been cancelled too late; then this request's context is not.
        if context.ct.is_cancelled() && asked.early.contains(&context.id) {
            cancelled.cancel();
        }
        asked.running.insert(context.id.clone(), cancelled.clone());
        Request { all: self, id: context.id.clone(), cancelled }
    }

    /// Takes a request back.
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

/// The session's lines on their way to the client, from a turn's acceptance on. A cursor, never a queue.
struct Progress {
    follower: Option<Follower>,
    peer: Peer<RoleServer>,
    token: Option<ProgressToken>,
    sent: u32,
}

impl Progress {
    async fn begin(service: &dyn SessionService, turn: &TurnAccepted, context: &RequestContext<RoleServer>) -> Self {
        let token = context.meta.get_progress_token();
        let follower = match &token {
            // Without its events the turn still has its answer.
            Some(_) => service.follow(&turn.session_id, turn.seq.saturating_sub(1)).await.ok(),
            None => None,
        };
        Self { follower, peer: context.peer.clone(), token, sent: 0 }
    }

    /// Whether there is nothing more to send of a turn that ended.
    fn is_past(&self, end: &TurnResult) -> bool {
        self.follower.as_ref().is_none_or(|follower| follower.cursor() >= end.seq)
    }

    /// The next line. It can be dropped and called again.
    async fn next(&mut self) -> Option<FollowedLine> {
        match &mut self.follower {
            Some(follower) => follower.next().await.ok().flatten(),
            None => std::future::pending().await,
        }
    }

    /// Sends a line; the client's pace holds the cursor back, and one that reads nothing loses the rest.
    async fn send(&mut self, line: &FollowedLine, cancelled: &CancellationToken) {
        let Some(token) = self.token.clone() else { return };
        self.sent += 1;
        let mut notification = ProgressNotificationParam::new(token, f64::from(self.sent));
        notification.message = wire::words(&line.line);
        let mut meta = NotificationMetaObject::default();
        meta.insert(EVENT.to_owned(), crate::wire::line(&line.line).into());
        notification.meta = Some(meta);
        let is_sent = tokio::select! {
            biased;
            () = cancelled.cancelled() => false,
            sent = tokio::time::timeout(STALL_MAX, self.peer.notify_progress(notification)) => matches!(sent, Ok(Ok(()))),
        };
        if !is_sent {
            self.follower = None;
        }
    }
}

/// Answers for a turn: at once, or when it has ended and its events are sent. Says whether it failed.
pub(crate) async fn answer(
    service: &dyn SessionService,
    call: BegunCall,
    request: &Request<'_>,
    context: &RequestContext<RoleServer>,
) -> Result<(Vec<u8>, bool), SessionError> {
    if !call.wait {
        return Ok((call.answer().await?, false));
    }
    let BegunTurn { accepted, mut result } = call.turn;
    let mut progress = Progress::begin(service, &accepted, context).await;
    let mut ended: Option<TurnResult> = None;
    let mut is_taken_back = false;
    loop {
        if let Some(end) = ended.as_ref().filter(|end| progress.is_past(end)) {
            return Ok((wire::encode(end)?, end.status == TurnStatus::Failed));
        }
        tokio::select! {
            biased;
            () = request.cancelled.cancelled(), if !is_taken_back => {
                is_taken_back = true;
                // Nothing may follow what was taken back.
                progress.follower = None;
                stop(service, &accepted).await;
            }
            end = &mut result, if ended.is_none() => ended = Some(end?),
            line = progress.next() => {
                // A turn is answered before anything comes after it, so what does is not its own.
                if ended.is_none() && let Some(end) = (&mut result).now_or_never() {
                    ended = Some(end?);
                }
                let end = ended.as_ref().map_or(u64::MAX, |end| end.seq);
                match line.filter(|line| line.seq.is_none_or(|seq| seq <= end)) {
                    Some(line) => progress.send(&line, &request.cancelled).await,
                    None => progress.follower = None,
                }
            }
        }
    }
}

/// Answers for a compaction. A client that takes it back ends that one, and nothing else of the session.
pub(crate) async fn compact(
    service: &dyn SessionService,
    asked: CompactSession,
    request: &Request<'_>,
) -> Result<Vec<u8>, SessionError> {
    wire::encode(&service.compact_until(asked, request.cancelled.clone()).await?)
}

/// Ends a turn wherever it is: one that waits leaves the queue, one that runs is interrupted, one that ended stays.
async fn stop(service: &dyn SessionService, turn: &TurnAccepted) {
    let TurnAccepted { session_id, turn, .. } = *turn;
    if service.cancel_queued(CancelQueued { session_id, turn }).await.is_ok() {
        return;
    }
    if let Err(error) = service.interrupt(InterruptTurn { session_id, turn: Some(turn) }).await {
        tracing::debug!(%error, "a turn that was taken back had ended already");
    }
}
