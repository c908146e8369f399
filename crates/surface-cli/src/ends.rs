//! The signals that end a process, the same for every command. Ctrl-C is not among them: commands give it a meaning.

use std::{io, time::Duration};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a process that was told twice to end may take, whatever it waits for.
const LAST: Duration = Duration::from_secs(3);

/// SIGTERM and SIGHUP, and for a server SIGINT. From when this is made none of them kills the process.
pub(crate) struct Ends {
    terminate: Signal,
    /// Absent where the process was started to ignore it, as `nohup` does.
    hang_up: Option<Signal>,
    interrupt: Option<Signal>,
}

impl Ends {
    /// The signals that end a command.
    pub(crate) fn new(is_server: bool) -> io::Result<Self> {
        let ends = Self::caught(is_server)?;
        // A thread of its own: the others may be held by a reader of standard output that does not read.
        let leave = move || leave_when_told_twice(is_server);
        std::thread::Builder::new().name("ends".to_owned()).spawn(leave)?;
        Ok(ends)
    }

    /// Those that come from now on.
    pub(crate) fn caught(is_server: bool) -> io::Result<Self> {
        let hang_up = (!ignores_hang_up()).then(|| signal(SignalKind::hangup())).transpose()?;
        let interrupt = is_server.then(|| signal(SignalKind::interrupt())).transpose()?;
        Ok(Self { terminate: signal(SignalKind::terminate())?, hang_up, interrupt })
    }

    /// Waits for one of them.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            () = received(&mut self.hang_up) => {}
            () = received(&mut self.interrupt) => {}
        }
    }
}

/// Ends the process some time after the second signal, if it has not ended by then.
fn leave_when_told_twice(is_server: bool) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        let Ok(mut ends) = Ends::caught(is_server) else { return };
        ends.next().await;
        ends.next().await;
        tokio::time::sleep(LAST).await;
        std::process::exit(0);
    });
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP, the first signal, is ignored. Only Linux tells.
fn ignores_hang_up() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}
