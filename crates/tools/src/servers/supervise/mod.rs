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
    fs::File,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::former;

/// Milliseconds that a server gets to end once its input is closed.
const GRACE_MS: u32 = 500;
/// Milliseconds that it gets after it was asked to end.
const TERM_MS: u32 = 1_000;
/// Exit code if the server could not be started, as a shell has it.
const NOT_STARTED: u8 = 127;

/// Runs a server, and returns its exit code when nothing of it is left. The arguments are the path of the lock that it
/// holds, or nothing, its program, and the program's arguments.
pub(crate) fn supervise(arguments: &[OsString]) -> u8 {
    start(arguments).and_then(|(server, _held)| system::watch(server)).unwrap_or_else(|why| {
        // The service reads it as the server's own error output.
        rustix::io::write(std::io::stderr(), format!("{why}\n").as_bytes()).ok();
        NOT_STARTED
    })
}

fn start(arguments: &[OsString]) -> Result<(Child, Option<File>), String> {
    let [lock, program, arguments @ ..] = arguments else {
        return Err("the supervisor of a server is given no command".to_owned());
    };
    rustix::process::setsid().ok();
    system::prepare()?;
    let held = if lock.is_empty() { None } else { Some(hold(Path::new(lock))?) };
    let server = Command::new(program).args(arguments).process_group(0).spawn();
    Ok((server.map_err(|error| format!("cannot start {}: {error}", program.display()))?, held))
}

/// Locks the file for the server. One that is locked too late is not started: the next owner may not have waited for it.
fn hold(lock: &Path) -> Result<File, String> {
    let held = former::hold(lock).map_err(|error| format!("cannot lock {}: {error}", lock.display()))?;
    let input = std::io::stdin();
    let mut end = [PollFd::new(&input, PollFlags::empty())];
    match poll(&mut end, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) => Ok(held),
        _ => Err("the process that wanted it has ended".to_owned()),
    }
}
