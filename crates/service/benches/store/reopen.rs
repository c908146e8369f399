//! Opening a store whose process was killed, and opening it with redb deleted, each against a checksum scan of the same
//! journals. In memory; `MEERKAT_BENCH_MIB` says how much of journals there is.

use std::{
    io::{Read as _, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use meerkat_service::service::SessionQuery;

use crate::common::{agent, bytes, child, files, in_memory, median, number, numbers_of, prompt, ratio, runtime};

const WINDOW_TOKENS: u64 = 20_000;
/// Bytes of a session's journal.
const SESSION_BYTES: usize = 1024 * 1024;
/// Sessions that have a turn behind them and are in memory when the process is killed.
const ACTIVE: usize = 64;
const STARTS: usize = 5;

/// Writes the journals, and waits to be killed.
pub(crate) fn write(place: &Path) {
    let sessions = number("MEERKAT_BENCH_MIB", 1024);
    // What an event holds at most before its text goes into a blob.
    let (long, short) = (prompt(512, 14_000), prompt(100, 100));
    runtime().block_on(async {
        let writer = agent(place, WINDOW_TOKENS);
        for _ in 0..sessions {
            let session = writer.create_session().await.unwrap();
            for _ in 0..SESSION_BYTES / 15_500 {
                writer.turn(&session, &long).await.unwrap();
            }
        }
        // All of them rest; then some are used again.
        writer.service().shut_down(60_000).await;
    });
    runtime().block_on(async {
        let writer = agent(place, WINDOW_TOKENS);
        let newest = SessionQuery { limit: Some(ACTIVE), ..SessionQuery::default() };
        for session in writer.service().list(newest).await.unwrap().items {
            let turn = meerkat_service::service::StartTurn::new(session.session_id, short.as_str());
            writer.service().start_turn(turn).await.unwrap();
        }
        println!("ready");
        std::io::stdout().flush().unwrap();
        std::future::pending::<()>().await;
    });
}

/// Opens the store and answers with a first page, and says how long that took.
pub(crate) fn in_child(place: &Path) {
    let started = Instant::now();
    runtime().block_on(async {
        let agent = agent(place, WINDOW_TOKENS);
        let page = agent.service().list(SessionQuery::default()).await.unwrap();
        assert!(!page.items.is_empty());
        println!("{}", started.elapsed().as_nanos());
        std::io::stdout().flush().unwrap();
        // It is killed as its predecessor was, so that the next one finds what this one found.
        std::process::exit(0);
    });
}

fn scan(journal: &Path) -> Duration {
    let started = Instant::now();
    let (mut buffer, mut sum) = (Vec::new(), 0);
    for path in files(journal) {
        buffer.clear();
        std::fs::File::open(path).unwrap().read_to_end(&mut buffer).unwrap();
        sum ^= crc32c::crc32c(&buffer);
    }
    std::hint::black_box(sum);
    started.elapsed()
}

pub(crate) fn after_a_kill() {
    let dir = in_memory();
    let place = dir.path();
    let mut writer = child("write", place);
    let mut said = [0; 5];
    writer.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    writer.kill().unwrap();
    writer.wait().unwrap();
    let (journal, index) = (place.join("journal"), place.join("index.redb"));
    let size = bytes(&journal) as f64 / f64::from(1 << 20);
    let mut sides: [Vec<Duration>; 3] = Default::default();
    for _ in 0..STARTS {
        sides[0].push(scan(&journal));
        sides[1].push(Duration::from_nanos(numbers_of("reopen", place)[0]));
    }
    for _ in 0..STARTS {
        // It is not there where the one that was just opened ended before it had written it.
        drop(std::fs::remove_file(&index));
        assert!(!index.exists());
        sides[2].push(Duration::from_nanos(numbers_of("reopen", place)[0]));
        sides[0].push(scan(&journal));
    }
    let [scan, reopened, rebuilt] = sides.map(|mut times| median(&mut times));
    println!("a checksum scan of {size:.0} MiB of journals: {scan:.1?}");
    println!("reopened after a kill, to the first page: {reopened:.1?}; {:.2} x the scan", ratio(reopened, scan));
    println!("with redb deleted, to the first page: {rebuilt:.1?}; {:.2} x the scan", ratio(rebuilt, scan));
}
