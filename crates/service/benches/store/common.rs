//! Helpers: agents over a data directory, files and their sizes, fresh processes, medians.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use meerkat_service::{
    Agent, AgentBuildConfig, SessionId,
    model::{StaticModels, scripted::ScriptedModel},
    options::{EngineOptions, Overflow},
    service::ReadEvents,
};
use tempfile::TempDir;

const ROLE: &str = "MEERKAT_BENCH_ROLE";
const PLACE: &str = "MEERKAT_BENCH_PLACE";

/// A folder on the disk.
pub(crate) fn on_disk() -> TempDir {
    let dir = std::env::var_os("MEERKAT_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    std::fs::create_dir_all(&dir).unwrap();
    tempfile::tempdir_in(dir).unwrap()
}

/// A folder in memory.
pub(crate) fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// A number that a variable gives, or its default.
pub(crate) fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

/// An agent over a data directory, whose requests have room for this much.
pub(crate) fn agent(data_dir: &Path, window_tokens: u64) -> Agent {
    config(data_dir, window_tokens).build().unwrap()
}

/// Like [`agent`], before it is built.
pub(crate) fn config(data_dir: &Path, window_tokens: u64) -> AgentBuildConfig {
    let mut options = EngineOptions::default();
    options.context.overflow = Overflow::Slide;
    let models = StaticModels::new("scripted", Arc::new(ScriptedModel), window_tokens);
    AgentBuildConfig::new().models(Arc::new(models)).options(options).store(data_dir.to_owned())
}

/// A prompt of `prompt` bytes that is answered with `answer` bytes in one piece.
pub(crate) fn prompt(prompt: usize, answer: usize) -> String {
    let script = format!("@chunks {answer} @long {answer} @note ");
    format!("{script}{}", "x".repeat(prompt - script.len()))
}

/// The lines of the events after `after`.
pub(crate) async fn lines(agent: &Agent, session_id: SessionId, mut after: u64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    loop {
        let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(session_id, after) };
        let page = agent.service().events(request).await.unwrap();
        if page.items.is_empty() {
            return lines;
        }
        after += page.items.len() as u64;
        lines.extend(page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()));
    }
}

/// The files beneath a folder.
pub(crate) fn files(root: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// Bytes of the files beneath a folder.
pub(crate) fn bytes(root: &Path) -> u64 {
    files(root).iter().map(|path| std::fs::metadata(path).unwrap().len()).sum()
}

pub(crate) fn median<T: Ord + Copy>(values: &mut [T]) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

pub(crate) fn ratio(work: Duration, floor: Duration) -> f64 {
    work.as_secs_f64() / floor.as_secs_f64()
}

/// A runtime on this thread.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Runs this program again, in a role and at a place.
pub(crate) fn child(role: &str, place: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(ROLE, role).env(PLACE, place).stdout(Stdio::piped()).spawn().unwrap()
}

/// The role of this process, and its place.
pub(crate) fn role() -> Option<(String, PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os(PLACE)?.into()))
}

/// The whole numbers that a child prints, once it has ended well.
pub(crate) fn numbers_of(role: &str, place: &Path) -> Vec<u64> {
    let output = child(role, place).wait_with_output().unwrap();
    assert!(output.status.success(), "{role} failed");
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// The most memory that this process ever had, in bytes.
pub(crate) fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}
