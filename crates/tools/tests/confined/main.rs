//! Commands in their confinement, through the tool: what they can do, and each way out that is closed.
//!
//! All trials run as the user who runs them. Root runs them once more as another user, and once as a user to whom the
//! kernel gives no namespaces. The fork bomb runs last and alone, and never as root, whose processes have no limit.

#![allow(clippy::unwrap_used, reason = "a trial that meets an impossible value stops there")]

mod disk;
mod escapes;
mod git;
mod links;
mod named;
mod network;
mod place;
mod seen;
mod work;

use std::{io::Write as _, os::unix::process::CommandExt as _, process::Command};

use libtest_mimic::{Arguments, Failed, Trial};
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};

/// Variable that is set where the kernel gives no namespaces.
const WITHOUT_NAMESPACES: &str = "TEST_WITHOUT_NAMESPACES";
/// Variable that is set where the kernel gives no networks, but all other namespaces.
const WITHOUT_NETWORKS: &str = "TEST_WITHOUT_NETWORKS";
/// Variable that is set where the folder of the workspaces and of temporary files lies in memory.
const IN_MEMORY: &str = "TEST_IN_MEMORY";
/// Folder of the workspaces. It is not beneath `/tmp`, which a command gets its own of.
const WORKSPACES: &str = "/var/tmp";
/// User of no account.
const NOBODY: u32 = 65_534;

fn main() {
    meerkat_tools::launcher();
    let first = std::env::args().nth(1);
    if first.as_deref() == Some("lose-namespaces") {
        let error = lose_namespaces(&["user", "pid", "mnt", "ipc", "net"], WITHOUT_NAMESPACES);
        panic!("{error}");
    }
    if first.as_deref() == Some("lose-networks") {
        let error = lose_namespaces(&["net"], WITHOUT_NETWORKS);
        panic!("{error}");
    }
    if first.as_deref() == Some("in-memory") {
        let error = in_memory();
        panic!("{error}");
    }
    if first.as_deref() == Some(disk::MARK) {
        return disk::run();
    }
    let mut arguments = Arguments::from_args();
    let trials = work::trials().chain(escapes::trials()).chain(git::trials());
    let trials = trials.chain(network::trials()).chain(seen::trials()).chain(disk::trials()).collect();
    let mut others = Vec::new();
    if rustix::process::geteuid().is_root() && std::env::var_os(WITHOUT_NAMESPACES).is_none() {
        others.push(Trial::test("all_as_another_user", || again(&[])));
        others.push(Trial::test("all_as_a_user_without_namespaces", || again(&["in-memory", "lose-namespaces"])));
    }
    // Each trial makes dozens of processes.
    arguments.test_threads.get_or_insert(4);
    libtest_mimic::run(&arguments, trials).exit_if_failed();
    // One after another: each makes dozens of processes, and the bomb as many as it may.
    arguments.test_threads = Some(1);
    others.extend(escapes::alone());
    libtest_mimic::run(&arguments, others).exit();
}

/// Runs all trials as another user.
fn again(arguments: &[&str]) -> Result<(), Failed> {
    let home = tempfile::tempdir()?;
    rustix::fs::chown(home.path(), Some(rustix::fs::Uid::from_raw(NOBODY)), Some(rustix::fs::Gid::from_raw(NOBODY)))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).uid(NOBODY).gid(NOBODY).current_dir("/");
    command.env_clear().env("HOME", home.path()).env("PATH", "/usr/local/bin:/usr/bin:/bin").env("USER", "nobody");
    let output = command.output()?;
    let (out, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        return Err(format!("{out}{told}").into());
    }
    for line in told.lines().filter(|line| line.starts_with("NOT RUN")) {
        writeln!(std::io::stderr(), "as user {NOBODY}: {line}")?;
    }
    Ok(())
}

/// Runs one trial elsewhere: with `lose-networks` where the kernel gives no network, with `in-memory` on a disk that takes
/// and drops folders fast.
fn elsewhere(place: &str, trial: &str) {
    let output = Command::new("/proc/self/exe").args([place, "--exact", trial]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}{}", String::from_utf8_lossy(&output.stderr));
}

/// Enters a user namespace, as the user who runs this.
fn own_users() -> std::io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    unshare(CloneFlags::CLONE_NEWUSER)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

/// Enters a namespace in which this process may mount.
fn own_mounts() -> std::io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        own_users()?;
    }
    unshare(CloneFlags::CLONE_NEWNS)?;
    Ok(mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?)
}

/// Becomes this program again where workspaces and temporary files lie in memory.
fn in_memory() -> std::io::Error {
    let done = own_mounts().and_then(|()| {
        Ok(mount("tmpfs", WORKSPACES, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=1777,size=75%")?)
    });
    let mut again = Command::new("/proc/self/exe");
    again.args(std::env::args_os().skip(2)).env(IN_MEMORY, "1").env("TMPDIR", WORKSPACES);
    done.map_or_else(|error| error, |()| again.exec())
}

/// Becomes this program again where no namespace of these kinds can be made: in one whose limits are zero.
fn lose_namespaces(kinds: &[&str], mark: &str) -> std::io::Error {
    let done = own_users().and_then(|()| {
        for kind in kinds {
            std::fs::write(format!("/proc/sys/user/max_{kind}_namespaces"), "0")?;
        }
        Ok(())
    });
    match done {
        Ok(()) => Command::new("/proc/self/exe").args(std::env::args_os().skip(2)).env(mark, "1").exec(),
        Err(error) => error,
    }
}
