//! [`Client`]: the service of another process.
//!
//! A server at a URL may restart: the client then connects again, followers continue from their cursors, and a request is
//! repeated if that is safe. The owner of a data directory has no successor: when it ends, every request says so.

use std::{io, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use meerkat_service::{
    Capabilities, ErrorBody, ErrorCode, Operation, SessionError,
    compaction::CompactionConfig,
    follow::turn,
    service::{TurnAccepted, TurnHandle, TurnResult},
    wire::Reply,
};
use meerkat_surface_rpc::owner::{Hello, Place, Speaker};
use serde::Serialize;
use serde_json::{Value, json, value::to_raw_value};
use tokio::{sync::Mutex, time::timeout};

use crate::{
    connection::{Connection, Failed},
    transport::{CONNECT_LIMIT, Url, greet, unreachable},
};

/// Connections that a request is sent over before it fails.
const TRIES: usize = 2;

/// Values for requests that have none of their own.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// The model of new sessions.
    pub model: Option<String>,
    /// The compaction of new sessions.
    pub compaction: Option<CompactionConfig>,
}

/// The service of another process. Clones share the connection.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) way: Way,
    pub(crate) defaults: Defaults,
    pub(crate) capabilities: Capabilities,
    current: Mutex<Arc<Connection>>,
}

/// The way to the other process.
pub(crate) enum Way {
    Url(Box<Url>),
    /// The owner of a data directory. A command waits for turns by their events.
    Owner(Place, Box<Hello>),
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("capabilities", &self.inner.capabilities).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to a server on this machine by its URL, such as `http://127.0.0.1:7670`, with the token that it asks for.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` for a wrong token, `INVALID_REQUEST` for a text that is no URL of a server on this machine,
    /// `SHUTTING_DOWN` if nobody answers there; or another refusal of the server.
    pub async fn connect(url: &str, token: &str) -> Result<Self, SessionError> {
        Self::connect_to(Url::read(url, token, false)?).await
    }

    /// Connects as [`Self::connect`], also to a server on another machine. Everybody on the way can read the token and all
    /// else: it is for networks that nobody else is in, such as one of containers.
    ///
    /// # Errors
    /// As for [`Self::connect`].
    pub async fn connect_unencrypted(url: &str, token: &str) -> Result<Self, SessionError> {
        Self::connect_to(Url::read(url, token, true)?).await
    }

    async fn connect_to(url: Url) -> Result<Self, SessionError> {
        let connection = url.connect().await?;
        Ok(Self::over(Way::Url(Box::new(url)), connection, Defaults::default()))
    }

    /// Connects to the process that owns a data directory. Its user and build must be the caller's. When that process
    /// ends, so does the client's use: attach again.
    ///
    /// # Errors
    /// `SHUTTING_DOWN` if no process listens, or the refusal of the owner.
    pub async fn attach(data_dir: PathBuf) -> Result<Self, SessionError> {
        let hello = Hello { speaker: Speaker::own(), settings: Vec::new(), search_path: None };
        let name = data_dir.display().to_string();
        match timeout(CONNECT_LIMIT, Self::attach_as(Place::new(data_dir), hello, Defaults::default())).await {
            Ok(Ok(attached)) => attached.map_err(SessionError::Remote),
            Ok(Err(error)) => Err(unreachable(&name, &error)),
            Err(_) => Err(unreachable(&name, &"it does not answer")),
        }
    }

    /// Connects to the owner of a data directory with this greeting. Its refusal is the inner error.
    ///
    /// # Errors
    /// If nobody listens, or what listens speaks another protocol.
    pub async fn attach_as(place: Place, hello: Hello, defaults: Defaults) -> io::Result<Result<Self, Box<ErrorBody>>> {
        let connection = greet(&place, &hello).await?;
        Ok(connection.map(|connection| Self::over(Way::Owner(place, Box::new(hello)), connection, defaults)))
    }

    fn over(way: Way, connection: Connection, defaults: Defaults) -> Self {
        let capabilities = connection.found.capabilities;
        let current = Mutex::new(Arc::new(connection));
        Self { inner: Arc::new(Inner { way, defaults, capabilities, current }) }
    }

    /// Waits until the connection is closed. After that, the client of an owner is of no use any more, and answers every
    /// request with the error that is returned here.
    pub async fn owner_ended(&self) -> SessionError {
        let connection = self.inner.current.lock().await.clone();
        connection.closed().await;
        owner_ended(ErrorCode::ShuttingDown)
    }

    pub(crate) fn is_of_owner(&self) -> bool {
        matches!(self.inner.way, Way::Owner(..))
    }

    /// The connection; a new one if a server has closed the former one.
    pub(crate) async fn current(&self) -> Result<Arc<Connection>, SessionError> {
        let mut current = self.inner.current.lock().await;
        if !current.is_open() {
            match &self.inner.way {
                Way::Url(url) => *current = Arc::new(url.connect().await?),
                Way::Owner(..) => return Err(owner_ended(ErrorCode::ShuttingDown)),
            }
        }
        Ok(current.clone())
    }

    /// Performs an operation in the other process; returns its JSON.
    async fn perform(&self, operation: Operation, params: &Value) -> Result<Bytes, SessionError> {
        let is_repeatable = operation.is_repeatable(params);
        let params = to_raw_value(params).map_err(|error| SessionError::Internal(error.to_string()))?;
        let mut lost = SessionError::StoreFailed;
        for _ in 0..TRIES {
            match self.current().await?.request(operation.public_name(), params.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Refused(body)) => return Err(SessionError::Remote(body)),
                Err(Failed::Lost) => {}
            }
            lost = match &self.inner.way {
                Way::Owner(..) if is_repeatable => return Err(owner_ended(ErrorCode::ShuttingDown)),
                Way::Owner(..) => return Err(owner_ended(ErrorCode::StoreFailed)),
                Way::Url(url) => url.lost(),
            };
            if !is_repeatable {
                break;
            }
        }
        Err(lost)
    }

    /// Performs an operation and reads its answer.
    pub(crate) async fn ask<T: Reply>(
        &self,
        operation: Operation,
        request: &impl Serialize,
    ) -> Result<T, SessionError> {
        T::read(&self.perform(operation, &json!(request)).await?)
    }

    /// Runs a turn to its end: the server waits for it.
    pub(crate) async fn wait(&self, operation: Operation, mut params: Value) -> Result<TurnResult, SessionError> {
        params["wait"] = true.into();
        self.ask(operation, &params).await
    }

    /// Begins a turn. Its events then say how it ends.
    pub(crate) async fn begin(&self, operation: Operation, mut params: Value) -> Result<TurnHandle, SessionError> {
        let wait = params["wait"] != false;
        params["wait"] = false.into();
        let accepted: TurnAccepted = self.ask(operation, &params).await?;
        let (service, begun) = (self.clone(), accepted.clone());
        Ok(TurnHandle { accepted, wait, result: async move { turn::result(&service, begun).await }.boxed() })
    }
}

/// The error when the owner of a data directory has ended: `STORE_FAILED` for a request that it may have performed.
pub(crate) fn owner_ended(code: ErrorCode) -> SessionError {
    let message = match code {
        ErrorCode::StoreFailed => {
            "The process that owns the data directory ended before it answered, so the request may or may not have been \
             performed; look at the session's events, then run the command again."
        }
        _ => "The process that owns the data directory has ended; run the command again.",
    };
    SessionError::Remote(Box::new(ErrorBody::with_message(code, message)))
}
