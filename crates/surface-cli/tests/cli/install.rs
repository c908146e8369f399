//! `meerkat install-files`: what it installs is used by its programs.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::needs;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::drive::{Ran, meerkat, meerkat_after, ran, signal};

const BASH: &str = "share/bash-completion/completions/meerkat";
const ZSH: &str = "share/zsh/site-functions/_meerkat";
const FISH: &str = "share/fish/vendor_completions.d/meerkat.fish";
const PAGE: &str = "share/man/man1/meerkat-sessions-list.1";
const USER_UNIT: &str = "share/systemd/user/meerkat.service";
const SYSTEM_UNIT: &str = "lib/systemd/system/meerkat.service";

/// Installs below `prefix` in `dir`.
fn install(dir: &TempDir, more: &[&str]) -> Ran {
    ran(&mut meerkat(dir, &[&["--json", "install-files", "--prefix", "prefix"], more].concat()))
}

fn read(dir: &TempDir, file: &str) -> String {
    fs::read_to_string(dir.path().join("prefix").join(file)).unwrap()
}

/// Files of an answer, with what became of each.
#[track_caller]
fn changes(ran: &Ran) -> BTreeMap<String, String> {
    assert_eq!(ran.code, 0, "{}", ran.err);
    let items = ran.json()["items"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items.iter().map(|item| (text(&item["file"]), text(&item["change"]))).collect()
}

/// Files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let found = Command::new("find").arg(".").args(["-type", "f"]).current_dir(folder).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let mut files: Vec<_> = found.lines().map(|file| file.trim_start_matches("./").to_owned()).collect();
    files.sort();
    files
}

/// Runs a program in the prefix; it finds the manual pages there, too.
fn run(program: &str, args: &[&str], dir: &TempDir) -> Ran {
    let (prefix, home) = (dir.path().join("prefix"), dir.path());
    let mut command = Command::new(program);
    command.args(args).env("HOME", home).env("XDG_RUNTIME_DIR", home).env("MANPATH", prefix.join("share/man"));
    ran(command.current_dir(prefix))
}

#[test]
fn completions_and_pages_are_installed_where_their_programs_look() {
    let dir = TempDir::new().unwrap();
    let listed = changes(&install(&dir, &[]));
    assert_eq!(files(&dir.path().join("prefix")), listed.keys().cloned().collect::<Vec<_>>());
    for file in [BASH, ZSH, FISH, PAGE, "share/man/man1/meerkat.1", "share/man/man1/meerkat-install-files.1"] {
        assert_eq!(listed.get(file).map(String::as_str), Some("new"), "{file}");
    }
    assert!(!listed.keys().any(|file| file.contains("service") || file.contains("__complete")), "{listed:?}");
}

#[test]
fn bash_completes_with_the_installed_file() {
    needs!("bash");
    let dir = TempDir::new().unwrap();
    changes(&install(&dir, &[]));
    let bash = run("bash", &["--norc", "-c", &format!(". {BASH} && complete -p meerkat")], &dir);
    assert!(bash.out.contains("_meerkat_with_sessions") && bash.err.is_empty(), "{}{}", bash.out, bash.err);
}

#[track_caller]
fn check_parsed(shell: &str, args: [&str; 2]) {
    let dir = TempDir::new().unwrap();
    changes(&install(&dir, &[]));
    let parsed = run(shell, &args, &dir);
    assert_eq!((parsed.code, parsed.err.as_str()), (0, ""));
}

#[test]
fn zsh_reads_the_installed_file() {
    needs!("zsh");
    check_parsed("zsh", ["-n", ZSH]);
}

#[test]
fn fish_reads_the_installed_file() {
    needs!("fish");
    check_parsed("fish", ["--no-execute", FISH]);
}

#[test]
fn man_shows_an_installed_page() {
    needs!("man");
    let dir = TempDir::new().unwrap();
    changes(&install(&dir, &[]));
    let page = run("man", &["--warnings", "-P", "cat", "meerkat-sessions-list"], &dir);
    assert_eq!((page.code, page.err.as_str()), (0, ""));
    assert!(page.out.contains("NAME") && page.out.contains("--all-projects"), "{}", page.out);
}

#[test]
fn systemd_finds_no_fault_in_the_units() {
    needs!("systemd-analyze");
    let dir = TempDir::new().unwrap();
    for (whose, file) in [("user", USER_UNIT), ("system", SYSTEM_UNIT)] {
        changes(&install(&dir, &["--service", whose]));
        let verified = run("systemd-analyze", &["verify", "--man=no", &format!("--{whose}"), file], &dir);
        // What it says of other units is theirs.
        let own: Vec<_> = verified.err.lines().filter(|line| line.contains("meerkat.service")).collect();
        assert!(own.is_empty(), "{whose}: {own:?}");
    }
}

#[test]
fn a_dry_run_lists_everything_and_writes_nothing() {
    let dir = TempDir::new().unwrap();
    let listed = changes(&install(&dir, &["--service", "system", "--dry-run"]));
    assert!(!dir.path().join("prefix").exists());
    assert_eq!(listed, changes(&install(&dir, &["--service", "system"])));
    let again = install(&dir, &["--service", "system", "--dry-run"]);
    assert_eq!(again.json()["dry_run"], json!(true));
    assert!(changes(&again).values().all(|change| change == "unchanged"));
}

#[test]
fn a_file_of_somebody_else_stays_and_then_nothing_is_written() {
    let dir = TempDir::new().unwrap();
    let unit = dir.path().join("prefix").join(USER_UNIT);
    fs::create_dir_all(unit.parent().unwrap()).unwrap();
    fs::write(&unit, "[Service]\nExecStart=/mine\n").unwrap();
    let ran = install(&dir, &["--service", "user"]);
    assert_eq!(
        (ran.code, &ran.json()["details"]["field"]),
        (ErrorCode::InvalidRequest.exit_code(), &json!("--prefix"))
    );
    assert!(ran.err.contains(USER_UNIT) && ran.err.contains("nothing was written"), "{}", ran.err);
    assert_eq!(files(&dir.path().join("prefix")), [USER_UNIT]);
    assert_eq!(read(&dir, USER_UNIT), "[Service]\nExecStart=/mine\n");

    // A link may lead to anything.
    fs::remove_file(&unit).unwrap();
    std::os::unix::fs::symlink("/dev/null", &unit).unwrap();
    assert_eq!(install(&dir, &["--service", "user"]).code, ErrorCode::InvalidRequest.exit_code());
    assert!(unit.is_symlink());
}

#[test]
fn an_own_file_is_replaced_unless_it_was_changed() {
    needs!("sha256sum");
    let dir = TempDir::new().unwrap();
    changes(&install(&dir, &["--service", "user"]));
    let (user, page) = (read(&dir, USER_UNIT), read(&dir, PAGE));
    // As an earlier version would have left it: other text under its own checksum, which `sha256sum` knows, too.
    let text = "# an earlier version\n";
    let last = user.lines().last().unwrap().rsplit_once(' ').unwrap().0;
    let sum = ran(Command::new("sh").args(["-c", "printf '%s' \"$0\" | sha256sum | cut -d' ' -f1", text])).out;
    let path = |file: &str| dir.path().join("prefix").join(file);
    fs::write(path(USER_UNIT), format!("{text}{last} {sum}")).unwrap();
    let listed = changes(&install(&dir, &["--service", "user"]));
    let replaced: Vec<_> = listed.iter().filter(|(_, change)| *change != "unchanged").collect();
    assert_eq!(replaced, [(&USER_UNIT.to_owned(), &"replaced".to_owned())]);
    assert_eq!(read(&dir, USER_UNIT), user);

    let mine = user.replace("RestartSec=2", "RestartSec=3");
    fs::write(path(USER_UNIT), &mine).unwrap();
    fs::remove_file(path(PAGE)).unwrap();
    assert_eq!(install(&dir, &["--service", "user"]).code, ErrorCode::InvalidRequest.exit_code());
    assert_eq!((read(&dir, USER_UNIT), path(PAGE).exists()), (mine, false));
    fs::remove_file(path(USER_UNIT)).unwrap();
    changes(&install(&dir, &["--service", "user"]));
    assert_eq!(read(&dir, PAGE), page);
}

#[test]
fn everyone_can_read_what_is_installed_whatever_the_umask_is() {
    let dir = TempDir::new().unwrap();
    let args = ["install-files", "--prefix", "new/prefix", "--service", "system"];
    let installed = ran(&mut meerkat_after("umask 077", &dir, &args));
    assert_eq!(installed.code, 0, "{}", installed.err);
    let new = dir.path().join("new");
    let hidden = Command::new("find").arg(new).args(["!", "-perm", "755", "!", "-perm", "644"]).output().unwrap();
    assert_eq!(String::from_utf8(hidden.stdout).unwrap(), "");
}

/// The system's unit and its user do not see homes and temporary folders.
#[test]
fn a_program_that_the_systems_unit_cannot_start_is_told_of() {
    let dir = TempDir::new_in("/tmp").unwrap();
    let (own, copy) = (env!("CARGO_BIN_EXE_meerkat"), dir.path().join("meerkat"));
    fs::hard_link(own, &copy).or_else(|_| fs::copy(own, &copy).map(drop)).unwrap();
    for (whose, is_told) in [("system", true), ("user", false)] {
        let args = ["install-files", "--prefix", "prefix", "--dry-run", "--service", whose];
        let ran = ran(Command::new(&copy).args(args).current_dir(&dir).env_clear().env("HOME", dir.path()));
        assert_eq!(ran.err.contains("cannot start"), is_told, "{}", ran.err);
    }
}

/// Keys of a unit, by section.
fn unit(text: &str) -> BTreeMap<(String, String), String> {
    let mut section = String::new();
    let mut keys = BTreeMap::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut section);
            continue;
        }
        let (key, value) = line.split_once('=').unwrap();
        assert!(keys.insert((section.clone(), key.to_owned()), value.to_owned()).is_none(), "{line}");
    }
    keys
}

/// Both units start the installed program, which serves and ends as systemd has it end.
#[test]
fn the_units_start_this_program() {
    let dir = TempDir::new().unwrap();
    for (whose, file) in [("user", USER_UNIT), ("system", SYSTEM_UNIT)] {
        changes(&install(&dir, &["--service", whose]));
        let keys = unit(&read(&dir, file));
        let key = |section: &str, key: &str| keys[&(section.to_owned(), key.to_owned())].as_str();
        assert_eq!((key("Service", "NoNewPrivileges"), key("Service", "Restart")), ("yes", "on-failure"), "{whose}");
        // They would refuse commands their confinement.
        for name in ["RestrictNamespaces", "SystemCallFilter", "ProtectProc", "ProtectKernelTunables"] {
            assert!(!keys.contains_key(&("Service".to_owned(), name.to_owned())), "{whose}: {name}");
        }
        let home = dir.path().display().to_string();
        let environment = key("Service", "Environment").replace("%h", &home).replace("%S", &home);
        let words: Vec<_> = environment.split(' ').map(|word| word.split_once('=').unwrap()).collect();
        let start =
            format!("umask {}; exec {} --listen 127.0.0.1:0", key("Service", "UMask"), key("Service", "ExecStart"));
        let mut command = Command::new("sh");
        command.args(["-c", &start]).env_clear().env("HOME", &home).envs(words).current_dir(&dir);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on http://127.0.0.1:") && line.contains("for rest, rpc, mcp"), "{line}");
        signal(&child, "TERM");
        assert_eq!(child.wait().unwrap().code(), Some(0), "{whose}");
        let data = if whose == "user" { ".local/share/meerkat/service/token" } else { "meerkat/data/token" };
        assert!(dir.path().join(data).exists(), "{whose}");
    }
}

/// The page about a server lists keys with the defaults that are built in.
#[test]
fn the_limits_on_the_page_are_those_of_the_program() {
    let dir = TempDir::new().unwrap();
    let shown = ran(&mut meerkat(&dir, &["--json", "config", "show"]));
    let page = include_str!("../../../../docs/deploy.md");
    let table = page.split("\n| key | default | ").nth(1).unwrap().split("\n\n").next().unwrap();
    let rows: Vec<_> = table.lines().skip(2).collect();
    assert!(!rows.is_empty());
    for row in rows {
        let [_, key, default, ..] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else { panic!("{row}") };
        let entry = shown.entries(key.trim_matches('`'));
        assert_eq!(entry, [(default.to_owned(), "built-in".to_owned())], "{row}");
    }
}
