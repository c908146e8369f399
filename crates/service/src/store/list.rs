//! What a list of sessions shows: the same filters, order and cursor for every index.
//!
//! A list is in the order of changes, the last one first, and a cursor is a place in that order. A session that changes
//! gets the first place: a page behind a cursor shows each session that has not changed since the list began, once.

use std::fmt;

use super::StoreError;
use crate::{
    SessionError,
    ids::SessionId,
    service::{Page, SessionQuery, SessionSummary},
};

/// Sessions of a page where the query names no limit.
const PAGE_SESSIONS: usize = 50;

/// Numbers of changes begin here. Below are times of change, in milliseconds: by these the sessions of an index are in
/// order that was lost and made again, and whatever changes afterwards comes before them.
const CHANGES_FROM: u64 = 1 << 62;

/// The place of a session in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    /// The number of its last change, or the time of it.
    pub(crate) number: u64,
    /// The session.
    pub(crate) session_id: SessionId,
}

impl Place {
    /// The number of the change that follows the one with this number.
    pub(crate) fn next_number(newest: Option<u64>) -> u64 {
        newest.map_or(CHANGES_FROM, |newest| (newest + 1).max(CHANGES_FROM))
    }

    /// The number of a session whose place was lost.
    pub(crate) fn lost_number(summary: &SessionSummary) -> u64 {
        u64::try_from(summary.updated_at.as_millis()).unwrap_or(0).min(CHANGES_FROM - 1)
    }

    /// Its bytes, which are in the same order.
    pub(super) fn key(self) -> Vec<u8> {
        [&self.number.to_be_bytes()[..], self.session_id.as_uuid().as_bytes()].concat()
    }

    /// The place with these bytes.
    pub(super) fn of_key(key: &[u8]) -> Option<Self> {
        let (number, id) = key.split_first_chunk()?;
        let session_id = SessionId::from_uuid(uuid::Uuid::from_bytes(id.try_into().ok()?));
        Some(Self { number: u64::from_be_bytes(*number), session_id })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.number, self.session_id)
    }
}

impl SessionQuery {
    /// The place that its cursor names: a page goes on behind it, with sessions that changed before.
    ///
    /// # Errors
    /// `INVALID_REQUEST` where the cursor is not one.
    pub(crate) fn cursor(&self) -> Result<Option<Place>, SessionError> {
        let place = |cursor: &str| {
            let (number, id) = cursor.split_once('-')?;
            let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u64::from_str_radix(number, 16).ok().filter(|_| is_number)?;
            Some(Place { number, session_id: id.parse().ok()? })
        };
        let refusal =
            || SessionError::invalid("cursor", "it is no cursor; take it from next_cursor of the page before");
        self.cursor.as_ref().map(|cursor| place(cursor).ok_or_else(refusal)).transpose()
    }

    /// The same for an index, which is asked after the values were checked.
    pub(super) fn after(&self) -> Result<Option<Place>, StoreError> {
        self.cursor().map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Whether a session is wanted.
    #[must_use]
    pub fn matches(&self, summary: &SessionSummary) -> bool {
        self.created_after.is_none_or(|time| summary.created_at > time)
            && self.updated_after.is_none_or(|time| summary.updated_at > time)
            && self.archived.is_none_or(|archived| summary.archived == archived)
            && self.labels.iter().all(|(name, value)| summary.labels.get(name) == Some(value))
    }

    /// The page out of what follows the cursor, in order. It takes no more than it needs.
    pub(super) fn page(&self, sessions: impl Iterator<Item = (Place, SessionSummary)>) -> Page<SessionSummary> {
        let limit = self.limit.unwrap_or(PAGE_SESSIONS).max(1);
        let mut found: Vec<(Place, SessionSummary)> =
            sessions.filter(|(_, summary)| self.matches(summary)).take(limit.saturating_add(1)).collect();
        let is_more = found.len() > limit;
        found.truncate(limit);
        let next_cursor = found.last().filter(|_| is_more).map(|(place, _)| place.to_string());
        Page { items: found.into_iter().map(|(_, summary)| summary).collect(), next_cursor }
    }
}
