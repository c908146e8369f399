//! A first turn as users run it: no seed, no option, no optional flag; and the output for people.

use std::{
    collections::BTreeSet,
    time::{SystemTime, UNIX_EPOCH},
};

use libtest_mimic::Trial;
use meerkat_parity_tests::{
    Driver, Place,
    builds::Build,
    drivers::{Make, PLAIN, meerkat_for_people, output},
};
use meerkat_service::{SessionId, clock::Timestamp};
use meerkat_testkit::folder;
use serde_json::{Map, Value, json};

/// The prompt, and the model's answer.
const PROMPT: &str = "@say Hello there.";
const TEXT: &str = "Hello there.";

/// One for each surface, in the build with everything.
pub(crate) fn trials(build: &'static Build) -> Vec<Trial> {
    if build.name != "F" {
        return Vec::new();
    }
    let drive = |(surface, make): (&str, Make)| {
        Trial::test(format!("{}::{surface}::plain", build.name), move || {
            Ok(in_plain_place(build, |place| {
                let mut driver = make(place.clone())?;
                first_turns(driver.as_mut())?;
                driver.end()
            })?)
        })
    };
    let people = Trial::test(format!("{}::cli::plain", build.name), || Ok(in_plain_place(build, for_people)?));
    PLAIN.into_iter().map(drive).chain([people]).collect()
}

fn in_plain_place(build: &Build, play: impl FnOnce(&Place) -> Result<(), String>) -> Result<(), String> {
    let folder = folder();
    let (binaries, config) = (build.binaries()?, Map::new());
    play(&Place { binaries, folder: folder.path().to_owned(), config, is_plain: true, database: None })
}

/// Two sessions, each with a turn: they have ids of their own, and times that are now.
fn first_turns(driver: &mut dyn Driver) -> Result<(), String> {
    let (begin, mut ids) = (now()?, BTreeSet::new());
    for _ in 0..2 {
        let created = ask(driver, "create_session", &json!({}))?;
        let id = created["session_id"].as_str().unwrap_or_default().to_owned();
        let result = ask(driver, "start_turn", &json!({ "session_id": id, "prompt": PROMPT }))?;
        let page = ask(driver, "list", &json!({}))?;
        let view = page["items"].as_array().and_then(|rows| rows.iter().find(|row| row["session_id"] == id.as_str()));
        let view = view.ok_or_else(|| format!("{id} is not in the list: {page}"))?;
        let end = now()?;
        let answered = json!([result["session_id"], result["status"], result["text"], view["turn_count"]]);
        expect(&answered, &json!([id, "completed", TEXT, 1]))?;
        expect(&view["created_at"], &created["created_at"])?;
        is_between(begin, made_at(&id)?, end)?;
        is_between(begin, millis(&created["created_at"])?, end)?;
        is_between(millis(&created["created_at"])?, millis(&view["updated_at"])?, end)?;
        ids.insert(id);
    }
    expect(&ids.len().into(), &2.into())
}

/// `run`, and then the lists.
fn for_people(place: &Place) -> Result<(), String> {
    let begin = now()?;
    expect(&said(place, &["run", PROMPT])?.into(), &format!("{TEXT}\n").into())?;
    let (list, end) = (said(place, &["sessions", "list"])?, now()?);
    let rows: Vec<Vec<&str>> = list.lines().skip(1).map(|row| row.split_whitespace().collect()).collect();
    let [row] = rows.as_slice() else { return Err(format!("there should be one session: {list}")) };
    let [id, "idle", "1", date, time, "UTC", title @ ..] = row.as_slice() else {
        return Err(format!("the row is another: {list}"));
    };
    expect(&title.join(" ").into(), &PROMPT.into())?;
    is_between(begin, made_at(id)?, end)?;
    // It names the minute.
    let updated = millis(&format!("{date}T{time}:00Z").into())?;
    is_between(begin - begin % 60_000, updated, end)?;
    let shown = said(place, &["sessions", "show", "last"])?;
    let line = |name: &str| shown.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).unwrap_or_default();
    expect(&line("session ").into(), &(*id).into())?;
    is_between(begin, millis(&line("created ").into())?, end)
}

/// The output of a command for people, if it succeeds.
fn said(place: &Place, words: &[&str]) -> Result<String, String> {
    let output = output(meerkat_for_people(place).args(words))?;
    if !output.status.success() {
        return Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}

fn ask(driver: &mut dyn Driver, operation: &str, params: &Value) -> Result<Value, String> {
    let answer = driver.send(operation, params.as_object().unwrap_or(&Map::new()))?.wait()?;
    let answer = answer.map_err(|body| format!("{operation}: {body}"))?;
    serde_json::from_str(&answer).map_err(|error| format!("{answer}: {error}"))
}

fn expect(came: &Value, expected: &Value) -> Result<(), String> {
    if came == expected { Ok(()) } else { Err(format!("it should be {expected}, but is {came}")) }
}

fn is_between(begin: i64, at: i64, end: i64) -> Result<(), String> {
    if (begin..=end).contains(&at) { Ok(()) } else { Err(format!("{at} is not between {begin} and {end}")) }
}

/// The time of an id, which an id of this version begins with.
fn made_at(id: &str) -> Result<i64, String> {
    let is_of_version = id.parse::<SessionId>().is_ok() && id.get(14..15) == Some("7");
    let digits: String = id.chars().filter(|digit| *digit != '-').take(12).collect();
    let at = i64::from_str_radix(&digits, 16).ok().filter(|_| is_of_version);
    at.ok_or_else(|| format!("{id:?} is no id that begins with its time"))
}

fn millis(time: &Value) -> Result<i64, String> {
    let time: Timestamp = serde_json::from_value(time.clone()).map_err(|error| format!("{time}: {error}"))?;
    Ok(time.as_millis())
}

#[expect(clippy::disallowed_methods, reason = "the program's own clock is what is tested")]
fn now() -> Result<i64, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
    i64::try_from(now.as_millis()).map_err(|error| error.to_string())
}
