//! Costs of sessions in PostgreSQL, next to what the database itself can do, each pair in one interleaved run over a
//! cluster of its own that syncs its commits.
//!
//! `cargo bench -p meerkat-store-postgres --bench costs -- turn many long takeover` runs the named parts, or all if none
//! is named. Milliseconds are never asserted.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

#[path = "../src/tests/cluster.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod cluster;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use cluster::Database;
use meerkat_service::{
    Seq, SessionId,
    clock::Timestamp,
    model::{StopReason, Usage},
    options::Budgets,
    prelude::*,
    service::{SessionState, SessionSummary},
    session::{
        event::{AssistantMessage, Event, Record, SessionCreated as Created, TurnCompleted, TurnStarted, TurnTotals},
        message::Block,
    },
    store::{EventStore, Lease},
};
use meerkat_store_postgres::{PostgresOptions, open};
use meerkat_testkit::can_run;
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::NoTls;
use uuid::Uuid;

const ROUNDS: usize = 9;
const TURNS: u64 = 200;
/// Sessions that work at once.
const MANY: u64 = 64;
const LONG_TURNS: u64 = 100_000;
const LEASE_MS: u64 = 2000;
/// Bytes of a prompt, an answer, and a session's row in lists.
const PROMPT: usize = 512;
const ANSWER: usize = 2048;

fn id(n: u64) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(n)))
}

fn record(n: u64, seq: Seq, turn: Option<u32>, event: Event) -> Record {
    Record { session_id: id(n), seq, turn, time: Timestamp::from_millis(1_767_225_600_000), event }
}

fn row(n: u64, last_seq: Seq, state: SessionState) -> SessionSummary {
    SessionSummary {
        session_id: id(n),
        title: Some("A session of a benchmark".to_owned()),
        labels: Default::default(),
        model: "scripted".to_owned(),
        state,
        archived: false,
        created_at: Timestamp::from_millis(0),
        updated_at: Timestamp::from_millis(0),
        turn_count: 0,
        message_count: last_seq,
        last_seq,
        usage: Usage::default(),
        cost: None,
        forked_from: None,
        last_error: None,
        parent: None,
    }
}

/// Session that appends text turns, two batches each, as the engine does.
struct Session {
    events: Arc<dyn EventStore>,
    n: u64,
    lease: Lease,
    tail: Seq,
}

impl Session {
    async fn begin(events: &Arc<dyn EventStore>, n: u64) -> Self {
        let lease = events.lease(id(n)).await.unwrap();
        let mut session = Self { events: events.clone(), n, lease, tail: lease.tail };
        if session.tail == 0 {
            session.append(None, vec![Event::SessionCreated(Created::default())], SessionState::Idle).await;
        }
        session
    }

    async fn append(&mut self, turn: Option<u32>, events: Vec<Event>, state: SessionState) {
        let seqs = self.tail + 1..;
        let records: Vec<Record> =
            events.into_iter().zip(seqs).map(|(event, seq)| record(self.n, seq, turn, event)).collect();
        self.tail += records.len() as u64;
        let row = row(self.n, self.tail, state);
        let ticket = self.events.stage_listed(&self.lease, &records, &row).unwrap();
        assert_eq!(ticket.durable().await, Ok(self.tail));
    }

    async fn turn(&mut self) {
        let (model, budgets) = ("scripted".to_owned(), Budgets::default());
        let prompt = Some("x".repeat(PROMPT).into());
        let started = TurnStarted { prompt, model: model.clone(), budgets, ..TurnStarted::default() };
        self.append(Some(0), vec![Event::TurnStarted(started)], SessionState::Running).await;
        let (stop_reason, blocks) = (StopReason::EndTurn, vec![Block::Text { text: "y".repeat(ANSWER).into() }]);
        let (usage, tools, context) = (Usage::default(), None, None);
        let cost = None;
        let answer = AssistantMessage { step: 0, model, blocks, stop_reason, usage, cost, tools, context };
        let end = TurnCompleted { stop_reason, totals: TurnTotals::default() };
        let events = vec![Event::AssistantMessage(answer), Event::TurnCompleted(end)];
        self.append(Some(0), events, SessionState::Idle).await;
    }

    async fn turns(&mut self, count: u64) -> Duration {
        let began = Instant::now();
        for _ in 0..count {
            self.turn().await;
        }
        began.elapsed()
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(part: &str, ours: &[f64], floor: &[f64], is_time: bool, goal: &str) {
    let ratios = ours.iter().zip(floor).map(|(ours, floor)| ours / floor).collect();
    let (unit, ours, floor) = (if is_time { "ms" } else { "records/s" }, ours.to_vec(), floor.to_vec());
    println!(
        "{part}: {:.3} {unit}, floor {:.3} {unit}, ratio {:.2} ({goal})",
        median(ours),
        median(floor),
        median(ratios)
    );
}

/// Statement of an append as somebody writes it for pgbench: the session's row and so many records.
fn statement(records: u64, is_idle: bool) -> String {
    let (summary, line) = ("s".repeat(420), "e".repeat(if records == 1 { PROMPT + 220 } else { (ANSWER + 440) / 2 }));
    format!(
        "WITH t AS (UPDATE floor_sessions s SET tail = tail + {records}, written_epoch = 1, bytes = bytes + 900, \
         is_idle = {is_idle}, summary = '{summary}', summary_seq = tail + {records}, \
         changed = greatest(changed + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) \
         WHERE id = '{}' AND epoch = 0 RETURNING tail) INSERT INTO floor_events (session, seq, time, line) \
         SELECT '{}', tail - n, 0, '{line}' FROM t, generate_series(0, {records} - 1) AS n;\n",
        id(1),
        id(1),
    )
}

/// A text turn's two appends next to two such transactions by pgbench.
async fn turn(database: &Database, events: &Arc<dyn EventStore>) {
    database.psql(
        "CREATE TABLE IF NOT EXISTS floor_sessions (LIKE sessions INCLUDING ALL); \
         CREATE TABLE IF NOT EXISTS floor_events (LIKE events INCLUDING ALL)",
    );
    database.psql(&format!("INSERT INTO floor_sessions (id, changed) VALUES ('{}', 1)", id(1)));
    let script = database.cluster.dir.join("turn.sql");
    std::fs::write(&script, format!("{}{}", statement(1, false), statement(2, true))).unwrap();
    let mut session = Session::begin(events, 1).await;
    session.turns(TURNS).await;
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(session.turns(TURNS).await.as_secs_f64() * 1000.0 / TURNS as f64);
        let mut pgbench = database.cluster.client("pgbench");
        pgbench.env("PGOPTIONS", format!("-c search_path={}", database.schema));
        pgbench.args(["-n", "-M", "extended", "-c", "1", "-t", &TURNS.to_string(), "-f"]).arg(&script).arg("postgres");
        let done = pgbench.output().unwrap();
        let text = String::from_utf8(done.stdout).unwrap();
        let latency = text.lines().find_map(|line| line.strip_prefix("latency average = ")?.strip_suffix(" ms"));
        let errors = String::from_utf8_lossy(&done.stderr);
        floor.push(latency.unwrap_or_else(|| panic!("{text}{errors}")).parse().unwrap());
    }
    report("text turn, next to pgbench", &ours, &floor, true, "at most 1.3");
}

/// Records per second of many sessions next to inserts of the same records alone, in batches of that many sessions.
async fn many(database: &Database, events: &Arc<dyn EventStore>) {
    database.psql("CREATE TABLE raw_events (LIKE events INCLUDING ALL)");
    let turns = TURNS / 4;
    let mut sessions = Vec::new();
    for n in 0..MANY {
        sessions.push(Session::begin(events, 1000 + n).await);
    }
    let url = format!("postgres://meerkat@/postgres?host={}", database.cluster.dir.display());
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(&format!("SET search_path = {}", database.schema)).await.unwrap();
    let insert = "INSERT INTO raw_events SELECT * FROM unnest($1::uuid[], $2::int8[], $3::int8[], $4::bytea[])";
    let insert = client.prepare(insert).await.unwrap();
    let (mut ours, mut floor, mut seq) = (Vec::new(), Vec::new(), 0_i64);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        let mut work = tokio::task::JoinSet::new();
        for mut session in sessions.drain(..) {
            work.spawn(async move {
                session.turns(turns).await;
                session
            });
        }
        sessions = work.join_all().await;
        let records = (MANY * turns * 3) as f64;
        ours.push(records / began.elapsed().as_secs_f64());
        let began = Instant::now();
        for _ in 0..turns {
            for (per_session, bytes) in [(1, PROMPT + 220), (2, (ANSWER + 440) / 2)] {
                let (mut ids, mut seqs, mut times, mut lines) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                let line = vec![b'e'; bytes];
                for n in 0..MANY {
                    for record in 0..per_session {
                        ids.push(*id(n).as_uuid());
                        seqs.push(seq + record);
                        times.push(0_i64);
                        lines.push(&line[..]);
                    }
                }
                seq += per_session;
                client.execute(&insert, &[&ids, &seqs, &times, &lines]).await.unwrap();
            }
        }
        floor.push(records / began.elapsed().as_secs_f64());
    }
    report("64 sessions, next to raw batches", &ours, &floor, false, "at least 0.6");
}

/// Turns of a session of 100,000 turns next to those of a new one.
async fn long(database: &Database, events: &Arc<dyn EventStore>) {
    let mut new = Session::begin(events, 2000).await;
    drop(Session::begin(events, 2001).await);
    let (old, records) = (id(2001), LONG_TURNS * 3 + 1);
    database.psql(&format!(
        "INSERT INTO events SELECT '{old}', n, 0, convert_to(repeat('e', 1000), 'UTF8') FROM generate_series(2, {records}) AS n; \
         UPDATE sessions SET tail = {records} WHERE id = '{old}'"
    ));
    let mut old = Session::begin(events, 2001).await;
    assert_eq!(old.tail, records);
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        ours.push(old.turns(TURNS).await.as_secs_f64() * 1000.0 / TURNS as f64);
        floor.push(new.turns(TURNS).await.as_secs_f64() * 1000.0 / TURNS as f64);
    }
    report("text turn after 100,000, next to the first ones", &ours, &floor, true, "flat");
}

/// Time from the end of a node until another one has ended its turn.
fn takeover(database: &Database) {
    let start = |name: String| -> (Runtime, Arc<dyn SessionService>) {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = PostgresOptions { lease_ms: LEASE_MS, ..database.options(&name) };
        let service = runtime.block_on(async {
            let agent = AgentBuildConfig::new().stores(open(options).await.unwrap()).build().unwrap();
            agent.service().ready().await.unwrap();
            agent.service().clone()
        });
        (runtime, service)
    };
    let (there, heir) = start("heir".to_owned());
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let (runtime, service) = start(format!("ended-{round}"));
        let session_id = runtime.block_on(async {
            let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
            let handle = service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
            drop(handle);
            session_id
        });
        let mut follower = there.block_on(heir.follow(&session_id, 1)).unwrap();
        let ended = Instant::now();
        runtime.shutdown_background();
        drop(service);
        there.block_on(async {
            while !String::from_utf8_lossy(&follower.next().await.unwrap().unwrap().line).contains("turn_interrupted") {
            }
        });
        times.push(ended.elapsed().as_secs_f64() * 1000.0);
    }
    let longest = times.iter().copied().fold(0.0, f64::max);
    println!(
        "takeover of a turn: {:.0} ms, at most {longest:.0} ms, with a lease of {LEASE_MS} ms (at most lease + 1000)",
        median(times)
    );
}

fn main() {
    if !can_run(cluster::NEEDED, cluster::is_here()) {
        return;
    }
    let database = cluster::own("on");
    let asked: Vec<String> = std::env::args().skip(1).filter(|part| !part.starts_with("--")).collect();
    let is_asked = |part: &str| asked.is_empty() || asked.iter().any(|asked| asked == part);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let options = PostgresOptions { connections: 10, ..database.options("bench") };
        let events = open(options).await.unwrap().events;
        if is_asked("turn") {
            turn(&database, &events).await;
        }
        if is_asked("many") {
            many(&database, &events).await;
        }
        if is_asked("long") {
            long(&database, &events).await;
        }
    });
    if is_asked("takeover") {
        takeover(&database);
    }
}
