//! The projection: each session as files that people and other programs read. `docs/projection.md` says what stands in
//! them.
//!
//! All of it is derived, and nothing reads it back but the checkpoint that says how far it has come. It never decides
//! anything, and a disk that fails here stands in nobody's way.

mod files;
mod transcript;

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf, sync::Arc};

use files::{Files, RealFiles};
use serde::{Deserialize, Serialize};
use transcript::Transcript;

use crate::{
    ids::{Seq, SessionId, TurnNumber},
    service::SessionSummary,
    store::Frame,
};

/// Who reads the journals for the projection.
pub(crate) const READER: &str = "projection";

const EVENTS: &str = "events.jsonl";
const TRANSCRIPT: &str = "transcript.md";
const SESSION: &str = "session.json";
const CHECKPOINT: &str = "checkpoint";
/// The list of all sessions.
const INDEX: &str = "index.json";
/// Keeps what was said out of the project's repository, until its owner decides otherwise by changing this file.
const IGNORE: &str = ".gitignore";
/// Which store the files are made from.
const STORE: &str = "store";
/// Bytes of its name at most.
const MARK_BYTES_MAX: usize = 128;
/// Why files are not written, and what helps.
pub(crate) const ANOTHERS: &str = "the folder holds the files of another data directory";
pub(crate) const ANOTHERS_REMEDY: &str = "Set `projection.dir` to another folder.";
/// Frames between two moments at which this thread lets others run. A turn that wants its core would otherwise wait for
/// as long as the scheduler lets any thread run on, however low its priority.
const FRAMES_AT_ONCE: usize = 16;
/// What a file is called until it is whole.
const UNFINISHED: &str = ".new";

/// How far a session's files have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Checkpoint {
    /// The last record that stands in them.
    seq: Seq,
    /// Bytes of the events and of the transcript up to it.
    event_bytes: u64,
    transcript_bytes: u64,
    /// Where the transcript has to read on from: a step whose results are not all there is read again.
    fold_after: Seq,
    /// The last turn in the transcript.
    turn: Option<TurnNumber>,
}

/// The files of all sessions.
#[derive(Clone)]
pub(crate) struct Projection {
    files: Arc<dyn Files>,
    /// What tells the store of these sessions from every other.
    store: Option<String>,
}

impl Projection {
    /// The projection of a store in `dir`, which is made when there is something to write.
    pub(crate) fn new(dir: PathBuf, store: Option<String>) -> Self {
        Self { files: Arc::new(RealFiles::new(dir)), store }
    }

    /// Whether the folder holds the files of another store.
    pub(crate) fn is_anothers(&self) -> io::Result<bool> {
        Ok(self.mark()?.is_some_and(|found| self.line().is_none_or(|line| line.as_bytes() != found)))
    }

    /// The line that names the store of the files. One that a power failure left empty or in pieces names none.
    fn mark(&self) -> io::Result<Option<Vec<u8>>> {
        let is_whole = |line: &Vec<u8>| {
            let name = line.strip_suffix(b"\n").unwrap_or_default();
            (1..=MARK_BYTES_MAX).contains(&name.len()) && name.iter().all(u8::is_ascii_graphic)
        };
        Ok(self.files.read(STORE)?.filter(is_whole))
    }

    fn line(&self) -> Option<String> {
        self.store.as_ref().map(|store| format!("{store}\n"))
    }

    /// Makes sure that the folder is this store's. What another one keeps there is not written over, and not removed.
    fn claim(&self) -> io::Result<()> {
        if self.is_anothers()? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{ANOTHERS}; {ANOTHERS_REMEDY}")));
        }
        if let Some(line) = self.line()
            && self.mark()?.is_none()
        {
            self.files.make_dir("")?;
            // Whole and durable before it has its name: nothing else says whose the files are.
            let unfinished = format!("{STORE}{UNFINISHED}");
            self.files.create(&unfinished)?;
            self.files.append(&unfinished, 0, line.as_bytes())?;
            self.files.sync(&unfinished)?;
            self.files.rename(&unfinished, STORE)?;
            self.files.sync("")?;
        }
        Ok(())
    }

    /// Begins to write what a session's journal holds up to `summary.last_seq`. It goes on behind what is there, or
    /// anew where that is asked for or nothing there can be trusted.
    pub(crate) fn session(&self, summary: Arc<SessionSummary>, is_anew: bool) -> io::Result<SessionProjection> {
        self.claim()?;
        let folder = folder(summary.session_id);
        let found = if is_anew { None } else { self.checkpoint(&folder)? };
        let from = found.filter(|from| from.seq <= summary.last_seq);
        let suffix = if from.is_some() { "" } else { UNFINISHED };
        let at = from.unwrap_or_default();
        self.files.make_dir(&folder)?;
        if from.is_none() {
            // Until the new files stand, those that are there are not gone on with.
            self.files.remove(&format!("{folder}/{CHECKPOINT}"))?;
        }
        for (name, bytes) in [(EVENTS, at.event_bytes), (TRANSCRIPT, at.transcript_bytes)] {
            let path = format!("{folder}/{name}{suffix}");
            if from.is_some() { self.files.cut(&path, bytes)? } else { self.files.create(&path)? }
        }
        let transcript = Transcript::new(summary.session_id, &at);
        Ok(SessionProjection { files: self.files.clone(), summary, folder, at, suffix, transcript })
    }

    /// What a session's files have come to, where they are as long as their checkpoint says.
    fn checkpoint(&self, folder: &str) -> io::Result<Option<Checkpoint>> {
        let Some(bytes) = self.files.read(&format!("{folder}/{CHECKPOINT}"))? else { return Ok(None) };
        let Ok(at) = serde_json::from_slice::<Checkpoint>(&bytes) else { return Ok(None) };
        let is_long = |name, bytes| Ok::<_, io::Error>(self.files.len(&format!("{folder}/{name}"))? >= Some(bytes));
        let has_session = self.files.len(&format!("{folder}/{SESSION}"))?.is_some();
        let is_whole = has_session && is_long(EVENTS, at.event_bytes)? && is_long(TRANSCRIPT, at.transcript_bytes)?;
        Ok(is_whole.then_some(at))
    }

    /// The seq up to which a session's files are whole; 0 where they are not.
    pub(crate) fn reached(&self, session_id: SessionId) -> io::Result<Seq> {
        Ok(self.checkpoint(&folder(session_id))?.map_or(0, |at| at.seq))
    }

    /// Removes a session's files. In the folder of another store there are none of it.
    pub(crate) fn remove(&self, session_id: SessionId) -> io::Result<()> {
        if self.is_anothers()? { Ok(()) } else { self.files.remove_dir(&folder(session_id)) }
    }

    /// The sessions that have files.
    pub(crate) fn sessions(&self) -> io::Result<Vec<SessionId>> {
        self.claim()?;
        let names = self.files.list("sessions")?;
        let parsed = names.iter().filter_map(|name| name.parse().ok().filter(|id: &SessionId| id.to_string() == *name));
        Ok(parsed.collect())
    }

    /// Whether the list of all sessions is there.
    pub(crate) fn has_list(&self) -> io::Result<bool> {
        Ok(self.files.len(INDEX)?.is_some())
    }

    /// Bytes of the list of all sessions.
    pub(crate) fn list_bytes(&self) -> io::Result<u64> {
        Ok(self.files.len(INDEX)?.unwrap_or(0))
    }

    /// Writes the list of all sessions.
    pub(crate) fn write_list(&self, sessions: &[SessionSummary]) -> io::Result<()> {
        self.claim()?;
        self.files.make_dir("")?;
        if self.files.len(IGNORE)?.is_none() {
            self.replace(IGNORE, b"*\n")?;
        }
        let mut out = br#"{"sessions":["#.to_vec();
        for (at, session) in sessions.iter().enumerate() {
            out.extend_from_slice(if at == 0 { b"\n" } else { b",\n" });
            out.extend(serde_json::to_vec(session)?);
        }
        out.extend_from_slice(b"\n]}\n");
        self.replace(INDEX, &out)
    }

    fn replace(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        replace(self.files.as_ref(), path, bytes)
    }
}

fn folder(session_id: SessionId) -> String {
    format!("sessions/{session_id}")
}

/// Puts a file in the place of another: whoever reads it sees the old one or the new one.
fn replace(files: &dyn Files, path: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!("{path}{UNFINISHED}");
    files.create(&unfinished)?;
    files.append(&unfinished, 0, bytes)?;
    files.rename(&unfinished, path)
}

/// One session's files while they are written.
pub(crate) struct SessionProjection {
    files: Arc<dyn Files>,
    summary: Arc<SessionSummary>,
    folder: String,
    at: Checkpoint,
    /// What the names of the growing files end with, until they are whole.
    suffix: &'static str,
    transcript: Transcript,
}

impl SessionProjection {
    /// The record after which frames are wanted next; `None` where all are there.
    pub(crate) fn wants(&self) -> Option<Seq> {
        (self.at.seq < self.summary.last_seq).then(|| self.transcript.read_to())
    }

    /// Takes frames in, in order; what lies beyond the summary is left for the next time.
    pub(crate) fn push(&mut self, frames: &[Frame]) -> io::Result<()> {
        let (mut lines, mut text) = (Vec::new(), String::new());
        let last_seq = self.summary.last_seq;
        for (at, frame) in frames.iter().take_while(|frame| frame.seq <= last_seq).enumerate() {
            if at % FRAMES_AT_ONCE == FRAMES_AT_ONCE - 1 {
                std::thread::yield_now();
            }
            self.transcript.push(frame, &mut text)?;
            if frame.seq > self.at.seq {
                lines.extend_from_slice(&frame.line);
                lines.push(b'\n');
                self.at.seq = frame.seq;
            }
        }
        self.append(EVENTS, self.at.event_bytes, &lines)?;
        self.append(TRANSCRIPT, self.at.transcript_bytes, text.as_bytes())?;
        self.at.event_bytes += lines.len() as u64;
        self.at.transcript_bytes += text.len() as u64;
        Ok(())
    }

    fn append(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.files.append(&format!("{}/{name}{}", self.folder, self.suffix), offset, bytes)
    }

    /// All frames are there: names what was made anew, and says how far it has come. Answers with the last record.
    pub(crate) fn finish(mut self) -> io::Result<Seq> {
        let path = |name: &str| format!("{}/{name}", self.folder);
        if !self.suffix.is_empty() {
            for name in [EVENTS, TRANSCRIPT] {
                self.files.rename(&format!("{}{}", path(name), self.suffix), &path(name))?;
            }
        }
        let mut session = serde_json::to_vec_pretty(self.summary.as_ref())?;
        session.push(b'\n');
        replace(self.files.as_ref(), &path(SESSION), &session)?;
        (self.at.fold_after, self.at.turn) = self.transcript.state();
        replace(self.files.as_ref(), &path(CHECKPOINT), &serde_json::to_vec(&self.at)?)?;
        Ok(self.at.seq)
    }
}
