//! Data derived from journals: its cost against parsing and writing the same lines, and its effect on turns meanwhile.

use std::{
    fs::File,
    io::{BufWriter, Write as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use meerkat_service::{
    Agent, AgentBuildConfig, SessionService,
    model::{StaticModels, scripted::ScriptedModel},
    options::{EngineOptions, Overflow},
    service::{AcknowledgeReader, CompactJournal, NamedReader, Remind, SessionCreated, WaitReader},
    session::reminder::SystemReminderType,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{in_memory, lines, median, number, prompt, ratio};

const ROUNDS: usize = 5;
const TURNS: usize = 600;
const WINDOW_TOKENS: u64 = 5_000;
const READER: &str = "bench";

/// Makes an agent with a projection.
fn agent(dir: &TempDir) -> Agent {
    let mut options = EngineOptions::default();
    options.context.overflow = Overflow::Slide;
    options.projection.dir = Some(dir.path().join(".rkat"));
    options.journal.min_record_age_ms = 0;
    options.tools.test_dir = Some(dir.path().to_owned());
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), WINDOW_TOKENS);
    let config = AgentBuildConfig::new().models(Arc::new(models)).options(options);
    config.store(dir.path().join("data")).build().unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// A session with about so many events: a turn with a call has six.
async fn long(agent: &Agent, events: usize) -> SessionCreated {
    let session = agent.create_session().await.unwrap();
    let text = "x".repeat(200);
    for _ in 0..events / 8 {
        let script = format!(r#"@call test_echo {{"text":"{text}"}} @say {text}"#);
        agent.turn(&session, &script).await.unwrap();
    }
    session
}

/// Rebuilds the files of a long session, against reading and writing its lines.
pub(crate) fn projection() {
    let dir = in_memory();
    runtime().block_on(async {
        let agent = agent(&dir);
        let events = number("MEERKAT_BENCH_EVENTS", 100_000);
        let session = long(&agent, events).await;
        let lines = lines(&agent, session.session_id, 0).await;
        let (mut works, mut floors) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let started = Instant::now();
            let rebuilt = agent.service().rebuild_projection().await.unwrap();
            let work = started.elapsed();
            assert_eq!(rebuilt.events, lines.len() as u64);
            let started = Instant::now();
            let mut out = BufWriter::new(File::create(dir.path().join("raw")).unwrap());
            for line in &lines {
                let parsed: Value = serde_json::from_str(line).unwrap();
                assert!(parsed.is_object());
                writeln!(out, "{line}").unwrap();
            }
            out.flush().unwrap();
            if round > 0 {
                works.push(work);
                floors.push(started.elapsed());
            }
        }
        let (work, floor) = (median(&mut works), median(&mut floors));
        let (events, times) = (lines.len(), ratio(work, floor));
        println!("projecting {events} events: {work:.1?}; serde_json parse and write: {floor:.1?}; {times:.2} x");
        agent.service().shut_down(1_000).await;
    });
}

/// Runs turns of one session while another's files are rebuilt, and while its journal is compacted.
pub(crate) fn beside() {
    let dir = in_memory();
    runtime().block_on(async {
        let agent = agent(&dir);
        let service = agent.service().clone();
        service.create_reader(NamedReader { reader: READER.to_owned() }).await.unwrap();
        let session = long(&agent, number("MEERKAT_BENCH_EVENTS", 100_000)).await;
        let turns = agent.create_session().await.unwrap();
        p99(&agent, &turns).await;
        for (what, is_rebuild) in [("a rebuild of the projection", true), ("a compaction of a journal", false)] {
            let (mut idles, mut busies, mut done) = (Vec::new(), Vec::new(), 0);
            for _ in 0..ROUNDS {
                idles.push(p99(&agent, &turns).await);
                let is_over = Arc::new(AtomicBool::new(false));
                let work = {
                    let (service, is_over, session) = (service.clone(), is_over.clone(), session.clone());
                    tokio::spawn(async move {
                        let mut done = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            match is_rebuild {
                                true => drop(service.rebuild_projection().await.unwrap()),
                                false => compact(service.as_ref(), &session).await,
                            }
                            done += 1;
                        }
                        done
                    })
                };
                busies.push(p99(&agent, &turns).await);
                is_over.store(true, Ordering::Relaxed);
                done += work.await.unwrap();
            }
            let (idle, busy) = (median(&mut idles), median(&mut busies));
            let times = ratio(busy, idle);
            println!("p99 of {TURNS} turns: {idle:.1?} idle, {busy:.1?} beside {what} ({done} of them); {times:.2} x");
        }
        service.shut_down(1_000).await;
    });
}

async fn compact(service: &dyn SessionService, session: &SessionCreated) {
    let session_id = session.session_id;
    for n in 0..8 {
        let kind = SystemReminderType::GitStatus;
        let text = format!("{n}");
        service.remind(Remind { session_id, kind, text }).await.unwrap();
    }
    let seq = service.read(&session_id).await.unwrap().last_seq;
    let done = AcknowledgeReader { reader: READER.to_owned(), session_id, seq };
    service.acknowledge_reader(done).await.unwrap();
    // The projection is a reader, too, and begins anew after each.
    let caught_up = WaitReader { reader: "projection".to_owned(), session_id, seq, wait_ms: 60_000 };
    assert_eq!(service.wait_reader(caught_up).await.unwrap().seq, seq);
    let request = CompactJournal::new(session_id);
    assert!(service.compact_journal(request).await.unwrap().dropped > 0);
}

async fn p99(agent: &Agent, session: &SessionCreated) -> Duration {
    let prompt = prompt(512, 2048);
    let mut times = Vec::with_capacity(TURNS);
    for _ in 0..TURNS {
        let started = Instant::now();
        agent.turn(session, &prompt).await.unwrap();
        times.push(started.elapsed());
    }
    times.sort_unstable();
    times[TURNS * 99 / 100]
}
