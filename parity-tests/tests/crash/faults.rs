//! A disk that fails once, for good, or is full.

use std::sync::Arc;

use meerkat_parity_tests::contract::contract;
use meerkat_testkit::{campaigns::Part, until, until_some};
use serde_json::{Value, json};

use crate::{
    oracle::{Known, Survey, check},
    process::{Answer, Process, Stage, Trouble},
    server::{SERVE, Server},
    shim::{Act, MAKES, NAMES, NOT_INDEX, SYNCS, Shim, Told, WRITES},
};

/// Bytes that are kept back for turns that run.
const RESERVE: i64 = 4 * 1024 * 1024;

/// What was done, unless the disk was in the way; then the program says so.
fn tolerate<T>(answer: Answer<T>) -> Option<T> {
    match answer {
        Ok(done) => Some(done),
        Err(Trouble::Gone) => None,
        Err(Trouble::Refused(code, error)) => {
            let is_told = ["STORE_FAILED", "STORE_FULL", "STORE_NOT_WRITABLE", "SESSION_ARCHIVED"];
            assert!(is_told.contains(&code.as_str()), "{error}");
            None
        }
    }
}

/// Changes of every kind, whatever becomes of each.
fn script(process: &Process) {
    for n in 0..2 {
        let Some(id) = tolerate(process.create()) else { continue };
        let target = json!({ "session_id": id });
        let call = format!(r#"@call test_append {{"name":"effects","line":"{id} {n}"}}"#);
        tolerate(process.turn(&id, &format!(r#"@call test_echo {{"text":"a"}} @step {call} @say Done {n}."#)));
        tolerate(process.turn(&id, r#"@call test_huge {"bytes":40000} @say Huge."#));
        tolerate(process.change(
            "session/update",
            "session_updated",
            &json!({ "session_id": id, "title": format!("Title {n}") }),
        ));
        if let Some(fork) = tolerate(process.fork(&id)) {
            tolerate(process.turn(&fork, "@say Forked."));
            tolerate(process.delete(&fork));
        }
        tolerate(process.ask("session/archive", &target));
        tolerate(process.ask("session/unarchive", &target));
    }
}

/// One operation fails: what could not be done is said, and nothing else suffers.
fn each(act: Act) -> u64 {
    crate::each::each(Part::Store, |at| {
        let (stage, known) = (Stage::made(), Arc::<Known>::default());
        let shim = Shim::new(&stage.data()).under(NOT_INDEX).at(at, act);
        let process = stage.rpc(&known, Some(&shim));
        script(&process);
        let _told = Told(format!("{act:?} at {at}: {:?}", shim.fired()));
        let is_there = shim.fired().is_some();
        shim.next(0, Act::Pass);
        // It may have refused to start.
        let is_started = !matches!(process.ask("capabilities/get", &json!({})), Err(Trouble::Gone));
        if is_started {
            let id = process.create().unwrap();
            assert_eq!(process.turn(&id, "@say Well.").unwrap()["text"], "Well.");
            Survey::of(&process).unwrap();
        }
        let code = process.end();
        let refusals =
            ["STORE_FAILED", "STORE_FULL", "STORE_NOT_WRITABLE"].map(|code| contract().errors[code].exit.into());
        let is_told = if is_started { code == Some(0) } else { code.is_some_and(|code| refusals.contains(&code)) };
        assert!(is_told, "{code:?} {}", stage.stderr());
        check(&stage, &known);
        is_there
    })
}

#[test]
fn an_error_at_any_operation_costs_that_operation_alone() {
    assert!(each(Act::Eio) > 80);
}

#[test]
fn no_room_at_any_operation_costs_that_operation_alone() {
    assert!(each(Act::Enospc) > 80);
}

/// Bytes run out in the middle of whatever is written, also with the reserve used up.
#[test]
fn a_disk_that_fills_up_refuses_and_recovers_without_a_restart() {
    let rooms: Vec<i64> = (0..16).map(|n| n * 700).collect();
    std::thread::scope(|scope| {
        for rooms in rooms.chunks(4) {
            scope.spawn(|| {
                for room in rooms.iter().flat_map(|room| [*room, *room - RESERVE]) {
                    let (stage, known) = (Stage::empty(), Arc::<Known>::default());
                    let shim = Shim::new(&stage.data());
                    let process = stage.rpc(&known, Some(&shim));
                    let before = process.create().unwrap();
                    process.turn(&before, "@say Before.").unwrap();
                    let _told = Told(format!("room for {room} bytes\n{}", stage.stderr()));
                    shim.room(Some(room));
                    tolerate(process.turn(&before, "@say Within."));
                    script(&process);
                    Survey::of(&process).unwrap();
                    shim.room(None);
                    for id in known.sessions() {
                        assert_eq!(process.turn(&id, "@say After.").unwrap()["text"], "After.");
                    }
                    script(&process);
                    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
                    check(&stage, &known);
                }
            });
        }
    });
}

/// Bytes are free, and no file, folder or link can be made any more: what needs one is refused, what runs goes on.
#[test]
fn a_disk_without_inodes_refuses_and_recovers_without_a_restart() {
    let (stage, known) = (Stage::empty(), Arc::<Known>::default());
    let shim = Shim::new(&stage.data());
    let process = stage.rpc(&known, Some(&shim));
    let [quiet, running, doomed] = [(); 3].map(|()| process.create().unwrap());
    let bundle = process.value("session/export", &json!({ "session_id": quiet })).unwrap()["data"].take();
    process.turn(&quiet, "@say Before.").unwrap();
    let events = process.listen(&running);
    let call = format!(r#"@call test_ask {{"name":"effects","line":"{running}"}}"#);
    process.accept(&running, &format!("{call} @say Running.")).unwrap();
    let call_id = events.until("approval_requested").unwrap()["call_id"].take();
    // The session works still, so a turn needs no file. The blob of its tool does, and the model is told so.
    let heard = process.listen(&quiet);
    let huge = || {
        let turn = process.turn(&quiet, r#"@call test_huge {"bytes":40000} @say Huge."#).unwrap();
        let finished = heard.until("tool_finished").unwrap();
        (turn["text"].clone(), finished["outcome"].clone(), finished["error"]["message"].clone())
    };
    let import = json!({ "data": bundle, "is_last": true, "new_ids": true });
    let wishes = || {
        let answers = [
            process.create().map(drop),
            process.fork(&quiet).map(drop),
            process.ask("session/import", &import).map(drop),
            process.ask("reader/create", &json!({ "reader": "audit" })).map(drop),
            process.delete(&doomed),
        ];
        answers.map(|answer| match answer {
            Ok(()) => "done".to_owned(),
            Err(Trouble::Refused(code, _)) => code,
            Err(Trouble::Gone) => "gone".to_owned(),
        })
    };
    shim.always(MAKES, Act::Enospc);
    assert_eq!(huge(), (json!("Huge."), json!("failed"), json!("the output could not be stored: the store is full")));
    assert_eq!(wishes(), ["STORE_FULL"; 5], "{}", stage.stderr());
    Survey::of(&process).unwrap();
    let approval = json!({ "session_id": running, "call_id": call_id, "decision": "approve" });
    process.ask("turn/approve", &approval).unwrap();
    assert_eq!(events.until("turn_completed").unwrap()["turn"], 0);
    assert_eq!(stage.tool_lines("effects"), [running.as_str()]);

    shim.always(MAKES, Act::Pass);
    assert_eq!(huge(), (json!("Huge."), json!("succeeded"), Value::Null));
    assert_eq!(wishes(), ["done"; 5], "{}", stage.stderr());
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
    check(&stage, &known);
}

/// A compaction rewrites a file beside the old one, for which there is no room.
#[test]
fn a_journal_that_finds_no_room_to_get_smaller_is_as_it_was() {
    let stage = Stage::empty();
    let shim = Shim::new(&stage.data()).under("/new/");
    let server = stage.serve(Some(&shim));
    let id = server.create();
    for text in ["one", "two", "three"] {
        let remind = json!({ "session_id": id, "kind": "claude_md", "text": text });
        server.rpc("session/remind", &remind).unwrap().unwrap();
    }
    let turns = format!("/v1/sessions/{id}/turns");
    assert_eq!(server.post(&turns, &json!({ "prompt": "@say Before." })).0, 200);
    let compact = |dry_run: bool| {
        let compact = json!({ "min_record_age_ms": 0, "dry_run": dry_run });
        server.post(&format!("/v1/sessions/{id}/journal-compactions"), &compact)
    };
    // The files are read again from the beginning when a compaction begins.
    let is_due = || until("its readers have it", || compact(true).1["dropped"] == 2);
    is_due();
    let events = || server.get(&format!("/v1/sessions/{id}/events")).1;
    let before = events();
    shim.always(WRITES | MAKES, Act::Enospc);
    for _ in 0..2 {
        let refused = compact(false);
        assert_eq!((refused.0, code(&refused)), (507, "STORE_FULL"), "{}", refused.1);
        assert_eq!(events(), before);
        is_due();
    }
    shim.always(WRITES | MAKES, Act::Pass);
    let done = compact(false);
    assert_eq!((done.0, &done.1["dropped"]), (200, &json!(2)), "{}", done.1);
    let after = server.post(&turns, &json!({ "prompt": "@say After." }));
    assert_eq!((after.0, after.1["text"].as_str()), (200, Some("After.")));
    assert_eq!(server.end(), Some(0));
}

/// Memory makes its files some time after the first change, so here it can from the beginning make none.
#[test]
fn a_memory_without_inodes_refuses_its_search_alone_and_recovers_without_a_restart() {
    let (stage, known) = (Stage::empty(), Arc::<Known>::default());
    let shim = Shim::new(&stage.data()).under("/memory");
    shim.always(MAKES, Act::Enospc);
    let process = stage.rpc(&known, Some(&shim));
    let id = process.create().unwrap();
    assert_eq!(process.turn(&id, "@say The kumquat is ripe.").unwrap()["text"], "The kumquat is ripe.");
    let search = || process.value("memory/search", &json!({ "query": "kumquat", "role": "assistant" }));
    assert!(matches!(search(), Err(Trouble::Refused(code, _)) if code == "STORE_FULL"), "{}", stage.stderr());
    shim.always(MAKES, Act::Pass);
    until("it is remembered", || search().unwrap()["items"].as_array().unwrap().len() == 1);
    assert_eq!(process.end(), Some(0), "{}", stage.stderr());
    check(&stage, &known);
}

fn code(answer: &(u16, Value)) -> &str {
    answer.1["code"].as_str().unwrap_or("none")
}

#[test]
fn on_a_full_disk_new_turns_wait_for_room_and_running_ones_end() {
    let stage = Stage::empty();
    let shim = Shim::new(&stage.data());
    let mut command = stage.command(&SERVE);
    // Its file may shrink, which makes room.
    command.env("MEERKAT_MEMORY__ENABLED", "false");
    shim.attach(&mut command);
    let server = Server::start(command);
    let (quiet, running) = (server.create(), server.create());
    let turns = |id: &str| format!("/v1/sessions/{id}/turns");
    let prompt = format!(r#"@call test_ask {{"name":"effects","line":"{running}"}} @say Done."#);
    let turn = json!({ "session_id": running, "prompt": prompt, "attended": true, "wait": false });
    assert!(server.rpc("turn/start", &turn).unwrap().is_ok());
    let pending = until_some("its call waits", || {
        let view = server.get(&format!("/v1/sessions/{running}")).1;
        view["pending_approvals"][0]["call_id"].as_str().map(str::to_owned)
    });
    assert_eq!(server.get("/readyz").0, 200);

    shim.room(Some(0));
    // The first to meet it may still be written, into what is kept back, or into what the index frees.
    let more = || server.post(&turns(&quiet), &json!({ "prompt": "@say More." }));
    let refused = until_some("a turn is refused", || Some(more()).filter(|answer| answer.0 != 200));
    for answer in [refused, more()] {
        assert_eq!((answer.0, code(&answer)), (507, "STORE_FULL"), "{}", answer.1);
    }
    assert_eq!(code(&server.post("/v1/sessions", &json!({}))), "STORE_FULL");
    assert_eq!(code(&server.get("/readyz")), "STORE_FULL");
    assert_eq!(server.get("/v1/sessions").1["items"].as_array().unwrap().len(), 2);
    let approval = json!({ "session_id": running, "call_id": pending, "decision": "approve" });
    assert!(server.rpc("turn/approve", &approval).unwrap().is_ok());
    let ended = until_some("its turn ends", || {
        let page = server.get(&format!("/v1/sessions/{running}/events?since_seq=0")).1;
        let last = page["items"].as_array().unwrap().last().unwrap().clone();
        let kind = last["type"].as_str().unwrap();
        (kind.starts_with("turn_") && kind != "turn_started").then_some(last)
    });
    assert_eq!(ended["type"], "turn_completed", "{ended}");
    assert_eq!(stage.tool_lines("effects"), [running.as_str()]);

    shim.room(None);
    assert_eq!(server.get("/readyz").0, 200);
    let more = server.post(&turns(&quiet), &json!({ "prompt": "@say More." }));
    assert_eq!((more.0, more.1["text"].as_str()), (200, Some("More.")));
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_disk_that_cannot_be_trusted_is_only_read_from_then_on() {
    let stage = Stage::made();
    let shim = Shim::new(&stage.data()).under(NOT_INDEX);
    let server = stage.serve(Some(&shim));
    let id = server.create();
    let turns = format!("/v1/sessions/{id}/turns");
    assert_eq!(server.post(&turns, &json!({ "prompt": "@say Before." })).0, 200);
    let events = server.get(&format!("/v1/sessions/{id}/events")).1;
    shim.always(SYNCS, Act::Eio);
    let codes: Vec<String> =
        (0..4).map(|_| code(&server.post(&turns, &json!({ "prompt": "@say More." }))).to_owned()).collect();
    assert_eq!((codes[0].as_str(), codes[3].as_str()), ("STORE_FAILED", "STORE_NOT_WRITABLE"), "{codes:?}");
    assert_eq!(code(&server.get("/readyz")), "STORE_NOT_WRITABLE");
    assert_eq!(code(&server.post("/v1/sessions", &json!({}))), "STORE_NOT_WRITABLE");
    assert_eq!(server.get(&format!("/v1/sessions/{id}/events")).1, events);
    assert_eq!(server.get("/v1/sessions").1["items"][0]["session_id"], id.as_str());
    shim.always(WRITES | SYNCS | NAMES, Act::Pass);
    assert_eq!(code(&server.get("/readyz")), "STORE_NOT_WRITABLE", "only a start looks again");
    assert_eq!(server.end(), Some(0));
    let server = stage.serve(None);
    let more = server.post(&turns, &json!({ "prompt": "@say After." }));
    assert_eq!((more.0, more.1["text"].as_str()), (200, Some("After.")));
}

/// As the system makes a file system after an error of its disk.
#[test]
fn a_disk_that_becomes_read_only_refuses_changes_and_is_read() {
    let stage = Stage::made();
    let shim = Shim::new(&stage.data());
    let server = stage.serve(Some(&shim));
    let id = server.create();
    let turns = format!("/v1/sessions/{id}/turns");
    assert_eq!(server.post(&turns, &json!({ "prompt": "@say Before." })).0, 200);
    let events = || server.get(&format!("/v1/sessions/{id}/events")).1;
    let before = events();
    shim.always(WRITES | NAMES, Act::Erofs);
    let told = ["STORE_FAILED", "STORE_NOT_WRITABLE"];
    let more = || {
        let answer = server.post(&turns, &json!({ "prompt": "@say More." }));
        assert!(told.contains(&code(&answer)), "{answer:?}");
        code(&answer).to_owned()
    };
    until_some("it says that the store cannot be written", || Some(more()).filter(|code| code == told[1]));
    for _ in 0..3 {
        assert_eq!(more(), told[1]);
        assert_eq!(code(&server.post("/v1/sessions", &json!({}))), told[1]);
        assert_eq!(code(&server.get("/readyz")), told[1]);
        assert_eq!(events(), before);
    }
    assert_eq!(server.get("/v1/sessions").1["items"][0]["session_id"], id.as_str());
    shim.always(WRITES | NAMES, Act::Pass);
    assert_eq!(server.end(), Some(0));
    let server = stage.serve(None);
    let after = server.post(&turns, &json!({ "prompt": "@say After." }));
    assert_eq!((after.0, after.1["text"].as_str()), (200, Some("After.")));
}
