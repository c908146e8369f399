//! How a turn's model is asked.

use std::sync::Arc;

use serde_json::json;

use super::{
    Bench, Rig, Subject,
    fakes::{Heard, says},
};
use crate::{
    SessionError,
    model::StaticModels,
    options::ModelOptions,
    service::{CreateSession, SessionService as _, StartTurn, TurnStatus},
};

fn seeded() -> ModelOptions {
    ModelOptions { seed: Some(7), ..ModelOptions::default() }
}

/// A client in code that says nothing of options has none.
#[tokio::test(start_paused = true)]
async fn an_option_that_the_model_does_not_have_is_refused_and_nothing_is_recorded() {
    let model = Heard::new([says("Yes.")]);
    let mut rig = Rig::new(Vec::new());
    rig.models = Arc::new(StaticModels::new("scripted", model.clone(), 1_000));
    let subject = Subject::new(rig.service()).await;
    let before = subject.events().await;
    let asked = |options| StartTurn { options, ..StartTurn::new(subject.session_id, "Go.") };
    let is_refused = |error: SessionError| {
        let body = error.body();
        assert_eq!(body.details["field"], json!("options.seed"), "{body:?}");
        assert!(body.message.contains("scripted does not have this option"), "{body:?}");
    };
    is_refused(subject.service.start_turn(asked(seeded())).await.unwrap_err());
    is_refused(
        subject
            .service
            .create_session(CreateSession { options: seeded(), ..CreateSession::default() })
            .await
            .unwrap_err(),
    );
    assert_eq!(subject.events().await, before);
    let none = ModelOptions { stop: Some(Vec::new()), ..ModelOptions::default() };
    assert_eq!(subject.service.start_turn(asked(none)).await.unwrap().status, TurnStatus::Completed);
    assert_eq!(model.requests.lock().unwrap().len(), 1, "only the last one was sent");
}

/// An answer is never longer than the configuration says, and the event has what was sent.
#[tokio::test(start_paused = true)]
async fn an_answer_has_at_most_the_configured_tokens() {
    for (configured, asked, sent) in [(0, Some(500), Some(500)), (100, Some(500), Some(100)), (100, Some(50), Some(50))]
    {
        let bench = Bench::new(|rig| rig.options.turn.max_output_tokens = configured).await;
        let options = ModelOptions { max_output_tokens: asked, ..ModelOptions::default() };
        let turn = StartTurn { options, ..StartTurn::new(bench.subject.session_id, "@echo options") };
        let answered = bench.subject.service.start_turn(turn).await.unwrap();
        let expected = json!({ "max_output_tokens": sent });
        assert_eq!(answered.text, format!("options: {expected}"));
        assert_eq!(bench.subject.events().await[1]["options"], expected);
    }
}
