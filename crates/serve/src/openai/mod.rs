//! OpenAI's protocols on the listener, if they are built in.

#[cfg(not(feature = "openai"))]
mod disabled;
#[cfg(feature = "openai")]
mod enabled;

use std::{fmt, sync::Arc, time::Duration};

use meerkat_service::{ErrorBody, SessionService};

#[cfg(not(feature = "openai"))]
pub(crate) use disabled::{IS_BUILT, owns, refusal, router};
#[cfg(feature = "openai")]
pub(crate) use enabled::{IS_BUILT, owns, refusal, router};

/// Takes a place for a stream.
pub(crate) type Places = Arc<dyn Fn() -> Result<Option<Box<dyn Send>>, ErrorBody> + Send + Sync>;

/// What OpenAI's protocols need beside the service.
#[derive(Clone)]
pub struct OpenAi {
    /// Service for what is not stored. It drops its sessions soon after their last turn.
    pub passing: Arc<dyn SessionService>,
    /// Names of the models.
    pub models: Vec<String>,
    /// Label for the user of a request.
    pub scope_label: String,
    /// How long calls of a session that is not stored wait for their outputs.
    pub call_time: Duration,
}

impl OpenAi {
    /// True if this build has the protocols.
    pub const IS_BUILT: bool = IS_BUILT;
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAi").field("models", &self.models).finish_non_exhaustive()
    }
}
