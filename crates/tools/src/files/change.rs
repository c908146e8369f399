//! Replacement of a file: whole or not at all, and only as it was last seen.
//!
//! The new content goes to a temporary file in the same folder, is synced, and takes the file's place by a rename. Where
//! the file system can, the temporary file has no name before that, so that a crash leaves the old file or the new one and
//! nothing else. Another name of the old file (a hard link) keeps the old content.
//! Attributes besides owner and mode are not kept. No part of a path may be a link.

use std::{
    ffi::OsStr,
    fs::{File, Metadata},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io::{Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use meerkat_service::{
    SessionId,
    tool::{Approval, ChangeLog, Effect, Invocation, Plan, ToolError, change_of},
};
use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{
    diff,
    path::{Inside, PlainError, Workspace, io_failed, is_folder, open_plain, shown},
    seen::{Seen, Stamp},
};
use crate::{confine::PROJECTION, obeyed::is_obeyed};

/// Bytes of a file that `edit` or `write` may leave or find.
pub(super) const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Locks of files that are being changed; files may share one.
const LOCKS: usize = 64;
/// Names that are tried for a temporary file.
const ATTEMPTS: usize = 100;
/// Age of a temporary file that an ended process has left, in seconds.
const LEFT_S: i64 = 3_600;

/// Changes of files by all sessions of a process.
pub(super) struct Changes {
    seen: Seen,
    /// Held from reading a file to replacing it: calls of one step run together.
    locks: [Mutex<()>; LOCKS],
    temporaries: AtomicU64,
}

/// File that is to be replaced or made.
pub(super) struct Target {
    pub(super) path: Inside,
    pub(super) found: Option<Found>,
}

impl Target {
    /// Returns true if the file has this content already.
    pub(super) fn holds(&self, content: &str) -> bool {
        self.found.as_ref().is_some_and(|found| found.bytes == content.as_bytes())
    }
}

/// File that is there.
pub(super) struct Found {
    pub(super) bytes: Vec<u8>,
    metadata: Metadata,
}

impl Changes {
    pub(super) fn new() -> Self {
        Self { seen: Seen::default(), locks: std::array::from_fn(|_| Mutex::default()), temporaries: AtomicU64::new(0) }
    }

    /// Remembers that a session saw a file. Through a link it is not seen under its own name.
    pub(super) fn record(&self, workspace: &Workspace, session: SessionId, path: &Inside, stamp: Stamp) {
        let Some((parent, name)) = path.split() else { return };
        let Ok(folder) = workspace.folder(&parent) else { return };
        if let Ok(file) = open_plain(&folder, path, name)
            && file.metadata().is_ok_and(|metadata| Stamp::of(&metadata).is_same_file(&stamp))
        {
            self.seen.record(session, &full(workspace, path), stamp);
        }
    }

    /// Waits until no other call changes the file.
    pub(super) fn lock(&self, workspace: &Workspace, path: &Inside) -> MutexGuard<'_, ()> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(full(workspace, path));
        let at = usize::try_from(hash % LOCKS as u64).unwrap_or_default();
        self.locks[at].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds the file that a path names, and reads it.
    pub(super) fn target(&self, workspace: &Workspace, path: &str) -> Result<Target, ToolError> {
        let path = workspace.inside(path)?;
        if workspace.is_git(&path) {
            let message = format!("{path} belongs to git, and tools never write there; git's own commands do.");
            return Err(ToolError::Refused(message));
        }
        let Some((parent, name)) = path.split() else { return Err(is_folder(&path)) };
        let folder = match workspace.folder(&parent) {
            Ok(folder) => folder,
            Err(_) if workspace.is_missing(&parent) => return Ok(Target { path, found: None }),
            Err(error) => return Err(refused(error)),
        };
        let mut file = match open_plain(&folder, &path, name) {
            Ok(file) => file,
            Err(PlainError::Missing) => return Ok(Target { path, found: None }),
            Err(PlainError::Other(error)) => return Err(refused(error)),
        };
        let failed = |error| refused(io_failed(&path, error));
        let metadata = file.metadata().map_err(failed)?;
        let mut bytes = Vec::new();
        (&mut file).take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let message =
                format!("{path} has {} bytes; files of at most {FILE_BYTES_MAX} can be changed.", metadata.len());
            return Err(ToolError::Refused(message));
        }
        if metadata.permissions().mode() & 0o222 == 0 {
            let message = format!("{path} is read-only; make it writable first if it is meant to change.");
            return Err(ToolError::Refused(message));
        }
        Ok(Target { path, found: Some(Found { bytes, metadata }) })
    }

    /// Returns true if the session saw the file as it is now, and false if it never saw it. A change that a person has
    /// approved, seeing the file in it, counts: after a restart it is all that is known.
    ///
    /// # Errors
    /// Refuses a file that changed since.
    pub(super) fn is_seen(
        &self,
        workspace: &Workspace,
        invocation: &Invocation,
        target: &Target,
    ) -> Result<bool, ToolError> {
        let Some(found) = &target.found else { return Ok(false) };
        let (session, path, now) = (invocation.session_id, full(workspace, &target.path), Stamp::of(&found.metadata));
        match self.seen.last(session, &path) {
            None if invocation.is_approved => {
                self.seen.record(session, &path, now);
                Ok(true)
            }
            None => Ok(false),
            Some(stamp) if stamp == now => Ok(true),
            Some(_) => {
                let message = format!("{} changed since this session read it; read it again first.", target.path);
                Err(ToolError::Refused(message))
            }
        }
    }

    /// Plan of a call that puts this text in place of the file.
    pub(super) fn plan(effect: Effect, rule: &str, target: &Target, new: &str) -> Plan {
        let path = shown(target.path.as_path());
        let preview = match target.found.as_ref().map(|found| std::str::from_utf8(&found.bytes)) {
            None => diff::unified(&path, None, new),
            Some(Ok(old)) => diff::unified(&path, Some(old), new),
            Some(Err(_)) => {
                let hash = target.found.as_ref().map(|found| diff::hash(&found.bytes)).unwrap_or_default();
                let made = diff::unified(&path, None, new);
                format!("{path} is replaced; it is not text, and its hash is {hash}.\n{made}")
            }
        };
        // Each change of what programs obey is asked about, and of the files that this program writes for people.
        let always_asks = is_obeyed(target.path.as_path()) || target.path.as_path().starts_with(PROJECTION);
        let rule = (!always_asks).then(|| rule.to_owned());
        let before = target.found.as_ref().map(|found| found.bytes.as_slice());
        // A path that is not UTF-8 is refused when the call runs.
        let name = target.path.as_path().to_str().filter(|_| !target.holds(new));
        let files = name.map(|name| change_of(name, before, new.as_bytes())).into_iter().collect();
        Plan { preview: Some(preview), rule, always_asks, files, ..Plan::new(effect, Approval::Ask) }
    }

    /// Puts the new content in place of the file, after a copy of the old one is kept. Blocks.
    pub(super) fn commit(
        &self,
        workspace: &Workspace,
        (invocation, log): (&Invocation, &ChangeLog),
        target: &Target,
        new: &[u8],
    ) -> Result<(), ToolError> {
        let path = &target.path;
        let name = path.as_path().to_str().ok_or_else(|| ToolError::Refused(format!("{path} is not valid UTF-8.")))?;
        let before = target.found.as_ref().map(|found| found.bytes.as_slice());
        Handle::current().block_on(log.note(name, before, new)).map_err(refused)?;
        let (file, folder) =
            self.replace(workspace, target, new, &invocation.cancel).inspect_err(|_| log.withdraw(name))?;
        let synced = rustix::fs::fsync(&folder);
        // The rename itself changes the time of the file's last change.
        let metadata = file.metadata().map_err(|error| io_failed(path, error))?;
        self.seen.record(invocation.session_id, &full(workspace, path), Stamp::of(&metadata));
        synced.map_err(|errno| io_failed(format_args!("{path} was written, but its folder was not synced"), errno))
    }

    /// Gives the new content the file's name, and returns it with its folder, which is not yet synced. After an error
    /// nothing has changed.
    pub(super) fn replace(
        &self,
        workspace: &Workspace,
        target: &Target,
        new: &[u8],
        cancel: &CancellationToken,
    ) -> Result<(File, OwnedFd), ToolError> {
        let path = &target.path;
        let Some((parent, name)) = path.split() else { return Err(is_folder(path)) };
        let folder = match &target.found {
            Some(_) => workspace.folder(&parent)?,
            None => workspace.make_folder(&parent)?,
        };
        let temporary = Temporary::make(&folder, &self.temporaries, target.found.is_none())
            .map_err(|errno| io_failed(format_args!("a temporary file beside {path}"), errno))?;
        temporary.remove_older();
        let file = temporary.fill(path, target.found.as_ref(), new)?;
        stop(cancel)?;
        unchanged(&folder, name, target)?;
        let is_new = target.found.is_none();
        temporary.keep(name, &self.temporaries, is_new).map_err(|errno| match errno {
            Errno::EXIST if is_new => changed_now(path),
            errno => io_failed(path, errno),
        })?;
        Ok((file, folder))
    }

    /// Deletes the file, and returns its folder, which is not yet synced. After an error nothing has changed.
    pub(super) fn remove(workspace: &Workspace, target: &Target) -> Result<OwnedFd, ToolError> {
        let path = &target.path;
        let Some((parent, name)) = path.split() else { return Err(is_folder(path)) };
        let folder = workspace.folder(&parent)?;
        unchanged(&folder, name, target)?;
        rustix::fs::unlinkat(&folder, name, AtFlags::empty()).map_err(|errno| io_failed(path, errno))?;
        Ok(folder)
    }
}

fn full(workspace: &Workspace, path: &Inside) -> PathBuf {
    workspace.root().join(path.as_path())
}

/// Turns a failure before anything changed into a refusal.
fn refused(error: ToolError) -> ToolError {
    match error {
        ToolError::Failed(why) => ToolError::Refused(why),
        other => other,
    }
}

fn stop(cancel: &CancellationToken) -> Result<(), ToolError> {
    if cancel.is_cancelled() { Err(ToolError::Cancelled) } else { Ok(()) }
}

/// Refuses to replace a file that is no longer the one that was read.
fn unchanged(folder: &OwnedFd, name: &OsStr, target: &Target) -> Result<(), ToolError> {
    let now = match open_plain(folder, &target.path, name) {
        Ok(file) => Some(file.metadata().map_err(|error| io_failed(&target.path, error))?),
        Err(PlainError::Missing) => None,
        Err(PlainError::Other(error)) => return Err(refused(error)),
    };
    if now.as_ref().map(Stamp::of) == target.found.as_ref().map(|found| Stamp::of(&found.metadata)) {
        return Ok(());
    }
    Err(changed_now(&target.path))
}

fn changed_now(path: &Inside) -> ToolError {
    ToolError::Refused(format!("{path} changed at this very moment; read it again first."))
}

/// Temporary file, deleted unless it is kept.
struct Temporary<'a> {
    folder: &'a OwnedFd,
    /// Its name, if it has one yet.
    name: Option<String>,
    file: File,
}

impl<'a> Temporary<'a> {
    /// Makes an empty file. One that takes another's place is closed to everybody else until it has that one's mode.
    fn make(folder: &'a OwnedFd, counter: &AtomicU64, is_new: bool) -> Result<Self, Errno> {
        let mode = Mode::from_raw_mode(if is_new { 0o666 } else { 0o600 });
        #[cfg(target_os = "linux")]
        {
            let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::openat(folder, ".", flags, mode) {
                return Ok(Self { folder, name: None, file: file.into() });
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (name, file) = with_name(counter, |name| rustix::fs::openat(folder, name, flags, mode))?;
        Ok(Self { folder, name: Some(name), file: file.into() })
    }

    /// Deletes the temporary files that ended processes left in the folder. Those of the last hour stay: their process may
    /// run, also in another container or on another machine.
    fn remove_older(&self) {
        let (Ok(own), Ok(entries)) = (rustix::fs::fstat(&self.file), rustix::fs::Dir::read_from(self.folder)) else {
            return;
        };
        for entry in entries.flatten().filter(|entry| is_temporary(entry.file_name().to_bytes())) {
            let found = rustix::fs::statat(self.folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
            let is_left = found.is_ok_and(|found| {
                FileType::from_raw_mode(found.st_mode).is_file()
                    && found.st_uid == own.st_uid
                    && found.st_mtime + LEFT_S < own.st_mtime
            });
            if is_left {
                let _ = rustix::fs::unlinkat(self.folder, entry.file_name(), AtFlags::empty());
            }
        }
    }

    /// Writes the content, gives the file the owner and mode of the old one, and syncs it.
    fn fill(&self, path: &Inside, old: Option<&Found>, new: &[u8]) -> Result<File, ToolError> {
        let failed = |error| io_failed(path, error);
        let mut file = self.file.try_clone().map_err(failed)?;
        file.write_all(new).map_err(failed)?;
        if let Some(Found { metadata: old, .. }) = old {
            let own = file.metadata().map_err(failed)?;
            if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
                std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid())).map_err(|error| {
                    let message = format!("{path} belongs to another user or group, which cannot be kept: {error}");
                    ToolError::Refused(message)
                })?;
            }
            file.set_permissions(old.permissions()).map_err(failed)?;
        }
        file.sync_all().map_err(failed)?;
        Ok(file)
    }

    /// Gives the file its name. A new one never replaces another that has just come. One without any name that is to
    /// replace a file gets a temporary one first, because only a rename replaces.
    fn keep(mut self, name: &OsStr, counter: &AtomicU64, is_new: bool) -> Result<(), Errno> {
        let open = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &OsStr| rustix::fs::linkat(CWD, &open, self.folder, name, AtFlags::SYMLINK_FOLLOW);
        let temporary = match self.name.take() {
            Some(temporary) => temporary,
            None if is_new => return link(name),
            None => with_name(counter, |name| link(OsStr::new(name)))?.0,
        };
        let renamed = match is_new {
            true => rename_to_free(self.folder, &temporary, name),
            false => rustix::fs::renameat(self.folder, &temporary, self.folder, name),
        };
        // A file that could not take its place is deleted.
        self.name = renamed.is_err().then_some(temporary);
        renamed
    }
}

/// Renames a file to a name that nothing has.
fn rename_to_free(folder: &OwnedFd, old: &str, new: &OsStr) -> Result<(), Errno> {
    #[cfg(target_os = "linux")]
    match rustix::fs::renameat_with(folder, old, folder, new, rustix::fs::RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {}
        renamed => return renamed,
    }
    match rustix::fs::linkat(folder, old, folder, new, AtFlags::empty()) {
        Ok(()) => rustix::fs::unlinkat(folder, old, AtFlags::empty()),
        // A file system that knows neither; that the name is free was checked right before.
        Err(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS) => rustix::fs::renameat(folder, old, folder, new),
        Err(error) => Err(error),
    }
}

/// Returns true for a name that `with_name` gives.
fn is_temporary(name: &[u8]) -> bool {
    let numbers = name.strip_prefix(b".meerkat-").and_then(|name| name.strip_suffix(b".tmp"));
    let parts = numbers.map(|numbers| numbers.split(|byte| *byte == b'-').collect::<Vec<_>>());
    let is_number = |part: &&[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    parts.is_some_and(|parts| parts.len() == 2 && parts.iter().all(is_number))
}

/// Makes something under the first temporary name that is free.
fn with_name<T>(counter: &AtomicU64, make: impl Fn(&str) -> Result<T, Errno>) -> Result<(String, T), Errno> {
    for _ in 0..ATTEMPTS {
        let name = format!(".meerkat-{}-{}.tmp", std::process::id(), counter.fetch_add(1, Ordering::Relaxed));
        match make(&name) {
            // A file of a process that ended before it could delete it.
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (name, made)),
        }
    }
    Err(Errno::EXIST)
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.folder, name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Broken once: a file that came after the last look at its name was replaced.
    #[test]
    fn a_new_file_takes_a_free_name_alone() {
        let place = tempfile::tempdir().unwrap();
        let counter = AtomicU64::new(0);
        let folder = rustix::fs::open(place.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for is_named in [false, true] {
            let make = || {
                let mut temporary = Temporary::make(&folder, &counter, true).unwrap();
                if is_named && temporary.name.is_none() {
                    let (name, file) = with_name(&counter, |name| {
                        File::create_new(place.path().join(name)).map_err(|error| Errno::from_io_error(&error).unwrap())
                    })
                    .unwrap();
                    temporary = Temporary { folder: &folder, name: Some(name), file };
                }
                (&temporary.file).write_all(b"new").unwrap();
                temporary
            };
            let path = place.path().join("file");
            fs::write(&path, "somebody's").unwrap();
            assert_eq!(make().keep(OsStr::new("file"), &counter, true), Err(Errno::EXIST));
            assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
            make().keep(OsStr::new("file"), &counter, false).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            fs::remove_file(&path).unwrap();
            make().keep(OsStr::new("file"), &counter, true).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "new");
            assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "no temporary file is left");
        }
    }
}
