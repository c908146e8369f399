//! Re-exec of a program that confines commands, and supervises servers.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::confine::{self, Job, MARK};

/// First argument of a program that supervises a server.
pub(crate) const SERVE: &str = "__meerkat-serve";

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Confines this process and runs a command, or supervises a server, if the program was started for that; it returns
/// otherwise.
///
/// It is the first line of `main`, before any thread. A program without it is not offered `shell`, and starts no servers.
pub fn launcher() {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    if first.as_ref().is_some_and(|first| first == SERVE) {
        let code = crate::servers::supervise(&arguments.collect::<Vec<_>>());
        std::process::exit(i32::from(code));
    }
    if first.is_some_and(|first| first == MARK) {
        let code = run(&arguments.collect::<Vec<_>>()).unwrap_or_else(|error| {
            // The service reads it on the other end of the control socket.
            rustix::io::write(std::io::stdin(), error.as_bytes()).ok();
            u8::MAX
        });
        std::process::exit(i32::from(code));
    }
    IS_INSTALLED.store(true, Ordering::Relaxed);
}

fn run(arguments: &[OsString]) -> Result<u8, String> {
    let wrong = || format!("{MARK} is an argument of this program for itself");
    let mut arguments = arguments.iter();
    let mut next = || arguments.next().and_then(|argument| argument.to_str()).ok_or_else(wrong);
    let (step, json) = (next()?, next()?);
    let job: Job = serde_json::from_str(json).map_err(|error| format!("{}: {error}", wrong()))?;
    match step {
        "keep" => confine::keep(&job, json),
        "enter" => confine::enter(&job, &PathBuf::from(next()?)),
        _ => Err(wrong()),
    }
}

/// Returns true if [`launcher`] was called, so that a re-exec of this program does its work.
pub(crate) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}
