//! From the start of a process to the first accepted turn of a long session, against parsing what is live of it alone.
//!
//! The benchmark writes the journal itself, so that its making takes seconds: a session of 100,000 messages, whose context
//! was rebuilt before the last 1,000 of them.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use meerkat_service::{
    Seq, SessionId, TurnNumber,
    clock::Timestamp,
    model::{StopReason, Usage},
    service::{CompactionMode, CompactionReceipt, SessionQuery, StartTurn},
    session::{
        event::{
            AssistantMessage, CompactionCompleted, CompactionStarted, ContextRebuilt, Event, Record, SessionCreated,
            TurnCompleted, TurnStarted, TurnTotals,
        },
        message::Block,
    },
    store::open_stores,
    wire::decode_event,
};

use crate::common::{agent, in_memory, lines, median, number, numbers_of, peak_bytes, prompt, ratio, runtime};

/// Room for the live context.
const WINDOW_TOKENS: u64 = 100_000;
const LIVE_MESSAGES: usize = 1_000;
const STARTS: usize = 11;
/// Events of a turn, and the messages that it says.
const TURN_EVENTS: usize = 3;
const TURN_MESSAGES: usize = 2;
/// Turns that stay when the context is rebuilt.
const RETAINED_TURNS: usize = 4;

fn messages() -> usize {
    number("MEERKAT_BENCH_MESSAGES", 100_000)
}

/// Turns before the context is rebuilt.
fn old_turns() -> usize {
    (messages() - LIVE_MESSAGES) / TURN_MESSAGES
}

/// The event that rebuilds the context.
fn rebuilt_at() -> Seq {
    (1 + old_turns() * TURN_EVENTS + 2) as Seq
}

pub(crate) fn long_session() {
    let (dir, messages) = (in_memory(), messages());
    runtime().block_on(async {
        write(dir.path(), messages / TURN_MESSAGES).await;
        // As a session that was used is left: with its row and its snapshot.
        let agent = agent(dir.path(), WINDOW_TOKENS);
        let session_id = newest(&agent).await;
        agent.service().start_turn(StartTurn::new(session_id, prompt(100, 100))).await.unwrap();
        agent.service().shut_down(10_000).await;
    });
    measure(messages, "with its snapshot", dir.path(), || {});
    measure(messages, "with redb deleted", dir.path(), || std::fs::remove_file(dir.path().join("index.redb")).unwrap());
}

async fn newest(agent: &meerkat_service::Agent) -> SessionId {
    let query = SessionQuery { limit: Some(1), ..SessionQuery::default() };
    agent.service().list(query).await.unwrap().items[0].session_id
}

/// Writes the journal of a session with so many turns, behind the store's back but through the store.
async fn write(place: &Path, turns: usize) {
    let stores = open_stores(place).unwrap();
    let session_id: SessionId = "01990000-0000-7000-8000-000000000001".parse().unwrap();
    let lease = stores.events.lease(session_id).await.unwrap();
    let mut seq = 0;
    let mut record = |turn, event| {
        seq += 1;
        Record { session_id, seq, turn, time: Timestamp::from_millis(1_767_225_600_000 + seq as i64), event }
    };
    let mut batch = vec![record(
        None,
        Event::SessionCreated(SessionCreated {
            model: "scripted".to_owned(),
            system_prompt: Some("A system prompt.".into()),
            ..SessionCreated::default()
        }),
    )];
    for turn in 0..turns {
        if turn == old_turns() {
            batch.extend(rebuild().map(|event| record(None, event)));
        }
        batch.extend(said().map(|event| record(Some(turn as TurnNumber), event)));
        if batch.len() > 500 {
            stores.events.stage(&lease, &std::mem::take(&mut batch)).unwrap().durable().await.unwrap();
        }
    }
    stores.events.stage(&lease, &batch).unwrap().durable().await.unwrap();
    stores.events.release(lease).await.unwrap();
}

/// A turn of two messages.
fn said() -> [Event; TURN_EVENTS] {
    let (model, usage) = ("scripted".to_owned(), Usage::default());
    let (stop_reason, blocks) = (StopReason::EndTurn, vec![Block::Text { text: "x".repeat(100).into() }]);
    [
        Event::TurnStarted(TurnStarted {
            prompt: Some(prompt(100, 100).into()),
            model: model.clone(),
            ..TurnStarted::default()
        }),
        Event::AssistantMessage(AssistantMessage {
            step: 0,
            model,
            blocks,
            stop_reason,
            usage,
            cost: None,
            tools: None,
            context: None,
        }),
        Event::TurnCompleted(TurnCompleted { stop_reason, totals: TurnTotals::default() }),
    ]
}

fn rebuild() -> [Event; 3] {
    let (before, after) = ((old_turns() * TURN_MESSAGES) as u64, (RETAINED_TURNS * TURN_MESSAGES) as u64);
    let receipt = CompactionReceipt {
        compaction: Some(rebuilt_at() + 1),
        mode: CompactionMode::Summary,
        retained: after,
        masked: 0,
        discarded: before - after,
        reminders: 0,
        pins: 0,
        anchor: None,
        tokens_before: 90_000,
        tokens_after: 2_000,
        usage: Usage::default(),
        cost: None,
        rounds: 0,
        unread: 0,
    };
    let last = rebuilt_at() - 2;
    let first = last + 1 - (RETAINED_TURNS * TURN_EVENTS) as Seq;
    let (retained, summary) = (vec![(first, last)], Some("y".repeat(8_000).into()));
    [
        Event::CompactionStarted(CompactionStarted {
            input_tokens: 90_000,
            estimated_history_tokens: 90_000,
            message_count: before,
        }),
        Event::ContextRebuilt(ContextRebuilt {
            compaction: rebuilt_at() + 1,
            summary,
            retained,
            masked: vec![],
            receipt,
        }),
        Event::CompactionCompleted(CompactionCompleted {
            summary_tokens: 2_000,
            messages_before: before,
            messages_after: after + 1,
        }),
    ]
}

fn measure(messages: usize, how: &str, place: &Path, before: impl Fn()) {
    let (mut works, mut floors, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        before();
        let [work, floor, peak] = numbers_of("resume", place)[..] else { panic!("three numbers") };
        works.push(work);
        floors.push(floor);
        peaks.push(peak);
    }
    let [work, floor] = [&mut works, &mut floors].map(|times| Duration::from_nanos(median(times)));
    println!(
        "resume of {messages} messages {how}: {work:.1?} to the accepted turn, {:.1} MB at most; parsing the live \
         window alone: {floor:.1?}; {:.2} x",
        median(&mut peaks) as f64 / 1e6,
        ratio(work, floor)
    );
}

/// Opens the store, starts a turn in its one session, and then parses what is live of it.
pub(crate) fn in_child(place: &Path) {
    let started = Instant::now();
    runtime().block_on(async {
        let agent = agent(place, WINDOW_TOKENS);
        let session_id = newest(&agent).await;
        agent.service().accept_turn(StartTurn::new(session_id, prompt(100, 100))).await.unwrap();
        let (work, peak) = (started.elapsed(), peak_bytes());
        let view = agent.service().read(&session_id).await.unwrap();
        assert!(view.context.messages < 2 * LIVE_MESSAGES as u64 && view.message_count >= messages() as u64);
        let lines = lines(&agent, session_id, rebuilt_at() - 1).await;
        let started = Instant::now();
        let parsed: Vec<_> = lines.iter().map(|line| decode_event(line).unwrap()).collect();
        let floor = started.elapsed();
        println!("{} {} {peak}", work.as_nanos(), floor.as_nanos());
        drop(parsed);
        agent.service().shut_down(10_000).await;
    });
}
