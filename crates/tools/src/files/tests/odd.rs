//! Workspaces and files that are not as one expects: each call ends soon, with a reason that helps.

use std::os::unix::ffi::OsStrExt as _;

use super::*;

#[tokio::test]
async fn a_workspace_that_is_missing_or_has_become_a_link_is_left_alone() {
    let fixture = Fixture::new();
    fixture.put("file", "text\n");
    let (root, moved) = (fixture.root(), fixture.root().with_file_name("moved"));
    fs::rename(&root, &moved).unwrap();
    let calls = [
        ("read", json!({ "path": "file" })),
        ("grep", json!({ "pattern": "t" })),
        ("glob", json!({ "pattern": "*" })),
        ("edit", json!({ "path": "file", "old": "t", "new": "x", "all": true })),
        ("write", json!({ "path": "new", "content": "" })),
    ];
    for words in ["No such file or directory", "has become a link"] {
        for (name, arguments) in &calls {
            // Through a link `root` would lead to the link's target.
            let invocation = Invocation { workspace: Some(root.clone()), ..fixture.invocation(1, arguments) };
            let error = fixture.call(name, invocation).await.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("workspace"), "{name}: {error}");
        }
        symlink(&moved, &root).unwrap_or(());
    }
    assert_eq!(fs::read_to_string(moved.join("file")).unwrap(), "text\n");
    assert!(!moved.join("new").exists());
}

#[tokio::test]
async fn a_file_of_a_gigabyte_costs_nothing() {
    let fixture = Fixture::new();
    fs::File::create(fixture.root().join("large")).unwrap().set_len(1 << 30).unwrap();
    fixture.check_refused("read", json!({ "path": "large" }), "a binary file of 1073741824 bytes").await;
    let words = "has 1073741824 bytes; files of at most 16777216 can be changed";
    fixture.check_refused("edit", json!({ "path": "large", "old": "a", "new": "b" }), words).await;
    fixture.check_refused("write", json!({ "path": "large", "content": "" }), words).await;
    let found = fixture.run("grep", json!({ "pattern": "." })).await.unwrap();
    assert!(found.starts_with("[No match in 1 files."), "{found}");
}

/// A path of a call is UTF-8, so such a file cannot be named; the name that is shown must not send a model in a circle.
#[tokio::test]
async fn a_name_that_is_no_text_is_shown_and_its_file_is_found() {
    let fixture = Fixture::new();
    for name in [&b"caf\xe9"[..], b"line\nbreak"] {
        fs::write(fixture.root().join(std::ffi::OsStr::from_bytes(name)), "needle\n").unwrap();
    }
    let (shown, other) = ("caf\u{fffd}", "line\u{fffd}break");
    assert_eq!(
        fixture.run("glob", json!({ "pattern": "*" })).await.unwrap(),
        format!("{shown}\n{other}\n[2 files.]\n")
    );
    let found = fixture.run("grep", json!({ "pattern": "needle" })).await.unwrap();
    assert!(found.starts_with(&format!("{shown}:1:needle\n")), "{found}");
    for name in [shown, other] {
        for (tool, arguments) in
            [("read", json!({ "path": name })), ("edit", json!({ "path": name, "old": "needle", "new": "x" }))]
        {
            let error = fixture.run(tool, arguments).await.unwrap_err().to_string();
            assert!(error.contains("characters that are not shown") && error.contains("shell"), "{error}");
        }
    }
}

#[tokio::test]
async fn a_pattern_that_would_backtrack_is_searched_in_one_pass() {
    let fixture = Fixture::new();
    fixture.put("file", format!("{}!\n", "x".repeat(1_000_000)));
    for pattern in ["(x+x+)+y", "^(x|x)*$", "(.*)(.*)(.*)(.*)(.*)[^x!]$"] {
        let found = tokio::time::timeout(
            std::time::Duration::from_secs(60),
            fixture.run("grep", json!({ "pattern": pattern })),
        );
        assert!(
            found.await.expect("a search in linear time").unwrap().starts_with("[No match in 1 files."),
            "{pattern}"
        );
    }
}
