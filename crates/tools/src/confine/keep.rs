//! Keeper of a command: starts the entrance, and ends all that came of it when the service is gone.

use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getegid, geteuid, getpid, kill_process, pidfd_open,
        pidfd_send_signal, set_child_subreaper, set_dumpable_behavior, setsid, wait,
    },
    thread::{CapabilitySet, capabilities, configure_capability_in_ambient_set, set_capabilities},
};

use super::{Job, MARK, SELF};

/// Names that are tried for a temporary folder.
const NAMES_MAX: u32 = 1_000;
/// Pause between two looks at processes that are being killed, in nanoseconds.
const LOOK_NS: i64 = 1_000_000;

/// Runs a job to its end and returns the exit code: that of the command, or 128 and the signal that ended it.
pub(crate) fn keep(job: &Job, json: &str) -> Result<u8, String> {
    setsid().ok();
    close_inherited()?;
    let temporary = make_temporary(&job.temporary)?;
    let code = run(job, json, &temporary);
    // Every process that could write there has ended.
    fs::remove_dir_all(&temporary).ok();
    code
}

fn run(job: &Job, json: &str, temporary: &Path) -> Result<u8, String> {
    if job.has_namespace() {
        own_namespaces()?;
    }
    set_child_subreaper(Some(getpid())).map_err(|error| failed("become a subreaper", error))?;
    // From here on nobody of this user reads the memory or the descriptors of this process.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| failed("hide", error))?;
    let mut entrance = Command::new(SELF)
        .args([MARK, "enter", json])
        .arg(temporary)
        .stdin(Stdio::inherit())
        .spawn()
        .map_err(|error| failed("start", error))?;
    let pid = Pid::from_child(&entrance);
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed("watch the command", error))?;
    let control = std::io::stdin();
    loop {
        let mut ends = [PollFd::new(&pidfd, PollFlags::IN), PollFd::new(&control, PollFlags::IN)];
        match poll(&mut ends, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed("wait", error)),
        }
        if !ends[0].revents().is_empty() {
            break;
        }
        if !ends[1].revents().is_empty() {
            // The service closed its end, or was killed.
            pidfd_send_signal(&pidfd, Signal::KILL).ok();
            break;
        }
    }
    let status = entrance.wait().map_err(|error| failed("wait", error))?;
    end_descendants();
    let code =
        std::os::unix::process::ExitStatusExt::signal(&status).map_or(status.code(), |signal| Some(128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX))
}

fn failed(doing: &str, error: impl std::fmt::Display) -> String {
    format!("the keeper of the command cannot {doing}: {error}")
}

/// Closes what the service left open: only the control socket and the output are meant.
fn close_inherited() -> Result<(), String> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")
        .map_err(|error| failed("list its descriptors", error))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in open {
        // The descriptor of the listing itself is closed already.
        nix::unistd::close(number).ok();
    }
    Ok(())
}

fn make_temporary(parent: &Path) -> Result<PathBuf, String> {
    for number in 0..NAMES_MAX {
        let path = parent.join(format!("meerkat-shell-{}-{number}", getpid().as_raw_nonzero()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&format!("make {}", path.display()), error)),
        }
    }
    Err(format!("{} has too many folders named meerkat-shell-; delete them", parent.display()))
}

/// Gives the entrance its own processes, and the right to mount.
fn own_namespaces() -> Result<(), String> {
    let processes = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC;
    if unshare(processes).is_ok() {
        return Ok(());
    }
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(processes | CloneFlags::CLONE_NEWUSER).map_err(|error| failed("have namespaces", error))?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text).map_err(|error| failed(&format!("write {file}"), error))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))?;
    // A user's rights in the new namespace would end with the exec of the entrance.
    let mut sets = capabilities(None).map_err(|error| failed("read its rights", error))?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets).map_err(|error| failed("set its rights", error))?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
        .map_err(|error| failed("pass its rights", error))
}

/// Kills every process that descends from this one, until there is none. With a namespace there is none left.
fn end_descendants() {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => {
                for pid in descendants() {
                    kill_process(pid, Signal::KILL).ok();
                }
                poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: LOOK_NS })).ok();
            }
            Err(_) => return,
        }
    }
}

/// Lists the processes below this one: an orphan became its child.
fn descendants() -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let pairs: Vec<(i32, i32)> = processes
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in parentheses may hold anything.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect();
    let mut found = vec![getpid().as_raw_nonzero().get()];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(pairs.iter().filter(|pair| pair.1 == parent).map(|pair| pair.0));
        at += 1;
    }
    found.into_iter().skip(1).filter_map(Pid::from_raw).collect()
}
