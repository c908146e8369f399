//! Ways to paths as they are named: the links on them, and where they end.
//!
//! A command that replaces a link in the middle of a way puts a file of its own at its end, so a link is protected as the
//! end is. Nothing here opens a file.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Component, Path, PathBuf},
};

/// Links of one way: as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// Entries of a folder that are looked at, and links among them that are followed.
const ENTRIES_MAX: usize = 8_192;
const ENTRY_LINKS_MAX: usize = 256;

/// Way to a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// Links on it, each by a path without links but for itself.
    pub(crate) links: Vec<PathBuf>,
    /// Its end by a path without links. It may be missing; a circle of links has none.
    pub(crate) end: Option<PathBuf>,
}

/// Follows an absolute path, part by part.
pub(crate) fn follow(path: &Path) -> Way {
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().filter(|part| *part != Component::CurDir);
        parts.map(|part| part.as_os_str().to_owned()).rev().collect()
    };
    let (mut links, mut left, mut here) = (Vec::new(), parts(path), PathBuf::from("/"));
    while let Some(part) = left.pop() {
        if part == ".." {
            here.pop();
            continue;
        }
        here.push(part);
        let Ok(target) = here.read_link() else { continue };
        if links.len() == LINKS_MAX {
            return Way { links, end: None };
        }
        left.extend(parts(&target));
        links.push(here.clone());
        here.pop();
    }
    Way { links, end: Some(here) }
}

/// Lists the links and the ends of the ways to some paths, as far as they lie in a workspace. Of a folder the links in it
/// are followed too: a program that obeys the folder obeys what they lead to.
pub(crate) fn ways(workspace: &Path, paths: impl IntoIterator<Item = PathBuf>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut add = |way: Way, from: Option<&Path>| {
        // A folder that holds the link would be much more than was meant.
        let end = way.end.clone().filter(|end| !from.is_some_and(|from| from.starts_with(end)));
        let is_inside = |path: &PathBuf| path.starts_with(workspace) && path != workspace;
        found.extend(way.links.into_iter().chain(end).filter(is_inside));
        way.end
    };
    for path in paths {
        let Some(end) = add(follow(&path), None) else { continue };
        let entries = fs::read_dir(&end).into_iter().flatten().flatten().take(ENTRIES_MAX);
        let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
        for link in links.take(ENTRY_LINKS_MAX) {
            add(follow(&link.path()), Some(&end));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_way_has_each_link_and_an_end_and_a_circle_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("real/inner")).unwrap();
        for (target, link) in [("b", "a"), ("real/inner", "b"), ("../../x", "real/inner/up"), ("circle", "circle")] {
            symlink(target, root.join(link)).unwrap();
        }
        let check = |path: &str, links: &[&str], end: &str| {
            let links = links.iter().map(|link| root.join(link)).collect();
            assert_eq!(follow(&root.join(path)), Way { links, end: Some(root.join(end)) }, "{path}");
        };
        check("real/./inner/file", &[], "real/inner/file");
        check("a/file", &["a", "b"], "real/inner/file");
        check("a/../file", &["a", "b"], "real/file");
        check("a/up/y", &["a", "b", "real/inner/up"], "x/y");
        check("missing/../real", &[], "real");
        let circle = follow(&root.join("circle/x"));
        assert_eq!((circle.links.len(), circle.end), (LINKS_MAX, None));
    }

    #[test]
    fn links_in_a_folder_are_followed_and_never_to_what_holds_them() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let workspace = root.join("w");
        fs::create_dir_all(workspace.join("a/hooks")).unwrap();
        for (target, link) in [("../../s/x", "x"), ("..", "above"), ("../..", "all"), ("/etc/passwd", "out")] {
            symlink(target, workspace.join("a/hooks").join(link)).unwrap();
        }
        let found = ways(&workspace, [workspace.join("a/hooks"), root.join("w"), root.clone()]);
        let expected = ["a/hooks", "a/hooks/above", "a/hooks/all", "a/hooks/out", "a/hooks/x", "s/x"];
        assert_eq!(found, expected.map(|path| workspace.join(path)).into());
    }
}
