//! A session that is followed whoever owns it: from one owner to the next, without a gap or a duplicate.

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use meerkat_service::{
    ErrorCode, Seq, SessionError, SessionId,
    follow::{FollowedLine, Follower},
};

use crate::{
    client::{Client, Current, ENDING_LIMIT, OWNERS_MAX, within},
    connection::{Connection, Failed, Subscription},
    wire::Head,
};

/// Follows a session from after `since_seq`, perhaps to wait for a turn.
pub(crate) async fn follow(
    service: Client,
    session_id: SessionId,
    since_seq: Seq,
    is_waiting: bool,
) -> Result<Follower, SessionError> {
    let source = match source(&service, session_id, since_seq, is_waiting).await? {
        Source::Here(follower) => return Ok(follower),
        source => source,
    };
    let following = Following { service, session_id, cursor: since_seq, is_waiting, source };
    let lines = stream::unfold(Some(following), |following| async move {
        let mut following = following?;
        match following.next().await {
            Ok(line) => Some((Ok(line?), Some(following))),
            Err(error) => Some((Err(error), None)),
        }
    });
    Ok(Follower::of_lines(since_seq, lines.boxed()))
}

/// Where a follower's lines come from.
enum Source {
    There(Subscription, Arc<Connection>),
    Here(Follower),
}

/// A session that is followed, whoever owns it.
struct Following {
    service: Client,
    session_id: SessionId,
    cursor: Seq,
    is_waiting: bool,
    source: Source,
}

impl Following {
    /// The next line; `None` at the end of the session. It waits for no reader, and is never dropped half-way.
    async fn next(&mut self) -> Result<Option<FollowedLine>, SessionError> {
        loop {
            let (subscription, connection) = match &mut self.source {
                Source::Here(follower) => return follower.next().await,
                Source::There(subscription, connection) => (subscription, connection),
            };
            match subscription.next().await {
                Some(Ok(line)) => return Ok(Some(self.followed(line))),
                Some(Err(body)) => match body.code {
                    ErrorCode::SessionNotFound => return Ok(None),
                    // The owner ends, and its connection with it.
                    ErrorCode::ShuttingDown if within(ENDING_LIMIT, connection.closed().cancelled()).await => {}
                    ErrorCode::SubscriberLagged => {}
                    _ => return Err(SessionError::Remote(Box::new(body))),
                },
                None => {}
            }
            self.source = match source(&self.service, self.session_id, self.cursor, self.is_waiting).await {
                Err(error) if error.code() == ErrorCode::SessionNotFound => return Ok(None),
                other => other?,
            };
        }
    }

    /// Reads of a line what its cursor needs.
    fn followed(&mut self, line: Bytes) -> FollowedLine {
        let head: Option<Head<'_>> = serde_json::from_slice(&line).ok();
        let seq = head.as_ref().and_then(|head| head.seq);
        let pruned = head.as_ref().filter(|head| head.kind.get() == r#""pruned""#).and_then(|head| head.to);
        self.cursor = seq.or(pruned).unwrap_or(self.cursor);
        FollowedLine { seq, line }
    }
}

async fn source(
    service: &Client,
    session_id: SessionId,
    since_seq: Seq,
    is_waiting: bool,
) -> Result<Source, SessionError> {
    for _ in 0..OWNERS_MAX {
        match service.current().await? {
            Current::Here(own) if is_waiting => return own.follow_turn(&session_id, since_seq).await.map(Source::Here),
            Current::Here(own) => return own.follow(&session_id, since_seq).await.map(Source::Here),
            Current::There(connection) => match connection.subscribe(session_id, since_seq, is_waiting).await {
                Ok(subscription) => return Ok(Source::There(subscription, connection)),
                Err(Failed::Refused(body)) => return Err(SessionError::Remote(body)),
                Err(Failed::Unasked | Failed::Lost) => {}
            },
        }
    }
    Err(SessionError::StoreFailed)
}
