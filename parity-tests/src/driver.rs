//! A surface's driver: sends an operation in that surface's own way, and brings its answer back.
//!
//! A driver checks what is native to its surface (exit codes, statuses, numbers) against the error table; it
//! knows nothing of scenarios and expectations.

use std::{path::PathBuf, sync::mpsc, time::Duration};

use serde_json::{Map, Value};

/// How long anything may take, so that a lost answer fails a trial instead of stopping it. Nothing is timed by it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// An answer's JSON to the letter, or the body of a refusal.
pub type Answer = Result<String, Value>;

/// Lines of events, or the body of a refusal.
pub type Lines = Result<Vec<String>, Value>;

/// A pending answer. An error means that the surface itself broke its contract.
pub struct Pending(mpsc::Receiver<Result<Answer, String>>);

impl Pending {
    /// An answer that comes through the returned sender.
    pub fn channel() -> (mpsc::Sender<Result<Answer, String>>, Self) {
        let (sender, receiver) = mpsc::channel();
        (sender, Self(receiver))
    }

    /// A known answer.
    pub fn ready(answer: Answer) -> Self {
        let (sender, pending) = Self::channel();
        // The receiver is in `pending`, so this cannot fail.
        drop(sender.send(Ok(answer)));
        pending
    }

    /// Waits until nobody can answer any more; `false` if that takes too long.
    pub fn is_over(self) -> bool {
        matches!(self.0.recv_timeout(PATIENCE), Err(mpsc::RecvTimeoutError::Disconnected))
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

/// Folder and options of a trial's processes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The folder with the build's binaries.
    pub binaries: PathBuf,
    /// A fresh folder, deleted after the trial.
    pub folder: PathBuf,
    /// The scenario's options, by section.
    pub config: Map<String, Value>,
    /// Whether the program runs as on its first start: with the real clock, random ids, its own data directory and no
    /// optional flag.
    pub is_plain: bool,
    /// The database of the sessions, if they are in one.
    pub database: Option<Database>,
}

/// A database, and the node that the trial's process is.
#[derive(Clone, Debug)]
pub struct Database {
    /// Its address.
    pub url: String,
    /// The trial's own schema.
    pub schema: String,
    /// The node's number, from 0.
    pub node: u8,
}

impl Database {
    /// The keys of the section `store` that name it.
    pub(crate) fn keys(&self) -> Map<String, Value> {
        let node = format!("node-{}", self.node);
        let keys = [("url", &self.url), ("schema", &self.schema), ("node", &node)];
        keys.into_iter().map(|(key, value)| (key.to_owned(), value.as_str().into())).collect()
    }
}

impl Place {
    /// The number of the node.
    pub(crate) fn node(&self) -> u8 {
        self.database.as_ref().map_or(0, |database| database.node)
    }

    /// The data directory, which outlives the processes.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.folder.join(format!("data-{}", self.node()))
    }
}

/// Drives one surface.
pub trait Driver {
    /// Why this surface does not have an operation that others have: its steps are passed over, and counted.
    fn passes_over(&self, _operation: &str) -> Option<&'static str> {
        None
    }

    /// Sends an operation, or `run`: a session and its first turn in one go.
    fn send(&mut self, operation: &str, params: &Map<String, Value>) -> Result<Pending, String>;

    /// Follows a session from after `since_seq` until a line of this type comes. Answers with every line up to it, or
    /// with it alone where the surface shows no other.
    fn follow(&mut self, session_id: &str, since_seq: u64, until: &str) -> Result<Lines, String>;

    /// `run`, whose turn shows its events while it runs, in this surface's own way: the lines from the turn's
    /// acceptance until one of this type.
    fn stream(&mut self, params: &Map<String, Value>, until: &str) -> Result<Lines, String> {
        let mut turn = match open(self, params)? {
            Ok(turn) => turn,
            Err(body) => return Ok(Err(body)),
        };
        turn.insert("wait".to_owned(), false.into());
        let accepted = match self.send("start_turn", &turn)?.wait()? {
            Ok(accepted) => member(&accepted, "seq")?.as_u64().ok_or("seq is no number")?,
            Err(body) => return Ok(Err(body)),
        };
        self.follow(turn["session_id"].as_str().unwrap_or_default(), accepted - 1, until)
    }

    /// Whether the session of `stream` ends with its process if nothing is stored.
    fn streams_apart(&self) -> bool {
        false
    }

    /// Cancels the request for the last turn, if the surface has a way besides `interrupt`.
    fn take_turn_back(&mut self) -> Result<(), String> {
        Err("nothing can be taken back here".to_owned())
    }

    /// Ends the processes in an orderly way; a driver that is dropped kills them.
    fn end(self: Box<Self>) -> Result<(), String>;
}

/// Makes the session of a `run`, and answers with the parameters of its turn.
pub(crate) fn open<D: Driver + ?Sized>(
    driver: &mut D,
    params: &Map<String, Value>,
) -> Result<Result<Map<String, Value>, Value>, String> {
    let mut create = params.clone();
    let mut turn = Map::from_iter(create.remove_entry("prompt"));
    let created = match driver.send("create_session", &create)?.wait()? {
        Ok(created) => created,
        Err(body) => return Ok(Err(body)),
    };
    turn.insert("session_id".to_owned(), member(&created, "session_id")?);
    Ok(Ok(turn))
}

/// A member of an answer.
pub(crate) fn member(answer: &str, name: &str) -> Result<Value, String> {
    let mut answer: Value = serde_json::from_str(answer).map_err(|error| format!("{answer}: {error}"))?;
    Ok(answer[name].take())
}
