//! Compactions that somebody asks for, what they would do, and the way back.

use std::sync::Arc;

use serde_json::json;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Bench, Write, config};
use crate::{
    ErrorCode, SessionError,
    agent::tests::ticks,
    compaction::CompactionConfig,
    options::Policy,
    service::{CompactSession, CompactionReceipt, InterruptTurn, SessionService as _, StartTurn, TurnStatus},
};

/// Never compacts by itself.
fn patient() -> CompactionConfig {
    CompactionConfig { auto_compact_threshold: 100_000, ..config() }
}

impl Bench {
    async fn accept(&self, policy: Policy) -> Result<u32, SessionError> {
        let request = StartTurn { policy, ..StartTurn::new(self.id(), "@say Queued.") };
        Ok(self.subject.service.accept_turn(request).await?.turn)
    }

    /// A compaction whose summary comes when it is said so, and that has begun.
    async fn begin(&self) -> (Arc<Notify>, tokio::task::JoinHandle<Result<CompactionReceipt, SessionError>>) {
        let said = Arc::<Notify>::default();
        self.writes([Write::Late(said.clone())]);
        let compacting = tokio::spawn(self.compact());
        ticks(50).await;
        assert_eq!(self.subject.events().await.last().unwrap()["type"], "compaction_started");
        (said, compacting)
    }
}

fn code<T: std::fmt::Debug>(answer: Result<T, SessionError>) -> ErrorCode {
    answer.unwrap_err().code()
}

#[tokio::test]
async fn a_failure_is_answered_as_it_is_recorded() {
    let Some(bench) = Bench::new(patient()).await else { return };
    bench.fill().await;
    bench.writes([Write::Failure(ErrorCode::ModelUnauthorized), Write::Call]);
    for expected in [ErrorCode::ModelUnauthorized, ErrorCode::ModelRejected] {
        let error = bench.compact().await.unwrap_err();
        let events = bench.subject.events().await;
        let failed = events.last().unwrap();
        assert_eq!((error.code(), &failed["code"]), (expected, &json!(expected)));
        assert_eq!(failed["message"], error.body().message);
    }
    bench.turn("@say Whole.").await;
    assert_eq!(bench.requests(false)[2].messages.len(), 5);
}

/// An interrupt that names no turn ends it, and so does a turn that takes its place.
#[tokio::test(start_paused = true)]
async fn it_can_be_interrupted() {
    for by_turn in [false, true] {
        let Some(bench) = Bench::new(patient()).await else { return };
        bench.fill().await;
        let (_said, compacting) = bench.begin().await;
        let interrupt =
            async |turn| bench.subject.service.interrupt(InterruptTurn { session_id: bench.id(), turn }).await;
        assert_eq!(code(interrupt(Some(1)).await), ErrorCode::SessionNotRunning);
        let seq = match by_turn {
            true => u64::from(bench.accept(Policy::Interrupt).await.unwrap()),
            false => interrupt(None).await.unwrap().seq,
        };
        assert_eq!(code(compacting.await.unwrap()), ErrorCode::TurnInterrupted);
        ticks(100).await;
        let events = bench.subject.events().await;
        let failed = events.iter().find(|event| event["type"] == "compaction_failed").unwrap();
        assert_eq!(failed["code"], "TURN_INTERRUPTED");
        assert!(by_turn || failed["seq"] == seq);
        assert_eq!(events.last().unwrap()["type"], if by_turn { "turn_completed" } else { "compaction_failed" });
        bench.subject.check().await;
    }
}

/// Whoever asked gives it up, at any time, and nothing else: neither the session's other compactions nor a turn.
#[tokio::test(start_paused = true)]
async fn whoever_asked_can_give_it_up() {
    let Some(bench) = Bench::new(patient()).await else { return };
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
    let Some(bench) = Bench::new(patient()).await else { return };
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
    // What is undone already is no compaction any more, however many came after it.
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
    let Some(bench) = Bench::with(2_000, CompactionConfig { auto_compact_threshold: 1_000, ..config() }).await else {
        return;
    };
    bench.fill().await;
    bench.turn("@long 2400").await;
    bench.turn("@long 400").await;
    assert_eq!(bench.outcomes().await, [(json!(2), "summary".to_owned())]);
    assert_eq!(code(bench.undo(None).await), ErrorCode::ContextOverflow);
    assert_eq!(bench.turn("@say Goes on.").await.status, TurnStatus::Completed);
}
