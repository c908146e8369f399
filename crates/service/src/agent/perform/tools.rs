//! A group of tool calls: each in a task of its own, bounded in time and output, results in call order.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use futures::{
    FutureExt as _, StreamExt as _,
    future::{Fuse, FusedFuture as _},
    stream::FuturesOrdered,
};
use meerkat_errors::{ErrorBody, ErrorCode};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{Outcome, allowed};
use crate::{
    agent::{Ports, decide::internal},
    ids::SessionId,
    redact::Secrets,
    session::{
        event::{ToolFinished, ToolOutcome},
        message::{BlobRef, Body, OUTCOME_UNKNOWN, UNKNOWN_BYTES_MAX},
    },
    tool::{Asking, ChangeLog, Invocation, MESSAGE_BYTES_MAX, OutputLimits, OutputSink, Tool, ToolError, prefix},
};

/// Bytes of the reason for an unknown outcome. With it the result stays small enough to be kept in the context.
const REASON_BYTES_MAX: usize = UNKNOWN_BYTES_MAX as usize - OUTCOME_UNKNOWN.len() - 1;
/// Questions that one call may ask; further ones wait for its end.
const FORMS_MAX: usize = 16;
/// Progress messages that may wait; more are dropped.
const PROGRESS_MAX: usize = 16;

/// The inputs of a group of calls.
pub(crate) struct ToolEffect {
    pub(crate) ports: Arc<Ports>,
    pub(crate) session_id: SessionId,
    pub(crate) calls: Vec<Ready>,
}

/// Call that is to run.
pub(crate) struct Ready {
    pub(crate) tool: Arc<dyn Tool>,
    pub(crate) invocation: Invocation,
    pub(crate) name: String,
    /// Time that it may take, if its plan has one of its own.
    pub(crate) timeout: Option<Duration>,
}

/// Runs the calls together and reports their results in call order.
pub(crate) async fn run_tools(effect: ToolEffect, outcomes: mpsc::Sender<Outcome>, cancel: CancellationToken) {
    let (progress, mut said) = mpsc::channel::<(String, String)>(PROGRESS_MAX);
    let order = Arc::<AtomicU64>::default();
    let mut running: FuturesOrdered<_> = effect
        .calls
        .iter()
        .map(|call| {
            let span = tracing::info_span!("tool_call", name = call.name, call_id = call.invocation.call_id);
            let told = (progress.clone(), outcomes.clone());
            run_one(&effect, call, told, order.clone(), cancel.clone()).instrument(span)
        })
        .collect();
    drop(progress);
    loop {
        tokio::select! {
            biased;
            Some((call_id, text)) = said.recv() => drop(outcomes.send(Outcome::Progress { call_id, text }).await),
            done = running.next() => match done {
                Some(finished) => drop(outcomes.send(Outcome::ToolDone(finished)).await),
                None => return,
            },
        }
    }
}

/// Ways by which a running call reports: its progress, which may be dropped, and its questions.
type Told = (mpsc::Sender<(String, String)>, mpsc::Sender<Outcome>);

async fn run_one(
    effect: &ToolEffect,
    call: &Ready,
    told: Told,
    order: Arc<AtomicU64>,
    cancel: CancellationToken,
) -> ToolFinished {
    let clock = effect.ports.world.clock.clone();
    let started = clock.elapsed();
    let (text_sender, texts) = mpsc::channel(PROGRESS_MAX);
    // One is asked at a time.
    let (question_sender, questions) = mpsc::channel(1);
    let options = &effect.ports.options.tools;
    let limits = OutputLimits {
        inline_bytes: options.inline_bytes,
        hard_cap_bytes: options.max_output_bytes,
        ..OutputLimits::default()
    };
    let (blobs, redactor) = (effect.ports.blobs.clone(), effect.ports.secrets.stream());
    let is_stored = effect.ports.is_stored();
    let changes = Arc::new(ChangeLog::new(blobs.clone(), effect.session_id, is_stored, order));
    let sink = OutputSink::new(limits, blobs, effect.session_id, redactor, text_sender).with_changes(changes.clone());
    let sink = Arc::new(sink.with_questions(question_sender));
    let (outcome, output, error) = run_bounded(effect, call, (&sink, texts, questions), told, cancel).await;
    let duration_ms = u64::try_from(clock.elapsed().saturating_sub(started).as_millis()).unwrap_or(u64::MAX);
    let duration_ms = if effect.ports.world.is_frozen { 0 } else { duration_ms };
    let (call_id, name) = (call.invocation.call_id.clone(), call.name.clone());
    let (files, confinement, images) = (changes.take(), sink.confinement(), sink.take_images().await);
    let finished = ToolFinished::new(call_id, name, outcome, output);
    ToolFinished { error, duration_ms, files, confinement, images, ..finished }
}

/// End of a bounded run.
enum Ended {
    Returned(Result<Result<(), ToolError>, tokio::task::JoinError>),
    Cancelled,
    TimedOut,
}

async fn run_bounded(
    effect: &ToolEffect,
    call: &Ready,
    (sink, mut texts, mut questions): (&Arc<OutputSink>, mpsc::Receiver<String>, mpsc::Receiver<Asking>),
    (progress, outcomes): Told,
    cancel: CancellationToken,
) -> (ToolOutcome, Body, Option<ErrorBody>) {
    let options = &effect.ports.options.tools;
    let secrets = &effect.ports.secrets;
    let stop = cancel.child_token();
    let mut task = {
        let invocation = Invocation { cancel: stop.clone(), ..call.invocation.clone() };
        let (tool, sink) = (call.tool.clone(), sink.clone());
        tokio::spawn(async move { tool.call(invocation, &sink).await }.in_current_span())
    };
    let clock = &effect.ports.world.clock;
    let limit = call.timeout.unwrap_or(allowed(options.timeout_ms));
    let (mut deadline, mut until) = (clock.sleep(limit), clock.elapsed() + limit);
    let (mut asked, mut left, mut forms) = (Fuse::terminated(), limit, 0);
    // If the actor does not keep up, progress is dropped.
    let tell = |text: String| drop(progress.try_send((call.invocation.call_id.clone(), text)));
    let mut ended = loop {
        tokio::select! {
            biased;
            Some(text) = texts.recv() => tell(text),
            done = &mut task => break Ended::Returned(done),
            () = cancel.cancelled() => break Ended::Cancelled,
            // The time of the call stands still while a person thinks.
            () = &mut asked, if !asked.is_terminated() => {
                (deadline, until) = (clock.sleep(left), clock.elapsed() + left);
            }
            Some(asking) = questions.recv(), if asked.is_terminated() && forms < FORMS_MAX => {
                forms += 1;
                left = until.saturating_sub(clock.elapsed());
                asked = ask(effect, call.invocation.call_id.clone(), asking, outcomes.clone()).boxed().fuse();
            }
            () = &mut deadline, if asked.is_terminated() => break Ended::TimedOut,
        }
    };
    drop(asked);
    let timed_out = matches!(ended, Ended::TimedOut);
    if !matches!(ended, Ended::Returned(_)) {
        stop.cancel();
        tokio::select! {
            biased;
            done = &mut task => ended = Ended::Returned(done),
            () = clock.sleep(Duration::from_millis(options.grace_ms)) => task.abort(),
        }
    }
    if matches!(&ended, Ended::Returned(Err(error)) if error.is_cancelled()) {
        // The runtime ends, which is no panic of the tool: nothing is recorded, and no other call begins.
        std::future::pending::<()>().await;
    }
    sink.end_progress();
    while let Ok(text) = texts.try_recv() {
        tell(text);
    }
    // A dropped sink leaves no blob behind.
    let output = match ended {
        Ended::Returned(Ok(_)) => sink.finish().await,
        Ended::Returned(Err(_)) | Ended::Cancelled | Ended::TimedOut => Ok(Body::from("")),
    };
    if let (Ended::Returned(Ok(returned @ Ok(()))), true) = (&mut ended, sink.is_full().await) {
        // A tool that ignores the refusal of its output has failed.
        *returned = Err(ToolError::OutputTooLarge { limit: options.max_output_bytes });
    }
    match ended {
        Ended::Returned(Ok(Ok(()))) => match output {
            Ok(body) => (ToolOutcome::Succeeded, body, None),
            Err(error) => failed(secrets, ErrorCode::ToolFailed, &error.to_string()),
        },
        Ended::Returned(Ok(Err(error))) => {
            let error = bounded(secrets, error, options.max_output_bytes);
            let key = if call.timeout.is_none() { " (tools.timeout_ms)" } else { "" };
            let late = format!("The tool was stopped after {} ms{key}.", limit.as_millis());
            let (outcome, text, error) = match error {
                ToolError::Cancelled if timed_out => failed(secrets, ErrorCode::ToolFailed, &late),
                ToolError::Unknown(why) if timed_out => {
                    tool_error(secrets, call.tool.as_ref(), &ToolError::Unknown(format!("{late} {why}")))
                }
                error => tool_error(secrets, call.tool.as_ref(), &error),
            };
            // The output of a failing tool often explains the failure.
            let wrote = output.ok().filter(|wrote| !wrote.is_empty());
            let body = match wrote {
                None => text,
                Some(Body::Inline(wrote)) => format!("{}\n{wrote}", text.excerpt()).into(),
                // It names the whole output, so that the blob is kept as long as the result.
                Some(Body::Blob(wrote)) => Body::Blob(BlobRef {
                    head: format!("{}\n{}", prefix(&text.excerpt(), MESSAGE_BYTES_MAX), wrote.head),
                    ..wrote
                }),
            };
            (outcome, body, error)
        }
        Ended::Returned(Err(_)) => {
            let text = format!("{OUTCOME_UNKNOWN} The tool panicked.");
            (ToolOutcome::Unknown, text.into(), Some(internal("a tool panicked")))
        }
        Ended::Cancelled | Ended::TimedOut => {
            let text = format!("{OUTCOME_UNKNOWN} The tool did not stop when it was asked to.");
            let error = ErrorBody::with_message(ErrorCode::ToolFailed, text.as_str());
            (ToolOutcome::Unknown, text.into(), Some(error))
        }
    }
}

/// Carries a question to the session, and its answer back.
async fn ask(effect: &ToolEffect, call_id: String, asking: Asking, outcomes: mpsc::Sender<Outcome>) {
    let Asking { question, mut reply } = asking;
    let (sender, mut answer) = oneshot::channel();
    drop(outcomes.send(Outcome::Asked { call_id: call_id.clone(), question, reply: sender }).await);
    let expired = Duration::from_millis(effect.ports.options.tools.approval_timeout_ms);
    let reason = tokio::select! {
        biased;
        answer = &mut answer => {
            // Without an answer the turn has ended, which cancels the question.
            if let Ok(answer) = answer {
                drop(reply.send(answer));
            }
            return;
        }
        () = reply.closed() => "the server took its question back",
        () = effect.ports.world.clock.sleep(expired) => "no decision came in time",
    };
    drop(outcomes.send(Outcome::Unasked { call_id, reason }).await);
    // The actor alone decides: an answer may have been recorded meanwhile.
    if let Ok(answer) = answer.await {
        drop(reply.send(answer));
    }
}

/// Limits a failure's message like other output. Secrets are replaced before the cut: otherwise part of one could
/// remain.
pub(crate) fn bounded(secrets: &Secrets, error: ToolError, limit: u64) -> ToolError {
    let cut = |text: String| prefix(&secrets.replace(&text), usize::try_from(limit).unwrap_or(usize::MAX)).to_owned();
    match error {
        ToolError::Failed(text) => ToolError::Failed(cut(text)),
        ToolError::Refused(text) => ToolError::Refused(cut(text)),
        ToolError::Unknown(text) => ToolError::Unknown(prefix(&cut(text), REASON_BYTES_MAX).to_owned()),
        ToolError::Arguments(why) => ToolError::Arguments(cut(why)),
        ToolError::Cancelled | ToolError::OutputTooLarge { .. } => error,
    }
}

fn failed(secrets: &Secrets, code: ErrorCode, text: &str) -> (ToolOutcome, Body, Option<ErrorBody>) {
    // Replaced before it is cut, too.
    let text = secrets.replace(text);
    // The output may go to a blob; the event has the message.
    let error = ErrorBody::with_message(code, prefix(&text, MESSAGE_BYTES_MAX));
    (ToolOutcome::Failed, text.as_ref().into(), Some(error))
}

fn tool_error(secrets: &Secrets, tool: &dyn Tool, error: &ToolError) -> (ToolOutcome, Body, Option<ErrorBody>) {
    match error {
        ToolError::Arguments(_) | ToolError::Refused(_) => {
            let text = secrets.replace(&error.why_not_run(tool.spec().schema.as_str())).into_owned();
            let body = error.not_run_body(&text);
            (ToolOutcome::NotRun, text.into(), Some(body))
        }
        ToolError::Unknown(why) => {
            let (_, body, error) = failed(secrets, ErrorCode::ToolFailed, &format!("{OUTCOME_UNKNOWN} {why}"));
            (ToolOutcome::Unknown, body, error)
        }
        ToolError::Failed(_) | ToolError::Cancelled | ToolError::OutputTooLarge { .. } => {
            failed(secrets, ErrorCode::ToolFailed, &error.to_string())
        }
    }
}
