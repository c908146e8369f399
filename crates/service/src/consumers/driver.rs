//! Drives a consumer: wakes it when sessions have more, tries again what failed, and ends it with its service.
//!
//! It works in rounds. A round forgets every session that was deleted, and applies some of those that have more; what fails
//! in it keeps no other session from its turn, and the next round comes after a pause. It reads no journal, and nobody
//! waits for it who does not ask to.

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

/// The first wait after a round that failed, and the longest.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Sessions of one round.
const SESSIONS_TOGETHER: usize = 64;

/// A consumer of the journals, as its driver sees it.
#[async_trait]
pub(super) trait Consumer: Send + 'static {
    /// Time that it waits for more before a round, unless somebody waits for what there is. If there is any, it does not
    /// begin either in a service that ends by then, and in which nothing has changed.
    const DEBOUNCE: Duration;

    /// Finds out what it has. It is asked again until it answers.
    async fn begin(&mut self, host: &dyn Host) -> Result<(), SessionError>;

    /// Drops what it has of a deleted session.
    async fn forget(&mut self, host: &dyn Host, session_id: SessionId) -> Result<(), SessionError>;

    /// Takes in what follows its checkpoints in these sessions, and moves them. Answers if more is known to be left. A
    /// session that cannot be taken in keeps no other from it.
    async fn apply(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<bool, SessionError>;

    /// Does what is to be done besides, at the end of each round.
    async fn settle(&mut self, host: &dyn Host, moment: Moment) -> Result<(), SessionError>;

    /// When it wants a round though nothing has changed, by the clock's elapsed time.
    fn wakes_at(&self) -> Option<Duration> {
        None
    }

    /// Recognises a failure that nobody is to be warned of.
    fn is_expected(_error: &SessionError) -> bool {
        false
    }
}

/// What a round had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// It had sessions.
    Busy,
    /// Nothing is left to do for now.
    Idle,
    /// Nothing is left to do, and the service ends.
    Ending,
}

/// How a consumer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It has not found out yet what it has.
    Beginning,
    Working,
    /// It waits before it tries again what failed.
    Failing,
    Over,
}

/// What a service and the driver of a consumer share.
pub(crate) struct Control {
    reader: &'static str,
    pub(super) readers: Arc<Readers>,
    pub(super) clock: Arc<dyn Clock>,
    /// Does not stop trying when the service ends: what it has not taken in then is lost.
    tries_to_the_last: bool,
    /// What a rebuild has yet to come to.
    pub(super) remaining: AtomicU64,
    progress: watch::Sender<Progress>,
    /// Somebody waits until it has caught up.
    asked: Notify,
    /// It ends when it has caught up.
    ending: CancellationToken,
    /// It ends at once.
    over: CancellationToken,
    task: TaskTracker,
}

/// A consumer as its service holds it: dropping it ends its driver.
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
    /// Registers a consumer: from now on it learns of what changes and what is deleted. One that is not trusted has yet to
    /// find out if it has what its checkpoints say.
    pub(super) fn new(
        (reader, is_trusted): (&'static str, bool),
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
        tries_to_the_last: bool,
    ) -> Arc<Self> {
        readers.add_built_in(reader, is_trusted);
        Arc::new(Self {
            reader,
            readers,
            clock,
            tries_to_the_last,
            remaining: AtomicU64::new(0),
            progress: watch::Sender::new(Progress::Beginning),
            asked: Notify::new(),
            ending: CancellationToken::new(),
            over: CancellationToken::new(),
            task: TaskTracker::new(),
        })
    }

    /// Begins to drive a consumer. What changes from now on wakes it.
    pub(super) fn drive<C: Consumer>(self: &Arc<Self>, consumer: C, host: FindHost) {
        let (control, changes) = (self.clone(), self.readers.changes());
        self.task.spawn(
            Driver { control, consumer, host, changes, has_begun: false, is_more: false, is_failing: false }.run(),
        );
    }

    /// What a rebuild has yet to come to: passages, or sessions.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining.load(Ordering::Relaxed)
    }

    /// If it is to end at once.
    pub(super) fn is_over(&self) -> bool {
        self.over.is_cancelled()
    }

    /// Waits until it has caught up, but no longer than `limit`; then it is told to end at once, and has `rest` for that.
    /// Answers if it has caught up.
    pub(super) async fn end(&self, limit: Duration, rest: Duration) -> bool {
        self.ending.cancel();
        self.task.close();
        tokio::select! {
            biased;
            () = self.task.wait() => return true,
            () = self.clock.sleep(limit) => self.over.cancel(),
        }
        // A disk that does not answer keeps its thread; nobody waits for that.
        tokio::select! {
            biased;
            () = self.task.wait() => {}
            () = self.clock.sleep(rest) => tracing::warn!(reader = self.reader, "a reader does not answer, and is left behind"),
        }
        false
    }

    /// Waits until everything is taken in that was durable before, for as long as nothing fails; answers if it is.
    pub(super) async fn has_caught_up(&self, limit: Duration) -> bool {
        self.asked.notify_one();
        tokio::select! {
            biased;
            done = self.catch_up() => done.unwrap_or(false),
            () = self.clock.sleep(limit) => false,
        }
    }

    /// Waits before something is tried again; `false` at the end.
    async fn pause(&self, wait: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.ending.cancelled(), if !self.tries_to_the_last => false,
            () = self.over.cancelled() => false,
            () = self.clock.sleep(wait) => true,
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
                // What it is behind in is not known yet.
                Progress::Beginning => {}
                Progress::Working => {
                    let behind = match &mut behind {
                        Some(behind) => behind,
                        None => behind.insert(self.readers.behind(self.reader).await?),
                    };
                    self.readers.retain_behind(self.reader, behind)?;
                    if behind.is_empty() && self.readers.gone_of(self.reader)?.is_empty() {
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

/// A consumer at work.
struct Driver<C> {
    control: Arc<Control>,
    consumer: C,
    host: FindHost,
    /// Changes when a session has more records, or is deleted.
    changes: watch::Receiver<u64>,
    has_begun: bool,
    /// More was left by the last round than it took.
    is_more: bool,
    is_failing: bool,
}

/// What a driver was woken by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// It is to end at once.
    Over,
    /// It is to end when it has caught up.
    Ending,
    Changed,
    Asked,
    Timer,
}

impl<C: Consumer> Driver<C> {
    async fn run(mut self) {
        // A command that only looks at something does not pay for what beginning costs.
        let woken = if C::DEBOUNCE.is_zero() { Woken::Timer } else { self.wait(Some(C::DEBOUNCE), true).await };
        if !matches!(woken, Woken::Over | Woken::Ending) {
            self.until_the_end().await;
        }
        self.control.progress.send_replace(Progress::Over);
    }

    async fn until_the_end(&mut self) {
        let mut wait = RETRY_BASE;
        while !self.control.is_over() {
            let progress = if self.has_begun { Progress::Working } else { Progress::Beginning };
            self.control.progress.send_replace(progress);
            self.changes.borrow_and_update();
            let done = if self.has_begun { self.round().await } else { self.begin().await };
            let goes_on = match done {
                Ok(moment) => {
                    (wait, self.is_failing) = (RETRY_BASE, false);
                    match moment {
                        Moment::Busy => true,
                        Moment::Idle => self.sleep().await,
                        Moment::Ending => false,
                    }
                }
                Err(error) => {
                    self.report(&error);
                    self.control.progress.send_replace(Progress::Failing);
                    let waited = wait;
                    wait = (wait * 2).min(RETRY_MAX);
                    self.control.pause(waited).await
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    async fn begin(&mut self) -> Result<Moment, SessionError> {
        let Some(host) = (self.host)() else { return Ok(Moment::Ending) };
        self.consumer.begin(host.as_ref()).await?;
        self.has_begun = true;
        Ok(Moment::Busy)
    }

    /// One round; answers what there was to do.
    async fn round(&mut self) -> Result<Moment, SessionError> {
        let control = self.control.clone();
        let Control { reader, readers, ending, .. } = control.as_ref();
        let is_ending = ending.is_cancelled();
        let gone = readers.gone_of(reader)?;
        let (mut sessions, mut failed) = match readers.due_sessions(reader, SESSIONS_TOGETHER).await {
            Ok(sessions) => (sessions, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        let moment = match gone.is_empty() && sessions.is_empty() && failed.is_none() {
            false => Moment::Busy,
            true if is_ending => Moment::Ending,
            true => Moment::Idle,
        };
        // It waits for more, unless somebody waits for what there is.
        let is_patient = moment == Moment::Busy && !self.is_more && !C::DEBOUNCE.is_zero();
        if is_patient && self.wait(Some(C::DEBOUNCE), false).await == Woken::Over {
            return Ok(Moment::Ending);
        }
        let Some(host) = (self.host)() else { return Ok(Moment::Ending) };
        let host = host.as_ref();
        self.is_more = sessions.len() == SESSIONS_TOGETHER;
        for session_id in gone {
            if control.is_over() {
                break;
            }
            match self.consumer.forget(host, session_id).await {
                Ok(()) => readers.forgot(reader, session_id)?,
                Err(error) => {
                    // Another one may have come under its id.
                    sessions.retain(|it| *it != session_id);
                    failed.get_or_insert(error);
                }
            }
        }
        if !sessions.is_empty() {
            match self.consumer.apply(host, sessions).await {
                Ok(is_left) => self.is_more |= is_left,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Err(error) = self.consumer.settle(host, moment).await {
            failed.get_or_insert(error);
        }
        failed.map_or(Ok(moment), Err)
    }

    /// Warns once; what goes on failing is logged for those who look for it.
    fn report(&mut self, error: &SessionError) {
        let reader = self.control.reader;
        let is_expected = C::is_expected(error);
        let is_known = is_expected || self.is_failing;
        self.is_failing |= !is_expected;
        match is_known {
            false => tracing::warn!(reader, %error, "a reader is behind, and tries again"),
            true => tracing::debug!(reader, %error, "a reader is behind, and tries again"),
        }
    }

    /// Waits for a time, until something has changed if that is wanted, and else until somebody asks.
    async fn wait(&mut self, limit: Option<Duration>, wakes_on_change: bool) -> Woken {
        let Control { asked, ending, over, clock, .. } = self.control.as_ref();
        let timer = clock.sleep(limit.unwrap_or_default());
        tokio::select! {
            biased;
            () = over.cancelled() => Woken::Over,
            () = asked.notified() => Woken::Asked,
            _ = self.changes.changed(), if wakes_on_change => Woken::Changed,
            () = ending.cancelled() => Woken::Ending,
            () = timer, if limit.is_some() => Woken::Timer,
        }
    }

    /// Waits until there may be something to do; `false` at the end.
    async fn sleep(&mut self) -> bool {
        let now = self.control.clock.elapsed();
        let limit = self.consumer.wakes_at().map(|at| at.saturating_sub(now));
        self.wait(limit, true).await != Woken::Over
    }
}
