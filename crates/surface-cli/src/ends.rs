//! The signals that end a process, for every command in one way: SIGTERM, SIGHUP, and Ctrl-C where the command gives that
//! no meaning of its own.
//!
//! One thread takes them all, from before anything is opened, so that none is lost and none needs an attentive command.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use crate::error::exit_code_of_leaving;

/// How long a process that was told twice to end may take, whatever it waits for.
const LAST: Duration = Duration::from_secs(3);

/// Why a command ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its process is to end.
    Told,
    /// Its user leaves it by Ctrl-C. Ctrl-C at a server tells that to end.
    Left,
}

impl End {
    /// The exit code of a command that ended so.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Told => 0,
            Self::Left => exit_code_of_leaving(),
        }
    }
}

/// The end that signals ask for. From when this is made none of them kills the process.
pub(crate) struct Ends(mpsc::UnboundedReceiver<End>);

/// Ctrl-C of a command that gives it a meaning, from when it [takes](Self::take) it until it no longer listens.
#[derive(Clone, Default)]
pub(crate) struct CtrlC(Arc<OnceLock<mpsc::UnboundedSender<()>>>);

impl CtrlC {
    /// Takes Ctrl-C over from the process, once.
    pub(crate) fn take(&self) -> mpsc::UnboundedReceiver<()> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // A second taker would have a channel that is closed, and Ctrl-C stays with the first.
        self.0.set(sender).ok();
        receiver
    }

    /// Passes it on to the command; `false` if that does not listen.
    fn pass_on(&self) -> bool {
        self.0.get().is_some_and(|command| command.send(()).is_ok())
    }
}

impl Ends {
    /// Begins to take the signals.
    pub(crate) fn new(is_server: bool, ctrl_c: CtrlC) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let caught = {
            let _inside = runtime.enter();
            Caught {
                terminate: signal(SignalKind::terminate())?,
                hang_up: (!ignores_hang_up()).then(|| signal(SignalKind::hangup())).transpose()?,
                interrupt: signal(SignalKind::interrupt())?,
                is_server,
                ctrl_c,
            }
        };
        let (sender, ends) = mpsc::unbounded_channel();
        // A thread of its own: the others may be held by a reader of standard output that does not read.
        let watch = move || runtime.block_on(caught.watch(sender));
        std::thread::Builder::new().name("ends".to_owned()).spawn(watch)?;
        Ok(Self(ends))
    }

    /// Waits for one of them.
    pub(crate) async fn next(&mut self) -> End {
        match self.0.recv().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }
}

/// The signals as they come.
struct Caught {
    terminate: Signal,
    /// Absent where the process was started to ignore it, as `nohup` does.
    hang_up: Option<Signal>,
    interrupt: Signal,
    is_server: bool,
    ctrl_c: CtrlC,
}

impl Caught {
    /// Hands the signals on; some time after the second one it ends the process, if that has not ended by then.
    async fn watch(mut self, ends: mpsc::UnboundedSender<End>) {
        for count in 1.. {
            let end = tokio::select! {
                () = ends.closed() => return,
                end = self.next() => end,
            };
            // Nobody reads it where the command has just ended.
            ends.send(end).ok();
            if count == 2 {
                tokio::time::sleep(LAST).await;
                std::process::exit(end.exit_code().into());
            }
        }
    }

    async fn next(&mut self) -> End {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return End::Told,
                () = received(&mut self.hang_up) => return End::Told,
                _ = self.interrupt.recv() => match self.is_server {
                    true => return End::Told,
                    false if !self.ctrl_c.pass_on() => return End::Left,
                    false => {}
                },
            }
        }
    }
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
