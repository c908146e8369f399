//! Answers as they are printed: unchanged with `--json`, else for people.

use meerkat_service::{
    Operation, Seq, SessionError, SessionId, SessionService,
    clock::{Clock as _, SystemClock},
    service::{Changed, CompactionReceipt, ReadEvents, ReadHistory, SessionView, StepKind},
    session::event::{CompactionUndone, ContextRebuilt},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ask::perform;
use crate::{
    app::App,
    error::CliError,
    render::{self, events::described, receipt},
    wire::{Request, read},
};

/// Performs an operation and prints its answer.
pub(crate) async fn print(app: &App, request: Request) -> Result<u8, CliError> {
    let operation = request.0;
    let answer = perform(&app.service, request).await?;
    show(app, operation, &answer)?;
    Ok(0)
}

/// Prints an answer.
pub(super) fn show(app: &App, operation: Operation, answer: &[u8]) -> Result<(), CliError> {
    if app.out.is_json {
        return Ok(app.out.document(answer)?);
    }
    if let Some((text, next_cursor)) = render::answer(operation, answer, app.out.width, SystemClock::new().now())? {
        app.out.readable(&text)?;
        if let Some(cursor) = next_cursor {
            app.out.note(&format!("There is more: repeat the command with --cursor {cursor}"));
        }
        return Ok(());
    }
    let mut answer: Value = read(answer)?;
    for item in answer.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
        if operation == Operation::Events {
            *item = described(&item.to_string()).into();
        }
    }
    Ok(app.out.answer(&answer)?)
}

/// Makes the text for people that takes more requests than the answer, if there is one. `undo` is the command that
/// takes a compaction back.
pub(crate) async fn message(
    app: &App,
    operation: Operation,
    answer: &[u8],
    undo: &str,
) -> Result<Option<String>, SessionError> {
    if app.out.is_json {
        return Ok(None);
    }
    Ok(match operation {
        Operation::Compact | Operation::PreviewCompaction => {
            Some(receipt::receipt(&read::<CompactionReceipt>(answer)?, undo))
        }
        Operation::UndoCompaction => Some(undone(app.service.as_ref(), read(answer)?).await?),
        Operation::Read => {
            let view: SessionView = read(answer)?;
            let used = used(app.service.as_ref(), view.session_id).await.unwrap_or_else(|error| {
                app.out.note(&format!("The window of the last model call cannot be shown: {error}"));
                None
            });
            Some(render::session(&view, used))
        }
        _ => None,
    })
}

/// Prints a [`message`], or the answer if there is none.
pub(crate) fn print_message(
    app: &App,
    operation: Operation,
    answer: &[u8],
    message: Option<&str>,
) -> Result<(), CliError> {
    match message {
        Some(message) => Ok(app.out.readable(message)?),
        None => show(app, operation, answer),
    }
}

/// Returns the tokens of the newest model call, if it is on the first page.
async fn used(service: &dyn SessionService, session_id: SessionId) -> Result<Option<u64>, SessionError> {
    let steps = service.steps(ReadHistory { skip_damage: true, ..ReadHistory::new(session_id) }).await?;
    let call = steps.items.into_iter().find(|step| step.kind == StepKind::ModelCall);
    Ok(call.and_then(|call| call.usage).map(|usage| usage.input_tokens))
}

/// Describes an undone compaction; its receipt may be pruned by now.
async fn undone(service: &dyn SessionService, Changed { session_id, seq }: Changed) -> Result<String, SessionError> {
    let CompactionUndone { compaction } = event(service, session_id, seq).await?;
    // The receipt is recorded right before the completion that names the compaction.
    let rebuilt = event::<ContextRebuilt>(service, session_id, compaction.saturating_sub(1)).await.ok();
    let receipt = rebuilt.filter(|rebuilt| rebuilt.compaction == compaction).map(|rebuilt| rebuilt.receipt);
    Ok(receipt::undone(compaction, receipt.as_ref()))
}

/// Reads the payload of an event.
async fn event<T: DeserializeOwned>(
    service: &dyn SessionService,
    session_id: SessionId,
    seq: Seq,
) -> Result<T, SessionError> {
    let request = ReadEvents { limit: Some(1), ..ReadEvents::new(session_id, seq.saturating_sub(1)) };
    let page = service.events(request).await?;
    read(page.items.first().map_or(b"null".as_slice(), |line| line.as_ref()))
}
