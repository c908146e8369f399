//! What the records of one journal say, folded one by one. It never reads them from anywhere.

use std::collections::BTreeSet;

use crate::{
    agent::record::bodies,
    ids::{Seq, SessionId},
    session::{
        Session,
        event::{Event, Record},
        message::Body,
    },
    wire::decode_event,
};

/// What the records of one journal say.
#[derive(Default)]
pub(super) struct Reading {
    id: Option<SessionId>,
    pub(super) session: Option<Session>,
    /// The first record that could not be used.
    pub(super) trouble: Option<(Seq, String)>,
    pub(super) blobs: BTreeSet<String>,
    pub(super) records: u64,
    old_before_ms: i64,
    /// The last record that is old.
    pub(super) old_seq: Seq,
    /// The record that makes them this session's: a fork's come behind those of its parent. 0 where there is none.
    pub(super) own_seq: Seq,
}

impl Reading {
    /// Of the session `id`; what was written before a time is old.
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
            // What was taken over is not older than the fork.
            self.old_seq = 0;
        }
        let done = match &mut self.session {
            Some(session) => session.apply(&record),
            None => Session::begin(&record).map(|session| self.session = Some(session)),
        };
        if self.own_seq == 0 && self.session.as_ref().map(Session::id) == self.id {
            self.own_seq = record.seq;
        }
        let names = bodies(&mut record.event).into_iter().filter_map(|body| match body {
            Body::Blob(blob) => Some(std::mem::take(&mut blob.blob)),
            Body::Inline(_) => None,
        });
        self.blobs.extend(names);
        done.map_err(|error| error.to_string())
    }
}
