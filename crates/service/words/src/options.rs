//! Options of the engine and of a request, each with its unit and its default.
//!
//! The defaults stand once more, with a sentence each, in `config/meerkat.toml`; a test holds the two equal.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Limits of one turn. What a turn leaves out comes from its session, then from the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Budgets {
    /// Input and output tokens of all model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Model calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Tool calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<u64>,
    /// Milliseconds from the turn's start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall_ms: Option<u64>,
}

impl Budgets {
    /// These budgets, with what they leave open taken from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.or(other.tokens),
            steps: self.steps.or(other.steps),
            tool_calls: self.tool_calls.or(other.tool_calls),
            wall_ms: self.wall_ms.or(other.wall_ms),
        }
    }

    /// The limit of one budget.
    #[must_use]
    pub const fn limit(&self, budget: Budget) -> Option<u64> {
        match budget {
            Budget::Tokens => self.tokens,
            Budget::Steps => self.steps,
            Budget::ToolCalls => self.tool_calls,
            Budget::WallMs => self.wall_ms,
        }
    }
}

/// One of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Tokens.
    Tokens,
    /// Model calls.
    Steps,
    /// Tool calls.
    ToolCalls,
    /// Wall time.
    WallMs,
}

impl Budget {
    /// Every budget.
    pub const ALL: &'static [Self] = &[Self::Tokens, Self::Steps, Self::ToolCalls, Self::WallMs];

    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Steps => "steps",
            Self::ToolCalls => "tool_calls",
            Self::WallMs => "wall_ms",
        }
    }
}

/// What happens to a turn that meets a running one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// It is refused with `SESSION_BUSY`.
    #[default]
    Reject,
    /// It waits behind those that wait already.
    Queue,
    /// The running turn is interrupted, and this one is next.
    Interrupt,
}

/// What happens where the next request would not fit the model's window and nothing compacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// The turn fails with `CONTEXT_OVERFLOW` before the call.
    #[default]
    Fail,
    /// The request leaves out the oldest whole turns; the session keeps them.
    Slide,
}

/// Options of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TurnOptions {
    /// Model calls that a turn may make at most, whatever it or its session asks for; 0 is without limit.
    pub max_steps: u64,
    /// Tool calls that a turn may make at most; 0 is without limit.
    pub max_tool_calls: u64,
    /// Tokens that a turn may use at most; 0 is without limit.
    pub max_tokens: u64,
    /// Milliseconds that a turn may take at most; 0 is without limit.
    pub max_wall_ms: u64,
    /// Model calls of a turn where neither it nor its session asks for a number; 0 is without limit.
    pub default_steps: u64,
    /// Tool calls of such a turn; 0 is without limit.
    pub default_tool_calls: u64,
    /// Tokens of such a turn; 0 is without limit.
    pub default_tokens: u64,
    /// Milliseconds of such a turn; 0 is without limit.
    pub default_wall_ms: u64,
    /// Tokens that one answer may have; 0 leaves it to the vendor.
    pub max_output_tokens: u32,
    /// Milliseconds without anything from the model after which a call fails.
    pub model_idle_timeout_ms: u64,
    /// Model calls in all for one step, the first included.
    pub model_attempts: u32,
    /// Milliseconds before the second call; doubled with each further one.
    pub retry_base_ms: u64,
    /// The longest wait before another call, in milliseconds; a vendor that asks for more fails the call.
    pub retry_max_ms: u64,
    /// Identical calls with identical results, or turns of a cycle of up to four calls, that end the turn.
    pub loop_repeats: u32,
    /// Steps in a row whose calls all had malformed arguments that end the turn.
    pub repair_rounds: u32,
    /// Turns that may wait on one session.
    pub max_queued: usize,
}

impl Default for TurnOptions {
    fn default() -> Self {
        Self {
            max_steps: 0,
            max_tool_calls: 0,
            max_tokens: 0,
            max_wall_ms: 0,
            default_steps: 100,
            default_tool_calls: 500,
            default_tokens: 0,
            default_wall_ms: 3_600_000,
            max_output_tokens: 0,
            model_idle_timeout_ms: 120_000,
            model_attempts: 4,
            retry_base_ms: 500,
            retry_max_ms: 30_000,
            loop_repeats: 3,
            repair_rounds: 3,
            max_queued: 32,
        }
    }
}

impl TurnOptions {
    /// The budgets of a turn that asks for these: what is left open has its default, and none is above its maximum.
    #[must_use]
    pub fn budgets(&self, asked: Budgets) -> Budgets {
        let limit = |limit: u64| (limit != 0).then_some(limit);
        let budget = |asked: Option<u64>, default: u64, max: u64| {
            // An absent budget is without limit, so the least of those that are there holds.
            asked.or(limit(default)).into_iter().chain(limit(max)).min()
        };
        Budgets {
            tokens: budget(asked.tokens, self.default_tokens, self.max_tokens),
            steps: budget(asked.steps, self.default_steps, self.max_steps),
            tool_calls: budget(asked.tool_calls, self.default_tool_calls, self.max_tool_calls),
            wall_ms: budget(asked.wall_ms, self.default_wall_ms, self.max_wall_ms),
        }
    }
}

/// Options of tool calls.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ToolOptions {
    /// Milliseconds that one call may take.
    pub timeout_ms: u64,
    /// Milliseconds that a call gets to stop once it was told to.
    pub grace_ms: u64,
    /// Read-only and idempotent calls of one message that run together.
    pub max_parallel: usize,
    /// Output up to this many bytes stands in the event; more goes to a blob.
    pub inline_bytes: usize,
    /// Output past this many bytes ends the call.
    pub max_output_bytes: u64,
    /// Milliseconds that a call waits for its approval.
    pub approval_timeout_ms: u64,
    /// Approval rules by tool name; they win over the tool's own.
    pub approval: std::collections::BTreeMap<String, crate::tool::Approval>,
    /// A folder that the scripted model's test tools may write in; without it there are none.
    pub test_dir: Option<std::path::PathBuf>,
}

impl Default for ToolOptions {
    fn default() -> Self {
        Self {
            timeout_ms: 120_000,
            grace_ms: 2_000,
            max_parallel: 8,
            inline_bytes: 32 * 1024,
            max_output_bytes: 64 * 1024 * 1024,
            approval_timeout_ms: 600_000,
            approval: std::collections::BTreeMap::new(),
            test_dir: None,
        }
    }
}

/// Options of the live context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextOptions {
    /// What happens where the next request would not fit.
    pub overflow: Overflow,
    /// The model that summarises where a context is compacted; empty is the one that answers.
    pub summary_model: String,
}

/// Sizes that requests may have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of a prompt.
    pub prompt_bytes: u64,
    /// Bytes of a system prompt.
    pub system_prompt_bytes: u64,
    /// Bytes of a reminder's text.
    pub reminder_bytes: u64,
    /// Reminders of one session.
    pub reminders: usize,
    /// Bytes of a pin.
    pub pin_bytes: u64,
    /// Pins of one session.
    pub pins: usize,
    /// Labels of one session.
    pub labels: usize,
    /// Bytes of a label's name and value together, and of an idempotency key.
    pub label_bytes: u64,
    /// Events or items of one page.
    pub page_items: usize,
    /// Milliseconds that a long poll waits at most, whatever it asks for. Clients and proxies give up what is silent for
    /// long; an answer that comes early with nothing in it says the same, and the client asks again.
    pub wait_ms: u64,
    /// Bytes of a bundle that is imported.
    pub bundle_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            prompt_bytes: 4 * 1024 * 1024,
            system_prompt_bytes: 1024 * 1024,
            reminder_bytes: 16 * 1024,
            reminders: 32,
            pin_bytes: 4 * 1024,
            pins: 64,
            labels: 64,
            label_bytes: 1024,
            page_items: 1000,
            wait_ms: 5_000,
            bundle_bytes: 1024 * 1024 * 1024,
        }
    }
}

/// Bounds of a service that keeps its sessions in memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EphemeralOptions {
    /// Sessions that it may hold.
    pub max_sessions: usize,
    /// Bytes of events and blobs that it may hold over all sessions.
    pub max_bytes: u64,
    /// Bytes of events that one session keeps; older ones are pruned.
    pub session_event_bytes: u64,
    /// Milliseconds without a command after which a session leaves.
    pub idle_ms: u64,
}

impl Default for EphemeralOptions {
    fn default() -> Self {
        Self {
            max_sessions: 10_000,
            max_bytes: 1024 * 1024 * 1024,
            session_event_bytes: 64 * 1024 * 1024,
            idle_ms: 3_600_000,
        }
    }
}

/// How sessions that outlive their process are kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StoreOptions {
    /// Milliseconds without a command after which a session leaves memory.
    pub idle_ms: u64,
    /// Whether turns that waited when their process ended run by themselves; else they wait for the next turn.
    pub queue_goes_on: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { idle_ms: 60_000, queue_goes_on: false }
    }
}

/// What journal compaction keeps, and when it happens by itself. It drops only what every reader is done with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JournalOptions {
    /// Milliseconds that every record is kept at least.
    pub min_record_age_ms: u64,
    /// The newest replies outside the live context that are kept where history is dropped.
    pub keep_last_replies: usize,
    /// Milliseconds that a request is kept which has its result.
    pub keep_answered_request_ttl_ms: u64,
    /// Milliseconds between two compactions of the journals of active sessions; 0 is never.
    pub rolling_ms: u64,
    /// Whether a journal is compacted when a turn has ended, as the following keys say.
    pub end_of_run: bool,
    /// As `min_record_age_ms`, when a turn has ended.
    pub end_min_record_age_ms: u64,
    /// As `keep_last_replies`, when a turn has ended.
    pub end_keep_last_replies: usize,
    /// As `keep_answered_request_ttl_ms`, when a turn has ended.
    pub end_keep_answered_request_ttl_ms: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            min_record_age_ms: 120_000,
            keep_last_replies: 10,
            keep_answered_request_ttl_ms: 0,
            rolling_ms: 0,
            end_of_run: false,
            end_min_record_age_ms: 900_000,
            end_keep_last_replies: 3,
            end_keep_answered_request_ttl_ms: 3_600_000,
        }
    }
}

/// Sessions as files that people read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ProjectionOptions {
    /// Whether there are any.
    pub enabled: bool,
    /// The folder that they stand in; without it there are none.
    pub dir: Option<std::path::PathBuf>,
}

impl Default for ProjectionOptions {
    fn default() -> Self {
        Self { enabled: true, dir: None }
    }
}

/// Which sessions `retain` takes away where its request does not say; 0 is without limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionOptions {
    /// Days without a change after which a session goes.
    pub max_age_days: u64,
    /// Bytes that all sessions may take; the oldest go first.
    pub max_bytes: u64,
    /// How many sessions stay; the oldest go first.
    pub max_sessions: u64,
}

impl RetentionOptions {
    /// The options of a request, with what it leaves out taken from these.
    #[must_use]
    pub fn of(&self, request: &crate::operators::Retain) -> Self {
        Self {
            max_age_days: request.max_age_days.unwrap_or(self.max_age_days),
            max_bytes: request.max_bytes.unwrap_or(self.max_bytes),
            max_sessions: request.max_sessions.unwrap_or(self.max_sessions),
        }
    }

    /// Whether no session ever goes.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.max_age_days == 0 && self.max_bytes == 0 && self.max_sessions == 0
    }
}

/// What makes the vectors by which memory finds texts of like meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EmbedderChoice {
    /// The built-in one, which needs neither a download nor a network.
    #[default]
    Builtin,
    /// A server with an embeddings endpoint as OpenAI has it.
    Endpoint,
    /// A model in a local directory, in a build with `local-embeddings`.
    Local,
}

/// A model in a local directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// The directory.
    pub dir: Option<std::path::PathBuf>,
}

/// An embeddings endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EndpointConfig {
    /// Where it is, up to and without `/embeddings`.
    pub base_url: String,
    /// Its model.
    pub model: String,
    /// The variable that holds its key; without it none is sent.
    pub key_variable: Option<String>,
    /// Numbers of a vector that are asked for; 0 leaves it to the model.
    pub dimensions: u32,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        Self {
            base_url: "http://localhost:8080/v1".to_owned(),
            model: "text-embedding-3-small".to_owned(),
            key_variable: None,
            dimensions: 0,
        }
    }
}

/// What memory takes in, and how it finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Whether there is a memory.
    pub enabled: bool,
    /// Whether it takes in every turn that has ended, or only what compactions discard.
    pub index_turns: bool,
    /// What makes its vectors.
    pub embedder: EmbedderChoice,
    /// Where they are made, if at an endpoint.
    pub endpoint: EndpointConfig,
    /// The model, if a local one makes them.
    pub local: LocalConfig,
}

impl Default for MemoryConfig {
    fn default() -> Self {
        let (endpoint, local) = (EndpointConfig::default(), LocalConfig::default());
        Self { enabled: true, index_turns: true, embedder: EmbedderChoice::default(), endpoint, local }
    }
}

/// Everything that the engine can be told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Turns.
    pub turn: TurnOptions,
    /// Tool calls.
    pub tools: ToolOptions,
    /// The live context.
    pub context: ContextOptions,
    /// Sizes of requests.
    pub limits: Limits,
    /// The service in memory.
    pub ephemeral: EphemeralOptions,
    /// The service over a store.
    pub store: StoreOptions,
    /// Journal compaction.
    pub journal: JournalOptions,
    /// The files that are made from the journals of a store.
    pub projection: ProjectionOptions,
    /// Which sessions go.
    pub retention: RetentionOptions,
    /// Memory.
    pub memory: MemoryConfig,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configured maximum was a default that any request lifted.
    #[test]
    fn a_turn_gets_what_it_asks_for_up_to_the_maximum() {
        let max = |max_steps| TurnOptions { max_steps, ..TurnOptions::default() };
        for (options, asked, expected) in [
            (max(0), None, Some(100)),
            (max(0), Some(1_000_000), Some(1_000_000)),
            (max(5), None, Some(5)),
            (max(5), Some(1_000_000), Some(5)),
            (max(5), Some(2), Some(2)),
            (TurnOptions { default_steps: 0, ..max(0) }, None, None),
            (TurnOptions { default_steps: 7, ..max(9) }, None, Some(7)),
        ] {
            assert_eq!(options.budgets(Budgets { steps: asked, ..Budgets::default() }).steps, expected, "{options:?}");
        }
        let asked = Budgets { tokens: Some(9), steps: Some(9), tool_calls: Some(9), wall_ms: Some(9) };
        let all = TurnOptions { max_tokens: 1, max_steps: 2, max_tool_calls: 3, max_wall_ms: 4, ..max(0) };
        let least = Budgets { tokens: Some(1), steps: Some(2), tool_calls: Some(3), wall_ms: Some(4) };
        assert_eq!(all.budgets(asked), least);
    }
}
