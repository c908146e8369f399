//! jsonrpsee's server behind checks of ours: a POST is one message, an upgrade to a WebSocket is a connection.
//!
//! A mistake in the HTTP is answered with a status and the error's body, like by the guard; a mistake in a request with
//! a JSON-RPC error that carries the body. What is no request at all is answered by the library, without a body.

use std::sync::Arc;

use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body::Body;
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
    handlers::{Connection, Places},
};

/// Requests of one batch.
const BATCH_MAX: usize = 100;

/// Messages that wait to be written to a WebSocket. More would only cost memory: a subscription waits with its cursor.
const QUEUE: u32 = 4;

/// Bytes of the answers to a batch. Requests beyond it are performed, and answered with an error.
const BATCH_ANSWER_BYTES: usize = 12 * 1024 * 1024;

/// A message on a WebSocket that is longer than the limit by no more than this factor is read, so that its refusal names
/// its request. After a longer one the connection is not used any more.
const OVERSIZE_READ: usize = 2;

/// Characters of an unknown method's name in its refusal.
const NAME_SHOWN_MAX: usize = 100;

type Answer = Response<HttpBody>;
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
    let request = Request::from_parts(head, body);
    match server.build(surface.methods.clone(), surface.stopped.clone()).call(request).await {
        Ok(answer) if answer.extensions().get::<NoAnswer>().is_some() => empty(StatusCode::NO_CONTENT),
        Ok(answer) => answer,
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
    /// Checks a request, and takes its place among those of its connection.
    fn check(&self, request: &Call<'_>) -> Result<Option<(Arc<Connection>, OwnedSemaphorePermit)>, Failure> {
        let bytes = request.params.as_ref().map_or(0, |params| params.get().len());
        if bytes > self.message_bytes {
            return Err(too_large(self.message_bytes).into());
        }
        let connection = request.extensions.get::<Arc<Connection>>().cloned();
        match (callback(&self.methods, &request.method)?, connection) {
            (MethodCallback::Subscription(_) | MethodCallback::Unsubscription(_), None) => {
                Err(no_subscriptions().into())
            }
            (MethodCallback::Async(_), Some(connection)) => {
                let place = connection.requests.clone().try_acquire_owned();
                Ok(Some((connection, place.map_err(|_| too_many_requests(self.requests_max))?)))
            }
            _ => Ok(None),
        }
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

    fn call<'a>(&self, mut request: Call<'a>) -> impl Future<Output = MethodResponse> + Send + 'a {
        let (checked, inner) = (self.checks.check(&request), self.inner.clone());
        async move {
            match checked {
                Ok(None) => {}
                Ok(Some((connection, place))) => {
                    let read = connection.read(&request.method, request.params.as_deref()).await;
                    request.extensions.insert(Places(Arc::new((place, read))));
                }
                Err(failure) => return MethodResponse::error(request.id, failure),
            }
            inner.call(request).await
        }
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
                        let id = request.id.clone();
                        let answer = this.call(request).await;
                        match bytes + answer.as_ref().len() <= BATCH_ANSWER_BYTES {
                            true => answer,
                            false => MethodResponse::error(id, Failure::from(batch_too_large(BATCH_ANSWER_BYTES))),
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

fn no_answer() -> MethodResponse {
    let mut extensions = Extensions::new();
    extensions.insert(NoAnswer);
    MethodResponse::notification().with_extensions(extensions)
}
