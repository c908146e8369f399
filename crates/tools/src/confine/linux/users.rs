//! User namespaces.

use std::fs;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{getegid, geteuid};

/// Makes namespaces in a user namespace of their own, where no right is needed for them.
pub(super) fn with_users(others: CloneFlags) -> Result<(), String> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(others | CloneFlags::CLONE_NEWUSER).map_err(|error| format!("namespaces cannot be had: {error}"))?;
    let write = |file: &str, text: String| {
        fs::write(format!("/proc/self/{file}"), text)
            .map_err(|error| format!("/proc/self/{file} cannot be written: {error}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{user} {user} 1"))?;
    write("gid_map", format!("{group} {group} 1"))
}
