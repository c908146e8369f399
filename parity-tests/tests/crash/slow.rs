//! A disk that does less than it was asked for, and one that hangs: neither is an error.

use std::sync::Arc;

use meerkat_testkit::{campaigns::Part, until, until_some};
use serde_json::{Value, json};

use crate::{
    oracle::{Known, Survey, check},
    process::{Process, Stage},
    server::Server,
    shim::{Act, INDEX, NAMES, NOT_INDEX, SYNCS, Shim, Told, WRITES},
};

/// Changes of every kind, each of which succeeds.
fn script(process: &Process) {
    let id = process.create().unwrap();
    let target = json!({ "session_id": id });
    let call = format!(r#"@call test_append {{"name":"effects","line":"{id}"}}"#);
    process.turn(&id, &format!(r#"@call test_echo {{"text":"a"}} @step {call} @say Done."#)).unwrap();
    process.turn(&id, r#"@call test_huge {"bytes":40000} @say Huge."#).unwrap();
    process.change("session/pin", "pinned", &json!({ "session_id": id, "text": "A fact" })).unwrap();
    let fork = process.fork(&id).unwrap();
    process.turn(&fork, "@say Forked.").unwrap();
    process.delete(&fork).unwrap();
    process.ask("session/archive", &target).unwrap();
    Survey::of(process).unwrap();
}

/// At each place of these kinds, once; nobody notices.
fn unnoticed(act: Act, kinds: u64, under: &'static str) -> u64 {
    crate::each::each(Part::Store, |at| {
        let (stage, known) = (Stage::made(), Arc::<Known>::default());
        let shim = Shim::new(&stage.data()).under(under).only(kinds).at(at, act);
        let process = stage.rpc(&known, Some(&shim));
        let _told = Told(format!("{act:?} at {at}: {:?}", shim.fired()));
        script(&process);
        // The index may be written at the end alone.
        assert_eq!(process.end(), Some(0), "{}", stage.stderr());
        check(&stage, &known);
        shim.fired().is_some()
    })
}

#[test]
fn a_write_that_is_cut_short_anywhere_is_continued() {
    let places = [NOT_INDEX, INDEX].map(|under| unnoticed(Act::Short, WRITES, under));
    assert!(places[0] > 20 && places[1] > 5, "{places:?}");
}

#[test]
fn a_call_that_a_signal_interrupts_anywhere_is_made_again() {
    let places = [NOT_INDEX, INDEX].map(|under| unnoticed(Act::Eintr, WRITES | SYNCS, under));
    assert!(places[0] > 40 && places[1] > 5, "{places:?}");
}

fn said(server: &Server, id: &str, text: &str) {
    let turn = json!({ "prompt": format!("@say {text}") });
    let (status, answer) = server.post(&format!("/v1/sessions/{id}/turns"), &turn);
    assert_eq!((status, answer["text"].as_str()), (200, Some(text)), "{answer}");
}

fn listed(server: &Server) -> Vec<Value> {
    let list = server.get("/v1/sessions").1;
    let mut ids: Vec<Value> = list["items"].as_array().unwrap().iter().map(|it| it["session_id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    ids
}

/// Nothing that is acknowledged waits for the index, nor does a list.
#[test]
fn an_index_whose_disk_hangs_holds_up_nobody() {
    let stage = Stage::made();
    let shim = Shim::new(&stage.data()).under(INDEX);
    let server = stage.serve(Some(&shim));
    let mut ids = vec![server.create()];
    shim.always(SYNCS, Act::Hold);
    for n in 0..3 {
        ids.push(server.create());
        ids.iter().for_each(|id| said(&server, id, &format!("Text {n}.")));
    }
    until("the index is synced", || shim.fired().is_some());
    said(&server, &ids[0], "Held.");
    let forked = server.rpc("session/fork", &json!({ "session_id": ids[0] })).unwrap().unwrap();
    ids.push(forked["session_id"].as_str().unwrap().to_owned());
    assert!(server.rpc("session/delete", &json!({ "session_id": ids.remove(1) })).unwrap().is_ok());
    let due: Vec<Value> = ids.iter().cloned().map(Value::from).collect();
    assert_eq!(listed(&server), due);
    assert_eq!(server.get("/readyz").0, 200);
    // The next start has only the journals' word.
    server.kill();
    drop(server);
    shim.always(WRITES | SYNCS | NAMES, Act::Pass);
    let server = stage.serve(Some(&shim));
    assert_eq!(listed(&server), due);
    assert_eq!(server.end(), Some(0));
}

/// Its turn waits, and everything else goes on, also what is read of it.
#[test]
fn a_session_whose_disk_hangs_costs_the_others_nothing() {
    let stage = Stage::made();
    let shim = Shim::new(&stage.data());
    let server = stage.serve(Some(&shim));
    let (hung, other) = (server.create(), server.create());
    said(&server, &hung, "Before.");
    let shim = shim.under(&hung);
    shim.always(SYNCS, Act::Hold);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| said(&server, &hung, "Held."));
        until("its record is synced", || shim.fired().is_some());
        (0..3).for_each(|n| said(&server, &other, &format!("Text {n}.")));
        said(&server, &server.create(), "New.");
        assert_eq!(listed(&server).len(), 3);
        let page = server.get(&format!("/v1/sessions/{hung}/events?since_seq=0")).1;
        let held = page["items"].as_array().unwrap().iter().filter(|event| event["type"] == "turn_completed");
        assert_eq!(held.count(), 1, "{page}");
        assert!(!waits.is_finished());
        shim.always(SYNCS, Act::Pass);
        waits.join().unwrap();
    });
    let ended = until_some("its turn is listed", || {
        let session = server.get(&format!("/v1/sessions/{hung}")).1;
        (session["turn_count"] == 2).then_some(session)
    });
    assert_eq!(ended["state"], "idle", "{ended}");
    assert_eq!(server.end(), Some(0));
}
