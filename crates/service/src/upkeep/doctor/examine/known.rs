//! Comparison of the journals with the marks of the store and the index. The journals are right, unless they lack
//! records that were durable.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    ops::Bound,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{Doctor, Journal, NEXT_START, ensure};
use crate::{
    consumers::projection::{ANOTHERS, ANOTHERS_REMEDY, Projection, READER},
    ids::{Seq, SessionId},
    session::human::count as counted,
    store::{
        Registration, SessionIndex as _, StoreError,
        directory::{
            IndexFile, REBUILT, RedbIndex, Table, View, decode,
            journal::{End, FoundMarks, derived::Trouble, known_store_id, look, write_marks},
            summary,
        },
    },
    upkeep::doctor::{Check, Severity},
};

const INDEX: &str = "index.redb";
/// Advice for a projection that is behind.
const BEHIND: &str = "The next start brings them up to date; `meerkat call projection/rebuild` makes them again.";

/// Rows of the index.
pub(super) struct Rows {
    sessions: HashMap<SessionId, Seq>,
    lengths: HashMap<SessionId, End>,
    checkpoints: HashMap<Key, Seq>,
    /// True if every stored session was put.
    is_complete: bool,
}

impl Rows {
    /// Returns true if a session's files have to be rebuilt, because its journal holds less than it did.
    pub(super) fn needs_projection(&self, id: SessionId) -> bool {
        self.checkpoints.get(&(id, READER.to_owned())) == Some(&0)
    }

    /// Returns the last seq of each session that was durable.
    fn ends(&self) -> HashMap<SessionId, Seq> {
        let mut ends = self.sessions.clone();
        for (id, known) in &self.lengths {
            let end = ends.entry(*id).or_default();
            *end = known.seq.max(*end);
        }
        ends
    }

    /// Reads all rows. A damaged file is set aside.
    fn read(path: PathBuf) -> Result<Self, StoreError> {
        IndexFile::new(path).read_here(|view| {
            let summaries = rows(view, Table::Sessions, summary)?;
            Ok(Self {
                sessions: summaries.into_iter().map(|((id, _), (_, summary))| (id, summary.last_seq)).collect(),
                lengths: rows(view, Table::Lengths, decode)?.into_iter().map(|((id, _), end)| (id, end)).collect(),
                checkpoints: rows(view, Table::Checkpoints, decode)?.into_iter().collect(),
                is_complete: view.get(Table::Meta, REBUILT)?.is_some(),
            })
        })
    }
}

/// Session of a row, and in the table of checkpoints the reader's name.
type Key = (SessionId, String);

/// Reads a table's rows.
fn rows<T>(view: &View, table: Table, decode: fn(&[u8]) -> Result<T, Trouble>) -> Result<Vec<(Key, T)>, Trouble> {
    let rows = view.rows_back(table, Bound::Unbounded, Bound::Unbounded)?;
    let parsed = rows.map(|row| {
        let (key, value) = row?;
        let (id, name) = key.split_first_chunk().ok_or_else(|| Trouble::Damaged("a key is too short".to_owned()))?;
        let id = SessionId::from_uuid(uuid::Uuid::from_bytes(*id));
        Ok(((id, String::from_utf8_lossy(name).into_owned()), decode(&value)?))
    });
    parsed.collect()
}

/// Lists the files of indexes that were set aside.
fn set_asides(folder: &Path) -> BTreeSet<String> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(INDEX) && name != INDEX).collect()
}

impl Doctor {
    /// Compares the journals with marks and index. Only the owner can: another process has newer ones in memory.
    pub(super) async fn compare(
        &mut self,
        journals: &BTreeMap<SessionId, Journal>,
        rows: Option<&Rows>,
    ) -> Result<(), StoreError> {
        // Unreadable marks are found by `marks`.
        let marks = look(&self.disk).unwrap_or_default();
        for (id, checked, what) in std::mem::take(&mut self.broken) {
            self.mend(Check::Journal, Severity::Error, Some(id), what, |doctor| doctor.rescue(id, &checked));
        }
        self.losses(journals, rows);
        if let Some(rows) = rows {
            self.readers(journals, &marks.readers(), rows);
            self.staleness(journals, &marks, rows);
        }
        self.resume_journals(&marks).await
    }

    /// Reads the index, if there is one, from a copy: opening the file would change it. That of another process has newer
    /// rows in memory.
    pub(super) fn rows(&mut self) -> Option<Rows> {
        let path = self.what.data_dir.join(INDEX);
        if self.owner.is_none() || !path.exists() {
            return None;
        }
        let folder = self.what.data_dir.join("new").join("doctor");
        let copied = ensure(&folder).and_then(|()| fs::copy(&path, folder.join(INDEX)));
        let read = copied.map(|_| Rows::read(folder.join(INDEX)));
        let is_damaged = !set_asides(&folder).is_empty();
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::debug!(%error, "the copy of the index stays until the next start");
        }
        let why = match read {
            Ok(Ok(rows)) if !is_damaged => {
                self.known = rows.ends();
                return Some(rows);
            }
            Ok(Ok(_)) => "it is damaged".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        if !is_damaged {
            let what = format!("the index could not be looked at: {why}");
            self.find(Check::Index, Severity::Warning, None, what, "Make room, and run `meerkat doctor` again.");
            return None;
        }
        let what = format!("the index cannot be read ({why}); it is a copy, but for how far readers are");
        self.mend(Check::Index, Severity::Warning, None, what, |doctor| {
            let before = set_asides(&doctor.what.data_dir);
            // Reading sets a damaged file aside.
            let read = Rows::read(path);
            let mut new = set_asides(&doctor.what.data_dir).into_iter().filter(|name| !before.contains(name));
            match (new.next(), read) {
                (Some(name), _) => Ok(format!("it is kept as {name}, and the next start makes a new one")),
                (None, Err(error)) => Err(std::io::Error::other(error.to_string())),
                (None, Ok(_)) => Err(std::io::Error::other("it can be read now")),
            }
        });
        None
    }

    /// Finds missing records that were durable. A store that opens such a journal refuses to write it.
    fn losses(&mut self, journals: &BTreeMap<SessionId, Journal>, rows: Option<&Rows>) {
        for (&id, journal) in journals.iter().filter(|(_, journal)| journal.is_sound) {
            let end = journal.end;
            let Some(rows) = rows else { continue };
            let lost = rows.lengths.get(&id).filter(|known| known.is_lost_in(end)).map(|known| known.seq);
            let listed = rows.sessions.get(&id).copied().filter(|seq| *seq > end.seq);
            let Some(seq) = lost.max(listed) else { continue };
            let what =
                format!("records up to seq {seq} were durable; its journal, which ends at {}, lacks some", end.seq);
            self.mend(Check::Journal, Severity::Error, Some(id), what, |doctor| {
                let read = doctor.read(id).map_err(std::io::Error::other)?;
                let (checked, _) = read.ok_or_else(|| std::io::Error::other("the session is gone"))?;
                doctor.rescue(id, &checked)
            });
        }
    }

    /// Finds rows that are behind the journals.
    fn staleness(&mut self, journals: &BTreeMap<SessionId, Journal>, marks: &FoundMarks, rows: &Rows) {
        if !rows.is_complete {
            let what = "the index does not hold every session yet".to_owned();
            return self.find(Check::Index, Severity::Warning, None, what, NEXT_START);
        }
        let is_behind = |(id, journal): &(&SessionId, &Journal)| {
            let is_listed = rows.sessions.get(*id).is_some_and(|seq| *seq >= journal.end.seq);
            journal.is_sound && !is_listed && !self.ended.contains_key(*id)
        };
        let behind: Vec<SessionId> = journals.iter().filter(is_behind).map(|(id, _)| *id).collect();
        let gone: Vec<SessionId> = rows.sessions.keys().filter(|id| !journals.contains_key(id)).copied().collect();
        let (count, gone_count) = (behind.len(), gone.len());
        if count + gone_count == 0 {
            return;
        }
        let what = format!(
            "the index is behind the journals of {} and lists {gone_count} that are gone",
            counted(count as u64, "session")
        );
        let stale: Vec<SessionId> = behind.into_iter().chain(gone).collect();
        if !marks.is_whole || stale.iter().all(|id| marks.active.contains(id)) {
            let what = format!("{what}: a process had them in memory when it ended");
            return self.find(Check::Index, Severity::Warning, None, what, NEXT_START);
        }
        self.mend(Check::Index, Severity::Warning, None, what, |doctor| {
            doctor.unsettled = stale;
            Ok("the next start looks at them".to_owned())
        });
    }

    /// Finds readers that do not come, and those that are ahead of a journal.
    fn readers(&mut self, journals: &BTreeMap<SessionId, Journal>, readers: &[Registration], rows: &Rows) {
        for registration in readers {
            let (reader, mut late) = (&registration.reader, 0_usize);
            for (&id, journal) in journals.iter().filter(|(_, journal)| journal.is_sound) {
                let seq = rows.checkpoints.get(&(id, reader.clone())).copied().unwrap_or_default();
                late += usize::from(seq < journal.old_seq);
                let end = journal.end.seq;
                if seq > end && !self.ended.contains_key(&id) {
                    let what = format!("reader `{reader}` is done up to seq {seq}, and its journal ends at {end}");
                    self.mend(Check::Readers, Severity::Warning, Some(id), what, |doctor| {
                        doctor.ended.insert(id, end);
                        Ok("the reader was moved back to the journal's end".to_owned())
                    });
                }
            }
            if late > 0 && registration.created_at.as_millis() < self.old_before_ms {
                let what = format!(
                    "reader `{reader}` has not acknowledged records of {} that are older than 7 days; no journal is \
                     compacted behind where it is",
                    counted(late as u64, "session")
                );
                let remedy = "`meerkat call reader/list` says how far it is behind; `meerkat call reader/delete` forgets \
                              one that is not used any more.";
                self.find(Check::Readers, Severity::Warning, None, what, remedy);
            }
        }
    }

    /// Lets journals with lost records continue: drops the rows that know the old end, and moves readers back, so that
    /// they get the new records. The next start puts the session's row again.
    async fn resume_journals(&mut self, marks: &FoundMarks) -> Result<(), StoreError> {
        if self.ended.is_empty() && self.unsettled.is_empty() {
            return Ok(());
        }
        let active = self.ended.keys().chain(&self.unsettled).copied().collect();
        // Otherwise the next start looks at every session.
        if marks.is_whole {
            write_marks(&self.disk, &active, &[]).map_err(|error| StoreError::Failed(error.to_string()))?;
        }
        let path = self.what.data_dir.join(INDEX);
        if self.ended.is_empty() || !path.exists() {
            return Ok(());
        }
        let file = Arc::new(IndexFile::new(path));
        let index = RedbIndex::new(file.clone());
        for (&id, &end) in &self.ended {
            let mut checkpoints = Vec::new();
            for reader in marks.readers.keys() {
                let seq = index.checkpoint(reader, id).await?;
                checkpoints.push((reader, seq.min(end)));
            }
            index.remove(id).await?;
            index.reset_checkpoint(READER, id).await?;
            file.change([((Table::Snapshots, id.as_uuid().as_bytes().to_vec()), None)]);
            for (reader, seq) in checkpoints.into_iter().filter(|(_, seq)| *seq > 0) {
                index.put_checkpoint(reader, id, seq).await?;
            }
        }
        index.flush().await
    }

    /// Compares the projection's files with the journals.
    pub(super) fn projection(&mut self, journals: &BTreeMap<SessionId, Journal>, rows: Option<&Rows>) {
        let Some(dir) = self.what.projection.clone().filter(|dir| dir.exists()) else { return };
        let projection = Projection::new(dir.clone(), known_store_id(&self.disk).ok().flatten());
        if projection.is_anothers().unwrap_or(false) {
            let what = format!("{} is not written: {ANOTHERS}", dir.display());
            return self.find(Check::Projection, Severity::Warning, None, what, ANOTHERS_REMEDY);
        }
        let is_stale = |(id, journal): &(&SessionId, &Journal)| {
            // After a journal compaction or a repair, the seq that the files have reached does not show the change.
            let is_sent_back = rows.is_some_and(|rows| rows.needs_projection(**id)) || self.ended.contains_key(*id);
            is_sent_back || projection.reached(**id).map_or(true, |seq| seq != journal.end.seq)
        };
        let stale = journals.iter().filter(is_stale).count();
        if stale > 0 {
            let what = format!("{} is behind the journals of {}", dir.display(), counted(stale as u64, "session"));
            self.find(Check::Projection, Severity::Warning, None, what, BEHIND);
        }
    }
}
