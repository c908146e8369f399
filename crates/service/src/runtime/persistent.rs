//! Operations on stored sessions, and the settling of a service before the first of them.
//!
//! The journal is the truth: everything here reads it, or appends to it through an actor.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::{StreamExt as _, stream};
use tokio_util::sync::CancellationToken;

use super::{
    indexed::SCANS,
    operations::PAGE_BYTES_MAX,
    sessions::{BODIES_MAX, Sessions},
    tree::Family,
};
use crate::{
    SessionError,
    agent::command::Command,
    follow::{check_end, missing},
    ids::{Seq, SessionId, TurnNumber},
    service::{
        BlobPage, Changed, DeleteSession, ForkSession, HistoryItem, ImportBundle, Imported, Page, Pieces, ReadBlob,
        Retain, Retained, RetentionFailure, SessionState, StoredBlob,
    },
    session::{
        ForkPoint, ForkedHistory, HistoryFold, Session,
        event::{Event, HistorySnapshot, Record},
    },
    store::{ReadLimit, StoreError, UPLOADS_BYTES_MAX, check_uploads, restore::decode},
    upkeep::{bundle::piece, retention::doomed},
    uploads,
};

/// Frames to read at once.
const FRAMES_READ: usize = 256;
/// Open sessions to load at once.
const LOADS: usize = 32;
/// Most frames before a cursor to search for the beginning of its step.
const STEP_FRAMES_MAX: usize = 4096;

impl Sessions {
    /// Settles, once, the sessions that a former process had in memory: ends their open turns and updates their rows.
    /// Also rebuilds a missing index. A start costs what was active, not what is stored.
    pub(super) async fn settle(&self) -> Result<(), SessionError> {
        self.inner.is_ready.get_or_try_init(|| self.settle_once()).await.map(drop)
    }

    async fn settle_once(&self) -> Result<(), SessionError> {
        let engine = self.engine();
        let derived = &engine.derived;
        let unsettled = stream::iter(engine.events.unsettled().await?);
        let left = unsettled.map(async |session_id| (session_id, engine.outline(session_id).await));
        let mut left: Vec<_> = left.buffer_unordered(SCANS).collect().await;
        // The last one to change comes first in lists.
        left.sort_by_key(|(id, found)| (found.as_ref().map(|(session, _)| session.updated_at), *id));
        let (count, mut unread, mut open) = (left.len(), Vec::new(), Vec::new());
        for (session_id, found) in left {
            match self.index_left(found).await {
                Some(SessionState::Idle) => continue,
                Some(_) => {}
                // A session that cannot be read does not keep others waiting.
                None => unread.extend((!matches!(self.index_stored(session_id).await, Ok(true))).then_some(session_id)),
            }
            open.push(session_id);
        }
        // Beside each other: one whose journal is slow to read keeps none of the others waiting.
        let load = async |session_id| (session_id, self.live(session_id).await.map(drop));
        let mut loaded = stream::iter(open).map(load).buffer_unordered(LOADS);
        while let Some((session_id, loaded)) = loaded.next().await {
            match loaded {
                // Its actor settles it, and leaves when nobody needs it.
                Ok(()) => {}
                // It was deleted, and copies of it may remain.
                Err(SessionError::NotFound(_)) => {
                    if let Err(error) = engine.delete(session_id, None).await {
                        tracing::warn!(%session_id, %error, "what is left of a deleted session stays until the next start");
                    }
                }
                // Another node took it over just before.
                Err(SessionError::HeldBy { .. } | SessionError::TakenOver(_)) => {}
                // The next start goes on.
                Err(SessionError::ShuttingDown) => return Err(SessionError::ShuttingDown),
                Err(error) => tracing::error!(%session_id, %error, "could not load the session"),
            }
        }
        let is_any_read = unread.len() < count;
        self.index_again(unread, is_any_read).await?;
        if engine.events.are_marks_lost() {
            // Those of the last deletions too.
            self.drop_stale_rows().await;
        }
        self.complete_index().await?;
        derived.readers.open().await?;
        match derived.index.sessions(None, 1).await {
            Ok(newest) => newest.iter().for_each(|newest| engine.world.ids.follow(newest.session_id)),
            // Without the index only lists fail.
            Err(error) => tracing::warn!(%error, "the newest session is not known; new ids go by the clock"),
        }
        // No await from here on: if the caller gave up at one, each of these would begin twice.
        self.begin_consumers();
        self.compact_on_schedule();
        self.scrub_now_and_then();
        self.work_with_others();
        Ok(())
    }

    pub(super) async fn history_page(
        &self,
        session_id: SessionId,
        (cursor, skips_damage): (Seq, bool),
        limit: usize,
    ) -> Result<Page<HistoryItem>, SessionError> {
        let events = self.engine().events.as_ref();
        let (mut items, mut fold, mut bytes) = (Vec::new(), HistoryFold::default(), 0);
        let mut after = self.step_before(session_id, cursor).await?;
        let mut pruned_to = None;
        loop {
            let limit_read = ReadLimit::frames(FRAMES_READ).skipping_damage(skips_damage);
            let page = match events.read(session_id, after, limit_read).await {
                Ok(page) => {
                    let page = page.ok_or(SessionError::NotFound(session_id))?;
                    check_end(events, session_id, &page).map(|()| page)
                }
                Err(error) => Err(error.into()),
            };
            let page = match page {
                // The next page fails there.
                Err(SessionError::Corrupted { .. }) if !items.is_empty() => {
                    let next_cursor = items.last().map(|last: &HistoryItem| last.seq.to_string());
                    return Ok(Page { items, next_cursor });
                }
                page => page?,
            };
            if page.frames.is_empty() {
                return Ok(Page::whole(items));
            }
            for frame in &page.frames {
                let record = decode(frame)?;
                let left = fold.left_of_step(&record).filter(|left| left.seq > cursor);
                if let Some(next) = add(&mut items, left, limit) {
                    return Ok(Page { items, next_cursor: Some(next) });
                }
                for (from, to, is_lost) in missing((after, frame.seq), &page.lost) {
                    let gone = if is_lost {
                        Some(HistoryItem::damaged(from, to))
                    } else {
                        let pruned_to = match pruned_to {
                            Some(pruned_to) => pruned_to,
                            None => *pruned_to.insert(self.look(session_id).await?.pruned_to),
                        };
                        // After that seq no message was dropped.
                        (from <= pruned_to).then(|| HistoryItem::pruned(from, to))
                    };
                    if let Some(next) = add(&mut items, gone.filter(|gone| gone.seq > cursor), limit) {
                        return Ok(Page { items, next_cursor: Some(next) });
                    }
                }
                after = frame.seq;
                let mut item = fold.push(&record).filter(|item| item.seq > cursor);
                bytes += if frame.seq > cursor { frame.line.len() } else { 0 };
                if let Some(queued) = fold.queued_at() {
                    if let Some(next) = add(&mut items, item, limit) {
                        return Ok(Page { items, next_cursor: Some(next) });
                    }
                    // A prompt that waited is in the record that accepted it.
                    let queued_at = ReadLimit::frames(1).skipping_damage(true);
                    let page = events.read(session_id, queued - 1, queued_at).await?;
                    let waited = page.and_then(|page| page.frames.into_iter().next());
                    let waited = waited.filter(|waited| waited.seq == queued);
                    bytes += waited.as_ref().map_or(0, |waited| waited.line.len());
                    // It may have been dropped since the turn's start was read.
                    let gone = || HistoryItem { seq: frame.seq, ..HistoryItem::pruned(queued, queued) };
                    item = fold.queued_prompt(&decode(waited.as_ref().unwrap_or(frame))?).or_else(|| Some(gone()));
                }
                // An item is no larger than its events; the first one is always included.
                let limit = if bytes > PAGE_BYTES_MAX { items.len().clamp(1, limit) } else { limit };
                if let Some(next) = add(&mut items, item.filter(|item| item.seq > cursor), limit) {
                    return Ok(Page { items, next_cursor: Some(next) });
                }
            }
        }
    }

    /// Finds the seq to read from so that the page after a cursor is whole: results need the answer with their calls.
    async fn step_before(&self, session_id: SessionId, cursor: Seq) -> Result<Seq, SessionError> {
        let mut frames = 1;
        loop {
            let after = cursor.saturating_sub(frames as u64);
            // Damage before the cursor was passed already.
            let limit = ReadLimit::frames(frames).skipping_damage(true);
            let page = self.engine().events.read(session_id, after, limit).await?;
            let page = page.ok_or(SessionError::NotFound(session_id))?;
            for frame in page.frames.iter().filter(|frame| frame.seq <= cursor).rev() {
                let event = decode(frame)?.event;
                if matches!(event, Event::AssistantMessage(_) | Event::TurnStarted(_) | Event::HistoryGiven(_)) {
                    return Ok(frame.seq - 1);
                }
            }
            if after == 0 || frames >= STEP_FRAMES_MAX {
                return Ok(after);
            }
            frames *= 16;
        }
    }

    pub(super) async fn blob_page(&self, request: ReadBlob, limit: usize) -> Result<BlobPage, SessionError> {
        let ReadBlob { session_id, blob, offset, .. } = request;
        self.check_exists(session_id).await?;
        // One more byte shows if there is a next page.
        let bytes = uploads::read(&self.engine().ports, session_id, &blob, offset, limit + 1).await?;
        let piece = &bytes[..bytes.len().min(limit)];
        let next_offset = (bytes.len() > limit).then(|| offset + limit as u64);
        Ok(BlobPage { data: BASE64_STANDARD.encode(piece), next_offset })
    }

    /// Stores a body as an upload. It needs no lease: no event says anything of it.
    pub(super) async fn store_upload(
        &self,
        session_id: SessionId,
        length: Option<u64>,
        body: Pieces,
    ) -> Result<StoredBlob, SessionError> {
        let full = |_| SessionError::Limit { what: "uploads", limit: BODIES_MAX as u64 };
        let _room = self.inner.bodies.try_acquire().map_err(full)?;
        let engine = self.engine();
        if self.look(session_id).await?.summary.archived {
            return Err(SessionError::Archived(session_id));
        }
        engine.held.check_room()?;
        engine.events.room().await?;
        uploads::expire(&engine.ports, session_id).await;
        if let Some(length) = length {
            let others = engine.blobs.uploads(session_id).await?;
            // One of this length may be the same bytes, which take no more room.
            if !others.contains(&length) {
                check_uploads(others.len(), others.iter().sum(), length)?;
            }
        }
        let mut writer = engine.blobs.writer(session_id);
        writer.waits_for_room();
        uploads::write(writer.as_mut(), body, UPLOADS_BYTES_MAX).await?;
        let (blob, bytes) = writer.upload(engine.world.clock.now()).await?;
        if let Err(gone @ SessionError::NotFound(_)) = self.check_exists(session_id).await {
            // It was deleted meanwhile, perhaps before its blobs had this one.
            engine.blobs.forget(session_id).await;
            return Err(gone);
        }
        Ok(StoredBlob { blob, bytes })
    }

    /// Deletes a session, whose actor deletes its sub-agents first.
    pub(super) async fn delete_alone(&self, request: DeleteSession) -> Result<Changed, SessionError> {
        let DeleteSession { session_id, force } = request;
        match self.ask(session_id, |reply| Command::Delete { is_forced: force, reply }).await {
            // A session that can only be read, or has no room to end its turn, can still be deleted.
            Err(error @ (SessionError::Corrupted { .. } | SessionError::FormatNewer(_) | SessionError::StoreFull)) => {
                if self.inner.registry.shared(session_id).is_some() {
                    return Err(error);
                }
                for child in self.below(session_id).await? {
                    self.ask(child.session_id, |reply| Command::Delete { is_forced: true, reply }).await?;
                }
                let events = self.engine().events.as_ref();
                let seq = events.tail(session_id).await?.ok_or(SessionError::NotFound(session_id))?;
                self.engine().delete(session_id, Some(&*self.inner.registry.hub(session_id))).await?;
                Ok(Changed { session_id, seq })
            }
            answer => answer,
        }
    }

    pub(super) async fn fork_session(&self, request: ForkSession) -> Result<Changed, SessionError> {
        let ForkSession { session_id: parent, turn } = request;
        let engine = self.engine();
        let _whole = self.journal(parent).read().await;
        loop {
            // A missing session is reported before a full disk.
            let page = engine.events.read(parent, 0, ReadLimit::frames(1)).await?;
            let version = page.ok_or(SessionError::NotFound(parent))?.version;
            let session = engine.restore(parent).await?.ok_or(SessionError::NotFound(parent))?;
            engine.events.room().await?;
            self.check_whole(&session, turn).await?;
            let at = match session.fork_at(turn)? {
                ForkPoint::After(seq) => seq,
                ForkPoint::EndOf { turn, from } => {
                    let is_whole = session.pruned_to == 0;
                    let missing =
                        if is_whole { SessionError::ItemNotFound("turn") } else { SessionError::HistoryPruned };
                    self.end_of(parent, turn, from).await?.ok_or(missing)?
                }
            };
            if at < session.pruned_to {
                return Err(SessionError::HistoryPruned);
            }
            let now = engine.world.clock.now();
            let first = session.fork_record(at, engine.world.ids.next_session_id(now), now);
            let (session_id, seq) = (first.session_id, first.seq);
            let imported = session.fork_import_record(at, &first);
            let last = imported.as_ref().map_or(seq, |imported| imported.seq);
            let labelled = session.labels_record(at, &session.labels, (session_id, last, now));
            let mut records = vec![first];
            records.extend(imported.into_iter().chain(labelled));
            if session.pruned_to > 0
                && let Some(snapshot) = self.history_at(parent, at).await?
            {
                let event = Event::HistorySnapshot(snapshot);
                let seq = records.last().map_or(seq, |last| last.seq);
                records.push(Record { session_id, seq: seq + 1, turn: None, time: now, event });
            }
            match engine.events.fork_unpruned(parent, version, at, &records).await {
                // Another node has dropped some that its own records do not replace.
                Err(StoreError::Fenced) => continue,
                forked => forked?,
            }
            self.index_made(session_id).await?;
            return Ok(Changed { session_id, seq });
        }
    }

    /// Checks that a session to fork was not read up to damage only, unless the turn is before that.
    async fn check_whole(&self, session: &Session, turn: Option<TurnNumber>) -> Result<(), SessionError> {
        if turn.is_some_and(|turn| turn < session.next_turn) {
            return Ok(());
        }
        let (events, session_id, last_seq) = (&self.engine().events, session.id, session.last_seq);
        match events.read(session_id, last_seq, ReadLimit::frames(1)).await {
            Err(error @ StoreError::Corrupted { .. }) => Err(error.into()),
            // Others may have been appended since, and are not in the fork.
            _ => Ok(()),
        }
    }

    /// Makes the history snapshot for a fork after `at`, which replaces dropped records; `None` if the journal up to
    /// there is enough.
    async fn history_at(&self, session_id: SessionId, at: Seq) -> Result<Option<HistorySnapshot>, SessionError> {
        let (mut fold, mut after) = (ForkedHistory::new(at), 0);
        while let Some(page) = self.engine().events.read(session_id, after, ReadLimit::frames(FRAMES_READ)).await? {
            let Some(last) = page.frames.last() else { break };
            after = last.seq;
            for frame in &page.frames {
                let found = fold.push(&decode(frame)?).map_err(|error| SessionError::Internal(error.to_string()))?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    /// Takes a piece of a bundle, whose upload ends with `cancel`.
    pub(super) async fn import(
        &self,
        request: ImportBundle,
        cancel: Option<CancellationToken>,
    ) -> Result<Imported, SessionError> {
        let imported = piece(self.engine(), &self.inner.uploads, request, cancel).await?;
        for session in &imported.sessions {
            self.index_stored(session.session_id).await?;
        }
        Ok(imported)
    }

    /// Deletes sessions by the policy, each with its sub-agents, or only lists them. Sessions that run by then, or are deleted already, are
    /// skipped.
    pub(super) async fn retain_all(&self, request: Retain) -> Result<Retained, SessionError> {
        let engine = self.engine();
        let options = request.limits(&engine.options.retention);
        let mut sessions = Vec::new();
        if !options.is_off() {
            let mut family = Family::of(self.all_sessions().await?);
            for mut summary in std::mem::take(&mut family.tops) {
                let mut bytes = self.bytes_of(summary.session_id).await;
                for child in family.below(summary.session_id) {
                    bytes += self.bytes_of(child.session_id).await;
                    summary.updated_at = summary.updated_at.max(child.updated_at);
                    if summary.state == SessionState::Idle {
                        summary.state = child.state;
                    }
                }
                sessions.push((summary, bytes));
            }
        }
        let items = doomed(sessions, &options, engine.world.clock.now());
        if request.dry_run {
            return Ok(Retained { items, deleted: 0, failed: Vec::new() });
        }
        let (mut gone, mut failed) = (Vec::new(), Vec::new());
        for item in items {
            let session_id = item.session_id;
            match self.delete_session(DeleteSession { session_id, force: false }).await {
                Ok(_) => gone.push(item),
                Err(SessionError::Busy { .. } | SessionError::ChildWorks { .. } | SessionError::NotFound(_)) => {}
                // One failure does not keep the others, and the deleted ones are reported.
                Err(error) => {
                    tracing::warn!(%session_id, %error, "a session that is too old or too much could not be deleted");
                    failed.push(RetentionFailure {
                        session_id,
                        code: error.code().to_string(),
                        message: error.to_string(),
                    });
                }
            }
        }
        Ok(Retained { deleted: gone.len() as u64, items: gone, failed })
    }

    async fn bytes_of(&self, session_id: SessionId) -> u64 {
        self.engine().events.bytes(session_id).await.unwrap_or_else(|error| {
            tracing::warn!(%session_id, %error, "the size of a session is unknown");
            0
        })
    }

    /// Finds the event after `from` that ended a turn.
    async fn end_of(&self, session_id: SessionId, turn: TurnNumber, from: Seq) -> Result<Option<Seq>, SessionError> {
        let mut after = from;
        while let Some(page) = self.engine().events.read(session_id, after, ReadLimit::frames(FRAMES_READ)).await? {
            for frame in &page.frames {
                if ForkPoint::is_end(turn, &decode(frame)?) {
                    return Ok(Some(frame.seq));
                }
            }
            let Some(last) = page.frames.last() else { break };
            after = last.seq;
        }
        Ok(None)
    }
}

/// Adds an item, if there is one; if the page is full, returns its cursor instead.
fn add(items: &mut Vec<HistoryItem>, item: Option<HistoryItem>, limit: usize) -> Option<String> {
    let item = item?;
    if items.len() == limit {
        return items.last().map(|last| last.seq.to_string());
    }
    items.push(item);
    None
}
