//! Process of a server: its scrubbed environment, its error output, its end.

use std::{
    collections::{BTreeMap, VecDeque},
    ffi::OsString,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use meerkat_service::{clock::Clock, redact::Secrets};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::former::Former;
use crate::launcher::SERVE;

/// Variables that every server gets; those that begin with `LC_` too.
const PASSED: [&str; 5] = ["PATH", "HOME", "LANG", "TMPDIR", "USER"];
/// Bytes of a line of error output; the rest of a longer one is dropped.
const LINE_BYTES_MAX: usize = 4 * 1024;
/// Bytes of error output that are read at once.
const READ_BYTES: usize = 4 * 1024;
/// Lines of error output that are logged within one window.
const LINES_PER_WINDOW: u32 = 100;
/// Seconds of such a window.
const WINDOW: Duration = Duration::from_secs(10);
/// Lines of error output that an error quotes.
const QUOTED_LINES: usize = 3;
/// Bytes of a quoted line.
const QUOTED_BYTES_MAX: usize = 256;
/// Seconds that a supervisor gets to end everything; it needs less than four.
const END: Duration = Duration::from_secs(6);

/// Command of a server, with its variables replaced.
#[derive(Clone)]
pub(super) struct Program {
    /// Program and arguments.
    pub(super) command: Vec<OsString>,
    pub(super) environment: BTreeMap<String, String>,
    /// Folder that it starts in; without one, that of this program.
    pub(super) folder: Option<PathBuf>,
    /// Has the lock that it holds.
    pub(super) former: Arc<Former>,
}

/// Keeps of an environment what every server gets.
pub(super) fn scrub(environment: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_passed = |name: &str| PASSED.contains(&name) || name.starts_with("LC_");
    environment.iter().filter(|(name, _)| is_passed(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Checks that this program can supervise a server, by a re-exec of itself.
pub(super) fn check_supervisor() -> Result<(), String> {
    match crate::launcher::is_installed() {
        true => Ok(()),
        false => Err("this program starts no servers: its main must begin with meerkat_tools::launcher()".to_owned()),
    }
}

/// The newest lines of a server's error output, and how it ended.
#[derive(Clone, Default)]
pub(super) struct LastWords(Arc<Mutex<VecDeque<String>>>);

impl LastWords {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == QUOTED_LINES {
            lines.pop_front();
        }
        lines.push_back(line[..line.floor_char_boundary(QUOTED_BYTES_MAX)].to_owned());
    }

    /// Returns them as the end of an error's text; empty if there are none.
    pub(super) fn quote(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        if lines.is_empty() { String::new() } else { format!("; it said: {}", lines.join(" / ")) }
    }
}

/// Started process.
pub(super) struct Started {
    pub(super) input: ChildStdin,
    pub(super) output: ChildStdout,
    pub(super) last_words: LastWords,
    /// Fires when the process has ended and its error output is read.
    pub(super) ended: CancellationToken,
}

/// Part of a server that its tasks need.
pub(super) struct Context {
    pub(super) server: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) secrets: Secrets,
    pub(super) tasks: TaskTracker,
}

/// Starts a server. It is ended once `closed` fires or its input is dropped.
pub(super) fn start(program: &Program, context: Context, closed: CancellationToken) -> Result<Started, String> {
    let own = crate::confine::program().map_err(|error| format!("this program cannot be found: {error}"))?;
    let mut command = Command::new(own);
    let lock = program.former.lock.get().map(|lock| lock.as_os_str()).unwrap_or_default();
    if let Some(folder) = &program.folder {
        command.current_dir(folder);
    }
    let mut child = command
        .arg(SERVE)
        .arg(lock)
        .args(&program.command)
        .env_clear()
        .envs(&program.environment)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("its supervisor cannot be started: {error}"))?;
    let (Some(input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err("it has no pipes".to_owned());
    };
    let (last_words, ended) = (LastWords::default(), CancellationToken::new());
    let tasks = context.tasks.clone();
    let (words, end) = (last_words.clone(), ended.clone().drop_guard());
    tasks.spawn(async move {
        let clock = context.clock.clone();
        let status = tokio::join!(wait(&mut child, clock, closed), log(errors, &context, &words)).0;
        tracing::debug!(target: "servers", server = context.server, status, "ended");
        words.push(&status);
        drop(end);
    });
    Ok(Started { input, output, last_words, ended })
}

async fn wait(child: &mut Child, clock: Arc<dyn Clock>, closed: CancellationToken) -> String {
    let late = async {
        closed.cancelled().await;
        clock.sleep(END).await;
    };
    let status = tokio::select! {
        status = child.wait() => status,
        () = late => {
            child.start_kill().ok();
            child.wait().await
        }
    };
    status.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// Logs the error output, bounded in bytes and rate. It is never shown as ours.
async fn log(mut errors: ChildStderr, context: &Context, words: &LastWords) {
    let (mut buffer, mut line) = ([0; READ_BYTES], Vec::new());
    let mut window = (context.clock.elapsed(), 0_u32);
    while let Ok(bytes @ 1..) = errors.read(&mut buffer).await {
        for byte in &buffer[..bytes] {
            if *byte == b'\n' {
                log_line(&line, context, words, &mut window);
                line.clear();
            } else if line.len() < LINE_BYTES_MAX {
                line.push(*byte);
            }
        }
    }
    if !line.is_empty() {
        log_line(&line, context, words, &mut window);
    }
}

/// Logs a line, unless there were too many in the `window`, which is its beginning and their number.
fn log_line(line: &[u8], context: &Context, words: &LastWords, window: &mut (Duration, u32)) {
    let line = String::from_utf8_lossy(line);
    let line = context.secrets.redact(&line);
    words.push(&line);
    let now = context.clock.elapsed();
    if now.saturating_sub(window.0) > WINDOW {
        let left_out = window.1.saturating_sub(LINES_PER_WINDOW);
        if left_out > 0 {
            tracing::info!(target: "servers", server = context.server, left_out, "it said more than is logged");
        }
        *window = (now, 0);
    }
    window.1 = window.1.saturating_add(1);
    if window.1 <= LINES_PER_WINDOW {
        tracing::info!(target: "servers", server = context.server, "{}", line.escape_debug());
    }
}
