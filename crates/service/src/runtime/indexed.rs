//! Lists and keys from the index, and how the index is kept complete. No answer comes from an index that lacks
//! sessions: if it was lost or damaged, it is rebuilt from the journals first, and only those who need it wait for
//! that.

use std::sync::{Arc, atomic::Ordering};

use futures::{StreamExt as _, future, stream};

use super::sessions::Sessions;
use crate::{
    Session, SessionError,
    agent::record::SNAPSHOT_EVENTS_MIN,
    ids::SessionId,
    service::{Page, SessionQuery, SessionState, SessionSummary},
    store::{IndexedKey, SessionIndex, StoreError},
};

/// Journals to pass through at once, each on a thread of the store.
pub(super) const SCANS: usize = 4;
/// Ids to read at once.
const IDS_READ: usize = 1000;

impl Sessions {
    pub(super) async fn list_page(&self, query: SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
        self.publish_all().await?;
        self.ask_index(|index| {
            let query = query.clone();
            async move { index.page(query).await }
        })
        .await
    }

    /// Updates lists and readers with records that became durable without an answer, such as a step of a turn.
    pub(super) async fn publish_all(&self) -> Result<(), SessionError> {
        let engine = self.engine();
        for shared in self.inner.registry.unlisted() {
            let durable = async {
                let tail = engine.events.tail(shared.session_id).await?;
                let Some(durable) = tail else { return Ok(None) };
                Ok(self.is_own(&shared, durable).await?.then_some(durable))
            };
            match durable.await {
                Ok(Some(durable)) => engine.derived.list(&shared, durable).await?,
                Ok(None) => {}
                Err(error) => {
                    let error: StoreError = error;
                    tracing::warn!(session_id = %shared.session_id, %error, "a list may show a session as it was");
                }
            }
        }
        Ok(())
    }

    /// Lists stored sessions before one by id, newest first.
    pub(super) async fn stored_before(
        &self,
        before: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, SessionError> {
        self.ask_index(|index| async move { index.sessions(before, limit).await }).await
    }

    /// Lists stored sessions that are not idle, before one by id, newest first.
    pub(super) async fn busy_before(
        &self,
        before: Option<SessionId>,
        limit: usize,
    ) -> Result<Vec<SessionSummary>, SessionError> {
        self.ask_index(|index| async move { index.busy(before, limit).await }).await
    }

    /// Lists every stored session, oldest first.
    pub(super) async fn all_sessions(&self) -> Result<Vec<SessionSummary>, SessionError> {
        let mut sessions: Vec<SessionSummary> = Vec::new();
        self.publish_all().await?;
        loop {
            let before = sessions.last().map(|session| session.session_id);
            let found = self.stored_before(before, IDS_READ).await?;
            if found.is_empty() {
                sessions.reverse();
                return Ok(sessions);
            }
            sessions.extend(found);
        }
    }

    /// Finds a key of the store.
    pub(super) async fn store_key(&self, key: &str) -> Result<Option<IndexedKey>, SessionError> {
        self.ask_index(|index| {
            let key = key.to_owned();
            async move { index.key(None, &key).await }
        })
        .await
    }

    async fn ask_index<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        ask: impl Fn(Arc<dyn SessionIndex>) -> F,
    ) -> Result<T, SessionError> {
        let index = &self.engine().derived.index;
        loop {
            let mut answer = ask(index.clone()).await;
            if let Err(error) = &answer {
                // A damaged index is set aside by now, and there is another one.
                tracing::warn!(%error, "the index is asked once more");
                answer = ask(index.clone()).await;
            }
            if answer.is_err() || self.index_lost().await.is_none() {
                return Ok(answer?);
            }
            self.complete_index().await?;
        }
    }

    /// Returns the loss of the index since which not every session was put into it.
    async fn index_lost(&self) -> Option<u64> {
        let loss = self.engine().derived.index.needs_rebuild().await?;
        (loss != self.inner.index_filled_at.load(Ordering::Acquire)).then_some(loss)
    }

    /// Rebuilds the index from the journals if sessions may be missing in it.
    pub(super) async fn complete_index(&self) -> Result<(), SessionError> {
        let engine = self.engine();
        let derived = &engine.derived;
        let _alone = self.inner.completing.lock().await;
        let Some(loss) = self.index_lost().await else { return Ok(()) };
        let (mut after, mut count, mut unread) = (None, 0, Vec::new());
        loop {
            let ids = engine.events.sessions(after, IDS_READ).await?;
            let Some(&last) = ids.last() else { break };
            if after.is_none() {
                tracing::warn!("the index is rebuilt from the journals");
            }
            count += ids.len();
            let index =
                async |session_id| (!matches!(self.index_stored(session_id).await, Ok(true))).then_some(session_id);
            let failed = stream::iter(ids).map(index).buffer_unordered(SCANS).filter_map(future::ready);
            unread.extend(failed.collect::<Vec<_>>().await);
            after = Some(last);
        }
        let is_any_read = unread.len() < count;
        let is_whole = self.index_again(unread, is_any_read).await?;
        self.inner.index_filled_at.store(loss, Ordering::Release);
        if !is_whole {
            tracing::warn!("the index lacks sessions that cannot be read; the next start rebuilds it once more");
            return Ok(());
        }
        // No caller waits for the disk here.
        let index = derived.index.clone();
        derived.settling.spawn(async move {
            if let Err(error) = index.rebuilt(loss).await {
                tracing::warn!(%error, "the index could not be written; the next start rebuilds it once more");
            }
        });
        Ok(())
    }

    /// Puts the rows of sessions into the index that could not be read at first: the failure may have passed. Returns
    /// true if all of them are in it. Fails only if no journal at all can be read, because then no key would be known.
    pub(super) async fn index_again(
        &self,
        unread: Vec<SessionId>,
        mut is_any_read: bool,
    ) -> Result<bool, SessionError> {
        let (mut is_whole, mut failed) = (true, None);
        for session_id in unread {
            match self.index_stored(session_id).await {
                Ok(is_in) => {
                    is_any_read = true;
                    is_whole &= is_in;
                }
                Err(error) => {
                    tracing::error!(%session_id, %error, "a session is not in the index: it cannot be read");
                    is_whole = false;
                    failed = Some(error);
                }
            }
        }
        failed.filter(|_| !is_any_read).map_or(Ok(is_whole), Err)
    }

    /// Drops the copies of sessions that are no longer stored, without the marks that name them.
    pub(super) async fn drop_stale_rows(&self) {
        let engine = self.engine();
        let mut before = None;
        loop {
            let sessions = match engine.derived.index.sessions(before, IDS_READ).await {
                Ok(sessions) => sessions,
                Err(error) => {
                    tracing::warn!(%error, "deleted sessions may be in lists until the next start");
                    return;
                }
            };
            let Some(last) = sessions.last() else { return };
            before = Some(last.session_id);
            for SessionSummary { session_id, .. } in sessions {
                if let Ok(0) = engine.events.journal_bytes(session_id).await
                    && let Err(error) = engine.delete(session_id, None).await
                {
                    tracing::warn!(%session_id, %error, "what is left of a deleted session stays until the next start");
                }
            }
        }
    }

    /// Drops the row of a deleted session that memory has forgotten.
    pub(super) async fn drop_row_of_deleted(&self, session_id: SessionId) -> Result<(), SessionError> {
        let engine = self.engine();
        if engine.events.journal_bytes(session_id).await? == 0 {
            engine.derived.unlist(session_id).await?;
            // A new session may have this id meanwhile.
            self.index_stored(session_id).await?;
        }
        Ok(())
    }

    /// Puts the row of a session into the index that a former process had in memory. Returns its state if that is
    /// known; an idle one rests once its row is durable.
    pub(super) async fn index_left(&self, found: Option<(Session, bool)>) -> Option<SessionState> {
        let engine = self.inner.engine.clone();
        let session = self.index_outline(found).await?;
        let session_id = session.id;
        let (state, last_seq) = (session.state(), session.last_seq);
        if state == SessionState::Idle {
            engine.derived.settling.clone().spawn(async move {
                if engine.derived.index.committed().await.is_ok() {
                    engine.events.rests(session_id, last_seq).await;
                }
            });
        }
        Some(state)
    }

    /// Puts the row of a session without its messages into the index, if there is one.
    async fn index_outline(&self, found: Option<(Session, bool)>) -> Option<Session> {
        let (session, is_whole) = found?;
        let session_id = session.id;
        self.index(&session, false).await;
        if is_whole && session.last_seq >= SNAPSHOT_EVENTS_MIN {
            // The next caller need not pass through the whole journal again.
            if let Err(error) = self.engine().snapshots.save(&session).await {
                tracing::debug!(%session_id, %error, "a snapshot could not be saved");
            }
        }
        Some(session)
    }

    /// Puts the row of a new session into the index. Its journal is opened, because it will be used.
    pub(super) async fn index_made(&self, session_id: SessionId) -> Result<(), SessionError> {
        self.index_as_it_is(session_id, true).await.map(drop)
    }

    /// Puts a stored session's row into the index, as far as its journal can be read. Returns false if that failed and
    /// may succeed later.
    pub(super) async fn index_stored(&self, session_id: SessionId) -> Result<bool, SessionError> {
        self.index_as_it_is(session_id, false).await
    }

    async fn index_as_it_is(&self, session_id: SessionId, opens: bool) -> Result<bool, SessionError> {
        let engine = self.engine();
        let derived = &engine.derived;
        loop {
            let before = match engine.events.journal_bytes(session_id).await {
                Err(error @ StoreError::Corrupted { .. }) => {
                    tracing::error!(%session_id, %error, "a session is not in the index: it cannot be read");
                    return Ok(true);
                }
                before => before?,
            };
            if opens || self.index_outline(engine.outline(session_id).await).await.is_none() {
                match engine.restore(session_id).await {
                    Ok(Some(session)) => self.index(&session, opens).await,
                    Ok(None) => return Ok(true),
                    Err(error) => {
                        tracing::error!(%session_id, %error, "a session is not in the index: it cannot be read");
                        return Ok(!matches!(error, StoreError::Failed(_)));
                    }
                }
            }
            // The session may have been deleted or changed since it was read. This check opens nothing.
            let after = engine.events.journal_bytes(session_id).await?;
            let put = if after == 0 {
                derived.unlist(session_id).await
            } else if let Some(shared) = self.inner.registry.shared(session_id)
                && let Some(durable) = engine.events.tail(session_id).await?
            {
                derived.list_again(&shared, durable).await
            } else if after != before {
                // Its actor has left meanwhile, and its row was newer.
                continue;
            } else {
                Ok(())
            };
            return Ok(put
                .inspect_err(|error| tracing::error!(%session_id, %error, "could not update the session index"))
                .is_ok());
        }
    }
}
