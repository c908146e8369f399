//! Compacting a long session in memory, with the scripted model's summary, against parsing and writing its lines.

use std::{io::Write as _, sync::Arc, time::Instant};

use meerkat_service::{
    AgentBuildConfig,
    compaction::CompactionConfig,
    model::{StaticModels, scripted::ScriptedModel},
    options::EngineOptions,
    service::{CompactSession, UndoCompaction},
};
use serde_json::Value;

use crate::common::{lines, median, number, ratio, runtime};

const ROUNDS: usize = 9;

/// Compacts a session of 10,000 turns, whose window and threshold it does not reach by itself.
pub(crate) fn long() {
    runtime().block_on(async {
        let mut options = EngineOptions::default();
        options.ephemeral.session_event_bytes = u64::MAX;
        options.ephemeral.max_bytes = u64::MAX;
        let models = StaticModels::new("scripted", Arc::new(ScriptedModel), u64::MAX / 8);
        let config = CompactionConfig { auto_compact_threshold: u64::MAX / 16, ..CompactionConfig::default() };
        let agent = AgentBuildConfig::new().models(Arc::new(models)).options(options).compaction(config);
        let agent = agent.build().unwrap();
        let session = agent.create_session().await.unwrap();
        let (said, rest) = ("@chunks 2048 @long 2048 @note ", " @compaction @say What was decided, and what is left.");
        let prompt = format!("{said}{}{rest}", "x".repeat(512 - said.len() - rest.len()));
        let turns = number("MEERKAT_BENCH_TURNS", 10_000);
        for _ in 0..turns {
            agent.turn(&session, &prompt).await.unwrap();
        }
        let session_id = session.session_id;
        let lines = lines(&agent, session_id, 0).await;
        let (mut works, mut floors, mut receipt) = (Vec::new(), Vec::new(), None);
        for round in 0..=ROUNDS {
            let started = Instant::now();
            let compacted = agent.service().compact(CompactSession { session_id, compaction: None }).await.unwrap();
            let work = started.elapsed();
            let undo = UndoCompaction { session_id, compaction: compacted.compaction };
            agent.service().undo_compaction(undo).await.unwrap();
            receipt = Some(compacted);
            let started = Instant::now();
            let mut out = Vec::new();
            for line in &lines {
                let parsed: Value = serde_json::from_str(line).unwrap();
                serde_json::to_writer(&mut out, &parsed).unwrap();
                out.write_all(b"\n").unwrap();
            }
            assert!(out.len() > lines.len());
            if round > 0 {
                works.push(work);
                floors.push(started.elapsed());
            }
        }
        let (work, floor, receipt) = (median(&mut works), median(&mut floors), receipt.unwrap());
        println!(
            "compacting {turns} turns ({} messages to {}): {work:.1?}; serde_json parse and write of the {} lines: \
             {floor:.1?}; {:.2} x",
            receipt.retained + receipt.discarded,
            receipt.retained + 1,
            lines.len(),
            ratio(work, floor)
        );
    });
}
