//! `compact`: a compaction that Ctrl-C ends while it is made.

use meerkat_service::{
    Operation, SessionError, SessionId, SessionService,
    wire::{call, decode_params, encode},
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    ask::require,
    names::resolve,
    show::{message, print_message},
};
use crate::{
    app::{App, Streams},
    args::CompactArgs,
    error::{CliError, exit_code_of_leaving},
    wire,
};

/// `compact`, its preview and its undoing.
pub(crate) async fn compact(app: &App, mut streams: Streams, args: &CompactArgs) -> Result<u8, CliError> {
    let name = args.target.session.as_deref().unwrap_or_default();
    let (operation, mut params) = wire::compact(&args.how, name, app.config.values.compaction);
    require(app, operation)?;
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
                let text = message(app, operation, &answer, &format!("meerkat compact {id} --undo")).await?;
                print_message(app, operation, &answer, text.as_deref())?;
                return Ok(0);
            }
            () = streams.interrupts.next() => {
                if cancel.is_cancelled() {
                    return Ok(exit_code_of_leaving());
                }
                cancel.cancel();
                if app.is_attached {
                    app.out.note(&goes_on(&id));
                    return Ok(exit_code_of_leaving());
                }
                app.out.note("Interrupting; Ctrl-C again leaves at once.");
            }
        }
    }
}

/// Performs one of them. `cancel` ends a compaction without a summary; the others end at once anyway.
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

/// Says how to see and to end a compaction that another process makes.
fn goes_on(id: &SessionId) -> String {
    format!(
        "The compaction continues in the process that serves the session: `meerkat events {id} --follow` shows how it \
         ends, `meerkat sessions interrupt {id}` ends it now."
    )
}
