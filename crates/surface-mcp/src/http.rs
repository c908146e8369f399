//! The service that a listener mounts at `/mcp`: streamable HTTP, with and without sessions of the protocol.
//!
//! Host, Origin, token and time limits are the listener's. Nothing here checks them a second time.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt::Display,
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
use http_body::Body;
use http_body_util::{BodyExt as _, Full, Limited};
use meerkat_service::SessionService;
use rmcp::{
    ServerHandler,
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::{
            SessionId, SessionManager as _, local::LocalSessionManager, never::NeverSessionManager,
        },
    },
};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};

use crate::{
    MESSAGE_BYTES_MAX, McpServer,
    error::{self, HttpAnswer, JSON},
    tools::Offer,
    wire::begins_session,
};

/// Sessions of the protocol that are kept at once. If there is one more, the one ends that was idle for the longest time.
const SESSIONS_MAX: usize = 1000;
/// How long a session of the protocol may be idle. A turn without progress counts as idle, so it is longer than one.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(2 * 60 * 60);
/// The header that names a session of the protocol.
const SESSION_HEADER: &str = "mcp-session-id";

/// How the protocol is served over HTTP.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Whether clients of revisions that know sessions of the protocol get one. Without one
    /// `notifications/cancelled` says nothing, because nothing says whose request it names.
    pub has_sessions: bool,
    /// The tools that clients are offered.
    pub offer: Offer,
    /// How large a message may be, in bytes.
    pub max_message_bytes: usize,
    /// Ends every stream when it is cancelled.
    pub shutdown: CancellationToken,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            has_sessions: true,
            offer: Offer::default(),
            max_message_bytes: MESSAGE_BYTES_MAX,
            shutdown: CancellationToken::new(),
        }
    }
}

/// The protocol over HTTP. A clone is the same service.
pub struct McpHttpService<S = McpServer>(Arc<Inner<S>>);

struct Inner<S> {
    options: HttpOptions,
    sessions: Arc<LocalSessionManager>,
    /// The number of the newest request of each session.
    asked: Mutex<HashMap<SessionId, u64>>,
    requests: AtomicU64,
    with_sessions: StreamableHttpService<S, LocalSessionManager>,
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
        let offer = options.offer;
        Self::over(move || McpServer::new(service.clone(), offer), options)
    }
}

impl<S: ServerHandler> McpHttpService<S> {
    /// Serves what each client's server answers.
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
            with_sessions: StreamableHttpService::new(server.clone(), sessions.clone(), config.clone()),
            without_sessions: StreamableHttpService::new(
                server,
                Arc::new(NeverSessionManager::default()),
                config.with_legacy_session_mode(false),
            ),
            sessions,
            asked: Mutex::default(),
            requests: AtomicU64::new(0),
            options,
        }))
    }
}

impl<S: ServerHandler> Inner<S> {
    fn asked(&self) -> MutexGuard<'_, HashMap<SessionId, u64>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a session is in use.
    fn note(&self, headers: &HeaderMap) {
        if let Some(id) = headers.get(SESSION_HEADER).and_then(|id| id.to_str().ok()) {
            self.asked().insert(id.into(), self.requests.fetch_add(1, Ordering::Relaxed));
        }
    }

    /// Makes room for a session that begins.
    async fn make_room(&self) {
        let longest = {
            let sessions = self.sessions.sessions.read().await;
            let mut asked = self.asked();
            asked.retain(|id, _| sessions.contains_key(id));
            let is_full = sessions.len() >= SESSIONS_MAX;
            is_full.then(|| sessions.keys().min_by_key(|id| asked.get(*id).copied()).cloned()).flatten()
        };
        if let Some(id) = longest
            && let Err(error) = self.sessions.close_session(&id).await
        {
            tracing::warn!(%error, "a session of the protocol could not be ended");
        }
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
        let (parts, body) = request.into_parts();
        // What cannot be read to its end is answered as an empty message, if anybody is there to be answered.
        let message = match Limited::new(body, limit).collect().await {
            Ok(message) => message.to_bytes(),
            Err(error) if error.is::<http_body_util::LengthLimitError>() => {
                return error::over_http(StatusCode::PAYLOAD_TOO_LARGE, &error::oversized(limit));
            }
            Err(_) => Bytes::new(),
        };
        let is_end = parts.method == Method::DELETE;
        let request = Request::from_parts(parts, Full::new(message.clone()));
        let mut response = match self.options.has_sessions {
            false => self.without_sessions.handle(request).await,
            true => {
                if has_session {
                    self.note(request.headers());
                } else if begins_session(&message) {
                    self.make_room().await;
                }
                let response = self.with_sessions.handle(request).await;
                if !has_session {
                    self.note(response.headers());
                }
                response
            }
        };
        if is_end && response.status() == StatusCode::ACCEPTED {
            // The session is over, and nothing follows. Clients warn of another status.
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        error::with_body(response, is_json, &message).await
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
