//! What both protocols ask for, and the turn that it becomes: a new session, a turn of one, answers to its calls, or a
//! fork where it went another way.

use std::{collections::BTreeMap, sync::Arc};

use meerkat_service::{
    SessionError, SessionId, SessionService,
    follow::turn::handle,
    options::ModelOptions,
    output::OutputSpec,
    service::{ClientTool, CreateSession, DeleteSession, StartTurn, TurnHandle},
    session::{
        event::{Event, TurnStarted},
        message::Block,
    },
};

use crate::{
    App, calls,
    ids::{ResponseId, parse_call, parse_conversation},
    own::{Own, check_metadata, fork, new_session, own, own_conversation},
    passing::Passing,
    past::{Past, Records},
    responses::Echo,
    said::Transcript,
    unfold::{Ending, Unfold},
    wire::{Fields, MISSING, format, is_text, read, tools},
};

/// Fields that change nothing here, and what they may be: any text where no value is listed.
const OF_BOTH: [(&str, &[&str]); 6] = [
    ("parallel_tool_calls", &["true"]),
    ("service_tier", &[r#""auto""#, r#""default""#]),
    ("top_logprobs", &["0"]),
    ("safety_identifier", &[]),
    ("prompt_cache_key", &[]),
    ("prompt_cache_retention", &[]),
];
const STOP: &str = "it is neither a text nor a list of texts: send one of these";
const OF_RESPONSES: [(&str, &[&str]); 2] = [("truncation", &[r#""disabled""#, r#""auto""#]), ("include", &["[]"])];
const OF_CHATS: [(&str, &[&str]); 7] = [
    ("n", &["1"]),
    ("store", &["false"]),
    ("logprobs", &["false"]),
    ("frequency_penalty", &["0", "0.0"]),
    ("presence_penalty", &["0", "0.0"]),
    ("modalities", &[r#"["text"]"#]),
    ("verbosity", &[r#""medium""#]),
];

#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) model: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) transcript: Transcript,
    pub(crate) previous: Option<ResponseId>,
    pub(crate) conversation: Option<SessionId>,
    pub(crate) tools: Vec<ClientTool>,
    pub(crate) options: ModelOptions,
    pub(crate) output: Option<OutputSpec>,
    pub(crate) user: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) is_stored: bool,
    pub(crate) is_stream: bool,
    pub(crate) is_background: bool,
    pub(crate) is_chat: bool,
    /// The stream of a chat ends with its usage.
    pub(crate) has_usage: bool,
}

pub(crate) struct Begun {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) turn: TurnHandle,
    pub(crate) unfold: Unfold,
    pub(crate) echo: Echo,
    pub(crate) passing: Option<Passing>,
}

pub(crate) fn decode(text: &str, is_chat: bool) -> Result<Asked, SessionError> {
    let mut body = Fields::body(text)?;
    OF_BOTH.iter().try_for_each(|(name, values)| body.allow(name, values))?;
    let fixed = if is_chat { &OF_CHATS[..] } else { &OF_RESPONSES };
    fixed.iter().try_for_each(|(name, values)| body.allow(name, values))?;
    let mut asked = Asked { is_chat, is_stored: !is_chat, ..Asked::default() };
    asked.model = body.take("model")?;
    asked.is_stream = body.take("stream")?.unwrap_or(false);
    if let Some(mut options) = body.object("stream_options")? {
        asked.has_usage = is_chat && options.take("include_usage")?.unwrap_or(false);
        options.allow("include_obfuscation", &["true", "false"])?;
        options.finish()?;
    }
    asked.user = body.take("user")?;
    asked.metadata = body.texts("metadata")?.unwrap_or_default();
    (asked.options.temperature, asked.options.top_p) = (body.take("temperature")?, body.take("top_p")?);
    asked.tools = tools(&mut body, is_chat)?;
    match is_chat {
        true => chat(&mut body, &mut asked)?,
        false => response(&mut body, &mut asked)?,
    }
    let place = asked.said();
    let raw = body.raw(place).ok_or_else(|| body.wrong(place, MISSING))?;
    body.finish()?;
    asked.transcript = Transcript::read(place, raw)?;
    asked.transcript.check_asked()?;
    Ok(asked)
}

fn response(body: &mut Fields<'_>, asked: &mut Asked) -> Result<(), SessionError> {
    asked.is_stored = body.take("store")?.unwrap_or(true);
    asked.is_background = body.take("background")?.unwrap_or(false);
    if asked.is_background && !asked.is_stored {
        return Err(body.wrong("background", "a response in the background is stored: leave store out"));
    }
    asked.instructions = body.take("instructions")?;
    let previous: Option<String> = body.take("previous_response_id")?;
    asked.previous = previous.as_deref().map(ResponseId::parse).transpose()?;
    if let Some(raw) = body.raw("conversation") {
        let id = match is_text(raw) {
            true => read("conversation", raw)?,
            false => {
                let mut fields = Fields::of("conversation".to_owned(), raw)?;
                let id: String = fields.need("id")?;
                fields.finish()?;
                id
            }
        };
        if asked.previous.is_some() {
            return Err(body.wrong("conversation", "send it or previous_response_id, not both"));
        }
        asked.conversation = Some(parse_conversation(&id)?);
    }
    asked.options.max_output_tokens = body.take("max_output_tokens")?;
    if let Some(mut reasoning) = body.object("reasoning")? {
        asked.options.effort = reasoning.take("effort")?;
        reasoning.hints(&["summary", "generate_summary"])?;
        reasoning.finish()?;
    }
    if let Some(mut text) = body.object("text")? {
        asked.output = text.object("format")?.map(|fields| format(fields, false)).transpose()?.flatten();
        text.allow("verbosity", &[r#""medium""#])?;
        text.finish()?;
    }
    Ok(())
}

fn chat(body: &mut Fields<'_>, asked: &mut Asked) -> Result<(), SessionError> {
    asked.model = Some(asked.model.take().ok_or_else(|| body.wrong("model", MISSING))?);
    let tokens: Option<u32> = body.take("max_tokens")?;
    asked.options.max_output_tokens = body.take("max_completion_tokens")?.or(tokens);
    asked.options.stop = match body.raw("stop") {
        Some(raw) if is_text(raw) => Some(vec![read("stop", raw)?]),
        raw => raw.map(|raw| read("stop", raw).map_err(|_| body.wrong("stop", STOP))).transpose()?,
    };
    asked.options.seed = body.take("seed")?;
    asked.options.effort = body.take("reasoning_effort")?;
    asked.output = body.object("response_format")?.map(|fields| format(fields, true)).transpose()?.flatten();
    Ok(())
}

impl Asked {
    /// Where a request has what is said.
    pub(crate) const fn said(&self) -> &'static str {
        if self.is_chat { "messages" } else { "input" }
    }

    pub(crate) async fn begin(&mut self, app: &Arc<App>, key: Option<&str>) -> Result<Begun, SessionError> {
        check_metadata(app, &self.metadata)?;
        let named = self.conversation.or(self.previous.map(|previous| previous.session_id));
        if !self.is_stored && named.is_some() {
            let message = "a response that goes on with a stored one is stored too: leave store out";
            return Err(SessionError::invalid("store", message));
        }
        let caller = self.caller(app, named).await?;
        let called = caller.as_ref().map(|(session_id, _)| *session_id);
        self.transcript.check_references(called.or(named))?;
        match (caller, self.conversation, self.previous) {
            (Some((session_id, own)), ..) => self.answer(app, session_id, own).await,
            (None, Some(session_id), _) => {
                let own = own_conversation(app, session_id).await?;
                self.check_nothing_before()?;
                self.fits(&own)?;
                let _one_at_a_time = app.turn_of(session_id).await;
                self.start(app, session_id, key, own).await
            }
            (None, None, Some(previous)) => self.go_on(app, previous, key).await,
            (None, None, None) => self.create(app, key).await,
        }
    }

    fn service<'a>(&self, app: &'a App) -> &'a Arc<dyn SessionService> {
        if self.is_stored { &app.service } else { &app.options.passing }
    }

    fn system(&self) -> Option<String> {
        let all: Vec<&str> = self.instructions.iter().chain(&self.transcript.system).map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("\n\n"))
    }

    /// The session whose calls are answered. Outputs of calls that are not known here become history.
    async fn caller(&mut self, app: &App, named: Option<SessionId>) -> Result<Option<(SessionId, Own)>, SessionError> {
        let Some((call_id, _)) = self.transcript.outputs.first() else { return Ok(None) };
        let called = parse_call(call_id);
        if let Some(named) = named {
            let own = match self.conversation {
                Some(_) => own_conversation(app, named).await?,
                None => own(app, app.service.as_ref(), named).await?,
            };
            if called.is_none_or(|(session_id, _)| session_id != named) {
                let message = "the outputs are not those of calls of the response or conversation that is named";
                return Err(SessionError::invalid("input", message));
            }
            self.check_nothing_before()?;
            return Ok(Some((named, own)));
        }
        if let Some((session_id, call_id)) = called
            && let Some(own) = self.known(app, session_id, &call_id).await?
        {
            return Ok(Some((session_id, own)));
        }
        self.transcript.ask_to_go_on();
        Ok(None)
    }

    /// The session of a call, if it is one of this user, and the request one of its turn. What comes with all that was
    /// said before may be asked of another model, or with other instructions: then it is a new session.
    async fn known(&self, app: &App, session_id: SessionId, call_id: &str) -> Result<Option<Own>, SessionError> {
        let service = self.service(app).as_ref();
        let own = match own(app, service, session_id).await {
            // An id may be seen by others: it does not open the session of another user.
            Ok(own) if own.user != self.user => return Ok(None),
            // A stored session finds its answers again. One that is not stored is there for the open calls alone.
            Ok(own) if self.is_stored => own,
            Ok(own) if service.calls(&session_id).await?.items.iter().any(|call| call.call_id == call_id) => own,
            Ok(_) | Err(SessionError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.transcript.history.is_empty() {
            return Ok(Some(own));
        }
        let past = past_of(service, session_id, call_id).await?;
        let started = &past.started;
        let is_its = own.system.as_ref().is_none_or(|system| *system == self.system())
            && self.model.as_ref().is_none_or(|model| *model == started.model)
            && self.tools == past.tools(started)
            && self.output.as_ref() == started.output.as_deref()
            && self.has_terms(started).is_ok();
        Ok(is_its.then_some(own))
    }

    /// Answers calls: the response goes on with their turn.
    async fn answer(&mut self, app: &Arc<App>, session_id: SessionId, own: Own) -> Result<Begun, SessionError> {
        let service = self.service(app).clone();
        self.fits(&own)?;
        let mut answers = BTreeMap::new();
        for (call_id, text) in std::mem::take(&mut self.transcript.outputs) {
            let known = parse_call(&call_id).filter(|(session, _)| *session == session_id);
            let (_, call_id) = known.ok_or(SessionError::ItemNotFound("call"))?;
            if answers.insert(call_id, text).is_some() {
                return Err(SessionError::invalid("input", "the output of a call is sent twice"));
            }
        }
        let call_id = answers.keys().next().ok_or(SessionError::ItemNotFound("call"))?;
        let past = past_of(service.as_ref(), session_id, call_id).await?;
        self.has_terms(&past.started)?;
        // In a task, so that a client that leaves does not part the outputs of one message.
        let (task_app, task_service, is_stored) = (app.clone(), service.clone(), self.is_stored);
        let taken = tokio::spawn(async move {
            let (seq, last) = calls::take(&task_app, task_service, session_id, answers).await?;
            let passing = (!is_stored).then(|| Passing::new(&task_app, &last));
            Ok::<_, SessionError>((seq, last, passing))
        });
        let (seq, last, passing) = taken.await.map_err(|error| SessionError::Internal(error.to_string()))??;
        let unfold = Unfold::begin(service.as_ref(), ResponseId { session_id, seq }, own).await?;
        let echo = Echo::of(&unfold, &past, self.is_stored);
        Ok(Begun { turn: handle(service.clone(), last), service, unfold, echo, passing })
    }

    async fn create(&mut self, app: &Arc<App>, key: Option<&str>) -> Result<Begun, SessionError> {
        let service = self.service(app).clone();
        let user = self.user.as_deref();
        let request = CreateSession {
            model: self.model.clone(),
            system_prompt: self.system(),
            history: std::mem::take(&mut self.transcript.history),
            idempotency_key: key.map(str::to_owned),
            ..new_session(app, false, &self.metadata, user.map(|user| (user, self.is_stored)))
        };
        let session_id = service.create_session(request).await?.session_id;
        let _one_at_a_time = app.turn_of(session_id).await;
        let begun = match own(app, service.as_ref(), session_id).await {
            Ok(own) => self.start(app, session_id, key, own).await,
            Err(error) => Err(error),
        };
        if begun.is_err() && service.read(&session_id).await.is_ok_and(|view| view.turn_count == 0) {
            // Without its turn it is of no use.
            if let Err(error) = service.delete(DeleteSession { session_id, force: false }).await {
                tracing::warn!(%error, "a session without a turn is left");
            }
        }
        begun
    }

    async fn start(
        &mut self,
        app: &Arc<App>,
        session_id: SessionId,
        key: Option<&str>,
        own: Own,
    ) -> Result<Begun, SessionError> {
        let service = self.service(app).clone();
        let request = StartTurn {
            model: self.model.clone(),
            options: self.options.clone(),
            output: self.output.clone(),
            client_tools: Some(self.tools.clone()),
            attended: self.is_stored,
            idempotency_key: key.map(str::to_owned),
            ..StartTurn::new(session_id, self.transcript.prompt())
        };
        let turn = service.begin_turn(request).await?;
        let passing = (!self.is_stored).then(|| Passing::new(app, &turn.accepted));
        let id = ResponseId { session_id, seq: turn.accepted.seq };
        let unfold = Unfold::begin(service.as_ref(), id, own).await?;
        let echo = Echo {
            instructions: unfold.own.system.clone().flatten(),
            previous: self.previous.map(|previous| previous.to_string()).filter(|_| !unfold.own.is_conversation),
            tools: self.tools.clone(),
            options: self.options.clone(),
            output: self.output.clone(),
            is_stored: self.is_stored,
            is_background: self.is_background,
        };
        Ok(Begun { service, turn, unfold, echo, passing })
    }

    /// Continues a response: in its session if nothing came after it there, else in a fork.
    async fn go_on(&mut self, app: &Arc<App>, previous: ResponseId, key: Option<&str>) -> Result<Begun, SessionError> {
        self.check_nothing_before()?;
        let service = app.service.as_ref();
        // Of two that continue the same response at once, the second one sees the turn of the first.
        let _one_at_a_time = app.turn_of(previous.session_id).await;
        let (read, past) = Unfold::read(app, service, previous).await?;
        let next = past.next(previous);
        match (&read.ending, next) {
            (None, _) => return Err(SessionError::Busy { turn: read.turn }),
            (Some(Ending::Waiting), None) => {
                let message = "the response waits for the outputs of its calls: send those";
                return Err(SessionError::invalid("input", message));
            }
            (Some(Ending::Waiting), Some(_)) => {
                return Err(SessionError::IdempotencyConflict { what: "previous_response_id" });
            }
            (Some(_), _) => {}
        }
        self.fits(&read.own)?;
        if next.is_none_or(|used| key.is_some() && used == key) {
            let begun = self.start(app, previous.session_id, key, read.own.clone()).await?;
            if begun.turn.accepted.turn == read.turn + 1 {
                return Ok(begun);
            }
            // Over another server a turn came first.
            calls::end(service, previous.session_id, begun.turn.accepted.turn).await?;
        }
        let session_id = fork(service, previous.session_id, read.turn, key).await?;
        self.start(app, session_id, key, read.own).await
    }

    /// Refuses what is not the next message: the rest is in the session.
    fn check_nothing_before(&self) -> Result<(), SessionError> {
        if self.transcript.history.is_empty() && self.transcript.system.is_empty() {
            return Ok(());
        }
        let message = "here only a message of the user or outputs of calls are supported: the rest is in the session";
        Err(SessionError::invalid("input", message))
    }

    /// Checks that the request repeats what its session keeps, or leaves it out.
    fn fits(&self, Own { metadata, user, system, .. }: &Own) -> Result<(), SessionError> {
        // A chat says all of it each time; what it says before its outputs was read when it began.
        if self.is_chat {
            return Ok(());
        }
        let asked = self.system();
        keeps("instructions", asked.is_none() || system.as_ref().is_none_or(|system| asked == *system))?;
        keeps("metadata", self.metadata.iter().all(|(name, value)| metadata.get(name) == Some(value)))?;
        keeps("user", self.user.is_none() || self.user == *user)
    }

    /// Checks that outputs come with the terms of their turn, or without.
    fn has_terms(&self, terms: &TurnStarted) -> Result<(), SessionError> {
        let [asked, kept] = [&self.options, &terms.options].map(|it| serde_json::to_value(it).unwrap_or_default());
        // The number that is kept may be the configuration's.
        let others = asked.as_object().into_iter().flatten().filter(|(name, _)| *name != "max_output_tokens");
        for (name, value) in others {
            keeps(if name == "effort" { "reasoning.effort" } else { name }, kept[name] == *value)?;
        }
        keeps("text.format", self.output.is_none() || self.output.as_ref() == terms.output.as_deref())
    }
}

fn keeps(field: &str, is_kept: bool) -> Result<(), SessionError> {
    match is_kept {
        true => Ok(()),
        false => Err(SessionError::invalid(field, "this stays as it was: send the same, or leave it out")),
    }
}

/// What a session says up to the message that made a call.
async fn past_of(service: &dyn SessionService, session_id: SessionId, call_id: &str) -> Result<Past, SessionError> {
    let is_it = |block: &Block| matches!(block, Block::ToolCall(call) if call.call_id == call_id);
    let (mut past, mut records) = (Past::default(), Records::after(service, session_id, 0));
    while let Some(record) = records.next().await? {
        past.take(&record);
        if matches!(&record.event, Event::AssistantMessage(message) if message.blocks.iter().any(is_it)) {
            break;
        }
    }
    Ok(past)
}
