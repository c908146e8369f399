//! Data directories that cannot be one, or only just.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::process::Stage;

/// A user who is not this one, and owns nothing here.
const NOBODY: u32 = 65_534;

/// What stands in a folder: names, modes, and when each was changed.
fn state(path: &Path) -> BTreeMap<String, (u32, u64, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        for path in entries.chain([folder]) {
            let it = fs::symlink_metadata(&path).unwrap();
            let before = found.insert(path.display().to_string(), (it.mode(), it.len(), it.mtime(), it.mtime_nsec()));
            if it.is_dir() && before.is_none() {
                folders.push(path);
            }
        }
    }
    found
}

/// Every command that opens the directory refuses with this code and says why and what to do; nothing is changed.
fn refused(stage: &Stage, code: &str, words: &[&str], prepare: impl Fn(&mut Command)) {
    let before = state(&stage.data());
    for args in [
        &["run", "@say Hello.", "--json"][..],
        &["sessions", "list", "--json"],
        &["serve", "--rest", "--no-auth", "--listen", "127.0.0.1:0", "--json"],
    ] {
        let mut command = stage.command(args);
        prepare(&mut command);
        let ran = command.stdin(Stdio::null()).output().unwrap();
        let (out, err) = (String::from_utf8(ran.stdout).unwrap(), String::from_utf8(ran.stderr).unwrap());
        let body: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{args:?}: {out}{err}"));
        assert_eq!(body["code"], code, "{args:?}: {out}");
        assert_ne!(ran.status.code(), Some(0));
        let message = body["message"].as_str().unwrap();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
        assert_eq!(state(&stage.data()), before, "{args:?} changed something");
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a command as somebody else, where this user may.
fn as_nobody(stage: &Stage, command: &mut Command) {
    // The program may stand where nobody else may go.
    let program = stage.data().with_file_name("meerkat");
    if !program.exists() {
        // A process that another test starts at this moment would hold a copy of this process's open.
        assert!(Command::new("cp").arg(command.get_program()).arg(&program).status().unwrap().success());
        fs::set_permissions(stage.data().parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut other = Command::new(program);
    other.args(command.get_args()).current_dir(stage.data().parent().unwrap()).env_clear();
    other.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    *command = other;
    command.uid(NOBODY).gid(NOBODY);
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let stage = Stage::made();
    if is_root() {
        chown(stage.data(), Some(NOBODY), Some(NOBODY)).unwrap();
        return refused(&stage, "STORE_NOT_WRITABLE", &["another user"], |_| ());
    }
    // Somebody else's, and there on every system.
    refused(&stage, "STORE_NOT_WRITABLE", &["another user"], |command| {
        command.env("MEERKAT_DATA_DIR", "/");
    });
}

#[test]
fn a_directory_that_may_only_be_read_is_refused() {
    for is_made in [true, false] {
        let stage = if is_made { Stage::made() } else { Stage::empty() };
        fs::create_dir_all(stage.data()).unwrap();
        let mut paths: Vec<_> = state(&stage.data()).into_keys().collect();
        // What is in a folder goes before it.
        paths.sort_by_key(|path| std::cmp::Reverse(path.len()));
        for path in &paths {
            let mode = if Path::new(path).is_dir() { 0o500 } else { 0o400 };
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            if is_root() {
                chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
            }
        }
        refused(&stage, "STORE_NOT_WRITABLE", &["data"], |command| {
            if is_root() {
                as_nobody(&stage, command);
            }
        });
        for path in paths.iter().rev().filter(|path| Path::new(path).is_dir()) {
            // So that it can be removed.
            fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
        }
    }
}

#[test]
fn a_newer_format_is_refused() {
    for format in ["meerkat store 3\n", "something else\n", ""] {
        let stage = Stage::made();
        fs::write(stage.data().join("format"), format).unwrap();
        refused(&stage, "STORE_FORMAT_UNSUPPORTED", &[format.trim_end()], |_| ());
    }
}

#[test]
fn a_path_too_long_for_a_socket_works() {
    let stage = Stage::empty();
    let long = stage.data().join("a".repeat(120)).join("b".repeat(120));
    let with_long = |args: &[&str]| {
        let mut command = stage.command(args);
        command.env("MEERKAT_DATA_DIR", &long);
        command
    };
    let mut server = with_long(&["serve", "--rest", "--no-auth", "--listen", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(server.stdout.take().unwrap()), &mut line).unwrap();
    assert!(line.contains("listening"), "{line}");
    let ran = with_long(&["run", "@say Attached.", "--json"]).stdin(Stdio::null()).output().unwrap();
    let ended: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(ended["text"], "Attached.");
    server.kill().unwrap();
    server.wait().unwrap();
    // The one that was killed left its socket, and nobody is in the way.
    let ran = with_long(&["run", "--session", ended["session_id"].as_str().unwrap(), "@say Alone.", "--json"]);
    let ran = { ran }.stdin(Stdio::null()).output().unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&ran.stdout).unwrap()["text"], "Alone.");
}
