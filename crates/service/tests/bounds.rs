//! What is bounded: sessions, bytes, sizes of requests, and what is kept of a long session.

use std::{sync::Arc, time::Duration};

use crate::common::{agent_with, lines};
use async_trait::async_trait;
use meerkat_service::{
    AgentBuildConfig, ErrorCode,
    model::ToolSpec,
    options::{EngineOptions, Policy},
    service::{EditQueued, InterruptTurn, ReadEvents, StartTurn, TurnStatus},
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Tool, ToolError},
};

#[tokio::test(start_paused = true)]
async fn a_full_service_takes_no_session_until_one_leaves() {
    let mut options = EngineOptions::default();
    options.ephemeral.max_sessions = 2;
    options.ephemeral.idle_ms = 60_000;
    let agent = agent_with(options);
    let first = agent.create_session().await.unwrap();
    tokio::time::sleep(Duration::from_millis(30_000)).await;
    agent.create_session().await.unwrap();
    let refused = agent.create_session().await.unwrap_err();
    assert_eq!((refused.code(), &refused.body().details["limit"]), (ErrorCode::SessionLimit, &2.into()));

    tokio::time::sleep(Duration::from_millis(40_000)).await;
    agent.create_session().await.unwrap();
    assert_eq!(agent.turn(&first, "@say Gone.").await.unwrap_err().code(), ErrorCode::SessionNotFound);
}

/// A client that polls again with the same cursor misses nothing.
#[tokio::test(start_paused = true)]
async fn a_long_poll_is_answered_before_anybody_gives_it_up() {
    let mut options = EngineOptions::default();
    options.limits.wait_ms = 7_000;
    let agent = agent_with(options);
    let session_id = agent.create_session().await.unwrap().session_id;
    for (wait_ms, waited) in [(u64::MAX, 7_000), (3_000, 3_000), (0, 0)] {
        let began = tokio::time::Instant::now();
        let request = ReadEvents { wait_ms, ..ReadEvents::new(session_id, 1) };
        let page = agent.service().events(request).await.unwrap();
        assert_eq!((page.items.len(), page.next_seq, began.elapsed()), (0, 1, Duration::from_millis(waited)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_full_of_bytes_goes_on_reading() {
    let mut options = EngineOptions::default();
    options.ephemeral.max_bytes = 20_000;
    options.ephemeral.idle_ms = 60_000;
    let agent = agent_with(options);
    let session = agent.create_session().await.unwrap();
    let keyed =
        StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(session.session_id, "@long 20000") };
    agent.service().start_turn(keyed.clone()).await.unwrap();
    assert_eq!(agent.turn(&session, "@say More.").await.unwrap_err().code(), ErrorCode::SessionLimit);
    assert_eq!(agent.create_session().await.unwrap_err().code(), ErrorCode::SessionLimit);
    assert_eq!(agent.service().start_turn(keyed).await.unwrap().turn, 0, "what was answered before is answered again");
    assert_eq!(lines(&agent, &session).await.len(), 4);

    tokio::time::sleep(Duration::from_millis(70_000)).await;
    let next = agent.create_session().await.unwrap();
    assert_eq!(agent.turn(&next, "@say Room again.").await.unwrap().text, "Room again.");
}

/// A change of a waiting turn that there is no room for is refused as a turn is, and the running one does not notice.
#[tokio::test(start_paused = true)]
async fn a_change_without_room_is_refused() {
    let mut options = EngineOptions::default();
    options.ephemeral.max_bytes = 300_000;
    let agent = agent_with(options);
    let session_id = agent.create_session().await.unwrap().session_id;
    let queue = |prompt: String| StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, prompt) };
    let service = agent.service();
    let running = service.begin_turn(queue(format!("@say Part. @stall @note {}", "x".repeat(100_000)))).await.unwrap();
    let waiting = service.begin_turn(queue(format!("@say Old. @note {}", "y".repeat(130_000)))).await.unwrap();
    let place = EditQueued { session_id, turn: waiting.accepted.turn, prompt: None, position: Some(0) };
    let prompt = Some(format!("@say New. @note {}", "z".repeat(200_000)).into());
    let refused = service.edit_queued(EditQueued { prompt, ..place.clone() }).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionLimit);
    service.edit_queued(place).await.unwrap();
    service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.unwrap();
    assert_eq!(running.result.await.unwrap().status, TurnStatus::Interrupted);
    assert_eq!(waiting.result.await.unwrap().text, "Old.");
}

/// The answer of a key is read from the events. If it is no longer kept, nothing replaces it.
#[tokio::test]
async fn a_keyed_answer_that_was_pruned_is_told_as_such() {
    let mut options = EngineOptions::default();
    options.ephemeral.session_event_bytes = 4_000;
    let agent = agent_with(options);
    let session = agent.create_session().await.unwrap();
    let keyed = StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(session.session_id, "@say Once.") };
    let first = agent.service().start_turn(keyed.clone()).await.unwrap();
    assert_eq!(
        (agent.service().start_turn(keyed.clone()).await.unwrap(), first.text.as_str()),
        (first.clone(), "Once.")
    );
    for _ in 0..10 {
        agent.turn(&session, "@say Short.").await.unwrap();
    }
    let refused = agent.service().start_turn(keyed.clone()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::HistoryPruned);
    assert_eq!(agent.service().accept_turn(keyed).await.unwrap().turn, first.turn, "it is the same turn still");
}

struct Named(ToolSpec);

#[async_trait]
impl Tool for Named {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only())
    }

    async fn call(&self, _: Invocation, _: &OutputSink) -> Result<(), ToolError> {
        Ok(())
    }
}

/// A tool that no vendor would take is refused before there is a service: its name, its schema, a name taken twice.
#[test]
fn a_tool_that_cannot_be_offered_is_refused() {
    let tool = |name: &str, schema: &str| -> Arc<dyn Tool> {
        let schema = RawJson::parse(schema).unwrap();
        Arc::new(Named(ToolSpec { name: name.to_owned(), description: "Does nothing.".to_owned(), schema }))
    };
    let build =
        |tools: Vec<Arc<dyn Tool>>| tools.into_iter().fold(AgentBuildConfig::new(), AgentBuildConfig::tool).build();
    for (name, schema) in [("two words", "{}"), ("", "{}"), ("web_search", "{}"), ("fine", "[]"), ("fine", "5")] {
        let refused = build(vec![tool(name, schema)]).err().unwrap();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest, "{name:?} {schema}");
    }
    let twice = build(vec![tool("fine", "{}"), tool("fine", "{}")]).err().unwrap();
    assert_eq!(twice.code(), ErrorCode::InvalidRequest);
    let unread = RawJson::parse(r#"{"type":"object","#).unwrap_err();
    assert_eq!(unread.code(), ErrorCode::InvalidRequest);
    assert!(build(vec![tool("fine", r#"{"type":"object"}"#)]).is_ok());
}
