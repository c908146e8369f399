//! What a list of sessions shows: the same filters and the same cursor for every index.

use crate::{
    SessionError,
    answers::{Page, SessionSummary},
    ids::SessionId,
    requests::SessionQuery,
    store::StoreError,
};

/// Sessions of a page where the query names no limit.
const PAGE_SESSIONS: usize = 50;

impl SessionQuery {
    /// The session that its cursor names: a page goes on behind it, with older ones.
    ///
    /// # Errors
    /// `INVALID_REQUEST` where the cursor is not one.
    pub fn cursor(&self) -> Result<Option<SessionId>, SessionError> {
        let cursor = self.cursor.as_ref().map(|cursor| cursor.parse());
        cursor.transpose().map_err(|_: SessionError| {
            SessionError::invalid("cursor", "it is no cursor; take it from next_cursor of the page before")
        })
    }

    /// The same for an index, which is asked after the values were checked.
    ///
    /// # Errors
    /// `Failed` if the cursor is not one.
    pub fn after(&self) -> Result<Option<SessionId>, StoreError> {
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

    /// The page out of what follows the cursor, newest first. It takes no more than it needs.
    #[must_use]
    pub fn page(&self, sessions: impl Iterator<Item = SessionSummary>) -> Page<SessionSummary> {
        let limit = self.limit.unwrap_or(PAGE_SESSIONS).max(1);
        let mut items: Vec<SessionSummary> =
            sessions.filter(|summary| self.matches(summary)).take(limit.saturating_add(1)).collect();
        let is_more = items.len() > limit;
        items.truncate(limit);
        let next_cursor = items.last().filter(|_| is_more).map(|last| last.session_id.to_string());
        Page { items, next_cursor }
    }
}
