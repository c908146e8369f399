//! Fold of one journal's records for the examination. It reads no file.

use std::collections::BTreeSet;

use crate::{
    agent::record::{attached, bodies, files},
    ids::{Seq, SessionId},
    session::{
        Session,
        event::{ChangedFile, Event, Record},
        message::Body,
    },
    wire::decode_event,
};

/// State after some records of a journal.
#[derive(Default)]
pub(super) struct Reading {
    id: Option<SessionId>,
    pub(super) session: Option<Session>,
    /// First record that could not be used.
    pub(super) trouble: Option<(Seq, String)>,
    pub(super) blobs: BTreeSet<String>,
    /// Blobs that are copies of files.
    pub(super) copies: BTreeSet<String>,
    pub(super) records: u64,
    old_before_ms: i64,
    /// Last old record.
    pub(super) old_seq: Seq,
    /// First record of the session itself, which in a fork follows those of its parent; 0 if there is none.
    pub(super) own_seq: Seq,
}

impl Reading {
    /// Begins to read the session `id`; records from before this time are old.
    pub(super) fn of(id: SessionId, old_before_ms: i64) -> Self {
        Self { id: Some(id), old_before_ms, ..Self::default() }
    }

    pub(super) fn see(&mut self, seq: Seq, line: &[u8]) {
        self.records += 1;
        if self.trouble.is_some() {
            return;
        }
        let record = std::str::from_utf8(line).map_err(|error| error.to_string());
        let done = record.and_then(|line| decode_event(line).map_err(|error| error.to_string()));
        if let Err(why) = done.and_then(|record| self.fold(record)) {
            self.trouble = Some((seq, why));
        }
    }

    fn fold(&mut self, mut record: Record) -> Result<(), String> {
        if record.time.as_millis() < self.old_before_ms {
            self.old_seq = record.seq;
        } else if let Event::SessionForked(_) = &record.event {
            // The parent's records are no older than the fork.
            self.old_seq = 0;
        }
        let done = match &mut self.session {
            Some(session) => session.apply(&record),
            None => Session::begin_anywhere(&record).map(|session| self.session = Some(session)),
        };
        if self.own_seq == 0 && self.session.as_ref().map(|session| session.id) == self.id {
            self.own_seq = record.seq;
        }
        self.copies.extend(files(&record.event).iter().filter_map(ChangedFile::copy).map(str::to_owned));
        self.blobs.extend(attached(&record.event).cloned());
        let names = bodies(&mut record.event).into_iter().filter_map(|body| match body {
            Body::Blob(blob) => Some(std::mem::take(&mut blob.blob)),
            Body::Inline(_) => None,
        });
        self.blobs.extend(names);
        done.map_err(|error| error.to_string())
    }
}
