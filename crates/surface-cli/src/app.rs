//! The open service and what commands share: printing, the configuration, the data directory, an orderly end.
//!
//! It holds no rule about sessions, capabilities or builds: those are the service's.

use std::{
    fmt,
    fs::File,
    io::{BufRead, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use meerkat_client::{Client, Place, Server, Way as _};
use meerkat_errors::ErrorCode;
use meerkat_service::{
    AgentBuildConfig, SessionError, SessionId, SessionService,
    clock::World,
    given::{BYTES_MAX, GivenMessage},
    model::{ModelResolver as _, vendors::VendorModels},
    tool::{Access, RuleKeeper as _},
    wire::decode_history,
};
use meerkat_tools::{
    agents::agent_files,
    hands,
    notes::{Notes, Trusts, rule_files},
    servers::Servers,
};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::{
    config::{Config, Kept, UserFile},
    data_dir::DataDir,
    error::{CliError, refused},
    input,
    output::{Environment, Output, printable},
    own_server::known_tokens,
    signals::{End, Ends, Interrupts},
};

/// Variable that makes a run deterministic.
const TEST_SEED: &str = "MEERKAT_TEST_SEED";

/// File of the data directory that servers hold locked.
const SERVERS_LOCK: &str = "servers.lock";

/// Time after which a user is told what an owner's end waits for.
const QUIET_END: Duration = Duration::from_millis(200);

/// Time that a command has after its turns were ended.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Longest file with what was said before a session: its JSON is longer than the texts in it.
const HISTORY_FILE_BYTES_MAX: u64 = 4 * BYTES_MAX;

/// Longest wait for interrupted turns to end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait of an owner for turns of attached commands or after a decision, in milliseconds; their own limits come
/// first.
pub(crate) const ATTACHED_DRAIN_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// Inputs of a command.
pub(crate) struct Streams {
    pub(crate) stdin: Option<Box<dyn BufRead + Send>>,
    pub(crate) has_editor: bool,
    /// True if standard input is the keyboard of this process's terminal.
    pub(crate) has_keyboard: bool,
    pub(crate) interrupts: Interrupts,
}

impl Streams {
    /// Takes standard input; it is empty the second time.
    pub(crate) fn take_stdin(&mut self) -> Box<dyn BufRead + Send> {
        self.stdin.take().unwrap_or_else(|| Box::new(std::io::empty()))
    }
}

/// Decides which folder of a client may be a workspace.
pub(crate) type Workspaces = Arc<dyn Fn(&Path) -> Result<Option<String>, SessionError> + Send + Sync>;

/// State that commands share.
pub(crate) struct App {
    pub(crate) service: Arc<dyn SessionService>,
    pub(crate) out: Output,
    pub(crate) config: Arc<Config>,
    /// Model of requests that name none; `None` if another process decides.
    pub(crate) default_model: Option<DefaultModel>,
    /// Model of a new session that names none; `None` if that cannot be known before.
    pub(crate) known_model: Option<String>,
    /// Servers of this process; another process that owns the data directory has its own.
    pub(crate) servers: Arc<Servers>,
    data_dir: Option<DataDir>,
    /// The user's configuration file.
    user_file: Option<UserFile>,
    /// True if the service outlives this command, because another process performs it.
    pub(crate) is_attached: bool,
    /// Folder that relative paths begin at.
    pub(crate) dir: PathBuf,
    /// Folders that decide what may be a workspace.
    kept: Arc<Kept>,
    /// Returns true if the user trusts a file of rules.
    trusts_rules: Trusts,
    /// Cancelled when the command must end and its turns have ended.
    pub(crate) closing: CancellationToken,
}

/// Model of requests that name none.
pub(crate) struct DefaultModel {
    /// True if it answers only because no model was ever configured.
    pub(crate) is_stand_in: bool,
    /// Its name, or why it cannot answer.
    pub(crate) description: String,
}

impl App {
    /// Returns the user's folder.
    pub(crate) fn home(&self) -> Option<&Path> {
        self.kept.home.as_deref()
    }

    /// Makes the configured service: in memory, over the data directory, or the one of the process that owns that.
    pub(crate) async fn open(config: Arc<Config>, out: &Output, env: &Environment) -> Result<Self, CliError> {
        let models = config.models(env)?;
        let default_model = DefaultModel {
            is_stand_in: models.is_stand_in(),
            description: models
                .resolve(models.default_model())
                .map_or_else(|error| error.to_string(), |model| model.name),
        };
        // The owner of the data directory has the same, or this command is refused.
        let known_model = (!models.is_stand_in()).then(|| models.resolve(models.default_model()).ok()).flatten();
        let known_model = known_model.map(|model| model.name);
        let kept = config.kept(env);
        for (name, folder) in &config.values.tools.folders {
            kept.check(folder).map_err(|error| {
                let message = error.to_string();
                config.with_origin(&SessionError::ConfigInvalid { key: format!("tools.folders.{name}"), message })
            })?;
        }
        let trusts_rules: Trusts = Arc::new(Config::trusts_rules(env));
        let servers = config.servers(env, out)?;
        let build = builder(&config, env, models, (trusts_rules.clone(), servers.clone()))?;
        let (service, data_dir, is_attached) = match config.opens_data_dir() {
            false => {
                let agent = build(None).build().map_err(|error| config.with_origin(&error))?;
                (agent.service().clone(), None, false)
            }
            true => {
                let data_dir = data_dir(&config, env, servers.clone(), build)?;
                match data_dir.find().await? {
                    Server::Here(service) => (service, Some(data_dir), false),
                    Server::There(connection) => {
                        let client = Client::over(data_dir.clone(), connection, config.defaults());
                        (Arc::new(client) as Arc<dyn SessionService>, Some(data_dir), true)
                    }
                }
            }
        };
        Ok(Self {
            service,
            out: out.clone(),
            config,
            // Each answer names its model; the owner chooses it.
            default_model: Some(default_model).filter(|_| !is_attached),
            known_model,
            data_dir,
            user_file: Config::user_file(env),
            is_attached,
            dir: env.dir.clone(),
            kept: Arc::new(kept),
            servers,
            trusts_rules,
            closing: CancellationToken::new(),
        })
    }

    /// Ends the service: running turns get `drain_ms`, those of attached commands as long as they take.
    pub(crate) async fn end(self, drain_ms: u64, ends: &mut Ends) {
        let attached = match &self.data_dir {
            Some(data_dir) => data_dir.attached().await,
            None => 0,
        };
        let is_needed = attached > 0;
        let ending = self.service.shut_down(if is_needed { ATTACHED_DRAIN_MS } else { drain_ms });
        let ended = async {
            tokio::pin!(ending);
            if tokio::time::timeout(QUIET_END, &mut ending).await.is_err() {
                if is_needed {
                    self.out.note("Waiting for the turns of attached commands; Ctrl-C ends at once.");
                } else if drain_ms > 0 {
                    self.out.note("Waiting for the turn to end, or to ask again; Ctrl-C ends at once.");
                }
                ending.await;
            }
        };
        // A tool that does not stop is left behind: the next start finds its turn.
        let limit = if is_needed { Duration::MAX } else { Duration::from_millis(drain_ms) + END_LIMIT };
        // A terminal that closes meanwhile leaves those turns the time that they have after the first signal.
        let asked = async {
            while ends.next().await == End::HungUp {
                let (service, drain_ms) = (self.service.clone(), self.config.values.serve.drain_ms);
                tokio::spawn(async move { service.shut_down(drain_ms).await });
            }
        };
        tokio::select! {
            _ = tokio::time::timeout(limit, ended) => {}
            () = asked => {}
        }
        self.release().await;
    }

    /// Gives up the data directory, if this process owns it.
    pub(crate) async fn release(self) {
        if let Some(data_dir) = &self.data_dir {
            data_dir.release().await;
        }
    }

    /// Performs a command until it ends, its user leaves it, or the process must end: then running turns get `drain_ms`
    /// and the command a moment to report them, and that is no failure.
    pub(crate) async fn until_end(
        &self,
        drain_ms: u64,
        ends: &mut Ends,
        work: impl Future<Output = Result<u8, CliError>>,
    ) -> Result<u8, CliError> {
        tokio::pin!(work);
        // A signal that came while the process started counts before anything is performed.
        let end = tokio::select! {
            biased;
            end = ends.next() => end,
            done = &mut work => return done,
        };
        if end == End::Left {
            return Ok(end.exit_code());
        }
        let drained = async {
            self.service.shut_down(drain_ms).await;
            self.closing.cancel();
        };
        // The command may be over before the turns of attached commands are.
        let over = async {
            let late = async {
                self.closing.cancelled().await;
                tokio::time::sleep(LAST_WORDS).await;
            };
            tokio::select! {
                _ = &mut work => {}
                () = late => {}
            }
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(drained, over) } => {}
            () = ends.second() => {}
        }
        Ok(end.exit_code())
    }

    /// Reads what was said before a new session from a file.
    pub(crate) async fn given(&self, named: Option<&Path>) -> Result<Vec<GivenMessage>, SessionError> {
        let Some(named) = named else { return Ok(Vec::new()) };
        let refused =
            |why: &dyn fmt::Display| SessionError::invalid("--history", format!("{}: {why}", named.display()));
        let path = self.dir.join(named);
        let read = move || {
            let mut text = String::new();
            File::open(path)?.take(HISTORY_FILE_BYTES_MAX + 1).read_to_string(&mut text).map(|_| text)
        };
        // Another thread waits for it, so that a signal can end the command meanwhile.
        let read =
            tokio::task::spawn_blocking(read).await.map_err(|error| SessionError::Internal(error.to_string()))?;
        let text = read.map_err(|error| refused(&error))?;
        let bytes = text.len() as u64;
        if bytes > HISTORY_FILE_BYTES_MAX {
            return Err(SessionError::PayloadTooLarge { what: "history", bytes, limit: HISTORY_FILE_BYTES_MAX });
        }
        decode_history(&text).map_err(|error| refused(&error))
    }

    /// Returns the folder that a new session's tools work in: the named one, else the current one if it may be.
    pub(crate) fn workspace(&self, named: Option<&Path>) -> Result<Option<String>, SessionError> {
        if self.config.values.tools.access == Access::Off {
            let message = "tools.access is \"off\", so a session cannot have a folder";
            let refusal = SessionError::invalid("--workspace", message);
            return named.map_or(Ok(None), |_| Err(refusal));
        }
        let folder = named.map_or_else(|| self.dir.clone(), |named| self.dir.join(named));
        match self.kept.check(&folder) {
            Ok(folder) => folder.into_os_string().into_string().map(Some).map_err(|folder| {
                let message = format!("the path {} is not valid UTF-8", folder.display());
                SessionError::invalid("--workspace", message)
            }),
            Err(refusal) if named.is_some() => Err(refusal),
            Err(refusal) => {
                if self.out.can_ask {
                    self.out.note(&format!(
                        "This session has no tools for files: {refusal}. Choose another folder with --workspace."
                    ));
                }
                Ok(None)
            }
        }
    }

    /// Returns what decides of a client's folder if it may be a workspace; `None` if sessions have none.
    pub(crate) fn workspaces(&self) -> Workspaces {
        let (kept, access) = (self.kept.clone(), self.config.values.tools.access);
        Arc::new(move |folder| match access {
            Access::Off => Ok(None),
            _ => kept.check(folder).map(|folder| Some(folder.to_string_lossy().into_owned())),
        })
    }

    /// Like [`Self::workspaces`], for clients that may be on other machines: it must be inside one of `tools.folders`.
    pub(crate) fn network_workspaces(&self) -> Workspaces {
        let (workspaces, folders) = (self.workspaces(), self.config.values.tools.folders.clone());
        let is_off = self.config.values.tools.access == Access::Off;
        Arc::new(move |folder| {
            // A link inside may lead out, and what is outside is not told apart from what is not there.
            let real = folder.canonicalize().unwrap_or_default();
            let mut allowed = folders.values().filter_map(|allowed| allowed.canonicalize().ok());
            if is_off || allowed.any(|allowed| real.starts_with(allowed)) {
                return workspaces(&real);
            }
            let message =
                "over the network, a session works in a folder of tools.folders or inside one; name such a folder";
            Err(SessionError::invalid("cwd", message))
        })
    }

    /// Prints a note if the model does not get the rules of a workspace.
    pub(crate) fn note_untrusted_rules(&self, workspace: &str) {
        let agents = self.config.values.agents.enabled.then(|| agent_files(Path::new(workspace)));
        let files = rule_files(Path::new(workspace)).into_iter().chain(agents.into_iter().flatten());
        for file in files.filter(|file| !(self.trusts_rules)(file)) {
            let path = printable(&file.path.display().to_string());
            self.out.note(&format!(
                "{path} is not trusted, so the model does not get it; `meerkat config trust` allows it."
            ));
        }
    }

    /// Returns the file of the chats' history, if one is kept.
    pub(crate) fn history(&self) -> Option<PathBuf> {
        let data_dir = self.data_dir.as_ref().filter(|_| self.config.values.chat.history)?;
        let file = input::history_file(data_dir.place.data_dir());
        file.inspect_err(|error| tracing::info!(%error, "what is typed is kept for this chat only")).ok()
    }

    /// Keeps a rule in the user's configuration, for all sessions that begin from here on.
    pub(crate) fn remember_rule(&self, rule: &str) -> Result<(), SessionError> {
        let missing = || SessionError::ConfigInvalid {
            key: "HOME".to_owned(),
            message: "there is no folder for a configuration: set HOME, or allow the call for the session".to_owned(),
        };
        self.user_file.as_ref().ok_or_else(missing)?.remember(rule)?;
        self.out.note(&format!("allowed in every folder from now on, by your configuration: {}", printable(rule)));
        Ok(())
    }

    /// Prints a note about the model of a new session if nobody chose it: the scripted one, or that of an earlier session.
    pub(crate) async fn note_model(&self, session_id: &SessionId) -> Result<(), SessionError> {
        let Some(stand_in) = self.default_model.as_ref().filter(|model| model.is_stand_in) else { return Ok(()) };
        let model = match self.service.read(session_id).await {
            // Nothing is kept, so there is no earlier session.
            Err(error) if error.code() == ErrorCode::SessionPersistenceDisabled => stand_in.description.clone(),
            session => session?.model,
        };
        self.out.note(&match model == stand_in.description {
            true => {
                "The scripted model answers, because no model was ever configured; `meerkat models` says what to type."
                    .to_owned()
            }
            false => {
                format!("{model} answers, as in an earlier session here; type `meerkat models` to see all models.")
            }
        });
        Ok(())
    }
}

/// Lists the secrets that no event may show: the keys, and the tokens of servers.
pub(crate) fn secrets(config: &Config, env: &Environment) -> Vec<SecretString> {
    let (vendors, memory) = (config.vendors(env), config.memory(env));
    let keys = [vendors.anthropic.key, vendors.openai.key, vendors.gemini.key, memory.endpoint.key];
    let reached = vendors.compatible.into_iter().chain(vendors.known);
    let keys = keys.into_iter().chain(reached.map(|server| server.key));
    let tokens = known_tokens(config, env).into_iter().map(Into::into);
    keys.flatten().chain(tokens).collect()
}

/// Prepares the agent over a data directory, or without one.
fn builder(
    config: &Arc<Config>,
    env: &Environment,
    models: VendorModels,
    (trusts_rules, servers): (Trusts, Arc<Servers>),
) -> Result<impl Fn(Option<PathBuf>) -> AgentBuildConfig + Send + Sync + use<>, CliError> {
    let (memory, keys) = (config.memory(env), secrets(config, env));
    let seed = env.variables.get(TEST_SEED).map(|seed| {
        let seed = seed.to_str().and_then(|seed| seed.parse().ok());
        let origin = format!("variable {TEST_SEED}");
        seed.ok_or_else(|| refused("seed", "it must be a whole number, 0 or more", &origin))
    });
    let (compaction, seed) = (config.compaction(), seed.transpose()?);
    let rules_bytes = usize::try_from(config.values.limits.reminder_bytes).unwrap_or(usize::MAX);
    let options = config.hands(env);
    let notes = Arc::new(Notes::new(trusts_rules, rules_bytes, Config::agents_folder(env)));
    let hands = hands(options).map_err(|error| config.with_origin(&error))?;
    let user_file = Config::user_file(env);
    let (models, config, projection_dir) = (Arc::new(models), config.clone(), config.projection_dir(env));
    Ok(move |data_dir: Option<PathBuf>| {
        let mut options = config.engine();
        options.projection.dir.clone_from(&projection_dir);
        let mut build = AgentBuildConfig::new().options(options).models(models.clone());
        for key in &keys {
            build = build.secret(key.clone());
        }
        if let Some(data_dir) = data_dir.clone().filter(|_| config.keeps_sessions() && !config.names_database()) {
            build = build.store(data_dir);
        }
        // Without servers too: those of a killed owner, with another configuration, may still be at work.
        let has_former = data_dir.as_ref().is_some_and(|data_dir| data_dir.join(SERVERS_LOCK).exists());
        if !servers.is_empty() || has_former {
            build = servers.secrets().into_iter().fold(build, AgentBuildConfig::secret);
            build = build.tool_source(servers.clone());
        }
        if config.values.tools.access != Access::Off {
            build = build.tool_source(hands.clone());
        }
        if config.values.tools.access != Access::Off || config.values.agents.enabled {
            build = build.workspace_notes(notes.clone());
        }
        if !config.values.store.enabled {
            build = build.ephemeral();
        }
        build = build.memory(data_dir, memory.clone());
        if let Some(compaction) = compaction {
            build = build.compaction(compaction);
        }
        if let Some(user_file) = user_file.clone() {
            build = build.rule_keeper(Arc::new(user_file));
        }
        if let Some(seed) = seed {
            build = build.world(World::seeded(seed, 0));
        }
        build
    })
}

/// Prepares the data directory, which `build` opens.
fn data_dir(
    config: &Arc<Config>,
    env: &Environment,
    servers: Arc<Servers>,
    build: impl Fn(Option<PathBuf>) -> AgentBuildConfig + Send + Sync + 'static,
) -> Result<DataDir, CliError> {
    let (data_dir, owned, built) = (config.data_dir(env)?, config.clone(), config.clone());
    let (project, database) = (config.project(env), config.database(env)?);
    Ok(DataDir {
        place: Place::new(data_dir.clone()),
        open: Arc::new(move || {
            let mut parts = build(Some(data_dir.clone()));
            if let Some(database) = &database {
                parts = database.open(&data_dir, parts)?;
            }
            let agent = parts.build().map_err(|error| built.located(error))?;
            // Before any turn: one that a killed owner left may have a call that goes on at its server.
            servers.own(data_dir.join(SERVERS_LOCK));
            project.keep(&data_dir);
            Ok(agent.service().clone())
        }),
        settings: config.settings().into(),
        search_path: env.variable("PATH"),
        agrees: Arc::new(move |settings| owned.agrees(settings)),
        owner: Arc::default(),
    })
}
