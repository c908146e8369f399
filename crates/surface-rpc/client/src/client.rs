//! [`Client`]: the service of another process, for as long as one serves.
//!
//! When that process ends, the way finds its successor, and the client continues: followers from their cursors, requests
//! by being sent again if that is safe. A request that is not, such as a turn without a key, has an unknown outcome if the
//! process ended before it answered, and the error says so.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::FutureExt as _;
use meerkat_service::{
    Capabilities, ErrorCode, Operation, SessionError, SessionService,
    compaction::CompactionConfig,
    follow::turn,
    service::{TurnAccepted, TurnHandle},
    wire::{Reply, call, decode_create, encode},
};
use meerkat_surface_rpc::owner::Place;
use serde::Serialize;
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use tokio::sync::Mutex;

use crate::{
    connection::{Connection, Failed},
    way::{Server, Url, Way},
};

/// Processes that may end during one request before it fails.
pub(crate) const OWNERS_MAX: usize = 8;

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
    pub(crate) way: Box<dyn Way>,
    pub(crate) defaults: Defaults,
    pub(crate) capabilities: Capabilities,
    /// The other side is the owner of a data directory. A command waits for turns by their events, because it may outlive
    /// the owner.
    pub(crate) is_owner: bool,
    pub(crate) current: Mutex<Server>,
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
        Ok(Self::over(url, Arc::new(connection), Defaults::default()))
    }

    /// Connects to the process that owns a data directory. Its user and build must be the caller's.
    ///
    /// # Errors
    /// `SHUTTING_DOWN` if no process listens, or the refusal of the owner.
    pub async fn attach(data_dir: PathBuf) -> Result<Self, SessionError> {
        let place = Place::new(data_dir);
        let connection = Way::connect(&place).await?;
        Ok(Self::over(place, Arc::new(connection), Defaults::default()))
    }

    /// Uses a connection that a way has opened.
    #[must_use]
    pub fn over(way: impl Way + 'static, connection: Arc<Connection>, defaults: Defaults) -> Self {
        let (capabilities, is_owner) = (connection.found.capabilities, connection.found.is_owner);
        let current = Mutex::new(Server::There(connection));
        Self { inner: Arc::new(Inner { way: Box::new(way), defaults, capabilities, is_owner, current }) }
    }

    /// The process that serves now. If the former one has ended, its successor is found first.
    pub(crate) async fn current(&self) -> Result<Server, SessionError> {
        let mut current = self.inner.current.lock().await;
        if matches!(&*current, Server::There(connection) if !connection.is_open()) {
            *current = self.inner.way.find().await?;
            tracing::info!(is_here = matches!(&*current, Server::Here(_)), "another process serves");
        }
        Ok(current.clone())
    }

    /// Performs an operation in the process that serves; returns its JSON.
    async fn perform(&self, operation: Operation, params: Box<RawValue>) -> Result<Bytes, SessionError> {
        let is_turn = matches!(operation, Operation::StartTurn | Operation::Resume);
        let is_repeatable = operation.is_repeatable(params.get());
        let waits = |params: Value| params["wait"] == true;
        let is_waiting = is_turn && serde_json::from_str(params.get()).is_ok_and(waits);
        let mut ending = None;
        for _ in 0..OWNERS_MAX {
            let connection = match self.current().await? {
                Server::Here(service) => return here(service.as_ref(), operation, params.get()).await.map(Bytes::from),
                Server::There(connection) => connection,
            };
            match connection.request(operation.public_name(), params.clone()).await {
                Ok(answer) => return Ok(answer),
                // Nothing was performed, so the successor can. But a turn that was waited for may be queued already.
                Err(Failed::Refused(body)) if body.code == ErrorCode::ShuttingDown => {
                    if (is_waiting && !is_repeatable) || !connection.ends().await {
                        return Err(SessionError::Remote(body));
                    }
                    ending = Some(SessionError::Remote(body));
                }
                Err(Failed::Refused(body)) => return Err(SessionError::Remote(body)),
                Err(Failed::Lost) if !is_repeatable => return Err(SessionError::StoreFailed),
                Err(Failed::Unasked | Failed::Lost) => {
                    connection.ends().await;
                }
            }
        }
        Err(ending.unwrap_or(SessionError::StoreFailed))
    }

    /// Performs an operation and reads its answer.
    pub(crate) async fn ask<T: Reply>(
        &self,
        operation: Operation,
        request: &impl Serialize,
    ) -> Result<T, SessionError> {
        // A tree of values would change the numbers of JSON that a request has.
        let params = to_raw_value(request).map_err(|error| SessionError::Internal(error.to_string()))?;
        T::read(&self.perform(operation, params).await?)
    }

    /// Begins a turn by a request that does not wait. Its events then say how it ends, whichever process owns the data
    /// directory by then; `wait` says if its caller answers calls.
    pub(crate) async fn begin(
        &self,
        operation: Operation,
        request: &impl Serialize,
        wait: bool,
    ) -> Result<TurnHandle, SessionError> {
        let accepted: TurnAccepted = self.ask(operation, request).await?;
        let (service, begun) = (self.clone(), accepted.clone());
        Ok(TurnHandle {
            accepted,
            wait,
            result: async move { turn::result_or_calls(&service, begun, wait).await }.boxed(),
        })
    }
}

/// Performs an operation in this process. A command's workspace is a path here, as it is for the owner that it was
/// attached to.
async fn here(service: &dyn SessionService, operation: Operation, params: &str) -> Result<Vec<u8>, SessionError> {
    match operation {
        Operation::CreateSession => encode(&service.create_session(decode_create(params)?).await?),
        operation => call(service, operation, params).await,
    }
}
