//! Confinement of a command: a re-exec of this program limits itself, then runs the command.
//!
//! Three processes stand between the service and a command. The service starts a **keeper** (`keep.rs`) and holds one
//! end of a socket; the keeper starts the **entrance** (`enter.rs`) in namespaces of its own and ends everything when
//! that socket closes, also because the service was killed; the entrance limits itself for good (`mounts.rs`,
//! `files.rs`, `calls.rs`) and starts the command. Nothing here runs in the service's own process but the comparison of
//! `guard.rs`.

mod calls;
mod enter;
mod files;
mod guard;
mod keep;
mod mounts;

use std::{
    fmt,
    io::Read as _,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

use serde::{Deserialize, Serialize};

pub(crate) use enter::enter;
pub(crate) use guard::Guard;
pub(crate) use keep::keep;

/// First argument of a re-exec. Nobody types it.
pub(crate) const MARK: &str = "__meerkat-confined";
/// Program that the kernel finds also after the file was replaced by an update.
const SELF: &str = "/proc/self/exe";
/// Time that a trial run may take, in milliseconds.
const PROBE_MS: i64 = 5_000;

/// What the kernel can do to confine a command. It is found out once, by a trial run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// True if a command reaches no files but those that it is given.
    pub files: bool,
    /// True if a command has no network and no sockets.
    pub network: bool,
    /// Protection of the repository's hooks and configuration, which run outside of any confinement later.
    pub git_guard: GitGuard,
}

/// Protection of a repository's hooks and configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GitGuard {
    /// A command sees them read-only, in a namespace of its own.
    Namespace,
    /// They are compared after a command; a change is put back.
    Compare,
}

impl Confinement {
    /// Confinement where nothing confines.
    pub const NONE: Self = Self { files: false, network: false, git_guard: GitGuard::Compare };

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

/// Task of a keeper, as JSON in its arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) shell: PathBuf,
    /// Command for the shell. Without one the entrance reports what held, and ends.
    pub(crate) command: Option<String>,
    /// Folder that the command starts in.
    pub(crate) folder: PathBuf,
    /// Folder that may be written.
    pub(crate) workspace: PathBuf,
    /// Folder that gets the private temporary folder.
    pub(crate) temporary: PathBuf,
    pub(crate) readable: Vec<PathBuf>,
    /// Files and folders that are not reached although a folder above them is.
    pub(crate) hidden: Vec<PathBuf>,
    /// True if the command may use the network.
    pub(crate) network: bool,
    /// Confinement that must hold, or the command does not run.
    pub(crate) confinement: Confinement,
}

impl Job {
    pub(crate) const fn has_namespace(&self) -> bool {
        matches!(self.confinement.git_guard, GitGuard::Namespace)
    }
}

/// Makes the command that starts a keeper. Closing `control` ends all that it started.
pub(crate) fn keeper(job: &Job, control: OwnedFd) -> Result<Command, String> {
    let job = serde_json::to_string(job).map_err(|error| format!("a path is not UTF-8: {error}"))?;
    let mut command = Command::new(SELF);
    command.args([MARK, "keep", &job]).stdin(Stdio::from(control));
    Ok(command)
}

/// Returns what the kernel can do, found out by a trial run on the first call. It blocks.
pub(crate) fn probe() -> Confinement {
    static FOUND: OnceLock<Confinement> = OnceLock::new();
    *FOUND.get_or_init(|| {
        // Without a namespace the rest may still hold.
        let guards = [GitGuard::Namespace, GitGuard::Compare];
        let found = guards.into_iter().find_map(trial).unwrap_or(Confinement::NONE);
        tracing::debug!(confinement = %found, "the kernel was probed");
        found
    })
}

fn trial(git_guard: GitGuard) -> Option<Confinement> {
    let temporary = std::env::temp_dir();
    let job = Job {
        shell: PathBuf::new(),
        command: None,
        folder: PathBuf::from("/"),
        // A folder that every system has, and that nothing is lost by.
        workspace: PathBuf::from("/usr"),
        temporary,
        readable: Vec::new(),
        hidden: Vec::new(),
        network: false,
        confinement: Confinement { git_guard, ..Confinement::NONE },
    };
    let (control, theirs) = UnixStream::pair().ok()?;
    let mut command = keeper(&job, theirs.into()).ok()?;
    let mut child = command.env_clear().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    drop(command);
    let mut stdout = child.stdout.take()?;
    let answers = {
        let ready = rustix::event::PollFd::new(&stdout, rustix::event::PollFlags::IN);
        let wait = rustix::event::Timespec { tv_sec: PROBE_MS / 1_000, tv_nsec: 0 };
        rustix::event::poll(&mut [ready], Some(&wait)).is_ok_and(|ready| ready > 0)
    };
    if !answers {
        drop(control);
    }
    let mut report = Vec::new();
    stdout.read_to_end(&mut report).ok()?;
    child.wait().ok()?;
    serde_json::from_slice(&report).ok()
}
