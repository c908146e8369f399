//! Signals that end a process, alike for every command: SIGTERM, SIGHUP, and Ctrl-C unless the command uses it itself.
//!
//! One thread takes them all, from before anything is opened, so none is lost and no command has to watch for them.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Signal as ProcessSignal, getpid, kill_process};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
};

use crate::error::exit_code_of_leaving;

/// Longest time until a process ends after its second signal, whatever it waits for.
const LAST: Duration = Duration::from_secs(3);

/// Reason why a command ends before it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The process must end. Ctrl-C at a server means that, too.
    Terminated,
    /// The terminal was closed. That says so several times, by the kernel and by the shell, and hurries nothing: the turns of
    /// attached commands have as much time as after the first signal of another kind.
    HungUp,
    /// The user leaves the command by Ctrl-C.
    Left,
}

impl End {
    /// Returns the command's exit code.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Self::Terminated | Self::HungUp => 0,
            Self::Left => exit_code_of_leaving(),
        }
    }
}

/// Ctrl-C for a command that uses it itself, from [`Self::listen`] until this is dropped.
pub(crate) struct Interrupts {
    presses: mpsc::UnboundedReceiver<()>,
    ctrl_c: CtrlC,
}

/// The sending side of [`Interrupts`].
#[derive(Clone)]
struct CtrlC {
    presses: mpsc::UnboundedSender<()>,
    is_used: Arc<AtomicBool>,
}

impl Interrupts {
    /// Takes the presses from `presses`, or from the process if there is none.
    pub(crate) fn new(presses: Option<mpsc::UnboundedReceiver<()>>) -> Self {
        let (sender, own) = mpsc::unbounded_channel();
        let ctrl_c = CtrlC { presses: sender, is_used: Arc::default() };
        Self { presses: presses.unwrap_or(own), ctrl_c }
    }

    /// Takes Ctrl-C over from the process, which it would end.
    pub(crate) fn listen(&self) {
        self.ctrl_c.is_used.store(true, Ordering::Relaxed);
    }

    /// Waits for the next press.
    pub(crate) async fn next(&mut self) {
        if self.presses.recv().await.is_none() {
            std::future::pending().await
        }
    }
}

/// Ends that signals ask for. Once this is made, none of them kills the process.
pub(crate) struct Ends {
    ends: mpsc::UnboundedReceiver<End>,
    /// How many were received, without those of a closed terminal.
    asked: u32,
}

impl Ends {
    /// Begins to take the signals.
    pub(crate) fn new(is_server: bool, interrupts: &Interrupts) -> io::Result<Self> {
        // Started by `nohup`, or in the background by a script: the signal is not for this process.
        // It stays ignored then, also in the programs that this one starts.
        let leaves = !was_ignored(2);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (mut terminate, mut hang_up, mut interrupt) = {
            let _inside = runtime.enter();
            let hang_up = (!was_ignored(1)).then(|| signal(SignalKind::hangup())).transpose()?;
            (signal(SignalKind::terminate())?, hang_up, signal(SignalKind::interrupt())?)
        };
        let (sender, ends) = mpsc::unbounded_channel();
        let ctrl_c = interrupts.ctrl_c.clone();
        let is_used = move || ctrl_c.is_used.load(Ordering::Relaxed) && ctrl_c.presses.send(()).is_ok();
        let watch = async move {
            let mut is_second = false;
            loop {
                let end = tokio::select! {
                    () = sender.closed() => return,
                    _ = terminate.recv() => End::Terminated,
                    () = received(&mut hang_up) => End::HungUp,
                    _ = interrupt.recv() => match is_server {
                        true => End::Terminated,
                        false if !is_used() && leaves => End::Left,
                        false => continue,
                    },
                };
                // Nobody reads it if the command has just ended.
                sender.send(end).ok();
                if end == End::HungUp {
                    continue;
                }
                if is_second {
                    tokio::time::sleep(LAST).await;
                    std::process::exit(end.exit_code().into());
                }
                is_second = true;
            }
        };
        // A thread of its own: the others may be blocked by a reader of standard output that does not read.
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(watch))?;
        Ok(Self { ends, asked: 0 })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> End {
        let Some(end) = self.ends.recv().await else { return std::future::pending().await };
        self.asked += u32::from(end != End::HungUp);
        end
    }

    /// Waits until the process is asked to end for the second time, which it then does at once.
    pub(crate) async fn second(&mut self) {
        while self.asked < 2 {
            self.next().await;
        }
    }
}

/// Ends this process as its terminal's end does, also if it was started to ignore that signal.
pub(crate) fn hang_up() {
    let signal = if was_ignored(1) { ProcessSignal::TERM } else { ProcessSignal::HUP };
    // Signalling our own process cannot fail.
    kill_process(getpid(), signal).ok();
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Returns true if the process was started to ignore the signal of this number. Only Linux can say.
fn was_ignored(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn send(signal: ProcessSignal) {
        kill_process(getpid(), signal).unwrap();
    }

    /// The shell repeats what the kernel has said already, and a session's end follows with SIGTERM.
    #[tokio::test]
    async fn a_closed_terminal_hurries_nothing_however_often_it_says_so() {
        let mut ends = Ends::new(true, &Interrupts::new(None)).unwrap();
        if !was_ignored(1) {
            for _ in 0..3 {
                send(ProcessSignal::HUP);
                assert_eq!(ends.next().await, End::HungUp);
            }
        }
        send(ProcessSignal::TERM);
        assert_eq!(ends.next().await, End::Terminated);
        assert!(ends.second().now_or_never().is_none());
    }
}
