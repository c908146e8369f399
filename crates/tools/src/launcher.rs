//! Re-exec of a program for work that must outlive it, or be apart from it.

use std::{
    ffi::OsString,
    sync::atomic::{AtomicBool, Ordering},
};

/// First argument of a program that supervises a server.
pub(crate) const SERVE: &str = "__meerkat-serve";

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Supervises a server, if the program was started for that; it returns otherwise.
///
/// It is the first line of `main`, before any thread. A program without it starts no servers.
pub fn launcher() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == SERVE) {
        let code = crate::servers::supervise(&arguments.collect::<Vec<OsString>>());
        std::process::exit(i32::from(code));
    }
    IS_INSTALLED.store(true, Ordering::Relaxed);
}

/// Returns true if [`launcher`] was called, so that a re-exec of this program does its work.
pub(crate) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}
