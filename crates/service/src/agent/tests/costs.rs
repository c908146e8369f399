//! Budgets of cost: when they end a turn, and when they cannot be kept.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};

use super::{Bench, Rig, Subject};
use crate::{
    ErrorCode, SessionError,
    cost::{Cost, Price},
    model::{ModelResolver, ResolvedModel, StaticModels, scripted::ScriptedModel},
    options::{Budgets, Policy},
    service::{
        AnswerCall, AnsweredCall, CreateSession, InterruptTurn, SessionService as _, StartTurn, TurnResult, TurnStatus,
    },
    store::{MemoryEventStore, MemoryIndex},
};

/// A dollar for a million tokens, so that each token costs a millionth of a dollar. Cached input costs nothing, so that
/// no call is surely too dear; what is written to the cache has no price.
fn price() -> Price {
    serde_json::from_value(json!({ "model": "scripted", "input": "1", "output": "1", "cached_input": "0" })).unwrap()
}

fn budget(micros: u64) -> Budgets {
    Budgets { cost: Some(Cost::from_micros(micros)), ..Budgets::default() }
}

fn money(amount: &str) -> Value {
    json!({ "amount": amount, "currency": "USD" })
}

/// The scripted model, whose price may leave the configuration.
#[derive(Default)]
struct Priced {
    is_gone: AtomicBool,
}

impl ModelResolver for Priced {
    fn default_model(&self) -> &str {
        "scripted"
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        let prices = if self.is_gone.load(Ordering::SeqCst) { Vec::new() } else { vec![price()] };
        StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000).priced("scripted", prices).resolve(name)
    }
}

async fn priced() -> (Bench, Arc<Priced>) {
    let models = Arc::<Priced>::default();
    let resolver = models.clone();
    (Bench::new(|rig| rig.models = resolver).await, models)
}

async fn turn(bench: &Bench, prompt: &str, budgets: Budgets) -> TurnResult {
    let request = StartTurn { budgets, ..StartTurn::new(bench.subject.session_id, prompt) };
    bench.subject.service.start_turn(request).await.unwrap()
}

/// Calls of 10 tokens, and an answer of 10 behind them.
fn calls_of_ten(calls: usize) -> String {
    let call = |n| format!("@call test_echo {{\"text\":\"{n}\"}} @usage in=6 out=4 @step ");
    (0..calls).map(call).collect::<String>() + "@say Done. @usage in=6 out=4"
}

#[tokio::test]
async fn no_model_call_begins_once_the_budget_is_spent() {
    for (limit, steps, used, is_warned) in [
        (1, 1, "0.000010", false),
        (10, 1, "0.000010", false),
        (11, 2, "0.000020", true),
        (25, 3, "0.000030", true),
        (30, 3, "0.000030", false),
        (50, 4, "0.000040", false),
        (49, 4, "0.000040", false),
        (37, 4, "0.000040", true),
    ] {
        let (bench, _) = priced().await;
        let result = turn(&bench, &calls_of_ten(3), budget(limit)).await;
        assert_eq!((result.steps, json!(result.cost)), (steps, money(used)), "{limit}");
        let failed = result.error.map(|error| (error.code, error.message, json!(error.details)));
        let limit_written = money(&format!("0.{limit:06}"));
        let expected = (steps < 4).then(|| {
            let details = json!({ "budget": "cost", "used": money(used), "limit": limit_written });
            let message = format!("The turn's budget of 0.{limit:06} USD is used up.");
            (ErrorCode::BudgetExhausted, message, details)
        });
        assert_eq!(failed, expected, "{limit}");
        let events = bench.subject.events().await;
        let warnings: Vec<&Value> = events.iter().filter(|event| event["type"] == "budget_warning").collect();
        assert_eq!(warnings.len(), usize::from(is_warned), "{limit}: {warnings:?}");
        assert!(warnings.iter().all(|it| it["budget"] == "cost" && it["limit"] == limit_written), "{warnings:?}");
    }
}

/// Tokens cost a millionth of a dollar each, and those from the cache a tenth of that.
fn cached() -> Price {
    let row = json!({ "model": "scripted", "input": "1", "output": "1", "cached_input": "0.1", "cache_write": "2" });
    serde_json::from_value(row).unwrap()
}

/// A session whose requests have 10,000 tokens and at most half as many again: a system prompt of 40,000 bytes, and the
/// test's tools.
async fn large(price: Price) -> Bench {
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000).priced("scripted", vec![price]);
    let mut bench = Bench::new(|rig| rig.models = Arc::new(models)).await;
    let create = CreateSession { system_prompt: Some("x".repeat(40_000)), ..CreateSession::default() };
    bench.subject.session_id = bench.subject.service.create_session(create).await.unwrap().session_id;
    bench
}

/// The least that the input costs is known by estimate, as the window's use is; the answer's cost is not.
#[tokio::test]
async fn a_call_whose_input_surely_costs_more_than_is_left_is_not_made() {
    let plain = || Price { cached_input: None, ..cached() };
    for (price, limit, first, steps, least) in [
        (plain(), 9_999, "in=1 out=1", 0, 10_000),
        (plain(), 20_000, "in=1 out=1", 2, 0),
        // 10,001 and 10,000 more are one too many.
        (plain(), 20_000, "in=10000 out=1", 1, 10_000),
        (plain(), 40_000, "in=10000 out=1", 2, 0),
        // All of it may come from the cache, whatever the last answer had there.
        (cached(), 999, "in=1 out=1", 0, 1_000),
        (cached(), 2_000, "in=1 out=1", 2, 0),
        (cached(), 11_000, "in=10000 out=1", 1, 1_000),
        (cached(), 12_000, "in=10000 out=1", 2, 0),
        (cached(), 12_000, "in=10000 out=9002 cached=10000", 2, 0),
    ] {
        let bench = large(price).await;
        let prompt = format!("@call test_echo {{\"text\":\"a\"}} @usage {first} @step @say Done. @usage in=1 out=1");
        let result = turn(&bench, &prompt, budget(limit)).await;
        assert_eq!((result.steps, result.error.is_some()), (steps, steps < 2), "{limit} {first}: {result:?}");
        let Some(error) = result.error else { continue };
        assert_eq!(error.code, ErrorCode::BudgetExhausted, "{limit} {first}");
        let amount = |name: &str| serde_json::from_value::<Cost>(error.details[name].clone()).unwrap();
        let (used, next) = (amount("used"), amount("next"));
        assert_eq!((error.details["budget"].as_str(), amount("limit").micros()), (Some("cost"), limit));
        assert_eq!(Some(used), result.cost);
        assert!((least..least * 3 / 2).contains(&next.micros()), "{next}");
        assert!(error.message.contains(&next.to_string()) && error.message.contains("no room"), "{}", error.message);
    }
}

/// Broken once: the first call of a turn was refused as if nothing of it were in the vendor's cache.
#[tokio::test]
async fn a_second_turn_of_a_cached_session_runs_within_its_budget() {
    let bench = large(cached()).await;
    for (prompt, cost) in [
        ("@say First. @usage in=10000 out=1 written=10000", 20_001),
        ("@say Second. @usage in=10100 out=10 cached=10000 written=100", 1_210),
    ] {
        let result = turn(&bench, prompt, budget(cost)).await;
        assert_eq!((result.status, result.cost), (TurnStatus::Completed, Some(Cost::from_micros(cost))), "{result:?}");
    }
}

/// A turn that waited for its caller while its process ended is decided upon as if it had not.
#[tokio::test]
async fn a_call_is_too_dear_after_a_restart_if_it_was_before() {
    for (price, is_made) in [(Price { cached_input: None, ..cached() }, false), (cached(), true)] {
        for restarts in [false, true] {
            let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
            let process = || {
                let mut rig = Rig::new(Vec::new());
                let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000);
                rig.models = Arc::new(models.priced("scripted", vec![price.clone()]));
                rig.stored(events.clone(), Arc::new(MemoryIndex::default()))
            };
            let first = process();
            let tool = r#"{"name":"look","description":"Looks.","input_schema":{"type":"object"}}"#;
            let create = CreateSession {
                system_prompt: Some("x".repeat(40_000)),
                client_tools: Some(vec![serde_json::from_str(tool).unwrap()]),
                ..CreateSession::default()
            };
            let session_id = first.create_session(create).await.unwrap().session_id;
            let prompt = "@call look {} @usage in=10000 out=1 @step @say Done. @usage in=1 out=1";
            let request = StartTurn { budgets: budget(12_000), ..StartTurn::new(session_id, prompt) };
            let waiting = first.start_turn(request).await.unwrap();
            let service = if restarts { process() } else { first };
            let answer = AnswerCall::text(session_id, &waiting.calls[0].call_id, "Seen.");
            let AnsweredCall::Turn(result) = service.answer_call(AnswerCall { wait: true, ..answer }).await.unwrap()
            else {
                panic!("the answer is the turn's");
            };
            let code = result.error.map(|error| error.code);
            let expected = (!is_made).then_some(ErrorCode::BudgetExhausted);
            assert_eq!((code, result.steps), (expected, 1 + u32::from(is_made)), "{restarts}");
        }
    }
}

/// A text that comes too late to be paid for does not spoil the turn's answer. It is there for the next turn.
#[tokio::test(start_paused = true)]
async fn an_answer_is_given_if_a_steered_text_cannot_be_paid_for() {
    let bench = large(Price { cached_input: None, ..cached() }).await;
    let (service, session_id) = (&bench.subject.service, bench.subject.session_id);
    let prompt = "@stall times=1 @say Done. @usage in=10000 out=1";
    let first = service.begin_turn(StartTurn { budgets: budget(20_000), ..StartTurn::new(session_id, prompt) }).await;
    let first = first.unwrap();
    let steer = StartTurn { policy: Policy::Steer, ..StartTurn::new(session_id, "@say Too dear.") };
    assert_eq!(service.accept_turn(steer).await.unwrap().turn, 0);
    let result = first.result.await.unwrap();
    assert_eq!((result.status, result.text.as_str(), result.steps), (TurnStatus::Completed, "Done.", 1));
}

/// The answer is there and paid: it is given.
#[tokio::test]
async fn an_answer_beyond_the_budget_completes_its_turn() {
    let (bench, _) = priced().await;
    let result = turn(&bench, "@say Dear. @usage in=60 out=40", budget(50)).await;
    assert_eq!((result.status, result.text.as_str()), (TurnStatus::Completed, "Dear."));
    assert_eq!(result.cost, Some(Cost::from_micros(100)));
}

#[tokio::test]
async fn a_model_without_a_price_is_refused_and_nothing_is_recorded() {
    for (session, asked, default, most, is_refused) in [
        (0, 9, "0", "0", true),
        (9, 0, "0", "0", true),
        (0, 0, "0.50", "0", true),
        (0, 0, "0", "0.50", true),
        (0, 0, "0", "0", false),
    ] {
        let some =
            |micros: u64| Budgets { cost: (micros > 0).then(|| Cost::from_micros(micros)), ..Budgets::default() };
        let models = Arc::<Priced>::default();
        let mut rig = Rig::new(Vec::new());
        rig.models = models.clone();
        rig.options.turn.default_cost = default.parse().unwrap();
        rig.options.turn.max_cost = most.parse().unwrap();
        let service = rig.service();
        let session = CreateSession { budgets: some(session), ..CreateSession::default() };
        let session_id = service.create_session(session.clone()).await.unwrap().session_id;
        let subject = Subject { service, session_id };
        models.is_gone.store(true, Ordering::SeqCst);
        let is_refusal = |error: SessionError| {
            let body = error.body();
            assert_eq!((body.code, &body.details["field"]), (ErrorCode::InvalidRequest, &json!("budgets.cost")));
            assert!(body.message.contains("`model.prices`"), "{body:?}");
        };
        let before = subject.events().await;
        for policy in [Policy::Reject, Policy::Queue, Policy::Interrupt, Policy::Steer] {
            let request = StartTurn { budgets: some(asked), policy, ..StartTurn::new(session_id, "@say Done.") };
            let done = subject.service.start_turn(request).await;
            assert_eq!(done.is_err(), is_refused, "{done:?}");
            done.err().into_iter().for_each(is_refusal);
        }
        if is_refused {
            assert_eq!(subject.events().await, before);
        }
        let made = subject.service.create_session(session.clone()).await;
        assert_eq!(made.is_err(), session.budgets.cost.is_some(), "{made:?}");
        made.err().into_iter().for_each(is_refusal);
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_waited_fails_if_its_model_has_no_price_any_more() {
    let (bench, models) = priced().await;
    let (service, session_id) = (&bench.subject.service, bench.subject.session_id);
    service.accept_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
    let waits = StartTurn { policy: Policy::Queue, budgets: budget(9), ..StartTurn::new(session_id, "@say Never.") };
    let waits = service.begin_turn(waits).await.unwrap();
    models.is_gone.store(true, Ordering::SeqCst);
    service.interrupt(InterruptTurn { session_id, turn: Some(0) }).await.unwrap();
    let result = waits.result.await.unwrap();
    assert_eq!((result.status, result.steps), (TurnStatus::Failed, 0));
    let error = result.error.unwrap();
    assert_eq!((error.code, &error.details["field"]), (ErrorCode::InvalidRequest, &json!("budgets.cost")));
    assert_eq!(turn(&bench, "@say Goes on.", Budgets::default()).await.text, "Goes on.");
}

#[tokio::test]
async fn a_turn_ends_when_its_cost_is_not_known_any_more() {
    for (prompt, budgets, is_ended) in [
        ("@call test_echo {\"text\":\"a\"} @usage in=6 out=4 written=5 @step @say Done.", budget(1_000), true),
        ("@call test_echo {\"text\":\"a\"} @usage in=6 out=4 written=5 @step @say Done.", Budgets::default(), false),
        ("@say Done. @usage in=6 out=4 written=5", budget(1_000), false),
    ] {
        let (bench, _) = priced().await;
        let result = turn(&bench, prompt, budgets).await;
        assert_eq!((result.cost, result.error.is_some()), (None, is_ended), "{prompt}");
        if let Some(error) = result.error {
            assert_eq!((error.code, &error.details["reason"]), (ErrorCode::TurnFailed, &json!("cost_unknown")));
            assert!(error.message.contains("The turn may cost 0.001000 USD"), "{error:?}");
            assert_eq!(result.steps, 1);
        }
    }
}
