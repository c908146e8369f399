//! Place of commands: the folders that they reach, and their environment.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use meerkat_service::tool::Network;

use super::configs;
use crate::confine::{self, Confinement, GitGuard, Job, Reach};

/// Folders of the system that a command may read and run programs from.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/snap",
    "/home/linuxbrew",
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    // Often a link into `/run`.
    "/etc/resolv.conf",
    "/run/systemd/resolve",
    "/var/lib/dpkg",
];
/// Files of the system that root could read.
const SYSTEM_SECRETS: &[&str] = &[
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/wireguard",
    "/etc/NetworkManager",
];
/// Toolchains: the variable that names the folder, and its usual place in the home folder.
const TOOLCHAINS: &[(&str, &str)] = &[
    ("CARGO_HOME", ".cargo"),
    ("RUSTUP_HOME", ".rustup"),
    ("PYENV_ROOT", ".pyenv"),
    ("NVM_DIR", ".nvm"),
    ("JAVA_HOME", ".sdkman"),
    ("GOROOT", ".go"),
    ("GOPATH", "go"),
    ("VIRTUAL_ENV", ".local/bin"),
];
/// Files of the home folder with the user's configuration of git, in the order in which git reads them.
const GIT_CONFIGS: [&str; 2] = [".config/git/config", ".gitconfig"];
/// Other files of the home folder that git reads.
const GIT: &[&str] = &[".config/git/attributes", ".config/git/ignore"];
/// Files of cargo's folder with its configuration.
const CARGO_CONFIGS: [&str; 2] = ["config.toml", "config"];
/// Bytes of such a file; a longer one is empty to commands.
const CONFIG_BYTES_MAX: u64 = 32 * 1024;
/// File of a virtual environment of Python, whose programs need the modules beside their folder.
const VIRTUAL_ENVIRONMENT: &str = "pyvenv.cfg";
/// Secrets of the home folder that may lie in a folder that is read.
const HOME_SECRETS: &[&str] = &[
    ".aws",
    ".azure",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".docker",
    ".git-credentials",
    ".gnupg",
    ".kube",
    // Of every project: tokens of running servers, and what was said.
    ".local/share/meerkat",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".ssh",
];
/// Variables that a command gets besides those of the toolchains and `LC_*`.
const VARIABLES: &[&str] = &[
    "HOME",
    "PATH",
    "LANG",
    "USER",
    "LOGNAME",
    "TZ",
    "RUSTUP_TOOLCHAIN",
    "PYENV_VERSION",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// Path of programs where the environment has none.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Options of the tools that run commands.
#[derive(Clone, Debug, Default)]
pub struct ShellOptions {
    /// Network of commands.
    pub network: Network,
    /// Files and folders that a command may read besides the workspace, the system and the toolchains.
    pub readable: Vec<PathBuf>,
    /// Files and folders that no command reaches: the data directory, with its owner's socket.
    pub hidden: Vec<PathBuf>,
    /// Environment of the person whose commands they are. Only names that carry no secret are passed on.
    pub environment: Vec<(String, String)>,
}

/// Folders and environment of all commands of a service.
pub(crate) struct Place {
    shell: PathBuf,
    pub(super) home: Option<PathBuf>,
    cargo_home: Option<PathBuf>,
    readable: Vec<PathBuf>,
    hidden: Vec<PathBuf>,
    /// Whole environment of a command, but for `TMPDIR`.
    pub(super) environment: BTreeMap<String, String>,
}

impl Place {
    pub(crate) fn new(options: ShellOptions) -> Self {
        let given: BTreeMap<String, String> = options.environment.into_iter().collect();
        let home = given.get("HOME").map(PathBuf::from).and_then(|home| home.canonicalize().ok());
        let shell = ["/bin/bash", "/usr/bin/bash"].map(PathBuf::from).into_iter().find(|path| path.is_file());
        let shell = shell.unwrap_or_else(|| PathBuf::from("/bin/sh"));
        let is_passed = |name: &str| {
            VARIABLES.contains(&name)
                || name.starts_with("LC_")
                || TOOLCHAINS.iter().any(|(variable, _)| *variable == name)
        };
        let mut environment: BTreeMap<String, String> =
            given.iter().filter(|(name, _)| is_passed(name)).map(|(name, text)| (name.clone(), text.clone())).collect();
        environment.insert("TERM".to_owned(), "dumb".to_owned());
        environment.insert("SHELL".to_owned(), shell.display().to_string());
        let path = environment.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());

        let mut folders: Vec<PathBuf> = std::env::split_paths(path).filter(|path| path.is_absolute()).collect();
        folders.extend(TOOLCHAINS.iter().filter_map(|(variable, _)| given.get(*variable).map(PathBuf::from)));
        folders.extend(["SSL_CERT_FILE", "SSL_CERT_DIR"].iter().filter_map(|name| given.get(*name).map(PathBuf::from)));
        if let Some(home) = &home {
            folders.extend(TOOLCHAINS.iter().map(|(_, folder)| home.join(folder)));
            folders.extend(GIT_CONFIGS.iter().chain(GIT).map(|file| home.join(file)));
        }
        folders.retain(|folder| is_narrow(folder, home.as_deref()));
        let mut readable: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
        readable.extend(folders);
        readable.extend(options.readable);
        let mut readable: Vec<PathBuf> = readable.iter().filter_map(|path| path.canonicalize().ok()).collect();
        readable.sort();
        // A folder beneath another is open already. A program's own `/proc` is another folder in its namespace.
        readable.dedup_by(|later, earlier| later.starts_with(earlier));

        let mut hidden: Vec<PathBuf> = SYSTEM_SECRETS.iter().map(PathBuf::from).collect();
        hidden.extend(home.iter().flat_map(|home| HOME_SECRETS.iter().map(move |name| home.join(name))));
        let cargo_home = given.get("CARGO_HOME").map(PathBuf::from);
        let cargo_home = cargo_home.or_else(|| home.as_ref().map(|home| home.join(".cargo")));
        if let Some(cargo) = &cargo_home {
            hidden.extend([cargo.join("credentials"), cargo.join("credentials.toml")]);
        }
        hidden.extend(options.hidden);
        let hidden = hidden.iter().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone())).collect();
        Self { shell, home, cargo_home, readable, hidden, environment }
    }

    /// Lists the configurations in the home folder that may hold passwords, each with what a command sees instead. `git` is
    /// that of git. It blocks.
    pub(super) fn shadows(&self, workspace: &Path, git: &str) -> Vec<(PathBuf, String)> {
        let mut shadows = Vec::new();
        let gits = self.home.iter().flat_map(|home| GIT_CONFIGS.map(|name| home.join(name)));
        let gits = gits.filter_map(|path| path.canonicalize().ok());
        let gits: Vec<PathBuf> = gits.filter(|path| path.is_file()).collect();
        if let Some((last, others)) = gits.split_last() {
            shadows.extend(others.iter().map(|path| (path.clone(), String::new())));
            shadows.push((last.clone(), git.to_owned()));
        }
        for name in CARGO_CONFIGS {
            let path = self.cargo_home.as_ref().and_then(|folder| folder.join(name).canonicalize().ok());
            let Some(path) = path.filter(|path| path.is_file()) else { continue };
            let is_short = path.metadata().is_ok_and(|found| found.len() <= CONFIG_BYTES_MAX);
            let text = std::fs::read_to_string(&path).ok().filter(|_| is_short);
            let left = text.map_or_else(|| Some(String::new()), |text| configs::without_secrets(&text));
            shadows.extend(left.map(|left| (path, left)));
        }
        // What lies in the workspace is what the person works on.
        shadows.retain(|(path, _)| !path.starts_with(workspace));
        shadows
    }

    /// Makes the job of a command, or says why it cannot run there. It blocks.
    pub(super) fn job(
        &self,
        (workspace, search_path): (&Path, Option<String>),
        cwd: Option<&str>,
        command: String,
        (reach, git): (Reach, bool),
    ) -> Result<Job, String> {
        let named = workspace.display();
        let real = workspace.canonicalize().map_err(|error| {
            format!("The workspace {named} cannot be opened: {error}. Start the session in a folder.")
        })?;
        if real != workspace {
            return Err(format!("The workspace {named} has become a link, so no command runs there."));
        }
        let workspace = real;
        let confinement = confine::probe();
        self.check(&workspace, confinement)?;
        let folder = workspace.join(cwd.unwrap_or("."));
        let folder =
            folder.canonicalize().map_err(|error| format!("cwd {} is not a folder: {error}", folder.display()))?;
        if !folder.starts_with(&workspace) || !folder.is_dir() {
            return Err(format!("cwd {} is not a folder of the workspace {named}", folder.display()));
        }
        let temporary = std::env::temp_dir();
        let temporary = temporary.canonicalize().unwrap_or(temporary);
        let mut readable = self.readable.clone();
        let programs = search_path.iter().flat_map(std::env::split_paths);
        let programs = programs.filter(|folder| folder.is_absolute() && is_narrow(folder, self.home.as_deref()));
        let programs: Vec<PathBuf> = programs.filter_map(|folder| folder.canonicalize().ok()).collect();
        let environments = programs.iter().filter_map(|folder| folder.parent());
        let environments = environments.filter(|folder| folder.join(VIRTUAL_ENVIRONMENT).is_file());
        readable.extend(environments.filter(|folder| is_narrow(folder, self.home.as_deref())).map(Path::to_owned));
        readable.extend(programs);
        Ok(Job {
            shell: self.shell.clone(),
            command: Some(command),
            folder,
            workspace,
            is_read_only: false,
            temporary,
            readable,
            hidden: self.hidden.clone(),
            shadows: Vec::new(),
            reach,
            git,
            obeyed: Vec::new(),
            search_path,
            confinement,
        })
    }

    /// Makes the job of a command that only looks at a repository, fully confined. It blocks.
    pub(super) fn look(&self, workspace: &Path, root: &Path, command: &str) -> Result<Job, String> {
        let root = root.canonicalize().map_err(|error| format!("{} cannot be opened: {error}", root.display()))?;
        self.check(&root, Confinement::WHOLE)?;
        let temporary = std::env::temp_dir();
        Ok(Job {
            shell: self.shell.clone(),
            command: Some(command.to_owned()),
            folder: workspace.to_owned(),
            workspace: root,
            is_read_only: true,
            temporary: temporary.canonicalize().unwrap_or(temporary),
            // Its output goes to this program alone, and the user's configuration may include any file.
            readable: self.readable.iter().chain(&self.home).cloned().collect(),
            hidden: self.hidden.clone(),
            shadows: Vec::new(),
            reach: Reach::Nothing,
            git: false,
            obeyed: Vec::new(),
            search_path: None,
            confinement: Confinement::WHOLE,
        })
    }

    fn check(&self, workspace: &Path, confinement: Confinement) -> Result<(), String> {
        let refused = |why: &str| {
            let path = workspace.display();
            Err(format!("Commands cannot run in {path}: it {why}. Start the session in a project's folder."))
        };
        if workspace.parent().is_none() {
            return refused("is the root of all files");
        }
        if self.home.as_ref().is_some_and(|home| home.starts_with(workspace)) {
            return refused("is or holds the home folder");
        }
        if self.hidden.iter().any(|hidden| workspace.starts_with(hidden)) {
            return refused("lies in a folder that commands may not reach");
        }
        let is_covered = matches!(confinement.git_guard, GitGuard::Namespace);
        if !is_covered && self.hidden.iter().any(|hidden| hidden.starts_with(workspace)) {
            return refused("holds a folder that commands may not reach, which this system cannot hide");
        }
        Ok(())
    }
}

/// Returns false for a folder that is or holds the home folder or the root: a variable that names it opens nothing.
fn is_narrow(folder: &Path, home: Option<&Path>) -> bool {
    let real = folder.canonicalize().unwrap_or_default();
    real.parent().is_some() && !home.is_some_and(|home| home.starts_with(&real))
}
