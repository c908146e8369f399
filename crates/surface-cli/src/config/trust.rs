//! Trusted projects and files of rules, by path, owner and content, in the folder of the user's configuration.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use meerkat_tools::notes::RuleFile;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// File with the trusted ones, beside the user's configuration.
const FILE: &str = "trusted.json";

/// The file that is locked while another process could write what it read before.
const LOCK: &str = "trusted.lock";

/// A file or a project as it was when it was read.
pub(super) struct Seen {
    /// Its path without links.
    path: PathBuf,
    content: Content,
}

/// Properties that must be unchanged for trust to hold.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    owner: u32,
    sha256: String,
}

/// Trusted files and projects by their paths.
#[derive(Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Trusted(BTreeMap<PathBuf, Content>);

/// Trust in a file or a project.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    Full,
    /// It was trusted, but has changed.
    Changed,
    Missing,
}

impl Seen {
    pub(super) fn new(path: PathBuf, owner: u32, bytes: &[u8]) -> Self {
        Self::hashed(path, owner, hex(&Sha256::digest(bytes)))
    }

    /// A file, or a project by its root, whose content has this hash.
    pub(super) fn hashed(path: PathBuf, owner: u32, sha256: String) -> Self {
        Self { path, content: Content { owner, sha256 } }
    }

    /// A file of rules for the model.
    pub(super) fn rules(file: &RuleFile) -> Self {
        Self::new(file.path.clone(), file.owner, &file.bytes)
    }

    /// Looks the file up.
    pub(super) fn trust(&self, folder: &Path) -> Trust {
        // An unreadable list trusts nothing.
        match Trusted::read(folder).unwrap_or_default().0.get(&self.path) {
            Some(content) if *content == self.content => Trust::Full,
            Some(_) => Trust::Changed,
            None => Trust::Missing,
        }
    }

    /// Records the user's trust in it.
    pub(super) fn remember(self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let lock = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(folder.join(LOCK))?;
        lock.lock()?;
        let mut trusted = Trusted::read(folder)?;
        trusted.0.insert(self.path, self.content);
        let temporary = folder.join(format!("{FILE}.{}.new", std::process::id()));
        drop(fs::remove_file(&temporary));
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(&serde_json::to_vec_pretty(&trusted)?)?;
        file.sync_all()?;
        fs::rename(&temporary, folder.join(FILE))
    }
}

/// Writes bytes in hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Trusted {
    /// Reads all trusted files. A list that does not parse may have been edited, and is not overwritten.
    fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE);
        match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|error| io::Error::other(format!("{}: {error}; correct or remove it", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread::scope};

    use super::*;

    #[test]
    fn nothing_is_lost_of_what_is_trusted_at_once() {
        let (folder, barrier) = (tempfile::tempdir().unwrap(), Barrier::new(8));
        let seen = |n: usize| Seen::new(PathBuf::from(format!("/{n}/meerkat.toml")), 1000, b"limits.pins = 3");
        scope(|threads| {
            for n in 0..8 {
                let (folder, barrier) = (folder.path(), &barrier);
                threads.spawn(move || {
                    barrier.wait();
                    seen(n).remember(folder).unwrap();
                });
            }
        });
        for n in 0..8 {
            assert!(seen(n).trust(folder.path()) == Trust::Full, "{n}");
        }
    }
}
