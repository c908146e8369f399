//! From a message to its answer: read, perform each request, write. The same for every transport.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::{FutureExt as _, future::join_all};
use meerkat_service::{
    Operation, SessionError, SessionService,
    service::Nothing,
    wire::{call, decode_params, encode, in_span},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    RpcOptions, discovery,
    error::Failure,
    methods::{Method, find},
    stream::{Peer, Start},
    wire::{self, Message},
};

/// Characters of an unknown method's name that its error repeats.
const NAME_SHOWN_MAX: usize = 100;

/// What all connections share.
pub(crate) struct Rpc {
    service: Arc<dyn SessionService>,
    pub(crate) options: RpcOptions,
    /// Cancelled when connections are to end.
    pub(crate) stop: CancellationToken,
    pub(crate) websockets: TaskTracker,
}

/// What a message is answered with, and the subscriptions that begin once it has been.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) answer: Option<Vec<u8>>,
    pub(crate) starts: Vec<Start>,
}

impl Rpc {
    pub(crate) fn new(service: Arc<dyn SessionService>, options: RpcOptions) -> Self {
        Self { service, options, stop: CancellationToken::new(), websockets: TaskTracker::new() }
    }

    /// Answers a message. The requests of a batch begin in their order and run side by side.
    pub(crate) async fn reply(&self, message: &[u8], peer: Option<&Arc<Peer>>) -> Reply {
        match wire::read_message(message, self.options.batch_requests) {
            Err(failure) => Reply { answer: Some(wire::answer(wire::NO_ID, &Err(failure))), ..Reply::default() },
            Ok(Message::One(text)) => self.reply_to_one(text, peer).await,
            Ok(Message::Batch(items)) => {
                let replies = join_all(items.into_iter().map(|text| self.reply_to_one(text, peer))).await;
                let (answers, starts): (Vec<_>, Vec<_>) = replies.into_iter().map(|it| (it.answer, it.starts)).unzip();
                let answers: Vec<_> = answers.into_iter().flatten().collect();
                Reply { answer: wire::batch_answer(&answers), starts: starts.into_iter().flatten().collect() }
            }
        }
    }

    async fn reply_to_one(&self, text: &str, peer: Option<&Arc<Peer>>) -> Reply {
        let call = match wire::read_call(text) {
            Ok(call) => call,
            Err((id, failure)) => {
                return Reply { answer: Some(wire::answer(id, &Err(failure))), ..Reply::default() };
            }
        };
        let mut starts = Vec::new();
        let performed = AssertUnwindSafe(self.perform(&call.method, call.params, peer, &mut starts)).catch_unwind();
        let result = performed.await.unwrap_or_else(|_| {
            tracing::error!(method = call.method, "a request panicked");
            Err(SessionError::Internal("the request panicked".to_owned()).into())
        });
        Reply { answer: call.id.map(|id| wire::answer(id, &result)), starts }
    }

    async fn perform(
        &self,
        method: &str,
        params: &str,
        peer: Option<&Arc<Peer>>,
        starts: &mut Vec<Start>,
    ) -> Result<Vec<u8>, Failure> {
        let no_peer = || {
            let message =
                "subscriptions need a WebSocket or stdio; over HTTP read session/events, with wait_ms to wait";
            Failure::from(SessionError::invalid("method", message))
        };
        match find(method) {
            Some(Method::Operation(operation @ Operation::Blob)) if self.options.is_for_commands => {
                let params = wire::by_name(params)?;
                let work = async { encode(&self.service.answer_blob(decode_params(params)?).await?) };
                Ok(in_span("rpc", operation, params, work).await?)
            }
            Some(Method::Operation(operation)) => {
                let params = wire::by_name(params)?;
                let answer = in_span("rpc", operation, params, call(self.service.as_ref(), operation, params)).await?;
                if let (Operation::StartTurn | Operation::Resume, Some(peer)) = (operation, peer)
                    && let Ok(wire::OfTurn { session_id, seq }) = serde_json::from_slice(&answer)
                {
                    // Who follows the session has the turn's events before its answer.
                    peer.sent_up_to(session_id, seq).await;
                }
                Ok(answer)
            }
            Some(Method::Subscribe) => {
                let peer = peer.ok_or_else(no_peer)?;
                let wire::Subscribe { session_id, since_seq, is_waiting } = decode_params(wire::by_name(params)?)?;
                if is_waiting && !self.options.is_for_commands {
                    return Err(SessionError::invalid("params", "unknown field `is_waiting`").into());
                }
                let follower = if is_waiting {
                    self.service.follow_turn(&session_id, since_seq).await?
                } else {
                    self.service.follow(&session_id, since_seq).await?
                };
                let (subscription, start) = peer.subscribe(session_id, follower)?;
                starts.push(start);
                Ok(encode(&subscription)?)
            }
            Some(Method::Unsubscribe) => {
                let peer = peer.ok_or_else(no_peer)?;
                let request = wire::Unsubscribe::decode(params)?;
                Ok(encode(&peer.unsubscribe(request.subscription).await)?)
            }
            Some(Method::Discover) => {
                let Nothing {} = decode_params(wire::by_name(params)?)?;
                Ok(encode(&discovery::document())?)
            }
            None => Err(SessionError::UnknownOperation(method.chars().take(NAME_SHOWN_MAX).collect()).into()),
        }
    }
}
