//! Killed at every write, every sync and every change of names.

use std::sync::Arc;

use meerkat_testkit::campaigns::Part;
use serde_json::{Value, json};

use crate::{
    oracle::{Known, check},
    process::{Answer, Process, Stage, Trouble},
    shim::{Act, INDEX, NOT_INDEX, Shim, Told},
};

type Script = fn(&Process) -> Answer<()>;

/// One of everything: turns with tools of each effect, a question, a steered text, a blob, a title, a fork, a queue that
/// is changed, an archive, a delete.
fn script(process: &Process) -> Answer<()> {
    let first = process.create()?;
    let events = process.listen(&first);
    let prompt = format!(
        r#"@say Working. @call test_echo {{"text":"a"}} @call test_set {{"name":"set","value":"1"}}
        @step @call test_append {{"name":"effects","line":"{first} appended"}}
        @step @call test_ask {{"name":"effects","line":"{first} asked"}} @say Finished."#
    );
    process.accept(&first, &prompt)?;
    let asked = events.until("approval_requested")?;
    process.steer(&first, "@say Steered.")?;
    process.approve(&first, &asked["call_id"])?;
    events.until("turn_completed")?;
    process.turn(&first, r#"@call test_huge {"bytes":40000} @say Huge."#)?;
    process.change("session/update", "session_updated", &json!({ "session_id": first, "title": "A title" }))?;

    let second = process.fork(&first)?;
    let events = process.listen(&second);
    process.accept(&second, "@say Forked. @stall")?;
    events.until("turn_started")?;
    process.accept(&second, "@say Queued.")?;
    let waiting = process.accept(&second, "@say Queued behind it.")?;
    process.edit(&second, &waiting["turn"], "@say Edited.", 0)?;
    process.change("turn/interrupt", "turn_interrupted", &json!({ "session_id": second }))?;
    events.until("turn_completed")?;
    events.until("turn_completed")?;
    process.change("session/archive", "session_archived", &json!({ "session_id": first }))?;

    let third = process.create()?;
    let prompt = format!(r#"@call test_append {{"name":"effects","line":"{third}"}} @say Third."#);
    process.turn(&third, &prompt)?;
    process.delete(&third)
}

/// Every way that a context is rebuilt: one that is asked for, one that comes by itself between the steps of a turn, one
/// whose summary fails, and one that is taken back.
fn script_of_compacting(process: &Process) -> Answer<()> {
    let id = process.create()?;
    let talk = "We went through all of it once more. ".repeat(20);
    for n in 0..3 {
        process.turn(&id, &format!("@note {talk} @say Turn {n}. @compaction @say The sum of {n}."))?;
    }
    process.change("session/pin", "pinned", &json!({ "session_id": id, "text": "A fact" }))?;
    process.compact(&id)?;
    let calls: String = (0..3).map(|n| format!(r#"@call test_echo {{"text":"{n} {talk}"}} @step "#)).collect();
    process.compacting_turn(&id, &format!("{calls} @say Compacted. @compaction @say In between."))?;
    process.change("session/compact_undo", "compaction_undone", &json!({ "session_id": id }))?;
    process.compacting_turn(&id, "@say Uncompacted. @compaction @fail rejected")?;
    process.turn(&id, "@say At last.").map(drop)
}

/// A turn that shows a picture, with calls that its caller runs, between one that runs here and one that asks for
/// approval. Its model says what it was answered. Each answer and decision is sent twice.
fn script_of_calls(process: &Process) -> Answer<()> {
    let id = process.create()?;
    let events = process.listen(&id);
    let prompt = format!(
        r#"@call test_append {{"name":"effects","line":"{id} before"}} @call look {{"n":1}} @call order {{"n":2}}
        @call test_ask {{"name":"effects","line":"{id} asked"}} @step @call order {{"n":3}} @echo results"#
    );
    process.accept_with_tools(&id, &prompt)?;
    let asked = events.until("approval_requested")?["call_id"].take();
    process.approve(&id, &asked)?;
    process.approve(&id, &asked)?;
    for _ in 0..3 {
        let call = events.until("call_requested")?;
        process.answer(&id, &call)?;
        process.answer(&id, &call)?;
    }
    events.until("turn_completed").map(drop)
}

/// Sessions that rest are changed and deleted: the next start has to look at them again.
fn script_of_resting(process: &Process) -> Answer<()> {
    let sessions = process.known.sessions();
    process.turn(&sessions[0], "@say Again.")?;
    process.change("session/pin", "pinned", &json!({ "session_id": sessions[1], "text": "A fact" }))?;
    process.delete(&sessions[2])
}

/// The first start of all makes the store.
fn script_of_first(process: &Process) -> Answer<()> {
    let id = process.create()?;
    process.turn(&id, "@say First.").map(drop)
}

/// A session that begins with what was said elsewhere: in many events, some of them with a blob.
fn script_of_history(process: &Process) -> Answer<()> {
    let long = "It was said at length. ".repeat(8_000);
    let exchange = |n: usize| {
        let call = json!({ "type": "tool_call", "call_id": "a", "name": "look", "arguments": { "n": n } });
        let result = json!({ "call_id": "a", "content": if n.is_multiple_of(10) { long.as_str() } else { "seen" } });
        [
            json!({ "role": "user", "content": format!("Question {n}.") }),
            json!({ "role": "assistant", "blocks": [call] }),
            json!({ "role": "tool_results", "results": [result] }),
            json!({ "role": "assistant", "content": format!("Answer {n}.") }),
        ]
    };
    let history: Vec<Value> = (0..EXCHANGES).flat_map(exchange).collect();
    let id = process.create_with(&json!({ "history": history }))?;
    process.turn(&id, "@say On.").map(drop)
}

/// Exchanges of that history, of four messages each.
const EXCHANGES: usize = 40;

fn with_resting(known: &Arc<Known>) -> Stage {
    let stage = Stage::made();
    let process = stage.rpc(known, None);
    for _ in 0..3 {
        let id = process.create().unwrap();
        process.turn(&id, "@say Before.").unwrap();
    }
    assert_eq!(process.end(), Some(0));
    stage
}

/// Runs it until it is killed; `None` where it came to its end.
fn killed(stage: &Stage, known: &Arc<Known>, shim: &Shim, script: Script) -> Option<String> {
    let process = stage.rpc(known, Some(shim));
    let done = script(&process);
    let code = process.end();
    match shim.fired() {
        Some(what) => {
            assert!(code.is_none(), "it was not killed");
            Some(what)
        }
        None => {
            assert!(!matches!(done, Err(Trouble::Gone)), "{}", stage.stderr());
            done.unwrap();
            assert_eq!(code, Some(0), "{}", stage.stderr());
            None
        }
    }
}

/// At every number from 1 on, until one is too large. Answers how many there were.
fn each(act: Act, under: &str, make: fn(&Arc<Known>) -> Stage, script: Script) -> u64 {
    crate::each::each(Part::Store, |at| {
        let known = Arc::default();
        let stage = make(&known);
        let shim = Shim::new(&stage.data()).under(under).at(at, act);
        let what = killed(&stage, &known, &shim, script);
        let is_there = what.is_some();
        let _told = Told(format!("{act:?} at {at}: {}", what.unwrap_or_default()));
        check(&stage, &known);
        is_there
    })
}

#[test]
fn killed_before_each_operation_nothing_acknowledged_is_lost() {
    assert!(each(Act::KillBefore, NOT_INDEX, |_| Stage::made(), script) > 80);
}

#[test]
fn killed_within_each_write_and_after_each_other_operation_nothing_acknowledged_is_lost() {
    assert!(each(Act::KillTorn, NOT_INDEX, |_| Stage::made(), script) > 80);
}

#[test]
fn killed_at_each_write_of_a_compaction_the_session_is_compacted_or_it_is_not() {
    assert!(each(Act::KillTorn, NOT_INDEX, |_| Stage::made(), script_of_compacting) > 30);
    assert!(each(Act::KillBefore, NOT_INDEX, |_| Stage::made(), script_of_compacting) > 30);
}

#[test]
fn killed_at_each_write_of_a_turn_with_calls_an_approval_and_a_picture_each_call_is_answered_once() {
    assert!(each(Act::KillTorn, NOT_INDEX, |_| Stage::made(), script_of_calls) > 30);
    assert!(each(Act::KillBefore, NOT_INDEX, |_| Stage::made(), script_of_calls) > 30);
}

#[test]
fn killed_while_the_copies_are_written_nothing_is_lost() {
    assert!(each(Act::KillTorn, INDEX, |_| Stage::made(), script) > 5);
}

#[test]
fn killed_while_a_history_is_given_its_session_has_all_of_it_or_is_not_there() {
    for act in [Act::KillTorn, Act::KillBefore] {
        let places = crate::each::each(Part::Store, |at| {
            let (known, stage) = (Arc::default(), Stage::made());
            let shim = Shim::new(&stage.data()).under(NOT_INDEX).at(at, act);
            let what = killed(&stage, &known, &shim, script_of_history);
            let is_there = what.is_some();
            let _told = Told(format!("{act:?} at {at}: {}", what.unwrap_or_default()));
            check(&stage, &known);
            let process = stage.rpc(&Arc::default(), None);
            let sessions = process.value("session/list", &json!({})).unwrap();
            for session in sessions["items"].as_array().unwrap() {
                let params = json!({ "session_id": session["session_id"], "limit": 1000 });
                let events = process.value("session/events", &params).unwrap();
                let events = events["items"].as_array().unwrap();
                let given = events.iter().filter(|event| event["type"] == "history_given").count();
                assert_eq!(given, EXCHANGES * 4);
            }
            assert!(is_there || sessions["items"].as_array().unwrap().len() == 1);
            assert_eq!(process.end(), Some(0));
            is_there
        });
        assert!(places > 10, "{places}");
    }
}

#[test]
fn killed_when_resting_sessions_change_nothing_is_overlooked() {
    assert!(each(Act::KillBefore, NOT_INDEX, with_resting, script_of_resting) > 20);
}

#[test]
fn killed_when_the_store_is_made_the_next_start_makes_it() {
    // Without the folders that sessions are spread over: there are many, and one is as the other.
    assert!(each(Act::KillTorn, "!/journal/", |_| Stage::empty(), script_of_first) > 80);
}
