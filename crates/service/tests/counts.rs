//! What a turn costs, counted exactly: encodes, allocations, bytes. One test in one process, so that nobody else counts.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod common;

use std::{alloc::System, sync::Arc};

use meerkat_service::{
    Agent, AgentBuildConfig,
    compaction::{CompactionConfig, messages_measured},
    model::{StaticModels, scripted::ScriptedModel},
    options::{EngineOptions, Overflow},
    service::{NamedReader, ReadEvents, SessionCreated, StartTurn},
    store::{MemoryBlobStore, MemoryEventStore, MemoryIndex, MemoryReaders, MemorySessionStore, Stores},
    wire::events_encoded,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Counts of one turn.
#[derive(Debug, PartialEq)]
struct Counts {
    encodes: u64,
    events: usize,
    event_bytes: usize,
    measured: u64,
    allocations: usize,
}

async fn count(agent: &Agent, session: &SessionCreated) -> Counts {
    count_of(agent, session, None).await
}

/// Counts a turn, which may have an idempotency key.
async fn count_of(agent: &Agent, session: &SessionCreated, idempotency_key: Option<String>) -> Counts {
    let turn = StartTurn { idempotency_key, ..StartTurn::new(session.session_id, "@chunks 4096 @long 2048") };
    let (encoded, measured, region) = (events_encoded(), messages_measured(), Region::new(ALLOCATOR));
    let result = agent.service().start_turn(turn).await.unwrap();
    let (encodes, allocations) = (events_encoded() - encoded, region.change().allocations);
    let measured = messages_measured() - measured;
    let request = ReadEvents::new(session.session_id, result.seq - 3);
    let lines = agent.service().events(request).await.unwrap().items;
    // The turn's number and the seqs grow a digit now and then; nothing else of a line may.
    let event_bytes = lines.iter().map(|line| line.iter().filter(|byte| !byte.is_ascii_digit()).count()).sum();
    Counts { encodes, events: lines.len(), event_bytes, measured, allocations }
}

/// The least of several turns: now and then a vector grows, and pays for many turns at once.
async fn least(agent: &Agent, session: &SessionCreated) -> Counts {
    least_of(agent, session, || None).await
}

async fn least_of(agent: &Agent, session: &SessionCreated, mut key: impl FnMut() -> Option<String>) -> Counts {
    let mut counts = count_of(agent, session, key()).await;
    for _ in 0..7 {
        let again = count_of(agent, session, key()).await;
        assert_eq!(
            (again.encodes, again.events, again.event_bytes, again.measured),
            (counts.encodes, counts.events, counts.event_bytes, counts.measured)
        );
        counts.allocations = counts.allocations.min(again.allocations);
    }
    counts
}

/// A context that slides, so that a turn costs the same however many went before.
fn sliding() -> AgentBuildConfig {
    let mut options = EngineOptions::default();
    options.context.overflow = Overflow::Slide;
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 8_000);
    AgentBuildConfig::new().models(Arc::new(models)).options(options)
}

/// Stored sessions, in memory.
fn stored() -> Agent {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let stores = Stores {
        blobs: Arc::<MemoryBlobStore>::default(),
        snapshots: Arc::new(MemorySessionStore::new(events.clone())),
        index: Arc::<MemoryIndex>::default(),
        readers: Arc::<MemoryReaders>::default(),
        pruner: None,
        inbox: None,
        events,
    };
    sliding().stores(stores).build().unwrap()
}

/// A turn costs the same without a reader, with one, and after one was deleted.
async fn a_reader_costs_a_turn_nothing() {
    let agent = stored();
    let service = agent.service();
    let session = agent.create_session().await.unwrap();
    for _ in 0..30 {
        count(&agent, &session).await;
    }
    let without = least(&agent, &session).await;
    let reader = || NamedReader { reader: "r".to_owned() };
    service.create_reader(reader()).await.unwrap();
    let told = least(&agent, &session).await;
    let behind = service.list_readers().await.unwrap().items[0].records_behind;
    assert_eq!(told, without);
    assert_eq!(behind, 1 + 46 * 3, "it was told of every record");
    service.delete_reader(reader()).await.unwrap();
    assert_eq!(least(&agent, &session).await, without);
}

/// A key costs a turn the same however many keys there are.
async fn a_key_costs_the_same_at_every_length() {
    let agent = stored();
    let session = agent.create_session().await.unwrap();
    let mut keys = (0..).map(|n| format!("key-{n:06}"));
    for _ in 0..30 {
        count_of(&agent, &session, keys.next()).await;
    }
    let early = least_of(&agent, &session, || keys.next()).await;
    for _ in 0..2_000 {
        count_of(&agent, &session, keys.next()).await;
    }
    let late = least_of(&agent, &session, || keys.next()).await;
    assert_eq!((early.encodes, early.events), (3, 3));
    assert_eq!(late, early);
}

/// What is asked before each model call costs the same however long the context is: nothing of it walks over messages.
async fn a_compactor_costs_the_same_at_every_length() {
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 1 << 40);
    let config = CompactionConfig { auto_compact_threshold: u64::MAX, ..CompactionConfig::default() };
    let agent = AgentBuildConfig::new().models(Arc::new(models)).compaction(config).build().unwrap();
    let session = agent.create_session().await.unwrap();
    for _ in 0..30 {
        count(&agent, &session).await;
    }
    let early = least(&agent, &session).await;
    for _ in 0..3_000 {
        count(&agent, &session).await;
    }
    let late = least(&agent, &session).await;
    assert_eq!(late.measured, 2, "the prompt and the answer, each once, when they are said");
    assert_eq!(late, early);
}

/// A text turn encodes its three events once each, however many follow it, and costs the same at turn 2,000 as
/// at turn 30: the context slides, and nothing walks over what was said before.
#[tokio::test]
async fn a_turn_costs_what_it_adds() {
    let agent = sliding().build().unwrap();
    let session = agent.create_session().await.unwrap();
    for _ in 0..30 {
        count(&agent, &session).await;
    }
    let early = least(&agent, &session).await;
    for _ in 0..2_000 {
        count(&agent, &session).await;
    }
    let late = least(&agent, &session).await;
    assert_eq!((early.encodes, early.events), (3, 3));
    assert_eq!(late, early);

    let mut followers = Vec::new();
    for _ in 0..50 {
        let last = agent.turn(&session, "@say Between.").await.unwrap().seq;
        followers.push(agent.service().follow(&session.session_id, last).await.unwrap());
    }
    let (encoded, turn) = (events_encoded(), agent.turn(&session, "@say Followed.").await.unwrap());
    for follower in &mut followers {
        while follower.cursor() < turn.seq {
            follower.next().await.unwrap().unwrap();
        }
    }
    assert_eq!(events_encoded() - encoded, 3, "fifty followers, and each event was encoded once");
    a_reader_costs_a_turn_nothing().await;
    a_key_costs_the_same_at_every_length().await;
    a_compactor_costs_the_same_at_every_length().await;
}
