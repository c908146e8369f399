//! A late turn of a session against an early one, and the size of a long session on the disk. On tmpfs, to exclude the
//! disk's own variation.

use std::time::{Duration, Instant};

use meerkat_service::{Agent, compaction::CompactionConfig, service::SessionCreated};
use serde_json::json;

use crate::common::{bytes, config, in_memory, lines, median, number, prompt, ratio, runtime};

/// Turns are timed by the group, so that what a turn leaves to do behind its answer is its own cost.
const GROUP: usize = 20;
const ROUNDS: usize = 60;
const WARM_UP: usize = 3;
/// Room for some seven of the turns below, so that the context is at its steady size before turn 10.
const WINDOW_TOKENS: u64 = 5_000;
const STEADY_TURNS: usize = 10;

struct Side {
    turns: usize,
    agent: Agent,
    session: SessionCreated,
    dir: tempfile::TempDir,
    times: Vec<Duration>,
}

impl Side {
    async fn new(turns: usize, compaction: Option<CompactionConfig>) -> Self {
        let dir = in_memory();
        let mut config = config(&dir.path().join("data"), WINDOW_TOKENS);
        if let Some(compaction) = compaction {
            config = config.compaction(compaction);
        }
        let agent = config.build().unwrap();
        let (session, prompt) = (agent.create_session().await.unwrap(), prompt(512, 2048));
        for _ in 0..turns {
            agent.turn(&session, &prompt).await.unwrap();
        }
        Self { turns, agent, session, dir, times: Vec::new() }
    }
}

/// Turns 10, 1,000, 10,000 and, where `MEERKAT_BENCH_TURNS` says so, a later one.
pub(crate) fn late_against_early() {
    // The summary is made of the prompt, so it is as long in every compaction. Two turns stay of it.
    let config = CompactionConfig { max_summary_tokens: 500, recent_turn_budget: 2, ..CompactionConfig::default() };
    for (name, compaction) in [("with `slide`", None), ("with compaction", Some(config))] {
        println!("{name}:");
        late_against_early_with(compaction);
    }
}

fn late_against_early_with(compaction: Option<CompactionConfig>) {
    runtime().block_on(async {
        let prompt = prompt(512, 2048);
        let mut sides = Vec::new();
        for turns in [STEADY_TURNS, 1_000, number("MEERKAT_BENCH_TURNS", 10_000)] {
            sides.push(Side::new(turns, compaction).await);
        }
        for round in 0..WARM_UP + ROUNDS {
            for side in &mut sides {
                let started = Instant::now();
                for _ in 0..GROUP {
                    side.agent.turn(&side.session, &prompt).await.unwrap();
                }
                if round >= WARM_UP {
                    side.times.push(started.elapsed() / GROUP as u32);
                }
            }
        }
        let early = median(&mut sides[0].times);
        for side in &mut sides[1..] {
            let late = median(&mut side.times);
            println!(
                "turn {} in memory: {late:.1?}; turn {STEADY_TURNS}: {early:.1?}; {:.2} x",
                side.turns,
                ratio(late, early)
            );
        }
        for side in sides {
            side.sizes(&prompt).await;
        }
    });
}

impl Side {
    /// What the session takes, against its events and against its conversation as lines of JSON.
    async fn sizes(self, prompt: &str) {
        let turns = self.turns + (WARM_UP + ROUNDS) * GROUP + 1;
        let answer = self.agent.turn(&self.session, prompt).await.unwrap().text;
        let lines = lines(&self.agent, self.session.session_id, 0).await;
        let events: usize = lines.iter().map(|line| line.len() + 1).sum();
        let said = [json!({"role": "user", "content": prompt}), json!({"role": "assistant", "content": answer})];
        let conversation = turns * said.iter().map(|message| message.to_string().len() + 1).sum::<usize>();
        self.agent.service().shut_down(10_000).await;
        drop(self.agent);
        let data_dir = self.dir.path().join("data");
        let (journal, all) = (bytes(&data_dir.join("journal")), bytes(&data_dir));
        println!(
            "after {turns} turns: the journal has {:.3} x the bytes of its events; the data directory {:.2} x the \
             conversation as lines of JSON ({all} to {conversation} bytes), {:.2} x without the reserve for a full disk",
            journal as f64 / events as f64,
            all as f64 / conversation as f64,
            (all - bytes_of(&data_dir.join("reserve"))) as f64 / conversation as f64
        );
    }
}

fn bytes_of(file: &std::path::Path) -> u64 {
    std::fs::metadata(file).map_or(0, |metadata| metadata.len())
}
