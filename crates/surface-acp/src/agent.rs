//! The methods of the protocol, each as operations of the service.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use agent_client_protocol_schema::{ProtocolVersion, v1};
use futures::future::{BoxFuture, FutureExt as _, join_all};
use meerkat_service::{
    SessionError, SessionId, SessionService, TurnNumber,
    follow::turn::{from_acceptance, handle},
    service::{
        CompactSession, CreateSession, DeleteSession, ReadEvents, SessionQuery, SessionView, StartTurn, TurnAccepted,
    },
    session::event::TurnStarted,
    tool::visible,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    AcpOptions,
    prompt::{is_command, prompt},
    settings::{Mode, Settings},
    stream::Watcher,
    updates::{Shows, Updates, folder, said},
    wire::Peer,
};

/// Sessions of one page of a list.
const LISTED: usize = 50;
/// Loads and lists at the same time.
const READS_MAX: usize = 4;

/// Characters of an unknown method's name in its refusal.
const NAME_SHOWN_MAX: usize = 100;

/// Command that a user may type in place of a prompt.
const COMPACT: &str = "compact";

/// The agent of one client.
pub(crate) struct Agent {
    pub(crate) service: Arc<dyn SessionService>,
    options: AcpOptions,
    pub(crate) peer: Peer,
    /// Cancelled when the client is gone, which cancels no turn.
    gone: CancellationToken,
    /// Places for loads and lists, whose answers may be large: a client that asks for many and takes none holds few.
    reads: Semaphore,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    shows: Shows,
    /// The sessions that the client has opened.
    open: HashMap<SessionId, Open>,
}

/// Session that a client has opened.
#[derive(Default)]
struct Open {
    workspace: Option<String>,
    settings: Settings,
    /// Whether the client has set any of these since its newest turn.
    is_set: bool,
    /// Cancels the turns that the client sees.
    cancelled: CancellationToken,
    /// Ends the watching of the turn that ran when the session was loaded, and not that turn.
    unwatched: CancellationToken,
    /// Turns of this client's prompts that have no answer yet.
    own: Vec<TurnNumber>,
}

/// Answer of a request, and what goes on behind it.
pub(crate) type Answer = (Value, BoxFuture<'static, ()>);

fn answer(result: impl Serialize) -> Result<Answer, SessionError> {
    then(result, async {})
}

fn then(result: impl Serialize, then: impl Future<Output = ()> + Send + 'static) -> Result<Answer, SessionError> {
    let result = serde_json::to_value(result).map_err(|why| SessionError::Internal(why.to_string()))?;
    Ok((result, then.boxed()))
}

fn decode<T: DeserializeOwned>(params: &str) -> Result<T, SessionError> {
    serde_json::from_str(params).map_err(|why| SessionError::invalid("params", why.to_string()))
}

fn id(id: &v1::SessionId) -> Result<SessionId, SessionError> {
    id.0.parse()
}

impl Agent {
    pub(crate) fn new(
        service: Arc<dyn SessionService>,
        options: AcpOptions,
        (peer, gone): (Peer, CancellationToken),
    ) -> Arc<Self> {
        Arc::new(Self { service, options, peer, gone, reads: Semaphore::new(READS_MAX), state: Mutex::default() })
    }

    /// What the client shows.
    pub(crate) fn shows(&self) -> Shows {
        self.state().shows
    }

    /// Sends updates of a session; returns `false` if the client is gone.
    pub(crate) async fn show(
        &self,
        session_id: SessionId,
        updates: impl IntoIterator<Item = v1::SessionUpdate>,
    ) -> bool {
        for update in updates {
            let notification = v1::SessionNotification::new(session_id.to_string(), update);
            if !self.peer.notify("session/update", notification).await {
                return false;
            }
        }
        true
    }

    /// Sends updates behind an answer.
    async fn shown(self: Arc<Self>, session_id: SessionId, updates: Vec<v1::SessionUpdate>) {
        self.show(session_id, updates).await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a session that the client has opened, or changes it.
    fn with<T>(&self, session_id: SessionId, act: impl FnOnce(&mut Open) -> T) -> Result<T, SessionError> {
        self.state().open.get_mut(&session_id).map(act).ok_or_else(|| {
            let message = format!("this client has not opened the session {session_id}; load or resume it first");
            SessionError::invalid("sessionId", message)
        })
    }

    /// Changes what is set of a session, and returns all of it.
    fn set(
        &self,
        session_id: SessionId,
        set: impl FnOnce(&mut Settings) -> Result<(), SessionError>,
    ) -> Result<Settings, SessionError> {
        self.with(session_id, |open| {
            open.is_set = true;
            set(&mut open.settings).map(|()| open.settings.clone())
        })?
    }

    /// Cancels the client's own turns. The turns of others go on, and are shown no more.
    fn close(&self, session_id: SessionId) {
        if let Some(open) = self.state().open.remove(&session_id) {
            open.unwatched.cancel();
            open.cancelled.cancel();
        }
    }

    /// Handles a notification. An unknown one is ignored, as the protocol says.
    pub(crate) fn notified(&self, method: &str, params: &str) {
        let cancel = |cancelled: v1::CancelNotification| {
            // The next prompt has a token of its own.
            self.with(id(&cancelled.session_id)?, |open| std::mem::take(&mut open.cancelled).cancel())
        };
        if method == "session/cancel"
            && let Err(error) = decode(params).and_then(cancel)
        {
            tracing::warn!(%error, "a cancellation names no session that the client has opened");
        }
    }

    /// Answers a request. What it does before it first waits is done before the next message is read.
    pub(crate) async fn answer(self: &Arc<Self>, method: &str, params: &str) -> Result<Answer, SessionError> {
        match method {
            "initialize" => answer(self.initialize(&decode(params)?)),
            "session/new" => self.new_session(decode(params)?).await,
            // Both have the same fields.
            "session/load" | "session/resume" => self.open(decode(params)?, method == "session/load").await,
            "session/list" => self.list(decode(params)?).await,
            "session/delete" => {
                let session_id = id(&decode::<v1::DeleteSessionRequest>(params)?.session_id)?;
                self.service.delete(DeleteSession { session_id, force: false }).await?;
                self.close(session_id);
                answer(v1::DeleteSessionResponse::new())
            }
            "session/close" => {
                self.close(id(&decode::<v1::CloseSessionRequest>(params)?.session_id)?);
                answer(v1::CloseSessionResponse::new())
            }
            "session/prompt" => self.prompt(decode(params)?).await,
            "session/set_mode" => {
                let v1::SetSessionModeRequest { session_id, mode_id, .. } = decode(params)?;
                let session_id = id(&session_id)?;
                let set = |settings: &mut Settings| settings.set_mode("modeId", &mode_id.0, &self.options);
                let options = self.set(session_id, set)?.options(&self.options);
                let update = v1::SessionUpdate::ConfigOptionUpdate(v1::ConfigOptionUpdate::new(options));
                then(v1::SetSessionModeResponse::new(), self.clone().shown(session_id, vec![update]))
            }
            "session/set_config_option" => {
                let v1::SetSessionConfigOptionRequest { session_id, config_id, value, .. } = decode(params)?;
                let session_id = id(&session_id)?;
                let before = self.with(session_id, |open| open.settings.mode(&self.options))?;
                let after = self.set(session_id, |settings| settings.set(&config_id.0, &value, &self.options))?;
                let update = |(id, ..): &Mode| v1::SessionUpdate::CurrentModeUpdate(v1::CurrentModeUpdate::new(*id));
                let changed = after.mode(&self.options).filter(|mode| Some(*mode) != before).map(update);
                let answer = v1::SetSessionConfigOptionResponse::new(after.options(&self.options));
                then(answer, self.clone().shown(session_id, changed.into_iter().collect()))
            }
            other => Err(SessionError::UnknownOperation(other.chars().take(NAME_SHOWN_MAX).collect())),
        }
    }

    fn initialize(&self, request: &v1::InitializeRequest) -> v1::InitializeResponse {
        self.state().shows = Shows::of(&request.client_capabilities);
        let keeps = self.service.capabilities().view().session_store;
        let sessions = v1::SessionCapabilities::new()
            .close(v1::SessionCloseCapabilities::new())
            .list(keeps.then(v1::SessionListCapabilities::new))
            .delete(keeps.then(v1::SessionDeleteCapabilities::new))
            .resume(keeps.then(v1::SessionResumeCapabilities::new));
        let capabilities = v1::AgentCapabilities::new()
            .load_session(keeps)
            .prompt_capabilities(v1::PromptCapabilities::new().image(true).embedded_context(true))
            .session_capabilities(sessions);
        let info = v1::Implementation::new("meerkat", env!("CARGO_PKG_VERSION")).title("meerkat".to_owned());
        // It is the only version that there is here: a client that does not know it ends the connection.
        v1::InitializeResponse::new(ProtocolVersion::V1).agent_capabilities(capabilities).agent_info(info)
    }

    async fn new_session(self: &Arc<Self>, request: v1::NewSessionRequest) -> Result<Answer, SessionError> {
        check(&request.cwd, request.system_prompt.as_ref())?;
        let workspace = (self.options.workspaces)(&request.cwd)?;
        let create = CreateSession { workspace: workspace.clone(), ..CreateSession::default() };
        let session_id = self.service.create_session(create).await?.session_id;
        // Sessions in memory cannot be read; theirs is the configured one.
        let own_model = match self.service.capabilities().view().session_store {
            true => self.service.read(&session_id).await?.model,
            false => self.options.models.first().cloned().unwrap_or_default(),
        };
        let settings = Settings { own_model, ..Settings::default() };
        let response = v1::NewSessionResponse::new(session_id.to_string())
            .config_options(settings.options(&self.options))
            .modes(settings.modes(&self.options));
        self.state().open.insert(session_id, Open { workspace, settings, ..Open::default() });
        then(response, self.clone().shown(session_id, self.greeting(&request.mcp_servers)))
    }

    /// Says of an open session what commands there are, and what is left out.
    fn greeting(&self, servers: &[v1::McpServer]) -> Vec<v1::SessionUpdate> {
        let mut updates = Vec::new();
        if self.service.capabilities().view().session_compaction {
            let compact = v1::AvailableCommand::new(COMPACT, "Replace the older part of the context by a summary");
            let commands = v1::AvailableCommandsUpdate::new(vec![compact]);
            updates.push(v1::SessionUpdate::AvailableCommandsUpdate(commands));
        }
        if !servers.is_empty() {
            let words = "The editor's MCP servers are not used: meerkat starts those of its own configuration.";
            tracing::warn!("{words}");
            updates.extend(self.shows().notice(v1::NoticeSeverity::Warning, words));
        }
        updates
    }

    /// Opens a session of before, and shows what was said in it if it `replays`.
    async fn open(self: &Arc<Self>, request: v1::LoadSessionRequest, replays: bool) -> Result<Answer, SessionError> {
        check(&request.cwd, request.system_prompt.as_ref())?;
        let session_id = id(&request.session_id)?;
        let place = self.reads.acquire().await;
        let SessionView { workspace, last_seq, pending_approvals, model: own_model, .. } =
            self.service.read(&session_id).await?;
        let mut updates = Updates::new(self, session_id, workspace.as_deref());
        let read = ReadEvents { skip_damage: true, ..ReadEvents::new(session_id, 0) };
        let mut follower = self.service.follow_events(read).await?;
        while follower.cursor() < last_seq {
            let Some(line) = follower.next().await? else { break };
            let (seen, _) = updates.see(&line).await?;
            if replays && !self.show(session_id, seen).await {
                break;
            }
        }
        drop(place);
        let TurnStarted { model, options, access, .. } = &updates.newest;
        let model = Some(model.clone()).filter(|model| !model.is_empty() && *model != own_model);
        let settings = Settings { effort: options.effort, access: *access, own_model, model };
        let open = updates.open.map(|(turn, seq)| TurnAccepted { session_id, turn, seq });
        let (settings, going_on) = self.reopened(session_id, (workspace, settings), open);
        let (agent, greeting) = (self.clone(), self.greeting(&request.mcp_servers));
        let behind = async move {
            agent.show(session_id, greeting).await;
            let Some((accepted, cancelled, unwatched)) = going_on else { return };
            let turn = handle(agent.service.clone(), accepted);
            let watcher = Watcher { agent: &agent, session_id, cancelled: &cancelled, gone: &unwatched };
            if let Err(error) = watcher.watch(turn, Some(follower), updates, pending_approvals).await {
                tracing::info!(%error, "the turn of a session that was opened failed");
            }
        };
        let response = v1::LoadSessionResponse::new()
            .config_options(settings.options(&self.options))
            .modes(settings.modes(&self.options));
        then(response, behind)
    }

    /// Notes a session that was loaded; returns what goes with its next prompt, and its turn if that is to be watched.
    /// Prompts that run go on, with their own watchers; any other watcher of before ends.
    fn reopened(
        &self,
        session_id: SessionId,
        (workspace, settings): (Option<String>, Settings),
        turn: Option<TurnAccepted>,
    ) -> (Settings, Option<(TurnAccepted, CancellationToken, CancellationToken)>) {
        let mut state = self.state();
        let open = state.open.entry(session_id).or_default();
        open.workspace = workspace;
        // What this client has set stays until a prompt has used it.
        if !open.is_set {
            open.settings = settings;
        }
        open.unwatched.cancel();
        open.unwatched = self.gone.child_token();
        let turn = turn.filter(|turn| !open.own.contains(&turn.turn));
        let turn = turn.map(|turn| (turn, open.cancelled.clone(), open.unwatched.clone()));
        (open.settings.clone(), turn)
    }

    async fn list(&self, request: v1::ListSessionsRequest) -> Result<Answer, SessionError> {
        let _place = self.reads.acquire().await;
        let (archived, cursor, limit) = (Some(false), request.cursor, Some(LISTED));
        let page = self.service.list(SessionQuery { archived, cursor, limit, ..SessionQuery::default() }).await?;
        let views = join_all(page.items.iter().map(|session| self.service.read(&session.session_id))).await;
        // Workspaces are kept without links.
        let cwd = request.cwd.map(|cwd| cwd.canonicalize().unwrap_or(cwd));
        let sessions = page.items.into_iter().zip(views).filter_map(|(session, view)| {
            let workspace = view.ok().and_then(|view| view.workspace);
            let is_asked = cwd.as_deref().is_none_or(|cwd| workspace.as_deref().map(Path::new) == Some(cwd));
            let info = v1::SessionInfo::new(session.session_id.to_string(), folder(workspace.as_deref()));
            is_asked
                .then(|| info.title(session.title.as_deref().map(visible)).updated_at(session.updated_at.to_string()))
        });
        answer(v1::ListSessionsResponse::new(sessions.collect::<Vec<_>>()).next_cursor(page.next_cursor))
    }

    async fn prompt(&self, request: v1::PromptRequest) -> Result<Answer, SessionError> {
        let session_id = id(&request.session_id)?;
        let (workspace, settings, cancelled) =
            self.with(session_id, |open| (open.workspace.clone(), open.settings.clone(), open.cancelled.clone()))?;
        if is_command(&request.prompt, COMPACT) {
            return self.compact(session_id, &cancelled).await;
        }
        let turn = StartTurn {
            attended: true,
            search_path: self.options.search_path.clone(),
            ..settings.on(StartTurn::new(session_id, prompt(request.prompt)?), &self.options)
        };
        let turn = self.service.begin_turn(turn).await?;
        let accepted = turn.accepted.turn;
        // A session that was closed meanwhile has cancelled the prompt.
        self.with(session_id, |open| {
            open.own.push(accepted);
            // What was set meanwhile goes with the next prompt.
            open.is_set &= open.settings != settings;
        })
        .ok();
        let follower = from_acceptance(self.service.as_ref(), &turn.accepted).await;
        // The turn has its answer even if it cannot be followed.
        let follower = follower.inspect_err(|error| tracing::warn!(%error, "the turn cannot be shown")).ok();
        let watcher = Watcher { agent: self, session_id, cancelled: &cancelled, gone: &self.gone };
        let mut updates = Updates::new(self, session_id, workspace.as_deref());
        updates.own = Some(accepted);
        let ended = watcher.watch(turn, follower, updates, Vec::new()).await;
        self.with(session_id, |open| open.own.retain(|turn| *turn != accepted)).ok();
        answer(v1::PromptResponse::new(ended?))
    }

    /// Compacts a session's context, as the command says. Another process that does it goes on when it is cancelled here.
    async fn compact(&self, session_id: SessionId, cancelled: &CancellationToken) -> Result<Answer, SessionError> {
        let request = CompactSession { session_id, compaction: None };
        let stopped = || answer(v1::PromptResponse::new(v1::StopReason::Cancelled));
        tokio::select! {
            biased;
            compacted = self.service.compact_until(request, cancelled.clone()) => match compacted {
                Err(_) if cancelled.is_cancelled() => return stopped(),
                compacted => compacted?,
            },
            () = cancelled.cancelled() => return stopped(),
            () = self.gone.cancelled() => return stopped(),
        };
        self.show(session_id, [said("The context was compacted.")]).await;
        answer(v1::PromptResponse::new(v1::StopReason::EndTurn))
    }
}

/// Checks what a client says of a session that it opens.
fn check(cwd: &Path, system_prompt: Option<&v1::SystemPrompt>) -> Result<(), SessionError> {
    if !cwd.is_absolute() {
        return Err(SessionError::invalid("cwd", "it is a relative path; the protocol wants an absolute one"));
    }
    if system_prompt.is_some() {
        return Err(SessionError::invalid("systemPrompt", "it is not taken from an editor; leave it out"));
    }
    Ok(())
}
