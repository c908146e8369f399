//! [`SessionService`]: the contract that every surface calls and every runtime keeps.
//!
//! An operation whose capability is absent answers with that capability's code, before it looks at anything else.

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

pub use meerkat_words::{answers::*, operators::*, requests::*};

use crate::{SessionError, capability::Capabilities, follow::Follower, ids::SessionId};

macro_rules! declare {
    ($(
        { $( #[$doc:meta] )+ }
        $operation:ident $name:ident($( $argument:ident: $type:ty ),*) -> $answer:ty, $request:ident;
    )*) => {
        /// Everything that can be asked of meerkat, in process.
        #[async_trait]
        pub trait SessionService: Send + Sync {
            /// What this service can do.
            fn capabilities(&self) -> Capabilities;

            /// Waits until the service has settled what a former process left behind.
            async fn ready(&self) -> Result<(), SessionError> {
                Ok(())
            }

            /// Whether [`Self::ready`] would answer at once.
            ///
            /// # Errors
            /// Why no new work is taken.
            async fn check_ready(&self) -> Result<bool, SessionError> {
                Ok(true)
            }

            /// Makes a session.
            async fn create_session(&self, request: CreateSession) -> Result<SessionCreated, SessionError>;

            /// Accepts a turn: where it stands at once, its result when it has ended.
            async fn begin_turn(&self, request: StartTurn) -> Result<TurnHandle, SessionError>;

            /// Runs a turn and answers when it has ended. A turn that has started answers with its result, however it
            /// ends.
            async fn start_turn(&self, request: StartTurn) -> Result<TurnResult, SessionError> {
                self.begin_turn(request).await?.result.await
            }

            /// Accepts a turn and answers at once, when its input is recorded.
            async fn accept_turn(&self, request: StartTurn) -> Result<TurnAccepted, SessionError> {
                Ok(self.begin_turn(request).await?.accepted)
            }

            /// Like [`Self::resume`], as [`Self::begin_turn`] is like [`Self::start_turn`].
            async fn begin_resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnHandle, SessionError>;

            /// Goes on with a session that a former process left behind.
            async fn resume(&self, session_id: &SessionId, request: ResumeTurn) -> Result<TurnResult, SessionError> {
                self.begin_resume(session_id, request).await?.result.await
            }

            /// Replays from a cursor and then follows, without a gap or a duplicate.
            async fn follow(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError>;

            /// Like [`Self::follow`], but fails with `STORE_FAILED` if the store fails during the turn.
            async fn follow_turn(&self, session_id: &SessionId, since_seq: u64) -> Result<Follower, SessionError>;

            /// Like [`Self::blob`], for a caller that waits for a turn: the answer is the caller's own, also without a store.
            async fn answer_blob(&self, request: ReadBlob) -> Result<BlobPage, SessionError>;

            /// Like [`Self::compact`], but ends without a summary when `cancel` is cancelled. A compaction whose receipt
            /// is recorded stays; nothing else that runs or waits is touched.
            async fn compact_until(
                &self,
                request: CompactSession,
                cancel: CancellationToken,
            ) -> Result<CompactionReceipt, SessionError> {
                let _ = cancel;
                self.compact(request).await
            }

            /// Passages that a rebuild of the memory's index has not reached yet, if that is known here.
            async fn memory_to_index(&self) -> Option<u64> {
                None
            }

            /// Ends the service: takes no new work, and waits for running turns up to `drain_ms` before it interrupts them.
            async fn shut_down(&self, drain_ms: u64);

            $(
                $( #[$doc] )+
                async fn $name(&self $(, $argument: $type)*) -> Result<$answer, SessionError>;
            )*
        }
    };
}

crate::operations!(plain declare);
