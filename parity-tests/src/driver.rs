//! What a surface's driver does: sends an operation in that surface's own way, and brings its answer back.
//!
//! A driver checks what is native to its surface (exit codes, statuses, numbers) against the error table; it
//! knows nothing of scenarios and expectations.

use std::{path::PathBuf, sync::mpsc, time::Duration};

use serde_json::{Map, Value};

/// How long anything may take, so that a lost answer fails a trial instead of stopping it. Nothing is timed by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An answer's JSON to the letter, or the body of a refusal.
pub type Answer = Result<String, Value>;

/// An answer that is still to come. An error says that the surface itself broke its contract.
pub struct Pending(mpsc::Receiver<Result<Answer, String>>);

impl Pending {
    /// An answer that comes through the returned sender.
    pub fn channel() -> (mpsc::Sender<Result<Answer, String>>, Self) {
        let (sender, receiver) = mpsc::channel();
        (sender, Self(receiver))
    }

    /// An answer that is there already.
    pub fn ready(answer: Answer) -> Self {
        let (sender, pending) = Self::channel();
        // The receiver is in `pending`, so this cannot fail.
        drop(sender.send(Ok(answer)));
        pending
    }

    /// Waits for the answer.
    pub fn wait(self) -> Result<Answer, String> {
        match self.0.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("no answer came within {} s", PATIENCE.as_secs())),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err("the process ended without an answer".to_owned()),
        }
    }
}

/// Where and how a trial's processes run.
#[derive(Clone, Debug)]
pub struct Place {
    /// The folder with the build's binaries.
    pub binaries: PathBuf,
    /// A fresh folder, gone after the trial.
    pub folder: PathBuf,
    /// The scenario's options, by section.
    pub config: Map<String, Value>,
}

/// Drives one surface.
pub trait Driver {
    /// Why this surface does not have an operation that others have: its steps are passed over, and counted.
    fn passes_over(&self, _operation: &str) -> Option<&'static str> {
        None
    }

    /// Sends an operation, or `run`: a session and its first turn in one go.
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String>;

    /// Follows a session from after `since_seq` until a line of this type comes, and answers with that line.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Answer, String>;

    /// Ends the processes and starts anew over the same data.
    fn restart(&mut self) -> Result<(), String>;
}
