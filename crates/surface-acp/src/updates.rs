//! What a client is shown of a session's events. No piece of text is shown twice or left out: the whole message has
//! what deltas lost. The same events give the same texts whether they are followed or replayed.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use agent_client_protocol_schema::v1::{self, ToolCallContent};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    Seq, SessionError, SessionId, SessionService, TurnNumber,
    follow::{
        FollowedLine, Shown,
        below::SubAgent,
        turn::{blob, whole},
    },
    session::{
        event::{
            ApprovalRequested, AssistantMessage, DelegateStarted, Event, LiveEvent, Record, ToolFinished, ToolOutcome,
            ToolStarted, TurnEdited, TurnQueued, TurnStarted,
        },
        message::{Attached, Block, Body, Message, ToolCall as Call},
    },
    tool::{fenced, visible},
    wire,
};
use serde_json::Value;

use crate::{agent::Agent, permissions::below_id};

/// What a client shows beside texts and calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shows {
    notices: bool,
    compactions: bool,
    pub(crate) forms: bool,
}

impl Shows {
    pub(crate) fn of(capabilities: &v1::ClientCapabilities) -> Self {
        let session = capabilities.session.as_ref();
        Self {
            notices: session.is_some_and(|session| session.notices.is_some()),
            compactions: session.is_some_and(|session| session.compaction.is_some()),
            forms: capabilities.elicitation.as_ref().is_some_and(|elicitation| elicitation.form.is_some()),
        }
    }

    /// Makes a notice, if the client shows them.
    pub(crate) fn notice(self, severity: v1::NoticeSeverity, text: &str) -> Option<v1::SessionUpdate> {
        self.notices.then(|| v1::SessionUpdate::Notice(v1::Notice::new(severity, visible(text))))
    }
}

/// Message of a user.
type Said = (Body, Vec<Attached>);

/// What was shown of a step's text, and of its reasoning.
#[derive(Default)]
struct Step {
    id: (Option<TurnNumber>, u32),
    said: Shown,
    thought: Shown,
}

/// A session as a client sees it.
pub(crate) struct Updates {
    service: Arc<dyn SessionService>,
    session_id: SessionId,
    workspace: Option<PathBuf>,
    shows: Shows,
    /// Turn whose prompt the client has shown itself.
    pub(crate) own: Option<TurnNumber>,
    /// Prompts that wait for their place: of queued turns, and of steering.
    queued: HashMap<Option<TurnNumber>, Said>,
    steered: HashMap<Seq, Said>,
    /// Arguments of calls without a result.
    calls: HashMap<String, (String, Value)>,
    step: Step,
    /// The one turn that is shown, beside what belongs to no turn; all are if it is `None`.
    pub(crate) only: Option<TurnNumber>,
    /// Turn that has not ended, with the event that began it.
    pub(crate) open: Option<(TurnNumber, Seq)>,
    /// Start of the newest turn.
    pub(crate) newest: TurnStarted,
}

impl Updates {
    pub(crate) fn new(agent: &Agent, session_id: SessionId, workspace: Option<&str>) -> Self {
        Self {
            service: agent.service.clone(),
            session_id,
            workspace: workspace.map(PathBuf::from),
            shows: agent.shows(),
            own: None,
            queued: HashMap::new(),
            steered: HashMap::new(),
            calls: HashMap::new(),
            step: Step::default(),
            only: None,
            open: None,
            newest: TurnStarted::default(),
        }
    }

    fn shows_turn(&self, turn: Option<TurnNumber>) -> bool {
        self.only.is_none() || turn.is_none() || turn == self.only
    }

    /// Makes the updates of a line, and returns its record if it is durable.
    ///
    /// # Errors
    /// If a text that is not in the event cannot be read.
    pub(crate) async fn see(
        &mut self,
        line: &FollowedLine,
    ) -> Result<(Vec<v1::SessionUpdate>, Option<Record>), SessionError> {
        let text = std::str::from_utf8(&line.line).map_err(unreadable)?;
        if line.seq.is_none() {
            let live = wire::decode_live(text).map_err(unreadable)?.filter(|live| self.shows_turn(live.turn));
            return Ok((live.map(|live| self.live(live.turn, live.event)).unwrap_or_default(), None));
        }
        let record = wire::decode_event(text).map_err(unreadable)?;
        let shown = if self.shows_turn(record.turn) { self.durable(&record).await } else { Vec::new() };
        Ok((shown, Some(record)))
    }

    fn live(&mut self, turn: Option<TurnNumber>, event: LiveEvent) -> Vec<v1::SessionUpdate> {
        match event {
            LiveEvent::TextDelta(delta) => {
                self.enter(turn, delta.step);
                let is_next = self.step.said.takes(delta.block, delta.offset, &delta.text);
                if is_next { self.say(delta.text) } else { Vec::new() }
            }
            LiveEvent::ReasoningDelta(delta) => {
                self.enter(turn, delta.step);
                let is_next = self.step.thought.takes(delta.block, delta.offset, &delta.text);
                if is_next { think(delta.text) } else { Vec::new() }
            }
            LiveEvent::ToolProgress(progress) => {
                let content = vec![content(progress.text)];
                vec![update(&progress.call_id, v1::ToolCallUpdateFields::new().content(content))]
            }
            LiveEvent::Retrying(retrying) => {
                let words = format!("The model call failed and is tried again: {}", retrying.error.message);
                self.notice(v1::NoticeSeverity::Warning, &words)
            }
            LiveEvent::Pruned(pruned) => {
                let words = format!("Events {} to {} are gone.", pruned.from, pruned.to);
                self.notice(v1::NoticeSeverity::Info, &words)
            }
            LiveEvent::SessionDeleted(_) => Vec::new(),
        }
    }

    async fn durable(&mut self, record: &Record) -> Vec<v1::SessionUpdate> {
        let (turn, seq) = (record.turn, record.seq);
        match &record.event {
            Event::TurnQueued(TurnQueued { prompt, blocks, .. })
            | Event::TurnEdited(TurnEdited { prompt: Some(prompt), blocks, .. }) => {
                self.queued.insert(turn, (prompt.clone(), blocks.clone()));
                Vec::new()
            }
            Event::TurnStarted(started) => {
                self.open = turn.map(|turn| (turn, seq));
                self.newest.clone_from(started);
                let given = started.prompt.clone().map(|prompt| (prompt, started.blocks.clone()));
                let said = given.or_else(|| self.queued.remove(&turn));
                match said.filter(|_| turn.is_none() || turn != self.own) {
                    Some(said) => self.user(seq, &said).await,
                    None => Vec::new(),
                }
            }
            Event::TurnSteered(steered) => {
                self.steered.insert(seq, (steered.prompt.clone(), steered.blocks.clone()));
                Vec::new()
            }
            Event::SteeringEntered(entered) => match self.steered.remove(&entered.steered) {
                Some(said) => self.user(seq, &said).await,
                None => Vec::new(),
            },
            Event::HistoryGiven(given) => self.given(seq, &given.message).await,
            Event::AssistantMessage(message) => {
                self.enter(turn, message.step);
                self.message(message).await
            }
            Event::PartialText(partial) => {
                self.enter(turn, partial.step);
                self.rest(&self.whole(&partial.text).await)
            }
            Event::ToolStarted(ToolStarted { call_id, .. })
            | Event::DelegateStarted(DelegateStarted { call_id, .. }) => {
                vec![update(call_id, v1::ToolCallUpdateFields::new().status(v1::ToolCallStatus::InProgress))]
            }
            Event::ToolFinished(finished) => vec![self.finished(finished).await],
            Event::SessionUpdated(updated) => {
                let title = updated.title.as_deref().map(visible);
                vec![v1::SessionUpdate::SessionInfoUpdate(v1::SessionInfoUpdate::new().title(title))]
            }
            Event::CompactionStarted(_) => self.compaction(v1::CompactionStatus::InProgress, None),
            Event::CompactionCompleted(_) => self.compaction(v1::CompactionStatus::Completed, None),
            Event::CompactionFailed(failed) => self.compaction(v1::CompactionStatus::Failed, Some(&failed.message)),
            Event::BudgetWarning(_) => self.notice(v1::NoticeSeverity::Warning, &record.event.human_line()),
            Event::TurnCompleted(_) | Event::TurnInterrupted(_) => {
                self.open = None;
                Vec::new()
            }
            Event::TurnFailed(failed) => {
                self.open = None;
                self.notice(v1::NoticeSeverity::Error, &failed.error.message)
            }
            _ => Vec::new(),
        }
    }

    fn notice(&self, severity: v1::NoticeSeverity, text: &str) -> Vec<v1::SessionUpdate> {
        self.shows.notice(severity, text).into_iter().collect()
    }

    fn compaction(&self, status: v1::CompactionStatus, error: Option<&str>) -> Vec<v1::SessionUpdate> {
        // A session has one compaction at a time.
        let update = v1::CompactionUpdate::new("compaction", status);
        let update = error.into_iter().fold(update, |update, error| update.error(error.to_owned()));
        self.shows.compactions.then(|| v1::SessionUpdate::CompactionUpdate(update)).into_iter().collect()
    }

    fn enter(&mut self, turn: Option<TurnNumber>, step: u32) {
        if self.step.id != (turn, step) {
            self.step = Step { id: (turn, step), ..Step::default() };
        }
    }

    fn say(&self, said: String) -> Vec<v1::SessionUpdate> {
        let (turn, step) = self.step.id;
        let id = format!("{}.{step}", turn.unwrap_or_default());
        let said = chunk(said).map(|chunk| v1::SessionUpdate::AgentMessageChunk(chunk.message_id(id.as_str())));
        said.into_iter().collect()
    }

    /// Shows the rest of a step's whole text.
    fn rest(&mut self, whole: &str) -> Vec<v1::SessionUpdate> {
        let rest = self.step.said.rest(whole).unwrap_or_default().to_owned();
        self.say(rest)
    }

    /// Shows a model's answer: what is not shown yet of its texts, then its calls.
    async fn message(&mut self, message: &AssistantMessage) -> Vec<v1::SessionUpdate> {
        let mut updates = self.blocks(&message.blocks).await;
        let usage = message.context.and_then(|context| Some((context.used(), context.used() + context.free?)));
        updates.extend(usage.map(|(used, size)| v1::SessionUpdate::UsageUpdate(v1::UsageUpdate::new(used, size))));
        updates
    }

    async fn blocks(&mut self, blocks: &[Block]) -> Vec<v1::SessionUpdate> {
        let (mut thought, mut said, mut calls) = (String::new(), String::new(), Vec::new());
        for block in blocks {
            match block {
                Block::Text { text } => said.push_str(&self.whole(text).await),
                Block::Reasoning { text, .. } => thought.push_str(&self.whole(text).await),
                Block::ToolCall(call) => calls.push(call),
            }
        }
        // A turn may outrun its deltas: then the message has the rest.
        let mut updates = think(self.step.thought.rest(&thought).unwrap_or_default().to_owned());
        updates.extend(self.rest(&said));
        updates.extend(calls.into_iter().map(|call| v1::SessionUpdate::ToolCall(self.call(call))));
        updates
    }

    /// Shows a call. What `write` replaces is known only when it has run, or is in the question about it.
    fn call(&mut self, call: &Call) -> v1::ToolCall {
        let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
        let change = self.diff(&call.name, &arguments, None, str::to_owned).filter(|_| call.name == "edit");
        let shown = v1::ToolCall::new(call.call_id.clone(), title(&call.name, &arguments))
            .name(visible(&call.name))
            .kind(kind(&call.name))
            .status(v1::ToolCallStatus::Pending)
            .content(change.into_iter().collect::<Vec<_>>())
            .locations(self.places(arguments["path"].as_str()))
            .raw_input(arguments.clone());
        self.calls.insert(call.call_id.clone(), (call.name.clone(), arguments));
        shown
    }

    /// The call as a question about it shows it, with the text that the service has for the person, and the change that
    /// `edit` makes. That of `write` is shown if no file is there, or if that text leaves lines out.
    pub(crate) fn asked(&self, call_id: &str, name: &str, preview: Option<&str>) -> v1::ToolCallUpdate {
        let arguments = self.calls.get(call_id).map_or(&Value::Null, |(_, arguments)| arguments);
        self.question(call_id.to_owned(), name, arguments, preview)
    }

    /// The call of a sub-agent as a question about it shows it.
    pub(crate) fn asked_below(&self, of: &SubAgent, call: &ApprovalRequested) -> v1::ToolCallUpdate {
        // Long arguments are cut; then the text for the person says what is done.
        let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_default();
        let id = below_id(of.session_id, &call.call_id);
        let mut shown = self.question(id, &call.name, &arguments, call.preview.as_deref());
        shown.fields.title = Some(visible(&format!("{} (sub-agent {})", title(&call.name, &arguments), of.name)));
        shown
    }

    fn question(&self, id: String, name: &str, arguments: &Value, preview: Option<&str>) -> v1::ToolCallUpdate {
        let preview = preview.unwrap_or_default().trim_end();
        // A preview has a mark before each line of a file, and brackets around what it leaves out.
        let is_shown = name == "edit" || preview.starts_with("--- /dev/null\n") || preview.contains("\n[");
        let seen = |text: &str| text.split("\r\n").map(visible).collect::<Vec<_>>().join("\r\n");
        let change = self.diff(name, arguments, None, seen).filter(|_| is_shown);
        let shown = change.into_iter().chain((!preview.is_empty()).then(|| content(fenced("", preview))));
        let fields = v1::ToolCallUpdateFields::new()
            .status(v1::ToolCallStatus::Pending)
            .title(title(name, arguments))
            .kind(kind(name))
            .content(shown.collect::<Vec<_>>())
            .locations(self.places(arguments["path"].as_str()))
            .raw_input(Some(arguments.clone()).filter(|arguments| !arguments.is_null()));
        v1::ToolCallUpdate::new(id, fields)
    }

    async fn finished(&mut self, finished: &ToolFinished) -> v1::SessionUpdate {
        let is_done = finished.outcome == ToolOutcome::Succeeded;
        let output = self.whole(&finished.output).await;
        let mut shown = Vec::new();
        if let Some((name, arguments)) = self.calls.remove(&finished.call_id).filter(|_| is_done) {
            let before = match finished.files.first().and_then(|file| file.copy()).filter(|_| name == "write") {
                // A copy may be gone; the change is shown all the same.
                Some(copy) => self.blob(copy).await.ok().and_then(|copy| String::from_utf8(copy).ok()),
                None => None,
            };
            shown.extend(self.diff(&name, &arguments, before, str::to_owned));
        }
        if shown.is_empty() && !output.is_empty() {
            shown.push(content(output));
        }
        for image in &finished.images {
            shown.push(match self.blob(&image.blob).await {
                Ok(bytes) => ToolCallContent::from(picture(&bytes, &image.media_type)),
                Err(error) => content(unread("an image", &error)),
            });
        }
        let places =
            Some(self.places(finished.files.iter().map(|file| &*file.path))).filter(|places| !places.is_empty());
        let fields = v1::ToolCallUpdateFields::new().status(status(is_done)).content(shown).locations(places);
        update(&finished.call_id, fields)
    }

    /// The change that a call of `edit` or `write` makes.
    fn diff(&self, name: &str, args: &Value, old: Option<String>, seen: fn(&str) -> String) -> Option<ToolCallContent> {
        let text = |field: &str| args[field].as_str().map(seen);
        let path = self.workspace.as_ref()?.join(visible(args["path"].as_str()?));
        let (old, new) = match name {
            "edit" => (Some(text("old")?), text("new")?),
            "write" => (old, text("content")?),
            _ => return None,
        };
        Some(v1::Diff::new(path, new).old_text(old).into())
    }

    fn places<'a>(&self, paths: impl IntoIterator<Item = &'a str>) -> Vec<v1::ToolCallLocation> {
        let Some(workspace) = &self.workspace else { return Vec::new() };
        paths.into_iter().map(|path| v1::ToolCallLocation::new(workspace.join(visible(path)))).collect()
    }

    /// Shows what a user said: the text, then each image and file.
    async fn user(&self, seq: Seq, (prompt, attached): &Said) -> Vec<v1::SessionUpdate> {
        let mut chunks: Vec<_> = chunk(self.whole(prompt).await).into_iter().collect();
        for block in attached {
            let bytes = self.blob(block.blob()).await;
            chunks.push(v1::ContentChunk::new(match (block, bytes) {
                (Attached::Image(_), Err(error)) => text(unread("an image", &error)),
                (Attached::File(file), Err(error)) => text(unread(&visible(&file.name), &error)),
                (Attached::Image(image), Ok(bytes)) => picture(&bytes, &image.media_type),
                (Attached::File(file), Ok(_)) if file.is_pdf() => text(format!("[{}]", visible(&file.name))),
                (Attached::File(file), Ok(bytes)) => {
                    let content = v1::TextResourceContents::new(String::from_utf8_lossy(&bytes), file.name.clone());
                    let content = content.mime_type(file.media_type.clone());
                    let content = v1::EmbeddedResourceResource::TextResourceContents(content);
                    v1::ContentBlock::Resource(v1::EmbeddedResource::new(content))
                }
            }));
        }
        let user =
            |chunk: v1::ContentChunk| v1::SessionUpdate::UserMessageChunk(chunk.message_id(seq.to_string().as_str()));
        chunks.into_iter().map(user).collect()
    }

    /// Shows a message from before the first turn.
    async fn given(&mut self, seq: Seq, message: &Message) -> Vec<v1::SessionUpdate> {
        self.step = Step::default();
        match message {
            Message::User { content, blocks } => self.user(seq, &(content.clone(), blocks.clone())).await,
            Message::Assistant { content } => self.say(self.whole(content).await),
            Message::BlockAssistant { blocks, .. } => self.blocks(blocks).await,
            Message::ToolResults { results } => {
                let mut updates = Vec::new();
                for result in results {
                    let output = vec![content(self.whole(&result.content).await)];
                    let fields = v1::ToolCallUpdateFields::new().status(status(!result.is_error)).content(output);
                    updates.push(update(&result.call_id, fields));
                }
                updates
            }
            Message::System { .. } | Message::SystemReminder { .. } | Message::Pin { .. } => Vec::new(),
        }
    }

    /// The whole of a text; words in its place if it cannot be read, so that the session is shown all the same.
    async fn whole(&self, body: &Body) -> String {
        whole(self.service.as_ref(), self.session_id, body).await.unwrap_or_else(|error| unread("a text", &error))
    }

    async fn blob(&self, name: &str) -> Result<Vec<u8>, SessionError> {
        blob(self.service.as_ref(), self.session_id, name).await
    }
}

fn text(text: impl Into<String>) -> v1::ContentBlock {
    v1::ContentBlock::from(text.into())
}

fn picture(bytes: &[u8], media_type: &str) -> v1::ContentBlock {
    v1::ContentBlock::Image(v1::ImageContent::new(BASE64_STANDARD.encode(bytes), media_type))
}

fn chunk(said: String) -> Option<v1::ContentChunk> {
    (!said.is_empty()).then(|| v1::ContentChunk::new(text(said)))
}

fn think(thought: String) -> Vec<v1::SessionUpdate> {
    chunk(thought).map(v1::SessionUpdate::AgentThoughtChunk).into_iter().collect()
}

/// A text that is shown once, and is no part of the session.
pub(crate) fn said(words: &str) -> v1::SessionUpdate {
    v1::SessionUpdate::AgentMessageChunk(v1::ContentChunk::new(text(words)))
}

fn unreadable(why: impl std::fmt::Display) -> SessionError {
    SessionError::Internal(format!("an event cannot be read: {why}"))
}

/// Words in the place of what cannot be read.
fn unread(what: &str, error: &SessionError) -> String {
    tracing::warn!(%error, what, "a part of a session cannot be read");
    format!("[{what} cannot be read]")
}

const fn status(is_done: bool) -> v1::ToolCallStatus {
    if is_done { v1::ToolCallStatus::Completed } else { v1::ToolCallStatus::Failed }
}

/// Text of a call.
fn content(shown: impl Into<String>) -> ToolCallContent {
    ToolCallContent::from(text(shown))
}

/// What a sub-agent does, as progress of the call that it works for.
pub(crate) fn progress_below(of: &SubAgent, event: &Event) -> v1::SessionUpdate {
    let line = visible(&format!("{}: {}", of.name, event.human_line()));
    update(&of.call_id, v1::ToolCallUpdateFields::new().content(vec![content(line)]))
}

/// The end of a sub-agent's call that was asked about.
pub(crate) fn ended_below(session_id: SessionId, finished: &ToolFinished) -> v1::SessionUpdate {
    let is_done = finished.outcome == ToolOutcome::Succeeded;
    let fields = v1::ToolCallUpdateFields::new().status(status(is_done));
    update(&below_id(session_id, &finished.call_id), fields)
}

fn update(call_id: &str, fields: v1::ToolCallUpdateFields) -> v1::SessionUpdate {
    v1::SessionUpdate::ToolCallUpdate(v1::ToolCallUpdate::new(call_id.to_owned(), fields))
}

/// Kind of a tool: those of a workspace are known.
fn kind(name: &str) -> v1::ToolKind {
    match name {
        "read" => v1::ToolKind::Read,
        "grep" | "glob" => v1::ToolKind::Search,
        "edit" | "write" => v1::ToolKind::Edit,
        "shell" | "shell_output" | "shell_stop" => v1::ToolKind::Execute,
        _ => v1::ToolKind::Other,
    }
}

/// Title of a call: a command, or the tool's name with the file or the text that it is about.
fn title(name: &str, arguments: &Value) -> String {
    let about = ["command", "path", "pattern", "query"].iter().find_map(|field| arguments[*field].as_str());
    let task = arguments["prompt"].as_str().and_then(|task| task.lines().next()).filter(|_| name == "delegate");
    visible(&match about.or(task) {
        Some(about) if name == "shell" => about.to_owned(),
        Some(about) => format!("{name} {about}"),
        None => name.to_owned(),
    })
}

/// Folder that a client is told of a session without one.
pub(crate) fn folder(workspace: Option<&str>) -> PathBuf {
    Path::new(workspace.unwrap_or("/")).to_owned()
}
