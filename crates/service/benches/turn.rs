//! Cost of a turn in process, next to its floor, in one interleaved run.
//!
//! `cargo bench -p meerkat-service` prints for each line the median of the work, the median of its floor,
//! their ratio, and allocations and encodes per turn. Milliseconds are never asserted; the counts that are exact have
//! tests of their own.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    alloc::System,
    time::{Duration, Instant},
};

use meerkat_service::{
    Agent, AgentBuildConfig,
    model::{StaticModels, scripted::ScriptedModel},
    options::{EngineOptions, Overflow},
    service::{ReadEvents, SessionCreated},
    session::event::Record,
    wire::{decode_event, encode_event, events_encoded},
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PAIRS: usize = 400;
const WARM_UP: usize = 40;
/// Room for some seven of the turns below, so that the context is at its steady size before turn 10.
const WINDOW_TOKENS: u64 = 5_000;
const STEADY_TURNS: usize = 10;
const MANY_TURNS: usize = 10_000;

/// A prompt of 512 bytes that is answered with 2 KiB, streamed in pieces of `chunk` characters.
fn prompt(chunk: usize) -> String {
    let script = format!("@chunks {chunk} @long 2048 @note ");
    format!("{script}{}", "x".repeat(512 - script.len()))
}

fn agent() -> Agent {
    let mut options = EngineOptions::default();
    options.context.overflow = Overflow::Slide;
    let models = StaticModels::new("scripted", std::sync::Arc::new(ScriptedModel), WINDOW_TOKENS);
    AgentBuildConfig::new().models(std::sync::Arc::new(models)).options(options).build().unwrap()
}

/// A session in which this many turns have run.
async fn session_after(agent: &Agent, turns: usize, prompt: &str) -> SessionCreated {
    let session = agent.create_session().await.unwrap();
    for _ in 0..turns {
        agent.turn(&session, prompt).await.unwrap();
    }
    session
}

/// The records of a session's newest turn.
async fn newest_records(agent: &Agent, session: &SessionCreated, after: u64) -> Vec<Record> {
    let request = ReadEvents::new(session.session_id, after);
    let page = agent.service().events(request).await.unwrap();
    page.items.iter().map(|line| decode_event(std::str::from_utf8(line).unwrap()).unwrap()).collect()
}

/// Times of a side, its allocations, and the events that it encoded.
#[derive(Default)]
struct Side {
    times: Vec<Duration>,
    allocations: Vec<usize>,
    bytes: Vec<usize>,
    encodes: Vec<u64>,
}

impl Side {
    async fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let (encoded, region) = (events_encoded(), Region::new(ALLOCATOR));
        let started = Instant::now();
        let done = work.await;
        self.times.push(started.elapsed());
        let change = region.change();
        self.encodes.push(events_encoded() - encoded);
        self.allocations.push(change.allocations);
        self.bytes.push(change.bytes_allocated);
        done
    }

    fn median(&mut self) -> Duration {
        median(&mut self.times)
    }
}

fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

fn report(name: &str, mut work: Side, floor_name: &str, mut floor: Side) {
    let (time, base) = (work.median(), floor.median());
    let ratio = time.as_secs_f64() / base.as_secs_f64();
    println!("{name}: {time:.1?} against {base:.1?} for {floor_name}: {ratio:.2} x");
    println!(
        "  allocations {} against {}, bytes allocated {} against {}, events encoded {} against {}",
        median(&mut work.allocations),
        median(&mut floor.allocations),
        median(&mut work.bytes),
        median(&mut floor.bytes),
        median(&mut work.encodes),
        median(&mut floor.encodes)
    );
}

/// A text turn against encoding its events.
async fn turn_against_encoding(chunk: usize) {
    let (agent, prompt) = (agent(), prompt(chunk));
    let session = session_after(&agent, STEADY_TURNS, &prompt).await;
    let (mut turns, mut encodings) = (Side::default(), Side::default());
    let mut last = agent.turn(&session, &prompt).await.unwrap().seq;
    for pair in 0..PAIRS + WARM_UP {
        if pair == WARM_UP {
            (turns, encodings) = (Side::default(), Side::default());
        }
        let result = turns.run(agent.turn(&session, &prompt)).await.unwrap();
        let records = newest_records(&agent, &session, last).await;
        last = result.seq;
        assert_eq!(records.len(), 3, "a text turn is three events");
        encodings.run(async { records.iter().map(|record| encode_event(record).unwrap().len()).sum::<usize>() }).await;
    }
    report(&format!("text turn, streamed by {chunk} characters"), turns, "encoding its three events", encodings);
}

/// The turn after 10,000 others against the first one after the context reached its steady size.
async fn late_turn_against_early() {
    let (agent, prompt) = (agent(), prompt(4096));
    let late = session_after(&agent, MANY_TURNS, &prompt).await;
    let early = session_after(&agent, STEADY_TURNS, &prompt).await;
    let (mut lates, mut earlies) = (Side::default(), Side::default());
    for pair in 0..PAIRS + WARM_UP {
        if pair == WARM_UP {
            (lates, earlies) = (Side::default(), Side::default());
        }
        lates.run(agent.turn(&late, &prompt)).await.unwrap();
        earlies.run(agent.turn(&early, &prompt)).await.unwrap();
    }
    report(&format!("turn {MANY_TURNS} with slide"), lates, &format!("turn {STEADY_TURNS}"), earlies);
}

fn main() {
    // `cargo test --benches` passes flags of a test harness; this one takes none.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        turn_against_encoding(4096).await;
        turn_against_encoding(16).await;
        late_turn_against_early().await;
    });
}
