//! What both protocols ask for, and the turn that it becomes: a new session, a turn of one, answers to its calls, or a
//! fork where it went another way.

use std::collections::BTreeMap;

use meerkat_service::{
    SessionError, SessionId, SessionService,
    follow::turn::{answered, handle},
    options::ModelOptions,
    output::OutputSpec,
    service::{
        AnswerCall, ClientTool, CreateSession, ForkSession, MemoryScope, SessionMemory, SessionQuery, StartTurn,
        TurnHandle, UpdateSession,
    },
};
use std::sync::Arc;

use crate::{
    App,
    ids::ResponseId,
    said::{Transcript, session_of},
    unfold::{Ending, Later, Unfold, first},
};

/// Label of a fork that a key made, so that the same request finds it again.
const KEY_LABEL: &str = "openai.key";

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
    /// The stream of a chat ends with its usage.
    pub(crate) has_usage: bool,
}

/// A response that has begun.
pub(crate) struct Begun {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) id: ResponseId,
    pub(crate) turn: TurnHandle,
    pub(crate) instructions: Option<String>,
    pub(crate) metadata: BTreeMap<String, String>,
    /// It is dropped with its answer.
    pub(crate) is_passing: bool,
}

impl Asked {
    /// Begins the response.
    pub(crate) async fn begin(&mut self, app: &App, key: Option<&str>) -> Result<Begun, SessionError> {
        if let Some((service, session_id, is_passing)) = self.caller(app).await? {
            return self.answer(service, session_id, is_passing).await;
        }
        if let Some(session_id) = self.conversation {
            let _one_at_a_time = app.turn_of(session_id).await;
            return self.continue_in(app, (session_id, session_id), key).await;
        }
        let Some(previous) = self.previous else {
            let (service, is_passing) = match self.is_stored {
                true => (&app.service, false),
                false => (&app.options.passing, true),
            };
            return self.create(app, service.clone(), key, is_passing).await;
        };
        self.go_on(app, previous, key).await
    }

    /// The session that made the calls whose outputs come last. If it is not known, the outputs become history.
    async fn caller(&mut self, app: &App) -> Result<Option<(Arc<dyn SessionService>, SessionId, bool)>, SessionError> {
        if self.transcript.outputs.is_empty() {
            return Ok(None);
        }
        let called = self.transcript.called_by();
        if let Some(previous) = self.previous {
            if called != Some(previous.session_id) {
                let message = "the outputs are not those of the calls of previous_response_id";
                return Err(SessionError::invalid("input", message));
            }
            return Ok(Some((app.service.clone(), previous.session_id, false)));
        }
        if let Some(session_id) = called {
            for (service, is_passing) in [(&app.options.passing, true), (&app.service, false)] {
                if service.calls(&session_id).await.is_ok_and(|calls| !calls.items.is_empty()) {
                    return Ok(Some((service.clone(), session_id, is_passing)));
                }
            }
        }
        self.transcript.forget_calls();
        Ok(None)
    }

    /// Answers calls: the response goes on with their turn.
    async fn answer(
        &mut self,
        service: Arc<dyn SessionService>,
        session_id: SessionId,
        is_passing: bool,
    ) -> Result<Begun, SessionError> {
        let outputs = std::mem::take(&mut self.transcript.outputs);
        let mut answers = Vec::new();
        for (call_id, text) in outputs {
            let known = session_of(&call_id).filter(|(session, _)| *session == session_id);
            let (_, call_id) = known.ok_or(SessionError::ItemNotFound("call"))?;
            answers.push((call_id, text));
        }
        let open = service.calls(&session_id).await?.items;
        let is_answered = |call_id: &str| answers.iter().any(|(answered, _)| answered == call_id);
        // Only some of them would leave the response without an end. None is open if this was answered before.
        if let Some(missing) = open.iter().find(|call| !is_answered(&call.call_id))
            && open.iter().any(|call| is_answered(&call.call_id))
        {
            let message = format!("no output was given for the call of {:?} with it", missing.name);
            return Err(SessionError::invalid("input", message));
        }
        let mut accepted = Vec::new();
        for (call_id, text) in answers {
            accepted.push(answered(service.as_ref(), AnswerCall::text(session_id, call_id, text)).await?);
        }
        let begun = accepted.iter().map(|accepted| accepted.seq).min().unwrap_or_default();
        let last = accepted.into_iter().max_by_key(|accepted| accepted.seq);
        let last = last.ok_or(SessionError::ItemNotFound("call"))?;
        let (instructions, metadata) = first(service.as_ref(), session_id).await?;
        Ok(Begun {
            id: ResponseId { session_id, seq: begun },
            turn: handle(service.clone(), last),
            service,
            instructions,
            metadata,
            is_passing,
        })
    }

    async fn create(
        &mut self,
        app: &App,
        service: Arc<dyn SessionService>,
        key: Option<&str>,
        is_passing: bool,
    ) -> Result<Begun, SessionError> {
        let mut system: Vec<String> = self.instructions.iter().cloned().collect();
        system.append(&mut self.transcript.system);
        let mut labels = self.metadata.clone();
        labels.extend(self.user.clone().map(|user| (app.options.scope_label.clone(), user)));
        let scope = if self.user.is_some() { MemoryScope::Project } else { MemoryScope::None };
        let request = CreateSession {
            model: self.model.clone(),
            system_prompt: (!system.is_empty()).then(|| system.join("\n\n")),
            labels,
            memory: SessionMemory { scope, index: !is_passing },
            history: std::mem::take(&mut self.transcript.history),
            idempotency_key: key.map(str::to_owned),
            ..with_no_tools()
        };
        let session_id = service.create_session(request).await?.session_id;
        match self.start(service.clone(), session_id, key, is_passing).await {
            Ok(begun) => Ok(begun),
            Err(error) => {
                // Without its turn it is of no use; a key goes on naming it.
                if key.is_none() && !is_passing {
                    let request = meerkat_service::service::DeleteSession { session_id, force: true };
                    if let Err(error) = service.delete(request).await {
                        tracing::warn!(%error, "a session without a turn is left");
                    }
                }
                Err(error)
            }
        }
    }

    async fn start(
        &mut self,
        service: Arc<dyn SessionService>,
        session_id: SessionId,
        key: Option<&str>,
        is_passing: bool,
    ) -> Result<Begun, SessionError> {
        let request = StartTurn {
            model: self.model.clone(),
            options: self.options.clone(),
            output: self.output.clone(),
            client_tools: Some(self.tools.clone()),
            attended: !is_passing,
            idempotency_key: key.map(str::to_owned),
            ..StartTurn::new(session_id, self.transcript.take_prompt())
        };
        let turn = service.begin_turn(request).await?;
        let id = ResponseId { session_id, seq: turn.accepted.seq };
        let instructions = self.instructions.clone();
        Ok(Begun { service, id, turn, instructions, metadata: self.metadata.clone(), is_passing })
    }

    /// Continues a response: in its session if nothing came after it there, else in a fork.
    async fn go_on(&mut self, app: &App, previous: ResponseId, key: Option<&str>) -> Result<Begun, SessionError> {
        let service = app.service.clone();
        // Of two that continue the same response at once, the second one sees the turn of the first.
        let _one_at_a_time = app.turn_of(previous.session_id).await;
        let (read, later) = Unfold::read(service.as_ref(), previous).await?;
        match (&read.ending, &later) {
            (None, _) => return Err(SessionError::Busy { turn: read.turn }),
            (Some(Ending::Waiting), None) => {
                let waiting: Vec<&str> = read.waiting().iter().map(String::as_str).collect();
                let message = format!("the response waits for the outputs of its calls ({})", waiting.join(", "));
                return Err(SessionError::invalid("input", message));
            }
            (Some(Ending::Waiting), Some(_)) => {
                return Err(SessionError::IdempotencyConflict { what: "previous_response_id" });
            }
            (Some(_), _) => {}
        }
        let is_repeated = key.is_some() && later.as_ref().is_some_and(|Later(used)| used.as_deref() == key);
        let session_id = match later {
            None => previous.session_id,
            Some(_) if is_repeated => previous.session_id,
            Some(_) => fork(service.as_ref(), previous.session_id, read.turn, key).await?,
        };
        self.continue_in(app, (previous.session_id, session_id), key).await
    }

    /// Begins the next turn of a session, or of its fork. The session keeps its instructions and its metadata.
    async fn continue_in(
        &mut self,
        app: &App,
        (of, session_id): (SessionId, SessionId),
        key: Option<&str>,
    ) -> Result<Begun, SessionError> {
        let service = app.service.clone();
        if !self.is_stored {
            let message = "a response that goes on with a stored one is stored too: leave store out";
            return Err(SessionError::invalid("store", message));
        }
        if !self.transcript.history.is_empty() || !self.transcript.system.is_empty() {
            let message =
                "here only a message of the user or outputs of calls are supported: the rest is in the session";
            return Err(SessionError::invalid("input", message));
        }
        let (system, mut metadata) = first(service.as_ref(), of).await?;
        if self.instructions.is_some() && self.instructions != system {
            let message = "a session keeps its instructions: send the same ones, or leave them out";
            return Err(SessionError::invalid("instructions", message));
        }
        if !self.metadata.iter().all(|(name, value)| metadata.get(name) == Some(value)) {
            let message = "a session keeps its metadata: send the same, or leave it out";
            return Err(SessionError::invalid("metadata", message));
        }
        if self.user.is_some() && self.user.as_ref() != metadata.get(&app.options.scope_label) {
            return Err(SessionError::invalid("user", "a session keeps its user: send the same one, or leave it out"));
        }
        let mut begun = self.start(service, session_id, key, false).await?;
        metadata.remove(&app.options.scope_label);
        (begun.instructions, begun.metadata) = (system, metadata);
        Ok(begun)
    }
}

/// A session with no tool of this machine: those of a request are run by its client.
pub(crate) fn with_no_tools() -> CreateSession {
    let memory = SessionMemory { scope: MemoryScope::None, index: true };
    CreateSession { tools: Some(Vec::new()), memory, ..CreateSession::default() }
}

/// Forks a session after a turn. The fork of a key is found again by the same key.
async fn fork(
    service: &dyn SessionService,
    session_id: SessionId,
    turn: u32,
    key: Option<&str>,
) -> Result<SessionId, SessionError> {
    let label = key.map(|key| BTreeMap::from([(KEY_LABEL.to_owned(), format!("{session_id} {turn} {key}"))]));
    if let Some(labels) = &label {
        let query = SessionQuery { labels: labels.clone(), limit: Some(1), ..SessionQuery::default() };
        if let Some(made) = service.list(query).await?.items.first() {
            return Ok(made.session_id);
        }
    }
    let child = service.fork(ForkSession { session_id, turn: Some(turn) }).await?.session_id;
    if let Some(labels) = label {
        let kept = service.read(&child).await?.labels;
        let labels = Some(kept.into_iter().chain(labels).collect());
        service.update(UpdateSession { session_id: child, title: None, labels }).await?;
    }
    Ok(child)
}
