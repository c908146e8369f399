//! One session's open journal: what is durable, what waits to be written, and who may append.
//!
//! Its lock is never held across the disk. What writes is `commit`; what reads is `read`.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Mutex},
};

use tokio::sync::{oneshot, watch};

use super::{
    Context, End, Near, commit,
    disk::{Disk, DiskFile, is_missing},
    frame::{Entry, Place},
    layout::session_dir,
    lock,
    recovery::{Cut, Found, Head, Segment, examine, settle},
    segment::near_end,
    store_journal::Resting,
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{Frame, Lease, StoreError, TailRepair, Ticket},
};

/// A batch that waits to be written.
pub(crate) struct Staged {
    pub(super) entries: Vec<Entry>,
    pub(super) done: oneshot::Sender<Result<Seq, StoreError>>,
}

/// One session's open journal.
pub struct Log {
    pub(super) id: SessionId,
    pub(super) context: Arc<Context>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// Whether the session's directory is there.
    pub(super) exists: bool,
    /// The newest lease's; no other may append.
    epoch: u64,
    is_leased: bool,
    /// Deleted, or out of step with the disk: it is to be opened again.
    pub(super) is_over: bool,
    /// The last seq that was staged.
    staged: Seq,
    pub(super) pending: Vec<Staged>,
    /// A commit is under way; what is staged meanwhile waits for it.
    pub(super) is_writing: bool,
    /// Behind the last durable record.
    pub(super) place: Place,
    /// In order; the last one is written where `head` is in it.
    pub(super) segments: Vec<Segment>,
    pub(super) head: Head,
    pub(super) file: Option<Arc<dyn DiskFile>>,
    /// What stands on the disk must not be read again, because a part of it is no part of the journal.
    pub(super) must_stay: bool,
    pub(super) cache: Cache,
    /// Dropped when the session is deleted.
    pub(super) durable: Option<watch::Sender<Seq>>,
    pub(super) damage: Option<StoreError>,
    pub(super) cuts: Vec<Cut>,
    pub(super) repair: Option<TailRepair>,
    /// Told when nothing is being written.
    quiet: Vec<oneshot::Sender<()>>,
}

/// The newest durable frames, without a gap up to the last.
#[derive(Default)]
pub(super) struct Cache {
    pub(super) frames: VecDeque<Frame>,
    bytes: usize,
}

impl Cache {
    pub(super) fn push(&mut self, frame: Frame, bytes_max: usize) {
        self.bytes += frame.line.len();
        self.frames.push_back(frame);
        while self.bytes > bytes_max
            && let Some(oldest) = self.frames.pop_front()
        {
            self.bytes -= oldest.line.len();
        }
    }
}

impl Log {
    /// Opens a session's journal; where there is none, one that begins with its first batch.
    pub fn open(context: Arc<Context>, id: SessionId) -> Result<Self, StoreError> {
        let found = examine(context.disk.as_ref(), id, context.knows)?;
        let marked = context.store_journal.resting(id);
        let is_active = context.store_journal.is_active(id) || lock(&context.returned).contains(&id);
        let ends_at = |found: &Found, known: Option<End>| known == Some(found.place.end());
        // Marks are few; what they do not tell is asked beside them.
        let witnessed = match &found {
            Some(found) if is_active || !ends_at(found, marked) => context.witness.end_of(id),
            _ => None,
        };
        let witnessed = witnessed.map(|known| known.end);
        // What stands there and is not known to have come to rest may be in the system's memory alone: the mark that
        // the session is active is written beside its first append, and a kill may have left only one of the two.
        if let Some(found) = &found
            && (is_active || !(ends_at(found, marked) || ends_at(found, witnessed)))
        {
            match found.damage {
                None => make_sure(&context, id, &found.segments)?,
                // Nothing is appended to it, and a file that cannot be read is no fault of the store's.
                Some(_) => {
                    if let Err(error) = settle(context.disk.as_ref(), id, &found.segments) {
                        tracing::warn!(session_id = %id, %error, "what a damaged journal holds may not be durable");
                    }
                }
            }
        }
        let exists = found.is_some();
        let repair = found.as_ref().and_then(Found::tail_repair);
        let found = found.unwrap_or_else(|| Found::nothing(id));
        // What was durable once must stand there now.
        let is_lost = |known: &End| known.is_lost_in(found.place.end());
        let lost = [marked, witnessed].into_iter().flatten().find(|known| exists && is_lost(known));
        let lost = lost.map(|known| StoreError::Corrupted {
            session_id: id,
            last_good_seq: found.place.seq,
            why: format!("records up to seq {} were durable", known.seq),
        });
        let damage = found.damage.or(lost);
        let state = State {
            exists,
            epoch: 0,
            is_leased: false,
            is_over: false,
            staged: found.place.seq,
            pending: Vec::new(),
            is_writing: false,
            place: found.place,
            segments: found.segments,
            head: found.head,
            file: None,
            must_stay: false,
            cache: Cache::default(),
            durable: Some(watch::Sender::new(found.place.seq)),
            damage,
            cuts: found.cuts,
            repair,
            quiet: Vec::new(),
        };
        Ok(Self { id, context, state: Mutex::new(state) })
    }

    /// Whether the session's directory is there.
    pub fn exists(&self) -> bool {
        lock(&self.state).exists
    }

    /// Whether it is to be opened again.
    pub fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    /// Whether nobody would miss it in memory.
    pub fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        let is_watched = state.durable.as_ref().is_some_and(|durable| durable.receiver_count() > 0);
        !state.is_leased && !state.is_writing && !state.must_stay && !is_watched
    }

    /// What the first append takes away, until it has.
    pub fn tail_repair(&self) -> Option<TailRepair> {
        lock(&self.state).repair.clone()
    }

    /// Follows the last durable seq.
    pub fn watch(&self) -> Option<watch::Receiver<Seq>> {
        let state = lock(&self.state);
        state.durable.as_ref().filter(|_| state.exists).map(watch::Sender::subscribe)
    }

    /// Takes the right to append from whoever had it; what was staged before is written first.
    pub async fn lease(&self, epoch: u64) -> Result<Lease, StoreError> {
        {
            let mut state = lock(&self.state);
            (state.epoch, state.is_leased) = (epoch, true);
        }
        self.rest().await;
        let mut state = lock(&self.state);
        if let Some(damage) = &state.damage {
            let damage = damage.clone();
            state.is_leased = false;
            return Err(damage);
        }
        state.staged = state.place.seq;
        Ok(Lease { session_id: self.id, epoch, tail: state.place.seq })
    }

    /// Queues a batch. It neither waits nor can be cancelled.
    pub fn stage(self: &Arc<Self>, epoch: u64, entries: Vec<Entry>) -> Result<Ticket, StoreError> {
        self.context.health.check_writable()?;
        let (done, ticket) = Ticket::new();
        let mut state = lock(&self.state);
        if let Some(damage) = &state.damage {
            return Err(damage.clone());
        }
        let follows = entries.iter().zip(state.staged + 1..).all(|(entry, seq)| entry.seq == seq);
        if state.is_over || state.epoch != epoch || !follows {
            return Err(StoreError::Fenced);
        }
        let Some(last) = entries.last() else {
            // Nothing is to be written; what was staged before is not this batch's matter.
            drop(done.send(Ok(state.staged)));
            return Ok(ticket);
        };
        state.staged = last.seq;
        state.pending.push(Staged { entries, done });
        if !std::mem::replace(&mut state.is_writing, true) {
            drop(state);
            commit::submit(self);
        }
        Ok(ticket)
    }

    /// Gives the right to append back, if the lease still holds it.
    pub async fn release(&self, epoch: u64) {
        self.rest().await;
        let marked = {
            let mut state = lock(&self.state);
            if state.epoch != epoch {
                return;
            }
            state.is_leased = false;
            let store_journal = &self.context.store_journal;
            let is_settled = state.exists && !state.is_over && state.cuts.is_empty() && state.damage.is_none();
            // Under the lock, so that no append comes between what rests and its mark.
            (is_settled && store_journal.is_active(self.id)).then(|| {
                let end @ End { seq, chain } = state.place.end();
                self.context.witness.saw(self.id, end, state.near());
                let resting = Resting { session_id: self.id, seq, chain };
                let (done, marked) = oneshot::channel();
                store_journal.mark_resting(resting, Box::new(|result| drop(done.send(result))));
                marked
            })
        };
        self.cool();
        if let Some(marked) = marked
            && let Ok(Err(error)) = marked.await
        {
            // The next start looks at the session once more; nothing else depends on the mark.
            tracing::debug!(session_id = %self.id, %error, "a session could not be marked as resting");
        }
    }

    /// Gives the right to append back and marks nothing, if the lease still holds it.
    pub fn give_up(&self, epoch: u64) {
        let mut state = lock(&self.state);
        state.is_leased &= state.epoch != epoch;
    }

    /// Ends it: nobody may append, nobody follows, and it is not used again.
    pub async fn end(&self) {
        lock(&self.state).is_over = true;
        self.rest().await;
        let mut state = lock(&self.state);
        (state.exists, state.durable, state.file) = (false, None, None);
    }

    /// A commit panicked: nobody knows what the disk holds, nor what of the store is still as it should be. The store
    /// takes no more writes, and whoever waits for one gets an error.
    pub(super) fn lose(&self) {
        self.context.health.end_writing(&format!("{}: a commit panicked", self.id));
        let mut state = lock(&self.state);
        (state.must_stay, state.is_over, state.file) = (state.exists, !state.exists, None);
        drop(state.fence());
        state.come_to_rest();
    }

    /// Waits until nothing is being written.
    pub async fn rest(&self) {
        let quiet = {
            let mut state = lock(&self.state);
            if !state.is_writing {
                return;
            }
            let (told, quiet) = oneshot::channel();
            state.quiet.push(told);
            quiet
        };
        // An error says that the journal is gone, and nothing writes it any more.
        drop(quiet.await);
    }

    /// Keeps commits away: what is staged meanwhile waits until [`commit::go_on`].
    pub(super) async fn hold(&self) {
        loop {
            self.rest().await;
            if !std::mem::replace(&mut lock(&self.state).is_writing, true) {
                return;
            }
        }
    }

    /// Opens the file of a segment. Where journal compaction has put another in its place meanwhile, it is that one.
    pub(super) fn open_segment(
        &self,
        disk: &dyn Disk,
        mut segment: Segment,
    ) -> io::Result<(Segment, Arc<dyn DiskFile>)> {
        loop {
            match disk.open(&session_dir(self.id).join(segment.name()), false) {
                Err(error) if is_missing(&error) => {
                    let state = lock(&self.state);
                    let newer = |now: &&Segment| now.number == segment.number && now.generation > segment.generation;
                    segment = state.segments.iter().find(newer).cloned().ok_or(error)?;
                }
                opened => return Ok((segment, opened?)),
            }
        }
    }

    /// Gives back what it holds for speed alone.
    /// Answers whether it could.
    pub(super) fn cool(&self) -> bool {
        let mut state = lock(&self.state);
        if !state.is_writing {
            (state.file, state.cache) = (None, Cache::default());
        }
        !state.is_writing
    }
}

/// Makes durable what may be in the system's memory alone. Where that failed once, it is not asked again.
pub(super) fn make_sure(context: &Context, id: SessionId, segments: &[Segment]) -> Result<(), StoreError> {
    if lock(&context.unsure).contains(&id) {
        return Err(StoreError::Failed("what the disk holds of it is unknown until the next start".to_owned()));
    }
    settle(context.disk.as_ref(), id, segments).map_err(|error| {
        lock(&context.unsure).insert(id);
        // Reading it is what fails, and needs no room.
        let why = error.to_string();
        drop(context.health.unsure(id, error));
        StoreError::Failed(why)
    })
}

impl State {
    /// Where to look for the end of what is durable.
    pub(super) fn near(&self) -> Option<Near> {
        near_end(&self.segments, self.place.seq)
    }

    /// Nothing of what was staged and is not durable stands; who staged it has to lease again.
    pub(super) fn fence(&mut self) -> Vec<Staged> {
        (self.epoch, self.is_leased) = (0, false);
        self.staged = self.place.seq;
        std::mem::take(&mut self.pending)
    }

    /// Nothing is being written.
    pub(super) fn come_to_rest(&mut self) {
        self.is_writing = false;
        for told in self.quiet.drain(..) {
            // Whoever waited may have gone.
            let _ = told.send(());
        }
    }
}
