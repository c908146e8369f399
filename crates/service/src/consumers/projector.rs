//! The projector: the consumer that keeps the files of the projection up to date, one session at a time. Failures are
//! retried later, and nobody waits for it.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;

use super::{
    FindHost, Host,
    background::BackgroundThread,
    check_room,
    driver::{Consumer, Control, Handle, Moment},
    projection::{ANOTHERS, Parent, Projection, READER},
    readers::Readers,
};
use crate::{
    SessionError,
    clock::Clock,
    ids::{Seq, SessionId},
    service::ProjectionRebuilt,
    store::{EventStore, FramePage, ReadLimit, StoreError, restore::decode},
};

/// Frames to read at once: few, because turns are waiting.
const FRAMES_READ: usize = 256;
/// Wait for more changes before the list of all sessions is written.
const LIST_AFTER: Duration = Duration::from_millis(500);
/// Least wait in multiples of the time that the list took, so that a long one is written less often.
const LIST_SHARE: u32 = 50;
/// Most bytes of a list that is also written when the service ends.
const LIST_AT_END_BYTES: u64 = 1024 * 1024;
/// Most time to catch up when the service ends, and then to answer.
const END_MAX: Duration = Duration::from_secs(2);

/// Projection of a service.
pub(crate) struct Projector {
    projection: Projection,
    events: Arc<dyn EventStore>,
    pub(crate) control: Arc<Control>,
    thread: BackgroundThread,
    /// Held while files are written.
    writing: tokio::sync::Mutex<()>,
}

/// Projector as its service holds it.
pub(crate) type ProjectorHandle = Handle<Projector>;

impl ProjectorHandle {
    /// Makes the projector of a projection.
    pub(crate) fn of(
        projection: Projection,
        events: Arc<dyn EventStore>,
        readers: Arc<Readers>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let control = Control::new(READER, true, readers, clock);
        let (thread, writing) = (BackgroundThread::new("meerkat-files"), tokio::sync::Mutex::default());
        Self::new(Projector { projection, events, control: control.clone(), thread, writing }, &control)
    }

    /// Begins to project the sessions of a service.
    pub(crate) fn begin(&self, host: FindHost) {
        let run = Run {
            projector: Arc::clone(self),
            // A former process may have ended before it wrote the list.
            list_at: Some(self.control.clock.elapsed() + LIST_AFTER),
            list_took: Duration::ZERO,
            is_compared: false,
        };
        self.control.drive(run, host);
    }

    /// Waits a short time until it has caught up; the next start does the rest.
    pub(crate) async fn end(&self) {
        self.control.end(END_MAX, END_MAX).await;
    }
}

impl Projector {
    /// Works with the files on their thread: a long session takes a while to write.
    async fn files<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Projection) -> io::Result<T> + Send + 'static,
    ) -> Result<T, SessionError> {
        let projection = self.projection.clone();
        let done = self.thread.perform(move || work(&projection)).await.flatten();
        let path = || "the projection".to_owned();
        done.map_err(|error| SessionError::StoreNotWritable { path: path(), why: error.to_string() })
    }

    /// Rebuilds the files of every session.
    pub(crate) async fn rebuild(&self, host: &dyn Host) -> Result<ProjectionRebuilt, SessionError> {
        self.project_all(host, true).await
    }

    /// Brings the files of every session up to its journal's end. A session that fails does not keep the others from
    /// it.
    async fn project_all(&self, host: &dyn Host, is_rebuild: bool) -> Result<ProjectionRebuilt, SessionError> {
        let sessions = host.all_sessions().await?;
        let (mut rebuilt, mut failed) = (ProjectionRebuilt { sessions: 0, events: 0 }, None);
        let mut behind = Vec::new();
        for (at, summary) in sessions.iter().enumerate() {
            self.control.remaining.store((sessions.len() - at) as u64, Ordering::Relaxed);
            match self.project_session(host, summary.session_id, is_rebuild).await {
                Ok(Some(events)) => {
                    rebuilt.sessions += 1;
                    rebuilt.events += events;
                }
                Ok(None) => {}
                Err(error) => {
                    if !matches!(error, SessionError::Corrupted { .. }) {
                        behind.push(summary.session_id);
                    }
                    failed.get_or_insert(error);
                }
            }
            if self.control.is_over() {
                break;
            }
        }
        self.control.remaining.store(0, Ordering::Relaxed);
        if self.control.is_over() {
            return Err(SessionError::ShuttingDown);
        }
        // If this fails, the folder is the reason, and no session is sent back.
        let orphans = self.write_list(host, true).await?;
        self.write_whole(host, orphans, true).await;
        for id in behind {
            // Its checkpoint says that its files are whole, and they are not.
            drop(self.control.readers.restart(READER, id).await);
        }
        match failed {
            Some(error) if is_rebuild => Err(error),
            Some(error) => {
                // The next start does not begin again with all sessions.
                tracing::warn!(%error, "the files of a session are behind");
                Ok(rebuilt)
            }
            None => Ok(rebuilt),
        }
    }

    /// Writes the list of all sessions. With `drops_stale`, files of sessions that are no longer stored are removed
    /// first. Returns the forks whose parent is not in it.
    async fn write_list(&self, host: &dyn Host, drops_stale: bool) -> Result<Vec<SessionId>, SessionError> {
        let _writing = self.writing.lock().await;
        let sessions = host.all_sessions().await?;
        let listed: BTreeSet<SessionId> = sessions.iter().map(|session| session.session_id).collect();
        if drops_stale {
            for id in self.files(Projection::sessions).await? {
                // A session that cannot be read may be missing in the list, and is still stored.
                if !listed.contains(&id) && matches!(self.events.journal_bytes(id).await, Ok(0)) {
                    self.drop_files(id).await?;
                }
            }
        }
        check_room(self.events.as_ref()).await?;
        let is_gone = |parent: &SessionId| !listed.contains(parent);
        let orphans = sessions.iter().filter(|it| it.forked_from.as_ref().is_some_and(is_gone));
        let orphans = orphans.map(|it| it.session_id).collect();
        self.files(move |files| files.write_list(&sessions)).await?;
        Ok(orphans)
    }

    /// Writes those forks whole whose files refer to a deleted parent. At the start, also those without whole files: a
    /// former process may have ended while it wrote them.
    async fn write_whole(&self, host: &dyn Host, orphans: Vec<SessionId>, is_start: bool) {
        for id in orphans {
            if self.control.is_over() {
                return;
            }
            let is_due = match self.files(move |files| files.parent(id)).await {
                Ok(Some(Some(parent))) => matches!(self.events.journal_bytes(parent.session_id).await, Ok(0)),
                Ok(None) => is_start,
                Ok(Some(None)) | Err(_) => false,
            };
            if is_due && let Err(error) = self.project_session(host, id, false).await {
                tracing::debug!(session_id = %id, %error, "the files of a fork without parent are not whole yet");
            }
        }
    }

    /// Finds out what the files of a fork, which are new, leave to its parent's: the records before its own, if the
    /// parent's journal has them.
    async fn shared(&self, id: SessionId, parent: SessionId) -> Result<Option<Parent>, SessionError> {
        let mut last = 0;
        'own: while let Some(page) = self.events.read(id, last, ReadLimit::frames(FRAMES_READ)).await? {
            if self.control.is_over() {
                return Err(SessionError::ShuttingDown);
            }
            for frame in &page.frames {
                if decode(frame)?.session_id == id {
                    break 'own;
                }
                last = frame.seq;
            }
            if page.frames.is_empty() {
                break;
            }
        }
        let parent = Parent { session_id: parent, seq: last };
        Ok(self.is_shared(id, parent).await?.then_some(parent))
    }

    /// Returns true if both journals have the same record there. That of the parent may have been replaced, by a repair
    /// or by an import.
    async fn is_shared(&self, id: SessionId, parent: Parent) -> Result<bool, SessionError> {
        let Some(before) = parent.seq.checked_sub(1) else { return Ok(false) };
        let at = ReadLimit::frames(1);
        let own = self.events.read(id, before, at).await?;
        // One that cannot be read up to there has no files up to there.
        let parents = self.events.read(parent.session_id, before, at).await.ok().flatten();
        let line = |page: Option<FramePage>| page?.frames.pop().filter(|frame| frame.seq == parent.seq);
        Ok(line(own).is_some_and(|own| line(parents).is_some_and(|parents| parents.line == own.line)))
    }

    /// Brings a session's files up to its journal's end; returns the last record, `None` if the session is deleted.
    async fn project_session(
        &self,
        host: &dyn Host,
        id: SessionId,
        is_rebuild: bool,
    ) -> Result<Option<Seq>, SessionError> {
        let _writing = self.writing.lock().await;
        let readers = &self.control.readers;
        'whole: loop {
            let mut whole = host.journal(id).read().await;
            let compactions = *whole;
            // After a restart of the reader the journal may hold less than its files.
            let is_rebuild = is_rebuild || readers.checkpoint(READER, id).await? == 0;
            let summary = match host.view(id).await {
                Ok(view) => view.summary,
                Err(SessionError::NotFound(_)) => return self.drop_files(id).await,
                Err(error) => return Err(error),
            };
            let (mut parent, mut is_rebuild) = (None, is_rebuild);
            // A bundle may name any session as a parent; a real one is older.
            if let Some(forked_from) = summary.forked_from.filter(|parent| *parent < id) {
                let found = if is_rebuild { None } else { self.files(move |files| files.parent(id)).await? };
                is_rebuild = match found {
                    Some(Some(parent)) => !self.is_shared(id, parent).await?,
                    Some(None) => false,
                    None => true,
                };
                if is_rebuild {
                    parent = self.shared(id, forked_from).await?;
                }
            }
            check_room(self.events.as_ref()).await?;
            let mut session = self.files(move |files| files.session(summary, parent, is_rebuild)).await?;
            while let Some(after) = session.wants() {
                if self.control.is_over() {
                    return Err(SessionError::ShuttingDown);
                }
                check_room(self.events.as_ref()).await?;
                let page = self.events.read(id, after, ReadLimit::frames(FRAMES_READ)).await?;
                // A journal compaction, and those who wait behind it, need not wait for a long session to be written.
                drop(whole);
                let Some(page) = page else { return self.drop_files(id).await };
                if page.frames.is_empty() {
                    return Err(StoreError::Failed(format!("its journal ends at seq {after}")).into());
                }
                session = self.files(move |_| session.push(&page.frames).map(|()| session)).await?;
                whole = host.journal(id).read().await;
                if *whole != compactions {
                    continue 'whole;
                }
            }
            let seq = self.files(move |_| session.finish()).await?;
            return match readers.done(READER, id, seq).await {
                Err(SessionError::NotFound(_)) => self.drop_files(id).await,
                done => Ok(Some(done?)),
            };
        }
    }

    /// Removes the files of a deleted session.
    async fn drop_files(&self, id: SessionId) -> Result<Option<Seq>, SessionError> {
        self.files(move |files| files.remove(id)).await.map(|()| None)
    }
}

/// Projector at work.
struct Run {
    projector: Arc<Projector>,
    /// Time at which the list of all sessions is written next, if it has to be.
    list_at: Option<Duration>,
    list_took: Duration,
    /// True once files of sessions that another process deleted were removed.
    is_compared: bool,
}

impl Run {
    async fn project(&mut self, host: &dyn Host, id: SessionId) -> Result<(), SessionError> {
        let Control { readers, clock, .. } = self.projector.control.as_ref();
        match self.projector.project_session(host, id, false).await {
            // Nothing more can be read of it.
            Err(error @ SessionError::Corrupted { .. }) => {
                tracing::warn!(session_id = %id, %error, "the files of a session end where its journal can be read");
                readers.rest(READER, id, Seq::MAX)?;
            }
            done => drop(done?),
        }
        self.list_at.get_or_insert(clock.elapsed() + LIST_AFTER.max(self.list_took * LIST_SHARE));
        Ok(())
    }
}

#[async_trait]
impl Consumer for Run {
    const DEBOUNCE: Duration = Duration::ZERO;

    /// Brings the files of every session up to date if there is no list of them.
    async fn begin(&mut self, host: &dyn Host) -> Result<(), SessionError> {
        if !matches!(self.projector.files(Projection::has_list).await, Ok(true)) {
            self.projector.project_all(host, false).await?;
            self.is_compared = true;
        }
        Ok(())
    }

    async fn forget(&mut self, host: &dyn Host, session_id: SessionId) -> Result<(), SessionError> {
        self.project(host, session_id).await
    }

    async fn apply(&mut self, host: &dyn Host, sessions: Vec<SessionId>) -> Result<(), SessionError> {
        let mut failed = None;
        for session_id in sessions {
            if self.projector.control.is_over() {
                break;
            }
            if let Err(error) = self.project(host, session_id).await {
                failed.get_or_insert(error);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes the list of all sessions when it is time, and at the end unless it is long.
    async fn settle(&mut self, host: &dyn Host, moment: Moment) -> Result<Option<Duration>, SessionError> {
        let (projector, clock) = (&self.projector, &self.projector.control.clock);
        let begun = clock.elapsed();
        let is_due = match self.list_at {
            Some(at) if at > begun && moment == Moment::Ending => {
                projector.files(Projection::list_bytes).await.is_ok_and(|bytes| bytes <= LIST_AT_END_BYTES)
            }
            at => at.is_some_and(|at| at <= begun),
        };
        if is_due {
            let is_start = !self.is_compared;
            let orphans = projector.write_list(host, is_start).await?;
            self.list_took = clock.elapsed().saturating_sub(begun);
            (self.list_at, self.is_compared) = (None, true);
            projector.write_whole(host, orphans, is_start).await;
        }
        Ok(self.list_at)
    }

    /// A folder of another store stays so from one process to the next.
    fn is_expected(error: &SessionError) -> bool {
        matches!(error, SessionError::StoreNotWritable { why, .. } if why.starts_with(ANOTHERS))
    }
}
