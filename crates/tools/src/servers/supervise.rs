//! Supervisor of a server: a re-exec of our program between it and us, so that nothing of it survives our end.
//!
//! Its input is the pipe that the server reads. It never reads it itself; when no one holds the other end any more, we
//! have closed it or were killed, and it ends the server and all that came of it. A parent-death signal would not do: it
//! fires when the thread that spawned ends, and misses grandchildren.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::Command,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, pidfd_open, pidfd_send_signal,
        set_child_subreaper, wait,
    },
};

/// Milliseconds that a server gets to end by itself once its input is closed.
const GRACE_MS: u32 = 500;
/// Milliseconds that it gets after it was asked to end.
const TERM_MS: u32 = 1_000;
/// Milliseconds for which killed processes are waited for; the kernel may hold one for longer.
const KILL_MS: u32 = 2_000;
/// Milliseconds between two looks at processes that end.
const LOOK_MS: u32 = 5;
/// Seconds between two looks for orphans that have ended.
const REAP_SECONDS: i64 = 30;
/// Exit code if the server could not be started, as a shell has it.
const NOT_STARTED: u8 = 127;

/// Runs a server, whose program and arguments these are, and returns its exit code when nothing of it is left.
pub(crate) fn supervise(command: &[OsString]) -> u8 {
    run(command).unwrap_or_else(|why| {
        // The service reads it as the server's own error output.
        rustix::io::write(std::io::stderr(), format!("{why}\n").as_bytes()).ok();
        NOT_STARTED
    })
}

fn run(command: &[OsString]) -> Result<u8, String> {
    let (program, arguments) = command.split_first().ok_or("the supervisor of a server is given no command")?;
    rustix::process::setsid().ok();
    set_child_subreaper(Some(getpid())).map_err(|error| format!("cannot become a subreaper: {error}"))?;
    let server = Command::new(program)
        .args(arguments)
        .process_group(0)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let server = Pid::from_child(&server);
    let ended = pidfd_open(server, PidfdFlags::empty()).map_err(|error| format!("cannot watch the server: {error}"))?;
    let input = std::io::stdin();
    let pause = Timespec { tv_sec: REAP_SECONDS, tv_nsec: 0 };
    let mut status = None;
    loop {
        // No readiness is asked for, so messages to the server wake nobody here; the other end's closing always does.
        let mut ends = [PollFd::new(&ended, PollFlags::IN), PollFd::new(&input, PollFlags::empty())];
        match poll(&mut ends, Some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(format!("cannot wait: {error}")),
        }
        let is_closed = !ends[1].revents().is_empty();
        // The server is not reaped before its own end, so its number stays its own.
        if !ends[0].revents().is_empty() || is_closed {
            break;
        }
        reap(server, &mut status);
    }
    end(server, &mut status);
    Ok(status.unwrap_or(NOT_STARTED))
}

/// Ends everything: first by the closed input, then by request, then by force.
fn end(server: Pid, status: &mut Option<u8>) {
    let is_gone = |status: &mut Option<u8>, ms: u32, is_enough: &dyn Fn(&Option<u8>) -> bool| {
        for _ in 0..ms.div_ceil(LOOK_MS) {
            if reap(server, status) || is_enough(status) {
                return true;
            }
            look_later();
        }
        false
    };
    // A server that ends in order has time to; what it leaves behind has not.
    is_gone(status, GRACE_MS, &Option::is_some);
    if reap(server, status) {
        return;
    }
    if status.is_none() {
        kill_process_group(server, Signal::TERM).ok();
    }
    signal_children(Signal::TERM);
    if is_gone(status, TERM_MS, &|_| false) {
        return;
    }
    for _ in 0..KILL_MS.div_ceil(LOOK_MS) {
        // A killed process leaves its children to us, so the next look finds them.
        signal_children(Signal::KILL);
        if reap(server, status) {
            return;
        }
        look_later();
    }
}

fn look_later() {
    poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_MS) * 1_000_000 })).ok();
}

/// Reaps what has ended, and returns true if there is no child left.
fn reap(server: Pid, status: &mut Option<u8>) -> bool {
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, how))) if pid == server => *status = Some(exit_code(how)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let status = std::process::ExitStatus::from_raw(status.as_raw());
    let code = status.signal().map_or(status.code(), |signal| Some(128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

/// Signals each child. Nobody but this thread reaps them, so no number can have passed to another process.
fn signal_children(signal: Signal) {
    let own = getpid();
    let Ok(processes) = fs::read_dir("/proc") else { return };
    for entry in processes.filter_map(Result::ok) {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
        let Some(pid) = pid else { continue };
        let Ok(fd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if parent(pid) == Some(own) {
            pidfd_send_signal(&fd, signal).ok();
        }
    }
}

fn parent(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    // The name in parentheses may hold anything.
    Pid::from_raw(stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?)
}
