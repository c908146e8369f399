//! Check of an uploaded bundle from its first byte to its last, before anything is created.
//!
//! Every fault is `BUNDLE_INVALID`. It reads one file of lines at a time, and blobs in pieces.

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
    ids::{Seq, SessionId, TurnNumber},
    options::Limits,
    runtime::validate,
    session::{
        Session,
        event::{Event, HistorySnapshot, Record},
        message::JSON_DEPTH_MAX,
        reminder::Reminder,
    },
    store::{BlobStore, RECORD_BYTES_MAX, RecordSource, StoreError, hex},
    wire::decode_event,
};

/// Bytes to read at once.
const READ_BYTES: usize = 256 * 1024;
/// Most bytes of one file of lines.
const EVENTS_BYTES_MAX: u64 = (EVENTS_BYTES + RECORD_BYTES_MAX + 1) as u64;

/// Last allowed seq of an imported session: as many seqs remain after it, and JSON numbers hold them all.
const SEQ_MAX: Seq = 1 << 52;
/// Last allowed turn: as many turns remain after it.
const TURN_MAX: TurnNumber = 1 << 31;

/// Steps that the events of a session may take beyond the usual ones, some ten seconds of them.
const EFFORT_MAX: u64 = 100_000_000;
/// Steps that each event may take: sessions have lists, and few of them are longer.
const EFFORT_USUAL: u64 = 64;

/// Most nesting of a line: a model's arguments may be as deep as they are allowed to be, some levels down.
const DEPTH_MAX: usize = 2 * JSON_DEPTH_MAX;

/// Bytes of a whole bundle: a blob of no session.
#[derive(Clone)]
pub(super) struct Upload {
    pub(super) blobs: Arc<dyn BlobStore>,
    pub(super) id: SessionId,
    pub(super) hash: String,
    pub(super) bytes: u64,
}

/// Range of bytes in the bundle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) at: u64,
    pub(super) bytes: u64,
}

/// What the events of a bundle must keep to.
#[derive(Clone)]
pub(super) struct Rules {
    /// Latest allowed time of an event.
    pub(super) latest: Timestamp,
    /// Limits of a session.
    pub(super) limits: Limits,
    /// Most files of a section.
    entries_max: usize,
    /// Most steps of a session's events beyond the usual ones.
    effort_max: u64,
}

/// Session that is made from its events.
#[derive(Default)]
struct Folded {
    session: Option<Session>,
    /// Steps that its events took beyond the usual ones.
    effort: u64,
    /// Usual steps that its events did not take.
    spared: u64,
}

/// Session that was found whole.
pub(super) struct Section {
    pub(super) session: Session,
    /// Hash of its last line.
    pub(super) last_sha256: String,
    pub(super) events: VecDeque<Span>,
    pub(super) blobs: Vec<(String, Span)>,
    /// Damaged ranges that its export left out.
    pub(super) lost: Vec<(Seq, Seq)>,
}

impl Rules {
    pub(super) const fn new(latest: Timestamp, limits: Limits) -> Self {
        Self { latest, limits, entries_max: ENTRIES_MAX, effort_max: EFFORT_MAX }
    }

    #[cfg(test)]
    pub(super) const fn at_most(self, entries_max: usize, effort_max: u64) -> Self {
        Self { entries_max, effort_max, ..self }
    }
}

impl Upload {
    /// Reads at most `limit` bytes of a span, from `offset` in it.
    pub(super) async fn piece(&self, span: Span, offset: u64, limit: usize) -> Result<Bytes, StoreError> {
        let limit = limit.min(usize::try_from(span.bytes - offset).unwrap_or(usize::MAX));
        let read = self.blobs.read(self.id, &self.hash, span.at + offset, limit).await?;
        read.filter(|read| !read.is_empty() || limit == 0).ok_or_else(|| lost("a part of the bundle"))
    }

    /// Reads the whole of a short span.
    async fn whole(&self, span: Span) -> Result<Bytes, StoreError> {
        let bytes = self.piece(span, 0, usize::MAX).await?;
        if bytes.len() as u64 == span.bytes { Ok(bytes) } else { Err(lost("a part of the bundle")) }
    }
}

/// Sections of a bundle, read one after another: a session holds its whole context, so only one is kept at a time.
pub(super) struct Sections<'a> {
    upload: &'a Upload,
    at: u64,
    /// Files of this section so far.
    entries: usize,
    /// Sessions so far.
    ids: BTreeSet<SessionId>,
    rules: Rules,
}

/// File whose body is not read yet.
struct Entry {
    folder: SessionId,
    name: Name,
    span: Span,
}

impl<'a> Sections<'a> {
    pub(super) const fn of(upload: &'a Upload, rules: Rules) -> Self {
        Self { upload, at: 0, entries: 0, ids: BTreeSet::new(), rules }
    }

    /// Reads the next one; `None` after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Section>, SessionError> {
        if self.at == self.upload.bytes && !self.ids.is_empty() {
            return Ok(None);
        }
        self.entries = 0;
        let section = self.section().await?;
        if !self.ids.insert(section.session.id) {
            return Err(damaged(format!("it holds session {} twice", section.session.id)));
        }
        Ok(Some(section))
    }

    /// Reads the header of the next file; its body and padding are there.
    async fn entry(&mut self) -> Result<Entry, SessionError> {
        self.entries += 1;
        if self.entries > self.rules.entries_max {
            return Err(damaged(format!("one of its sessions has more than {} files", self.rules.entries_max)));
        }
        let rest = self.upload.bytes - self.at;
        let too_short = || damaged("it ends too early");
        let rest = rest.checked_sub(BLOCK as u64).ok_or_else(too_short)?;
        let block = self.upload.whole(Span { at: self.at, bytes: BLOCK as u64 }).await?;
        let block: &[u8; BLOCK] = block.as_ref().try_into().map_err(|_| too_short())?;
        let no_file = || damaged(format!("at byte {} there is no file as an export writes it", self.at));
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
            return Err(damaged(format!("{folder}/{name} has something after its end")));
        }
        self.at = span.at + bytes + padding(bytes);
        Ok(Entry { folder: id, name, span })
    }

    /// Reads a section up to its manifest.
    async fn section(&mut self) -> Result<Section, SessionError> {
        let (mut rows, mut events, mut blobs) = (Vec::new(), VecDeque::new(), Vec::new());
        let (mut names, mut folded, mut of, mut last_sha256) =
            (BTreeSet::new(), Folded::default(), None, String::new());
        loop {
            let Entry { folder, name, span } = self.entry().await?;
            if *of.get_or_insert(folder) != folder {
                return Err(damaged(format!("session {folder} begins before the one before it has ended")));
            }
            let sha256 = match &name {
                Name::Events { from, to } => {
                    let lines = self.upload.whole(span).await?;
                    let (seqs, rules) = ((*from, *to), self.rules.clone());
                    // Events cost time that other requests need.
                    let fold = tokio::task::spawn_blocking(move || {
                        fold(&mut folded, &lines, seqs, &rules)?;
                        let last =
                            lines.strip_suffix(b"\n").and_then(|lines| lines.rsplit(|byte| *byte == b'\n').next());
                        Ok::<_, SessionError>((folded, super::sha256(last.unwrap_or_default()), super::sha256(&lines)))
                    });
                    let done = fold.await.map_err(|error| SessionError::Internal(error.to_string()))?;
                    let sha256;
                    (folded, last_sha256, sha256) = done?;
                    events.push_back(span);
                    sha256
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
                    let session = folded.session.ok_or_else(|| damaged("a session has no event"))?;
                    let lost = check(&manifest, folder, &session, &rows)?;
                    check_limits(&session, &self.rules.limits)?;
                    return Ok(Section { session, last_sha256, events, blobs, lost });
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

/// Checks that the manifest names what was found, and that the session is the section's. Returns the ranges that the
/// export left out.
fn check(
    manifest: &[u8],
    folder: SessionId,
    session: &Session,
    rows: &[FileRow],
) -> Result<Vec<(Seq, Seq)>, SessionError> {
    let found: Manifest =
        serde_json::from_slice(manifest).map_err(|error| damaged(format!("its manifest cannot be read: {error}")))?;
    if found.format != FORMAT {
        return Err(damaged("its manifest is of another format"));
    }
    if found.files != rows {
        return Err(damaged(format!("session {folder} has other files than its manifest says")));
    }
    if session.has_unexplained_gap() {
        return Err(damaged(format!("some events of session {folder} do not follow those before them")));
    }
    let says = (found.session_id, found.session_id, found.last_seq);
    if says == (folder, session.id, session.last_seq) {
        return Ok(found.lost);
    }
    Err(damaged(format!("session {folder} has other events than its manifest says")))
}

/// Checks that a session has no more than one that was made here.
fn check_limits(session: &Session, limits: &Limits) -> Result<(), SessionError> {
    // Those of the workspace come beside those that people set.
    let (automatic, set): (Vec<_>, Vec<_>) = session.reminders.iter().partition(|reminder| reminder.automatic);
    let bytes = |reminders: &[&Reminder]| reminders.iter().map(|reminder| reminder.text.len()).sum::<usize>() as u64;
    let pin_bytes = session.pins.iter().map(|pin| pin.text.len()).sum::<usize>() as u64;
    let most = |count: usize, bytes: u64| (count as u64).saturating_mul(bytes);
    let held = [
        ("reminders", set.len() as u64, limits.reminders as u64),
        ("reminders of its workspace", automatic.len() as u64, limits.reminders as u64),
        ("bytes of reminders", bytes(&set).max(bytes(&automatic)), most(limits.reminders, limits.reminder_bytes)),
        ("pins", session.pins.len() as u64, limits.pins as u64),
        ("bytes of pins", pin_bytes, most(limits.pins, limits.pin_bytes)),
    ];
    let too_many = held.into_iter().find(|(_, count, limit)| count > limit);
    let is_listed = session.title().map_or(Ok(()), |title| validate::title(title, limits));
    let why = match (too_many, is_listed.and_then(|()| validate::labels(&session.labels, limits))) {
        (None, Ok(())) => return Ok(()),
        (Some((what, count, limit)), _) => format!("it has {count} {what}, and the limits here allow {limit}"),
        (None, Err(error)) => error.to_string(),
    };
    Err(SessionError::BundleInvalid { reason: "limit", why: format!("session {}: {why}", session.id) })
}

/// Folds a file of lines into their session. Missing seqs are those of compacted records.
fn fold(folded: &mut Folded, lines: &[u8], (from, to): (Seq, Seq), rules: &Rules) -> Result<(), SessionError> {
    let mut first = None;
    for line in records(lines) {
        let (record, _) = line?;
        if record.time > rules.latest {
            let why = format!(
                "event {} of session {} lies more than a day ahead of this clock",
                record.seq, record.session_id
            );
            return Err(SessionError::BundleInvalid { reason: "future", why });
        }
        folded.spend(&record, rules)?;
        let applied = match &mut folded.session {
            Some(session) => session.apply(&record),
            None => Session::begin_anywhere(&record).map(|begun| folded.session = Some(begun)),
        };
        applied.map_err(|error| damaged(error.to_string()))?;
        first.get_or_insert(record.seq);
    }
    let last = folded.session.as_ref().map_or(0, |session| session.last_seq);
    if (Some(from), to) == (first, last) { Ok(()) } else { Err(damaged(format!("{from}-{to} are other events"))) }
}

impl Folded {
    /// Counts the steps of a record before it is applied.
    fn spend(&mut self, record: &Record, rules: &Rules) -> Result<(), SessionError> {
        let effort = self.session.as_ref().map_or(0, |session| session.effort(record));
        self.spared += EFFORT_USUAL;
        let usual = effort.min(self.spared);
        self.spared -= usual;
        self.effort = self.effort.saturating_add(effort - usual);
        if self.effort <= rules.effort_max {
            return Ok(());
        }
        let why = format!(
            "the events of session {} take too much work to check, up to event {}",
            record.session_id, record.seq
        );
        Err(SessionError::BundleInvalid { reason: "limit", why })
    }
}

/// Decodes the records of a file of lines, each with its line.
fn records(lines: &[u8]) -> impl Iterator<Item = Result<(Record, &[u8]), SessionError>> {
    lines.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let is_long = |line: &&[u8]| line.len() <= RECORD_BYTES_MAX;
        let line = line.strip_suffix(b"\n").filter(is_long).ok_or_else(|| damaged("a line is cut, or too long"))?;
        let text = std::str::from_utf8(line).map_err(|_| damaged("a line is not valid UTF-8"))?;
        // JSON allows none of these in a string, and no export writes them elsewhere.
        if line.iter().any(|byte| *byte < b' ') {
            return Err(damaged("a line has control characters"));
        }
        if depth(text) > DEPTH_MAX {
            return Err(damaged(format!("a line nests deeper than {DEPTH_MAX} levels")));
        }
        let record = decode_event(text).map_err(|error| damaged(format!("an event cannot be read: {error}")))?;
        if !is_possible(&record) {
            return Err(damaged(format!("event {} has an impossible count", record.seq)));
        }
        Ok((record, line))
    })
}

/// Returns true if the numbers of a record are possible: each turn and each message takes an event, and more may follow.
/// A prompt is in an earlier event.
fn is_possible(record: &Record) -> bool {
    let seq = record.seq;
    if seq > SEQ_MAX {
        return false;
    }
    let is_turn = |turn: TurnNumber| Seq::from(turn) < seq && turn <= TURN_MAX;
    let counts = match &record.event {
        Event::HistorySnapshot(history) => {
            let HistorySnapshot { pruned_to, message_count, next_turn, context, counters, .. } = history;
            *pruned_to < seq
                && *message_count < seq
                && is_turn(*next_turn)
                && counters.is_none_or(|counters| is_turn(counters.started_turns) && counters.is_possible())
                && context.iter().all(|(of, nth)| *of < seq && *nth < seq)
        }
        Event::TurnStarted(started) => started.queued.is_none_or(|queued| (1..seq).contains(&queued)),
        Event::TurnSteered(steered) => (1..seq).contains(&steered.started),
        Event::ClientToolsChanged(changed) => changed.defined.is_none_or(|defined| (1..seq).contains(&defined)),
        Event::CallAnswered(answered) => (1..seq).contains(&answered.started),
        Event::SteeringEntered(entered) => (1..seq).contains(&entered.steered),
        Event::RecordsLost(lost) => lost.keys.iter().all(|key| is_turn(key.turn)),
        _ => true,
    };
    counts && record.turn.is_none_or(is_turn)
}

/// Counts the nesting of brackets in a JSON text.
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

/// Source of a section's records up to a seq, and new records after them.
pub(super) struct Records {
    pub(super) upload: Upload,
    pub(super) events: VecDeque<Span>,
    pub(super) until: Seq,
    pub(super) own: Vec<(Record, Bytes)>,
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
        Ok(std::mem::take(&mut self.own))
    }
}

#[cfg(test)]
mod tests;
