//! `sessions …`: commands with more than one request, or a question. The others are one call each.

use std::{cmp::Reverse, path::Path, sync::Arc};

use meerkat_service::{
    Capabilities, Capability, SessionError, SessionService,
    clock::{Clock as _, SystemClock},
    follow::turn::whole,
    service::{AnswerCall, CallContent, HistoryItem, Page, ReadHistory, Scope, SessionQuery, SessionSummary},
    session::message::{Block, Body, Message, RawJson},
    store::glance,
    wire::{Reply as _, decode_params, encode},
};
use serde_json::{Value, json};

use super::{
    ask::{self, require, require_for},
    confirm::is_confirmed,
    files,
    list::pages,
    names::resolve,
    operators,
    run::{self, create},
    show::{message, print_message},
    tree,
};
use crate::{
    app::{App, Streams},
    args::SessionCommand,
    config,
    error::{CliError, exit_code_of_leaving},
    output::{Environment, Output},
    render, wire,
};

/// Note after a deletion that was not confirmed.
const KEPT: &str = "Nothing was deleted.";

/// `sessions …`.
pub(crate) async fn run(app: &App, mut streams: Streams, command: &SessionCommand) -> Result<u8, CliError> {
    let mut request = wire::session(command, "");
    require(app, request.0)?;
    let (mut kept, mut planned) = (None, None);
    match command {
        SessionCommand::Tree(target) => return tree::print(app, target.session.as_deref().unwrap_or_default()).await,
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
        SessionCommand::Delete { yes: false, .. } => {
            let why = "deleting is permanent; without a terminal, confirm with --yes";
            return Err(SessionError::invalid("--yes", why).into());
        }
        SessionCommand::RestoreFiles { target, turn, except, yes } => {
            let plan = files::plan(app, target.session.as_deref().unwrap_or_default(), *turn, except).await?;
            if let Some(question) = plan.question().filter(|_| !yes) {
                if !app.out.can_ask {
                    return Err(files::unasked().into());
                }
                if !is_confirmed(app, &mut streams, &question, "Nothing was changed.").await {
                    return Ok(0);
                }
            }
            planned = Some(plan);
        }
        SessionCommand::Answer { value, wait: true, .. } => {
            return run::answer(app, streams, answer(app, request.1, value.as_deref()).await?).await;
        }
        SessionCommand::Export(_) => streams.interrupts.listen(),
        _ => {}
    }
    let operation = request.0;
    tokio::select! {
        answer = perform(app, command, request, planned) => {
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
                    let data_dir = config::typed(&data_dir);
                    out.note(&format!("{project} no longer exists; `--data-dir {data_dir}` continues its sessions."));
                }
                projects.push((project, page));
            }
            Err(error) => {
                let data_dir = config::typed(&data_dir);
                out.note(&format!("The sessions of {project} (`--data-dir {data_dir}`) are left out: {error}"));
            }
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

/// Performs a command's operation, or its work beyond one request.
async fn perform(
    app: &App,
    command: &SessionCommand,
    (operation, params): wire::Request,
    plan: Option<files::Plan>,
) -> Result<Vec<u8>, SessionError> {
    let session = params["session_id"].as_str().unwrap_or_default().to_owned();
    match command {
        SessionCommand::Create(args) => {
            if !app.is_attached {
                // The session would end with this command.
                app.service.capabilities().require(Capability::SessionStore)?;
            }
            require_for(app, operation, &args.turn)?;
            encode(&create(app, &args.create, &args.turn).await?)
        }
        SessionCommand::Answer { value, .. } => {
            app.service.answer_call(answer(app, params, value.as_deref()).await?).await?.write()
        }
        SessionCommand::History { all, full, .. } if *all || *full => history(&app.service, params, *all, *full).await,
        SessionCommand::Export(args) => operators::export(app, args, &session).await,
        SessionCommand::Import { file, new_ids, keep_scope } => {
            operators::import(app, file, (*new_ids, *keep_scope)).await
        }
        SessionCommand::Files { turn, .. } => files::list(app, &session, turn.unwrap_or(0)).await,
        _ => match plan {
            Some(plan) => files::restore(app, &plan).await,
            None => ask::perform(&app.service, (operation, params)).await,
        },
    }
}

/// Makes the answer to a call, with JSON as it was written: a tree of values would change its numbers.
async fn answer(app: &App, mut params: Value, value: Option<&str>) -> Result<AnswerCall, SessionError> {
    params["session_id"] = json!(resolve(&app.service, params["session_id"].as_str().unwrap_or_default()).await?);
    let mut request: AnswerCall = decode_params(&params.to_string())?;
    if let Some(value) = value {
        request.content.push(CallContent::Json(RawJson::parse(value)?));
    }
    Ok(request)
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
        | Message::User { content, .. }
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
