//! Keeper of a command: forks the entrance, and ends all that came of it when the service is gone.

use std::{fs, os::unix::process::ExitStatusExt as _, path::Path, process::ExitStatus};

use fork::{Fork, fork};
use nix::sched::{CloneFlags, unshare};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        DumpableBehavior, Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process, pidfd_open, pidfd_send_signal,
        set_child_subreaper, set_dumpable_behavior, setsid, wait, waitpid,
    },
};

use super::{
    Job, Network, Reach, code_of,
    enter::enter,
    make_temporary,
    network::{self, Id},
    remove_temporary,
    users::with_users,
};
use crate::launcher;

/// Pause between two looks at processes that are being killed, in nanoseconds.
const LOOK_NS: i64 = 1_000_000;

/// Runs a job to its end and returns the exit code: that of the command, or 128 and the signal that ended it.
pub(crate) fn keep(job: &Job) -> Result<u8, String> {
    setsid().ok();
    close_inherited().map_err(|error| failed("list its descriptors", error))?;
    // It is taken before anything else can fail: the service reads no error from a socket with something left in it.
    let network = (job.reach == Reach::Session).then(network::given).transpose()?;
    let temporary = make_temporary(&job.temporary)?;
    let code = run(job, network, &temporary);
    // Every process that could write there has ended.
    remove_temporary(&temporary);
    code
}

fn run(job: &Job, network: Option<Network>, temporary: &Path) -> Result<u8, String> {
    let services = Id::own()?;
    let is_in_users = network.map_or(Ok(false), Network::join)?;
    if job.has_namespace() {
        own_namespaces(is_in_users)?;
    }
    set_child_subreaper(Some(getpid())).map_err(|error| failed("become a subreaper", error))?;
    // From here on no process of this user reads the memory or the descriptors of this one and of the entrance (ptrace).
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(|error| failed("hide", error))?;
    // One more start of this program would cost more than all its limits. It has one thread, so a fork is whole.
    let pid = match fork().map_err(|error| failed("start", error))? {
        Fork::Child => launcher::end(enter(job, services, temporary)),
        Fork::Parent(pid) => Pid::from_raw(pid).ok_or_else(|| failed("start", "it has no number"))?,
    };
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
    let status = loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            ended => {
                break ended.map_err(|error| failed("wait", error))?.ok_or_else(|| failed("wait", "it goes on"))?.1;
            }
        }
    };
    end_descendants();
    Ok(code_of(ExitStatus::from_raw(status.as_raw())))
}

fn failed(doing: &str, error: impl std::fmt::Display) -> String {
    format!("the keeper of the command cannot {doing}: {error}")
}

/// Closes what the service left open besides input, output and error output: it may have inherited that itself.
pub(crate) fn close_inherited() -> std::io::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|number| *number > 2)
        .collect();
    for number in open {
        // The descriptor of the listing itself is closed already.
        nix::unistd::close(number).ok();
    }
    Ok(())
}

/// Gives the entrance its own processes, and the right to mount. In a user namespace that commands share it gets one of
/// its own within, so that each command has a limit of processes for itself.
fn own_namespaces(is_in_users: bool) -> Result<(), String> {
    let processes = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC;
    if !is_in_users && unshare(processes).is_ok() {
        return Ok(());
    }
    with_users(processes)
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
