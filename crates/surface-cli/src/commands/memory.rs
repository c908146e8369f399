//! `memory …`: hits for people, a question before anything is forgotten, and a rebuild with a progress bar.

use meerkat_service::{
    Operation, SessionError,
    service::{Page, SearchHit},
    wire::encode,
};

use super::{
    ask::{perform, require},
    confirm::is_confirmed,
    operators,
    show::{print, show},
};
use crate::{
    app::{App, Streams},
    args::MemoryCommand,
    error::CliError,
    render::memory::Found,
    wire::{self, read},
};

/// Reader whose lag is the progress of a rebuild.
const MEMORY: &str = "memory";

/// `memory …`.
pub(crate) async fn run(app: &App, mut streams: Streams, command: &MemoryCommand) -> Result<u8, CliError> {
    let request = wire::memory(command);
    require(app, request.0)?;
    match command {
        MemoryCommand::Search { query, .. } if !app.out.is_json => {
            let hits: Page<SearchHit> = read(&perform(&app.service, request).await?)?;
            let opens = require(app, Operation::History).is_ok();
            let found = Found { query, opens, highlights: app.out.highlights, width: app.out.width };
            app.out.text(&found.render(&hits.items))?;
            return Ok(0);
        }
        MemoryCommand::Forget { yes: false, .. } if app.out.can_ask && is_to_be_asked(command) => {
            let question = "Forget all texts that match, for good?";
            if !is_confirmed(app, &mut streams, question, "Nothing was forgotten.").await {
                return Ok(0);
            }
        }
        MemoryCommand::Reindex => {
            let reindexed = operators::watched(app, MEMORY, app.service.reindex_memory()).await?;
            show(app, Operation::ReindexMemory, &encode(&reindexed)?)?;
            return Ok(0);
        }
        MemoryCommand::Search { .. } | MemoryCommand::Forget { .. } => is_meant(command)?,
    }
    print(app, request).await
}

/// Refuses to forget without a confirmation.
fn is_meant(command: &MemoryCommand) -> Result<(), SessionError> {
    if !is_to_be_asked(command) {
        return Ok(());
    }
    Err(SessionError::invalid("--yes", "forgetting is permanent; without a terminal, confirm with --yes"))
}

/// Returns true if it forgets something and needs a confirmation. If nothing is named, the operation refuses it.
const fn is_to_be_asked(command: &MemoryCommand) -> bool {
    match command {
        MemoryCommand::Forget { session, source, yes, .. } => !*yes && (session.is_some() || source.is_some()),
        MemoryCommand::Search { .. } | MemoryCommand::Reindex => false,
    }
}
