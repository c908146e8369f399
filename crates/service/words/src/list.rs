//! Filters, order and cursor of session lists, for every index.
//!
//! Lists are in the order of changes, newest first, and a cursor is a place in that order. A changed session moves to
//! the front: pages behind a cursor show each session that has not changed since the list began, once.

use std::{fmt, io};

use serde::Serialize;

use crate::{
    SessionError,
    answers::{Page, SessionSummary},
    ids::SessionId,
    requests::SessionQuery,
    store::StoreError,
};

/// Sessions of a page if the query sets no limit.
pub const PAGE_SESSIONS: usize = 50;
/// Most bytes of a page's items as JSON; a larger item is alone.
pub const PAGE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// First number of a change. Below are times of change in milliseconds, which order the sessions of a rebuilt index;
/// later changes come before them.
const CHANGES_FROM: u64 = 1 << 62;

/// Place of a session in the order of changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Number or time of its last change.
    pub number: u64,
    /// The session.
    pub session_id: SessionId,
}

impl Place {
    /// Returns the number of the next change.
    pub fn next_number(newest: Option<u64>) -> u64 {
        newest.map_or(CHANGES_FROM, |newest| (newest + 1).max(CHANGES_FROM))
    }

    /// Returns the number for a session whose place was lost.
    pub fn lost_number(summary: &SessionSummary) -> u64 {
        u64::try_from(summary.updated_at.as_millis()).unwrap_or(0).min(CHANGES_FROM - 1)
    }

    /// Encodes the place; the bytes sort as places do.
    pub fn key(self) -> Vec<u8> {
        [&self.number.to_be_bytes()[..], self.session_id.as_uuid().as_bytes()].concat()
    }

    /// Decodes a place.
    pub fn of_key(key: &[u8]) -> Option<Self> {
        let (number, id) = key.split_first_chunk()?;
        let session_id = SessionId::from_uuid(uuid::Uuid::from_bytes(id.try_into().ok()?));
        Some(Self { number: u64::from_be_bytes(*number), session_id })
    }
}

/// Bytes of a page so far, as JSON.
#[derive(Debug, Default)]
pub struct Size {
    bytes: u64,
}

impl Size {
    /// Returns true if an item may be added; the first one always may.
    pub fn takes<T: Serialize + ?Sized>(&mut self, item: &T) -> bool {
        let is_first = self.bytes == 0;
        // Only a writer that fails makes an error, and an item that cannot be written fails when the page is.
        drop(serde_json::to_writer(&mut *self, item));
        is_first || self.bytes <= PAGE_BYTES_MAX
    }
}

impl io::Write for Size {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.number, self.session_id)
    }
}

impl SessionQuery {
    /// Decodes the cursor: the page continues behind this place, with sessions that changed before.
    ///
    /// # Errors
    /// `INVALID_REQUEST` if it is not a cursor.
    pub fn cursor(&self) -> Result<Option<Place>, SessionError> {
        let place = |cursor: &str| {
            let (number, id) = cursor.split_once('-')?;
            let is_number = number.len() == 16 && number.bytes().all(|byte| byte.is_ascii_hexdigit());
            let number = u64::from_str_radix(number, 16).ok().filter(|_| is_number)?;
            Some(Place { number, session_id: id.parse().ok()? })
        };
        let refusal =
            || SessionError::invalid("cursor", "this is not a cursor; take it from next_cursor of the previous page");
        self.cursor.as_ref().map(|cursor| place(cursor).ok_or_else(refusal)).transpose()
    }

    /// Decodes the cursor for an index, after the request was checked.
    ///
    /// # Errors
    /// `Failed` if it is not a cursor.
    pub fn after(&self) -> Result<Option<Place>, StoreError> {
        self.cursor().map_err(|error| StoreError::Failed(error.to_string()))
    }

    /// Returns true if the session passes the filters.
    #[must_use]
    pub fn matches(&self, summary: &SessionSummary) -> bool {
        self.created_after.is_none_or(|time| summary.created_at > time)
            && self.updated_after.is_none_or(|time| summary.updated_at > time)
            && self.archived.is_none_or(|archived| summary.archived == archived)
            && (self.children || summary.parent.is_none())
            && self.labels.iter().all(|(name, value)| summary.labels.get(name) == Some(value))
    }

    /// Takes a page from the sessions behind the cursor, reading no more than it needs.
    pub fn page(&self, sessions: impl Iterator<Item = (Place, SessionSummary)>) -> Page<SessionSummary> {
        let limit = self.limit.unwrap_or(PAGE_SESSIONS).max(1);
        let (mut found, mut size, mut is_more): (Vec<(Place, SessionSummary)>, _, _) =
            (Vec::new(), Size::default(), false);
        for (place, summary) in sessions.filter(|(_, summary)| self.matches(summary)) {
            is_more = found.len() == limit || !size.takes(&summary);
            if is_more {
                break;
            }
            found.push((place, summary));
        }
        let next_cursor = found.last().filter(|_| is_more).map(|(place, _)| place.to_string());
        Page { items: found.into_iter().map(|(_, summary)| summary).collect(), next_cursor }
    }
}
