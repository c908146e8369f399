//! Drives the command line, as a script would: lines of `/call` in `meerkat chat --json` for sessions that are live in it,
//! and `meerkat call` in a process each for everything else. Exit codes are those of the contract; the flags of `chat` and
//! `run` are written here, because these two are not calls.

use std::{collections::BTreeSet, process::Output, thread};

use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{
    bundle, numbers_of,
    process::{Process, Read, meerkat, meerkat_for_people, output},
};
use crate::{
    contract::contract,
    driver::{Answer, Driver, Lines, Pending, Place},
    run::type_of,
};

/// The command line.
pub(super) struct Cli {
    place: Place,
    chat: Option<Process>,
    /// Sessions that the chat has made.
    live: BTreeSet<String>,
    /// Files that bundles went through.
    bundles: usize,
}

impl Cli {
    pub(super) fn new(place: Place) -> Self {
        Self { place, chat: None, live: BTreeSet::new(), bundles: 0 }
    }

    /// Makes a session: the first one with the chat itself, another one by `/call`.
    fn create(&mut self, params: &Map<String, Value>) -> Result<Pending, String> {
        let answer = match &mut self.chat {
            Some(chat) => chat.ask(|_| line(&call("create_session", params)))?.wait()?,
            None => {
                let mut params = params.clone();
                if let Some(history) = params.get_mut("history") {
                    // The flag names a file.
                    let file = self.place.folder.join("history.json");
                    std::fs::write(&file, history.to_string())
                        .map_err(|error| format!("{}: {error}", file.display()))?;
                    *history = json!(file);
                }
                let mut command = meerkat(&self.place);
                command.args(words("chat", &params));
                let (process, unasked) = Process::start(command, &self.place, read)?;
                let answer = unasked.wait()?;
                match &answer {
                    Ok(_) => self.chat = Some(process),
                    Err(body) => check_exit_code(body, process.exit_code())?,
                }
                answer
            }
        };
        if let Ok(created) = &answer {
            let created: Value = serde_json::from_str(created).map_err(|error| error.to_string())?;
            self.live.extend(created["session_id"].as_str().map(str::to_owned));
        }
        Ok(Pending::ready(answer))
    }

    /// A bundle goes through a file, so it is written and read here.
    fn through_file(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        self.bundles += 1;
        let file = self.place.folder.join(format!("bundle-{}.tar", self.bundles));
        let mut params = params.clone();
        if operation == "import_bundle" {
            let bytes = bundle::take(&mut params)?;
            std::fs::write(&file, bytes).map_err(|error| format!("{}: {error}", file.display()))?;
            let mut words = ["sessions", "import"].map(str::to_owned).to_vec();
            params.iter().for_each(|(name, value)| flag(&mut words, name, value));
            return Ok(self.perform(words.into_iter().chain([file.display().to_string()]).collect()));
        }
        let session = params.remove("session_id").as_ref().map(text).unwrap_or_default();
        let mut words =
            vec!["sessions".to_owned(), "export".to_owned(), "--output".to_owned(), file.display().to_string()];
        params.iter().for_each(|(name, value)| flag(&mut words, name, value));
        words.extend(["--".to_owned(), session.clone()]);
        let answer = self.perform(words).wait()?;
        let Ok(said) = answer else { return Ok(Pending::ready(answer)) };
        let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let said: Value = serde_json::from_str(&said).map_err(|error| format!("{said}: {error}"))?;
        let expected = json!({ "file": file, "bytes": bytes.len(), "sessions": [session] });
        if said != expected {
            return Err(format!("the export should answer {expected}, but answers {said}"));
        }
        Ok(Pending::ready(Ok(bundle::page(&bytes))))
    }

    /// Runs a command in a process of its own.
    fn perform(&self, words: Vec<String>) -> Pending {
        let mut command = meerkat(&self.place);
        command.args(words);
        let (sender, pending) = Pending::channel();
        thread::spawn(move || {
            // The caller may have given up.
            drop(sender.send(output(&mut command).and_then(|output| ended(&output))));
        });
        pending
    }
}

impl Driver for Cli {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        let is_live = params.get("session_id").and_then(Value::as_str).is_some_and(|id| self.live.contains(id));
        match &mut self.chat {
            _ if operation == "create_session" => self.create(params),
            _ if ["export_session", "import_bundle"].contains(&operation) => self.through_file(operation, params),
            Some(chat) if is_live => chat.ask(|_| line(&call(operation, params))),
            _ if operation == "run" => Ok(self.perform(words("run", params))),
            _ => Ok(self.perform(call(operation, params))),
        }
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        let chat = self.chat.as_mut().ok_or("no chat runs")?;
        let (session, since, until) =
            (format!("session_id={session_id}"), format!("since_seq={since_seq}"), format!("until={until}"));
        let words = ["call", "session/subscribe", &session, &since, &until].map(str::to_owned);
        let line = chat.ask(|_| line(&words))?.wait()?;
        Ok(line.map(|line| vec![line]))
    }

    /// `run --events`, which prints the session's lines, from its creation on.
    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        let mut command = meerkat_for_people(&self.place);
        let mut words = words("run", params);
        words.insert(1, "--events".to_owned());
        let output = output(command.args(words))?;
        let code = output.status.code();
        if output.stdout.is_empty() {
            // A refusal prints its body only with `--json`. It has changed nothing, so it can be repeated.
            return match self.perform(self::words("run", params)).wait()? {
                Err(body) if code == Some(numbers_of(&body)?.exit.into()) => Ok(Err(body)),
                Err(body) => Err(format!("the exit code was {code:?}, but the refusal is {body}")),
                Ok(answer) => Err(format!("nothing was shown of a turn that answers {answer}")),
            };
        }
        let said = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        if lines.first().is_none_or(|line| type_of(line) != "session_created") {
            return Err(format!("the first line should be the session's creation: {said}"));
        }
        lines.remove(0);
        let last = lines.last().filter(|line| type_of(line) == until);
        let last = last.ok_or_else(|| format!("the last line should be {until}: {said}"))?;
        let ended: Value = serde_json::from_str(last).map_err(|error| format!("{last}: {error}"))?;
        let failure = ended.get("error").map(numbers_of).transpose()?;
        let expected = failure.map_or(0, |numbers| i32::from(numbers.exit));
        if code == Some(expected) {
            Ok(Ok(lines))
        } else {
            Err(format!("the exit code should be {expected} after {last}, but is {code:?}"))
        }
    }

    fn streams_apart(&self) -> bool {
        true
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.chat.map_or(Ok(()), |chat| chat.end(true))
    }
}

/// The words of a call. A text is written as one, unless it would be read as another value.
fn call(operation: &str, params: &Map<String, Value>) -> Vec<String> {
    // An operation outside the contract keeps its name.
    let name = contract().operations.get(operation).map_or(operation, |spelling| &spelling.rpc);
    let words = params.iter().map(|(name, value)| match value.as_str() {
        Some(text) if !serde_json::from_str::<Value>(text).is_ok_and(|read| !read.is_string()) => {
            format!("{name}={text}")
        }
        _ => format!("{name}:={value}"),
    });
    ["call".to_owned(), name.to_owned(), "--".to_owned()].into_iter().chain(words).collect()
}

/// The words of `chat` or `run`, with their flags.
fn words(command: &str, params: &Map<String, Value>) -> Vec<String> {
    let mut words = vec![command.to_owned()];
    params.iter().filter(|(name, _)| *name != "prompt").for_each(|(name, value)| flag(&mut words, name, value));
    if let Some(prompt) = params.get("prompt") {
        words.extend(["--".to_owned(), text(prompt)]);
    }
    words
}

/// A parameter as flags.
fn flag(words: &mut Vec<String>, name: &str, value: &Value) {
    let name = match name {
        "system_prompt" => "system",
        "compaction" => "compact",
        "budgets" => "budget",
        "labels" => "label",
        "auto_compact_threshold" => "threshold",
        "recent_turn_budget" => "keep-turns",
        "max_summary_tokens" => "summary-tokens",
        "min_turns_between_compactions" => "guard-turns",
        other => other,
    };
    let flag = format!("--{}", name.replace('_', "-"));
    match value {
        Value::Object(members) if name == "label" => {
            for (label, value) in members {
                words.extend([flag.clone(), format!("{label}={}", text(value))]);
            }
        }
        Value::Object(members) if name == "memory" => {
            words
                .extend(members.get("scope").map(|scope| [format!("{flag}-scope"), text(scope)]).into_iter().flatten());
            words.extend((members.get("index") == Some(&Value::Bool(false))).then(|| "--no-memory-index".to_owned()));
        }
        Value::Object(members) if name == "options" => {
            for (member, value) in members {
                // Only this flag takes one text and may be repeated.
                let texts = value.as_array().filter(|_| member == "stop").cloned();
                let texts = texts.map(|texts| if texts.is_empty() { vec![json!("")] } else { texts });
                for value in texts.unwrap_or_else(|| vec![value.clone()]) {
                    self::flag(words, member, &value);
                }
            }
        }
        // The flag is in dollars.
        Value::Object(money) if name == "cost" => {
            words.extend([flag, money.get("amount").map(text).unwrap_or_default()])
        }
        Value::Object(members) => {
            for (member, value) in members {
                let mut inner = Vec::new();
                self::flag(&mut inner, member, value);
                words.extend(inner.iter().map(|word| match word.strip_prefix("--") {
                    Some(rest) => format!("{flag}-{rest}"),
                    None => word.clone(),
                }));
            }
        }
        Value::Array(items) => words.extend([flag, items.iter().map(text).collect::<Vec<_>>().join(",")]),
        Value::Bool(is_set) => words.extend(is_set.then_some(flag)),
        value => words.extend([flag, text(value)]),
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A line of chat with these words. Its answer carries its number, which is that of the request: each sends one line.
fn line(words: &[String]) -> String {
    let quote = |word: &String| {
        let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace('\t', "\\t");
        format!("\"{escaped}\"")
    };
    format!("/{}", words.iter().map(quote).collect::<Vec<_>>().join(" "))
}

/// Reads a line that chat prints: an answer with its number, or the one that it begins with.
fn read(line: &str) -> Read {
    #[derive(Deserialize)]
    struct Numbered<'a> {
        line: u64,
        #[serde(borrow)]
        answer: &'a RawValue,
    }

    match serde_json::from_str::<Numbered<'_>>(line) {
        Ok(Numbered { line, answer }) => Ok(Some((line, document(answer.get())?))),
        Err(_) => Ok(Some((0, document(line)?))),
    }
}

/// A document, which is an answer unless it has a `code`.
fn document(text: &str) -> Result<Answer, String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{text} is no JSON: {error}"))?;
    Ok(if value.get("code").is_some() { Err(value) } else { Ok(text.to_owned()) })
}

/// The answer of a process that has ended: one document, with its exit code and message.
fn ended(output: &Output) -> Result<Answer, String> {
    let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = said.strip_suffix('\n').filter(|text| !text.contains('\n'));
    let answer = document(text.ok_or_else(|| format!("not one line on standard output: {said:?}, {told:?}"))?)?;
    let failure = match &answer {
        Err(body) => body.clone(),
        // A turn that has ended is an answer, however it ended; the exit code is that of its error.
        Ok(answer) => serde_json::from_str::<Value>(answer).map_err(|error| error.to_string())?["error"].take(),
    };
    check_exit_code(&failure, output.status.code())?;
    let message = failure["message"].as_str().unwrap_or_default();
    if told.contains(message) { Ok(answer) } else { Err(format!("standard error lacks {message:?}: {told:?}")) }
}

fn check_exit_code(failure: &Value, came: Option<i32>) -> Result<(), String> {
    let expected = if failure.is_null() { 0 } else { i32::from(numbers_of(failure)?.exit) };
    if came == Some(expected) {
        Ok(())
    } else {
        Err(format!("the exit code should be {expected}, but is {came:?}: {failure}"))
    }
}
