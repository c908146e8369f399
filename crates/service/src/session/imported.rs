//! An imported session: what its events say may be anybody's wish, so none of it lets a tool run.

use std::sync::Arc;

use meerkat_words::agents::Descent;

use super::{
    OpenTurn, SessionFields,
    event::{Event, Record, SessionImported},
};
use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
};

impl SessionFields {
    /// Takes away all that would let a tool run.
    pub(super) fn imported(&mut self, seq: Seq, imported: &SessionImported) {
        self.imported_at = seq;
        self.workspace = None;
        self.descent.clone_from(&imported.descent);
        self.client_tools = None;
        self.tools_of_queue.clear();
        self.allowed_rules = Arc::default();
        for queued in Arc::make_mut(&mut self.queue) {
            queued.imported();
        }
        if let Some(open) = &mut self.open_turn {
            open.is_imported = true;
            (open.terms.attended, open.terms.allow, open.terms.search_path) = (false, Vec::new(), None);
        }
    }

    /// Makes the record with which the session begins here, at its place among sessions, if a tool could run without it;
    /// it follows `last`.
    pub(crate) fn import_record(
        &self,
        (session_id, descent): (SessionId, Option<Descent>),
        last: Seq,
        now: Timestamp,
    ) -> Option<Record> {
        let has_rules =
            !self.allowed_rules.is_empty() || self.queue.iter().any(|queued| !queued.terms.allow.is_empty());
        let had_client_tools = self.client_tools.is_some() || !self.tools_of_queue.is_empty();
        let may_run = self.workspace.is_some()
            || self.descent.is_some()
            || has_rules
            || had_client_tools
            || self.open_turn.as_ref().is_some_and(OpenTurn::outlives_its_process);
        let event = Event::SessionImported(SessionImported { had_client_tools, descent });
        may_run.then_some(Record { session_id, seq: last + 1, turn: None, time: now, event })
    }

    /// Makes the record that a fork after `at` needs to stay imported; it follows the fork's `first`.
    pub(crate) fn fork_import_record(&self, at: Seq, first: &Record) -> Option<Record> {
        let event = Event::SessionImported(SessionImported { had_client_tools: false, descent: None });
        (at < self.imported_at).then_some(Record { seq: first.seq + 1, event, ..first.clone() })
    }
}
