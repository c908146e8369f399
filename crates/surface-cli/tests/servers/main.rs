//! Servers that a person adds, and those that a project brings, through the binary.
//!
//! This program is the server too: it is started again with other arguments.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a server talks over its output")]

#[path = "../drive/mod.rs"]
mod drive;
mod own;
mod project;
#[path = "../../../tools/tests/servers/server.rs"]
mod server;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use libtest_mimic::{Arguments, Trial};
use tempfile::TempDir;

use crate::drive::{Ran, meerkat, ran};

/// A call of the server's tool that counts its calls.
pub(crate) const CALL: &str = "@call mcp__t__count {} @say Done.";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == server::MARK) {
        return server::main(&arguments[1..]);
    }
    let trials = own::TRIALS.iter().chain(project::TRIALS).map(|(name, trial)| {
        let trial = *trial;
        Trial::test(*name, move || {
            trial();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

/// A user's home folder with a project in it, and a folder where the server notes what happens to it.
pub(crate) struct Home {
    folder: TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        let home = Self { folder: TempDir::new().unwrap() };
        for folder in [".config/meerkat", "project/.git", "project/below", "noted"] {
            fs::create_dir_all(home.at(folder)).unwrap();
        }
        home
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(path)
    }

    pub(crate) fn put(&self, path: &str, text: &str) {
        fs::write(self.at(path), text).unwrap();
    }

    /// Prepares a command in the project.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = meerkat(self.folder.path(), args);
        command.current_dir(self.at("project"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        ran(&mut self.command(args))
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub(crate) fn done(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}{}", ran.out, ran.err);
        ran
    }

    /// Runs a prompt that calls the server, and returns what was said on standard error.
    #[track_caller]
    pub(crate) fn call(&self) -> String {
        self.done(&["run", "--allow", "mcp__t__count", CALL]).err
    }

    pub(crate) fn starts(&self) -> usize {
        server::noted(&self.at("noted"), "starts")
    }

    pub(crate) fn calls(&self) -> usize {
        server::noted(&self.at("noted"), "calls")
    }

    /// Program and arguments of the server, as a line of a shell's script.
    pub(crate) fn script(&self) -> String {
        format!("exec '{}' {} '{}'\n", program().display(), server::MARK, self.at("noted").display())
    }
}

pub(crate) fn program() -> PathBuf {
    std::env::current_exe().unwrap()
}

pub(crate) fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
