//! Summaries: the messages that a model reads for them, their length, and their cost.

use std::time::Duration;

use serde_json::json;

use super::{Bench, COST, SUMMARY, WINDOW, Write, config, patient, rig, texts};
use crate::{
    ErrorCode,
    agent::tests::Subject,
    compaction::{COMPACTION_PROMPT, CompactionConfig, SUMMARY_PREFIX},
    cost::{Cost, Price},
    model::{StaticModels, Usage},
    options::{Budgets, CacheTime, ModelOptions, Overflow},
    service::{SessionService as _, StartTurn, TurnStatus},
};

/// A summary has at most a quarter of the window, whichever config limits it.
#[tokio::test]
async fn a_summary_has_at_most_a_quarter_of_the_window() {
    let long = CompactionConfig { max_summary_tokens: 4096, ..patient() };
    for (window_tokens, expected) in [(2_000, 500), (100_000, 4096)] {
        let bench = Bench::with(window_tokens, long).await;
        bench.turn("@long 2400").await;
        bench.turn("@say Newest.").await;
        bench.compact().await.unwrap();
        assert_eq!(bench.requests(true)[0].options.max_output_tokens, Some(expected));
    }
}

/// A window without room for an answer is not a fault of the compaction's config: the turn fails.
#[tokio::test]
async fn a_window_without_room_refuses_no_configuration() {
    let (mut rig, model) = rig(100, CompactionConfig::default());
    rig.options.turn.max_output_tokens = 1_000;
    let bench = Bench { model, subject: Subject::new(rig.service()).await };
    let result = bench.subject.turn("@say Never.").await.unwrap();
    assert_eq!(result.error.unwrap().code, ErrorCode::ContextOverflow);
}

/// Messages that do not fit are left out at the end: they stay in the context.
#[tokio::test]
async fn the_summary_is_made_of_the_oldest() {
    let bench = Bench::with(2_500, patient()).await;
    bench.turn("@say First.").await;
    bench.turn("@long 4000").await;
    let result = bench.turn(&format!("@note {} @say Done.", "n".repeat(6_500))).await;
    assert_eq!((result.text.as_str(), bench.outcomes().await), ("Done.", vec![(json!(2), "summary".to_owned())]));
    let asked = texts(&bench.requests(true)[0]);
    assert_eq!((asked[0].as_str(), asked[1].as_str(), asked[2].as_str()), ("@say First.", "First.", "@long 4000"));
    assert_eq!((asked.len(), asked[4].as_str()), (5, COMPACTION_PROMPT));
}

/// Inside one turn too, and calls are never parted from their results.
#[tokio::test]
async fn a_turn_that_does_not_fit_is_summarised_from_its_beginning() {
    let config = CompactionConfig { auto_compact_threshold: 2_500, ..config() };
    let bench = with_a_small_summary_model(config).await;
    let calls: String = (0..9).map(|n| format!("@call fill {{\"bytes\":1500,\"n\":{n}}} @step ")).collect();
    let prompt = format!("{calls}@say Done.");
    assert_eq!(bench.turn(&prompt).await.text, "Done.");
    assert_eq!(bench.outcomes().await[0], (json!(0), "summary".to_owned()));
    let asked = &bench.requests(true)[0];
    let bytes: usize = asked.messages.iter().map(|message| serde_json::to_vec(message).unwrap().len()).sum();
    assert_eq!(texts(asked)[0], prompt);
    // Another step would not have fitted.
    assert!((3_800..=5_600).contains(&bytes), "{bytes}");
}

/// A summary is in the context whole, or not at all.
#[tokio::test]
async fn a_summary_that_is_too_long_is_refused() {
    for (bytes, expected) in [(95 * 1024, None), (97 * 1024, Some(ErrorCode::ModelRejected))] {
        let bench = Bench::new(CompactionConfig { max_summary_tokens: 25_000, ..patient() }).await;
        bench.turn("@long 120000").await;
        bench.turn("@say Newest.").await;
        let summary: &'static str = "s".repeat(bytes).leak();
        bench.writes([Write::Text(summary)]);
        assert_eq!(bench.compact().await.map_err(|error| error.code()).err(), expected);
        bench.turn("@say After.").await;
        let last = texts(&bench.requests(false)[2]);
        let is_taken = last[0] == format!("{SUMMARY_PREFIX}\n\n{summary}");
        assert_eq!((is_taken, last.len()), (expected.is_none(), if expected.is_none() { 4 } else { 5 }));
    }
}

/// If the next request would not fit, a mechanical summary replaces a failed one, and costs what was paid for that. If
/// older turns would slide out anyway, the context stays.
#[tokio::test]
async fn a_mechanical_summary_stands_in_only_where_the_request_would_not_fit() {
    let (long, nothing) = (Write::Text("x".repeat(6_000).leak()), Usage::default());
    let rejected = Write::Failure(ErrorCode::ModelRejected);
    for (write, filler, overflow, outcome, cost) in [
        (rejected.clone(), 4_500, Overflow::Fail, "MODEL_REJECTED", nothing),
        (rejected.clone(), 6_500, Overflow::Fail, "mechanical", nothing),
        (Write::Call, 6_500, Overflow::Fail, "mechanical", COST),
        (long, 6_500, Overflow::Fail, "mechanical", COST),
        (rejected, 6_500, Overflow::Slide, "MODEL_REJECTED", nothing),
    ] {
        let (mut rig, model) = rig(2_500, patient());
        rig.options.context.overflow = overflow;
        let bench = Bench { model, subject: Subject::new(rig.service()).await };
        bench.writes([write]);
        bench.turn("@long 4000").await;
        bench.turn("@say Short.").await;
        let result = bench.turn(&format!("@note {} @say Done. @usage in=10 out=1", "n".repeat(filler))).await;
        assert_eq!(bench.outcomes().await, [(json!(2), outcome.to_owned())], "{filler}");
        let mut paid = Usage { input_tokens: 10, output_tokens: 1, cached_tokens: 0, ..Usage::default() };
        paid.add(cost);
        assert_eq!((result.text.as_str(), result.usage.input_tokens), ("Done.", paid.input_tokens));
        assert_eq!(result.usage.output_tokens, paid.output_tokens);
        if outcome == "mechanical" {
            let receipt = &bench.subject.event("context_rebuilt").await["receipt"];
            assert_eq!(receipt["usage"], json!(cost));
            // A model that failed costs nothing; this one has no price.
            let free = json!({ "amount": "0.000000", "currency": "USD" });
            assert_eq!(receipt.get("cost"), (cost == nothing).then_some(&free));
        } else {
            let sent = if overflow == Overflow::Slide { 3 } else { 5 };
            assert_eq!(bench.requests(false)[2].messages.len(), sent);
        }
    }
}

/// The very request that the model found too long is not sent again.
#[tokio::test]
async fn where_a_forced_compaction_fails_the_turn_fails_as_the_model_said() {
    let bench = Bench::new(patient()).await;
    *bench.model.exceeded.lock().unwrap() = 1;
    let result = bench.subject.service.start_turn(StartTurn::new(bench.id(), "@say Only.")).await.unwrap();
    assert_eq!(result.status, TurnStatus::Failed);
    assert_eq!(result.error.unwrap().code, ErrorCode::ModelContextExceeded);
    assert_eq!(bench.outcomes().await, [(json!(0), "COMPACTION_NO_PROGRESS".to_owned())]);
    assert_eq!((bench.requests(false).len(), bench.requests(true).len()), (1, 0));
    assert_ne!(bench.turn("@say Goes on.").await.text, SUMMARY);
}

/// A bench that compacts so, and whose summaries are written by a model with a window of 1,500 tokens.
async fn with_a_small_summary_model(config: CompactionConfig) -> Bench {
    with_priced(config, &["large", "cheap"]).await
}

/// With these models priced: a token costs a millionth of a dollar.
async fn with_priced(config: CompactionConfig, priced: &[&str]) -> Bench {
    let (mut rig, model) = rig(WINDOW, config);
    let models = StaticModels::new("large", model.clone(), WINDOW).with("cheap", model.clone(), 1_500);
    // No call is surely too dear.
    let row = json!({ "model": "v/m", "input": "1", "output": "1", "cached_input": "0" });
    let price: Price = serde_json::from_value(row).unwrap();
    rig.models = std::sync::Arc::new(priced.iter().fold(models, |models, name| models.priced(name, [price.clone()])));
    rig.options.context.summary_model = "cheap".to_owned();
    Bench { model, subject: Subject::new(rig.service()).await }
}

#[tokio::test]
async fn a_model_that_cannot_read_one_message_writes_no_summary() {
    let bench = with_a_small_summary_model(patient()).await;
    bench.turn(&format!("@note {} @long 8000", "n".repeat(8000))).await;
    bench.turn("@say Stays.").await;
    assert_eq!(bench.compact().await.unwrap_err().code(), ErrorCode::ContextOverflow);
    assert_eq!(bench.requests(true).len(), 0);
    assert_eq!(bench.outcomes().await, [(serde_json::Value::Null, "CONTEXT_OVERFLOW".to_owned())]);
}

/// Broken once: messages between the part that fitted the summary's model and the retained turns were in no summary.
#[tokio::test]
async fn what_does_not_fit_one_summary_is_summarised_in_rounds() {
    let bench = with_a_small_summary_model(patient()).await;
    bench.turn("FACT-first @long 2400").await;
    bench.turn("@long 2400").await;
    bench.turn("@long 2400").await;
    bench.turn("FACT-between @long 2400").await;
    bench.turn("@long 2400").await;
    bench.turn("@say Stays.").await;
    bench.writes([Write::Facts, Write::Facts, Write::Facts, Write::Facts]);
    let receipt = serde_json::to_value(bench.compact().await.unwrap()).unwrap();
    let rounds = bench.requests(true).len();
    bench.turn("@say After.").await;
    let next = texts(&bench.requests(false)[6]);
    assert!(next[0].contains("FACT-first FACT-between"), "{next:#?}");
    assert_eq!((bench.requests(true)[0].model.as_str(), bench.requests(false)[6].model.as_str()), ("cheap", "large"));
    // A round begins with the summary of the former one; no message is read twice.
    assert!(rounds > 1 && texts(&bench.requests(true)[1])[0].starts_with(SUMMARY_PREFIX));
    assert_eq!((&receipt["mode"], &receipt["rounds"]), (&json!("summary"), &json!(rounds)));
    assert_eq!(receipt["usage"]["output_tokens"], COST.output_tokens * rounds as u64);
    let shown: Vec<String> = bench.requests(true).iter().flat_map(texts).collect();
    assert_eq!(shown.iter().filter(|text| *text == "FACT-between @long 2400").count(), 1, "{shown:#?}");
}

/// A message that fits no round is summarised mechanically.
#[tokio::test]
async fn a_message_too_long_for_the_summarys_model_is_in_the_summary() {
    let bench = with_a_small_summary_model(patient()).await;
    bench.turn("FACT-first @long 2400").await;
    bench.turn(&format!("The port is FACT-4711. @note {} @say Noted.", "n".repeat(9_000))).await;
    bench.turn("FACT-last @long 2400").await;
    bench.turn("@say Stays.").await;
    bench.writes([Write::Facts, Write::Facts]);
    let receipt = serde_json::to_value(bench.compact().await.unwrap()).unwrap();
    bench.turn("@say After.").await;
    let next = texts(&bench.requests(false)[4]);
    for fact in ["FACT-first", "FACT-4711", "FACT-last"] {
        assert!(next[0].contains(fact), "{fact}: {next:#?}");
    }
    assert_eq!((&receipt["mode"], &receipt["rounds"], &receipt["unread"]), (&json!("summary"), &json!(2), &json!(1)));
    let bytes: usize = next[0].len();
    assert!(bytes < 2_000, "{bytes}");
}

/// Broken once: the cost of an unused summary was not counted.
#[tokio::test]
async fn a_summary_is_charged_to_the_turn_and_its_budget() {
    for (write, is_taken) in [(Write::Text(SUMMARY), true), (Write::Text(" "), false), (Write::Call, false)] {
        let bench = Bench::new(config()).await;
        bench.fill().await;
        bench.writes([write.clone()]);
        let result = bench.turn("@say Done. @usage in=10 out=1").await;
        assert_eq!((result.usage.input_tokens, result.usage.output_tokens), (60, 8));
        let events = bench.subject.events().await;
        let unused = events.iter().position(|event| event["type"] == "summary_unused");
        assert_eq!(unused.is_none(), is_taken);
        if let Some(at) = unused {
            assert_eq!((&events[at]["usage"], &events[at + 1]["type"]), (&json!(COST), &json!("compaction_failed")));
            let failed: Vec<&String> = events[at + 1].as_object().unwrap().keys().collect();
            assert_eq!(failed, ["v", "session_id", "seq", "turn", "time", "type", "code", "message"]);
        }

        let bench = Bench::new(config()).await;
        bench.fill().await;
        bench.writes([write]);
        let budgets = Budgets { tokens: Some(57), ..Budgets::default() };
        let request = StartTurn { budgets, ..StartTurn::new(bench.id(), "@say Never.") };
        let result = bench.subject.service.start_turn(request).await.unwrap();
        assert_eq!((result.status, result.steps), (TurnStatus::Failed, 0));
        assert_eq!(result.error.unwrap().code, ErrorCode::BudgetExhausted);
    }
}

/// Broken once: a summary whose server sent no bill counted as free. What is written to the cache has the price of the
/// summary's own request, and not of the turn's.
#[tokio::test]
async fn a_summary_has_a_cost_like_any_call_and_none_without_a_bill() {
    let (no_bill, micros) = (Usage::default(), |micros| Some(Cost::from_micros(micros)));
    let written = Usage { cache_write_tokens: 50, ..COST };
    for (write, summary_model, outcome, cost) in [
        (Write::Text(SUMMARY), "strict", "summary", micros(57)),
        (Write::Billed(SUMMARY, written), "strict", "summary", micros(50 * 100 + 7)),
        (Write::Billed(SUMMARY, written), "cheap", "summary", micros(50 * 10 + 7)),
        (Write::Billed(SUMMARY, no_bill), "strict", "summary", None),
        (Write::Billed(" ", no_bill), "strict", "MODEL_REJECTED", None),
        (Write::Billed(" ", COST), "strict", "MODEL_REJECTED", micros(57)),
        (Write::Failure(ErrorCode::ModelRejected), "strict", "MODEL_REJECTED", micros(0)),
    ] {
        let (mut rig, model) = rig(WINDOW, config());
        let price =
            json!({ "model": "v/m", "input": "1", "output": "1", "cache_write": "10", "long_cache_write": "100" });
        let prices: Vec<Price> = vec![serde_json::from_value(price).unwrap()];
        let models = StaticModels::new("strict", model.clone(), WINDOW).with("cheap", model.clone(), WINDOW);
        rig.models = std::sync::Arc::new(models.priced("strict", prices.clone()).priced("cheap", prices));
        rig.options.context.summary_model = summary_model.to_owned();
        let bench = Bench { model, subject: Subject::new(rig.service()).await };
        bench.fill().await;
        bench.writes([write]);
        let options = ModelOptions { cache: Some(CacheTime::Long), ..ModelOptions::default() };
        let request = StartTurn { options, ..StartTurn::new(bench.id(), "@say Done. @usage in=10 out=1") };
        let result = bench.subject.service.start_turn(request).await.unwrap();
        assert_eq!(bench.outcomes().await, [(json!(2), outcome.to_owned())]);
        assert_eq!(result.cost, Cost::sum(cost, micros(11)), "{summary_model} {outcome}");
    }
}

/// Rounds are calls like others: a turn's budgets of tokens and of cost end them.
#[tokio::test]
async fn no_round_begins_behind_a_budget() {
    let threshold = CompactionConfig { auto_compact_threshold: 2_000, ..config() };
    let budget = COST.input_tokens + COST.output_tokens;
    let tokens = |tokens| Budgets { tokens: Some(tokens), ..Budgets::default() };
    let cost = |micros| Budgets { cost: Some(Cost::from_micros(micros)), ..Budgets::default() };
    let exhausted = Some(ErrorCode::BudgetExhausted);
    for (budgets, rounds, code) in [
        (tokens(budget), 1, exhausted),
        (tokens(budget * 20), 3, None),
        (cost(budget), 1, exhausted),
        (cost(budget + 1), 2, exhausted),
        (cost(budget * 20), 3, None),
    ] {
        let bench = with_a_small_summary_model(threshold).await;
        for _ in 0..4 {
            bench.turn("@long 2400").await;
        }
        let request = StartTurn { budgets, ..StartTurn::new(bench.id(), "@say Done. @usage in=1 out=1") };
        let result = bench.subject.service.start_turn(request).await.unwrap();
        assert_eq!((result.error.map(|error| error.code), bench.requests(true).len()), (code, rounds));
        let receipt = &bench.subject.event("context_rebuilt").await["receipt"];
        assert_eq!(receipt.get("unread").is_some(), code.is_some(), "what no round took in is in it all the same");
    }
}

/// Its cost could not be limited. The turn goes on with the context that it has.
#[tokio::test]
async fn a_model_without_a_price_writes_no_summary_in_a_turn_with_a_budget_of_cost() {
    let threshold = CompactionConfig { auto_compact_threshold: 2_000, ..config() };
    for (micros, expected) in [(Some(1_000), "INVALID_REQUEST"), (None, "summary")] {
        let bench = with_priced(threshold, &["large"]).await;
        for _ in 0..4 {
            bench.turn("@long 2400").await;
        }
        let budgets = Budgets { cost: micros.map(Cost::from_micros), ..Budgets::default() };
        let request = StartTurn { budgets, ..StartTurn::new(bench.id(), "@say Done. @usage in=1 out=1") };
        let result = bench.subject.service.start_turn(request).await.unwrap();
        assert_eq!((result.error, result.cost), (None, micros.map(|_| Cost::from_micros(2))));
        assert_eq!(bench.outcomes().await, [(json!(4), expected.to_owned())]);
        assert_eq!(bench.requests(true).is_empty(), micros.is_some());
    }
}

/// The prompt of the turn that runs stays: it is not unread, and not in the summary a second time.
#[tokio::test]
async fn what_stays_is_not_in_the_summary() {
    let config = CompactionConfig { auto_compact_threshold: 4_500, ..config() };
    let bench = with_a_small_summary_model(config).await;
    let calls: String = (0..7).map(|n| format!("@call fill {{\"bytes\":1500,\"n\":{n}}} @step ")).collect();
    let prompt = format!("@note The port is 4711. {} {calls}@say Done.", "n".repeat(9_000));
    assert_eq!(bench.turn(&prompt).await.text, "Done.");
    let rebuilt = bench.subject.event("context_rebuilt").await;
    assert_eq!((&rebuilt["summary"], rebuilt["receipt"].get("unread")), (&json!(SUMMARY), None), "{rebuilt:#}");
}

/// Signs of life put the idle timeout off for ever: without a turn, the time that a turn has by default ends it.
#[tokio::test(start_paused = true)]
async fn a_compaction_that_somebody_asked_for_has_a_deadline() {
    for (configured, expected) in [(5_000, 5_000), (0, 3_600_000)] {
        let (mut rig, model) = rig(WINDOW, patient());
        rig.options.turn.default_wall_ms = configured;
        let bench = Bench { model, subject: Subject::new(rig.service()).await };
        bench.fill().await;
        bench.writes([Write::Pings]);
        let (began, expected) = (tokio::time::Instant::now(), Duration::from_millis(expected));
        let refused = tokio::time::timeout(expected * 2, bench.compact()).await.expect("it ends");
        assert_eq!(refused.unwrap_err().code(), ErrorCode::ModelTimeout);
        assert!((expected..expected + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert_eq!(bench.outcomes().await.len(), 1);
        bench.turn("@say Goes on.").await;
    }
}
