//! Looks at a data directory and says what is not as it should be. It changes nothing unless it is asked to mend; then
//! it owns the directory, and whatever it takes out of a journal is kept.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use sha2::{Digest as _, Sha256};

use super::{
    IndexFile, RedbIndex,
    events::knows,
    journal::{Damage, OwnerLock, RealDisk, check, cut, look, mend_marks, session_dir, sessions_on},
};
use crate::{
    SessionError,
    agent::record::bodies,
    doctor::{Check, Diagnosis, Examination, Finding, Progress, Severity},
    ids::{Seq, SessionId},
    projection::Projection,
    service::SessionQuery,
    session::{CallProgress, Session, event::Record, message::Body},
    store::{SessionIndex as _, StoreError, hex},
    wire::decode_event,
};

/// Free bytes under which a disk counts as full.
const FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// Rows of the index that are read at a time.
const ROWS_READ: usize = 1000;
/// Bytes of a blob that are read at a time.
const CHUNK_BYTES: usize = 256 * 1024;
const INDEX: &str = "index.redb";
/// What mends most things.
const REPAIR: &str = "Run `meerkat doctor --repair`.";

/// Looks at a data directory.
///
/// # Errors
/// Where there is none, it cannot be read, or it is to be mended and another process owns it (`STORE_LOCKED`).
pub async fn examine(what: Examination, progress: Progress<'_>) -> Result<Diagnosis, SessionError> {
    let mut doctor = Doctor::enter(what)?;
    doctor.permissions();
    doctor.room(rustix::fs::statvfs(&doctor.what.data_dir).map(|found| found.f_bavail * found.f_frsize).ok());
    let journals = doctor.journals(progress)?;
    doctor.index(&journals).await?;
    doctor.let_go_on()?;
    doctor.marks();
    doctor.projection(&journals);
    let mut diagnosis = doctor.diagnosis;
    diagnosis.findings.sort_by_key(|finding| (finding.mended, finding.severity, finding.check, finding.session_id));
    Ok(diagnosis)
}

struct Doctor {
    what: Examination,
    disk: RealDisk,
    /// Held while anything is looked at, so that nothing changes meanwhile; another process may have it.
    owner: Option<Arc<OwnerLock>>,
    diagnosis: Diagnosis,
    /// Sessions that go on from where their journals end now.
    ended: Vec<SessionId>,
}

/// What a journal came to.
struct Journal {
    last_seq: Seq,
    is_sound: bool,
}

impl Doctor {
    fn enter(what: Examination) -> Result<Self, SessionError> {
        let refuse = |why: &str| SessionError::StoreNotWritable {
            path: what.data_dir.display().to_string(),
            why: why.to_owned(),
        };
        if !what.data_dir.join("format").is_file() {
            return Err(refuse("there is no store in it"));
        }
        let mut diagnosis = Diagnosis::default();
        let owner = match OwnerLock::take(&what.data_dir) {
            Ok(owner) => Some(Arc::new(owner)),
            Err(SessionError::StoreLocked { pid }) if !what.is_repair => {
                diagnosis.owner_pid = Some(pid.unwrap_or_default());
                None
            }
            Err(error) => return Err(error),
        };
        let disk = RealDisk::new(what.data_dir.clone());
        Ok(Self { what, disk, owner, diagnosis, ended: Vec::new() })
    }

    fn find(&mut self, check: Check, severity: Severity, session_id: Option<SessionId>, what: String, remedy: &str) {
        let finding = Finding { check, severity, session_id, what, remedy: remedy.to_owned(), mended: false };
        self.diagnosis.findings.push(finding);
    }

    /// As [`Self::find`], for what can be mended: does so where that is asked for.
    fn mend(
        &mut self,
        check: Check,
        severity: Severity,
        session_id: Option<SessionId>,
        mut what: String,
        work: impl FnOnce(&mut Self) -> io::Result<String>,
    ) {
        let mut mended = false;
        if self.what.is_repair {
            match work(self) {
                Ok(done) => {
                    what = format!("{what}; {done}");
                    mended = true;
                }
                Err(error) => what = format!("{what}; it could not be mended: {error}"),
            }
        }
        let remedy = if mended { "Nothing is left to do." } else { REPAIR };
        let finding = Finding { check, severity, session_id, what, remedy: remedy.to_owned(), mended };
        self.diagnosis.findings.push(finding);
    }

    /// Nobody but the owner may enter or read.
    fn permissions(&mut self) {
        let mut folders = vec![self.what.data_dir.clone()];
        while let Some(folder) = folders.pop() {
            let wanted = if folder == self.what.data_dir { 0o700 } else { 0 };
            self.permission(&folder, wanted | 0o700);
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    Ok(kind) if kind.is_file() => self.permission(&entry.path(), 0o600),
                    // A socket is guarded by its own check, and a link is nothing that meerkat made.
                    _ => {}
                }
            }
        }
    }

    fn permission(&mut self, path: &Path, wanted: u32) {
        let Ok(found) = fs::symlink_metadata(path) else { return };
        let mode = found.mode() & 0o777;
        if mode & 0o077 == 0 && mode & 0o600 == 0o600 {
            return;
        }
        let what = format!("{} has mode {mode:04o} and should have {wanted:04o}", path.display());
        let path = path.to_owned();
        self.mend(Check::Permissions, Severity::Warning, None, what, move |_| {
            fs::set_permissions(&path, fs::Permissions::from_mode(wanted))?;
            Ok("its mode was set".to_owned())
        });
    }

    /// Whether there is room for what comes next.
    fn room(&mut self, free: Option<u64>) {
        if let Some(free) = free.filter(|free| *free < FREE_BYTES_MIN) {
            let what = format!("the disk of {} is full: {free} bytes are free", self.what.data_dir.display());
            let remedy = "Make room; turns are taken again without a restart. `meerkat sessions retain --dry-run` and \
                          `meerkat journal compact` say what could go.";
            self.find(Check::DiskSpace, Severity::Error, None, what, remedy);
        }
    }

    /// Every session's journal, from end to end.
    fn journals(&mut self, progress: Progress<'_>) -> Result<HashMap<SessionId, Journal>, SessionError> {
        let ids = sessions_on(&self.disk).map_err(|error| StoreError::Failed(error.to_string()))?;
        let mut journals = HashMap::with_capacity(ids.len());
        for (at, &id) in ids.iter().enumerate() {
            progress(at as u64, ids.len() as u64);
            if let Some(journal) = self.journal(id)? {
                journals.insert(id, journal);
            }
        }
        progress(ids.len() as u64, ids.len() as u64);
        Ok(journals)
    }

    fn journal(&mut self, id: SessionId) -> Result<Option<Journal>, SessionError> {
        let mut reading = Reading::default();
        let Some(checked) = check(&self.disk, id, knows, &mut |seq, line| reading.see(seq, line))? else {
            return Ok(None);
        };
        self.diagnosis.sessions += 1;
        self.diagnosis.records += reading.records;
        // What an owner is writing at this moment looks torn, and its calls have no results yet.
        let is_at_rest = self.owner.is_some();
        if let Some(damage) = &checked.damage {
            self.damage(id, damage);
        } else if checked.torn_bytes() > 0 && is_at_rest {
            let what = format!(
                "{} bytes at the end of its journal were never acknowledged: its process ended while it wrote them",
                checked.torn_bytes()
            );
            let remedy = "Nothing is lost. The session's next turn takes them away and keeps a copy in the quarantine.";
            self.find(Check::Journal, Severity::Warning, Some(id), what, remedy);
        }
        if let Some((seq, why)) = reading.trouble.take() {
            let what = format!("record {seq} of its journal cannot be used: {why}");
            let remedy = "The session can be read up to there; `meerkat sessions export` saves what is good.";
            self.find(Check::Journal, Severity::Error, Some(id), what, remedy);
        }
        if is_at_rest {
            self.dangling(id, reading.session.as_ref());
        }
        self.blobs(id, &reading.blobs);
        let is_sound = checked.damage.is_none() || self.ended.contains(&id);
        Ok(Some(Journal { last_seq: checked.last_seq(), is_sound }))
    }

    fn damage(&mut self, id: SessionId, damage: &Damage) {
        let what = format!("its journal is damaged: {}; it can be read up to seq {}", damage.why, damage.last_good_seq);
        let damage = damage.clone();
        self.mend(Check::Journal, Severity::Error, Some(id), what, move |doctor| {
            let kept = cut(&doctor.disk, id, &damage)?.ok_or_else(|| io::Error::other("there is no good part"))?;
            doctor.ended.push(id);
            Ok(format!("it ends at seq {} now, and what stood behind is kept in {kept}", damage.last_good_seq))
        });
    }

    /// Calls that a process left without a result when it ended.
    fn dangling(&mut self, id: SessionId, session: Option<&Session>) {
        let Some(open) = session.and_then(Session::open_turn) else { return };
        let unanswered = open.calls.iter().filter(|call| !matches!(call.progress, CallProgress::Finished(_)));
        let calls = unanswered.map(|call| format!("`{}`", call.call.name)).collect::<Vec<_>>().join(", ");
        let what = match calls.is_empty() {
            true => format!("turn {} was cut off when its process ended", open.turn),
            false => format!("turn {} was cut off when its process ended; without a result: {calls}", open.turn),
        };
        let remedy = format!(
            "The next start ends the turn and says that the outcome is unknown; `meerkat resume {id}` goes on with it."
        );
        self.find(Check::ToolCall, Severity::Warning, Some(id), what, &remedy);
    }

    fn blobs(&mut self, id: SessionId, named: &BTreeSet<String>) {
        for name in named {
            let path = self.what.data_dir.join(session_dir(id)).join("blobs").join(name);
            let wrong = match hash(&path) {
                Ok(hash) if hash == *name => continue,
                Ok(_) => "is not what was written".to_owned(),
                Err(error) => format!("cannot be read: {error}"),
            };
            let remedy =
                "The text that it held is lost but for its beginning and end; a backup or a bundle may have it.";
            self.find(Check::Blob, Severity::Error, Some(id), format!("blob {name} {wrong}"), remedy);
        }
    }

    /// Compares what redb holds with the journals. A copy is looked at, because opening the file would change it.
    async fn index(&mut self, journals: &HashMap<SessionId, Journal>) -> Result<(), SessionError> {
        let path = self.what.data_dir.join(INDEX);
        if self.owner.is_none() || !path.exists() {
            return Ok(());
        }
        let folder = self.what.data_dir.join("new").join("doctor");
        let copied = ensure(&folder).and_then(|()| fs::copy(&path, folder.join(INDEX)));
        let rows = match &copied {
            Ok(_) => rows(folder.join(INDEX)).await,
            Err(_) => Ok(Vec::new()),
        };
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::debug!(%error, "the copy of the index stays until the next start");
        }
        match (copied, rows) {
            (Err(error), _) => {
                let what = format!("the index could not be looked at: {error}");
                self.find(Check::Index, Severity::Warning, None, what, "Make room, and run `meerkat doctor` again.");
            }
            (_, Err(why)) => self.mend_index(format!("the index cannot be read: {why}")),
            (_, Ok(rows)) => self.compare(&rows, journals),
        }
        Ok(())
    }

    fn compare(&mut self, rows: &[(SessionId, Seq)], journals: &HashMap<SessionId, Journal>) {
        for (id, seq) in rows {
            let is_cut = self.ended.contains(id);
            if let Some(journal) =
                journals.get(id).filter(|journal| journal.last_seq < *seq && journal.is_sound && !is_cut)
            {
                let what = format!(
                    "the index knows of seq {seq}, and its journal ends at {}: records are lost",
                    journal.last_seq
                );
                let last_seq = journal.last_seq;
                self.mend(Check::Index, Severity::Error, Some(*id), what, |doctor| {
                    doctor.ended.push(*id);
                    Ok(format!("it goes on from seq {last_seq}; a backup or a bundle may have the rest"))
                });
            }
        }
        let known: HashMap<SessionId, Seq> = rows.iter().copied().collect();
        let is_right = |(id, journal): &(&SessionId, &Journal)| {
            !journal.is_sound || known.get(*id).is_some_and(|seq| *seq >= journal.last_seq)
        };
        let wrong = journals.iter().filter(|it| !is_right(it)).count();
        let gone = known.keys().filter(|id| !journals.contains_key(id)).count();
        if wrong + gone > 0 && self.ended.is_empty() {
            self.mend_index(format!(
                "the index is behind the journals of {wrong} sessions and lists {gone} that are gone; the next start \
                 makes good what its process left"
            ));
        }
    }

    fn mend_index(&mut self, what: String) {
        self.mend(Check::Index, Severity::Warning, None, what, |doctor| doctor.set_index_aside());
    }

    fn set_index_aside(&self) -> io::Result<String> {
        let path = self.what.data_dir.join(INDEX);
        let aside = (0..).map(|n| self.what.data_dir.join(format!("{INDEX}.set-aside-{n}")));
        let free = aside.into_iter().find(|path| !path.exists()).unwrap_or_else(|| path.clone());
        fs::rename(&path, &free)?;
        Ok(format!("it is kept as {}, and the next start makes it anew", free.display()))
    }

    /// What else knew where a journal ended must not hold what is lost against it.
    fn let_go_on(&mut self) -> Result<(), SessionError> {
        if self.ended.is_empty() {
            return Ok(());
        }
        self.mend_marks(false)?;
        if self.what.data_dir.join(INDEX).exists() {
            self.set_index_aside().map_err(|error| StoreError::Failed(error.to_string()))?;
        }
        Ok(())
    }

    fn mend_marks(&self, is_trusted: bool) -> Result<(), StoreError> {
        mend_marks(Arc::new(RealDisk::new(self.what.data_dir.clone())), &self.ended, is_trusted, knows)
    }

    /// The marks of the store, and whether all its readers are known.
    fn marks(&mut self) {
        let (readers, is_whole) = match look(&self.disk) {
            Ok((readers, is_whole)) => (readers, is_whole),
            Err(error) => {
                let what = format!("the store journal cannot be read: {error}");
                return self.find(Check::StoreJournal, Severity::Error, None, what, "Look to the disk.");
            }
        };
        if (is_whole && readers.is_trusted()) || self.owner.is_none() {
            return;
        }
        let names: Vec<String> = readers.readers().into_iter().map(|it| it.reader).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let state = if is_whole { "was damaged" } else { "is damaged" };
        let what = format!(
            "the store journal {state}, so that a reader may be missing and no journal is compacted; the readers that \
             are known: {names}"
        );
        self.mend(Check::StoreJournal, Severity::Error, None, what, |doctor| {
            doctor.mend_marks(true).map_err(io::Error::other)?;
            Ok("these count as all from now on; register again what is missing".to_owned())
        });
    }

    fn projection(&mut self, journals: &HashMap<SessionId, Journal>) {
        let Some(dir) = self.what.projection.clone().filter(|dir| dir.exists()) else { return };
        let projection = Projection::new(dir.clone());
        let is_stale = |(id, journal): &(&SessionId, &Journal)| {
            projection.reached(**id).map_or(true, |seq| seq < journal.last_seq)
        };
        let stale = journals.iter().filter(is_stale).count();
        if stale > 0 && self.owner.is_some() {
            let what = format!("{} is behind the journals of {stale} sessions", dir.display());
            self.find(Check::Projection, Severity::Warning, None, what, "Run `meerkat project rebuild`.");
        }
    }
}

/// What the records of one journal say.
#[derive(Default)]
struct Reading {
    session: Option<Session>,
    /// The first record that could not be used.
    trouble: Option<(Seq, String)>,
    blobs: BTreeSet<String>,
    records: u64,
}

impl Reading {
    fn see(&mut self, seq: Seq, line: &[u8]) {
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
        let done = match &mut self.session {
            Some(session) => session.apply(&record),
            None => Session::begin(&record).map(|session| self.session = Some(session)),
        };
        let names = bodies(&mut record.event).into_iter().filter_map(|body| match body {
            Body::Blob(blob) => Some(std::mem::take(&mut blob.blob)),
            Body::Inline(_) => None,
        });
        self.blobs.extend(names);
        done.map_err(|error| error.to_string())
    }
}

/// Each session in the index with its last seq.
async fn rows(path: PathBuf) -> Result<Vec<(SessionId, Seq)>, String> {
    let index = RedbIndex::new(Arc::new(IndexFile::new(path)));
    let (mut rows, mut cursor) = (Vec::new(), None);
    loop {
        let query = SessionQuery { limit: Some(ROWS_READ), cursor, ..SessionQuery::default() };
        let page = index.page(query).await.map_err(|error| error.to_string())?;
        rows.extend(page.items.iter().map(|summary| (summary.session_id, summary.last_seq)));
        cursor = page.next_cursor;
        if index.needs_rebuild().await {
            return Err("it is damaged, or not every session is in it".to_owned());
        }
        if cursor.is_none() {
            return Ok(rows);
        }
    }
}

/// The name that a blob's bytes give it.
fn hash(path: &Path) -> io::Result<String> {
    let (mut file, mut hash) = (fs::File::open(path)?, Sha256::new());
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&chunk[..read]),
        }
    }
}

fn ensure(folder: &Path) -> io::Result<()> {
    drop(fs::remove_dir_all(folder));
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("data");
        drop(super::super::open_stores(&data_dir).unwrap());
        let mut doctor = Doctor::enter(Examination { data_dir, projection: None, is_repair: false }).unwrap();
        doctor.room(Some(FREE_BYTES_MIN));
        assert_eq!(doctor.diagnosis.findings, []);
        doctor.room(Some(4096));
        let found = &doctor.diagnosis.findings[0];
        assert_eq!((found.check, found.severity), (Check::DiskSpace, Severity::Error));
        assert!(found.what.contains("4096 bytes are free"), "{found:?}");
    }
}
