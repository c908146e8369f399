//! What one node is asked to forget is forgotten at every node.

use std::{collections::BTreeSet, path::Path, sync::Arc};

use meerkat_errors::ErrorCode;
use meerkat_service::{
    AgentBuildConfig, SessionError, SessionId, SessionService,
    copy::copy,
    memory::{MemoryOptions, open_memory},
    service::{CreateSession, ForgetMemory, ForkSession, SearchMemory, StartTurn},
    store::open_stores,
};
use meerkat_testkit::{until, until_asked, until_got};
use meerkat_words::answers::SessionState;
use tokio::task::JoinSet;

use super::{
    append,
    cluster::Database,
    copy::process,
    database, id, node, node_with,
    proxy::{Lose, Proxy},
};
use crate::{PostgresOptions, open};

/// Starts a node with its memory in a folder.
async fn start(options: PostgresOptions, folder: &Path) -> Arc<dyn SessionService> {
    let memory = Some(folder.to_owned());
    let build = AgentBuildConfig::new().stores(open(options).await.unwrap()).memory(memory, MemoryOptions::default());
    let service = build.build().unwrap().service().clone();
    service.ready().await.unwrap();
    service
}

/// Two nodes with their folders. One session was told of a bassoon, which is the one to forget, another of a harbour.
async fn pair(database: &Database) -> ([(Arc<dyn SessionService>, tempfile::TempDir); 2], SessionId) {
    let folders = [meerkat_testkit::folder(), meerkat_testkit::folder()];
    let (a, b) = (start(database.options("a"), folders[0].path()), start(database.options("b"), folders[1].path()));
    let (a, b) = tokio::join!(a, b);
    let mut made = Vec::new();
    for text in ["the bassoon is in the attic", "the harbour is closed"] {
        made.push(a.create_session(CreateSession::default()).await.unwrap().session_id);
        a.start_turn(StartTurn::new(*made.last().unwrap(), format!("@say {text}"))).await.unwrap();
    }
    let [of_a, of_b] = folders;
    ([(a, of_a), (b, of_b)], made[0])
}

async fn search(node: &Arc<dyn SessionService>, word: &str) -> Result<usize, SessionError> {
    let request = SearchMemory { query: word.to_owned(), ..SearchMemory::default() };
    Ok(node.search_memory(request).await?.items.len())
}

/// Searches until something is found: a search waits only a while for what is not taken in.
async fn finds(node: &Arc<dyn SessionService>, word: &str) {
    until_asked(word, async || search(node, word).await.unwrap() > 0).await;
}

fn all_of(session_id: SessionId) -> ForgetMemory {
    ForgetMemory { session_id: Some(session_id), ..ForgetMemory::default() }
}

/// Forgets a session. What is not taken in after half a minute is waited for again.
async fn forget(node: &Arc<dyn SessionService>, session_id: SessionId) -> Result<u64, ErrorCode> {
    until_got("memory has caught up", async || match node.forget_memory(all_of(session_id)).await {
        Err(SessionError::MemoryUnavailable { .. }) => None,
        forgotten => Some(forgotten.map(|it| it.forgotten).map_err(|error| error.code())),
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_node_forgets_no_node_finds_again() {
    let database = database!();
    let ([(a, _of_a), (b, _of_b)], session_id) = pair(&database).await;
    for node in [&a, &b] {
        finds(node, "bassoon").await;
    }
    assert!(forget(&a, session_id).await.unwrap() > 0);
    for node in [&b, &a] {
        assert_eq!(search(node, "bassoon").await.unwrap(), 0);
        finds(node, "harbour").await;
    }
    // A node without its data directory makes its memory again, and so does one that is new.
    b.shut_down(1000).await;
    drop(b);
    for name in ["b", "c"] {
        let folder = meerkat_testkit::folder();
        let node = start(database.options(name), folder.path()).await;
        finds(&node, "harbour").await;
        assert_eq!(search(&node, "bassoon").await.unwrap(), 0, "{name}");
        let fork = node.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
        node.start_turn(StartTurn::new(fork, "@say the tulips bloom")).await.unwrap();
        finds(&node, "tulips").await;
        assert_eq!(search(&node, "bassoon").await.unwrap(), 0, "{name}");
    }
}

/// Copies a store, with the memories of data directories.
fn copied(from: (Option<&Path>, Option<&Database>), to: (Option<&Path>, Option<&Database>)) {
    process(async {
        let memory = |folder: Option<&Path>| folder.map(|it| open_memory(Some(it), MemoryOptions::default()).unwrap());
        let stores = async |(folder, database): (Option<&Path>, Option<&Database>)| match (folder, database) {
            (Some(folder), _) => open_stores(folder).unwrap(),
            (None, database) => open(database.unwrap().options("copy")).await.unwrap(),
        };
        let memories = [memory(from.0), memory(to.0)];
        let (from, to) = (stores(from).await, stores(to).await);
        copy(&from, &to, memories.each_ref().map(Option::as_ref), &|_, _| {}).await.unwrap();
        for memory in memories.iter().flatten() {
            memory.close().await;
        }
    });
}

/// Serves a data directory with its memory.
async fn at_home(folder: &Path) -> Arc<dyn SessionService> {
    let memory = Some(folder.to_owned());
    let build = AgentBuildConfig::new().store(folder.to_owned()).memory(memory, MemoryOptions::default());
    build.build().unwrap().service().clone()
}

/// From a data directory into a database, into another directory, and into a third one: whoever reads the sessions there
/// does not find what was forgotten.
#[test]
fn what_is_forgotten_stays_so_wherever_a_store_is_copied() {
    let database = database!();
    let folders = [0; 4].map(|_| meerkat_testkit::folder());
    let [one, two, three, of_node] = folders.each_ref().map(tempfile::TempDir::path);
    process(async {
        let service = at_home(one).await;
        let mut made = Vec::new();
        for text in ["the bassoon is in the attic", "the harbour is closed"] {
            made.push(service.create_session(CreateSession::default()).await.unwrap().session_id);
            service.start_turn(StartTurn::new(*made.last().unwrap(), format!("@say {text}"))).await.unwrap();
        }
        finds(&service, "bassoon").await;
        forget(&service, made[0]).await.unwrap();
        service.shut_down(1000).await;
    });
    let forgot = async |service: Arc<dyn SessionService>| {
        finds(&service, "harbour").await;
        assert_eq!(search(&service, "bassoon").await.unwrap(), 0);
        service.shut_down(1000).await;
    };
    copied((Some(one), None), (None, Some(&database)));
    process(async { forgot(start(database.options("new"), of_node).await).await });
    copied((None, Some(&database)), (Some(two), None));
    process(async { forgot(at_home(two).await).await });
    copied((Some(two), None), (Some(three), None));
    process(async { forgot(at_home(three).await).await });
}

/// It is removed from the files of a node that nobody asks for anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_forgets_without_being_asked_and_tells_what_only_it_knows() {
    let database = database!();
    let ([(a, of_a), (b, of_b)], session_id) = pair(&database).await;
    for node in [&a, &b] {
        finds(node, "bassoon").await;
    }
    let log_bytes = async || {
        let (mut files, mut bytes) = (tokio::fs::read_dir(of_b.path().join("memory")).await.unwrap(), 0);
        while let Some(file) = files.next_entry().await.unwrap() {
            // One that is written again may have just left.
            bytes += file.metadata().await.map_or(0, |metadata| metadata.len());
        }
        bytes
    };
    let before = log_bytes().await;
    forget(&a, session_id).await.unwrap();
    until_asked("a node forgets without being asked", async || log_bytes().await != before).await;
    for node in [a, b] {
        node.shut_down(1000).await;
    }
    // As if a version had been asked that told nobody.
    database.psql("DELETE FROM forgotten");
    let a = start(database.options("a"), of_a.path()).await;
    finds(&a, "harbour").await;
    until("it tells what only it knows", || database.psql("SELECT count(*) FROM forgotten") != "0");
    let folder = meerkat_testkit::folder();
    let c = start(database.options("c"), folder.path()).await;
    finds(&c, "harbour").await;
    assert_eq!(search(&c, "bassoon").await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_forgotten_that_cannot_be_recorded_for_all() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let ([(a, _of_a), _b], session_id) = pair(&database).await;
    let folder = meerkat_testkit::folder();
    let c = start(database.options_by(proxy.url(), "c"), folder.path()).await;
    for node in [&a, &c] {
        finds(node, "bassoon").await;
    }
    database.psql("ALTER TABLE forgotten ADD CONSTRAINT nothing CHECK (false)");
    assert_eq!(forget(&a, session_id).await, Err(ErrorCode::StoreFailed));
    for node in [&a, &c] {
        finds(node, "bassoon").await;
    }
    proxy.lose(Lose::All);
    assert_eq!(forget(&c, session_id).await, Err(ErrorCode::StoreFailed));
    proxy.lose(Lose::Nothing);
    finds(&c, "bassoon").await;
    // Nobody finds anything who cannot know what others were asked to forget.
    database.psql("ALTER TABLE forgotten DROP CONSTRAINT nothing; ALTER TABLE forgotten RENAME TO away");
    assert_eq!(search(&c, "bassoon").await.map_err(|error| error.code()), Err(ErrorCode::StoreFailed));
    database.psql("ALTER TABLE away RENAME TO forgotten");
    finds(&c, "bassoon").await;
    assert!(forget(&a, session_id).await.is_ok());
    assert_eq!((search(&a, "bassoon").await.unwrap(), search(&c, "bassoon").await.unwrap()), (0, 0));
}

fn decided(n: u8, to_seq: u64) -> ForgetMemory {
    ForgetMemory { session_id: Some(id(n)), from_seq: Some(1), to_seq: Some(to_seq), ..ForgetMemory::default() }
}

/// A reader that has seen a place never misses one before it.
#[tokio::test(flavor = "multi_thread")]
async fn what_nodes_record_at_once_is_seen_in_order_and_once() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let mut writers = JoinSet::new();
    for n in 1..=40 {
        let store = if n % 2 == 0 { a.clone() } else { b.clone() };
        writers.spawn(
            async move { store.record_forgotten(&[decided(n, 2), decided(n, 3), decided(0, 1)]).await.unwrap() },
        );
    }
    let (mut seen, mut place) = (Vec::new(), 0);
    while let Some(done) = writers.join_next().await {
        done.unwrap();
        let more = a.forgotten(place).await.unwrap();
        place = more.last().map_or(place, |(last, _)| *last);
        seen.extend(more);
    }
    assert_eq!(seen, b.forgotten(0).await.unwrap());
    let places: Vec<u64> = seen.iter().map(|(place, _)| *place).collect();
    assert!(places.len() == 81 && places.is_sorted_by(|one, next| one < next), "{places:?}");
    let due: BTreeSet<String> =
        (1..=40).flat_map(|n| [decided(n, 2), decided(n, 3)]).chain([decided(0, 1)]).map(shown).collect();
    assert_eq!(seen.into_iter().map(|(_, request)| shown(request)).collect::<BTreeSet<String>>(), due);
    // A standby that lacks the last one takes over: the next one has a place of its own.
    database.psql("DELETE FROM forgotten WHERE place = (SELECT max(place) FROM forgotten)");
    a.record_forgotten(&[decided(41, 1)]).await.unwrap();
    let next = b.forgotten(place).await.unwrap();
    assert_eq!(next.into_iter().map(|(_, request)| shown(request)).collect::<Vec<_>>(), [shown(decided(41, 1))]);
}

fn shown(request: ForgetMemory) -> String {
    format!("{request:?}")
}

#[tokio::test]
async fn a_lost_confirmation_is_no_failure_and_a_long_list_is_read_to_its_end() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let a = node_with(database.options_by(proxy.url(), "a")).await;
    proxy.lose(Lose::ReplyTo("COMMIT\0"));
    let list: Vec<ForgetMemory> = (1..=2500).map(|to_seq| decided(1, to_seq)).collect();
    a.record_forgotten(&list).await.unwrap();
    assert!(proxy.has_lost());
    let (mut place, mut read) = (0, Vec::new());
    loop {
        let some = a.forgotten(place).await.unwrap();
        let Some((last, _)) = some.last() else { break };
        place = *last;
        read.extend(some.into_iter().map(|(_, request)| shown(request)));
    }
    read.sort();
    let mut due: Vec<String> = list.into_iter().map(shown).collect();
    due.sort();
    assert_eq!(read, due);
}

#[tokio::test]
async fn a_schema_of_the_first_version_gets_what_came_later() {
    let database = database!();
    let made = node(&database, "a").await.id;
    database.psql("DROP FUNCTION append; DROP TABLE forgotten; UPDATE store SET version = 1");
    let a = node(&database, "a").await;
    assert_eq!((a.id, a.forgotten(0).await), (made, Ok(Vec::new())));
    let lease = a.lease(id(1)).await.unwrap();
    assert_eq!(append(&a, &lease, 1, 1..=1, SessionState::Idle).await, Ok(1));
    assert_eq!(database.psql("SELECT version FROM store"), "3");
}
