//! [`RemoteService`]: the service of a data directory that another process owns, for as long as one does.
//!
//! When the owner vanishes this process takes its place or attaches to the one that did, and goes on: what is followed
//! from its cursor, what can be asked twice by asking again. What can not, such as a turn without a key, has an unknown
//! outcome where the owner vanished before it answered, and the error says so.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use meerkat_errors::ErrorCode;
use meerkat_service::{
    Capabilities, Operation, SessionError, SessionId, SessionService,
    compaction::CompactionConfig,
    operation::OperationEffect,
    operations,
    runtime::{ended, follow::Follower},
    service::*,
    store::Router,
    wire::{Reply, call},
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    Door, Entered,
    connection::{Connection, Failed},
    following::follow,
    wire::Readiness,
    within,
};
use crate::serve::owner::{Owner, method};

/// Owners that may vanish under one request before it is given up.
pub(super) const OWNERS_MAX: usize = 8;

/// How long an owner that is ending is waited for.
pub(super) const ENDING_LIMIT: Duration = Duration::from_secs(10);

/// How long the owner may take to say how it stands with it.
const GREETING_LIMIT: Duration = Duration::from_secs(2);

/// What this command was told by variables that a request carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Defaults {
    pub(crate) model: Option<String>,
    pub(crate) compaction: Option<CompactionConfig>,
}

/// The service of a data directory that another process owns.
#[derive(Clone)]
pub(crate) struct RemoteService {
    inner: Arc<Inner>,
}

struct Inner {
    door: Door,
    defaults: Defaults,
    state: Mutex<State>,
}

/// Who serves: another process, or by now this one.
enum State {
    There(Arc<Connection>),
    Here(Arc<dyn SessionService>, Option<Owner>),
}

#[derive(Clone)]
pub(super) enum Current {
    There(Arc<Connection>),
    Here(Arc<dyn SessionService>),
}

impl From<Entered> for State {
    fn from(entered: Entered) -> Self {
        match entered {
            Entered::Owner(service, owner) => Self::Here(service, Some(owner)),
            Entered::Attached(connection) => Self::There(Arc::new(connection)),
        }
    }
}

impl RemoteService {
    pub(crate) fn new(door: Door, defaults: Defaults, connection: Connection) -> Self {
        let state = Mutex::new(State::There(Arc::new(connection)));
        Self { inner: Arc::new(Inner { door, defaults, state }) }
    }

    /// Commands that are attached to this one, if it has taken the owner's place.
    pub(crate) async fn attached(&self) -> usize {
        match &*self.inner.state.lock().await {
            State::Here(_, Some(owner)) => owner.attached(),
            State::Here(_, None) | State::There(_) => 0,
        }
    }

    #[cfg(test)]
    pub(super) async fn subscriptions(&self) -> usize {
        match &*self.inner.state.lock().await {
            State::There(connection) => connection.subscriptions(),
            State::Here(..) => 0,
        }
    }

    /// Lets the data directory go, if this process has it by now.
    pub(crate) async fn end(&self) {
        let owner = match &mut *self.inner.state.lock().await {
            State::Here(_, owner) => owner.take(),
            State::There(_) => None,
        };
        if let Some(owner) = owner {
            owner.end().await;
        }
    }

    /// Who serves now. Where the owner has vanished, its place is taken first, or its successor's connection.
    pub(super) async fn current(&self) -> Result<Current, SessionError> {
        let mut state = self.inner.state.lock().await;
        if matches!(&*state, State::There(connection) if connection.closed().is_cancelled()) {
            *state = self.inner.door.enter().await?.into();
            tracing::info!(is_owner = matches!(&*state, State::Here(..)), "the owner of the data directory is another");
        }
        Ok(match &*state {
            State::There(connection) => Current::There(connection.clone()),
            State::Here(service, _) => Current::Here(service.clone()),
        })
    }

    /// Performs an operation where it is performed, and answers with its JSON.
    async fn perform(&self, operation: Operation, params: &Value) -> Result<Bytes, SessionError> {
        let is_repeatable = is_repeatable(operation, params);
        let params = params.to_string();
        let mut ending = None;
        for _ in 0..OWNERS_MAX {
            let connection = match self.current().await? {
                Current::Here(service) => return call(service.as_ref(), operation, &params).await.map(Bytes::from),
                Current::There(connection) => connection,
            };
            match connection.request(method(operation), &params).await {
                Ok(answer) => return Ok(answer),
                // Nothing was done yet, and whoever comes after this owner can do it.
                Err(Failed::Refused(body)) if body.code == ErrorCode::ShuttingDown => {
                    if !within(ENDING_LIMIT, connection.closed().cancelled()).await {
                        return Err(SessionError::Remote(body));
                    }
                    ending = Some(SessionError::Remote(body));
                }
                Err(Failed::Refused(body)) => return Err(SessionError::Remote(body)),
                Err(Failed::Unasked) => {}
                Err(Failed::Lost) if is_repeatable => {}
                Err(Failed::Lost) => return Err(SessionError::StoreFailed),
            }
        }
        Err(ending.unwrap_or(SessionError::StoreFailed))
    }

    /// Performs an operation and reads its answer.
    async fn ask<T: Reply>(&self, operation: Operation, request: &impl Serialize) -> Result<T, SessionError> {
        T::read(&self.perform(operation, &json!(request)).await?)
    }

    /// Begins a turn. Once it is accepted, its events say how it ends, whoever owns the data directory by then.
    async fn begin(&self, operation: Operation, mut params: Value) -> Result<BegunTurn, SessionError> {
        params["wait"] = false.into();
        let accepted: TurnAccepted = self.ask(operation, &params).await?;
        let (service, begun) = (self.clone(), accepted.clone());
        Ok(BegunTurn { accepted, result: async move { ended::result(&service, begun).await }.boxed() })
    }
}

/// Whether asking twice does no more than asking once.
fn is_repeatable(operation: Operation, params: &Value) -> bool {
    match operation {
        // One that names no turn might hit the next one.
        Operation::Interrupt => !params["turn"].is_null(),
        _ => {
            matches!(operation.effect(), OperationEffect::Reads | OperationEffect::Settles)
                || !params["idempotency_key"].is_null()
        }
    }
}

#[async_trait]
impl Router for RemoteService {
    async fn route(&self, _: SessionId) -> Result<Arc<dyn SessionService>, SessionError> {
        Ok(match self.current().await? {
            Current::Here(service) => service,
            Current::There(_) => Arc::new(self.clone()),
        })
    }
}

/// The request of a row of the table.
macro_rules! request {
    ($request:ident) => {
        $request {}
    };
    (OneSession $session_id:ident) => {
        OneSession { session_id: *$session_id }
    };
    ($request:ident $argument:ident) => {
        $argument
    };
}

macro_rules! declare {
    (
        {}
        apart { $( $apart:tt )* }
        plain { $(
            $( #[$doc:meta] )+
            $operation:ident = $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty,
            $request:ident, $needs:ident, $effect:ident, $refusals:tt;
        )* }
    ) => {
        #[async_trait]
        impl SessionService for RemoteService {
            /// The owner is of the same build, and has the store that it was found by.
            fn capabilities(&self) -> Capabilities {
                Capabilities::compiled()
            }

            async fn ready(&self) -> Result<(), SessionError> {
                // A list waits for what a former process left behind, and changes nothing.
                let query = SessionQuery { limit: Some(1), ..SessionQuery::default() };
                self.list(query).await.map(drop)
            }

            /// The owner says so when it is greeted, which needs no room among its requests.
            async fn check_ready(&self) -> Result<bool, SessionError> {
                if let Current::Here(service) = self.current().await? {
                    return service.check_ready().await;
                }
                match timeout(GREETING_LIMIT, self.inner.door.attach()).await {
                    Ok(Ok(Ok(connection))) => {
                        let Readiness { is_ready, trouble } = connection.readiness.clone();
                        trouble.map_or(Ok(is_ready), |body| Err(SessionError::Remote(Box::new(body))))
                    }
                    Ok(Ok(Err(refusal))) => Err(SessionError::Remote(refusal)),
                    // The owner has just gone, or is too busy to greet anybody.
                    Ok(Err(_)) | Err(_) => Ok(false),
                }
            }

            async fn create_session(&self, mut request: CreateSession) -> Result<SessionCreated, SessionError> {
                let Defaults { model, compaction } = &self.inner.defaults;
                request.model = request.model.or_else(|| model.clone());
                request.compaction = request.compaction.or(*compaction);
                self.ask(Operation::CreateSession, &request).await
            }

            async fn begin_turn(&self, request: StartTurn) -> Result<BegunTurn, SessionError> {
                self.begin(Operation::StartTurn, json!(request)).await
            }

            async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<BegunTurn, SessionError> {
                let mut params = json!(request);
                params["session_id"] = json!(session_id);
                self.begin(Operation::Resume, params).await
            }

            async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
                follow(self.clone(), *session_id, since_seq, false).await
            }

            async fn follow_turn(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
                follow(self.clone(), *session_id, since_seq, true).await
            }

            async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
                self.ask(Operation::Blob, &request).await
            }

            /// Over a connection nobody can give up just this compaction, so there it goes on.
            async fn compact_until(
                &self,
                request: CompactSession,
                cancel: CancellationToken,
            ) -> Result<CompactionReceipt, SessionError> {
                match self.current().await? {
                    Current::Here(service) => service.compact_until(request, cancel).await,
                    Current::There(_) => self.compact(request).await,
                }
            }

            /// Over a connection the readers say it, where there are any.
            async fn memory_to_index(&self) -> Option<u64> {
                match self.current().await {
                    Ok(Current::Here(service)) => service.memory_to_index().await,
                    Ok(Current::There(_)) | Err(_) => None,
                }
            }

            /// The owner ends when it does; only what this process has become the owner of ends with it.
            async fn shut_down(&self, drain_ms: u64) {
                let service = match &*self.inner.state.lock().await {
                    State::Here(service, _) => service.clone(),
                    State::There(_) => return,
                };
                service.shut_down(drain_ms).await;
            }

            $( async fn $name(&self $(, $argument: $type)*) -> Result<$answer, SessionError> {
                // The owner does not ask this of a command: it reads the answer of its turn without a store too.
                Operation::$operation.needs().map_or(Ok(()), |needed| self.capabilities().require(needed))?;
                self.ask(Operation::$operation, &request!($request $( $argument )*)).await
            } )*
        }
    };
}

operations!(declare);
