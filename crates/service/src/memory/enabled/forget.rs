//! Forgetting, for good, and letting a deleted session go.
//!
//! What is forgotten is recorded before anything is taken out, and bounded to what was taken in so far: a kill in
//! between is made good at the next start, and no rebuild brings it back. What comes later is not covered.

use super::{
    columns::{Doc, Session},
    core::Core,
    file::Trouble,
    intake::{put_number, to_json},
    log::Forgetting,
    opened::Opened,
    tables::{self, meta},
};
use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId},
    memory::Passage,
    service::ForgetMemory,
};

/// The year 9999.
const END_OF_TIME_MS: i64 = 253_370_764_800_000;
/// Texts that are taken out in one transaction.
const TAKEN_OUT: usize = 4_096;

impl Core {
    /// Forgets; answers how many passages that were.
    pub(super) fn forget(&self, request: &ForgetMemory) -> Result<u64, Trouble> {
        let forgettings = self.read(|open| Ok(forgettings(open, request)))?;
        if forgettings.is_empty() {
            return Ok(0);
        }
        let position = self.record_forgetting(&forgettings)?;
        self.forget_now(forgettings, position)
    }

    /// Forgets what is recorded, up to this position of the log.
    pub(super) fn forget_now(&self, forgettings: Vec<Forgetting>, position: Option<u64>) -> Result<u64, Trouble> {
        let (file, numbered, docs) = self.read(|open| {
            let known = |it: &Forgetting| {
                open.forgotten.get(&it.session_id).is_some_and(|known| known.iter().any(|(_, known)| known == it))
            };
            let docs: Vec<u32> = forgettings.iter().flat_map(|it| covered(open, it)).collect();
            let new = forgettings.iter().filter(|it| !known(it)).cloned();
            let numbered: Vec<(u32, Forgetting)> = (open.next_forgotten..).zip(new).collect();
            Ok((open.file.clone(), numbered, docs))
        })?;
        file.write(|transaction| {
            let mut table = transaction.open_table(tables::FORGOTTEN)?;
            numbered.iter().try_for_each(|(number, forgetting)| {
                table.insert(*number, &*to_json(forgetting)?)?;
                Ok(())
            })
        })?;
        self.change(&file, |open| {
            for (number, forgetting) in numbered {
                open.remember_forgotten(number, forgetting);
            }
            Ok(())
        })?;
        let forgotten = self.take_out(docs)?;
        if let Some(position) = position {
            self.applied(position)?;
        }
        Ok(forgotten)
    }

    /// Leaves nothing of a session.
    pub(super) fn gone(&self, id: SessionId) -> Result<(), Trouble> {
        let request = ForgetMemory { session_id: Some(id), ..ForgetMemory::default() };
        let forgettings = self.read(|open| Ok(forgettings(open, &request)))?;
        let mut position = None;
        if self.records_intake {
            position = self.record_forgetting(&forgettings)?;
        }
        let docs = self.read(|open| Ok(open.columns.session(id).map_or_else(Vec::new, |it| it.docs.clone())))?;
        self.take_out(docs)?;
        let (file, ordinal, rows) = self.read(|open| {
            let rows =
                open.forgotten.get(&Some(id)).map_or_else(Vec::new, |rows| rows.iter().map(|row| row.0).collect());
            Ok((open.file.clone(), open.columns.ordinal(id), rows))
        })?;
        if ordinal.is_none() && rows.is_empty() && position.is_none() {
            return Ok(());
        }
        file.write(|transaction| {
            let mut sessions = transaction.open_table(tables::SESSIONS)?;
            ordinal.map_or(Ok(None), |ordinal| sessions.remove(ordinal)).map(drop)?;
            let mut forgotten = transaction.open_table(tables::FORGOTTEN)?;
            rows.iter().try_for_each(|row: &u32| forgotten.remove(*row).map(drop))?;
            position.map_or(Ok(()), |position| put_number(transaction, meta::LOG, position))
        })?;
        self.change(&file, |open| {
            open.columns.remove_session(id);
            open.forgotten.remove(&Some(id));
            open.log_position = position.unwrap_or(open.log_position);
            Ok(())
        })
    }

    /// Takes texts out, in bounded transactions; answers how many.
    fn take_out(&self, mut docs: Vec<u32>) -> Result<u64, Trouble> {
        docs.sort_unstable();
        docs.dedup();
        for docs in docs.chunks(TAKEN_OUT) {
            let file = self.read(|open| Ok(open.file.clone()))?;
            file.write(|transaction| {
                let mut columns = transaction.open_table(tables::COLUMNS)?;
                let mut texts = transaction.open_table(tables::TEXTS)?;
                let mut vectors = transaction.open_table(tables::VECTORS)?;
                for doc in docs {
                    columns.remove(*doc)?;
                    texts.remove(*doc)?;
                    vectors.remove(*doc)?;
                }
                Ok(())
            })?;
            self.change(&file, |open| {
                open.columns.remove(docs);
                open.with_lane(|lane| {
                    for doc in docs {
                        lane.as_mut().map(|lane| lane.remove(*doc));
                    }
                });
                open.refresh()
            })?;
        }
        if !docs.is_empty() {
            self.merge()?;
        }
        Ok(docs.len() as u64)
    }
}

/// What a request forgets of each session, up to what was taken in of it so far.
fn forgettings(open: &Opened, request: &ForgetMemory) -> Vec<Forgetting> {
    let asked = open.columns.sessions().filter(|(_, it)| request.session_id.is_none_or(|id| id == it.row.id));
    let forgetting = |(_, session): (u32, &Session)| {
        let last = session.docs.iter().filter_map(|doc| open.columns.doc(*doc)).map(|doc| doc.to_seq);
        let known: Seq = last.fold(session.row.up_to, Seq::max);
        let (from_seq, to_seq) = (request.from_seq.unwrap_or(0), request.to_seq.unwrap_or(known).min(known));
        let forgetting = Forgetting {
            session_id: Some(session.row.id),
            from_seq,
            to_seq: Some(to_seq),
            source: request.source.clone(),
            // The seqs bound it; clocks may stand still or go back.
            until: Timestamp::from_millis(END_OF_TIME_MS),
        };
        // A source that a session has not said anything of yet is not forgotten there.
        let is_any = request.session_id.is_some() || !covered(open, &forgetting).is_empty();
        (is_any && from_seq <= to_seq).then_some(forgetting)
    };
    asked.filter_map(forgetting).collect()
}

/// The texts that a forgetting covers.
fn covered(open: &Opened, forgetting: &Forgetting) -> Vec<u32> {
    let columns = &open.columns;
    let sessions: Vec<&Session> = match forgetting.session_id {
        Some(id) => columns.session(id).into_iter().collect(),
        None => columns.sessions().map(|(_, session)| session).collect(),
    };
    let mut docs = Vec::new();
    for session in sessions {
        let covers = |doc: &Doc| {
            let passage = Passage {
                seq: doc.seq,
                to_seq: doc.to_seq,
                part: doc.part,
                role: String::new(),
                source: columns.name(doc.source).to_owned(),
                time: Timestamp::from_millis(doc.time_ms),
                text: String::new(),
            };
            forgetting.covers(session.row.id, &passage)
        };
        docs.extend(session.docs.iter().filter(|doc| columns.doc(**doc).is_some_and(covers)));
    }
    docs
}
