//! [`Client`] as a `SessionService`: every operation of the table, forwarded.

use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use futures::TryStreamExt as _;
use meerkat_service::{
    Capabilities, ErrorCode, Operation, SessionError, SessionId, SessionService, TurnNumber, follow::Follower,
    operations, request_of, service::*,
};
use meerkat_surface_rpc::owner::Readiness;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Client, Defaults},
    following::follow,
    way::Server,
};

/// How long a process may take to say if it is ready.
const GREETING_LIMIT: Duration = Duration::from_secs(2);

/// Bytes of an upload that fit in one message, in base64.
const UPLOAD_BYTES_MAX: usize = 23 * 1024 * 1024;

macro_rules! declare {
    ($(
        $docs:tt $operation:ident $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty, $request:ident;
    )*) => {
        #[async_trait]
        impl SessionService for Client {
            fn capabilities(&self) -> Capabilities {
                self.inner.capabilities
            }

            async fn ready(&self) -> Result<(), SessionError> {
                // A list waits until sessions that a former process left active are settled.
                let query = SessionQuery { limit: Some(1), ..SessionQuery::default() };
                match self.list(query).await {
                    // Without a store there are none.
                    Err(error) if error.code() == ErrorCode::SessionPersistenceDisabled => Ok(()),
                    listed => listed.map(drop),
                }
            }

            /// An owner says it in its greeting, which takes no room among its requests; a server answers a list.
            async fn check_ready(&self) -> Result<bool, SessionError> {
                if let Server::Here(service) = self.current().await? {
                    return service.check_ready().await;
                }
                if !self.inner.is_owner {
                    return timeout(GREETING_LIMIT, self.ready()).await.map_or(Ok(false), |ready| ready.map(|()| true));
                }
                match timeout(GREETING_LIMIT, self.inner.way.connect()).await {
                    Ok(Ok(connection)) => {
                        let Readiness { is_ready, trouble } = connection.found.readiness.clone();
                        trouble.map_or(Ok(is_ready), |body| Err(SessionError::Remote(Box::new(body))))
                    }
                    // It has just ended, or is too busy to greet.
                    Ok(Err(error)) if error.code() != ErrorCode::ShuttingDown => Err(error),
                    Ok(Err(_)) | Err(_) => Ok(false),
                }
            }

            async fn create_session(&self, mut request: CreateSession) -> Result<SessionCreated, SessionError> {
                let Defaults { model, compaction } = &self.inner.defaults;
                request.model = request.model.or_else(|| model.clone());
                request.compaction = request.compaction.or(*compaction);
                self.ask(Operation::CreateSession, &request).await
            }

            async fn begin_turn(&self, request: StartTurn) -> Result<TurnHandle, SessionError> {
                let wait = request.wait;
                self.begin(Operation::StartTurn, &StartTurn { wait: false, ..request }, wait).await
            }

            async fn start_turn(&self, request: StartTurn) -> Result<TurnResult, SessionError> {
                if self.inner.is_owner {
                    return self.begin_turn(request).await?.result.await;
                }
                self.ask(Operation::StartTurn, &StartTurn { wait: true, ..request }).await
            }

            async fn resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnResult, SessionError> {
                if self.inner.is_owner {
                    return self.begin_resume(session_id, request).await?.result.await;
                }
                self.ask(Operation::Resume, &request.params(*session_id, true)).await
            }

            async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnHandle, SessionError> {
                self.begin(Operation::Resume, &request.params(*session_id, false), request.wait).await
            }

            async fn follow_events(&self, request: ReadEvents) -> Result<Follower, SessionError> {
                follow(self.clone(), request, None).await
            }

            async fn follow_turn(
                &self,
                session_id: &SessionId,
                turn: TurnNumber,
                since_seq: u64,
            ) -> Result<Follower, SessionError> {
                follow(self.clone(), ReadEvents::new(*session_id, since_seq), Some(turn)).await
            }

            async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
                match self.current().await? {
                    Server::Here(service) => service.answer_blob(request).await,
                    Server::There(_) => self.ask(Operation::Blob, &request).await,
                }
            }

            /// Over a connection nothing can cancel just this compaction, so it goes on.
            async fn compact_until(
                &self,
                request: CompactSession,
                cancel: CancellationToken,
            ) -> Result<CompactionReceipt, SessionError> {
                match self.current().await? {
                    Server::Here(service) => service.compact_until(request, cancel).await,
                    Server::There(_) => self.compact(request).await,
                }
            }

            /// Over a connection an upload waits to be continued.
            async fn import_until(
                &self,
                request: ImportBundle,
                cancel: CancellationToken,
            ) -> Result<Imported, SessionError> {
                match self.current().await? {
                    Server::Here(service) => service.import_until(request, cancel).await,
                    Server::There(_) => self.import_bundle(request).await,
                }
            }

            /// Over a connection the body is one message, so there it is held whole.
            async fn put_blob_from(
                &self,
                session_id: SessionId,
                length: Option<u64>,
                mut body: Pieces,
            ) -> Result<StoredBlob, SessionError> {
                if let Server::Here(service) = self.current().await? {
                    return service.put_blob_from(session_id, length, body).await;
                }
                let mut data = BytesMut::new();
                while let Some(piece) = body.try_next().await? {
                    data.extend_from_slice(&piece);
                    if data.len() > UPLOAD_BYTES_MAX {
                        let (bytes, limit) = (data.len() as u64, UPLOAD_BYTES_MAX as u64);
                        return Err(SessionError::PayloadTooLarge { what: "upload", bytes, limit });
                    }
                }
                self.put_blob(PutBlob { session_id, data: Data(data.freeze()) }).await
            }

            /// Over a connection the readers have this number, if there are any.
            async fn memory_to_index(&self) -> Option<u64> {
                match self.current().await {
                    Ok(Server::Here(service)) => service.memory_to_index().await,
                    Ok(Server::There(_)) | Err(_) => None,
                }
            }

            /// Shuts down only a service of this process: another process ends by itself.
            async fn shut_down(&self, drain_ms: u64) {
                let service = match &*self.inner.current.lock().await {
                    Server::Here(service) => service.clone(),
                    Server::There(_) => return,
                };
                service.shut_down(drain_ms).await;
            }

            $( async fn $name(&self $(, $argument: $type)*) -> Result<$answer, SessionError> {
                // An owner does not check this: commands read the answers of their turns without a store too.
                Operation::$operation.needs().map_or(Ok(()), |needed| self.capabilities().require(needed))?;
                self.ask(Operation::$operation, &request_of!($request $( $argument )*)).await
            } )*
        }
    };
}

operations!(plain declare);
