//! Results of calls: how they are made, and what the model reads of them.

use super::{ToolFinished, ToolOutcome};
use crate::session::message::{Body, ToolResult};

impl ToolFinished {
    /// Makes a result of output alone, for a call that took no time.
    #[must_use]
    pub fn new(call_id: String, name: String, outcome: ToolOutcome, output: Body) -> Self {
        let (files, images) = (Vec::new(), Vec::new());
        let (error, confinement, delegated) = (None, None, None);
        Self { call_id, name, outcome, output, error, duration_ms: 0, files, confinement, images, delegated }
    }

    /// Returns it as a result in the context.
    #[must_use]
    pub fn result(&self) -> ToolResult {
        let Self { call_id, name, outcome, output, images, .. } = self.clone();
        ToolResult { call_id, name, is_error: outcome != ToolOutcome::Succeeded, content: output, images }
    }
}
