//! The newest changes of the list of sessions, in the order in which they happened here.
//!
//! This is memory of one process: a cursor of another one, or of a change that is no longer kept, begins again with the
//! whole list.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

use crate::{
    SessionError,
    ids::{Seq, SessionId},
    service::{SessionChange, SessionSummary},
    store::list::Size,
};

/// Most changes to keep.
const KEPT: usize = 4096;
/// Most bytes of a cursor.
const CURSOR_BYTES: usize = 128;

/// A follower's place in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The last change that it has, or had when it began with the whole list.
    pub(crate) change: u64,
    /// The last session that it has of the whole list; `None` once it has all of them.
    pub(crate) listed: Option<SessionId>,
}

/// The log of changes.
pub(crate) struct Changes {
    /// Name of the process in cursors.
    process: String,
    state: Mutex<State>,
    last: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The newest changes, the oldest first. Those of a session before its last one count no more.
    order: VecDeque<(u64, SessionId)>,
    /// Each session's last change; `None` is a deletion.
    last: HashMap<SessionId, (u64, Option<Arc<SessionSummary>>)>,
    /// The last change that is no longer kept.
    dropped: u64,
}

impl Changes {
    /// Makes an empty log; `process` is different in each process.
    pub(crate) fn new(process: String) -> Self {
        Self { process, state: Mutex::default(), last: watch::channel(0).0 }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a session as lists show it from now on.
    pub(crate) fn listed(&self, session: Arc<SessionSummary>) {
        self.note(session.session_id, Some(session));
    }

    /// Notes a deletion.
    pub(crate) fn deleted(&self, session_id: SessionId) {
        self.note(session_id, None);
    }

    /// Returns true if this is later than the last change of a session here: its row with this last seq, or its deletion.
    pub(crate) fn lacks(&self, session_id: SessionId, last_seq: Option<Seq>) -> bool {
        match (self.state().last.get(&session_id), last_seq) {
            (Some((_, Some(known))), Some(last_seq)) => known.last_seq < last_seq,
            (Some((_, None)), None) => false,
            _ => true,
        }
    }

    /// A turn pays for this: nothing is copied, and in the long run nothing allocated.
    fn note(&self, session_id: SessionId, session: Option<Arc<SessionSummary>>) {
        let mut state = self.state();
        let number = *self.last.borrow() + 1;
        state.last.insert(session_id, (number, session));
        state.order.push_back((number, session_id));
        if state.order.len() > KEPT
            && let Some((dropped, session_id)) = state.order.pop_front()
        {
            state.dropped = dropped;
            if state.last.get(&session_id).is_some_and(|(last, _)| *last == dropped) {
                state.last.remove(&session_id);
            }
        }
        self.last.send_replace(number);
    }

    /// Returns the number of the last change, to wait for a later one.
    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.last.subscribe()
    }

    /// Returns the changes after one, at most `limit` and as many bytes as a page has, with the number of the last of
    /// them, and true if there are more.
    pub(crate) fn after(&self, change: u64, limit: usize) -> (Vec<SessionChange>, u64, bool) {
        let state = self.state();
        let from = state.order.partition_point(|(number, _)| *number <= change);
        let later = state.order.range(from..).filter_map(|(number, session_id)| {
            let (last, session) = state.last.get(session_id)?;
            (last == number).then_some((*number, *session_id, session))
        });
        let (mut items, mut last, mut size) = (Vec::new(), change, Size::default());
        for (number, session_id, session) in later {
            if items.len() == limit || !size.takes(&session.as_deref()) {
                return (items, last, true);
            }
            items.push(SessionChange { session_id, session: session.as_deref().cloned() });
            last = number;
        }
        (items, last, false)
    }

    /// Writes a cursor.
    pub(crate) fn cursor(&self, Place { change, listed }: &Place) -> String {
        let listed = listed.map(|session_id| format!(".{session_id}")).unwrap_or_default();
        format!("{}.{change}{listed}", self.process)
    }

    /// Reads a cursor; `None` if the whole list must be read, because it is of another process or too old.
    ///
    /// # Errors
    /// If it is no cursor at all.
    pub(crate) fn place(&self, cursor: &str) -> Result<Option<Place>, SessionError> {
        let refusal = || SessionError::invalid("cursor", "use the next_cursor of the page before, or none");
        let mut parts = cursor.split('.');
        let (Some(process), Some(change)) = (parts.next(), parts.next()) else { return Err(refusal()) };
        let is_digits = !change.is_empty() && change.bytes().all(|byte| byte.is_ascii_digit());
        let is_name = !process.is_empty() && process.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_digits || !is_name || cursor.len() > CURSOR_BYTES {
            return Err(refusal());
        }
        let change = change.parse().map_err(|_| refusal())?;
        let listed = parts.next().map(str::parse).transpose().map_err(|_| refusal())?;
        if parts.next().is_some() {
            return Err(refusal());
        }
        let is_known = process == self.process && change >= self.state().dropped && change <= *self.last.borrow();
        Ok(is_known.then_some(Place { change, listed }))
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new("0".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn id(number: u128) -> SessionId {
        SessionId::from_uuid(Uuid::from_u128(number))
    }

    fn ids(changes: &Changes, after: u64) -> Vec<SessionId> {
        changes.after(after, usize::MAX).0.into_iter().map(|change| change.session_id).collect()
    }

    #[test]
    fn a_session_has_one_change_the_newest() {
        let changes = Changes::new("a1".to_owned());
        for number in [1, 2, 1, 3] {
            changes.deleted(id(number));
        }
        assert_eq!(ids(&changes, 0), [id(2), id(1), id(3)]);
        assert_eq!(changes.after(0, 2).1, 3, "the number of the second change: the first one is no longer");
        assert_eq!(ids(&changes, 3), [id(3)]);
        assert_eq!((changes.after(4, 9), *changes.watch().borrow()), ((Vec::new(), 4, false), 4));
    }

    #[test]
    fn a_cursor_is_of_one_process_and_as_old_as_the_log() {
        let changes = Changes::new("a1".to_owned());
        changes.deleted(id(7));
        for place in [Place { change: 1, listed: None }, Place { change: 0, listed: Some(id(7)) }] {
            let cursor = changes.cursor(&place);
            assert_eq!(changes.place(&cursor).unwrap(), Some(place));
            assert_eq!(Changes::new("a2".to_owned()).place(&cursor).unwrap(), None, "another process");
        }
        assert_eq!(changes.place("a1.2").unwrap(), None, "it has not happened yet");
        for number in 0..KEPT as u128 {
            changes.deleted(id(100 + number));
        }
        assert_eq!(changes.place("a1.0").unwrap(), None, "the first change is no longer kept");
        assert!(changes.place("a1.1").unwrap().is_some());
        let long = format!("a1.{}", "1".repeat(200));
        for wrong in ["", ".", "a1", "a1.", "a1.x", "a1.1.x", "a1.-1", "a1.1.", "x y.1", &long] {
            assert!(changes.place(wrong).is_err(), "{wrong}");
        }
    }
}
