//! Import of a bundle in pieces. The last piece creates the sessions: all of them or none, unless the process is killed
//! meanwhile; a repeat then passes over those that are there. Until then the upload is a blob of no session, which is
//! dropped when it is abandoned.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_words::agents::{Descent, Parent};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::{
    sha256,
    verify::{Records, Rules, Section, Sections, Span, Upload},
};
use crate::{
    SessionError,
    clock::{Clock, Timestamp},
    engine::Engine,
    ids::{Seq, SessionId},
    service::{ImportBundle, Imported, ImportedSession},
    session::{ForkPoint, Session},
    store::{BlobWriter, ReadLimit, StoreError},
    wire::encode_event,
};

/// Most uploads at one time.
const UPLOADS_MAX: usize = 4;
/// Time in which an upload must grow by so many bytes, or end. If each piece gave it more time, four uploads of tiny
/// pieces could hold all places.
const UPLOAD_IDLE: Duration = Duration::from_secs(600);
const UPLOAD_GROWS_BYTES: u64 = 1024 * 1024;
/// Bytes of a blob to copy at once.
const COPY_BYTES: usize = 256 * 1024;
/// Most milliseconds that an id or event may be ahead of this clock: a new id sorts after the stored ones, so one from
/// the far future would spoil the order of all later ones.
const AHEAD_MS: i64 = 24 * 60 * 60 * 1000;

/// Bundles that are being uploaded.
pub(crate) struct Uploads {
    waiting: Arc<Mutex<State>>,
    room: Arc<Semaphore>,
    /// Held while sessions are created, so that no two imports create the same one.
    making: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    uploads: HashMap<SessionId, Waiting>,
    /// True while a task waits to drop those that are abandoned.
    is_watched: bool,
}

/// Upload between two pieces.
struct Waiting {
    writer: Box<dyn BlobWriter>,
    bytes: u64,
    /// When it last had grown enough, and its bytes then.
    grown: (Duration, u64),
    /// Cancelled when the caller has left, if nobody else can continue it.
    cancel: Option<CancellationToken>,
    _room: OwnedSemaphorePermit,
}

impl Default for Uploads {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(UPLOADS_MAX));
        Self { waiting: Arc::default(), room, making: tokio::sync::Mutex::default() }
    }
}

impl State {
    /// Drops the abandoned uploads; returns the time until the next one may be, `None` if there are none.
    fn sweep(&mut self, now: Duration) -> Option<Duration> {
        self.uploads.retain(|_, upload| now.saturating_sub(upload.grown.0) < UPLOAD_IDLE);
        let oldest = self.uploads.values().map(|upload| upload.grown.0).min()?;
        Some((oldest + UPLOAD_IDLE).saturating_sub(now))
    }
}

/// Drops uploads when they are abandoned, until there are none.
async fn watch(state: Weak<Mutex<State>>, clock: Arc<dyn Clock>) {
    loop {
        let next = {
            let Some(state) = state.upgrade() else { return };
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let next = state.sweep(clock.elapsed());
            state.is_watched = next.is_some();
            next
        };
        let Some(next) = next else { return };
        clock.sleep(next).await;
    }
}

impl Uploads {
    fn waiting(&self) -> MutexGuard<'_, State> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an upload for its next piece.
    fn keep(&self, engine: &Engine, id: SessionId, upload: Waiting) {
        let mut state = self.waiting();
        if upload.cancel.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return;
        }
        state.uploads.insert(id, upload);
        if !std::mem::replace(&mut state.is_watched, true) {
            tokio::spawn(watch(Arc::downgrade(&self.waiting), engine.world.clock.clone()));
        }
    }

    /// Takes the upload of a piece; for the first piece, a new one, which ends with `cancel`.
    fn take(
        &self,
        engine: &Engine,
        request: &ImportBundle,
        cancel: Option<CancellationToken>,
    ) -> Result<(SessionId, Waiting), SessionError> {
        let now = engine.world.clock.elapsed();
        let mut state = self.waiting();
        state.sweep(now);
        let waiting = &mut state.uploads;
        let expects = |bytes: u64| match request.offset == bytes {
            true => Ok(()),
            false => Err(SessionError::invalid("offset", format!("the next piece begins at {bytes}"))),
        };
        let Some(name) = &request.upload else {
            expects(0)?;
            let full = |_| SessionError::Limit { what: "uploads", limit: UPLOADS_MAX as u64 };
            let room = self.room.clone().try_acquire_owned().map_err(full)?;
            let id = engine.world.ids.next_session_id(engine.world.clock.now());
            if let Some(cancel) = cancel.clone() {
                let waiting = Arc::downgrade(&self.waiting);
                tokio::spawn(async move {
                    cancel.cancelled().await;
                    let Some(waiting) = waiting.upgrade() else { return };
                    waiting.lock().unwrap_or_else(PoisonError::into_inner).uploads.remove(&id);
                });
            }
            let writer = engine.blobs.writer(id);
            return Ok((id, Waiting { writer, bytes: 0, grown: (now, 0), cancel, _room: room }));
        };
        let id = name.parse::<SessionId>().ok().filter(|id| waiting.contains_key(id));
        let gone = "there is no such upload, or its pieces came too slowly; begin again without one";
        let id = id.ok_or_else(|| SessionError::invalid("upload", gone))?;
        expects(waiting.get(&id).map_or(0, |upload| upload.bytes))?;
        waiting.remove(&id).map(|upload| (id, upload)).ok_or_else(|| SessionError::invalid("upload", gone))
    }
}

/// Takes a piece; the last one creates the sessions. With `cancel`, the upload ends when that is cancelled.
pub(crate) async fn piece(
    engine: &Engine,
    uploads: &Uploads,
    request: ImportBundle,
    cancel: Option<CancellationToken>,
) -> Result<Imported, SessionError> {
    let data = BASE64_STANDARD.decode(&request.data);
    let data = data.map_err(|_| SessionError::invalid("data", "it is not base64 with padding"))?;
    let (id, mut upload) = uploads.take(engine, &request, cancel)?;
    let (bytes, limit) = (upload.bytes + data.len() as u64, engine.options.limits.bundle_bytes);
    if bytes > limit {
        return Err(SessionError::PayloadTooLarge { what: "bundle", bytes, limit });
    }
    if let Err(error) = engine.events.room().await {
        // The upload can continue when there is room.
        if request.upload.is_some() {
            uploads.keep(engine, id, upload);
        }
        return Err(error.into());
    }
    upload.writer.write(&data).await?;
    if !request.is_last {
        if bytes >= upload.grown.1 + UPLOAD_GROWS_BYTES {
            upload.grown = (engine.world.clock.elapsed(), bytes);
        }
        uploads.keep(engine, id, Waiting { bytes, ..upload });
        let upload = Some(id.to_string());
        return Ok(Imported { upload, next_offset: bytes, sessions: Vec::new(), skipped: Vec::new() });
    }
    let done = match upload.writer.finish().await {
        Err(error) => Err(error.into()),
        Ok((hash, bytes)) => {
            let upload = Upload { blobs: engine.blobs.clone(), id, hash, bytes };
            let _making = uploads.making.lock().await;
            make(engine, &upload, Choice { new_ids: request.new_ids, keep_scope: request.keep_scope }).await
        }
    };
    engine.blobs.forget(id).await;
    let Made { sessions, skipped } = done?;
    Ok(Imported { upload: None, next_offset: bytes, sessions, skipped })
}

/// Sessions of an import.
struct Made {
    sessions: Vec<ImportedSession>,
    /// Those that were here already.
    skipped: Vec<ImportedSession>,
}

/// What the caller of an import chose.
#[derive(Clone, Copy)]
struct Choice {
    new_ids: bool,
    keep_scope: bool,
}

/// Creates the sessions of a bundle after checking all of it.
async fn make(engine: &Engine, upload: &Upload, choice: Choice) -> Result<Made, SessionError> {
    let now = engine.world.clock.now();
    let latest = Timestamp::from_millis(now.as_millis() + AHEAD_MS);
    let rules = Rules::new(latest, engine.options.limits.clone());
    let (mut planned, mut skipped, mut sections) = (Vec::new(), Vec::new(), Sections::of(upload, rules));
    let mut places = HashMap::new();
    while let Some(section) = sections.next().await? {
        let known = if choice.new_ids { None } else { known(engine, &section, latest).await? };
        let was = section.session.id;
        let descent = section.session.descent.as_ref().and_then(|descent| below(descent, &places));
        let (root, depth) = descent.as_ref().map_or((None, 0), |descent| (Some(descent.root), descent.depth));
        let id = match known {
            Some(known) => {
                skipped.push(known);
                was
            }
            None => {
                let session = plan(engine, upload, (section, descent), choice)?;
                let id = session.session.session_id;
                planned.push(session);
                id
            }
        };
        places.insert(was, Place { id, root: root.unwrap_or(id), depth });
    }
    // Deleted sessions with the same ids may have left rows and checkpoints.
    for planned in &planned {
        engine.derived.unlist(planned.session.session_id).await?;
        engine.derived.readers.delete_session(planned.session.session_id);
    }
    engine.derived.index.flush().await?;
    let mut sessions = Vec::new();
    for Planned { session, blobs, mut records } in planned {
        let id = session.session_id;
        let done = match copy(engine, upload, id, &blobs).await {
            Ok(()) => engine.events.import(id, &mut records).await,
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            // Another node may have made it just before.
            if let Ok(None) = engine.events.tail(id).await {
                engine.blobs.forget(id).await;
            }
            take_back(engine, &sessions).await;
            return Err(error.into());
        }
        sessions.push(session);
    }
    Ok(Made { sessions, skipped })
}

/// Place of a session that a bundle has.
struct Place {
    /// Its id here.
    id: SessionId,
    root: SessionId,
    depth: u64,
}

/// Returns the place of a sub-agent here, if the session that called it came before it in the bundle. That of another
/// session would be anybody's claim.
fn below(claimed: &Descent, places: &HashMap<SessionId, Place>) -> Option<Descent> {
    let caller = places.get(&claimed.parent.session_id)?;
    let parent = Parent { session_id: caller.id, ..claimed.parent.clone() };
    Some(Descent { parent, root: caller.root, depth: caller.depth.saturating_add(1) })
}

/// Deletes the sessions that were created before one failed.
async fn take_back(engine: &Engine, made: &[ImportedSession]) {
    for session in made {
        if let Err(error) = engine.delete(session.session_id, None).await {
            tracing::warn!(session_id = %session.session_id, %error, "a session of a bundle that failed stays");
        }
    }
}

/// Session to create from a section.
struct Planned {
    session: ImportedSession,
    blobs: Vec<(String, Span)>,
    records: Records,
}

/// Plans the session of a checked section at its place, perhaps under a new id.
fn plan(
    engine: &Engine,
    upload: &Upload,
    (section, descent): (Section, Option<Descent>),
    choice: Choice,
) -> Result<Planned, SessionError> {
    let Section { session, events, blobs, lost, .. } = section;
    let (imported_from, mut session_id, mut last_seq) = (session.id, session.id, session.last_seq);
    let (mut until, mut added) = (last_seq, Vec::new());
    let now = engine.world.clock.now();
    if choice.new_ids {
        // Later events count the compacted ones, so none of them may be left out.
        let at = match session.fork_at(None) {
            Ok(ForkPoint::After(at)) if at == last_seq || session.pruned_to == 0 => at,
            _ => {
                let why = format!(
                    "session {imported_from} has an unfinished turn, so it can only be imported under its own id"
                );
                return Err(SessionError::BundleInvalid { reason: "open_turn", why });
            }
        };
        session_id = engine.world.ids.next_session_id(now);
        until = at;
        added.push(session.fork_record(at, session_id, now));
    }
    let last = added.last().map_or(until, |record| record.seq);
    // A bundle may take back at its end, behind the cut, what it brings before.
    let cut = added.last().and_then(|fork| session.fork_import_record(until, fork));
    added.extend(session.import_record((session_id, descent), last, now).or(cut));
    let last = added.last().map_or(last, |record| record.seq);
    let labels = labels_here(engine, &session, session_id, choice.keep_scope);
    added.extend(session.labels_record(until, &labels, (session_id, last, now)));
    let mut own = Vec::new();
    for record in added {
        let line = encode_event(&record).map_err(|error| SessionError::Internal(error.to_string()))?;
        last_seq = record.seq;
        own.push((record, line));
    }
    let records = Records { upload: upload.clone(), events, until, own };
    Ok(Planned { session: ImportedSession { session_id, imported_from, last_seq, lost }, blobs, records })
}

/// Returns the labels that a session has here. A bundle may claim to be any user's: unless the caller keeps that
/// label, its session shares memory with no other until the label is set here.
fn labels_here(
    engine: &Engine,
    session: &Session,
    session_id: SessionId,
    keeps_scope: bool,
) -> BTreeMap<String, String> {
    let mut labels = session.labels.clone();
    if let Some(value) = labels.get_mut(&engine.options.memory.scope_label).filter(|_| !keeps_scope) {
        *value = format!("imported:{session_id}");
    }
    labels
}

/// Checks that a session can be created under its own id. Returns it if it is here already, with the bundle's last
/// event: then it has all that the bundle would bring.
async fn known(engine: &Engine, section: &Section, latest: Timestamp) -> Result<Option<ImportedSession>, SessionError> {
    let session_id = section.session.id;
    let refuse = |reason, why: &str| {
        let why = format!("session {session_id} {why} import it with new ids");
        Err(SessionError::BundleInvalid { reason, why })
    };
    if let Some(last_seq) = engine.events.tail(session_id).await? {
        return match holds(engine, session_id, section.session.last_seq, &section.last_sha256).await {
            true => Ok(Some(ImportedSession {
                session_id,
                imported_from: session_id,
                last_seq,
                lost: section.lost.clone(),
            })),
            false => refuse("exists", "is here already, with other events: delete it first, or"),
        };
    }
    let given = session_id.as_uuid().get_timestamp().map(|time| time.to_unix().0);
    let latest = u64::try_from(latest.as_millis()).unwrap_or(0) / 1000;
    if session_id.as_uuid().get_version_num() != 7 || given.is_none_or(|given| given > latest) {
        return refuse("future", "has an id that is not a UUIDv7, or lies in the future:");
    }
    Ok(None)
}

/// Returns true if a session has an event with this line.
async fn holds(engine: &Engine, session_id: SessionId, seq: Seq, line_sha256: &str) -> bool {
    let page = engine.events.read(session_id, seq.saturating_sub(1), ReadLimit::frames(1)).await;
    let frame = page.ok().flatten().and_then(|page| page.frames.into_iter().next());
    frame.is_some_and(|frame| frame.seq == seq && sha256(&frame.line) == line_sha256)
}

/// Copies the blobs of a session before it is created.
async fn copy(engine: &Engine, upload: &Upload, id: SessionId, blobs: &[(String, Span)]) -> Result<(), StoreError> {
    for (hash, span) in blobs {
        let (mut writer, mut at) = (engine.blobs.writer(id), 0);
        while at < span.bytes {
            let piece = upload.piece(*span, at, COPY_BYTES).await?;
            writer.write(&piece).await?;
            at += piece.len() as u64;
        }
        let (name, _) = writer.finish().await?;
        if name != *hash {
            return Err(StoreError::Failed(format!("blob {hash} changed while it was copied")));
        }
    }
    Ok(())
}
