//! Drives a consumer: wakes it when sessions have more, retries what failed, and ends it with its service.
//!
//! It works in rounds. A round forgets every deleted session and applies some of those that have more. A failure keeps
//! no other session from its turn, and the next round comes after a pause. It reads no journal, and only callers that
//! ask for it wait for it.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::{Notify, watch};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::{FindHost, Host, readers::Readers};
use crate::{SessionError, clock::Clock, ids::SessionId};

/// First and longest wait after a round that failed.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Sessions of one round.
const SESSIONS_TOGETHER: usize = 64;

/// Consumer of the journals, as its driver sees it.
#[async_trait]
pub(super) trait Consumer: Send + 'static {
    /// Wait for more after a change, unless a caller asks for what there is. It is also the wait before the consumer
    /// begins: in a service that ends by then, and in which nothing has changed, it never does.
    const DEBOUNCE: Duration;

    /// Finds out what it has. It is called again until it succeeds.
    async fn begin(&mut self, host: &dyn Host) -> Result<(), SessionError>;

    /// Drops what it has of a deleted session.
    async fn forget(&mut self, host: &dyn Host, session_id: SessionId) -> Result<(), SessionError>;

    /// Takes in what follows its checkpoints in these sessions, or some of it, and moves the checkpoints. A session
    /// that fails does not keep others from being taken in.
    async fn apply(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<(), SessionError>;

    /// Ends a round. Returns when it wants another one even if nothing changes, by the clock's elapsed time.
    async fn settle(&mut self, host: &dyn Host, moment: Moment) -> Result<Option<Duration>, SessionError>;

    /// Returns true if nothing is taken in after the end, because no later start finds it: then a failed round is not
    /// the last one.
    fn is_lost_at_end(&self) -> bool {
        false
    }

    /// Recognises a failure that is not worth a warning.
    fn is_expected(_error: &SessionError) -> bool {
        false
    }
}

/// Work that a round found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// There were sessions.
    Busy,
    /// Nothing is left to do for now.
    Idle,
    /// Nothing is left to do, and the service ends.
    Ending,
}

/// Progress of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has not found out yet what it has.
    Beginning,
    Working,
    /// It failed, and waits before it retries or has given up.
    Failing,
    Over,
}

/// State that a service and the driver of a consumer share.
pub(crate) struct Control {
    reader: &'static str,
    pub(super) readers: Arc<Readers>,
    pub(super) clock: Arc<dyn Clock>,
    /// Work that a rebuild has not reached yet.
    pub(super) remaining: AtomicU64,
    progress: watch::Sender<Progress>,
    /// A caller waits until the consumer has caught up.
    asked: Notify,
    /// The consumer ends when it has caught up.
    ending: CancellationToken,
    /// The consumer ends at once.
    over: CancellationToken,
    task: TaskTracker,
}

/// Consumer as its service holds it: dropping it ends its driver.
pub(crate) struct Handle<T> {
    consumer: Arc<T>,
    _end: DropGuard,
}

impl<T> Handle<T> {
    pub(super) fn new(consumer: T, control: &Control) -> Self {
        Self { consumer: Arc::new(consumer), _end: control.over.clone().drop_guard() }
    }
}

impl<T> Deref for Handle<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.consumer
    }
}

impl Control {
    /// Registers a consumer: from now on changes and deletions are noted for it. One that is not trusted has yet to
    /// find out if it has what its checkpoints say.
    pub(super) fn new(
        reader: &'static str,
        is_trusted: bool,
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        readers.add_built_in(reader, is_trusted);
        Arc::new(Self {
            reader,
            readers,
            clock,
            remaining: AtomicU64::new(0),
            progress: watch::Sender::new(Progress::Beginning),
            asked: Notify::new(),
            ending: CancellationToken::new(),
            over: CancellationToken::new(),
            task: TaskTracker::new(),
        })
    }

    /// Begins to drive a consumer. Changes from now on wake it.
    pub(super) fn drive<C: Consumer>(self: &Arc<Self>, consumer: C, host: FindHost) {
        let (control, changes) = (self.clone(), self.readers.changes());
        let driver = Driver {
            control,
            consumer,
            host,
            changes,
            has_begun: false,
            last_rounds: None,
            is_failing: false,
            is_gathering: false,
            wakes_at: None,
        };
        self.task.spawn(driver.run());
    }

    /// Counts the passages, or sessions, that a rebuild has not reached yet.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining.load(Ordering::Relaxed)
    }

    /// Returns true if it is to end at once.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Returns true if it ends when it has caught up.
    pub(super) fn is_ending(&self) -> bool {
        self.ending.is_cancelled()
    }

    /// Waits until it has caught up, but no longer than `limit`; then ends it at once, and waits up to `rest` for that.
    /// Returns true if it has caught up.
    pub(super) async fn end(&self, limit: Duration, rest: Duration) -> bool {
        self.ending.cancel();
        self.task.close();
        tokio::select! {
            biased;
            () = self.task.wait() => return *self.progress.borrow() != Progress::Failing,
            () = self.clock.sleep(limit) => self.over.cancel(),
        }
        // A disk that does not answer keeps its thread; nobody waits for that.
        tokio::select! {
            biased;
            () = self.task.wait() => {}
            () = self.clock.sleep(rest) => tracing::warn!(reader = self.reader, "a reader did not stop in time; it is abandoned"),
        }
        false
    }

    /// Waits until everything that is durable now is taken in, but not after a failure. Returns true if it is.
    pub(super) async fn has_caught_up(&self, limit: Duration) -> bool {
        self.asked.notify_one();
        tokio::select! {
            biased;
            done = self.catch_up() => done.unwrap_or(false),
            () = self.clock.sleep(limit) => false,
        }
    }

    async fn catch_up(&self) -> Result<bool, SessionError> {
        let (mut progress, mut moves) = (self.progress.subscribe(), self.readers.moves());
        let mut behind = None;
        loop {
            moves.borrow_and_update();
            let now = *progress.borrow_and_update();
            match now {
                Progress::Failing | Progress::Over => return Ok(false),
                // The sessions that it is behind in are not known yet.
                Progress::Beginning => {}
                Progress::Working => {
                    let behind = match &mut behind {
                        Some(behind) => behind,
                        None => behind.insert(self.readers.behind(self.reader).await?),
                    };
                    self.readers.retain_behind(self.reader, behind)?;
                    if behind.is_empty() && self.readers.deleted_of(self.reader)?.is_empty() {
                        return Ok(true);
                    }
                }
            }
            tokio::select! {
                changed = progress.changed() => drop(changed),
                changed = moves.changed() => drop(changed),
            }
        }
    }
}

/// Consumer at work.
struct Driver<C> {
    control: Arc<Control>,
    consumer: C,
    host: FindHost,
    /// Changes when a session has more records, or is deleted.
    changes: watch::Receiver<u64>,
    has_begun: bool,
    /// Once a round has failed at the end: how many sessions were due, and the rounds that may still fail before there
    /// are fewer.
    last_rounds: Option<(usize, usize)>,
    is_failing: bool,
    /// True if the last round had few sessions: if there are more at once, the next one gathers some.
    is_gathering: bool,
    /// Time of the next round if nothing changes before, by the clock's elapsed time.
    wakes_at: Option<Duration>,
}

/// Reason for which a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Ending,
    Changed,
    /// A caller asks, or the time is over.
    Now,
}

impl<C: Consumer> Driver<C> {
    async fn run(mut self) {
        // A command that only looks at something does not pay for what beginning costs.
        let woken = if C::DEBOUNCE.is_zero() { Woken::Now } else { self.wait(Some(C::DEBOUNCE), true).await };
        if woken == Woken::Changed {
            // It gathers what comes, and knows when it begins if the service ends.
            self.wait(Some(C::DEBOUNCE), false).await;
        }
        if woken != Woken::Ending {
            self.work().await;
        }
        let has_given_up = *self.control.progress.borrow() == Progress::Failing;
        if !has_given_up {
            self.control.progress.send_replace(Progress::Over);
        }
    }

    /// Works until the service ends. Then it tries once more what has failed: if it would be lost, in every session.
    async fn work(&mut self) {
        let mut wait = RETRY_BASE;
        while !self.control.is_over() {
            let is_ending = self.control.is_ending();
            let progress = if self.has_begun { Progress::Working } else { Progress::Beginning };
            self.control.progress.send_replace(progress);
            self.changes.borrow_and_update();
            let done = if self.has_begun { self.round(is_ending).await } else { self.begin().await };
            match done {
                Ok(moment) => {
                    (wait, self.is_failing) = (RETRY_BASE, false);
                    match moment {
                        Moment::Busy => {}
                        Moment::Idle => self.sleep().await,
                        Moment::Ending => return,
                    }
                }
                Err(error) => {
                    self.report(&error);
                    self.control.progress.send_replace(Progress::Failing);
                    if is_ending && !self.has_another_round().await {
                        return;
                    }
                    self.pause(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
            }
        }
    }

    /// Returns true if there is another round after one that failed at the end. Rounds take turns with the sessions, so
    /// that so many reach each of them, and one more is for a failure that passes.
    async fn has_another_round(&mut self) -> bool {
        let Control { reader, readers, .. } = self.control.as_ref();
        if !self.has_begun || !self.consumer.is_lost_at_end() {
            return false;
        }
        let Ok(behind) = readers.behind(reader).await else { return false };
        let behind = behind.len();
        let left = match self.last_rounds {
            Some((before, left)) if behind >= before => left,
            _ => behind.div_ceil(SESSIONS_TOGETHER) + 1,
        };
        self.last_rounds = Some((behind, left.saturating_sub(1)));
        left > 1
    }

    async fn begin(&mut self) -> Result<Moment, SessionError> {
        let Some(host) = (self.host)() else { return Ok(Moment::Ending) };
        self.consumer.begin(host.as_ref()).await?;
        self.has_begun = true;
        Ok(Moment::Busy)
    }

    async fn round(&mut self, is_ending: bool) -> Result<Moment, SessionError> {
        let Some(host) = (self.host)() else { return Ok(Moment::Ending) };
        let (host, control) = (host.as_ref(), self.control.clone());
        let Control { reader, readers, .. } = control.as_ref();
        let deleted = readers.deleted_of(reader)?;
        let (mut sessions, mut failed) = match readers.due_sessions(reader, SESSIONS_TOGETHER).await {
            Ok(sessions) => (sessions, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let moment = match deleted.is_empty() && sessions.is_empty() && failed.is_none() {
            false => Moment::Busy,
            true if is_ending => Moment::Ending,
            true => Moment::Idle,
        };
        if moment == Moment::Busy && self.is_gathering {
            self.wait(Some(C::DEBOUNCE), false).await;
        }
        self.is_gathering = moment == Moment::Busy && sessions.len() < SESSIONS_TOGETHER && !C::DEBOUNCE.is_zero();
        for deletion in deleted {
            if control.is_over() {
                break;
            }
            match self.consumer.forget(host, deletion.session_id).await {
                Ok(()) => readers.forgot(reader, deletion)?,
                Err(error) => {
                    // A new session may have this id by now.
                    sessions.retain(|it| *it != deletion.session_id);
                    failed.get_or_insert(error);
                }
            }
        }
        if !sessions.is_empty()
            && let Err(error) = self.consumer.apply(host, sessions).await
        {
            failed.get_or_insert(error);
        }
        match self.consumer.settle(host, moment).await {
            Ok(wakes_at) => self.wakes_at = wakes_at,
            Err(error) => {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(moment), Err)
    }

    /// Warns once, then logs at debug.
    fn report(&mut self, error: &SessionError) {
        let reader = self.control.reader;
        let is_expected = C::is_expected(error);
        let is_known = is_expected || self.is_failing;
        self.is_failing |= !is_expected;
        match is_known {
            false => tracing::warn!(reader, %error, "a reader failed, and tries again"),
            true => tracing::debug!(reader, %error, "a reader failed, and tries again"),
        }
    }

    /// Waits until a caller asks, until the limit, and if wanted until something changes.
    async fn wait(&mut self, limit: Option<Duration>, wakes_on_change: bool) -> Woken {
        let Control { asked, ending, over, clock, .. } = self.control.as_ref();
        let timer = clock.sleep(limit.unwrap_or_default());
        tokio::select! {
            biased;
            () = over.cancelled() => Woken::Ending,
            () = asked.notified() => Woken::Now,
            _ = self.changes.changed(), if wakes_on_change => Woken::Changed,
            () = ending.cancelled() => Woken::Ending,
            () = timer, if limit.is_some() => Woken::Now,
        }
    }

    /// Waits until there may be something to do.
    async fn sleep(&mut self) {
        let now = self.control.clock.elapsed();
        let limit = self.wakes_at.map(|at| at.saturating_sub(now));
        if self.wait(limit, true).await == Woken::Changed && !C::DEBOUNCE.is_zero() {
            self.wait(Some(C::DEBOUNCE), false).await;
        }
    }

    /// Waits before a retry, unless the service ends.
    async fn pause(&mut self, wait: Duration) {
        let Control { ending, over, clock, .. } = self.control.as_ref();
        tokio::select! {
            () = over.cancelled() => {}
            () = ending.cancelled() => {}
            () = clock.sleep(wait) => {}
        }
    }
}
