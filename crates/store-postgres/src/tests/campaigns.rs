//! Campaigns over whole nodes: clients work through whichever node answers, and repeat with a key what was not
//! acknowledged, while nodes and the database fail. Afterwards every history is checked.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use meerkat_service::{
    options::Policy,
    prelude::*,
    service::{
        AnswerCall, AnsweredCall, Changed, ClientTool, DeleteSession, PinFact, PromptBlock, ReadBlob,
        SessionState::Idle,
    },
};
use meerkat_testkit::{PATIENCE, Random, campaigns::Part, in_time, seed, until_asked};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::{
    task::{Id, JoinSet, try_id},
    time::{interval, timeout},
};

use super::{
    agents::{Node, Shared},
    cluster::{self, Database},
    database,
    history::{self, Acknowledged, Figures},
    proxy::{Lose, Proxy},
};
use crate::{PostgresOptions, connect, db::Db};

/// Time between two requests of a client, and between two looks at the database.
const PACE: Duration = Duration::from_millis(10);

/// Nodes over one database and the clients that ask them.
#[derive(Clone)]
struct Trial {
    database: Arc<Database>,
    nodes: Arc<Mutex<Vec<Arc<Node>>>>,
    acknowledged: Arc<Acknowledged>,
    shared: Shared,
    is_over: Arc<AtomicBool>,
    keys: Arc<AtomicU64>,
    /// What each client was doing last, by its task.
    doing: Arc<Mutex<HashMap<Option<Id>, String>>>,
    times: Times,
    /// Address of the nodes' database, if no proxy is before it.
    url: Option<String>,
    /// The trial's own way to the database.
    db: Db,
    seed: u64,
}

/// Times of a trial's nodes, in milliseconds.
#[derive(Clone, Copy)]
struct Times {
    lease: u64,
    statement: u64,
}

/// Nodes that stop. They renew soon after they were continued, and what they had locked is free before patience ends.
const STOPPED: Times = Times { lease: 15_000, statement: 10_000 };
/// Nodes that wait for the database.
const WAITING: Times = Times { lease: 600_000, statement: 60_000 };

impl Trial {
    async fn start(database: Database, names: &[&str], times: Times, url: Option<String>, seed: u64) -> Self {
        let way = url.clone().unwrap_or_else(|| database.cluster.url("meerkat", "postgres"));
        let trial = Self {
            nodes: Arc::default(),
            acknowledged: Arc::default(),
            shared: Shared::default(),
            is_over: Arc::default(),
            keys: Arc::default(),
            doing: Arc::default(),
            times,
            url,
            db: connect(&database.options_by(way, "looks")).unwrap(),
            seed,
            database: Arc::new(database),
        };
        for name in names {
            let node = trial.node(name).await;
            trial.nodes.lock().unwrap().push(node);
        }
        history::watch(&trial.database);
        trial
    }

    async fn node(&self, name: &str) -> Arc<Node> {
        let proxy = Proxy::start(&self.database).await;
        let url = self.url.clone().unwrap_or_else(|| proxy.url());
        let Times { lease: lease_ms, statement: statement_timeout_ms } = self.times;
        let options = self.database.options_by(url, name);
        let options = PostgresOptions { lease_ms, statement_timeout_ms, ..options };
        Arc::new(Node::start(options, proxy, &self.shared, self.seed).await)
    }

    /// Counts something; `None` while the database is away.
    async fn count(&self, sql: &str) -> Option<i64> {
        let row = self.db.query_opt(sql, &[]).await.ok()??;
        Some(row.get(0))
    }

    fn pick(&self, random: &mut Random) -> (usize, Arc<Node>) {
        let nodes = self.nodes.lock().unwrap();
        let at = usize::try_from(random.below(nodes.len() as u64)).unwrap();
        (at, nodes[at].clone())
    }

    fn key(&self) -> String {
        format!("key-{}", self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks nodes until one answers for good.
    async fn settle<T, Work>(
        &self,
        random: &mut Random,
        work: impl Fn(Arc<dyn SessionService>) -> Work,
    ) -> Result<T, SessionError>
    where
        T: Send + 'static,
        Work: Future<Output = Result<T, SessionError>> + Send + 'static,
    {
        let mut pace = interval(PACE);
        loop {
            pace.tick().await;
            let (at, node) = self.pick(random);
            self.doing.lock().unwrap().entry(try_id()).or_default().push_str(&format!(", asks {at}"));
            let answer = node.ask(&work).await;
            let said = answer.as_ref().map(|answer| answer.as_ref().err().map(SessionError::code));
            self.doing.lock().unwrap().insert(try_id(), format!("was told {said:?}"));
            match answer {
                Some(Ok(answer)) => return Ok(answer),
                Some(Err(error)) => match error.code() {
                    // Another node has it, or the node ends, or the database failed.
                    ErrorCode::SessionBusy
                    | ErrorCode::StoreFailed
                    | ErrorCode::StoreNotWritable
                    | ErrorCode::ShuttingDown => {}
                    _ => return Err(error),
                },
                None => {}
            }
        }
    }

    async fn create(&self, random: &mut Random) -> SessionId {
        let request = CreateSession { idempotency_key: Some(self.key()), ..CreateSession::default() };
        let made = self.settle(random, |service| {
            let request = request.clone();
            async move { service.create_session(request).await }
        });
        let session_id = made.await.unwrap().session_id;
        self.acknowledged.session(session_id);
        session_id
    }

    /// Runs a turn with so many calls.
    async fn turn(&self, random: &mut Random, session_id: SessionId, policy: Policy, calls: u64) {
        let key = self.key();
        let calls = (0..calls).map(|n| format!("@call mark {{\"mark\": \"{key}-{n}\"}}\n@step\n"));
        let prompt = format!("{}@say {key}", calls.collect::<String>());
        let request = StartTurn { policy, idempotency_key: Some(key.clone()), ..StartTurn::new(session_id, prompt) };
        self.run(random, &key, request).await;
    }

    /// Runs a turn of this key to its end.
    async fn run(&self, random: &mut Random, key: &str, request: StartTurn) {
        let session_id = request.session_id;
        let ended = self.settle(random, |service| {
            let (request, key, acknowledged) = (request.clone(), key.to_owned(), self.acknowledged.clone());
            async move {
                let handle = service.begin_turn(request).await?;
                acknowledged.accepted(&key, &handle.accepted);
                let result = handle.result.await?;
                let status = serde_json::to_value(result.status).unwrap();
                acknowledged.ended(session_id, result.turn, status.as_str().unwrap());
                Ok(())
            }
        });
        match ended.await {
            // It left the queue.
            Ok(()) | Err(SessionError::Interrupted { .. }) => {}
            // Its owner answered, and says so with the code alone.
            Err(error) if error.code() == ErrorCode::TurnInterrupted => {}
            Err(error) => panic!("{error} ({:?})", error.code()),
        }
    }

    /// Pins a fact, or interrupts the running turn.
    async fn change(&self, random: &mut Random, session_id: SessionId, is_pin: bool) {
        let text = self.key();
        let changed = self.settle(random, |service| {
            let text = text.clone();
            async move {
                match is_pin {
                    true => service.pin(PinFact { session_id, text }).await,
                    false => service.interrupt(InterruptTurn { session_id, turn: None }).await,
                }
            }
        });
        match changed.await {
            Ok(Changed { seq, .. }) if is_pin => self.acknowledged.record(session_id, seq, "pinned"),
            Ok(_) => {}
            Err(error) if matches!(error.code(), ErrorCode::SessionNotRunning | ErrorCode::QueueFull) => {}
            Err(error) => panic!("{error} ({:?})", error.code()),
        }
    }

    /// Runs a turn that shows a picture, has two calls of its caller's, and asks for approval of a third one. Each answer
    /// and decision is sent until it is acknowledged, and once more.
    async fn calls(&self, random: &mut Random, session_id: SessionId) {
        let key = self.key();
        let calls = ["look", "order", "buy"].map(|name| format!("@call {name} {{\"mark\": \"{key}-{name}\"}}"));
        let text = format!("{} @echo results", calls.join(" "));
        let picture =
            [&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0"[..], &[7; 40_000]].concat();
        let prompt = vec![PromptBlock::Text { text }, PromptBlock::image("image/png", picture.clone())];
        let tool = |name: &str| {
            let input_schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
            let (name, description) = (name.to_owned(), "Waits.".to_owned());
            ClientTool { name, description, input_schema, effect: Effect::Once, timeout_ms: None }
        };
        let request = StartTurn {
            policy: Policy::Queue,
            attended: true,
            client_tools: Some(["look", "order", "buy"].map(tool).into()),
            idempotency_key: Some(key.clone()),
            ..StartTurn::new(session_id, prompt)
        };
        let accepted = self.settle(random, |service| {
            let request = request.clone();
            async move { service.accept_turn(request).await }
        });
        self.acknowledged.accepted(&key, &accepted.await.unwrap());
        loop {
            let view = self.settle(random, |service| async move { service.read(&session_id).await }).await.unwrap();
            if view.state == Idle {
                break;
            }
            for asked in view.pending_approvals.iter().chain(&view.pending_approvals) {
                let decision = DecideApproval::new(session_id, &asked.call_id, Decision::Approve);
                let decided = self.settle(random, |service| {
                    let decision = decision.clone();
                    async move { service.decide_approval(decision).await }
                });
                self.acknowledged.record(session_id, decided.await.unwrap().seq, "approval_decided");
            }
            let open =
                self.settle(random, |service| async move { service.calls(&session_id).await }).await.unwrap().items;
            for call in open.iter().chain(&open) {
                let arguments: Value = serde_json::from_str(call.arguments.as_str()).unwrap();
                let answer = AnswerCall::text(session_id, &call.call_id, arguments["mark"].as_str().unwrap());
                let answered = self.settle(random, |service| {
                    let answer = answer.clone();
                    async move { service.answer_call(answer).await }
                });
                let AnsweredCall::Recorded(Changed { seq, .. }) = answered.await.unwrap() else { panic!("it waits") };
                self.acknowledged.record(session_id, seq, "call_answered");
            }
        }
        self.run(random, &key, request).await;
        let blob = format!("{:x}", Sha256::digest(&picture));
        let read = self.settle(random, |service| {
            let request = ReadBlob { session_id, blob: blob.clone(), offset: 0, limit: None };
            async move { service.answer_blob(request).await }
        });
        assert!(read.await.unwrap().bytes().unwrap() == picture, "the picture is not whole");
    }

    /// Works in a session until the trial is over.
    async fn work(self, session_id: SessionId, seed: u64) {
        let mut random = Random::new(seed);
        while !self.is_over.load(Ordering::Relaxed) {
            let policies = [Policy::Reject, Policy::Queue, Policy::Interrupt];
            match random.below(8) {
                0 | 1 => self.change(&mut random, session_id, true).await,
                2 => self.change(&mut random, session_id, false).await,
                what => {
                    self.turn(&mut random, session_id, policies[usize::try_from(what % 3).unwrap()], what % 4).await
                }
            }
        }
    }

    /// Begins two clients in each of some sessions.
    async fn clients(&self, sessions: u64) -> JoinSet<()> {
        let (mut random, mut clients) = (Random::new(self.seed), JoinSet::new());
        for n in 0..sessions {
            let session_id = self.create(&mut random).await;
            for client in 0..2 {
                clients.spawn(self.clone().work(session_id, self.seed << 16 | n << 1 | client));
            }
        }
        clients
    }

    /// Ends the clients, waits for rest, and checks.
    async fn end(self, clients: JoinSet<()>, figures: &mut Figures) {
        let seed = self.seed;
        self.is_over.store(true, Ordering::Relaxed);
        let rest = async {
            clients.join_all().await;
            let mut pace = interval(PACE);
            while self.count(&format!("{WORKING} AND node IS NOT NULL")).await != Some(0) {
                pace.tick().await;
            }
        };
        let rested = timeout(PATIENCE, rest).await;
        let sessions = || self.database.psql("SELECT id, epoch, node, tail, is_idle, summary FROM sessions");
        let doing = self.doing.lock().unwrap();
        assert!(rested.is_ok(), "seed {seed}: no rest: {}\n{doing:#?}\n{:?}", sessions(), self.acknowledged.waiting());
        drop(doing);
        let wrong = history::check(&self.database, &self.acknowledged, &self.shared, figures);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}");
    }

    /// Waits until other nodes have what a node worked on.
    async fn is_taken_over(&self, name: &str) {
        let sql = format!("{WORKING} AND node = '{name}'");
        until_asked("its sessions are taken over", async || self.count(&sql).await == Some(0)).await;
    }
}

/// Counts the sessions in which something is to be done.
const WORKING: &str = "SELECT count(*) FROM meerkat.sessions WHERE tail > 0 AND NOT is_idle";

/// Nodes that are killed at any statement, stopped past their lease, ended, or lose requests and replies. Their clocks
/// jump by up to an hour each time that they are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_nodes_every_history_is_sound() {
    let (rounds, faults) = if Part::Store.is_whole() { (60, 12) } else { (2, 5) };
    let mut figures = Figures::default();
    let first = seed();
    for seed in (0..rounds).map(|round| first.wrapping_add(round)) {
        let mut names = ["a", "b", "c"].map(str::to_owned);
        let trial = Trial::start(database!(), &["a", "b", "c"], STOPPED, None, seed).await;
        let clients = trial.clients(3).await;
        let mut random = Random::new(seed);
        for fault in 0..faults {
            let (at, node) = trial.pick(&mut random);
            let lose = if random.below(2) == 0 { Lose::Request } else { Lose::Reply };
            let passing = random.below(40);
            // Short trials have one fault of each kind.
            let kind = if Part::Store.is_whole() { random.below(5) } else { fault };
            match kind {
                0 | 1 => {
                    node.proxy.lose_at(lose, passing, Lose::All);
                    node.proxy.losing().await;
                    node.kill();
                    // Its successor has its name, or its sessions are taken over when its lease ends.
                    if kind == 1 {
                        trial.database.bury(&names[at]);
                        names[at] = format!("{}-{seed}-{fault}", names[at]);
                    }
                    figures.add("kills", 1);
                    let next = trial.node(&names[at]).await;
                    trial.nodes.lock().unwrap()[at] = next;
                }
                2 => {
                    node.proxy.lose_at(lose, passing, Lose::Nothing);
                    node.proxy.losing().await;
                    let stopped = node.stop();
                    trial.database.expire(&names[at]);
                    trial.is_taken_over(&names[at]).await;
                    figures.add("stops", 1);
                    drop(stopped);
                }
                3 => {
                    node.proxy.lose_at(lose, passing, Lose::Nothing);
                    node.proxy.losing().await;
                    figures.add("messages lost", 1);
                }
                _ => {
                    node.ask(|service| async move { service.shut_down(20).await }).await;
                    node.kill();
                    trial.database.bury(&names[at]);
                    names[at] = format!("{}-{seed}-{fault}", names[at]);
                    figures.add("restarts", 1);
                    let next = trial.node(&names[at]).await;
                    trial.nodes.lock().unwrap()[at] = next;
                }
            }
        }
        trial.end(clients, &mut figures).await;
    }
    figures.print("nodes that fail at random");
}

impl Trial {
    /// Waits until so many records more are stored.
    async fn grows(&self, records: i64) {
        let stored = async || self.count("SELECT sum(tail)::int8 FROM meerkat.sessions").await;
        let mut due = None;
        until_asked("the clients' records are stored", async || {
            let stored = stored().await;
            due = due.or(stored.map(|stored| stored + records));
            stored >= due && due.is_some()
        })
        .await;
    }
}

/// The server crashes under running turns, and comes back before any lease has ended: every turn goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_crashes_and_starts_again_costs_no_turn() {
    let database = database!(cluster::own("off"));
    let cluster = database.cluster;
    let mut figures = Figures::default();
    let url = cluster.url("meerkat", "postgres");
    let trial = Trial::start(database, &["a", "b"], WAITING, Some(url), seed()).await;
    let clients = trial.clients(3).await;
    for _ in 0..if Part::Store.is_whole() { 30 } else { 2 } {
        trial.grows(40).await;
        cluster.restart();
        figures.add("crashes", 1);
    }
    trial.grows(40).await;
    let failed = "SELECT convert_from(line, 'UTF8') FROM events WHERE convert_from(line, 'UTF8') LIKE '%turn_failed%'";
    assert_eq!(trial.database.psql(failed), "");
    trial.end(clients, &mut figures).await;
    figures.print("a database that crashes");
}

/// The server is lost for good, and a standby that confirms every commit takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_takes_over_has_everything_that_was_acknowledged() {
    let first = seed();
    for round in 0..if Part::Store.is_whole() { 10 } else { 1 } {
        let database = database!(cluster::own("off"));
        let cluster = database.cluster;
        cluster.start_standby();
        let mut figures = Figures::default();
        let url = cluster.url_of_both();
        let trial = Trial::start(database, &["a", "b"], WAITING, Some(url), first.wrapping_add(round)).await;
        let clients = trial.clients(3).await;
        trial.grows(60).await;
        cluster.fail_over();
        trial.grows(60).await;
        trial.end(clients, &mut figures).await;
        figures.print("a database that fails over");
    }
}

impl Trial {
    /// Does a bit of everything, each step until it is acknowledged.
    async fn script(self, seed: u64) {
        let random = &mut Random::new(seed);
        let session_id = self.create(random).await;
        self.turn(random, session_id, Policy::Queue, 2).await;
        self.calls(random, session_id).await;
        self.change(random, session_id, true).await;
        let forked =
            self.settle(random, |service| async move { service.fork(ForkSession { session_id, turn: None }).await });
        let child = forked.await.unwrap().session_id;
        self.acknowledged.session(child);
        self.turn(random, child, Policy::Queue, 0).await;
        self.turn(random, session_id, Policy::Queue, 1).await;
        let asked = AtomicU64::new(0);
        let deleted = self.settle(random, |service| {
            asked.fetch_add(1, Ordering::Relaxed);
            async move { service.delete(DeleteSession { session_id: child, force: false }).await }
        });
        match deleted.await {
            Ok(_) => {}
            // The answer to an earlier request was lost.
            Err(SessionError::NotFound(_)) if asked.load(Ordering::Relaxed) > 1 => {}
            Err(error) => panic!("{error} ({:?})", error.code()),
        }
        self.acknowledged.deleted(child);
    }
}

/// A node is killed before and behind each message that a script sends to the database; another one does the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_killed_at_any_statement_leaves_a_sound_history() {
    let step = if Part::Store.is_whole() { 1 } else { 9 };
    let mut figures = Figures::default();
    let first = seed();
    let trial = Trial::start(database!(), &["heir"], WAITING, None, first).await;
    let heir = trial.nodes.lock().unwrap().clone();
    for lose in [Lose::Request, Lose::Reply] {
        for at in (0..).step_by(step) {
            let name = format!("{lose:?}-{at}");
            let node = trial.node(&name).await;
            *trial.nodes.lock().unwrap() = vec![node.clone()];
            node.proxy.lose_at(lose, at, Lose::All);
            let mut script = tokio::spawn(trial.clone().script(first.wrapping_add(at)));
            tokio::select! {
                biased;
                () = node.proxy.losing() => {}
                done = &mut script => {
                    done.unwrap();
                    break;
                }
            }
            node.kill();
            trial.database.bury(&name);
            trial.nodes.lock().unwrap().clone_from(&heir);
            in_time(&name, script).await.unwrap();
            figures.add("kills", 1);
        }
    }
    // The next start lists what a killed node had made and not listed.
    let last = trial.node("last").await;
    assert_eq!(trial.database.psql("SELECT count(*) FROM sessions WHERE tail > 0 AND summary IS NULL"), "0");
    drop(last);
    trial.nodes.lock().unwrap().clone_from(&heir);
    trial.end(JoinSet::new(), &mut figures).await;
    figures.print("nodes that are killed at every statement");
}
