//! What git's configuration names in a workspace, found before the first command of each session.
//!
//! git itself reads its configuration, confined, and runs nothing for this.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use meerkat_service::{SessionId, tool::ToolError};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    configs,
    named::{Repository, named},
    place::Place,
    run::Run,
};
use crate::{
    confine::{git_folders, main_folders},
    files::blocking,
};

/// Lists the values of the user's own files. Without git there is nothing that obeys. Two NULs more end each list.
const OWN: &str = r#"for file in ~/.config/git/config ~/.gitconfig; do
    [ -f "$file" ] && git config --file "$file" --list --includes -z 2>/dev/null
done
printf '\0\0'
"#;
/// Functions that list every value with its file. A named git directory gets a work tree, because its own may be missing.
const FUNCTIONS: &str = r#"command -v git >/dev/null || exit 0
list() { git config --list --show-origin --includes -z 2>/dev/null; printf '\0\0'; }
of() { (export GIT_DIR="$1" GIT_WORK_TREE=.; list); }
"#;
/// Bytes of the lists of one run.
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Git directories of one run, which has bounds of its own.
const RUN_MAX: usize = 16;
/// Time of one run: git waits for a pipe that a configuration includes.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Files of a git directory that git reads as a configuration.
const CONFIGS: [&str; 2] = ["config", "config.worktree"];
/// Sessions whose paths are remembered.
const SESSIONS_MAX: usize = 256;

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
    let of = workspace.to_owned();
    let looked = blocking(move || {
        let root = of.ancestors().find(|folder| folder.join(".git").symlink_metadata().is_ok()).unwrap_or(&of);
        let first = main_folders(root).next();
        let mut others = git_folders(root).map_err(ToolError::Refused)?;
        let configs = others.iter().flat_map(|folder| CONFIGS.map(|name| folder.join(name)));
        if let Some(config) = configs.into_iter().find(|path| path.metadata().is_ok_and(|found| !found.is_file())) {
            return Err(ToolError::Refused(format!(
                "{} is not a regular file, so commands cannot run here. Replace it with a file.",
                config.display()
            )));
        }
        others.retain(|folder| Some(folder) != first.as_ref());
        Ok((root.to_owned(), first, others.into_iter().collect::<Vec<PathBuf>>()))
    });
    let (root, first, others) = looked.await?;
    let mut found = Found { workspace: workspace.to_owned(), ..Found::default() };
    let mut paths = BTreeSet::new();
    let mut groups = others.chunks(RUN_MAX);
    let mut group = groups.next().unwrap_or_default();
    let mut is_first = true;
    loop {
        let mut command = FUNCTIONS.to_owned();
        if is_first {
            command.extend([OWN, "list\n"]);
        }
        for folder in group {
            let Some(folder) = folder.to_str() else {
                let message = format!("The path {} is not UTF-8, so no command runs here.", folder.display());
                return Err(ToolError::Refused(message));
            };
            writeln!(command, "of '{}'", folder.replace('\'', r"'\''")).ok();
        }
        command.push_str("exit 0");
        let text = list(place, (&root, workspace), command).await?;
        let mut lists = text.split("\0\0").map(|list| list.trim_matches('\0'));
        if is_first {
            found.harmless = configs::harmless_git(lists.next().unwrap_or_default());
        }
        let first = is_first.then(|| Repository { folder: first.clone(), work_tree: Some(root.clone()) });
        let group_of = group.iter().map(|folder| Repository { folder: Some(folder.clone()), work_tree: None });
        let lists: Vec<(Repository, String)> =
            first.into_iter().chain(group_of).zip(lists.map(str::to_owned)).collect();
        let (workspace, home) = (workspace.to_owned(), place.home.clone());
        let (root, mut known) = (root.clone(), std::mem::take(&mut paths));
        // It looks at files.
        let looked = blocking(move || {
            for (repository, list) in lists {
                known.append(&mut named(&list, &repository, &root, (&workspace, home.as_deref())));
            }
            Ok(known)
        });
        paths = looked.await?;
        is_first = false;
        let Some(next) = groups.next() else { break };
        group = next;
    }
    found.paths = paths.into_iter().collect();
    Ok(found)
}

/// Runs a command that only looks, and returns what it printed; nothing if it failed.
async fn list(place: &Arc<Place>, (root, workspace): (&Path, &Path), command: String) -> Result<String, ToolError> {
    let (looking, root, of) = (place.clone(), root.to_owned(), workspace.to_owned());
    // A repository around the home folder is not looked at; a command cannot see it either.
    let run = blocking(move || {
        let job = looking.look(&root, &root, &command).or_else(|_| looking.look(&of, &of, &command));
        Run::start(&looking, &job.map_err(ToolError::Refused)?, (None, None), CancellationToken::new())
    });
    let mut run = run.await?;
    let mut text = String::new();
    let deadline = Instant::now() + TIME_MAX;
    loop {
        let Ok(piece) = timeout_at(deadline, run.pieces.recv()).await else {
            let message = "git needs too long to read its configuration, so no command runs here.";
            return Err(ToolError::Refused(message.to_owned()));
        };
        let Some(piece) = piece else { break };
        text.push_str(&piece);
        if text.len() > BYTES_MAX {
            let message = format!("The configuration of git has more than {BYTES_MAX} bytes, so no command runs here.");
            return Err(ToolError::Refused(message));
        }
    }
    Ok(if run.end().await?.code == 0 { text } else { String::new() })
}
