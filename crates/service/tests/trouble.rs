//! What goes wrong in a turn, row by row of what is promised, through the scripted model.
//!
//! Rows 1, 2, 15, 16 and 17 need a disk, a process or a compaction and stand elsewhere; row 11 stands with the
//! follower's own tests.
#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod common;

use std::{sync::Arc, time::Duration};

use common::{agent_with, field, lines, types};
use meerkat_service::{
    Agent, AgentBuildConfig, SessionError,
    clock::World,
    options::{Budgets, EngineOptions, Policy},
    service::{CancelQueued, CreateSession, InterruptTurn, SessionCreated, StartTurn, TurnStatus},
};

/// Options under which nothing waits for long.
fn brisk() -> EngineOptions {
    let mut options = EngineOptions::default();
    options.turn.retry_base_ms = 10;
    options
}

async fn session_of(options: EngineOptions) -> (Agent, SessionCreated) {
    let agent = agent_with(options);
    let session = agent.create_session().await.unwrap();
    (agent, session)
}

/// Row 3: the same request twice is the same turn, live or replayed; another request under its key is a conflict.
#[tokio::test(start_paused = true)]
async fn the_same_request_twice_is_one_turn() {
    let (agent, session) = session_of(brisk()).await;
    let request =
        StartTurn { idempotency_key: Some("k".to_owned()), ..StartTurn::new(session.session_id, "@say Once.") };
    let (first, second) =
        tokio::join!(agent.service().start_turn(request.clone()), agent.service().start_turn(request.clone()));
    assert_eq!(first.as_ref().unwrap(), second.as_ref().unwrap());
    let replayed = agent.service().start_turn(StartTurn { wait: false, ..request.clone() }).await;
    assert_eq!(replayed.unwrap(), first.unwrap(), "how an answer is delivered is not part of the request");
    assert_eq!(types(&lines(&agent, &session).await).iter().filter(|kind| **kind == "turn_started").count(), 1);

    let other = StartTurn { prompt: "@say Twice.".to_owned(), ..request };
    assert_eq!(agent.service().start_turn(other).await.unwrap_err().code().as_str(), "IDEMPOTENCY_CONFLICT");
}

/// Row 3, for a create: a hundred identical ones at once make one session.
#[tokio::test]
async fn a_hundred_identical_creates_make_one_session() {
    let agent = agent_with(brisk());
    let request = CreateSession { idempotency_key: Some("k".to_owned()), ..CreateSession::default() };
    let creates = (0..100).map(|_| agent.service().create_session(request.clone()));
    let created: Vec<_> = futures::future::join_all(creates).await.into_iter().map(Result::unwrap).collect();
    assert!(created.iter().all(|session| session == &created[0]));
    let other = CreateSession { system_prompt: Some("Other.".to_owned()), ..request };
    assert_eq!(agent.service().create_session(other).await.unwrap_err().code().as_str(), "IDEMPOTENCY_CONFLICT");
}

/// Row 3: a refused create frees its key, because nothing was recorded.
#[tokio::test]
async fn a_refused_create_frees_its_key() {
    let mut options = brisk();
    options.ephemeral.max_sessions = 1;
    let agent = agent_with(options);
    agent.create_session().await.unwrap();
    let request = CreateSession { idempotency_key: Some("k".to_owned()), ..CreateSession::default() };
    let refused = agent.service().create_session(request.clone()).await.unwrap_err();
    assert_eq!(refused.code().as_str(), "SESSION_LIMIT");
    let other = CreateSession { system_prompt: Some("Other.".to_owned()), ..request };
    assert_eq!(agent.service().create_session(other).await.unwrap_err().code().as_str(), "SESSION_LIMIT");
}

/// Row 4: a cut stream is tried again only while nothing of it was visible, and is never a success.
#[tokio::test(start_paused = true)]
async fn a_cut_stream_is_never_a_success() {
    let (agent, session) = session_of(brisk()).await;
    let unseen = agent.turn(&session, "@cut times=2 @say Third time.").await.unwrap();
    assert_eq!((unseen.status, unseen.text.as_str()), (TurnStatus::Completed, "Third time."));

    let seen = agent.turn(&session, "@say Half of it. @cut times=1").await.unwrap();
    assert_eq!(seen.status, TurnStatus::Failed);
    assert_eq!(seen.error.unwrap().code.as_str(), "MODEL_STREAM_INCOMPLETE");
    let events = lines(&agent, &session).await;
    assert_eq!(types(&events)[5..], ["partial_text", "turn_failed"], "{events:?}");
    assert_eq!(field(&events, "partial_text", "text"), "Half of it.");

    let next = agent.turn(&session, "@echo messages").await.unwrap();
    assert_eq!(next.text, "messages: 4", "what was cut is not part of the context");
}

/// Row 5: each class is tried again or fails at once; the vendor's delay counts, and a longer one than allowed fails.
#[tokio::test(start_paused = true)]
async fn failures_are_classed_and_retried_within_a_budget() {
    let (agent, session) = session_of(brisk()).await;
    for (class, code) in
        [("rate_limited", "MODEL_RATE_LIMITED"), ("overloaded", "MODEL_OVERLOADED"), ("timeout", "MODEL_TIMEOUT")]
    {
        let recovered = agent.turn(&session, &format!("@fail {class} times=3 @say Back.")).await.unwrap();
        assert_eq!(recovered.text, "Back.", "{class} is tried four times in all");
        let failed = agent.turn(&session, &format!("@fail {class} times=4 @say Back.")).await.unwrap();
        assert_eq!(failed.error.unwrap().code.as_str(), code);
    }
    for (class, code) in
        [("unauthorized", "MODEL_UNAUTHORIZED"), ("context", "MODEL_CONTEXT_EXCEEDED"), ("rejected", "MODEL_REJECTED")]
    {
        let failed = agent.turn(&session, &format!("@fail {class} times=1 @say Back.")).await.unwrap();
        assert_eq!(failed.error.unwrap().code.as_str(), code, "{class} is not tried again");
    }
    let started = tokio::time::Instant::now();
    agent.turn(&session, "@fail rate_limited retry_after_ms=7000 times=1 @say Back.").await.unwrap();
    assert!((7000..8000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    let failed = agent.turn(&session, "@fail rate_limited retry_after_ms=31000 times=1 @say Back.").await.unwrap();
    assert_eq!(failed.error.unwrap().code.as_str(), "MODEL_RATE_LIMITED", "31 s is more than turn.retry_max_ms");
}

/// Row 6: a model that sends nothing, a tool that does not end, a turn that takes too long.
#[tokio::test(start_paused = true)]
async fn everything_that_waits_has_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = brisk();
    options.tools.test_dir = Some(dir.path().to_owned());
    let (agent, session) = session_of(options).await;
    let stalled = agent.turn(&session, "@say Begun. @stall").await.unwrap();
    assert_eq!(stalled.error.unwrap().code.as_str(), "MODEL_TIMEOUT");

    let slow = agent.turn(&session, r#"@call test_sleep {"ms":900000} @echo last_result"#).await.unwrap();
    assert!(slow.text.contains("tools.timeout_ms"), "{}", slow.text);
    let deaf =
        agent.turn(&session, r#"@call test_sleep {"ms":900000,"ignore_cancel":true} @echo last_result"#).await.unwrap();
    assert!(deaf.text.contains("Outcome unknown"), "{}", deaf.text);

    let budgets = Budgets { wall_ms: Some(5_000), ..Budgets::default() };
    let request = StartTurn { budgets, ..StartTurn::new(session.session_id, "@stall") };
    let late = agent.service().start_turn(request).await.unwrap();
    let error = late.error.unwrap();
    assert_eq!((error.code.as_str(), &error.details["budget"]), ("BUDGET_EXHAUSTED", &"wall_ms".into()));
}

/// Row 7: malformed arguments run nothing, the model is shown the schema, and rounds of repair are bounded.
#[tokio::test]
async fn malformed_arguments_run_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = brisk();
    options.tools.test_dir = Some(dir.path().to_owned());
    let (agent, session) = session_of(options).await;
    let repaired = agent
        .turn(&session, r#"@args test_append {"name": @call test_append {"name":"log","line":"x"} @say Done."#)
        .await
        .unwrap();
    assert_eq!((repaired.status, repaired.steps, repaired.tool_calls), (TurnStatus::Completed, 2, 1));
    let events = lines(&agent, &session).await;
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "x\n");
    let refusal = events.iter().find(|event| event["outcome"] == "not_run").unwrap();
    assert!(refusal["output"].as_str().unwrap().contains(r#""properties""#), "{refusal}");

    let hopeless = agent.turn(&session, r#"@repeat 9 @args test_append {"name"#).await.unwrap();
    assert_eq!((hopeless.status, hopeless.steps), (TurnStatus::Failed, 3));
}

/// Row 8: huge output goes to a blob, the context gets head, tail and reference, and a hard cap ends the tool.
#[tokio::test]
async fn huge_output_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = brisk();
    options.tools.test_dir = Some(dir.path().to_owned());
    options.tools.max_output_bytes = 1_000_000;
    let (agent, session) = session_of(options).await;
    let large = agent.turn(&session, r#"@call test_huge {"bytes":500000} @say Done."#).await.unwrap();
    assert_eq!(large.status, TurnStatus::Completed);
    let events = lines(&agent, &session).await;
    let output = field(&events, "tool_finished", "output");
    assert_eq!(output["bytes"], 500_000);
    assert!(output["head"].as_str().unwrap().len() <= 4096 && output["tail"].as_str().unwrap().len() <= 4096);
    assert!(events.iter().all(|event| event.to_string().len() <= 256 * 1024));

    let capped = agent.turn(&session, r#"@call test_huge {"bytes":2000000} @echo last_result"#).await.unwrap();
    assert!(capped.text.contains("1000000 bytes"), "{}", capped.text);
}

/// Row 9: three identical calls with identical results, or a cycle, end the turn; so do steps, tokens and calls.
#[tokio::test]
async fn loops_and_budgets_end_a_turn() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = brisk();
    options.tools.test_dir = Some(dir.path().to_owned());
    let (agent, session) = session_of(options).await;
    let looped = agent.turn(&session, r#"@repeat 9 @call test_echo {"text":"again"}"#).await.unwrap();
    let error = looped.error.unwrap();
    assert_eq!((error.code.as_str(), looped.tool_calls), ("LOOP_DETECTED", 3));

    let turn = |budgets: Budgets, prompt: &str| {
        let request = StartTurn { budgets, ..StartTurn::new(session.session_id, prompt) };
        let service = agent.service().clone();
        async move { service.start_turn(request).await.unwrap() }
    };
    let three = r#"@call test_echo {"text":"a"} @step @call test_echo {"text":"b"} @step @call test_echo {"text":"c"} @say Done."#;
    let steps = turn(Budgets { steps: Some(2), ..Budgets::default() }, three).await;
    assert_eq!((steps.error.unwrap().details["budget"].as_str(), steps.steps), (Some("steps"), 2));
    let calls = turn(Budgets { tool_calls: Some(2), ..Budgets::default() }, three).await;
    assert_eq!((calls.error.unwrap().details["budget"].as_str(), calls.tool_calls), (Some("tool_calls"), 2));
    let exact = turn(Budgets { tool_calls: Some(3), steps: Some(4), ..Budgets::default() }, three).await;
    assert_eq!(exact.status, TurnStatus::Completed, "a budget that just suffices is no failure");
    let tokens =
        turn(Budgets { tokens: Some(100), ..Budgets::default() }, &format!("@usage in=90 out=20 {three}")).await;
    assert_eq!((tokens.error.unwrap().details["budget"].as_str(), tokens.steps), (Some("tokens"), 1));
}

/// Row 10: a client that goes away does not take its turn with it.
#[tokio::test]
async fn a_turn_outlives_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = brisk();
    options.tools.test_dir = Some(dir.path().to_owned());
    let (agent, session) = session_of(options).await;
    let mut follower = agent.service().follow(&session.session_id, 0).await.unwrap();
    let request = StartTurn::new(session.session_id, r#"@call test_ask {"name":"log","line":"x"} @say Done."#);
    let service = agent.service().clone();
    let client = tokio::spawn(async move { service.start_turn(request).await });
    let asked = common::next_of(&mut follower, "approval_requested").await;
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    let call_id = asked["call_id"].as_str().unwrap();
    common::approve(&agent, &session, call_id).await.unwrap();
    common::next_of(&mut follower, "turn_completed").await;
    assert_eq!(std::fs::read_to_string(dir.path().join("log")).unwrap(), "x\n");
}

/// Row 12: a second turn is refused, queued in a bounded queue, or interrupts the one that runs.
#[tokio::test(start_paused = true)]
async fn two_turns_at_once() {
    let mut options = brisk();
    options.turn.max_queued = 2;
    let (agent, session) = session_of(options).await;
    let service = agent.service();
    let request = |policy, prompt: &str| StartTurn { policy, ..StartTurn::new(session.session_id, prompt) };
    let running = service.accept_turn(request(Policy::Reject, "@stall")).await.unwrap();
    let busy = service.start_turn(request(Policy::Reject, "@say No.")).await.unwrap_err();
    assert!(matches!(busy, SessionError::Busy { turn: 0 }), "{busy:?}");
    let queued = service.accept_turn(request(Policy::Queue, "@say Queued.")).await.unwrap();
    let cancelled = service.accept_turn(request(Policy::Queue, "@say Never.")).await.unwrap();
    let full = service.accept_turn(request(Policy::Queue, "@say Too many.")).await.unwrap_err();
    assert_eq!(full.code().as_str(), "QUEUE_FULL");
    let turns = |page: meerkat_service::service::Page<_>| {
        page.items.into_iter().map(|item: meerkat_service::service::QueueItem| item.turn).collect::<Vec<_>>()
    };
    assert_eq!(turns(service.queue(&session.session_id).await.unwrap()), [1, 2]);
    service.cancel_queued(CancelQueued { session_id: session.session_id, turn: cancelled.turn }).await.unwrap();
    let urgent = service.start_turn(request(Policy::Interrupt, "@say Urgent.")).await.unwrap();
    assert_eq!((running.turn, queued.turn, urgent.turn, urgent.text.as_str()), (0, 1, 3, "Urgent."));
    let mut follower = service.follow(&session.session_id, urgent.seq).await.unwrap();
    let last = common::next_of(&mut follower, "turn_completed").await;
    assert_eq!(last["turn"], 1, "what was queued before goes on afterwards");
    let ends: Vec<_> =
        lines(&agent, &session).await.iter().filter(|event| event["type"] == "turn_interrupted").cloned().collect();
    assert_eq!((ends.len(), &ends[0]["reason"]), (1, &"replaced".into()));
}

/// An interrupt is a state that names its turn: it never hits another one, and the session goes on.
#[tokio::test(start_paused = true)]
async fn an_interrupt_names_its_turn() {
    let (agent, session) = session_of(brisk()).await;
    let service = agent.service();
    let interrupt = |turn| service.interrupt(InterruptTurn { session_id: session.session_id, turn });
    assert_eq!(interrupt(None).await.unwrap_err().code().as_str(), "SESSION_NOT_RUNNING");
    let running = service.accept_turn(StartTurn::new(session.session_id, "@say Part. @stall")).await.unwrap();
    assert_eq!(interrupt(Some(7)).await.unwrap_err().code().as_str(), "SESSION_NOT_RUNNING");
    let changed = interrupt(Some(running.turn)).await.unwrap();
    let events = lines(&agent, &session).await;
    assert_eq!(events[usize::try_from(changed.seq).unwrap() - 1]["type"], "turn_interrupted");
    assert_eq!(interrupt(Some(running.turn)).await.unwrap_err().code().as_str(), "SESSION_NOT_RUNNING");
    assert_eq!(agent.turn(&session, "@say On.").await.unwrap().text, "On.");
}

/// Row 13: wall time that jumps back changes neither order nor durations, and new ids still sort after old ones.
#[tokio::test(start_paused = true)]
async fn the_clock_may_jump() {
    let (world, wall) = common::SettableClock::at(1_000_000);
    let agent = AgentBuildConfig::new()
        .options(brisk())
        .world(World { clock: Arc::new(wall.clone()), ..world })
        .build()
        .unwrap();
    let first = agent.create_session().await.unwrap();
    wall.set(10);
    let second = agent.create_session().await.unwrap();
    assert!(second.session_id > first.session_id);
    agent.turn(&first, "@fail overloaded times=1 @say Back.").await.unwrap();
    let seqs: Vec<_> = lines(&agent, &first).await.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    tokio::time::advance(Duration::from_millis(1)).await;
}

/// Row 14: a panic in a tool fails its turn; the session and the process go on.
#[tokio::test]
async fn a_panic_in_a_tool_fails_its_turn_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = brisk();
    options.tools.test_dir = Some(dir.path().to_owned());
    let (agent, session) = session_of(options).await;
    let failed = agent.turn(&session, "@call test_panic {} @say Never.").await.unwrap();
    assert_eq!(failed.error.unwrap().code.as_str(), "INTERNAL");
    assert_eq!(types(&lines(&agent, &session).await)[3..], ["tool_started", "tool_finished", "turn_failed"]);
    assert_eq!(agent.turn(&session, "@say On.").await.unwrap().text, "On.");
}

/// A prompt reaches no file and no process without a tool that the configuration allows.
#[tokio::test]
async fn without_a_test_folder_there_are_no_test_tools() {
    let dir = tempfile::tempdir().unwrap();
    let (agent, session) = session_of(brisk()).await;
    let path = dir.path().join("log");
    let prompt = format!(r#"@call test_append {{"name":"{}","line":"x"}} @echo last_result"#, path.display());
    let result = agent.turn(&session, &prompt).await.unwrap();
    assert!(result.text.contains("There is no tool"), "{}", result.text);
    assert!(!path.exists());
    for wish in ["@file /etc/passwd", "@run id", "@shell id"] {
        let refused = agent.turn(&session, wish).await.unwrap();
        assert_eq!(refused.error.unwrap().code.as_str(), "MODEL_REJECTED", "{wish}");
    }
}
