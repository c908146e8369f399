//! Supervision on systems without subreapers: a process that leaves the server's group is not found.

use std::process::Child;

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};

use super::{GRACE_MS, TERM_MS};
use crate::confine::code_of;

/// Prepares nothing.
pub(super) const fn prepare() -> Result<(), String> {
    Ok(())
}

/// Waits for the server's end, and returns its exit code when its group is gone.
pub(super) fn watch(mut server: Child) -> Result<u8, String> {
    let group = Pid::from_child(&server);
    std::thread::spawn(move || {
        let input = std::io::stdin();
        // No readiness is asked for, so messages to the server do not wake this thread; the other end's closing does.
        while poll(&mut [PollFd::new(&input, PollFlags::empty())], None) == Err(Errno::INTR) {}
        for (wait_ms, signal) in [(GRACE_MS, Signal::TERM), (TERM_MS, Signal::KILL)] {
            let wait_ms = i64::from(wait_ms);
            let wait = Timespec { tv_sec: wait_ms / 1_000, tv_nsec: wait_ms % 1_000 * 1_000_000 };
            poll(&mut [], Some(&wait)).ok();
            kill_process_group(group, signal).ok();
        }
    });
    let status = server.wait().map_err(|error| format!("cannot wait: {error}"))?;
    kill_process_group(group, Signal::KILL).ok();
    Ok(code_of(status))
}
