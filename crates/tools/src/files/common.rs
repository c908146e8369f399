//! Forms of the file tools, and their work off the async threads.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    SessionError,
    model::ToolSpec,
    session::message::RawJson,
    tool::{ChangeLog, Invocation, OutputSink, Plan, Tool, ToolError},
};

use super::change::Changes;

/// Bytes of an answer of `read`, `grep` or `glob`. An answer larger than `tools.inline_bytes` would go to a blob.
pub(super) const ANSWER_BYTES_MAX: usize = 30 * 1024;

/// Answer of a call that looks at something.
pub(super) enum Shown {
    Text(String),
    Image(Vec<u8>),
}

/// Tool that only looks: its form, and the blocking work of a call.
struct Look<F> {
    spec: ToolSpec,
    work: Arc<F>,
}

/// Makes a tool that only looks.
pub(super) fn look<F>(name: &str, description: &str, schema: &str, work: F) -> Result<Arc<dyn Tool>, SessionError>
where
    F: Fn(&Invocation) -> Result<Shown, ToolError> + Send + Sync + 'static,
{
    Ok(Arc::new(Look { spec: spec(name, description, schema)?, work: Arc::new(work) }))
}

#[async_trait]
impl<F: Fn(&Invocation) -> Result<Shown, ToolError> + Send + Sync + 'static> Tool for Look<F> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::read_only())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let work = self.work.clone();
        match blocking(move || work(&invocation)).await? {
            Shown::Text(text) => output.write(&text).await,
            Shown::Image(bytes) => output.image(&bytes).await,
        }
    }
}

/// Tool that changes a file: its form, and the blocking work of a plan and of a call, which returns its answer.
pub(super) struct Change {
    pub(super) spec: ToolSpec,
    pub(super) usual: Plan,
    pub(super) changes: Arc<Changes>,
    pub(super) plan: fn(&Changes, &Invocation) -> Result<Plan, ToolError>,
    pub(super) call: fn(&Changes, &Invocation, &ChangeLog) -> Result<String, ToolError>,
}

#[async_trait]
impl Tool for Change {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(self.usual.clone())
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        let (changes, plan, invocation) = (self.changes.clone(), self.plan, invocation.clone());
        blocking(move || plan(&changes, &invocation)).await
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let (changes, call, log) = (self.changes.clone(), self.call, output.changes());
        let answer = blocking(move || call(&changes, &invocation, &log)).await?;
        output.write(&answer).await
    }
}

pub(crate) fn spec(name: &str, description: &str, schema: &str) -> Result<ToolSpec, SessionError> {
    Ok(ToolSpec { name: name.to_owned(), description: description.to_owned(), schema: RawJson::parse(schema)? })
}

/// Runs blocking work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            // The engine reports a panic of a tool.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ToolError::Cancelled),
        },
    }
}
