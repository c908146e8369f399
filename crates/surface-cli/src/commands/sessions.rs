//! `sessions …`: commands with more than one request, or a question. The others are one call each.

use std::{
    cmp::Reverse,
    path::{Path, PathBuf},
    sync::Arc,
};

use meerkat_service::{
    Capabilities, Capability, Operation, SessionError, SessionService, TurnNumber,
    clock::{Clock as _, SystemClock},
    follow::turn::whole,
    service::{HistoryItem, Page, ReadHistory, Scope, SessionQuery, SessionSummary},
    session::message::{Block, Body, Message},
    store::glance,
    wire::{decode_params, encode},
};
use serde_json::{Value, json};

use super::{
    ask::{self, require},
    confirm::is_confirmed,
    files,
    list::pages,
    names::resolve,
    operators,
    show::{message, print_message},
};
use crate::{
    app::{App, Streams},
    args::{ExportArgs, SessionCommand},
    config,
    error::{CliError, exit_code_of_leaving},
    output::{Environment, Output},
    render, wire,
};

/// Note after a deletion that was not confirmed.
const KEPT: &str = "Nothing was deleted.";

/// Work of a command beyond one request.
#[derive(Default)]
pub(crate) enum More {
    /// Nothing.
    #[default]
    Nothing,
    /// All pages of a history, or its complete bodies.
    History { is_all: bool, is_full: bool },
    /// Sessions to write to a file.
    Export(ExportArgs),
    /// File to make sessions from.
    Import { file: PathBuf, new_ids: bool, keep_scope: bool },
    /// Files to list that were changed from a turn on.
    Files { since: TurnNumber },
    /// Files to put back as they were before a turn.
    RestoreFiles { turn: TurnNumber, except: Vec<String> },
    /// Files to put back as somebody has agreed to.
    RestorePlanned(Box<files::Plan>),
}

impl More {
    pub(crate) fn of(command: &SessionCommand) -> Self {
        match command {
            SessionCommand::History { all, full, .. } if *all || *full => {
                Self::History { is_all: *all, is_full: *full }
            }
            SessionCommand::Export(args) => Self::Export(args.clone()),
            SessionCommand::Import { file, new_ids, keep_scope } => {
                Self::Import { file: file.clone(), new_ids: *new_ids, keep_scope: *keep_scope }
            }
            SessionCommand::Files { turn, .. } => Self::Files { since: turn.unwrap_or(0) },
            SessionCommand::RestoreFiles { turn, except, .. } => {
                Self::RestoreFiles { turn: *turn, except: except.clone() }
            }
            _ => Self::Nothing,
        }
    }
}

/// Refuses an unconfirmed deletion, or restoring of files. A missing capability is refused first.
pub(crate) fn is_meant(app: &App, command: &SessionCommand) -> Result<(), SessionError> {
    let deletes = "deleting is permanent; without a terminal, confirm with --yes";
    let (operation, why) = match command {
        SessionCommand::List { all_projects: true, .. } => {
            let why = "a chat cannot list other projects; run `meerkat sessions list --all-projects`";
            return Err(SessionError::invalid("--all-projects", why));
        }
        SessionCommand::Delete { yes: false, .. } => (Operation::Delete, deletes),
        SessionCommand::RestoreFiles { yes: false, .. } => {
            (Operation::Blob, "files would be replaced or deleted, and there is no terminal to ask in; add --yes")
        }
        _ => return Ok(()),
    };
    require(app, operation)?;
    Err(SessionError::invalid("--yes", why))
}

/// `sessions …`.
pub(crate) async fn run(app: &App, mut streams: Streams, command: &SessionCommand) -> Result<u8, CliError> {
    let mut request = wire::session(command, "");
    let (mut kept, mut more) = (None, More::of(command));
    match command {
        SessionCommand::Delete { target, yes: false, .. } if app.out.can_ask => {
            let id = resolve(&app.service, target.session.as_deref().unwrap_or_default()).await?;
            let view = app.service.read(&id).await?;
            let title = view.title.map(|title| format!(" {title:?}")).unwrap_or_default();
            let question = format!("Delete session {id}{title} with {} messages for good?", view.message_count);
            if !is_confirmed(app, &mut streams, &question, KEPT).await {
                return Ok(0);
            }
            // By now `last` may be another session than the one in the question.
            request.1["session_id"] = json!(id);
        }
        SessionCommand::Approve { target, call_id, scope: Scope::Always, .. } if app.out.can_ask => {
            let id = resolve(&app.service, target.session.as_deref().unwrap_or_default()).await?;
            let view = app.service.read(&id).await?;
            let call = view.pending_approvals.iter().find(|call| call.call_id == *call_id);
            // Without a rule the service refuses the scope, and says so.
            if let Some(rule) = call.and_then(|call| call.rule.as_deref()) {
                let question = format!("Let `{rule}` run without a question, in all your sessions?");
                if !is_confirmed(app, &mut streams, &question, "Nothing was decided.").await {
                    return Ok(0);
                }
                kept = Some(rule.to_owned());
                request.1["scope"] = json!(Scope::Session.name());
            }
        }
        SessionCommand::RestoreFiles { target, turn, except, yes: false } if app.out.can_ask => {
            let plan = files::plan(app, target.session.as_deref().unwrap_or_default(), *turn, except).await?;
            if let Some(question) = plan.question()
                && !is_confirmed(app, &mut streams, &question, "Nothing was changed.").await
            {
                return Ok(0);
            }
            more = More::RestorePlanned(Box::new(plan));
        }
        SessionCommand::Export(_) => streams.interrupts.listen(),
        _ => is_meant(app, command)?,
    }
    let operation = request.0;
    tokio::select! {
        answer = perform(app, request, more) => {
            let answer = answer?;
            let text = message(app, operation, &answer, "").await?;
            print_message(app, operation, &answer, text.as_deref())?;
            // The decision comes first: without the rule it allows less than was meant, never more.
            kept.map_or(Ok(()), |rule| app.remember_rule(&rule))?;
        }
        // An incomplete file is removed.
        () = streams.interrupts.next() => return Ok(exit_code_of_leaving()),
    }
    Ok(0)
}

/// `sessions list --all-projects`: no data directory is opened, so that no other process is disturbed.
pub(crate) fn all_projects(out: &Output, env: &Environment, command: &SessionCommand) -> Result<u8, CliError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    let query: SessionQuery = wire::read(wire::session(command, "").1.to_string().as_bytes())?;
    let mut projects: Vec<(String, Page<SessionSummary>)> = Vec::new();
    for (project, data_dir) in config::all_projects(env)? {
        match glance(&data_dir, &query) {
            Ok(page) if page.items.is_empty() => {}
            Ok(page) => {
                if !Path::new(&project).is_dir() {
                    let data_dir = data_dir.display();
                    out.note(&format!(
                        "{project} is not there any more; `--data-dir {data_dir}` goes on with its sessions."
                    ));
                }
                projects.push((project, page));
            }
            Err(error) => out.note(&format!("The sessions of {project} are left out: {error}")),
        }
    }
    // Each project in its own order, the one that changed last first.
    projects.sort_by_key(|(_, page)| Reverse(page.items.first().map(|session| session.updated_at)));
    for (project, _) in projects.iter().filter(|(_, page)| page.next_cursor.is_some()) {
        out.note(&format!("{project} has more sessions; `meerkat sessions list` in it lists them."));
    }
    let sessions =
        projects.into_iter().flat_map(|(name, page)| page.items.into_iter().map(move |it| (name.clone(), it)));
    let sessions: Vec<(String, SessionSummary)> = sessions.collect();
    if !out.is_json {
        out.readable(&render::of_projects(&sessions, out.width, SystemClock::new().now()))?;
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

/// Performs an operation, and the work of its command beyond it.
pub(crate) async fn perform(app: &App, request: wire::Request, more: More) -> Result<Vec<u8>, SessionError> {
    match more {
        More::Nothing => ask::perform(&app.service, request).await,
        More::History { is_all, is_full } => history(&app.service, request.1, is_all, is_full).await,
        More::Export(args) => operators::export(app, &args, request.1["session_id"].as_str().unwrap_or_default()).await,
        More::Import { file, new_ids, keep_scope } => operators::import(app, &file, (new_ids, keep_scope)).await,
        More::Files { since } => files::list(app, request.1["session_id"].as_str().unwrap_or_default(), since).await,
        More::RestoreFiles { turn, except } => {
            let plan = files::plan(app, request.1["session_id"].as_str().unwrap_or_default(), turn, &except).await?;
            files::restore(app, &plan).await
        }
        More::RestorePlanned(plan) => files::restore(app, &plan).await,
    }
}

/// Reads a page of a history, or all pages from there on, if needed with complete bodies.
async fn history(
    service: &Arc<dyn SessionService>,
    mut params: Value,
    is_all: bool,
    is_full: bool,
) -> Result<Vec<u8>, SessionError> {
    let id = resolve(service, params["session_id"].as_str().unwrap_or_default()).await?;
    params["session_id"] = json!(id);
    let request: ReadHistory = decode_params(&params.to_string())?;
    let read = async |cursor| service.history(ReadHistory { cursor, ..request.clone() }).await;
    let mut page: Page<HistoryItem> = pages(request.cursor.clone(), is_all, read).await?;
    if is_full {
        for body in page.items.iter_mut().flat_map(|item| bodies(&mut item.message)) {
            *body = Body::Inline(whole(service.as_ref(), id, body).await?);
        }
    }
    encode(&page)
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
