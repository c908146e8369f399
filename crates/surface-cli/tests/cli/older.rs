//! A data directory that an older version wrote. `older/README.md` says how it was made; what is expected of it are that
//! version's own answers, never today's.

use std::{fs, path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_errors::ErrorCode;
use meerkat_service::{
    AgentBuildConfig,
    clock::{FrozenClock, Timestamp, World},
    prelude::{CreateSession, StartTurn},
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::drive::{Ran, meerkat, ran};

/// A copy of the data directory, and what the older version said about it.
struct Older {
    dir: TempDir,
    said: Value,
}

impl Older {
    fn new() -> Self {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/older");
        let dir = meerkat_testkit::folder();
        fs::create_dir(dir.path().join(".git")).unwrap();
        copy(&fixture.join("data"), &dir.path().join("data"));
        Self { dir, said: serde_json::from_slice(&fs::read(fixture.join("expected.json")).unwrap()).unwrap() }
    }

    fn run(&self, args: &[&str]) -> Ran {
        ran(&mut meerkat(&self.dir, &[&["--quiet", "--json", "--data-dir", "data"], args].concat()))
    }

    #[track_caller]
    fn ask(&self, args: &[&str]) -> Value {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran.json()
    }

    /// Names of the sessions, with what was said about each.
    fn sessions(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.said["sessions"].as_object().unwrap().iter().map(|(name, said)| (name.as_str(), said))
    }

    fn id(&self, name: &str) -> &str {
        self.said["sessions"][name]["session_id"].as_str().unwrap()
    }

    fn events(&self, name: &str) -> Vec<Value> {
        items(&self.ask(&["events", self.id(name), "--limit", "1000"]))
    }

    /// Returns true if this event is made where it is read: the one in the place of dropped events, and the end of the
    /// turn that the kill left open. Each start of a copy ends that turn at its own time.
    fn is_made_again(&self, name: &str, event: &Value) -> bool {
        let is_after_the_kill = name == "killed" && event["seq"].as_u64() > self.said["killed_after"].as_u64();
        event["type"] == "pruned" || is_after_the_kill
    }

    /// Takes out of a view or a row of a list what may differ: since that version a session without a title has one of its
    /// first prompt, and the session of the kill changed last when its turn was ended.
    fn comparable(&self, row: &Value) -> Value {
        let said = self.sessions().find(|(_, said)| said["session_id"] == row["session_id"]);
        let (name, said) = said.unwrap_or_else(|| panic!("no such session then: {row}"));
        let title = said["view"]["title"].is_null().then_some("title");
        let changed = (name == "killed").then_some("updated_at");
        without(row, &title.into_iter().chain(changed).collect::<Vec<_>>())
    }

    /// What that version said of a session, with the messages that there are since: answers that were cut off.
    fn with_cut_off(&self, row: &Value) -> Value {
        let said = self.sessions().find(|(_, said)| said["session_id"] == row["session_id"]);
        let more = said.map_or(0, |(_, said)| cut_off(said).count() as u64);
        let mut row = row.clone();
        for count in ["/message_count", "/context/messages"] {
            if let Some(count) = row.pointer_mut(count) {
                *count = json!(count.as_u64().unwrap() + more);
            }
        }
        if let Some(tokens) = row.pointer_mut("/context/estimated_tokens").filter(|_| more > 0) {
            let bytes = cut_off(said.unwrap().1).map(|item| item["message"].to_string().len() as u64).sum::<u64>();
            // A remainder may make it one more.
            *tokens = json!([tokens.as_u64().unwrap() + bytes / 4, tokens.as_u64().unwrap() + bytes / 4 + 1]);
        }
        row
    }

    fn list(&self, page: &Value) -> Vec<Value> {
        let mut rows: Vec<Value> = items(page).iter().map(|row| self.comparable(row)).collect();
        rows.sort_by_key(|row| row["session_id"].to_string());
        rows
    }

    /// Checks that the doctor sees every session and finds no error.
    #[track_caller]
    fn is_sound(&self) {
        let found = self.ask(&["doctor"]);
        let mut errors = found["findings"].as_array().unwrap().iter().filter(|finding| finding["severity"] == "error");
        assert_eq!((errors.next(), &found["sessions"]), (None, &self.said["doctor"]["sessions"]));
    }
}

/// Copies a folder's files, without their modes: those of a checkout are not the store's.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), to.join(entry.unwrap().file_name()));
        match from.is_dir() {
            true => copy(&from, &to),
            false => fs::write(to, fs::read(from).unwrap()).unwrap(),
        }
    }
}

/// Answers of a session that were cut off, as items of its history.
fn cut_off(said: &Value) -> impl Iterator<Item = Value> {
    let partial = said["events"]["items"].as_array().unwrap().iter().filter(|event| event["type"] == "partial_text");
    partial.map(|event| {
        let content = format!("{} [cut off]", event["text"].as_str().unwrap());
        let message = json!({ "role": "assistant", "content": content });
        json!({ "seq": event["seq"], "turn": event["turn"], "role": "assistant", "message": message })
    })
}

#[track_caller]
fn items(page: &Value) -> Vec<Value> {
    page["items"].as_array().unwrap().clone()
}

fn without(value: &Value, fields: &[&str]) -> Value {
    let mut value = value.clone();
    value.as_object_mut().unwrap().retain(|name, _| !fields.contains(&name.as_str()));
    value
}

#[test]
fn a_data_directory_of_an_older_version_is_opened_with_nothing_lost() {
    let older = Older::new();
    older.is_sound();
    for (name, said) in older.sessions() {
        let (now, then) = (older.events(name), items(&said["events"]));
        for (now, then) in now.iter().zip(&then) {
            let made: &[&str] = if older.is_made_again(name, then) { &["time"] } else { &[] };
            assert_eq!(without(now, made), without(then, made), "{name}");
        }
        assert_eq!(now.len(), then.len(), "{name}");
        let id = older.id(name);
        let mut history = said["history"].clone();
        let messages = history["items"].as_array_mut().unwrap();
        messages.extend(cut_off(said));
        messages.sort_by_key(|item| item["seq"].as_u64());
        assert_eq!(older.ask(&["sessions", "history", id, "--limit", "1000"]), history, "{name}");
        // Labels, usage, context, reminders, pins and the queue.
        let view = older.ask(&["sessions", "show", id]);
        let mut then = older.with_cut_off(&said["view"]);
        if let Some(either) = then["context"]["estimated_tokens"].as_array().cloned() {
            let tokens = &view["context"]["estimated_tokens"];
            assert!(either.contains(tokens), "{name}: {tokens}");
            then["context"]["estimated_tokens"] = tokens.clone();
        }
        assert_eq!(older.comparable(&view), older.comparable(&then), "{name}");
        let about = format!("session_id={id}");
        for (list, operation) in [("queue", "turn/queue"), ("pins", "session/pins"), ("reminders", "session/reminders")]
        {
            assert_eq!(older.ask(&["call", operation, &about]), said[list], "{name}: {list}");
        }
    }
    for (list, args) in [("list", &["sessions", "list"][..]), ("archived", &["sessions", "list", "--archived"])] {
        let then: Vec<Value> = items(&older.said[list]).iter().map(|row| older.with_cut_off(row)).collect();
        assert_eq!(older.list(&older.ask(args)), older.list(&json!({ "items": then })), "{list}");
    }
    let deleted = older.run(&["events", older.said["deleted"].as_str().unwrap()]);
    assert_eq!(deleted.json()["code"], ErrorCode::SessionNotFound.as_str());
    older.is_sound();
}

/// An answer and a tool's output, by the hash of the text that the older version gave for each.
#[test]
fn texts_beside_a_journal_of_an_older_version_are_whole() {
    let older = Older::new();
    let blobs = older.said["blobs"].as_array().unwrap();
    assert_eq!(blobs.len(), 2);
    for said in blobs {
        let (session, hash) = (older.id("blobs"), said["blob"].as_str().unwrap());
        let blob = older.ask(&["call", "session/blob", &format!("session_id={session}"), &format!("blob={hash}")]);
        let text = BASE64_STANDARD.decode(blob["data"].as_str().unwrap()).unwrap();
        assert_eq!((json!(text.len()), &blob["next_offset"]), (said["bytes"].clone(), &Value::Null));
        let hash: String = Sha256::digest(&text).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(json!(hash), said["sha256"]);
    }
}

#[test]
fn memory_of_an_older_version_finds_what_was_said_and_not_what_was_forgotten() {
    let older = Older::new();
    let found = |word| items(&older.ask(&["memory", "search", word, "--role", "assistant"]));
    let best = |hits: &[Value]| without(&hits[0], &["score", "lanes"]);
    let said = items(&json!({ "items": older.said["memory"]["persimmon"] }));
    assert_eq!(best(&found("persimmon")), best(&said));
    assert_eq!((found("quince"), &older.said["memory"]["quince"]), (Vec::new(), &json!([])));
    assert_eq!(found("mandrake").iter().find(|hit| hit["session_id"] == older.said["deleted"]), None);
    // From the journals once more.
    older.ask(&["memory", "reindex"]);
    assert_eq!((best(&found("persimmon")), found("quince")), (best(&said), Vec::new()));
}

#[test]
fn an_open_turn_of_an_older_version_is_ended_and_what_waited_behind_it_runs() {
    let older = Older::new();
    let open = older.said["killed_after"].as_u64();
    let events = older.events("killed");
    let ended: Vec<&Value> = events.iter().filter(|event| event["seq"].as_u64() > open).collect();
    let [result, end] = ended[..] else { panic!("{ended:?}") };
    assert_eq!((&result["type"], &result["outcome"]), (&json!("tool_finished"), &json!("unknown")));
    let end = (&end["type"], &end["reason"], &end["turn"]);
    assert_eq!(end, (&json!("turn_interrupted"), &json!("process_ended"), &json!(1)));
    let next = older.ask(&["run", "--session", older.id("killed"), "--policy", "queue", "@say More."]);
    assert_eq!((&next["turn"], &next["text"]), (&json!(3), &json!("More.")));
    let queued =
        older.events("killed").into_iter().find(|event| event["type"] == "turn_completed" && event["turn"] == 2);
    assert!(queued.is_some());
}

#[test]
fn every_session_of_an_older_version_goes_on() {
    let older = Older::new();
    older.ask(&["sessions", "unarchive", older.id("archived")]);
    for (name, said) in older.sessions() {
        let before = older.events(name);
        let ran = older.ask(&["run", "--session", older.id(name), "--policy", "queue", "@echo first"]);
        let first = match name {
            "compacted" => "first: [Context compacted]",
            "many" | "fork" => "first: @say The passphrase is persimmon.",
            _ => "first: @",
        };
        assert!(ran["text"].as_str().unwrap().starts_with(first), "{name}: {ran}");
        let after = older.events(name);
        let is_kept = after.iter().zip(&before).all(|(now, then)| now == then || then["type"] == "pruned");
        assert!(
            is_kept && after.len() > before.len() && ran["seq"].as_u64() > said["view"]["last_seq"].as_u64(),
            "{name}"
        );
    }
    older.is_sound();
}

/// Until a day has passed, which is why these processes live an hour after the requests.
#[tokio::test]
async fn a_key_of_an_older_version_answers_with_what_it_made() {
    let older = Older::new();
    let created: Timestamp =
        serde_json::from_value(older.said["sessions"]["keyed"]["view"]["created_at"].clone()).unwrap();
    let clock = FrozenClock::at(Timestamp::from_millis(created.as_millis() + 3_600_000));
    let world = World { clock: Arc::new(clock), ..World::system() };
    let agent = AgentBuildConfig::new().store(older.dir.path().join("data")).world(world).build().unwrap();
    let service = agent.service();
    let labels = [("case".to_owned(), "keyed".to_owned())].into();
    let create = CreateSession { labels, idempotency_key: Some("make-keyed".to_owned()), ..CreateSession::default() };
    assert_eq!(service.create_session(create.clone()).await.unwrap().session_id.to_string(), older.id("keyed"));
    let other = CreateSession { model: Some("scripted".to_owned()), ..create };
    assert_eq!(service.create_session(other).await.unwrap_err().code(), ErrorCode::IdempotencyConflict);
    let started = items(&older.said["sessions"]["many"]["events"]);
    let started = started.iter().find(|event| event["type"] == "turn_started" && event["turn"] == 14).unwrap();
    let prompt = started["prompt"].as_str().unwrap();
    let session_id = older.id("many").parse().unwrap();
    let turn = StartTurn { idempotency_key: Some("turn-14".to_owned()), ..StartTurn::new(session_id, prompt) };
    assert_eq!(service.start_turn(turn).await.unwrap().turn, 14);
    drop(agent);
}

/// Keys of the records that the reader has yet to acknowledge, in order.
fn unacknowledged(older: &Older) -> Vec<Value> {
    let page = older.ask(&["call", "reader/fetch", "reader=audit", "limit=1000"]);
    items(&page).iter().map(|item| item["idempotency_key"].clone()).collect()
}

#[test]
fn a_reader_of_an_older_version_misses_nothing() {
    let older = Older::new();
    let now = unacknowledged(&older);
    let missed = |key: &&Value| !now.contains(key);
    assert_eq!(older.said["unacknowledged"].as_array().unwrap().iter().find(missed), None);
    // What was dropped because the reader had acknowledged it is not asked of it again.
    let pruned = older.id("pruned");
    assert_eq!(now.iter().find(|key| key.as_str().unwrap().starts_with(pruned)), None);
}

#[test]
fn a_reader_of_an_older_version_gets_nothing_again_that_it_has_acknowledged() {
    let older = Older::new();
    let said = &older.said["checkpoint"];
    let (session, seq) = (said["session_id"].as_str().unwrap(), format!("seq={}", said["seq"]));
    let wait = ["call", "reader/wait", "reader=audit", &format!("session_id={session}"), &seq];
    assert_eq!(older.ask(&wait), *said);
    assert_eq!(json!(unacknowledged(&older)), older.said["unacknowledged"]);
    let row = |page: &Value| items(page).into_iter().find(|row| row["reader"] == "audit").unwrap();
    assert_eq!(row(&older.ask(&["call", "reader/list"])), row(&older.said["readers"]));
}
