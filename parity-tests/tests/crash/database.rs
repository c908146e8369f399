//! Real servers over one real database: one of them is killed or ended, or the database fails over.

use std::thread::ScopedJoinHandle;

use meerkat_testkit::{needs, until, until_some};
use serde_json::{Value, json};

use crate::{
    cluster::{self, Database},
    process::Stage,
    server::{SERVE, Server},
};

/// Starts the server of a node, whose lease ends only when the test says so.
fn start(stage: &Stage, database: &Database, url: &str, name: &str) -> Server {
    let mut command = stage.command(&SERVE);
    command.env("MEERKAT_STORE__URL", url).env("MEERKAT_STORE__SCHEMA", &database.schema);
    command.env("MEERKAT_STORE__NODE", name).env("MEERKAT_STORE__LEASE_MS", "600000");
    command.env("MEERKAT_DATA_DIR", stage.home().join(name)).env("MEERKAT_SERVE__DRAIN_MS", "0");
    command.env("MEERKAT_PROJECTION__DIR", stage.home().join(format!("{name}.rkat")));
    Server::start(command)
}

/// Two nodes.
fn pair(stage: &Stage, database: &Database) -> [Server; 2] {
    let url = database.cluster.url("meerkat", "postgres");
    ["a", "b"].map(|name| start(stage, database, &url, name))
}

/// Begins a turn that waits for a decision; returns the call's id.
fn begin_to_ask(server: &Server, id: &str) -> String {
    let prompt = format!(r#"@call test_ask {{"name":"effects","line":"{id}"}} @say Decided."#);
    let turn = json!({ "session_id": id, "prompt": prompt, "attended": true, "wait": false });
    server.rpc("turn/start", &turn).unwrap().unwrap();
    asks(server, id)
}

/// Waits until a call of a session waits for a decision.
fn asks(server: &Server, id: &str) -> String {
    until_some("its call waits", || {
        let view = server.get(&format!("/v1/sessions/{id}")).1;
        view["pending_approvals"][0]["call_id"].as_str().map(str::to_owned)
    })
}

/// Waits at a server for a turn that is queued.
fn queue<'scope>(
    scope: &'scope std::thread::Scope<'scope, '_>,
    server: &'scope Server,
    id: &'scope str,
) -> ScopedJoinHandle<'scope, (u16, Value)> {
    // The other node may end before it has said that it took the turn; with a key it is asked again.
    let turn = json!({ "prompt": "@say Queued.", "policy": "queue", "idempotency_key": "queued" });
    let waits = scope.spawn(move || server.post(&format!("/v1/sessions/{id}/turns"), &turn));
    until("the turn is queued", || events(server, id).iter().any(|event| event["type"] == "turn_queued"));
    waits
}

fn events(server: &Server, id: &str) -> Vec<Value> {
    let page = server.get(&format!("/v1/sessions/{id}/events?since_seq=0&limit=1000")).1;
    page["items"].as_array().unwrap().clone()
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

/// Approves a call as soon as the server can.
fn approve(server: &Server, id: &str, call: &str) {
    let approval = json!({ "session_id": id, "call_id": call, "decision": "approve" });
    until_some("it is decided", || server.rpc("turn/approve", &approval).unwrap().ok());
}

#[test]
fn what_a_killed_server_had_goes_on_at_the_other_one() {
    let database = {
        needs!(cluster::NEEDED => cluster::is_here());
        cluster::fresh()
    };
    let stage = Stage::empty();
    let [a, b] = pair(&stage, &database);
    let id = a.create();
    let call = begin_to_ask(&a, &id);
    let before = events(&b, &id);
    std::thread::scope(|scope| {
        let waits = queue(scope, &b, &id);
        a.kill();
        database.expire("a");
        approve(&b, &id, &call);
        let (status, answer) = waits.join().unwrap();
        assert_eq!((status, &answer["text"], &answer["turn"]), (200, &json!("Queued."), &json!(1)), "{answer}");
    });
    let events = events(&b, &id);
    assert_eq!(events[..before.len()], before);
    assert_eq!((count(&events, "turn_completed"), count(&events, "tool_started")), (2, 1), "{events:#?}");
    assert_eq!(stage.tool_lines("effects"), [id]);
    assert_eq!(b.end(), Some(0));
}

/// Its lease is not waited for: here that would take ten minutes.
#[test]
fn what_a_server_leaves_when_it_ends_is_taken_at_once() {
    let database = {
        needs!(cluster::NEEDED => cluster::is_here());
        cluster::fresh()
    };
    let stage = Stage::empty();
    let [a, b] = pair(&stage, &database);
    let (stalled, asking) = (a.create(), a.create());
    let call = begin_to_ask(&a, &asking);
    let turn = json!({ "session_id": stalled, "prompt": "@say Never. @stall", "wait": false });
    a.rpc("turn/start", &turn).unwrap().unwrap();
    std::thread::scope(|scope| {
        let waits = queue(scope, &b, &stalled);
        assert_eq!(a.end(), Some(0));
        let (status, answer) = waits.join().unwrap();
        assert_eq!((status, &answer["text"], &answer["turn"]), (200, &json!("Queued."), &json!(1)), "{answer}");
    });
    assert_eq!(count(&events(&b, &stalled), "turn_interrupted"), 1);
    approve(&b, &asking, &call);
    until("its turn ends", || count(&events(&b, &asking), "turn_completed") == 1);
    assert_eq!(stage.tool_lines("effects"), [asking]);
    assert_eq!(b.end(), Some(0));
}

/// The server is lost for good while a turn runs, and a standby takes over that had confirmed every commit.
#[test]
fn a_turn_goes_on_while_its_database_fails_over() {
    let database = {
        needs!(cluster::NEEDED => cluster::is_here());
        cluster::own("off")
    };
    let (stage, cluster) = (Stage::empty(), database.cluster);
    cluster.start_standby();
    let a = start(&stage, &database, &cluster.url_of_both(), "a");
    let (id, other) = (a.create(), a.create());
    let call = begin_to_ask(&a, &id);
    let before = events(&a, &id);
    cluster.fail_over();
    approve(&a, &id, &call);
    until("its turn ends", || count(&events(&a, &id), "turn_completed") == 1);
    let after = events(&a, &id);
    assert_eq!(after[..before.len()], before);
    assert_eq!(count(&after, "tool_started"), 1, "{after:#?}");
    assert_eq!(stage.tool_lines("effects"), [id]);
    let (status, answer) = a.post(&format!("/v1/sessions/{other}/turns"), &json!({ "prompt": "@say Well." }));
    assert_eq!((status, &answer["text"]), (200, &json!("Well.")), "{answer}");
    assert_eq!(a.get("/readyz").0, 200);
    assert_eq!(a.end(), Some(0));
}
