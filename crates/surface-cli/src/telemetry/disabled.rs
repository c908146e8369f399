//! Build without `otel`: exports nothing, and says so if it is asked to.

use tracing::Dispatch;
use tracing_subscriber::{Layer, Registry};

use crate::{error::CliError, output::Environment};

/// Exporter that this build does not have.
pub(crate) enum Export {}

impl Export {
    pub(crate) fn begin(_: &Environment, logs: &Dispatch) -> Result<Option<Self>, CliError> {
        tracing::dispatcher::with_default(logs, || {
            tracing::warn!("this build cannot export traces, as the OTEL_ variables ask for: build it with `otel`");
        });
        Ok(None)
    }

    pub(crate) fn dispatch(&self, _: impl Layer<Registry>) -> Dispatch {
        match *self {}
    }

    pub(crate) fn end(self) {
        match self {}
    }
}
