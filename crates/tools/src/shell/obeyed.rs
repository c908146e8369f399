//! Paths in a workspace that git's configuration names: folders of hooks, programs and further configurations. git obeys
//! them later, outside of any confinement.
//!
//! git itself reads its configuration, confined, and runs nothing for this.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use meerkat_service::{SessionId, tool::ToolError};

use super::{Place, configs, run::Run};

/// Lists every value with its file and, behind two more NULs, those of the user's own files. Without git there is nothing
/// that obeys.
const COMMAND: &str = r#"command -v git >/dev/null || exit 0
git config --list --show-origin --includes -z 2>/dev/null || exit 1
printf '\0\0'
for file in ~/.config/git/config ~/.gitconfig; do
    [ -f "$file" ] && git config --file "$file" --list --includes -z 2>/dev/null
done
exit 0"#;
/// Bytes of a configuration.
const BYTES_MAX: usize = 1024 * 1024;
/// Sessions whose paths are remembered.
const SESSIONS_MAX: usize = 256;
/// Last parts of the keys whose value is a program that git runs unasked.
const PROGRAMS: &[&str] = &[
    "askpass",
    "clean",
    "command",
    "diffcmd",
    "difffilter",
    "driver",
    "editor",
    "external",
    "fsmonitor",
    "gitproxy",
    "helper",
    "pager",
    "packobjectshook",
    "process",
    "program",
    "receivepack",
    "smudge",
    "sshcommand",
    "textconv",
    "uploadpack",
];
/// Those whose value is a folder with programs.
const FOLDERS: &[&str] = &["hookspath", "templatedir"];

/// Paths that were found before the first command of each session.
#[derive(Default)]
pub(super) struct Obeyed {
    sessions: Mutex<BTreeMap<SessionId, Found>>,
}

/// What git's configuration says for a workspace.
#[derive(Clone, Default)]
pub(super) struct Found {
    workspace: PathBuf,
    /// Paths in the workspace that it names.
    pub(super) paths: Vec<PathBuf>,
    /// What commands see instead of the user's own configuration.
    pub(super) harmless: String,
}

impl Obeyed {
    /// Returns what is said for a session's workspace. It is found once: no later command changes the configuration
    /// without a question.
    pub(super) async fn of(
        &self,
        place: &Arc<Place>,
        session_id: SessionId,
        workspace: &Path,
    ) -> Result<Found, ToolError> {
        let known = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&session_id).cloned();
        if let Some(known) = known.filter(|known| known.workspace == workspace) {
            return Ok(known);
        }
        let found = find(place, workspace).await?;
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= SESSIONS_MAX {
            // It is found again when it is needed.
            sessions.pop_first();
        }
        sessions.insert(session_id, found.clone());
        Ok(found)
    }
}

async fn find(place: &Arc<Place>, workspace: &Path) -> Result<Found, ToolError> {
    let (looking, of) = (place.clone(), workspace.to_owned());
    let job = tokio::task::spawn_blocking(move || {
        let root = of.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok()).unwrap_or(&of);
        // A repository around the home folder is not looked at; a command cannot see it either.
        let job = looking.look(root, root, COMMAND).or_else(|_| looking.look(&of, &of, COMMAND));
        job.map(|job| (job, root.to_owned()))
    });
    let job = job.await.map_err(|error| ToolError::Failed(error.to_string()))?;
    let (job, root) = job.map_err(ToolError::Refused)?;
    let root = if workspace.starts_with(&root) { root } else { workspace.to_owned() };
    let mut run = Run::start(place, &job, None, None)?;
    let mut text = String::new();
    while let Some(piece) = run.pieces.recv().await {
        text.push_str(&piece);
        if text.len() > BYTES_MAX {
            let message = format!("The configuration of git has more than {BYTES_MAX} bytes, so no command runs here.");
            return Err(ToolError::Refused(message));
        }
    }
    // With a configuration that it cannot read git obeys nothing either.
    let code = run.end().await?.code;
    let found = Found { workspace: workspace.to_owned(), ..Found::default() };
    let Some((all, own)) = text.split_once("\0\0").filter(|_| code == 0) else { return Ok(found) };
    let harmless = configs::harmless_git(own.trim_start_matches('\0'));
    Ok(Found { paths: named(all, &root, workspace), harmless, ..found })
}

/// Reads the list: each value has its file, its key and, after a line end, itself.
fn named(list: &str, root: &Path, workspace: &Path) -> Vec<PathBuf> {
    let mut paths = BTreeSet::new();
    let mut add = |path: PathBuf, may_be_folder: bool, may_be_missing: bool| {
        let Some(plain) = plain(&path) else { return };
        let real = plain.canonicalize();
        let is_fit = |path: &Path| path.starts_with(workspace) && path != workspace;
        match &real {
            Ok(real) if real.is_dir() && !may_be_folder => return,
            Ok(real) if is_fit(real) => drop(paths.insert(real.clone())),
            Err(_) if !may_be_missing => return,
            Ok(_) | Err(_) => {}
        }
        // A link in the workspace could be made to lead elsewhere.
        let is_link = plain.symlink_metadata().is_ok_and(|found| found.is_symlink());
        if is_fit(&plain) && (is_link || real.is_err()) {
            paths.insert(plain);
        }
    };
    let mut fields = list.split('\0');
    while let (Some(origin), Some(entry)) = (fields.next(), fields.next()) {
        let file = origin.strip_prefix("file:").map(|file| root.join(file));
        if let Some(file) = &file {
            add(file.clone(), false, false);
        }
        let (key, value) = entry.split_once('\n').unwrap_or((entry, ""));
        let last = key.rsplit('.').next().unwrap_or(key);
        let is_include = last == "path" && key.starts_with("include");
        if let Some(folder) = file.as_deref().and_then(Path::parent).filter(|_| is_include) {
            add(folder.join(value), false, true);
        } else if FOLDERS.contains(&last) {
            add(root.join(value), true, true);
        } else if PROGRAMS.contains(&last) || key.starts_with("pager.") {
            let words = value.split(|char: char| char.is_whitespace() || "'\"=;&|()<>!".contains(char));
            for word in std::iter::once(value).chain(words).filter(|word| !word.is_empty()) {
                add(root.join(word), false, word.contains('/') && !word.contains(' '));
            }
        }
    }
    // git's own files are protected as a whole.
    paths.into_iter().filter(|path| !path.starts_with(workspace.join(".git"))).collect()
}

/// Takes `.` and `..` out of a path, without a look at links; `None` if it leads above the root.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop().then_some(())?),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
            let workspace = plain(&root.join(workspace)).unwrap();
            let found = named(&list, &root, &workspace);
            let shown: Vec<_> = found.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap()).collect();
            assert_eq!(shown, expected, "{entries:?}");
        };
        let own = "file:.git/config";
        check(&[(own, "core.bare\nfalse"), (own, "core.editor\nvi"), (own, "alias.l\n!make -f Makefile")], ".", &[]);
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
}
