//! What the engine's tests share.

use meerkat_service::{
    Agent,
    service::{ReadEvents, SessionCreated, TurnResult},
};
use serde_json::Value;

/// Every event of a session, decoded.
pub(crate) async fn lines(agent: &Agent, session: &SessionCreated) -> Vec<Value> {
    let request = ReadEvents { session_id: session.session_id, since_seq: 0, limit: None, wait_ms: 0 };
    let page = agent.service().events(request).await.unwrap();
    page.items.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// The types of events, in order.
pub(crate) fn types(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["type"].as_str().unwrap()).collect()
}

/// Runs a turn that must be accepted.
pub(crate) async fn turn(agent: &Agent, session: &SessionCreated, prompt: &str) -> TurnResult {
    agent.turn(session, prompt).await.unwrap()
}
