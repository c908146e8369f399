//! How a turn's model is asked.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::json;

use super::{
    Bench, Rig, Subject,
    fakes::{Heard, says},
};
use crate::{
    ErrorCode, SessionError,
    model::{ModelClient, ModelResolver, ResolvedModel, StaticModels, scripted::ScriptedModel},
    options::{ModelOptions, Policy},
    service::{CreateSession, InterruptTurn, SessionService as _, StartTurn, TurnStatus},
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
        assert!(body.message.contains("scripted does not take this option"), "{body:?}");
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

/// One model, which takes other options after a change of the configuration.
#[derive(Default)]
struct Changed(AtomicBool);

impl ModelResolver for Changed {
    fn default_model(&self) -> &str {
        "scripted"
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        let client: Arc<dyn ModelClient> = match self.0.load(Ordering::SeqCst) {
            true => Heard::new([]),
            false => Arc::new(ScriptedModel),
        };
        StaticModels::new("scripted", client, 1_000).resolve(name)
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_waited_fails_if_its_model_has_no_such_option_any_more() {
    let models = Arc::<Changed>::default();
    let mut rig = Rig::new(Vec::new());
    rig.models = models.clone();
    let subject = Subject::new(rig.service()).await;
    let (service, session_id) = (&subject.service, subject.session_id);
    service.accept_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
    let waits = StartTurn { policy: Policy::Queue, options: seeded(), ..StartTurn::new(session_id, "@say Never.") };
    let waits = service.begin_turn(waits).await.unwrap();
    models.0.store(true, Ordering::SeqCst);
    service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.unwrap();
    let error = waits.result.await.unwrap().error.unwrap();
    assert_eq!((error.code, &error.details["field"]), (ErrorCode::InvalidRequest, &json!("options.seed")));
}

/// Broken once: a repeat of a keyed turn named the model that is not there any more, and not the session.
#[tokio::test(start_paused = true)]
async fn a_session_that_does_not_exist_is_named_before_a_wrong_model_if_the_turn_has_a_key() {
    let bench = Bench::new(|_| {}).await;
    for (key, code) in [(Some("k"), ErrorCode::SessionNotFound), (None, ErrorCode::ModelNotConfigured)] {
        let turn = StartTurn {
            model: Some("gone".to_owned()),
            idempotency_key: key.map(str::to_owned),
            ..StartTurn::new("01900000-0000-7000-8000-000000000001".parse().unwrap(), "@say Never.")
        };
        assert_eq!(bench.subject.service.start_turn(turn).await.unwrap_err().code(), code, "{key:?}");
    }
}

/// An answer is never longer than the configuration says.
#[tokio::test(start_paused = true)]
async fn an_answer_has_at_most_the_configured_tokens() {
    for (configured, asked, sent) in
        [(0, Some(500), Some(500)), (100, Some(500), Some(100)), (100, Some(50), Some(50)), (100, None, Some(100))]
    {
        let bench = Bench::new(|rig| rig.options.turn.max_output_tokens = configured).await;
        let options = ModelOptions { max_output_tokens: asked, ..ModelOptions::default() };
        let turn = StartTurn { options, ..StartTurn::new(bench.subject.session_id, "@echo options") };
        let answered = bench.subject.service.start_turn(turn).await.unwrap();
        let expected = json!({ "max_output_tokens": sent });
        assert_eq!(answered.text, format!("options: {expected}"));
        let recorded = bench.subject.events().await[1]["options"].clone();
        assert_eq!(recorded, asked.map_or(json!(null), |_| expected), "what the turn or its session asked for");
    }
}
