//! The engine through its front door, with the scripted model.
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod common;

use common::{lines, turn};
use meerkat_service::{AgentBuildConfig, service::TurnStatus};

#[tokio::test]
async fn a_text_turn_is_three_events_after_the_creation() {
    let agent = AgentBuildConfig::new().build().unwrap();
    let session = agent.create_session().await.unwrap();
    let result = agent.turn(&session, "@say Hello there.").await.unwrap();
    assert_eq!((result.status, result.text.as_str(), result.turn), (TurnStatus::Completed, "Hello there.", 0));
    assert_eq!(
        common::types(&lines(&agent, &session).await),
        ["session_created", "turn_started", "assistant_message", "turn_completed"]
    );
    let second = turn(&agent, &session, "@say Again.").await;
    assert_eq!((second.turn, second.seq), (1, 7));
}
