//! Processes: nothing of a server survives.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use meerkat_service::tool::ToolSource as _;
use serde_json::json;

use crate::{
    server::{MARK, noted},
    support::{call, config, names, pool, runtime, until},
};

crate::tests!(
    nothing_survives_a_killed_program,
    nothing_survives_an_orderly_end,
    fifty_starts_leave_nothing,
    a_server_inherits_no_descriptor,
);

/// Starts and stops of the test of leaks.
const STARTS: usize = 50;
/// Those at one time.
const AT_ONCE: usize = 10;

/// Lists the processes that have the folder in their environment, but not those that have ended and are not reaped.
pub(crate) fn of(folder: &Path) -> Vec<i32> {
    let wanted = format!("TESTED={}", folder.display());
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let has_it = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes())
    };
    pids.filter(has_it).collect()
}

/// Calls a crowded server, says so, and waits to be killed.
pub(crate) fn parent(folder: &Path) {
    runtime().block_on(async {
        let pool = pool(config(folder, "crowded", json!({ "env": { "TESTED": folder } })));
        call(&pool, "echo", json!({})).await.text();
        println!("ready");
        std::future::pending::<()>().await;
    });
}

async fn nothing_survives_a_killed_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap());
    let mut parent = parent.args([MARK]).arg(folder.path()).arg("parent").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // The supervisor, the server, its shell with a child, and the one that left it with a child of its own.
    until("all are there", || of(folder.path()).len() >= 6).await;
    parent.kill().unwrap();
    parent.wait().unwrap();
    // None of them would end by itself.
    until("none is left", || of(folder.path()).is_empty()).await;
}

/// The program that starts us may have left us anything.
async fn a_server_inherits_no_descriptor() {
    let folder = tempfile::tempdir().unwrap();
    let ours = fs::File::create(folder.path().join("ours")).unwrap();
    let _inherited = rustix::io::dup(&ours).unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    call(&pool, "echo", json!({})).await.text();
    let pid = fs::read_to_string(folder.path().join("starts")).unwrap();
    let open = fs::read_dir(format!("/proc/{}/fd", pid.trim())).unwrap();
    let open: Vec<_> = open.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
    assert!(open.len() >= 3 && !open.contains(&folder.path().join("ours")), "{open:?}");
    pool.shut_down().await;
}

async fn nothing_survives_an_orderly_end() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "crowded", json!({ "env": { "TESTED": folder.path() } })));
    call(&pool, "echo", json!({})).await.text();
    until("all are there", || of(folder.path()).len() >= 6).await;
    pool.shut_down().await;
    assert_eq!(of(folder.path()), Vec::<i32>::new());
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

async fn fifty_starts_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let one = || async {
        let pool = pool(config(folder.path(), "", json!({ "env": { "TESTED": folder.path() } })));
        assert_eq!(names(&pool).await.len(), 12);
        pool.shut_down().await;
    };
    one().await;
    let before = descriptors();
    for _ in 0..STARTS / AT_ONCE {
        futures::future::join_all((0..AT_ONCE).map(|_| one())).await;
    }
    assert_eq!(noted(folder.path(), "starts"), STARTS + 1);
    assert_eq!(of(folder.path()), Vec::<i32>::new());
    // Other tests run beside this one.
    until("its descriptors are closed", || descriptors() < before + AT_ONCE).await;
    let is_mine = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&std::process::id().to_string())
    };
    let pids = || fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    until("no zombie is left", || !pids().any(is_mine)).await;
}
