//! The files in `dist/`, which a packager installs, and pages that must agree with the program.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use meerkat_testkit::needs;
use tempfile::TempDir;

use crate::drive::{meerkat, ran, signal};

const UNITS: [&str; 2] = ["user", "system"];

fn unit_file(whose: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../dist/systemd/{whose}/meerkat.service"))
}

/// The program is another one here than the one that a packager installs.
#[test]
fn systemd_finds_no_fault_in_the_units() {
    needs!("systemd-analyze");
    for whose in UNITS {
        let dir = TempDir::new().unwrap();
        let text = fs::read_to_string(unit_file(whose)).unwrap();
        let start = unit(&text)[&("Service".to_owned(), "ExecStart".to_owned())].clone();
        let program = start.split(' ').next().unwrap();
        let installed = dir.path().join("meerkat.service");
        fs::write(&installed, text.replace(program, env!("CARGO_BIN_EXE_meerkat"))).unwrap();
        let mut verify = Command::new("systemd-analyze");
        verify.args(["verify", "--man=no", &format!("--{whose}")]).arg(&installed);
        let verified = ran(verify.env("HOME", dir.path()).env("XDG_RUNTIME_DIR", dir.path()));
        // What it says of other units is theirs.
        let own: Vec<_> = verified.err.lines().filter(|line| line.contains("meerkat.service")).collect();
        assert!(own.is_empty(), "{whose}: {own:?}");
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

/// Both units start the program, which serves and ends as systemd has it end.
#[test]
fn the_units_start_this_program() {
    for (whose, program) in [("user", "%h/.cargo/bin/meerkat"), ("system", "/usr/local/bin/meerkat")] {
        let dir = TempDir::new().unwrap();
        let keys = unit(&fs::read_to_string(unit_file(whose)).unwrap());
        let key = |section: &str, key: &str| keys[&(section.to_owned(), key.to_owned())].as_str();
        assert_eq!((key("Service", "NoNewPrivileges"), key("Service", "Restart")), ("yes", "on-failure"), "{whose}");
        // They would refuse commands their confinement.
        for name in ["RestrictNamespaces", "SystemCallFilter", "ProtectProc", "ProtectKernelTunables"] {
            assert!(!keys.contains_key(&("Service".to_owned(), name.to_owned())), "{whose}: {name}");
        }
        let home = dir.path().display().to_string();
        let environment = key("Service", "Environment").replace("%h", &home).replace("%S", &home);
        let words: Vec<_> = environment.split(' ').map(|word| word.split_once('=').unwrap()).collect();
        let args = key("Service", "ExecStart").strip_prefix(program).unwrap();
        let (umask, own) = (key("Service", "UMask"), env!("CARGO_BIN_EXE_meerkat"));
        let start = format!("umask {umask}; exec {own}{args} --listen 127.0.0.1:0");
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
