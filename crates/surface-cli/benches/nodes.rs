//! What a second node brings: text turns over REST at one node and at two that share a PostgreSQL, in one interleaved run.
//! First the nodes have what the machine gives. Then each is stopped for most of the time, so that the database and the
//! clients, which share the cores with them, have room; that is not the same as a machine for each.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share modules and need different parts of them")]

#[path = "../../store-postgres/src/tests/cluster.rs"]
mod cluster;
mod side_by_side;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use meerkat_store_postgres::PostgresOptions;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use side_by_side::{Client, Server, in_memory, median, meerkat_over, post};

const ROUNDS: usize = 9;
const ROUND: Duration = Duration::from_secs(3);
/// Sessions that work at once.
const SESSIONS: usize = 64;
/// Time for which a limited node runs, and the pauses until the other one does.
const RUN: Duration = Duration::from_micros(1000);
const PAUSES: [(Duration, &str); 2] = [
    (Duration::from_micros(1500), "each node runs for 1 ms at a time, with pauses of 1.5 ms"),
    (Duration::from_micros(4000), "each node runs for 1 ms at a time, with pauses of 4 ms"),
];
const JSON: &str = "content-type: application/json\r\n";

/// Clients of a node, each with a session of its own.
fn clients(node: &Server, count: usize) -> Vec<Client> {
    let script = "@chunks 2048 @long 2048 @note ";
    let body = format!(r#"{{"prompt":"{script}{}"}}"#, "x".repeat(512 - script.len()));
    let client = |_| {
        let id = post(node.port, "/v1/sessions", "{}")["session_id"].as_str().unwrap().to_owned();
        Client::http(node.port, &format!("POST /v1/sessions/{id}/turns"), JSON, &body)
    };
    (0..count).map(client).collect()
}

/// Turns in a second, all clients at once for a while.
fn turns(clients: &mut [Client]) -> u64 {
    let began = Instant::now();
    let serve = |client: &mut Client| {
        let mut turns = 0_u32;
        while began.elapsed() < ROUND {
            let answer = client.ask();
            assert!(answer.head.starts_with("http/1.1 200"), "{}", answer.head);
            turns += 1;
        }
        turns
    };
    let turns: u32 = thread::scope(|scope| {
        let serving: Vec<_> = clients.iter_mut().map(|client| scope.spawn(move || serve(client))).collect();
        serving.into_iter().map(|serving| serving.join().unwrap()).sum()
    });
    (f64::from(turns) / began.elapsed().as_secs_f64()) as u64
}

/// Tells when it is dropped, even by a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Lets the nodes run one after the other, with a pause after each, until it is over; says for which share of the time.
fn limit(nodes: &[Server; 2], pause: Duration, is_over: &AtomicBool) {
    let send = |node: &Server, signal| kill(Pid::from_raw(node.id().try_into().unwrap()), signal).unwrap();
    nodes.iter().for_each(|node| send(node, Signal::SIGSTOP));
    let (began, mut ran) = (Instant::now(), Duration::ZERO);
    while !is_over.load(Ordering::Relaxed) {
        for node in nodes {
            let woken = Instant::now();
            send(node, Signal::SIGCONT);
            thread::sleep(RUN);
            send(node, Signal::SIGSTOP);
            ran += woken.elapsed();
            thread::sleep(pause);
        }
    }
    let share = ran.as_secs_f64() / 2.0 / began.elapsed().as_secs_f64();
    println!("(each ran for {:.1} % of the time)", 100.0 * share);
    nodes.iter().for_each(|node| send(node, Signal::SIGCONT));
}

/// Rounds with one node and with two, in turn.
fn compare(what: &str, nodes: &[Server; 2]) {
    let mut at_one = clients(&nodes[0], SESSIONS);
    let mut at_both: Vec<Client> = nodes.iter().flat_map(|node| clients(node, SESSIONS / 2)).collect();
    let (mut ones, mut twos, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (one, two) = (turns(&mut at_one), turns(&mut at_both));
        ones.push(one);
        twos.push(two);
        ratios.push(two * 100 / one);
    }
    let (one, two, percent) = (median(&mut ones), median(&mut twos), median(&mut ratios));
    println!("{what}: two nodes {two} turns/s, one {one} turns/s, {:.2} x (goal 1.6)", percent as f64 / 100.0);
}

fn main() {
    if !meerkat_testkit::can_run(cluster::NEEDED, cluster::is_here()) {
        return;
    }
    let database = cluster::own("on");
    let url = database.cluster.url("meerkat", "postgres");
    let folders = [in_memory(), in_memory()];
    let nodes = folders.each_ref().map(|folder| {
        meerkat_over(folder.path(), &[("MEERKAT_STORE__URL", &url), ("MEERKAT_CONTEXT__OVERFLOW", "slide")])
    });
    compare("the machine is shared", &nodes);
    for (pause, what) in PAUSES {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| limit(&nodes, pause, &is_over));
            let _over = Over(&is_over);
            compare(what, &nodes);
        });
    }
}
