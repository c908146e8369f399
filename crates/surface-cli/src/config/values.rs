//! Shape of the values in force, section by section.

use std::{collections::BTreeMap, path::PathBuf};

use meerkat_service::{
    SessionError,
    compaction::CompactionConfig,
    cost::{self, Price},
    model::vendors::Preset,
    options::{
        AgentOptions, ApprovalOptions, ContextOptions, EphemeralOptions, JournalOptions, Limits, MemoryConfig,
        ProjectionOptions, RetentionOptions, ToolOptions, TurnOptions,
    },
};
use meerkat_tools::servers::ServerConfig;
use serde::Deserialize;

/// Values in force.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Values {
    pub(crate) model: ModelValues,
    pub(super) turn: TurnOptions,
    pub(crate) tools: ToolOptions,
    pub(super) approval: ApprovalOptions,
    pub(crate) agents: AgentOptions,
    #[serde(default)]
    pub(super) servers: BTreeMap<String, ServerConfig>,
    pub(super) context: ContextOptions,
    pub(crate) limits: Limits,
    pub(super) ephemeral: EphemeralOptions,
    pub(crate) store: StoreValues,
    pub(super) journal: JournalOptions,
    pub(super) projection: ProjectionOptions,
    pub(super) retention: RetentionOptions,
    pub(crate) compaction: CompactionConfig,
    pub(super) memory: MemoryConfig,
    pub(crate) serve: ServeValues,
    pub(crate) log: LogValues,
    pub(crate) output: OutputValues,
    pub(crate) chat: ChatValues,
}

impl Values {
    /// Checks what the types of the values leave open.
    pub(super) fn check(&self) -> Result<(), SessionError> {
        self.compaction.check(0)?;
        let refusal = |message| SessionError::ConfigInvalid { key: "model.prices".to_owned(), message };
        cost::check(&self.model.prices).map_err(refusal)?;
        self.check_times()
    }

    /// Refuses 0 as a time that would be over at once, before anything could be done in it. For other times 0 means no
    /// limit, or at once is of use.
    fn check_times(&self) -> Result<(), SessionError> {
        let times = [
            ("ephemeral.idle_ms", self.ephemeral.idle_ms),
            ("serve.header_timeout_ms", self.serve.header_timeout_ms),
            ("serve.stall_ms", self.serve.stall_ms),
        ];
        times.into_iter().find(|(_, ms)| *ms == 0).map_or(Ok(()), |(key, _)| {
            let message = "0 would be over at once; write more milliseconds, or leave it out for the built-in time";
            Err(SessionError::ConfigInvalid { key: key.to_owned(), message: message.to_owned() })
        })
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelValues {
    pub(crate) name: Option<String>,
    pub(super) scripted_window_tokens: u64,
    #[serde(default)]
    pub(super) anthropic: VendorValues,
    #[serde(default)]
    pub(super) openai: VendorValues,
    #[serde(default)]
    pub(super) gemini: VendorValues,
    #[serde(default)]
    pub(super) compatible: BTreeMap<String, CompatibleValues>,
    #[serde(default)]
    pub(super) prices: Vec<Price>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VendorValues {
    pub(super) base_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompatibleValues {
    pub(super) preset: Option<Preset>,
    pub(super) base_url: Option<String>,
    pub(super) key_variable: Option<String>,
    pub(super) window_tokens: Option<u64>,
    pub(super) model: Option<String>,
    #[serde(default)]
    pub(super) insecure_http: bool,
    /// True if its reasoning is sent back to it, which some servers demand.
    #[serde(default)]
    pub(super) returns_reasoning: bool,
    /// True if its models take images.
    #[serde(default)]
    pub(super) sees_images: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreValues {
    pub(crate) enabled: bool,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) url: Option<String>,
    pub(super) url_variable: Option<String>,
    pub(super) node: Option<String>,
    pub(super) schema: String,
    pub(super) connections: usize,
    pub(super) statement_timeout_ms: u64,
    pub(super) lease_ms: u64,
    pub(super) idle_ms: u64,
    pub(super) queue_goes_on: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServeValues {
    pub(crate) listen: String,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) allowed_origins: Vec<String>,
    pub(crate) public_url: Option<String>,
    pub(crate) max_connections: usize,
    pub(crate) max_streams: usize,
    pub(crate) header_timeout_ms: u64,
    pub(crate) max_body_bytes: u64,
    pub(crate) stall_ms: u64,
    pub(crate) drain_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogValues {
    pub(crate) level: LogLevel,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputValues {
    pub(crate) markdown: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatValues {
    pub(crate) history: bool,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}
