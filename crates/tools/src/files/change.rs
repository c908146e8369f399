//! Replacement of a file: whole or not at all, and only as it was last seen.
//!
//! The new content goes to a temporary file in the same folder, is synced, and takes the file's place by a rename. A
//! crash leaves the old file or the new one; another name of the old file (a hard link) keeps the old content.
//! Attributes besides owner and mode are not kept. No part of a path may be a link.

use std::{
    ffi::OsStr,
    fs::{File, Metadata},
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    io::{Read as _, Write as _},
    os::{
        fd::OwnedFd,
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
    tool::{Approval, Effect, Invocation, Plan, ToolError},
};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
};
use tokio_util::sync::CancellationToken;

use super::{
    FileOptions, diff, io_failed,
    path::{Inside, PlainError, Workspace, is_folder, open_plain, shown},
    seen::{Seen, Stamp},
};

/// Locks of files that are being changed; files may share one.
const LOCKS: usize = 64;
/// Names that are tried for a temporary file.
const ATTEMPTS: usize = 100;

/// Changes of files by all sessions of a process.
pub(super) struct Changes {
    options: FileOptions,
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
    pub(super) fn new(options: FileOptions) -> Self {
        Self {
            options,
            seen: Seen::new(options.seen_files),
            locks: std::array::from_fn(|_| Mutex::default()),
            temporaries: AtomicU64::new(0),
        }
    }

    pub(super) const fn options(&self) -> &FileOptions {
        &self.options
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
        if path.is_git() {
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
        let most = self.options.file_bytes;
        let mut bytes = Vec::new();
        (&mut file).take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > most {
            let message = format!("{path} has {} bytes; files of at most {most} can be changed.", metadata.len());
            return Err(ToolError::Refused(message));
        }
        if metadata.permissions().mode() & 0o222 == 0 {
            let message = format!("{path} is read-only; make it writable first if it is meant to change.");
            return Err(ToolError::Refused(message));
        }
        Ok(Target { path, found: Some(Found { bytes, metadata }) })
    }

    /// Returns true if the session saw the file as it is now, and false if it never saw it.
    ///
    /// # Errors
    /// Refuses a file that changed since.
    pub(super) fn is_seen(
        &self,
        workspace: &Workspace,
        session: SessionId,
        target: &Target,
    ) -> Result<bool, ToolError> {
        let Some(found) = &target.found else { return Ok(false) };
        match self.seen.last(session, &full(workspace, &target.path)) {
            None => Ok(false),
            Some(stamp) if stamp == Stamp::of(&found.metadata) => Ok(true),
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
            Some(Err(_)) => format!("{path} is replaced; it is not text.\n{}", diff::unified(&path, None, new)),
        };
        // Each change of the configuration is asked about.
        let always_asks = target.path.is_configuration();
        let rule = (!always_asks).then(|| rule.to_owned());
        Plan { preview: Some(preview), rule, always_asks, ..Plan::new(effect, Approval::Ask) }
    }

    /// Puts the new content in place of the file.
    pub(super) fn commit(
        &self,
        workspace: &Workspace,
        invocation: &Invocation,
        target: &Target,
        new: &[u8],
    ) -> Result<(), ToolError> {
        let path = &target.path;
        let Some((parent, name)) = path.split() else { return Err(is_folder(path)) };
        let folder = match &target.found {
            Some(_) => workspace.folder(&parent)?,
            None => workspace.make_folder(&parent)?,
        };
        let temporary = Temporary::make(&folder, &self.temporaries, target.found.is_none())
            .map_err(|errno| io_failed(format_args!("a temporary file beside {path}"), errno))?;
        let file = temporary.fill(path, target.found.as_ref(), new)?;
        stop(&invocation.cancel)?;
        unchanged(&folder, name, target)?;
        temporary.keep(name).map_err(|errno| io_failed(path, errno))?;
        let synced = rustix::fs::fsync(&folder);
        // The rename itself changes the time of the file's last change.
        let metadata = file.metadata().map_err(|error| io_failed(path, error))?;
        self.seen.record(invocation.session_id, &full(workspace, path), Stamp::of(&metadata));
        synced.map_err(|errno| io_failed(format_args!("{path} was written, but its folder was not synced"), errno))
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
    Err(ToolError::Refused(format!("{} changed at this very moment; read it again first.", target.path)))
}

/// Temporary file, deleted unless it is kept.
struct Temporary<'a> {
    folder: &'a OwnedFd,
    name: Option<String>,
    file: File,
}

impl<'a> Temporary<'a> {
    /// Makes an empty file. One that takes another's place is closed to everybody else until it has that one's mode.
    fn make(folder: &'a OwnedFd, counter: &AtomicU64, is_new: bool) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(if is_new { 0o666 } else { 0o600 });
        let mut refusal = Errno::EXIST;
        for _ in 0..ATTEMPTS {
            let name = format!(".meerkat-{}-{}.tmp", std::process::id(), counter.fetch_add(1, Ordering::Relaxed));
            match rustix::fs::openat(folder, &name, flags, mode) {
                Ok(file) => return Ok(Self { folder, name: Some(name), file: file.into() }),
                // A file of a process that ended before it could delete it.
                Err(Errno::EXIST) => {}
                Err(errno) => {
                    refusal = errno;
                    break;
                }
            }
        }
        Err(refusal)
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

    /// Gives the file its name.
    fn keep(mut self, name: &OsStr) -> Result<(), Errno> {
        let Some(temporary) = &self.name else { return Ok(()) };
        rustix::fs::renameat(self.folder, temporary, self.folder, name)?;
        self.name = None;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let _ = rustix::fs::unlinkat(self.folder, name, AtFlags::empty());
        }
    }
}
