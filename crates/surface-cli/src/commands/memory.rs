//! `memory …`: hits as people read them, a question before something is forgotten, and a rebuild that is looked at.

use meerkat_service::{
    Operation, SessionError,
    service::{Page, SearchHit},
    wire::encode,
};

use super::{operators, perform, read, sessions, show};
use crate::{App, Streams, args::MemoryCommand, error::CliError, people, wire};

/// The reader whose lag says how far a rebuild is.
const MEMORY: &str = "memory";

/// `memory …`.
pub(crate) async fn run(app: &App, mut streams: Streams, command: &MemoryCommand) -> Result<u8, CliError> {
    let request = wire::memory(command);
    match command {
        MemoryCommand::Search { query, .. } if !app.out.is_json => {
            let hits: Page<SearchHit> = read(&perform(&app.service, request).await?)?;
            let opens = sessions::require(app, Operation::History).is_ok();
            let found = people::memory::Found { query, opens, highlights: app.out.highlights, width: app.out.width };
            app.out.text(&found.render(&hits.items))?;
            return Ok(0);
        }
        MemoryCommand::Forget { yes: false, .. } if app.out.can_ask && is_to_be_asked(command) => {
            sessions::require(app, Operation::ForgetMemory)?;
            let question = "Forget all that matches, for good?";
            if !sessions::is_confirmed(app, &mut streams, question, "Nothing was forgotten.").await {
                return Ok(0);
            }
        }
        MemoryCommand::Reindex => {
            let reindexed = operators::watched(app, MEMORY, app.service.reindex_memory()).await?;
            show(app, Operation::ReindexMemory, &encode(&reindexed)?)?;
            return Ok(0);
        }
        MemoryCommand::Search { .. } | MemoryCommand::Forget { .. } => is_meant(app, command)?,
    }
    super::print(app, request).await
}

/// Refuses to forget where nobody was asked. What the service lacks it says first.
pub(crate) fn is_meant(app: &App, command: &MemoryCommand) -> Result<(), SessionError> {
    if !is_to_be_asked(command) {
        return Ok(());
    }
    sessions::require(app, Operation::ForgetMemory)?;
    Err(SessionError::invalid("--yes", "what is forgotten does not come back, and nobody can be asked; say --yes"))
}

/// Whether it forgets something unasked. Where nothing is named, the operation refuses it and says what is missing.
const fn is_to_be_asked(command: &MemoryCommand) -> bool {
    match command {
        MemoryCommand::Forget { session, source, yes, .. } => !*yes && (session.is_some() || source.is_some()),
        MemoryCommand::Search { .. } | MemoryCommand::Reindex => false,
    }
}
