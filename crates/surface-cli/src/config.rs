//! Configuration: layers from the built-in table to the flags, each value with its origin.
//!
//! The service gives the values their meaning. No vendor's key is part of the configuration.

mod layers;
mod mcp_file;
mod own_keys;
mod own_servers;
mod project_files;
mod rules;
mod trust;
mod values;
mod wanted;

pub(crate) mod project;

mod places;

use std::{
    ffi::OsString,
    fs::DirBuilder,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use figment::{
    Figment,
    value::{Dict, Value},
};
use meerkat_client::{Defaults, Setting};
use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Absence, Capabilities, Capability, SessionError,
    compaction::CompactionConfig,
    memory::{EndpointAccess, MemoryOptions},
    model::{
        scripted::ScriptedModel,
        vendors::{CompatibleEndpoint, Preset, VendorModels, VendorOptions},
    },
    options::{EngineOptions, StoreOptions},
    redact::redact_key_shapes,
};
use meerkat_tools::{
    HandsOptions, ShellOptions,
    agents::agent_files,
    notes::{RuleFile, rule_files},
    servers::{self, Servers, ServersOptions},
    workspace::check,
};
use serde::Serialize;

use self::{
    layers::{
        BUILT_IN, BUILT_IN_ORIGIN, Layer, VENDOR_ORIGIN, flags, invalid, named_file, origin, user_folder, variables,
        vendor_addresses, whole_table, with_origin,
    },
    project::{json, project, skipped},
    project_files::{Parsed, ProjectFiles},
    trust::{Seen, Trust},
    values::{ModelValues, Values},
};
pub(crate) use self::{
    places::{all_projects, typed},
    rules::UserFile,
    values::LogLevel,
    wanted::WantedServer,
};
use crate::{
    args::Globals,
    database::Database,
    error::{CliError, refused},
    output::{Environment, Output},
};

/// Configuration, read and checked.
pub(crate) struct Config {
    pub(crate) values: Values,
    figment: Figment,
    /// The project's files, if it has any.
    project: Option<Project>,
    /// File or folder that was skipped because it belongs to another user.
    skipped: Option<PathBuf>,
    /// True if the command serves clients; another one ends too soon to go on with the turns of a former process.
    pub(crate) is_server: bool,
    /// True if the command shows the modes of the Agent Client Protocol.
    pub(crate) has_modes: bool,
}

/// Folders that decide what may be a workspace.
pub(crate) struct Kept {
    /// Folders of the program: the data directory and that of the user's configuration.
    own: Vec<PathBuf>,
    pub(crate) home: Option<PathBuf>,
}

impl Kept {
    /// Checks that a folder may be a workspace, and returns its path without links.
    pub(crate) fn check(&self, folder: &Path) -> Result<PathBuf, SessionError> {
        let home = self.home.as_deref();
        self.own.iter().try_for_each(|own| check(folder, Some(own), home).map(drop))?;
        check(folder, None, home)
    }
}

/// Project's files, and whether they count.
struct Project {
    files: ProjectFiles,
    trust: Trust,
    /// What they say, if they count.
    parsed: Option<Parsed>,
}

impl Config {
    /// Reads every layer. A project's files count if they are trusted as they are; otherwise they are ignored.
    pub(crate) fn load(env: &Environment, globals: &Globals) -> Result<Self, CliError> {
        Self::read(env, globals, false)
    }

    /// Reads every layer as if the project's files were trusted, for the question whether they shall be.
    pub(crate) fn load_untrusted(env: &Environment, globals: &Globals) -> Result<Self, CliError> {
        Self::read(env, globals, true)
    }

    fn read(env: &Environment, globals: &Globals, counts_untrusted: bool) -> Result<Self, CliError> {
        let user_folder = user_folder(env).map(|folder| folder.join("meerkat"));
        let user_file = user_folder.as_ref().map(|folder| ("user", folder.join("meerkat.toml")));
        let named_file = named_file(env, globals)?;
        let (mut below, mut above) = (vec![Layer::text(BUILT_IN_ORIGIN, BUILT_IN)?], Vec::new());
        below.extend(vendor_addresses(env));
        below.extend(Layer::file("system", Path::new("/etc/meerkat/meerkat.toml"), false)?);
        if let Some((_, path)) = &user_file {
            below.extend(Layer::users_file(path)?);
        }
        if let Some((name, path)) = &named_file {
            above.extend(Layer::file(name, path, true)?);
        }
        above.extend(variables(env)?);
        above.extend(flags(globals));

        let merge = |figment: Figment, layers: &[Layer]| layers.iter().fold(figment, Figment::merge);
        let below = merge(Figment::new(), &below);
        let user = merge(below.clone(), &above);
        // A user who names the project's file, or keeps their own there, has made it a user's file.
        let is_users = |path: &Path| {
            let files = user_file.iter().chain(&named_file);
            files.filter_map(|(_, file)| file.canonicalize().ok()).any(|file| file == path)
        };
        let files = ProjectFiles::read(&project(env), is_users);
        let trust = user_folder.map_or(Trust::Missing, |folder| files.seen().trust(&folder));
        let counts = counts_untrusted || trust == Trust::Full;
        let parsed = counts.then(|| files.parse(&user)).transpose()?;
        let figment = match &parsed {
            Some(parsed) => merge(parsed.layers.iter().fold(below, Figment::merge), &above),
            None => user,
        };
        let mut values: Values = figment.extract().map_err(|error| invalid(&figment, error))?;
        let model = &mut values.memory.local.dir;
        *model = model.take().map(|dir| env.dir.join(dir));
        let project = Some(Project { files, trust, parsed });
        let config = Self { values, figment, project, skipped: skipped(env), is_server: false, has_modes: false };
        config.values.check().map_err(|error| config.with_origin(&error))?;
        Ok(config)
    }

    /// Returns a check if a file of rules, such as AGENTS.md, is trusted as it is.
    pub(crate) fn trusts_rules(env: &Environment) -> impl Fn(&RuleFile) -> bool + Send + Sync + use<> {
        let folder = user_folder(env).map(|folder| folder.join("meerkat"));
        move |file| folder.as_ref().is_some_and(|folder| Seen::rules(file).trust(folder) == Trust::Full)
    }

    /// Returns the folder of the user's agents.
    pub(crate) fn agents_folder(env: &Environment) -> Option<PathBuf> {
        user_folder(env).map(|folder| folder.join("meerkat/agents"))
    }

    /// Lists the files of rules and of agents for the folder that the command is started in that are not trusted.
    pub(crate) fn untrusted_rules(env: &Environment) -> Vec<RuleFile> {
        let trusts = Self::trusts_rules(env);
        let folder = env.dir.canonicalize().unwrap_or_else(|_| env.dir.clone());
        rule_files(&folder).into_iter().chain(agent_files(&folder)).filter(|file| !trusts(file)).collect()
    }

    /// Records files of rules as trusted, as they were read.
    pub(crate) fn trust_rules(env: &Environment, files: &[RuleFile]) -> Result<(), CliError> {
        files.iter().try_for_each(|file| remember(env, Seen::rules(file)))
    }

    /// Returns the user's configuration file, if there is a place for one.
    pub(crate) fn user_file(env: &Environment) -> Option<UserFile> {
        user_folder(env).map(|folder| UserFile(folder.join("meerkat/meerkat.toml")))
    }

    /// Returns the engine's options.
    pub(crate) fn engine(&self) -> EngineOptions {
        EngineOptions {
            projection: self.values.projection.clone(),
            turn: self.values.turn.clone(),
            tools: self.values.tools.clone(),
            approval: self.values.approval,
            agents: self.values.agents.clone(),
            context: self.values.context.clone(),
            limits: self.values.limits.clone(),
            ephemeral: self.values.ephemeral.clone(),
            store: StoreOptions {
                idle_ms: self.values.store.idle_ms,
                queue_goes_on: self.values.store.queue_goes_on,
                turns_go_on: self.is_server,
            },
            journal: self.values.journal.clone(),
            retention: self.values.retention.clone(),
            memory: self.values.memory.clone(),
        }
    }

    /// Returns the folders that decide what may be a workspace.
    pub(crate) fn kept(&self, env: &Environment) -> Kept {
        let own = [self.data_dir(env).ok(), user_folder(env).map(|folder| folder.join("meerkat"))];
        Kept { own: own.into_iter().flatten().collect(), home: env.variable("HOME").map(PathBuf::from) }
    }

    /// Returns the pool of the configured servers; it starts none.
    pub(crate) fn servers(&self, env: &Environment, out: &Output) -> Result<Arc<Servers>, CliError> {
        let (out, mut servers) = (out.clone(), self.values.servers.clone());
        let projects = match &self.project {
            Some(Project { files, parsed: Some(parsed), .. }) => Some((files.root(), &parsed.servers)),
            _ => None,
        };
        let empty = env.state().map(|folder| folder.join("meerkat/empty"));
        for (name, server) in servers.iter_mut().filter(|(_, server)| server.command.is_some()) {
            let folder = server.folder.take();
            server.folder = match projects.filter(|(_, its)| its.contains_key(name)) {
                // A relative path is the project's, wherever in it the command is started.
                Some((root, _)) => Some(folder.map_or_else(|| root.to_owned(), |folder| root.join(folder))),
                // Many programs take commands from files of the folder that they start in, and a project has such files.
                None => {
                    let usual = || empty.clone().filter(|it| is_made(it)).unwrap_or_else(|| "/".into());
                    Some(folder.map_or_else(usual, |folder| env.dir.join(folder)))
                }
            };
        }
        let options = ServersOptions {
            servers,
            cache_dir: env.state().map(|folder| folder.join("meerkat/servers")),
            logins_dir: user_folder(env).map(|folder| folder.join("meerkat/logins")),
            workspaces: self.workspaces(env),
            environment: text_variables(env).collect(),
            tell: Arc::new(move |line| out.note(line)),
            ..ServersOptions::default()
        };
        servers::servers(options).map_err(|error| self.with_origin(&error))
    }

    /// Lists the folders that models may change by this configuration: this one, if it may be a workspace, and those of
    /// `tools.folders`.
    fn workspaces(&self, env: &Environment) -> Vec<PathBuf> {
        let kept = self.kept(env);
        let folders = [&env.dir].into_iter().chain(self.values.tools.folders.values());
        folders.filter_map(|folder| kept.check(folder).ok()).collect()
    }

    /// Returns the options of the tools that work in a folder.
    pub(crate) fn hands(&self, env: &Environment) -> HandsOptions {
        let tools = &self.values.tools;
        let user = user_folder(env).map(|folder| folder.join("meerkat"));
        let shell = ShellOptions {
            network: tools.network,
            readable: tools.read.iter().map(|folder| env.dir.join(folder)).collect(),
            hidden: self.data_dir(env).ok().into_iter().chain(user).collect(),
            environment: text_variables(env).collect(),
        };
        HandsOptions { access: tools.access, ask: tools.ask, shell }
    }

    /// Returns the access to vendors: their own variables, overridden by this configuration.
    pub(crate) fn vendors(&self, env: &Environment) -> VendorOptions {
        let ModelValues { name, scripted_window_tokens, anthropic, openai, gemini, compatible, prices } =
            &self.values.model;
        let mut options = VendorOptions::from_env(|variable| env.variable(variable));
        for (access, values) in
            [(&mut options.anthropic, anthropic), (&mut options.openai, openai), (&mut options.gemini, gemini)]
        {
            access.base_url.clone_from(&values.base_url);
        }
        options.compatible = compatible
            .iter()
            .map(|(name, server)| {
                let preset = server.preset.or_else(|| Preset::ALL.into_iter().find(|preset| preset.name() == name));
                let variable = server.key_variable.as_deref().or_else(|| preset?.key_variable());
                let usual = || Some(preset?.address(|variable| env.variable(variable)));
                CompatibleEndpoint {
                    name: name.clone(),
                    base_url: server.base_url.clone().or_else(usual).unwrap_or_default(),
                    address_variable: preset
                        .filter(|_| server.base_url.is_none())
                        .and_then(|preset| preset.address_variable(|variable| env.variable(variable))),
                    key: variable
                        .and_then(|variable| env.variable(variable))
                        .filter(|key| !key.trim().is_empty())
                        .map(Into::into),
                    key_variable: variable.map(str::to_owned),
                    preset,
                    window_tokens: server.window_tokens,
                    model: server.model.clone(),
                    allows_http: server.insecure_http,
                    returns_reasoning: server.returns_reasoning,
                    sees_images: server.sees_images,
                }
            })
            .collect();
        options.prices.clone_from(prices);
        options.default_model = name.clone();
        options.scripted_window_tokens = Some(*scripted_window_tokens);
        options
    }

    /// Returns the configured models.
    pub(crate) fn models(&self, env: &Environment) -> Result<VendorModels, CliError> {
        VendorModels::new(&self.vendors(env), Arc::new(ScriptedModel)).map_err(|error| self.with_origin(&error))
    }

    /// Returns true if sessions are also written as files.
    pub(crate) fn projects(&self) -> bool {
        // The sessions of a database are not one project's: they become files only if somebody asked for that.
        let asked = || {
            let found = self.figment.find_metadata("projection.enabled");
            found.is_some_and(|found| origin(Some(found)) != BUILT_IN_ORIGIN)
        };
        self.keeps_sessions() && self.values.projection.enabled && (!self.names_database() || asked())
    }

    /// Returns true if sessions are in a database.
    pub(crate) fn names_database(&self) -> bool {
        let store = &self.values.store;
        self.keeps_sessions() && (store.url.is_some() || store.url_variable.is_some())
    }

    /// Returns the database of the sessions, if one is named.
    pub(crate) fn database(&self, env: &Environment) -> Result<Option<Database>, CliError> {
        let store = &self.values.store;
        if !self.names_database() {
            return Ok(None);
        }
        let unset = |name: &String| {
            let message = format!("the variable {name} that it names is not set");
            self.with_origin(&SessionError::ConfigInvalid { key: "store.url_variable".to_owned(), message })
        };
        let variable = |name: &String| env.variable(name).filter(|url| !url.is_empty()).ok_or_else(|| unset(name));
        let url = match (&store.url, &store.url_variable) {
            (Some(url), _) => url.clone(),
            (None, Some(name)) => variable(name)?,
            (None, None) => return Ok(None),
        };
        Ok(Some(self.database_at(url)))
    }

    /// Returns the database at an address, with the configured options.
    pub(crate) fn database_at(&self, url: String) -> Database {
        let store = &self.values.store;
        Database {
            url: url.into(),
            schema: store.schema.clone(),
            connections: store.connections,
            statement_timeout_ms: store.statement_timeout_ms,
            lease_ms: store.lease_ms,
            node: store.node.clone(),
        }
    }

    /// Returns the build's capabilities that this configuration leaves on.
    pub(crate) const fn capabilities(&self) -> Capabilities {
        let built = Capabilities::compiled();
        let built = if self.values.store.enabled { built } else { built.without_store(Absence::SwitchedOff) };
        let built = if self.values.memory.enabled { built } else { built.without_memory(Absence::SwitchedOff) };
        built.with_kept_rules(self.values.tools.remember)
    }

    /// Returns true if this process opens the data directory, for sessions or for memory.
    pub(crate) fn opens_data_dir(&self) -> bool {
        self.keeps_sessions() || (self.values.store.enabled && self.remembers())
    }

    /// Returns true if memory is on.
    pub(crate) fn remembers(&self) -> bool {
        self.capabilities().require(Capability::MemoryStore).is_ok()
    }

    /// Returns true if sessions outlive this process.
    pub(crate) fn keeps_sessions(&self) -> bool {
        self.capabilities().require(Capability::SessionStore).is_ok()
    }

    /// Returns memory's options, and the access to an endpoint that makes its vectors.
    pub(crate) fn memory(&self, env: &Environment) -> MemoryOptions {
        let vendors = self.vendors(env);
        let variable = self.values.memory.endpoint.key_variable.as_ref();
        let key = variable.and_then(|variable| env.variable(variable)).map(Into::into);
        let endpoint = EndpointAccess { key, proxy: vendors.proxy, no_proxy: vendors.no_proxy };
        MemoryOptions { endpoint, ..MemoryOptions::default() }
    }

    /// Returns how contexts are compacted: as configured, else the default if the build can.
    pub(crate) fn compaction(&self) -> Option<CompactionConfig> {
        let is_built = self.capabilities().require(Capability::SessionCompaction).is_ok();
        (is_built || self.asks_for_compaction()).then_some(self.values.compaction)
    }

    /// Returns true if any layer but the built-in one sets up compaction, and none switches it off.
    pub(crate) fn asks_for_compaction(&self) -> bool {
        if !self.values.compaction.enabled {
            return false;
        }
        let value = self.figment.find_value("compaction").ok();
        let keys = value.iter().filter_map(Value::as_dict).flat_map(Dict::values);
        keys.map(|key| origin(self.figment.get_metadata(key.tag()))).any(|origin| origin != BUILT_IN_ORIGIN)
    }

    /// Converts a refused value to an error that names its origin.
    pub(crate) fn with_origin(&self, error: &SessionError) -> CliError {
        with_origin(&self.figment, error)
    }

    /// Adds the origin to a service's refusal.
    pub(crate) fn located(&self, error: SessionError) -> SessionError {
        match (&error, self.with_origin(&error)) {
            (SessionError::ConfigInvalid { .. }, CliError::Refused(body)) => SessionError::Failed(body),
            _ => error,
        }
    }

    /// Lists the values from flags and variables that belong neither to this process nor to its requests, and from
    /// wherever they are those that decide its modes: the owner performs its turns, so both must allow the same.
    pub(crate) fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        walk(&self.figment, |key, value, origin| {
            let is_of_command = is_from_command(&origin) && !OWN_SECTIONS.contains(&section(key));
            if is_of_command && !REQUESTED.contains(&key) || self.has_modes && MODES.contains(&key) {
                settings.push(Setting { key: key.to_owned(), value: json(value), origin });
            }
        });
        settings
    }

    /// Checks that the values in force are those of an attached command.
    pub(crate) fn agrees(&self, settings: &[Setting]) -> Result<(), ErrorBody> {
        for Setting { key, value, origin } in settings {
            let own = self.figment.find_value(key).ok();
            if own.as_ref().map(json).as_ref() != Some(value) {
                let own = own.map_or_else(|| "nothing".to_owned(), |own| shown(key, &own).to_string());
                let do_this = if MODES.contains(&key.as_str()) { "set the same" } else { "leave it out" };
                let what = format!(
                    "process {} owns the data directory and has {own} here; {do_this}, or end that process",
                    std::process::id()
                );
                return Err(refused(key, &what, origin));
            }
        }
        Ok(())
    }

    /// Returns the values from variables that the requests of an attached command carry.
    pub(crate) fn defaults(&self) -> Defaults {
        let (mut model, mut compaction) = (None, None);
        walk(&self.figment, |key, _, origin| match section(key) {
            "model" if key == "model.name" && is_from_command(&origin) => model.clone_from(&self.values.model.name),
            "compaction" if is_from_command(&origin) => compaction = Some(self.values.compaction),
            _ => {}
        });
        Defaults { model, compaction }
    }

    /// Lists every value in force.
    pub(crate) fn entries(&self, env: &Environment) -> Vec<Entry> {
        let mut entries = Vec::new();
        walk(&self.figment, |key, value, origin| {
            entries.push(Entry { key: key.to_owned(), value: shown(key, value), origin })
        });
        let vendors = VendorOptions::from_env(|variable| env.variable(variable));
        let keys = [("anthropic", vendors.anthropic), ("openai", vendors.openai), ("gemini", vendors.gemini)];
        entries.extend(keys.into_iter().map(|(vendor, access)| Entry {
            key: format!("model.{vendor}.key"),
            value: if access.key.is_some() { "set" } else { "not set" }.into(),
            origin: VENDOR_ORIGIN.to_owned(),
        }));
        // Optional keys are listed even if nothing sets them; a server's key depends on its name.
        if let Ok(whole) = Layer::text(BUILT_IN_ORIGIN, &whole_table()) {
            walk(&Figment::from(whole), |key, _, _| {
                if self.figment.find_value(key).is_err() && !key.starts_with("model.compatible.") {
                    let used =
                        (key == "store.data_dir" && self.opens_data_dir()).then(|| self.data_dir(env).ok()).flatten();
                    let (value, origin) = match used {
                        Some(folder) => (folder.display().to_string().into(), "not set: the project's own"),
                        None => (().into(), "not set"),
                    };
                    entries.push(Entry { key: key.to_owned(), value, origin: origin.to_owned() });
                }
            });
        }
        for model in self.models(env).iter().flat_map(VendorModels::list) {
            let value = model.missing.unwrap_or_else(|| "can be used".to_owned());
            let origin = if model.is_default { "the default" } else { "`meerkat models`" };
            entries.push(Entry {
                key: format!("model {}", model.name),
                value: value.into(),
                origin: origin.to_owned(),
            });
        }
        entries
    }
}

/// Visits every value with its key and its origin.
fn walk(figment: &Figment, mut visit: impl FnMut(&str, &Value, String)) {
    fn walk(figment: &Figment, path: &str, value: &Value, visit: &mut impl FnMut(&str, &Value, String)) {
        match value {
            Value::Dict(_, members) if !members.is_empty() => {
                for (name, member) in members {
                    let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                    walk(figment, &path, member, visit);
                }
            }
            _ => visit(path, value, origin(figment.get_metadata(value.tag()))),
        }
    }
    if let Ok(members) = figment.extract::<Value>() {
        walk(figment, "", &members, &mut visit);
    }
}

/// Value and its origin.
#[derive(Serialize)]
pub(crate) struct Entry {
    pub(crate) key: String,
    value: serde_json::Value,
    pub(crate) origin: String,
}

/// Sections that configure the process and not the sessions.
const OWN_SECTIONS: [&str; 6] = ["store", "serve", "log", "output", "chat", "compaction"];

/// Keys that a request carries, besides all of `compaction`.
const REQUESTED: [&str; 1] = ["model.name"];

/// Keys that decide which modes there are, and what they allow.
const MODES: [&str; 2] = ["tools.access", "tools.ask"];

fn section(key: &str) -> &str {
    key.split('.').next().unwrap_or(key)
}

/// Returns true if the value comes from this command alone: files belong to the owner.
fn is_from_command(origin: &str) -> bool {
    ["flag ", "variable ", "--config ", "MEERKAT_CONFIG "].iter().any(|kind| origin.starts_with(kind))
}

/// Makes a folder for this user alone, if it is missing; returns false if it cannot be made.
fn is_made(folder: &Path) -> bool {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).is_ok()
}

/// Lists the variables that are text.
fn text_variables(env: &Environment) -> impl Iterator<Item = (String, String)> {
    let variable = |(name, value): (&String, &OsString)| Some((name.clone(), value.to_str()?.to_owned()));
    env.variables.iter().filter_map(variable)
}

/// Records the user's trust in a file.
fn remember(env: &Environment, seen: Seen) -> Result<(), CliError> {
    let folder = user_folder(env).ok_or_else(|| refused("HOME", "set it", "the environment"))?;
    let folder = folder.join("meerkat");
    seen.remember(&folder).map_err(|error| {
        let message = format!("the trust cannot be stored in {}: {error}", folder.display());
        ErrorBody::with_message(ErrorCode::StoreNotWritable, message).into()
    })
}

/// Returns the value for display, without an address that can hold a password and without what a server is given.
fn shown(key: &str, value: &Value) -> serde_json::Value {
    let parts: Vec<&str> = key.split('.').collect();
    let is_given = matches!(parts[..], ["servers", _, "env" | "headers", _, ..]);
    match value.as_str() {
        Some(text) if is_given && !is_variable(text) => "[redacted]".into(),
        Some(text) if text.contains("://") && text.contains(['@', '?', '#']) => "[redacted]".into(),
        Some(text) => redact_key_shapes(text).into(),
        None => serde_json::to_value(value).unwrap_or_default(),
    }
}

/// Returns true for a text that only names a variable, as `${TOKEN}` does.
fn is_variable(text: &str) -> bool {
    let name = text.strip_prefix("${").and_then(|text| text.strip_suffix('}'));
    name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
}

#[cfg(test)]
mod tests;
