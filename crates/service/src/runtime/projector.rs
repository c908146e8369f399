//! The projector: the reader that keeps the files of the projection up to date. It works beside the turns, one session
//! at a time; what fails is tried again later, and nobody waits for it.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::sessions::{Inner, Sessions};
use crate::{
    SessionError,
    clock::Clock,
    consumers::{
        beside::Beside,
        projection::{Projection, READER},
        readers::{Readers, fetch::Next},
    },
    ids::{Seq, SessionId},
    service::ProjectionRebuilt,
    store::{ReadLimit, StoreError},
};

/// Frames that are read at a time. It does not take long: turns are waiting.
const FRAMES_READ: usize = 256;
/// How long the list of all sessions waits for more changes.
const LIST_AFTER: Duration = Duration::from_millis(500);
/// It waits this many times as long as it took to write, so that a long one is written less often.
const LIST_SHARE: u32 = 50;
/// The first wait after something failed, and the longest.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Bytes up to which the list is also written when the service ends.
const LIST_AT_END_BYTES: u64 = 1024 * 1024;
/// How long it may go on when the service ends.
const END_MAX: Duration = Duration::from_secs(2);

/// The projection of a service, and what its projector is told.
pub(crate) struct Projector {
    projection: Projection,
    /// Works with the files.
    thread: Beside,
    /// Held while files are written.
    writing: tokio::sync::Mutex<()>,
    /// Sessions that a rebuild has yet to come to.
    remaining: AtomicU64,
    /// It ends when it has caught up.
    ending: CancellationToken,
    /// It ends at once.
    over: CancellationToken,
    task: TaskTracker,
}

/// The projector as its service holds it: who drops the service ends it.
pub(crate) struct ProjectorHandle(Arc<Projector>);

impl Drop for ProjectorHandle {
    fn drop(&mut self) {
        self.0.over.cancel();
    }
}

impl ProjectorHandle {
    /// The projector of a projection. It works once it is told of a service.
    pub(crate) fn new(projection: Projection) -> Self {
        Self(Arc::new(Projector {
            projection,
            thread: Beside::new("meerkat-files"),
            writing: tokio::sync::Mutex::default(),
            remaining: AtomicU64::new(0),
            ending: CancellationToken::new(),
            over: CancellationToken::new(),
            task: TaskTracker::new(),
        }))
    }

    /// Sessions that a rebuild has yet to come to.
    pub(crate) fn remaining(&self) -> u64 {
        self.0.remaining.load(Ordering::Relaxed)
    }

    /// Waits until it has caught up, but not for long; the next start does the rest.
    pub(crate) async fn end(&self, clock: &dyn Clock) {
        let Projector { ending, over, task, .. } = self.0.as_ref();
        ending.cancel();
        task.close();
        tokio::select! {
            biased;
            () = task.wait() => return,
            () = clock.sleep(END_MAX) => over.cancel(),
        }
        // A file system that does not answer keeps its thread; nobody waits for that.
        tokio::select! {
            biased;
            () = task.wait() => {}
            () = clock.sleep(END_MAX) => tracing::warn!("the projection does not answer, and is left behind"),
        }
    }
}

impl Projector {
    /// Works with the files, on their thread: a long session is much to write.
    async fn files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Projection) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        let projection = self.projection.clone();
        self.thread.perform(move || work(&projection)).await.flatten().map_err(Trouble::Files)
    }
}

/// Why files are not what they should be.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    /// The journals or the service.
    #[error("{0}")]
    Service(#[from] SessionError),
    /// The files themselves.
    #[error("its files cannot be written: {0}")]
    Files(io::Error),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Service(error.into())
    }
}

impl From<Trouble> for SessionError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Service(error) => error,
            Trouble::Files(error) => {
                Self::StoreNotWritable { path: "the projection".to_owned(), why: error.to_string() }
            }
        }
    }
}

/// What the projector does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// Goes on with a session's files.
    Session(SessionId),
    /// Drops them.
    Gone(SessionId),
    /// Writes the list of all sessions.
    List,
    /// Goes on with the files of every session, because there is no list.
    All,
}

impl Sessions {
    /// Begins to project, where there is a projection. It ends with the service.
    pub(super) fn begin_projecting(&self) {
        let derived = &self.engine().derived;
        let Some(ProjectorHandle(projector)) = &derived.projector else { return };
        let clock = self.engine().world.clock.clone();
        let run = Run {
            // It does not keep the service.
            inner: Arc::downgrade(&self.inner),
            readers: derived.readers.clone(),
            projector: projector.clone(),
            // What a former process did not come to write.
            list_at: Some(clock.elapsed() + LIST_AFTER),
            list_took: Duration::ZERO,
            clock,
            failing: BTreeSet::new(),
            gone: BTreeSet::new(),
            is_compared: false,
        };
        projector.task.spawn(run.until_the_end());
    }

    /// Makes the projection anew.
    pub(super) async fn rebuild_files(&self) -> Result<ProjectionRebuilt, SessionError> {
        let projector = self.engine().derived.projector.as_ref();
        let off = "there is no projection: set projection.enabled, and a folder for it";
        let ProjectorHandle(projector) = projector.ok_or_else(|| SessionError::invalid("projection", off))?;
        Ok(self.project_all(projector, true).await?)
    }

    /// Brings the files of every session up to its journal's end. One that cannot be projected does not keep the others.
    async fn project_all(&self, projector: &Projector, is_anew: bool) -> Result<ProjectionRebuilt, Trouble> {
        let sessions = self.all_sessions().await?;
        let (mut rebuilt, mut failed) = (ProjectionRebuilt { sessions: 0, events: 0 }, None);
        let mut behind = Vec::new();
        for (at, summary) in sessions.iter().enumerate() {
            projector.remaining.store((sessions.len() - at) as u64, Ordering::Relaxed);
            match self.project_session(projector, summary.session_id, is_anew).await {
                Ok(Some(events)) => {
                    rebuilt.sessions += 1;
                    rebuilt.events += events;
                }
                Ok(None) => {}
                Err(trouble) => {
                    if !matches!(trouble, Trouble::Service(SessionError::Corrupted(_))) {
                        behind.push(summary.session_id);
                    }
                    failed.get_or_insert(trouble);
                }
            }
            if projector.over.is_cancelled() {
                break;
            }
        }
        projector.remaining.store(0, Ordering::Relaxed);
        if projector.over.is_cancelled() {
            return Err(SessionError::ShuttingDown.into());
        }
        // Where this fails, it is the folder's matter, and no session is to blame.
        self.write_list(projector, true).await?;
        let derived = &self.engine().derived;
        for id in &behind {
            // Its checkpoint says that its files are there; its turn comes again because they are not.
            drop(derived.readers.send_back(READER, *id).await);
        }
        if !behind.is_empty() {
            drop(derived.index.flush().await);
        }
        match failed {
            // The next start does not begin with all of them.
            Some(trouble) if is_anew => Err(trouble),
            Some(trouble) => {
                tracing::warn!(%trouble, "the files of a session are behind");
                Ok(rebuilt)
            }
            None => Ok(rebuilt),
        }
    }

    /// Writes the list of all sessions. With `is_compared`, files of sessions that are no longer stored go first.
    async fn write_list(&self, projector: &Projector, is_compared: bool) -> Result<(), Trouble> {
        let _writing = projector.writing.lock().await;
        let sessions = self.all_sessions().await?;
        if is_compared {
            let listed: BTreeSet<SessionId> = sessions.iter().map(|session| session.session_id).collect();
            for id in projector.files(Projection::sessions).await? {
                // One that cannot be read may be missing in the list, and is there.
                if !listed.contains(&id) && matches!(self.engine().events.journal_bytes(id).await, Ok(0)) {
                    drop_files(projector, id).await?;
                }
            }
        }
        self.room_beside().await?;
        projector.files(move |files| files.write_list(&sessions)).await
    }

    /// Brings a session's files up to its journal's end; answers with the last record, `None` where it is gone.
    async fn project_session(
        &self,
        projector: &Projector,
        id: SessionId,
        is_anew: bool,
    ) -> Result<Option<Seq>, Trouble> {
        let _writing = projector.writing.lock().await;
        let engine = self.engine();
        let derived = &engine.derived;
        'anew: loop {
            let mut whole = self.journal(id).read().await;
            let compactions = *whole;
            // Where the reader was sent back to the beginning, the journal may hold less than what was written of it.
            let is_anew = is_anew || derived.readers.checkpoint(READER, id).await? == 0;
            let summary = match self.look(id).await {
                Ok(view) => view.summary,
                Err(SessionError::NotFound(_)) => return drop_files(projector, id).await,
                Err(error) => return Err(error.into()),
            };
            self.room_beside().await?;
            let mut session = projector.files(move |files| files.session(summary, is_anew)).await?;
            while let Some(after) = session.wants() {
                if projector.over.is_cancelled() {
                    return Err(SessionError::ShuttingDown.into());
                }
                self.room_beside().await?;
                let page = engine.events.read(id, after, ReadLimit::frames(FRAMES_READ)).await?;
                // Nobody waits behind a compaction that waits for a long session to be written.
                drop(whole);
                let Some(page) = page else { return drop_files(projector, id).await };
                if page.frames.is_empty() {
                    return Err(StoreError::Failed(format!("its journal ends at seq {after}")).into());
                }
                session = projector.files(move |_| session.push(&page.frames).map(|()| session)).await?;
                whole = self.journal(id).read().await;
                if *whole != compactions {
                    continue 'anew;
                }
            }
            let seq = projector.files(move |_| session.finish()).await?;
            return match derived.readers.done(READER, id, seq).await {
                Err(SessionError::NotFound(_)) => drop_files(projector, id).await,
                done => Ok(Some(done?)),
            };
        }
    }
}

/// A session is gone, and its files go with it.
async fn drop_files(projector: &Projector, id: SessionId) -> Result<Option<Seq>, Trouble> {
    projector.files(move |files| files.remove(id)).await.map(|()| None)
}

/// The projector at work.
struct Run {
    inner: Weak<Inner>,
    readers: Arc<Readers>,
    projector: Arc<Projector>,
    clock: Arc<dyn Clock>,
    /// When the list of all sessions is written next, where it is to be, and how long that took last.
    list_at: Option<Duration>,
    list_took: Duration,
    /// What could not be done when it was tried last.
    failing: BTreeSet<Work>,
    /// Deleted sessions whose files could not be dropped.
    gone: BTreeSet<SessionId>,
    /// Whether files were looked for of sessions that another process deleted.
    is_compared: bool,
}

impl Run {
    async fn until_the_end(mut self) {
        let mut wait = RETRY_BASE;
        let has_list = self.projector.files(Projection::has_list).await;
        let mut all = (!matches!(has_list, Ok(true))).then_some(Work::All);
        loop {
            let Some(work) = (match all {
                Some(work) => Some(work),
                None => self.next().await,
            }) else {
                return;
            };
            let Some(service) = self.inner.upgrade().map(Sessions::of) else { return };
            let done = self.perform(&service, work).await;
            drop(service);
            match done {
                Ok(()) => {
                    self.failing.remove(&work);
                    all.take_if(|all| *all == work);
                    if self.failing.is_empty() {
                        wait = RETRY_BASE;
                    }
                }
                Err(trouble) => {
                    // Once is enough to know; what goes on failing is told of in a whisper, and so is a folder that is
                    // another store's: that stays so from one process to the next.
                    let is_anothers =
                        matches!(&trouble, Trouble::Files(error) if error.kind() == io::ErrorKind::AlreadyExists);
                    match self.failing.insert(work) && !is_anothers {
                        true => tracing::warn!(?work, %trouble, "the projection is behind, and tries again"),
                        false => tracing::debug!(?work, %trouble, "the projection is behind, and tries again"),
                    }
                    self.put_off(work, wait);
                    tokio::select! {
                        () = self.projector.ending.cancelled() => return,
                        () = self.projector.over.cancelled() => return,
                        () = self.clock.sleep(wait) => wait = (wait * 2).min(RETRY_MAX),
                    }
                }
            }
        }
    }

    /// Waits for what is to be done; `None` at the end.
    async fn next(&mut self) -> Option<Work> {
        loop {
            if self.projector.over.is_cancelled() {
                return None;
            }
            if let Some(session_id) = self.gone.pop_first() {
                return Some(Work::Gone(session_id));
            }
            let (now, is_ending) = (self.clock.elapsed(), self.projector.ending.is_cancelled());
            let is_done = is_ending && self.readers.is_done(READER).await;
            if self.list_at.is_some_and(|at| at <= now) {
                return Some(Work::List);
            }
            if is_done {
                // A long list is left to a process that lives long.
                let bytes = self.projector.files(Projection::list_bytes).await.unwrap_or(u64::MAX);
                return (self.list_at.is_some() && bytes <= LIST_AT_END_BYTES).then_some(Work::List);
            }
            let is_timed = self.list_at.is_some();
            let timer = self.clock.sleep(self.list_at.unwrap_or_default().saturating_sub(now));
            tokio::select! {
                biased;
                () = self.projector.over.cancelled() => {}
                () = self.projector.ending.cancelled(), if !is_ending => {}
                () = timer, if is_timed => {}
                next = self.readers.next(READER) => match next {
                    Ok(Next::Records(session_id)) => return Some(Work::Session(session_id)),
                    Ok(Next::Gone(session_id)) => return Some(Work::Gone(session_id)),
                    Err(error) => {
                        tracing::debug!(%error, "a journal cannot be read for the projection");
                        self.clock.sleep(RETRY_BASE).await;
                    }
                },
            }
        }
    }

    async fn perform(&mut self, service: &Sessions, work: Work) -> Result<(), Trouble> {
        let projector = &self.projector;
        match work {
            Work::Session(id) | Work::Gone(id) => match service.project_session(projector, id, false).await {
                // There is no more to be had of it, and others are waiting.
                Err(Trouble::Service(error @ SessionError::Corrupted(_))) => {
                    tracing::warn!(session_id = %id, %error, "the files of a session end where its journal can be read");
                    drop(self.readers.rest(READER, id, Seq::MAX));
                }
                done => drop(done?),
            },
            Work::All => {
                service.project_all(projector, false).await?;
                self.is_compared = true;
            }
            Work::List => {
                let begun = self.clock.elapsed();
                service.write_list(projector, !self.is_compared).await?;
                self.is_compared = true;
                self.list_took = self.clock.elapsed().saturating_sub(begun);
                self.list_at = None;
                return Ok(());
            }
        }
        self.list_at.get_or_insert(self.clock.elapsed() + LIST_AFTER.max(self.list_took * LIST_SHARE));
        Ok(())
    }

    /// Others are next.
    fn put_off(&mut self, work: Work, wait: Duration) {
        match work {
            Work::Session(id) => drop(self.readers.put_off(READER, id)),
            Work::Gone(id) => drop(self.gone.insert(id)),
            Work::List => self.list_at = Some(self.clock.elapsed() + wait * 2),
            Work::All => {}
        }
    }
}
