//! Files of a project that the commands and arguments of its servers name.
//!
//! They are part of what is trusted: who changes such a file changes what runs. Files that these load in turn are not
//! found here.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use meerkat_tools::servers::{ServerConfig, expand};
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

/// Paths that may be named.
const PATHS_MAX: usize = 4_096;
/// Folders of the project that names may be relative to.
const FOLDERS_MAX: usize = 32;
/// Bytes of all files together.
const BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes that are read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// Paths that servers of a project name; most lead to nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Programs {
    root: PathBuf,
    paths: BTreeSet<PathBuf>,
}

impl Programs {
    /// Collects the paths that these servers name. `root` has no links.
    ///
    /// # Errors
    /// Says that there are too many.
    pub(super) fn named_by<'a>(
        root: &Path,
        servers: impl Iterator<Item = &'a ServerConfig>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let mut programs = Self { root: root.to_owned(), paths: BTreeSet::new() };
        for server in servers {
            let texts = server.command.iter().chain(&server.args).chain(server.env.values());
            let value_of = |name: &str| variables.get(name).cloned();
            let texts: Vec<String> =
                texts.map(|text| expand(text, &value_of).unwrap_or_else(|_| text.clone())).collect();
            let names: BTreeSet<&str> = texts.iter().flat_map(|text| words(text)).collect();
            if names.len() > PATHS_MAX {
                return Err(format!("its servers name more than {PATHS_MAX} words"));
            }
            let folders =
                names.iter().map(|name| root.join(name)).filter(|path| path.starts_with(root) && path.is_dir());
            let folders: BTreeSet<PathBuf> = std::iter::once(root.to_owned()).chain(folders).collect();
            if folders.len() > FOLDERS_MAX {
                return Err(format!("one of its servers names {FOLDERS_MAX} folders or more"));
            }
            programs.paths.extend(folders.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))));
            // The shell's way: a plain name is looked for in PATH, where a folder of the project may be.
            if let Some(name) = texts.first().filter(|name| server.command.is_some() && !name.contains('/')) {
                let path = variables.get("PATH").map(String::as_str).unwrap_or_default();
                programs.paths.extend(std::env::split_paths(path).map(|folder| root.join(folder).join(name)));
            }
            if programs.paths.len() > PATHS_MAX {
                return Err(format!("its servers name more than {PATHS_MAX} paths"));
            }
        }
        Ok(programs)
    }

    /// Lists the files of the project that are there, each with its path without links. A link that leads out of the
    /// project is listed too.
    pub(super) fn files(&self) -> BTreeMap<&Path, PathBuf> {
        let real = |path: &Path| path.canonicalize().ok().filter(|real| real.is_file());
        let files = self.paths.iter().filter_map(|path| Some((path.as_path(), real(path)?)));
        files.filter(|(path, real)| real.starts_with(&self.root) || path.starts_with(&self.root)).collect()
    }

    /// Adds the files to a hash, by name, owner, rights and content; of one outside of the project only the place, as the
    /// project does not hold it.
    pub(super) fn add_to(&self, hash: &mut Sha256) -> Result<(), String> {
        let mut left = BYTES_MAX;
        for (path, real) in self.files() {
            let failed = |error: io::Error| format!("{}: {error}", path.display());
            let mut content = Sha256::new();
            if real.starts_with(&self.root) {
                let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
                let mut file = File::options().read(true).custom_flags(flags).open(&real).map_err(failed)?;
                let metadata = file.metadata().map_err(failed)?;
                content.update(format!("{} {:o} ", metadata.uid(), metadata.mode()));
                let mut piece = vec![0; PIECE_BYTES];
                while let bytes @ 1.. = file.read(&mut piece).map_err(failed)? {
                    let too_many = || format!("the files that its servers name have more than {BYTES_MAX} bytes");
                    left = left.checked_sub(bytes as u64).ok_or_else(too_many)?;
                    content.update(&piece[..bytes]);
                }
            }
            let names = [path, &real].map(|path| path.as_os_str().as_encoded_bytes());
            for part in [names[0], names[1], &content.finalize()] {
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
        }
        Ok(())
    }
}

/// Splits a text into what may be a path: the whole text, and its words, as a shell's command or `--key=path` has them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let between = |char: char| char.is_whitespace() || "'\"`;|&=,()<>:".contains(char);
    std::iter::once(text).chain(text.split(between)).filter(|word| !word.is_empty() && !word.contains('\0'))
}

/// Counts the bytes of a file, for people.
pub(super) fn bytes_of(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_name_a_file_of_the_project_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for file in ["server.js", "bin/tool", "sub/main.py", "outside"] {
            let path = root.join("project").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "1").unwrap();
        }
        let root = root.join("project");
        fs::rename(root.join("outside"), root.parent().unwrap().join("outside")).unwrap();
        std::os::unix::fs::symlink("../outside", root.join("link")).unwrap();
        let absolute = root.join("server.js").display().to_string();
        let variables = [("HERE", root.display().to_string()), ("PATH", format!("/none:{}/bin", root.display()))];
        let variables = variables.map(|(name, value)| (name.to_owned(), value)).into();
        for (server, expected) in [
            (serde_json::json!({ "command": "node", "args": ["server.js"] }), "server.js"),
            (serde_json::json!({ "command": "./server.js" }), "server.js"),
            (serde_json::json!({ "command": absolute }), "server.js"),
            (serde_json::json!({ "command": "sh", "args": ["-c", "cd x; exec './server.js' --fast"] }), "server.js"),
            (serde_json::json!({ "command": "node", "args": ["--require=${HERE}/server.js"] }), "server.js"),
            (serde_json::json!({ "command": "node", "env": { "NODE_OPTIONS": "-r ./server.js" } }), "server.js"),
            (serde_json::json!({ "command": "uv", "args": ["--directory", "sub", "run", "main.py"] }), "main.py"),
            (serde_json::json!({ "command": "tool" }), "tool"),
            (serde_json::json!({ "command": "sub/../link" }), "outside"),
        ] {
            let server: ServerConfig = serde_json::from_value(server).unwrap();
            let programs = Programs::named_by(&root, std::iter::once(&server), &variables).unwrap();
            let hash = || {
                let mut hash = Sha256::new();
                programs.add_to(&mut hash).unwrap();
                hash.finalize()
            };
            let files = programs.files();
            let [(_, real)] = &files.iter().collect::<Vec<_>>()[..] else { panic!("{server:?}: {files:?}") };
            assert!(real.ends_with(expected), "{server:?}: {real:?}");
            let before = hash();
            fs::write(real, "2").unwrap();
            assert_eq!(hash() == before, expected == "outside", "{server:?}");
            fs::write(real, "1").unwrap();
            assert_eq!(hash(), before);
        }
        let many: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
        let server: ServerConfig = serde_json::from_value(serde_json::json!({ "command": "a", "args": many })).unwrap();
        Programs::named_by(&root, std::iter::once(&server), &BTreeMap::new()).unwrap_err();
        // No folder is left out in silence: a program in it would not be looked at.
        let many: Vec<String> = (0..FOLDERS_MAX).map(|n| format!("folder{n}")).collect();
        many.iter().for_each(|name| fs::create_dir(root.join(name)).unwrap());
        for (args, is_fine) in [(&many[1..], true), (&many[..], false)] {
            let server: ServerConfig =
                serde_json::from_value(serde_json::json!({ "command": "a", "args": args })).unwrap();
            let named = Programs::named_by(&root, std::iter::once(&server), &BTreeMap::new());
            assert_eq!(named.is_ok(), is_fine, "{named:?}");
        }
    }
}
