//! Promises that hold after any crash, checked against what clients know.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::{Arc, Mutex, MutexGuard},
};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json, value::RawValue};

use crate::process::{Answer, Process, Stage, Trouble, answer, picture};

/// Requests and acknowledgements, over all lives of one data directory.
#[derive(Default)]
pub(crate) struct Known(Mutex<Facts>);

#[derive(Default)]
struct Facts {
    sessions: BTreeMap<String, Acknowledged>,
    /// Sessions that were asked for, acknowledged or not.
    creations: usize,
    prompts: BTreeSet<String>,
}

/// Acknowledged facts of one session.
#[derive(Default)]
struct Acknowledged {
    lines: BTreeMap<u64, String>,
    /// Changes that have an event of this kind.
    changes: Vec<(u64, &'static str)>,
    /// Turns that were accepted.
    turns: BTreeSet<u64>,
    /// Turns that ended, and how.
    ended: BTreeMap<u64, String>,
    /// Answers that were sent to calls, each with the seq of its record if that was acknowledged.
    answers: BTreeMap<String, (String, Option<u64>)>,
    is_deletion_asked: bool,
    is_deleted: bool,
}

impl Known {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Records an event that was shown.
    pub(crate) fn saw(&self, line: &str, event: &Value) {
        let (Some(seq), Some(id)) = (event["seq"].as_u64(), event["session_id"].as_str()) else { return };
        let mut facts = self.facts();
        let Some(known) = facts.sessions.get_mut(id) else { return };
        let before = known.lines.insert(seq, line.to_owned());
        assert!(before.is_none_or(|before| before == line), "{id} shows two events {seq}: {line}");
    }

    pub(crate) fn creation_asked(&self) {
        self.facts().creations += 1;
    }

    pub(crate) fn prompt_asked(&self, prompt: &str) {
        self.facts().prompts.insert(prompt.to_owned());
    }

    pub(crate) fn deletion_asked(&self, id: &str) {
        self.facts().sessions.get_mut(id).unwrap().is_deletion_asked = true;
    }

    pub(crate) fn created(&self, id: &str) {
        self.facts().sessions.entry(id.to_owned()).or_default();
    }

    pub(crate) fn deleted(&self, id: &str) {
        self.facts().sessions.get_mut(id).unwrap().is_deleted = true;
    }

    pub(crate) fn changed(&self, id: &str, seq: u64, kind: &'static str) {
        self.facts().sessions.get_mut(id).unwrap().changes.push((seq, kind));
    }

    pub(crate) fn turn_accepted(&self, id: &str, accepted: &Value) {
        self.facts().sessions.get_mut(id).unwrap().turns.insert(accepted["turn"].as_u64().unwrap());
    }

    pub(crate) fn turn_ended(&self, id: &str, result: &Value) {
        self.turn_accepted(id, result);
        let status = result["status"].as_str().unwrap().to_owned();
        self.facts().sessions.get_mut(id).unwrap().ended.insert(result["turn"].as_u64().unwrap(), status);
    }

    /// Records that an answer to a call was sent, or acknowledged.
    pub(crate) fn answered(&self, id: &str, call_id: &str, text: &str, seq: Option<u64>) {
        let mut facts = self.facts();
        let answers = &mut facts.sessions.get_mut(id).unwrap().answers;
        let (before, at) = answers.entry(call_id.to_owned()).or_insert_with(|| (text.to_owned(), seq));
        assert!(before == text && (at.is_none() || seq.is_none() || *at == seq), "{id}: {call_id}: {at:?} {seq:?}");
        *at = at.or(seq);
    }

    pub(crate) fn is_fork(&self, id: &str) -> bool {
        self.facts().sessions[id].changes.iter().any(|(_, kind)| *kind == "session_forked")
    }

    /// Lists the sessions that must exist.
    pub(crate) fn sessions(&self) -> Vec<String> {
        let facts = self.facts();
        let there = facts.sessions.iter().filter(|(_, known)| !known.is_deletion_asked);
        there.map(|(id, _)| id.clone()).collect()
    }
}

/// The program's unchanged answers about its sessions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Survey {
    pub(crate) list: Vec<String>,
    pub(crate) sessions: BTreeMap<String, Stored>,
}

/// The program's unchanged answers about one session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) read: String,
    pub(crate) history: Vec<String>,
    pub(crate) lines: Vec<String>,
    /// Bytes of the images in its prompts.
    pub(crate) images: Vec<Vec<u8>>,
}

impl Survey {
    pub(crate) fn of(process: &Process) -> Answer<Self> {
        let mut list = items(process, "session/list", json!({ "limit": 100 }))?;
        // Of those that a kill left, the clock says which changed last.
        list.sort_unstable();
        let mut sessions = BTreeMap::new();
        for row in &list {
            let id = parsed(row)["session_id"].as_str().unwrap().to_owned();
            sessions.insert(id.clone(), Stored::of(process, &id)?);
        }
        Ok(Self { list, sessions })
    }
}

impl Stored {
    pub(crate) fn of(process: &Process, id: &str) -> Answer<Self> {
        let mut lines = Vec::new();
        loop {
            let params = json!({ "session_id": id, "since_seq": lines.len(), "limit": 100 });
            let page = raw_items(&process.ask("session/events", &params)?);
            if page.is_empty() {
                break;
            }
            lines.extend(page);
        }
        let read = process.ask("session/read", &json!({ "session_id": id }))?;
        let history = items(process, "session/history", json!({ "session_id": id, "limit": 100 }))?;
        let mut images = Vec::new();
        let events: Vec<Value> = lines.iter().map(|line| parsed(line)).collect();
        let blocks = events.iter().flat_map(|event| event["blocks"].as_array().into_iter().flatten());
        for image in blocks.filter(|block| block["type"] == "image") {
            let blob = process.value("session/blob", &json!({ "session_id": id, "blob": image["blob"] }))?;
            images.push(BASE64_STANDARD.decode(blob["data"].as_str().unwrap()).unwrap());
        }
        Ok(Self { read, history, lines, images })
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        self.lines.iter().map(|line| parsed(line)).collect()
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn raw_items(page: &str) -> Vec<String> {
    let mut page: BTreeMap<String, Box<RawValue>> = serde_json::from_str(page).unwrap();
    let items: Vec<Box<RawValue>> = serde_json::from_str(page.remove("items").unwrap().get()).unwrap();
    items.iter().map(|item| item.get().to_owned()).collect()
}

/// Every item of a list, page by page.
fn items(process: &Process, method: &str, mut params: Value) -> Answer<Vec<String>> {
    let mut all = Vec::new();
    loop {
        let page = process.ask(method, &params)?;
        all.extend(raw_items(&page));
        let next = parsed(&page)["next_cursor"].take();
        if next.is_null() {
            return Ok(all);
        }
        params["cursor"] = next;
    }
}

/// After a crash, starts the program again and compares its answers with what is known; each session runs one more turn,
/// and without redb the next start answers the same. Returns the answers.
pub(crate) fn check(stage: &Stage, known: &Arc<Known>) -> Survey {
    let process = stage.rpc(known, None);
    check_stored(stage, &process, known);
    for id in known.sessions() {
        let view = process.value("session/read", &json!({ "session_id": id })).unwrap();
        if view["archived"] == true {
            continue;
        }
        // Turns that wait in the queue go on with it, and may wait for their caller.
        let next = process.accept(&id, r#"@call test_echo {"text":"next"} @say Next."#).unwrap();
        let_all_turns_end(&process, &id).unwrap();
        let events = Stored::of(&process, &id).unwrap().events();
        let [.., said, ended] = &events[..] else { panic!("{id}: {events:#?}") };
        assert_eq!((&ended["type"], &ended["turn"]), (&json!("turn_completed"), &next["turn"]), "{id}: {ended}");
        assert_eq!(said["blocks"][0]["text"], "Next.", "{id}: {said}");
    }
    let survey = Survey::of(&process).unwrap();
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
    check_rebuilt(stage, known, &survey);
    survey
}

/// Redb holds copies: without it, the program answers the same.
pub(crate) fn check_rebuilt(stage: &Stage, known: &Arc<Known>, expected: &Survey) {
    // It may never have been written.
    fs::remove_file(stage.data().join("index.redb")).ok();
    let process = stage.rpc(known, None);
    assert_eq!(&Survey::of(&process).unwrap(), expected);
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
}

/// Compares stored sessions with what is known.
pub(crate) fn check_stored(stage: &Stage, process: &Process, known: &Arc<Known>) {
    // Also those whose deletion was asked for and lost.
    let sessions: Vec<String> = known.facts().sessions.keys().cloned().collect();
    for id in sessions {
        let ended = let_waiting_turn_end(process, &id);
        ended.unwrap_or_else(|error| panic!("{id}: {error:?}: {}", stage.stderr()));
    }
    answer_again(process, known);
    let survey = Survey::of(process).unwrap();
    let facts = known.facts();
    for (id, acknowledged) in &facts.sessions {
        match survey.sessions.get(id) {
            Some(_) => assert!(!acknowledged.is_deleted, "{id} was deleted"),
            None => assert!(acknowledged.is_deletion_asked, "{id} is lost: {}", stage.stderr()),
        }
    }
    let asked = survey.sessions.len() + facts.sessions.values().filter(|known| known.is_deleted).count();
    assert!(asked <= facts.creations, "nobody asked for so many sessions");
    assert_eq!(directories(stage), survey.sessions.keys().cloned().collect(), "a session is its directory");
    for (row, id) in survey.list.iter().map(|row| (parsed(row), parsed(row)["session_id"].clone())) {
        let stored = &survey.sessions[id.as_str().unwrap()];
        check_row(&row, stored);
    }
    for (id, stored) in &survey.sessions {
        let events = check_events(id, stored, &facts.prompts);
        if let Some(acknowledged) = facts.sessions.get(id) {
            check_acknowledged(id, stored, &events, acknowledged);
        }
    }
    check_effects(stage, &survey);
}

/// A turn that waited for approval or for its caller when its process was killed still waits, or goes on if it was decided:
/// decides it, answers its calls, and waits for its end. No other turn is open.
pub(crate) fn let_waiting_turn_end(process: &Process, id: &str) -> Answer<()> {
    loop {
        let view = match process.value("session/read", &json!({ "session_id": id })) {
            Err(Trouble::Refused(code, _)) if code == "SESSION_NOT_FOUND" => return Ok(()),
            view => view?,
        };
        match view["state"].as_str().unwrap() {
            "waiting" => {
                for call in view["pending_approvals"].as_array().unwrap() {
                    process.approve(id, &call["call_id"])?;
                }
                let calls = process.value("turn/calls", &json!({ "session_id": id }))?;
                for call in calls["items"].as_array().unwrap() {
                    process.answer(id, call)?;
                }
            }
            "running" => {}
            _ => return Ok(()),
        }
        let next = json!({ "session_id": id, "since_seq": view["last_seq"], "limit": 1, "wait_ms": 1000 });
        process.value("session/events", &next)?;
    }
}

/// Decides and answers all that waits in a session until it rests.
pub(crate) fn let_all_turns_end(process: &Process, id: &str) -> Answer<()> {
    loop {
        let_waiting_turn_end(process, id)?;
        let view = process.value("session/read", &json!({ "session_id": id }))?;
        if view["state"] == "idle" {
            return Ok(());
        }
        let next = json!({ "session_id": id, "since_seq": view["last_seq"], "limit": 1, "wait_ms": 100 });
        process.value("session/events", &next)?;
    }
}

/// Another client sends each answer once more: it is the one that was recorded, or none was, and another one is refused.
fn answer_again(process: &Process, known: &Arc<Known>) {
    // Also those of sessions whose deletion was asked for and lost.
    let sent: Vec<(String, String, String)> = {
        let facts = known.facts();
        let of = |(id, known): (&String, &Acknowledged)| {
            let answers = known.answers.iter();
            answers.map(|(call_id, (text, _))| (id.clone(), call_id.clone(), text.clone())).collect::<Vec<_>>()
        };
        facts.sessions.iter().flat_map(of).collect()
    };
    for (id, call_id, text) in sent {
        let other = process.value("turn/answer", &answer(&id, &call_id, "Another one."));
        let Err(Trouble::Refused(other, _)) = other else { panic!("{id}: {call_id}: {other:?}") };
        if other == "SESSION_NOT_FOUND" {
            // What is looked at next says whether it may be gone.
            continue;
        }
        match process.value("turn/answer", &answer(&id, &call_id, &text)) {
            Ok(again) => {
                assert_eq!(other, "IDEMPOTENCY_CONFLICT", "{id}: {call_id}");
                known.answered(&id, &call_id, &text, again["seq"].as_u64());
            }
            Err(Trouble::Refused(code, _)) => {
                assert_eq!([code.as_str(), &other], ["ITEM_NOT_FOUND"; 2]);
                let acknowledged = known.facts().sessions[&id].answers[&call_id].1;
                assert_eq!(acknowledged, None, "{id}: {call_id} was answered");
            }
            Err(Trouble::Gone) => panic!("{id}: the process is gone"),
        }
    }
}

/// Lists the sessions that have a directory.
fn directories(stage: &Stage) -> BTreeSet<String> {
    let folders = fs::read_dir(stage.data().join("journal")).unwrap();
    let sessions = folders.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap());
    sessions.map(|session| session.unwrap().file_name().into_string().unwrap()).collect()
}

/// Every acknowledged event is stored unchanged, and so is every answer.
fn check_acknowledged(id: &str, stored: &Stored, events: &[Value], known: &Acknowledged) {
    for (seq, line) in &known.lines {
        let found = stored.lines.get(*seq as usize - 1);
        assert_eq!(found, Some(line), "{id}: event {seq}");
    }
    for (seq, kind) in &known.changes {
        assert_eq!(events.get(*seq as usize - 1).map(|event| &event["type"]), Some(&json!(kind)), "{id}: event {seq}");
    }
    for (call_id, (_, seq)) in &known.answers {
        let recorded = events.iter().find(|event| event["type"] == "call_answered" && event["call_id"] == **call_id);
        assert_eq!(recorded.and_then(|event| event["seq"].as_u64()), *seq, "{id}: {call_id}");
    }
    for turn in &known.turns {
        assert!(events.iter().any(|event| event["turn"] == *turn), "{id}: turn {turn} was accepted and is lost");
    }
    for (turn, status) in &known.ended {
        let kind = format!("turn_{status}");
        let is_end = |event: &&Value| event["turn"] == *turn && event["type"] == kind.as_str();
        assert_eq!(events.iter().filter(is_end).count(), 1, "{id}: turn {turn} was {status}");
    }
}

/// The events are whole: seqs without a gap, turns with one beginning and one end, calls with one result, and nothing
/// that nobody asked for.
fn check_events(id: &str, stored: &Stored, prompts: &BTreeSet<String>) -> Vec<Value> {
    let events = stored.events();
    let (mut open, mut begun, mut calls) = (None, BTreeMap::new(), BTreeSet::new());
    let mut context = Context::default();
    let mut waiting: Vec<(u64, String)> = Vec::new();
    let mut steered: Vec<Value> = Vec::new();
    // Calls that wait for their caller, and those that were answered and have no result yet.
    let (mut requested, mut answered) = (BTreeSet::new(), BTreeSet::new());
    let (mut asked, mut decided) = (BTreeSet::new(), BTreeSet::new());
    // Calls of the caller's that the turn left without an answer, each with whether it was requested.
    let mut given_up: Vec<bool> = Vec::new();
    // Results of the turn as its model reads them, by call.
    let mut results: Vec<(Value, Value)> = Vec::new();
    assert!(stored.images.iter().all(|image| *image == picture()), "{id}: an image is not whole");
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["seq"].as_u64(), Some(at as u64 + 1), "{id}: seqs have a gap");
        let (kind, turn) = (event["type"].as_str().unwrap(), event["turn"].as_u64());
        let told = || format!("{id}: {kind} at {}: {:#?}", at + 1, stored.lines);
        if let Some(prompt) = event["prompt"].as_str() {
            assert!(prompts.contains(prompt), "nobody said {prompt:?}: {}", told());
        }
        context.push(event, events.get(at + 1));
        match (kind, turn) {
            ("turn_queued", Some(turn)) => {
                waiting.push((turn, event["prompt"].as_str().unwrap().to_owned()));
            }
            ("turn_edited", Some(turn)) => {
                let at = waiting.iter().position(|(waiting, _)| *waiting == turn);
                let (_, former) = waiting.remove(at.unwrap_or_else(|| panic!("{}", told())));
                let prompt = event["prompt"].as_str().map_or(former, str::to_owned);
                waiting.insert(event["position"].as_u64().map_or(at.unwrap(), |at| at as usize), (turn, prompt));
            }
            // A fork goes on from the end of a turn: what waited behind it waits with its parent.
            ("session_forked", _) => waiting.clear(),
            ("turn_dequeued", Some(turn)) => {
                let left = waiting.iter().position(|(waiting, _)| *waiting == turn).map(|at| waiting.remove(at));
                assert!(left.is_some(), "{}", told());
            }
            ("turn_started", Some(turn)) => {
                assert_eq!(open.replace(turn), None, "{}", told());
                let waited = waiting.iter().position(|(waiting, _)| *waiting == turn).map(|at| waiting.remove(at).1);
                let prompt = waited.or_else(|| event["prompt"].as_str().map(str::to_owned));
                let continued = event["continues"].as_u64().and_then(|turn| begun.get(&turn).cloned());
                let prompt = prompt.or(continued);
                assert_eq!(begun.insert(turn, prompt.unwrap_or_default()), None, "{}", told());
                if event["continues"].is_null() {
                    results.clear();
                }
            }
            ("turn_steered", Some(turn)) => {
                assert_eq!(open, Some(turn), "{}", told());
                let prompt = event["prompt"].as_str().unwrap();
                begun.entry(turn).and_modify(|said| said.push_str(prompt));
                steered.push(event["seq"].clone());
            }
            // A text enters once, and never between a call and its result.
            ("steering_entered", Some(_)) => {
                assert!(calls.is_empty(), "calls without a result: {}", told());
                assert!(steered.contains(&event["steered"]), "{}", told());
                steered.retain(|seq| *seq != event["steered"]);
            }
            ("turn_completed" | "turn_failed" | "turn_interrupted", Some(turn)) => {
                assert!(steered.is_empty(), "a text never entered: {}", told());
                assert_eq!(open.take(), Some(turn), "{}", told());
                assert!(calls.is_empty(), "calls without a result: {}", told());
                // A kill gives up no call that waits, and whoever interrupts a turn says so.
                assert!(given_up.is_empty() || kind == "turn_interrupted", "a call is lost: {}", told());
                let is_killed = event["reason"] == "process_ended";
                assert!(!given_up.drain(..).any(|requested| requested && is_killed), "a call is lost: {}", told());
            }
            ("assistant_message", Some(turn)) => {
                assert_eq!(open, Some(turn), "{}", told());
                for block in event["blocks"].as_array().unwrap() {
                    match block["type"].as_str() {
                        Some("tool_call") => {
                            results.push((block["call_id"].clone(), block.clone()));
                            assert!(calls.insert(block["call_id"].clone().to_string()), "{}", told());
                        }
                        Some("text") => {
                            let text = block["text"].as_str().unwrap();
                            let is_said = begun[&turn].contains(&format!("@say {text}"));
                            let result = |(_, result): &(_, Value)| result.as_str().map(str::to_owned);
                            let are_read = || {
                                let results = results.iter().filter_map(result).collect::<Vec<_>>().join("\n");
                                text.strip_prefix("results: ") == Some(&results)
                            };
                            assert!(is_said || are_read() || text.starts_with("Done: the script"), "{}", told());
                        }
                        _ => panic!("{}", told()),
                    }
                }
            }
            ("approval_requested", Some(_)) => {
                let call_id = event["call_id"].to_string();
                assert!(calls.contains(&call_id) && asked.insert(call_id), "{}", told());
            }
            ("approval_decided", Some(_)) => {
                let call_id = event["call_id"].to_string();
                assert!(asked.contains(&call_id) && decided.insert(call_id), "{}", told());
            }
            ("tool_started", Some(_)) => assert!(calls.contains(&event["call_id"].to_string()), "{}", told()),
            ("call_requested", Some(_)) => {
                let call_id = event["call_id"].to_string();
                assert!(calls.contains(&call_id) && requested.insert(call_id), "{}", told());
            }
            ("call_answered", Some(_)) => {
                let call_id = event["call_id"].to_string();
                assert!(requested.remove(&call_id) && answered.insert(call_id), "{}", told());
                assert_eq!(events.get(at + 1).map(|next| &next["call_id"]), Some(&event["call_id"]), "{}", told());
            }
            ("tool_finished", Some(_)) => {
                let call_id = event["call_id"].to_string();
                assert!(calls.remove(&call_id), "{}", told());
                let result = results.iter_mut().find(|(of, _)| *of == event["call_id"]);
                let (call_id_read, result) = result.unwrap_or_else(|| panic!("{}", told()));
                let call = std::mem::replace(result, event["output"].clone());
                // No call has the answer to another one.
                let answer = format!("{} {}", call_id_read.as_str().unwrap(), call["arguments"]);
                match answered.remove(&call_id) {
                    true => assert_eq!(event["output"], *answer, "{}", told()),
                    false if ["look", "order"].contains(&call["name"].as_str().unwrap()) => {
                        given_up.push(requested.remove(&call_id));
                    }
                    false => {}
                }
            }
            _ => {}
        }
    }
    assert_eq!(open, None, "{id}: a turn has no end: {:#?}", stored.lines);
    let view = parsed(&stored.read);
    assert_eq!(view["context"]["messages"].as_u64(), Some(context.messages), "{id}: {:#?}", stored.lines);
    assert_eq!(context.begun, None, "{id}: a compaction has no end: {:#?}", stored.lines);
    let queue: Vec<u64> = view["queue"].as_array().unwrap().iter().map(|item| item["turn"].as_u64().unwrap()).collect();
    assert_eq!(queue, waiting.into_iter().map(|(turn, _)| turn).collect::<Vec<_>>(), "{id}: {:#?}", stored.lines);
    assert_eq!((&view["session_id"], view["last_seq"].as_u64()), (&json!(id), Some(events.len() as u64)));
    events
}

/// The live context as the events say: how many messages it has, compacted or not and never between.
#[derive(Default)]
struct Context {
    messages: u64,
    /// Calls that have no result yet.
    calls: usize,
    /// An answer was cut off, and its turn has not gone on.
    is_cut_off: bool,
    /// A compaction that has not ended.
    begun: Option<u64>,
    /// Each compaction that stands, with the messages before and after it.
    done: Vec<(u64, u64, u64)>,
}

impl Context {
    fn push(&mut self, event: &Value, next: Option<&Value>) {
        let seq = event["seq"].as_u64().unwrap();
        match event["type"].as_str().unwrap() {
            "turn_started" => self.messages += u64::from(event["continues"].is_null()),
            "assistant_message" => {
                let blocks = event["blocks"].as_array().unwrap();
                self.calls = blocks.iter().filter(|block| block["type"] == "tool_call").count();
                self.messages += 1;
                self.is_cut_off = false;
            }
            "tool_finished" => {
                self.calls -= 1;
                self.messages += u64::from(self.calls == 0);
                self.is_cut_off &= self.calls > 0;
            }
            "history_given" => self.messages += 1,
            "steering_entered" => self.messages += 1 + u64::from(std::mem::take(&mut self.is_cut_off)),
            "partial_text" => self.is_cut_off = true,
            "turn_completed" => self.is_cut_off = false,
            // What had come of the answer is a message.
            "turn_failed" | "turn_interrupted" => self.messages += u64::from(std::mem::take(&mut self.is_cut_off)),
            "compaction_started" => {
                assert_eq!(self.begun.replace(seq), None, "two at once: {event}");
                assert_eq!(event["message_count"], self.messages, "{event}");
            }
            "context_rebuilt" => {
                let completed = next.filter(|next| next["type"] == "compaction_completed");
                assert_eq!(completed.map(|next| &next["seq"]), Some(&event["compaction"]), "it stands alone: {event}");
                self.is_cut_off = false;
            }
            "compaction_completed" => {
                assert!(self.begun.take().is_some(), "it never began: {event}");
                assert_eq!(event["messages_before"], self.messages, "{event}");
                let after = event["messages_after"].as_u64().unwrap();
                self.done.push((seq, self.messages, after));
                self.messages = after;
            }
            "compaction_failed" => assert!(self.begun.take().is_some(), "it never began: {event}"),
            "compaction_undone" => {
                let (undone, before, after) = self.done.pop().unwrap();
                assert_eq!(event["compaction"], undone, "{event}");
                self.messages = before + (self.messages - after);
            }
            _ => {}
        }
    }
}

/// The first line of the first prompt, by which a session is listed that has no title. What was said elsewhere comes first.
fn first_line(events: &[Value]) -> Value {
    let is_said = |event: &&Value| event["type"] == "turn_started" || event["type"] == "history_given";
    let Some(said) = events.iter().find(is_said) else { return Value::Null };
    let queued = events.iter().find(|event| event["seq"] == said["queued"]);
    let prompt = queued.map_or(&said["prompt"], |queued| &queued["prompt"]);
    let prompt = said["message"].get("content").unwrap_or(prompt);
    let text = prompt.as_str().or(prompt["head"].as_str()).unwrap_or_default();
    let line = text.lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    let is_long = line.chars().count() > 80;
    json!(if is_long { line.chars().take(79).chain(['…']).collect() } else { line })
}

/// A row of the list says what the events say.
fn check_row(row: &Value, stored: &Stored) {
    let events = stored.events();
    let last = |kinds: &[&str]| events.iter().rev().find(|event| kinds.iter().any(|kind| event["type"] == *kind));
    let set = last(&["session_updated"]).map_or(Value::Null, |event| event["title"].clone());
    let title = if set.is_null() { first_line(&events) } else { set };
    // A fork is not put away, though its parent may be.
    let is_archived = last(&["session_archived", "session_unarchived", "session_forked"]).map(|event| &event["type"]);
    assert_eq!(row["title"], title, "{row}");
    assert_eq!(row["archived"], json!(is_archived == Some(&json!("session_archived"))), "{row}");
    if let Some(last_seq) = row.get("last_seq") {
        assert_eq!(last_seq.as_u64(), Some(events.len() as u64), "{row}: {:#?}", stored.lines);
    }
}

/// A `once` tool has run at most once, and never without its durable intent.
fn check_effects(stage: &Stage, survey: &Survey) {
    let mut intended = BTreeSet::new();
    for stored in survey.sessions.values() {
        let events = stored.events();
        let started: BTreeSet<String> =
            events.iter().filter(|event| event["effect"] == "once").map(|event| event["call_id"].to_string()).collect();
        let blocks = events.iter().flat_map(|event| event["blocks"].as_array().into_iter().flatten());
        for call in blocks.filter(|block| started.contains(&block["call_id"].to_string())) {
            // Other calls than those that add a line leave nothing in the file.
            intended.extend(call["arguments"]["line"].as_str().map(str::to_owned));
        }
    }
    let mut seen = BTreeSet::new();
    for line in stage.tool_lines("effects") {
        assert!(seen.insert(line.clone()), "{line} happened twice");
        // It begins with its session, which may be deleted and has then taken its intents along.
        let is_there = survey.sessions.contains_key(line.split(' ').next().unwrap_or_default());
        assert!(intended.contains(&line) || !is_there, "{line} happened without a durable intent");
    }
}
