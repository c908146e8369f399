//! Group commit: all waiting records become one batch, written and synced once. Records that arrive meanwhile wait for
//! the next batch; so at most one sync per session runs at a time, and sessions sync in parallel.
//!
//! A session's first batch after an idle time is durable only with its mark, which is synced in parallel. A new session gets its name last, when all of it is durable.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::oneshot;

use super::{
    disk::{Disk, DiskFile, create_anew, ensure_dir, is_full, is_unreadable, write_all, write_new},
    fork::{self, abandon, appear},
    frame::{Entry, Place, encode_batch, footer, padded},
    layout::{new_dir, segment_name, session_dir, with_folders},
    lock,
    log::{Log, Staged, State},
    recovery::{Cut, Head, Segment},
    segment::{Header, Mark, remember},
};
use meerkat_words::{
    ids::{Seq, SessionId},
    store::{Frame, StoreError, Ticket},
};

impl Log {
    /// Queues a batch, without waiting. It cannot be cancelled.
    pub fn stage(self: &Arc<Self>, epoch: u64, entries: Vec<Entry>) -> Result<Ticket, StoreError> {
        self.context.health.check_writable()?;
        let (done, ticket) = Ticket::new();
        let mut state = lock(&self.state);
        if let Some(damage) = &state.damage {
            return Err(damage.clone());
        }
        let follows = entries.iter().zip(state.staged + 1..).all(|(entry, seq)| entry.seq == seq);
        if state.epoch == 0 && !state.is_over {
            // Nobody else has the session.
            return Err(StoreError::Failed("an earlier write failed, and the session must be leased again".to_owned()));
        }
        if state.is_over || state.epoch != epoch {
            return Err(StoreError::Fenced);
        }
        if !follows {
            return Err(StoreError::OutOfOrder);
        }
        let Some(last) = entries.last() else {
            // An empty batch does not wait for earlier ones.
            drop(done.send(Ok(state.staged)));
            return Ok(ticket);
        };
        state.staged = last.seq;
        state.pending.push(Staged { entries, done });
        if !std::mem::replace(&mut state.is_writing, true) {
            drop(state);
            submit(self);
        }
        Ok(ticket)
    }
}

/// Starts a commit of the waiting records. The log is marked as being written.
fn submit(log: &Arc<Log>) {
    let job = log.clone();
    log.context.executor.run(Box::new(move || write_waiting(&job)));
}

/// Commits the waiting records, then once more those that arrived meanwhile, without another job. If yet more have
/// arrived, other sessions come first.
fn write_waiting(log: &Arc<Log>) {
    if begin(log) && begin(log) {
        submit(log);
    }
}

/// Reason that a batch does not count.
enum Trouble {
    /// The disk was full; nothing of it counts.
    Full,
    /// It was not tried; nothing of it counts.
    Refused(String),
    /// A write or a sync failed: the content of the disk is unknown.
    Unsure(io::Error),
    /// A session got its name, but the name may not survive.
    Unnamed(io::Error),
}

impl Trouble {
    /// Converts an error from before the first write.
    fn refused(error: io::Error) -> Self {
        if is_full(&error) { Self::Full } else { Self::Refused(error.to_string()) }
    }

    /// Converts an error of the mark, without which nothing is written.
    fn of(error: StoreError) -> Self {
        if error == StoreError::Full { Self::Full } else { Self::Refused(error.to_string()) }
    }

    /// Returns true if the disk was full. If a sync finds that, its file is lost, but the disk is not faulty.
    fn is_full(&self) -> bool {
        match self {
            Self::Full => true,
            Self::Unsure(error) | Self::Unnamed(error) => is_full(error),
            Self::Refused(_) => false,
        }
    }

    fn error(&self) -> StoreError {
        match self {
            Self::Full => StoreError::Full,
            Self::Refused(why) => StoreError::Failed(why.clone()),
            Self::Unsure(error) | Self::Unnamed(error) => StoreError::Failed(error.to_string()),
        }
    }
}

/// Target of a batch, as of the beginning of its commit.
struct Plan {
    exists: bool,
    place: Place,
    head: Head,
    file: Option<Arc<dyn DiskFile>>,
    previous_end: u64,
    cuts: Vec<Cut>,
}

impl Plan {
    fn of(state: &State) -> Self {
        Self {
            exists: state.exists,
            place: state.place,
            head: state.head,
            file: state.file.clone(),
            previous_end: state.segments.last().map_or(0, |segment| segment.end),
            cuts: state.cuts.clone(),
        }
    }

    /// Makes the header of a segment that begins with the batch `skip` after the last one.
    fn header(&self, id: SessionId, number: u64, skip: u64) -> Header {
        Header { base_batch: self.place.batch + skip, ..Header::after(id, number, self.place, self.previous_end) }
    }
}

struct Written {
    number: u64,
    place: Place,
    end: u64,
    file: Arc<dyn DiskFile>,
    /// Header, if the batch is the first of its segment.
    header: Option<Header>,
}

/// Running commit. It ends when both halves have ended.
struct Commit {
    log: Arc<Log>,
    plan: Plan,
    entries: Vec<Entry>,
    /// Callers, each with the last seq that it staged.
    waiters: Mutex<Vec<Waiter>>,
    halves: Mutex<Halves>,
    /// True once its outcome was applied.
    is_finished: AtomicBool,
}

impl Drop for Commit {
    /// Handles a commit that panicked. Its callers get an error from their closed channels.
    fn drop(&mut self) {
        if !*self.is_finished.get_mut() {
            self.log.lose();
        }
    }
}

#[derive(Default)]
struct Halves {
    written: Option<Result<Written, Trouble>>,
    marked: Option<Result<(), StoreError>>,
}

/// Begins a commit. Returns true if it has ended and more records wait.
fn begin(log: &Arc<Log>) -> bool {
    let commit = {
        let mut state = lock(&log.state);
        let (entries, waiters) = split(std::mem::take(&mut state.pending));
        let plan = Plan::of(&state);
        Arc::new(Commit {
            log: log.clone(),
            plan,
            entries,
            waiters: Mutex::new(waiters),
            halves: Mutex::default(),
            is_finished: AtomicBool::new(false),
        })
    };
    let marks = &log.context.marks;
    if marks.is_marked(log.id) {
        lock(&commit.halves).marked = Some(Ok(()));
        return commit.write();
    }
    // The mark is written first, so that the next start examines the journal even after a kill. Only the two syncs run
    // in parallel.
    let (writing, marked) = (commit.clone(), commit);
    let written = move |result: Result<(), StoreError>| match result {
        Ok(()) => writing.log.context.executor.clone().run(Box::new(move || {
            if writing.write() {
                write_waiting(&writing.log);
            }
        })),
        Err(error) => writing.arrive_elsewhere(|halves| halves.written = Some(Err(Trouble::of(error)))),
    };
    let done = move |result| marked.arrive_elsewhere(|halves| halves.marked = Some(result));
    marks.mark_active(log.id, Some(Box::new(written)), Box::new(done));
    false
}

impl Commit {
    /// Notes the end of a half; the last one ends the commit. Returns true if it did and more records wait.
    fn arrive(self: &Arc<Self>, note: impl FnOnce(&mut Halves)) -> bool {
        let (written, marked) = {
            let mut halves = lock(&self.halves);
            note(&mut halves);
            if halves.written.is_none() || halves.marked.is_none() {
                return false;
            }
            let Halves { written, marked } = std::mem::take(&mut *halves);
            match (written, marked) {
                (Some(written), Some(marked)) => (written, marked),
                _ => return false,
            }
        };
        if !self.plan.exists && written.is_ok() && marked.is_ok() {
            let commit = self.clone();
            self.log.context.executor.run(Box::new(move || {
                let appeared = appear(&commit.log.context, commit.log.id).map_err(|trouble| match trouble {
                    fork::Trouble::Failed(error) => Trouble::refused(error),
                    fork::Trouble::Unsynced(error) | fork::Trouble::Unnamed(error) => Trouble::Unnamed(error),
                    damaged @ fork::Trouble::Damaged(..) => Trouble::refused(damaged.into()),
                });
                let written = appeared.and(written);
                if commit.finish(written, Ok(())) {
                    write_waiting(&commit.log);
                }
            }));
            false
        } else {
            self.finish(written, marked)
        }
    }

    /// Like [`Self::arrive`], but leaves waiting records to another job.
    fn arrive_elsewhere(self: &Arc<Self>, note: impl FnOnce(&mut Halves)) {
        if self.arrive(note) {
            submit(&self.log);
        }
    }

    /// Performs the half that writes and syncs the batch. Returns as [`Self::arrive`] does.
    fn write(self: &Arc<Self>) -> bool {
        let written = self.written();
        self.arrive(|halves| halves.written = Some(written))
    }

    /// Writes and syncs the batch. On a full disk an existing session may use the reserve.
    fn written(&self) -> Result<Written, Trouble> {
        let (health, disk) = (&self.log.context.health, self.log.context.disk.as_ref());
        health.check_writable().map_err(|error| Trouble::Refused(error.to_string()))?;
        // A new session may not use the reserve.
        if !self.plan.exists {
            return health.room(disk).map_err(|_| Trouble::Full).and_then(|()| self.try_write(disk, &self.plan));
        }
        let written = self.write_on(disk);
        let Err(trouble) = written else { return written };
        let has_room = trouble.is_full() && health.release_reserve(disk);
        match self.lose_file(trouble) {
            Trouble::Full if has_room => self.write_on(disk).map_err(|trouble| self.lose_file(trouble)),
            trouble => Err(trouble),
        }
    }

    /// Writes the batch after the durable records: into a new segment if the last one's file must not be used any more.
    fn write_on(&self, disk: &dyn Disk) -> Result<Written, Trouble> {
        if lock(&self.log.state).must_stay {
            begin_next(&self.log).map_err(|error| {
                if !is_full(&error) {
                    self.log.context.health.failed(self.log.id, &error);
                }
                Trouble::refused(error)
            })?;
        }
        let (plan, damage) = {
            let state = lock(&self.log.state);
            (Plan::of(&state), state.damage.clone())
        };
        // Records after damage would be unreadable.
        damage.map_or(Ok(()), |damage| Err(Trouble::of(damage)))?;
        self.try_write(disk, &plan)
    }

    /// Abandons the file after a failed write or sync. A new segment, begun now or before the next batch, says that
    /// nothing of this batch counts.
    fn lose_file(&self, trouble: Trouble) -> Trouble {
        let (Trouble::Unsure(error) | Trouble::Unnamed(error)) = &trouble else { return trouble };
        let (log, exists, is_unnamed) = (&self.log, self.plan.exists, matches!(trouble, Trouble::Unnamed(_)));
        let health = &log.context.health;
        if !trouble.is_full() {
            health.failed(log.id, error);
        }
        {
            // The disk may differ from this state; until a new segment settles that, the journal must not be read
            // again.
            let mut state = lock(&log.state);
            (state.must_stay, state.is_over, state.file) = (exists, !exists, None);
        }
        let begun = match exists {
            true if health.check_writable().is_err() => return trouble,
            true => begin_next(log),
            false => Ok(()),
        };
        match begun {
            Ok(()) if trouble.is_full() && !is_unnamed => return Trouble::Full,
            Err(error) if !is_full(&error) => health.failed(log.id, &error),
            _ => {}
        }
        trouble
    }

    fn try_write(&self, disk: &dyn Disk, plan: &Plan) -> Result<Written, Trouble> {
        let Plan { exists, head, .. } = *plan;
        let dir = if exists { session_dir(self.log.id) } else { new_dir(self.log.id) };
        if !exists {
            with_folders(disk, || ensure_dir(disk, &dir)).map_err(Trouble::refused)?;
        }
        // All bytes are copied before any are cut: if a cut fails, the next segment replaces them all.
        plan.cuts.iter().try_for_each(|cut| cut.keep(disk, &dir)).map_err(Trouble::refused)?;
        plan.cuts.iter().try_for_each(|cut| cut.perform(disk, &dir)).map_err(Trouble::Unsure)?;
        let file = open(disk, &dir, plan)?;
        let header = (head.len == 0).then(|| plan.header(self.log.id, head.number, 1));
        let mut out = header.map_or_else(Vec::new, |header| header.encode());
        out.reserve_exact(self.entries.iter().map(|entry| padded(entry.line.len())).sum());
        let mut place = plan.place;
        let batch = place.batch + 1;
        encode_batch(&mut out, &mut place, batch, &self.entries);
        write_all(file.as_ref(), &out, head.len).map_err(|error| match is_full(&error) {
            // The partial write is cut again, so that the next batch follows the last good one.
            true => file.set_len(head.len).map_or_else(Trouble::Unsure, |()| Trouble::Full),
            false => Trouble::Unsure(error),
        })?;
        file.sync().map_err(Trouble::Unsure)?;
        if !exists {
            disk.sync_dir(&dir).map_err(Trouble::Unsure)?;
        }
        Ok(Written { number: head.number, place, end: head.len + out.len() as u64, file, header })
    }

    /// Applies the outcome, and answers the callers. Returns true if more records wait.
    fn finish(&self, written: Result<Written, Trouble>, marked: Result<(), StoreError>) -> bool {
        let log = &self.log;
        // A new session has no name yet, and is not read before its commit ends.
        let written = if self.plan.exists { written } else { written.map_err(|trouble| self.lose_file(trouble)) };
        let error = match (&written, &marked) {
            (Err(trouble), _) => Some(trouble.error()),
            // The batch is written, but the next start may not look at it.
            (Ok(_), Err(StoreError::Full)) if self.plan.exists => {
                Some(StoreError::Failed("there was no room to say that the session has changed".to_owned()))
            }
            (Ok(_), Err(error)) => Some(error.clone()),
            (Ok(_), Ok(())) => None,
        };
        let is_unsure = matches!(written, Err(Trouble::Unsure(_) | Trouble::Unnamed(_)));
        let (mut fenced, mut is_long) = (Vec::new(), false);
        // A new session does not count without its mark.
        if let Ok(written) = written
            && (self.plan.exists || marked.is_ok())
        {
            is_long = self.apply(&written);
        }
        if let Some(error) = &error {
            tracing::debug!(session_id = %log.id, %error, "a batch failed");
            fenced = split(lock(&log.state).fence()).1;
            // If it may count after all, its files stay until the next start.
            if !self.plan.exists && !is_unsure {
                abandon(&log.context, log.id);
            }
        }
        let waiters = std::mem::take(&mut *lock(&self.waiters));
        for (last, done) in waiters.into_iter().chain(fenced) {
            // The caller may have stopped waiting.
            drop(done.send(error.clone().map_or(Ok(last), Err)));
        }
        if is_long {
            roll(log);
        }
        self.is_finished.store(true, Ordering::Relaxed);
        has_more(log)
    }

    /// Applies a durable batch. Returns true if the segment is long enough to be sealed.
    fn apply(&self, written: &Written) -> bool {
        let context = &self.log.context;
        let mut state = lock(&self.log.state);
        if let Some(header) = &written.header {
            // Most sessions never have a second one.
            state.segments.reserve_exact(1);
            state.segments.push(Segment::begun(header));
        }
        state.head = Head { number: written.number, len: written.end, is_made: true };
        if let Some(segment) = state.segments.last_mut() {
            segment.end = written.end;
            remember(&mut segment.index, Mark { offset: written.end, place: written.place });
        }
        for entry in &self.entries {
            state.cache.push(Frame { seq: entry.seq, line: entry.line.clone() }, context.limits.cache_bytes);
        }
        state.place = written.place;
        state.exists = true;
        (state.cuts, state.repair) = (Vec::new(), None);
        let is_opened = state.file.is_none();
        state.file = Some(written.file.clone());
        if let Some(durable) = &state.durable {
            durable.send_replace(written.place.seq);
        }
        let near = state.near();
        drop(state);
        if is_opened {
            context.keep_hot(&self.log);
        }
        context.witness.saw(self.log.id, written.place.end(), near);
        written.end >= context.limits.segment_bytes
    }
}

fn open(disk: &dyn Disk, dir: &Path, plan: &Plan) -> Result<Arc<dyn DiskFile>, Trouble> {
    if let Some(file) = &plan.file {
        return Ok(file.clone());
    }
    let path = dir.join(segment_name(plan.head.number, 1));
    if plan.head.is_made {
        return disk.open(&path, true).map_err(Trouble::refused);
    }
    let file = create_anew(disk, &path).map_err(Trouble::refused)?;
    if plan.exists {
        disk.sync_dir(dir).map_err(Trouble::Unsure)?;
    }
    Ok(file)
}

/// Begins a new segment, which names the durable end of the previous one: bytes after that are ignored for ever.
fn begin_next(log: &Log) -> io::Result<()> {
    let (last, plan) = {
        let state = lock(&log.state);
        (state.segments.last().cloned(), Plan::of(&state))
    };
    let (disk, dir) = (log.context.disk.as_ref(), session_dir(log.id));
    let number = plan.head.number + u64::from(plan.head.len > 0);
    // The failed batch's id is not used again.
    let header = plan.header(log.id, number, 2);
    let is_intact = last.as_ref().map_or(Ok(true), |last| is_intact(log, last, plan.place))?;
    let file = write_new(disk, &dir.join(segment_name(number, 1)), &header.encode())?;
    disk.sync_dir(&dir)?;
    let mut state = lock(&log.state);
    let segment = Segment::begun(&header);
    state.head = Head { number, len: segment.end, is_made: true };
    state.place.batch += 1;
    state.segments.push(segment);
    // The new segment says where the previous one ends, so nothing of that is cut any more.
    state.cuts = Vec::new();
    (state.file, state.must_stay) = (Some(file), false);
    if !is_intact {
        let why = "what was durable cannot be read back after a failed write".to_owned();
        let last_good_seq = plan.place.seq;
        state.damage = Some(StoreError::Corrupted { session_id: log.id, last_good_seq, why });
    }
    Ok(())
}

/// Returns true if the newest durable part of a segment is still readable.
fn is_intact(log: &Log, segment: &Segment, end: Place) -> io::Result<bool> {
    let (segment, file) = match log.open_segment(log.context.disk.as_ref(), segment.clone()) {
        Ok(opened) => opened,
        // An unreadable file is damage of its session, not of the store.
        Err(error) if is_unreadable(&error) => return Ok(false),
        Err(error) => return Err(error),
    };
    let from = segment.index.last().copied().unwrap_or(segment.start);
    let found = segment.scan(file.as_ref(), from, segment.end, log.context.knows)?;
    Ok(found.end.offset == segment.end && (found.end.place.seq, found.end.place.chain) == (end.seq, end.chain))
}

/// Ends a hold or a commit: the records staged meanwhile come next.
fn end_hold(log: &Arc<Log>) {
    if has_more(log) {
        submit(log);
    }
}

/// Returns true if records were staged meanwhile; otherwise the log comes to rest.
fn has_more(log: &Log) -> bool {
    let mut state = lock(&log.state);
    if state.pending.is_empty() {
        state.come_to_rest();
        return false;
    }
    true
}

/// Seals the segment `number` if it is still the current one. Ends the caller's hold on the log.
pub(super) fn seal(log: &Arc<Log>, number: u64) {
    /// Ends the hold even after a panic.
    struct Held<'a>(&'a Arc<Log>);
    impl Drop for Held<'_> {
        fn drop(&mut self) {
            end_hold(self.0);
        }
    }
    let _held = Held(log);
    if lock(&log.state).head.number == number {
        roll(log);
    }
}

/// Makes the next segment, and seals the current one. If this fails, the journal continues in the segment that it has.
fn roll(log: &Log) {
    let (disk, dir) = (log.context.disk.as_ref(), session_dir(log.id));
    let (head, place, file) = {
        let state = lock(&log.state);
        (state.head, state.place, state.file.clone())
    };
    let number = head.number + 1;
    let made = create_anew(disk, &dir.join(segment_name(number, 1)));
    let next = match made.and_then(|next| disk.sync_dir(&dir).map(|()| next)) {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(session_id = %log.id, %error, "the next segment could not be made");
            return;
        }
    };
    let sealed =
        file.map_or(Ok(()), |file| write_all(file.as_ref(), &footer(place), head.len).and_then(|()| file.sync()));
    if let Err(error) = sealed {
        // The next segment's header says where this one ends, even without a footer.
        tracing::warn!(session_id = %log.id, %error, "a segment could not be sealed");
    }
    let mut state = lock(&log.state);
    (state.head, state.file) = (Head { number, len: 0, is_made: true }, Some(next));
}

type Waiter = (Seq, oneshot::Sender<Result<Seq, StoreError>>);

fn split(staged: Vec<Staged>) -> (Vec<Entry>, Vec<Waiter>) {
    let mut waiters = Vec::with_capacity(staged.len());
    let mut entries = Vec::with_capacity(staged.len());
    for staged in staged {
        entries.extend(staged.entries);
        waiters.push((entries.last().map_or(0, |entry| entry.seq), staged.done));
    }
    (entries, waiters)
}
