//! Examination of a data directory. It changes nothing unless a repair is requested; then it owns the directory, and
//! keeps everything that it takes out of a journal.
//!
//! Reading every journal takes minutes if there are many, and without a repair the directory is not owned meanwhile:
//! sound journals are read before, and under the lock only those that have changed since.

mod known;
mod reading;
mod rescue;

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs,
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::SystemTime,
};

use sha2::{Digest as _, Sha256};

use super::{Check, Diagnosis, Examination, Finding, Progress, Severity};
use crate::{
    SessionError,
    capability::{Capabilities, Capability},
    clock::{Clock as _, SystemClock},
    ids::{Seq, SessionId},
    memory::recall::{examine_log, mend_log},
    runtime::validate,
    session::{CallProgress, Session},
    store::{
        StoreError,
        directory::{
            journal::{
                Checked, Damage, Disk as _, End, FREE_FILES_MIN, OwnerLock, RealDisk, check, check_directory, look,
                session_dir, sessions_on,
            },
            knows, own,
        },
        hex,
    },
};
use reading::Reading;

/// Least free bytes of a disk that is not full.
const FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;
/// With less, the next turn may not fit.
const FULL_BYTES: u64 = 1024 * 1024;
/// Least number of files that can still be made.
const INODES_MIN: u64 = 1024;
/// Age at which every reader should have acknowledged a record.
const ACKNOWLEDGED_WITHIN_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// Bytes of a blob to read at once.
const CHUNK_BYTES: usize = 256 * 1024;
/// Advice for faults that can be repaired.
const REPAIR: &str = "Run `meerkat doctor --repair`.";
/// Advice for files and folders that cannot be read.
const LOOK: &str = "Check the disk, and the permissions of its folders and files.";
/// Advice for what the next start repairs by itself.
const NEXT_START: &str = "The next start repairs it.";

/// Examines a data directory.
///
/// # Errors
/// If there is none, it cannot be read, or a repair is requested and another process owns it (`STORE_LOCKED`).
pub async fn examine(what: Examination, progress: Progress<'_>) -> Result<Diagnosis, SessionError> {
    let keeps_sessions = Capabilities::compiled().require(Capability::SessionStore).is_ok();
    let mut doctor = Doctor::enter(what, keeps_sessions)?;
    doctor.permissions();
    doctor.room(doctor.disk.free_bytes().ok());
    doctor.files(doctor.disk.free_files().ok());
    if keeps_sessions {
        let ahead = doctor.read_ahead(progress)?;
        let rows = doctor.rows();
        if let Some(journals) = doctor.journals(ahead, progress)
            && doctor.owner.is_some()
        {
            doctor.compare(&journals, rows.as_ref()).await?;
            doctor.projection(&journals, rows.as_ref());
        }
        doctor.marks();
    }
    doctor.memory();
    let mut diagnosis = doctor.diagnosis;
    diagnosis.findings.sort_by_key(|finding| (finding.mended, finding.severity, finding.check, finding.session_id));
    Ok(diagnosis)
}

struct Doctor {
    what: Examination,
    disk: RealDisk,
    /// Kept while anything is compared or repaired; `None` if another process owns the directory.
    owner: Option<Arc<OwnerLock>>,
    diagnosis: Diagnosis,
    /// Last seqs that were durable, as the index knows them.
    known: HashMap<SessionId, Seq>,
    /// Sessions with lost records, each with the seq up to which readers may be done with it.
    ended: BTreeMap<SessionId, Seq>,
    /// Damaged journals that are to be repaired, each with what is wrong.
    broken: Vec<(SessionId, Checked, String)>,
    /// Sessions that the next start has to settle.
    unsettled: Vec<SessionId>,
    /// Time before which records are old.
    old_before_ms: i64,
}

/// Names, lengths and times of the files of a session before it was read.
type Stamp = Vec<(OsString, u64, SystemTime)>;

/// Sound journals, each with the number of its records.
type Ahead = BTreeMap<SessionId, (Stamp, Journal, u64)>;

/// Result of reading a journal.
struct Journal {
    end: End,
    /// False if it is damaged: then nothing is compared with it.
    is_sound: bool,
    /// Its last old record.
    old_seq: Seq,
}

impl Doctor {
    /// Enters the directory. Without sessions it holds no store, but perhaps a memory.
    fn enter(what: Examination, keeps_sessions: bool) -> Result<Self, SessionError> {
        let refuse = |why: &str| SessionError::StoreNotWritable {
            path: what.data_dir.display().to_string(),
            why: why.to_owned(),
        };
        let is_there = if keeps_sessions { what.data_dir.join("format").is_file() } else { what.data_dir.is_dir() };
        if !is_there {
            return Err(refuse("there is no store in it"));
        }
        check_directory(&what.data_dir)?;
        let disk = RealDisk::new(what.data_dir.clone());
        let old_before_ms = SystemClock::new().now().as_millis() - ACKNOWLEDGED_WITHIN_MS;
        let (diagnosis, ended, unsettled) = (Diagnosis::default(), BTreeMap::new(), Vec::new());
        let (known, broken) = (HashMap::new(), Vec::new());
        let mut doctor = Self { what, disk, owner: None, diagnosis, known, ended, broken, unsettled, old_before_ms };
        doctor.own()?;
        Ok(doctor)
    }

    /// Owns the directory, unless another process does and no repair is requested.
    fn own(&mut self) -> Result<(), SessionError> {
        match own(&self.what.data_dir) {
            Ok(owner) => self.owner = Some(Arc::new(owner)),
            Err(SessionError::StoreLocked { pid }) if !self.what.is_repair => {
                self.diagnosis.owner_pid = Some(pid.unwrap_or_default());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn find(&mut self, check: Check, severity: Severity, session_id: Option<SessionId>, what: String, remedy: &str) {
        let finding = Finding { check, severity, session_id, what, remedy: remedy.to_owned(), mended: false };
        self.diagnosis.findings.push(finding);
    }

    /// Like [`Self::find`], but repairs the fault if that is requested.
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
                Err(error) => what = format!("{what}; it could not be repaired: {error}"),
            }
        }
        let remedy = if mended { "Nothing is left to do." } else { REPAIR };
        let finding = Finding { check, severity, session_id, what, remedy: remedy.to_owned(), mended };
        self.diagnosis.findings.push(finding);
    }

    /// Finds files and folders that others may enter or read.
    fn permissions(&mut self) {
        let mut folders = vec![self.what.data_dir.clone()];
        while let Some(folder) = folders.pop() {
            self.permission(&folder, 0o700);
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            for entry in entries.flatten() {
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    Ok(kind) if kind.is_file() => self.permission(&entry.path(), 0o600),
                    // A socket has a check of its own, and meerkat makes no links.
                    _ => {}
                }
            }
        }
    }

    fn permission(&mut self, path: &Path, wanted: u32) {
        let Ok(found) = fs::symlink_metadata(path) else { return };
        let mode = found.mode() & 0o777;
        if mode & 0o077 == 0 && mode & wanted == wanted {
            return;
        }
        let what = format!("{} has mode {mode:04o} and should have {wanted:04o}", path.display());
        let path = path.to_owned();
        self.mend(Check::Permissions, Severity::Warning, None, what, move |_| {
            fs::set_permissions(&path, fs::Permissions::from_mode(wanted))?;
            Ok("its mode was set".to_owned())
        });
    }

    /// Finds a full disk.
    fn room(&mut self, free: Option<u64>) {
        if let Some(free) = free.filter(|free| *free < FREE_BYTES_MIN) {
            let (severity, is) =
                if free < FULL_BYTES { (Severity::Error, "full") } else { (Severity::Warning, "nearly full") };
            let dir = self.what.data_dir.display();
            let what = format!("the disk of {dir} is {is}: {free} bytes are free, and should be {FREE_BYTES_MIN}");
            let missing = (FREE_BYTES_MIN - free).div_ceil(1024 * 1024);
            let remedy = format!(
                "Free {missing} MiB or more; turns that were refused are taken again without a restart. \
                 `meerkat call session/retain` and `meerkat call journal/compact`, with `dry_run=true`, say what could be \
                 deleted."
            );
            self.find(Check::DiskSpace, severity, None, what, &remedy);
        }
    }

    /// Finds a disk on which no file can be made, although bytes are free.
    fn files(&mut self, free: Option<u64>) {
        let Some(free) = free.filter(|free| *free < INODES_MIN) else { return };
        let (severity, has) = if free < FREE_FILES_MIN { (Severity::Error, "no") } else { (Severity::Warning, "few") };
        let dir = self.what.data_dir.display();
        let what = format!("the disk of {dir} has {has} inodes left: {free} are free, and should be {INODES_MIN}");
        let remedy = format!(
            "Delete or move {} files or more on that disk, wherever they are (`df -i` counts them); turns that were \
             refused are taken again without a restart.",
            INODES_MIN - free
        );
        self.find(Check::DiskSpace, severity, None, what, &remedy);
    }

    /// Reads every journal while others may use the directory, and then owns it again. Returns the sound ones: another
    /// process may be writing the others at this moment.
    fn read_ahead(&mut self, progress: Progress<'_>) -> Result<Ahead, SessionError> {
        let mut ahead = Ahead::new();
        if self.what.is_repair || self.owner.take().is_none() {
            return Ok(ahead);
        }
        let ids = sessions_on(&self.disk, &mut |_, _| {}).unwrap_or_default();
        for (at, &id) in ids.iter().enumerate() {
            if !progress(at as u64, ids.len() as u64) {
                break;
            }
            let (before, stamp) = (std::mem::take(&mut self.diagnosis), self.stamp(id));
            let journal = self.journal(id, true);
            let Diagnosis { findings, records, .. } = std::mem::replace(&mut self.diagnosis, before);
            if let (Some(journal), Ok(stamp), true) = (journal, stamp, findings.is_empty()) {
                ahead.insert(id, (stamp, journal, records));
            }
        }
        self.own()?;
        Ok(ahead)
    }

    fn stamp(&self, id: SessionId) -> io::Result<Stamp> {
        let files = fs::read_dir(self.what.data_dir.join(session_dir(id)))?.map(|entry| {
            let (entry, found) = entry.and_then(|entry| entry.metadata().map(|found| (entry, found)))?;
            Ok((entry.file_name(), found.len(), found.modified()?))
        });
        let mut stamp = files.collect::<io::Result<Stamp>>()?;
        stamp.sort();
        Ok(stamp)
    }

    /// Reads every session's journal from end to end; `None` if they cannot be listed, or nobody waits.
    fn journals(&mut self, mut ahead: Ahead, progress: Progress<'_>) -> Option<BTreeMap<SessionId, Journal>> {
        let mut unlisted = Vec::new();
        let ids = sessions_on(&self.disk, &mut |folder, error| {
            unlisted.push(format!("the sessions in {} cannot be listed: {error}", folder.display()));
        });
        for what in unlisted {
            self.find(Check::Journal, Severity::Error, None, what, LOOK);
        }
        let ids = match ids {
            Ok(ids) => ids,
            Err(error) => {
                let what = format!("the sessions cannot be listed: {error}");
                self.find(Check::Journal, Severity::Error, None, what, LOOK);
                return None;
            }
        };
        let mut journals = BTreeMap::new();
        for (at, &id) in ids.iter().enumerate() {
            if !progress(at as u64, ids.len() as u64) {
                return None;
            }
            if let Some((stamp, journal, records)) = ahead.remove(&id)
                && self.stamp(id).is_ok_and(|now| now == stamp)
            {
                self.diagnosis.sessions += 1;
                self.diagnosis.records += records;
                journals.insert(id, journal);
                continue;
            }
            let before = (self.diagnosis.findings.len(), self.diagnosis.sessions, self.diagnosis.records);
            let journal = self.journal(id, self.owner.is_some());
            if self.owner.is_none() && !self.what.data_dir.join(session_dir(id)).exists() {
                // Its owner deleted it meanwhile.
                self.diagnosis.findings.truncate(before.0);
                (self.diagnosis.sessions, self.diagnosis.records) = (before.1, before.2);
            } else if let Some(journal) = journal {
                journals.insert(id, journal);
            }
        }
        progress(ids.len() as u64, ids.len() as u64);
        Some(journals)
    }

    fn read(&self, id: SessionId) -> Result<Option<(Checked, Reading)>, StoreError> {
        let mut reading = Reading::of(id, self.old_before_ms);
        let known = self.known.get(&id).copied().unwrap_or_default();
        let checked = check(&self.disk, id, knows, known, &mut |seq, line| reading.see(seq, line))?;
        Ok(checked.map(|checked| (checked, reading)))
    }

    /// Reads one journal. If it is not at rest, a record that its owner is writing looks torn, and calls may have no
    /// results yet.
    fn journal(&mut self, id: SessionId, is_at_rest: bool) -> Option<Journal> {
        let mut read = self.read(id);
        let is_good = |(checked, reading): &(Checked, Reading)| checked.damage.is_none() && reading.trouble.is_none();
        if !is_at_rest && !read.as_ref().is_ok_and(|read| read.as_ref().is_some_and(is_good)) {
            // The owner may have replaced the files that were read.
            read = self.read(id);
        }
        let (checked, mut reading) = match read {
            Ok(read) => read?,
            Err(error) => {
                let what = format!("its journal cannot be read: {error}");
                self.find(Check::Journal, Severity::Error, Some(id), what, LOOK);
                return Some(Journal { end: End { seq: 0, chain: 0 }, is_sound: false, old_seq: 0 });
            }
        };
        self.diagnosis.sessions += 1;
        self.diagnosis.records += reading.records;
        if checked.damage.is_some() {
            // It is noted below.
        } else if checked.torn_bytes() > 0 && is_at_rest {
            let what = format!(
                "{} bytes at the end of its journal were never acknowledged: its process ended while it wrote them",
                checked.torn_bytes()
            );
            let remedy = "Nothing is lost. The session's next turn takes them away and keeps a copy in the quarantine.";
            self.find(Check::Journal, Severity::Warning, Some(id), what, remedy);
        }
        if reading.own_seq == 0 && checked.damage.is_none() && reading.trouble.is_none() {
            reading.trouble = Some((reading.records, "nothing in it is this session's own".to_owned()));
        }
        if let Some((seq, why)) = reading.trouble.take() {
            let what = format!("record {seq} of its journal cannot be used: {why}");
            let remedy = "The session can be read up to there; `meerkat sessions export` saves what is good.";
            self.find(Check::Journal, Severity::Error, Some(id), what, remedy);
        }
        if is_at_rest {
            self.dangling(id, reading.session.as_ref());
        }
        self.blobs(id, &reading);
        let is_sound = checked.damage.is_none() && reading.own_seq > 0;
        let journal = Journal { end: checked.end(), is_sound, old_seq: reading.old_seq };
        if let Some(damage) = checked.damage.clone() {
            self.damage(id, checked, &damage);
        }
        Some(journal)
    }

    /// Notes damage; it is repaired once all journals were read.
    fn damage(&mut self, id: SessionId, checked: Checked, damage: &Damage) {
        let lost = match damage.lost.as_slice() {
            [] => String::new(),
            lost => format!("; lost are the events {}", ranges(lost)),
        };
        let what = format!(
            "its journal is damaged: {}; without a word it can be read up to seq {}{lost}",
            damage.why, damage.last_good_seq
        );
        if !damage.can_be_mended {
            let remedy = "It cannot be repaired here. Where a newer version wrote it, use that one; else a backup or a bundle \
                          may have the session.";
            return self.find(Check::Journal, Severity::Error, Some(id), what, remedy);
        }
        if self.what.is_repair {
            self.broken.push((id, checked, what));
        } else {
            self.find(Check::Journal, Severity::Error, Some(id), what, REPAIR);
        }
    }

    /// Finds calls without a result, from a process that ended. A turn that waits for approval goes on.
    fn dangling(&mut self, id: SessionId, session: Option<&Session>) {
        let open = session.and_then(|session| session.open_turn()).filter(|open| !open.outlives_its_process());
        let Some(open) = open else { return };
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

    fn blobs(&mut self, id: SessionId, reading: &Reading) {
        let dir = self.what.data_dir.join(session_dir(id)).join("blobs");
        let wrong = |name: &String| {
            // A bundle may have brought any text as a name.
            if validate::blob_hash(name).is_err() {
                return Some((name.clone(), "has no name of a blob".to_owned()));
            }
            match hash(&dir.join(name)) {
                Ok(hash) if hash == *name => None,
                Ok(_) => Some((name.clone(), "is not what was written".to_owned())),
                // No bundle brings copies of files.
                Err(error) if error.kind() == io::ErrorKind::NotFound && !reading.blobs.contains(name) => None,
                Err(error) => Some((name.clone(), format!("cannot be read: {error}"))),
            }
        };
        let mut found: Vec<(String, String)> = reading.blobs.union(&reading.copies).filter_map(wrong).collect();
        if self.owner.is_none() && !found.is_empty() {
            // The owner may have compacted the journal meanwhile, and dropped unnamed blobs.
            let again = self.read(id).ok().flatten().map(|(_, reading)| reading).unwrap_or_default();
            found.retain(|(name, _)| again.blobs.contains(name) || again.copies.contains(name));
        }
        for (name, wrong) in found {
            let remedy = match reading.blobs.contains(&name) {
                true => {
                    "The text that it held is lost but for its beginning and end; a backup or a bundle may have it."
                }
                false => "A file as it was before a change is lost; a backup may have it.",
            };
            self.find(Check::Blob, Severity::Error, Some(id), format!("blob {name} {wrong}"), remedy);
        }
    }

    /// Examines the format and the marks of the store.
    fn marks(&mut self) {
        match look(&self.disk) {
            Ok(marks) if !marks.is_whole && self.owner.is_some() => {
                let what = "the folder `active` is missing, so that every session is looked at".to_owned();
                self.find(Check::Store, Severity::Warning, None, what, NEXT_START);
            }
            Ok(_) => {}
            Err(error) => {
                let what = format!("the marks of the store cannot be read: {error}");
                self.find(Check::Store, Severity::Error, None, what, LOOK);
            }
        }
    }

    /// Examines the memory's log from end to end.
    fn memory(&mut self) {
        let is_owned = self.owner.is_some();
        let mut found = examine_log(&self.what.data_dir, is_owned);
        if !is_owned && !found.as_ref().is_ok_and(Vec::is_empty) {
            // The owner may have replaced the files that were read.
            found = examine_log(&self.what.data_dir, is_owned);
        }
        match found {
            Ok(damages) if damages.is_empty() => {}
            Ok(damages) => {
                let what = format!("the memory's log, which says what to forget, is damaged: {}", damages.join("; "));
                self.mend(Check::Memory, Severity::Error, None, what, |doctor| {
                    mend_log(&doctor.what.data_dir).map_err(io::Error::other)
                });
            }
            Err(error) => {
                let what = format!("the memory's log cannot be read: {error}");
                self.find(Check::Memory, Severity::Error, None, what, LOOK);
            }
        }
    }
}

/// Lists ranges of seqs.
fn ranges(lost: &[(Seq, Seq)]) -> String {
    let range = |(from, to): &(Seq, Seq)| if from == to { from.to_string() } else { format!("{from} to {to}") };
    lost.iter().map(range).collect::<Vec<_>>().join(", ")
}

/// Hashes a blob, which is its name.
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
mod tests;
