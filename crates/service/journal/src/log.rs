//! One session's open journal: its durable end, its waiting records, and its lease.
//!
//! Its lock is never held during disk access. `commit` writes, `read` reads.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    sync::{Arc, Mutex},
};

use tokio::sync::{oneshot, watch};

use super::{
    Context, End, Near,
    disk::{Disk, DiskFile, is_missing},
    frame::{Entry, Place},
    layout::session_dir,
    lock,
    recovery::{Cut, Found, Head, Segment, examine, near_end, settle, sync},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{Frame, Lease, StoreError, TailRepair},
};

pub(crate) struct Staged {
    pub(super) entries: Vec<Entry>,
    pub(super) done: oneshot::Sender<Result<Seq, StoreError>>,
}

/// Open journal of one session.
pub struct Log {
    pub(super) id: SessionId,
    pub(super) context: Arc<Context>,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    /// True if the session's directory exists.
    pub(super) exists: bool,
    /// Epoch of the newest lease, which alone may append; 0 if there is none, or a write failed since.
    pub(super) epoch: u64,
    is_leased: bool,
    /// True if the session is deleted, or this state differs from the disk: it must be opened again.
    pub(super) is_over: bool,
    pub(super) staged: Seq,
    pub(super) pending: Vec<Staged>,
    /// True during a commit or a hold; records staged meanwhile wait.
    pub(super) is_writing: bool,
    /// Place after the last durable record.
    pub(super) place: Place,
    /// In order; the last one is being written if `head` is in it.
    pub(super) segments: Vec<Segment>,
    pub(super) head: Head,
    pub(super) file: Option<Arc<dyn DiskFile>>,
    /// True if the journal must not be read from the disk again, because some of its bytes do not belong to it.
    pub(super) must_stay: bool,
    pub(super) cache: Cache,
    /// `None` once the session is deleted.
    pub(super) durable: Option<watch::Sender<Seq>>,
    /// Damage that was found; nothing is appended after that.
    pub(super) damage: Option<StoreError>,
    /// Damage behind the last readable record: others may have followed.
    pub(super) lost_end: Option<StoreError>,
    /// Seqs behind which the next record is of another life of the session, with no record missing.
    pub(super) breaks: BTreeSet<Seq>,
    pub(super) cuts: Vec<Cut>,
    pub(super) repair: Option<TailRepair>,
    /// Notified when no commit runs.
    quiet: Vec<oneshot::Sender<()>>,
}

/// Newest durable frames, without gaps.
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
    /// Opens a session's journal, or one that its first batch will create.
    pub fn open(context: Arc<Context>, id: SessionId) -> Result<Self, StoreError> {
        let known = || context.witness.end_of(id).map_or(0, |known| known.end.seq);
        let found = examine(context.disk.as_ref(), id, context.knows, &known)?;
        let is_active = context.marks.is_active(id) || lock(&context.returned).contains_key(&id);
        let witnessed = found.as_ref().and_then(|_| context.witness.end_of(id)).map(|known| known.end);
        // If this end is not known, the newest bytes may be in the system's memory alone: the active mark is written
        // beside the first append, and a kill may have left only one of the two.
        if let Some(found) = &found
            && (is_active || witnessed != Some(found.place.end()))
        {
            match found.damage {
                None => make_sure(&context, id, &found.segments)?,
                // Nothing is appended to it, and an unreadable file is no failure of the store.
                Some(_) => {
                    if let Err(error) = sync(context.disk.as_ref(), id, &found.segments) {
                        tracing::warn!(session_id = %id, %error, "what a damaged journal holds may not be durable");
                    }
                }
            }
        }
        let exists = found.is_some();
        let repair = found.as_ref().and_then(Found::tail_repair);
        let found = found.unwrap_or_else(|| Found::nothing(id));
        // Records that were durable must still exist.
        let is_lost = |known: &End| known.is_lost_in(found.place.end());
        let lost = witnessed.filter(|known| exists && is_lost(known));
        let lost = lost.map(|known| StoreError::Corrupted {
            session_id: id,
            last_good_seq: found.place.seq,
            why: format!("records up to seq {} were durable", known.seq),
        });
        let lost_end = found.damage.clone().filter(|_| found.is_end_lost).or_else(|| lost.clone());
        let damage = found.damage.or(lost).or_else(|| lock(&context.damaged).get(&id).cloned());
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
            lost_end,
            breaks: BTreeSet::new(),
            cuts: found.cuts,
            repair,
            quiet: Vec::new(),
        };
        Ok(Self { id, context, state: Mutex::new(state) })
    }

    /// True if the session's directory exists.
    pub fn exists(&self) -> bool {
        lock(&self.state).exists
    }

    /// Returns true if the journal must be opened again.
    pub fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    /// Returns true if it has no lease, no write and no follower, and may be dropped from memory.
    pub fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        let is_watched = state.durable.as_ref().is_some_and(|durable| durable.receiver_count() > 0);
        !state.is_leased && !state.is_writing && !state.must_stay && !is_watched
    }

    /// Returns the bytes that the first append will cut, until it has.
    pub fn tail_repair(&self) -> Option<TailRepair> {
        lock(&self.state).repair.clone()
    }

    /// Returns the damage behind the last readable record, if there is some: others may have followed.
    pub fn lost_end(&self) -> Option<StoreError> {
        lock(&self.state).lost_end.clone()
    }

    /// Follows the last durable seq.
    pub fn watch(&self) -> Option<watch::Receiver<Seq>> {
        let state = lock(&self.state);
        state.durable.as_ref().filter(|_| state.exists).map(watch::Sender::subscribe)
    }

    /// Takes the right to append from its holder, after writing staged records.
    pub async fn lease(&self, epoch: u64) -> Result<Lease, StoreError> {
        {
            // Nobody has the lease meanwhile, and nobody if the caller leaves.
            let mut state = lock(&self.state);
            (state.epoch, state.is_leased) = (epoch, false);
        }
        self.rest().await;
        let mut state = lock(&self.state);
        if let Some(damage) = &state.damage {
            return Err(damage.clone());
        }
        // A later caller may have it by now.
        if state.epoch == epoch {
            (state.is_leased, state.staged) = (true, state.place.seq);
        }
        Ok(Lease { session_id: self.id, epoch, tail: state.place.seq })
    }

    /// Returns the right to append if the lease still holds it.
    pub async fn release(&self, epoch: u64) {
        self.rest().await;
        let marked = {
            let mut state = lock(&self.state);
            if state.epoch != epoch {
                return;
            }
            state.is_leased = false;
            let is_settled = state.exists && !state.is_over && state.cuts.is_empty() && state.damage.is_none();
            // Under the lock, so that no append comes before the mark.
            (is_settled && self.context.marks.is_active(self.id)).then(|| {
                self.context.witness.saw(self.id, state.place.end(), state.near());
                let (done, marked) = oneshot::channel();
                self.context.marks.mark_idle(self.id, Box::new(|result| drop(done.send(result))));
                marked
            })
        };
        self.cool();
        if let Some(marked) = marked
            && let Ok(Err(error)) = marked.await
        {
            // The next start examines the session again; nothing else depends on the mark.
            tracing::debug!(session_id = %self.id, %error, "a session could not be marked as idle");
        }
    }

    /// Like [`Self::release`], but without a mark.
    pub fn give_up(&self, epoch: u64) {
        let mut state = lock(&self.state);
        state.is_leased &= state.epoch != epoch;
    }

    /// Ends the journal's use: appending and following stop.
    pub async fn end(&self) {
        lock(&self.state).is_over = true;
        self.rest().await;
        let mut state = lock(&self.state);
        (state.exists, state.durable, state.file) = (false, None, None);
    }

    /// Handles a commit that panicked: the state of disk and store is unknown, so the store becomes read-only, and
    /// waiting callers get an error.
    pub(super) fn lose(&self) {
        self.context.health.end_writing(&format!("{}: a commit panicked", self.id));
        let mut state = lock(&self.state);
        (state.must_stay, state.is_over, state.file) = (state.exists, !state.exists, None);
        drop(state.fence());
        state.come_to_rest();
    }

    /// Waits until no commit runs.
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
        // An error means that the journal was dropped, so no commit runs.
        drop(quiet.await);
    }

    /// Prevents commits: records staged meanwhile wait until `commit::end_hold`.
    pub(super) async fn hold(&self) {
        loop {
            self.rest().await;
            if !std::mem::replace(&mut lock(&self.state).is_writing, true) {
                return;
            }
        }
    }

    /// Opens the file of a segment, or of the generation that has replaced it meanwhile.
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

    /// Drops its open file and its cache. Returns false if a commit runs.
    pub(super) fn cool(&self) -> bool {
        let mut state = lock(&self.state);
        if !state.is_writing {
            (state.file, state.cache) = (None, Cache::default());
        }
        !state.is_writing
    }
}

/// Syncs what may be in the system's memory alone. After a failure the sync is not repeated.
pub(super) fn make_sure(context: &Context, id: SessionId, segments: &[Segment]) -> Result<(), StoreError> {
    if lock(&context.unsure).contains(&id) {
        return Err(StoreError::Failed("what the disk holds of it is unknown until the next start".to_owned()));
    }
    settle(context.disk.as_ref(), id, segments).map_err(|error| {
        lock(&context.unsure).insert(id);
        // The caller wanted to read, which needs no room: never `Full`.
        let why = error.to_string();
        drop(context.health.unsure(id, error));
        StoreError::Failed(why)
    })
}

impl State {
    /// Returns a place near the durable end.
    pub(super) fn near(&self) -> Option<Near> {
        near_end(&self.segments, self.place.seq)
    }

    /// Drops staged records that are not durable; their callers must lease again.
    pub(super) fn fence(&mut self) -> Vec<Staged> {
        (self.epoch, self.is_leased) = (0, false);
        self.staged = self.place.seq;
        std::mem::take(&mut self.pending)
    }

    pub(super) fn come_to_rest(&mut self) {
        self.is_writing = false;
        for told in self.quiet.drain(..) {
            // The caller may have stopped waiting.
            let _ = told.send(());
        }
    }
}
