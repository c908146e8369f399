//! Paths in a workspace that a configuration of git names: folders of hooks, programs and further configurations. git obeys
//! them later, outside of any confinement.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::confine::{follow, named_work_tree};

/// Keys whose value may name a folder with programs. Any other value that happens to be a folder's name, such as that of a
/// remote or a branch, would make this whole folder read-only.
const FOLDERS: &[&str] = &["core.hookspath", "init.templatedir"];
/// Last parts of the keys whose value is a program for certain: a file that does not exist yet counts too.
const PROGRAMS: &[&str] = &[
    "askpass",
    "clean",
    "difffilter",
    "driver",
    "editor",
    "external",
    "fsmonitor",
    "gitproxy",
    "helper",
    "httpd",
    "pager",
    "packobjectshook",
    "process",
    "program",
    "receivepack",
    "smudge",
    "textconv",
    "tunnel",
    "uploadpack",
];
/// Ends of such parts.
const PROGRAM_ENDS: &[&str] = &["cmd", "command"];
/// Keys that are a text for people.
const TEXTS: &[&str] = &["user.name", "user.email"];
/// Words of a value that are looked at.
const WORDS_MAX: usize = 4_096;

/// Repository whose configuration is read.
pub(super) struct Repository {
    /// Its git directory.
    pub(super) folder: Option<PathBuf>,
    /// Root of its work tree, if that is known.
    pub(super) work_tree: Option<PathBuf>,
}

impl Repository {
    /// Finds the root of the work tree.
    fn root(&self, list: &str) -> Option<PathBuf> {
        let folder = || self.folder.as_deref();
        let configured = || {
            let mut values = list.split('\0').filter_map(|entry| entry.strip_prefix("core.worktree\n"));
            values.next_back().and_then(|value| Some(folder()?.join(value)))
        };
        let above = || folder()?.parent().filter(|_| folder().is_some_and(|folder| folder.ends_with(".git")));
        let root = self.work_tree.clone().or_else(|| named_work_tree(folder()?)).or_else(configured);
        let root = root.or_else(|| above().map(Path::to_owned))?;
        Some(root.canonicalize().unwrap_or(root))
    }
}

/// What a value may name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    FileOrFolder,
}

/// Finds the paths in a workspace that a list of values names. Each value has its file, its key and, after a line end,
/// itself. Paths of files are relative to `start`, in which git ran.
///
/// Nobody can list all keys with a program: git has dozens, and other programs add theirs. So each word of each value
/// that is the path of a file counts, whatever its key is. That makes a file read-only at most which needs not be.
pub(super) fn named(
    list: &str,
    repository: &Repository,
    start: &Path,
    (workspace, home): (&Path, Option<&Path>),
) -> BTreeSet<PathBuf> {
    let root = repository.root(list).unwrap_or_else(|| start.to_owned());
    let mut paths = BTreeSet::new();
    let mut add = |path: &Path, kind: Kind, may_be_missing: bool| {
        let way = follow(path);
        let Some(end) = way.end else { return };
        let is_fit = match fs::metadata(&end) {
            Ok(found) => !found.is_dir() || kind == Kind::FileOrFolder,
            Err(_) => may_be_missing,
        };
        // The whole work tree, or a folder above it, is not meant.
        if is_fit && !root.starts_with(&end) {
            let is_inside = |path: &PathBuf| path.starts_with(workspace) && path != workspace;
            // A link in the workspace could be made to lead elsewhere.
            paths.extend(way.links.into_iter().chain([end]).filter(is_inside));
        }
    };
    let expanded = |base: &Path, value: &str| match (value.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => base.join(value),
    };
    let mut fields = list.split('\0');
    while let (Some(origin), Some(entry)) = (fields.next(), fields.next()) {
        let file = origin.strip_prefix("file:").map(|file| start.join(file));
        if let Some(file) = &file {
            add(file, Kind::File, false);
        }
        let (key, value) = entry.split_once('\n').unwrap_or((entry, ""));
        let last = key.rsplit('.').next().unwrap_or(key);
        let is_text = TEXTS.contains(&key) || (last == "description" && key.starts_with("branch."));
        if value.is_empty() || is_text {
            continue;
        }
        let value = value.replace("${HOME}/", "~/").replace("$HOME/", "~/");
        if last == "path" && key.starts_with("include") {
            if let Some(folder) = file.as_deref().and_then(Path::parent) {
                add(&expanded(folder, &value), Kind::File, true);
            }
            continue;
        }
        if FOLDERS.contains(&key) {
            add(&expanded(&root, &value), Kind::FileOrFolder, true);
            // Hooks of a push run in the git directory.
            if let Some(folder) = &repository.folder {
                add(&folder.join(&value), Kind::FileOrFolder, false);
            }
            continue;
        }
        let is_program = PROGRAMS.contains(&last)
            || PROGRAM_ENDS.iter().any(|end| last.ends_with(end))
            || key.starts_with("pager.")
            || value.starts_with('!');
        for word in words(&value) {
            // A path that is missing has no variable, no space and no kind of address in it.
            let is_path = word.contains('/') && !word.contains([' ', '$', ':']);
            add(&expanded(&root, word), Kind::File, is_program && is_path);
            // `$PWD/x`, and what follows `$(git rev-parse --show-toplevel)`.
            let inner = word.split_once('/').filter(|(above, _)| above.is_empty() || above.starts_with('$'));
            let others = inner.map(|(_, inner)| root.join(inner));
            for other in others.into_iter().chain(repository.folder.iter().map(|folder| folder.join(word))) {
                add(&other, Kind::File, false);
            }
        }
    }
    // git's own files are protected as a whole.
    paths.into_iter().filter(|path| !path.starts_with(workspace.join(".git"))).collect()
}

/// Splits a value as a shell could, also with spaces between quotes, and as addresses such as `ext::program`.
fn words(value: &str) -> impl Iterator<Item = &str> {
    let quoted = value.split(['\'', '"']);
    let words = value.split(|char: char| char.is_whitespace() || "'\"`=;&|()<>!{}".contains(char));
    let parts = words.clone().filter(|word| word.contains(':')).flat_map(|word| word.split(':'));
    let all = std::iter::once(value).chain(quoted).chain(words).chain(parts);
    all.map(|word| word.trim_start_matches('!').trim()).filter(|word| !word.is_empty()).take(WORDS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_name_a_path_of_the_workspace_is_seen_and_no_other_word() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in ["hooks", "src", "sub/tools", ".git"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in ["git.inc", "sub/tools/conv", "monitor", ".git/config", "Makefile"] {
            fs::write(root.join(path), "").unwrap();
        }
        std::os::unix::fs::symlink("/bin/sh", root.join("link")).unwrap();
        let check = |entries: &[(&str, &str)], workspace: &str, expected: &[&str]| {
            let list: String = entries.iter().map(|(origin, entry)| format!("{origin}\0{entry}\0")).collect();
            let workspace = if workspace == "." { root.clone() } else { root.join(workspace) };
            let repository = Repository { folder: Some(root.join(".git")), work_tree: Some(root.clone()) };
            let found = named(&list, &repository, &root, (&workspace, Some(&root.join("sub"))));
            let shown: Vec<_> = found.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
            assert_eq!(shown, expected, "{entries:?}");
        };
        let own = "file:.git/config";
        check(&[(own, "core.bare\nfalse"), (own, "core.editor\nvi"), (own, "alias.l\n!make")], ".", &[]);
        check(&[(own, "core.hookspath\nhooks")], ".", &["hooks"]);
        check(&[(own, "core.hookspath\n.husky/_")], ".", &[".husky/_"]);
        check(&[(own, "core.hookspath\n../elsewhere"), (own, "core.hookspath\n/etc")], ".", &[]);
        check(&[("file:.git/../git.inc", "user.name\na")], ".", &["git.inc"]);
        check(
            &[(own, "include.path\n../new.inc"), (own, "includeif.gitdir:x.path\n../other.inc")],
            ".",
            &["new.inc", "other.inc"],
        );
        check(&[(own, "core.fsmonitor\n./monitor --fast")], ".", &["monitor"]);
        check(&[(own, "diff.x.textconv\nsh -c 'sub/tools/conv src'")], ".", &["sub/tools/conv"]);
        check(&[(own, "filter.x.clean\nlink -q")], ".", &["link"]);
        check(&[(own, "core.sshcommand\nnew/ssh -q")], ".", &["new/ssh"]);
        // Only what lies in the workspace can be changed by a command.
        check(&[(own, "core.hookspath\nhooks"), (own, "diff.x.textconv\nsub/tools/conv")], "sub", &["sub/tools/conv"]);
        check(&[("command line:", "core.hookspath\nhooks"), (own, "core.pager")], ".", &["hooks"]);
    }

    #[test]
    fn a_word_of_any_value_counts_if_it_is_a_file_and_no_folder_does() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for path in ["t", "src", ".git", "with space"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        for path in ["t/x.sh", "t/y.sh", "with space/z.sh", "main"] {
            fs::write(root.join(path), "").unwrap();
        }
        let repository = Repository { folder: Some(root.join(".git")), work_tree: Some(root.clone()) };
        let check = |entry: &str, expected: &[&str]| {
            let found = named(&format!("file:.git/config\0{entry}\0"), &repository, &root, (&root, Some(&root)));
            assert_eq!(found, expected.iter().map(|path| root.join(path)).collect(), "{entry}");
        };
        for value in [
            "!sh t/x.sh",
            "!t/x.sh $1",
            "!./t/x.sh",
            "~/t/x.sh",
            "sh -c '$HOME/t/x.sh -q'",
            "\"${HOME}/t/x.sh\" %O",
            "$PWD/t/x.sh",
            "!$(git rev-parse --show-toplevel)/t/x.sh",
            "ext::t/x.sh %S",
            "A=1 t/x.sh;true",
            "../t/x.sh",
        ] {
            for key in ["alias.a", "difftool.x.cmd", "submodule.s.update", "new.key"] {
                check(&format!("{key}\n{value}"), &["t/x.sh"]);
            }
        }
        check(&format!("core.alternaterefscommand\n{}/t/y.sh", root.display()), &["t/y.sh"]);
        check("man.m.path\nwith space/z.sh", &["with space/z.sh"]);
        // Its second word could be a program that is missing.
        check("alias.a\n!'with space/z.sh' -q", &["space/z.sh", "with space/z.sh"]);
        // Ordinary values.
        for entry in [
            "remote.origin.url\n../src",
            "branch.b.remote\nsrc",
            "branch.main.description\nfixes t/x.sh",
            "user.name\nmain",
            "alias.t\n!cd t && make",
            "core.worktree\n..",
        ] {
            check(entry, &[]);
        }
        check("trailer.x.cmd\nt/new.sh", &["t/new.sh"]);
        check("remote.origin.fetch\n+refs/heads/*:refs/remotes/origin/*", &[]);
        for value in [".", "..", "src/.."] {
            check(&format!("core.hookspath\n{value}"), &[]);
        }
        check("core.hookspath\n~/t", &["t"]);
        check("init.templatedir\nsrc", &["src"]);
    }

    #[test]
    fn values_are_relative_to_the_work_tree_of_their_repository() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let entry = "file:/x\0core.hookspath\nh\0";
        for path in ["sub", "w2", "old/.git", ".git/modules/sub", ".git/worktrees/w2", ".git/modules/bare"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(root.join(".git/worktrees/w2/gitdir"), format!("{}/w2/.git\n", root.display())).unwrap();
        let check = |folder: &str, list: &str, expected: &str| {
            let repository = Repository { folder: Some(root.join(folder)), work_tree: None };
            let found = named(list, &repository, &root, (&root, None));
            assert_eq!(found, BTreeSet::from([root.join(expected)]), "{folder}");
        };
        check(".git/modules/sub", &format!("file:/x\0core.worktree\n../../../sub\0{entry}"), "sub/h");
        check(".git/worktrees/w2", entry, "w2/h");
        check("old/.git", entry, "old/h");
        check(".git/modules/bare", entry, "h");
    }
}
