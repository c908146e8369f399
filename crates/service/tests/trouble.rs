//! What goes wrong in a turn and needs exact time or options to be seen. The other rows of what is promised are
//! scenarios, which every surface plays.

use std::{sync::Arc, time::Duration};

use crate::common::{agent_with, lines};
use meerkat_service::{
    Agent, AgentBuildConfig,
    clock::World,
    options::{Budgets, EngineOptions},
    service::{CreateSession, SessionCreated, StartTurn, TurnStatus},
};

/// Options under which nothing waits for long.
fn brisk() -> EngineOptions {
    let mut options = EngineOptions::default();
    options.turn.retry_base_ms = 10;
    options
}

/// The same, with the test tools.
fn with_tools() -> (tempfile::TempDir, EngineOptions) {
    let (dir, mut options) = (meerkat_testkit::folder(), brisk());
    options.tools.test_dir = Some(dir.path().to_owned());
    (dir, options)
}

async fn session_of(options: EngineOptions) -> (Agent, SessionCreated) {
    let agent = agent_with(options);
    let session = agent.create_session().await.unwrap();
    (agent, session)
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

/// Row 5: the wait that a vendor asks for is kept, and one that is longer than allowed fails at once.
#[tokio::test(start_paused = true)]
async fn a_vendors_wait_is_kept() {
    let (agent, session) = session_of(brisk()).await;
    let started = tokio::time::Instant::now();
    agent.turn(&session, "@fail rate_limited retry_after_ms=7000 times=1 @say Back.").await.unwrap();
    assert!((7000..8000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
    let failed = agent.turn(&session, "@fail rate_limited retry_after_ms=31000 times=1 @say Back.").await.unwrap();
    assert_eq!(failed.error.unwrap().code.as_str(), "MODEL_RATE_LIMITED", "31 s is more than turn.retry_max_ms");
}

/// Row 5: six failures in a row cost no turn; a vendor that stays overloaded ends it after a minute of waits.
#[tokio::test(start_paused = true)]
async fn an_overload_that_passes_is_waited_out_and_one_that_stays_ends_the_turn() {
    let (agent, session) = session_of(EngineOptions::default()).await;
    let done = agent.turn(&session, "@fail overloaded times=6 @say Back.").await.unwrap();
    assert_eq!((done.status, done.text.as_str()), (TurnStatus::Completed, "Back."));

    let mut options = EngineOptions::default();
    options.turn.model_attempts = 64;
    let (agent, session) = session_of(options.clone()).await;
    let began = tokio::time::Instant::now();
    let failed = agent.turn(&session, "@fail overloaded").await.unwrap();
    assert_eq!(failed.error.unwrap().code.as_str(), "MODEL_OVERLOADED");
    let waited = began.elapsed();
    let most = Duration::from_millis(options.turn.retry_total_ms);
    // The next wait would have been 30 s at most.
    assert!(most - Duration::from_secs(30) < waited && waited <= most, "{waited:?}");
}

/// Row 6: a tool that does not end, even when asked to, is left behind after its timeout and the grace.
#[tokio::test(start_paused = true)]
async fn a_tool_deaf_to_its_timeout_is_left_behind() {
    let (_dir, options) = with_tools();
    let limit = u128::from(options.tools.timeout_ms + options.tools.grace_ms);
    let (agent, session) = session_of(options).await;
    let started = tokio::time::Instant::now();
    let deaf =
        agent.turn(&session, r#"@call test_sleep {"ms":900000,"ignore_cancel":true} @echo last_result"#).await.unwrap();
    assert!(deaf.text.contains("Outcome unknown"), "{}", deaf.text);
    assert!((limit..limit + 1_000).contains(&started.elapsed().as_millis()), "{:?}", started.elapsed());
}

/// Row 9: a budget that just suffices is no failure.
#[tokio::test]
async fn a_budget_is_for_all_of_itself() {
    let (_dir, options) = with_tools();
    let (agent, session) = session_of(options).await;
    let three = r#"@call test_echo {"text":"a"} @step @call test_echo {"text":"b"} @step @call test_echo {"text":"c"} @say Done."#;
    let budgets = Budgets { tool_calls: Some(3), steps: Some(4), ..Budgets::default() };
    let request = StartTurn { budgets, ..StartTurn::new(session.session_id, three) };
    assert_eq!(agent.service().start_turn(request).await.unwrap().status, TurnStatus::Completed);
}

/// Row 13: wall time that jumps changes neither order nor durations, and new ids still sort after old ones.
#[tokio::test(start_paused = true)]
async fn the_clock_may_jump() {
    let (world, wall) = crate::common::SettableClock::at(1_000_000);
    let (_dir, options) = with_tools();
    let agent = AgentBuildConfig::new()
        .options(options)
        .world(World { clock: Arc::new(wall.clone()), ..world })
        .build()
        .unwrap();
    let first = agent.create_session().await.unwrap();
    wall.set(10);
    let second = agent.create_session().await.unwrap();
    assert!(second.session_id > first.session_id);
    agent.turn(&first, "@fail overloaded times=1 @say Back.").await.unwrap();
    for jump in [5, 1_000_000_000] {
        let jumps = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            wall.set(jump);
        };
        let turn = agent.turn(&first, r#"@call test_sleep {"ms":700} @say Slept."#);
        assert_eq!(tokio::join!(turn, jumps).0.unwrap().status, TurnStatus::Completed, "{jump}");
    }
    let events = lines(&agent, &first).await;
    let seqs: Vec<_> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    let durations = events.iter().filter(|event| event["type"] == "tool_finished").map(|event| &event["duration_ms"]);
    assert_eq!(durations.collect::<Vec<_>>(), [700, 700]);
}

/// A prompt reaches no file and no process without a tool that the configuration allows.
#[tokio::test]
async fn without_a_test_folder_there_are_no_test_tools() {
    let dir = meerkat_testkit::folder();
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

/// Keys of sessions in memory, while the clock jumps by days.
#[tokio::test]
async fn no_key_runs_twice_because_of_the_clock() {
    let (world, wall) = crate::common::SettableClock::at(1_800_000_000_000);
    let world = World { clock: Arc::new(wall.clone()), ..world };
    let agent = AgentBuildConfig::new().options(brisk()).world(world).build().unwrap();
    let (mut sessions, mut turns) = (Vec::new(), Vec::new());
    for day in [0, 2, 0, -2, 1000, 0] {
        wall.set(1_800_000_000_000 + day * 86_400_000);
        for key in ["a", "b"] {
            let create = CreateSession { idempotency_key: Some(key.to_owned()), ..CreateSession::default() };
            let session_id = agent.service().create_session(create).await.unwrap().session_id;
            sessions.push((key, session_id));
            let turn = StartTurn { idempotency_key: Some(key.to_owned()), ..StartTurn::new(session_id, "@say Once.") };
            turns.push(agent.service().start_turn(turn).await.unwrap().turn);
        }
    }
    sessions.sort_unstable();
    sessions.dedup();
    assert_eq!((sessions.len(), turns), (2, vec![0; 12]));
}
