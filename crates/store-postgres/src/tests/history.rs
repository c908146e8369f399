//! Checks whole histories: what the database holds in the end against what was acknowledged, and against every change
//! of a session's row, which a trigger notes.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io::Write as _,
    sync::{Mutex, atomic::Ordering},
};

use meerkat_service::{Seq, SessionId, TurnNumber, service::TurnAccepted};
use serde_json::Value;

use super::{agents::Shared, cluster::Database};

/// Everything that nodes have acknowledged.
#[derive(Default)]
pub(super) struct Acknowledged {
    said: Mutex<Said>,
}

#[derive(Default)]
struct Said {
    /// Records that must be there, each with its type.
    records: Vec<(SessionId, Seq, &'static str)>,
    /// Accepted turns by their keys.
    accepted: HashMap<(SessionId, String), TurnNumber>,
    /// Ends of turns, by the status that the caller got.
    ended: HashMap<(SessionId, TurnNumber), String>,
    sessions: HashSet<SessionId>,
    deleted: HashSet<SessionId>,
    /// Answers that contradict former ones.
    contradictions: Vec<String>,
}

impl Acknowledged {
    pub(super) fn session(&self, session_id: SessionId) {
        self.said.lock().unwrap().sessions.insert(session_id);
    }

    pub(super) fn deleted(&self, session_id: SessionId) {
        self.said.lock().unwrap().deleted.insert(session_id);
    }

    pub(super) fn record(&self, session_id: SessionId, seq: Seq, kind: &'static str) {
        self.said.lock().unwrap().records.push((session_id, seq, kind));
    }

    pub(super) fn accepted(&self, key: &str, accepted: &TurnAccepted) {
        let (mut said, session_id) = (self.said.lock().unwrap(), accepted.session_id);
        let before = said.accepted.insert((session_id, key.to_owned()), accepted.turn);
        if before.is_some_and(|turn| turn != accepted.turn) {
            said.contradictions.push(format!("{session_id}: the key {key} has two turns"));
        }
    }

    /// Keys of accepted turns whose end nobody was told, with their turns.
    pub(super) fn waiting(&self) -> Vec<((SessionId, String), TurnNumber)> {
        let said = self.said.lock().unwrap();
        let open = said.accepted.iter().filter(|((id, _), turn)| !said.ended.contains_key(&(*id, **turn)));
        open.map(|(key, turn)| (key.clone(), *turn)).collect()
    }

    pub(super) fn ended(&self, session_id: SessionId, turn: TurnNumber, status: &str) {
        let mut said = self.said.lock().unwrap();
        let before = said.ended.insert((session_id, turn), status.to_owned());
        if before.as_ref().is_some_and(|before| before != status) {
            said.contradictions.push(format!("{session_id}: turn {turn} ended {status}, and before {before:?}"));
        }
    }
}

/// Counts of what was tried.
#[derive(Default)]
pub(super) struct Figures(BTreeMap<&'static str, u64>);

impl Figures {
    pub(super) fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Prints them, past the capture of tests: they are the outcome of a campaign.
    pub(super) fn print(&self, trial: &str) {
        let counts: Vec<String> = self.0.iter().map(|(what, count)| format!("{what} {count}")).collect();
        writeln!(std::io::stderr(), "{trial}: {}", counts.join(", ")).unwrap();
    }
}

/// Notes every change of a session's row from now on.
pub(super) fn watch(database: &Database) {
    let schema = &database.schema;
    database.psql(&format!(
        "CREATE TABLE changes (n bigserial, id uuid, epoch bigint[], tail bigint[], node text[], \
         written bigint, was_idle bool); \
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO {schema}.changes \
         (id, epoch, tail, node, written, was_idle) VALUES (NEW.id, ARRAY[OLD.epoch, NEW.epoch], \
         ARRAY[OLD.tail, NEW.tail], ARRAY[OLD.node, NEW.node], NEW.written_epoch, OLD.is_idle); RETURN NEW; END $$; \
         CREATE TRIGGER note AFTER UPDATE ON sessions FOR EACH ROW EXECUTE FUNCTION note()"
    ));
}

/// Checks everything; returns each violation in a sentence.
pub(super) fn check(
    database: &Database,
    acknowledged: &Acknowledged,
    shared: &Shared,
    figures: &mut Figures,
) -> Vec<String> {
    let said = acknowledged.said.lock().unwrap();
    let mut wrong = said.contradictions.clone();
    for (what, sql) in [
        ("an epoch fell", "epoch[2] < epoch[1]"),
        ("a tail fell without a deletion", "tail[2] < tail[1] AND tail[2] <> 0"),
        ("an append was not the newest owner's", "tail[2] > tail[1] AND written <> epoch[2]"),
        (
            "an append changed the owner",
            "tail[1] > 0 AND tail[2] > tail[1] AND (epoch[1] <> epoch[2] OR node[1] <> node[2])",
        ),
    ] {
        let found = database.psql(&format!("SELECT id, epoch, tail, node FROM changes WHERE {sql} ORDER BY n LIMIT 3"));
        wrong.extend(found.lines().map(|line| format!("{what}: {line}")));
    }
    let rows = database.psql(
        "SELECT s.id, s.tail, s.bytes, s.is_idle OR s.node IS NULL, \
         (SELECT count(*) || '|' || coalesce(sum(octet_length(line)), 0) \
         FROM events e WHERE e.session = s.id) FROM sessions s WHERE tail > 0",
    );
    let mut sessions = HashSet::new();
    for row in rows.lines() {
        let columns: Vec<&str> = row.split('|').collect();
        let [id, tail, bytes, is_idle, count, sum] = columns[..] else { panic!("{row}") };
        sessions.insert(id.parse::<SessionId>().unwrap());
        if (tail, bytes, is_idle) != (count, sum, "t") {
            wrong.push(format!("{id}: the row and the records differ, or it is not at rest: {row}"));
        }
    }
    for session_id in said.sessions.difference(&sessions).filter(|id| !said.deleted.contains(id)) {
        wrong.push(format!("{session_id} was made, and is lost"));
    }
    wrong.extend(said.deleted.intersection(&sessions).map(|id| format!("{id} was deleted, and is there")));
    let lines = database.psql(
        "SELECT e.session || ' ' || convert_from(line, 'UTF8') FROM events e \
         JOIN sessions s ON s.id = e.session AND s.tail > 0 ORDER BY e.session, e.seq",
    );
    let mut journals: BTreeMap<SessionId, Vec<Value>> = BTreeMap::new();
    for line in lines.lines() {
        let (session_id, line) = line.split_once(' ').unwrap();
        journals.entry(session_id.parse().unwrap()).or_default().push(serde_json::from_str(line).unwrap());
    }
    let mut started = HashSet::new();
    for (session_id, events) in &journals {
        let (starts, why) = journal(events);
        started.extend(starts);
        wrong.extend(why.into_iter().map(|why| format!("{session_id}: {why}")));
    }
    for (session_id, seq, kind) in &said.records {
        let found =
            journals.get(session_id).map(|events| &events[usize::try_from(seq - 1).unwrap().min(events.len() - 1)]);
        let is_there = found.is_some_and(|event| event["seq"] == *seq && event["type"] == *kind);
        if !is_there && !said.deleted.contains(session_id) {
            wrong.push(format!("{session_id}: {kind} at {seq} was acknowledged, and is lost: {found:?}"));
        }
    }
    for ((session_id, key), turn) in &said.accepted {
        let Some(events) = journals.get(session_id) else { continue };
        let of_key: Vec<&Value> = events.iter().filter(|event| event["key"]["key"] == **key).collect();
        if of_key.is_empty() || of_key.iter().any(|event| event["turn"] != *turn) {
            let of_turn = events.iter().filter(|event| event["turn"] == *turn && !event["key"].is_null());
            let of_turn: Vec<&Value> = of_turn.map(|event| &event["key"]["key"]).collect();
            wrong.push(format!(
                "{session_id}: turn {turn} of {key} was accepted; the journal has {of_key:?}, and the turn with {of_turn:?}"
            ));
        }
    }
    for ((session_id, turn), status) in &said.ended {
        let Some(events) = journals.get(session_id) else { continue };
        let ends = events.iter().filter(|event| event["turn"] == *turn).filter_map(end);
        let ends: Vec<&str> = ends.collect();
        if ends != [status] {
            wrong.push(format!("{session_id}: turn {turn} was said to end as {status}, and the journal has {ends:?}"));
        }
    }
    let effects = shared.effects.lock().unwrap();
    for (mark, count) in effects.iter() {
        if *count > 1 {
            wrong.push(format!("the effect {mark} happened {count} times"));
        }
        // Those of deleted sessions went with them.
        if !started.contains(mark) && said.deleted.is_empty() {
            wrong.push(format!("the effect {mark} has no record of its start"));
        }
    }
    let takeovers = "SELECT count(*) FROM changes WHERE epoch[2] > epoch[1] AND node[1] <> node[2] AND NOT was_idle";
    let count = |sql| database.psql(sql).parse::<u64>().unwrap();
    figures.add("histories", journals.len() as u64);
    figures.add("records", journals.values().map(|events| events.len() as u64).sum());
    figures.add("turns", said.accepted.len() as u64);
    figures.add("takeovers", count(takeovers));
    figures.add("fences hit", shared.fenced.swap(0, Ordering::Relaxed));
    figures.add("effects", effects.len() as u64);
    figures.add("violations", wrong.len() as u64);
    wrong
}

/// Status of a turn that an event ends.
fn end(event: &Value) -> Option<&'static str> {
    match event["type"].as_str()? {
        "turn_completed" => Some("completed"),
        "turn_failed" => Some("failed"),
        "turn_interrupted" => Some("interrupted"),
        "turn_dequeued" => Some("dequeued"),
        _ => None,
    }
}

/// Checks one journal: seqs without a gap, one turn at a time, one end for each, one result for each call. Returns the
/// marks of the calls that have started, and what is wrong.
fn journal(events: &[Value]) -> (HashSet<String>, Vec<String>) {
    let (mut started, mut wrong) = (HashSet::new(), Vec::new());
    let (mut open, mut begun, mut ended, mut keys) = (None, HashSet::new(), HashSet::new(), HashSet::new());
    let (mut called, mut answered) = (HashMap::new(), HashSet::new());
    // Decisions and answers by their calls; `None` as long as they are asked for.
    let mut told: HashMap<(&str, bool), Option<&str>> = HashMap::new();
    for (event, seq) in events.iter().zip(1_u64..) {
        if event["seq"] != seq {
            wrong.push(format!("the record {seq} is missing; there is {}", event["seq"]));
            break;
        }
        let turn = event["turn"].as_u64();
        match event["type"].as_str().unwrap() {
            kind @ ("turn_started" | "turn_queued") => {
                begun.insert(turn);
                if kind == "turn_started" && open.replace(turn).is_some() {
                    wrong.push(format!("two turns at once at {seq}"));
                }
                let key = event["key"]["key"].as_str();
                if key.is_some_and(|key| !keys.insert((key, turn)) && event["queued"].is_null()) {
                    wrong.push(format!("the key {key:?} began turn {turn:?} twice"));
                }
            }
            "assistant_message" => {
                let blocks = event["blocks"].as_array().unwrap();
                for call in blocks.iter().filter(|block| block["type"] == "tool_call") {
                    called.insert(call["call_id"].as_str().unwrap(), &call["arguments"]["mark"]);
                }
            }
            "tool_started" => {
                let mark = called.get(event["call_id"].as_str().unwrap()).and_then(|mark| mark.as_str());
                if !mark.is_some_and(|mark| started.insert(mark.to_owned())) {
                    wrong.push(format!("a call starts twice, or was never made, at {seq}: {mark:?}"));
                }
            }
            kind @ ("approval_requested" | "call_requested") => {
                let call_id = event["call_id"].as_str().unwrap();
                if answered.contains(call_id) || told.insert((call_id, kind == "call_requested"), None).is_some() {
                    wrong.push(format!("{kind} comes twice, or too late, at {seq}"));
                }
            }
            kind @ ("approval_decided" | "call_answered") => {
                let call_id = event["call_id"].as_str().unwrap();
                if told.insert((call_id, kind == "call_answered"), Some(kind)) != Some(None) {
                    wrong.push(format!("{kind} comes twice, or unasked, at {seq}"));
                }
            }
            "tool_finished" => {
                let call_id = event["call_id"].as_str().unwrap();
                if !answered.insert(call_id) {
                    wrong.push(format!("a call has two results at {seq}"));
                }
                let is_its = called.get(call_id).is_some_and(|mark| event["output"] == **mark);
                if told.contains_key(&(call_id, true)) && !is_its {
                    wrong.push(format!("a call has no answer, or that to another one, at {seq}"));
                }
            }
            _ => {}
        }
        if let Some(status) = end(event) {
            if !ended.insert(turn) {
                wrong.push(format!("turn {turn:?} ends twice"));
            }
            if status != "dequeued" && open.take() != Some(turn) {
                wrong.push(format!("turn {turn:?} ends and did not run"));
            }
        }
    }
    wrong.extend(begun.difference(&ended).map(|turn| format!("turn {turn:?} never ends")));
    if told.values().any(Option::is_none) {
        wrong.push("a call that waited was given up".to_owned());
    }
    if called.keys().copied().collect::<HashSet<_>>() != answered {
        wrong.push("calls and results differ".to_owned());
    }
    for (key, turn) in &keys {
        if keys.iter().any(|(other, of)| other == key && of < turn) {
            wrong.push(format!("the key {key} began two turns"));
        }
    }
    (started, wrong)
}

/// A checker that finds nothing proves nothing: each kind of damage is found.
#[test]
fn every_damage_to_a_journal_is_found() {
    let event = |seq: u64, kind: &str, turn: u64, more: &str| -> Value {
        serde_json::from_str(&format!(r#"{{"seq":{seq},"type":"{kind}","turn":{turn}{more}}}"#)).unwrap()
    };
    let call = |id| format!(r#"{{"type":"tool_call","call_id":"{id}","arguments":{{"mark":"m{id}"}}}}"#);
    let calls = format!(r#","blocks":[{},{}]"#, call("c"), call("d"));
    let [of_c, of_d] = [r#","call_id":"c""#, r#","call_id":"d","output":"md""#];
    let whole = [
        event(1, "turn_started", 0, r#","key":{"key":"k"}"#),
        event(2, "assistant_message", 0, &calls),
        event(3, "approval_requested", 0, of_c),
        event(4, "approval_decided", 0, of_c),
        event(5, "tool_started", 0, of_c),
        event(6, "tool_finished", 0, of_c),
        event(7, "call_requested", 0, of_d),
        event(8, "call_answered", 0, of_d),
        event(9, "tool_finished", 0, of_d),
        event(10, "turn_completed", 0, ""),
        event(11, "turn_started", 1, ""),
        event(12, "turn_interrupted", 1, ""),
    ];
    let found = |events: &[Value]| journal(events).1;
    let numbered = |mut events: Vec<Value>| {
        events.iter_mut().zip(1_u64..).for_each(|(event, seq)| event["seq"] = seq.into());
        found(&events)
    };
    assert_eq!(found(&whole), [""; 0]);
    for (at, event) in whole.iter().enumerate() {
        let lacking = [&whole[..at], &whole[at + 1..]].concat();
        assert!(!found(&lacking).is_empty(), "without {event}");
        // Without its start a call may have been refused; an effect without one is found elsewhere.
        assert_eq!(numbered(lacking).is_empty(), event["type"] == "tool_started", "without {event}, numbered again");
        let twice = [&whole[..=at], &whole[at..]].concat();
        assert_eq!(numbered(twice).is_empty(), event["type"] == "assistant_message", "twice: {event}");
    }
    let mut other = whole.to_vec();
    other[8]["output"] = "mc".into();
    assert_eq!(found(&other), ["a call has no answer, or that to another one, at 9"]);
    let mut same_key = whole.to_vec();
    same_key[10]["key"] = whole[0]["key"].clone();
    assert_eq!(found(&same_key), ["the key k began two turns"]);
}
