//! What both protocols ask for, and the turn that it becomes: a new session, a turn of one, answers to its calls, or a
//! fork where it went another way.

use std::{collections::BTreeMap, sync::Arc};

use meerkat_service::{
    SessionError, SessionId, SessionService,
    follow::turn::handle,
    options::ModelOptions,
    output::OutputSpec,
    service::{
        ClientTool, CreateSession, DeleteSession, MemoryScope, SessionMemory, StartTurn, TurnAccepted, TurnHandle,
    },
    session::event::TurnStarted,
};

use crate::{
    App, calls,
    ids::ResponseId,
    own::{Made, Own, check_metadata, fork, labels, own, own_conversation},
    passing::Passing,
    responses::Echo,
    said::{Transcript, session_of},
    unfold::{Ending, Later, Unfold, instructions},
};

/// What a request asks for.
#[derive(Default)]
pub(crate) struct Asked {
    pub(crate) model: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) transcript: Transcript,
    pub(crate) previous: Option<ResponseId>,
    /// The session of a conversation.
    pub(crate) conversation: Option<SessionId>,
    pub(crate) tools: Vec<ClientTool>,
    pub(crate) options: ModelOptions,
    pub(crate) output: Option<OutputSpec>,
    pub(crate) user: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) is_stored: bool,
    pub(crate) is_stream: bool,
    pub(crate) is_background: bool,
    /// It is a chat; its stream may end with its usage.
    pub(crate) chat: Option<Chat>,
}

/// What only a chat asks for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Chat {
    pub(crate) has_usage: bool,
}

/// A response that has begun.
pub(crate) struct Begun {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) turn: TurnHandle,
    pub(crate) unfold: Unfold,
    pub(crate) echo: Echo,
    pub(crate) passing: Option<Passing>,
}

impl Asked {
    /// Begins the response.
    pub(crate) async fn begin(&mut self, app: &Arc<App>, key: Option<&str>) -> Result<Begun, SessionError> {
        check_metadata(app, &self.metadata)?;
        if !self.is_stored && (self.previous.is_some() || self.conversation.is_some()) {
            let message = "a response that goes on with a stored one is stored too: leave store out";
            return Err(SessionError::invalid("store", message));
        }
        if let Some(session_id) = self.conversation {
            own_conversation(app, session_id).await?;
        }
        let caller = self.caller(app).await?;
        let goes_on = caller.or(self.conversation).or(self.previous.map(|previous| previous.session_id));
        self.transcript.check_references(goes_on)?;
        if let Some(session_id) = caller {
            return self.answer(app, session_id).await;
        }
        if let Some(session_id) = self.conversation {
            self.check_nothing_before()?;
            let _one_at_a_time = app.turn_of(session_id).await;
            let system = self.fits(app, session_id).await?;
            return self.start(app, session_id, key, system).await;
        }
        match self.previous {
            Some(previous) => self.go_on(app, previous, key).await,
            None => self.create(app, key).await,
        }
    }

    fn service<'a>(&self, app: &'a App) -> &'a Arc<dyn SessionService> {
        if self.is_stored { &app.service } else { &app.options.passing }
    }

    /// All instructions.
    fn system(&self) -> Option<String> {
        let all: Vec<&str> = self.instructions.iter().chain(&self.transcript.system).map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("\n\n"))
    }

    /// The session whose calls are answered. Outputs of calls that are not known here become history.
    async fn caller(&mut self, app: &App) -> Result<Option<SessionId>, SessionError> {
        let Some((call_id, _)) = self.transcript.outputs.first() else { return Ok(None) };
        let called = session_of(call_id);
        if let Some(wanted) = self.previous.map(|previous| previous.session_id).or(self.conversation) {
            own(app, app.service.as_ref(), wanted).await?;
            if called.is_none_or(|(session_id, _)| session_id != wanted) {
                let message = "the outputs are not those of calls of the response or conversation that is named";
                return Err(SessionError::invalid("input", message));
            }
            self.check_nothing_before()?;
            return Ok(Some(wanted));
        }
        if let Some((session_id, call_id)) = called
            && self.is_known(app, session_id, &call_id).await?
        {
            return Ok(Some(session_id));
        }
        self.transcript.forget_calls();
        Ok(None)
    }

    /// Returns true if a call is one of a session here, and the request one of its turn. What comes with all that was
    /// said before may be asked of another model, or with other instructions: then it is a new session.
    async fn is_known(&self, app: &App, session_id: SessionId, call_id: &str) -> Result<bool, SessionError> {
        let service = self.service(app).as_ref();
        match own(app, service, session_id).await {
            // A stored session finds its answers again. One that is not stored is there for the open calls alone.
            Ok(_) if self.is_stored => {}
            Ok(_) if service.calls(&session_id).await?.items.iter().any(|call| call.call_id == call_id) => {}
            Ok(_) | Err(SessionError::NotFound(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
        if self.transcript.history.is_empty() {
            return Ok(true);
        }
        let system = instructions(service, session_id).await?;
        let Some((started, tools)) = calls::terms(service, session_id, call_id).await? else { return Ok(true) };
        Ok(system.is_none_or(|system| system == self.system())
            && self.model.as_ref().is_none_or(|model| *model == started.model)
            && self.tools == tools
            && self.output.as_ref() == started.output.as_deref()
            && self.has_terms(Some(&started)).is_ok())
    }

    /// Answers calls: the response goes on with their turn.
    async fn answer(&mut self, app: &Arc<App>, session_id: SessionId) -> Result<Begun, SessionError> {
        let service = self.service(app).clone();
        self.fits(app, session_id).await?;
        let mut answers = BTreeMap::new();
        for (call_id, text) in std::mem::take(&mut self.transcript.outputs) {
            let known = session_of(&call_id).filter(|(session, _)| *session == session_id);
            let (_, call_id) = known.ok_or(SessionError::ItemNotFound("call"))?;
            if answers.insert(call_id, text).is_some() {
                return Err(SessionError::invalid("input", "the output of a call is sent twice"));
            }
        }
        if let Some(call_id) = answers.keys().next() {
            let terms = calls::terms(service.as_ref(), session_id, call_id).await?;
            self.has_terms(terms.as_ref().map(|(started, _)| started))?;
        }
        // In a task, so that a client that leaves does not part the outputs of one message.
        let taken = calls::take(app.clone(), service.clone(), session_id, answers, self.is_stored);
        let taken = tokio::spawn(taken).await.map_err(|error| SessionError::Internal(error.to_string()))?;
        let (seq, last, passing) = taken?;
        let unfold = Unfold::begin(app, service.as_ref(), ResponseId { session_id, seq }).await?;
        let echo = Echo::of_record(service.as_ref(), &unfold, self.is_stored).await?;
        Ok(Begun { turn: handle(service.clone(), last), service, unfold, echo, passing })
    }

    async fn create(&mut self, app: &Arc<App>, key: Option<&str>) -> Result<Begun, SessionError> {
        let service = self.service(app).clone();
        let system = self.system();
        let request = CreateSession {
            model: self.model.clone(),
            system_prompt: system.clone(),
            history: std::mem::take(&mut self.transcript.history),
            idempotency_key: key.map(str::to_owned),
            ..new_session(app, Made::Response, &self.metadata, self.user.as_deref(), self.is_stored)
        };
        let session_id = service.create_session(request).await?.session_id;
        let _one_at_a_time = app.turn_of(session_id).await;
        let begun = self.start(app, session_id, key, system).await;
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
        instructions: Option<String>,
    ) -> Result<Begun, SessionError> {
        let service = self.service(app).clone();
        let request = StartTurn {
            model: self.model.clone(),
            options: self.options.clone(),
            output: self.output.clone(),
            client_tools: Some(self.tools.clone()),
            attended: self.is_stored,
            idempotency_key: key.map(str::to_owned),
            ..StartTurn::new(session_id, self.transcript.take_prompt())
        };
        let turn = service.begin_turn(request).await?;
        let passing = self.passing(app, &turn.accepted);
        let id = ResponseId { session_id, seq: turn.accepted.seq };
        let unfold = Unfold::begin(app, service.as_ref(), id).await?;
        let echo = Echo {
            instructions,
            previous: self.previous.map(|previous| previous.to_string()).filter(|_| !unfold.own.is_conversation()),
            tools: self.tools.clone(),
            options: self.options.clone(),
            output: self.output.clone(),
            is_stored: self.is_stored,
            is_background: self.is_background,
        };
        Ok(Begun { service, turn, unfold, echo, passing })
    }

    fn passing(&self, app: &Arc<App>, accepted: &TurnAccepted) -> Option<Passing> {
        (!self.is_stored).then(|| Passing::new(app, accepted))
    }

    /// Continues a response: in its session if nothing came after it there, else in a fork.
    async fn go_on(&mut self, app: &Arc<App>, previous: ResponseId, key: Option<&str>) -> Result<Begun, SessionError> {
        self.check_nothing_before()?;
        let service = app.service.as_ref();
        // Of two that continue the same response at once, the second one sees the turn of the first.
        let _one_at_a_time = app.turn_of(previous.session_id).await;
        let (read, later) = Unfold::read(app, service, previous).await?;
        match (&read.ending, &later) {
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
        let system = self.fits(app, previous.session_id).await?;
        let is_repeated = |Later(used): &Later| key.is_some() && used.as_deref() == key;
        let session_id = match later.filter(|later| !is_repeated(later)) {
            None => previous.session_id,
            Some(_) => fork(service, previous.session_id, read.turn, key).await?,
        };
        self.start(app, session_id, key, system).await
    }

    /// Refuses what is not the next message: the rest is in the session.
    fn check_nothing_before(&self) -> Result<(), SessionError> {
        if self.transcript.history.is_empty() && self.transcript.system.is_empty() {
            return Ok(());
        }
        let message = "here only a message of the user or outputs of calls are supported: the rest is in the session";
        Err(SessionError::invalid("input", message))
    }

    /// Checks that the request repeats what its session keeps, or leaves it out. Returns the instructions.
    async fn fits(&self, app: &App, session_id: SessionId) -> Result<Option<String>, SessionError> {
        let service = self.service(app).as_ref();
        let Own { metadata, user, .. } = own(app, service, session_id).await?;
        let system = instructions(service, session_id).await?;
        // A chat says all of it each time; what it says before its outputs was read when it began.
        if self.chat.is_none() {
            let asked = self.system();
            keeps("instructions", asked.is_none() || system.as_ref().is_none_or(|system| asked == *system))?;
            keeps("metadata", self.metadata.iter().all(|(name, value)| metadata.get(name) == Some(value)))?;
            keeps("user", self.user.is_none() || self.user == user)?;
        }
        Ok(system.flatten())
    }

    /// Checks that outputs come with the terms of their turn, or without.
    fn has_terms(&self, terms: Option<&TurnStarted>) -> Result<(), SessionError> {
        let Some(TurnStarted { options, output, .. }) = terms else { return Ok(()) };
        let asked = &self.options;
        keeps("temperature", asked.temperature.is_none() || asked.temperature == options.temperature)?;
        keeps("top_p", asked.top_p.is_none() || asked.top_p == options.top_p)?;
        let tokens = asked.max_output_tokens;
        keeps("max_output_tokens", tokens.is_none() || tokens == options.max_output_tokens)?;
        keeps("stop", asked.stop.is_none() || asked.stop == options.stop)?;
        keeps("seed", asked.seed.is_none() || asked.seed == options.seed)?;
        keeps("reasoning.effort", asked.effort.is_none() || asked.effort == options.effort)?;
        keeps("text.format", self.output.is_none() || self.output.as_ref() == output.as_deref())
    }
}

fn keeps(field: &'static str, is_kept: bool) -> Result<(), SessionError> {
    match is_kept {
        true => Ok(()),
        false => Err(SessionError::invalid(field, "this stays as it was: send the same, or leave it out")),
    }
}

/// A new session with no tool of this machine: those of a request are run by its client. Memory takes in what a user
/// says, and never a request without one, which every session would find.
pub(crate) fn new_session(
    app: &App,
    made: Made,
    metadata: &BTreeMap<String, String>,
    user: Option<&str>,
    is_stored: bool,
) -> CreateSession {
    let scope = if user.is_some() { MemoryScope::Project } else { MemoryScope::None };
    CreateSession {
        labels: labels(app, made, metadata, user),
        tools: Some(Vec::new()),
        memory: SessionMemory { scope, index: is_stored && user.is_some() },
        ..CreateSession::default()
    }
}
