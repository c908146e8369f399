//! `install-files`: completions, manual pages and a unit of systemd, at the places below a prefix that their programs look
//! at.
//!
//! Each file ends with a checksum, so that an own file is known from one of somebody else. Nothing else is ever
//! overwritten, and nothing is written before every file has been looked at.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;
use meerkat_service::SessionError;
use rustix::process::geteuid;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{completions::script, local::print};
use crate::{
    args::{Cli, InstallArgs, Service},
    error::{CliError, refused},
    output::{Environment, Output},
};

const USER_UNIT: &str = include_str!("user.service");
const SYSTEM_UNIT: &str = include_str!("system.service");

/// Most bytes read of a file that may be replaced.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// File to install.
struct Installed {
    /// Path below the prefix.
    path: String,
    /// Beginning of a comment in its language.
    comment: &'static str,
    text: String,
}

/// What becomes of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    New,
    Replaced,
    Unchanged,
}

impl Change {
    const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Replaced => "replaced",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Installs the files, or says what would be installed.
pub(crate) fn install_files(out: &Output, env: &Environment, args: &InstallArgs) -> Result<u8, CliError> {
    let prefix = prefix(env, args.prefix.as_deref())?;
    let mut files = completions();
    files.extend(pages()?);
    if let Some(service) = args.service {
        files.push(unit(service)?);
    }
    let mut rows = Vec::with_capacity(files.len());
    for file in &files {
        rows.push((file, file.change(&prefix)?));
    }
    if !args.dry_run {
        for (file, _) in rows.iter().filter(|(_, change)| *change != Change::Unchanged) {
            file.write(&prefix)?;
        }
    }
    let is_done = if args.dry_run { "Nothing is written; below" } else { "Below" };
    out.note(&format!("{is_done} {}:", prefix.display()));
    let items: Vec<_> =
        rows.iter().map(|(file, change)| json!({ "file": file.path, "change": change.name() })).collect();
    let code = print(out, &json!({ "prefix": prefix.display().to_string(), "dry_run": args.dry_run, "items": items }))?;
    if !args.dry_run {
        next_steps(out, &prefix, args.service);
    }
    if matches!(args.service, Some(Service::System)) {
        warn_of_hidden_program(out);
    }
    Ok(code)
}

/// Says what is left to do by hand.
fn next_steps(out: &Output, prefix: &Path, service: Option<Service>) {
    if prefix != Path::new("/usr/local") && prefix != Path::new("/usr") {
        let functions = prefix.join("share/zsh/site-functions");
        out.note(&format!("For zsh, put this before compinit in ~/.zshrc: fpath+=('{}')", functions.display()));
    }
    match service {
        None => {}
        Some(Service::User) => {
            out.note("To start the server: systemctl --user daemon-reload && systemctl --user enable --now meerkat");
        }
        Some(Service::System) => out.note(
            "To start the server: useradd --system --home-dir /var/lib/meerkat --shell /usr/sbin/nologin meerkat && \
             systemctl daemon-reload && systemctl enable --now meerkat",
        ),
    }
}

/// Warns if the system's unit cannot start this program: it, or its user, does not see these folders.
fn warn_of_hidden_program(out: &Output) {
    let Ok(program) = std::env::current_exe() else { return };
    if ["/home", "/root", "/run/user", "/tmp", "/var/tmp"].iter().any(|folder| program.starts_with(folder)) {
        let program = program.display();
        out.note(&format!(
            "The system's unit cannot start {program}. Type: sudo install -m 0755 '{program}' /usr/local/bin/meerkat; \
             then install the unit with that one."
        ));
    }
}

fn prefix(env: &Environment, named: Option<&Path>) -> Result<PathBuf, CliError> {
    if let Some(named) = named {
        return Ok(env.dir.join(named));
    }
    if geteuid().is_root() {
        return Ok(PathBuf::from("/usr/local"));
    }
    let home = env.variable("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    Ok(home.ok_or_else(|| refused("HOME", "set it, or give --prefix", "the environment"))?.join(".local"))
}

/// Makes the scripts of the shells.
fn completions() -> Vec<Installed> {
    let paths = [
        (Shell::Bash, "share/bash-completion/completions/meerkat"),
        (Shell::Zsh, "share/zsh/site-functions/_meerkat"),
        (Shell::Fish, "share/fish/vendor_completions.d/meerkat.fish"),
    ];
    paths.map(|(shell, path)| Installed { path: path.to_owned(), comment: "#", text: script(shell) }).into()
}

/// Makes the manual pages of all commands.
fn pages() -> Result<Vec<Installed>, CliError> {
    fn add(command: &clap::Command, pages: &mut Vec<Installed>) -> io::Result<()> {
        let (page, mut text) = (Man::new(command.clone()), Vec::new());
        page.render(&mut text)?;
        let path = format!("share/man/man1/{}", page.get_filename());
        pages.push(Installed { path, comment: ".\\\"", text: String::from_utf8_lossy(&text).into_owned() });
        command.get_subcommands().filter(|command| !command.is_hide_set()).try_for_each(|command| add(command, pages))
    }
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

/// Makes the unit of systemd that starts this program.
fn unit(service: Service) -> Result<Installed, CliError> {
    let refuse = |why: String| SessionError::invalid("--service", format!("{why}; install it elsewhere"));
    let program =
        std::env::current_exe().map_err(|error| refuse(format!("this program's file is unknown: {error}")))?;
    let program = program.to_str().and_then(quoted).ok_or_else(|| {
        refuse(format!("systemd cannot start {}, whose path has control characters or is not UTF-8", program.display()))
    })?;
    let (folder, text) = match service {
        Service::User => ("share/systemd/user", USER_UNIT),
        Service::System => ("lib/systemd/system", SYSTEM_UNIT),
    };
    let text = text.replace("EXECUTABLE", &program);
    Ok(Installed { path: format!("{folder}/meerkat.service"), comment: "#", text })
}

/// Quotes a program's path for `ExecStart=`; `None` if systemd cannot read it.
fn quoted(path: &str) -> Option<String> {
    if path.chars().any(char::is_control) {
        return None;
    }
    // A dollar sign means a variable only after the program.
    let escaped = path.replace('\\', r"\\").replace('"', r#"\""#).replace('%', "%%");
    Some(format!("\"{escaped}\""))
}

impl Installed {
    /// Returns the whole file: the text, and a last line by which it is known.
    fn marked(&self) -> String {
        marked(self.comment, &self.text)
    }

    /// Decides what becomes of the file, and refuses to replace one that is not ours.
    fn change(&self, prefix: &Path) -> Result<Change, CliError> {
        let path = prefix.join(&self.path);
        let refuse =
            |why: String| SessionError::invalid("--prefix", format!("{}: {why}; nothing was written", path.display()));
        let metadata = match fs::symlink_metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Change::New),
            Err(error) => return Err(refuse(error.to_string()).into()),
        };
        let is_readable = metadata.is_file() && metadata.len() <= FILE_BYTES_MAX;
        let found = if is_readable { fs::read(&path).map_err(|error| refuse(error.to_string()))? } else { Vec::new() };
        let found = String::from_utf8(found).unwrap_or_default();
        match found.rfind(&mark(self.comment)).map(|at| &found[..at]) {
            _ if found == self.marked() => Ok(Change::Unchanged),
            Some(text) if marked(self.comment, text) == found => Ok(Change::Replaced),
            _ => {
                let why = "it is not a file that meerkat wrote, or was changed since; move it away, or give --prefix";
                Err(refuse(why.to_owned()).into())
            }
        }
    }

    /// Writes the file under another name, and renames it: a program never reads half of it, and no link is followed.
    fn write(&self, prefix: &Path) -> Result<(), CliError> {
        let path = prefix.join(&self.path);
        let write = || {
            let folder = path.parent().unwrap_or(prefix);
            make_folder(folder)?;
            let unfinished = folder.join(format!(".meerkat.{}.new", std::process::id()));
            let mut file = File::options().write(true).create_new(true).open(&unfinished)?;
            let written = file
                .set_permissions(Permissions::from_mode(0o644))
                .and_then(|()| file.write_all(self.marked().as_bytes()))
                .and_then(|()| fs::rename(&unfinished, &path));
            if written.is_err() {
                fs::remove_file(&unfinished).ok();
            }
            written
        };
        write().map_err(|error: io::Error| {
            SessionError::invalid("--prefix", format!("{} cannot be written: {error}", path.display())).into()
        })
    }
}

/// Makes a folder, and missing ones above it, that everyone may look into, whatever the umask is.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    folder.parent().map_or(Ok(()), make_folder)?;
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755))),
    }
}

/// Returns the beginning of the last line of an installed file.
fn mark(comment: &str) -> String {
    format!("{comment} Written by `meerkat install-files`; checksum ")
}

/// Ends a text with its checksum.
fn marked(comment: &str, text: &str) -> String {
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    let sum: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{text}{line_end}{}{sum}\n", mark(comment))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By systemd.syntax(7) and systemd.service(5).
    #[test]
    fn the_path_of_the_program_is_quoted_as_systemd_reads_it() {
        for (path, expected) in [
            ("/usr/bin/meerkat", Some(r#""/usr/bin/meerkat""#)),
            (r#"/a b/50%/\"q""#, Some(r#""/a b/50%%/\\\"q\"""#)),
            ("/a\nExecStartPre=/evil", None),
        ] {
            assert_eq!(quoted(path).as_deref(), expected, "{path}");
        }
    }
}
