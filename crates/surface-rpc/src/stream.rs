//! Subscriptions: each is a cursor, never a queue. One task moves it as fast as the client reads.

use std::{panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use jsonrpsee::{
    PendingSubscriptionSink, SendTimeoutError, SubscriptionSink,
    server::MethodSink,
    types::{Extensions, Params},
};
use meerkat_service::{
    ErrorBody, Operation, Seq, SessionError, SessionId, SessionService,
    follow::Follower,
    service::{ChangePage, FollowSessions, ReadEvents},
    wire::{decode_params, encode},
};

use crate::{
    error::{self, Failure},
    handlers::{Connection, Rpc},
    wire,
};

/// Milliseconds to wait for changes of the list before it is asked again; nobody sees it.
const LIST_WAIT_MS: u64 = 30_000;

/// The origin of a subscription's lines.
enum Source {
    /// The events of a session.
    Session(SessionId, Follower),
    /// The changes of the list, with the first page and the cursor after the last one.
    List(Arc<dyn SessionService>, Box<Option<ChangePage>>, Option<String>),
}

impl Source {
    /// Begins to follow the session that the parameters name.
    async fn of_session(rpc: &Rpc, params: Params<'static>) -> Result<Self, SessionError> {
        let params = wire::by_name(params.as_str().unwrap_or_default())?;
        let wire::Subscribe { session_id, since_seq, skip_damage, turn } = decode_params(params)?;
        let follower = match turn {
            Some(turn) if rpc.options.is_for_commands => rpc.service.follow_turn(&session_id, turn, since_seq).await?,
            Some(_) => return Err(SessionError::invalid("params", "unknown field `turn`")),
            None => {
                let request = ReadEvents { skip_damage, ..ReadEvents::new(session_id, since_seq) };
                rpc.service.follow_events(request).await?
            }
        };
        Ok(Self::Session(session_id, follower))
    }

    /// Begins to follow the list. A wrong cursor is refused here.
    async fn of_list(rpc: &Rpc, params: Params<'static>) -> Result<Self, SessionError> {
        rpc.service.capabilities().admit(Operation::Changes)?;
        let wire::ListSubscribe { cursor } = decode_params(wire::by_name(params.as_str().unwrap_or_default())?)?;
        let page = rpc.service.changes(FollowSessions { cursor, ..FollowSessions::default() }).await?;
        Ok(Self::List(rpc.service.clone(), Box::new(Some(page)), None))
    }

    /// The seq after which events come; `None` for the list.
    const fn cursor(&self) -> Option<Seq> {
        match self {
            Self::Session(_, follower) => Some(follower.cursor()),
            Self::List(..) => None,
        }
    }

    /// Waits for the next line.
    async fn next(&mut self) -> Result<Bytes, SessionError> {
        match self {
            Self::Session(session_id, follower) => {
                let line = follower.next().await?.ok_or(SessionError::NotFound(*session_id))?;
                Ok(line.line)
            }
            Self::List(service, first, cursor) => loop {
                let page = match first.take() {
                    Some(page) => page,
                    None => {
                        let cursor = cursor.clone();
                        service.changes(FollowSessions { cursor, limit: None, wait_ms: LIST_WAIT_MS }).await?
                    }
                };
                let has_news = page.restarts || !page.items.is_empty();
                let line = encode(&page)?;
                *cursor = Some(page.next_cursor);
                if has_news {
                    return Ok(line.into());
                }
            },
        }
    }
}

/// Answers `session/subscribe`, and sends the session's events.
pub(crate) async fn follow_session(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    rpc: Arc<Rpc>,
    extensions: Extensions,
) {
    follow(Source::of_session(&rpc, params), pending, &rpc, &extensions).await;
}

/// Answers `session/list_subscribe`, and sends the changes of the list.
pub(crate) async fn follow_list(
    params: Params<'static>,
    pending: PendingSubscriptionSink,
    rpc: Arc<Rpc>,
    extensions: Extensions,
) {
    follow(Source::of_list(&rpc, params), pending, &rpc, &extensions).await;
}

/// Waits for a source. After a panic the library would never answer.
async fn begun(source: impl Future<Output = Result<Source, SessionError>>) -> Result<Source, SessionError> {
    let source = AssertUnwindSafe(source).catch_unwind().await;
    source.unwrap_or_else(|_| Err(SessionError::Internal("the request panicked".to_owned())))
}

/// Takes a place before the source is opened.
async fn follow(
    source: impl Future<Output = Result<Source, SessionError>>,
    pending: PendingSubscriptionSink,
    rpc: &Rpc,
    extensions: &Extensions,
) {
    let _following = rpc.following.token();
    let place = extensions.get::<Arc<Connection>>().map(|connection| connection.subscriptions.clone());
    let place = place.ok_or_else(|| error::no_subscriptions().body()).and_then(|places| {
        places.try_acquire_owned().map_err(|_| error::too_many_subscriptions(rpc.options.subscriptions))
    });
    let _place = match place {
        Ok(place) => place,
        Err(body) => return pending.reject(Failure::from(body)).await,
    };
    let source = match begun(source).await {
        Ok(source) => source,
        Err(error) => return pending.reject(Failure::from(error)).await,
    };
    // If it fails, the client has left.
    let Ok(sink) = pending.accept().await else { return };
    if let Some(reason) = send_events(&sink, source, rpc).await
        && let Some(connection) = extensions.get::<MethodSink>()
        && let Ok(end) = wire::end_of_subscription(sink.subscription_id(), reason.into())
    {
        // The client may have left.
        connection.send(end).await.ok();
    }
}

/// Sends events until the client leaves or the subscription ends; returns the reason for the end. The library's queue has
/// few places, so a client that reads nothing holds few events.
async fn send_events(sink: &SubscriptionSink, mut source: Source, rpc: &Rpc) -> Option<ErrorBody> {
    loop {
        let since_seq = source.cursor();
        let line = tokio::select! {
            biased;
            () = sink.closed() => return None,
            line = source.next() => line,
            () = rpc.stop.cancelled() => Err(SessionError::ShuttingDown),
        };
        let line = match line.and_then(|line| wire::raw(line.to_vec())) {
            Ok(line) => line,
            Err(error) => return Some(error.body()),
        };
        let sent = tokio::select! {
            biased;
            () = sink.closed() => return None,
            sent = sink.send_timeout(line, rpc.options.stall()) => sent,
        };
        match sent {
            Ok(()) => {}
            Err(SendTimeoutError::Timeout(_)) => return Some(error::lagged(since_seq)),
            Err(SendTimeoutError::Closed(_)) => return None,
        }
    }
}
