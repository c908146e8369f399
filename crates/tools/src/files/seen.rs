//! Files as sessions last saw them, to refuse the change of a file that changed since.

use std::{
    collections::{HashMap, VecDeque},
    fs::Metadata,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use meerkat_service::SessionId;

/// Files that are remembered, of all sessions; the oldest are forgotten.
const FILES_MAX: usize = 10_000;

/// Identity and state of a file. The time of the last change of its state cannot be set by a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(file: &Metadata) -> Self {
        Self {
            file: (file.dev(), file.ino()),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
            changed: (file.ctime(), file.ctime_nsec()),
        }
    }

    /// Returns true for stamps of one file, changed or not.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        self.file == other.file
    }
}

/// Stamps of files by session and path, the newest of a bounded number. They are forgotten with the process.
#[derive(Default)]
pub(super) struct Seen(Mutex<Files>);

#[derive(Default)]
struct Files {
    stamps: HashMap<(SessionId, PathBuf), Stamp>,
    order: VecDeque<(SessionId, PathBuf)>,
}

impl Seen {
    /// Remembers the file as it is now.
    pub(super) fn record(&self, session: SessionId, path: &Path, stamp: Stamp) {
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (session, path.to_owned());
        if files.stamps.insert(key.clone(), stamp).is_none() {
            files.order.push_back(key);
        }
        if files.order.len() > FILES_MAX
            && let Some(oldest) = files.order.pop_front()
        {
            files.stamps.remove(&oldest);
        }
    }

    /// Returns the file as the session last saw it.
    pub(super) fn last(&self, session: SessionId, path: &Path) -> Option<Stamp> {
        let files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        files.stamps.get(&(session, path.to_owned())).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_files_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = Stamp::of(&folder.path().metadata().unwrap());
        let (seen, session) = (Seen::default(), "01900000-0000-7000-8000-000000000001".parse().unwrap());
        let many: Vec<String> = (2..FILES_MAX).map(|n| n.to_string()).collect();
        for path in ["a", "b", "a"].into_iter().chain(many.iter().map(String::as_str)).chain(["c"]) {
            seen.record(session, Path::new(path), stamp);
        }
        let known = |path: &str| seen.last(session, Path::new(path)).is_some();
        assert_eq!([known("a"), known("b"), known("c")], [false, true, true]);
    }
}
