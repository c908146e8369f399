//! Supervisor of a server: a re-exec of our program between it and us, so that nothing of it survives our end.
//!
//! Its input is the pipe that the server reads. It never reads it itself; when no one holds the other end any more, we
//! have closed it or were killed, and it ends the server and all that came of it (`tree.rs`; on systems without
//! subreapers its group of processes, `group.rs`). A parent-death signal would not do: it fires when the thread that
//! spawned ends, and misses grandchildren.

#[cfg_attr(target_os = "linux", path = "tree.rs")]
#[cfg_attr(not(target_os = "linux"), path = "group.rs")]
mod system;

use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    process::{Child, Command},
};

/// Milliseconds that a server gets to end by itself once its input is closed.
const GRACE_MS: u32 = 500;
/// Milliseconds that it gets after it was asked to end.
const TERM_MS: u32 = 1_000;
/// Exit code if the server could not be started, as a shell has it.
const NOT_STARTED: u8 = 127;

/// Runs a server, whose program and arguments these are, and returns its exit code when nothing of it is left.
pub(crate) fn supervise(command: &[OsString]) -> u8 {
    start(command).and_then(system::watch).unwrap_or_else(|why| {
        // The service reads it as the server's own error output.
        rustix::io::write(std::io::stderr(), format!("{why}\n").as_bytes()).ok();
        NOT_STARTED
    })
}

fn start(command: &[OsString]) -> Result<Child, String> {
    let (program, arguments) = command.split_first().ok_or("the supervisor of a server is given no command")?;
    rustix::process::setsid().ok();
    system::prepare()?;
    let server = Command::new(program).args(arguments).process_group(0).spawn();
    server.map_err(|error| format!("cannot start {}: {error}", program.display()))
}
