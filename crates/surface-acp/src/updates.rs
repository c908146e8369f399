//! What a client is shown of a session's events. No piece of text is shown twice or left out: the whole message has
//! what deltas lost. The same events give the same texts whether they are followed or replayed.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use agent_client_protocol_schema::v1::{
    ClientCapabilities, CompactionStatus, CompactionUpdate, ContentBlock, ContentChunk, Diff, EmbeddedResource,
    EmbeddedResourceResource, ImageContent, Notice, NoticeSeverity, SessionInfoUpdate, SessionUpdate,
    TextResourceContents, ToolCall, ToolCallContent, ToolCallLocation, ToolCallStatus, ToolCallUpdate,
    ToolCallUpdateFields, ToolKind, UsageUpdate,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    Seq, SessionError, SessionId, SessionService, TurnNumber,
    follow::{FollowedLine, turn::whole},
    options::Effort,
    service::ReadBlob,
    session::{
        event::{AssistantMessage, Event, LiveEvent, Record, ToolFinished, ToolOutcome},
        message::{Attached, Block, Body, Message, ToolCall as Call},
    },
    wire,
};
use serde_json::Value;

/// What a client shows beside texts and calls.
#[derive(Clone, Copy, Default)]
pub(crate) struct Shows {
    notices: bool,
    compactions: bool,
}

impl Shows {
    pub(crate) fn of(capabilities: &ClientCapabilities) -> Self {
        let session = capabilities.session.as_ref();
        let notices = session.is_some_and(|session| session.notices.is_some());
        Self { notices, compactions: session.is_some_and(|session| session.compaction.is_some()) }
    }

    /// Makes a notice, if the client shows them.
    pub(crate) fn notice(self, severity: NoticeSeverity, text: &str) -> Option<SessionUpdate> {
        self.notices.then(|| SessionUpdate::Notice(Notice::new(severity, text)))
    }
}

/// Message of a user.
type Said = (Body, Vec<Attached>);

/// Part of a text that was shown.
#[derive(Default)]
struct Shown {
    bytes: usize,
    /// Place of the next delta.
    place: Option<(u32, u64)>,
    is_gapped: bool,
}

impl Shown {
    /// Returns whether a delta goes on where the shown part ends.
    ///
    /// Runs of text and of reasoning alternate. No delta says if the text before a later run was complete, so that run
    /// waits for the whole message.
    fn takes(&mut self, block: u32, offset: u64, text: &str) -> bool {
        let goes_on = match self.place {
            Some(place) => place == (block, offset),
            None => block <= 1 && offset == 0,
        };
        self.is_gapped |= !goes_on;
        if !self.is_gapped {
            self.place = Some((block, offset + text.len() as u64));
        }
        !self.is_gapped
    }

    /// The rest of the whole text.
    fn rest(&self, whole: &str) -> String {
        whole.get(self.bytes..).unwrap_or_default().to_owned()
    }
}

/// A session as a client sees it.
pub(crate) struct Updates {
    session_id: SessionId,
    workspace: Option<PathBuf>,
    shows: Shows,
    /// Turn whose prompt the client has shown itself.
    own: Option<TurnNumber>,
    /// Prompts that wait for their place: of queued turns, and of steering.
    queued: HashMap<TurnNumber, Said>,
    steered: HashMap<Seq, Said>,
    /// Arguments of calls without a result.
    calls: HashMap<String, (String, Value)>,
    step: Option<(Option<TurnNumber>, u32)>,
    /// What was shown of the step's text, and of its reasoning.
    said: Shown,
    thought: Shown,
    /// The one turn that is shown; all are if it is `None`.
    only: Option<TurnNumber>,
    /// Turn that has not ended, with the event that began it.
    pub(crate) open: Option<(TurnNumber, Seq)>,
    /// How long the newest turn's model thinks.
    pub(crate) effort: Option<Effort>,
}

impl Updates {
    pub(crate) fn new(session_id: SessionId, workspace: Option<&str>, shows: Shows) -> Self {
        Self {
            session_id,
            workspace: workspace.map(PathBuf::from),
            shows,
            own: None,
            queued: HashMap::new(),
            steered: HashMap::new(),
            calls: HashMap::new(),
            step: None,
            said: Shown::default(),
            thought: Shown::default(),
            only: None,
            open: None,
            effort: None,
        }
    }

    /// Leaves out the prompt of a turn, which the client shows itself.
    pub(crate) fn of_own(self, turn: TurnNumber) -> Self {
        Self { own: Some(turn), ..self }
    }

    /// Shows this turn only, and what belongs to no turn.
    pub(crate) fn of_turn(self, turn: TurnNumber) -> Self {
        Self { only: Some(turn), ..self }
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
        service: &dyn SessionService,
        line: &FollowedLine,
    ) -> Result<(Vec<SessionUpdate>, Option<Record>), SessionError> {
        let unreadable =
            |why: &dyn std::fmt::Display| SessionError::Internal(format!("an event cannot be read: {why}"));
        let text = std::str::from_utf8(&line.line).map_err(|why| unreadable(&why))?;
        if line.seq.is_none() {
            let live = wire::decode_live(text).map_err(|why| unreadable(&why))?;
            let live = live.filter(|live| self.shows_turn(live.turn));
            return Ok((live.map(|live| self.live(live.turn, live.event)).unwrap_or_default(), None));
        }
        let record = wire::decode_event(text).map_err(|why| unreadable(&why))?;
        if !self.shows_turn(record.turn) {
            return Ok((Vec::new(), Some(record)));
        }
        Ok((self.durable(service, &record).await, Some(record)))
    }

    fn live(&mut self, turn: Option<TurnNumber>, event: LiveEvent) -> Vec<SessionUpdate> {
        match event {
            LiveEvent::TextDelta(delta) => {
                self.enter(turn, delta.step);
                if !self.said.takes(delta.block, delta.offset, &delta.text) {
                    return Vec::new();
                }
                self.say(delta.text)
            }
            LiveEvent::ReasoningDelta(delta) => {
                self.enter(turn, delta.step);
                if !self.thought.takes(delta.block, delta.offset, &delta.text) {
                    return Vec::new();
                }
                self.think(delta.text)
            }
            LiveEvent::ToolProgress(progress) => {
                let content = vec![content(progress.text)];
                vec![update(&progress.call_id, ToolCallUpdateFields::new().content(content))]
            }
            LiveEvent::Retrying(retrying) => {
                let words = format!("The model call failed and is tried again: {}", retrying.error.message);
                self.notice(NoticeSeverity::Warning, &words)
            }
            LiveEvent::Pruned(pruned) => {
                let words = format!("Events {} to {} are gone.", pruned.from, pruned.to);
                self.notice(NoticeSeverity::Info, &words)
            }
            LiveEvent::SessionDeleted(_) => Vec::new(),
        }
    }

    async fn durable(&mut self, service: &dyn SessionService, record: &Record) -> Vec<SessionUpdate> {
        let (turn, seq) = (record.turn, record.seq);
        match &record.event {
            Event::TurnQueued(queued) => {
                if let Some(turn) = turn {
                    self.queued.insert(turn, (queued.prompt.clone(), queued.blocks.clone()));
                }
                Vec::new()
            }
            Event::TurnEdited(edited) => {
                if let (Some(turn), Some(prompt)) = (turn, &edited.prompt) {
                    self.queued.insert(turn, (prompt.clone(), edited.blocks.clone()));
                }
                Vec::new()
            }
            Event::TurnDequeued(_) => {
                if let Some(turn) = turn {
                    self.queued.remove(&turn);
                }
                Vec::new()
            }
            Event::TurnStarted(started) => {
                self.open = turn.map(|turn| (turn, seq));
                self.effort = started.options.effort;
                let given = started.prompt.clone().map(|prompt| (prompt, started.blocks.clone()));
                let said = given.or_else(|| self.queued.remove(&turn?));
                match said.filter(|_| turn.is_none() || turn != self.own) {
                    Some(said) => self.user(service, seq, &said).await,
                    None => Vec::new(),
                }
            }
            Event::TurnSteered(steered) => {
                self.steered.insert(seq, (steered.prompt.clone(), steered.blocks.clone()));
                Vec::new()
            }
            Event::SteeringEntered(entered) => match self.steered.remove(&entered.steered) {
                Some(said) => self.user(service, seq, &said).await,
                None => Vec::new(),
            },
            Event::HistoryGiven(given) => self.given(service, seq, &given.message).await,
            Event::AssistantMessage(message) => self.message(service, turn, message).await,
            Event::PartialText(partial) => {
                self.enter(turn, partial.step);
                let text = self.whole(service, &partial.text).await;
                self.rest(&text)
            }
            Event::ToolStarted(started) => {
                vec![update(&started.call_id, ToolCallUpdateFields::new().status(ToolCallStatus::InProgress))]
            }
            Event::ToolFinished(finished) => vec![self.finished(service, finished).await],
            Event::SessionUpdated(updated) => {
                vec![SessionUpdate::SessionInfoUpdate(SessionInfoUpdate::new().title(updated.title.clone()))]
            }
            Event::CompactionStarted(_) => self.compaction(CompactionStatus::InProgress, None),
            Event::CompactionCompleted(_) => self.compaction(CompactionStatus::Completed, None),
            Event::CompactionFailed(failed) => self.compaction(CompactionStatus::Failed, Some(&failed.message)),
            Event::BudgetWarning(_) => self.notice(NoticeSeverity::Warning, &record.event.human_line()),
            Event::TurnCompleted(_) | Event::TurnInterrupted(_) => {
                self.open = None;
                Vec::new()
            }
            Event::TurnFailed(failed) => {
                self.open = None;
                self.notice(NoticeSeverity::Error, &failed.error.message)
            }
            _ => Vec::new(),
        }
    }

    fn notice(&self, severity: NoticeSeverity, text: &str) -> Vec<SessionUpdate> {
        self.shows.notice(severity, text).into_iter().collect()
    }

    fn compaction(&self, status: CompactionStatus, error: Option<&str>) -> Vec<SessionUpdate> {
        // A session has one compaction at a time.
        let update = CompactionUpdate::new("compaction", status);
        let update = match error {
            Some(error) => update.error(error.to_owned()),
            None => update,
        };
        self.shows.compactions.then(|| SessionUpdate::CompactionUpdate(update)).into_iter().collect()
    }

    fn enter(&mut self, turn: Option<TurnNumber>, step: u32) {
        if self.step != Some((turn, step)) {
            self.step = Some((turn, step));
            (self.said, self.thought) = (Shown::default(), Shown::default());
        }
    }

    /// Name of the step's message.
    fn message_id(&self) -> String {
        let (turn, step) = self.step.unwrap_or_default();
        format!("{}.{step}", turn.unwrap_or_default())
    }

    fn say(&mut self, said: String) -> Vec<SessionUpdate> {
        if said.is_empty() {
            return Vec::new();
        }
        self.said.bytes += said.len();
        let chunk = ContentChunk::new(text(said)).message_id(self.message_id().as_str());
        vec![SessionUpdate::AgentMessageChunk(chunk)]
    }

    fn think(&mut self, thought: String) -> Vec<SessionUpdate> {
        if thought.is_empty() {
            return Vec::new();
        }
        self.thought.bytes += thought.len();
        vec![SessionUpdate::AgentThoughtChunk(ContentChunk::new(text(thought)))]
    }

    /// Shows the rest of a step's whole text.
    fn rest(&mut self, whole: &str) -> Vec<SessionUpdate> {
        self.say(self.said.rest(whole))
    }

    /// Shows a model's answer: what is not shown yet of its texts, then its calls.
    async fn message(
        &mut self,
        service: &dyn SessionService,
        turn: Option<TurnNumber>,
        message: &AssistantMessage,
    ) -> Vec<SessionUpdate> {
        self.enter(turn, message.step);
        let mut updates = self.blocks(service, &message.blocks).await;
        if let Some(context) = message.context
            && let Some(free) = context.free
        {
            updates.push(SessionUpdate::UsageUpdate(UsageUpdate::new(context.used(), context.used() + free)));
        }
        updates
    }

    async fn blocks(&mut self, service: &dyn SessionService, blocks: &[Block]) -> Vec<SessionUpdate> {
        let (mut thought, mut said, mut calls) = (String::new(), String::new(), Vec::new());
        for block in blocks {
            match block {
                Block::Text { text } => said.push_str(&self.whole(service, text).await),
                Block::Reasoning { text, .. } => thought.push_str(&self.whole(service, text).await),
                Block::ToolCall(call) => calls.push(call),
            }
        }
        // A turn may outrun its deltas: then the message has the rest.
        let mut updates = self.think(self.thought.rest(&thought));
        updates.extend(self.rest(&said));
        updates.extend(calls.into_iter().map(|call| SessionUpdate::ToolCall(self.call(call))));
        updates
    }

    /// Shows a call. What `write` replaces is known only when it has run, or is in the question about it.
    fn call(&mut self, call: &Call) -> ToolCall {
        let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap_or_default();
        let change = self.change(&call.name, &arguments, None).filter(|_| call.name == "edit");
        let shown = ToolCall::new(call.call_id.clone(), title(&call.name, &arguments))
            .name(call.name.clone())
            .kind(kind(&call.name))
            .status(ToolCallStatus::Pending)
            .content(change.into_iter().collect::<Vec<_>>())
            .locations(self.places(&arguments))
            .raw_input(arguments.clone());
        self.calls.insert(call.call_id.clone(), (call.name.clone(), arguments));
        shown
    }

    /// The call as a question about it shows it, with the text that the service has for the person.
    pub(crate) fn asked(&self, call_id: &str, name: &str, preview: Option<&str>) -> ToolCallUpdate {
        let mut fields = ToolCallUpdateFields::new().status(ToolCallStatus::Pending);
        let arguments = self.calls.get(call_id).map(|(_, arguments)| arguments);
        let shown = arguments.map(|arguments| title(name, arguments)).unwrap_or_else(|| name.to_owned());
        let change = arguments.filter(|_| name == "edit").and_then(|arguments| self.change(name, arguments, None));
        let preview = preview.map(|preview| content(format!("```\n{}\n```", preview.trim_end())));
        let shown_content: Vec<ToolCallContent> = change.into_iter().chain(preview).collect();
        if let Some(arguments) = arguments {
            fields = fields.locations(self.places(arguments)).raw_input(arguments.clone());
        }
        ToolCallUpdate::new(call_id.to_owned(), fields.title(shown).kind(kind(name)).content(shown_content))
    }

    async fn finished(&mut self, service: &dyn SessionService, finished: &ToolFinished) -> SessionUpdate {
        let is_done = finished.outcome == ToolOutcome::Succeeded;
        let status = if is_done { ToolCallStatus::Completed } else { ToolCallStatus::Failed };
        let output = self.whole(service, &finished.output).await;
        let mut shown = Vec::new();
        if let Some((name, arguments)) = self.calls.remove(&finished.call_id).filter(|_| is_done) {
            let before = match finished.files.first().and_then(|file| file.copy()).filter(|_| name == "write") {
                // A copy may be gone; the change is shown all the same.
                Some(copy) => self.blob(service, copy).await.ok().and_then(|copy| String::from_utf8(copy).ok()),
                None => None,
            };
            shown.extend(self.change(&name, &arguments, before));
        }
        if shown.is_empty() && !output.is_empty() {
            shown.push(content(output));
        }
        for image in &finished.images {
            shown.push(match self.blob(service, &image.blob).await {
                Ok(bytes) => {
                    let image = ImageContent::new(BASE64_STANDARD.encode(bytes), image.media_type.clone());
                    ToolCallContent::from(ContentBlock::Image(image))
                }
                Err(error) => content(unread("an image", &error)),
            });
        }
        let mut fields = ToolCallUpdateFields::new().status(status).content(shown);
        if let (Some(workspace), false) = (&self.workspace, finished.files.is_empty()) {
            let places = finished.files.iter().map(|file| ToolCallLocation::new(workspace.join(&file.path)));
            fields = fields.locations(places.collect::<Vec<_>>());
        }
        update(&finished.call_id, fields)
    }

    /// The change that a call of `edit` or `write` makes.
    fn change(&self, name: &str, arguments: &Value, before: Option<String>) -> Option<ToolCallContent> {
        let text = |field: &str| arguments[field].as_str().map(str::to_owned);
        let path = self.workspace.as_ref()?.join(text("path")?);
        let (old, new) = match name {
            "edit" => (Some(text("old")?), text("new")?),
            "write" => (before, text("content")?),
            _ => return None,
        };
        Some(Diff::new(path, new).old_text(old).into())
    }

    fn places(&self, arguments: &Value) -> Vec<ToolCallLocation> {
        let path = |workspace: &PathBuf| Some(workspace.join(arguments["path"].as_str()?));
        self.workspace.as_ref().and_then(path).map(ToolCallLocation::new).into_iter().collect()
    }

    /// Shows what a user said: the text, then each image and file.
    async fn user(&self, service: &dyn SessionService, seq: Seq, (prompt, attached): &Said) -> Vec<SessionUpdate> {
        let said = self.whole(service, prompt).await;
        let mut blocks: Vec<ContentBlock> = Some(said).filter(|said| !said.is_empty()).map(text).into_iter().collect();
        for block in attached {
            let bytes = match self.blob(service, block.blob()).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    let name = match block {
                        Attached::Image(_) => "an image",
                        Attached::File(file) => file.name.as_str(),
                    };
                    blocks.push(text(unread(name, &error)));
                    continue;
                }
            };
            blocks.push(match block {
                Attached::Image(image) => {
                    ContentBlock::Image(ImageContent::new(BASE64_STANDARD.encode(bytes), image.media_type.clone()))
                }
                Attached::File(file) if file.is_pdf() => text(format!("[{}]", file.name)),
                Attached::File(file) => {
                    let content = TextResourceContents::new(String::from_utf8_lossy(&bytes), file.name.clone());
                    let content = content.mime_type(file.media_type.clone());
                    let content = EmbeddedResourceResource::TextResourceContents(content);
                    ContentBlock::Resource(EmbeddedResource::new(content))
                }
            });
        }
        let id = seq.to_string();
        let chunk = |block| SessionUpdate::UserMessageChunk(ContentChunk::new(block).message_id(id.as_str()));
        blocks.into_iter().map(chunk).collect()
    }

    /// Shows a message from before the first turn.
    async fn given(&mut self, service: &dyn SessionService, seq: Seq, message: &Message) -> Vec<SessionUpdate> {
        self.step = None;
        (self.said, self.thought) = (Shown::default(), Shown::default());
        match message {
            Message::User { content, blocks } => self.user(service, seq, &(content.clone(), blocks.clone())).await,
            Message::Assistant { content } => {
                let said = self.whole(service, content).await;
                self.say(said)
            }
            Message::BlockAssistant { blocks, .. } => self.blocks(service, blocks).await,
            Message::ToolResults { results } => {
                let mut updates = Vec::new();
                for result in results {
                    let status = if result.is_error { ToolCallStatus::Failed } else { ToolCallStatus::Completed };
                    let output = self.whole(service, &result.content).await;
                    let fields = ToolCallUpdateFields::new().status(status).content(vec![content(output)]);
                    updates.push(update(&result.call_id, fields));
                }
                updates
            }
            Message::System { .. } | Message::SystemReminder { .. } | Message::Pin { .. } => Vec::new(),
        }
    }

    /// The whole of a text; words in its place if it cannot be read, so that the session is shown all the same.
    async fn whole(&self, service: &dyn SessionService, body: &Body) -> String {
        whole(service, self.session_id, body).await.unwrap_or_else(|error| unread("a text", &error))
    }

    async fn blob(&self, service: &dyn SessionService, blob: &str) -> Result<Vec<u8>, SessionError> {
        let (mut bytes, mut next) = (Vec::new(), Some(0));
        while let Some(offset) = next {
            let read = ReadBlob { session_id: self.session_id, blob: blob.to_owned(), offset, limit: None };
            let page = service.answer_blob(read).await?;
            let piece = page.bytes().filter(|piece| !piece.is_empty() || page.next_offset.is_none());
            bytes
                .extend(piece.ok_or_else(|| SessionError::Internal("a blob's page is empty or no base64".to_owned()))?);
            next = page.next_offset;
        }
        Ok(bytes)
    }
}

fn text(text: impl Into<String>) -> ContentBlock {
    ContentBlock::from(text.into())
}

/// Words in the place of what cannot be read.
fn unread(what: &str, error: &SessionError) -> String {
    tracing::warn!(%error, what, "a part of a session cannot be read");
    format!("[{what} cannot be read]")
}

/// Text of a call.
fn content(shown: impl Into<String>) -> ToolCallContent {
    ToolCallContent::from(text(shown))
}

fn update(call_id: &str, fields: ToolCallUpdateFields) -> SessionUpdate {
    SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call_id.to_owned(), fields))
}

/// Kind of a tool: those of a workspace are known.
fn kind(name: &str) -> ToolKind {
    match name {
        "read" => ToolKind::Read,
        "grep" | "glob" => ToolKind::Search,
        "edit" | "write" => ToolKind::Edit,
        "shell" | "shell_output" | "shell_stop" => ToolKind::Execute,
        _ => ToolKind::Other,
    }
}

/// Title of a call: a command, or the tool's name with the file or the text that it is about.
fn title(name: &str, arguments: &Value) -> String {
    let about = ["command", "path", "pattern", "query"].iter().find_map(|field| arguments[*field].as_str());
    match about {
        Some(about) if name == "shell" => about.to_owned(),
        Some(about) => format!("{name} {about}"),
        None => name.to_owned(),
    }
}

/// Folder that a client is told of a session without one.
pub(crate) fn folder(workspace: Option<&str>) -> PathBuf {
    Path::new(workspace.unwrap_or("/")).to_owned()
}
