//! The reader that hands messages to memory.
//!
//! Its checkpoints cover only what memory holds durably, so that nothing is dropped from a journal before that.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;

use super::{Memory, MemoryHandle, READER};
use crate::{
    SessionError,
    consumers::{
        FindHost, Host,
        background::BackgroundThread,
        check_room,
        driver::{Consumer, Moment},
        readers::Readers,
    },
    ids::{Seq, SessionId},
    memory::{
        Intake,
        intake::{IntakeFold, Wanted},
    },
    session::event::{Event, Record},
    store::{EventStore, ReadLimit, StoreError, restore::decode},
};

/// Frames to read at once.
const FRAMES_READ: usize = 256;
/// All of them that are good: what can be read of a damaged session is found, too.
const ALL_GOOD: ReadLimit = ReadLimit::frames(FRAMES_READ).skipping_damage(true);
/// Number of passages after which they are taken in before more are read.
const PASSAGES_TOGETHER: usize = 1_000;
/// Ids of stored sessions to read at once.
const IDS_READ: usize = 1_000;

/// Reader at work.
struct Run {
    memory: Arc<Memory>,
    thread: BackgroundThread,
    /// Sessions with an open turn, and the seq up to which it has not ended: it is read as a whole when it has.
    open: HashMap<SessionId, Seq>,
    /// If only discarded messages are wanted: the seq up to which they were discarded before.
    live_after: HashMap<SessionId, Seq>,
    /// True while it begins again with every session.
    is_anew: bool,
}

impl MemoryHandle {
    /// Begins to take in the messages of a service.
    pub(crate) fn begin(&self, host: FindHost) {
        let (memory, thread) = (Arc::clone(self), BackgroundThread::new("meerkat-memory"));
        let run = Run { memory, thread, open: HashMap::new(), live_after: HashMap::new(), is_anew: false };
        self.control.drive(run, host);
    }
}

#[async_trait]
impl Consumer for Run {
    const DEBOUNCE: Duration = Duration::from_millis(300);

    /// Finds out if memory has what its checkpoints say, and which of its sessions are no longer stored.
    async fn begin(&mut self, _host: &dyn Host) -> Result<(), SessionError> {
        let Memory { store, control, is_begun, is_lost, .. } = self.memory.as_ref();
        is_begun.store(true, Ordering::Release);
        let needs_rebuild = store.needs_rebuild().await?;
        is_lost.store(needs_rebuild, Ordering::Release);
        self.is_anew = needs_rebuild;
        control.readers.trust(READER, needs_rebuild).await?;
        self.memory.forget_with_others().await?;
        if control.is_ending() {
            // Nobody searches here any more, and looking at every journal costs more than a short command.
            return Ok(());
        }
        self.memory.tell_others().await?;
        match self.deleted().await {
            Ok(deleted) => control.readers.missed_deletions(READER, deleted)?,
            // What it has can be searched all the same.
            Err(error) => {
                tracing::warn!(%error, "sessions that were deleted without memory may be found until the next start");
            }
        }
        Ok(())
    }

    async fn forget(&mut self, host: &dyn Host, session_id: SessionId) -> Result<(), SessionError> {
        self.memory.forget_session(session_id).await?;
        host.drop_row_of_deleted(session_id).await?;
        // A new session may get this id.
        self.open.remove(&session_id);
        self.live_after.remove(&session_id);
        Ok(())
    }

    async fn apply(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<(), SessionError> {
        let memory = self.memory.clone();
        if memory.is_stored {
            check_room(memory.events.as_ref()).await?;
        }
        memory.look_for_loss().await;
        // Rounds after this one have every session.
        if memory.is_lost.load(Ordering::Acquire) && !std::mem::replace(&mut self.is_anew, true) {
            self.open.clear();
            self.live_after.clear();
        }
        let _taking_in = memory.taking_in.lock().await;
        let taken = self.take_in(host, sessions).await;
        if taken.is_err() {
            // Discarded messages are looked for again.
            self.live_after.clear();
        }
        taken
    }

    async fn settle(&mut self, _host: &dyn Host, moment: Moment) -> Result<Option<Duration>, SessionError> {
        if moment != Moment::Busy && self.is_anew {
            let Memory { store, control, is_lost, .. } = self.memory.as_ref();
            store.rebuilt().await?;
            self.is_anew = store.needs_rebuild().await?;
            is_lost.store(self.is_anew, Ordering::Release);
            if self.is_anew {
                // It was lost again meanwhile, with the sessions that had been added.
                self.open.clear();
                self.live_after.clear();
                control.readers.trust(READER, true).await?;
                control.readers.look_again();
            }
        }
        Ok(None)
    }

    fn is_lost_at_end(&self) -> bool {
        !self.memory.is_stored
    }
}

impl Run {
    /// Lists sessions that memory knows and whose journals no longer exist: a process without memory deleted them.
    async fn deleted(&self) -> Result<Vec<SessionId>, SessionError> {
        if !self.memory.is_stored {
            return Ok(Vec::new());
        }
        // Memory first: the sessions that it knows were stored by then.
        let mut known: BTreeSet<SessionId> = self.memory.store.sessions().await?.into_iter().collect();
        let (events, mut after, mut deleted) = (&self.memory.events, None, Vec::new());
        while !known.is_empty() {
            let stored = events.sessions(after, IDS_READ).await?;
            known.retain(|session_id| stored.binary_search(session_id).is_err());
            let Some(last) = stored.last() else { break };
            after = Some(*last);
        }
        for session_id in known {
            // It may have been imported since. One that cannot be read still exists.
            match events.journal_bytes(session_id).await {
                Ok(0) => deleted.push(session_id),
                Ok(_) | Err(StoreError::Corrupted { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(deleted)
    }

    /// Takes in these sessions, or some of them if that is too much at once.
    async fn take_in(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<(), SessionError> {
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
                // It is retried when it has more, or by the next start.
                Err(
                    error @ (SessionError::NotFound(_) | SessionError::ShuttingDown | SessionError::Corrupted { .. }),
                ) => {
                    if let SessionError::Corrupted { .. } = error {
                        tracing::warn!(%session_id, %error, "memory cannot take a session in");
                    }
                    readers.rest(READER, session_id, Seq::MAX)?;
                }
                // The failure may pass: others come first, and then this one again.
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
        failed.map_or(Ok(()), Err)
    }

    /// Reads what memory has to take in of a session; `None` if there is nothing yet.
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
            // A former process may have been killed before it moved the checkpoint.
            done_with(readers, session_id, from).await?;
            readers.rest(READER, session_id, fold.last)?;
            self.open.insert(session_id, fold.last);
            return Ok(None);
        }
        let (labels, is_indexed) = match (fold.labels.take(), fold.is_indexed) {
            (Some(labels), Some(is_indexed)) => (labels, is_indexed),
            (labels, _) => {
                let view = host.view(session_id).await?;
                (labels.unwrap_or_else(|| view.summary.labels.clone()), view.memory.index)
            }
        };
        if !is_indexed {
            (fold.taken, fold.discarded) = Default::default();
        }
        for discarded in std::mem::take(&mut fold.discarded) {
            let after = self.live_after.get(&session_id).copied().unwrap_or(0);
            let (before, stays_from) = (discarded.before, discarded.stays_from());
            let all = IntakeFold::new(Wanted::DiscardedBy(discarded), after);
            let all = self.fold(session_id, all, before).await?;
            fold.taken.extend(all.all());
            self.live_after.insert(session_id, stays_from.saturating_sub(1));
        }
        let mut inherited = fold.written;
        inherited.remove(&session_id);
        Ok(Some(Intake { session_id, labels, passages: fold.taken, up_to: fold.up_to, inherited }))
    }

    /// Folds a journal's records between the fold's last one and `before`; if these are many, only some of them.
    async fn fold(&self, session_id: SessionId, mut fold: IntakeFold, before: Seq) -> Result<IntakeFold, SessionError> {
        let lost = |error: std::io::Error| SessionError::Internal(error.to_string());
        let events = self.memory.events.as_ref();
        loop {
            let page = events.read(session_id, fold.last, ALL_GOOD).await?;
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

/// Finds the records with prompts that waited, by the records that bring them into the context.
async fn queued_prompts(
    events: &dyn EventStore,
    session_id: SessionId,
    records: &[Record],
) -> Result<HashMap<Seq, Record>, SessionError> {
    let mut prompts = HashMap::new();
    for record in records {
        let waited = match &record.event {
            Event::TurnStarted(started) => started.queued.filter(|_| started.prompt.is_none()),
            Event::SteeringEntered(entered) => Some(entered.steered),
            _ => None,
        };
        if let Some(queued) = waited
            && let Some(page) = events.read(session_id, queued - 1, ReadLimit::frames(1).skipping_damage(true)).await?
            && let Some(frame) = page.frames.first().filter(|frame| frame.seq == queued)
        {
            prompts.insert(record.seq, decode(frame)?);
        }
    }
    Ok(prompts)
}

/// Moves the reader's checkpoint, unless the session was deleted.
async fn done_with(readers: &Readers, session_id: SessionId, up_to: Seq) -> Result<(), SessionError> {
    match readers.done(READER, session_id, up_to).await {
        Ok(_) | Err(SessionError::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
