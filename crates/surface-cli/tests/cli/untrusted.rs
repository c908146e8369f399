//! A folder that another person has filled: nothing in it runs before the user is asked.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use meerkat_testkit::needs;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde_json::Value;
use tempfile::TempDir;

use crate::drive::{meerkat, ran};

/// Bytes in the pipe that the programs of the folder read. A confined program cannot write, but it can read.
const CANARY: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n";

/// A repository whose configuration names a program wherever git knows a place for one.
struct Hostile {
    home: TempDir,
    project: PathBuf,
    pipe: File,
}

fn git(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    command.args(["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]);
    command.args(arguments).current_dir(folder).env("GIT_CONFIG_NOSYSTEM", "1").env("HOME", folder);
    assert!(command.status().unwrap().success(), "git {arguments:?}");
}

fn program(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Hostile {
    fn new() -> Self {
        let home = meerkat_testkit::folder();
        let project = home.path().join("project");
        let sub = project.join("sub");
        for folder in [&project, &sub] {
            fs::create_dir_all(folder).unwrap();
            git(folder, &["init", "-q", "-b", "work"]);
            fs::write(folder.join("a"), "1").unwrap();
            git(folder, &["add", "a"]);
            git(folder, &["commit", "-q", "-m", "first"]);
        }
        git(&project, &["submodule", "--quiet", "add", "./sub", "sub"]);
        git(&project, &["commit", "-q", "-m", "second"]);
        let pipe = project.join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let evil = project.join("evil");
        program(
            &evil,
            &format!("#!/bin/sh\nread -r line < {}\ntouch {}/ran\ncat\n", pipe.display(), project.display()),
        );
        for folder in [&project, &sub] {
            Self::arm(folder, &evil);
        }
        // A command opens it only if it is a program of the folder.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let mut pipe = File::options().read(true).write(true).custom_flags(flags).open(pipe).unwrap();
        pipe.write_all(CANARY.as_bytes()).unwrap();
        Self { home, project, pipe }
    }

    /// Names the program for everything that git starts.
    fn arm(folder: &Path, evil: &Path) {
        let named = evil.to_str().unwrap();
        let config = folder.join(".git/config");
        for key in [
            "filter.evil.clean",
            "filter.evil.smudge",
            "diff.evil.textconv",
            "diff.evil.command",
            "diff.external",
            "core.fsmonitor",
            "core.sshCommand",
            "core.askPass",
            "core.pager",
            "core.editor",
            "core.gitProxy",
            "credential.helper",
            "gpg.program",
        ] {
            git(folder, &["config", "--file", config.to_str().unwrap(), key, named]);
        }
        fs::create_dir_all(folder.join("hooks")).unwrap();
        for hooks in ["hooks", ".git/hooks"] {
            for hook in ["post-index-change", "fsmonitor-watchman", "reference-transaction", "post-checkout"] {
                program(&folder.join(hooks).join(hook), &fs::read_to_string(evil).unwrap());
            }
        }
        fs::write(folder.join("included"), format!("[filter \"evil\"]\n\tprocess = {named}\n\trequired = true\n"))
            .unwrap();
        let mut text = fs::read_to_string(&config).unwrap();
        text += &format!("[core]\n\thooksPath = {}\n[include]\n\tpath = ../included\n", folder.join("hooks").display());
        fs::write(config, text).unwrap();
        fs::write(folder.join(".gitattributes"), "* filter=evil diff=evil\n").unwrap();
        // Of equal size, so that its content would be compared.
        fs::write(folder.join("a"), "2").unwrap();
    }

    /// Runs a command in a folder, and returns the texts of the reminder about the repository.
    fn told(&self, folder: &Path, args: &[&str]) -> Vec<String> {
        let mut command = meerkat(self.home.path(), args);
        let ran = ran(command.current_dir(folder).env("PATH", "/usr/local/bin:/usr/bin:/bin"));
        assert_eq!(ran.code, 0, "{}", ran.err);
        let events = ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let events = events.filter(|event| event["kind"] == "git_status");
        events.map(|event| event["text"].as_str().unwrap_or("cleared").to_owned()).collect()
    }
}

/// Broken once: the filter of a folder that had just been unpacked ran, confined but able to read.
#[test]
fn a_repository_runs_nothing_before_the_user_is_asked() {
    needs!("git");
    let mut hostile = Hostile::new();
    let elsewhere = hostile.home.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join(".git"), "gitdir: ../project/.git\n").unwrap();
    fs::write(elsewhere.join(".gitattributes"), "* filter=evil\n").unwrap();
    for folder in [&hostile.project, &elsewhere] {
        assert_eq!(hostile.told(folder, &["run", "--events", "hello"]), ["Branch: work"], "{}", folder.display());
    }
    assert_eq!(hostile.told(&hostile.project.join("sub"), &["run", "--events", "hello"]), ["Branch: work"]);
    let mut left = Vec::new();
    // The test holds the other end too, so that the pipe is empty and has no end.
    assert_eq!(hostile.pipe.read_to_end(&mut left).map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
    assert_eq!(String::from_utf8(left).unwrap(), CANARY, "a program of the folder has read");
    assert!(!hostile.project.join("ran").exists());
}
