//! The door of the service: every operation is admitted first, in one place, by its row of the table.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use meerkat_words::reply::Reply;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::sessions::Sessions;
use crate::{
    SessionError,
    agent::command::Command,
    capability::Capabilities,
    follow::{Follower, turn},
    ids::{SessionId, TurnNumber},
    operation::Operation,
    service::*,
};

/// Sessions for an admitted operation. The operations are its methods, so none can be reached without admission.
pub(super) struct Admitted<'a>(pub(super) &'a Sessions);

impl Sessions {
    /// Admits an operation: checks the capability that it needs, and settles the sessions that a former process left
    /// open.
    async fn admit(&self, operation: Operation) -> Result<Admitted<'_>, SessionError> {
        self.engine().capabilities.admit(operation)?;
        self.settle().await?;
        Ok(Admitted(self))
    }

    /// Returns true if no request can be handed to another node.
    fn is_alone(&self) -> bool {
        self.engine().inbox.is_none()
    }

    /// Makes the handle of a turn that another node accepted: its events say how it ends.
    fn begun(&self, accepted: Bytes, wait: bool) -> Result<TurnHandle, SessionError> {
        let accepted: TurnAccepted = Reply::read(&accepted)?;
        let (service, begun) = (self.clone(), accepted.clone());
        let result = async move { turn::result_or_calls(&service, begun, wait).await };
        Ok(TurnHandle { accepted, wait, result: result.boxed() })
    }
}

/// Writes a request for another node. A tree of values would change the numbers of JSON that it has.
fn text(request: &impl Serialize) -> Result<String, SessionError> {
    serde_json::to_string(request).map_err(|error| SessionError::Internal(error.to_string()))
}

/// Asks here and, if another node has the session, there, by its inbox. `$read` makes the answer of what the inbox
/// brought.
macro_rules! wherever_it_is {
    ($sessions:expr, $here:expr, $operation:ident, $params:expr, $read:expr) => {
        loop {
            let here = $here;
            let Err(refusal @ SessionError::HeldBy { .. }) = here else { return here };
            if let Some(answer) = $sessions.by_inbox(Operation::$operation, text(&$params)?, refusal).await? {
                return $read(answer);
            }
        }
    };
}

macro_rules! declare {
    ($(
        $docs:tt $operation:ident $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty, $request:ident;
    )*) => {
        /// The services, and whatever else has sessions.
        #[async_trait]
        impl<S: AsRef<Sessions> + Send + Sync> SessionService for S {
            fn capabilities(&self) -> Capabilities {
                let sessions = self.as_ref();
                let engine = sessions.engine();
                engine.capabilities.with_kept_rules(engine.keeper_of_rules().is_some())
            }

            fn node(&self) -> Option<&str> {
                let sessions = self.as_ref();
                sessions.engine().events.node()
            }

            async fn ready(&self) -> Result<(), SessionError> {
                let sessions = self.as_ref();
                sessions.settle().await
            }

            async fn check_ready(&self) -> Result<bool, SessionError> {
                let sessions = self.as_ref();
                sessions.engine().events.room().await?;
                Ok(!sessions.engine().is_stored() || sessions.inner.is_ready.initialized())
            }

            async fn create_session(&self, request: CreateSession) -> Result<SessionCreated, SessionError> {
                let sessions = self.as_ref();
                sessions.admit(Operation::CreateSession).await?;
                sessions.create(request).await
            }

            async fn begin_turn(&self, request: StartTurn) -> Result<TurnHandle, SessionError> {
                let sessions = self.as_ref();
                sessions.admit(Operation::StartTurn).await?;
                if sessions.is_alone() {
                    return sessions.accept(request, false).await;
                }
                wherever_it_is!(
                    sessions,
                    sessions.accept(request.clone(), false).await,
                    StartTurn,
                    StartTurn { wait: false, ..request.clone() },
                    |accepted| sessions.begun(accepted, request.wait)
                )
            }

            async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnHandle, SessionError> {
                let sessions = self.as_ref();
                sessions.admit(Operation::Resume).await?;
                let is_continuation = request.prompt.is_none();
                if sessions.is_alone() {
                    return sessions.accept(request.on(*session_id), is_continuation).await;
                }
                wherever_it_is!(
                    sessions,
                    sessions.accept(request.clone().on(*session_id), is_continuation).await,
                    Resume,
                    request.params(*session_id, false),
                    |accepted| sessions.begun(accepted, request.wait)
                )
            }

            async fn follow_events(&self, request: ReadEvents) -> Result<Follower, SessionError> {
                let sessions = self.as_ref();
                let session_id = request.session_id;
                sessions.admit(Operation::Events).await?;
                sessions.check_exists(session_id).await?;
                // Durable events are seen from here too; those of a running step only where it runs.
                let (engine, hub) = (sessions.engine(), sessions.inner.registry.hub(session_id));
                Follower::new(&request, engine.events.clone(), engine.world.clock.clone(), hub).await
            }

            async fn follow_turn(
                &self,
                session_id: &SessionId,
                turn: TurnNumber,
                since_seq: u64,
            ) -> Result<Follower, SessionError> {
                let follower = self.follow(session_id, since_seq).await?.waiting();
                self.as_ref().go_on(*session_id, turn, since_seq).await;
                Ok(follower)
            }

            async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError> {
                let sessions = self.as_ref();
                sessions.settle().await?;
                Admitted(sessions).any_blob(request).await
            }

            async fn compact_until(
                &self,
                request: CompactSession,
                cancel: CancellationToken,
            ) -> Result<CompactionReceipt, SessionError> {
                let sessions = self.as_ref();
                let admitted = sessions.admit(Operation::Compact).await?;
                wherever_it_is!(
                    sessions,
                    admitted.compact_until(request.clone(), cancel.clone()).await,
                    Compact,
                    request,
                    |receipt| Reply::read(&receipt)
                )
            }

            async fn import_until(
                &self,
                request: ImportBundle,
                cancel: CancellationToken,
            ) -> Result<Imported, SessionError> {
                let sessions = self.as_ref();
                sessions.admit(Operation::ImportBundle).await?.import_until(request, Some(cancel)).await
            }

            async fn put_blob_from(
                &self,
                session_id: SessionId,
                length: Option<u64>,
                body: Pieces,
            ) -> Result<StoredBlob, SessionError> {
                let sessions = self.as_ref();
                sessions.admit(Operation::PutBlob).await?.put_blob_from(session_id, length, body).await
            }

            async fn memory_to_index(&self) -> Option<u64> {
                let sessions = self.as_ref();
                sessions.engine().derived.memory.as_ref().map(|memory| memory.control.remaining())
            }

            async fn shut_down(&self, drain_ms: u64) {
                let sessions = self.as_ref();
                sessions.drain_and_flush(drain_ms).await;
            }

            $(
                async fn $name(&self $(, $argument: $type)*) -> Result<$answer, SessionError> {
                    let sessions = self.as_ref();
                    let admitted = sessions.admit(Operation::$operation).await?;
                    if sessions.is_alone() {
                        return admitted.$name($( $argument ),*).await;
                    }
                    wherever_it_is!(
                        sessions,
                        admitted.$name($( Clone::clone(&$argument) ),*).await,
                        $operation,
                        crate::request_of!($request $( $argument )*),
                        |answer| Reply::read(&answer)
                    )
                }
            )*
        }
    };
}

crate::operations!(plain declare);

impl AsRef<Self> for Sessions {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl Sessions {
    /// Lets a turn go on that somebody waits for. A session that was given up after a failure of the store is loaded, as
    /// its next caller would; if that fails, the turn has no end yet, and its followers are notified.
    async fn go_on(&self, session_id: SessionId, turn: TurnNumber, since_seq: u64) {
        if self.look(session_id).await.is_ok_and(|view| view.summary.state != SessionState::Idle) {
            match self.live(session_id).await {
                Ok(live) => drop(live.mailbox.send(Command::GoOn { turn }).await),
                // An actor that has left, or that another node has, loads nothing here.
                Err(SessionError::ShuttingDown | SessionError::HeldBy { .. } | SessionError::TakenOver(_)) => {}
                Err(error) => {
                    let tail = self.engine().durable(session_id).await.unwrap_or(since_seq);
                    self.inner.registry.hub(session_id).lose(tail, &error);
                }
            }
        }
    }

    async fn drain_and_flush(&self, drain_ms: u64) {
        self.engine().is_shutting_down.store(true, Ordering::Release);
        let registry = &self.inner.registry;
        let drains = registry.ids().into_iter().map(|id| async move {
            // A session that is being loaded is drained afterwards; no other one is loaded from now on.
            registry.settled(id).await;
            if let Some(live) = registry.live(id) {
                let (reply, drained) = oneshot::channel();
                // An actor that leaves has nothing to drain.
                drop(live.mailbox.send(Command::Drain { drain_ms, reply }).await);
                drop(live);
                drop(drained.await);
            }
            registry.settled(id).await;
        });
        futures::future::join_all(drains).await;
        let engine = self.engine();
        let remembered = async {
            if let Some(memory) = &engine.derived.memory {
                memory.end().await;
            }
        };
        let projected = async {
            if let Some(projector) = &engine.derived.projector {
                projector.end().await;
            }
        };
        let settled = async {
            tokio::join!(remembered, projected);
            if let Err(error) = engine.derived.index.flush().await {
                tracing::warn!(%error, "the index could not be written; the next start updates it");
            }
            engine.derived.settling.close();
            engine.derived.settling.wait().await;
        };
        tokio::join!(settled, engine.tools.shut_down());
        // Last: no tool may still work on what another node takes.
        self.leave_others().await;
    }
}
