//! The command's own view of the file system: read-only but for its folders, with its own processes and temporary files.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStringExt as _,
    },
    path::{Path, PathBuf},
};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, Statx, StatxFlags, openat, statx},
    mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change, mount_remount},
};

use super::{Job, files::SHARED_MEMORY, guard};

const TEMPORARY: &str = "/tmp";
/// Folders in which services of the machine have their sockets. The second is often a link to the first.
const SOCKETS: [&str; 2] = ["/run", "/var/run"];

/// View that a command has.
pub(super) struct View {
    /// Path of the private temporary folder in it.
    pub(super) temporary: PathBuf,
    /// True if the folder of shared memory is the command's own.
    pub(super) has_shared_memory: bool,
}

/// Mounts the view.
pub(super) fn apply(job: &Job, temporary: &Path) -> Result<View, String> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|error| failed("make a mount namespace", error))?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|error| failed("keep its mounts from others", error))?;
    let mut needed: BTreeSet<&Path> = job.readable.iter().chain([&job.workspace]).map(PathBuf::as_path).collect();
    let is_in_shared = needed.iter().any(|path| path.starts_with(TEMPORARY));
    let is_in_memory = needed.iter().any(|path| path.starts_with(SHARED_MEMORY));
    needed.insert(temporary);
    SOCKETS.iter().try_for_each(|folder| cover(Path::new(folder), &needed))?;
    let temporary = private_temporary(temporary, is_in_shared.then_some(&needed))?;
    bind(&job.workspace, &job.workspace)?;
    let mut writable = vec![temporary.clone()];
    if !job.is_read_only {
        writable.push(job.workspace.clone());
    }
    let apart = MountFlags::NOSUID | MountFlags::NODEV;
    // It would cover a workspace that lies there.
    let has_shared_memory =
        !is_in_memory && mount("tmpfs", SHARED_MEMORY, "tmpfs", apart, c"mode=1777,size=25%").is_ok();
    if has_shared_memory {
        writable.push(PathBuf::from(SHARED_MEMORY));
    }
    for (number, (path, text)) in job.shadows.iter().enumerate() {
        shadow(path, text, &temporary.join(format!("shadow-{number}")))?;
    }
    // Landlock does not know the changes of modes, owners and times.
    for mounted in mounts()? {
        if !writable.iter().any(|folder| mounted.path.starts_with(folder)) {
            let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | mounted.flags;
            if let Err(error) = mount_remount(&mounted.path, flags, c"")
                && mounted.is_exposed()
            {
                return Err(failed(&format!("protect {}", mounted.path.display()), error));
            }
        }
    }
    let guarded = guard::protected(job)?;
    guarded.keys().try_for_each(|path| pin(path))?;
    let table = mounts()?;
    for path in guarded.iter().filter(|(_, is_fixed)| **is_fixed).map(|(path, _)| path) {
        remount_read_only(path, &table)?;
    }
    for path in job.hidden.iter().filter(|path| path.starts_with(&job.workspace)) {
        hide(path)?;
    }
    // In a container it may be refused; Landlock keeps other processes' folders closed there too.
    let processes = mount("proc", "/proc", "proc", apart | MountFlags::NOEXEC, None);
    if let Err(error) = processes {
        tracing::debug!(%error, "the command sees the names of other processes");
    }
    Ok(View { temporary, has_shared_memory })
}

/// Puts a text in place of a file, by another file that has no name afterwards.
fn shadow(path: &Path, text: &str, by: &Path) -> Result<(), String> {
    if !path.is_file() {
        // It lies below `/tmp`, where the command has files of its own.
        return Ok(());
    }
    let doing = || format!("shadow {}", path.display());
    fs::write(by, text).map_err(|error| failed(&doing(), error))?;
    bind(by, path)?;
    fs::remove_file(by).map_err(|error| failed(&doing(), error))
}

/// Puts the private folder over `/tmp`, or leaves nothing else there but what the command may reach.
fn private_temporary(temporary: &Path, needed: Option<&BTreeSet<&Path>>) -> Result<PathBuf, String> {
    let shared = Path::new(TEMPORARY);
    needed.map_or(Ok(()), |needed| cover(shared, needed))?;
    let target = if needed.is_some() || !shared.is_dir() { temporary } else { shared };
    bind(temporary, target)?;
    Ok(target.to_owned())
}

/// Covers a folder by an empty one that has nothing but its links and what is needed of it. Sockets are refused by
/// seccomp already; here they have no name either.
fn cover(folder: &Path, needed: &BTreeSet<&Path>) -> Result<(), String> {
    let is_plain = folder.symlink_metadata().is_ok_and(|found| found.is_dir());
    if !is_plain || needed.contains(folder) {
        return Ok(());
    }
    let doing = || format!("cover {}", folder.display());
    let mut kept: Vec<(&Path, OwnedFd, bool)> = Vec::new();
    for path in needed.iter().filter(|path| path.starts_with(folder)) {
        if kept.last().is_some_and(|(above, ..)| path.starts_with(above)) {
            continue;
        }
        let Ok(opened) = openat(CWD, *path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        kept.push((path, opened, path.is_dir()));
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let links: Vec<(PathBuf, PathBuf)> = entries.filter_map(|path| Some((path.read_link().ok()?, path))).collect();
    if let Err(error) = mount("tmpfs", folder, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755,size=1m") {
        tracing::debug!(%error, "the command sees the names in {}", folder.display());
        return Ok(());
    }
    for (led_to, link) in links {
        std::os::unix::fs::symlink(led_to, link).map_err(|error| failed(&doing(), error))?;
    }
    for (path, opened, is_folder) in kept {
        let above = if is_folder { path } else { path.parent().unwrap_or(folder) };
        let made = fs::create_dir_all(above).and_then(|()| if is_folder { Ok(()) } else { fs::write(path, "") });
        made.map_err(|error| failed(&doing(), error))?;
        bind(&by_handle(&opened), path)?;
    }
    Ok(())
}

/// Returns the path of what is opened, by which it is found whatever covers its own.
fn by_handle(opened: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()))
}

fn bind(from: &Path, to: &Path) -> Result<(), String> {
    mount_bind_recursive(from, to).map_err(|error| failed(&format!("mount {}", to.display()), error))
}

/// Mounts a file, a folder or a link over itself, so that it cannot be moved, deleted or replaced.
fn pin(path: &Path) -> Result<(), String> {
    let opened = openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let opened = opened.map_err(|error| failed(&format!("protect {}", path.display()), error))?;
    // By its own path a link would be followed.
    let opened = by_handle(&opened);
    mount_bind_recursive(&opened, &opened).map_err(|error| failed(&format!("protect {}", path.display()), error))
}

fn remount_read_only(path: &Path, table: &[Mounted]) -> Result<(), String> {
    let flags = table.iter().rev().find(|mounted| mounted.path == path).map_or(MountFlags::empty(), |it| it.flags);
    mount_remount(path, MountFlags::BIND | MountFlags::RDONLY | flags, c"")
        .map_err(|error| failed(&format!("protect {}", path.display()), error))
}

fn hide(path: &Path) -> Result<(), String> {
    let hidden = if path.is_dir() {
        mount("tmpfs", path, "tmpfs", MountFlags::RDONLY | MountFlags::NOEXEC, c"mode=0555,size=4k")
    } else if path.exists() {
        // Read-only as `/dev` is by now, so that a command cannot change the mode of the machine's own device.
        mount_bind("/dev/null", path)
    } else {
        Ok(())
    };
    hidden.map_err(|error| failed(&format!("hide {}", path.display()), error))
}

/// Mount of the table, with the flags that a remount must keep.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    id: u64,
    path: PathBuf,
    flags: MountFlags,
}

impl Mounted {
    /// Returns true if a command finds this mount at its path and could change what is there. What lies below another mount
    /// cannot be reached, and not be mounted either.
    fn is_exposed(&self) -> bool {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let is_found = |found: Statx| found.stx_mnt_id == self.id;
        !self.flags.contains(MountFlags::RDONLY)
            && statx(CWD, &self.path, flags, StatxFlags::MNT_ID).is_ok_and(is_found)
    }
}

/// Lists the mounts.
fn mounts() -> Result<Vec<Mounted>, String> {
    let table = fs::read("/proc/self/mountinfo").map_err(|error| failed("list its mounts", error))?;
    let lines = table.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    Ok(lines.filter_map(parse).collect())
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let mut fields = fields.skip(3);
    let path = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    let mut flags = MountFlags::empty();
    for option in fields.next()?.split(|byte| *byte == b',') {
        flags |= match option {
            b"ro" => MountFlags::RDONLY,
            b"nosuid" => MountFlags::NOSUID,
            b"nodev" => MountFlags::NODEV,
            b"noexec" => MountFlags::NOEXEC,
            b"noatime" => MountFlags::NOATIME,
            b"nodiratime" => MountFlags::NODIRATIME,
            b"relatime" => MountFlags::RELATIME,
            b"nosymfollow" => MountFlags::NOSYMFOLLOW,
            _ => MountFlags::empty(),
        };
    }
    Some(Mounted { id, path, flags })
}

/// Reads `\040` and its kind, by which the table writes spaces.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let byte = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        plain.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    plain
}

fn failed(doing: &str, error: impl std::fmt::Display) -> String {
    format!("the command cannot {doing}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_gives_a_path_with_spaces_and_the_flags_to_keep() {
        let line = br"36 35 98:0 /mnt1 /mnt/a\040b\134c ro,nosuid,relatime master:1 - ext3 /dev/root rw";
        let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::RELATIME;
        assert_eq!(parse(line), Some(Mounted { id: 36, path: PathBuf::from(r"/mnt/a b\c"), flags }));
    }

    /// Broken once: a mount that could not be made read-only stayed as it was, and nobody was told.
    #[test]
    fn a_mount_that_could_be_changed_is_told_from_one_that_nobody_reaches() {
        let root = mounts().unwrap().into_iter().rfind(|mounted| mounted.path == Path::new("/")).unwrap();
        let root = Mounted { flags: MountFlags::empty(), ..root };
        assert!(root.is_exposed());
        assert!(
            !Mounted { id: root.id + 1_000_000, path: root.path.clone(), ..root }.is_exposed(),
            "another covers it"
        );
        assert!(!Mounted { path: PathBuf::from("/missing"), ..root }.is_exposed());
        assert!(!Mounted { flags: MountFlags::RDONLY, ..root }.is_exposed());
    }
}
