//! Families of models by the beginnings of their names, and the options that each has.
//!
//! The facts are the vendors' documentation of November 2026; docs/models.md shows them to users. A name that no other
//! row begins gets its vendor's last row, which has only what all its newest models have: an option that a vendor would
//! ignore must be refused by its name.

use meerkat_words::options::{CacheTime, Effort, ModelOptions};

use super::{Api, Preset};

const ALL: &[Effort] = &[Effort::None, Effort::Low, Effort::Medium, Effort::High];
const THINKS: &[Effort] = &[Effort::Low, Effort::Medium, Effort::High];

/// Options of a family.
#[derive(Clone, Copy)]
pub(super) struct Family {
    sampling: Sampling,
    has_stop: bool,
    /// Greatest seed; `None` if there are no seeds.
    seed_max: Option<u32>,
    efforts: &'static [Effort],
    pub(super) thinking: Thinking,
    pub(super) cache: Cache,
    output: OutputMode,
    /// True for a server that passes requests to others, of which some ignore options.
    pub(super) is_router: bool,
}

/// Temperature and `top_p`.
#[derive(Clone, Copy)]
enum Sampling {
    Never,
    /// While the model is asked not to think.
    Unthinking,
    /// One of both, up to 1; while the model thinks, close to 1.
    OneOf,
    Free,
}

/// Way in which an effort is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Thinking {
    /// Not at all: the models do not think.
    Never,
    Words,
    /// In words, of which the least is to think between calls of tools.
    BetweenTools,
    Tokens,
}

/// Times for which a vendor keeps what it has read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    Never,
    /// Some minutes, without being asked.
    Minutes,
    /// Some minutes, or an hour.
    Hour,
    /// A day, without being asked.
    Day,
    /// Some minutes or a day, as the account says if the request does not.
    MinutesOrDay,
}

/// When models have a mode for answers by a schema. Otherwise they answer by calling a tool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OutputMode {
    Never,
    /// In a request without tools: with them the mode is refused, or no tool is called.
    WithoutTools,
    Always,
}

const CLAUDE: Family = Family {
    sampling: Sampling::Never,
    has_stop: true,
    seed_max: None,
    efforts: THINKS,
    thinking: Thinking::Words,
    cache: Cache::Hour,
    output: OutputMode::Always,
    is_router: false,
};
const QUIET_CLAUDE: Family = Family { efforts: ALL, ..CLAUDE };
const SAMPLED_CLAUDE: Family = Family { sampling: Sampling::OneOf, ..QUIET_CLAUDE };

/// Chat completions.
const CHAT: Family = Family {
    sampling: Sampling::Free,
    has_stop: true,
    seed_max: Some(u32::MAX),
    efforts: &[Effort::None],
    thinking: Thinking::Never,
    cache: Cache::Never,
    output: OutputMode::Never,
    is_router: false,
};

/// OpenAI's responses format, without stops and seeds.
const GPT: Family = Family {
    sampling: Sampling::Never,
    has_stop: false,
    seed_max: None,
    efforts: THINKS,
    thinking: Thinking::Words,
    cache: Cache::Minutes,
    output: OutputMode::Always,
    is_router: false,
};
const QUIET_GPT: Family = Family { sampling: Sampling::Unthinking, efforts: ALL, ..GPT };
const PRO_GPT: Family =
    Family { efforts: &[Effort::Medium, Effort::High], cache: Cache::Never, output: OutputMode::Never, ..GPT };

const GEMINI: Family = Family {
    sampling: Sampling::Never,
    has_stop: true,
    seed_max: Some(i32::MAX.cast_unsigned()),
    efforts: THINKS,
    thinking: Thinking::Words,
    cache: Cache::Never,
    output: OutputMode::Always,
    is_router: false,
};
const SAMPLED_GEMINI: Family = Family { sampling: Sampling::Free, ..GEMINI };
const OLDER_GEMINI: Family = Family { thinking: Thinking::Tokens, output: OutputMode::WithoutTools, ..SAMPLED_GEMINI };

/// Chat completions of models that may think, and cannot be asked how long.
const UNASKED: Family = Family { efforts: &[], ..CHAT };

const SERVER: Family = Family { efforts: ALL, thinking: Thinking::Words, output: OutputMode::WithoutTools, ..CHAT };
const OPEN_ROUTER: Family = Family { is_router: true, ..SERVER };

/// Beginnings of names, with their family. The first that fits counts.
type Rows = &'static [(&'static [&'static str], Family)];

const ANTHROPIC: Rows = &[
    (&["claude-sonnet-5-5"], Family { thinking: Thinking::BetweenTools, ..QUIET_CLAUDE }),
    (&["claude-opus-5-5"], CLAUDE),
    (&["claude-opus-5", "claude-sonnet-5", "claude-haiku-5", "claude-opus-4-7", "claude-opus-4-8"], QUIET_CLAUDE),
    (&["claude-opus-4-6", "claude-sonnet-4-6"], SAMPLED_CLAUDE),
    (
        &["claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"],
        Family { thinking: Thinking::Tokens, ..SAMPLED_CLAUDE },
    ),
    (
        &["claude-opus-4", "claude-sonnet-4", "claude-haiku-4", "claude-3-7"],
        Family { thinking: Thinking::Tokens, output: OutputMode::Never, ..SAMPLED_CLAUDE },
    ),
    (
        &["claude-3", "claude-2", "claude-instant"],
        Family { efforts: CHAT.efforts, thinking: Thinking::Never, output: OutputMode::Never, ..SAMPLED_CLAUDE },
    ),
    (&[""], CLAUDE),
];

const OPENAI: Rows = &[
    (&["chatgpt-"], Family { cache: Cache::Minutes, ..CHAT }),
    (&["gpt-4o", "gpt-4.1-mini", "gpt-4.1-nano"], Family { cache: Cache::Minutes, output: OutputMode::Always, ..CHAT }),
    (&["gpt-4.1"], Family { cache: Cache::MinutesOrDay, output: OutputMode::Always, ..CHAT }),
    (&["gpt-3", "gpt-4"], CHAT),
    (&["o1-mini", "o1-preview"], Family { efforts: &[], output: OutputMode::Never, ..GPT }),
    (&["o1", "o3", "o4"], Family { seed_max: CHAT.seed_max, ..GPT }),
    (&["gpt-5-chat", "gpt-5.1-chat", "gpt-5.2-chat", "gpt-5.3-chat"], Family { efforts: &[], ..GPT }),
    (&["gpt-5-pro"], Family { efforts: &[Effort::High], ..PRO_GPT }),
    (&["gpt-5.2-pro", "gpt-5.4-pro"], PRO_GPT),
    (&["gpt-5.5-pro"], Family { cache: Cache::Day, ..PRO_GPT }),
    (&["gpt-5-codex", "gpt-5.1-codex", "gpt-5.3-codex"], Family { cache: Cache::MinutesOrDay, ..GPT }),
    (&["gpt-5-mini", "gpt-5-nano", "gpt-5.2-codex"], GPT),
    (&["gpt-5.4-mini", "gpt-5.4-nano"], QUIET_GPT),
    (&["gpt-5.1", "gpt-5.2", "gpt-5.4"], Family { cache: Cache::MinutesOrDay, ..QUIET_GPT }),
    (&["gpt-5.5"], Family { cache: Cache::Day, ..QUIET_GPT }),
    (&["gpt-5.6", "gpt-6-sol", "gpt-6-luna", "gpt-6.1-terra"], QUIET_GPT),
    (&["gpt-5."], GPT),
    (&["gpt-5"], Family { cache: Cache::MinutesOrDay, ..GPT }),
    (&["gpt-"], GPT),
    (&[""], Family { output: OutputMode::Always, ..UNASKED }),
];

/// Since 3.6, and in 3.5 Flash-Lite, Gemini accepts temperature and `top_p`, and ignores them.
const GOOGLE: Rows = &[
    (
        &["gemini-1", "gemini-2.0"],
        Family { efforts: CHAT.efforts, thinking: Thinking::Never, output: OutputMode::Never, ..SAMPLED_GEMINI },
    ),
    (&["gemini-2.5-flash"], Family { efforts: ALL, ..OLDER_GEMINI }),
    (&["gemini-2.5"], OLDER_GEMINI),
    (&["gemini-3.5-flash-lite"], GEMINI),
    (&["gemini-3-", "gemini-3.1", "gemini-3.5"], SAMPLED_GEMINI),
    (&["gemini-3"], GEMINI),
    (&[""], Family { efforts: &[], ..GEMINI }),
];

impl Family {
    /// Returns the family of a model.
    pub(super) fn of(api: Api, preset: Option<Preset>, model: &str) -> Self {
        let rows = match api {
            Api::Anthropic => ANTHROPIC,
            Api::OpenAi => OPENAI,
            Api::Gemini => GOOGLE,
            Api::Compatible => {
                return match preset {
                    Some(Preset::LmStudio) => Family { output: OutputMode::WithoutTools, ..UNASKED },
                    Some(Preset::OpenRouter) => OPEN_ROUTER,
                    Some(Preset::Ollama | Preset::Vllm | Preset::LlamaCpp) | None => SERVER,
                };
            }
        };
        let fits = |names: &[&str]| names.iter().any(|name| model.starts_with(name));
        rows.iter().find(|(names, _)| fits(names)).map_or(UNASKED, |(_, family)| *family)
    }

    /// Returns true if it has a mode for an answer by a schema in a request with or without tools.
    pub(super) fn has_output_mode(&self, with_tools: bool) -> bool {
        match self.output {
            OutputMode::Never => false,
            OutputMode::WithoutTools => !with_tools,
            OutputMode::Always => true,
        }
    }

    /// Returns the name of the first option that is set and that the family does not have.
    pub(super) fn lacks(&self, options: &ModelOptions) -> Option<&'static str> {
        let ModelOptions { max_output_tokens: _, temperature, top_p, stop, seed, effort, cache } = options;
        let thinks = effort.is_some_and(|effort| effort != Effort::None);
        let is_close = |number: f64, least: f64| (if thinks { least } else { 0.0 }..=1.0).contains(&number);
        let has_sampling = |is_one_of: bool| match self.sampling {
            Sampling::Never => false,
            Sampling::Unthinking => *effort == Some(Effort::None),
            Sampling::OneOf => is_one_of,
            Sampling::Free => true,
        };
        let has = [
            ("temperature", temperature.is_none_or(|number| has_sampling(is_close(number, 1.0)))),
            ("top_p", top_p.is_none_or(|number| has_sampling(temperature.is_none() && is_close(number, 0.95)))),
            ("stop", self.has_stop || stop.as_ref().is_none_or(Vec::is_empty)),
            ("seed", seed.is_none_or(|seed| self.seed_max.is_some_and(|max| seed <= max))),
            ("effort", effort.is_none_or(|effort| self.efforts.contains(&effort))),
            ("cache", cache.is_none_or(|time| self.cache.has(time))),
        ];
        has.into_iter().find_map(|(name, has)| (!has).then_some(name))
    }
}

impl Cache {
    const fn has(self, time: CacheTime) -> bool {
        match time {
            CacheTime::Short => matches!(self, Self::Minutes | Self::Hour | Self::MinutesOrDay),
            CacheTime::Long => matches!(self, Self::Hour | Self::Day | Self::MinutesOrDay),
        }
    }
}
