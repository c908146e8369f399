//! Trials that cannot be scenarios.

use libtest_mimic::Trial;
use meerkat_parity_tests::{
    Driver, Lines, Pending, Place,
    builds::{Build, feature},
    contract::contract,
    drivers::{Make, SURFACES, TRANSPORTS, meerkat_for_people, output_of_open},
    expect::{UNKNOWN_SESSION, absence},
    run::{POLL_MS, patient, trial},
    scenario::Scenario,
};
use meerkat_service::{Operation, SessionId, wire::request_schema};
use meerkat_testkit::{folder, until_some};
use serde_json::{Map, Value, json};

use crate::{naughty::naughty_ids, plain};

/// Requests at one time, which bounds the processes.
const AT_ONCE: usize = 8;

/// All of them, for a build. No capability changes these answers, so they run in the thorough builds alone.
pub(crate) fn trials(build: &'static Build, scenarios: &'static [Scenario]) -> Vec<Trial> {
    let mut trials = plain::trials(build);
    if !build.is_thorough() {
        return trials;
    }
    if !build.has("session-store") {
        let name = format!("{}::cli::capability-first", build.name);
        trials.push(Trial::test(name, move || Ok(capability_first(build)?)));
    }
    for (surface, make) in SURFACES {
        let name = format!("{}::{surface}::one-byte-is-changed", build.name);
        trials.push(Trial::test(name.clone(), move || Ok(one_byte_is_changed(&name, scenarios, build, make)?)));
        let name = format!("{}::{surface}::naughty-ids", build.name);
        trials.push(Trial::test(name, move || Ok(in_place(build, make, |driver| naughty(surface, build, driver))?)));
    }
    for (transport, make) in
        SURFACES.into_iter().chain(TRANSPORTS).filter(|(name, _)| ["mcp", "mcp-stdio"].contains(name))
    {
        let name = format!("{}::{transport}::turn-is-taken-back", build.name);
        trials.push(Trial::test(name, move || Ok(in_place(build, make, turn_is_taken_back)?)));
    }
    trials
}

/// Commands with names, files and standard input that are wrong, of what the build with nothing lacks.
const WRONG: [(&str, &str); 3] = [
    (
        "session-store",
        "resume foo x|resume foo -|resume foo -i no.png x|resume foo --output-schema no.json x|resume foo --compact-keep-turns 2 x|\
         sessions show foo|sessions history foo --all|sessions title foo x|sessions archive foo|sessions unarchive foo|\
         sessions delete foo|sessions delete foo --yes|sessions fork foo|sessions files foo|\
         sessions restore-files foo --turn 0|sessions export foo -o no/such|sessions export -o x.tar|\
         sessions import no.tar|sessions create --history no.json|sessions list --limit 0|call session/read|\
         call session/read -|call session/import @no.json|call store/diagnose misspelt=x|\
         run --session last -|run --session last --output-schema no.json x|run --session abcdef --output-schema - x|\
         store copy no/such x|store nodes",
    ),
    (
        "memory-store",
        "memory search x --since soon|memory forget|memory forget --session foo|memory reindex|call memory/search @no.json",
    ),
    (
        "session-compaction",
        "compact foo|compact foo --preview|compact foo --undo 1|run --compact-threshold 5 -|\
         chat --compact-threshold 5 --history no.json|\
         run --session foo --compact-keep-turns 2 -i no.png x|call session/compact @no.json",
    ),
];

/// A setting of compaction refuses these, though they have no flag of it.
const CONFIGURED: &str = "run -|run --output-schema no.json x|run --history no.json x|chat --history no.json";

/// The command line says the very text of the missing capability, and looks at nothing else.
fn capability_first(build: &Build) -> Result<(), String> {
    let folder = folder();
    let (binaries, folder) = (build.binaries()?, folder.path().to_owned());
    let place = Place { binaries, folder, config: Map::new(), is_plain: false, database: None };
    let configured = [("session-compaction", CONFIGURED)];
    for (capability, lines) in WRONG.into_iter().chain(configured) {
        let due = absence(capability)?;
        let (message, code) =
            (due.message.unwrap_or_default(), contract().errors.get(&due.code).map(|numbers| i32::from(numbers.exit)));
        for line in lines.split('|').map(str::trim) {
            let mut command = meerkat_for_people(&place);
            if lines == CONFIGURED {
                command.env("MEERKAT_COMPACTION__RECENT_TURN_BUDGET", "2");
            }
            // Nothing comes, and no end: a command that reads it is ended when patience is.
            let said = output_of_open(command.args(line.split_whitespace()))?;
            let error = String::from_utf8_lossy(&said.stderr);
            if error.lines().next() != Some(&format!("error: {message}")) || said.status.code() != code {
                return Err(format!("`meerkat {line}` ends with {:?} and says {error}", said.status.code()));
            }
        }
    }
    Ok(())
}

fn in_place(build: &Build, make: Make, play: impl FnOnce(&mut dyn Driver) -> Result<(), String>) -> Result<(), String> {
    let folder = folder();
    let config = patient(Map::new());
    let place = Place {
        binaries: build.binaries()?,
        folder: folder.path().to_owned(),
        config,
        is_plain: false,
        database: None,
    };
    let mut driver = make(place)?;
    play(driver.as_mut())?;
    driver.end()
}

/// A driver that changes one byte of one event's line: the first letter of the model's answer.
struct Corrupting(Box<dyn Driver>);

impl Driver for Corrupting {
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String> {
        let answer = self.0.send(operation, params)?.wait()?;
        Ok(Pending::ready(answer.map(|answer| match operation {
            "events" => answer.replacen(r#""type":"text","text":"H"#, r#""type":"text","text":"I"#, 1),
            _ => answer,
        })))
    }

    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String> {
        self.0.follow(session_id, since_seq, until)
    }

    fn end(self: Box<Self>) -> Result<(), String> {
        self.0.end()
    }
}

/// A changed byte fails the trial, and the failure names surface, scenario and event.
fn one_byte_is_changed(name: &str, scenarios: &[Scenario], build: &Build, make: Make) -> Result<(), String> {
    let first = scenarios.first().ok_or("there are no scenarios")?;
    let name = name.replace("one-byte-is-changed", &first.name);
    let corrupting = |place| -> Result<Box<dyn Driver>, String> { Ok(Box::new(Corrupting(make(place)?))) };
    trial(&name, first, build, &make)?;
    let Err(why) = trial(&name, first, build, &corrupting) else {
        return Err("a byte was changed, and nobody noticed".to_owned());
    };
    let names_all = why.starts_with(&format!("{name}: step 3 (events): event 3: "));
    let shows_both = why.contains(r#""Hi there.""#) && why.contains(r#""Ii there.""#);
    if names_all && shows_both { Ok(()) } else { Err(format!("the failure does not say where it is: {why}")) }
}

/// A text that is no session's id is refused by every operation that the build has.
fn naughty(surface: &str, build: &Build, driver: &mut dyn Driver) -> Result<(), String> {
    let is_here = |operation: &&Operation| operation.needs().is_none_or(|needed| build.has(feature(needed)));
    let needs_only_a_session = |operation: &&Operation| {
        request_schema(**operation).get("required").is_some_and(|required| *required == json!(["session_id"]))
    };
    let operations =
        Operation::ALL.iter().filter(needs_only_a_session).filter(is_here).map(|operation| operation.name());
    let operations: Vec<&str> = operations.filter(|operation| driver.passes_over(operation).is_none()).collect();
    let mut ask = |operation: &str, id: &str| {
        let params = Map::from_iter([("session_id".to_owned(), id.into())]);
        driver.send(operation, &params)
    };
    // These requests lack nothing but a session, so a refusal below is the id's.
    for operation in &operations {
        match ask(operation, UNKNOWN_SESSION)?.wait()? {
            Err(body) if body["code"] != "INVALID_REQUEST" => {}
            other => return Err(format!("{operation} of no session is answered with {other:?}")),
        }
    }
    // To the command line `last` and the end of an id are names, and no argument of a process can hold a NUL.
    let is_end = |id: &str| {
        let beginning = UNKNOWN_SESSION.len().checked_sub(id.len()).and_then(|length| UNKNOWN_SESSION.get(..length));
        beginning.is_some_and(|beginning| format!("{beginning}{id}").parse::<SessionId>().is_ok())
    };
    let is_apart = |id: &str| surface == "cli" && (id == "last" || id.contains('\0') || is_end(id));
    let ids: Vec<String> = naughty_ids().into_iter().filter(|id| !is_apart(id)).collect();
    for (round, some) in ids.chunks(AT_ONCE).enumerate() {
        let asked = |(at, id): (usize, &String)| {
            let operation = operations[(round * AT_ONCE + at) % operations.len()];
            Ok((operation, id.clone(), ask(operation, id)?))
        };
        let asked = some.iter().enumerate().map(asked).collect::<Result<Vec<_>, String>>()?;
        for (operation, id, pending) in asked {
            let mut pending = Some(pending);
            let answer = until_some("it is answered", || {
                let asked = pending.take().map_or_else(|| ask(operation, &id), Ok);
                match asked.and_then(Pending::wait) {
                    // Commands that run at the same time open one data directory.
                    Ok(Err(body)) if ["STORE_LOCKED", "SHUTTING_DOWN"].contains(&body["code"].as_str()?) => None,
                    answer => Some(answer),
                }
            });
            match answer.map_err(|why| format!("{operation} of {id:?}: {why}"))? {
                Err(body) if body["code"] == "INVALID_REQUEST" => {}
                other => return Err(format!("{operation} of {id:?} is answered with {other:?}")),
            }
        }
    }
    Ok(())
}

/// `notifications/cancelled` ends the turn that the request was for.
fn turn_is_taken_back(driver: &mut dyn Driver) -> Result<(), String> {
    let created = driver.send("create_session", &Map::new())?.wait()?.map_err(|body| body.to_string())?;
    let created: Value = serde_json::from_str(&created).map_err(|error| error.to_string())?;
    let session = created["session_id"].as_str().unwrap_or_default();
    let turn = json!({ "session_id": session, "prompt": "@say Hello @stall" });
    let _unanswered = driver.send("start_turn", turn.as_object().unwrap_or(&Map::new()))?;
    driver.follow(session, 1, "text_delta")?.map_err(|body| body.to_string())?;
    driver.take_turn_back()?;
    let mut since = 1;
    loop {
        let params = json!({ "session_id": session, "since_seq": since, "wait_ms": POLL_MS });
        let page = driver.send("events", params.as_object().unwrap_or(&Map::new()))?.wait()?;
        let page: Value =
            serde_json::from_str(&page.map_err(|body| body.to_string())?).map_err(|why| why.to_string())?;
        let items = page["items"].as_array().filter(|items| !items.is_empty()).ok_or("the turn does not end")?;
        if let Some(end) = items.iter().find(|event| event["type"] == "turn_interrupted") {
            let is_asked_for = end["reason"] == "requested";
            return if is_asked_for { Ok(()) } else { Err(format!("the turn ends otherwise: {end}")) };
        }
        since = page["next_seq"].as_u64().ok_or("a page has no next_seq")?;
    }
}
