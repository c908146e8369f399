//! The reader that hands to memory what was said.
//!
//! It is done only with what memory holds durably, so that nothing is dropped from a journal before; where it failed, it
//! tries again later.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;

use super::{Memory, READER};
use crate::{
    SessionError,
    consumers::{
        Host,
        beside::Beside,
        driver::{Consumer, Moment},
        readers::Readers,
        room_beside,
    },
    ids::{Seq, SessionId},
    memory::{
        Intake,
        intake::{IntakeFold, Wanted},
    },
    session::event::{Event, Record},
    store::{EventStore, ReadLimit, StoreError, restore::decode},
};

/// Frames that are read at a time.
const FRAMES_READ: usize = 256;
/// Passages after which no more are read before those are taken in.
const PASSAGES_TOGETHER: usize = 1_000;
/// Ids of stored sessions that are read at a time.
const IDS_READ: usize = 1_000;

/// The reader at work.
pub(super) struct Run {
    memory: Arc<Memory>,
    /// Works with what was said.
    thread: Beside,
    /// Sessions with an open turn, and up to where it is known not to have ended: it is read as a whole once it has.
    open: HashMap<SessionId, Seq>,
    /// If what compactions discarded is all that is wanted: what was said up to here was discarded before.
    live_after: HashMap<SessionId, Seq>,
    /// If memory waits to be told that it has everything again.
    is_lost: bool,
}

#[async_trait]
impl Consumer for Run {
    const DEBOUNCE: Duration = Duration::from_millis(300);

    /// Finds out if memory has what its checkpoints say, and what it has that is there no more.
    async fn begin(&mut self, _host: &dyn Host) -> Result<(), SessionError> {
        let Memory { store, control, is_begun, .. } = self.memory.as_ref();
        is_begun.store(true, Ordering::Release);
        self.is_lost = store.needs_rebuild().await?;
        control.readers.trust(READER, self.is_lost).await?;
        match self.deleted().await {
            Ok(deleted) => control.readers.note_gone(READER, deleted)?,
            // What it has is no less good for that.
            Err(error) => {
                tracing::warn!(%error, "sessions that were deleted without memory may be found until the next start");
            }
        }
        Ok(())
    }

    async fn forget(&mut self, host: &dyn Host, session_id: SessionId) -> Result<(), SessionError> {
        self.memory.gone(session_id).await?;
        host.drop_row_of_gone(session_id).await?;
        // Another one may come under its id.
        self.open.remove(&session_id);
        self.live_after.remove(&session_id);
        Ok(())
    }

    async fn apply(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<bool, SessionError> {
        let memory = self.memory.clone();
        if memory.is_stored {
            room_beside(memory.events.as_ref()).await?;
        }
        let _taking_in = memory.taking_in.lock().await;
        let taken = self.take_in(host, sessions).await;
        if taken.is_err() {
            // What was discarded is looked for again.
            self.live_after.clear();
        }
        taken
    }

    async fn settle(&mut self, _host: &dyn Host, moment: Moment) -> Result<(), SessionError> {
        if self.is_lost && moment != Moment::Busy {
            self.memory.store.rebuilt().await?;
            self.is_lost = false;
        }
        Ok(())
    }
}

impl Run {
    pub(super) fn new(memory: Arc<Memory>) -> Self {
        let thread = Beside::new("meerkat-memory");
        Self { memory, thread, open: HashMap::new(), live_after: HashMap::new(), is_lost: false }
    }

    /// Sessions that memory knows from journals which are no longer there: a process without memory deleted them.
    async fn deleted(&self) -> Result<Vec<SessionId>, SessionError> {
        if !self.memory.is_stored {
            return Ok(Vec::new());
        }
        // Memory first: what it knows was stored by then. What is stored meanwhile it does not know.
        let mut known: BTreeSet<SessionId> = self.memory.store.sessions().await?.into_iter().collect();
        let (events, mut after, mut deleted) = (&self.memory.events, None, Vec::new());
        while !known.is_empty() {
            let stored = events.sessions(after, IDS_READ).await?;
            known.retain(|session_id| stored.binary_search(session_id).is_err());
            let Some(last) = stored.last() else { break };
            after = Some(*last);
        }
        for session_id in known {
            // It may have been imported since. One that cannot be read is there.
            match events.journal_bytes(session_id).await {
                Ok(0) => deleted.push(session_id),
                Ok(_) | Err(StoreError::Corrupted { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(deleted)
    }

    /// Takes in what these sessions have, as far as that is not too much at once; answers if more is left.
    async fn take_in(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<bool, SessionError> {
        let (memory, mut intakes, mut passages, mut failed) = (self.memory.clone(), Vec::new(), 0, None);
        let readers = &memory.control.readers;
        for session_id in sessions {
            if memory.control.is_over() || passages >= PASSAGES_TOGETHER {
                break;
            }
            match self.read(host, session_id).await {
                Ok(intake) => {
                    passages += intake.as_ref().map_or(0, |intake| intake.passages.len());
                    intakes.extend(intake);
                }
                // It is tried again when it has more, or by the next start.
                Err(error @ (SessionError::NotFound(_) | SessionError::ShuttingDown | SessionError::Corrupted(_))) => {
                    if let SessionError::Corrupted(_) = error {
                        tracing::warn!(%session_id, %error, "memory cannot take a session in");
                    }
                    readers.rest(READER, session_id, Seq::MAX)?;
                }
                // It may pass: others come first, and then this one again.
                Err(error) => failed = Some(error),
            }
        }
        let done: Vec<(SessionId, Seq)> = intakes.iter().map(|intake| (intake.session_id, intake.up_to)).collect();
        if !intakes.is_empty() {
            memory.store.add(intakes).await?;
        }
        for (session_id, up_to) in done {
            done_with(readers, session_id, up_to).await?;
        }
        failed.map_or(Ok(passages >= PASSAGES_TOGETHER), Err)
    }

    /// What memory is to take in of a session; `None` where there is nothing yet.
    async fn read(&mut self, host: &dyn Host, session_id: SessionId) -> Result<Option<Intake>, SessionError> {
        let memory = self.memory.clone();
        let readers = &memory.control.readers;
        let from = memory.store.taken_in(session_id).await?;
        if let Some(looked_at) = self.open.remove(&session_id).filter(|looked_at| *looked_at > from) {
            let fold = IntakeFold::within_turn(memory.wanted.clone(), looked_at);
            let fold = self.fold(session_id, fold, Seq::MAX).await?;
            if fold.up_to == looked_at {
                self.open.insert(session_id, fold.last);
                readers.rest(READER, session_id, fold.last)?;
                return Ok(None);
            }
        }
        let fold = IntakeFold::new(memory.wanted.clone(), from);
        let mut fold = self.fold(session_id, fold, Seq::MAX).await?;
        if fold.up_to == from {
            // A former process may have been killed before it said so.
            done_with(readers, session_id, from).await?;
            readers.rest(READER, session_id, fold.last)?;
            self.open.insert(session_id, fold.last);
            return Ok(None);
        }
        for discarded in std::mem::take(&mut fold.discarded) {
            let after = self.live_after.get(&session_id).copied().unwrap_or(0);
            let (before, stays_from) = (discarded.before, discarded.stays_from());
            let all = IntakeFold::new(Wanted::DiscardedBy(discarded), after);
            let all = self.fold(session_id, all, before).await?;
            fold.taken.extend(all.all());
            self.live_after.insert(session_id, stays_from.saturating_sub(1));
        }
        let labels = match fold.labels {
            Some(labels) => labels,
            None => host.summary(session_id).await?.labels.clone(),
        };
        let mut inherited = fold.written;
        inherited.remove(&session_id);
        Ok(Some(Intake { session_id, labels, passages: fold.taken, up_to: fold.up_to, inherited }))
    }

    /// Folds what a journal holds between the fold's last record and `before`; where that is much, only a part of it.
    async fn fold(&self, session_id: SessionId, mut fold: IntakeFold, before: Seq) -> Result<IntakeFold, SessionError> {
        let lost = |error: std::io::Error| SessionError::Internal(error.to_string());
        let events = self.memory.events.as_ref();
        loop {
            let page = events.read(session_id, fold.last, ReadLimit::frames(FRAMES_READ)).await?;
            let frames = page.ok_or(SessionError::NotFound(session_id))?.frames;
            let decoded = self.thread.perform(move || frames.iter().map(decode).collect::<Result<Vec<Record>, _>>());
            let mut records = decoded.await.map_err(lost)??;
            records.retain(|record| record.seq < before);
            let Some(last) = records.last().map(|record| record.seq) else { return Ok(fold) };
            let queued = queued_prompts(events, session_id, &records).await?;
            let folding = self.thread.perform(move || {
                for record in &records {
                    fold.push(record, queued.get(&record.seq));
                }
                fold
            });
            fold = folding.await.map_err(lost)?;
            let is_enough = before == Seq::MAX && fold.taken.len() >= PASSAGES_TOGETHER;
            if is_enough || last + 1 >= before {
                return Ok(fold);
            }
            if self.memory.control.is_over() {
                return Err(SessionError::ShuttingDown);
            }
        }
    }
}

/// The records that hold the prompts of turns that waited, by those that started them.
async fn queued_prompts(
    events: &dyn EventStore,
    session_id: SessionId,
    records: &[Record],
) -> Result<HashMap<Seq, Record>, SessionError> {
    let mut prompts = HashMap::new();
    for record in records {
        if let Event::TurnStarted(started) = &record.event
            && let (None, Some(queued)) = (&started.prompt, started.queued)
            && let Some(page) = events.read(session_id, queued - 1, ReadLimit::frames(1)).await?
            && let Some(frame) = page.frames.first().filter(|frame| frame.seq == queued)
        {
            prompts.insert(record.seq, decode(frame)?);
        }
    }
    Ok(prompts)
}

/// The reader is done with a session up to a record. One that is gone is none of its business any more.
async fn done_with(readers: &Readers, session_id: SessionId, up_to: Seq) -> Result<(), SessionError> {
    match readers.done(READER, session_id, up_to).await {
        Ok(_) | Err(SessionError::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
