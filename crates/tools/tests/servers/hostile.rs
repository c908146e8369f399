//! Servers that are broken or hostile: each fails alone, soon, and with a reason that people and models can read.

use std::fs::File;

use futures::FutureExt as _;
use meerkat_service::{
    AgentBuildConfig,
    clock::World,
    service::{ReadEvents, StartTurn},
    tool::{ToolError, ToolServerState, ToolSource as _},
};
use meerkat_testkit::in_time;
use meerkat_tools::servers::{ServersOptions, servers};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::{
    processes::of,
    server::noted,
    support::{Moved, call, call_as, config, names, options, pool, session, tool, until},
};

crate::tests!(
    a_server_that_cannot_be_used_says_why_in_a_few_words,
    an_answer_without_end_ends_the_call,
    a_server_that_asks_and_does_not_listen_is_lost,
    a_server_that_never_stops_talking_is_ended_with_a_reason,
    a_server_that_says_much_and_answers_is_heard,
    nothing_is_left_of_a_server_that_reads_nothing,
    a_server_that_does_not_list_again_keeps_nobody_waiting,
    an_answer_after_the_timeout_belongs_to_no_call,
);

/// Bytes of a reason.
const REASON_BYTES_MAX: usize = 4 * 1024;

async fn a_server_that_cannot_be_used_says_why_in_a_few_words() {
    let folder = tempfile::tempdir().unwrap();
    let by = |manner: &str| config(folder.path(), manner, json!({}));
    let missing = serde_json::from_value(json!({ "command": "/none/such", "args": [] })).unwrap();
    for (config, words) in [
        (missing, "cannot start /none/such"),
        (by("refusing"), "there is no database"),
        (by("rubbish"), "exit status: 0"),
        (by("rambling"), "xxx"),
        (by("endless"), "its list of tools has more than"),
    ] {
        let args = config.args.clone();
        // Of time each has enough, also on a slow machine.
        let pool = servers(ServersOptions { clock: Moved::new(), ..options(config) }).unwrap();
        assert_eq!(names(&pool).await, [""; 0]);
        let status = pool.status().remove(0);
        let why = status.last_error.unwrap();
        assert_eq!(status.state, ToolServerState::Failed, "{args:?}");
        assert!(why.contains(words) && why.len() <= REASON_BYTES_MAX, "{args:?}: {} bytes, {why:.200}", why.len());
        pool.shut_down().await;
    }
}

async fn an_answer_without_end_ends_the_call() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "flooding", json!({})));
    let called = in_time("the call ends", call(&pool, "good", json!({}))).await;
    let Err(ToolError::Unknown(why)) = &called.result else { panic!("{:?}", called.result) };
    assert!(why.contains("was lost: a line of its output has more than 33554432 bytes"), "{why}");
    pool.shut_down().await;
}

/// Broken once: whatever nobody had dealt with yet waited in memory, and there were 3 GB of it after half a minute.
async fn a_server_that_never_stops_talking_is_ended_with_a_reason() {
    for manner in ["logging", "changing"] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path(), manner, json!({ "env": { "TESTED": folder.path() } }));
        let pool = servers(options(config)).unwrap();
        let called = in_time("the call ends", call(&pool, "good", json!({}))).await;
        let Err(ToolError::Unknown(why)) = &called.result else { panic!("{manner}: {:?}", called.result) };
        assert!(why.contains("it sent more than 100000 messages"), "{manner}: {why}");
        pool.shut_down().await;
        assert_eq!(of(folder.path()), Vec::<i32>::new(), "{manner}");
    }
}

async fn a_server_that_says_much_and_answers_is_heard() {
    let folder = tempfile::tempdir().unwrap();
    let pool = servers(options(config(folder.path(), "chatty", json!({})))).unwrap();
    for _ in 0..3 {
        assert_eq!(call(&pool, "good", json!({})).await.text(), "done");
    }
    pool.shut_down().await;
}

/// Broken once: its questions were answered one by one, and all these answers waited for it in memory.
async fn a_server_that_asks_and_does_not_listen_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "talkative", json!({})));
    let called = in_time("the call ends", call(&pool, "good", json!({}))).await;
    let Err(ToolError::Unknown(why)) = &called.result else { panic!("{:?}", called.result) };
    assert!(why.contains("was lost: it asks, and does not take the answers"), "{why}");
    pool.shut_down().await;
}

/// Broken once: what waited to be written to it kept its input open, so that nobody ended it.
async fn nothing_is_left_of_a_server_that_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "deaf", json!({ "env": { "TESTED": folder.path() } })));
    let good = tool(&pool, "good").await;
    let processes = of(folder.path());
    assert_eq!(processes.len(), 2, "its supervisor and itself");
    let inputs = processes.iter().map(|pid| File::open(format!("/proc/{pid}/fd/0")).unwrap());
    let inputs: Vec<File> = inputs.collect();
    // More than its pipe has room for, so that the rest waits.
    let arguments = json!({ "text": "x".repeat(1024 * 1024) });
    let cancel = CancellationToken::new();
    let mut called = Box::pin(call_as(&*good, session(), arguments, &cancel));
    let is_sent = || inputs.iter().any(|input| rustix::io::ioctl_fionread(input).is_ok_and(|bytes| bytes > 0));
    tokio::select! {
        _ = &mut called => panic!("it answers nothing"),
        () = until("the call is being written", is_sent) => {}
    }
    drop(inputs);
    assert!(called.as_mut().now_or_never().is_none(), "it answers nothing");
    drop(called);
    pool.shut_down().await;
    assert_eq!(of(folder.path()), Vec::<i32>::new());
}

/// Broken once: the end of the pool waited for the list, and left the server.
async fn a_server_that_does_not_list_again_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "stalling", json!({ "env": { "TESTED": folder.path() } })));
    assert_eq!(call(&pool, "good", json!({})).await.text(), "done");
    until("it is asked for the changed list", || noted(folder.path(), "lists") == 2).await;
    assert_eq!(call(&pool, "good", json!({})).await.text(), "done");
    pool.shut_down().await;
    assert_eq!(of(folder.path()), Vec::<i32>::new());
}

async fn an_answer_after_the_timeout_belongs_to_no_call() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({ "approval": "allow", "call_timeout_ms": 200 })));
    pool.ready().await;
    let clock = Moved::new();
    let world = World { clock: clock.clone(), ..World::system() };
    let agent = AgentBuildConfig::new().tool_source(pool.clone()).world(world).build().unwrap();
    let session_id = agent.create_session().await.unwrap().session_id;
    // The server answers the slow call once it is told to stop it.
    let prompt = r#"@call mcp__t__slow {} @step @call mcp__t__echo {"text":"second"} @step @echo last_result"#;
    let pass = async {
        until("the slow call has begun", || noted(folder.path(), "begun") == 1).await;
        clock.pass(200);
    };
    let said = tokio::join!(agent.service().start_turn(StartTurn::new(session_id, prompt)), pass).0.unwrap().text;
    assert_eq!(said, "last_result: second");
    let read = ReadEvents::new(session_id, 0);
    let events = agent.service().events(read).await.unwrap().items;
    let events = events.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let finished: Vec<Value> = events.filter(|event| event["type"] == "tool_finished").collect();
    assert_eq!(finished[0]["outcome"], "unknown");
    assert!(finished[0]["output"].as_str().unwrap().contains("stopped after 200 ms"), "{finished:?}");
    until("the server heard of it", || noted(folder.path(), "cancelled") == 1).await;
    pool.shut_down().await;
}
