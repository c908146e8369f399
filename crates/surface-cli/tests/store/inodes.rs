//! A data directory on a disk that has bytes and no inodes.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::needs;
use tempfile::TempDir;

use crate::drive::{Ran, ran};

/// Mounts a small disk in a namespace of its own, says so, and ends with its standard input.
const SMALL_DISK: &str = r#"mount -t tmpfs -o size=64m,nr_inodes=500 none "$0" && echo mounted && cat"#;

/// A folder with a small disk that only its own processes see. It ends with the test.
struct SmallDisk {
    dir: TempDir,
    holder: Child,
    is_mounted: bool,
}

impl SmallDisk {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let small = dir.path().join("small");
        fs::create_dir(&small).unwrap();
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "sh", "-c", SMALL_DISK]).arg(small);
        let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { dir, holder, is_mounted: line == "mounted\n" }
    }

    /// The disk as this process sees it.
    fn path(&self) -> PathBuf {
        let inside = self.dir.path().join("small");
        PathBuf::from(format!("/proc/{}/root{}", self.holder.id(), inside.display()))
    }

    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.holder.id().to_string()]);
        command.arg(format!("--wd={}", self.dir.path().display()));
        command.arg(env!("CARGO_BIN_EXE_meerkat")).args(args).env_clear().env("HOME", self.dir.path());
        command.env("MEERKAT_DATA_DIR", self.dir.path().join("small/data")).env("PATH", "/usr/bin:/bin");
        ran(command.stdin(Stdio::null()))
    }

    fn findings(&self) -> Vec<String> {
        let found = self.run(&["doctor", "--json"]);
        let found = found.json();
        let of_disk = found["findings"].as_array().unwrap().iter().filter(|found| found["check"] == "disk_space");
        of_disk.map(|found| format!("{}: {} {}", found["severity"], found["what"], found["remedy"])).collect()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().unwrap();
    }
}

#[test]
fn a_disk_without_inodes_is_named_and_work_goes_on_when_there_are_some() {
    needs!("unshare", "nsenter");
    needs!("root, who may mount" => rustix::process::geteuid().is_root());
    let disk = SmallDisk::new();
    needs!("the right to mount a tmpfs" => disk.is_mounted);
    assert_eq!(disk.run(&["run", "@say Before."]).code, 0);
    let session =
        disk.run(&["sessions", "list", "--json"]).json()["items"][0]["session_id"].as_str().unwrap().to_owned();
    assert_eq!(disk.findings().len(), 1, "it is small, of which it warns");

    let file = |n: usize| disk.path().join(format!("file-{n}"));
    let made = (0..1000).take_while(|n| File::create_new(file(*n)).is_ok()).count();
    assert!((100..500).contains(&made), "{made}");
    let found = disk.findings();
    assert!(found[0].contains("has no inodes left: 0 are free"), "{found:?}");
    let goes_on = |text: &str| disk.run(&["run", "--session", &session, &format!("@say {text}.")]);
    disk.run(&["run", "@say New."]).refused(ErrorCode::StoreFull, "disk");
    // One turn has the inode of the reserve.
    assert_eq!(goes_on("Reserved").code, 0);
    goes_on("Refused").refused(ErrorCode::StoreFull, "disk");
    let said = || {
        let shown = disk.run(&["sessions", "history", &session]);
        assert_eq!(shown.code, 0, "{}", shown.err);
        ["Before.", "Reserved.", "Refused.", "After."].map(|text| shown.out.contains(text))
    };
    assert_eq!(said(), [true, true, false, false]);

    (0..made).for_each(|n| fs::remove_file(file(n)).unwrap());
    assert_eq!(goes_on("After").code, 0);
    assert_eq!(said(), [true, true, false, true]);
    assert_eq!(disk.run(&["run", "@say New."]).code, 0);
}
