//! A disk that is full or read-only: a change fails with its reason, and every file stays as it is.

use std::{collections::BTreeMap, fs, process::Command};

use libtest_mimic::Trial;
use meerkat_service::tool::ToolError;
use meerkat_tools::{FileAccess, file_tools};
use rustix::mount::{MountFlags, mount, mount_remount};
use serde_json::json;

use super::place::{Place, RUNTIME, call, has_namespaces};

/// First argument of this program in a process of its own, which may mount.
pub(crate) const MARK: &str = "on-a-small-disk";
/// Size of the disk.
const SIZE: &std::ffi::CStr = c"size=256k,mode=0777";
/// Bytes of a text that has no room there a second time.
const BYTES: usize = 150 * 1024;

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let trial = Trial::test("no_file_changes_on_a_full_or_read_only_disk", || {
        let output = Command::new("/proc/self/exe").arg(MARK).output()?;
        let text = || String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(text().into()) }
    });
    // Mounting needs a namespace.
    has_namespaces().then_some(trial).into_iter()
}

/// Runs in a process of its own, before any thread.
pub(crate) fn run() {
    super::own_mounts().unwrap();
    let folder = tempfile::tempdir_in(super::WORKSPACES).unwrap();
    let disk = folder.path().to_owned();
    mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), SIZE).unwrap();
    let place = Place::over(folder, meerkat_service::tool::Network::Ask);
    let root = &place.workspace;
    fs::write(root.join("file"), "old\n").unwrap();
    fs::write(root.join("filler"), vec![b'x'; BYTES]).unwrap();
    let check = |words: &str| {
        let tools = file_tools(FileAccess::Write).unwrap();
        let text = "y".repeat(BYTES);
        for (name, arguments) in [
            ("edit", json!({ "path": "file", "old": "old", "new": text })),
            ("write", json!({ "path": "new", "content": text })),
        ] {
            let tool = tools.iter().find(|tool| tool.spec().name == name).unwrap();
            let (_, result) = RUNTIME.block_on(call(tool, place.invocation(&arguments)));
            let why = match result {
                Err(ToolError::Failed(why) | ToolError::Refused(why)) => why,
                other => panic!("{name}: {other:?}"),
            };
            assert!(why.contains(words), "{name}: {why}");
        }
        let files = fs::read_dir(root).unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
        });
        let expected = BTreeMap::from([("file".to_owned(), 4), ("filler".to_owned(), BYTES as u64)]);
        assert_eq!(files.collect::<BTreeMap<_, _>>(), expected, "nothing is left behind");
        assert_eq!(fs::read_to_string(root.join("file")).unwrap(), "old\n");
    };
    check("No space left on device");
    mount_remount(&disk, MountFlags::RDONLY, SIZE).unwrap();
    check("Read-only file system");
}
