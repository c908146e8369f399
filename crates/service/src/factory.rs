//! The SDK's front door: builds a service from a configuration.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use meerkat_words::calls::CLIENT_TIMEOUT_MS_MAX;

use crate::{
    SessionError,
    agent::Ports,
    capability::{Absence, Capabilities, Capability},
    clock::World,
    compaction::{CompactionConfig, SharedCompactor},
    consumers::{
        changes::Changes, memory::MemoryHandle, projection::Projection, projector::ProjectorHandle, readers::Readers,
    },
    engine::{Derived, Engine},
    memory::{MemoryOptions, SharedMemory, open_memory, recall},
    model::{ModelClient, ModelResolver, StaticModels, scripted::ScriptedModel},
    options::{EmbedderChoice, EngineOptions, GRAPH_FROM_MIN, MemoryConfig},
    redact::Secrets,
    runtime::{
        pin_fact::{PinFact, PinsInWorkspaces},
        read_blob::ReadBlob,
        recall::Recall,
        services::Serving,
        sessions::Sessions,
        validate,
    },
    service::{CreateSession, Prompt, SessionCreated, SessionService, StartTurn, TurnResult},
    store::{DirectoryOwner, MemoryUse, Stores, open_stores, own_directory},
    tool::{
        Delegate, RuleKeeper, SearchTools, Tool, ToolRegistry, ToolSource, Toolbox, WorkspaceNotes,
        test_tools::test_tools,
    },
};

/// Window of the scripted model if none is configured.
const SCRIPTED_WINDOW_TOKENS: u64 = 100_000;

/// Configuration of an agent. Everything has a default: an empty one runs the scripted model in memory.
#[derive(Default)]
pub struct AgentBuildConfig {
    models: Option<Arc<dyn ModelResolver>>,
    tools: Vec<Arc<dyn Tool>>,
    sources: Vec<Arc<dyn ToolSource>>,
    options: EngineOptions,
    secrets: Vec<secrecy::SecretString>,
    store: Option<PathBuf>,
    stores: Option<Stores>,
    owner: Option<DirectoryOwner>,
    is_store_enabled: Option<bool>,
    compaction: Option<CompactionConfig>,
    compactor: Option<SharedCompactor>,
    memory: Option<MemorySource>,
    notes: Option<Arc<dyn WorkspaceNotes>>,
    world: Option<World>,
    rule_keeper: Option<Arc<dyn RuleKeeper>>,
}

/// Source of the memory.
enum MemorySource {
    /// Opened in a data directory, or in this process alone.
    Kept(Option<PathBuf>, MemoryOptions),
    /// Passed by the caller.
    Own(SharedMemory),
}

impl AgentBuildConfig {
    /// Makes a configuration with everything at its default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets one model, which answers every session that names no other.
    #[must_use]
    pub fn model(self, name: &str, client: Arc<dyn ModelClient>, window_tokens: u64) -> Self {
        self.models(Arc::new(StaticModels::new(name, client, window_tokens)))
    }

    /// Sets the models.
    #[must_use]
    pub fn models(mut self, models: Arc<dyn ModelResolver>) -> Self {
        self.models = Some(models);
        self
    }

    /// Adds a tool.
    #[must_use]
    pub fn tool(mut self, tool: Arc<dyn Tool>) -> Self {
        self.tools.push(tool);
        self
    }

    /// Sets the writer of notes about workspaces, which sessions with one show to the model as reminders.
    #[must_use]
    pub fn workspace_notes(mut self, notes: Arc<dyn WorkspaceNotes>) -> Self {
        self.notes = Some(notes);
        self
    }

    /// Adds a source of tools that may change while the service runs. It ends with the service. A tool of
    /// [`Self::tool`] has the first right to its name, then the tools of earlier sources.
    #[must_use]
    pub fn tool_source(mut self, source: Arc<dyn ToolSource>) -> Self {
        self.sources.push(source);
        self
    }

    /// Sets the engine's options.
    #[must_use]
    pub fn options(mut self, options: EngineOptions) -> Self {
        self.options = options;
        self
    }

    /// Adds a secret value, which is replaced in every event.
    #[must_use]
    pub fn secret(mut self, value: secrecy::SecretString) -> Self {
        self.secrets.push(value);
        self
    }

    /// Sets the data directory. Needs the capability `session-store`.
    #[must_use]
    pub fn store(mut self, data_dir: PathBuf) -> Self {
        self.store = Some(data_dir);
        self
    }

    /// Sets your own stores in place of a data directory. Needs the capability `session-store`.
    #[must_use]
    pub fn stores(mut self, stores: Stores) -> Self {
        self.stores = Some(stores);
        self
    }

    /// Sets the directory of this process that is owned already, beside [`Self::stores`]: it is held as long as the
    /// service lives. A memory in it needs no other owner.
    #[must_use]
    pub fn owner(mut self, owner: DirectoryOwner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Switches persistence off if the build has it.
    #[must_use]
    pub const fn ephemeral(mut self) -> Self {
        self.is_store_enabled = Some(false);
        self
    }

    /// Compacts long contexts. Needs the capability `session-compaction`: without it every session and turn is
    /// refused with `SESSION_COMPACTION_DISABLED`.
    #[must_use]
    pub const fn compaction(mut self, config: CompactionConfig) -> Self {
        self.compaction = Some(config);
        self
    }

    /// Sets your own compactor. Needs the capability `session-compaction`, as [`Self::compaction`] does.
    #[must_use]
    pub fn compactor(mut self, compactor: SharedCompactor) -> Self {
        self.compactor = Some(compactor);
        self
    }

    /// Keeps a memory: in `data_dir`, which may be that of [`Self::store`], or in this process alone. Without it, and
    /// without the capability `memory-store`, requests for memory answer `MEMORY_STORE_DISABLED`.
    #[must_use]
    pub fn memory(mut self, data_dir: Option<PathBuf>, options: MemoryOptions) -> Self {
        self.memory = Some(MemorySource::Kept(data_dir, options));
        self
    }

    /// Sets your own memory. Needs the capability `memory-store`, as [`Self::memory`] does.
    #[must_use]
    pub fn memory_store(mut self, memory: SharedMemory) -> Self {
        self.memory = Some(MemorySource::Own(memory));
        self
    }

    /// Sets a source of time and ids other than the system's.
    #[must_use]
    pub fn world(mut self, world: World) -> Self {
        self.world = Some(world);
        self
    }

    /// Sets the keeper of rules that are allowed for always; it is asked if `tools.remember` is true.
    #[must_use]
    pub fn rule_keeper(mut self, keeper: Arc<dyn RuleKeeper>) -> Self {
        self.rule_keeper = Some(keeper);
        self
    }

    /// Builds the service that the capabilities and this configuration call for.
    ///
    /// # Errors
    /// If a tool is not allowed, or the data directory cannot be opened.
    pub fn build(self) -> Result<Agent, SessionError> {
        Ok(Agent { service: self.serving()?.into_service() })
    }

    /// Builds the service, and says which of the two it is.
    fn serving(self) -> Result<Serving, SessionError> {
        let mut capabilities = Capabilities::compiled();
        let store_dir = self.store.clone().filter(|_| self.stores.is_none() && self.is_store_enabled != Some(false));
        let data_dir = store_dir.clone();
        let store_dir = self.owner.as_ref().map(|owner| owner.data_dir().to_owned()).or(store_dir);
        let stores = match (self.is_store_enabled, self.stores, self.store) {
            (Some(false), _, _) | (_, None, None) => None,
            (_, Some(stores), _) => {
                capabilities.require(Capability::SessionStore)?;
                Some(stores)
            }
            (_, None, Some(data_dir)) => Some(open_stores(&data_dir)?),
        };
        if stores.is_none() {
            let is_off = self.is_store_enabled == Some(false);
            capabilities = capabilities.without_store(if is_off { Absence::SwitchedOff } else { Absence::NotSet });
        }
        let world = self.world.unwrap_or_else(World::system);
        let memory = self.memory.filter(|_| self.options.memory.enabled);
        if memory.is_none() {
            let is_off = !self.options.memory.enabled;
            capabilities = capabilities.without_memory(if is_off { Absence::SwitchedOff } else { Absence::NotSet });
        }
        let memory = memory.filter(|_| capabilities.require(Capability::MemoryStore).is_ok());
        let (memory, owner) = match memory {
            Some(source) => open(source, store_dir, stores.is_some(), &self.options.memory, &world)?,
            None => (None, None),
        };
        let owner = self.owner.or(owner);
        let scripted = || -> Arc<dyn ModelResolver> {
            Arc::new(StaticModels::new("scripted", Arc::new(ScriptedModel), SCRIPTED_WINDOW_TOKENS))
        };
        let models = self.models.unwrap_or_else(scripted);
        if self.options.memory.scope_label.is_empty() {
            let (key, message) = ("memory.scope_label".to_owned(), "it is empty; name a label".to_owned());
            return Err(SessionError::ConfigInvalid { key, message });
        }
        if self.options.memory.graph_from < GRAPH_FROM_MIN {
            let message = format!("write a number of vectors from {GRAPH_FROM_MIN} on; a graph of fewer is of no use");
            return Err(SessionError::ConfigInvalid { key: "memory.graph_from".to_owned(), message });
        }
        if !(1..=CLIENT_TIMEOUT_MS_MAX).contains(&self.options.tools.client_timeout_ms) {
            let message = format!("write milliseconds from 1 to {CLIENT_TIMEOUT_MS_MAX}, which is 30 days");
            return Err(SessionError::ConfigInvalid { key: "tools.client_timeout_ms".to_owned(), message });
        }
        let named = [
            ("model.name", models.default_model()),
            ("context.summary_model", self.options.context.summary_model.as_str()),
        ];
        for (key, name) in named {
            let refused = |message| SessionError::ConfigInvalid { key: key.to_owned(), message };
            validate::model_name(name).map_err(refused)?;
        }
        // Without the capability each operation refuses compaction; this function does not.
        if let Some(config) = self.compaction
            && capabilities.require(Capability::SessionCompaction).is_ok()
        {
            // No window is known here: each model has its own.
            config.check(0)?;
        }
        // Stored sessions are bounded by the disk, and leave memory by themselves.
        let max_bytes = if stores.is_some() { u64::MAX } else { self.options.ephemeral.max_bytes };
        let held = Arc::new(MemoryUse::new(max_bytes));
        let is_stored = stores.is_some();
        let in_memory = || Stores::in_memory(self.options.ephemeral.session_event_bytes, &held);
        let Stores { events, blobs, snapshots, index, readers, pruner, inbox } = stores.unwrap_or_else(in_memory);
        let readers = Arc::new(Readers::new(readers, events.clone(), index.clone(), world.clock.clone()));
        let mut derived = Derived::new(index, readers.clone(), pruner);
        derived.data_dir = data_dir;
        let (now_ms, chance) = (world.clock.now().as_millis(), world.ids.jitter(u64::from(u32::MAX)));
        derived.changes = Changes::new(format!("{now_ms:x}{chance:08x}"));
        let dir = self.options.projection.dir.clone().filter(|_| is_stored && self.options.projection.enabled);
        derived.projector = dir.map(|dir| {
            let projection = Projection::new(dir, events.id());
            ProjectorHandle::of(projection, events.clone(), readers.clone(), world.clock.clone())
        });
        let mut tools = self.tools;
        derived.memory = memory.map(|store| {
            MemoryHandle::over(store, events.clone(), readers, world.clock.clone(), &self.options, is_stored)
        });
        let recall = derived.memory.is_some().then(Recall::new).transpose()?;
        tools.extend(recall.clone().map(|recall| recall as Arc<dyn Tool>));
        tools.push(Arc::new(ReadBlob::new(blobs.clone(), self.options.tools.inline_bytes)?));
        let (pin_fact, mut sources) = (PinFact::new()?, self.sources);
        match self.options.tools.pin_fact {
            true => tools.push(pin_fact.clone()),
            false => sources.push(Arc::new(PinsInWorkspaces::new(pin_fact.clone()))),
        }
        tools.push(Arc::new(SearchTools::new()?));
        if self.options.agents.enabled {
            tools.push(Delegate::new()?);
        }
        if let Some(dir) = &self.options.tools.test_dir {
            tools.extend(test_tools(dir.clone(), world.clock.clone()));
        }
        let derived = Arc::new(derived);
        let own = ToolRegistry::beside(tools, self.options.tools.approval.clone(), &sources)?;
        let secrets = Secrets::new(self.secrets);
        sources.iter().for_each(|source| source.redact_with(&secrets));
        let ports = Ports {
            world,
            tools: Toolbox::new(own, sources),
            options: self.options,
            models,
            secrets,
            notes: self.notes,
            events,
            blobs,
            snapshots,
            observer: derived.clone(),
            capabilities,
            held,
            inbox,
            is_shutting_down: AtomicBool::new(false),
            compaction: self.compaction,
            compactor: self.compactor,
            rule_keeper: self.rule_keeper,
            agents: OnceLock::new(),
        };
        let engine = Engine { ports: Arc::new(ports), derived, owner };
        let sessions = Sessions::new(engine);
        pin_fact.serve(&sessions);
        recall.iter().for_each(|recall| recall.serve(&sessions));
        Serving::of(sessions)
    }
}

/// Opens the memory of a source, and owns its data directory if no store of sessions does.
fn open(
    source: MemorySource,
    store_dir: Option<PathBuf>,
    is_stored: bool,
    config: &MemoryConfig,
    world: &World,
) -> Result<(Option<SharedMemory>, Option<DirectoryOwner>), SessionError> {
    let (data_dir, options) = match source {
        MemorySource::Own(memory) => return Ok((Some(memory), None)),
        MemorySource::Kept(data_dir, options) => (data_dir, options),
    };
    let is_owned = data_dir.is_none() || data_dir == store_dir;
    let owner = data_dir.as_deref().filter(|_| !is_owned).map(own_directory).transpose()?;
    let embedder = match (options.embedder, config.embedder) {
        (None, EmbedderChoice::Endpoint) => {
            Some(recall::endpoint_embedder(&config.endpoint, options.endpoint.clone(), world.clone())?)
        }
        (None, EmbedderChoice::Builtin) => recall::builtin_embedder(),
        (None, EmbedderChoice::Local) => Some(recall::local_embedder(&config.local)?),
        (embedder, _) => embedder,
    };
    // Without a journal that outlives the process, memory itself records what it takes in.
    let records_intake = !is_stored && data_dir.is_some();
    let options = MemoryOptions { embedder, graph_from: config.graph_from, records_intake, ..options };
    Ok((Some(open_memory(data_dir.as_deref(), options)?), owner))
}

/// Service that is ready to run sessions.
#[derive(Clone)]
pub struct Agent {
    service: Arc<dyn SessionService>,
}

impl Agent {
    /// Returns the service, which has every operation.
    #[must_use]
    pub fn service(&self) -> &Arc<dyn SessionService> {
        &self.service
    }

    /// Creates a session with everything at its default.
    ///
    /// # Errors
    /// As `create_session` of the service.
    pub async fn create_session(&self) -> Result<SessionCreated, SessionError> {
        self.service.create_session(CreateSession::default()).await
    }

    /// Runs a turn and waits for its end.
    ///
    /// # Errors
    /// As `start_turn` of the service.
    pub async fn turn(&self, session: &SessionCreated, prompt: impl Into<Prompt>) -> Result<TurnResult, SessionError> {
        self.service.start_turn(StartTurn::new(session.session_id, prompt)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_without_a_store_are_served_in_memory() {
        let folder = meerkat_testkit::folder();
        let off = AgentBuildConfig::new().store(folder.path().join("data")).ephemeral();
        for config in [AgentBuildConfig::new(), off] {
            assert!(matches!(config.serving().unwrap(), Serving::Ephemeral(_)));
        }
    }

    #[tokio::test]
    async fn stored_sessions_have_the_service_of_stored_ones() {
        let folder = meerkat_testkit::folder();
        let (mine, own) = (folder.path().join("mine"), folder.path().join("own"));
        let stores = open_stores(&own).unwrap();
        for config in [AgentBuildConfig::new().store(mine), AgentBuildConfig::new().stores(stores)] {
            assert!(matches!(config.serving().unwrap(), Serving::Persistent(_)));
        }
    }
}
