//! The methods of the protocol, each as operations of the service.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_client_protocol_schema::{
    ProtocolVersion,
    v1::{
        AgentCapabilities, CancelNotification, CloseSessionRequest, CloseSessionResponse, DeleteSessionRequest,
        DeleteSessionResponse, Error, Implementation, InitializeRequest, InitializeResponse, ListSessionsRequest,
        ListSessionsResponse, LoadSessionRequest, LoadSessionResponse, McpServer, NewSessionRequest,
        NewSessionResponse, NoticeSeverity, PromptCapabilities, PromptRequest, PromptResponse, ResumeSessionRequest,
        ResumeSessionResponse, SessionCapabilities, SessionCloseCapabilities, SessionDeleteCapabilities,
        SessionId as WireId, SessionInfo, SessionListCapabilities, SessionResumeCapabilities,
        SetSessionConfigOptionRequest, SetSessionConfigOptionResponse, SystemPrompt,
    },
};
use futures::future::{BoxFuture, FutureExt as _, join_all};
use meerkat_service::{
    SessionError, SessionId, SessionService, TurnNumber,
    follow::turn::{from_acceptance, handle},
    service::{CreateSession, DeleteSession, ReadEvents, SessionQuery, SessionView, StartTurn, TurnAccepted},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{
    AcpOptions, error,
    prompt::prompt,
    settings::Settings,
    stream::Watcher,
    updates::{Shows, Updates, folder},
    wire::Peer,
};

/// Sessions of one page of a list.
const LISTED: usize = 50;

/// The agent of one client.
pub(crate) struct Agent {
    service: Arc<dyn SessionService>,
    options: AcpOptions,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shows: Shows,
    /// The sessions that the client has opened.
    open: HashMap<SessionId, Open>,
    begun: u64,
}

/// Session that a client has opened.
#[derive(Default)]
struct Open {
    workspace: Option<String>,
    settings: Settings,
    /// Prompts of this client that have no answer yet.
    running: HashMap<u64, Running>,
    /// The turn that ran when the session was loaded.
    watching: Option<Watching>,
}

/// Prompt without an answer.
#[derive(Default)]
struct Running {
    cancelled: CancellationToken,
    turn: Option<TurnNumber>,
}

/// Turn of another client that is shown here.
#[derive(Clone)]
struct Watching {
    cancelled: CancellationToken,
    /// Ends the watching, not the turn.
    ended: CancellationToken,
}

impl Open {
    /// Cancels all turns that the client sees.
    fn cancel(&self) {
        self.running.values().for_each(|running| running.cancelled.cancel());
        if let Some(watching) = &self.watching {
            watching.cancelled.cancel();
        }
    }

    /// Cancels the client's own turns. The turns of others go on, and are shown no more.
    fn close(&self) {
        self.running.values().for_each(|running| running.cancelled.cancel());
        self.end_watching();
    }

    fn end_watching(&self) {
        if let Some(watching) = &self.watching {
            watching.ended.cancel();
        }
    }
}

/// Prompt that can be cancelled from here on.
pub(crate) struct Begun {
    session_id: SessionId,
    number: u64,
    cancelled: CancellationToken,
}

/// Answer of a request.
pub(crate) struct Answer {
    pub(crate) result: Value,
    /// What goes on behind the answer.
    pub(crate) then: Option<BoxFuture<'static, ()>>,
}

impl Answer {
    fn new(result: &impl Serialize) -> Result<Self, Error> {
        let unwritable = |why: serde_json::Error| error::of(&SessionError::Internal(why.to_string()));
        Ok(Self { result: serde_json::to_value(result).map_err(unwritable)?, then: None })
    }
}

fn decode<T: DeserializeOwned>(params: &str) -> Result<T, Error> {
    serde_json::from_str(params).map_err(|why| error::of(&SessionError::invalid("params", why.to_string())))
}

fn id(id: &WireId) -> Result<SessionId, Error> {
    id.0.parse().map_err(|refusal| error::of(&refusal))
}

/// The client has not opened the session.
fn missing(session_id: SessionId) -> Error {
    let message = format!("this client has not opened the session {session_id}; load or resume it first");
    error::of(&SessionError::invalid("sessionId", message))
}

impl Agent {
    pub(crate) fn new(service: Arc<dyn SessionService>, options: AcpOptions) -> Self {
        Self { service, options, state: Mutex::default() }
    }

    pub(crate) const fn message_bytes(&self) -> usize {
        self.options.message_bytes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a session that the client has opened.
    fn with<T>(&self, session_id: SessionId, change: impl FnOnce(&mut Open) -> T) -> Result<T, Error> {
        self.state().open.get_mut(&session_id).map(change).ok_or_else(|| missing(session_id))
    }

    /// Notes a prompt before the next message is read.
    pub(crate) fn begin(&self, method: &str, params: &str) -> Option<Begun> {
        if method != "session/prompt" {
            return None;
        }
        let request: PromptRequest = serde_json::from_str(params).ok()?;
        self.noted(request.session_id.0.parse().ok()?)
    }

    /// Notes a prompt of the client.
    fn noted(&self, session_id: SessionId) -> Option<Begun> {
        let mut state = self.state();
        state.begun += 1;
        let (number, running) = (state.begun, Running::default());
        let cancelled = running.cancelled.clone();
        state.open.get_mut(&session_id)?.running.insert(number, running);
        Some(Begun { session_id, number, cancelled })
    }

    fn forget(&self, begun: &Begun) {
        if let Some(open) = self.state().open.get_mut(&begun.session_id) {
            open.running.remove(&begun.number);
        }
    }

    /// Handles a notification. An unknown one is ignored, as the protocol says.
    pub(crate) fn notified(&self, method: &str, params: &str) {
        if method != "session/cancel" {
            return;
        }
        let cancelled = decode::<CancelNotification>(params).and_then(|cancelled| id(&cancelled.session_id));
        let Ok(session_id) = cancelled else {
            return tracing::warn!("a cancellation names no session");
        };
        if self.with(session_id, |open| open.cancel()).is_err() {
            tracing::warn!(%session_id, "a cancellation names a session that the client has not opened");
        }
    }

    /// Answers a request.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        peer: &Peer,
        method: &str,
        params: &str,
        begun: Option<Begun>,
        gone: &CancellationToken,
    ) -> Result<Answer, Error> {
        match method {
            "initialize" => Answer::new(&self.initialize(&decode(params)?)),
            "session/new" => self.new_session(peer, decode(params)?).await,
            "session/load" => {
                let LoadSessionRequest { session_id, cwd, system_prompt, mcp_servers, .. } = decode(params)?;
                self.open(peer, (&session_id, &cwd, system_prompt, &mcp_servers), true, gone).await
            }
            "session/resume" => {
                let ResumeSessionRequest { session_id, cwd, system_prompt, mcp_servers, .. } = decode(params)?;
                self.open(peer, (&session_id, &cwd, system_prompt, &mcp_servers), false, gone).await
            }
            "session/list" => self.list(decode(params)?).await,
            "session/delete" => {
                let DeleteSessionRequest { session_id, .. } = decode(params)?;
                let session_id = id(&session_id)?;
                let deleted = self.service.delete(DeleteSession { session_id, force: false }).await;
                deleted.map_err(|error| error::of(&error))?;
                if let Some(open) = self.state().open.remove(&session_id) {
                    open.close();
                }
                Answer::new(&DeleteSessionResponse::new())
            }
            "session/close" => {
                let CloseSessionRequest { session_id, .. } = decode(params)?;
                if let Some(open) = self.state().open.remove(&id(&session_id)?) {
                    open.close();
                }
                Answer::new(&CloseSessionResponse::new())
            }
            "session/prompt" => {
                let request: PromptRequest = decode(params)?;
                let session_id = id(&request.session_id)?;
                let Some(begun) = begun.or_else(|| self.noted(session_id)) else { return Err(missing(session_id)) };
                let answered = self.prompt(peer, request, &begun, gone).await;
                self.forget(&begun);
                answered
            }
            "session/set_config_option" => {
                let request: SetSessionConfigOptionRequest = decode(params)?;
                let options = self.with(id(&request.session_id)?, |open| {
                    open.settings.set(&request.config_id.0, &request.value).map(|()| open.settings.options())
                })?;
                let options = options.map_err(|error| error::of(&error))?;
                Answer::new(&SetSessionConfigOptionResponse::new(options))
            }
            other => Err(error::unknown(other)),
        }
    }

    fn initialize(&self, request: &InitializeRequest) -> InitializeResponse {
        self.state().shows = Shows::of(&request.client_capabilities);
        let keeps = self.service.capabilities().view().session_store;
        let sessions = SessionCapabilities::new().close(SessionCloseCapabilities::new());
        let sessions = match keeps {
            true => sessions
                .list(SessionListCapabilities::new())
                .delete(SessionDeleteCapabilities::new())
                .resume(SessionResumeCapabilities::new()),
            false => sessions,
        };
        let capabilities = AgentCapabilities::new()
            .load_session(keeps)
            .prompt_capabilities(PromptCapabilities::new().image(true).embedded_context(true))
            .session_capabilities(sessions);
        let info = Implementation::new("meerkat", env!("CARGO_PKG_VERSION")).title("meerkat".to_owned());
        // It is the only version that there is here: a client that does not know it ends the connection.
        InitializeResponse::new(ProtocolVersion::V1).agent_capabilities(capabilities).agent_info(info)
    }

    async fn new_session(self: &Arc<Self>, peer: &Peer, request: NewSessionRequest) -> Result<Answer, Error> {
        check(&request.cwd, request.system_prompt.as_ref())?;
        let workspace = (self.options.workspaces)(&request.cwd).map_err(|error| error::of(&error))?;
        let create = CreateSession { workspace: workspace.clone(), ..CreateSession::default() };
        let created = self.service.create_session(create).await.map_err(|error| error::of(&error))?;
        let (session_id, settings) = (created.session_id, Settings::default());
        self.state().open.insert(session_id, Open { workspace, settings, ..Open::default() });
        let response = NewSessionResponse::new(session_id.to_string()).config_options(settings.options());
        let then = self.then(peer, session_id, &request.mcp_servers, async {});
        Ok(Answer { then: Some(then), ..Answer::new(&response)? })
    }

    /// Says what is left out, then does the rest, behind the answer.
    fn then(
        self: &Arc<Self>,
        peer: &Peer,
        session_id: SessionId,
        servers: &[McpServer],
        rest: impl Future<Output = ()> + Send + 'static,
    ) -> BoxFuture<'static, ()> {
        let (agent, peer, count) = (self.clone(), peer.clone(), servers.len());
        async move {
            if count > 0 {
                let words = "The editor's MCP servers are not used: meerkat starts those of its own configuration.";
                tracing::warn!("{words}");
                let (shows, never) = (agent.state().shows, CancellationToken::new());
                let watcher = agent.watcher(&peer, session_id, shows, (&never, &never));
                watcher.send(shows.notice(NoticeSeverity::Warning, words).into_iter().collect()).await;
            }
            rest.await;
        }
        .boxed()
    }

    fn watcher<'a>(
        &'a self,
        peer: &'a Peer,
        session_id: SessionId,
        shows: Shows,
        (cancelled, gone): (&'a CancellationToken, &'a CancellationToken),
    ) -> Watcher<'a> {
        Watcher { service: &self.service, peer, session_id, shows, cancelled, gone }
    }

    /// Opens a session of before, and shows what was said in it if it `replays`.
    async fn open(
        self: &Arc<Self>,
        peer: &Peer,
        (session, cwd, system_prompt, servers): (&WireId, &Path, Option<SystemPrompt>, &[McpServer]),
        replays: bool,
        gone: &CancellationToken,
    ) -> Result<Answer, Error> {
        check(cwd, system_prompt.as_ref())?;
        let session_id = id(session)?;
        let view = self.service.read(&session_id).await.map_err(|error| error::of(&error))?;
        let SessionView { workspace, last_seq, pending_approvals, .. } = view;
        let shows = self.state().shows;
        let mut updates = Updates::new(session_id, workspace.as_deref(), shows);
        let read = ReadEvents { skip_damage: true, ..ReadEvents::new(session_id, 0) };
        let mut follower = self.service.follow_events(read).await.map_err(|error| error::of(&error))?;
        let watcher = self.watcher(peer, session_id, shows, (gone, gone));
        while follower.cursor() < last_seq {
            let Some(line) = follower.next().await.map_err(|error| error::of(&error))? else { break };
            let (shown, _) = updates.see(self.service.as_ref(), &line).await.map_err(|error| error::of(&error))?;
            if replays && !watcher.send(shown).await {
                break;
            }
        }
        let settings = Settings { effort: updates.effort };
        let open = updates.open.map(|(turn, seq)| TurnAccepted { session_id, turn, seq });
        let going_on = self.reopened(session_id, (workspace, settings), open, gone);
        let (agent, its_peer) = (self.clone(), peer.clone());
        let rest = async move {
            let Some((accepted, Watching { cancelled, ended })) = going_on else { return };
            let turn = handle(agent.service.clone(), accepted);
            let watcher = agent.watcher(&its_peer, session_id, shows, (&cancelled, &ended));
            if let Err(error) = watcher.watch(turn, Some(follower), updates, pending_approvals).await {
                tracing::info!(error = %error.message, "the turn of a session that was opened failed");
            }
        };
        let answer = match replays {
            true => Answer::new(&LoadSessionResponse::new().config_options(settings.options()))?,
            false => Answer::new(&ResumeSessionResponse::new().config_options(settings.options()))?,
        };
        Ok(Answer { then: Some(self.then(peer, session_id, servers, rest)), ..answer })
    }

    /// Notes a session that was loaded; returns its turn if that is to be watched. Prompts that run go on, with
    /// their own watchers; any other watcher of before ends.
    fn reopened(
        &self,
        session_id: SessionId,
        (workspace, settings): (Option<String>, Settings),
        turn: Option<TurnAccepted>,
        gone: &CancellationToken,
    ) -> Option<(TurnAccepted, Watching)> {
        let mut state = self.state();
        let open = state.open.entry(session_id).or_default();
        open.end_watching();
        let is_own = |turn: &TurnAccepted| open.running.values().any(|running| running.turn == Some(turn.turn));
        let going_on = turn.filter(|turn| !is_own(turn)).map(|turn| {
            let watching = Watching { cancelled: CancellationToken::new(), ended: gone.child_token() };
            (turn, watching)
        });
        (open.workspace, open.settings) = (workspace, settings);
        open.watching = going_on.as_ref().map(|(_, watching)| watching.clone());
        going_on
    }

    async fn list(&self, request: ListSessionsRequest) -> Result<Answer, Error> {
        let query = SessionQuery {
            archived: Some(false),
            cursor: request.cursor,
            limit: Some(LISTED),
            ..SessionQuery::default()
        };
        let page = self.service.list(query).await.map_err(|error| error::of(&error))?;
        let views = join_all(page.items.iter().map(|session| self.service.read(&session.session_id))).await;
        let sessions = page.items.into_iter().zip(views).filter_map(|(session, view)| {
            let workspace = view.ok().and_then(|view| view.workspace);
            let is_asked = request.cwd.as_deref().is_none_or(|cwd| workspace.as_deref().map(Path::new) == Some(cwd));
            let info = SessionInfo::new(session.session_id.to_string(), folder(workspace.as_deref()));
            is_asked.then(|| info.title(session.title).updated_at(session.updated_at.to_string()))
        });
        Answer::new(&ListSessionsResponse::new(sessions.collect::<Vec<_>>()).next_cursor(page.next_cursor))
    }

    async fn prompt(
        &self,
        peer: &Peer,
        request: PromptRequest,
        begun: &Begun,
        gone: &CancellationToken,
    ) -> Result<Answer, Error> {
        let session_id = begun.session_id;
        let (workspace, settings) = self.with(session_id, |open| (open.workspace.clone(), open.settings))?;
        let prompt = prompt(request.prompt).map_err(|error| error::of(&error))?;
        let turn = StartTurn {
            attended: true,
            options: settings.model_options(),
            search_path: self.options.search_path.clone(),
            ..StartTurn::new(session_id, prompt)
        };
        let turn = self.service.begin_turn(turn).await.map_err(|error| error::of(&error))?;
        let accepted = turn.accepted.turn;
        // A session that was closed meanwhile has cancelled the prompt.
        self.with(session_id, |open| {
            open.running.entry(begun.number).and_modify(|running| running.turn = Some(accepted));
        })
        .ok();
        let follower = from_acceptance(self.service.as_ref(), &turn.accepted).await;
        // The turn has its answer even if it cannot be followed.
        let follower = follower.inspect_err(|error| tracing::warn!(%error, "the turn cannot be shown")).ok();
        let shows = self.state().shows;
        let updates = Updates::new(session_id, workspace.as_deref(), shows).of_own(accepted);
        let watcher = self.watcher(peer, session_id, shows, (&begun.cancelled, gone));
        Answer::new(&PromptResponse::new(watcher.watch(turn, follower, updates, Vec::new()).await?))
    }
}

/// Checks what a client says of a session that it opens.
fn check(cwd: &Path, system_prompt: Option<&SystemPrompt>) -> Result<(), Error> {
    let refused = |field: &str, message: &str| Err(error::of(&SessionError::invalid(field, message)));
    if !cwd.is_absolute() {
        return refused("cwd", "it is a relative path; the protocol wants an absolute one");
    }
    if system_prompt.is_some() {
        return refused("systemPrompt", "it is not taken from an editor; leave it out");
    }
    Ok(())
}
