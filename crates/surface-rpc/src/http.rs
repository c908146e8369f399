//! jsonrpsee's server behind checks of ours: a POST is one message, an upgrade to a WebSocket is a connection.
//!
//! A mistake in the HTTP is answered with a status and the error's body, like by the guard; a mistake in a request with
//! a JSON-RPC error that carries the body. What is no request at all is answered by the library, without a body.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use jsonrpsee::{
    core::middleware::{Batch, BatchEntry, Notification, Request as Call, RpcServiceT},
    server::{
        BatchResponseBuilder, HttpBody, MethodCallback, MethodResponse, Methods, PingConfig, ServerBuilder,
        ServerConfig, TowerServiceBuilder, middleware::rpc::RpcServiceBuilder, ws::is_upgrade_request,
    },
    types::{Extensions, Id, TwoPointZero},
};
use meerkat_service::{ErrorBody, SessionError, wire::encode};
use tokio::sync::OwnedSemaphorePermit;
use tower::{
    BoxError, Layer, Service as _,
    layer::util::{Identity, Stack},
};

use crate::{
    Inner, RpcOptions,
    error::{Failure, batch_too_large, no_subscriptions, not_a_post, status, too_large, too_many_requests},
    handlers::{Connection, Places, Rooms},
};

/// Requests of one batch.
const BATCH_MAX: usize = 100;

/// Messages that wait to be written to a WebSocket. More would only cost memory: a subscription waits with its cursor.
const QUEUE: u32 = 4;

/// Bytes of the answers to a batch. Requests beyond it are performed, and answered with an error.
const BATCH_ANSWER_BYTES: usize = 12 * 1024 * 1024;

/// A message on a WebSocket that is longer than the limit by no more than this factor is read, so that its refusal names
/// its request. That of a longer one names none.
pub const OVERSIZE_READ: usize = 2;

/// Characters of an unknown method's name in its refusal.
const NAME_SHOWN_MAX: usize = 100;

type Answer = Response<HttpBody>;

/// The places of a request, and their connection. A request over HTTP has none.
type Held = Option<(Arc<Connection>, Vec<OwnedSemaphorePermit>)>;
type Server = TowerServiceBuilder<Stack<Checks, Identity>, Identity>;

/// The library's server for each of the two transports. They differ in the size of messages.
pub(crate) struct Transports {
    http: Server,
    websocket: Server,
}

impl Transports {
    pub(crate) fn new(methods: &Methods, options: &RpcOptions) -> Self {
        let bytes = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        // The listener bounds connections, a connection its requests and subscriptions, and the service its answers.
        let config = || {
            ServerConfig::builder()
                .max_connections(u32::MAX)
                .max_subscriptions_per_connection(u32::MAX)
                .max_response_body_size(u32::MAX)
                .set_message_buffer_capacity(QUEUE)
                // A client that reads slowly answers a ping late.
                .enable_ws_ping(PingConfig::new().ping_interval(options.stall()).inactive_limit(options.stall() * 2))
        };
        let server = |config: ServerConfig| {
            let checks = Checks {
                methods: methods.clone(),
                message_bytes: options.message_bytes,
                requests_max: options.concurrent_requests,
            };
            let checks = RpcServiceBuilder::new().layer(checks);
            ServerBuilder::with_config(config).set_rpc_middleware(checks).to_service_builder()
        };
        let oversize = options.message_bytes.saturating_mul(OVERSIZE_READ);
        Self {
            http: server(config().http_only().max_request_body_size(bytes(options.message_bytes)).build()),
            websocket: server(config().ws_only().max_request_body_size(bytes(oversize)).build()),
        }
    }
}

/// Answers an HTTP request.
pub(crate) async fn handle<B>(surface: &Inner, request: Request<B>) -> Answer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if is_upgrade_request(&request) {
        return upgrade(surface, request).await;
    }
    if request.method() != Method::POST {
        let mut answer = refused(&not_a_post());
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        return answer;
    }
    if !is_json(request.headers()) {
        let error = SessionError::invalid("Content-Type", "send application/json");
        return refused(&error.body());
    }
    // The library answers a body that does not say how long it is with 500 if it is too long.
    let (mut head, body) = request.into_parts();
    // The library knows only some spellings of it.
    head.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let max = surface.rpc.options.message_bytes;
    let body = match Limited::new(body, max).collect().await {
        Ok(body) => Full::new(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => return refused(&too_large(max)),
        Err(error) => {
            let message = format!("it could not be read to its end: {error}");
            return refused(&SessionError::invalid("body", message).body());
        }
    };
    let server = surface.transports.http.clone();
    let rooms = Rooms::default();
    head.extensions.insert(rooms.clone());
    let request = Request::from_parts(head, body);
    match server.build(surface.methods.clone(), surface.stopped.clone()).call(request).await {
        Ok(answer) if answer.extensions().get::<NoAnswer>().is_some() => empty(StatusCode::NO_CONTENT),
        Ok(answer) => answer.map(|body| HttpBody::new(Kept { body, _rooms: rooms })),
        Err(error) => {
            tracing::error!(%error, "a request over HTTP failed");
            refused(&SessionError::Internal("the request failed".to_owned()).body())
        }
    }
}

/// Answers the handshake; the library serves the connection.
async fn upgrade<B>(surface: &Inner, mut request: Request<B>) -> Answer
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    if surface.rpc.stop.is_cancelled() {
        return refused(&SessionError::ShuttingDown.body());
    }
    request.extensions_mut().insert(Connection::new(&surface.rpc.options, None));
    let server = surface.transports.websocket.clone();
    let mut server = server.build(surface.methods.clone(), surface.stopped.clone());
    surface.websockets.spawn(server.on_session_closed());
    match server.call(request).await {
        Ok(answer) if answer.status() == StatusCode::SWITCHING_PROTOCOLS => answer,
        Ok(_) | Err(_) => {
            let message = "a WebSocket is opened by GET, with Sec-WebSocket-Key and Sec-WebSocket-Version 13";
            refused(&SessionError::invalid("Upgrade", message).body())
        }
    }
}

/// A web page cannot send these types to another site without asking first, so no others are accepted.
fn is_json(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    ["application/json", "application/json-rpc"].iter().any(|json| essence.eq_ignore_ascii_case(json))
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(HttpBody::empty());
    *answer.status_mut() = status;
    answer
}

fn refused(body: &ErrorBody) -> Answer {
    match encode(body) {
        Ok(json) => {
            let mut answer = empty(status(body));
            answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            *answer.body_mut() = json.into();
            answer
        }
        Err(error) => {
            tracing::error!(%error, "an error could not be encoded");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

/// Body of an answer, with the room that it takes.
struct Kept {
    body: HttpBody,
    _rooms: Rooms,
}

impl Body for Kept {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    /// The answer says how long it is. That it is at its end is not said before: the body would be dropped, and its room
    /// given back, with its last bytes yet to be written.
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Marks the answer to a message that has none.
#[derive(Clone)]
struct NoAnswer;

/// Checks of ours before the library performs a request.
#[derive(Clone)]
struct Checks {
    methods: Methods,
    message_bytes: usize,
    requests_max: usize,
}

impl<S> Layer<S> for Checks {
    type Service = Checked<S>;

    fn layer(&self, inner: S) -> Checked<S> {
        Checked { checks: self.clone(), inner }
    }
}

impl Checks {
    /// Checks a request, and takes its place among those of its connection; its bytes too, unless its batch has them.
    fn check(&self, request: &Call<'_>, is_in_batch: bool) -> Result<Held, Failure> {
        let bytes = request.params.as_ref().map_or(0, |params| params.get().len());
        if bytes > self.message_bytes {
            return Err(too_large(self.message_bytes).into());
        }
        let connection = request.extensions.get::<Arc<Connection>>().cloned();
        let method = callback(&self.methods, &request.method)?;
        let Some(connection) = connection else {
            return match method {
                MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_) => Err(no_subscriptions().into()),
                _ => Ok(None),
            };
        };
        let mut places = vec![connection.hold(if is_in_batch { 0 } else { bytes })?];
        if matches!(method, MethodCallback::Async(_)) {
            let place = connection.requests.clone().try_acquire_owned();
            places.push(place.map_err(|_| too_many_requests(self.requests_max))?);
        }
        Ok(Some((connection, places)))
    }
}

/// Finds a method.
pub(crate) fn callback<'a>(methods: &'a Methods, name: &str) -> Result<&'a MethodCallback, SessionError> {
    let unknown = || SessionError::UnknownOperation(name.chars().take(NAME_SHOWN_MAX).collect());
    methods.method(name).ok_or_else(unknown)
}

/// Makes the request that a notification is. Nobody waits for its answer.
pub(crate) fn request_of(notification: Notification<'_>) -> Call<'_> {
    let Notification { method, params, extensions, .. } = notification;
    Call { jsonrpc: TwoPointZero, id: Id::Null, method, params, extensions }
}

/// The library's service after the checks.
#[derive(Clone)]
struct Checked<S> {
    checks: Checks,
    inner: S,
}

impl<S> Checked<S> {
    fn subscribes(&self, method: &str) -> bool {
        matches!(self.checks.methods.method(method), Some(MethodCallback::Subscription(_)))
    }
}

impl<S: RpcServiceT<MethodResponse = MethodResponse> + Clone + Send + Sync + 'static> Checked<S> {
    fn perform<'a>(
        &self,
        mut request: Call<'a>,
        is_in_batch: bool,
    ) -> impl Future<Output = MethodResponse> + Send + use<'a, S> {
        let (checked, inner) = (self.checks.check(&request, is_in_batch), self.inner.clone());
        let subscribes = self.subscribes(&request.method);
        async move {
            let places = match checked {
                Ok(None) => None,
                Ok(Some((connection, mut places))) => {
                    places.extend(connection.read(&request.method, request.params.as_deref()).await);
                    Some(Places(Arc::new(places)))
                }
                Err(failure) => return MethodResponse::error(request.id, failure),
            };
            // A subscription keeps its extensions to its end, and its request only until it has begun.
            if !subscribes && let Some(places) = places.clone() {
                request.extensions.insert(places);
            }
            let answer = inner.call(request).await;
            drop(places);
            answer
        }
    }
}

impl<S> RpcServiceT for Checked<S>
where
    S: RpcServiceT<
            MethodResponse = MethodResponse,
            BatchResponse = MethodResponse,
            NotificationResponse = MethodResponse,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    type MethodResponse = MethodResponse;
    type NotificationResponse = MethodResponse;
    type BatchResponse = MethodResponse;

    fn call<'a>(&self, request: Call<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        self.perform(request, false)
    }

    /// The requests of a batch are performed one after the other.
    fn batch<'a>(&self, batch: Batch<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let this = self.clone();
        async move {
            let count = batch.len();
            if count == 0 || count > BATCH_MAX {
                let message = format!("the batch has {count} requests; it must have 1 to {BATCH_MAX}");
                return MethodResponse::error(Id::Null, Failure::no_request(message));
            }
            // The library keeps the whole batch until all of it is answered.
            let _held = match hold(&batch) {
                Ok(held) => held,
                Err(body) => return MethodResponse::error(Id::Null, Failure::from(body)),
            };
            let (mut answers, mut bytes) = (BatchResponseBuilder::new_with_limit(usize::MAX), 0);
            for entry in batch {
                let answer = match entry {
                    // The library would answer a subscription twice: alone, and in the batch.
                    Ok(BatchEntry::Call(request)) if this.subscribes(&request.method) => {
                        let error =
                            SessionError::invalid("method", "subscribe by a request of its own, not in a batch");
                        MethodResponse::error(request.id, Failure::from(error))
                    }
                    Ok(BatchEntry::Call(request)) => {
                        let (id, rooms) = (request.id.clone(), request.extensions.get::<Rooms>().cloned());
                        let kept = rooms.as_ref().map_or(0, Rooms::count);
                        let answer = this.perform(request, true).await;
                        match bytes + answer.as_ref().len() <= BATCH_ANSWER_BYTES {
                            true => answer,
                            false => {
                                rooms.inspect(|rooms| rooms.give_back_after(kept));
                                MethodResponse::error(id, Failure::from(batch_too_large(BATCH_ANSWER_BYTES)))
                            }
                        }
                    }
                    Ok(BatchEntry::Notification(notification)) => {
                        this.notification(notification).await;
                        continue;
                    }
                    Err(error) => {
                        let (_, id) = error.into_parts();
                        let message =
                            "it is not a request: `jsonrpc` is \"2.0\", `method` a string, `params` an object";
                        MethodResponse::error(id, Failure::no_request(message))
                    }
                };
                bytes += answer.as_ref().len();
                // The places of this request are free for the next one. Without a limit, nothing is refused.
                answers.append(answer.with_extensions(Extensions::new())).ok();
            }
            match answers.is_empty() {
                true => no_answer(),
                false => MethodResponse::from_batch(answers.finish()),
            }
        }
    }

    /// A request without an id is performed, and never answered.
    fn notification<'a>(&self, notification: Notification<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let this = self.clone();
        async move {
            // A subscription would be of no use: nobody hears its number.
            if matches!(callback(&this.checks.methods, &notification.method), Ok(MethodCallback::Async(_))) {
                this.call(request_of(notification)).await;
            }
            no_answer()
        }
    }
}

/// Takes the bytes of a batch from those of its connection.
fn hold(batch: &Batch<'_>) -> Result<Option<OwnedSemaphorePermit>, ErrorBody> {
    let entries = || batch.iter().flatten();
    let bytes = entries().filter_map(BatchEntry::params).map(|params| params.get().len()).sum();
    let connection = entries().find_map(|entry| entry.extensions().get::<Arc<Connection>>());
    connection.map(|connection| connection.hold(bytes)).transpose()
}

fn no_answer() -> MethodResponse {
    let mut extensions = Extensions::new();
    extensions.insert(NoAnswer);
    MethodResponse::notification().with_extensions(extensions)
}
