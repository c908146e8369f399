//! Groups of flags that several commands share.

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser},
};
use meerkat_service::{
    cost::Decimal,
    options::{CacheTime, Effort, Policy},
    service::{MemoryScope, Scope},
    tool::TurnAccess,
};
use serde::de::DeserializeOwned;
use serde_json::json;

/// Session that a command is about.
#[derive(Args)]
pub(crate) struct Target {
    /// The session: its id, the last six or more characters of its id, or `last` (the most recently changed)
    #[arg(required = true, value_name = "SESSION")]
    pub(crate) session: Option<String>,
}

/// Settings of a new session.
#[derive(Args, Default, PartialEq)]
#[command(next_help_heading = "A new session")]
pub(crate) struct SessionFlags {
    /// The title; if left out, the first line of the first prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) title: Option<String>,
    /// The system prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// A file with what was said before, elsewhere: a JSON array of messages (docs/sessions.md)
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<std::path::PathBuf>,
    /// A label, to find the session by; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = label)]
    pub(crate) label: Vec<(String, String)>,
    /// The folder that its tools work in; if left out, the current folder
    #[arg(long, value_name = "FOLDER")]
    pub(crate) workspace: Option<std::path::PathBuf>,
    /// The only tools that the session may use
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    pub(crate) tools: Option<Vec<String>>,
    /// What its model finds in memory [default: project]
    #[arg(long, value_name = "SCOPE", value_parser = named::<MemoryScope>(&["project", "session", "none"]))]
    pub(crate) memory_scope: Option<MemoryScope>,
    /// Keep what is said in it out of memory
    #[arg(long)]
    pub(crate) no_memory_index: bool,
}

/// Settings of a new session and of a turn.
#[derive(Args, Default, PartialEq)]
#[command(next_help_heading = "The turn")]
pub(crate) struct TurnFlags {
    /// The model, such as `scripted` or `anthropic/claude-sonnet-5-5`
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// End the turn after this many tokens
    #[arg(long, value_name = "N")]
    pub(crate) budget_tokens: Option<u64>,
    /// End the turn after this many model calls
    #[arg(long, value_name = "N")]
    pub(crate) budget_steps: Option<u64>,
    /// End the turn after this many tool calls
    #[arg(long, value_name = "N")]
    pub(crate) budget_tool_calls: Option<u64>,
    /// End the turn after this many milliseconds
    #[arg(long, value_name = "MS")]
    pub(crate) budget_wall_ms: Option<u64>,
    /// End the turn when it has cost this many US dollars, such as 0.50
    #[arg(long, value_name = "DOLLARS")]
    pub(crate) budget_cost: Option<Decimal>,
    /// Let the turn start at most this many sub-agents, together with theirs
    #[arg(long, value_name = "N")]
    pub(crate) budget_agents: Option<u64>,
    /// Name the request: repeated with this key, from the same folder, it runs only once
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
    #[command(flatten)]
    pub(crate) options: ModelFlags,
    #[command(flatten)]
    pub(crate) compact: CompactFlags,
}

/// How the model is asked.
#[derive(Args, Default, PartialEq)]
#[command(next_help_heading = "How the model is asked")]
pub(crate) struct ModelFlags {
    /// Most tokens of one answer
    #[arg(long, value_name = "N")]
    pub(crate) max_output_tokens: Option<u32>,
    /// How freely words are chosen, from 0 to 2
    #[arg(long, value_name = "NUMBER", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f64>,
    /// Choose words from the likeliest ones that have this probability together, from 0 to 1
    #[arg(long, value_name = "NUMBER", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f64>,
    /// End the answer where this text would come; may be repeated; an empty text for none of the session's
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// Make answers repeatable as far as the vendor can
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u32>,
    /// How long the model thinks before it answers
    #[arg(long, value_name = "LEVEL", value_parser = named::<Effort>(&["none", "low", "medium", "high"]))]
    pub(crate) effort: Option<Effort>,
    /// How long the vendor keeps what it has read, so that the next request costs less
    #[arg(long, value_name = "TIME", value_parser = named::<CacheTime>(&["short", "long"]))]
    pub(crate) cache: Option<CacheTime>,
}

/// How to compact.
#[derive(Args, Default, PartialEq, Eq)]
#[command(next_help_heading = "Compaction")]
pub(crate) struct CompactFlags {
    /// Compact when the context reaches this many tokens
    #[arg(long, value_name = "TOKENS")]
    pub(crate) compact_threshold: Option<u64>,
    /// Keep this many recent turns whole
    #[arg(long, value_name = "N")]
    pub(crate) compact_keep_turns: Option<u64>,
    /// Write a summary of at most this many tokens
    #[arg(long, value_name = "TOKENS")]
    pub(crate) compact_summary_tokens: Option<u32>,
    /// Wait at least this many turns after an attempt to compact
    #[arg(long, value_name = "N")]
    pub(crate) compact_guard_turns: Option<u32>,
}

/// How a turn meets a running one, and how it is answered.
#[derive(Args, Default)]
#[command(next_help_heading = "The turn")]
pub(crate) struct Delivery {
    /// If another turn is running: reject this one, queue it, interrupt the other, or steer it by adding this prompt
    /// before its next model call [default: reject]
    #[arg(long, value_name = "POLICY", value_parser = named::<Policy>(&["reject", "queue", "interrupt", "steer"]))]
    pub(crate) policy: Option<Policy>,
    /// Answer with JSON that fits the JSON Schema in this file; `-` reads it from standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) output_schema: Option<std::path::PathBuf>,
    /// Name of that answer for the model's vendor [default: answer]
    #[arg(long, value_name = "NAME", requires = "output_schema")]
    pub(crate) output_name: Option<String>,
    /// How often an answer that does not fit goes back to the model, up to 5 [default: 2]
    #[arg(long, value_name = "N", requires = "output_schema")]
    pub(crate) repairs: Option<u8>,
    /// Run these calls of the turn without a question: rules as in `tools.approval`, such as `edit,shell`
    #[arg(long, value_name = "RULE,RULE", value_delimiter = ',')]
    pub(crate) allow: Vec<String>,
    /// Allow the turn's calls less than the configuration does: `read` refuses each call that may change something, `ask`
    /// asks about it
    #[arg(long, value_name = "ACCESS", value_parser = named::<TurnAccess>(&["read", "ask"]))]
    pub(crate) access: Option<TurnAccess>,
    /// Let a call that asks wait for a decision, here or by `meerkat sessions approve` [default in a terminal]
    #[arg(long)]
    pub(crate) attended: bool,
    /// Do not wait for the turn's end; only beside `meerkat serve`
    #[arg(long)]
    pub(crate) detach: bool,
}

/// Reads a value by its name on the wire.
pub(super) fn named<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    names: &'static [&'static str],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(names).try_map(|name| serde_json::from_value(json!(name)))
}

/// Reads a number that JSON has.
fn finite(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| "a number is needed".to_owned())
}

/// Reads `name=value`.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is written name=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads `NAME=value` of a program's environment.
pub(super) fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) =
        text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("a variable is written NAME=value")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads an approval's extent.
pub(super) fn scope(text: &str) -> Result<Scope, String> {
    let all = [Scope::Once, Scope::Session, Scope::Always];
    all.into_iter().find(|scope| scope.name() == text).ok_or_else(|| "it is once, session or always".to_owned())
}
