//! `sessions …`: what takes more than one request or a question. The rest is one call each.

use std::{cmp::Reverse, path::PathBuf, sync::Arc};

use meerkat_service::{
    Capabilities, Capability, Operation, SessionError, SessionId, SessionService,
    clock::{Clock as _, SystemClock},
    follow::turn::whole,
    service::{HistoryItem, Page, Retained, SessionQuery, SessionSummary, SessionView},
    session::message::{Block, Body, Message},
    store::glance,
    wire::{call, encode},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    operators, print_told, read, resolve,
    run::{ANSWER_BYTES_MAX, is_yes},
    told,
};
use crate::{
    App, Streams,
    args::{ExportArgs, SessionCommand},
    config,
    error::{CliError, exit_code_of_leaving},
    input::{Lines, Source},
    output::{Output, Surroundings},
    people, wire,
};

/// What is told where nobody wanted it after all.
const KEPT: &str = "Nothing was deleted.";

/// What a command takes beyond one request.
#[derive(Default)]
pub(crate) enum More {
    /// Nothing.
    #[default]
    Nothing,
    /// All pages of a history, or its bodies whole.
    History { is_all: bool, is_full: bool },
    /// Sessions, and the file that they go into.
    Export(ExportArgs),
    /// The file that sessions come from.
    Import { file: PathBuf, new_ids: bool },
}

impl More {
    pub(crate) fn of(command: &SessionCommand) -> Self {
        match command {
            SessionCommand::History { all, full, .. } if *all || *full => {
                Self::History { is_all: *all, is_full: *full }
            }
            SessionCommand::Export(args) => Self::Export(args.clone()),
            SessionCommand::Import { file, new_ids } => Self::Import { file: file.clone(), new_ids: *new_ids },
            _ => Self::Nothing,
        }
    }
}

/// Refuses to delete where nobody was asked. What the service lacks it says first.
pub(crate) fn is_meant(app: &App, command: &SessionCommand) -> Result<(), SessionError> {
    let operation = match command {
        SessionCommand::List { all_projects: true, .. } => {
            let why = "other projects are listed by a command of its own, `meerkat sessions list --all-projects`";
            return Err(SessionError::invalid("--all-projects", why));
        }
        SessionCommand::Delete { yes: false, .. } => Operation::Delete,
        SessionCommand::Retain { yes: false, dry_run: false, .. } => Operation::Retain,
        _ => return Ok(()),
    };
    require(app, operation)?;
    Err(SessionError::invalid("--yes", "a deleted session does not come back, and nobody can be asked; say --yes"))
}

/// Refuses what the service lacks the capability for.
pub(crate) fn require(app: &App, operation: Operation) -> Result<(), SessionError> {
    operation.needs().map_or(Ok(()), |needed| app.service.capabilities().require(needed))
}

/// `sessions …`.
pub(crate) async fn run(app: &App, mut streams: Streams, command: &SessionCommand) -> Result<u8, CliError> {
    let mut request = wire::session(command, "");
    match command {
        SessionCommand::Delete { target, yes: false, .. } if app.out.can_ask => {
            let id = resolve(&app.service, target.session.as_deref().unwrap_or_default()).await?;
            let view: SessionView = ask(&app.service, Operation::Read, &json!({ "session_id": id })).await?;
            let title = view.title.map(|title| format!(" {title:?}")).unwrap_or_default();
            let question = format!("Delete session {id}{title} with {} messages for good?", view.message_count);
            if !is_confirmed(app, &mut streams, &question, KEPT).await {
                return Ok(0);
            }
            // What was asked about, also where `last` means another one by now.
            request.1["session_id"] = json!(id);
        }
        SessionCommand::Retain { yes: false, dry_run: false, .. } if app.out.can_ask => {
            let mut trial = request.1.clone();
            trial["dry_run"] = true.into();
            let going: Retained = ask(&app.service, Operation::Retain, &trial).await?;
            app.out.notice(&people::retained(&going, app.out.width));
            let question = format!("Delete these {} sessions for good?", going.items.len());
            if !going.items.is_empty() && !is_confirmed(app, &mut streams, &question, KEPT).await {
                return Ok(0);
            }
        }
        SessionCommand::Export(_) => streams.interrupts.listen(),
        _ => is_meant(app, command)?,
    }
    let operation = request.0;
    tokio::select! {
        answer = perform(app, request, More::of(command)) => {
            let answer = answer?;
            let text = told(app, operation, &answer, "").await?;
            print_told(app, operation, &answer, text.as_deref())?;
        }
        // What was not whole is taken away on the way out.
        () = streams.interrupts.next() => return Ok(exit_code_of_leaving()),
    }
    Ok(0)
}

/// `sessions list --all-projects`: no data directory is opened, so that no other process is disturbed.
pub(crate) fn all_projects(out: &Output, around: &Surroundings, command: &SessionCommand) -> Result<u8, CliError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    let query: SessionQuery = read(wire::session(command, "").1.to_string().as_bytes())?;
    let mut projects: Vec<(String, Page<SessionSummary>)> = Vec::new();
    for (project, data_dir) in config::all_projects(around)? {
        match glance(&data_dir, &query) {
            Ok(page) if page.items.is_empty() => {}
            Ok(page) => projects.push((project, page)),
            Err(error) => out.note(&format!("The sessions of {project} are left out: {error}")),
        }
    }
    // Each project in its own order, the one that changed last first.
    projects.sort_by_key(|(_, page)| Reverse(page.items.first().map(|session| session.updated_at)));
    for (project, _) in projects.iter().filter(|(_, page)| page.next_cursor.is_some()) {
        out.note(&format!("There are more in {project}."));
    }
    let sessions =
        projects.into_iter().flat_map(|(name, page)| page.items.into_iter().map(move |it| (name.clone(), it)));
    let sessions: Vec<(String, SessionSummary)> = sessions.collect();
    if !out.is_json {
        out.readable(&people::of_projects(&sessions, out.width, SystemClock::new().now()))?;
        return Ok(0);
    }
    let item = |(project, session): &(String, SessionSummary)| {
        let mut item = json!(session);
        item["project"] = json!(project);
        item
    };
    out.document(
        json!({ "items": sessions.iter().map(item).collect::<Vec<_>>(), "next_cursor": null }).to_string().as_bytes(),
    )?;
    Ok(0)
}

/// Asks a question; where the answer is no yes, `otherwise` is told.
pub(crate) async fn is_confirmed(app: &App, streams: &mut Streams, question: &str, otherwise: &str) -> bool {
    app.out.notice(&format!("{question} [y/N] "));
    let mut lines = Lines::start(Source::Plain { input: streams.take_stdin(), limit: ANSWER_BYTES_MAX });
    lines.ask();
    let is_confirmed = is_yes(&lines.next().await);
    if !is_confirmed {
        app.out.note(otherwise);
    }
    is_confirmed
}

/// Performs an operation with all that its command asks beyond it.
pub(crate) async fn perform(app: &App, request: wire::Request, more: More) -> Result<Vec<u8>, SessionError> {
    match more {
        More::Nothing => super::perform(&app.service, request).await,
        More::History { is_all, is_full } => history(&app.service, request, is_all, is_full).await,
        More::Export(args) => operators::export(app, &args, request.1["session_id"].as_str().unwrap_or_default()).await,
        More::Import { file, new_ids } => operators::import(app, &file, new_ids).await,
    }
}

async fn history(
    service: &Arc<dyn SessionService>,
    (operation, mut params): wire::Request,
    is_all: bool,
    is_full: bool,
) -> Result<Vec<u8>, SessionError> {
    let id = resolve(service, params["session_id"].as_str().unwrap_or_default()).await?;
    params["session_id"] = json!(id);
    let first = params["cursor"].as_str().map(str::to_owned);
    let mut page: Page<HistoryItem> = pages(first, is_all, async |cursor| {
        params["cursor"] = json!(cursor);
        ask(service, operation, &params).await
    })
    .await?;
    if is_full {
        for body in page.items.iter_mut().flat_map(|item| bodies(&mut item.message)) {
            *body = Body::Inline(whole(service.as_ref(), id, body).await?);
        }
    }
    encode(&page)
}

/// The session that changed last.
pub(crate) async fn first(service: &Arc<dyn SessionService>) -> Result<Option<SessionId>, SessionError> {
    let page: Page<SessionSummary> = ask(service, Operation::List, &json!({ "limit": 1 })).await?;
    Ok(page.items.first().map(|session| session.session_id))
}

/// Every session, what changed last first.
pub(crate) async fn all(service: &Arc<dyn SessionService>) -> Result<Vec<SessionSummary>, SessionError> {
    let list = async |cursor: Option<String>| ask(service, Operation::List, &json!({ "cursor": cursor })).await;
    Ok(pages(None, true, list).await?.items)
}

/// A page, or all from there on as one.
async fn pages<T>(
    first: Option<String>,
    is_all: bool,
    mut page: impl AsyncFnMut(Option<String>) -> Result<Page<T>, SessionError>,
) -> Result<Page<T>, SessionError> {
    let mut whole = page(first).await?;
    while is_all && whole.next_cursor.is_some() {
        let next = page(whole.next_cursor.take()).await?;
        whole.items.extend(next.items);
        whole.next_cursor = next.next_cursor;
    }
    Ok(whole)
}

fn bodies(message: &mut Message) -> Vec<&mut Body> {
    match message {
        Message::System { content }
        | Message::User { content }
        | Message::Assistant { content }
        | Message::SystemReminder { content, .. }
        | Message::Pin { content, .. } => vec![content],
        Message::BlockAssistant { blocks, .. } => blocks
            .iter_mut()
            .filter_map(|block| match block {
                Block::Text { text } | Block::Reasoning { text, .. } => Some(text),
                Block::ToolCall(_) => None,
            })
            .collect(),
        Message::ToolResults { results } => results.iter_mut().map(|result| &mut result.content).collect(),
    }
}

async fn ask<T: DeserializeOwned>(
    service: &Arc<dyn SessionService>,
    operation: Operation,
    params: &Value,
) -> Result<T, SessionError> {
    let answer = call(service.as_ref(), operation, &params.to_string()).await?;
    read(&answer)
}

/// `__complete-sessions`: what a word may become. A shell shows no error, so there is none.
pub(crate) async fn complete(app: &App, word: &str) -> Result<u8, CliError> {
    if let Ok(page) = ask::<Page<SessionSummary>>(&app.service, Operation::List, &json!({})).await {
        app.out.readable(&people::candidates(&page.items, word))?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_pages_are_one() {
        let page = async |cursor: Option<String>| {
            let from = cursor.map_or(1, |cursor| cursor.parse::<u8>().unwrap());
            Ok(Page { items: vec![from, from + 1], next_cursor: (from < 5).then(|| (from + 2).to_string()) })
        };
        assert_eq!(pages(None, true, page).await.unwrap(), Page::whole(vec![1, 2, 3, 4, 5, 6]));
        assert_eq!(pages(Some("3".to_owned()), true, page).await.unwrap(), Page::whole(vec![3, 4, 5, 6]));
        let one = Page { items: vec![3, 4], next_cursor: Some("5".to_owned()) };
        assert_eq!(pages(Some("3".to_owned()), false, page).await.unwrap(), one);
    }
}
