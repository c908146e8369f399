//! What event streams cost: an event to 1, 100 and 10,000 followers in encodes and allocations; the memory of 10,000 idle
//! streams with one writer, against a bare axum handler; and that of streams whose readers take nothing.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

#[path = "../../surface-cli/benches/side_by_side/mod.rs"]
mod side_by_side;

use std::{
    alloc::System,
    convert::Infallible,
    io::{BufRead as _, BufReader},
    net::TcpStream,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    response::sse::{Event, KeepAlive, Sse},
    routing::{get, post},
};
use futures::{FutureExt as _, stream};
use http::Request;
use http_body_util::BodyExt as _;
use meerkat_service::{AgentBuildConfig, service::PinFact, wire::events_encoded};
use meerkat_surface_rest::{RestOptions, router};
use side_by_side::{Client, Server, floor, is_floor, meerkat, runtime, session};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tokio::{sync::broadcast, task::unconstrained};
use tower::ServiceExt as _;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const STREAMS: usize = 10_000;
const STALLED: usize = 64;
/// Frames of a durable event: a head, the shared line, an end.
const PIECES: usize = 3;
const STREAM: &str = "accept: text/event-stream\r\n";

/// Followers in process: what each of them costs when a session that they wait for gets two events.
async fn followers(count: usize) {
    let agent = AgentBuildConfig::new().build().unwrap();
    let session_id = agent.create_session().await.unwrap().session_id;
    let rest = router(agent.service().clone(), RestOptions::default());
    let mut bodies = Vec::with_capacity(count);
    for _ in 0..count {
        let request = Request::get(format!("/v1/sessions/{session_id}/events")).header("accept", "text/event-stream");
        let answer = rest.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let mut body = answer.into_body();
        while let Some(frame) = unconstrained(body.frame()).now_or_never() {
            drop(frame.unwrap().unwrap());
        }
        bodies.push(body);
    }
    let encoded = events_encoded();
    for text in ["It is blue.", "It is green."] {
        agent.service().pin(PinFact { session_id, text: text.to_owned() }).await.unwrap();
    }
    let encoded = events_encoded() - encoded;
    let mut take = || {
        let region = Region::new(ALLOCATOR);
        for body in &mut bodies {
            for _ in 0..PIECES {
                drop(unconstrained(body.frame()).now_or_never().unwrap().unwrap().unwrap());
            }
        }
        region.change().allocations as f64 / count as f64
    };
    let (first, second) = (take(), take());
    println!(
        "2 events to {count} followers: {encoded} encodes; allocations of each follower: {first} to wake and read \
         ahead, {second} for the second event's frame"
    );
}

/// A bare handler: every line that is posted goes to every stream.
fn serve_bare() {
    runtime().block_on(async {
        let (lines, _) = broadcast::channel::<String>(64);
        let follow = {
            let lines = lines.clone();
            async move || {
                let next = async |mut lines: broadcast::Receiver<String>| {
                    let line = lines.recv().await.ok()?;
                    Some((Ok::<_, Infallible>(Event::default().data(line)), lines))
                };
                Sse::new(stream::unfold(lines.subscribe(), next)).keep_alive(KeepAlive::default())
            }
        };
        let write = async move |line: String| {
            lines.send(line).unwrap();
            "{}"
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        axum::serve(listener, Router::new().route("/events", get(follow)).route("/write", post(write))).await.unwrap();
    });
}

/// Reads a stream up to a line that holds `mark`.
fn read_to(stream: &mut BufReader<TcpStream>, mark: &str) {
    let mut line = String::new();
    while !line.contains(mark) {
        line.clear();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "a stream ended before {mark:?}");
    }
}

/// As many streams as this process may open, up to the goal.
fn streams_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let files: usize = line.split_whitespace().next().unwrap().parse().unwrap();
    STREAMS.min(files - 100)
}

/// Bytes that each of `count` streams costs a server, once all of them have got what `write` writes.
fn idle(server: &Server, count: usize, path: &str, write: impl Fn(), last: &str) -> u64 {
    let open = || Client::http(server.port, &format!("GET {path}"), STREAM, "").follow();
    // What a first stream brings with it is no stream's cost.
    let mut first = open();
    read_to(&mut first, "200 OK");
    write();
    read_to(&mut first, last);
    let before = server.memory();
    let mut streams: Vec<_> = (0..count).map(|_| open()).collect();
    for stream in &mut streams {
        read_to(stream, "200 OK");
    }
    write();
    for stream in &mut streams {
        read_to(stream, last);
    }
    (server.memory() - before) / count as u64
}

fn main() {
    if is_floor().is_some() {
        return serve_bare();
    }
    for count in [1, 100, STREAMS] {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(followers(count));
    }

    let count = streams_max();
    let server = meerkat(&[("MEERKAT_SERVE__MAX_CONNECTIONS", "12000"), ("MEERKAT_SERVE__MAX_STREAMS", "12000")]);
    let id = session(server.port);
    let turn = || drop(side_by_side::post(server.port, &format!("/v1/sessions/{id}/turns"), r#"{"prompt":"hello"}"#));
    let cursor = side_by_side::post(server.port, &format!("/v1/sessions/{id}/turns"), r#"{"prompt":"hello"}"#)["seq"]
        .as_u64()
        .unwrap();
    let path = |since: u64| format!("/v1/sessions/{id}/events?since_seq={since}");
    let work = idle(&server, count, &path(cursor), turn, "turn_completed");
    let bare = floor("bare", &[]);
    let line = |text: &str| drop(side_by_side::post(bare.port, "/write", &text.repeat(200)));
    let write = || ["a", "b", "z"].into_iter().for_each(line);
    let against = idle(&bare, count, "/events", write, "data: zzz");
    println!(
        "{count} idle streams with one writer: {work} bytes each; a bare axum handler's: {against} bytes each; {} more",
        work.cast_signed() - against.cast_signed()
    );

    for _ in 0..16 {
        side_by_side::post(server.port, &format!("/v1/sessions/{id}/turns"), r#"{"prompt":"@long 1000000"}"#);
    }
    let open = || Client::http(server.port, &format!("GET {}", path(0)), STREAM, "").follow();
    let stall = || {
        let readers: Vec<_> = (0..STALLED).map(|_| open()).collect();
        // Until the kernel's buffers are full; the server gives such a reader up after thirty seconds.
        std::thread::sleep(Duration::from_secs(3));
        readers
    };
    // The first ones bring the threads that read for them, each with an arena of the allocator.
    let first = stall();
    let before = server.memory();
    let more = stall();
    let cost = server.memory().saturating_sub(before) / STALLED as u64;
    println!("{STALLED} more readers that take nothing of 16 MB: {cost} bytes each");
    drop((first, more));
}
