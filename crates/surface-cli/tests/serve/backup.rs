//! A server's sessions come back from a backup, as docs/deploy.md says to make and to restore one.

use std::process::Command;

use meerkat_testkit::until;
use tempfile::TempDir;

use crate::drive::{meerkat, ran, server::Server, signal};

const PROMPT: &str = r#"{"prompt":"@say Kept."}"#;

/// Starts a server on a data directory, in a folder of its own.
fn serve(dir: &TempDir, data: &str) -> Server {
    let data = dir.path().join(data).display().to_string();
    Server::start(&[("MEERKAT_DATA_DIR", &data), ("MEERKAT_PROJECTION__ENABLED", "false")])
}

fn events(server: &Server, session: &str) -> String {
    let page = server.send_with_token("GET", &format!("/v1/sessions/{session}/events"), &[], "");
    assert_eq!((page.status, page.body.contains("Kept.")), (200, true), "{}", page.body);
    page.body
}

#[track_caller]
fn run(dir: &TempDir, args: &[&str]) {
    let ran = ran(meerkat(dir, args).env("MEERKAT_PROJECTION__ENABLED", "false"));
    assert_eq!(ran.code, 0, "{}", ran.err);
}

fn stop(mut server: Server) {
    signal(&server.child, "TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_bundle_of_a_running_server_and_a_copy_of_a_stopped_one_are_backups() {
    let dir = meerkat_testkit::folder();
    let server = serve(&dir, "data");
    let session = server.session();
    let turn = server.send_with_token("POST", &format!("/v1/sessions/{session}/turns"), &[], PROMPT);
    assert_eq!(turn.status, 200, "{}", turn.body);
    let kept = events(&server, &session);

    run(&dir, &["sessions", "export", "--all", "-o", "backup.tar", "--data-dir", "data"]);
    stop(server);
    let copy = "cp -a data copy && rm -f copy/memory.redb copy/socket && rm -r data";
    assert!(Command::new("sh").args(["-c", copy]).current_dir(&dir).status().unwrap().success());

    run(&dir, &["sessions", "import", "backup.tar", "--data-dir", "data"]);
    for data in ["copy", "data"] {
        let server = serve(&dir, data);
        assert_eq!(events(&server, &session), kept, "{data}");
        // Memory, whose files are not in the copy, is built when it is first needed.
        until("memory has it", || {
            let found = server.send_with_token("GET", "/v1/memory/search?query=kept&role=assistant", &[], "");
            found.json()["items"][0]["text"] == "Kept."
        });
        assert!(dir.path().join(data).join("memory.redb").exists(), "{data}");
        stop(server);
    }
}
