//! From a message to its answer, on every transport: read it, perform each request, write.

use std::{panic::AssertUnwindSafe, sync::Arc};

use bytes::Bytes;
use futures::{FutureExt as _, future::join_all};
use meerkat_service::{
    Operation, SessionError, SessionService,
    operation::OperationEffect,
    service::{FollowSessions, Nothing, ReadEvents},
    wire::{Answer, Answers, begin_for_command, call, decode_params, encode, in_span, span_of, within},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    RpcOptions, discovery,
    error::Failure,
    methods::{Method, find},
    stream::{Peer, Source, Start},
    wire::{self, Message},
};

/// Characters of an unknown method's name in its refusal.
const NAME_SHOWN_MAX: usize = 100;

/// State that all connections share.
pub(crate) struct Rpc {
    service: Arc<dyn SessionService>,
    pub(crate) options: RpcOptions,
    /// Cancelled to end all connections.
    pub(crate) stop: CancellationToken,
    pub(crate) websockets: TaskTracker,
}

/// The answer to a message, and the subscriptions that begin after it.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) answer: Option<Bytes>,
    pub(crate) starts: Vec<Start>,
    /// The message's place, until its answer is queued.
    pub(crate) places: Vec<Place>,
}

/// A message's place among those of its connection that are under way. The requests of a batch share it, and a request
/// that only waits for the end of a turn gives it up.
pub(crate) type Place = Arc<OwnedSemaphorePermit>;

/// The origin of requests.
#[derive(Clone)]
pub(crate) struct From {
    /// The connection, if it can be written to at any time.
    pub(crate) peer: Option<Arc<Peer>>,
    pub(crate) answers: Answers,
    pub(crate) place: Option<Place>,
}

/// The answer to one request.
struct Replied {
    /// A notification has none.
    answer: Option<Answer>,
    start: Option<Start>,
    place: Option<Place>,
}

impl Replied {
    fn refusal(id: &str, failure: Failure) -> Self {
        Self { answer: Some(wire::answer(id, &Err(failure)).into()), start: None, place: None }
    }
}

/// A request that outlives its message.
struct Asked {
    id: Option<String>,
    method: String,
    params: String,
}

impl Rpc {
    pub(crate) fn new(service: Arc<dyn SessionService>, options: RpcOptions) -> Self {
        Self { service, options, stop: CancellationToken::new(), websockets: TaskTracker::new() }
    }

    /// Answers a message. The requests of a batch begin in their order and run side by side, its reads one by one.
    ///
    /// If this is dropped, reads are cancelled; everything else is performed.
    pub(crate) async fn reply(&self, message: Bytes, mut from: From) -> Reply {
        let place = from.place.take();
        let asked = |text| match wire::read_call(text) {
            Ok(wire::Call { id, method, params }) => {
                Ok(Asked { id: id.map(str::to_owned), method, params: params.to_owned() })
            }
            Err((id, failure)) => Err((id.to_owned(), failure)),
        };
        let (items, is_batch): (Vec<_>, bool) = match wire::read_message(&message, self.options.batch_requests) {
            Err(failure) => (vec![Err((wire::NO_ID.to_owned(), failure))], false),
            Ok(Message::One(text)) => (vec![asked(text)], false),
            Ok(Message::Batch(texts)) => (texts.into_iter().map(asked).collect(), true),
        };
        // A request that waits long does not keep the message in memory.
        drop(message);
        if is_batch {
            from.answers = from.answers.of_batch();
        }
        let replies = items.into_iter().map(|asked| self.reply_to_one(asked, &from, place.clone()));
        let replies: Vec<_> = replies.collect();
        drop(place);
        let mut reply = Reply::default();
        let mut answers = Vec::new();
        for replied in join_all(replies).await {
            answers.extend(replied.answer);
            reply.starts.extend(replied.start);
            reply.places.extend(replied.place);
        }
        let answer = if is_batch { Answer::join(answers, wire::batch_answer) } else { answers.pop() };
        reply.answer = answer.map(Answer::into_bytes);
        reply
    }

    async fn reply_to_one(
        &self,
        asked: Result<Asked, (String, Failure)>,
        from: &From,
        mut place: Option<Place>,
    ) -> Replied {
        let Asked { id, method, params } = match asked {
            Ok(asked) => asked,
            Err((id, failure)) => return Replied::refusal(&id, failure),
        };
        let mut start = None;
        let performed = AssertUnwindSafe(self.perform(&method, params, from, &mut start, &mut place));
        let result = performed.catch_unwind().await.unwrap_or_else(|_| Err(panicked(&method)));
        let answer = id.map(|id| match result {
            Ok(answer) => answer.map(|result| wire::answer(&id, &Ok(result))),
            Err(failure) => wire::answer(&id, &Err(failure)).into(),
        });
        Replied { answer, start, place }
    }

    async fn perform(
        &self,
        method: &str,
        params: String,
        from: &From,
        starts: &mut Option<Start>,
        place: &mut Option<Place>,
    ) -> Result<Answer, Failure> {
        let no_peer = || {
            let message =
                "subscriptions need a WebSocket or stdio; over HTTP read session/events, with wait_ms to wait";
            Failure::from(SessionError::invalid("method", message))
        };
        match find(method) {
            Some(Method::Operation(operation @ Operation::Blob)) if self.options.is_for_commands => {
                let params = wire::by_name(&params)?;
                let work = async { encode(&self.service.answer_blob(decode_params(params)?).await?) };
                Ok(in_span("rpc", operation, params, work).await?.into())
            }
            // A command may name the folder that its user stands in.
            Some(Method::Operation(operation @ Operation::CreateSession)) if self.options.is_for_commands => {
                let params = wire::by_name(&params)?;
                let work = async { encode(&self.service.create_session(decode_params(params)?).await?) };
                Ok(in_span("rpc", operation, params, work).await?.into())
            }
            Some(Method::Operation(operation)) => {
                wire::by_name(&params)?;
                self.operate(operation, params, from, place).await
            }
            Some(Method::Subscribe) => {
                let peer = from.peer.as_ref().ok_or_else(no_peer)?;
                let wire::Subscribe { session_id, since_seq, skip_damage, turn } =
                    decode_params(wire::by_name(&params)?)?;
                let follower = match turn {
                    Some(turn) if self.options.is_for_commands => {
                        self.service.follow_turn(&session_id, turn, since_seq).await?
                    }
                    Some(_) => return Err(SessionError::invalid("params", "unknown field `turn`").into()),
                    None => {
                        let request = ReadEvents { skip_damage, ..ReadEvents::new(session_id, since_seq) };
                        self.service.follow_events(request).await?
                    }
                };
                let (subscription, start) = peer.subscribe(Source::Session(session_id, follower))?;
                *starts = Some(start);
                Ok(encode(&subscription)?.into())
            }
            Some(Method::ListSubscribe) => {
                let peer = from.peer.as_ref().ok_or_else(no_peer)?;
                let wire::ListSubscribe { cursor } = decode_params(wire::by_name(&params)?)?;
                // A wrong cursor is refused before the subscription begins.
                let request = FollowSessions { cursor, ..FollowSessions::default() };
                let page = self.service.changes(request).await?;
                let source = Source::List(self.service.clone(), Box::new(Some(page)), None);
                let (subscription, start) = peer.subscribe(source)?;
                *starts = Some(start);
                Ok(encode(&subscription)?.into())
            }
            Some(Method::Unsubscribe) => {
                let peer = from.peer.as_ref().ok_or_else(no_peer)?;
                let request = wire::Unsubscribe::decode(&params)?;
                Ok(encode(&peer.unsubscribe(request.subscription).await)?.into())
            }
            Some(Method::Discover) => {
                let Nothing {} = decode_params(wire::by_name(&params)?)?;
                Ok(encode(&discovery::document())?.into())
            }
            None => Err(SessionError::UnknownOperation(method.chars().take(NAME_SHOWN_MAX).collect()).into()),
        }
    }

    async fn operate(
        &self,
        operation: Operation,
        params: String,
        from: &From,
        place: &mut Option<Place>,
    ) -> Result<Answer, Failure> {
        if operation.effect() == OperationEffect::Reads {
            let service = self.service.as_ref();
            let work = from.answers.call(service, operation, &params);
            return Ok(in_span("rpc", operation, &params, work).await?);
        }
        // In its own task, so it is performed even if the caller leaves.
        let (service, waits, held) = (self.service.clone(), from.peer.as_ref().map(|peer| peer.waits()), place.take());
        let span = span_of("rpc", operation, &params);
        let search_path = from.peer.as_ref().and_then(|peer| peer.search_path.clone());
        let performed = tokio::spawn(async move {
            let mut held = held;
            let mut is_waiting = None;
            let work = async {
                let params = params;
                let begun = match operation {
                    Operation::StartTurn | Operation::Resume => {
                        let is_resume = operation == Operation::Resume;
                        begin_for_command(service.as_ref(), is_resume, &params, search_path).await?
                    }
                    _ => return call(service.as_ref(), operation, &params).await,
                };
                // While it waits for the end of the turn, the prompt is not kept.
                drop(params);
                is_waiting = waits.and_then(|waits| waits.try_acquire_owned().ok());
                if is_waiting.is_some() {
                    held = None;
                }
                begun.answer().await
            };
            let result = within(span, work).await;
            (result, held.or_else(|| is_waiting.map(Arc::new)))
        });
        let (result, held) = performed.await.map_err(|_| panicked(operation.name()))?;
        *place = held;
        let answer = result?;
        if let (Operation::StartTurn | Operation::Resume, Some(peer)) = (operation, &from.peer)
            && let Ok(wire::OfTurn { session_id, seq }) = serde_json::from_slice(&answer)
        {
            // A caller who follows the session gets the turn's events before its answer.
            peer.sent_up_to(session_id, seq).await;
        }
        Ok(answer.into())
    }
}

fn panicked(method: &str) -> Failure {
    tracing::error!(method, "a request panicked");
    SessionError::Internal("the request panicked".to_owned()).into()
}

/// Whether a message is one request that ends or decides what others wait for. It must not wait for them.
pub(crate) fn is_control(message: &[u8]) -> bool {
    let Ok(Message::One(text)) = wire::read_message(message, 1) else { return false };
    let method = wire::read_call(text).ok().and_then(|call| find(&call.method));
    matches!(
        method,
        Some(
            Method::Operation(Operation::Interrupt | Operation::DecideApproval | Operation::CancelQueued)
                | Method::Unsubscribe
        )
    )
}
