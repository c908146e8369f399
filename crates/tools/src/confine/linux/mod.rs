//! Confinement on Linux: Landlock, seccomp and namespaces.

mod calls;
mod enter;
mod files;
mod keep;
mod mounts;
mod network;
mod users;

use std::{
    io::{self, Read as _},
    os::{fd::AsFd, unix::net::UnixStream},
    path::PathBuf,
    process::Stdio,
    sync::OnceLock,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Confinement, GitGuard, Job, Reach, code_of, guard, hand_over, keeper, make_temporary, remove_temporary};

pub(crate) use keep::{close_inherited, keep};
pub(crate) use network::{Network, create};

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
        let found = guards.into_iter().find_map(|git_guard| trial(git_guard, None)).unwrap_or(Confinement::NONE);
        tracing::debug!(confinement = %found, "the kernel was probed");
        found
    })
}

/// Returns true if the kernel gives commands networks of their own, found out by a trial run on the first call. It blocks.
pub(crate) fn has_networks() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let made = probe().is_whole().then(Network::make);
        let found = matches!(&made, Some(Ok(network)) if trial(GitGuard::Namespace, Some(network)).is_some());
        tracing::debug!(found, ?made, "the kernel was asked for a network");
        found
    })
}

fn trial(git_guard: GitGuard, network: Option<&Network>) -> Option<Confinement> {
    let reach = if network.is_some() { Reach::Session } else { Reach::Nothing };
    let job = Job { reach, confinement: Confinement { git_guard, ..Confinement::NONE }, ..Job::trial() };
    let (control, theirs) = UnixStream::pair().ok()?;
    let mut command = keeper(theirs.into()).ok()?;
    let mut child = command.env_clear().stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    drop(command);
    hand_over(&control, &job, network).ok()?;
    let mut stdout = child.stdout.take()?;
    if !answers_in_time(&stdout) {
        drop(control);
    }
    let mut report = Vec::new();
    stdout.read_to_end(&mut report).ok()?;
    child.wait().ok()?;
    serde_json::from_slice(&report).ok()
}

/// Waits as long as a trial run may take, and returns true if there is an answer or its end.
fn answers_in_time(answer: &impl AsFd) -> bool {
    let ready = PollFd::new(answer, PollFlags::IN);
    let wait = Timespec { tv_sec: PROBE_MS / 1_000, tv_nsec: 0 };
    poll(&mut [ready], Some(&wait)).is_ok_and(|ready| ready > 0)
}
