//! Build without `otel`: exports nothing, and says so if it is asked to.

use tracing::Dispatch;
use tracing_subscriber::{Layer, Registry};

use crate::output::Environment;

/// Exporter that this build does not have.
pub(crate) enum Export {}

impl Export {
    pub(crate) fn begin(_: &Environment, logs: &Dispatch) -> Result<Option<Self>, String> {
        tracing::dispatcher::with_default(logs, || {
            tracing::warn!(
                "OTEL_ variables are set, but this build cannot export traces: build it with the feature `otel`"
            );
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
