//! The reader that hands to memory what was said.
//!
//! It is done only with what memory holds durably, so that nothing is dropped from a journal before; where it failed, it
//! tries again later.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, PoisonError, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::sync::{mpsc, watch};

use super::{Ask, Memory, MemoryHandle, READER};
use crate::{
    SessionError,
    consumers::{
        beside::Beside,
        readers::{Readers, fetch::Next},
    },
    engine::Engine,
    ids::{Seq, SessionId},
    memory::{
        Intake,
        intake::{IntakeFold, Wanted},
    },
    runtime::sessions::{Inner, Sessions},
    session::event::{Event, Record},
    store::{ReadLimit, StoreError, restore::decode},
};

/// How long it waits for more before it takes in what there is.
const DEBOUNCE: Duration = Duration::from_millis(300);
/// Frames that are read at a time.
const FRAMES_READ: usize = 256;
/// Sessions that are taken in together.
const SESSIONS_TOGETHER: usize = 64;
/// Passages after which no more are read before those are taken in.
const PASSAGES_TOGETHER: usize = 1_000;
/// Ids of stored sessions that are read at a time.
const IDS_READ: usize = 1_000;
/// The first wait after something failed, and the longest.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Who waits until everything is taken in that was there when it asked.
struct Waiting {
    ask: Ask,
    /// What it waits for, once that was looked up.
    due: Option<HashMap<SessionId, Seq>>,
}

impl From<Ask> for Waiting {
    fn from(ask: Ask) -> Self {
        Self { ask, due: None }
    }
}

impl Sessions {
    /// Begins to remember, where there is a memory. It ends with the service.
    pub(in crate::runtime) fn begin_remembering(&self) {
        let Some(MemoryHandle(memory)) = &self.engine().derived.memory else { return };
        let Some(asks) = memory.asked.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let run = Run {
            // It does not keep the service.
            inner: Arc::downgrade(&self.inner),
            memory: memory.clone(),
            changes: memory.readers.changes(),
            asks,
            waiting: Vec::new(),
            thread: Beside::new("meerkat-memory"),
            gone: BTreeSet::new(),
            open: HashMap::new(),
            live_after: HashMap::new(),
            is_behind: false,
            is_lost: false,
            is_failing: false,
        };
        memory.task.spawn(run.until_the_end());
    }
}

/// The reader at work.
struct Run {
    inner: Weak<Inner>,
    memory: Arc<Memory>,
    /// Changes when a session has more records, or is gone.
    changes: watch::Receiver<u64>,
    asks: mpsc::UnboundedReceiver<Ask>,
    /// Those who wait until there is nothing left to take in.
    waiting: Vec<Waiting>,
    /// Works with what was said.
    thread: Beside,
    /// Deleted sessions that memory could not be told of yet.
    gone: BTreeSet<SessionId>,
    /// Sessions with an open turn, and up to where it is known not to have ended: it is read as a whole once it has.
    open: HashMap<SessionId, Seq>,
    /// Where what compactions discarded is all that is wanted: what was said up to here was discarded before.
    live_after: HashMap<SessionId, Seq>,
    /// Whether there was more than was taken in at once.
    is_behind: bool,
    is_failing: bool,
    /// Whether memory waits to be told that it has everything again.
    is_lost: bool,
}

impl Run {
    async fn until_the_end(mut self) {
        let (mut wait, mut is_trusted) = (RETRY_BASE, false);
        if !self.is_needed().await {
            return;
        }
        self.memory.is_begun.store(true, Ordering::Release);
        loop {
            let done = match is_trusted {
                true => self.step().await,
                false => self.begin().await.map(|()| true),
            };
            match done {
                Ok(false) => break,
                Ok(true) => (wait, is_trusted, self.is_failing) = (RETRY_BASE, true, false),
                Err(error) => {
                    // Once is enough to know; what goes on failing is told of in a whisper.
                    match std::mem::replace(&mut self.is_failing, true) {
                        false => tracing::warn!(%error, "memory is behind, and tries again"),
                        true => tracing::debug!(%error, "memory is behind, and tries again"),
                    }
                    if !self.pause(wait).await {
                        break;
                    }
                    wait = (wait * 2).min(RETRY_MAX);
                }
            }
        }
        self.answer(false);
    }

    /// Waits until there is a reason to begin: a command that only looks at something does not pay for memory's files.
    async fn is_needed(&mut self) -> bool {
        let Memory { ending, over, clock, .. } = self.memory.as_ref();
        tokio::select! {
            biased;
            () = over.cancelled() => false,
            Some(ask) = self.asks.recv() => {
                self.waiting.push(ask.into());
                true
            }
            changed = self.changes.changed() => changed.is_ok(),
            () = ending.cancelled() => false,
            () = clock.sleep(DEBOUNCE) => true,
        }
    }

    /// Finds out whether memory has what its checkpoints say, and what it has that is there no more.
    async fn begin(&mut self) -> Result<(), SessionError> {
        self.is_lost = self.memory.store.needs_rebuild().await?;
        self.memory.readers.trust(READER, self.is_lost).await?;
        match self.deleted().await {
            Ok(deleted) => self.gone.extend(deleted),
            // What it has is no less good for that.
            Err(error) => {
                tracing::warn!(%error, "sessions that were deleted without memory may be found until the next start");
            }
        }
        Ok(())
    }

    /// Sessions that memory knows from journals which are no longer there: a process without memory deleted them.
    async fn deleted(&self) -> Result<Vec<SessionId>, SessionError> {
        let Some(inner) = self.inner.upgrade().filter(|_| self.memory.is_stored) else { return Ok(Vec::new()) };
        // Memory first: what it knows was stored by then. What is stored meanwhile it does not know.
        let mut known: BTreeSet<SessionId> = self.memory.store.sessions().await?.into_iter().collect();
        let (events, mut after, mut deleted) = (&inner.engine.events, None, Vec::new());
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

    /// Those who wait go on.
    fn answer(&mut self, is_caught_up: bool) {
        for waiting in self.waiting.drain(..) {
            // It may have waited long enough.
            let _ = waiting.ask.send(is_caught_up);
        }
    }

    /// Those who have just asked wait for what there is now, not for what comes while it is taken in.
    async fn note_due(&mut self) -> Result<(), SessionError> {
        if self.waiting.iter().all(|waiting| waiting.due.is_some()) {
            return Ok(());
        }
        let behind = self.memory.readers.behind(READER).await?;
        for waiting in self.waiting.iter_mut().filter(|waiting| waiting.due.is_none()) {
            waiting.due = Some(behind.clone());
        }
        Ok(())
    }

    /// Those go on for whom everything is taken in that was there when they asked.
    fn answer_done(&mut self) -> Result<(), SessionError> {
        for mut waiting in std::mem::take(&mut self.waiting) {
            if let Some(due) = &mut waiting.due {
                self.memory.readers.retain_behind(READER, due)?;
            }
            if waiting.due.as_ref().is_some_and(HashMap::is_empty) {
                // It may have waited long enough.
                let _ = waiting.ask.send(true);
            } else {
                self.waiting.push(waiting);
            }
        }
        Ok(())
    }

    /// Waits before what failed is tried again; nobody waits for that. `false` at the end.
    async fn pause(&mut self, wait: Duration) -> bool {
        let mut timer = self.memory.clock.sleep(wait);
        loop {
            self.answer(false);
            tokio::select! {
                biased;
                // What no journal keeps is tried again to the last.
                () = self.memory.ending.cancelled(), if self.memory.is_stored => return false,
                () = self.memory.over.cancelled() => return false,
                Some(ask) = self.asks.recv() => self.waiting.push(ask.into()),
                () = &mut timer => return true,
            }
        }
    }

    /// Waits until there may be something to do; `false` at the end.
    async fn rest(&mut self) -> bool {
        let Memory { ending, over, .. } = self.memory.as_ref();
        if ending.is_cancelled() {
            return false;
        }
        tokio::select! {
            biased;
            () = over.cancelled() => false,
            () = ending.cancelled() => true,
            Some(ask) = self.asks.recv() => {
                self.waiting.push(ask.into());
                true
            }
            changed = self.changes.changed() => changed.is_ok(),
        }
    }

    /// Waits for more, unless somebody waits for what there is.
    async fn debounce(&mut self) {
        let Memory { ending, over, clock, .. } = self.memory.as_ref();
        if self.is_behind || !self.waiting.is_empty() {
            return;
        }
        tokio::select! {
            biased;
            () = over.cancelled() => {}
            () = ending.cancelled() => {}
            Some(ask) = self.asks.recv() => self.waiting.push(ask.into()),
            () = clock.sleep(DEBOUNCE) => {}
        }
    }

    /// Takes in what there is, or waits for it; `false` at the end.
    async fn step(&mut self) -> Result<bool, SessionError> {
        self.changes.borrow_and_update();
        while let Ok(ask) = self.asks.try_recv() {
            self.waiting.push(ask.into());
        }
        if self.memory.over.is_cancelled() {
            return Ok(false);
        }
        self.note_due().await?;
        let sessions = self.due().await?;
        if sessions.is_empty() && self.gone.is_empty() {
            if self.is_lost {
                self.memory.store.rebuilt().await?;
                self.is_lost = false;
            }
            self.answer(true);
            return Ok(self.rest().await);
        }
        self.debounce().await;
        let Some(service) = self.inner.upgrade().map(Sessions::of) else { return Ok(false) };
        while let Some(&session_id) = self.gone.first() {
            self.memory.gone(session_id).await?;
            service.drop_row_of_gone(session_id).await?;
            self.gone.remove(&session_id);
            // Another one may come under its id.
            self.open.remove(&session_id);
            self.live_after.remove(&session_id);
        }
        if self.memory.is_stored {
            service.room_beside().await?;
        }
        let memory = self.memory.clone();
        let _taking_in = memory.taking_in.lock().await;
        let taken = self.take_in(&service, sessions).await;
        if taken.is_err() {
            // What was discarded is looked for anew.
            self.live_after.clear();
        }
        taken?;
        self.answer_done()?;
        Ok(true)
    }

    /// Sessions that have something to be taken in, each once.
    async fn due(&mut self) -> Result<Vec<SessionId>, SessionError> {
        let (readers, mut sessions) = (self.memory.readers.clone(), Vec::new());
        while sessions.len() < SESSIONS_TOGETHER {
            match readers.next_at_hand(READER).await {
                Ok(Some(Next::Gone(session_id))) => drop(self.gone.insert(session_id)),
                Ok(Some(Next::Records(session_id))) if !sessions.contains(&session_id) => {
                    readers.put_off(READER, session_id)?;
                    sessions.push(session_id);
                }
                Ok(Some(Next::Records(_)) | None) => break,
                Err(error) if sessions.is_empty() && self.gone.is_empty() => return Err(error),
                // One that cannot be read keeps no other waiting: its turn comes again.
                Err(_) => break,
            }
        }
        Ok(sessions)
    }

    async fn take_in(&mut self, service: &Sessions, sessions: Vec<SessionId>) -> Result<(), SessionError> {
        let (memory, mut intakes, mut passages, mut failed) = (self.memory.clone(), Vec::new(), 0, None);
        self.is_behind = false;
        for session_id in sessions {
            if memory.over.is_cancelled() || passages >= PASSAGES_TOGETHER {
                self.is_behind = true;
                break;
            }
            match self.read(service, session_id).await {
                Ok(intake) => {
                    passages += intake.as_ref().map_or(0, |intake| intake.passages.len());
                    intakes.extend(intake);
                }
                // It is tried again when it has more, or by the next start.
                Err(error @ (SessionError::NotFound(_) | SessionError::ShuttingDown | SessionError::Corrupted(_))) => {
                    if let SessionError::Corrupted(_) = error {
                        tracing::warn!(%session_id, %error, "memory cannot take a session in");
                    }
                    memory.readers.rest(READER, session_id, Seq::MAX)?;
                }
                // It may pass: others come first, and then this one again.
                Err(error) => failed = Some(error),
            }
        }
        self.is_behind |= passages >= PASSAGES_TOGETHER;
        let done: Vec<(SessionId, Seq)> = intakes.iter().map(|intake| (intake.session_id, intake.up_to)).collect();
        if !intakes.is_empty() {
            memory.store.add(intakes).await?;
        }
        for (session_id, up_to) in done {
            done_with(&memory.readers, session_id, up_to).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// What memory is to take in of a session; `None` where there is nothing yet.
    async fn read(&mut self, service: &Sessions, session_id: SessionId) -> Result<Option<Intake>, SessionError> {
        let (memory, engine) = (self.memory.clone(), service.engine());
        let from = memory.store.taken_in(session_id).await?;
        if let Some(looked_at) = self.open.remove(&session_id).filter(|looked_at| *looked_at > from) {
            let fold = IntakeFold::within_turn(memory.wanted.clone(), looked_at);
            let fold = self.fold(engine, session_id, fold, Seq::MAX).await?;
            if fold.up_to == looked_at {
                self.open.insert(session_id, fold.last);
                memory.readers.rest(READER, session_id, fold.last)?;
                return Ok(None);
            }
        }
        let fold = IntakeFold::new(memory.wanted.clone(), from);
        let mut fold = self.fold(engine, session_id, fold, Seq::MAX).await?;
        if fold.up_to == from {
            // A former process may have been killed before it said so.
            done_with(&memory.readers, session_id, from).await?;
            memory.readers.rest(READER, session_id, fold.last)?;
            self.open.insert(session_id, fold.last);
            return Ok(None);
        }
        for discarded in std::mem::take(&mut fold.discarded) {
            let after = self.live_after.get(&session_id).copied().unwrap_or(0);
            let (before, stays_from) = (discarded.before, discarded.stays_from());
            let all = IntakeFold::new(Wanted::DiscardedBy(discarded), after);
            let all = self.fold(engine, session_id, all, before).await?;
            fold.taken.extend(all.all());
            self.live_after.insert(session_id, stays_from.saturating_sub(1));
        }
        let labels = match fold.labels {
            Some(labels) => labels,
            None => service.look(session_id).await?.summary.labels.clone(),
        };
        let mut inherited = fold.written;
        inherited.remove(&session_id);
        Ok(Some(Intake { session_id, labels, passages: fold.taken, up_to: fold.up_to, inherited }))
    }

    /// Folds what a journal holds between the fold's last record and `before`; where that is much, only a part of it.
    async fn fold(
        &self,
        engine: &Engine,
        session_id: SessionId,
        mut fold: IntakeFold,
        before: Seq,
    ) -> Result<IntakeFold, SessionError> {
        let lost = |error: std::io::Error| SessionError::Internal(error.to_string());
        loop {
            let page = engine.events.read(session_id, fold.last, ReadLimit::frames(FRAMES_READ)).await?;
            let frames = page.ok_or(SessionError::NotFound(session_id))?.frames;
            let decoded = self.thread.perform(move || frames.iter().map(decode).collect::<Result<Vec<Record>, _>>());
            let mut records = decoded.await.map_err(lost)??;
            records.retain(|record| record.seq < before);
            let Some(last) = records.last().map(|record| record.seq) else { return Ok(fold) };
            let queued = queued_prompts(engine, session_id, &records).await?;
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
            if self.memory.over.is_cancelled() {
                return Err(SessionError::ShuttingDown);
            }
        }
    }
}

/// The records that hold the prompts of turns that waited, by those that started them.
async fn queued_prompts(
    engine: &Engine,
    session_id: SessionId,
    records: &[Record],
) -> Result<HashMap<Seq, Record>, SessionError> {
    let mut prompts = HashMap::new();
    for record in records {
        if let Event::TurnStarted(started) = &record.event
            && let (None, Some(queued)) = (&started.prompt, started.queued)
            && let Some(page) = engine.events.read(session_id, queued - 1, ReadLimit::frames(1)).await?
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
