//! From the start of a process to the first accepted turn of a long session, against parsing what is live of it alone.
//!
//! Nothing leaves the live context yet, so a session of 100,000 messages has all of them live. One of 1,000 messages
//! stands beside it: what the long one should cost once its context is rebuilt.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use meerkat_service::{
    service::{SessionQuery, StartTurn},
    wire::decode_event,
};

use crate::common::{agent, in_memory, lines, median, number, numbers_of, peak_bytes, prompt, ratio, runtime};

/// Room for 1,000 messages of the size below.
const WINDOW_TOKENS: u64 = 60_000;
const STARTS: usize = 11;

/// Sessions whose journals the store writes.
pub(crate) fn long_session() {
    for messages in [1_000, number("MEERKAT_BENCH_MESSAGES", 100_000)] {
        let dir = in_memory();
        runtime().block_on(async {
            let (agent, prompt) = (agent(dir.path(), WINDOW_TOKENS), prompt(100, 100));
            let session = agent.create_session().await.unwrap();
            for _ in 0..messages / 2 {
                agent.turn(&session, &prompt).await.unwrap();
            }
            agent.service().shut_down(10_000).await;
        });
        // Its row and its snapshot are in the index; a kill may leave neither.
        measure(messages, "with its snapshot", dir.path(), || {});
        measure(messages, "with redb deleted", dir.path(), || {
            std::fs::remove_file(dir.path().join("index.redb")).unwrap()
        });
    }
}

fn measure(messages: usize, how: &str, place: &Path, before: impl Fn()) {
    let (mut works, mut floors, mut peaks) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        before();
        let [work, floor, peak] = numbers_of("resume", place)[..] else { panic!("three numbers") };
        works.push(work);
        floors.push(floor);
        peaks.push(peak);
    }
    let [work, floor] = [&mut works, &mut floors].map(|times| Duration::from_nanos(median(times)));
    println!(
        "resume of {messages} messages {how}: {work:.1?} to the accepted turn, {:.1} MB at most; parsing the events \
         alone: {floor:.1?}; {:.2} x",
        median(&mut peaks) as f64 / 1e6,
        ratio(work, floor)
    );
}

/// Opens the store, starts a turn in its one session, and then parses its events.
pub(crate) fn in_child(place: &Path) {
    let started = Instant::now();
    runtime().block_on(async {
        let agent = agent(place, WINDOW_TOKENS);
        let query = SessionQuery { limit: Some(1), ..SessionQuery::default() };
        let session_id = agent.service().list(query).await.unwrap().items[0].session_id;
        agent.service().accept_turn(StartTurn::new(session_id, prompt(100, 100))).await.unwrap();
        let (work, peak) = (started.elapsed(), peak_bytes());
        let lines = lines(&agent, session_id, 0).await;
        let started = Instant::now();
        let parsed: Vec<_> = lines.iter().map(|line| decode_event(line).unwrap()).collect();
        let floor = started.elapsed();
        println!("{} {} {peak}", work.as_nanos(), floor.as_nanos());
        drop(parsed);
        agent.service().shut_down(10_000).await;
    });
}
