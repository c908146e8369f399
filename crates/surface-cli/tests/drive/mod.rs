//! The program as tests drive it: as a process, in a terminal of the test's own, and as a server; and servers that it
//! asks. What a test has started ends with it.

#![allow(dead_code, reason = "the tests share one module and need different parts of it")]

pub(crate) mod fake;
pub(crate) mod server;
pub(crate) mod terminal;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command},
    sync::LazyLock,
};

use meerkat_errors::ErrorCode;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal as handled};

/// Token of servers.
pub(crate) const TOKEN: &str = "a-token-for-tests-0123456789";

/// Id that no session has.
pub(crate) const NOBODY: &str = "01900000-0000-7000-8000-000000000001";

/// Prepares the program, without the test's environment.
pub(crate) fn meerkat(dir: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meerkat"));
    surround(command.args(args), dir.as_ref());
    command
}

/// Prepares the program in the place of a shell that has run `first`.
pub(crate) fn meerkat_after(first: &str, dir: impl AsRef<Path>, args: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", &format!(r#"{first} && exec "$0" "$@""#), env!("CARGO_BIN_EXE_meerkat")]).args(args);
    surround(&mut command, dir.as_ref());
    command
}

/// Has the programs that are started from here on take signals that this process ignores, as under nohup or in the background
/// of a script: one that has a handler here has its own meaning there.
static SIGNALS: LazyLock<()> = LazyLock::new(|| {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for signal in [1, 2].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 1) {
        // The handler stays.
        runtime.block_on(async { handled(SignalKind::from_raw(signal)).map(drop) }).unwrap();
    }
});

fn surround(command: &mut Command, dir: &Path) {
    LazyLock::force(&SIGNALS);
    command.current_dir(dir).env_clear().env("HOME", dir);
}

/// Address to which the file leads that a browser was given, which nobody else may read.
#[track_caller]
pub(crate) fn led(args: &str) -> String {
    let file = args.trim_end().strip_prefix("file://").unwrap_or_else(|| panic!("no file: {args}"));
    assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(file).unwrap();
    let address = text.split("url=").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_else(|| panic!("{text}"));
    address.replace("&amp;", "&")
}

/// Sends a process a signal.
pub(crate) fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Exit code and output of a command.
pub(crate) struct Ran {
    pub(crate) code: u8,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn ran(command: &mut Command) -> Ran {
    let ran = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = ran.status.code().and_then(|code| code.try_into().ok());
    Ran { code: code.unwrap_or(u8::MAX), out: text(ran.stdout), err: text(ran.stderr) }
}

impl Ran {
    /// Returns the one document that was printed.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}{}", self.out, self.err))
    }

    /// Values and origins of a key in `config show`.
    #[track_caller]
    pub(crate) fn entries(&self, key: &str) -> Vec<(String, String)> {
        let shown = self.json();
        let items = shown["items"].as_array().unwrap().iter().filter(|entry| entry["key"] == key);
        items.map(|entry| (entry["value"].to_string(), entry["origin"].as_str().unwrap().to_owned())).collect()
    }

    /// Checks a refusal: its exit code, a message, and nothing on standard output.
    #[track_caller]
    pub(crate) fn refused(&self, code: ErrorCode, message: &str) {
        assert_eq!((self.code, self.out.as_str()), (code.exit_code(), ""), "{}", self.err);
        assert!(self.err.contains(message) && self.err.contains(code.as_str()), "{}", self.err);
    }
}
