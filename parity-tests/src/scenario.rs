//! Scenario files. A file is a story: a comment that tells it, options, and steps in order.
//!
//! In `params`, in expectations and in events a string is taken literally but for these:
//! `$null` is null (TOML has none), `$any` is anything at all, `$contains <text>` is a text with that in it, and
//! any other `$name` is the value of that name: the first expectation that meets it binds it, every later one
//! compares, and parameters send it. `$dir` is a fresh folder for the test tools, `$unknown` the id of no session.
//! An object must have exactly the expected members, unless the step has `partial = true`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without its ending.
    #[serde(skip)]
    pub name: String,
    /// Options, by the sections of `config/meerkat.toml`.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// The steps, in order.
    #[serde(rename = "step")]
    pub steps: Vec<Step>,
}

/// A step: exactly one of `operation`, `await`, `until`, `file`, `reproject` and `restart`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Step {
    /// Asks for an operation with `params`, and compares its answer with `ok`, `error` or `events`.
    pub operation: Option<String>,
    /// The parameters of the operation.
    pub params: Map<String, Value>,
    /// The capabilities that the request needs, with blanks between them. The expected answer is the code of the first one
    /// that is absent.
    pub needs: Option<String>,
    /// Does not wait for the answer; a later step awaits it by this name.
    #[serde(rename = "async")]
    pub detached: Option<String>,
    /// Waits for the answer of this name.
    #[serde(rename = "await")]
    pub awaited: Option<String>,
    /// Follows the session in `params` until an event of this type comes, after those that were met before.
    pub until: Option<String>,
    /// That event: a whole line, or some of its members.
    pub event: Option<Value>,
    /// Compares a file of the test tools with `content`; without `content` there must be none.
    pub file: Option<String>,
    /// The content of the file.
    pub content: Option<String>,
    /// Takes each file of the projection in `$dir` away, and has `rebuild_projection` bring it back to the byte. Those
    /// of the session in `params` must have all of its events, and everything that was said.
    pub reproject: bool,
    /// Ends the process and starts another one over the same data.
    pub restart: Option<Restart>,
    /// Sends the request so many times at once; the answers must be the same to the letter.
    pub times: Option<usize>,
    /// Has `run` show its turn's events while it runs; `events` are the durable ones, from the turn's acceptance on.
    pub streamed: bool,
    /// The answer.
    pub ok: Option<Value>,
    /// The refusal.
    pub error: Option<Refusal>,
    /// The answer of `events`: each a whole line, byte for byte, or a table of some of its members.
    pub events: Option<Vec<Value>>,
    /// Whether `ok` names only some of the members.
    pub partial: bool,
    /// The answer if the service has a capability, instead of the one above.
    pub given: Option<Given>,
}

/// The different answer of a service with a capability.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Given {
    /// The capability.
    pub capability: String,
    /// The answer.
    pub ok: Option<Value>,
    /// The refusal.
    pub error: Option<Refusal>,
    /// The answer of `events`.
    pub events: Option<Vec<Value>>,
}

/// How many answers are expected.
fn answers(ok: Option<&Value>, error: Option<&Refusal>, events: Option<&Vec<Value>>) -> usize {
    usize::from(ok.is_some()) + usize::from(error.is_some()) + usize::from(events.is_some())
}

/// How a process ends.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    /// As its user ends it.
    Orderly,
    /// Within an instant.
    Kill,
}

/// A refusal: the body. Its message is compared only if the contract fixes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// The code.
    pub code: String,
    /// The message, to the letter.
    pub message: Option<String>,
    /// Whether the same request can succeed later.
    #[serde(default)]
    pub retryable: bool,
    /// The details, whole.
    #[serde(default = "nothing")]
    pub details: Value,
}

fn nothing() -> Value {
    Value::Object(Map::new())
}

/// The folder of the scenarios.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

/// Every scenario, in the order of the files' names.
pub fn all() -> Result<Vec<Scenario>, String> {
    let unreadable = |error: std::io::Error| format!("{}: {error}", folder().display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder()).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    paths.iter().map(|path| load(path)).collect()
}

fn load(path: &Path) -> Result<Scenario, String> {
    let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    if !text.starts_with("# ") {
        return Err(format!("{name}: a scenario opens with a comment that tells its story"));
    }
    let mut scenario: Scenario = toml_edit::de::from_str(&text).map_err(|error| format!("{name}: {error}"))?;
    for (index, step) in scenario.steps.iter().enumerate() {
        step.check(&scenario.steps[..index]).map_err(|why| format!("{name}, step {}: {why}", index + 1))?;
    }
    scenario.name = name;
    Ok(scenario)
}

/// Whether an expectation names a session, at any depth.
fn names(expected: &Value, session: &Value) -> bool {
    match expected {
        Value::Object(members) => {
            members.iter().any(|(name, member)| name == "session_id" && member == session || names(member, session))
        }
        Value::Array(items) => items.iter().any(|item| names(item, session)),
        _ => false,
    }
}

impl Step {
    /// Whether another step runs at the same time.
    pub fn is_concurrent(&self) -> bool {
        self.detached.is_some() || self.times.is_some() || self.streamed
    }

    /// The step with the answer that such a service gives.
    pub fn answered(&self, has: impl Fn(&str) -> bool) -> Self {
        let mut step = self.clone();
        if let Some(Given { ok, error, events, .. }) = step.given.take_if(|given| has(&given.capability)) {
            (step.ok, step.error, step.events) = (ok, error, events);
        }
        step
    }

    /// Refuses a step that cannot be checked.
    fn check(&self, earlier: &[Self]) -> Result<(), &'static str> {
        let is_named_by = |session: &Value, step: &Self| step.ok.as_ref().is_some_and(|ok| names(ok, session));
        if let Some(session) = self.params.get("session_id")
            && session.as_str().is_some_and(|session| session.starts_with('$') && session != "$unknown")
            && !earlier.iter().any(|step| is_named_by(session, step))
        {
            return Err("no step before it names that session");
        }
        let kinds = [
            self.operation.is_some(),
            self.awaited.is_some(),
            self.until.is_some(),
            self.file.is_some(),
            self.reproject,
            self.restart.is_some(),
        ];
        if kinds.iter().filter(|kind| **kind).count() != 1 {
            return Err("it is exactly one of operation, await, until, file, reproject and restart");
        }
        let answers_of = |given: &Given| answers(given.ok.as_ref(), given.error.as_ref(), given.events.as_ref());
        let answers = answers(self.ok.as_ref(), self.error.as_ref(), self.events.as_ref());
        let is_answered = (self.operation.is_some() && self.detached.is_none()) || self.awaited.is_some();
        if answers != usize::from(is_answered) {
            return Err("an answer is compared with exactly one of ok, error and events, and nothing else is");
        }
        let is_run = self.operation.as_deref() == Some("run");
        if self.streamed && !(is_run && self.events.is_some() && self.detached.is_none()) {
            return Err("only run is streamed, and compared with events");
        }
        if self.times.is_some() && (self.operation.is_none() || self.detached.is_some()) {
            return Err("times belongs to an operation whose answer is waited for");
        }
        if self.given.as_ref().is_some_and(|given| !is_answered || answers_of(given) != 1) {
            return Err("given belongs to an answer, and is exactly one of ok, error and events");
        }
        if self.event.is_some() && self.until.is_none() {
            return Err("event belongs to until");
        }
        Ok(())
    }
}
