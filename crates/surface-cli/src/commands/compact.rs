//! `compact`: a compaction that can be interrupted while it is made, and what is told of one.

use meerkat_service::{
    Operation, Seq, SessionError, SessionId, SessionService,
    service::{Changed, CompactionReceipt},
    session::event::{CompactionUndone, ContextRebuilt},
    wire::{call, decode_params, encode},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{print_told, read, resolve, told};
use crate::{
    App, Streams,
    args::CompactArgs,
    error::{CliError, exit_code_of_leaving},
    people::receipt,
    wire::{self, EventPage},
};

/// `compact`, its preview and its undoing.
pub(crate) async fn compact(app: &App, mut streams: Streams, args: &CompactArgs) -> Result<u8, CliError> {
    let name = args.target.session.as_deref().unwrap_or_default();
    let (operation, mut params) = wire::compact(args, name, app.config.values.compaction);
    let id = resolve(&app.service, name).await?;
    params["session_id"] = json!(id);
    if operation == Operation::Compact {
        streams.interrupts.listen();
    }
    let cancel = CancellationToken::new();
    let answer = until(app.service.as_ref(), operation, &params, cancel.clone());
    tokio::pin!(answer);
    loop {
        tokio::select! {
            answer = &mut answer => {
                let answer = answer?;
                let text = told(app, operation, &answer, &format!("meerkat compact {id} --undo")).await?;
                print_told(app, operation, &answer, text.as_deref())?;
                return Ok(0);
            }
            () = streams.interrupts.next() => {
                if cancel.is_cancelled() {
                    return Ok(exit_code_of_leaving());
                }
                cancel.cancel();
                if app.holding.is_attached() {
                    app.out.note(&goes_on(&id));
                    return Ok(exit_code_of_leaving());
                }
                app.out.note("Interrupting; Ctrl-C again leaves at once.");
            }
        }
    }
}

/// Performs one of them. A compaction ends without a summary where `cancel` is; the others end at once anyway.
pub(crate) async fn until(
    service: &dyn SessionService,
    operation: Operation,
    params: &Value,
    cancel: CancellationToken,
) -> Result<Vec<u8>, SessionError> {
    let params = params.to_string();
    match operation {
        Operation::Compact => encode(&service.compact_until(decode_params(&params)?, cancel).await?),
        _ => call(service, operation, &params).await,
    }
}

/// What is told where another process compacts and this one leaves.
fn goes_on(id: &SessionId) -> String {
    format!(
        "The compaction goes on in the process that serves the session: `meerkat events {id} --follow` shows how it \
         ends, `meerkat sessions interrupt {id}` ends it now."
    )
}

/// What a compaction's answer says to people; `undo` is how it would be taken back.
pub(super) async fn explained(
    app: &App,
    operation: Operation,
    answer: &[u8],
    undo: &str,
) -> Result<String, SessionError> {
    if operation == Operation::UndoCompaction {
        let changed: Changed = read(answer)?;
        return undone(app.service.as_ref(), changed).await;
    }
    Ok(receipt::receipt(&read::<CompactionReceipt>(answer)?, undo))
}

/// Which compaction was undone, and what that gave back; the receipt may be gone by now.
async fn undone(service: &dyn SessionService, Changed { session_id, seq }: Changed) -> Result<String, SessionError> {
    let CompactionUndone { compaction } = event(service, &session_id, seq).await?;
    // The receipt stands right before the completion that names the compaction.
    let rebuilt = event::<ContextRebuilt>(service, &session_id, compaction.saturating_sub(1)).await.ok();
    let receipt = rebuilt.filter(|rebuilt| rebuilt.compaction == compaction).map(|rebuilt| rebuilt.receipt);
    Ok(receipt::undone(compaction, receipt.as_ref()))
}

/// The payload of an event.
async fn event<T: DeserializeOwned>(
    service: &dyn SessionService,
    session_id: &SessionId,
    seq: Seq,
) -> Result<T, SessionError> {
    let params = json!({ "session_id": session_id, "since_seq": seq.saturating_sub(1), "limit": 1 });
    let page: EventPage<Value> = read(&call(service, Operation::Events, &params.to_string()).await?)?;
    read(page.items.first().unwrap_or(&Value::Null).to_string().as_bytes())
}
