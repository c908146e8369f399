//! Plays a scenario against a driver, step by step.
//!
//! It knows which capabilities the build lacks, and nothing of the surface.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use meerkat_errors::ErrorCode;
use meerkat_service::session::event::EventKind;
use meerkat_testkit::folder;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    builds::Build,
    driver::{Answer, Driver, Pending, Place, member},
    expect::{Names, absence, switched_off, unset},
    scenario::{Refusal, Restart, Scenario, Step},
};

/// How long a poll for an event may wait: less than a driver does. It is answered as soon as there is one.
pub const POLL_MS: u64 = 50_000;

/// The environment variable that stops the clock and makes ids by a seed, and its value in every trial except the plain ones.
pub const SEED: (&str, u64) = ("MEERKAT_TEST_SEED", 7);

/// The sections whose key `enabled` switches a capability off.
const SWITCHES: [(&str, &str); 2] = [("store", "session-store"), ("memory", "memory-store")];

/// The folder of the test tools within a trial's folder.
pub fn tools_folder(folder: &Path) -> PathBuf {
    folder.join("tools")
}

/// The scenario's options with `$dir` replaced.
pub fn config(scenario: &Scenario, folder: &Path) -> Map<String, Value> {
    let fill = |section: &Value| match section {
        Value::Object(keys) => keys
            .iter()
            .map(|(key, value)| match value.as_str() {
                Some("$dir") => (key.clone(), tools_folder(folder).display().to_string().into()),
                _ => (key.clone(), value.clone()),
            })
            .collect(),
        other => other.clone(),
    };
    patient(scenario.config.iter().map(|(name, section)| (name.clone(), fill(section))).collect())
}

/// Options with which a poll and a search wait as long as a loaded machine may need, and a command's folder is not its
/// session's workspace: other surfaces have none.
pub fn patient(mut config: Map<String, Value>) -> Map<String, Value> {
    let tools = config.entry("tools").or_insert_with(|| json!({}));
    if tools["access"].is_null() {
        tools["access"] = "off".into();
    }
    config.entry("limits").or_insert_with(|| json!({}))["wait_ms"] = 60_000.into();
    config
}

/// Makes a driver at a place.
pub type Maker<'a> = &'a dyn Fn(Place) -> Result<Box<dyn Driver>, String>;

/// Runs a trial: a scenario in a fresh folder. Returns how many of its steps the surface passes over; a failure begins with
/// the trial's name.
pub fn trial(name: &str, scenario: &Scenario, build: &Build, make: Maker<'_>) -> Result<usize, String> {
    let folder = folder();
    let config = config(scenario, folder.path());
    let (binaries, folder_path) = (build.binaries()?, folder.path().to_owned());
    let place = Place { binaries, folder: folder_path, config, is_plain: false, database: None };
    run(scenario, build, make, place).map_err(|why| {
        let log = std::fs::read_to_string(folder.path().join("stderr.txt")).unwrap_or_default();
        format!("{name}: {why}\nstandard error of the processes:\n{log}")
    })
}

/// Plays a scenario; returns how many of its steps the surface passes over.
pub fn run(scenario: &Scenario, build: &Build, make: Maker<'_>, place: Place) -> Result<usize, String> {
    let is_off = |section: &str| scenario.config.get(section).is_some_and(|section| section["enabled"] == false);
    let mut run = Run {
        build,
        switched_off: SWITCHES.into_iter().filter(|(section, _)| is_off(section)).map(|(_, of)| of).collect(),
        driver: Some(make(place.clone())?),
        make,
        place,
        names: Names::default(),
        pending: BTreeMap::new(),
        unsent: BTreeSet::new(),
        cursors: BTreeMap::new(),
        passed_over: 0,
    };
    for (index, step) in scenario.steps.iter().enumerate() {
        run.step(step).map_err(|why| format!("step {} ({}): {why}", index + 1, title(step)))?;
    }
    Ok(run.passed_over)
}

fn title(step: &Step) -> String {
    let name = step.operation.as_ref().or(step.until.as_ref()).or(step.awaited.as_ref()).or(step.file.as_ref());
    name.map_or_else(|| "restart".to_owned(), Clone::clone)
}

struct Run<'a> {
    build: &'a Build,
    /// Capabilities that the scenario's options switch off.
    switched_off: Vec<&'static str>,
    /// `None` if it could not be started again.
    driver: Option<Box<dyn Driver>>,
    make: Maker<'a>,
    place: Place,
    names: Names,
    /// Pending answers, each with the refusal that is expected from this build.
    pending: BTreeMap<String, (Pending, Option<Refusal>)>,
    /// The names of answers that will not come, because their steps were passed over.
    unsent: BTreeSet<String>,
    /// The last event of each session that `until` has met.
    cursors: BTreeMap<String, u64>,
    passed_over: usize,
}

impl Run<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let step = &step.answered(|capability| self.has(capability));
        if let Some(operation) = &step.operation {
            if self.driver()?.passes_over(operation).is_some() {
                self.passed_over += 1;
                self.unsent.extend(step.detached.clone());
                return Ok(());
            }
            if step.streamed {
                return self.stream(step);
            }
            let refusal = self.refusal(step)?;
            let params = Value::Object(step.params.clone());
            let params = match &refusal {
                Some(_) => self.names.fill_refused(&params)?,
                None => self.names.fill(&params)?,
            };
            let pending = self.send(operation, &params)?;
            match &step.detached {
                Some(name) => drop(self.pending.insert(name.clone(), (pending, refusal))),
                None => {
                    let others = (1..step.times.unwrap_or(1)).map(|_| self.send(operation, &params));
                    let others = others.collect::<Result<Vec<_>, _>>()?;
                    let answer = pending.wait()?;
                    for other in others {
                        let other = other.wait()?;
                        if other != answer {
                            return Err(format!("one answer is {answer:?}, and another one {other:?}"));
                        }
                    }
                    self.check(step, refusal, answer)?;
                }
            }
        } else if let Some(name) = &step.awaited {
            if self.unsent.remove(name) {
                self.passed_over += 1;
                return Ok(());
            }
            let (pending, refusal) = self.pending.remove(name).ok_or("nothing of that name was sent")?;
            self.check(step, refusal, pending.wait()?)?;
        } else if let Some(until) = &step.until {
            self.until(step, until)?;
        } else if let Some(name) = &step.file {
            let content = std::fs::read_to_string(tools_folder(&self.place.folder).join(name)).ok();
            if content != step.content {
                return Err(format!("the file should hold {:?}, but holds {content:?}", step.content));
            }
        } else if step.reproject {
            if self.has("session-store") && self.refusal(step)?.is_none() {
                self.reproject()?;
                self.is_projected(step)?;
            }
        } else {
            match (step.restart, self.driver.take()) {
                (Some(Restart::Orderly), Some(driver)) => driver.end()?,
                // A driver that is dropped kills its processes and waits for their end.
                (_, driver) => drop(driver),
            }
            self.driver = Some((self.make)(self.place.clone())?);
            if !self.has("session-store") {
                self.names.end_sessions();
            }
        }
        Ok(())
    }

    fn driver(&mut self) -> Result<&mut Box<dyn Driver>, String> {
        self.driver.as_mut().ok_or_else(|| "the surface could not be started again".to_owned())
    }

    fn is_passed_over(&self, operation: &str) -> bool {
        self.driver.as_ref().is_some_and(|driver| driver.passes_over(operation).is_some())
    }

    /// Whether the service has this capability: it is built, and not switched off.
    fn has(&self, capability: &str) -> bool {
        self.build.has(capability) && !self.switched_off.contains(&capability)
    }

    /// The refusal that takes the place of the step's own answer in this build, if one does.
    fn refusal(&self, step: &Step) -> Result<Option<Refusal>, String> {
        let mut needs = step.needs.iter().flat_map(|needs| needs.split_whitespace());
        match needs.find(|needs| !self.has(needs)) {
            Some(absent) if self.build.has(absent) => return switched_off(absent).map(Some),
            // Its programs have it.
            Some(absent) if !self.build.row.driven => {
                let is_off = self.switched_off.contains(&absent);
                return if is_off { switched_off(absent) } else { unset(absent) }.map(Some);
            }
            Some(absent) => return absence(absent).map(Some),
            None => {}
        }
        let session = step.params.get("session_id").and_then(Value::as_str);
        let not_found = || Refusal {
            code: "SESSION_NOT_FOUND".to_owned(),
            message: None,
            retryable: false,
            details: json!({ "session_id": "$unknown" }),
        };
        Ok(session.filter(|session| self.names.is_gone(session)).map(|_| not_found()))
    }

    fn send(&mut self, operation: &str, params: &Value) -> Result<Pending, String> {
        self.driver()?.send(operation, params.as_object().unwrap_or(&Map::new()))
    }

    fn check(&mut self, step: &Step, refusal: Option<Refusal>, answer: Answer) -> Result<(), String> {
        if let Some(refusal) = refusal.as_ref().or(step.error.as_ref()) {
            return match answer {
                Err(body) => explained(&body).and_then(|()| self.names.compare_refusal(refusal, &body)),
                Ok(answer) => Err(format!("it should be refused with {}, but answers {answer}", refusal.code)),
            };
        }
        let answer = answer.map_err(|body| format!("it should be answered, but is refused: {body}"))?;
        if let Some(expected) = &step.events {
            return self.check_events(expected, &answer);
        }
        let came: Value = serde_json::from_str(&answer).map_err(|error| format!("{answer} is no JSON: {error}"))?;
        explained(&came["error"])?;
        self.names.compare(step.ok.as_ref().unwrap_or(&Value::Null), &came, step.partial)
    }

    fn check_events(&mut self, expected: &[Value], answer: &str) -> Result<(), String> {
        let page = Page::read(answer)?;
        self.check_lines(expected, &page.lines())?;
        match page.items.last().and_then(|line| seq_of(line.get())) {
            Some(seq) if seq != page.next_seq => Err(format!("next_seq should be {seq}, but is {}", page.next_seq)),
            _ => Ok(()),
        }
    }

    fn check_lines(&mut self, expected: &[Value], lines: &[&str]) -> Result<(), String> {
        let kinds: Vec<&str> = lines.iter().map(|line| type_of(line)).collect();
        for (index, (expected, line)) in expected.iter().zip(lines).enumerate() {
            let why = |why| format!("event {}: {why}\nof {kinds:?}", index + 1);
            self.names.compare_line(expected, line).map_err(why)?;
        }
        if expected.len() != lines.len() {
            return Err(format!("there should be {} events, but there are {kinds:?}", expected.len()));
        }
        Ok(())
    }

    /// Runs a turn whose events are shown while it runs.
    fn stream(&mut self, step: &Step) -> Result<(), String> {
        let expected = step.events.as_deref().unwrap_or_default();
        let until = match expected.last() {
            Some(Value::String(line)) => type_of(line),
            last => last.and_then(|last| last["type"].as_str()).unwrap_or_default(),
        };
        let refusal = self.refusal(step)?;
        let params = self.names.fill(&Value::Object(step.params.clone()))?;
        let lines = self.driver()?.stream(params.as_object().unwrap_or(&Map::new()), until)?;
        if refusal.is_some() {
            return self.check(step, refusal, lines.map(|lines| lines.join("\n")));
        }
        let lines = lines.map_err(|body| format!("it should be answered, but is refused: {body}"))?;
        let durable = durable(&lines);
        self.check_lines(expected, &durable)?;
        if self.driver()?.streams_apart() && !self.has("session-store") { Ok(()) } else { self.are_stored(&durable) }
    }

    /// Compares lines that were followed with the page of them: the same bytes, and none is missing.
    fn are_stored(&mut self, lines: &[&str]) -> Result<(), String> {
        let Some(first) = lines.first() else { return Ok(()) };
        let since = seq_of(first).unwrap_or(1) - 1;
        let params = json!({ "session_id": member(first, "session_id")?, "since_seq": since, "limit": lines.len() });
        let answer = self.driver()?.send("events", params.as_object().unwrap_or(&Map::new()))?.wait()?;
        let answer = answer.map_err(|body| format!("the page of what was followed is refused: {body}"))?;
        match Page::read(&answer)?.lines() {
            page if page == lines => Ok(()),
            page => Err(format!("the events that were followed are\n  {lines:?}\nbut the page has\n  {page:?}")),
        }
    }

    /// Follows the session until an event of this type comes.
    fn until(&mut self, step: &Step, until: &str) -> Result<(), String> {
        let filled = self.names.fill(&Value::Object(step.params.clone()))?;
        if let Some(refusal) = self.refusal(step)? {
            let answer = self.send("events", &filled)?.wait()?;
            return self.check(step, Some(refusal), answer);
        }
        let session = filled.get("session_id").and_then(Value::as_str).ok_or("it needs a session_id")?.to_owned();
        let cursor = self.cursors.get(&session).copied().unwrap_or(0);
        let is_durable = EventKind::ALL.iter().any(|kind| kind.name() == until && kind.is_durable());
        let lines = if is_durable {
            self.poll(&session, cursor, until)?
        } else {
            self.driver()?.follow(&session, cursor, until)?.map_err(|body| body.to_string())?
        };
        self.are_stored(&durable(&lines))?;
        let line = lines.last().ok_or("nothing was followed")?;
        self.cursors.insert(session, seq_of(line).unwrap_or(cursor));
        step.event.as_ref().map_or(Ok(()), |expected| self.names.compare_line(expected, line))
    }

    /// Deletes each file of the projection and has it rebuilt: all files are the same, to the byte.
    fn reproject(&mut self) -> Result<(), String> {
        let root = tools_folder(&self.place.folder);
        let rebuild = |run: &mut Self| {
            let answer = run.send("rebuild_projection", &Value::Null)?.wait()?;
            answer.map_err(|body| format!("a rebuild is refused: {body}"))?;
            files(&root).map_err(|error| format!("the files cannot be read: {error}"))
        };
        if self.is_passed_over("rebuild_projection") {
            self.passed_over += 1;
            return Ok(());
        }
        let whole = rebuild(self)?;
        if !whole.keys().any(|name| name.ends_with("transcript.md")) {
            return Err(format!("there is no session among the files: {:?}", whole.keys()));
        }
        for name in whole.keys() {
            std::fs::remove_file(root.join(name)).map_err(|error| format!("{name}: {error}"))?;
            if rebuild(self)? != whole {
                return Err(format!("without {name} the files are not made as they were"));
            }
        }
        Ok(())
    }

    /// Compares the files of the session in `params` with its journal: every line, and every text of user and model.
    fn is_projected(&mut self, step: &Step) -> Result<(), String> {
        let params = self.names.fill(&Value::Object(step.params.clone()))?;
        let Some(session) = params["session_id"].as_str().filter(|_| !self.is_passed_over("rebuild_projection")) else {
            return Ok(());
        };
        let folder = tools_folder(&self.place.folder).join("sessions").join(session);
        let read = |name: &str| {
            std::fs::read_to_string(folder.join(name)).map_err(|error| format!("{name} cannot be read: {error}"))
        };
        let answer = self.send("events", &params)?.wait()?.map_err(|body| body.to_string())?;
        let (page, lines, transcript) = (Page::read(&answer)?, read("events.jsonl")?, read("transcript.md")?);
        if !lines.lines().eq(page.lines()) {
            return Err(format!("the page of events is\n  {:?}\nbut events.jsonl has\n{lines}", page.lines()));
        }
        let mut rest = transcript.as_str();
        for text in page.lines().into_iter().flat_map(said) {
            let at = rest.find(&text).ok_or_else(|| format!("{text:?} is missing in its place in\n{transcript}"))?;
            rest = &rest[at + text.len()..];
        }
        Ok(())
    }

    /// Reads pages until a line of this type comes; answers with every line up to it.
    fn poll(&mut self, session: &str, mut cursor: u64, until: &str) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        loop {
            let mut params = Map::new();
            params.insert("session_id".to_owned(), session.into());
            params.insert("since_seq".to_owned(), cursor.into());
            params.insert("wait_ms".to_owned(), POLL_MS.into());
            let answer = self.driver()?.send("events", &params)?.wait()?.map_err(|body| body.to_string())?;
            let page = Page::read(&answer)?;
            if page.items.is_empty() {
                return Err(format!("no {until} came after seq {cursor} for {POLL_MS} ms"));
            }
            for line in page.lines() {
                lines.push(line.to_owned());
                if type_of(line) == until {
                    return Ok(lines);
                }
            }
            cursor = page.next_seq;
        }
    }
}

/// The content of each file below a folder, except temporary ones.
fn files(root: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|extension| extension != "new") {
                let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
                found.insert(name, std::fs::read(&path)?);
            }
        }
    }
    Ok(found)
}

/// The texts of user or model in an event's line, in their order.
fn said(line: &str) -> Vec<String> {
    let event: Value = serde_json::from_str(line).unwrap_or_default();
    let text = |text: &Value| text.as_str().map(str::to_owned);
    match type_of(line) {
        "turn_started" => text(&event["prompt"]).into_iter().collect(),
        "assistant_message" => {
            event["blocks"].as_array().into_iter().flatten().filter_map(|block| text(&block["text"])).collect()
        }
        _ => Vec::new(),
    }
}

/// The lines that have a `seq`.
fn durable(lines: &[String]) -> Vec<&str> {
    lines.iter().map(String::as_str).filter(|line| seq_of(line).is_some()).collect()
}

/// Checks that the code's page explains each detail of an error.
fn explained(body: &Value) -> Result<(), String> {
    let page = body["code"].as_str().and_then(ErrorCode::from_wire).map(ErrorCode::page).unwrap_or_default();
    let mut details = body["details"].as_object().into_iter().flatten();
    match details.find(|(name, _)| !page.contains(&format!("`{name}`"))) {
        Some((name, _)) => Err(format!("the page of {} does not say what `{name}` means", body["code"])),
        None => Ok(()),
    }
}

/// The answer of `events`, its lines to the letter.
#[derive(Deserialize)]
pub(crate) struct Page<'a> {
    #[serde(borrow)]
    pub(crate) items: Vec<&'a RawValue>,
    next_seq: u64,
}

impl<'a> Page<'a> {
    pub(crate) fn lines(&self) -> Vec<&'a str> {
        self.items.iter().map(|line| line.get()).collect()
    }

    pub(crate) fn read(answer: &'a str) -> Result<Self, String> {
        serde_json::from_str(answer).map_err(|error| format!("{answer} is no page of events: {error}"))
    }
}

/// The `type` of an event's line. It is in the head, which all kinds share.
pub fn type_of(line: &str) -> &str {
    line.split_once(r#""type":""#).and_then(|(_, rest)| rest.split('"').next()).unwrap_or_default()
}

/// The `seq` of an event's line, if it is durable.
pub(crate) fn seq_of(line: &str) -> Option<u64> {
    serde_json::from_str::<Value>(line).ok()?.get("seq")?.as_u64()
}
