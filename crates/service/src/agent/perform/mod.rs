//! The only place that awaits the outside world. An effect owns its inputs, reports its outcomes one at
//! a time, and is cancelled by its token, never by being dropped.

mod model;
mod plans;
mod tools;

use std::time::Duration;

use meerkat_errors::ErrorBody;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

pub(crate) use model::{ModelEffect, call_model};
pub(crate) use plans::{Planning, await_plans};
pub(crate) use tools::{Ready, ToolEffect, bounded, run_tools};

use crate::{
    model::{ModelAnswer, ModelError},
    session::{event::ToolFinished, reminder::SystemReminderType},
    tool::{Answer, Plan, Question, ToolError},
};

/// Outcomes that may wait for the actor.
const OUTCOMES_MAX: usize = 64;

/// Report of an effect.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "one is under way at a time, and a box would cost each call an allocation"
)]
pub(crate) enum Outcome {
    /// More of the model's text or reasoning.
    Delta { is_reasoning: bool, text: String },
    /// A model call failed and will be tried again.
    Retrying { attempt: u32, wait_ms: u64, error: ModelError },
    /// The model answered.
    Answered(ModelAnswer),
    /// The model failed for good, or the call was cancelled; this had come.
    ModelFailed { error: Option<ModelError>, partial: String },
    /// A tool planned a call, or says why it cannot run.
    Planned { call_id: String, plan: Result<Plan, ToolError> },
    /// Progress of a tool.
    Progress { call_id: String, text: String },
    /// A tool asks a person something while its call runs.
    Asked { call_id: String, question: Question, reply: oneshot::Sender<Answer> },
    /// Nobody waits for the answer any more.
    Unasked { call_id: String, reason: &'static str },
    /// Notes about the workspace were written.
    Notes(Vec<(SystemReminderType, Option<String>)>),
    /// A call has its result. Only a panic is an internal error.
    ToolDone(ToolFinished),
    /// The effect itself failed.
    Broken(ErrorBody),
}

/// Longest wait: timers overflow beyond.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the time that an option allows; 0 means no limit.
pub(crate) fn allowed(ms: u64) -> Duration {
    if ms == 0 { LONGEST } else { Duration::from_millis(ms).min(LONGEST) }
}

/// An effect that runs.
pub(crate) struct Effect {
    pub(crate) outcomes: mpsc::Receiver<Outcome>,
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Effect {
    /// Runs `work` as a task in `span`, so that its panic is an outcome.
    pub(crate) fn spawn<F, W>(span: Span, work: F) -> Self
    where
        F: FnOnce(mpsc::Sender<Outcome>, CancellationToken) -> W,
        W: Future<Output = ()> + Send + 'static,
    {
        let (sender, outcomes) = mpsc::channel(OUTCOMES_MAX);
        let cancel = CancellationToken::new();
        let task = tokio::spawn(work(sender, cancel.clone()).instrument(span));
        Self { outcomes, cancel, task }
    }
}

impl Drop for Effect {
    /// Cancels the effect; its task ends by itself.
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}
