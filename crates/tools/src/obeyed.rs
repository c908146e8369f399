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
    ".build.yml",
    ".cirrus.yml",
    ".crush.json",
    ".cshrc",
    ".devcontainer.json",
    ".dir-locals-2.el",
    ".dir-locals.el",
    ".drone.yml",
    ".envrc",
    ".exrc",
    ".gdbinit",
    ".ghci",
    ".gitlab-ci.yml",
    ".iex.exs",
    ".irbrc",
    ".kateproject",
    ".kshrc",
    ".latexmkrc",
    ".lefthook-local.yaml",
    ".lefthook-local.yml",
    ".lefthook.json",
    ".lefthook.toml",
    ".lefthook.yaml",
    ".lefthook.yml",
    ".lldbinit",
    ".login",
    ".mcp.json",
    ".mise.local.toml",
    ".mise.toml",
    ".nvim.lua",
    ".nvimrc",
    ".ocamlinit",
    ".pdbrc",
    ".pre-commit-config.yaml",
    ".pre-commit-config.yml",
    ".profile",
    ".pryrc",
    ".readthedocs.yaml",
    ".readthedocs.yml",
    ".rprofile",
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
    "buildspec.yml",
    "cloudbuild.yaml",
    "codemagic.yaml",
    "crush.json",
    "jenkinsfile",
    "latexmkrc",
    "lefthook-local.json",
    "lefthook-local.toml",
    "lefthook-local.yaml",
    "lefthook-local.yml",
    "lefthook.json",
    "lefthook.toml",
    "lefthook.yaml",
    "lefthook.yml",
    "meerkat.toml",
    "mise.local.toml",
    "mise.toml",
    "netlify.toml",
    "opencode.json",
    "opencode.jsonc",
    "prek.toml",
];
/// Ends of names of files, in small letters.
const ENDS: &[&str] = &[".code-workspace"];
/// Folders, and files in folders, in small letters. All that is in them counts.
const FOLDERS: &[&str] = &[
    ".amazonq",
    ".bsp",
    ".buildkite",
    ".builds",
    ".cargo/config",
    ".cargo/config.toml",
    ".circleci",
    ".claude",
    ".codex",
    ".config/fish",
    ".config/mise",
    ".continue",
    ".crush",
    ".cursor",
    ".devcontainer",
    ".factory",
    ".fleet",
    ".forgejo/workflows",
    ".gemini",
    ".gitea/workflows",
    ".github/actions",
    ".github/workflows",
    ".gitlab",
    ".helix",
    ".hg/hgrc",
    ".husky",
    ".idea",
    ".jj/repo/config.toml",
    ".junie",
    ".kilocode",
    ".kiro",
    ".mise/config.toml",
    ".mvn/extensions.xml",
    ".mvn/jvm.config",
    ".mvn/maven.config",
    ".opencode",
    ".qwen",
    ".roo",
    ".semaphore",
    ".teamcity",
    ".tekton",
    ".trae",
    ".vs",
    ".vscode",
    ".windsurf",
    ".woodpecker",
    ".zed",
    "mise/config.toml",
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
