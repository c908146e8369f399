//! The service that a listener mounts at `/mcp`: streamable HTTP, with sessions of the protocol where its revision has them.
//!
//! The listener checks Host, Origin, token and time limits; nothing here does it again.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Display,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use ::http::{HeaderMap, Method, Request, StatusCode, header::CONTENT_TYPE};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, Limited, combinators::BoxBody};
use meerkat_service::{
    SessionService,
    wire::{Answers, Room},
};
use rmcp::{
    ServerHandler,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::{SessionId, local::LocalSessionManager},
    },
};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use crate::{
    MESSAGE_BYTES_MAX, McpServer,
    error::{self, HttpAnswer, JSON},
    head,
    rounds::StateKey,
    tools::Offer,
};

/// Sessions of the protocol at one time. One more ends the one that was idle for the longest time.
const SESSIONS_MAX: usize = 1000;
/// How long a session of the protocol may be idle. It must be longer than a turn, because one without progress counts.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// The header that names a session of the protocol.
const SESSION_HEADER: &str = "mcp-session-id";
/// The header that names the revision of a request.
const REVISION_HEADER: &str = "mcp-protocol-version";
/// The first revision without sessions.
const NO_SESSIONS_SINCE: &str = "2026-07-28";

/// Options of the protocol over HTTP.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// The tools that clients are offered.
    pub offer: Offer,
    /// Bytes of a message.
    pub max_message_bytes: usize,
    /// Room for answers, shared with the other surfaces.
    pub answers: Answers,
    /// Ends every stream when it is cancelled.
    pub shutdown: CancellationToken,
    /// Signs the states of calls that ask. Servers behind one address need the same.
    pub state_key: StateKey,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            offer: Offer::default(),
            max_message_bytes: MESSAGE_BYTES_MAX,
            answers: Answers::default(),
            shutdown: CancellationToken::new(),
            state_key: StateKey::default(),
        }
    }
}

/// The room of a response's results, until they are sent or dropped.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<Mutex<Vec<Room>>>);

impl Held {
    pub(crate) fn keep(&self, room: Room) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(room);
    }
}

/// A body whose bytes keep their room until they are dropped.
struct Sent {
    body: BoxBody<Bytes, Infallible>,
    held: Held,
    /// Keeps the session of the protocol from being idle.
    _running: Option<Arc<()>>,
}

struct Piece(Bytes, #[expect(dead_code, reason = "held, not looked at")] Held);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let held = self.held.clone();
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        frame.map_ok(|frame| frame.map_data(|data| Bytes::from_owner(Piece(data, held))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Requests of a session of the protocol.
#[derive(Default)]
struct Requests {
    /// Number of the newest.
    newest: u64,
    /// Clones of it are held by those that are not answered yet.
    running: Arc<()>,
}

/// The protocol over HTTP. A clone is the same service.
pub struct McpHttpService<S = McpServer>(Arc<Inner<S>>);

struct Inner<S> {
    options: HttpOptions,
    http: StreamableHttpService<S, LocalSessionManager>,
    /// The sessions of the protocol that `http` has.
    sessions: Arc<LocalSessionManager>,
    /// Requests by session, only of sessions that exist or existed, never of any name that a client sends.
    requests: Mutex<HashMap<SessionId, Requests>>,
    /// Number of the next request.
    next: AtomicU64,
}

impl<S> Clone for McpHttpService<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl McpHttpService {
    /// Serves sessions.
    #[must_use]
    pub fn new(service: Arc<dyn SessionService>, options: HttpOptions) -> Self {
        let (offer, answers) = (options.offer, options.answers.clone());
        let (state_key, ending) = (options.state_key.clone(), options.shutdown.clone());
        let server =
            move || McpServer::within(service.clone(), offer, answers.clone(), state_key.clone(), ending.clone());
        Self::over(server, options)
    }
}

impl<S: ServerHandler> McpHttpService<S> {
    /// Serves other servers, one for each client.
    #[must_use]
    pub fn over(server: impl Fn() -> S + Clone + Send + Sync + 'static, options: HttpOptions) -> Self {
        let server = move || Ok(server());
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(options.max_message_bytes)
            .with_cancellation_token(options.shutdown.clone());
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE_MAX);
        let sessions = Arc::new(sessions);
        Self(Arc::new(Inner {
            http: StreamableHttpService::new(server, sessions.clone(), config),
            sessions,
            requests: Mutex::default(),
            next: AtomicU64::new(0),
            options,
        }))
    }
}

/// Whether a request is of a revision without sessions, in which its stream begins with its first message.
fn is_newest(headers: &HeaderMap) -> bool {
    // Revisions are dates.
    headers.get(REVISION_HEADER).is_some_and(|revision| revision.as_bytes() >= NO_SESSIONS_SINCE.as_bytes())
}

impl<S: ServerHandler> Inner<S> {
    /// Counts a request of a session, if the session exists. It is running until the result is dropped.
    async fn count(&self, headers: &HeaderMap) -> Option<Arc<()>> {
        let id: SessionId = headers.get(SESSION_HEADER)?.to_str().ok()?.into();
        let sessions = self.sessions.sessions.read().await;
        sessions.contains_key(&id).then(|| {
            let mut all = self.requests();
            let requests = all.entry(id).or_default();
            requests.newest = self.next.fetch_add(1, Ordering::Relaxed);
            requests.running.clone()
        })
    }

    /// Ends one session if there are too many: the one with the oldest request, at first of those whose requests are all
    /// answered.
    async fn evict(&self) {
        let ended = {
            let mut sessions = self.sessions.sessions.write().await;
            let mut requests = self.requests();
            requests.retain(|id, _| sessions.contains_key(id));
            if sessions.len() <= SESSIONS_MAX {
                return;
            }
            // A session without requests has just begun.
            let idle = |id: &&SessionId| {
                requests.get(*id).map_or((true, 0), |of| (Arc::strong_count(&of.running) > 1, of.newest))
            };
            let longest = sessions.keys().min_by_key(idle).cloned();
            longest.and_then(|longest| sessions.remove(&longest))
        };
        if let Some(ended) = ended
            && let Err(error) = ended.close().await
        {
            tracing::warn!(%error, "a session of the protocol could not be ended");
        }
    }

    fn requests(&self) -> MutexGuard<'_, HashMap<SessionId, Requests>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn answer<B>(&self, request: Request<B>) -> HttpAnswer
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError> + Display,
    {
        let limit = self.options.max_message_bytes;
        let has_session = request.headers().contains_key(SESSION_HEADER);
        let is_json = request.method() == Method::POST
            && request.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(JSON.as_bytes()));
        let (mut parts, body) = request.into_parts();
        // A body that breaks off is answered as an empty message, in case its client still listens.
        let message = match Limited::new(body, limit).collect().await {
            Ok(message) => message.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                return error::over_http(StatusCode::PAYLOAD_TOO_LARGE, &error::oversized(limit));
            }
            Err(_) => Bytes::new(),
        };
        let is_end = parts.method == Method::DELETE;
        let held = Held::default();
        parts.extensions.insert(held.clone());
        let is_newest = parts.method == Method::POST && is_newest(&parts.headers);
        let request = Request::from_parts(parts, Full::new(message.clone()));
        if is_newest {
            let service = self.http.clone();
            let answer = async move { error::with_body(service.handle(request).await, is_json, &message).await };
            return head::soon(answer).await.map(|body| Sent { body, held, _running: None }.boxed());
        }
        let known = if has_session { self.count(request.headers()).await } else { None };
        let mut response = self.http.handle(request).await;
        let running = if has_session { known } else { self.count(response.headers()).await };
        if !has_session && running.is_some() {
            self.evict().await;
        }
        if is_end && response.status() == StatusCode::ACCEPTED {
            // Clients warn of any other status.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        let response = error::with_body(response, is_json, &message).await;
        response.map(|body| Sent { body, held, _running: running }.boxed())
    }
}

impl<S, B> Service<Request<B>> for McpHttpService<S>
where
    S: ServerHandler,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError> + Display,
{
    type Response = HttpAnswer;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<HttpAnswer, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.0.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use meerkat_service::AgentBuildConfig;
    use rmcp::{
        ErrorData, RoleServer,
        model::{InitializeRequestParams, InitializeResult},
        service::RequestContext,
    };
    use tokio::sync::Notify;

    use super::*;

    const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;

    fn post(body: &'static str) -> Request<Full<Bytes>> {
        let request = Request::post("/mcp").header("host", "localhost").header(CONTENT_TYPE, JSON);
        request.header("accept", "application/json, text/event-stream").body(body.into()).unwrap()
    }

    #[tokio::test]
    async fn no_two_sessions_take_the_same_room() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let http = McpHttpService::new(agent.service().clone(), HttpOptions::default());
        let answers = join_all((0..SESSIONS_MAX + 20).map(|_| http.0.answer(post(INITIALIZE)))).await;
        for answer in &answers {
            assert_eq!(answer.status(), StatusCode::OK);
        }
        assert_eq!(http.0.sessions.sessions.read().await.len(), SESSIONS_MAX);
    }

    /// Server that never finishes to greet its first client.
    #[derive(Clone, Default)]
    struct Slow(Arc<(AtomicU64, Notify)>);

    impl ServerHandler for Slow {
        async fn initialize(
            &self,
            _: InitializeRequestParams,
            _: RequestContext<RoleServer>,
        ) -> Result<InitializeResult, ErrorData> {
            let (clients, has_begun) = &*self.0;
            if clients.fetch_add(1, Ordering::Relaxed) == 0 {
                has_begun.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(InitializeResult::default())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_client_that_begins_slowly_keeps_no_other_waiting() {
        let slow = Slow::default();
        let server = slow.clone();
        let http = McpHttpService::over(move || server.clone(), HttpOptions::default());
        let first = tokio::spawn({
            let http = http.clone();
            async move { http.0.answer(post(INITIALIZE)).await }
        });
        slow.0.1.notified().await;
        let second = tokio::time::timeout(Duration::from_secs(60), http.0.answer(post(INITIALIZE))).await;
        assert_eq!(second.expect("it waited for the first").status(), StatusCode::OK);
        assert!(!first.is_finished());
        first.abort();
    }

    #[tokio::test]
    async fn what_a_client_calls_a_session_is_not_kept() {
        let agent = AgentBuildConfig::new().build().unwrap();
        let http = McpHttpService::new(agent.service().clone(), HttpOptions::default());
        let mut request = post(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
        request.headers_mut().insert(SESSION_HEADER, "nobody's".parse().unwrap());
        assert!(http.0.answer(request).await.status().is_client_error());
        assert!(http.0.requests().is_empty());
    }
}
