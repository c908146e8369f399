//! What it costs to start: `meerkat --version` and a scripted `run`, side by side with a process spawn, in one
//! interleaved run. `cargo bench -p meerkat-surface-cli` prints the medians, the difference and the ratio.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const ROUNDS: usize = 200;
const WARM_UP: usize = 20;

/// One start, from the spawn to the end of the process.
fn time(command: &mut Command) -> Duration {
    let started = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
    let took = started.elapsed();
    assert!(status.success(), "{command:?} failed");
    took
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let meerkat = env!("CARGO_BIN_EXE_meerkat");
    let folder = tempfile::tempdir().unwrap();
    // An empty environment: no key, no configuration, and a folder that is no project.
    let command = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env_clear().current_dir(folder.path());
        command
    };
    let (mut spawns, mut versions, mut runs) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS + WARM_UP {
        let spawn = time(&mut command("/bin/true", &[]));
        let version = time(&mut command(meerkat, &["--version"]));
        let run = time(&mut command(meerkat, &["run", "hello"]));
        if round >= WARM_UP {
            spawns.push(spawn);
            versions.push(version);
            runs.push(run);
        }
    }
    let floor = median(&mut spawns);
    println!("a process spawn (/bin/true): {floor:.2?}");
    for (name, times) in [("meerkat --version", &mut versions), ("meerkat run \"hello\", build A", &mut runs)] {
        let time = median(times);
        let ratio = time.as_secs_f64() / floor.as_secs_f64();
        println!("{name}: {time:.2?}, which is {:.2?} more than the spawn: {ratio:.2} x", time.saturating_sub(floor));
    }
    println!("the binary has {} bytes", std::fs::metadata(meerkat).unwrap().len());
}
