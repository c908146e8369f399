//! The projection: each session as files for people and other programs. `docs/projection.md` describes them.
//!
//! All of it is derived, and only its checkpoint is read back. It never decides anything, and nothing else fails with
//! its disk.

mod files;
mod transcript;

#[cfg(test)]
mod tests;

use std::{io, path::PathBuf, sync::Arc};

use files::{Files, RealFiles};
use serde::{Deserialize, Serialize};
use transcript::Transcript;

pub(crate) use transcript::Parent;

use crate::{
    ids::{Seq, SessionId, TurnNumber},
    service::SessionSummary,
    store::Frame,
};

/// Name of the reader.
pub(crate) const READER: &str = "projection";

const EVENTS: &str = "events.jsonl";
const TRANSCRIPT: &str = "transcript.md";
const SESSION: &str = "session.json";
const CHECKPOINT: &str = "checkpoint";
/// List of all sessions.
const INDEX: &str = "index.json";
/// Keeps the files out of the project's repository, until its owner changes this file.
const IGNORE: &str = ".gitignore";
/// File with the id of the store.
const STORE: &str = "store";
/// Most bytes of that id.
const MARK_BYTES_MAX: usize = 128;
/// Reason for which files are not written, and advice.
pub(crate) const ANOTHERS: &str = "the folder holds the files of another data directory";
pub(crate) const ANOTHERS_REMEDY: &str = "Set `projection.dir` to another folder.";
/// Frames after which this thread yields. Otherwise a turn might wait for a whole time slice, in spite of this thread's
/// low priority.
const FRAMES_AT_ONCE: usize = 16;
/// End of a file's name until it is whole.
const UNFINISHED: &str = ".new";

/// Progress of a session's files.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Checkpoint {
    /// Last record in them.
    seq: Seq,
    /// Bytes of the events and of the transcript up to it.
    event_bytes: u64,
    transcript_bytes: u64,
    /// Seq after which the transcript reads on: a step without all of its results is read again.
    fold_after: Seq,
    /// Last turn in the transcript.
    turn: Option<TurnNumber>,
    /// What a fork's files leave to those of its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<Parent>,
}

/// Files of all sessions.
#[derive(Clone)]
pub(crate) struct Projection {
    files: Arc<dyn Files>,
    /// Id of the store of these sessions.
    store: Option<String>,
}

impl Projection {
    /// Makes the projection of a store in `dir`, which is created by the first write. The folder that holds it is opened
    /// now: what replaces that later is not used.
    pub(crate) fn new(dir: PathBuf, store: Option<String>) -> Self {
        Self { files: Arc::new(RealFiles::new(&dir)), store }
    }

    /// Returns true if the folder holds the files of another store.
    pub(crate) fn is_anothers(&self) -> io::Result<bool> {
        Ok(self.mark()?.is_some_and(|found| self.line().is_none_or(|line| line.as_bytes() != found)))
    }

    /// Reads the line with the id of the files' store, unless a power failure left it empty or in pieces.
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

    /// Makes sure that the folder is this store's. Files of another one are not overwritten or removed.
    fn claim(&self) -> io::Result<()> {
        if self.is_anothers()? {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{ANOTHERS}; {ANOTHERS_REMEDY}")));
        }
        if let Some(line) = self.line()
            && self.mark()?.is_none()
        {
            self.files.make_dir("")?;
            // Whole and durable before it gets its name: nothing else names the files' store.
            let unfinished = format!("{STORE}{UNFINISHED}");
            self.files.create(&unfinished)?;
            self.files.append(&unfinished, 0, line.as_bytes())?;
            self.files.sync(&unfinished)?;
            self.files.rename(&unfinished, STORE)?;
            self.files.sync("")?;
        }
        Ok(())
    }

    /// Begins to write a session's journal up to `summary.last_seq`. Continues the existing files, unless a rebuild is
    /// wanted or they cannot be trusted. New files of a fork leave to its `parent` what both have.
    pub(crate) fn session(
        &self,
        summary: Arc<SessionSummary>,
        parent: Option<Parent>,
        is_rebuild: bool,
    ) -> io::Result<SessionProjection> {
        self.claim()?;
        let folder = folder(summary.session_id);
        let found = if is_rebuild { None } else { self.checkpoint(&folder)? };
        let from = found.filter(|from| from.seq <= summary.last_seq);
        let suffix = if from.is_some() { "" } else { UNFINISHED };
        let at = from.unwrap_or(Checkpoint { parent, ..Checkpoint::default() });
        self.files.make_dir(&folder)?;
        if from.is_none() {
            // The existing files must not be continued before the new ones are whole.
            self.files.remove(&format!("{folder}/{CHECKPOINT}"))?;
        }
        for (name, bytes) in [(EVENTS, at.event_bytes), (TRANSCRIPT, at.transcript_bytes)] {
            let path = format!("{folder}/{name}{suffix}");
            if from.is_some() { self.files.cut(&path, bytes)? } else { self.files.create(&path)? }
        }
        let transcript = Transcript::new(summary.session_id, at.parent, at.seq, at.fold_after, at.turn);
        Ok(SessionProjection { files: self.files.clone(), summary, folder, at, suffix, transcript })
    }

    /// Reads the checkpoint of a session's files, if they are as long as it says.
    fn checkpoint(&self, folder: &str) -> io::Result<Option<Checkpoint>> {
        let Some(bytes) = self.files.read(&format!("{folder}/{CHECKPOINT}"))? else { return Ok(None) };
        let Ok(at) = serde_json::from_slice::<Checkpoint>(&bytes) else { return Ok(None) };
        let is_long = |name, bytes| Ok::<_, io::Error>(self.files.len(&format!("{folder}/{name}"))? >= Some(bytes));
        let has_session = self.files.len(&format!("{folder}/{SESSION}"))?.is_some();
        let is_whole = has_session && is_long(EVENTS, at.event_bytes)? && is_long(TRANSCRIPT, at.transcript_bytes)?;
        Ok(is_whole.then_some(at))
    }

    /// Returns the seq up to which a session's files are whole; 0 if they are not.
    pub(crate) fn reached(&self, session_id: SessionId) -> io::Result<Seq> {
        Ok(self.checkpoint(&folder(session_id))?.map_or(0, |at| at.seq))
    }

    /// Returns the parent to which a session's files leave something; `None` if it has no whole files.
    pub(crate) fn parent(&self, session_id: SessionId) -> io::Result<Option<Option<Parent>>> {
        Ok(self.checkpoint(&folder(session_id))?.map(|at| at.parent))
    }

    /// Removes a session's files, unless the folder is another store's.
    pub(crate) fn remove(&self, session_id: SessionId) -> io::Result<()> {
        if self.is_anothers()? { Ok(()) } else { self.files.remove_dir(&folder(session_id)) }
    }

    /// Lists the sessions that have files.
    pub(crate) fn sessions(&self) -> io::Result<Vec<SessionId>> {
        self.claim()?;
        let names = self.files.list("sessions")?;
        let parsed = names.iter().filter_map(|name| name.parse().ok().filter(|id: &SessionId| id.to_string() == *name));
        Ok(parsed.collect())
    }

    /// Returns true if the list of all sessions exists.
    pub(crate) fn has_list(&self) -> io::Result<bool> {
        Ok(self.files.len(INDEX)?.is_some())
    }

    /// Returns the bytes of the list of all sessions.
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

/// Replaces a file: others see the old one or the new one.
fn replace(files: &dyn Files, path: &str, bytes: &[u8]) -> io::Result<()> {
    let unfinished = format!("{path}{UNFINISHED}");
    files.create(&unfinished)?;
    files.append(&unfinished, 0, bytes)?;
    files.rename(&unfinished, path)
}

/// Files of one session while they are written.
pub(crate) struct SessionProjection {
    files: Arc<dyn Files>,
    summary: Arc<SessionSummary>,
    folder: String,
    at: Checkpoint,
    /// End of the growing files' names until they are whole.
    suffix: &'static str,
    transcript: Transcript,
}

impl SessionProjection {
    /// Returns the record after which frames are wanted next; `None` after the last one.
    pub(crate) fn wants(&self) -> Option<Seq> {
        (self.at.seq < self.summary.last_seq).then(|| self.transcript.read_to())
    }

    /// Writes frames, in order; those beyond the summary are left for the next time.
    pub(crate) fn push(&mut self, frames: &[Frame]) -> io::Result<()> {
        let (mut lines, mut text) = (Vec::new(), String::new());
        let last_seq = self.summary.last_seq;
        for (at, frame) in frames.iter().take_while(|frame| frame.seq <= last_seq).enumerate() {
            if at % FRAMES_AT_ONCE == FRAMES_AT_ONCE - 1 {
                std::thread::yield_now();
            }
            let is_shared = self.transcript.push(frame, &mut text)?;
            if frame.seq > self.at.seq && !is_shared {
                lines.extend_from_slice(&frame.line);
                lines.push(b'\n');
            }
            self.at.seq = self.at.seq.max(frame.seq);
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

    /// Ends the files after all frames: names new ones, and writes the checkpoint. Returns the last record.
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
