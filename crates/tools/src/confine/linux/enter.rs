//! Entrance of a command: limits itself for good, then starts the command.

use std::{
    ffi::OsStr,
    fs::File,
    io::{Seek as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::process::{CommandExt as _, ExitStatusExt as _},
    },
    path::Path,
    process::{Command, ExitStatus, Stdio},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    io::Errno,
    process::{
        Pid, Resource, Rlimit, Signal, WaitOptions, geteuid, getrlimit, set_parent_process_death_signal, setrlimit,
        setsid, wait,
    },
    thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities, set_no_new_privs},
};

use super::{
    Confinement, GitGuard, Job, Reach, calls, code_of, files,
    mounts::{self, View},
    network::Id,
};

/// Processes and threads that a command may have in a namespace of its own, or its user altogether elsewhere.
const PROCESSES_MAX: u64 = 2_048;
/// Variables that say where package managers and compilers keep what they can get again, and the folder in the private
/// temporary one: those of the home folder cannot be written.
const CACHES: [(&str, &str); 2] = [("XDG_CACHE_HOME", "cache"), ("npm_config_cache", "cache/npm")];
/// Rights that root keeps, so that a workspace of another user stays usable.
const ROOTS_RIGHTS: CapabilitySet =
    CapabilitySet::CHOWN.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::FOWNER);

/// Limits this process and runs the job's command. Returns its exit code, or that of a trial. `services` is the network of
/// the service.
pub(super) fn enter(job: &Job, services: Id, temporary: &Path) -> Result<u8, String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed("be bound to its keeper", error))?;
    setsid().ok();
    let View { temporary, has_shared_memory } = match job.has_namespace() {
        true => mounts::apply(job, temporary)?,
        false => View { temporary: temporary.to_owned(), has_shared_memory: false },
    };
    limit(Resource::Nproc, PROCESSES_MAX)?;
    limit(Resource::Core, 0)?;
    set_no_new_privs(true).map_err(|error| failed("give up new rights", error))?;
    let files = files::apply(job, &temporary, has_shared_memory);
    drop_rights()?;
    let calls = calls::apply(has_sockets(job, services)?);
    let Some(command) = &job.command else {
        let held = Confinement { files: files.is_ok(), network: calls.is_ok(), ..job.confinement };
        let report = serde_json::to_vec(&held).map_err(|error| failed("report", error))?;
        std::io::stdout().write_all(&report).map_err(|error| failed("report", error))?;
        return Ok(0);
    };
    if job.confinement.files {
        files?;
    }
    if job.confinement.network {
        calls?;
    }
    let text = file_of(command).map_err(|error| failed("be handed to the shell", error))?;
    let mut shell = Command::new(&job.shell);
    shell.arg("-c").arg(reading(&job.shell, &text)).current_dir(&job.folder).env("TMPDIR", &temporary);
    shell.stdin(Stdio::null());
    shell.envs(CACHES.map(|(variable, folder)| (variable, temporary.join(folder))));
    match job.confinement.git_guard {
        GitGuard::Compare => Err(failed("start the shell", shell.exec())),
        GitGuard::Namespace => {
            let shell = shell.spawn().map_err(|error| failed("start the shell", error))?;
            first_process(Pid::from_child(&shell))
        }
    }
}

/// Makes a file without a name that has a command, and that a program started by this process finds open.
fn file_of(command: &str) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("command", MemfdFlags::empty())?);
    file.write_all(command.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// Makes the text by which a shell runs the command in a file, which what it starts does not have. The command itself is
/// no argument: every user of the machine can read those.
fn reading(shell: &Path, text: &File) -> String {
    let number = text.as_raw_fd();
    match shell.file_name() == Some(OsStr::new("bash")) {
        // It needs no program, whatever the PATH is.
        true => format!("eval \"$(</proc/self/fd/{number})\" {number}<&-"),
        false => format!("eval \"$(cat <&{number})\" {number}<&-"),
    }
}

/// Decides on sockets. They reach all that this process's network reaches, so without a person's word that is never the
/// network of the service, whatever went wrong before.
fn has_sockets(job: &Job, services: Id) -> Result<bool, String> {
    match job.reach {
        Reach::Nothing => Ok(false),
        Reach::Machine => Ok(true),
        Reach::Session if Id::own()? == services => Err(failed("run", "it is in the network of the service")),
        Reach::Session => Ok(true),
    }
}

/// Waits for the shell as the first process of its namespace, which has the orphans of all others. With its end the
/// kernel ends all.
fn first_process(shell: Pid) -> Result<u8, String> {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == shell => {
                return Ok(code_of(ExitStatus::from_raw(status.as_raw())));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("wait for the shell", error)),
        }
    }
}

fn limit(resource: Resource, most: u64) -> Result<(), String> {
    let most = getrlimit(resource).maximum.map_or(most, |now| now.min(most));
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(resource, limit).map_err(|error| failed("set its limits", error))
}

fn drop_rights() -> Result<(), String> {
    clear_ambient_capability_set().map_err(|error| failed("give up its rights", error))?;
    let now = rustix::thread::capabilities(None).map_err(|error| failed("read its rights", error))?;
    // In a namespace of its own a user has all rights until here.
    let kept = if geteuid().is_root() { now.permitted & ROOTS_RIGHTS } else { CapabilitySet::empty() };
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(|error| failed("give up its rights", error))
}

fn failed(doing: &str, error: impl std::fmt::Display) -> String {
    format!("the command cannot {doing}: {error}")
}
