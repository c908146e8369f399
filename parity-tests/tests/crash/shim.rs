//! The library between a process and its data directory: made by the C compiler, controlled by a file.
//!
//! Everything of the product that changes the folder goes through the functions of libc that shim.c holds: the
//! standard library and redb call them, and nothing there makes system calls of its own.

use std::{
    fs::File,
    io::{Seek as _, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use tempfile::NamedTempFile;

/// Action of the library at the chosen operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Pass = 0,
    KillBefore = 1,
    /// After half of a write, and after anything else.
    KillTorn = 3,
    Eio = 4,
    Enospc = 5,
    /// Answers a write or a sync as done, without doing or counting it: so a test shows that its checks can fail.
    Swallow = 6,
    /// Writes half of what it was given, and answers how much that was.
    Short = 7,
    /// A signal came before anything was done.
    Eintr = 8,
    /// Does nothing until the action is another one.
    Hold = 9,
    /// The file system is read-only.
    Erofs = 10,
}

/// The index, which its own thread writes at any time.
pub(crate) const INDEX: &str = "/index.redb";
/// Everything but the index.
pub(crate) const NOT_INDEX: &str = "!/index.redb";

/// Kinds of operations, to be added.
pub(crate) const WRITES: u64 = 1;
pub(crate) const SYNCS: u64 = 2;
pub(crate) const NAMES: u64 = 4;
/// Of these, what makes a name: a disk without inodes still removes files.
pub(crate) const MAKES: u64 = 8;

/// Offsets of the fields in the control file, as in shim.c.
mod field {
    pub(super) const COUNT: u64 = 0;
    pub(super) const AT: u64 = 8;
    pub(super) const ACTION: u64 = 16;
    pub(super) const TIMES: u64 = 24;
    pub(super) const KINDS: u64 = 32;
    pub(super) const BUDGET: u64 = 40;
    pub(super) const USED: u64 = 48;
    pub(super) const FIRED: u64 = 56;
    pub(super) const WHAT: u64 = 64;
    pub(super) const NEEDLE: u64 = 512;
    pub(super) const UNDER: u64 = 960;
    pub(super) const END: u64 = 1024;
}

/// Control of one process, or of several in a row.
pub(crate) struct Shim {
    control: NamedTempFile,
    folder: PathBuf,
}

impl Shim {
    /// Counts what happens in `folder`, and does nothing else.
    pub(crate) fn new(folder: &Path) -> Self {
        let control = NamedTempFile::new().unwrap();
        control.as_file().set_len(field::END).unwrap();
        let shim = Self { control, folder: folder.to_owned() };
        shim.put(field::KINDS, WRITES | SYNCS | NAMES);
        shim.room(None);
        shim
    }

    /// Acts at the `at`th operation from now on; an error is answered to that one alone.
    pub(crate) fn at(self, at: u64, act: Act) -> Self {
        self.next(at, act);
        self
    }

    /// As [`Self::at`], also while the process runs.
    pub(crate) fn next(&self, at: u64, act: Act) {
        self.put(field::FIRED, 0);
        self.put(field::TIMES, 1);
        self.put(field::ACTION, act as u64);
        self.put(field::AT, self.count() + at);
    }

    /// From now on every operation of these kinds.
    pub(crate) fn always(&self, kinds: u64, act: Act) {
        self.put(field::KINDS, kinds);
        self.next(1, act);
        self.put(field::TIMES, u64::MAX);
    }

    /// Only these kinds count.
    pub(crate) fn only(self, kinds: u64) -> Self {
        self.put(field::KINDS, kinds);
        self
    }

    /// Only what happens to paths with this text counts, or, behind a `!`, without it.
    pub(crate) fn under(self, text: &str) -> Self {
        self.file().write_all_at(&[0; 64], field::UNDER).unwrap();
        self.file().write_all_at(text.as_bytes(), field::UNDER).unwrap();
        self
    }

    /// Only writes of these bytes count.
    pub(crate) fn holding(self, bytes: &str) -> Self {
        self.file().write_all_at(bytes.as_bytes(), field::NEEDLE).unwrap();
        self.only(WRITES)
    }

    /// From now on the folder may grow by so many bytes, or has to shrink first; without a number there is no limit.
    pub(crate) fn room(&self, bytes: Option<i64>) {
        let now = i64::from_ne_bytes(self.get(field::USED).to_ne_bytes());
        self.put(field::BUDGET, bytes.map_or(i64::MAX, |bytes| now + bytes) as u64);
    }

    /// Operations that counted.
    pub(crate) fn count(&self) -> u64 {
        self.get(field::COUNT)
    }

    /// Describes the operation at which it acted, if it did.
    pub(crate) fn fired(&self) -> Option<String> {
        let mut text = vec![0; (field::NEEDLE - field::WHAT) as usize];
        self.file().read_exact_at(&mut text, field::WHAT).unwrap();
        let text = String::from_utf8_lossy(&text);
        (self.get(field::FIRED) > 0).then(|| text.trim_end_matches('\0').to_owned())
    }

    /// Puts the library before libc in a command.
    pub(crate) fn attach(&self, command: &mut Command) {
        command.env("LD_PRELOAD", library()).env("SHIM_CONTROL", self.control.path());
        command.env("SHIM_FOLDER", &self.folder);
    }

    fn file(&self) -> &File {
        self.control.as_file()
    }

    fn get(&self, field: u64) -> u64 {
        let mut bytes = [0; 8];
        self.file().read_exact_at(&mut bytes, field).unwrap();
        u64::from_ne_bytes(bytes)
    }

    fn put(&self, field: u64, value: u64) {
        self.file().write_all_at(&value.to_ne_bytes(), field).unwrap();
    }
}

/// The library, compiled once.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("shim-{}.so", std::process::id()));
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut command = Command::new(&compiler);
        command.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-x", "c", "-", "-ldl", "-o"]);
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(include_bytes!("shim.c")).and_then(|()| source.rewind()).unwrap();
        let made = command.arg(&library).stdin(source).status();
        assert!(made.is_ok_and(|made| made.success()), "these tests need a C compiler; {compiler} is none");
        library
    })
}

/// Prints its text when a check fails.
pub(crate) struct Told(pub(crate) String);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("killed by {}", self.0);
        }
    }
}
