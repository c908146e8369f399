//! Processes: nothing of a server survives.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use futures::FutureExt as _;
use meerkat_service::{
    clock::{Clock, SystemClock},
    tool::{ToolScope, ToolSource},
};
use meerkat_tools::servers::{ServersOptions, servers};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::{Pid, Signal, kill_process},
};
use serde_json::json;

use crate::{
    server::{MARK, noted},
    support::{Moved, Told, call, config, names, pool, runtime, session, until},
};

crate::tests!(
    nothing_survives_a_killed_program,
    nothing_survives_an_orderly_end,
    fifty_starts_leave_nothing,
    a_server_inherits_no_descriptor,
    no_turn_begins_beside_the_server_of_a_killed_owner,
    a_server_whose_owner_is_killed_while_it_starts_does_not_start,
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

/// Owns the folder, calls a server, says so, and waits to be killed.
pub(crate) fn parent(folder: &Path, manner: &str) {
    runtime().block_on(async {
        let pool = pool(config(folder, manner, json!({ "env": { "TESTED": folder } })));
        pool.own(folder.join("servers.lock"));
        call(&pool, "echo", json!({})).await.text();
        println!("ready");
        std::future::pending::<()>().await;
    });
}

/// Starts an owner of the folder, which has called its server.
fn owner(folder: &Path, manner: &str) -> Child {
    let mut owner = Command::new(std::env::current_exe().unwrap());
    let mut owner = owner.arg(MARK).arg(folder).args(["parent", manner]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    owner
}

/// The call that a killed owner's server made went on beside the next owner's turn.
async fn no_turn_begins_beside_the_server_of_a_killed_owner() {
    let folder = tempfile::tempdir().unwrap();
    mknodat(CWD, folder.path().join("end"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut former = owner(folder.path(), "lingering");
    let server = fs::read_to_string(folder.path().join("starts")).unwrap().trim().to_owned();
    // Its supervisor is killed too: what it started holds the lock as long as it lives.
    let stat = fs::read_to_string(format!("/proc/{server}/stat")).unwrap();
    let supervisor: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(1).unwrap().parse().unwrap();
    former.kill().unwrap();
    former.wait().unwrap();
    kill_process(Pid::from_raw(supervisor).unwrap(), Signal::KILL).unwrap();
    until("the server's input is closed", || noted(folder.path(), "closed") == 1).await;
    // It closes the server's input and the lock one after the other.
    let stat = || fs::read_to_string(format!("/proc/{supervisor}/stat"));
    let has_ended = |stat: &str| stat.rsplit_once(") ").unwrap().1.starts_with(['X', 'Z']);
    until("the supervisor has ended", || stat().ok().is_none_or(|it| has_ended(&it))).await;

    let scope = ToolScope { session_id: session(), workspace: None };
    let (clock, told) = (Moved::new(), Told::default());
    let next = |clock: Arc<dyn Clock>, heard: Told| {
        let tell = Arc::new(move |line: &str| heard.lock().unwrap().push(line.to_owned()));
        let next = servers(ServersOptions { clock, tell, ..ServersOptions::default() }).unwrap();
        next.own(folder.path().join("servers.lock"));
        next
    };
    // The one that waits on tells it again after ten more seconds.
    let (next, impatient) = (next(Arc::new(SystemClock::new()), Told::default()), next(clock.clone(), told.clone()));
    let (mut begun, mut given_up) = (ToolSource::ready(&*next, &scope), ToolSource::ready(&*impatient, &scope));
    assert!((&mut begun).now_or_never().is_none() && (&mut given_up).now_or_never().is_none());
    clock.pass(10_000);
    given_up.await;
    let line = told.lock().unwrap().join("\n");
    assert!(line.contains("may go on beside this turn") && line.contains(&format!("`kill -9 {server}`")), "{line}");

    fs::write(folder.path().join("end"), "now").unwrap();
    begun.await;
    assert_eq!((noted(folder.path(), "ended"), told.lock().unwrap().len()), (1, 1));
    // The next turn waits for nothing.
    assert!(ToolSource::ready(&*next, &scope).now_or_never().is_some());
}

/// It has no lock yet, so the next owner does not wait for it.
async fn a_server_whose_owner_is_killed_while_it_starts_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let lock = fs::File::create(folder.path().join("servers.lock")).unwrap();
    lock.lock().unwrap();
    let mut supervisor = Command::new(std::env::current_exe().unwrap());
    supervisor.arg("__meerkat-serve").arg(folder.path().join("servers.lock"));
    supervisor.arg(std::env::current_exe().unwrap()).arg(MARK).arg(folder.path());
    let mut supervisor = supervisor.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Its owner's end of the pipe.
    drop(supervisor.stdin.take());
    lock.unlock().unwrap();
    let ended = supervisor.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), said.as_str()), (Some(127), "the process that wanted it has ended\n"));
    assert_eq!(noted(folder.path(), "starts"), 0);
}

async fn nothing_survives_a_killed_program() {
    let folder = tempfile::tempdir().unwrap();
    let mut parent = owner(folder.path(), "crowded");
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
