//! The projector: the reader that keeps the files of the projection up to date. It works beside the turns, one session
//! at a time; what fails is tried again later, and nobody waits for it.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::sessions::{Inner, Sessions};
use crate::{
    SessionError,
    clock::Clock,
    ids::{Seq, SessionId},
    projection::{Projection, READER},
    readers::{Readers, fetch::Next},
    service::ProjectionRebuilt,
    store::{ReadLimit, StoreError},
};

/// Frames that are read at a time.
const FRAMES_READ: usize = 1024;
/// How long the list of all sessions waits for more changes.
const LIST_AFTER: Duration = Duration::from_millis(500);
/// It waits this many times as long as it took to write, so that a long one is written less often.
const LIST_SHARE: u32 = 50;
/// The first wait after something failed, and the longest.
const RETRY_BASE: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);
/// How long it may go on when the service ends; the next start does the rest.
const END_MAX: Duration = Duration::from_secs(2);

/// The projection of a service, and what its projector is told.
pub(crate) struct Projector {
    projection: Projection,
    /// Held while files are written.
    writing: tokio::sync::Mutex<()>,
    /// Sessions whose files are to be made anew, because their journals hold less than before.
    anew: Mutex<BTreeSet<SessionId>>,
    told: Notify,
    ending: CancellationToken,
    task: TaskTracker,
}

impl Projector {
    pub(crate) fn new(projection: Projection) -> Self {
        Self {
            projection,
            writing: tokio::sync::Mutex::default(),
            anew: Mutex::default(),
            told: Notify::new(),
            ending: CancellationToken::new(),
            task: TaskTracker::new(),
        }
    }

    /// A session's journal was compacted: its files are made anew.
    pub(crate) fn remake(&self, session_id: SessionId) {
        self.anew().insert(session_id);
        self.told.notify_one();
    }

    fn anew(&self) -> std::sync::MutexGuard<'_, BTreeSet<SessionId>> {
        self.anew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it has caught up, but not for long.
    pub(crate) async fn end(&self) {
        self.ending.cancel();
        self.task.close();
        self.task.wait().await;
    }

    /// Works with the files, on a thread that may block.
    async fn files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Projection) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Trouble> {
        let projection = self.projection.clone();
        let done = tokio::task::spawn_blocking(move || work(&projection)).await;
        done.unwrap_or_else(|error| Err(io::Error::other(error))).map_err(Trouble::Files)
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
#[derive(Clone, Copy, Debug)]
enum Work {
    /// Goes on with a session's files.
    Session(SessionId),
    /// Makes them anew.
    Anew(SessionId),
    /// Drops them.
    Gone(SessionId),
    /// Writes the list of all sessions.
    List,
    /// Makes everything anew, because there is nothing.
    All,
}

impl<Home: 'static> Sessions<Home> {
    /// Begins to project, where there is a projection. It ends with the service.
    pub(super) fn begin_projecting(&self) {
        let Some(derived) = &self.engine().derived else { return };
        let Some(projector) = &derived.projector else { return };
        derived.readers.add_built_in(READER);
        let run = Run {
            // It does not keep the service: who drops that ends it.
            inner: Arc::downgrade(&self.inner),
            readers: derived.readers.clone(),
            projector: projector.clone(),
            clock: self.engine().world.clock.clone(),
            list_at: None,
            list_took: Duration::ZERO,
            end_at: None,
        };
        projector.task.spawn(run.until_the_end(Self::over));
    }

    /// Makes the projection anew.
    pub(super) async fn rebuild_files(&self) -> Result<ProjectionRebuilt, SessionError> {
        let projector = self.engine().derived.as_ref().and_then(|derived| derived.projector.as_ref());
        let off = "there is no projection: set projection.enabled, and a folder for it";
        let projector = projector.ok_or_else(|| SessionError::invalid("projection", off))?;
        Ok(self.project_all(projector).await?)
    }

    async fn project_all(&self, projector: &Projector) -> Result<ProjectionRebuilt, Trouble> {
        let sessions = self.all_sessions().await?;
        let mut rebuilt = ProjectionRebuilt { sessions: 0, events: 0 };
        for summary in &sessions {
            if let Some(events) = self.project_session(projector, summary.session_id, true).await? {
                rebuilt.sessions += 1;
                rebuilt.events += events;
            }
        }
        let _writing = projector.writing.lock().await;
        let sessions = self.all_sessions().await?;
        projector
            .files(move |files| {
                files.keep_only(&sessions.iter().map(|session| session.session_id).collect())?;
                files.write_list(&sessions)
            })
            .await?;
        Ok(rebuilt)
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
        let summary = match self.look(id).await {
            Ok(view) => view.summary,
            Err(SessionError::NotFound(_)) => {
                return projector.files(move |files| files.remove(id)).await.map(|()| None);
            }
            Err(error) => return Err(error.into()),
        };
        let mut session = projector.files(move |files| files.session(summary, is_anew)).await?;
        while let Some(after) = session.wants() {
            let Some(page) = engine.events.read(id, after, ReadLimit::frames(FRAMES_READ)).await? else { break };
            if page.frames.is_empty() {
                return Err(StoreError::Failed(format!("its journal ends at seq {after}")).into());
            }
            session = projector.files(move |_| session.push(&page.frames).map(|()| session)).await?;
        }
        let seq = projector.files(move |_| session.finish()).await?;
        match &engine.derived {
            Some(derived) => Ok(Some(derived.readers.done(READER, id, seq).await?)),
            None => Ok(Some(seq)),
        }
    }
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
    /// When it ends, where it was told to.
    end_at: Option<Duration>,
}

impl Run {
    async fn until_the_end<Home: 'static>(mut self, over: fn(Arc<Inner>) -> Sessions<Home>) {
        let mut wait = RETRY_BASE;
        let mut next = match self.projector.files(Projection::has_list).await {
            Ok(true) => None,
            _ => Some(Work::All),
        };
        loop {
            let Some(work) = (match next.take() {
                Some(work) => Some(work),
                None => self.next().await,
            }) else {
                return;
            };
            let Some(service) = self.inner.upgrade().map(over) else { return };
            match self.perform(&service, work).await {
                Ok(()) => wait = RETRY_BASE,
                Err(trouble) => {
                    drop(service);
                    // Once is enough to know; what goes on failing is told of in a whisper.
                    match wait == RETRY_BASE {
                        true => tracing::warn!(?work, %trouble, "the projection is behind, and tries again"),
                        false => tracing::debug!(?work, %trouble, "the projection is behind, and tries again"),
                    }
                    self.put_off(work);
                    tokio::select! {
                        () = self.projector.ending.cancelled() => return,
                        () = self.clock.sleep(wait) => wait = (wait * 2).min(RETRY_MAX),
                    }
                }
            }
        }
    }

    /// Waits for what is to be done; `None` at the end.
    async fn next(&mut self) -> Option<Work> {
        loop {
            if let Some(session_id) = self.projector.anew().pop_first() {
                return Some(Work::Anew(session_id));
            }
            let now = self.clock.elapsed();
            let is_done = self.end_at.is_some() && self.readers.is_done(READER).await;
            if self.list_at.is_some_and(|at| at <= now || is_done) {
                return Some(Work::List);
            }
            if is_done || self.end_at.is_some_and(|at| at <= now) {
                return None;
            }
            let until = self.list_at.into_iter().chain(self.end_at).min();
            let is_timed = until.is_some();
            let timer = self.clock.sleep(until.unwrap_or_default().saturating_sub(now));
            tokio::select! {
                biased;
                () = self.projector.ending.cancelled(), if self.end_at.is_none() => self.end_at = Some(now + END_MAX),
                () = self.projector.told.notified() => {}
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

    async fn perform<Home: 'static>(&mut self, service: &Sessions<Home>, work: Work) -> Result<(), Trouble> {
        let projector = &self.projector;
        match work {
            Work::Session(id) => drop(service.project_session(projector, id, false).await?),
            Work::Anew(id) => drop(service.project_session(projector, id, true).await?),
            Work::Gone(id) => projector.files(move |files| files.remove(id)).await?,
            Work::All => drop(service.project_all(projector).await?),
            Work::List => {
                let begun = self.clock.elapsed();
                let sessions = service.all_sessions().await?;
                projector.files(move |files| files.write_list(&sessions)).await?;
                self.list_took = self.clock.elapsed().saturating_sub(begun);
                self.list_at = None;
                return Ok(());
            }
        }
        self.list_at.get_or_insert(self.clock.elapsed() + LIST_AFTER.max(self.list_took * LIST_SHARE));
        Ok(())
    }

    /// Others are next.
    fn put_off(&self, work: Work) {
        match work {
            Work::Session(id) => drop(self.readers.put_off(READER, id)),
            Work::Anew(id) => drop(self.projector.anew().insert(id)),
            // What could not be removed is found again by a rebuild.
            Work::Gone(_) | Work::List | Work::All => {}
        }
    }
}
