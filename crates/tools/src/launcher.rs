//! Re-exec of a program that confines commands, and supervises servers.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::confine::{self, MARK, NETWORK};

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
    if first.as_ref().is_some_and(|first| first == MARK) {
        end(confine::take_job().and_then(|job| confine::keep(&job)));
    }
    if first.is_some_and(|first| first == NETWORK) {
        end(confine::create());
    }
    IS_INSTALLED.store(true, Ordering::Relaxed);
}

/// Ends this process with an exit code, or with an error that the service reads on its end of the control socket.
pub(crate) fn end(code: Result<u8, String>) -> ! {
    let code = code.unwrap_or_else(|error| {
        rustix::io::write(std::io::stdin(), error.as_bytes()).ok();
        u8::MAX
    });
    std::process::exit(i32::from(code))
}

/// Returns true if [`launcher`] was called, so that a re-exec of this program does its work.
pub(crate) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}
