//! Parser of scripts in prompts.
//!
//! It never guesses: a mistake is refused with the directive's name and its written form.

use std::{
    num::{NonZeroU64, NonZeroUsize},
    time::Duration,
};

use meerkat_errors::ErrorCode;
use serde_json::value::RawValue;

use super::rejected;
use crate::{ModelError, StopReason};
use meerkat_words::message::RawJson;

/// Most directives of a script.
const DIRECTIVES_MAX: usize = 1000;

/// Most bytes of all `@long` of a script.
const LONG_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Directives and their written forms.
pub(super) const FORMS: &[(&str, &str)] = &[
    ("say", "@say <text>"),
    ("think", "@think <text>"),
    ("json", "@json <json value>"),
    ("long", "@long <bytes>"),
    ("echo", "@echo [messages|first|tail|tools|system|last_result|results|attempt|options|output|blocks]"),
    ("call", "@call <tool> [{json object}]"),
    ("args", "@args <tool> <raw text>"),
    ("step", "@step"),
    ("repeat", "@repeat <times>"),
    ("usage", "@usage [in=N] [out=N] [cached=N] [written=N] [reasoning=N]"),
    ("stop", "@stop end_turn|max_tokens|refusal|content_filter"),
    ("chunks", "@chunks <characters>"),
    ("fail", "@fail unauthorized|rate_limited|overloaded|timeout|context|rejected [retry_after_ms=N] [times=N]"),
    ("cut", "@cut [times=N]"),
    ("stall", "@stall [times=N]"),
    ("note", "@note <text>"),
    ("compaction", "@compaction"),
    ("summarise", "@summarise drop|negate|paraphrase"),
];

/// One call's actions of the model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Step {
    pub(super) actions: Vec<Action>,
    /// Times to play it before the next step; once if absent.
    pub(super) repeat: Option<NonZeroU64>,
    pub(super) usage: ScriptedUsage,
    pub(super) stop: Option<StopReason>,
}

/// Usage that a step reports, as far as it is scripted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ScriptedUsage {
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) cached: Option<u64>,
    pub(super) written: Option<u64>,
    pub(super) reasoning: Option<u64>,
}

/// Action of the model.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Streams words.
    Say { is_reasoning: bool, words: Words, chunks: Chunks },
    /// Calls a tool.
    Call { tool: String, arguments: RawJson },
    /// Fails while the step was tried fewer than `times` times before.
    Failure { failure: Failure, times: u32 },
}

/// Source of text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Words {
    Plain(String),
    Filler(usize),
    Echo(Echo),
    Summary(Distortion),
}

/// Deliberate error of a summary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Distortion {
    /// Every second sentence is left out.
    Drop,
    /// Every sentence says that it is not so.
    Negate,
    /// Other words in another order.
    Paraphrase,
}

/// Size of the streamed parts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Chunks {
    #[default]
    Words,
    Characters(NonZeroUsize),
}

/// Part of the request that an echo describes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Echo {
    All,
    Messages,
    First,
    Tail,
    Tools,
    System,
    LastResult,
    Results,
    Attempt,
    Options,
    Output,
    Blocks,
}

/// Kind of failure of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    Fail { code: ErrorCode, retry_after: Option<Duration> },
    Cut,
    Stall,
}

/// Scripts of a prompt.
#[derive(Debug, Default)]
pub(super) struct Scripts {
    /// Steps of its turn.
    pub(super) steps: Vec<Step>,
    /// Steps of a call for a summary.
    pub(super) compaction: Option<Vec<Step>>,
}

/// Parses a script; a prompt that does not begin with `@` has no steps.
pub(super) fn parse(prompt: &str) -> Result<Scripts, ModelError> {
    let mut cursor = Cursor { rest: prompt.trim_start() };
    let mut script = Script::default();
    if !cursor.rest.starts_with('@') {
        return Ok(Scripts::default());
    }
    while !cursor.rest.is_empty() {
        script.directives += 1;
        if script.directives > DIRECTIVES_MAX {
            return Err(rejected(format!("the script has more than {DIRECTIVES_MAX} directives")));
        }
        let name = cursor.name()?;
        let Some((name, form)) = FORMS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<String> = FORMS.iter().map(|(known, _)| format!("@{known}")).collect();
            return Err(rejected(format!("the script has no @{name}; it may have {}", known.join(" "))));
        };
        directive(name, &mut cursor, &mut script)
            .map_err(|why| rejected(format!("the script's @{name} {why}; it is written {form}")))?;
    }
    script.next_step();
    Ok(match script.turn {
        Some(steps) => Scripts { steps, compaction: Some(script.steps) },
        None => Scripts { steps: script.steps, compaction: None },
    })
}

/// Script parsed so far.
#[derive(Default)]
struct Script {
    steps: Vec<Step>,
    /// Step being parsed.
    step: Step,
    chunks: Chunks,
    directives: usize,
    long_bytes: usize,
    /// Steps of the turn, while those of its compactions are parsed.
    turn: Option<Vec<Step>>,
}

impl Script {
    fn next_step(&mut self) {
        self.steps.push(std::mem::take(&mut self.step));
    }

    /// Returns the step for a directive other than a call: calls end a step.
    fn open_step(&mut self) -> &mut Step {
        if matches!(self.step.actions.last(), Some(Action::Call { .. })) {
            self.next_step();
        }
        &mut self.step
    }

    fn say(&mut self, is_reasoning: bool, words: Words) {
        let chunks = self.chunks;
        self.open_step().actions.push(Action::Say { is_reasoning, words, chunks });
    }
}

/// Parses the rest of a directive. The error continues "the script's @name ...".
fn directive(name: &str, cursor: &mut Cursor<'_>, script: &mut Script) -> Result<(), String> {
    match name {
        "say" => script.say(false, Words::Plain(cursor.text()?)),
        "think" => script.say(true, Words::Plain(cursor.text()?)),
        "json" => script.say(false, Words::Plain(cursor.value()?.to_owned())),
        "long" => {
            let bytes = number::<NonZeroUsize>(cursor.raw())?.get();
            script.long_bytes = script.long_bytes.saturating_add(bytes);
            if script.long_bytes > LONG_BYTES_MAX {
                return Err(format!("says at most {LONG_BYTES_MAX} bytes in a script"));
            }
            script.say(false, Words::Filler(bytes));
        }
        "echo" => script.say(false, Words::Echo(echo(cursor.raw())?)),
        "call" | "args" => {
            let tool = cursor.word().ok_or("names no tool")?.to_owned();
            let arguments = if name == "call" { cursor.object()? } else { as_json_string(cursor.text()?)? };
            script.step.actions.push(Action::Call { tool, arguments });
        }
        "step" => {
            nothing(cursor.raw())?;
            let is_first = script.steps.is_empty() && script.step == Step::default();
            if !is_first {
                script.next_step();
            }
        }
        "compaction" => {
            nothing(cursor.raw())?;
            if script.turn.is_some() {
                return Err("appears more than once".to_owned());
            }
            script.next_step();
            script.turn = Some(std::mem::take(&mut script.steps));
        }
        "summarise" => script.say(false, Words::Summary(distortion(cursor.raw())?)),
        "repeat" => script.open_step().repeat = Some(number(cursor.raw())?),
        "usage" => script.step.usage = usage(cursor.raw())?,
        "stop" => script.step.stop = Some(stop(cursor.raw())?),
        "chunks" => script.chunks = Chunks::Characters(number(cursor.raw())?),
        "fail" | "cut" | "stall" => {
            let action = failure(name, cursor.raw())?;
            script.open_step().actions.push(action);
        }
        _ => drop(cursor.raw()),
    }
    Ok(())
}

fn echo(raw: &str) -> Result<Echo, String> {
    Ok(match raw {
        "" => Echo::All,
        "messages" => Echo::Messages,
        "first" => Echo::First,
        "tail" => Echo::Tail,
        "tools" => Echo::Tools,
        "system" => Echo::System,
        "last_result" => Echo::LastResult,
        "results" => Echo::Results,
        "attempt" => Echo::Attempt,
        "options" => Echo::Options,
        "output" => Echo::Output,
        "blocks" => Echo::Blocks,
        other => return Err(format!("cannot tell {other:?}")),
    })
}

fn distortion(raw: &str) -> Result<Distortion, String> {
    Ok(match raw {
        "drop" => Distortion::Drop,
        "negate" => Distortion::Negate,
        "paraphrase" => Distortion::Paraphrase,
        other => return Err(format!("does not take {other:?}")),
    })
}

fn usage(raw: &str) -> Result<ScriptedUsage, String> {
    let mut usage = ScriptedUsage::default();
    for option in raw.split_whitespace() {
        match option.split_once('=') {
            Some(("in", value)) => usage.input = Some(number(value)?),
            Some(("out", value)) => usage.output = Some(number(value)?),
            Some(("cached", value)) => usage.cached = Some(number(value)?),
            Some(("written", value)) => usage.written = Some(number(value)?),
            Some(("reasoning", value)) => usage.reasoning = Some(number(value)?),
            _ => return Err(format!("does not take {option:?}")),
        }
    }
    Ok(usage)
}

fn stop(raw: &str) -> Result<StopReason, String> {
    Ok(match raw {
        "end_turn" => StopReason::EndTurn,
        "max_tokens" => StopReason::MaxTokens,
        "refusal" => StopReason::Refusal,
        "content_filter" => StopReason::ContentFilter,
        other => return Err(format!("does not take {other:?}")),
    })
}

fn failure(name: &str, raw: &str) -> Result<Action, String> {
    let mut options = raw.split_whitespace();
    let code = if name == "fail" { Some(class(options.next().unwrap_or_default())?) } else { None };
    let (mut retry_after, mut times) = (None, u32::MAX);
    for option in options {
        match option.split_once('=') {
            Some(("times", value)) => times = number(value)?,
            Some(("retry_after_ms", value)) if code.is_some() => {
                retry_after = Some(Duration::from_millis(number(value)?))
            }
            _ => return Err(format!("does not take {option:?}")),
        }
    }
    let failure = match (name, code) {
        (_, Some(code)) => Failure::Fail { code, retry_after },
        ("cut", _) => Failure::Cut,
        _ => Failure::Stall,
    };
    Ok(Action::Failure { failure, times })
}

fn class(name: &str) -> Result<ErrorCode, String> {
    Ok(match name {
        "unauthorized" => ErrorCode::ModelUnauthorized,
        "rate_limited" => ErrorCode::ModelRateLimited,
        "overloaded" => ErrorCode::ModelOverloaded,
        "timeout" => ErrorCode::ModelTimeout,
        "context" => ErrorCode::ModelContextExceeded,
        "rejected" => ErrorCode::ModelRejected,
        other => return Err(format!("does not know the class {other:?}")),
    })
}

fn number<T: std::str::FromStr>(raw: &str) -> Result<T, String> {
    raw.parse().map_err(|_| format!("needs a number within its range, not {raw:?}"))
}

fn nothing(raw: &str) -> Result<(), String> {
    if raw.is_empty() { Ok(()) } else { Err(format!("takes nothing, not {raw:?}")) }
}

/// Wraps arguments that are not a JSON object in a JSON string.
fn as_json_string(text: String) -> Result<RawJson, String> {
    RawJson::parse(&serde_json::Value::String(text).to_string()).map_err(|error| error.to_string())
}

/// Rest of the script to parse.
struct Cursor<'a> {
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    /// Takes the name of the directive that begins here.
    fn name(&mut self) -> Result<&'a str, ModelError> {
        let Some(rest) = self.rest.strip_prefix('@') else {
            let stray: String = self.rest.chars().take(40).collect();
            return Err(rejected(format!("the script has {stray:?} where a directive should begin with @")));
        };
        let (name, rest) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        self.rest = rest;
        Ok(name)
    }

    /// Takes the text up to the next directive unchanged, without the white space around it.
    fn raw(&mut self) -> &'a str {
        let (mut end, mut is_word_start) = (self.rest.len(), true);
        let mut characters = self.rest.char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            if character == '@' && is_word_start && characters.next_if(|(_, next)| *next == '@').is_none() {
                end = at;
                break;
            }
            is_word_start = character.is_whitespace();
        }
        let (raw, rest) = self.rest.split_at(end);
        self.rest = rest;
        raw.trim()
    }

    /// Takes the text up to the next directive, with its escapes resolved.
    fn text(&mut self) -> Result<String, String> {
        let raw = self.raw();
        if raw.is_empty() { Err("has no text".to_owned()) } else { unescape(raw) }
    }

    /// Takes the next word, unless a directive or the end comes first.
    fn word(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let (word, rest) = rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
        if word.is_empty() || word.starts_with('@') {
            return None;
        }
        self.rest = rest;
        Some(word)
    }

    /// Takes one JSON object, kept to the letter; `{}` if a directive or the end comes first.
    fn object(&mut self) -> Result<RawJson, String> {
        self.rest = self.rest.trim_start();
        if self.rest.is_empty() || self.rest.starts_with('@') {
            return Ok(RawJson::empty_object());
        }
        if !self.rest.starts_with('{') {
            return Err("takes a JSON object; for other arguments there is @args".to_owned());
        }
        RawJson::parse(self.value()?).map_err(|error| error.to_string())
    }

    /// Takes one JSON value, kept to the letter.
    fn value(&mut self) -> Result<&'a str, String> {
        let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<&'a RawValue>();
        let value = values.next().ok_or("has no JSON")?.map_err(|error| format!("has broken JSON: {error}"))?;
        self.rest = self.rest[values.byte_offset()..].trim_start();
        Ok(value.get())
    }
}

/// Resolves `@@` at the beginning of a word and the escapes that begin with a backslash.
fn unescape(raw: &str) -> Result<String, String> {
    let (mut text, mut is_word_start) = (String::with_capacity(raw.len()), true);
    let mut characters = raw.chars();
    while let Some(character) = characters.next() {
        if character == '\\' {
            text.push(escape(&mut characters)?);
        } else {
            if character == '@' && is_word_start {
                characters.next();
            }
            text.push(character);
        }
        is_word_start = character.is_whitespace();
    }
    Ok(text)
}

/// Resolves the escape after a backslash.
fn escape(characters: &mut std::str::Chars<'_>) -> Result<char, String> {
    let unknown = || "has an unknown escape; there are \\n \\t \\s \\\\ \\u{HEX} and @@".to_owned();
    match characters.next() {
        Some('n') => Ok('\n'),
        Some('t') => Ok('\t'),
        Some('s') => Ok(' '),
        Some('\\') => Ok('\\'),
        Some('u') => {
            let (hex, rest) =
                characters.as_str().strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(unknown)?;
            *characters = rest.chars();
            u32::from_str_radix(hex, 16).ok().and_then(char::from_u32).ok_or_else(unknown)
        }
        _ => Err(unknown()),
    }
}
