//! What compaction costs, and what it saves: the compaction of a long session against parsing and writing its lines, a
//! check of the threshold in a short and in a long context, and a simulation of a vendor's prompt cache.
//!
//! `cargo bench -p meerkat-service --bench compaction -- long check cache` runs the parts that are named, and all of
//! them where none is. Milliseconds are never asserted.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    io::Write as _,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use meerkat_service::{
    Agent, AgentBuildConfig,
    compaction::{
        COMPACTION_PROMPT, CompactionConfig, CompactionContext, CompactionResult, Compactor, SharedCompactor,
        default_compactor, messages_measured,
    },
    model::{ModelClient, ModelError, ModelRequest, ModelStream, StaticModels, scripted::ScriptedModel},
    options::{EngineOptions, Overflow},
    service::{CompactSession, ReadEvents, SessionCreated, UndoCompaction},
    session::message::Message,
};
use serde_json::Value;

const ROUNDS: usize = 9;
/// Turns that are timed on each side.
const CHECKS: usize = 1_000;

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let parts: [(&str, fn()); 3] = [("long", long), ("check", check), ("cache", cache)];
    for (name, part) in parts {
        if named.is_empty() || named.iter().any(|asked| asked == name) {
            part();
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// An agent in memory with a window that no session fills, and a threshold that none reaches.
fn roomy() -> Agent {
    let mut options = EngineOptions::default();
    options.ephemeral.session_event_bytes = u64::MAX;
    options.ephemeral.max_bytes = u64::MAX;
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), u64::MAX / 8);
    let config = CompactionConfig { auto_compact_threshold: u64::MAX / 16, ..CompactionConfig::default() };
    AgentBuildConfig::new().models(Arc::new(models)).options(options).compaction(config).build().unwrap()
}

/// A prompt of 512 bytes that is answered with 2 KiB in one piece, and gives a summary when one is asked for.
fn prompt() -> String {
    let (said, rest) = ("@chunks 2048 @long 2048 @note ", " @compaction @say What was decided, and what is left.");
    format!("{said}{}{rest}", "x".repeat(512 - said.len() - rest.len()))
}

async fn session_after(agent: &Agent, turns: usize) -> SessionCreated {
    let (session, prompt) = (agent.create_session().await.unwrap(), prompt());
    for _ in 0..turns {
        agent.turn(&session, &prompt).await.unwrap();
    }
    session
}

async fn lines(agent: &Agent, session: &SessionCreated) -> Vec<String> {
    let (mut lines, mut since_seq) = (Vec::new(), 0);
    loop {
        let request = ReadEvents { session_id: session.session_id, since_seq, limit: Some(1_000), wait_ms: 0 };
        let page = agent.service().events(request).await.unwrap();
        if page.items.is_empty() {
            return lines;
        }
        since_seq = page.next_seq;
        lines.extend(page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()));
    }
}

/// Compacting a session of 10,000 turns, the summary by the scripted model, against reading and writing its lines.
fn long() {
    runtime().block_on(async {
        let (agent, turns) = (roomy(), number("MEERKAT_BENCH_TURNS", 10_000));
        let session = session_after(&agent, turns).await;
        let (session_id, lines) = (session.session_id, lines(&agent, &session).await);
        let (mut works, mut floors, mut receipt) = (Vec::new(), Vec::new(), None);
        for round in 0..=ROUNDS {
            let started = Instant::now();
            let compacted = agent.service().compact(CompactSession { session_id, compaction: None }).await.unwrap();
            let work = started.elapsed();
            let undo = UndoCompaction { session_id, compaction: compacted.compaction };
            agent.service().undo_compaction(undo).await.unwrap();
            receipt = Some(compacted);
            let started = Instant::now();
            let mut out = Vec::new();
            for line in &lines {
                let parsed: Value = serde_json::from_str(line).unwrap();
                serde_json::to_writer(&mut out, &parsed).unwrap();
                out.write_all(b"\n").unwrap();
            }
            assert!(out.len() > lines.len());
            if round > 0 {
                works.push(work);
                floors.push(started.elapsed());
            }
        }
        let (work, floor, receipt) = (median(&mut works), median(&mut floors), receipt.unwrap());
        println!(
            "compacting {turns} turns ({} messages to {}): {work:.1?}; serde_json parse and write of the {} lines: \
             {floor:.1?}; {:.2} x",
            receipt.retained + receipt.discarded,
            receipt.retained + 1,
            lines.len(),
            work.as_secs_f64() / floor.as_secs_f64()
        );
    });
}

/// The default compactor, which looks as it always does; but nothing comes of it, so that the context grows.
struct Looking(SharedCompactor);

impl Compactor for Looking {
    fn should_compact(&self, context: &CompactionContext) -> bool {
        let _ = std::hint::black_box(self.0.should_compact(context));
        false
    }

    fn compaction_prompt(&self) -> &str {
        self.0.compaction_prompt()
    }

    fn max_summary_tokens(&self) -> u32 {
        self.0.max_summary_tokens()
    }

    fn rebuild_history(&self, messages: &[Message], summary: &str) -> CompactionResult {
        self.0.rebuild_history(messages, summary)
    }
}

/// An agent in memory whose requests slide, so that they do not grow with the context.
fn sliding(looks: bool) -> Agent {
    let mut options = EngineOptions::default();
    options.context.overflow = Overflow::Slide;
    options.ephemeral.max_bytes = u64::MAX;
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 8_000);
    let agent = AgentBuildConfig::new().models(Arc::new(models)).options(options);
    let looking = || Looking(default_compactor(CompactionConfig::default(), 8_000).unwrap());
    if looks { agent.compactor(Arc::new(looking())) } else { agent }.build().unwrap()
}

/// A turn in a short context and in a long one, each of which looks at the threshold before its call, against the same
/// turn where nobody looks.
fn check() {
    runtime().block_on(async {
        for turns in [5, number("MEERKAT_BENCH_TURNS", 50_000)] {
            let agents = [sliding(true), sliding(false)];
            let sessions = [session_after(&agents[0], turns).await, session_after(&agents[1], turns).await];
            let (mut times, measured) = ([Vec::new(), Vec::new()], messages_measured());
            for _ in 0..CHECKS {
                for (at, agent) in agents.iter().enumerate() {
                    let started = Instant::now();
                    agent.turn(&sessions[at], "@say x").await.unwrap();
                    times[at].push(started.elapsed());
                }
            }
            let measured = (messages_measured() - measured) as usize / CHECKS / 2;
            let [with, without] = times.map(|mut times| median(&mut times));
            println!(
                "a turn behind {} messages: {with:.1?} with a look at the threshold, {without:.1?} without; {:.2} x; \
                 messages measured: {measured}",
                turns * 2,
                with.as_secs_f64() / without.as_secs_f64()
            );
        }
    });
}

/// How a task is carried on when its context fills.
#[derive(Clone, Copy, PartialEq)]
enum Strategy {
    /// As it is.
    Compaction,
    /// The summary is asked for without the tools, so that nothing of the prefix is the same.
    EmptyTools,
    /// Nothing compacts; the oldest turns are left out of each request.
    Truncation,
}

/// A model that counts what a vendor's prompt cache would have had: the longest prefix that a request shares with one
/// before it. What is sent behind the cache mark counts as cold.
struct Cached {
    strategy: Strategy,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    prefixes: Vec<Vec<u8>>,
    calls: usize,
    warm: usize,
    cold: usize,
}

/// Requests that a cache still knows.
const CACHED_REQUESTS: usize = 4;

impl Cached {
    fn count(&self, request: &ModelRequest) {
        let is_summary = request.messages.last().is_some_and(|last| last.text() == COMPACTION_PROMPT);
        let mut prefix = Vec::new();
        // Vendors put the tools first, then the system prompt, then what was said.
        if !(is_summary && self.strategy == Strategy::EmptyTools) {
            for tool in request.tools.iter() {
                write!(prefix, "{}{}{}", tool.name, tool.description, tool.schema.as_str()).unwrap();
            }
        }
        prefix.extend_from_slice(request.system.as_deref().unwrap_or_default().as_bytes());
        for message in &request.messages {
            serde_json::to_writer(&mut prefix, message).unwrap();
        }
        let mut seen = self.seen.lock().unwrap();
        let shared = |before: &Vec<u8>| before.iter().zip(&prefix).take_while(|(one, other)| one == other).count();
        let warm = seen.prefixes.iter().map(shared).max().unwrap_or(0);
        seen.calls += 1;
        seen.warm += warm;
        seen.cold += prefix.len() - warm + request.tail.as_deref().map_or(0, str::len);
        seen.prefixes.push(prefix);
        if seen.prefixes.len() > CACHED_REQUESTS {
            seen.prefixes.remove(0);
        }
    }
}

#[async_trait]
impl ModelClient for Cached {
    fn vendor(&self) -> &str {
        "scripted"
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.count(&request);
        ScriptedModel.stream_response(request).await
    }
}

/// A task of many turns with tools, whose context fills several times: tokens that a prompt cache would have had, and
/// tokens that it would not.
fn cache() {
    const WINDOW_TOKENS: u64 = 20_000;
    const TURNS: usize = 120;
    let strategies = [
        ("compaction", Strategy::Compaction),
        ("a summary with empty tools", Strategy::EmptyTools),
        ("naive truncation", Strategy::Truncation),
    ];
    for (name, strategy) in strategies {
        let model = Arc::new(Cached { strategy, seen: Mutex::default() });
        let dir = tempfile::tempdir().unwrap();
        let mut options = EngineOptions::default();
        options.tools.test_dir = Some(dir.path().to_owned());
        options.context.overflow = Overflow::Slide;
        let models = StaticModels::new("scripted", model.clone(), WINDOW_TOKENS);
        let mut config = AgentBuildConfig::new().models(Arc::new(models)).options(options);
        if strategy != Strategy::Truncation {
            config = config.compaction(CompactionConfig { max_summary_tokens: 1_000, ..CompactionConfig::default() });
        }
        let agent = config.build().unwrap();
        let time = runtime().block_on(async {
            let session = agent.create_session().await.unwrap();
            let (started, text) = (Instant::now(), "x".repeat(400));
            for turn in 0..TURNS {
                let script = format!(
                    r#"@call test_echo {{"text":"{turn} {text}"}} @call test_echo {{"text":"b{turn} {text}"}} @long 600 @compaction @long 2000"#
                );
                agent.turn(&session, &script).await.unwrap();
            }
            started.elapsed()
        });
        report(name, &model.seen.lock().unwrap(), time);
    }
}

fn report(name: &str, seen: &Seen, time: Duration) {
    let (warm, cold) = (seen.warm / 4, seen.cold / 4);
    // Vendors ask a tenth of the price for what they had cached.
    let price = cold as f64 + warm as f64 / 10.0;
    println!(
        "{name}: {} calls, {warm} tokens warm, {cold} cold, {:.0} % warm, as dear as {price:.0} cold ones ({time:.1?})",
        seen.calls,
        100.0 * warm as f64 / (warm + cold) as f64
    );
}
