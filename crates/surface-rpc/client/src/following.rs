//! A session that is followed from one process that serves to the next, without a gap or a duplicate.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use jsonrpsee::core::client::Subscription;
use meerkat_service::{
    ErrorCode, Seq, SessionError, SessionService as _, TurnNumber,
    follow::{FollowedLine, Follower},
    service::ReadEvents,
};
use serde_json::value::RawValue;

use crate::{
    client::{Client, OWNERS_MAX},
    connection::{Connection, Failed},
    way::Server,
    wire::{Head, reason_of},
};

/// How long a page of events waits for the first one. It takes one of the places that the connection has for requests.
const PAGE_WAIT_MS: u64 = 1000;
/// Pause after a page without events.
const PAGE_PAUSE: Duration = Duration::from_millis(100);

/// Follows a session from after the request's cursor; for a caller that waits for `turn` if there is one.
pub(crate) async fn follow(
    service: Client,
    request: ReadEvents,
    turn: Option<TurnNumber>,
) -> Result<Follower, SessionError> {
    let source = match source(&service, &request, turn).await? {
        Source::Here(follower) => return Ok(follower),
        source => source,
    };
    let since_seq = request.since_seq;
    let following = Following { service, request, turn, source };
    let lines = stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        match following.next().await {
            Ok(line) => Some((Ok(line?), Some(following))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Follower::of_lines(since_seq, lines.boxed()))
}

/// The source of a follower's lines.
enum Source {
    There(Subscription<Box<RawValue>>, Arc<Connection>),
    /// Pages of events, without live ones: the connection has as many subscriptions as the server allows.
    Pages(VecDeque<Bytes>),
    Here(Follower),
}

/// A session that is followed.
struct Following {
    service: Client,
    /// What is asked for next: its cursor moves.
    request: ReadEvents,
    turn: Option<TurnNumber>,
    source: Source,
}

impl Following {
    /// The next line; `None` at the end of the session. It must not be dropped before it returns.
    async fn next(&mut self) -> Result<Option<FollowedLine>, SessionError> {
        loop {
            let (subscription, connection) = match &mut self.source {
                Source::Here(follower) => return follower.next().await,
                Source::There(subscription, connection) => (subscription, connection),
                Source::Pages(lines) => {
                    if let Some(line) = lines.pop_front() {
                        return Ok(Some(self.followed(line)));
                    }
                    let page = ReadEvents { limit: None, wait_ms: PAGE_WAIT_MS, ..self.request.clone() };
                    match self.service.events(page).await {
                        Err(error) if error.code() == ErrorCode::SessionNotFound => return Ok(None),
                        page => *lines = page?.items.into(),
                    }
                    if lines.is_empty() {
                        // The server may allow no wait at all.
                        tokio::time::sleep(PAGE_PAUSE).await;
                    }
                    continue;
                }
            };
            // Without a line the library has closed the subscription: the connection broke, or lines were not taken in time.
            if let Some(line) = subscription.next().await {
                let line = line.map_err(|error| SessionError::Internal(error.to_string()))?;
                match reason_of(line.get()).map(|body| (body.code, body)) {
                    // The library goes on behind lines that it dropped until the other side has ended the subscription.
                    None if is_behind_a_gap(line.get(), self.request.since_seq) => {}
                    None => return Ok(Some(self.followed(String::from(Box::<str>::from(line)).into()))),
                    Some((ErrorCode::SessionNotFound, _)) => return Ok(None),
                    Some((ErrorCode::SubscriberLagged, _)) => {}
                    // The process ends, and its connection with it.
                    Some((ErrorCode::ShuttingDown, _)) if connection.ends().await => {}
                    Some((_, body)) => return Err(SessionError::Remote(body)),
                }
            }
            self.source = match source(&self.service, &self.request, self.turn).await {
                Err(error) if error.code() == ErrorCode::SessionNotFound => return Ok(None),
                other => other?,
            };
        }
    }

    /// Moves the cursor behind a line.
    fn followed(&mut self, line: Bytes) -> FollowedLine {
        let head: Option<Head<'_>> = serde_json::from_slice(&line).ok();
        let seq = head.as_ref().and_then(|head| head.seq);
        let pruned = head.as_ref().filter(|head| head.kind.get() == r#""pruned""#).and_then(|head| head.to);
        self.request.since_seq = seq.or(pruned).unwrap_or(self.request.since_seq);
        FollowedLine { seq, line }
    }
}

/// Returns true if there is a durable line between the cursor and this one. Seqs that no line has are announced by one.
fn is_behind_a_gap(line: &str, since_seq: Seq) -> bool {
    let head: Option<Head<'_>> = serde_json::from_str(line).ok();
    head.and_then(|head| head.seq).is_some_and(|seq| seq > since_seq + 1)
}

async fn source(service: &Client, request: &ReadEvents, turn: Option<TurnNumber>) -> Result<Source, SessionError> {
    for _ in 0..OWNERS_MAX {
        match service.current().await? {
            Server::Here(own) => {
                let follower = match turn {
                    Some(turn) => own.follow_turn(&request.session_id, turn, request.since_seq).await,
                    None => own.follow_events(request.clone()).await,
                };
                return follower.map(Source::Here);
            }
            Server::There(connection) => match connection.subscribe(request, turn).await {
                Ok(subscription) => return Ok(Source::There(subscription, connection)),
                Err(Failed::Refused(body))
                    if body.code == ErrorCode::TooManyConnections && !connection.found.is_owner =>
                {
                    return Ok(Source::Pages(VecDeque::new()));
                }
                Err(Failed::Refused(body)) => return Err(SessionError::Remote(body)),
                Err(Failed::Unasked | Failed::Lost) => {
                    connection.ends().await;
                }
            },
        }
    }
    Err(SessionError::StoreFailed)
}
