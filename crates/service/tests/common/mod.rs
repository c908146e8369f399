//! What the engine's tests share.
#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod camera;

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use futures::future::BoxFuture;
use meerkat_service::{
    Agent, AgentBuildConfig, SessionError,
    clock::{Clock, SystemClock, Timestamp, World},
    follow::Follower,
    options::EngineOptions,
    service::{Changed, DecideApproval, ReadEvents, SessionCreated, TurnResult},
    session::event::Decision,
};
use serde_json::Value;

/// A service with the scripted model and these options.
pub(crate) fn agent_with(options: EngineOptions) -> Agent {
    AgentBuildConfig::new().options(options).build().unwrap()
}

/// Every event of a session, decoded.
pub(crate) async fn lines(agent: &Agent, session: &SessionCreated) -> Vec<Value> {
    let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session.session_id, 0) };
    let page = agent.service().events(request).await.unwrap();
    page.items.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
}

/// The types of events, in order.
pub(crate) fn types(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["type"].as_str().unwrap()).collect()
}

/// A field of the first event of a type.
pub(crate) fn field<'a>(lines: &'a [Value], kind: &str, name: &str) -> &'a Value {
    &lines.iter().find(|line| line["type"] == kind).unwrap()[name]
}

/// Runs a turn that must be accepted.
pub(crate) async fn turn(agent: &Agent, session: &SessionCreated, prompt: &str) -> TurnResult {
    agent.turn(session, prompt).await.unwrap()
}

/// Follows until an event of this type.
pub(crate) async fn next_of(follower: &mut Follower, kind: &str) -> Value {
    loop {
        let line = follower.next().await.unwrap().unwrap();
        let event: Value = serde_json::from_slice(&line.line).unwrap();
        if event["type"] == kind {
            return event;
        }
    }
}

/// Approves a call.
pub(crate) async fn approve(agent: &Agent, session: &SessionCreated, call_id: &str) -> Result<Changed, SessionError> {
    let (call_id, decision) = (call_id.to_owned(), Decision::Approve);
    agent.service().decide_approval(DecideApproval::new(session.session_id, call_id, decision)).await
}

/// A clock whose wall time a test sets.
#[derive(Clone)]
pub(crate) struct SettableClock {
    wall: Arc<AtomicI64>,
    timers: Arc<SystemClock>,
}

impl SettableClock {
    pub(crate) fn at(millis: i64) -> (World, Self) {
        (World::system(), Self { wall: Arc::new(AtomicI64::new(millis)), timers: Arc::new(SystemClock::new()) })
    }

    pub(crate) fn set(&self, millis: i64) {
        self.wall.store(millis, Ordering::Relaxed);
    }
}

impl Clock for SettableClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.wall.load(Ordering::Relaxed))
    }

    fn elapsed(&self) -> std::time::Duration {
        self.timers.elapsed()
    }

    fn sleep(&self, duration: std::time::Duration) -> BoxFuture<'static, ()> {
        self.timers.sleep(duration)
    }
}
