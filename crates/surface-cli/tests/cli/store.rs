//! `store copy` and `nodes`: between data directories, and what is refused. Databases are in the tests of their store.

use meerkat_errors::ErrorCode::{ConfigInvalid, InvalidRequest, StoreFailed, StoreLocked};
use serde_json::json;

use crate::drive::terminal::cli;

/// Password in every address.
const PASSWORD: &str = "s3cret-and-long";

#[test]
fn sessions_are_copied_once_and_nothing_else_is_done() {
    let dir = cli(&[]).dir;
    let ours = |args: &[&str]| cli(args).in_dir(&dir);
    std::fs::create_dir(dir.path().join("site")).unwrap();
    let ran = ours(&["run", "@say Hello.", "--json", "--data-dir", "one", "--workspace", "site"]).run().json();
    let copied = ours(&["store", "copy", "./one", "./two", "--json"]).run().json();
    assert_eq!((&copied["sessions"], &copied["copied"]), (&json!(1), &json!(1)), "{copied}");
    let view = ours(&["sessions", "show", "last", "--json", "--data-dir", "two"]).run().json();
    // No bundle would keep the folder.
    let site = dir.path().join("site").canonicalize().unwrap();
    assert_eq!((&view["session_id"], &view["workspace"]), (&ran["session_id"], &json!(site)));
    let again = ours(&["store", "copy", "./one", "./two"]).run();
    assert!(again.code == 0 && again.out.contains("Nothing to copy: 1 session is there"), "{}", again.out);
    assert_eq!(ours(&["resume", "last", "@say More.", "--data-dir", "two"]).run().code, 0);
    let id = ran["session_id"].as_str().unwrap();
    ours(&["store", "copy", "./one", "./two"]).run().refused(InvalidRequest, id);
}

#[test]
fn ends_that_are_none_are_refused_and_nothing_is_made() {
    let dir = cli(&[]).dir;
    let ours = |args: &[&str]| {
        let url = format!("postgres://u:{PASSWORD}@127.0.0.1:1/d");
        cli(args).in_dir(&dir).env("GONE", &url).env("ODD", PASSWORD)
    };
    ours(&["run", "@say Hello.", "--data-dir", "one"]).run();
    for (from, to, code, says) in [
        ("./none", "./two", InvalidRequest, "no data directory"),
        ("./one", "./one", InvalidRequest, "the folder that FROM names"),
        ("./one", "UNSET", InvalidRequest, "the variable UNSET holds no address"),
        ("ODD", "./two", InvalidRequest, "the variable ODD holds no address"),
        ("./one", "GONE", StoreFailed, "correct the address in TO"),
        ("GONE", "./two", StoreFailed, "correct the address in FROM"),
        ("./one", &format!("mysql://u:{PASSWORD}@h/d"), ConfigInvalid, "TO: it must begin with postgres://"),
        ("./one", &format!("postgres://u:{PASSWORD}@h:x/d"), ConfigInvalid, "TO: it is not a URL"),
    ] {
        let copy = ["store", "copy", from, to];
        ours(&copy).run().refused(code, says);
        let ran = ours(&[&copy[..], &["--json", "-vvv"]].concat()).run();
        assert_eq!((ran.code, &ran.json()["code"]), (code.exit_code(), &json!(code.as_str())), "{}", ran.err);
        assert!(!format!("{}{}", ran.out, ran.err).contains(PASSWORD), "{}{}", ran.out, ran.err);
    }
    assert!(!dir.path().join("two").exists());
}

#[test]
fn the_owner_of_a_data_directory_is_its_node() {
    let dir = cli(&[]).dir;
    let ours = |args: &[&str]| cli(args).in_dir(&dir);
    assert_eq!(ours(&["store", "nodes", "--json", "--data-dir", "one"]).run().json()["items"], json!([]));
    assert!(!dir.path().join("one").exists());
    let none = ours(&["store", "nodes", "--data-dir", "one"]).run();
    assert!(none.err.contains("No database is configured (store.url)"), "{}", none.err);
    let mut talk = ours(&["chat", "--json", "--data-dir", "one"]).talk();
    talk.next();
    let nodes = ours(&["store", "nodes", "--json", "--data-dir", "one"]).run().json();
    let node = format!("process {}", std::process::id());
    assert_eq!((&nodes["items"][0]["node"], nodes["items"].as_array().unwrap().len()), (&json!(node), 1), "{nodes}");
    ours(&["store", "copy", "./one", "./two"]).run().refused(StoreLocked, "");
    assert_eq!(talk.end().0.code, 0);
}
