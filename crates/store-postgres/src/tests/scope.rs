//! A label that parts memory counts at every node as soon as one has changed it.

use std::{path::Path, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use meerkat_service::{
    AgentBuildConfig, SessionId, SessionService,
    clock::{Clock, SystemClock, Timestamp, World},
    memory::MemoryOptions,
    service::{
        CompactJournal, CreateSession, DeleteSession, ExportSession, ForkSession, ImportBundle, ReadHistory,
        SearchMemory, SearchScope, StartTurn, UpdateSession,
    },
};
use meerkat_testkit::until_asked;

use super::{cluster::Database, database};
use crate::open;

async fn start(database: &Database, name: &str, folder: &Path) -> Arc<dyn SessionService> {
    start_in(World::system(), database, name, folder).await
}

async fn start_in(world: World, database: &Database, name: &str, folder: &Path) -> Arc<dyn SessionService> {
    let stores = open(database.options(name)).await.unwrap();
    let memory = MemoryOptions::default();
    let build = AgentBuildConfig::new().world(world).stores(stores).memory(Some(folder.to_owned()), memory);
    let service = build.build().unwrap().service().clone();
    service.ready().await.unwrap();
    service
}

fn of(user: &str) -> CreateSession {
    CreateSession { labels: [("user".to_owned(), user.to_owned())].into(), ..CreateSession::default() }
}

/// Returns what the tool gives the model of a new session of this user.
async fn recalled(node: &Arc<dyn SessionService>, user: &str) -> String {
    let session_id = node.create_session(of(user)).await.unwrap().session_id;
    let prompt = r#"@call search_project_history {"query":"password"} @say Done."#;
    node.start_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    let items = node.history(ReadHistory::new(session_id)).await.unwrap().items;
    let result = items.iter().find(|item| item.role == "tool_results").unwrap();
    serde_json::to_string(&result.message).unwrap()
}

/// A search for the password under this user.
fn said(user: &str) -> SearchMemory {
    SearchMemory { query: "persimmon".to_owned(), labels: of(user).labels, ..SearchMemory::default() }
}

/// Waits until a node's memory has the password under this user.
async fn has(node: &Arc<dyn SessionService>, user: &str) {
    finds(node, said(user)).await;
}

async fn finds(node: &Arc<dyn SessionService>, request: SearchMemory) {
    let is_found = async || !node.search_memory(request.clone()).await.unwrap().items.is_empty();
    until_asked("memory takes in what was said", is_found).await;
}

async fn set_user(node: &Arc<dyn SessionService>, session_id: SessionId, user: &str) {
    let request = UpdateSession { session_id, title: None, labels: Some(of(user).labels) };
    node.update(request).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_label_that_one_node_changes_parts_memory_at_the_other() {
    let database = database!();
    let folders = [meerkat_testkit::folder(), meerkat_testkit::folder()];
    let (a, b) = tokio::join!(start(&database, "a", folders[0].path()), start(&database, "b", folders[1].path()));
    let session_id = a.create_session(of("ana")).await.unwrap().session_id;
    a.start_turn(StartTurn::new(session_id, "@say The password is persimmon.")).await.unwrap();
    for node in [&a, &b] {
        has(node, "ana").await;
        assert!(recalled(node, "ana").await.contains("persimmon"));
        assert!(!recalled(node, "bob").await.contains("persimmon"));
    }
    // Copies are of the user that their session is of, and no others see them.
    let fork = a.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
    let data = a.export_session(ExportSession::new(session_id)).await.unwrap().data;
    let (upload, offset) = (None, 0);
    let whole = ImportBundle { upload, offset, data, is_last: true, new_ids: true, keep_scope: true };
    let copy = b.import_bundle(whole).await.unwrap().sessions[0].session_id;
    for node in [&a, &b] {
        for id in [fork, copy] {
            let own = SearchMemory { scope: SearchScope::Session, session_id: Some(id), ..said("ana") };
            finds(node, own).await;
        }
        assert!(recalled(node, "ana").await.contains("persimmon"));
        assert!(!recalled(node, "bob").await.contains("persimmon"));
        assert!(!recalled(node, "carla").await.contains("persimmon"));
    }
    for id in [fork, copy] {
        a.delete(DeleteSession { session_id: id, force: false }).await.unwrap();
    }
    set_user(&a, session_id, "bob").await;
    for node in [&b, &a] {
        assert!(!recalled(node, "ana").await.contains("persimmon"), "it is no longer hers");
        has(node, "bob").await;
        assert!(recalled(node, "bob").await.contains("persimmon"));
    }
    for node in [a, b] {
        node.shut_down(1000).await;
    }
}

/// A clock by which no pause ends, so that a node looks for the others only when it is asked.
struct Endless(SystemClock);

impl Clock for Endless {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
}

/// Broken once: what another node wrote between the first scan of a node's memory and its first look for changes was
/// never found there.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_write_before_the_first_look_is_found() {
    let database = database!();
    let folders = [meerkat_testkit::folder(), meerkat_testkit::folder()];
    let a = start(&database, "a", folders[0].path()).await;
    let world = World { clock: Arc::new(Endless(SystemClock::new())), ..World::system() };
    let b = start_in(world, &database, "b", folders[1].path()).await;
    // A session that memory waits for: its scan is over then.
    let own = b.create_session(of("bob")).await.unwrap().session_id;
    b.start_turn(StartTurn::new(own, "@say Mine.")).await.unwrap();
    b.compact_journal(CompactJournal::new(own)).await.unwrap();
    let session_id = a.create_session(of("ana")).await.unwrap().session_id;
    a.start_turn(StartTurn::new(session_id, "@say The password is persimmon.")).await.unwrap();
    a.create_session(of("ana")).await.unwrap();
    let request = SearchMemory { query: "persimmon".to_owned(), ..SearchMemory::default() };
    let found = tokio::time::timeout(Duration::from_secs(60), b.search_memory(request)).await.unwrap().unwrap();
    assert!(found.items.iter().any(|hit| hit.session_id == session_id), "{found:?}");
    tokio::join!(a.shut_down(1000), b.shut_down(1000));
}
