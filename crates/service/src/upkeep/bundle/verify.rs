//! An uploaded bundle, read and checked from its first byte to its last, before anything is made of it.
//!
//! What is wrong is `BUNDLE_INVALID`, whoever made it. It reads one file of lines at a time; blobs in pieces.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{
    ENTRIES_MAX, EVENTS_BYTES, FORMAT, FileRow, MANIFEST_BYTES_MAX, Manifest, Name,
    archive::{BLOCK, padding, read},
    damaged, lost,
};
use crate::{
    SessionError,
    clock::Timestamp,
    ids::{Seq, SessionId},
    session::{
        Session,
        event::{Event, HistorySnapshot, Record},
        message::JSON_DEPTH_MAX,
    },
    store::{BlobStore, RECORD_BYTES_MAX, RecordSource, StoreError, hex},
    wire::decode_event,
};

/// Bytes that are read at a time.
const READ_BYTES: usize = 256 * 1024;
/// Bytes of one file of lines.
const EVENTS_BYTES_MAX: u64 = (EVENTS_BYTES + RECORD_BYTES_MAX + 1) as u64;

/// The last seq that an imported session may begin to go on from: it has as many before it as behind it, and JSON numbers
/// hold them all.
const SEQ_MAX: Seq = 1 << 52;

/// How deep a line may nest: what a model said may be as deep as it is allowed to be, and stands some levels down.
const DEPTH_MAX: usize = 2 * JSON_DEPTH_MAX;

/// The bytes of a bundle, whole: a blob that belongs to no session.
#[derive(Clone)]
pub(super) struct Upload {
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) id: SessionId,
    pub(super) hash: String,
    pub(super) bytes: u64,
}

/// Where something stands in the bundle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// A session that was found whole.
pub(super) struct Section {
    pub(super) session: Session,
    pub(super) events: VecDeque<Span>,
    pub(super) blobs: Vec<(String, Span)>,
}

impl Upload {
    /// At most `limit` bytes of a span, from `offset` in it.
    pub(super) async fn piece(&self, span: Span, offset: u64, limit: usize) -> Result<Bytes, StoreError> {
        let limit = limit.min(usize::try_from(span.bytes - offset).unwrap_or(usize::MAX));
        let read = self.blobs.read(self.id, &self.hash, span.at + offset, limit).await?;
        read.filter(|read| !read.is_empty() || limit == 0).ok_or_else(|| lost("a part of the bundle"))
    }

    /// All of a span that is not long.
    async fn whole(&self, span: Span) -> Result<Bytes, StoreError> {
        let bytes = self.piece(span, 0, usize::MAX).await?;
        if bytes.len() as u64 == span.bytes { Ok(bytes) } else { Err(lost("a part of the bundle")) }
    }
}

/// The sections of a bundle, read one after another: a session holds all that its model would see, so nobody should keep
/// two of them.
pub(super) struct Sections<'a> {
    upload: &'a Upload,
    at: u64,
    /// Files of this section so far, and how many there may be.
    entries: usize,
    entries_max: usize,
    /// The sessions that were found.
    ids: BTreeSet<SessionId>,
    /// No event may be later.
    latest: Timestamp,
}

/// A file, before its body is looked at.
struct Entry {
    folder: SessionId,
    name: Name,
    span: Span,
}

impl<'a> Sections<'a> {
    pub(super) const fn of(upload: &'a Upload, latest: Timestamp) -> Self {
        Self { upload, at: 0, entries: 0, entries_max: ENTRIES_MAX, ids: BTreeSet::new(), latest }
    }

    #[cfg(test)]
    pub(super) fn at_most(self, entries_max: usize) -> Self {
        Self { entries_max, ..self }
    }

    /// The next one; `None` behind the last.
    pub(super) async fn next(&mut self) -> Result<Option<Section>, SessionError> {
        if self.at == self.upload.bytes && !self.ids.is_empty() {
            return Ok(None);
        }
        self.entries = 0;
        let section = self.section().await?;
        if !self.ids.insert(section.session.id()) {
            return Err(damaged(format!("it holds session {} twice", section.session.id())));
        }
        Ok(Some(section))
    }

    /// The next file; its body and what pads it are there.
    async fn entry(&mut self) -> Result<Entry, SessionError> {
        self.entries += 1;
        if self.entries > self.entries_max {
            return Err(damaged(format!("one of its sessions has more than {} files", self.entries_max)));
        }
        let rest = self.upload.bytes - self.at;
        let too_short = || damaged("it ends too early");
        let rest = rest.checked_sub(BLOCK as u64).ok_or_else(too_short)?;
        let block = self.upload.whole(Span { at: self.at, bytes: BLOCK as u64 }).await?;
        let block: &[u8; BLOCK] = block.as_ref().try_into().map_err(|_| too_short())?;
        let no_file = || damaged(format!("what stands at byte {} is no file that an export writes", self.at));
        let (folder, name, bytes) = read(block).ok_or_else(no_file)?;
        let id = folder.parse::<SessionId>().ok().filter(|id| id.to_string() == folder).ok_or_else(no_file)?;
        let name = Name::parse(name).ok_or_else(no_file)?;
        let limit = match name {
            Name::Events { .. } => EVENTS_BYTES_MAX,
            Name::Manifest => MANIFEST_BYTES_MAX,
            Name::Blob(_) => u64::MAX,
        };
        if bytes > limit {
            return Err(damaged(format!(
                "{folder}/{name} says that it has {bytes} bytes; at most {limit} are allowed"
            )));
        }
        if bytes + padding(bytes) > rest {
            return Err(too_short());
        }
        let span = Span { at: self.at + BLOCK as u64, bytes };
        let zeros = self.upload.whole(Span { at: span.at + bytes, bytes: padding(bytes) }).await?;
        if zeros.iter().any(|byte| *byte != 0) {
            return Err(damaged(format!("{folder}/{name} has something behind its end")));
        }
        self.at = span.at + bytes + padding(bytes);
        Ok(Entry { folder: id, name, span })
    }

    /// A section, up to its manifest.
    async fn section(&mut self) -> Result<Section, SessionError> {
        let (mut rows, mut events, mut blobs) = (Vec::new(), VecDeque::new(), Vec::new());
        let (mut names, mut session, mut of) = (BTreeSet::new(), None, None);
        loop {
            let Entry { folder, name, span } = self.entry().await?;
            if *of.get_or_insert(folder) != folder {
                return Err(damaged(format!("session {folder} begins before the one before it has ended")));
            }
            let sha256 = match &name {
                Name::Events { from, to } => {
                    let lines = self.upload.whole(span).await?;
                    fold(&mut session, &lines, (*from, *to), self.latest)?;
                    events.push_back(span);
                    super::sha256(&lines)
                }
                Name::Blob(hash) => {
                    let found = self.hash(span).await?;
                    if found != *hash || !names.insert(hash.clone()) {
                        return Err(damaged(format!("{name} is not what it is named, or is there twice")));
                    }
                    blobs.push((hash.clone(), span));
                    found
                }
                Name::Manifest => {
                    let manifest = self.upload.whole(span).await?;
                    let session = session.ok_or_else(|| damaged("a session has no event"))?;
                    check(&manifest, folder, &session, &rows)?;
                    return Ok(Section { session, events, blobs });
                }
            };
            rows.push(FileRow { name: name.to_string(), bytes: span.bytes, sha256 });
        }
    }

    async fn hash(&self, span: Span) -> Result<String, StoreError> {
        let (mut hash, mut at) = (Sha256::new(), 0);
        while at < span.bytes {
            let piece = self.upload.piece(span, at, READ_BYTES).await?;
            hash.update(&piece);
            at += piece.len() as u64;
        }
        Ok(hex(&hash.finalize()))
    }
}

/// The manifest says what was found, and the session is the one that the section is named for.
fn check(manifest: &[u8], folder: SessionId, session: &Session, rows: &[FileRow]) -> Result<(), SessionError> {
    let found: Manifest =
        serde_json::from_slice(manifest).map_err(|error| damaged(format!("its manifest cannot be read: {error}")))?;
    if found.format != FORMAT {
        return Err(damaged("its manifest is of another format"));
    }
    if found.files != rows {
        return Err(damaged(format!("session {folder} has other files than its manifest says")));
    }
    let says = (found.session_id, found.session_id, found.last_seq);
    if says == (folder, session.id(), session.last_seq()) {
        return Ok(());
    }
    Err(damaged(format!("session {folder} has other events than its manifest says")))
}

/// Takes a file of lines into the session that they are of. Seqs that skip are those of records that were compacted.
fn fold(
    session: &mut Option<Session>,
    lines: &[u8],
    (from, to): (Seq, Seq),
    latest: Timestamp,
) -> Result<(), SessionError> {
    let mut first = None;
    for line in records(lines) {
        let (record, _) = line?;
        if record.time > latest {
            let why = format!(
                "event {} of session {} lies more than a day ahead of this clock",
                record.seq, record.session_id
            );
            return Err(SessionError::BundleInvalid { reason: "future", why });
        }
        let applied = match session {
            Some(session) => session.apply(&record),
            None => Session::begin(&record).map(|begun| *session = Some(begun)),
        };
        applied.map_err(|error| damaged(error.to_string()))?;
        first.get_or_insert(record.seq);
    }
    let last = session.as_ref().map_or(0, Session::last_seq);
    if (Some(from), to) == (first, last) { Ok(()) } else { Err(damaged(format!("{from}-{to} are other events"))) }
}

/// The records of a file of lines, each with its line.
fn records(lines: &[u8]) -> impl Iterator<Item = Result<(Record, &[u8]), SessionError>> {
    lines.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let is_long = |line: &&[u8]| line.len() <= RECORD_BYTES_MAX;
        let line = line.strip_suffix(b"\n").filter(is_long).ok_or_else(|| damaged("a line is cut, or too long"))?;
        let text = std::str::from_utf8(line).map_err(|_| damaged("a line is no text"))?;
        // Within a string JSON allows none of these; between its parts nobody writes them.
        if line.iter().any(|byte| *byte < b' ') {
            return Err(damaged("a line has control characters"));
        }
        if depth(text) > DEPTH_MAX {
            return Err(damaged(format!("a line nests deeper than {DEPTH_MAX} levels")));
        }
        let record = decode_event(text).map_err(|error| damaged(format!("an event cannot be read: {error}")))?;
        if !is_possible(&record) {
            return Err(damaged(format!("event {} counts what cannot be there", record.seq)));
        }
        Ok((record, line))
    })
}

/// Whether the numbers of a record can be: a turn and a message take an event each.
fn is_possible(record: &Record) -> bool {
    let seq = record.seq;
    if seq > SEQ_MAX {
        return false;
    }
    let counts = match &record.event {
        Event::HistorySnapshot(history) => {
            let HistorySnapshot { pruned_to, message_count, next_turn, context, counters, .. } = history;
            *pruned_to < seq
                && *message_count < seq
                && Seq::from(*next_turn) < seq
                && counters.is_none_or(|counters| Seq::from(counters.started_turns) < seq && counters.is_possible())
                && context.iter().all(|(of, nth)| *of < seq && *nth < seq)
        }
        _ => true,
    };
    counts && record.turn.is_none_or(|turn| Seq::from(turn) < seq)
}

/// How deep brackets nest in a JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest, mut is_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            b'"' if !is_escaped => is_string = !is_string,
            b'{' | b'[' if !is_string => depth += 1,
            b'}' | b']' if !is_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        is_escaped = is_string && byte == b'\\' && !is_escaped;
        deepest = deepest.max(depth);
    }
    deepest
}

/// The records of a section once more, up to a seq, and perhaps one of its own behind them.
pub(super) struct Records {
    pub(super) upload: Upload,
    pub(super) events: VecDeque<Span>,
    pub(super) until: Seq,
    pub(super) own: Option<(Record, Bytes)>,
}

#[async_trait]
impl RecordSource for Records {
    async fn next(&mut self) -> Result<Vec<(Record, Bytes)>, StoreError> {
        if let Some(span) = self.events.pop_front() {
            let lines = self.upload.whole(span).await?;
            let kept = records(&lines).filter(|record| !matches!(record, Ok((record, _)) if record.seq > self.until));
            let part = kept.map(|record| record.map(|(record, line)| (record, lines.slice_ref(line))));
            let part = part.collect::<Result<Vec<_>, SessionError>>();
            let part = part.map_err(|error| StoreError::Failed(error.to_string()))?;
            if !part.is_empty() {
                return Ok(part);
            }
            self.events.clear();
        }
        Ok(self.own.take().into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::{SEQ_MAX, is_possible};
    use crate::session::tests::pinned;

    /// The next record of an imported session has a number, too.
    #[test]
    fn a_seq_leaves_room_for_what_follows_it() {
        assert!(is_possible(&pinned(SEQ_MAX, "a")));
        assert!(!is_possible(&pinned(SEQ_MAX + 1, "a")) && !is_possible(&pinned(u64::MAX, "a")));
    }
}
