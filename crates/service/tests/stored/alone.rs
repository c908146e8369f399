//! A session whose files cannot be read is that session's matter: everything else goes on.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use meerkat_service::{
    Capabilities, ErrorCode, Operation, SessionId,
    capability::Capability,
    memory::MemoryOptions,
    service::{DeleteSession, ListTools, Retain, RetentionReason, SessionState, StartTurn, WaitReader},
    store::{EventStore, Lease, StoreError, Stores, open_stores},
    wire::Answers,
};
use meerkat_testkit::{in_time, until_asked, until_async};
use serde_json::{Value, json};
use tokio::sync::Barrier;

use crate::stored::{
    Place, Process,
    layer::{Layer, lay},
};

/// How a session's files stop answering.
#[derive(Clone, Copy, Debug)]
enum Broken {
    /// Its folder is none any more.
    Folder,
    /// Reading its segment fails.
    Segment,
}

const BROKEN: [Broken; 2] = [Broken::Folder, Broken::Segment];

impl Place {
    /// Three sessions, the second one broken after its process has ended.
    fn with_one_broken(&self, is_clean: bool, broken: Broken) -> [SessionId; 3] {
        let ids = self.process(is_clean, async |process| {
            let ids = [process.create().await, process.create().await, process.create().await];
            for id in ids {
                process.turn(id, "@say One.").await.unwrap();
            }
            ids
        });
        let (dir, segment) = (self.session_dir(ids[1]), self.segments(ids[1]).remove(0));
        match broken {
            Broken::Folder => {
                fs::remove_dir_all(&dir).unwrap();
                fs::write(&dir, "no folder").unwrap();
            }
            Broken::Segment => {
                fs::remove_file(&segment).unwrap();
                fs::create_dir(&segment).unwrap();
            }
        }
        ids
    }

    fn is_refused(&self) {
        assert_eq!(self.agent().build().err().map(|error| error.code()), Some(ErrorCode::StoreNotWritable));
    }
}

async fn stored(process: &Process) -> Vec<SessionId> {
    let mut ids: Vec<SessionId> = process.listed().await.iter().map(|summary| summary.session_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_session_that_cannot_be_read_stops_neither_start_nor_lists_nor_turns() {
    for (broken, has_index) in BROKEN.into_iter().flat_map(|broken| [(broken, true), (broken, false)]) {
        let place = Place::new();
        let [first, second, third] = place.with_one_broken(false, broken);
        if !has_index {
            place.lose_index();
        }
        place.process(false, async |process| {
            let listed = stored(&process).await;
            assert!(listed.contains(&first) && listed.contains(&third), "{broken:?}, {has_index}: {listed:?}");
            assert_eq!(process.turn(first, "@say Two.").await.unwrap().text, "Two.");
            process.create().await;
            let tools = ListTools { session_id: Some(second), ..ListTools::default() };
            let (read, tools) = (process.service.read(&second).await, process.service.tools(tools).await);
            for refused in [process.turn(second, "@say Two.").await.map(drop), read.map(drop), tools.map(drop)] {
                assert_eq!(refused.unwrap_err().code(), ErrorCode::SessionCorrupted, "{broken:?}, {has_index}");
            }
        });
        let found = place.examine(false).findings;
        assert!(found.iter().any(|finding| finding.session_id == Some(second)), "{broken:?}: {found:?}");
        // The next start is as good, and what cannot be read can be deleted.
        place.process(true, async |process| {
            assert_eq!(process.turn(third, "@say Two.").await.unwrap().text, "Two.");
            process.delete(second).await;
            assert!(!stored(&process).await.contains(&second));
        });
    }
}

#[test]
fn retention_passes_over_no_session_because_another_cannot_be_read() {
    for broken in BROKEN {
        let place = Place::new();
        place.with_one_broken(true, broken);
        place.process(true, async |process| {
            let kept = process.create().await;
            let done = process.service.retain(Retain { max_sessions: Some(1), ..Retain::default() }).await.unwrap();
            assert_eq!((done.deleted, done.failed), (3, vec![]), "{broken:?}");
            assert_eq!(stored(&process).await, [kept]);
        });
    }
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
            drop(process.begin(session_id, "@say Part. @stall").await);
        }
        self.0.bytes(session_id).await
    }
}

/// Also what runs only by the time that retention would delete it.
#[test]
fn what_runs_or_waits_stays() {
    for is_awoken in [false, true] {
        let awaking = |stores: &mut Stores| lay(stores, |events| Awaking(events, OnceLock::new()));
        Place::new().process_over(true, awaking, async |process, awaking| {
            let (running, idle) = (process.create().await, process.create().await);
            match is_awoken {
                true => assert!(awaking.1.set((process.clone(), running)).is_ok()),
                false => drop(process.begin(running, "@say Part. @stall").await),
            }
            let done = process.service.retain(Retain { max_bytes: Some(1), ..Retain::default() }).await.unwrap();
            let gone: Vec<_> = done.items.iter().map(|item| (item.session_id, item.reason)).collect();
            let due = (vec![(idle, RetentionReason::Bytes)], 1, vec![]);
            assert_eq!((gone, done.deleted, done.failed), due, "{is_awoken}");
            assert_eq!(stored(&process).await, [running]);
            assert_eq!(process.view(running).await.state, SessionState::Running);
            process.service.delete(DeleteSession { session_id: running, force: true }).await.unwrap();
        });
    }
}

/// As a served client waits: it was refused, because what woke it was not what could be read.
#[test]
fn a_reader_that_waits_gets_what_can_be_read() {
    for broken in BROKEN {
        let place = Place::new();
        let [first, second, third] = place.with_one_broken(true, broken);
        place.process(true, async |process| {
            process.register("r").await;
            let answers = Answers::default();
            let fetch = async |wait_ms: u64| -> Vec<(SessionId, u64)> {
                let params = json!({ "reader": "r", "wait_ms": wait_ms }).to_string();
                let answer = answers.call(process.service.as_ref(), Operation::FetchReader, &params).await;
                let page: Value = serde_json::from_slice(&answer.unwrap().into_bytes()).unwrap();
                let of = |item: &Value| {
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
                    process.is_done("r", session_id, seq).await;
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
    Place::new().process(true, async |process| {
        for _ in 0..12 {
            process.create().await;
        }
        let mut asked = process.service.retain(Retain { max_sessions: Some(1), ..Retain::default() });
        // Until the first one is deleted, and no further.
        while stored(&process).await.len() == 12 && futures::poll!(&mut asked).is_pending() {}
        drop(asked);
        until_asked("the others are deleted", async || stored(&process).await.len() <= 1).await;
    });
}

#[test]
fn files_of_other_sessions_are_written_though_one_cannot_be() {
    for broken in BROKEN {
        let place = Place::projected();
        let [first, _, third] = place.with_one_broken(true, broken);
        drop(fs::remove_dir_all(place.rkat()));
        place.process(true, async |process| {
            process.projected(first).await;
            process.projected(third).await;
            process.turn(third, "@say Two.").await.unwrap();
            process.projected(third).await;
            until_async("the list is written", || place.rkat().join("index.json").exists()).await;
        });
    }
}

/// What fails once is written when it can be, though nothing happens in its session.
#[test]
fn files_that_could_not_be_written_at_first_come_later() {
    let place = Place::projected();
    let ids = place.process(true, async |process| {
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
    place.process(true, async |process| {
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
    let id = place.process(true, async |process| process.create().await);
    let (journal, away) = (place.data_dir().join("journal"), place.dir.path().join("away"));
    fs::rename(&journal, &away).unwrap();
    let refused = place.agent().build().err().expect("a refusal");
    assert!(refused.to_string().contains("mount or restore it"), "{refused}");
    place.is_refused();
    // Without the index nothing says that there is none, and without the marks the index says that there is one.
    for other in ["index.redb", "active"] {
        let (other, aside) = (place.data_dir().join(other), place.dir.path().join("aside"));
        fs::rename(&other, &aside).unwrap();
        place.is_refused();
        fs::rename(&aside, &other).unwrap();
    }
    // Nor does an index that was just made in place of a damaged one.
    fs::write(place.index(), "nonsense".repeat(10_000)).unwrap();
    place.is_refused();
    assert!(!journal.exists());
    fs::rename(&away, &journal).unwrap();
    place.process(true, async |process| assert_eq!(stored(&process).await, [id]));
}

/// A backup may leave out what is empty.
#[test]
fn a_store_that_names_no_session_makes_its_folder_of_sessions_again() {
    let place = Place::new();
    place.process(true, async |process| process.service.ready().await.unwrap());
    fs::remove_dir_all(place.data_dir().join("journal")).unwrap();
    let id = place.process(true, async |process| process.create().await);
    place.process(true, async |process| assert_eq!(stored(&process).await, [id]));
}

/// A file of another user could be read as a session.
#[test]
fn a_data_directory_that_everybody_may_write_is_refused_until_it_is_repaired() {
    let place = Place::new();
    place.process(true, async |process| process.create().await);
    fs::set_permissions(place.data_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    place.is_refused();
    assert!(place.examine(true).findings.iter().any(|finding| finding.mended));
    place.process(true, async |process| assert_eq!(stored(&process).await.len(), 1));
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
    let id = place.process(true, async |process| {
        let id = process.create().await;
        process.turn(id, "@say A unicorn.").await.unwrap();
        id
    });
    drop(fs::remove_dir_all(place.rkat()));
    let mut stores = open_stores(&place.data_dir()).unwrap();
    let crowded = lay(&mut stores, |events| Crowded(events, AtomicBool::new(true)));
    let memory = Some(place.dir.path().join("memory"));
    let config = || place.config().stores(stores).memory(memory, MemoryOptions::default());
    Place::process_of(config, true, async |process| {
        let has_memory = Capabilities::compiled().require(Capability::MemoryStore).is_ok();
        let found = async || {
            let request = json!({ "query": "unicorn", "scope": "project" });
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
            let seq = process.last_seq(id).await;
            let wait = WaitReader { reader: "memory".to_owned(), session_id: id, seq, wait_ms: 60_000 };
            process.service.wait_reader(wait).await.unwrap();
            assert!(found().await > 0);
        }
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
    place.process(false, async |process| {
        for _ in 0..3 {
            let id = process.create().await;
            let ask = r#"@call test_ask {"name":"a","line":"1"}"#;
            process.service.accept_turn(StartTurn { wait: false, ..StartTurn::new(id, ask) }).await.unwrap();
            process.until(id, "approval_requested").await;
        }
    });
    let together = |stores: &mut Stores| lay(stores, |events| Together(events, Barrier::new(3)));
    place.process_over(true, together, async |process, _| {
        in_time("none waits for the one before it", process.service.ready()).await.unwrap();
    });
}
