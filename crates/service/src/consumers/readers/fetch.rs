//! Pages of records after a reader's checkpoints, over all sessions, none of which keeps the others waiting.
//!
//! Nothing here moves a checkpoint: records come again until they are acknowledged.

use std::time::Duration;

use super::{Readers, feed::Due};
use crate::{
    ErrorCode, SessionError,
    ids::{Seq, SessionId},
    service::{ReaderRecord, RecordPage},
    store::{Frame, ReadLimit, StoreError},
};

/// Most bytes of records in one page, unless a single record is longer.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Sessions to look at together.
const SESSIONS_READ: usize = 1000;

impl Readers {
    /// Reads at most `limit` records that a reader is not done with; if there are none, waits for one.
    pub(crate) async fn fetch(&self, reader: &str, limit: usize, wait_ms: u64) -> Result<RecordPage, SessionError> {
        self.refresh().await?;
        let mut touched = self.touched.subscribe();
        let mut deadline = self.clock.sleep(Duration::from_millis(wait_ms));
        loop {
            touched.borrow_and_update();
            let page = self.page(reader, limit).await?;
            if !page.items.is_empty() || wait_ms == 0 {
                return Ok(page);
            }
            tokio::select! {
                biased;
                changed = touched.changed() => drop(changed),
                () = &mut deadline => return Ok(page),
            }
        }
    }

    /// Lists at most `limit` sessions with records that a built-in reader is not done with; then others are next. One
    /// that cannot be read keeps no other waiting: its turn comes again.
    pub(crate) async fn due_sessions(&self, reader: &str, limit: usize) -> Result<Vec<SessionId>, SessionError> {
        loop {
            let (due, mut sessions, mut failed) = (self.due(reader, limit).await?, Vec::new(), None);
            for due in &due {
                match self.read(reader, due, due.checkpoint, 1).await {
                    Ok(frames) if frames.is_empty() => {}
                    Ok(_) => {
                        self.requeue(reader, due.session_id)?;
                        sessions.push(due.session_id);
                    }
                    // It stays damaged until it is repaired, and other sessions do not wait for that.
                    Err(error) if error.code() == ErrorCode::SessionCorrupted => {
                        self.rest(reader, due.session_id, due.last_seq)?;
                    }
                    Err(error) => {
                        self.requeue(reader, due.session_id)?;
                        failed = Some(error);
                    }
                }
            }
            match failed {
                Some(error) if sessions.is_empty() => return Err(error),
                // All of them turned out to have nothing, and have left the queue.
                None if sessions.is_empty() && !due.is_empty() => {}
                _ => return Ok(sessions),
            }
        }
    }

    async fn page(&self, reader: &str, limit: usize) -> Result<RecordPage, SessionError> {
        loop {
            let due = self.due(reader, limit).await?;
            if due.is_empty() {
                return Ok(RecordPage::default());
            }
            let (mut page, mut bytes, mut failure) = (RecordPage::default(), 0, None);
            let mut after: Vec<Seq> = due.iter().map(|due| due.checkpoint).collect();
            // Each session gets its share first; the rest goes to those that have more.
            for share in [(limit / due.len()).max(1), limit] {
                for (due, after) in due.iter().zip(&mut after) {
                    let wanted = share.min(limit - page.items.len());
                    if wanted == 0 || bytes >= PAGE_BYTES_MAX || *after >= due.last_seq {
                        continue;
                    }
                    let frames = match self.read(reader, due, *after, wanted).await {
                        Ok(frames) => frames,
                        Err(error) => {
                            failure = Some(error);
                            continue;
                        }
                    };
                    for frame in frames {
                        bytes += frame.line.len();
                        if bytes > PAGE_BYTES_MAX && !page.items.is_empty() {
                            break;
                        }
                        *after = frame.seq;
                        let (session_id, seq) = (due.session_id, frame.seq);
                        page.items.push(ReaderRecord { session_id, seq, line: frame.line });
                    }
                }
            }
            match failure {
                Some(error) if page.items.is_empty() => return Err(error),
                // All of them turned out to have nothing, and have left the queue.
                None if page.items.is_empty() => {}
                _ => return Ok(page),
            }
        }
    }

    /// Makes others next.
    fn requeue(&self, reader: &str, session_id: SessionId) -> Result<(), SessionError> {
        self.with(reader, |known| known.feed.requeue(session_id))
    }

    /// Reads records of a session. One that has none, or was deleted, is not looked at again until it changes.
    async fn read(&self, reader: &str, due: &Due, after: Seq, limit: usize) -> Result<Vec<Frame>, SessionError> {
        let session_id = due.session_id;
        match self.events.read(session_id, after, ReadLimit::frames(limit)).await {
            Ok(Some(page)) => {
                if page.frames.is_empty() {
                    self.rest(reader, session_id, due.last_seq)?;
                }
                Ok(page.frames)
            }
            Ok(None) => {
                self.delete_session(session_id);
                Ok(Vec::new())
            }
            Err(error) => {
                tracing::warn!(reader, %session_id, %error, "a reader cannot be given a session's records");
                if let StoreError::Corrupted { .. } = error {
                    // It stays damaged until it is repaired, and other sessions do not wait for that.
                    self.rest(reader, session_id, due.last_seq)?;
                    return Ok(Vec::new());
                }
                self.requeue(reader, session_id)?;
                Err(error.into())
            }
        }
    }

    /// Lists the sessions whose turn it is, with their checkpoints.
    async fn due(&self, reader: &str, limit: usize) -> Result<Vec<Due>, SessionError> {
        self.scan(reader).await?;
        self.look_at(reader, limit).await?;
        self.with(reader, |known| known.feed.due(limit))
    }

    /// Looks up the checkpoints of the first sessions that a reader may be behind in.
    pub(super) async fn look_at(&self, reader: &str, among: usize) -> Result<(), SessionError> {
        loop {
            let unknown = self.with(reader, |known| known.feed.unknown(among, SESSIONS_READ))?;
            if unknown.is_empty() {
                return Ok(());
            }
            let checkpoints = self.checkpoints(reader, &unknown).await?;
            self.with(reader, |known| {
                unknown.iter().zip(checkpoints).for_each(|(id, checkpoint)| known.feed.set_checkpoint(*id, checkpoint));
            })?;
            // Callers need not wait for a session in which the reader turns out not to be behind.
            super::notify(&self.moved);
        }
    }

    /// Finds, once per process and again for a feed that was too small, the sessions that a reader is behind in. It looks
    /// at rows and never at journals.
    pub(super) async fn scan(&self, reader: &str) -> Result<(), SessionError> {
        let is_scanned = || self.with(reader, |known| known.is_scanned && !known.feed.has_room_again());
        if is_scanned()? {
            return Ok(());
        }
        let _scanning = self.scanning.lock().await;
        if is_scanned()? {
            return Ok(());
        }
        let mut before = self.with(reader, |known| {
            known.feed.is_cut &= known.feed.scanned_to.is_some();
            known.feed.scanned_to
        })?;
        loop {
            let rows = self.rows(reader, before).await?;
            let is_over = self.with(reader, |known| {
                for (session_id, last_seq, checkpoint) in &rows {
                    if checkpoint < last_seq {
                        if !known.feed.touched(*session_id, *last_seq) {
                            known.is_scanned = true;
                            return true;
                        }
                        known.feed.set_checkpoint(*session_id, *checkpoint);
                    }
                    known.feed.scanned_to = Some(*session_id);
                }
                if rows.is_empty() {
                    (known.feed.scanned_to, known.is_scanned) = (None, true);
                }
                rows.is_empty()
            })?;
            if is_over {
                return Ok(());
            }
            before = rows.last().map(|(session_id, ..)| *session_id);
        }
    }

    /// Counts the sessions and records that a reader is not done with, by the rows of all sessions.
    pub(super) async fn count_behind(&self, reader: &str) -> Result<(u64, u64), SessionError> {
        let (mut counts, mut before) = ((0, 0), None);
        loop {
            let rows = self.rows(reader, before).await?;
            let Some((last, ..)) = rows.last() else { return Ok(counts) };
            before = Some(*last);
            for (_, last_seq, checkpoint) in rows {
                counts.0 += u64::from(checkpoint < last_seq);
                counts.1 += last_seq.saturating_sub(checkpoint);
            }
        }
    }

    /// Reads some rows of sessions before `before`, each with its last record and the reader's checkpoint.
    async fn rows(&self, reader: &str, before: Option<SessionId>) -> Result<Vec<(SessionId, Seq, Seq)>, SessionError> {
        let rows = self.index.sessions(before, SESSIONS_READ).await?;
        let ids: Vec<SessionId> = rows.iter().map(|row| row.session_id).collect();
        let checkpoints = self.checkpoints(reader, &ids).await?;
        Ok(rows.iter().zip(checkpoints).map(|(row, checkpoint)| (row.session_id, row.last_seq, checkpoint)).collect())
    }
}
