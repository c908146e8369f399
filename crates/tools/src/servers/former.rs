//! Servers of a former owner of the data directory. One that is killed leaves them to their supervisors, which end them
//! within a few seconds; until then a call that it made may go on. Each of them holds a lock, and no turn begins before.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use meerkat_service::clock::Clock;
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock},
    process::getpid,
};
use tokio::sync::OnceCell;

/// Longest wait for them; their supervisors need less than four seconds.
const WAIT: Duration = Duration::from_secs(10);
/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// Lock that the servers of one data directory share.
#[derive(Default)]
pub(super) struct Former {
    /// File that each server of this pool holds locked. It is unknown while this process does not own the directory.
    pub(super) lock: OnceLock<PathBuf>,
    /// Set once those of a former owner have ended, or were waited for in vain.
    ended: OnceCell<()>,
}

impl Former {
    /// Waits until no server of a former owner is left. Nothing of this pool runs before.
    pub(super) async fn ended(&self, clock: &dyn Clock, tell: &(dyn Fn(&str) + Send + Sync)) {
        let Some(path) = self.lock.get() else { return };
        let wait = async {
            if let Err(why) = wait(path, clock).await {
                let line = format!(
                    "A tool server of the former meerkat process may still run, and its last call may go on beside this \
                     turn: {why}."
                );
                tracing::warn!(target: "servers", "{line}");
                tell(&line);
            }
        };
        self.ended.get_or_init(|| wait).await;
    }
}

async fn wait(path: &Path, clock: &dyn Clock) -> Result<(), String> {
    let failed = |error: io::Error| format!("{} cannot be locked: {error}", path.display());
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path).map_err(failed)?;
    let end = clock.elapsed() + WAIT;
    loop {
        match file.try_lock() {
            // A child between its fork and its exec has the file open too, and would keep the lock.
            Ok(()) => return file.unlock().map_err(failed),
            Err(TryLockError::WouldBlock) if clock.elapsed() < end => clock.sleep(LOOK).await,
            Err(TryLockError::WouldBlock) => return Err(holders(path)),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
}

/// Says which processes hold the lock, and what to do.
fn holders(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let entries = |folder: String| std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let holds = |pid: &i32| {
        let mut open = entries(format!("/proc/{pid}/fd"));
        *pid != getpid().as_raw_nonzero().get()
            && open.any(|file| std::fs::read_link(file.path()).is_ok_and(|file| file == path))
    };
    let pids = entries("/proc".to_owned()).filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pids: Vec<String> = pids.filter(holds).map(|pid| pid.to_string()).collect();
    match pids.is_empty() {
        true => format!("`lsof '{}'` names its process, which you may end", path.display()),
        false => format!("`kill -9 {}` ends it", pids.join(" ")),
    }
}

/// Locks the file for this process and all that it starts. Its parent must still be there afterwards.
pub(super) fn hold(path: &Path) -> io::Result<File> {
    // Without CLOEXEC: what comes of the server keeps the lock as long as it lives, even if this process is killed.
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    flock(&file, FlockOperation::LockShared)?;
    Ok(file.into())
}
