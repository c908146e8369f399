//! Removal of a folder that commands may have filled.
//!
//! It works from handles and follows no link, needs the same memory and the same few descriptors for every depth, and
//! never calls itself: a command can make a folder so deep that a recursion ends the process.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, fchmod, openat, renameat, unlinkat},
    io::Errno,
};

/// Entries that are removed at most. A process that makes new ones meanwhile must not keep the caller for ever.
const ENTRIES_MAX: u64 = 1 << 24;

/// Removes an entry of an open folder, with everything in it.
///
/// # Errors
/// Returns an error if the entry does not exist, or if something in it cannot be removed.
pub fn remove(parent: impl AsFd, name: &Path) -> io::Result<()> {
    if unlink(&parent, name)? {
        return Ok(());
    }
    let removal = Removal { top: open(&parent, name)?, entries: Cell::new(0) };
    while removal.pass()? {}
    Ok(unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
}

/// Folder that becomes empty. What its folders hold is moved up into it, so that no path grows with the depth.
struct Removal {
    top: OwnedFd,
    entries: Cell<u64>,
}

impl Removal {
    /// Removes what a listing finds, and returns false if it found nothing.
    fn pass(&self) -> io::Result<bool> {
        let mut has_found = false;
        for name in names(&self.top)? {
            let name = name?;
            has_found = true;
            self.count()?;
            if !unlink(&self.top, &name)? {
                self.empty(&name)?;
            }
        }
        Ok(has_found)
    }

    /// Removes a folder of the top folder. The folders in it become folders of the top folder.
    fn empty(&self, name: &Path) -> io::Result<()> {
        let folder = open(&self.top, name)?;
        for inner in names(&folder)? {
            let inner = inner?;
            self.count()?;
            if !unlink(&folder, &inner)? {
                self.move_up(&folder, &inner)?;
            }
        }
        match unlinkat(&self.top, name, AtFlags::REMOVEDIR) {
            // A listing may miss an entry while others leave; the next pass finds it.
            Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn move_up(&self, folder: &OwnedFd, inner: &Path) -> io::Result<()> {
        loop {
            match renameat(folder, inner, &self.top, self.entries.get().to_string()) {
                Ok(()) => return Ok(()),
                // The name is taken.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => self.count()?,
                // A folder that is moved must be writable itself.
                Err(Errno::ACCESS) => drop(open(folder, inner)?),
                Err(error) => return Err(error.into()),
            }
            self.count()?;
        }
    }

    fn count(&self) -> io::Result<()> {
        self.entries.set(self.entries.get() + 1);
        if self.entries.get() > ENTRIES_MAX {
            return Err(io::Error::other(format!("it has more than {ENTRIES_MAX} entries")));
        }
        Ok(())
    }
}

/// Opens a folder that is not a link, and makes it writable for its owner.
fn open(parent: impl AsFd, name: &Path) -> io::Result<OwnedFd> {
    let folder = openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    fchmod(&folder, Mode::RWXU).ok();
    Ok(folder)
}

/// Removes a file, a link or another entry without content of its own. Returns false for a folder.
fn unlink(parent: impl AsFd, name: &Path) -> io::Result<bool> {
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Lists a folder as it is read, without holding all names.
fn names(folder: &OwnedFd) -> io::Result<impl Iterator<Item = io::Result<std::path::PathBuf>>> {
    use std::os::unix::ffi::OsStrExt as _;
    let entries = Dir::read_from(folder)?.filter_map(|entry| match entry {
        Ok(entry) => {
            let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
            (name != "." && name != "..").then(|| Ok(name.into()))
        }
        Err(error) => Some(Err(error.into())),
    });
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, mkdirat};

    use super::*;

    /// Levels of a folder: a recursion over so many overflows a thread's stack.
    const LEVELS: usize = 30_000;

    /// Makes a folder of so many levels, each with a file, a link and an empty folder.
    fn make_deep(parent: &Path, levels: usize) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = openat(CWD, parent, flags, Mode::empty()).unwrap();
        for _ in 0..levels {
            for name in ["1", "deep"] {
                mkdirat(&folder, name, Mode::RWXU).unwrap();
            }
            openat(&folder, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
            rustix::fs::symlinkat("/", &folder, "link").unwrap();
            folder = openat(&folder, "deep", flags, Mode::empty()).unwrap();
        }
    }

    #[test]
    fn a_folder_of_any_depth_is_removed() {
        let place = meerkat_testkit::folder();
        make_deep(place.path(), LEVELS);
        fs::write(place.path().join("other"), "").unwrap();
        let parent = openat(CWD, place.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        remove(&parent, Path::new("deep")).unwrap();
        assert!(!place.path().join("deep").exists() && place.path().join("other").exists());
        for name in ["1", "file", "link"] {
            remove(&parent, Path::new(name)).unwrap();
        }
        let missing = remove(&parent, Path::new("deep")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_a_link_leads_to_stays_and_what_is_read_only_goes() {
        let place = meerkat_testkit::folder();
        let (outside, inside) = (place.path().join("outside"), place.path().join("inside"));
        fs::create_dir_all(inside.join("a/b/c")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "mine").unwrap();
        std::os::unix::fs::symlink(&outside, inside.join("a/b/link")).unwrap();
        for folder in ["a/b/c", "a/b", "a", ""] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
            fs::set_permissions(inside.join(folder), mode).unwrap();
        }
        let parent = openat(CWD, place.path(), OFlags::DIRECTORY, Mode::empty()).unwrap();
        remove(&parent, Path::new("inside")).unwrap();
        assert!(!inside.exists());
        assert_eq!(fs::read(outside.join("file")).unwrap(), b"mine");
    }
}
