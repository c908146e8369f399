//! Forgetting texts for good, and removing a deleted session.
//!
//! A forgetting is recorded before any text is removed, so the next start completes it after a kill, and no rebuild
//! brings the texts back. It covers what was taken in so far, not what comes later. It also covers the session's forks,
//! which have its records, even after the session is deleted. The bytes leave the files later ([`super::erase`]).

use std::{
    collections::{HashMap, HashSet},
    sync::PoisonError,
};

use redb::{ReadableTable as _, WriteTransaction};

use super::{
    columns::{Columns, Session},
    core::Core,
    file::{Trouble, discard_copies},
    log::Forgetting,
    opened::Opened,
    tables::{self, Doc, SessionRow, meta, put_number, to_json},
};
use meerkat_words::{
    clock::Timestamp,
    ids::{Seq, SessionId},
    memory::{Intake, Passage},
    requests::ForgetMemory,
};

const END_OF_TIME_MS: i64 = 253_370_764_800_000;
/// Texts removed in one transaction.
const TAKEN_OUT: usize = 4_096;

impl Core {
    /// Decides what a request forgets.
    pub(super) fn to_forget(&self, request: &ForgetMemory) -> Result<Vec<ForgetMemory>, Trouble> {
        self.read(|open| Ok(forgettings(open, request).into_iter().map(decided).collect()))
    }

    /// Forgets passages, as it was decided; returns how many. What is forgotten already is not recorded again.
    pub(super) fn forget(&self, decided: Vec<ForgetMemory>) -> Result<u64, Trouble> {
        let mut forgotten = 0;
        if !decided.is_empty() {
            let forgettings: Vec<Forgetting> = self.read(|open| {
                let forks = forks(open);
                let is_due = |it: &Forgetting| !is_known(open, it) || !covered(open, &forks, it).is_empty();
                Ok(decided.into_iter().map(forgetting).filter(is_due).collect())
            })?;
            let position = self.record_forgettings(&forgettings)?;
            // They may hold what is forgotten.
            self.dir.as_deref().map_or(Ok(()), discard_copies)?;
            if !forgettings.is_empty() {
                forgotten = self.forget_now(forgettings, position)?;
            }
        }
        Ok(forgotten)
    }

    /// Lists what was forgotten.
    pub(super) fn forgotten(&self) -> Result<Vec<ForgetMemory>, Trouble> {
        self.read(|open| Ok(open.forgotten.values().flatten().map(|(_, it)| decided(it.clone())).collect()))
    }

    /// Applies those of these forgettings that the file should have and lacks.
    pub(super) fn forget_again(&self, mut recorded: Vec<Forgetting>) -> Result<(), Trouble> {
        self.read(|open| {
            recorded.retain(|it| !is_known(open, it));
            Ok(())
        })?;
        if recorded.is_empty() { Ok(()) } else { self.forget_now(recorded, None).map(drop) }
    }

    /// Applies forgettings that are recorded up to this position of the log.
    pub(super) fn forget_now(&self, forgettings: Vec<Forgetting>, position: Option<u64>) -> Result<u64, Trouble> {
        let (file, numbered, docs) = self.read(|open| {
            let forks = forks(open);
            let docs: Vec<u32> = forgettings.iter().flat_map(|it| covered(open, &forks, it)).collect();
            let new = forgettings.iter().filter(|it| !is_known(open, it)).cloned();
            let numbered: Vec<(u32, Forgetting)> = (open.next_forgotten..).zip(new).collect();
            Ok((open.file.clone(), numbered, docs))
        })?;
        if !docs.is_empty() {
            self.mark()?;
        }
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

    /// Removes everything of a session.
    pub(super) fn gone(&self, id: SessionId) -> Result<(), Trouble> {
        let request = ForgetMemory { session_id: Some(id), ..ForgetMemory::default() };
        let forgettings = self.read(|open| Ok(forgettings(open, &request)))?;
        let mut position = None;
        if self.records_intake {
            position = self.record_forgettings(&forgettings)?;
            // The log has its texts.
            self.mark()?;
        }
        let docs = self.read(|open| Ok(open.columns.session(id).map_or_else(Vec::new, |it| it.docs.clone())))?;
        self.take_out(docs)?;
        let (file, ordinal) = self.read(|open| Ok((open.file.clone(), open.columns.ordinal(id))))?;
        if ordinal.is_none() && position.is_none() {
            return Ok(());
        }
        file.write(|transaction| {
            let mut sessions = transaction.open_table(tables::SESSIONS)?;
            ordinal.map_or(Ok(None), |ordinal| sessions.remove(ordinal)).map(drop)?;
            position.map_or(Ok(()), |position| put_number(transaction, meta::LOG, position))
        })?;
        self.change(&file, |open| {
            open.columns.remove_session(id);
            open.log_position = position.unwrap_or(open.log_position);
            Ok(())
        })?;
        self.erase_if_sparse()
    }

    /// Removes texts, in bounded transactions; returns how many.
    pub(super) fn take_out(&self, mut docs: Vec<u32>) -> Result<u64, Trouble> {
        docs.sort_unstable();
        docs.dedup();
        for docs in docs.chunks(TAKEN_OUT) {
            let file = self.read(|open| Ok(open.file.clone()))?;
            let orphans = self.read(|open| Ok(orphans(&open.columns, docs)))?;
            file.write(|transaction| remove_rows(transaction, docs, &orphans))?;
            let mut erasing = self.erasing.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Err(error)) = erasing.as_ref().map(|erasure| erasure.remove(docs, &orphans)) {
                tracing::debug!(?error, "the copy without what was forgotten is begun again");
                *erasing = None;
            }
            drop(erasing);
            self.change(&file, |open| {
                open.vectors.remove(docs);
                open.columns.remove(docs);
                open.refresh()
            })?;
        }
        Ok(docs.len() as u64)
    }
}

/// Removes texts' rows, and the vectors of these hashes.
pub(super) fn remove_rows(transaction: &WriteTransaction, docs: &[u32], orphans: &HashSet<u64>) -> Result<(), Trouble> {
    let mut columns = transaction.open_table(tables::COLUMNS)?;
    let mut texts = transaction.open_table(tables::TEXTS)?;
    for doc in docs {
        columns.remove(*doc)?;
        texts.remove(*doc)?;
    }
    let mut vectors = transaction.open_table(tables::VECTORS)?;
    for row in transaction.open_table(tables::EMBEDDERS)?.range::<u32>(..)? {
        let number = row?.0.value();
        orphans.iter().try_for_each(|text| vectors.remove((number, *text)).map(drop))?;
    }
    Ok(())
}

/// Returns the hashes of these texts that no other text has.
fn orphans(columns: &Columns, docs: &[u32]) -> HashSet<u64> {
    let mut orphans: HashSet<u64> = docs.iter().filter_map(|doc| columns.doc(*doc)).map(|doc| doc.text).collect();
    let others = columns.docs().filter(|(doc, _)| docs.binary_search(doc).is_err());
    for (_, other) in others {
        orphans.remove(&other.text);
    }
    orphans
}

/// Makes the forgettings of a request, one per session, each up to what was taken in so far.
fn forgettings(open: &Opened, request: &ForgetMemory) -> Vec<Forgetting> {
    let forks = forks(open);
    let asked = open.columns.sessions().filter(|(_, it)| request.session_id.is_none_or(|id| id == it.row.id));
    let of_session = |(_, session): (u32, &Session)| {
        let last = session.docs.iter().filter_map(|doc| open.columns.doc(*doc)).map(|doc| doc.to_seq);
        let known: Seq = last.fold(session.row.up_to, Seq::max);
        let (from_seq, to_seq) = (request.from_seq.unwrap_or(0), request.to_seq.unwrap_or(known).min(known));
        let forgetting = forgetting(ForgetMemory {
            session_id: Some(session.row.id),
            from_seq: Some(from_seq),
            to_seq: Some(to_seq),
            source: request.source.clone(),
            wait: false,
        });
        // A session without texts of the source gets no forgetting, unless it was named.
        let is_any = request.session_id.is_some() || !covered(open, &forks, &forgetting).is_empty();
        (is_any && from_seq <= to_seq).then_some(forgetting)
    };
    asked.filter_map(of_session).collect()
}

fn forgetting(decided: ForgetMemory) -> Forgetting {
    let ForgetMemory { session_id, from_seq, to_seq, source, wait: _ } = decided;
    // The seqs are the limit: clocks may stop or go back.
    let until = Timestamp::from_millis(END_OF_TIME_MS);
    Forgetting { session_id, from_seq: from_seq.unwrap_or(0), to_seq, source, until }
}

fn decided(forgetting: Forgetting) -> ForgetMemory {
    let Forgetting { session_id, from_seq, to_seq, source, until: _ } = forgetting;
    ForgetMemory { session_id, from_seq: Some(from_seq), to_seq, source, wait: false }
}

fn is_known(open: &Opened, forgetting: &Forgetting) -> bool {
    let known = open.forgotten.get(&forgetting.session_id);
    known.is_some_and(|known| known.iter().any(|(_, known)| known == forgetting))
}

fn forks(open: &Opened) -> HashMap<SessionId, Vec<&Session>> {
    let mut forks: HashMap<SessionId, Vec<&Session>> = HashMap::new();
    for (_, session) in open.columns.sessions() {
        session.row.inherited.keys().for_each(|parent| forks.entry(*parent).or_default().push(session));
    }
    forks
}

fn covered(open: &Opened, forks: &HashMap<SessionId, Vec<&Session>>, forgetting: &Forgetting) -> Vec<u32> {
    let columns = &open.columns;
    let sessions: Vec<(SessionId, Seq, &Session)> = match forgetting.session_id {
        Some(id) => {
            let own = columns.session(id).map(|session| (id, Seq::MAX, session));
            let up_to = |fork: &Session| fork.row.inherited.get(&id).copied().unwrap_or(0);
            own.into_iter().chain(forks.get(&id).into_iter().flatten().map(|fork| (id, up_to(fork), *fork))).collect()
        }
        None => columns.sessions().map(|(_, session)| (session.row.id, Seq::MAX, session)).collect(),
    };
    let mut docs = Vec::new();
    for (id, up_to, session) in sessions {
        let covers = |doc: &Doc| doc.seq <= up_to && forgetting.covers(id, &place_of(open, doc));
        docs.extend(session.docs.iter().filter(|doc| columns.doc(**doc).is_some_and(covers)));
    }
    docs
}

/// Finds stored texts that become forgotten once an intake names the session's parents.
pub(super) fn forgotten_in(open: &Opened, intake: &Intake) -> Vec<u32> {
    let Some(session) = open.columns.session(intake.session_id) else { return Vec::new() };
    let row = SessionRow::with(Some(&session.row), intake, false);
    if row.inherited == session.row.inherited {
        return Vec::new();
    }
    let is_forgotten = |doc: &Doc| open.is_forgotten(&row, &place_of(open, doc));
    session.docs.iter().filter(|doc| open.columns.doc(**doc).is_some_and(is_forgotten)).copied().collect()
}

/// Makes a passage with the fields that a forgetting compares.
fn place_of(open: &Opened, doc: &Doc) -> Passage {
    Passage {
        seq: doc.seq,
        to_seq: doc.to_seq,
        part: doc.part,
        role: String::new(),
        source: open.columns.name(doc.source).to_owned(),
        time: Timestamp::from_millis(doc.time_ms),
        text: String::new(),
    }
}
