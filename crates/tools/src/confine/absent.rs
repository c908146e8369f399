//! Systems without a confinement: a command runs as it is, its processes end with it, and every one asks.

use std::{
    io,
    os::{fd::AsFd, unix::process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    process::{Pid, Signal, kill_process_group, setsid},
};

use super::{Confinement, Job, code_of, make_temporary, remove_temporary};

/// Returns the path by which this program starts itself.
pub(crate) fn program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Returns what confines a command: nothing.
pub(crate) const fn probe() -> Confinement {
    Confinement::NONE
}

/// Network of a session's commands, which this system does not have.
#[derive(Debug)]
pub(crate) enum Network {}

impl Network {
    /// Makes none.
    pub(crate) fn make() -> Result<Self, String> {
        Err("this system gives commands no network".to_owned())
    }

    /// Is never called.
    pub(crate) fn send(&self, _: impl AsFd) -> io::Result<()> {
        match *self {}
    }
}

/// Returns true if commands can have networks of their own: they cannot.
pub(crate) const fn has_networks() -> bool {
    false
}

/// Makes no network.
pub(crate) fn create() -> Result<u8, String> {
    Network::make().map(|network| match network {})
}

/// Runs a job to its end and returns the exit code: that of the command, or 128 and the signal that ended it. A job that
/// asks for any confinement does not run.
pub(crate) fn keep(job: &Job) -> Result<u8, String> {
    if job.confinement != Confinement::NONE {
        return Err("nothing on this system confines a command".to_owned());
    }
    setsid().ok();
    let temporary = make_temporary(&job.temporary)?;
    let code = run(job, &temporary);
    remove_temporary(&temporary);
    code
}

fn run(job: &Job, temporary: &Path) -> Result<u8, String> {
    let command = job.command.as_deref().ok_or("a job has no command")?;
    let mut shell = Command::new(&job.shell)
        .args(["-c", command])
        .current_dir(&job.folder)
        .env("TMPDIR", temporary)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(|error| format!("the command cannot start the shell: {error}"))?;
    let group = Pid::from_child(&shell);
    std::thread::spawn(move || {
        let control = io::stdin();
        // The service closes its end, or is killed.
        while poll(&mut [PollFd::new(&control, PollFlags::IN)], None) == Err(Errno::INTR) {}
        kill_process_group(group, Signal::KILL).ok();
    });
    let status = shell.wait().map_err(|error| format!("the keeper of the command cannot wait: {error}"))?;
    // What it left, unless that made a group of its own.
    kill_process_group(group, Signal::KILL).ok();
    Ok(code_of(status))
}
