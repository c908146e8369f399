//! Searches in the workspace.

use super::*;

#[tokio::test]
async fn grep_finds_lines_of_text_files_that_are_not_ignored() {
    let fixture = Fixture::new();
    fixture.put("a.rs", "fn needle() {}\r\nother\nneedle 2\n");
    fixture.put("src/b.rs", "needle\n");
    fixture.put("src/c.txt", "needle\n");
    fixture.put("src/binary", b"needle\n\0");
    fixture.put(".hidden/d.rs", "needle\n");
    fixture.put(".gitignore", "/target\n*.gen\n!kept.gen\n");
    fixture.put("src/.ignore", "private.rs\n");
    fixture.put("target/e.rs", "needle\n");
    fixture.put("src/f.gen", "needle\n");
    fixture.put("src/kept.gen", "needle\n");
    fixture.put("src/private.rs", "needle\n");
    fixture.put("src/target", "needle\n");
    fixture.put("line\nbreak", "needle\n");
    let grep = async |arguments: Value| fixture.run("grep", arguments).await.unwrap();
    assert_eq!(
        grep(json!({ "pattern": "needle" })).await,
        "a.rs:1:fn needle() {}\na.rs:3:needle 2\nline\u{fffd}break:1:needle\nsrc/b.rs:1:needle\nsrc/c.txt:1:needle\n\
         src/kept.gen:1:needle\nsrc/target:1:needle\n[7 matching lines in 6 files.]\n"
    );
    let one = "src/b.rs:1:needle\n[1 matching lines in 1 files.]\n";
    assert_eq!(grep(json!({ "pattern": "^NEEDLE$(?i)|^needle$", "path": "src", "glob": "*.rs" })).await, one);
    assert_eq!(grep(json!({ "pattern": "needle", "glob": "src/*.rs" })).await, one);
    let root = fixture.root();
    assert_eq!(grep(json!({ "pattern": "needle", "path": root.join("src/b.rs") })).await, one);
    // Named, an ignored or hidden folder or file is searched.
    for path in ["target/e.rs", "target", "src/private.rs", "src/f.gen", ".hidden", ".hidden/d.rs"] {
        let found = grep(json!({ "pattern": "needle", "path": path })).await;
        assert!(found.ends_with("[1 matching lines in 1 files.]\n"), "{path}: {found}");
    }
    let nothing = "[No match in 0 files. Hidden, ignored and binary files are not searched.]\n";
    assert_eq!(grep(json!({ "pattern": "needle", "glob": "*.md" })).await, nothing);

    let bad = fixture.run("grep", json!({ "pattern": "a(" })).await;
    assert!(matches!(&bad, Err(ToolError::Arguments(why)) if why.contains("unclosed group")), "{bad:?}");
    let huge = fixture.run("grep", json!({ "pattern": "((a{1000}){1000}){1000}" })).await;
    assert!(matches!(&huge, Err(ToolError::Arguments(why)) if why.contains("size")), "{huge:?}");
    // The second is a glob, but no expression that can be built.
    for glob in ["{a".to_owned(), "{".repeat(300) + "a" + &"}".repeat(300)] {
        for (name, arguments) in
            [("grep", json!({ "pattern": "a", "glob": glob })), ("glob", json!({ "pattern": glob }))]
        {
            let bad = fixture.run(name, arguments).await;
            assert!(
                matches!(&bad, Err(ToolError::Arguments(why)) if why.contains("is not a valid glob")),
                "{name}: {bad:?}"
            );
        }
    }
    let missing = fixture.run("grep", json!({ "pattern": "a", "path": "scr" })).await.unwrap_err();
    assert!(missing.to_string().contains("does not exist"), "{missing}");
}

#[tokio::test]
async fn rules_of_the_repository_around_the_workspace_hold() {
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.home.path().join(".git/info")).unwrap();
    fs::write(fixture.home.path().join(".git/info/exclude"), "excluded\n").unwrap();
    fs::write(fixture.home.path().join(".gitignore"), "/workspace/generated\n").unwrap();
    for path in ["generated", "excluded", "plain", "sub/plain", "sub/excluded"] {
        fixture.put(path, "x\n");
    }
    assert_eq!(fixture.run("glob", json!({ "pattern": "**" })).await.unwrap(), "plain\nsub/plain\n[2 files.]\n");
    let found = fixture.run("grep", json!({ "pattern": "x", "path": "sub" })).await.unwrap();
    assert_eq!(found, "sub/plain:1:x\n[1 matching lines in 1 files.]\n");
    // Without a repository, what lies around the workspace counts for nothing.
    fs::rename(fixture.home.path().join(".git"), fixture.home.path().join("git")).unwrap();
    assert!(fixture.run("glob", json!({ "pattern": "**" })).await.unwrap().ends_with("[5 files.]\n"));
}

#[tokio::test]
async fn rules_that_are_no_plain_files_do_not_stop_a_search() {
    let fixture = Fixture::new();
    fixture.put("a/file", "needle\n");
    fixture.put("b/file", "needle\n");
    fixture.put("c/file", "needle\n");
    fixture.put("c/.gitignore", format!("file\n{}", "#\n".repeat(200_000)));
    symlink("/dev/zero", fixture.root().join("a/.gitignore")).unwrap();
    let pipe = fixture.root().join("b/.ignore");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let found = fixture.run("grep", json!({ "pattern": "needle" })).await.unwrap();
    assert!(found.ends_with("[3 matching lines in 3 files.]\n"), "{found}");
}

#[tokio::test]
async fn grep_shows_the_first_matches_and_counts_all() {
    let fixture = Fixture::new();
    for n in 0..300 {
        fixture.put(&format!("many/{n:03}"), "needle\nneedle\n");
    }
    fixture.put("wide", format!("{}needle\n", "x".repeat(5000)));
    let found = fixture.run("grep", json!({ "pattern": "needle", "path": "many" })).await.unwrap();
    let first: String = (0..100).map(|n| format!("many/{n:03}:1:needle\nmany/{n:03}:2:needle\n")).collect();
    let rest = "[200 of 600 matching lines in 300 files are shown, in the order of their paths. For fewer, give a longer \
                pattern, a path or a glob.]\n";
    assert_eq!(found, first + rest);
    let wide = fixture.run("grep", json!({ "pattern": "needle", "path": "wide" })).await.unwrap();
    assert!(wide.starts_with("wide:1:[... 4706 bytes left out ...]xx") && wide.len() < 500, "{wide}");
    let fixture = Fixture::new();
    fixture.put("many", format!("{}\n", "needle ".repeat(40)).repeat(150));
    let found = fixture.run("grep", json!({ "pattern": "needle" })).await.unwrap();
    assert!(found.len() < 30 * 1024 + 300 && found.contains(" of 150 matching lines"), "{found}");
}

#[tokio::test]
async fn glob_lists_paths_in_their_order() {
    let fixture = Fixture::new();
    for path in ["b.rs", "a/z.rs", "a/b/c.ts", "a/b/d.tsx", ".hidden.rs", "skipped/x.rs"] {
        fixture.put(path, "");
    }
    fixture.put(".gitignore", "skipped/\n");
    symlink("../other/secret", fixture.root().join("link.rs")).unwrap();
    let glob = async |pattern: &str| fixture.run("glob", json!({ "pattern": pattern })).await.unwrap();
    assert_eq!(glob("*.rs").await, "a/z.rs\nb.rs\n[2 files.]\n");
    assert_eq!(glob("./a/*.rs").await, "a/z.rs\n[1 files.]\n");
    assert_eq!(glob("a/**/*.{ts,tsx}").await, "a/b/c.ts\na/b/d.tsx\n[2 files.]\n");
    let absolute = fixture.root().join("a/*.rs");
    assert_eq!(glob(absolute.to_str().unwrap()).await, "a/z.rs\n[1 files.]\n");
    assert_eq!(glob("../**").await, "[No file matches. Hidden and ignored files are not searched.]\n");
    for n in 0..1200 {
        fixture.put(&format!("many/{n:04}"), "");
    }
    let many = glob("many/*").await;
    assert_eq!(many.lines().count(), 1001);
    assert!(many.starts_with("many/0000\nmany/0001\n"));
    assert!(many.ends_with("many/0999\n[The first 1000 of 1200 files; for fewer, give a longer glob.]\n"));
}
