//! Confinement of a command: a re-exec of this program limits itself, then runs the command.
//!
//! On Linux three processes stand between the service and a command. The service starts a **keeper** (`keep.rs`) and holds one
//! end of a socket; the keeper forks the **entrance** (`enter.rs`) into namespaces of its own and ends everything when
//! that socket closes, also because the service was killed; the entrance limits itself for good (`mounts.rs`,
//! `files.rs`, `calls.rs`) and starts the command. The commands of a session share a network (`network.rs`), which the
//! service holds and is not in. Nothing here runs in the service's own process but the comparison of `guard.rs`. Elsewhere
//! (`absent.rs`) nothing confines, and every command asks.

mod guard;
mod repositories;
#[cfg_attr(target_os = "linux", path = "linux/mod.rs")]
#[cfg_attr(not(target_os = "linux"), path = "absent.rs")]
mod system;
mod way;

use std::{
    fmt,
    fs::DirBuilder,
    io::{Read as _, Write as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::{fs::DirBuilderExt as _, net::UnixStream, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use meerkat_service::folder;
use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    process::getpid,
};
use serde::{Deserialize, Serialize};

pub(crate) use guard::{Guard, PROJECTION, obeyed};
pub(crate) use repositories::{git_folders, main_folders, named_work_tree};
#[cfg(target_os = "linux")]
pub(crate) use system::close_inherited;
pub(crate) use system::{Network, create, has_networks, keep, probe, program};
pub(crate) use way::follow;

/// First argument of a re-exec; not for people.
pub(crate) const MARK: &str = "__meerkat-confined";
/// First argument of a re-exec that makes a network for the commands of a session.
pub(crate) const NETWORK: &str = "__meerkat-network";
/// Names that are tried for a temporary folder.
const NAMES_MAX: u32 = 1_000;

/// What the kernel can do to confine a command. It is found out once, by a trial run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// True if a command reaches no files but those that it is given.
    pub files: bool,
    /// True if a command has no network but that of its session, which it shares with no other.
    pub network: bool,
    /// Protection of the repository's hooks and configuration, which run outside of any confinement later.
    pub git_guard: GitGuard,
}

/// Protection of a repository's hooks and configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GitGuard {
    /// A command sees them read-only, in a namespace of its own, unless a person allowed it to change them.
    Namespace,
    /// They are compared after a command, and a change is said.
    Compare,
}

impl Confinement {
    /// Confinement that lacks nothing.
    pub const WHOLE: Self = Self { files: true, network: true, git_guard: GitGuard::Namespace };

    /// Confinement where nothing confines.
    pub const NONE: Self = Self { files: false, network: false, git_guard: GitGuard::Compare };

    /// Names what confines a command, `none` if nothing does; with `network`, that it may use the network.
    #[must_use]
    pub fn names(self, network: bool) -> String {
        let namespaces = matches!(self.git_guard, GitGuard::Namespace);
        let parts = [(self.files, "landlock"), (self.network, "seccomp"), (namespaces, "namespaces")];
        let parts: Vec<&str> = parts.into_iter().filter(|(holds, _)| *holds).map(|(_, name)| name).collect();
        match (parts.is_empty(), network) {
            (true, _) => "none".to_owned(),
            (false, true) => format!("{}; network open", parts.join(", ")),
            (false, false) => parts.join(", "),
        }
    }

    /// Returns true if nothing is missing. Without that, every command is asked for.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.files && self.network && matches!(self.git_guard, GitGuard::Namespace)
    }
}

impl fmt::Display for Confinement {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guard = match self.git_guard {
            GitGuard::Namespace => "processes and git hooks apart",
            GitGuard::Compare => "git hooks compared afterwards",
        };
        match (self.files, self.network) {
            (true, true) => write!(text, "confined: files, network, {guard}"),
            (true, false) => write!(text, "not confined but for files: network open, {guard}"),
            (false, true) => write!(text, "not confined but for the network: files open, {guard}"),
            (false, false) => write!(text, "not confined: files open, network open, {guard}"),
        }
    }
}

/// Network that a command reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reach {
    /// None: it has no sockets but connected pairs.
    Nothing,
    /// That of its session, which its keeper finds in the control socket.
    Session,
    /// That of the machine, as a person allowed.
    Machine,
}

/// Task of a keeper, as JSON in its control socket: every user of the machine can read the arguments of a process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) shell: PathBuf,
    /// Command for the shell. Without one the entrance reports what held, and ends.
    pub(crate) command: Option<String>,
    /// Folder that the command starts in.
    pub(crate) folder: PathBuf,
    /// Folder that may be written.
    pub(crate) workspace: PathBuf,
    /// True if it may only be read.
    pub(crate) is_read_only: bool,
    /// Folder that gets the private temporary folder.
    pub(crate) temporary: PathBuf,
    pub(crate) readable: Vec<PathBuf>,
    /// Files and folders that are not reached although a folder above them is.
    pub(crate) hidden: Vec<PathBuf>,
    /// Files of which the command sees another content, without their secrets. It needs a namespace.
    pub(crate) shadows: Vec<(PathBuf, String)>,
    pub(crate) reach: Reach,
    /// True if the command may change what git obeys.
    pub(crate) git: bool,
    /// Paths in the workspace that git and other programs obey, as `obeyed` lists them. Some may be missing.
    pub(crate) obeyed: Vec<PathBuf>,
    /// Its `PATH`, if it is not that of the service.
    pub(crate) search_path: Option<String>,
    /// Confinement that must hold, or the command does not run.
    pub(crate) confinement: Confinement,
}

impl Job {
    /// A job without a command, which finds out what the kernel can do.
    #[cfg(any(test, target_os = "linux"))]
    pub(crate) fn trial() -> Self {
        Self {
            shell: PathBuf::new(),
            command: None,
            folder: PathBuf::from("/"),
            // A folder that every system has, and that loses nothing.
            workspace: PathBuf::from("/usr"),
            is_read_only: false,
            temporary: std::env::temp_dir(),
            readable: Vec::new(),
            hidden: Vec::new(),
            shadows: Vec::new(),
            reach: Reach::Nothing,
            git: false,
            obeyed: Vec::new(),
            search_path: None,
            confinement: Confinement::NONE,
        }
    }

    pub(crate) const fn has_namespace(&self) -> bool {
        matches!(self.confinement.git_guard, GitGuard::Namespace)
    }
}

/// Makes the command that starts a keeper, which waits for its task. Closing `control` ends all that it started.
pub(crate) fn keeper(control: OwnedFd) -> Result<Command, String> {
    let program = program().map_err(|error| format!("this program cannot be found: {error}"))?;
    let mut command = Command::new(program);
    command.arg(MARK).stdin(Stdio::from(control));
    Ok(command)
}

/// Gives a keeper that was started its job, and the network that the job needs. It blocks until the keeper reads.
pub(crate) fn hand_over(mut control: &UnixStream, job: &Job, network: Option<&Network>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("the keeper of the command cannot be given its task: {error}");
    let job = serde_json::to_vec(job).map_err(|error| format!("a path is not UTF-8: {error}"))?;
    let length = (job.len() as u64).to_ne_bytes();
    control.write_all(&length).and_then(|()| control.write_all(&job)).map_err(failed)?;
    network.map_or(Ok(()), |network| network.send(control)).map_err(failed)
}

/// Takes the job of this keeper from its control socket, and nothing of what follows.
pub(crate) fn take_job() -> Result<Job, String> {
    let failed = |error: std::io::Error| format!("the keeper of the command cannot read its task: {error}");
    let mut control = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    let mut length = [0; 8];
    control.read_exact(&mut length).map_err(failed)?;
    let mut job = Vec::new();
    control.take(u64::from_ne_bytes(length)).read_to_end(&mut job).map_err(failed)?;
    serde_json::from_slice(&job).map_err(|error| format!("the keeper of the command does not know its task: {error}"))
}

/// Makes the private temporary folder of a command.
fn make_temporary(parent: &Path) -> Result<PathBuf, String> {
    for number in 0..NAMES_MAX {
        let path = parent.join(format!("meerkat-shell-{}-{number}", getpid().as_raw_nonzero()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(format!("the keeper of the command cannot make {}: {error}", path.display())),
        }
    }
    Err(format!("{} has too many folders named meerkat-shell-; delete them", parent.display()))
}

/// Removes the private temporary folder of a command, whatever is in it.
fn remove_temporary(path: &Path) {
    let parent = path.parent().zip(path.file_name());
    let removed = parent.map(|(parent, name)| {
        let parent = openat(CWD, parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        folder::remove(&parent, Path::new(name))
    });
    // What is left stays in the folder of temporary files.
    removed.transpose().ok();
}

/// Returns the exit code of a command, or 128 and the signal that ended it.
pub(crate) fn code_of(status: ExitStatus) -> u8 {
    let code = status.signal().map_or(status.code(), |signal| Some(128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}
