//! [`Follower`]: replays a session's events from a cursor and then follows, without a gap or a duplicate.
//!
//! It is a cursor into the journal and never a queue: a slow one costs a bounded number of bytes, and loses only
//! deltas.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, stream::BoxStream};
use tokio::sync::watch;

use meerkat_words::requests::ReadEvents;

use super::live::{FollowedLine, LiveCursor, LiveHub, READ_AHEAD_BYTES, Room};
use crate::{
    SessionError,
    clock::Clock,
    ids::{Seq, SessionId},
    session::event::{LiveEvent, Pruned, PrunedReason, SessionDeleted},
    store::{EventStore, Frame, FramePage, ReadLimit, StoreError},
    wire::encode_live,
};

/// Frames that are read at a time.
const READ_AHEAD: usize = 64;
/// A follower that is at most so far behind takes single frames from the store's memory: as many as a turn writes at
/// once.
const NEAR: u64 = 8;
/// Lines for which a waiting follower keeps room, so that the next ones need no allocation.
const ROOM_KEPT: usize = 4;

/// Lines that come from elsewhere, such as the process that owns the data directory.
pub type Lines = BoxStream<'static, Result<FollowedLine, SessionError>>;

/// Follows the events of one session.
pub struct Follower(Source);

enum Source {
    Store(Box<StoreFollower>),
    Lines(Seq, Lines),
}

/// A cursor into a store of this process.
struct StoreFollower {
    session_id: SessionId,
    store: Arc<dyn EventStore>,
    clock: Arc<dyn Clock>,
    cursor: Seq,
    /// True to go on behind damage.
    skips_damage: bool,
    tail: watch::Receiver<Seq>,
    hub: Arc<LiveHub>,
    live: LiveCursor,
    live_changed: watch::Receiver<u64>,
    ready: VecDeque<FollowedLine>,
    /// The losses of the session's actor that it knows of.
    losses: u64,
    /// True if the caller waits for a turn and gets the next loss as an error.
    is_waiting: bool,
    /// All that there will ever be is ready.
    is_ended: bool,
}

impl Follower {
    /// Wraps lines from elsewhere, which follow `cursor`. The stream may be polled, left and polled again.
    #[must_use]
    pub fn of_lines(cursor: Seq, lines: Lines) -> Self {
        Self(Source::Lines(cursor, lines))
    }

    /// Follows a session from after the request's cursor.
    pub(crate) async fn new(
        request: &ReadEvents,
        store: Arc<dyn EventStore>,
        clock: Arc<dyn Clock>,
        hub: Arc<LiveHub>,
    ) -> Result<Self, SessionError> {
        let ReadEvents { session_id, since_seq: cursor, skip_damage: skips_damage, .. } = *request;
        // First of all, so that a deletion counts this follower and keeps the last events for it.
        let (live_changed, losses, live) = (hub.watch(), hub.losses(), hub.cursor());
        let tail = store.watch(session_id).await.map_err(failure)?;
        let tail = tail.ok_or(SessionError::NotFound(session_id))?;
        let last_seq = *tail.borrow();
        check_cursor(store.as_ref(), session_id, cursor, last_seq).await?;
        Ok(Self(Source::Store(Box::new(StoreFollower {
            session_id,
            store,
            clock,
            cursor,
            skips_damage,
            tail,
            hub,
            live,
            live_changed,
            ready: VecDeque::new(),
            losses,
            is_waiting: false,
            is_ended: false,
        }))))
    }

    /// Like `new`, but fails with `STORE_FAILED` if the store fails during the turn.
    pub(crate) fn waiting(mut self) -> Self {
        if let Source::Store(follower) = &mut self.0 {
            follower.is_waiting = true;
        }
        self
    }

    /// The cursor after the last line that was handed out.
    #[must_use]
    pub const fn cursor(&self) -> Seq {
        match &self.0 {
            Source::Store(follower) => follower.cursor,
            Source::Lines(cursor, _) => *cursor,
        }
    }

    /// Bytes of the lines that wait to be handed out.
    #[cfg(test)]
    pub(crate) fn held_bytes(&self) -> usize {
        match &self.0 {
            Source::Store(follower) => follower.ready.iter().map(|followed| followed.line.len()).sum(),
            Source::Lines(..) => 0,
        }
    }

    /// Returns the next line; `None` if the session is deleted.
    ///
    /// # Errors
    /// `SESSION_CORRUPTED` where the journal is damaged; `STORE_FAILED` if the store cannot be read, or if the caller waits for a turn during which the store failed.
    pub async fn next(&mut self) -> Result<Option<FollowedLine>, SessionError> {
        match &mut self.0 {
            Source::Store(follower) => match follower.next().await? {
                Some(line) => Ok(Some(line)),
                None => {
                    // The store drops a session before the deletion is durable; it is shown only then.
                    while follower.hub.is_deleting() && follower.live_changed.changed().await.is_ok() {}
                    if !follower.hub.is_deleted() && follower.goes_on().await? {
                        return follower.next().await;
                    }
                    follower.end()
                }
            },
            Source::Lines(cursor, lines) => {
                let line = lines.next().await.transpose()?;
                *cursor = line.as_ref().and_then(|line| line.seq).unwrap_or(*cursor);
                Ok(line)
            }
        }
    }
}

impl StoreFollower {
    /// Watches the session again; returns true if it is there although its deletion began, which then failed.
    async fn goes_on(&mut self) -> Result<bool, SessionError> {
        let Some(tail) = self.store.watch(self.session_id).await.map_err(failure)? else { return Ok(false) };
        self.tail = tail;
        Ok(self.tail.has_changed().is_ok())
    }

    async fn next(&mut self) -> Result<Option<FollowedLine>, SessionError> {
        loop {
            if self.is_waiting
                && let Some(error) = self.hub.lost(&mut self.losses, self.cursor)
            {
                return Err(error);
            }
            if let Some(line) = self.take_ready() {
                return Ok(Some(line));
            }
            let behind = self.tail.borrow_and_update().saturating_sub(self.cursor);
            self.live_changed.borrow_and_update();
            if (1..=NEAR).contains(&behind)
                && let Some(Frame { seq, line }) = self.store.at_hand(self.session_id, self.cursor + 1)
            {
                self.cursor = seq;
                return Ok(Some(FollowedLine { seq: Some(seq), line }));
            }
            if behind > 0 && !self.read_ahead().await? {
                return self.end();
            }
            // Behind a damaged end there is nothing to wait for.
            if behind == 0
                && let Some(lost) = self.store.lost_end(self.session_id)
            {
                return Err(lost.into());
            }
            if self.ready.is_empty() {
                self.hub.poll(&mut self.live, self.cursor, &mut self.ready);
            }
            if !self.ready.is_empty() {
                continue;
            }
            // There may be many waiting followers: room for a long page is given back.
            self.ready.shrink_to(ROOM_KEPT);
            tokio::select! {
                changed = self.tail.changed() => if changed.is_err() { return self.end() },
                changed = self.live_changed.changed() => if changed.is_err() { return self.end() },
            }
        }
    }

    /// Reads the next durable lines; `false` if there is no such session.
    async fn read_ahead(&mut self) -> Result<bool, SessionError> {
        let limit = ReadLimit { frames: READ_AHEAD, bytes: READ_AHEAD_BYTES, skips_damage: self.skips_damage };
        let page = self.store.read(self.session_id, self.cursor, limit).await;
        let Some(page) = page.map_err(failure)? else { return Ok(false) };
        check_end(self.store.as_ref(), self.session_id, &page)?;
        let mut room = Room::default();
        self.make_ready(page.frames, &page.lost, |line| room.takes(line))?;
        Ok(true)
    }

    /// Appends frames that follow the cursor to the ready lines, as many as are taken, with lines for each gap;
    /// returns the last seq.
    fn make_ready(
        &mut self,
        frames: Vec<Frame>,
        lost: &[(Seq, Seq)],
        mut is_taken: impl FnMut(&Bytes) -> bool,
    ) -> Result<Seq, SessionError> {
        let mut last = self.cursor;
        for Frame { seq, line } in frames {
            if !is_taken(&line) {
                break;
            }
            for line in gone_lines(self.session_id, self.clock.as_ref(), (last, seq), lost)? {
                // The gap's line goes with the event behind it; otherwise the next read would announce it again.
                is_taken(&line);
                self.ready.push_back(FollowedLine { seq: None, line });
            }
            self.ready.push_back(FollowedLine { seq: Some(seq), line });
            last = seq;
        }
        Ok(last)
    }

    fn take_ready(&mut self) -> Option<FollowedLine> {
        let line = self.ready.pop_front()?;
        self.cursor = line.seq.unwrap_or(self.cursor);
        Some(line)
    }

    /// Ends the lines. For a deleted session, the last line announces that, behind the remaining events.
    fn end(&mut self) -> Result<Option<FollowedLine>, SessionError> {
        if !self.is_ended && self.hub.is_deleted() {
            self.is_ended = true;
            let last = self.make_ready(self.hub.last_frames(self.cursor), &[], |_| true)?;
            let event = LiveEvent::SessionDeleted(SessionDeleted {});
            let line = encode_live(self.session_id, last, None, self.clock.now(), &event);
            let line = line.map_err(|error| SessionError::Internal(error.to_string()))?;
            self.ready.push_back(FollowedLine { seq: None, line });
        }
        Ok(self.take_ready())
    }
}

/// Converts a failure of the store: a damaged session is not the store's failure.
fn failure(error: StoreError) -> SessionError {
    match error {
        StoreError::Corrupted { .. } => error.into(),
        _ => SessionError::StoreFailed,
    }
}

/// A cursor may lie anywhere up to the last event.
pub(crate) async fn check_cursor(
    store: &dyn EventStore,
    session_id: SessionId,
    cursor: Seq,
    last_seq: Seq,
) -> Result<(), SessionError> {
    if cursor <= last_seq {
        return Ok(());
    }
    let first = ReadLimit::frames(1).skipping_damage(true);
    let oldest = store.read(session_id, 0, first).await.map_err(failure)?;
    let oldest_seq = oldest.and_then(|page| page.frames.first().map(|frame| frame.seq)).unwrap_or(last_seq);
    Err(SessionError::CursorOutOfRange { oldest_seq, last_seq })
}

/// Fails if nothing good follows damage, not even for a caller that passes over it.
pub(crate) fn check_end(store: &dyn EventStore, session_id: SessionId, page: &FramePage) -> Result<(), SessionError> {
    if page.frames.is_empty() {
        if let Some(lost) = store.lost_end(session_id) {
            return Err(lost.into());
        }
        if let Some((from, _)) = page.lost.first() {
            return Err(SessionError::Corrupted { session_id, last_good_seq: Some(from - 1) });
        }
    }
    Ok(())
}

/// Returns the events that are missing between two others, in ranges: true for those that are `lost`, false for those
/// that were dropped.
pub(crate) fn missing((after, next): (Seq, Seq), lost: &[(Seq, Seq)]) -> Vec<(Seq, Seq, bool)> {
    let (mut ranges, mut from) = (Vec::new(), after + 1);
    for (first, last) in lost {
        let (first, last) = (from.max(*first), (next - 1).min(*last));
        if first <= last {
            ranges.extend((from < first).then(|| (from, first - 1, false)));
            ranges.push((first, last, true));
            from = last + 1;
        }
    }
    ranges.extend((from < next).then(|| (from, next - 1, false)));
    ranges
}

/// Announces the events that are missing between two others, if any; the lines follow the first one.
pub(crate) fn gone_lines(
    session_id: SessionId,
    clock: &dyn Clock,
    (after, next): (Seq, Seq),
    lost: &[(Seq, Seq)],
) -> Result<Vec<Bytes>, SessionError> {
    let line = |(from, to, is_lost): (Seq, Seq, bool)| {
        let event = LiveEvent::Pruned(Pruned { from, to, reason: is_lost.then_some(PrunedReason::Damage) });
        encode_live(session_id, from - 1, None, clock.now(), &event)
    };
    let lines: Result<_, _> = missing((after, next), lost).into_iter().map(line).collect();
    lines.map_err(|error| SessionError::Internal(error.to_string()))
}
