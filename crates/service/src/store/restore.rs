//! Restoring a session from its journal: from a snapshot if there is one, then from every later record.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::{
    ids::SessionId,
    session::{Session, event::Record},
    store::{EventStore, Frame, ReadLimit, SessionStore, StoreError},
    wire::{decode_event, decode_outline},
};

/// Frames to read at once.
const FRAMES_READ: usize = 512;

/// Restores a session from its journal; `None` if there is none. Nothing is leased or written.
pub(crate) async fn restore(
    events: &dyn EventStore,
    snapshots: &dyn SessionStore,
    session_id: SessionId,
) -> Result<Option<Session>, StoreError> {
    whole(|| restore_once(events, snapshots, session_id)).await
}

/// Reads until no part was torn. Each new attempt means that journal compaction has replaced a segment, so the attempts
/// end as compactions do.
async fn whole<Reading>(read: impl Fn() -> Reading) -> Result<Option<Session>, StoreError>
where
    Reading: Future<Output = Result<Option<Session>, Trouble>>,
{
    loop {
        match read().await {
            Err(Trouble::Torn) => {}
            Err(Trouble::Failed(error)) => return Err(error),
            Ok(restored) => return Ok(restored),
        }
    }
}

/// Reason that a journal was not replayed.
pub(crate) enum Trouble {
    /// It was compacted meanwhile, so the records read do not fit together.
    Torn,
    Failed(StoreError),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Failed(error)
    }
}

async fn restore_once(
    events: &dyn EventStore,
    snapshots: &dyn SessionStore,
    session_id: SessionId,
) -> Result<Option<Session>, Trouble> {
    match snapshots.load(&session_id).await {
        Ok(Some(mut session)) => match replay(events, session_id, &mut session).await {
            Ok(()) => return Ok(Some(session)),
            Err(Trouble::Torn) => return Err(Trouble::Torn),
            // What is before the damage can be looked at; nothing can be appended.
            Err(Trouble::Failed(StoreError::Corrupted { .. })) => return Ok(Some(session)),
            Err(Trouble::Failed(error)) => {
                tracing::warn!(%session_id, %error, "a snapshot does not fit its journal and is passed over")
            }
        },
        Ok(None) => {}
        Err(error) => tracing::warn!(%session_id, %error, "a snapshot cannot be read and is passed over"),
    }
    begin_anew(events, session_id, true).await
}

/// Restores a session from its whole journal, without a snapshot; `None` if there is none. Damage is an error.
pub(crate) async fn replay_whole(
    events: &dyn EventStore,
    session_id: SessionId,
) -> Result<Option<Session>, StoreError> {
    whole(|| begin_anew(events, session_id, false)).await
}

async fn begin_anew(
    events: &dyn EventStore,
    session_id: SessionId,
    ends_at_damage: bool,
) -> Result<Option<Session>, Trouble> {
    let mut begun = first(events, session_id).await?;
    if begun.is_none() {
        if events.tail(session_id).await?.is_none() {
            return Ok(None);
        }
        // It may have appeared meanwhile.
        begun = first(events, session_id).await?;
    }
    // A journal without a beginning differs from one that never existed.
    let Some(mut session) = begun else {
        let why = "it has no first record".to_owned();
        return Err(StoreError::Corrupted { session_id, last_good_seq: 0, why }.into());
    };
    match replay(events, session_id, &mut session).await {
        Err(Trouble::Failed(StoreError::Corrupted { .. })) if ends_at_damage => {}
        replayed => replayed?,
    }
    if session.id != session_id {
        // A damaged fork ends before its own first record: only its parent's beginning is left, not a session.
        let last_good_seq = session.last_seq;
        let why = "its own first record is missing".to_owned();
        return Err(StoreError::Corrupted { session_id, last_good_seq, why }.into());
    }
    Ok(Some(session))
}

/// Builds the session from its first record.
async fn first(events: &dyn EventStore, session_id: SessionId) -> Result<Option<Session>, StoreError> {
    let page = events.read(session_id, 0, ReadLimit::frames(1)).await?;
    let Some(frame) = page.and_then(|page| page.frames.into_iter().next()) else { return Ok(None) };
    Session::begin_anywhere(&decode(&frame)?).map(Some).map_err(|error| StoreError::Failed(error.to_string()))
}

/// Applies the later records of `session_id`. A fork's begin with records of its parent, whose id the session has until
/// its own begin.
pub(crate) async fn replay(
    events: &dyn EventStore,
    session_id: SessionId,
    session: &mut Session,
) -> Result<(), Trouble> {
    let mut version = None;
    while let Some(page) = events.read(session_id, session.last_seq, ReadLimit::frames(FRAMES_READ)).await? {
        if *version.get_or_insert(page.version) != page.version {
            return Err(Trouble::Torn);
        }
        if page.frames.is_empty() {
            break;
        }
        for frame in &page.frames {
            session.apply(&decode(frame)?).map_err(|error| StoreError::Failed(error.to_string()))?;
        }
    }
    Ok(())
}

/// Restores a session from its journal without its messages, and tells if its context is there by reference; `None` if
/// the store cannot show the current journal, or something is open in the session's snapshot.
pub(crate) async fn outline(
    events: &dyn EventStore,
    snapshots: &dyn SessionStore,
    session_id: SessionId,
) -> Option<(Session, bool)> {
    let before = snapshots.outline(&session_id).await.ok()?;
    let is_whole = before.is_none();
    if is_whole && snapshots.exists(&session_id).await.ok()? {
        return None;
    }
    // The last record of a snapshot proves that it belongs to this journal.
    let after = before.as_ref().map_or(0, |before| before.last_seq - 1);
    let fold = Arc::new(Mutex::new(Outline { session: before, is_proven: is_whole, is_broken: false }));
    let sink = fold.clone();
    let see = move |line: &Bytes| sink.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    match events.scan(session_id, after, Box::new(see)).await {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => {
            tracing::debug!(%session_id, %error, "a journal could not be passed through");
            return None;
        }
    }
    let session = fold.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    (session.id == session_id).then_some((session, is_whole))
}

/// Folds lines without their messages.
struct Outline {
    session: Option<Session>,
    /// True if its snapshot belongs to this journal.
    is_proven: bool,
    is_broken: bool,
}

impl Outline {
    fn push(&mut self, line: &Bytes) {
        if !self.is_broken {
            self.is_broken = self.fold(line).is_none();
        }
    }

    fn fold(&mut self, line: &Bytes) -> Option<()> {
        // Lists show the beginning of the first prompt.
        let keeps_prompt = self.session.as_ref().is_some_and(|session| session.first_line.is_none());
        let record = decode_outline(std::str::from_utf8(line).ok()?, keeps_prompt).ok()?;
        let Some(session) = &mut self.session else {
            self.session = Some(Session::begin_anywhere(&record).ok()?);
            return Some(());
        };
        if self.is_proven {
            return session.apply(&record).ok();
        }
        let known = (session.last_seq, session.updated_at, session.id);
        self.is_proven = known == (record.seq, record.time, record.session_id);
        self.is_proven.then_some(())
    }

    fn take(&mut self) -> Option<Session> {
        self.session.take().filter(|_| self.is_proven && !self.is_broken)
    }
}

/// Decodes the record in a frame.
pub(crate) fn decode(frame: &Frame) -> Result<Record, StoreError> {
    let line = std::str::from_utf8(&frame.line).map_err(|error| StoreError::Failed(error.to_string()))?;
    decode_event(line).map_err(|error| StoreError::Failed(error.to_string()))
}
