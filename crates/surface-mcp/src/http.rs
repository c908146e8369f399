//! The service that a listener mounts at `/mcp`: streamable HTTP, with and without sessions of the protocol.
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
use futures::{Stream, future::BoxFuture};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, Full, Limited, combinators::BoxBody};
use meerkat_service::{
    SessionService,
    wire::{Answers, Room},
};
use rmcp::{
    ServerHandler,
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::{
            ServerSseMessage, SessionId, SessionManager,
            local::{LocalSessionHandle, LocalSessionManager},
            never::NeverSessionManager,
        },
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
    /// Whether clients get a session of the protocol, if their revision has one. Without it
    /// `notifications/cancelled` is ignored: without a session its request id cannot be resolved.
    pub has_sessions: bool,
    /// The tools that clients are offered.
    pub offer: Offer,
    /// Bytes of a message.
    pub max_message_bytes: usize,
    /// Room for answers, shared with the other surfaces. A listener may give a request its connection's, as an
    /// extension.
    pub answers: Answers,
    /// Ends every stream when it is cancelled.
    pub shutdown: CancellationToken,
    /// Signs the states of calls that ask. Servers behind one address need the same.
    pub state_key: StateKey,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            has_sessions: true,
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
    _running: Option<Running>,
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

/// The requests of a session of the protocol.
#[derive(Default)]
struct Asked {
    /// The number of the newest.
    newest: u64,
    /// Number of those that are not answered yet.
    running: usize,
}

type AllAsked = Arc<Mutex<HashMap<SessionId, Asked>>>;

/// A request that is under way.
struct Running(AllAsked, SessionId);

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(asked) = lock(&self.0).get_mut(&self.1) {
            asked.running = asked.running.saturating_sub(1);
        }
    }
}

fn lock(asked: &AllAsked) -> MutexGuard<'_, HashMap<SessionId, Asked>> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library's sessions of the protocol, of which there are at most [`SESSIONS_MAX`].
struct Sessions {
    all: LocalSessionManager,
    /// Only of sessions that exist or existed, never of any name that a client sends.
    asked: AllAsked,
    /// Held while a session gets its place, so that no two of them take the same. Its client is greeted later.
    placing: tokio::sync::Mutex<()>,
}

impl Sessions {
    fn new() -> Self {
        let mut all = LocalSessionManager::default();
        all.session_config.keep_alive = Some(SESSION_IDLE_MAX);
        Self { all, asked: AllAsked::default(), placing: tokio::sync::Mutex::default() }
    }

    /// Makes room for a new session, if there is none: takes the one with the oldest request out, and of those whose
    /// requests are all answered first.
    async fn make_room(&self) -> Option<LocalSessionHandle> {
        let mut sessions = self.all.sessions.write().await;
        let mut asked = lock(&self.asked);
        asked.retain(|id, _| sessions.contains_key(id));
        if sessions.len() < SESSIONS_MAX {
            return None;
        }
        // A session without requests has just begun.
        let idle = |id: &&SessionId| asked.get(*id).map_or((true, 0), |asked| (asked.running > 0, asked.newest));
        let longest = sessions.keys().min_by_key(idle).cloned()?;
        sessions.remove(&longest)
    }
}

impl SessionManager for Sessions {
    type Error = <LocalSessionManager as SessionManager>::Error;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let placing = self.placing.lock().await;
        let taken_out = self.make_room().await;
        let created = self.all.create_session().await;
        drop(placing);
        if let Some(handle) = taken_out
            && let Err(error) = handle.close().await
        {
            tracing::warn!(%error, "a session of the protocol could not be ended");
        }
        created
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.all.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.all.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.all.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.all.create_stream(id, message).await
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Self::Error> {
        self.all.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.all.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.all.resume(id, last_event_id).await
    }
}

/// The protocol over HTTP. A clone is the same service.
pub struct McpHttpService<S = McpServer>(Arc<Inner<S>>);

struct Inner<S> {
    options: HttpOptions,
    sessions: Arc<Sessions>,
    requests: AtomicU64,
    with_sessions: StreamableHttpService<S, Sessions>,
    without_sessions: StreamableHttpService<S, NeverSessionManager>,
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
        let sessions = Arc::new(Sessions::new());
        Self(Arc::new(Inner {
            with_sessions: StreamableHttpService::new(server.clone(), sessions.clone(), config.clone()),
            without_sessions: StreamableHttpService::new(
                server,
                Arc::new(NeverSessionManager::default()),
                config.with_legacy_session_mode(false),
            ),
            sessions,
            requests: AtomicU64::new(0),
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
    /// Counts a request of a session, if the session exists.
    async fn note(&self, headers: &HeaderMap) -> Option<Running> {
        let id: SessionId = headers.get(SESSION_HEADER)?.to_str().ok()?.into();
        let sessions = self.sessions.all.sessions.read().await;
        sessions.contains_key(&id).then(|| {
            let mut all = lock(&self.sessions.asked);
            let asked = all.entry(id.clone()).or_default();
            asked.newest = self.requests.fetch_add(1, Ordering::Relaxed);
            asked.running += 1;
            drop(all);
            Running(self.sessions.asked.clone(), id)
        })
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
            let service = self.with_sessions.clone();
            let answer = async move { error::with_body(service.handle(request).await, is_json, &message).await };
            return head::soon(answer).await.map(|body| Sent { body, held, _running: None }.boxed());
        }
        let mut running = None;
        let mut response = match self.options.has_sessions {
            false => self.without_sessions.handle(request).await,
            true => {
                if has_session {
                    running = self.note(request.headers()).await;
                }
                let response = self.with_sessions.handle(request).await;
                if !has_session {
                    running = self.note(response.headers()).await;
                }
                response
            }
        };
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
        assert_eq!(http.0.sessions.all.sessions.read().await.len(), SESSIONS_MAX);
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
        assert!(lock(&http.0.sessions.asked).is_empty());
    }
}
