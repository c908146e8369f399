//! Requested compactions, their previews, and undo.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Bench, COST, WINDOW, Write, config, patient, rig};
use crate::{
    ErrorCode, SessionError,
    agent::tests::{Subject, ticks},
    model::{ModelResolver, ResolvedModel, StaticModels},
    options::Policy,
    service::{CompactSession, InterruptTurn, SessionService as _, StartTurn, TurnStatus},
};

fn code<T: std::fmt::Debug>(answer: Result<T, SessionError>) -> ErrorCode {
    answer.unwrap_err().code()
}

/// One that fails without an answer costs nothing.
#[tokio::test]
async fn a_failure_is_answered_as_it_is_recorded() {
    let bench = Bench::new(patient()).await;
    bench.fill().await;
    for (write, expected, paid) in [
        (Write::Failure(ErrorCode::ModelUnauthorized), ErrorCode::ModelUnauthorized, 0),
        (Write::Call, ErrorCode::ModelRejected, 1),
        (Write::Text(""), ErrorCode::ModelRejected, 2),
    ] {
        bench.writes([write]);
        let error = bench.compact().await.unwrap_err();
        let events = bench.subject.events().await;
        let failed = events.last().unwrap();
        assert_eq!((error.code(), &failed["code"]), (expected, &json!(expected)));
        assert_eq!(failed["message"], error.body().message);
        let unused =
            events.iter().filter(|event| event["type"] == "summary_unused").map(|event| event["usage"].clone());
        assert_eq!(unused.collect::<Vec<_>>(), vec![json!(COST); paid]);
    }
    bench.turn("@say Whole.").await;
    assert_eq!(bench.requests(false)[2].messages.len(), 5);
}

/// A turn that takes its place ends it; an interrupt of another turn does not.
#[tokio::test(start_paused = true)]
async fn a_turn_may_take_its_place() {
    let bench = Bench::new(patient()).await;
    bench.fill().await;
    bench.writes([Write::Late(Arc::default())]);
    let compacting = tokio::spawn(bench.compact());
    ticks(50).await;
    let (service, session_id) = (&bench.subject.service, bench.id());
    assert_eq!(
        code(service.interrupt(InterruptTurn { session_id, turn: Some(1) }).await),
        ErrorCode::SessionNotRunning
    );
    let policy = Policy::Interrupt;
    service.accept_turn(StartTurn { policy, ..StartTurn::new(session_id, "@say Queued.") }).await.unwrap();
    assert_eq!(code(compacting.await.unwrap()), ErrorCode::TurnInterrupted);
    ticks(100).await;
    assert_eq!(bench.outcomes().await, [(Value::Null, "TURN_INTERRUPTED".to_owned())]);
    assert_eq!(bench.subject.events().await.last().unwrap()["type"], "turn_completed");
    bench.subject.check().await;
}

/// A caller can give its compaction up at any time; other compactions and turns go on.
#[tokio::test(start_paused = true)]
async fn whoever_asked_can_give_it_up() {
    let bench = Bench::new(patient()).await;
    bench.fill().await;
    let until = |cancel: &CancellationToken| {
        let (service, cancel) = (bench.subject.service.clone(), cancel.clone());
        let request = CompactSession { session_id: bench.id(), compaction: None };
        async move { service.compact_until(request, cancel).await }
    };
    let (early, late, after) = (CancellationToken::new(), CancellationToken::new(), CancellationToken::new());
    early.cancel();
    let events = bench.subject.events().await;
    assert_eq!(code(until(&early).await), ErrorCode::TurnInterrupted);
    assert_eq!((bench.subject.events().await, bench.requests(true).len()), (events, 0));
    bench.writes([Write::Late(Arc::default())]);
    let compacting = tokio::spawn(until(&late));
    ticks(50).await;
    late.cancel();
    assert_eq!(code(compacting.await.unwrap()), ErrorCode::TurnInterrupted);
    until(&after).await.unwrap();
    let stalled = bench.subject.service.accept_turn(StartTurn::new(bench.id(), "@stall")).await.unwrap();
    after.cancel();
    ticks(50).await;
    let events = bench.subject.events().await;
    assert_eq!(events.last().unwrap()["type"], "turn_started");
    let interrupt = InterruptTurn { session_id: bench.id(), turn: Some(stalled.turn) };
    bench.subject.service.interrupt(interrupt).await.unwrap();
    assert_eq!(
        bench.outcomes().await.iter().map(|(_, what)| what.as_str()).collect::<Vec<_>>(),
        ["TURN_INTERRUPTED", "summary"]
    );
}

/// Newer ones first, and no more than three.
#[tokio::test]
async fn older_compactions_are_undone_after_newer_ones() {
    let bench = Bench::new(patient()).await;
    let mut compactions = Vec::new();
    bench.fill().await;
    for _ in 0..4 {
        bench.turn("@long 600").await;
        compactions.push(bench.compact().await.unwrap().compaction.unwrap());
    }
    let error = bench.undo(Some(compactions[1])).await.unwrap_err();
    assert_eq!((error.code(), &error.body().details["first"]), (ErrorCode::SessionBusy, &json!(compactions[3])));
    assert_eq!(code(bench.undo(Some(compactions[0])).await), ErrorCode::HistoryPruned);
    assert_eq!(code(bench.undo(Some(compactions[0] - 1)).await), ErrorCode::ItemNotFound);
    assert_eq!(code(bench.undo(Some(9_999)).await), ErrorCode::ItemNotFound);
    for compaction in compactions[1..].iter().rev() {
        bench.undo(Some(*compaction)).await.unwrap();
    }
    assert_eq!(code(bench.undo(None).await), ErrorCode::HistoryPruned);
    // An undone compaction does not count, however many come after it.
    for _ in 0..4 {
        bench.turn("@long 600").await;
        bench.compact().await.unwrap();
    }
    assert_eq!(code(bench.undo(Some(compactions[2])).await), ErrorCode::ItemNotFound);
    assert_eq!(code(bench.undo(Some(compactions[0])).await), ErrorCode::HistoryPruned);
    bench.subject.check().await;
}

#[tokio::test]
async fn an_undo_that_would_not_fit_is_refused() {
    let bench = Bench::with(2_000, config()).await;
    bench.fill().await;
    bench.turn("@long 2400").await;
    bench.turn("@long 400").await;
    assert_eq!(bench.outcomes().await, [(json!(2), "summary".to_owned())]);
    assert_eq!(code(bench.undo(None).await), ErrorCode::ContextOverflow);
    assert_eq!(bench.turn("@say Goes on.").await.status, TurnStatus::Completed);
}

/// Models that are taken out of the configuration after a while.
struct Leaving {
    models: StaticModels,
    have_left: AtomicBool,
}

impl ModelResolver for Leaving {
    fn default_model(&self) -> &str {
        self.models.default_model()
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        let name = if self.have_left.load(Ordering::Relaxed) { "gone" } else { name };
        self.models.resolve(name)
    }
}

#[tokio::test]
async fn a_compaction_whose_model_is_no_longer_configured_says_so() {
    let (mut rig, model) = rig(WINDOW, patient());
    let models = StaticModels::new("strict", model.clone(), WINDOW);
    let leaving = Arc::new(Leaving { models, have_left: AtomicBool::new(false) });
    rig.models = leaving.clone();
    let bench = Bench { model, subject: Subject::new(rig.service()).await };
    bench.fill().await;
    leaving.have_left.store(true, Ordering::Relaxed);
    let before = bench.subject.events().await;
    let request = CompactSession { session_id: bench.id(), compaction: None };
    assert_eq!(code(bench.subject.service.preview_compaction(request).await), ErrorCode::ModelNotConfigured);
    assert_eq!(code(bench.compact().await), ErrorCode::ModelNotConfigured);
    assert_eq!(bench.subject.events().await, before, "nothing is recorded");
}
