//! A node in a process of its own that is stopped (SIGSTOP) past its lease and continued: it is fenced, records nothing,
//! and who waits there learns how the new owner ended the turn.
//!
//! Its lease ends by the database's clock alone, which the test changes. By its own clock it still has it when it is
//! continued, so that only the database can fence it.
//!
//! The test is its own node: started once more, with a role, it works in a session and says what it sees.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "the node tells the test what it sees")]

#[path = "../src/tests/cluster.rs"]
#[allow(dead_code, reason = "the crate's own tests use the rest")]
mod cluster;

use std::{
    io::{BufRead as _, BufReader, Lines, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use libtest_mimic::{Arguments, Failed, Trial};
use meerkat_service::prelude::*;
use meerkat_store_postgres::{PostgresOptions, open};
use meerkat_testkit::{can_run, in_time};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    runtime::{Builder, Runtime},
    sync::oneshot,
};

/// Variable that makes this process a node, with the address and schema of its database.
const ROLE: &str = "MEERKAT_TEST_NODE";
const PROMPT: &str = "@call wait\n@step\n@say done";

/// Tool that says when it runs, and ends when it is let.
struct Wait {
    spec: ToolSpec,
    runs: Mutex<Option<oneshot::Sender<()>>>,
    ends: Mutex<Option<oneshot::Receiver<()>>>,
}

#[async_trait]
impl Tool for Wait {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::once())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let (runs, ends) = (self.runs.lock().unwrap().take().unwrap(), self.ends.lock().unwrap().take().unwrap());
        runs.send(()).unwrap();
        ends.await.unwrap();
        output.write("waited").await
    }
}

/// Node with a tool that waits.
struct Node {
    service: Arc<dyn SessionService>,
    runs: oneshot::Receiver<()>,
    lets: oneshot::Sender<()>,
}

impl Node {
    async fn start(options: PostgresOptions) -> Self {
        let ((runs, running), (lets, ends)) = (oneshot::channel(), oneshot::channel());
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        let spec = ToolSpec { name: "wait".to_owned(), description: "Waits.".to_owned(), schema };
        let wait = Wait { spec, runs: Mutex::new(Some(runs)), ends: Mutex::new(Some(ends)) };
        let stores = open(options).await.unwrap();
        let agent = AgentBuildConfig::new().tool(Arc::new(wait)).stores(stores).build().unwrap();
        agent.service().ready().await.unwrap();
        Self { service: agent.service().clone(), runs: running, lets }
    }
}

/// Works in a session as node `a`, says what it sees, and lets its tool end when it is told to.
async fn work(options: PostgresOptions) {
    let node = Node::start(options).await;
    let session_id = node.service.create_session(CreateSession::default()).await.unwrap().session_id;
    let handle = node.service.begin_turn(StartTurn::new(session_id, PROMPT)).await.unwrap();
    node.runs.await.unwrap();
    println!("{session_id}");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    node.lets.send(()).unwrap();
    println!("{:?}", handle.result.await.unwrap().status);
    let refused = node.service.start_turn(StartTurn::new(session_id, "@say mine")).await.unwrap_err().body();
    println!("{} of turn {}", refused.code, refused.details["turn"]);
}

/// Process of node `a`.
struct Stopped {
    child: Child,
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Stopped {
    fn start(role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.env(ROLE, role).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, lines: BufReader::new(stdout).lines() }
    }

    fn says(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn a_node_that_was_stopped_past_its_lease_records_nothing(database: cluster::Database) {
    let url = database.cluster.url("meerkat", "postgres");
    let mut a = Stopped::start(&format!("{url} {}", database.schema));
    let session_id: SessionId = a.says().parse().unwrap();
    a.signal(Signal::STOP);
    database.expire("a");
    let b = Node::start(database.options("b")).await;
    let mut follower = b.service.follow(&session_id, 1).await.unwrap();
    // The new owner ends the turn of the stopped one.
    let is_end = |line: &[u8]| String::from_utf8_lossy(line).contains("turn_interrupted");
    in_time("the turn ends", async { while !is_end(&follower.next().await.unwrap().unwrap().line) {} }).await;
    let second = b.service.begin_turn(StartTurn::new(session_id, PROMPT)).await.unwrap();
    in_time("the tool of b runs", b.runs).await.unwrap();
    let events = || b.service.events(ReadEvents::new(session_id, 0));
    let before = events().await.unwrap();

    a.signal(Signal::CONT);
    writeln!(a.stdin, "go on").unwrap();
    assert_eq!(a.says(), "Interrupted");
    assert_eq!(a.says(), "SESSION_BUSY of turn 1", "the new owner answers what the stopped node is asked");
    assert_eq!(events().await.unwrap().items, before.items, "the stopped node records nothing");
    b.lets.send(()).unwrap();
    let second = in_time("the turn of b ends", second.result).await.unwrap();
    assert_eq!(second.status, TurnStatus::Completed);
    assert_eq!(database.psql("SELECT node, epoch FROM sessions"), "b|2");
    // The process ends by itself, and the database lets nothing of it in.
    assert!(a.child.wait().unwrap().success());
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn trial() -> Result<(), Failed> {
    if can_run(cluster::NEEDED, cluster::is_here()) {
        runtime().block_on(a_node_that_was_stopped_past_its_lease_records_nothing(cluster::fresh()));
    }
    Ok(())
}

fn main() {
    if let Ok(role) = std::env::var(ROLE) {
        let (url, schema) = role.split_once(' ').unwrap();
        return runtime().block_on(work(cluster::options(url.to_owned(), schema, "a")));
    }
    let trials = vec![Trial::test("a_node_that_was_stopped_past_its_lease_records_nothing", trial)];
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
