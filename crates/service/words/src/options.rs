//! Options of the engine and of a request, each with its unit and its default.
//!
//! `config/meerkat.toml` repeats the defaults with a sentence each; a test holds the two equal.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::budget::{Amount, Budget, Budgets};
use crate::{
    SessionError,
    cost::{Cost, Decimal},
};

/// Declares structs of options, each field with its default.
macro_rules! options {
    ($( $( #[$attribute:meta] )* $name:ident {
        $( $( #[$field:meta] )* $key:ident: $type:ty = $default:expr, )*
    } )*) => { $(
        $( #[$attribute] )*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $( $( #[$field] )* pub $key: $type, )* }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $key: $default, )* }
            }
        }
    )* };
}
pub(crate) use options;

/// How a model is asked. What a turn leaves out comes from its session, and what is left out there from the vendor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelOptions {
    /// Most tokens of one answer; `turn.max_output_tokens` is the most that it can be.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_output_tokens: Option<u32>,
    /// How freely words are chosen, from 0 to 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 2.0))]
    pub temperature: Option<f64>,
    /// Words are chosen from the likeliest ones that have this probability together, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub top_p: Option<f64>,
    /// Texts that end the answer, at most four; an empty list for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4))]
    pub stop: Option<Vec<String>>,
    /// Number that makes answers repeatable as far as the vendor can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// How long the model thinks before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// How long the vendor keeps what it has read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheTime>,
}

/// How long a model thinks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// Not at all.
    None,
    /// Briefly.
    Low,
    /// As long as is usual.
    Medium,
    /// Long.
    High,
}

impl Effort {
    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// How long a vendor keeps the beginning of a request, so that the next one with the same beginning costs less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CacheTime {
    /// For some minutes.
    Short,
    /// For an hour or more; writing it may cost more.
    Long,
}

impl ModelOptions {
    /// Bytes of a text that ends an answer.
    const STOP_BYTES_MAX: usize = 256;

    /// Returns true if nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Fills what is left open from `other`.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            max_output_tokens: self.max_output_tokens.or(other.max_output_tokens),
            temperature: self.temperature.or(other.temperature),
            top_p: self.top_p.or(other.top_p),
            stop: self.stop.or_else(|| other.stop.clone()),
            seed: self.seed.or(other.seed),
            effort: self.effort.or(other.effort),
            cache: self.cache.or(other.cache),
        }
    }

    /// Checks the ranges that hold for every vendor.
    ///
    /// # Errors
    /// `INVALID_REQUEST` with the option that is out of its range.
    pub fn check(&self) -> Result<(), SessionError> {
        let refused = |name: &str, message: &str| Err(SessionError::invalid(format!("options.{name}"), message));
        let is_within = |number: Option<f64>, max: f64| number.is_none_or(|number| (0.0..=max).contains(&number));
        if self.max_output_tokens == Some(0) {
            return refused("max_output_tokens", "an answer has at least one token; leave it out for the usual number");
        }
        if !is_within(self.temperature, 2.0) {
            return refused("temperature", "it is a number from 0 to 2");
        }
        if !is_within(self.top_p, 1.0) {
            return refused("top_p", "it is a number from 0 to 1");
        }
        let stop = self.stop.as_deref().unwrap_or_default();
        if stop.len() > 4 {
            return refused("stop", "there are at most four");
        }
        if stop.iter().any(|text| text.trim().is_empty() || text.len() > Self::STOP_BYTES_MAX) {
            return refused("stop", "each is a text with a visible character and at most 256 bytes");
        }
        Ok(())
    }

    /// Changes the texts among them.
    #[must_use]
    pub fn with_texts(self, change: impl FnMut(&String) -> String) -> Self {
        let stop = self.stop.as_ref().map(|stop| stop.iter().map(change).collect());
        Self { stop, ..self }
    }

    /// Lists the names of the options that are set.
    pub fn set(&self) -> impl Iterator<Item = &'static str> {
        let is_set = [
            ("max_output_tokens", self.max_output_tokens.is_some()),
            ("temperature", self.temperature.is_some()),
            ("top_p", self.top_p.is_some()),
            ("stop", self.stop.as_ref().is_some_and(|stop| !stop.is_empty())),
            ("seed", self.seed.is_some()),
            ("effort", self.effort.is_some()),
            ("cache", self.cache.is_some()),
        ];
        is_set.into_iter().filter_map(|(name, is_set)| is_set.then_some(name))
    }
}

/// Policy for a turn that meets a running one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Refuses it with `SESSION_BUSY`.
    #[default]
    Reject,
    /// Puts it at the end of the queue.
    Queue,
    /// Interrupts the running turn and runs this one next.
    Interrupt,
    /// Adds its prompt to the running turn, before that turn's next model call.
    Steer,
}

/// Reaction to a request that would not fit the model's window, if nothing compacts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// Fails the turn with `CONTEXT_OVERFLOW` before the call.
    #[default]
    Fail,
    /// Leaves the oldest whole turns out of the request; the session keeps them.
    Slide,
}

options! {
    /// Options of a turn.
    TurnOptions {
        /// Most model calls of a turn, whatever it or its session asks for; 0 for no limit.
        max_steps: u64 = 0,
        /// Most tool calls of a turn; 0 for no limit.
        max_tool_calls: u64 = 0,
        /// Most tokens of a turn; 0 for no limit.
        max_tokens: u64 = 0,
        /// Most milliseconds of a turn; 0 for no limit.
        max_wall_ms: u64 = 0,
        /// Most US dollars of a turn; 0 for no limit.
        max_cost: Decimal = Decimal::default(),
        /// Model calls of a turn if neither it nor its session sets a number; 0 for no limit.
        default_steps: u64 = 100,
        /// Tool calls of such a turn; 0 for no limit.
        default_tool_calls: u64 = 500,
        /// Tokens of such a turn; 0 for no limit.
        default_tokens: u64 = 0,
        /// Milliseconds of such a turn; 0 for no limit.
        default_wall_ms: u64 = 3_600_000,
        /// US dollars of such a turn; 0 for no limit.
        default_cost: Decimal = Decimal::default(),
        /// Tokens that one answer may have; 0 leaves it to the vendor.
        max_output_tokens: u32 = 0,
        /// Milliseconds of silence from the model after which a call fails; 0 means no limit.
        model_idle_timeout_ms: u64 = 120_000,
        /// Model calls for one step, including the first.
        model_attempts: u32 = 8,
        /// Most milliseconds before the second call, at least half of them; doubled for each further one.
        retry_base_ms: u64 = 500,
        /// Longest wait before another call, in milliseconds; if a vendor asks for more, the call fails.
        retry_max_ms: u64 = 30_000,
        /// Milliseconds that a step waits before repeated calls, all together; 0 for no limit.
        retry_total_ms: u64 = 60_000,
        /// Identical calls with identical results, or turns of a cycle of up to four calls, that end the turn.
        loop_repeats: u32 = 3,
        /// Steps in a row whose calls all had malformed arguments that end the turn.
        repair_rounds: u32 = 3,
        /// Turns that may wait in one session's queue, and texts that may be steered into one turn.
        max_queued: usize = 32,
    }
}

impl TurnOptions {
    /// Computes the tokens that one answer may have, of which a turn asks for some.
    #[must_use]
    pub fn output_tokens(&self, asked: Option<u32>) -> Option<u32> {
        let limit = (self.max_output_tokens > 0).then_some(self.max_output_tokens);
        asked.into_iter().chain(limit).min()
    }

    /// Lowers what a turn asks for to the configured maximum.
    #[must_use]
    pub fn capped(&self, asked: ModelOptions) -> ModelOptions {
        let most = |tokens| self.output_tokens(Some(tokens));
        ModelOptions { max_output_tokens: asked.max_output_tokens.and_then(most), ..asked }
    }

    /// Computes the budgets of a turn: defaults for those left open, none above its maximum.
    #[must_use]
    pub fn budgets(&self, asked: Budgets) -> Budgets {
        // An absent budget is no limit, so the least of those present holds.
        fn least<T: Ord>(asked: Option<T>, default: Option<T>, max: Option<T>) -> Option<T> {
            asked.or(default).into_iter().chain(max).min()
        }
        let limit = |limit: u64| (limit != 0).then_some(limit);
        let dollars = |limit: Decimal| (limit != Decimal::default()).then(|| Cost::from_dollars(limit));
        let budget = |asked, default, max| least(asked, limit(default), limit(max));
        Budgets {
            tokens: budget(asked.tokens, self.default_tokens, self.max_tokens),
            steps: budget(asked.steps, self.default_steps, self.max_steps),
            tool_calls: budget(asked.tool_calls, self.default_tool_calls, self.max_tool_calls),
            wall_ms: budget(asked.wall_ms, self.default_wall_ms, self.max_wall_ms),
            cost: least(asked.cost, dollars(self.default_cost), dollars(self.max_cost)),
            agents: asked.agents,
        }
    }
}

options! {
    /// Options of tool calls.
    ToolOptions {
        /// Milliseconds that one call may take; 0 means no limit.
        timeout_ms: u64 = 120_000,
        /// Milliseconds that a call gets to stop after it was asked to.
        grace_ms: u64 = 2_000,
        /// Read-only and idempotent calls of one message that run together.
        max_parallel: usize = 8,
        /// Bytes of output that the event holds; more goes to a blob.
        inline_bytes: usize = 32 * 1024,
        /// Bytes of output after which the call is ended.
        max_output_bytes: u64 = 64 * 1024 * 1024,
        /// Milliseconds that a call waits for its approval; 0 means no limit.
        approval_timeout_ms: u64 = 600_000,
        /// Milliseconds that a call waits for its caller if its tool does not say; at most 30 days, and not 0.
        client_timeout_ms: u64 = 86_400_000,
        /// Approval rules; they override the tool's own. A rule is a tool's name, names with `*`, `server: *`, or
        /// `name: pattern` of the call's subject. Deny wins, then ask, then allow.
        approval: std::collections::BTreeMap<String, crate::tool::Approval> = std::collections::BTreeMap::new(),
        /// What the tools of a workspace may do.
        access: crate::tool::Access = crate::tool::Access::Write,
        /// Calls of these tools that need a decision.
        ask: crate::tool::Ask = crate::tool::Ask::Changes,
        /// Use of the network by their commands.
        network: crate::tool::Network = crate::tool::Network::Ask,
        /// Folders beside the workspace that commands may read.
        read: Vec<std::path::PathBuf> = Vec::new(),
        /// Folders that sessions of served surfaces may work in, by name.
        folders: std::collections::BTreeMap<String, std::path::PathBuf> = std::collections::BTreeMap::new(),
        /// Offers `pin_fact` to sessions without a workspace, too.
        pin_fact: bool = false,
        /// Accepts the scope `always` from every surface; otherwise only a terminal of the owner may allow for always.
        remember: bool = false,
        /// Folder that the scripted model's test tools may write in; without it there are no test tools.
        test_dir: Option<std::path::PathBuf> = None,
    }
}

options! {
    /// Options of sub-agents.
    AgentOptions {
        /// Offers `delegate`, by which a model starts sub-agents.
        enabled: bool = false,
        /// Levels of sub-agents below a session that a person or a program started.
        depth: u64 = 1,
        /// Sub-agents of one session that work at one time.
        width: u64 = 4,
        /// Most sub-agents that one turn may start, together with theirs.
        total: u64 = 32,
    }
}

impl AgentOptions {
    /// Computes how many sub-agents a turn may start that asks for so many; `None` if none are offered at all.
    #[must_use]
    pub fn budget(&self, asked: Option<u64>) -> Option<u64> {
        self.enabled.then(|| asked.unwrap_or(self.total).min(self.total))
    }
}

/// What happens to a call that needs approval when no approver is present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unattended {
    /// Denies it at once.
    #[default]
    Deny,
    /// Waits for a decision from any surface, as in an attended turn.
    Wait,
}

/// Options of approvals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalOptions {
    /// Answer to a call that asks while nobody attends its turn.
    pub unattended: Unattended,
}

/// Options of the live context.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ContextOptions {
    /// Reaction to a request that would not fit.
    pub overflow: Overflow,
    /// Model that writes the summaries of compactions; empty for the one that answers.
    pub summary_model: String,
}

options! {
    /// Sizes that requests may have.
    Limits {
        /// Bytes of a prompt.
        prompt_bytes: u64 = 4 * 1024 * 1024,
        /// Bytes of a system prompt.
        system_prompt_bytes: u64 = 1024 * 1024,
        /// Bytes of a reminder's text.
        reminder_bytes: u64 = 16 * 1024,
        /// Reminders of one session.
        reminders: usize = 32,
        /// Bytes of a pin.
        pin_bytes: u64 = 4 * 1024,
        /// Pins of one session.
        pins: usize = 64,
        /// Labels of one session.
        labels: usize = 64,
        /// Bytes of a label's name and value together, and of an idempotency key.
        label_bytes: u64 = 1024,
        /// Events or items of one page.
        page_items: usize = 1000,
        /// Longest wait of a long poll in milliseconds, whatever it asks for, and of a search until memory has what was
        /// said before. Clients and proxies drop silent connections; an early, empty answer makes the client ask again.
        wait_ms: u64 = 5_000,
        /// Bytes of a bundle that is imported.
        bundle_bytes: u64 = 1024 * 1024 * 1024,
    }

    /// Limits of a service that keeps its sessions in memory.
    EphemeralOptions {
        /// Most sessions to hold.
        max_sessions: usize = 10_000,
        /// Most bytes of events and blobs over all sessions.
        max_bytes: u64 = 1024 * 1024 * 1024,
        /// Bytes of events that one session keeps; older ones are pruned.
        session_event_bytes: u64 = 64 * 1024 * 1024,
        /// Milliseconds without a command after which a session is dropped.
        idle_ms: u64 = 3_600_000,
    }

    /// Options of stored sessions.
    StoreOptions {
        /// Milliseconds without a command after which a session is dropped from memory.
        idle_ms: u64 = 30_000,
        /// Runs turns that were queued when their process ended; otherwise they wait for the next turn, or
        /// until somebody asks for one of them. Where nodes share a database they run in any case, because
        /// their callers may wait at another node.
        queue_goes_on: bool = false,
        /// Goes on at the start with turns whose calls were decided when their process ended; otherwise they wait until
        /// somebody asks for them. It is no key of a configuration: a program knows if it stays.
        #[serde(skip)]
        turns_go_on: bool = true,
    }

    /// Options of journal compaction, which drops only records that every reader has handled.
    JournalOptions {
        /// Milliseconds that every record is kept at least.
        min_record_age_ms: u64 = 120_000,
        /// Newest replies outside the live context to keep when history is dropped.
        keep_last_replies: usize = 10,
        /// Milliseconds to keep a request that has its result.
        keep_answered_request_ttl_ms: u64 = 0,
        /// Scheduled compactions drop history, too: all outside the live context but the newest replies.
        drop_history: bool = false,
        /// Milliseconds between compactions of the journals of active sessions; 0 for never.
        rolling_ms: u64 = 0,
        /// Compacts a journal when a turn has ended, by the following keys.
        end_of_run: bool = false,
        /// As `min_record_age_ms`, when a turn has ended.
        end_min_record_age_ms: u64 = 900_000,
        /// As `keep_last_replies`, when a turn has ended; it counts only with `drop_history`.
        end_keep_last_replies: usize = 3,
        /// As `keep_answered_request_ttl_ms`, when a turn has ended.
        end_keep_answered_request_ttl_ms: u64 = 3_600_000,
    }

    /// Options of the projection: sessions as files for people.
    #[derive(Eq)]
    ProjectionOptions {
        /// Writes the files.
        enabled: bool = true,
        /// Folder of the files; without it none are written.
        dir: Option<std::path::PathBuf> = None,
    }
}

/// Limits of `retain`, for those that its request leaves out; 0 for no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionOptions {
    /// Days without a change after which a session is deleted.
    pub max_age_days: u64,
    /// Bytes that all sessions may take; the oldest are deleted first.
    pub max_bytes: u64,
    /// Sessions to keep; the oldest are deleted first.
    pub max_sessions: u64,
}

impl RetentionOptions {
    /// Returns true if there is no limit.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.max_age_days == 0 && self.max_bytes == 0 && self.max_sessions == 0
    }
}

/// Source of the vectors by which memory finds texts of similar meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EmbedderChoice {
    /// Table in the program: no download and no network.
    #[default]
    Builtin,
    /// Server with OpenAI's embeddings endpoint.
    Endpoint,
    /// Table of model2vec in a local directory.
    Local,
}

/// A table in a local directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// The directory.
    pub dir: Option<std::path::PathBuf>,
}

/// Least number of vectors from which on a graph is built.
pub const GRAPH_FROM_MIN: usize = 100;

options! {
    /// An embeddings endpoint.
    #[derive(Eq)]
    EndpointConfig {
        /// Base URL, without `/embeddings`.
        base_url: String = "http://localhost:8080/v1".to_owned(),
        /// Its model.
        model: String = "text-embedding-3-small".to_owned(),
        /// Environment variable of its key; without it no key is sent.
        key_variable: Option<String> = None,
        /// Dimensions to ask for; 0 leaves them to the model.
        dimensions: u32 = 0,
    }

    /// Options of memory.
    #[derive(Eq)]
    MemoryConfig {
        /// Turns memory on.
        enabled: bool = true,
        /// Indexes every ended turn; otherwise only what compactions discard.
        index_turns: bool = true,
        /// Label that parts memory: a model finds only what was said in sessions whose label of this name has the value
        /// of its own session's.
        scope_label: String = "user".to_owned(),
        /// Source of the vectors.
        embedder: EmbedderChoice = EmbedderChoice::Builtin,
        /// Vectors from which on a graph finds the nearest, at least [`GRAPH_FROM_MIN`]; below that all are compared.
        graph_from: usize = 50_000,
        /// Endpoint, if `embedder` is `endpoint`.
        endpoint: EndpointConfig = EndpointConfig::default(),
        /// Table, if `embedder` is `local`.
        local: LocalConfig = LocalConfig::default(),
    }
}

/// All options of the engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EngineOptions {
    /// Turns.
    pub turn: TurnOptions,
    /// Tool calls.
    pub tools: ToolOptions,
    /// Approvals of tool calls.
    pub approval: ApprovalOptions,
    /// Sub-agents.
    pub agents: AgentOptions,
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
    /// Limits of retention.
    pub retention: RetentionOptions,
    /// Memory.
    pub memory: MemoryConfig,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The configured maximum was once a default that any request could raise.
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
        let cost = |micros| Some(Cost::from_micros(micros));
        let asked = Budgets::of(|budget| Some(if budget == Budget::Cost { 9_000_000 } else { 9 }));
        let max_cost = "5".parse().unwrap();
        let all = TurnOptions { max_tokens: 1, max_steps: 2, max_tool_calls: 3, max_wall_ms: 4, max_cost, ..max(0) };
        let least = |budget| match budget {
            Budget::Tokens => 1,
            Budget::Steps => 2,
            Budget::ToolCalls => 3,
            Budget::WallMs => 4,
            Budget::Cost => 5_000_000,
            // `agents.total` limits them.
            Budget::Agents => 9,
        };
        assert_eq!(all.budgets(asked), Budgets::of(|budget| Some(least(budget))));
        let usual = TurnOptions { default_cost: "0.25".parse().unwrap(), ..TurnOptions::default() };
        assert_eq!(usual.budgets(Budgets::default()).cost, cost(250_000));
        assert_eq!(usual.budgets(asked).cost, cost(9_000_000));
    }

    /// The configuration alone switches sub-agents on, and a request can only lower their number.
    #[test]
    fn a_turn_may_start_as_many_sub_agents_as_it_asks_for_up_to_the_configured_total() {
        for (enabled, asked, expected) in [
            (false, None, None),
            (false, Some(9), None),
            (true, None, Some(32)),
            (true, Some(0), Some(0)),
            (true, Some(5), Some(5)),
            (true, Some(33), Some(32)),
        ] {
            let options = AgentOptions { enabled, ..AgentOptions::default() };
            assert_eq!(options.budget(asked), expected, "{enabled} {asked:?}");
        }
    }

    /// `NaN` is no JSON, but a program in Rust has it.
    #[test]
    fn a_model_is_asked_within_the_ranges_that_every_vendor_has() {
        let none = ModelOptions::default;
        let stop =
            |texts: &[&str]| ModelOptions { stop: Some(texts.iter().map(ToString::to_string).collect()), ..none() };
        let long = "x".repeat(256);
        for (options, refused) in [
            (none(), None),
            (ModelOptions { temperature: Some(2.0), top_p: Some(0.0), ..none() }, None),
            (ModelOptions { max_output_tokens: Some(0), ..none() }, Some("max_output_tokens")),
            (ModelOptions { temperature: Some(2.1), ..none() }, Some("temperature")),
            (ModelOptions { temperature: Some(-0.1), ..none() }, Some("temperature")),
            (ModelOptions { temperature: Some(f64::NAN), ..none() }, Some("temperature")),
            (ModelOptions { top_p: Some(1.1), ..none() }, Some("top_p")),
            (ModelOptions { top_p: Some(f64::INFINITY), ..none() }, Some("top_p")),
            (stop(&[]), None),
            (stop(&["a", "b", "c", &long]), None),
            (stop(&["a", "b", "c", "d", "e"]), Some("stop")),
            (stop(&["a", "\n"]), Some("stop")),
            (stop(&[&format!("{long}x")]), Some("stop")),
        ] {
            let field = options.check().err().map(|error| error.body().details["field"].clone());
            assert_eq!(field, refused.map(|name| format!("options.{name}").into()), "{options:?}");
        }
    }
}
