//! A session whose files cannot be read is that session's matter: everything else goes on.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use meerkat_service::{
    AgentBuildConfig, Capabilities, ErrorCode, Operation, SessionId,
    capability::Capability,
    memory::MemoryOptions,
    service::{
        AcknowledgeReader, DeleteSession, ListTools, NamedReader, Retain, RetentionReason, SessionQuery, SessionState,
        StartTurn, WaitReader,
    },
    store::{EventStore, Lease, StoreError, open_stores},
    wire::Answers,
};
use meerkat_testkit::{until_asked, until_async};
use tokio::sync::Barrier;

use crate::stored::{
    Place, Process,
    layer::{Layer, Over},
};

/// How a session's files stop answering.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// Its folder is none any more.
    Folder,
    /// Reading its segment fails.
    Segment,
}

impl Place {
    /// Three sessions, the second one broken after its process has ended.
    fn with_one_broken(&self, is_clean: bool, broken: Broken) -> [SessionId; 3] {
        let ids = self.process(is_clean, |process| async move {
            let mut ids = Vec::new();
            for _ in 0..3 {
                let id = process.create().await;
                process.turn(id, "@say One.").await.unwrap();
                ids.push(id);
            }
            [ids[0], ids[1], ids[2]]
        });
        let id = ids[1].to_string();
        let dir = self.data_dir().join("journal").join(&id[id.len() - 2..]).join(&id);
        match broken {
            Broken::Folder => {
                fs::remove_dir_all(&dir).unwrap();
                fs::write(&dir, "no folder").unwrap();
            }
            Broken::Segment => {
                fs::remove_file(dir.join("1.1.mlog")).unwrap();
                fs::create_dir(dir.join("1.1.mlog")).unwrap();
            }
        }
        ids
    }
}

async fn stored(process: &Process) -> Vec<SessionId> {
    let page = process.service.list(SessionQuery::default()).await.unwrap();
    let mut ids: Vec<SessionId> = page.items.iter().map(|summary| summary.session_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_session_that_cannot_be_read_stops_neither_start_nor_lists_nor_turns() {
    for broken in [Broken::Folder, Broken::Segment] {
        for has_index in [true, false] {
            let place = Place::new();
            let [first, second, third] = place.with_one_broken(false, broken);
            if !has_index {
                fs::remove_file(place.data_dir().join("index.redb")).unwrap();
            }
            place.process(false, |process| async move {
                let listed = stored(&process).await;
                assert!(listed.contains(&first) && listed.contains(&third), "{broken:?}, {has_index}: {listed:?}");
                assert_eq!(process.turn(first, "@say Two.").await.unwrap().text, "Two.");
                process.create().await;
                let refused = process.turn(second, "@say Two.").await.unwrap_err();
                assert_eq!(refused.code(), ErrorCode::SessionCorrupted, "{broken:?}, {has_index}");
                let refused = process.service.read(&second).await.unwrap_err();
                assert_eq!(refused.code(), ErrorCode::SessionCorrupted, "{broken:?}, {has_index}");
                let tools = ListTools { session_id: Some(second), ..ListTools::default() };
                let refused = process.service.tools(tools).await.unwrap_err();
                assert_eq!(refused.code(), ErrorCode::SessionCorrupted, "{broken:?}, {has_index}");
            });
            let examined = place.examine(false);
            let is_named = examined.findings.iter().any(|finding| finding.session_id == Some(second));
            assert!(is_named, "{broken:?}: {:?}", examined.findings);
            // The next start is as good, and what cannot be read can be deleted.
            place.process(true, |process| async move {
                assert_eq!(process.turn(third, "@say Two.").await.unwrap().text, "Two.");
                process.service.delete(DeleteSession { session_id: second, force: false }).await.unwrap();
                assert!(!stored(&process).await.contains(&second));
            });
        }
    }
}

#[test]
fn retention_passes_over_no_session_because_another_cannot_be_read() {
    for broken in [Broken::Folder, Broken::Segment] {
        let place = Place::new();
        place.with_one_broken(true, broken);
        place.process(true, |process| async move {
            let kept = process.create().await;
            let done = process.service.retain(Retain { max_sessions: Some(1), ..Retain::default() }).await.unwrap();
            assert_eq!((done.deleted, done.failed), (3, vec![]), "{broken:?}");
            assert_eq!(stored(&process).await, [kept]);
        });
    }
}

#[test]
fn what_runs_or_waits_stays() {
    let place = Place::new();
    place.process(true, |process| async move {
        let running = process.create().await;
        let turn = process.service.begin_turn(StartTurn::new(running, "@say Part. @stall")).await.unwrap();
        let idle = process.create().await;
        let done = process.service.retain(Retain { max_bytes: Some(1), ..Retain::default() }).await.unwrap();
        let gone: Vec<_> = done.items.iter().map(|item| (item.session_id, item.reason)).collect();
        assert_eq!((gone, done.deleted), (vec![(idle, RetentionReason::Bytes)], 1));
        assert_eq!(stored(&process).await, [running]);
        process.service.delete(DeleteSession { session_id: running, force: true }).await.unwrap();
        turn.result.await.unwrap();
    });
}

/// A store that starts a turn in a session when it is asked for its size: when retention has read its state, and has not
/// chosen yet.
struct Awaking(Arc<dyn EventStore>, OnceLock<(Process, SessionId)>);

#[async_trait]
impl Layer for Awaking {
    fn below(&self) -> &dyn EventStore {
        self.0.as_ref()
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        if let Some((process, awoken)) = self.1.get()
            && *awoken == session_id
        {
            drop(process.service.begin_turn(StartTurn::new(session_id, "@say Part. @stall")).await.unwrap());
        }
        self.0.bytes(session_id).await
    }
}

#[test]
fn what_runs_by_the_time_that_retention_deletes_it_stays() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stores = open_stores(&place.data_dir()).unwrap();
        let awaking = Arc::new(Awaking(stores.events, OnceLock::new()));
        stores.events = Arc::new(Over(awaking.clone()));
        let agent = AgentBuildConfig::new().options(place.options.clone()).stores(stores).build().unwrap();
        let process = Process { service: agent.service().clone() };
        let (awoken, idle) = (process.create().await, process.create().await);
        assert!(awaking.1.set((process.clone(), awoken)).is_ok());
        let done = process.service.retain(Retain { max_bytes: Some(1), ..Retain::default() }).await.unwrap();
        let gone: Vec<_> = done.items.iter().map(|item| item.session_id).collect();
        assert_eq!((gone, done.deleted, done.failed), (vec![idle], 1, vec![]));
        assert_eq!(stored(&process).await, [awoken]);
        assert_eq!(process.service.read(&awoken).await.unwrap().state, SessionState::Running);
        process.service.delete(DeleteSession { session_id: awoken, force: true }).await.unwrap();
        process.service.shut_down(1_000).await;
    });
}

/// As a served client waits: it was refused, because what woke it was not what could be read.
#[test]
fn a_reader_that_waits_gets_what_can_be_read() {
    for broken in [Broken::Folder, Broken::Segment] {
        let place = Place::new();
        let [first, second, third] = place.with_one_broken(true, broken);
        place.process(true, |process| async move {
            process.service.create_reader(NamedReader { reader: "r".to_owned() }).await.unwrap();
            let answers = Answers::default();
            let fetch = async |wait_ms: u64| -> Vec<(SessionId, u64)> {
                let params = serde_json::json!({ "reader": "r", "wait_ms": wait_ms }).to_string();
                let answer = answers.call(process.service.as_ref(), Operation::FetchReader, &params).await;
                let page: serde_json::Value = serde_json::from_slice(&answer.unwrap().into_bytes()).unwrap();
                let of = |item: &serde_json::Value| {
                    let (session_id, seq) = item["idempotency_key"].as_str().unwrap().split_once(':').unwrap();
                    (session_id.parse().unwrap(), seq.parse().unwrap())
                };
                page["items"].as_array().unwrap().iter().map(of).collect()
            };
            let mut seen = BTreeSet::new();
            loop {
                let page = fetch(0).await;
                if page.is_empty() {
                    break;
                }
                for (session_id, seq) in page {
                    let request = AcknowledgeReader { reader: "r".to_owned(), session_id, seq };
                    process.service.acknowledge_reader(request).await.unwrap();
                    seen.insert(session_id);
                }
            }
            assert!(seen.contains(&first) && !seen.contains(&second), "{broken:?}: {seen:?}");
            // Its record may be what wakes the one that waits.
            let meanwhile = async {
                drop(process.turn(second, "@say Two.").await);
                process.turn(third, "@say Two.").await.unwrap();
            };
            let (page, ()) = futures::join!(fetch(60_000), meanwhile);
            assert!(!page.is_empty() && page.iter().all(|(id, _)| *id == third), "{broken:?}: {page:?}");
        });
    }
}

/// The client may leave: the work is done all the same.
#[test]
fn retention_goes_on_when_its_client_leaves() {
    let place = Place::new();
    place.process(true, |process| async move {
        for _ in 0..12 {
            process.create().await;
        }
        let before = stored(&process).await.len();
        let request = Retain { max_sessions: Some(1), ..Retain::default() };
        {
            let mut asked = Box::pin(process.service.retain(request));
            // Until the first one is deleted, and no further.
            while stored(&process).await.len() == before {
                let polled =
                    std::future::poll_fn(|context| std::task::Poll::Ready(asked.as_mut().poll(context).is_ready()));
                if polled.await {
                    break;
                }
            }
        }
        until_asked("the others are deleted", async || stored(&process).await.len() <= 1).await;
    });
}

#[test]
fn files_of_other_sessions_are_written_though_one_cannot_be() {
    for broken in [Broken::Folder, Broken::Segment] {
        let place = Place::projected();
        let [first, _, third] = place.with_one_broken(true, broken);
        drop(fs::remove_dir_all(place.rkat()));
        let list = place.rkat().join("index.json");
        place.process(true, |process| async move {
            process.projected(first).await;
            process.projected(third).await;
            process.turn(third, "@say Two.").await.unwrap();
            process.projected(third).await;
            until_async("the list is written", || list.exists()).await;
        });
    }
}

/// What fails once is written when it can be, though nothing happens in its session.
#[test]
fn files_that_could_not_be_written_at_first_come_later() {
    let place = Place::projected();
    let ids = place.process(true, |process| async move {
        let ids = [process.create().await, process.create().await];
        for id in ids {
            process.projected(id).await;
        }
        ids
    });
    let [failing, other] = ids.map(|id| place.rkat().join("sessions").join(id.to_string()));
    let list = place.rkat().join("index.json");
    fs::remove_file(&list).unwrap();
    fs::remove_dir_all(&other).unwrap();
    fs::remove_dir_all(&failing).unwrap();
    fs::write(&failing, "no folder").unwrap();
    place.process(true, |process| async move {
        process.service.ready().await.unwrap();
        until_async("the list is written", || list.exists()).await;
        assert!(other.is_dir());
        fs::remove_file(&failing).unwrap();
        until_async("its files are written", || failing.join("transcript.md").exists()).await;
    });
}

/// A volume that is not mounted yet is no store whose sessions were all deleted.
#[test]
fn a_store_without_its_folder_of_sessions_is_refused_and_left_as_it_is() {
    let place = Place::new();
    let id = place.process(true, |process| async move { process.create().await });
    let (journal, away) = (place.data_dir().join("journal"), place.dir.path().join("away"));
    fs::rename(&journal, &away).unwrap();
    let refused = place.agent().build().err().expect("a refusal");
    assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
    assert!(refused.to_string().contains("mount or restore it"), "{refused}");
    assert!(!journal.exists());
    // Without the index nothing says that there is none, and without the marks the index says that there is one.
    for other in ["index.redb", "active"] {
        let (other, aside) = (place.data_dir().join(other), place.dir.path().join("aside"));
        fs::rename(&other, &aside).unwrap();
        assert_eq!(place.agent().build().err().map(|error| error.code()), Some(ErrorCode::StoreNotWritable));
        assert!(!journal.exists());
        fs::rename(&aside, &other).unwrap();
    }
    // Nor does an index that was just made in place of a damaged one.
    fs::write(place.data_dir().join("index.redb"), "nonsense".repeat(10_000)).unwrap();
    assert_eq!(place.agent().build().err().map(|error| error.code()), Some(ErrorCode::StoreNotWritable));
    assert!(!journal.exists());
    fs::rename(&away, &journal).unwrap();
    place.process(true, |process| async move { assert_eq!(stored(&process).await, [id]) });
}

/// A backup may leave out what is empty.
#[test]
fn a_store_that_names_no_session_makes_its_folder_of_sessions_again() {
    let place = Place::new();
    let journal = place.data_dir().join("journal");
    place.process(true, |process| async move { process.service.ready().await.unwrap() });
    fs::remove_dir_all(&journal).unwrap();
    let id = place.process(true, |process| async move { process.create().await });
    place.process(true, |process| async move { assert_eq!(stored(&process).await, [id]) });
}

/// A file of another user could be read as a session.
#[test]
fn a_data_directory_that_everybody_may_write_is_refused_until_it_is_mended() {
    let place = Place::projected();
    place.process(true, |process| async move {
        process.create().await;
    });
    fs::set_permissions(place.data_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = place.agent().build().err().map(|error| error.code());
    assert_eq!(refused, Some(ErrorCode::StoreNotWritable));
    assert!(place.examine(true).findings.iter().any(|finding| finding.mended));
    place.process(true, |process| async move {
        assert_eq!(stored(&process).await.len(), 1);
    });
}

/// Another process deletes a session and projects nothing: its files go with the next start that does.
#[test]
fn files_of_a_session_that_was_deleted_elsewhere_go_at_the_next_start() {
    let mut place = Place::projected();
    let [kept, deleted] = place.process(true, |process| async move {
        let ids = [process.create().await, process.create().await];
        process.projected(ids[0]).await;
        process.projected(ids[1]).await;
        ids
    });
    place.options.projection.enabled = false;
    place.process(true, |process| async move {
        process.service.delete(DeleteSession { session_id: deleted, force: false }).await.unwrap();
    });
    place.options.projection.enabled = true;
    let folder = |id: SessionId| place.rkat().join("sessions").join(id.to_string());
    assert!(folder(deleted).exists());
    let (going, staying) = (folder(deleted), folder(kept));
    place.process(true, |process| async move {
        process.create().await;
        until_async("its files are removed", || !going.exists()).await;
        assert!(staying.exists());
    });
}

/// A store whose disk can be said to be full.
struct Crowded(Arc<dyn EventStore>, AtomicBool);

#[async_trait]
impl Layer for Crowded {
    fn below(&self) -> &dyn EventStore {
        self.0.as_ref()
    }

    async fn room(&self) -> Result<(), StoreError> {
        if self.1.load(Ordering::Relaxed) { Err(StoreError::Full) } else { self.0.room().await }
    }
}

/// What a full disk has left is for the turns that run: files for people and memory wait for room, and then catch up.
#[test]
fn what_is_written_beside_turns_waits_while_the_disk_is_full() {
    let place = Place::projected();
    let id = place.process(true, |process| async move {
        let id = process.create().await;
        process.turn(id, "@say A unicorn.").await.unwrap();
        id
    });
    drop(fs::remove_dir_all(place.rkat()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stores = open_stores(&place.data_dir()).unwrap();
        let crowded = Arc::new(Crowded(stores.events, AtomicBool::new(true)));
        stores.events = Arc::new(Over(crowded.clone()));
        let agent = AgentBuildConfig::new().options(place.options.clone()).stores(stores);
        let agent = agent.memory(Some(place.dir.path().join("memory")), MemoryOptions::default()).build().unwrap();
        let process = Process { service: agent.service().clone() };
        let has_memory = Capabilities::compiled().require(Capability::MemoryStore).is_ok();
        let found = async || {
            let request = serde_json::json!({"query": "unicorn", "scope": "project"});
            process.service.search_memory(serde_json::from_value(request).unwrap()).await.unwrap().items.len()
        };
        // Who searches waits until memory has tried.
        if has_memory {
            assert_eq!(found().await, 0, "memory took room");
        }
        let rebuilt = process.service.rebuild_projection().await.map_err(|error| error.code());
        assert_eq!(rebuilt.err(), Some(ErrorCode::StoreFull));
        assert!(!place.rkat().join("sessions").join(id.to_string()).exists(), "files took room");
        crowded.1.store(false, Ordering::Relaxed);
        process.projected(id).await;
        if has_memory {
            let seq = process.service.read(&id).await.unwrap().last_seq;
            let wait = WaitReader { reader: "memory".to_owned(), session_id: id, seq, wait_ms: 60_000 };
            process.service.wait_reader(wait).await.unwrap();
            assert!(found().await > 0);
        }
        process.service.shut_down(1_000).await;
    });
}

/// A store whose journals open only beside each other.
struct Together(Arc<dyn EventStore>, Barrier);

#[async_trait]
impl Layer for Together {
    fn below(&self) -> &dyn EventStore {
        self.0.as_ref()
    }

    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        self.1.wait().await;
        self.0.lease(session_id).await
    }
}

/// The first operation waited for one session after another.
#[test]
fn a_start_loads_the_open_sessions_beside_each_other() {
    let place = Place::new();
    place.process(false, |process| async move {
        for _ in 0..3 {
            let id = process.create().await;
            let ask = r#"@call test_ask {"name":"a","line":"1"}"#;
            process.service.accept_turn(StartTurn { wait: false, ..StartTurn::new(id, ask) }).await.unwrap();
            process.until(id, "approval_requested").await;
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stores = open_stores(&place.data_dir()).unwrap();
        stores.events = Arc::new(Over(Arc::new(Together(stores.events, Barrier::new(3)))));
        let agent = AgentBuildConfig::new().options(place.options.clone()).stores(stores).build().unwrap();
        let ready = tokio::time::timeout(Duration::from_secs(60), agent.service().ready()).await;
        ready.expect("each waits for the one before it").unwrap();
        agent.service().shut_down(1_000).await;
    });
}
