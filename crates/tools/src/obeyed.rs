//! Names of files from which other programs take commands: editors, other agents, shells, hooks, build servers, and this
//! program itself. `write` and `edit` ask for each of them, and to commands those of the workspace are read-only.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Names of files, in small letters.
const FILES: &[&str] = &[
    ".aider.conf.yml",
    ".appveyor.yml",
    ".bash_login",
    ".bash_logout",
    ".bash_profile",
    ".bashrc",
    ".cirrus.yml",
    ".cshrc",
    ".devcontainer.json",
    ".dir-locals.el",
    ".drone.yml",
    ".envrc",
    ".exrc",
    ".gdbinit",
    ".gitlab-ci.yml",
    ".kshrc",
    ".lldbinit",
    ".login",
    ".mcp.json",
    ".mise.toml",
    ".nvim.lua",
    ".nvimrc",
    ".pre-commit-config.yaml",
    ".profile",
    ".tcshrc",
    ".travis.yml",
    ".vimrc",
    ".woodpecker.yaml",
    ".woodpecker.yml",
    ".zlogin",
    ".zlogout",
    ".zprofile",
    ".zshenv",
    ".zshrc",
    "appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "jenkinsfile",
    "lefthook-local.yml",
    "lefthook.yml",
    "meerkat.toml",
    "mise.toml",
    "opencode.json",
    "opencode.jsonc",
];
/// Ends of names of files, in small letters.
const ENDS: &[&str] = &[".code-workspace"];
/// Folders, and files in folders, in small letters. All that is in them counts.
const FOLDERS: &[&str] = &[
    ".buildkite",
    ".cargo/config",
    ".cargo/config.toml",
    ".circleci",
    ".claude",
    ".codex",
    ".config/fish",
    ".continue",
    ".cursor",
    ".devcontainer",
    ".fleet",
    ".forgejo/workflows",
    ".gemini",
    ".gitea/workflows",
    ".github/actions",
    ".github/workflows",
    ".hg/hgrc",
    ".husky",
    ".idea",
    ".kiro",
    ".mvn/extensions.xml",
    ".mvn/jvm.config",
    ".mvn/maven.config",
    ".opencode",
    ".roo",
    ".semaphore",
    ".teamcity",
    ".tekton",
    ".vs",
    ".vscode",
    ".windsurf",
    ".woodpecker",
    ".zed",
];

/// Returns true for such a file, and for what is in such a folder, wherever they are.
pub(crate) fn is_obeyed(path: &Path) -> bool {
    let parts: Vec<String> = path.iter().map(|part| part.to_string_lossy().to_ascii_lowercase()).collect();
    let is_in = |folder: &&str| {
        let folder: Vec<&str> = folder.split('/').collect();
        parts.windows(folder.len()).any(|window| window == folder)
    };
    let is_file = |name: &String| FILES.contains(&name.as_str()) || ENDS.iter().any(|end| name.ends_with(end));
    parts.last().is_some_and(is_file) || FOLDERS.iter().any(is_in)
}

/// Lists those that a workspace's own folder has: there programs look first, and a folder of downloaded packages has
/// thousands of them. A link is listed with the path in the workspace that it leads to. It blocks.
pub(crate) fn of_workspace(workspace: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in names(workspace) {
        let is_above =
            |folder: &&str| folder.split_once('/').is_some_and(|(above, _)| name.eq_ignore_ascii_case(above));
        if is_obeyed(Path::new(&name)) {
            found.push(workspace.join(name));
        } else if FOLDERS.iter().any(is_above) {
            let inner = names(&workspace.join(&name)).map(|inner| Path::new(&name).join(inner));
            found.extend(inner.filter(|path| is_obeyed(path)).map(|path| workspace.join(path)));
        }
    }
    let is_link = |path: &&PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
    let led_to = found.iter().filter(is_link).filter_map(|path| path.canonicalize().ok());
    let led_to: Vec<PathBuf> = led_to.filter(|path| path.starts_with(workspace) && path != workspace).collect();
    found.extend(led_to);
    found
}

fn names(folder: &Path) -> impl Iterator<Item = std::ffi::OsString> + use<> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name())
}
