//! Tests of the file tools as an engine calls them, over real folders.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use meerkat_service::{
    SessionId,
    redact::Secrets,
    session::message::{Body, RawJson},
    store::MemoryBlobStore,
    tool::{Approval, Effect, Invocation, OutputLimits, OutputSink, Plan, Tool, ToolError},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    FileAccess,
    change::Changes,
    file_tools,
    path::{Opened, Way, Workspace},
};

mod images;
mod odd;
mod search;

/// A workspace beside a file that no tool may touch.
struct Fixture {
    home: tempfile::TempDir,
    tools: Vec<Arc<dyn Tool>>,
}

const SECRET: &str = "outside\n";

impl Fixture {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("workspace")).unwrap();
        fs::create_dir_all(home.path().join("other")).unwrap();
        fs::write(home.path().join("other/secret"), SECRET).unwrap();
        Self { home, tools: file_tools(FileAccess::Write).unwrap() }
    }

    fn root(&self) -> PathBuf {
        self.home.path().canonicalize().unwrap().join("workspace")
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn text(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap()
    }

    fn tool(&self, name: &str) -> Arc<dyn Tool> {
        self.tools.iter().find(|tool| tool.spec().name == name).unwrap().clone()
    }

    fn invocation(&self, session: u8, arguments: &Value) -> Invocation {
        Invocation {
            session_id: format!("01900000-0000-7000-8000-0000000000{session:02}").parse().unwrap(),
            turn: 1,
            call_id: "c".to_owned(),
            arguments: RawJson::parse(&arguments.to_string()).unwrap(),
            workspace: Some(self.root()),
            is_approved: false,
            search_path: None,
            cancel: CancellationToken::new(),
        }
    }

    async fn run(&self, name: &str, arguments: Value) -> Result<String, ToolError> {
        self.call(name, self.invocation(1, &arguments)).await
    }

    async fn call(&self, name: &str, invocation: Invocation) -> Result<String, ToolError> {
        let sink = sink(invocation.session_id);
        self.tool(name).call(invocation, &sink).await?;
        match sink.finish().await? {
            Body::Inline(text) => Ok(text),
            Body::Blob(blob) => panic!("{blob:?} is not inline"),
        }
    }

    async fn plan(&self, name: &str, arguments: Value) -> Result<Plan, ToolError> {
        self.tool(name).plan(&self.invocation(1, &arguments)).await
    }

    /// Expects that a call does not run, that nobody would be asked, and that the reason has these words.
    async fn check_refused(&self, name: &str, arguments: Value, words: &str) {
        let call = self.run(name, arguments.clone()).await;
        assert!(matches!(&call, Err(ToolError::Refused(why)) if why.contains(words)), "{arguments}: {call:?}");
        if name == "edit" || name == "write" {
            let plan = self.plan(name, arguments.clone()).await;
            assert!(matches!(&plan, Err(ToolError::Refused(why)) if why.contains(words)), "{arguments}: {plan:?}");
        }
    }

    /// Names below the workspace, hidden ones too.
    fn names(&self) -> Vec<String> {
        fn add(folder: &Path, names: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                names.push(entry.file_name().into_string().unwrap());
                if entry.file_type().unwrap().is_dir() {
                    add(&entry.path(), names);
                }
            }
        }
        let mut names = Vec::new();
        add(&self.root(), &mut names);
        names.sort();
        names
    }
}

fn sink(session: SessionId) -> OutputSink {
    let limits = OutputLimits { inline_bytes: 32 * 1024, ..OutputLimits::default() };
    let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
    OutputSink::new(limits, blobs, session, Secrets::default().stream(), mpsc::channel(1).0)
}

#[tokio::test]
async fn no_path_leads_out_of_the_workspace() {
    let fixture = Fixture::new();
    let root = fixture.root();
    fixture.put("file", "inside\n");
    fixture.put("folder/file", "inside\n");
    fixture.put(".git/config", "[core]\n");
    fixture.put("module/.git/hooks/sample", "#!/bin/sh\n");
    for name in ["HEAD", "objects/x", "refs/x"] {
        fixture.put(&format!("named.git/{name}"), "x\n");
    }
    let outside = root.parent().unwrap().join("other");
    symlink("../other/secret", root.join("link")).unwrap();
    symlink(outside.join("secret"), root.join("absolute")).unwrap();
    symlink("../other", root.join("folder-link")).unwrap();
    symlink("../../other/secret", root.join("folder/link")).unwrap();
    symlink("/proc/self/root", root.join("system")).unwrap();
    symlink("/proc/self/cwd", root.join("here")).unwrap();
    symlink("link", root.join("link-to-link")).unwrap();
    symlink(".git", root.join("innocent")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    let absolute = outside.join("secret").to_str().unwrap().to_owned();
    let in_system = format!("system{absolute}");
    let root_link = format!("/proc/self/root{absolute}");

    let to_outside = [
        "../other/secret",
        "folder/../../other/secret",
        "folder/../file",
        "..",
        absolute.as_str(),
        root_link.as_str(),
        "/proc/self/environ",
        "/dev/zero",
        "link",
        "link-to-link",
        "absolute",
        "folder-link/secret",
        "folder/link",
        in_system.as_str(),
        "here/Cargo.toml",
        "pipe",
        "socket",
    ];
    for path in to_outside {
        fixture.check_refused("read", json!({ "path": path }), "").await;
        fixture.check_refused("edit", json!({ "path": path, "old": "outside", "new": "changed" }), "").await;
        if path != ".." && !path.starts_with("folder/..") && path != "here/Cargo.toml" {
            fixture.check_refused("write", json!({ "path": path, "content": "changed\n" }), "").await;
        }
        // A pipe or socket is no file to search, so there is nothing to find.
        let found = fixture.run("grep", json!({ "pattern": "outside", "path": path })).await;
        assert!(found.as_ref().is_err_and(|error| !error.to_string().contains("No match")), "{path}: {found:?}");
    }
    for path in [
        ".git/config",
        ".git/hooks/pre-commit",
        ".GIT/hooks/pre-commit",
        "module/.git/hooks/sample",
        "innocent/config",
        "named.git/config",
        "named.git/hooks/pre-commit",
        "folder-link/new",
        "new/../../other/new",
        "folder-link/new/new",
        "file/new",
        "",
        ".",
        "folder",
    ] {
        fixture.check_refused("write", json!({ "path": path, "content": "changed\n" }), "").await;
        fixture.check_refused("edit", json!({ "path": path, "old": "core", "new": "changed" }), "").await;
    }
    let found = fixture.run("grep", json!({ "pattern": "outside" })).await.unwrap();
    assert_eq!(found, "[No match in 5 files. Hidden, ignored and binary files are not searched.]\n");
    assert_eq!(fs::read_to_string(outside.join("secret")).unwrap(), SECRET);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(fixture.text(".git/config"), "[core]\n");
    assert_eq!(fixture.text("module/.git/hooks/sample"), "#!/bin/sh\n");
    assert!(!root.join(".git/hooks").exists() && !root.join(".GIT").exists());
}

#[tokio::test]
async fn without_openat2_no_link_is_followed_at_all() {
    let fixture = Fixture::new();
    let root = fixture.root();
    fixture.put("folder/file", "inside\n");
    symlink("folder/file", root.join("link")).unwrap();
    symlink("folder", root.join("folder-link")).unwrap();
    symlink("../other", root.join("outside")).unwrap();
    let workspace = Workspace::open(&fixture.invocation(1, &json!({}))).unwrap();
    let open = |way, path: &str| workspace.open_by(way, &workspace.inside(path).unwrap());
    for path in ["folder/file", "folder"] {
        assert!(open(Way::Parts, path).is_ok(), "{path}");
    }
    for path in ["link", "folder-link", "folder-link/file", "outside", "outside/secret"] {
        assert!(matches!(open(Way::Parts, path), Err(ToolError::Refused(_))), "{path}");
    }
    #[cfg(target_os = "linux")]
    {
        for path in ["folder/file", "link", "folder-link/file"] {
            assert!(matches!(open(Way::Beneath, path), Ok(Opened::File(_))), "{path}");
        }
        for path in ["outside", "outside/secret"] {
            assert!(matches!(open(Way::Beneath, path), Err(ToolError::Refused(_))), "{path}");
        }
    }
    assert!(matches!(open(Way::Parts, ""), Ok(Opened::Folder(_))));
}

#[tokio::test]
async fn an_absolute_path_in_the_workspace_is_taken_from_there() {
    let fixture = Fixture::new();
    fixture.put("a/b", "text\n");
    let path = fixture.root().join("a/./b");
    assert_eq!(fixture.run("read", json!({ "path": path })).await.unwrap(), "1\ttext\n");
    assert_eq!(fixture.run("read", json!({ "path": "./a//b" })).await.unwrap(), "1\ttext\n");
}

#[tokio::test]
async fn without_a_workspace_nothing_runs() {
    let fixture = Fixture::new();
    fixture.put("file", "text\n");
    let path = fixture.root().join("file");
    for (name, arguments) in [
        ("read", json!({ "path": path })),
        ("grep", json!({ "pattern": "t" })),
        ("glob", json!({ "pattern": "*" })),
        ("edit", json!({ "path": path, "old": "t", "new": "x", "all": true })),
        ("write", json!({ "path": path, "content": "" })),
    ] {
        let invocation = Invocation { workspace: None, ..fixture.invocation(1, &arguments) };
        let result = fixture.call(name, invocation).await;
        assert!(matches!(&result, Err(ToolError::Refused(why)) if why.contains("no workspace")), "{name}: {result:?}");
    }
}

#[tokio::test]
async fn the_other_name_of_a_file_keeps_its_content() {
    let fixture = Fixture::new();
    let outside = fixture.home.path().join("other/secret");
    fs::hard_link(&outside, fixture.root().join("file")).unwrap();
    fixture.run("edit", json!({ "path": "file", "old": "outside", "new": "changed" })).await.unwrap();
    assert_eq!(fixture.text("file"), "changed\n");
    fixture.run("write", json!({ "path": "file", "content": "again\n" })).await.unwrap();
    assert_eq!(fixture.text("file"), "again\n");
    assert_eq!(fs::read_to_string(outside).unwrap(), SECRET);
}

#[tokio::test]
async fn a_file_is_read_in_numbered_pages() {
    let fixture = Fixture::new();
    fixture.put("lines", (1..=5).map(|n| format!("line {n}\r\n")).collect::<String>());
    fixture.put("no-end", "\u{feff}first\n\tsecond");
    fixture.put("empty", "");
    fixture.put("binary", b"PNG\0\0");
    fixture.put("latin", b"caf\xe9\n");
    fixture.put("long", format!("{}\nnext\n", "é".repeat(1001)));
    fixture.put("many", "x\n".repeat(100_000));
    let read = async |arguments: Value| fixture.run("read", arguments).await.unwrap();
    assert_eq!(read(json!({ "path": "lines" })).await, "1\tline 1\n2\tline 2\n3\tline 3\n4\tline 4\n5\tline 5\n");
    assert_eq!(
        read(json!({ "path": "lines", "offset": 2, "limit": 2 })).await,
        "2\tline 2\n3\tline 3\n[More lines follow: read on with offset 4. The file has 40 bytes.]\n"
    );
    assert_eq!(read(json!({ "path": "lines", "offset": 5, "limit": 2 })).await, "5\tline 5\n");
    assert_eq!(read(json!({ "path": "lines", "offset": 6 })).await, "[lines has 5 lines; there is no line 6.]\n");
    assert_eq!(read(json!({ "path": "no-end" })).await, "1\tfirst\n2\t\tsecond\n");
    assert_eq!(read(json!({ "path": "no-end", "offset": 3 })).await, "[no-end has 2 lines; there is no line 3.]\n");
    assert_eq!(read(json!({ "path": "empty" })).await, "[empty is empty.]\n");
    let long = format!("1\t{}[... 2 bytes left out ...]\n2\tnext\n", "é".repeat(1000));
    assert_eq!(read(json!({ "path": "long" })).await, long);

    // Pages cover a file.
    let (mut offset, mut seen) = (1, 0);
    let many = loop {
        let page = read(json!({ "path": "many", "offset": offset })).await;
        assert!(page.len() <= 30 * 1024);
        seen += page.lines().filter(|line| line.ends_with("\tx")).count();
        let Some(next) = page.lines().find_map(|line| line.strip_prefix("[More lines follow: read on with offset "))
        else {
            break seen;
        };
        offset = next.split('.').next().unwrap().parse().unwrap();
    };
    assert_eq!(many, 100_000);

    fixture.check_refused("read", json!({ "path": "binary" }), "a binary file of 5 bytes").await;
    fixture.check_refused("read", json!({ "path": "latin" }), "not UTF-8 text of 5 bytes").await;
    let zero = fixture.run("read", json!({ "path": "lines", "offset": 0 })).await;
    assert!(matches!(zero, Err(ToolError::Arguments(_))));
}

#[tokio::test]
async fn a_missing_path_names_what_is_like_it_and_a_folder_its_names() {
    let fixture = Fixture::new();
    fixture.put("src/reader.rs", "");
    fixture.put("src/writer.rs", "");
    fixture.put("src/a\nb", "");
    symlink("reader.rs", fixture.root().join("src/z")).unwrap();
    let missing = async |path: &str| fixture.run("read", json!({ "path": path })).await.unwrap_err().to_string();
    assert_eq!(
        missing("src/raeder.rs").await,
        "src/raeder.rs does not exist; did you mean src/reader.rs or src/writer.rs?"
    );
    assert_eq!(missing("scr/reader.rs").await, "scr/reader.rs does not exist; read . for the names in that folder");
    assert_eq!(missing("sr/reader.rs").await, "sr/reader.rs does not exist; did you mean src?");
    assert_eq!(missing("src/xyz").await, "src/xyz does not exist; read src for the names in that folder");
    fixture.check_refused("edit", json!({ "path": "src/raeder.rs", "old": "a", "new": "b" }), "src/reader.rs").await;
    let names = fixture.run("read", json!({ "path": "src" })).await.unwrap();
    assert_eq!(names, "[src is a folder with 4 names:]\na\u{fffd}b\nreader.rs\nwriter.rs\nz (link)\n");
    assert_eq!(fixture.run("read", json!({ "path": "." })).await.unwrap(), "[. is a folder with 1 names:]\nsrc/\n");
}

#[tokio::test]
async fn an_edit_changes_its_place_and_nothing_else() {
    let fixture = Fixture::new();
    fixture.put("file", "\u{feff}one\r\ntwo\r\nthree\r\n");
    // Only root can give a file away.
    drop(std::os::unix::fs::chown(fixture.root().join("file"), Some(1234), Some(1235)));
    fs::set_permissions(fixture.root().join("file"), fs::Permissions::from_mode(0o751)).unwrap();
    let before = fs::metadata(fixture.root().join("file")).unwrap();
    let edit = json!({ "path": "file", "old": "one\ntwo", "new": "1\n2\n2.5" });
    let plan = fixture.plan("edit", edit.clone()).await.unwrap();
    let preview = "--- file\n+++ file\n@@ -1,3 +1,4 @@\n-\u{feff}one␍\n-two␍\n+\u{feff}1␍\n+2␍\n+2.5␍\n three␍\n";
    assert_eq!(plan.preview.as_deref(), Some(preview));
    assert_eq!((plan.effect, plan.approval, plan.rule.as_deref()), (Effect::Once, Approval::Ask, Some("edit")));
    assert_eq!(fixture.text("file"), "\u{feff}one\r\ntwo\r\nthree\r\n", "a plan changes nothing");

    let answer = fixture.run("edit", edit).await.unwrap();
    assert_eq!(answer, "Edited file at line 1.\n1\t1\n2\t2\n3\t2.5\n4\tthree\n");
    assert_eq!(fixture.text("file"), "\u{feff}1\r\n2\r\n2.5\r\nthree\r\n");
    let after = fs::metadata(fixture.root().join("file")).unwrap();
    assert_eq!((after.mode() & 0o7777, after.uid(), after.gid()), (0o751, before.uid(), before.gid()));

    let all = json!({ "path": "file", "old": "2", "new": "two", "all": true });
    assert!(fixture.run("edit", all).await.unwrap().starts_with("Edited file in 2 places, at lines 2, 3.\n"));
    assert_eq!(fixture.text("file"), "\u{feff}1\r\ntwo\r\ntwo.5\r\nthree\r\n");
    assert_eq!(fixture.names(), ["file"], "no temporary file is left");
}

#[tokio::test]
async fn an_edit_that_does_not_fit_says_what_would() {
    let fixture = Fixture::new();
    fixture.put("file", "fn one() {}\nfn two() {}\nfn one_more() {}\n");
    fixture.put("binary", b"a\0");
    fixture.put("latin", b"caf\xe9\n");
    fixture.put("large", "x".repeat(16 * 1024 * 1024 + 1));
    fixture.put("locked", "a\n");
    fs::set_permissions(fixture.root().join("locked"), fs::Permissions::from_mode(0o444)).unwrap();
    for (old, new, words) in [
        ("fn on", "x", "occurs 2 times in file, at lines 1, 3; add lines around it"),
        ("fn  two() {}", "x", "The nearest lines, with their numbers, are:\n2\tfn two() {}\n"),
        ("fn two() { }\nfn one_more() {}", "x", "are:\n2\tfn two() {}\n3\tfn one_more() {}\n"),
        ("1\tfn one() {}\n2\tfn two() {}", "x", "It does without the line numbers; leave them out."),
        ("0123456789", "x", "No line is like it; read the file."),
        ("", "x", "`old` is empty"),
        ("fn two", "fn two", "the same"),
        ("{}\nfn two", "{}\r\nfn two", "differ in line endings alone"),
        ("key = [redacted]", "x", "`old` holds [redacted]"),
        ("fn two", "[redacted]", "`new` holds [redacted]"),
        ("fn two", "[... 5 bytes left out ...]", "`new` holds a mark"),
    ] {
        fixture.check_refused("edit", json!({ "path": "file", "old": old, "new": new }), words).await;
    }
    let large = json!({ "path": "file", "old": "n", "new": "x".repeat(4 * 1024 * 1024), "all": true });
    fixture.check_refused("edit", large, "would have").await;
    for (path, words) in [
        ("binary", "a binary file of 2 bytes"),
        ("latin", "not UTF-8"),
        ("large", "has 16777217 bytes; files of at most 16777216 can be changed"),
        ("locked", "read-only"),
        ("missing", "write makes new files"),
    ] {
        fixture.check_refused("edit", json!({ "path": path, "old": "a", "new": "b" }), words).await;
    }
    assert_eq!(fixture.text("file"), "fn one() {}\nfn two() {}\nfn one_more() {}\n");
}

/// Who approved a change has seen the file in it. From then on the file may not change unnoticed.
#[tokio::test]
async fn an_approved_change_needs_no_reading_and_is_of_the_file_as_it_was_planned() {
    for (tool, arguments) in [
        ("write", json!({ "path": "file", "content": "whole\n" })),
        ("edit", json!({ "path": "file", "old": "one", "new": "whole" })),
    ] {
        for is_changed in [false, true] {
            let fixture = Fixture::new();
            fixture.put("file", "one\n");
            let approved = Invocation { is_approved: true, ..fixture.invocation(1, &arguments) };
            let plan = fixture.tool(tool).plan(&approved).await.unwrap();
            assert!(plan.preview.unwrap().contains("-one\n+whole\n"));
            if is_changed {
                fixture.put("file", "one more\n");
                let refused = fixture.call(tool, approved).await;
                let words = "changed since this session read it";
                assert!(matches!(&refused, Err(ToolError::Refused(why)) if why.contains(words)), "{refused:?}");
                assert_eq!(fixture.text("file"), "one more\n");
            } else {
                fixture.call(tool, approved).await.unwrap();
                assert_eq!(fixture.text("file"), "whole\n");
            }
        }
    }
    // What is not shown of a file that is replaced has its hash in the preview.
    let fixture = Fixture::new();
    let write = Invocation { is_approved: true, ..fixture.invocation(1, &json!({ "path": "file", "content": "x" })) };
    let mut previews = Vec::new();
    for content in [b"\xff", b"\xfe"] {
        fixture.put("file", content);
        let session_id = fixture.invocation(previews.len() as u8 + 1, &json!({})).session_id;
        let write = Invocation { session_id, ..write.clone() };
        previews.push(fixture.tool("write").plan(&write).await.unwrap().preview.unwrap());
    }
    assert_ne!(previews[0], previews[1]);
}

#[tokio::test]
async fn a_file_that_changed_since_it_was_read_is_not_changed() {
    let fixture = Fixture::new();
    fixture.put("file", "one\n");
    let edit = json!({ "path": "file", "old": "one", "new": "two" });
    let write = json!({ "path": "file", "content": "whole\n" });
    // Never read: the exact text is proof enough for an edit, but not for a whole file.
    fixture.check_refused("write", write.clone(), "this session has not read it").await;
    fixture.run("edit", edit.clone()).await.unwrap();
    fixture.run("read", json!({ "path": "file" })).await.unwrap();
    // Of the same length: its time tells.
    fixture.put("new", "one\n");
    fs::rename(fixture.root().join("new"), fixture.root().join("file")).unwrap();
    fixture.check_refused("edit", edit.clone(), "changed since this session read it").await;
    fixture.check_refused("write", write.clone(), "changed since this session read it").await;
    fixture.put("file", "one and more\n");
    fixture.check_refused("edit", edit.clone(), "changed since this session read it").await;
    assert_eq!(fixture.text("file"), "one and more\n");
    fixture.run("read", json!({ "path": "file" })).await.unwrap();
    fixture.run("edit", edit).await.unwrap();
    // Its own change is no news to a session, but it is to another one.
    let other = fixture.invocation(2, &write);
    assert!(matches!(fixture.call("write", other.clone()).await, Err(ToolError::Refused(_))));
    fixture.run("write", write).await.unwrap();
    assert_eq!(fixture.text("file"), "whole\n");
    fixture.call("read", fixture.invocation(2, &json!({ "path": "file" }))).await.unwrap();
    fixture.run("write", json!({ "path": "file", "content": "other\n" })).await.unwrap();
    let stale = fixture.call("edit", fixture.invocation(2, &json!({ "path": "file", "old": "o", "new": "x" }))).await;
    assert!(matches!(stale, Err(ToolError::Refused(why)) if why.contains("changed since")));
}

#[tokio::test]
async fn a_file_read_through_a_link_is_not_read_under_the_name_of_the_link() {
    let fixture = Fixture::new();
    fixture.put("file", "one\n");
    symlink("file", fixture.root().join("link")).unwrap();
    assert_eq!(fixture.run("read", json!({ "path": "link" })).await.unwrap(), "1\tone\n");
    let words = "link is a link to file, and links are not followed here; name what it leads to.";
    fixture.check_refused("write", json!({ "path": "link", "content": "x" }), words).await;
    fixture.check_refused("edit", json!({ "path": "link", "old": "one", "new": "x" }), words).await;
    assert_eq!(fixture.text("file"), "one\n");
}

#[tokio::test]
async fn write_makes_files_with_their_folders_and_replaces_what_was_read() {
    let fixture = Fixture::new();
    let write = json!({ "path": "a/b/file", "content": "one\ntwo\n" });
    let plan = fixture.plan("write", write.clone()).await.unwrap();
    let preview = "--- /dev/null\n+++ a/b/file\n@@ -0,0 +1,2 @@\n+one\n+two\n";
    assert_eq!(plan.preview.as_deref(), Some(preview));
    assert_eq!((plan.effect, plan.approval), (Effect::Idempotent, Approval::Ask));
    assert_eq!(plan.rule.as_deref(), Some("write"));
    assert!(fixture.names().is_empty(), "a plan makes no folder");
    assert_eq!(fixture.run("write", write.clone()).await.unwrap(), "Made a/b/file: 2 lines, 8 bytes.\n");
    assert_eq!(fixture.text("a/b/file"), "one\ntwo\n");
    // Repeated by a session that never read it, as after a crash.
    let again = fixture.call("write", fixture.invocation(2, &write)).await.unwrap();
    assert_eq!(again, "a/b/file has this content already.\n");
    fs::set_permissions(fixture.root().join("a/b/file"), fs::Permissions::from_mode(0o755)).unwrap();
    fixture.run("read", json!({ "path": "a/b/file" })).await.unwrap();
    let replaced = fixture.run("write", json!({ "path": "a/b/file", "content": "one\n2\n3\n" })).await.unwrap();
    assert_eq!(replaced, "Replaced a/b/file: 3 lines, 8 bytes; 2 lines added, 1 removed.\n");
    let mode = fs::metadata(fixture.root().join("a/b/file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o755);
    let marked = json!({ "path": "new", "content": "key = [redacted]\n" });
    fixture.check_refused("write", marked, "`content` holds [redacted]").await;
    assert_eq!(fixture.names(), ["a", "b", "file"]);
}

#[tokio::test]
async fn each_change_of_the_configuration_is_asked_about() {
    let fixture = Fixture::new();
    fixture.put("meerkat.toml", "a = 1\n");
    for path in ["deep/.mcp.json", "deep/meerkat.toml"] {
        let plan = fixture.plan("write", json!({ "path": path, "content": "{}" })).await.unwrap();
        assert_eq!((plan.approval, plan.rule), (Approval::Ask, None), "{path}");
    }
    let plan = fixture.plan("edit", json!({ "path": "meerkat.toml", "old": "1", "new": "2" })).await.unwrap();
    assert_eq!((plan.approval, plan.rule), (Approval::Ask, None));
}

/// Broken once: with a rule that allows `write`, a model gave the editor, the shell or the build server its commands.
#[tokio::test]
async fn each_change_of_what_other_programs_obey_is_asked_about() {
    let fixture = Fixture::new();
    let path_of = |path: &str| json!({ "path": path, "content": "{}" });
    for path in [
        ".vscode/tasks.json",
        "deep/.idea/workspace.xml",
        ".claude/settings.json",
        ".cursor/mcp.json",
        ".husky/pre-commit",
        ".github/workflows/ci.yml",
        ".GITLAB-CI.yml",
        ".envrc",
        "home/.bashrc",
        ".zlogin",
        ".config/fish/config.fish",
        "bitbucket-pipelines.yml",
        ".gitea/workflows/ci.yml",
        ".github/actions/build/action.yml",
        ".devcontainer.json",
        "my.code-workspace",
        ".gemini/settings.json",
        "opencode.json",
        ".mise.toml",
        ".cargo/config.toml",
        ".pre-commit-config.yaml",
        "lefthook.yml",
        ".nvim.lua",
        ".rkat/notes.md",
    ] {
        let plan = fixture.plan("write", path_of(path)).await.unwrap();
        assert_eq!((plan.approval, plan.always_asks, plan.rule), (Approval::Ask, true, None), "{path}");
    }
    for path in
        ["src/vscode/tasks.json", ".github/CODEOWNERS", "workflows/ci.yml", "envrc", "notes/.rkat.md", ".cargo/notes"]
    {
        let plan = fixture.plan("write", path_of(path)).await.unwrap();
        assert_eq!((plan.always_asks, plan.rule.as_deref()), (false, Some("write")), "{path}");
    }
}

#[tokio::test]
async fn calls_of_one_step_lose_no_edit() {
    let fixture = Arc::new(Fixture::new());
    let lines: String = (0..16).map(|n| format!("<{n}>\n")).collect();
    fixture.put("file", &lines);
    let edits: Vec<_> = (0..16)
        .map(|n| {
            let fixture = fixture.clone();
            let edit = json!({ "path": "file", "old": format!("<{n}>"), "new": format!("[{n}]") });
            tokio::spawn(async move { fixture.run("edit", edit).await })
        })
        .collect();
    for edit in edits {
        edit.await.unwrap().unwrap();
    }
    assert_eq!(fixture.text("file"), lines.replace('<', "[").replace('>', "]"));
    assert_eq!(fixture.names(), ["file"]);
}

/// Broken once: what a killed process left in a folder stayed there for good.
#[tokio::test]
async fn the_next_edit_in_a_folder_removes_what_an_ended_one_left() {
    let fixture = Fixture::new();
    for name in [
        "file",
        ".meerkat-1-0.tmp",
        ".meerkat-77-3.tmp",
        ".meerkat-notes.tmp",
        ".meerkat-1-0.tmp.md",
        ".meerkat-8-1.tmp",
    ] {
        fixture.put(name, "a\n");
        if name != ".meerkat-8-1.tmp" {
            let file = fs::File::options().write(true).open(fixture.root().join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_hours(24)).unwrap();
        }
    }
    fixture.run("edit", json!({ "path": "file", "old": "a", "new": "b" })).await.unwrap();
    // One of the last hour may belong to a process that runs, and the others are the user's.
    assert_eq!(fixture.names(), [".meerkat-1-0.tmp.md", ".meerkat-8-1.tmp", ".meerkat-notes.tmp", "file"]);
}

#[tokio::test]
async fn a_file_that_changes_or_appears_during_a_call_is_not_replaced() {
    let fixture = Fixture::new();
    let changes = Changes::new();
    let invocation = fixture.invocation(1, &json!({}));
    let workspace = Workspace::open(&invocation).unwrap();
    fixture.put("file", "one\n");
    let [old, new] = ["file", "new"].map(|path| changes.target(&workspace, path).unwrap());
    fixture.put("file", "more\n");
    fixture.put("new", "");
    for target in [old, new] {
        let result = changes.replace(&workspace, &target, b"lost\n", &invocation.cancel).map(drop);
        assert!(matches!(&result, Err(ToolError::Refused(why)) if why.contains("changed at this")), "{result:?}");
    }
    assert_eq!((fixture.text("file"), fixture.text("new")), ("more\n".to_owned(), String::new()));
    assert_eq!(fixture.names(), ["file", "new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_sees_the_old_file_or_the_new_one() {
    let fixture = Arc::new(Fixture::new());
    let [a, b] = ["a", "b"].map(|letter| letter.repeat(300_000) + "\n");
    fixture.put("file", &a);
    let (path, wanted) = (fixture.root().join("file"), [a.clone(), b.clone()]);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let reader = tokio::task::spawn_blocking(move || {
        let mut count = 0;
        while !stopped.is_cancelled() {
            let text = fs::read_to_string(&path).unwrap();
            assert!(wanted.contains(&text), "{} bytes", text.len());
            count += 1;
        }
        count
    });
    for n in 0..40 {
        let (old, new) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        fixture.run("edit", json!({ "path": "file", "old": old, "new": new })).await.unwrap();
    }
    stop.cancel();
    assert!(reader.await.unwrap() > 0);
}

#[tokio::test]
async fn a_stopped_call_leaves_nothing_behind() {
    let fixture = Fixture::new();
    fixture.put("file", "one\n");
    for (name, arguments) in [
        ("edit", json!({ "path": "file", "old": "one", "new": "two" })),
        ("write", json!({ "path": "new", "content": "x" })),
        ("grep", json!({ "pattern": "one" })),
        ("glob", json!({ "pattern": "*" })),
        ("read", json!({ "path": "file" })),
    ] {
        let invocation = fixture.invocation(1, &arguments);
        invocation.cancel.cancel();
        let result = fixture.call(name, invocation).await;
        assert!(matches!(result, Err(ToolError::Cancelled)), "{name}: {result:?}");
    }
    assert_eq!((fixture.names(), fixture.text("file")), (vec!["file".to_owned()], "one\n".to_owned()));
}
