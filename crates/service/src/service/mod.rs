//! [`SessionService`]: the contract that every surface calls and every runtime keeps.
//!
//! An operation whose capability is absent answers with that capability's code, before it looks at anything else.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use tokio_util::sync::CancellationToken;

pub use meerkat_words::{answers::*, operators::*, overview::*, requests::*};

use crate::{
    SessionError,
    capability::Capabilities,
    follow::Follower,
    ids::{SessionId, TurnNumber},
};

/// Pieces of a body that is on its way.
pub type Pieces = BoxStream<'static, Result<Bytes, SessionError>>;

macro_rules! declare {
    ($(
        { $( #[$doc:meta] )+ }
        $operation:ident $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty, $request:ident;
    )*) => {
        /// Every operation of meerkat, in process.
        #[async_trait]
        pub trait SessionService: Send + Sync {
            /// Returns the capabilities of this service.
            fn capabilities(&self) -> Capabilities;

            /// Returns the name of this process among those that share its store; `None` if its store has one process.
            fn node(&self) -> Option<&str> {
                None
            }

            /// Waits until the service has settled the sessions that a former process left open.
            async fn ready(&self) -> Result<(), SessionError> {
                Ok(())
            }

            /// Returns true if [`Self::ready`] would return at once.
            ///
            /// # Errors
            /// The reason if no new work is taken.
            async fn check_ready(&self) -> Result<bool, SessionError> {
                Ok(true)
            }

            /// Creates a session.
            async fn create_session(&self, request: CreateSession) -> Result<SessionCreated, SessionError>;

            /// Accepts a turn: returns its place at once, and its result when it has ended.
            async fn begin_turn(&self, request: StartTurn) -> Result<TurnHandle, SessionError>;

            /// Runs a turn and returns its result when it has ended, however it ends.
            async fn start_turn(&self, request: StartTurn) -> Result<TurnResult, SessionError> {
                self.begin_turn(request).await?.result.await
            }

            /// Accepts a turn and returns when its input is recorded.
            async fn accept_turn(&self, request: StartTurn) -> Result<TurnAccepted, SessionError> {
                Ok(self.begin_turn(request).await?.accepted)
            }

            /// Like [`Self::resume`], as [`Self::begin_turn`] is like [`Self::start_turn`].
            async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnHandle, SessionError>;

            /// Continues a session that a former process left open.
            async fn resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnResult, SessionError> {
                self.begin_resume(session_id, request).await?.result.await
            }

            /// Replays a session's events after a cursor and then follows it, without a gap or a duplicate. The
            /// request's `limit` and `wait_ms` say nothing here.
            async fn follow_events(&self, request: ReadEvents) -> Result<Follower, SessionError>;

            /// Like [`Self::follow_events`], but ends at damage.
            async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError> {
                self.follow_events(ReadEvents::new(*session_id, since_seq)).await
            }

            /// Like [`Self::follow`], but fails with `STORE_FAILED` if the store fails during the turn.
            /// A turn that was held until somebody asks for it goes on.
            async fn follow_turn(
                &self,
                session_id: &SessionId,
                turn: TurnNumber,
                since_seq: u64,
            ) -> Result<Follower, SessionError>;

            /// Like [`Self::blob`], for the owner of the data directory, who may also read copies of files, and for a
            /// caller that waits for a turn: its own answer needs no store.
            async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError>;

            /// Like [`Self::compact`], but ends without a summary when `cancel` is cancelled. A compaction whose
            /// receipt is recorded stays; nothing else that runs or waits is touched.
            async fn compact_until(
                &self,
                request: CompactSession,
                cancel: CancellationToken,
            ) -> Result<CompactionReceipt, SessionError> {
                let _ = cancel;
                self.compact(request).await
            }

            /// Like [`Self::import_bundle`], but the upload ends when `cancel` is cancelled, unless its last piece has
            /// come: for a caller whose upload nobody can continue.
            async fn import_until(
                &self,
                request: ImportBundle,
                cancel: CancellationToken,
            ) -> Result<Imported, SessionError> {
                let _ = cancel;
                self.import_bundle(request).await
            }

            /// Like [`Self::put_blob`], from the pieces of a body, none of which is kept. If its length is known, one
            /// that the session has no room for is refused before the first piece.
            async fn put_blob_from(
                &self,
                session_id: SessionId,
                length: Option<u64>,
                body: Pieces,
            ) -> Result<StoredBlob, SessionError>;

            /// Counts the passages that a rebuild of the memory's index has not reached yet, if that is known here.
            async fn memory_to_index(&self) -> Option<u64> {
                None
            }

            /// Ends the service: takes no new work, and waits for running turns up to `drain_ms` before it interrupts
            /// them.
            async fn shut_down(&self, drain_ms: u64);

            $(
                $( #[$doc] )+
                async fn $name(&self $(, $argument: $type)*) -> Result<$answer, SessionError>;
            )*
        }
    };
}

crate::operations!(plain declare);
