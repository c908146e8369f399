//! A text turn against two raw writes and syncs of the same bytes; and 64 sessions at once against 64 threads that do
//! nothing else.

use std::{
    fs::File,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use meerkat_service::Agent;

use crate::common::{agent, bytes, in_memory, lines, median, on_disk, prompt, ratio, runtime};

const PAIRS: usize = 400;
const WARM_UP: usize = 40;
const SESSIONS: usize = 64;
const ROUNDS: usize = 12;
/// Turns of each session in a round.
const TURNS: usize = 10;
const WINDOW_TOKENS: u64 = 5_000;

/// What a turn writes, in its two batches.
#[derive(Clone)]
struct Batches([Vec<u8>; 2]);

impl Batches {
    /// The sizes of a turn's batches: its first event is acknowledged alone, all others together.
    async fn of_a_turn(agent: &Agent, data_dir: &Path) -> Self {
        let (session, prompt) = (agent.create_session().await.unwrap(), prompt(512, 2048));
        agent.turn(&session, &prompt).await.unwrap();
        let (seq, before) = (agent.turn(&session, &prompt).await.unwrap().seq, bytes(&data_dir.join("journal")));
        agent.turn(&session, &prompt).await.unwrap();
        let written = usize::try_from(bytes(&data_dir.join("journal")) - before).unwrap();
        let lines: Vec<usize> = lines(agent, session.session_id, seq).await.iter().map(String::len).collect();
        let around = (written - lines.iter().sum::<usize>()) / lines.len();
        let first = lines[0] + around;
        Self([vec![b'x'; first], vec![b'x'; written - first]])
    }

    /// The same bytes, raw.
    fn write(&self, file: &mut File) {
        for batch in &self.0 {
            file.write_all(batch).unwrap();
            file.sync_data().unwrap();
        }
    }
}

/// One session, one turn after the other.
pub(crate) fn alone() {
    for (name, dir) in [("in memory (tmpfs)", in_memory()), ("on disk", on_disk())] {
        runtime().block_on(async {
            let data_dir = dir.path().join("data");
            let (agent, prompt) = (agent(&data_dir, WINDOW_TOKENS), prompt(512, 2048));
            let batches = Batches::of_a_turn(&agent, &data_dir).await;
            let mut raw = File::create(dir.path().join("raw")).unwrap();
            let session = agent.create_session().await.unwrap();
            let (mut works, mut floors) = (Vec::new(), Vec::new());
            for pair in 0..WARM_UP + PAIRS {
                let started = Instant::now();
                agent.turn(&session, &prompt).await.unwrap();
                let work = started.elapsed();
                let started = Instant::now();
                batches.write(&mut raw);
                if pair >= WARM_UP {
                    works.push(work);
                    floors.push(started.elapsed());
                }
            }
            let (work, floor) = (median(&mut works), median(&mut floors));
            let [first, second] = batches.0.map(|batch| batch.len());
            println!(
                "a text turn {name}: {work:.1?}; raw writes and syncs of {first} and {second} bytes: {floor:.1?}; \
                 {:.2} x, {:.1?} more",
                ratio(work, floor),
                work.saturating_sub(floor)
            );
            agent.service().shut_down(1_000).await;
        });
    }
}

/// Sixty-four sessions that all have turns to run.
pub(crate) fn parallel() {
    let (dir, runtime) = (on_disk(), tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap());
    let data_dir = dir.path().join("data");
    let (agent, batches, sessions) = runtime.block_on(async {
        let agent = agent(&data_dir, WINDOW_TOKENS);
        let batches = Batches::of_a_turn(&agent, &data_dir).await;
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(agent.create_session().await.unwrap());
        }
        (agent, batches, sessions)
    });
    let work = || {
        let started = Instant::now();
        runtime.block_on(async {
            let turns = sessions.iter().map(|session| {
                let (agent, session, prompt) = (agent.clone(), session.clone(), prompt(512, 2048));
                tokio::spawn(async move {
                    for _ in 0..TURNS {
                        agent.turn(&session, &prompt).await.unwrap();
                    }
                })
            });
            for turns in turns.collect::<Vec<_>>() {
                turns.await.unwrap();
            }
        });
        started.elapsed()
    };
    let mut files: Vec<File> =
        (0..SESSIONS).map(|n| File::create(dir.path().join(format!("raw{n}"))).unwrap()).collect();
    let mut floor = || {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for file in &mut files {
                scope.spawn(|| (0..TURNS).for_each(|_| batches.write(file)));
            }
        });
        started.elapsed()
    };
    work();
    floor();
    let (mut works, mut floors): (Vec<Duration>, Vec<Duration>) = (0..ROUNDS).map(|_| (work(), floor())).unzip();
    let (work, floor) = (median(&mut works), median(&mut floors));
    let per_second = |time: Duration| (SESSIONS * TURNS) as f64 / time.as_secs_f64();
    println!(
        "{SESSIONS} sessions at once on disk: {:.0} turns per second; {SESSIONS} threads that write and sync the same: \
         {:.0}; {:.2} x",
        per_second(work),
        per_second(floor),
        ratio(floor, work)
    );
    runtime.block_on(agent.service().shut_down(1_000));
}
