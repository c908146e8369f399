//! What sessions cost a server: a turn over REST; 10,000 sessions that nobody uses; and 100,000 on the disk, at boot and
//! in the first page of a list, side by side with an empty store. In memory, so that no disk is measured.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

mod side_by_side;

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use side_by_side::{Client, Server, in_memory, median, meerkat, meerkat_over, session};

const TURNS: usize = 2_000;
const IDLE: usize = 10_000;
const STORED: usize = 100_000;
const STARTS: usize = 31;
const CONNECTIONS: usize = 16;
const JSON: &str = "content-type: application/json\r\n";
/// The bytes that a turn writes, in its two batches.
const BATCHES: [usize; 2] = [825, 2_719];

/// A turn with 512 bytes that are answered with 2 KiB.
fn turn() {
    let server = meerkat(&[("MEERKAT_CONTEXT__OVERFLOW", "slide")]);
    let script = "@chunks 2048 @long 2048 @note ";
    let body = format!(r#"{{"prompt":"{script}{}"}}"#, "x".repeat(512 - script.len()));
    let id = session(server.port);
    let mut client = Client::http(server.port, &format!("POST /v1/sessions/{id}/turns"), JSON, &body);
    let dir = in_memory();
    let mut raw = File::create(dir.path().join("raw")).unwrap();
    let (mut works, mut floors) = (Vec::new(), Vec::new());
    for round in 0..TURNS {
        let started = Instant::now();
        let answer = client.ask();
        let work = started.elapsed();
        assert!(answer.head.starts_with("http/1.1 200"), "{}", answer.head);
        let started = Instant::now();
        for bytes in BATCHES {
            raw.write_all(&vec![b'x'; bytes]).unwrap();
            raw.sync_data().unwrap();
        }
        if round >= TURNS / 10 {
            works.push(work);
            floors.push(started.elapsed());
        }
    }
    let (work, floor) = (median(&mut works), median(&mut floors));
    println!("a text turn over REST, in memory (tmpfs): {work:.1?}; raw writes and syncs of the same: {floor:.1?}");
}

/// Makes sessions over several connections.
fn make(server: &Server, count: usize) {
    let open = || Client::http(server.port, "POST /v1/sessions", JSON, "{}");
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| open()).collect();
    for _ in 0..count / CONNECTIONS {
        let answers = side_by_side::ask_all(&mut clients);
        assert!(answers.iter().all(|answer| answer.head.starts_with("http/1.1 201")), "{}", answers[0].head);
    }
}

/// From the spawn of a server to its first answer, and then to the first page of the list.
fn boot(data_dir: &Path) -> (Duration, Duration) {
    let started = Instant::now();
    let server = meerkat_over(data_dir, &[]);
    let mut list = Client::http(server.port, "GET /v1/sessions?limit=50", "", "");
    assert!(Client::http(server.port, "GET /healthz", "", "").ask().head.starts_with("http/1.1 200"));
    let booted = started.elapsed();
    let started = Instant::now();
    assert!(list.ask().head.starts_with("http/1.1 200"));
    let listed = started.elapsed();
    server.end();
    (booted, listed)
}

fn main() {
    turn();

    let (full, empty) = (in_memory(), in_memory());
    let server = meerkat_over(full.path(), &[("MEERKAT_STORE__IDLE_MS", "2000")]);
    let before = server.resident();
    make(&server, IDLE);
    let fresh = server.resident();
    // Until all of them have left memory.
    std::thread::sleep(Duration::from_secs(6));
    println!(
        "a server: {:.1} MB resident; {IDLE} sessions that were just made: {:.1} MB; once they are idle: {:.1} MB",
        before as f64 / 1e6,
        fresh as f64 / 1e6,
        server.resident() as f64 / 1e6
    );
    make(&server, STORED - IDLE);
    std::thread::sleep(Duration::from_secs(6));
    server.end();

    let mut sides: [Vec<Duration>; 4] = Default::default();
    for _ in 0..STARTS {
        let took = [boot(full.path()), boot(empty.path())];
        let [(boot_full, list_full), (boot_empty, list_empty)] = took;
        sides.iter_mut().zip([boot_full, boot_empty, list_full, list_empty]).for_each(|(side, time)| side.push(time));
    }
    let [boot_full, boot_empty, list_full, list_empty] = sides.map(|mut times| median(&mut times));
    let ratio = |work: Duration, floor: Duration| work.as_secs_f64() / floor.as_secs_f64();
    println!(
        "boot with {STORED} stored sessions: {boot_full:.1?}; an empty store: {boot_empty:.1?}; {:.2} x",
        ratio(boot_full, boot_empty)
    );
    println!(
        "the first page of 50 after a boot: {list_full:.2?}; an empty store: {list_empty:.2?}; {:.2} x",
        ratio(list_full, list_empty)
    );
    println!("the same page later: {:.1?}", later(full.path()));
}

/// The first page of a server that has answered it before.
fn later(data_dir: &Path) -> Duration {
    let server = meerkat_over(data_dir, &[]);
    let mut list = Client::http(server.port, "GET /v1/sessions?limit=50", "", "");
    let mut ask = || {
        let started = Instant::now();
        list.ask();
        started.elapsed()
    };
    let mut times: Vec<Duration> = (0..200).map(|_| ask()).collect();
    median(&mut times)
}
