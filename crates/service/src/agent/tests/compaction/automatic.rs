//! Compactions before a model call: when they run, what follows a failure, and what the model is sent.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use serde_json::json;
use tokio::sync::Notify;

use super::{Bench, Write, config, fill, patient, rig, texts};
use crate::{
    ErrorCode,
    agent::tests::{Subject, ticks},
    compaction::{
        COMPACTION_PROMPT, CompactionConfig, CompactionContext, CompactionPlan, CompactionResult, Compactor,
        SUMMARY_PREFIX,
    },
    model::StaticModels,
    options::{Budgets, CacheTime, ModelOptions},
    output::OutputSpec,
    service::{CreateSession, PinFact, SessionService as _, StartTurn, TurnStatus},
    session::message::{Message, RawJson},
};

/// Some 500 tokens.
const LONG: &str = "@long 2000";

/// The request for a summary is the next request with another message at its end, so that a vendor's cache stays valid.
#[tokio::test]
async fn requests_between_compactions_are_prefixes_of_one_another() {
    let bench = Bench::new(config()).await;
    bench.writes([Write::Failure(ErrorCode::ModelRejected)]);
    let service = &bench.subject.service;
    service.pin(PinFact { session_id: bench.id(), text: "a fact".to_owned() }).await.unwrap();
    let stop = Some(vec!["END".to_owned()]);
    let options =
        ModelOptions { temperature: Some(1.5), stop, cache: Some(CacheTime::Long), ..ModelOptions::default() };
    for _ in 0..4 {
        let turn = StartTurn::new(bench.id(), r#"@call fill {"bytes":800} @long 800"#);
        let turn = StartTurn { options: options.clone(), ..turn };
        assert_eq!(service.start_turn(turn).await.unwrap().status, TurnStatus::Completed);
    }
    let (summaries, requests) = (bench.requests(true), bench.requests(false));
    let [asked] = summaries.as_slice() else { panic!("{summaries:#?}") };
    for pair in requests.windows(2) {
        assert_eq!(pair[0].messages[..], pair[1].messages[..pair[0].messages.len()]);
        assert!(pair[0].tail.as_ref().unwrap().contains("a fact"));
    }
    let before = asked.messages.len() - 1;
    let next = requests.iter().find(|request| request.messages.len() == before).unwrap();
    assert_eq!(asked.messages[..before], next.messages[..]);
    assert_eq!(*asked.messages[before], Message::user(COMPACTION_PROMPT));
    assert_eq!((&asked.system, &asked.tail), (&next.system, &None));
    assert!(requests.iter().all(|request| request.options == options));
    let of_summary = ModelOptions { max_output_tokens: Some(100), cache: options.cache, ..ModelOptions::default() };
    assert_eq!((&asked.options, asked.thinking_tokens), (&of_summary, 6_250), "room to think");
    assert_eq!(format!("{:?}", asked.tools), format!("{:?}", next.tools));
}

/// A compaction before a repair: the model is told all the same what was wrong.
#[tokio::test]
async fn what_was_wrong_with_an_answer_outlives_a_compaction() {
    let bench = Bench::new(config()).await;
    bench.turn("@long 2400").await;
    let output = Some(OutputSpec::new(RawJson::parse(r#"{"type":"object"}"#).unwrap()));
    let turn = StartTurn { output, ..StartTurn::new(bench.id(), r#"@long 2400 @step @json {"n":1}"#) };
    let result = bench.subject.service.start_turn(turn).await.unwrap();
    assert_eq!(result.output.as_ref().map(RawJson::as_str), Some(r#"{"n":1}"#), "{result:?}");
    let events = bench.subject.events().await;
    let at = |kind: &str| events.iter().rposition(|event| event["type"] == kind).unwrap();
    assert!(at("output_refused") < at("context_rebuilt"), "{events:#?}");
    assert!(at("context_rebuilt") < at("assistant_message"), "{events:#?}");
    let last = bench.requests(false).pop().unwrap();
    assert!(last.tail.unwrap().contains("\n- not valid JSON: "));
    assert!(bench.requests(true).iter().all(|summary| summary.output.is_none()), "a summary is no answer");
}

/// Broken once: the cut ignored the tools' specs, so the steps fitted the window and the request did not, and the turn
/// failed.
#[tokio::test]
async fn a_tool_loop_shrinks_where_the_tools_take_a_third_of_the_window() {
    let config = CompactionConfig { max_summary_tokens: 100, ..CompactionConfig::default() };
    let (mut rig, model) = rig(8_192, config);
    rig.tools = vec![fill(&"x".repeat(12_000))];
    let bench = Bench { model, subject: Subject::new(rig.service()).await };
    let calls: String = (0..12).map(|n| format!("@call fill {{\"bytes\":5200,\"n\":{n}}} @step ")).collect();
    assert_eq!(bench.turn(&format!("{calls}@say All done.")).await.steps, 13);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_summary_and_then_the_turn() {
    let bench = Bench::new(config()).await;
    bench.fill().await;
    bench.writes([Write::Late(Arc::default())]);
    let budgets = Budgets { wall_ms: Some(1_000), ..Budgets::default() };
    let request = StartTurn { budgets, ..StartTurn::new(bench.id(), "@say Never.") };
    let result = bench.subject.service.start_turn(request).await.unwrap();
    assert_eq!(result.error.unwrap().code, ErrorCode::BudgetExhausted);
    assert_eq!(bench.outcomes().await, [(json!(2), "TURN_INTERRUPTED".to_owned())]);
}

/// A pin that is set while the summary is written is in the next request, and in the context.
#[tokio::test(start_paused = true)]
async fn what_is_pinned_meanwhile_is_not_lost() {
    let bench = Bench::new(config()).await;
    bench.fill().await;
    let said = Arc::<Notify>::default();
    bench.writes([Write::Late(said.clone())]);
    bench.subject.service.accept_turn(StartTurn::new(bench.id(), "@echo tail")).await.unwrap();
    ticks(50).await;
    bench.subject.service.pin(PinFact { session_id: bench.id(), text: "set late".to_owned() }).await.unwrap();
    said.notify_one();
    ticks(50).await;
    assert_eq!(bench.outcomes().await, [(json!(2), "summary".to_owned())]);
    let last = bench.requests(false).pop().unwrap();
    assert!(last.tail.unwrap().contains("set late") && texts(&bench.requests(true)[0]).len() == 6);
    assert_eq!(bench.subject.event("context_rebuilt").await["receipt"]["pins"], 1);
}

/// The window that counts is that of the model which answers.
#[tokio::test]
async fn another_model_compacts_by_its_own_window() {
    let (mut rig, model) = rig(WINDOW_LARGE, CompactionConfig { max_summary_tokens: 100, ..Default::default() });
    let models = StaticModels::new("large", model.clone(), WINDOW_LARGE).with("small", model.clone(), 2_000);
    rig.models = Arc::new(models);
    let bench = Bench { model, subject: Subject::new(rig.service()).await };
    bench.turn("@long 7000").await;
    bench.turn("@say Large.").await;
    let request = StartTurn { model: Some("small".to_owned()), ..StartTurn::new(bench.id(), "@say Small.") };
    assert_eq!(bench.subject.service.start_turn(request).await.unwrap().status, TurnStatus::Completed);
    assert_eq!(bench.outcomes().await, [(json!(2), "summary".to_owned())]);
    assert_eq!(bench.requests(true)[0].model, "small");
}

const WINDOW_LARGE: u64 = 1_000_000;

/// A vendor whose window is smaller than it was said to be: it is tried once more, after a compaction.
#[tokio::test]
async fn a_request_that_the_model_finds_too_long_is_compacted_once() {
    for (exceeded, status) in [(1, TurnStatus::Completed), (2, TurnStatus::Failed)] {
        let bench = Bench::new(patient()).await;
        bench.fill().await;
        *bench.model.exceeded.lock().unwrap() = exceeded;
        let result = bench.subject.turn("@say Fits.").await.unwrap();
        assert_eq!((result.status, result.compactions), (status, 1), "{result:?}");
        assert_eq!(bench.outcomes().await, [(json!(2), "summary".to_owned())]);
    }
}

/// Switched off, nothing is compacted unless somebody asks: a request by its settings, `compact` by the configured ones.
/// A turn, or a session, that brings settings decides by them.
#[tokio::test]
async fn where_it_is_switched_off_only_a_request_compacts() {
    let off = CompactionConfig { enabled: false, ..config() };
    let bench = Bench::new(off).await;
    bench.fill().await;
    bench.turn("@long 2400").await;
    assert_eq!((bench.outcomes().await.len(), bench.requests(true).len()), (0, 0));
    let receipt = bench.compact().await.unwrap();
    assert_eq!((receipt.retained, receipt.discarded), (2, 4), "one turn stays, as is configured");
    bench.fill().await;
    let turn = |compaction| StartTurn { compaction: Some(compaction), ..StartTurn::new(bench.id(), "@say Here.") };
    let compactions = async |compaction| bench.subject.service.start_turn(turn(compaction)).await.unwrap().compactions;
    assert_eq!(compactions(off).await, 0);
    assert_eq!(compactions(config()).await, 1);
    // And the other way round.
    let bench = Bench::new(config()).await;
    let create = CreateSession { compaction: Some(off), ..CreateSession::default() };
    let session_id = bench.subject.service.create_session(create).await.unwrap().session_id;
    for _ in 0..3 {
        let result = bench.subject.service.start_turn(StartTurn::new(session_id, "@long 2400")).await.unwrap();
        assert_eq!(result.compactions, 0);
    }
    assert_eq!(bench.requests(true).len(), 0);
}

/// A request that does not fit is compacted only where compaction is on.
#[tokio::test]
async fn where_it_is_switched_off_a_context_that_does_not_fit_ends_the_turn() {
    let bench = Bench::with(1_000, CompactionConfig { enabled: false, ..config() }).await;
    bench.fill().await;
    let result = bench.subject.turn("@say Here.").await.unwrap();
    assert_eq!(result.error.unwrap().code, ErrorCode::ContextOverflow);
    assert_eq!(bench.outcomes().await.len(), 0);
}

/// Somebody's compactor: always willing, and broken in one place.
struct Broken(&'static str, AtomicU32);

impl Compactor for Broken {
    fn should_compact(&self, _: &CompactionContext) -> bool {
        self.1.fetch_add(1, Ordering::Relaxed);
        assert_ne!(self.0, "should_compact");
        true
    }

    fn compaction_prompt(&self) -> &str {
        assert_ne!(self.0, "compaction_prompt");
        "Summarise."
    }

    fn max_summary_tokens(&self) -> u32 {
        assert_ne!(self.0, "max_summary_tokens");
        100
    }

    fn plan(&self, _: &[Message], _: u64) -> Option<CompactionPlan> {
        assert_ne!(self.0, "plan");
        None
    }

    fn masks_tool_results(&self) -> bool {
        assert_ne!(self.0, "masks_tool_results");
        false
    }

    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        assert_ne!(self.0, "rebuild_history");
        let (last, discarded) = messages.split_last().unwrap();
        let summary = Message::user(format!("{SUMMARY_PREFIX}\n\n{summary}"));
        CompactionResult { messages: vec![summary, last.clone()], discarded: discarded.to_vec() }
    }
}

/// A compactor may be anybody's: its panic fails the compaction and nothing else, and it cannot hold a turn for ever.
#[tokio::test]
async fn a_compactor_that_panics_or_never_rests_stops_no_turn() {
    let parts = ["should_compact", "compaction_prompt", "max_summary_tokens", "rebuild_history", "plan"];
    for part in parts.into_iter().chain(["masks_tool_results", "nothing"]) {
        let (mut rig, model) = rig(WINDOW_LARGE, config());
        rig.compaction = None;
        rig.compactor = Some(Arc::new(Broken(part, AtomicU32::new(0))));
        let bench = Bench { model, subject: Subject::new(rig.service()).await };
        bench.turn(LONG).await;
        bench.turn(r#"@call fill {"bytes":10} @say Done."#).await;
        let outcomes = bench.outcomes().await;
        let tried: Vec<_> = outcomes.iter().map(|(turn, _)| turn.clone()).collect();
        assert_eq!(tried, [json!(0), json!(1), json!(1)], "once for each step: {outcomes:?}");
        assert_eq!(outcomes[1].1, if part == "nothing" { "summary" } else { "INTERNAL" }, "{part}: {outcomes:?}");
    }
}
