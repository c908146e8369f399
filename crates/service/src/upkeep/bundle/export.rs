//! Export of a session as a bundle, page by page. Between two pages only the plan is kept, which can be made again: the
//! files of the section with their lengths and hashes.
//!
//! A bundle holds the session as it was when its export began. Its bytes follow from the journal, so a page can be read
//! again; a compaction of the journal meanwhile is noticed.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{
    ENTRIES_MAX, EVENTS_BYTES, FORMAT, FileRow, Manifest, Name,
    archive::{BLOCK, header, padding},
    lost, sha256,
};
use crate::{
    SessionError,
    engine::Engine,
    ids::{Seq, SessionId},
    prompt::{FILE_BYTES_MAX, begins_pdf},
    redact::BodyRedactor,
    service::{BundlePage, ExportSession},
    session::event::{Event, Record, RecordsLost},
    store::{Frame, ReadLimit, StoreError, hex, restore::decode},
    tool::{IMAGE_BYTES_MAX, Picture, is_copy},
    wire::encode_event,
};

/// Bytes of a page, before they are base64.
const PAGE_BYTES: usize = 1024 * 1024;
/// Bytes of a blob to read at once.
const READ_BYTES: usize = 1024 * 1024;
/// Frames to read at once.
const FRAMES_READ: usize = 256;
/// Most exports whose plans are kept; others are planned again for each page.
const PLANS_MAX: usize = 8;
/// Beginning of a reference to a blob. Within a JSON string a quote is escaped, so no text looks like it.
const REFERENCE: &str = r#""blob":""#;
/// Digits of a blob's name.
const HASH_DIGITS: usize = 64;

/// State between two pages, which can be made again.
#[derive(Default)]
pub(crate) struct Exports {
    /// Plans of the latest exports.
    plans: Mutex<VecDeque<(Key, Arc<Plan>)>>,
    cleaned: Mutex<Option<Cleaned>>,
}

/// Blob that is cleaned of keys and secrets, in which the last page ended: only its beginning leads to its rest.
struct Cleaned {
    session_id: SessionId,
    /// Its name in the store.
    hash: String,
    /// Bytes of it that were read, and their hash.
    read: u64,
    raw: Sha256,
    /// `None` once all of it is cleaned.
    redactor: Option<BodyRedactor>,
    /// Newest cleaned bytes, and how many came before them.
    body: Bytes,
    before: u64,
}

impl Cleaned {
    fn new(engine: &Engine, session_id: SessionId, hash: &str) -> Self {
        let redactor = Some(BodyRedactor::new(&engine.secrets));
        let (hash, raw) = (hash.to_owned(), Sha256::new());
        Self { session_id, hash, read: 0, raw, redactor, body: Bytes::new(), before: 0 }
    }

    /// Cleans the next bytes; returns false if there are none.
    async fn next(&mut self, engine: &Engine) -> Result<bool, StoreError> {
        let Some(redactor) = &mut self.redactor else { return Ok(false) };
        let read = async |limit| {
            let piece = engine.blobs.read(self.session_id, &self.hash, self.read, limit).await?;
            piece.ok_or_else(|| lost("a blob"))
        };
        let mut piece = read(READ_BYTES).await?;
        let mut is_whole = false;
        if self.read == 0 && (Picture::media_type(&piece).is_some() || begins_pdf(&piece)) {
            let limit = if begins_pdf(&piece) { FILE_BYTES_MAX } else { IMAGE_BYTES_MAX };
            let whole = read(limit + 1).await?;
            let is_kind = whole.len() <= limit && (begins_pdf(&whole) || Picture::of(&whole).is_ok());
            // Every text is UTF-8, however it begins.
            is_whole = is_kind && std::str::from_utf8(&whole).is_err();
            piece = if is_whole { whole } else { piece };
        }
        self.read += piece.len() as u64;
        self.raw.update(&piece);
        let clean = if is_whole { piece.clone() } else { redactor.push(&piece, piece.is_empty()).into() };
        if is_whole || piece.is_empty() {
            self.redactor = None;
        }
        self.before += self.body.len() as u64;
        self.body = clean;
        Ok(true)
    }
}

/// Export of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    session_id: SessionId,
    /// Last event that it has.
    last_seq: Seq,
    /// True if keys are replaced.
    is_redacted: bool,
    /// True if damaged events are left out.
    skips_damage: bool,
}

/// Files of a section.
struct Plan {
    key: Key,
    files: Vec<File>,
    /// Damaged ranges that are left out, and the event that says so behind the last one.
    lost: Vec<(Seq, Seq)>,
    lost_line: Option<Frame>,
    manifest: Bytes,
    /// Names of blobs in the bundle with their lengths, by their names in the store.
    blobs: HashMap<String, (String, u64)>,
    /// Bytes of the section.
    bytes: u64,
    /// Digest that identifies the section.
    digest: String,
}

struct File {
    /// Offset of its header.
    at: u64,
    row: FileRow,
    source: Source,
}

enum Source {
    /// Lines from one seq to another.
    Events {
        from: Seq,
        to: Seq,
    },
    /// Blob, by its name in the store.
    Blob(String),
    Manifest,
}

/// Beginning of a page.
struct Cursor {
    /// The session of its section.
    session_id: SessionId,
    /// Last event of the section, place in it, and digest of it; `None` if it begins here.
    place: Option<(Seq, u64, String)>,
}

impl Cursor {
    fn parse(text: &str) -> Result<Self, SessionError> {
        let refusal = || SessionError::invalid("cursor", "use the next_cursor of the page before, or none");
        let parse = || {
            let mut parts = text.split('.');
            let session_id = parts.next()?.parse().ok()?;
            let Some(last_seq) = parts.next() else { return Some(Self { session_id, place: None }) };
            let place = (last_seq.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.to_owned());
            parts.next().is_none().then_some(Self { session_id, place: Some(place) })
        };
        parse().ok_or_else(refusal)
    }
}

/// Reads a page of a session's section, or of that which the cursor names.
pub(crate) async fn page(
    engine: &Engine,
    exports: &Exports,
    request: ExportSession,
) -> Result<BundlePage, SessionError> {
    let ExportSession { session_id: top, redact: is_redacted, skip_damage: skips_damage, cursor } = request;
    let cursor = cursor.as_deref().map(Cursor::parse).transpose()?;
    let session_id = cursor.as_ref().map_or(top, |cursor| cursor.session_id);
    let place = cursor.and_then(|cursor| cursor.place);
    let tail = engine.events.tail(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
    let last_seq = place.as_ref().map_or(tail, |(last_seq, ..)| *last_seq).min(tail);
    if let (Some(lost), false) = (engine.events.lost_end(session_id), skips_damage) {
        return Err(lost.into());
    }
    let key = Key { session_id, last_seq, is_redacted, skips_damage };
    let plan = exports.plan(engine, key, place.is_none()).await?;
    let (_, mut at, digest) = place.unwrap_or_else(|| (last_seq, 0, plan.digest.clone()));
    if at > plan.bytes || digest != plan.digest {
        return Err(changed());
    }
    let mut page = Vec::new();
    while page.len() < PAGE_BYTES && at < plan.bytes {
        let piece = plan.piece(engine, exports, at, PAGE_BYTES - page.len()).await;
        let piece = piece.inspect_err(|_| exports.forget(session_id))?;
        at += piece.len() as u64;
        page.extend_from_slice(&piece);
    }
    let next_cursor = (at < plan.bytes).then(|| format!("{session_id}.{last_seq}.{at}.{digest}"));
    Ok(BundlePage { session_id, data: BASE64_STANDARD.encode(page), next_cursor, lost: plan.lost.clone() })
}

/// Makes the error for a section that has changed since its first page.
fn changed() -> SessionError {
    SessionError::invalid("cursor", "the session has changed since the export began; begin again without a cursor")
}

impl Exports {
    fn plans(&self) -> MutexGuard<'_, VecDeque<(Key, Arc<Plan>)>> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the plan of an export; makes it if it is not known, or if the export begins.
    async fn plan(&self, engine: &Engine, key: Key, is_first: bool) -> Result<Arc<Plan>, SessionError> {
        if let Some((_, plan)) = self.plans().iter().find(|(known, _)| *known == key && !is_first) {
            return Ok(plan.clone());
        }
        let plan = Arc::new(Planner::new(key).plan(engine).await?);
        let mut plans = self.plans();
        plans.retain(|(known, _)| *known != key);
        plans.push_front((key, plan.clone()));
        plans.truncate(PLANS_MAX);
        Ok(plan)
    }

    /// Drops the plans of a session whose journal has changed.
    fn forget(&self, session_id: SessionId) {
        self.plans().retain(|(known, _)| known.session_id != session_id);
        self.cleaned().take_if(|cleaned| cleaned.session_id == session_id);
    }

    fn cleaned(&self) -> MutexGuard<'_, Option<Cleaned>> {
        self.cleaned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns some bytes of a cleaned blob; its place is kept for the next page.
    async fn clean_part(
        &self,
        engine: &Engine,
        (session_id, hash): (SessionId, &str),
        (offset, limit): (u64, usize),
    ) -> Result<Bytes, SessionError> {
        let is_on_the_way =
            |known: &mut Cleaned| known.session_id == session_id && known.hash == hash && known.before <= offset;
        let known = self.cleaned().take_if(is_on_the_way);
        let mut cleaned = match known {
            Some(known) => known,
            None => Cleaned::new(engine, session_id, hash),
        };
        while cleaned.before + cleaned.body.len() as u64 <= offset && cleaned.next(engine).await? {}
        let piece = part(&cleaned.body, offset.saturating_sub(cleaned.before), limit);
        *self.cleaned() = Some(cleaned);
        Ok(piece)
    }
}

/// Makes a plan from one pass over the journal.
struct Planner {
    key: Key,
    files: Vec<File>,
    at: u64,
    /// Hash of the lines of the next file.
    lines: Sha256,
    bytes: usize,
    seqs: Option<(Seq, Seq)>,
    lost: Vec<(Seq, Seq)>,
    /// Blobs in the order of their references.
    order: Vec<String>,
    /// `None` for those that are not exported.
    blobs: HashMap<String, Option<(String, u64)>>,
}

impl Planner {
    fn new(key: Key) -> Self {
        let (files, order, blobs, lines) = (Vec::new(), Vec::new(), HashMap::new(), Sha256::new());
        Self { key, files, at: 0, lines, bytes: 0, seqs: None, lost: Vec::new(), order, blobs }
    }

    async fn plan(mut self, engine: &Engine) -> Result<Plan, SessionError> {
        let Key { session_id, last_seq, is_redacted, .. } = self.key;
        let mut last: Option<Frame> = None;
        loop {
            let after = last.as_ref().map_or(0, |frame| frame.seq);
            let Some(frames) = frames(engine, &self.key, after, last_seq, &mut self.lost).await? else { break };
            for frame in &frames {
                self.line(engine, frame).await?;
            }
            last = frames.into_iter().next_back();
        }
        let Some(mut last) = last else {
            return Err(
                StoreError::Corrupted { session_id, last_good_seq: 0, why: "it has no record".to_owned() }.into()
            );
        };
        let lost_line = self.lost_line(engine, &last).await?;
        if let Some(line) = &lost_line {
            self.line(engine, line).await?;
            last.seq = line.seq;
        }
        self.end_file()?;
        let mut named = HashSet::new();
        for source in std::mem::take(&mut self.order) {
            if let Some((name, bytes)) = self.blobs.get(&source).cloned().flatten()
                // Two bodies may be equal after their keys are replaced.
                && named.insert(name.clone())
            {
                let row = FileRow { name: Name::Blob(name.clone()).to_string(), bytes, sha256: name };
                self.push(row, Source::Blob(source))?;
            }
        }
        let rows = self.files.iter().map(|file| file.row.clone()).collect();
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            session_id,
            last_seq: last.seq,
            redacted: is_redacted,
            lost: self.lost.clone(),
            files: rows,
        };
        let manifest = serde_json::to_vec(&manifest).map_err(|error| SessionError::Internal(error.to_string()))?;
        let manifest = Bytes::from(manifest);
        let (name, bytes) = (Name::Manifest.to_string(), manifest.len() as u64);
        let digest = sha256(&manifest);
        self.push(FileRow { name, bytes, sha256: digest.clone() }, Source::Manifest)?;
        let blobs = self.blobs.into_iter().filter_map(|(source, blob)| Some((source, blob?))).collect();
        let Self { key, files, lost, at: bytes, .. } = self;
        Ok(Plan { key, files, lost, lost_line, manifest, blobs, bytes, digest })
    }

    /// Makes the event that says which are lost, as a repair would; `None` if nothing is lost. It is the same whenever
    /// it is made.
    async fn lost_line(&mut self, engine: &Engine, last: &Frame) -> Result<Option<Frame>, SessionError> {
        let session_id = self.key.session_id;
        let is_end_lost = engine.events.lost_end(session_id).is_some();
        if !self.key.skips_damage || (self.lost.is_empty() && !is_end_lost) {
            return Ok(None);
        }
        let snapshot = engine.snapshots.outline(&session_id).await.ok().flatten();
        let known = snapshot.as_ref().map_or(0, |session| session.last_seq);
        if is_end_lost && known > last.seq {
            self.lost.push((last.seq + 1, known));
        }
        let end = self.lost.last().map_or(last.seq, |(_, to)| last.seq.max(*to));
        let keys = snapshot.map(|session| session.keys_within(&self.lost)).unwrap_or_default();
        let keys_unknown = is_end_lost || self.lost.iter().any(|(_, to)| *to > known);
        let event = Event::RecordsLost(RecordsLost { ranges: self.lost.clone(), keys_unknown, keys });
        let record = Record { session_id, seq: end + 1, turn: None, time: decode(last)?.time, event };
        let line = encode_event(&record).map_err(|error| SessionError::Internal(error.to_string()))?;
        Ok(Some(Frame { seq: record.seq, line }))
    }

    async fn line(&mut self, engine: &Engine, frame: &Frame) -> Result<(), SessionError> {
        let Key { session_id, is_redacted, .. } = self.key;
        for (_, hash) in references(&frame.line) {
            if !self.blobs.contains_key(hash) {
                let measured = measure(engine, session_id, hash, is_redacted).await?;
                if measured.is_none() {
                    tracing::warn!(%session_id, blob = hash, "a blob is a copy of a file, or is not whole, and is not exported");
                }
                self.order.push(hash.to_owned());
                self.blobs.insert(hash.to_owned(), measured);
            }
        }
        let line = match is_redacted {
            true => redacted(engine, &frame.line, |hash| self.blobs.get(hash)?.as_ref()),
            false => frame.line.clone(),
        };
        if self.bytes + line.len() >= EVENTS_BYTES {
            self.end_file()?;
        }
        self.lines.update(&line);
        self.lines.update(b"\n");
        self.bytes += line.len() + 1;
        self.seqs = Some((self.seqs.map_or(frame.seq, |(from, _)| from), frame.seq));
        Ok(())
    }

    /// Ends a file of lines.
    fn end_file(&mut self) -> Result<(), SessionError> {
        let Some((from, to)) = self.seqs.take() else { return Ok(()) };
        let (bytes, lines) = (std::mem::take(&mut self.bytes) as u64, std::mem::take(&mut self.lines));
        let row = FileRow { name: Name::Events { from, to }.to_string(), bytes, sha256: hex(&lines.finalize()) };
        self.push(row, Source::Events { from, to })
    }

    fn push(&mut self, row: FileRow, source: Source) -> Result<(), SessionError> {
        if self.files.len() >= ENTRIES_MAX {
            let (bytes, limit) = (self.files.len() as u64 + 1, ENTRIES_MAX as u64);
            return Err(SessionError::PayloadTooLarge { what: "list of a bundle's files", bytes, limit });
        }
        let at = self.at;
        self.at += BLOCK as u64 + row.bytes + padding(row.bytes);
        self.files.push(File { at, row, source });
        Ok(())
    }
}

impl Plan {
    /// Reads some bytes of the section, at least one.
    async fn piece(&self, engine: &Engine, exports: &Exports, at: u64, limit: usize) -> Result<Bytes, SessionError> {
        let file = self.files.partition_point(|file| file.at <= at).checked_sub(1).and_then(|at| self.files.get(at));
        let file = file.ok_or_else(changed)?;
        let (within, bytes) = (at - file.at, file.row.bytes);
        let piece = if within < BLOCK as u64 {
            let header = header(&self.key.session_id.to_string(), &file.row.name, bytes);
            let header = header.ok_or_else(|| lost("the room for a file's name or size"))?;
            part(&Bytes::copy_from_slice(&header), within, limit)
        } else if within < BLOCK as u64 + bytes {
            self.body(engine, exports, file, (within - BLOCK as u64, limit)).await?
        } else {
            let padding = vec![0; usize::try_from(padding(bytes)).unwrap_or(0)];
            part(&padding.into(), within - BLOCK as u64 - bytes, limit)
        };
        if piece.is_empty() { Err(changed()) } else { Ok(piece) }
    }

    async fn body(
        &self,
        engine: &Engine,
        exports: &Exports,
        file: &File,
        (offset, limit): (u64, usize),
    ) -> Result<Bytes, SessionError> {
        let (piece, bytes) = match &file.source {
            Source::Manifest => return Ok(part(&self.manifest, offset, limit)),
            Source::Events { from, to } => {
                let lines = self.lines(engine, *from, *to).await?.into();
                (part(&lines, offset, limit), lines.len())
            }
            Source::Blob(hash) if self.key.is_redacted => {
                let rest = usize::try_from(file.row.bytes - offset).unwrap_or(usize::MAX);
                return exports.clean_part(engine, (self.key.session_id, hash), (offset, limit.min(rest))).await;
            }
            Source::Blob(hash) => {
                let read = engine.blobs.read(self.key.session_id, hash, offset, limit).await?;
                return Ok(read.ok_or_else(|| lost("a blob"))?);
            }
        };
        if bytes as u64 == file.row.bytes { Ok(piece) } else { Err(changed()) }
    }

    async fn lines(&self, engine: &Engine, from: Seq, to: Seq) -> Result<Vec<u8>, StoreError> {
        let (mut lines, mut after) = (Vec::new(), from - 1);
        let mut add = |frame: &Frame| {
            match self.key.is_redacted {
                true => lines.extend(redacted(engine, &frame.line, |hash| self.blobs.get(hash))),
                false => lines.extend_from_slice(&frame.line),
            }
            lines.push(b'\n');
        };
        let last_seq = to.min(self.key.last_seq);
        while let Some(frames) = frames(engine, &self.key, after, last_seq, &mut Vec::new()).await? {
            for frame in frames {
                after = frame.seq;
                add(&frame);
            }
        }
        self.lost_line.iter().filter(|line| line.seq <= to).for_each(add);
        Ok(lines)
    }
}

/// Reads the next frames up to `last`, and adds the damaged ranges that are passed over before the last frame; `None` if
/// there are no more.
async fn frames(
    engine: &Engine,
    key: &Key,
    after: Seq,
    last: Seq,
    lost: &mut Vec<(Seq, Seq)>,
) -> Result<Option<Vec<Frame>>, StoreError> {
    let id = key.session_id;
    let limit = usize::try_from(last.saturating_sub(after)).unwrap_or(usize::MAX).min(FRAMES_READ);
    if limit == 0 {
        return Ok(None);
    }
    let limit = ReadLimit::frames(limit).skipping_damage(key.skips_damage);
    let page = engine.events.read(id, after, limit).await?.ok_or(StoreError::NotFound(id))?;
    let frames: Vec<Frame> = page.frames.into_iter().take_while(|frame| frame.seq <= last).collect();
    // Those behind the last frame are met again by the next page.
    let end = frames.last().map_or(Seq::MAX, |frame| frame.seq);
    lost.extend(page.lost.into_iter().filter(|(from, _)| *from <= end.min(last)));
    Ok(Some(frames).filter(|frames| !frames.is_empty()))
}

fn part(bytes: &Bytes, offset: u64, limit: usize) -> Bytes {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(start..bytes.len().min(start.saturating_add(limit)))
}

/// Finds the blobs that a line refers to, each with the offset of its name. Some may only look like references.
fn references(line: &[u8]) -> impl Iterator<Item = (usize, &str)> {
    let text = std::str::from_utf8(line).unwrap_or_default();
    text.match_indices(REFERENCE).filter_map(|(at, found)| {
        let at = at + found.len();
        let hash = text.get(at..at + HASH_DIGITS)?;
        hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')).then_some((at, hash))
    })
}

/// Returns the name and length of a blob in the bundle; `None` if it is missing or damaged, or a copy of a file: what a
/// model writes may name one.
async fn measure(
    engine: &Engine,
    session_id: SessionId,
    hash: &str,
    is_redacted: bool,
) -> Result<Option<(String, u64)>, StoreError> {
    if is_copy(engine.blobs.as_ref(), session_id, hash).await? {
        return Ok(None);
    }
    if is_redacted {
        return measure_clean(engine, session_id, hash).await;
    }
    let (mut found, mut at) = (Sha256::new(), 0);
    while let Some(piece) = engine.blobs.read(session_id, hash, at, READ_BYTES).await? {
        if piece.is_empty() {
            return Ok((hex(&found.finalize()) == hash).then(|| (hash.to_owned(), at)));
        }
        found.update(&piece);
        at += piece.len() as u64;
    }
    Ok(None)
}

/// As [`measure`], for a blob without keys and secrets.
async fn measure_clean(
    engine: &Engine,
    session_id: SessionId,
    hash: &str,
) -> Result<Option<(String, u64)>, StoreError> {
    if engine.blobs.read(session_id, hash, 0, 1).await?.is_none() {
        return Ok(None);
    }
    let (mut cleaned, mut found) = (Cleaned::new(engine, session_id, hash), Sha256::new());
    while cleaned.next(engine).await? {
        found.update(&cleaned.body);
    }
    let is_whole = hex(&cleaned.raw.finalize()) == hash;
    Ok(is_whole.then(|| (hex(&found.finalize()), cleaned.before + cleaned.body.len() as u64)))
}

/// Cleans a line of keys and secrets; its references name the cleaned blobs.
fn redacted<'a>(engine: &Engine, line: &[u8], renamed: impl Fn(&str) -> Option<&'a (String, u64)>) -> Bytes {
    let text = String::from_utf8_lossy(line);
    let (mut out, mut rest) = (String::with_capacity(text.len()), 0);
    for (at, hash) in references(line) {
        let Some((name, bytes)) = renamed(hash) else { continue };
        out.push_str(&text[rest..at]);
        out.push_str(name);
        rest = at + HASH_DIGITS;
        let length = r#"","bytes":"#;
        if let Some(after) = text[rest..].strip_prefix(length) {
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            out.push_str(length);
            out.push_str(&bytes.to_string());
            rest += length.len() + digits;
        }
    }
    out.push_str(&text[rest..]);
    engine.secrets.redact_line(&out).into()
}
