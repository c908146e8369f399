//! Confinement on Linux: Landlock, seccomp and namespaces.

mod calls;
mod enter;
mod files;
mod keep;
mod mounts;

use std::{
    io::{self, Read as _},
    os::unix::net::UnixStream,
    path::PathBuf,
    process::Stdio,
    sync::OnceLock,
};

use super::{Confinement, GitGuard, Job, code_of, guard, keeper, make_temporary, remove_temporary};

pub(crate) use keep::{close_inherited, keep};

/// Program that the kernel finds also after the file was replaced by an update.
const SELF: &str = "/proc/self/exe";
/// Time that a trial run may take, in milliseconds.
const PROBE_MS: i64 = 5_000;

/// Returns the path by which this program starts itself.
pub(crate) fn program() -> io::Result<PathBuf> {
    Ok(PathBuf::from(SELF))
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
    let job = Job { confinement: Confinement { git_guard, ..Confinement::NONE }, ..Job::trial() };
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
