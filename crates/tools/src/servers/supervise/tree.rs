//! Supervision by a subreaper: every process that came of the server is found.

use std::{
    fs,
    os::unix::process::ExitStatusExt as _,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, getpid, kill_process_group, pidfd_open, pidfd_send_signal,
        set_child_subreaper, wait,
    },
};

use super::{GRACE_MS, NOT_STARTED, TERM_MS};
use crate::confine::{close_inherited, code_of};

/// Milliseconds for which killed processes are waited for; the kernel may hold one for longer.
const KILL_MS: u32 = 2_000;
/// Milliseconds between two looks at processes that end.
const LOOK_MS: u32 = 5;
/// Seconds between two looks for orphans that have ended.
const REAP_SECONDS: i64 = 30;

/// Becomes the parent of every orphan that the server leaves, and leaves the server no descriptor but its pipes. Its lock
/// comes later.
pub(super) fn prepare() -> Result<(), String> {
    close_inherited().map_err(|error| format!("cannot list its descriptors: {error}"))?;
    set_child_subreaper(Some(getpid())).map_err(|error| format!("cannot become a subreaper: {error}"))
}

/// Waits for the server's end or that of its input, and returns its exit code when nothing of it is left.
pub(super) fn watch(server: Child) -> Result<u8, String> {
    let server = Pid::from_child(&server);
    let ended = pidfd_open(server, PidfdFlags::empty()).map_err(|error| format!("cannot watch the server: {error}"))?;
    let input = std::io::stdin();
    let pause = Timespec { tv_sec: REAP_SECONDS, tv_nsec: 0 };
    let mut status = None;
    loop {
        // No readiness is asked for, so messages to the server do not wake this process; the other end's closing always does.
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
    // A server that ends in order has time to; what it leaves has not.
    wait_until(GRACE_MS, || reap(server, status) || status.is_some());
    if reap(server, status) {
        return;
    }
    if status.is_none() {
        kill_process_group(server, Signal::TERM).ok();
    }
    signal_children(Signal::TERM);
    if wait_until(TERM_MS, || reap(server, status)) {
        return;
    }
    // A killed process leaves its children to us, so the next look finds them.
    wait_until(KILL_MS, || {
        signal_children(Signal::KILL);
        reap(server, status)
    });
}

/// Looks until something is done, or for so long; returns whether it is done. Looks take longer on a busy machine, so they
/// are not counted: this process is ended itself if it takes too long.
#[expect(clippy::disallowed_methods, reason = "this process has no `Clock`")]
fn wait_until(ms: u32, mut is_done: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + Duration::from_millis(ms.into());
    loop {
        if is_done() {
            return true;
        }
        if Instant::now() >= end {
            return false;
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
            Ok(Some((pid, how))) if pid == server => *status = Some(code_of(ExitStatus::from_raw(how.as_raw()))),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Broken once: looks were counted, so on a busy machine, where each takes longer, a wait was many times as long.
    #[test]
    fn a_wait_is_as_long_if_each_look_takes_longer() {
        let mut looks = 0;
        let is_done = wait_until(GRACE_MS, || {
            looks += 1;
            (0..9).for_each(|_| look_later());
            false
        });
        assert!(!is_done && looks < GRACE_MS / LOOK_MS / 5, "{looks}");
    }
}
