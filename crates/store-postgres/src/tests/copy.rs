//! Copies of whole stores: from a data directory into a database, and back.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use meerkat_errors::ErrorCode;
use meerkat_service::{
    AgentBuildConfig, SessionId, SessionService,
    copy::{Copied, copy},
    service::{
        AcknowledgeReader, CreateSession, ExportSession, ForgetMemory, ForkSession, NamedReader, SessionQuery,
        StartTurn,
    },
    store::{Stores, open_stores},
};
use meerkat_testkit::PATIENCE;

use super::{cluster::Database, database};
use crate::{check_at_rest, open, tests::append};

/// Place of sessions.
#[derive(Clone, Copy)]
enum Place<'a> {
    Files(&'a Path),
    Postgres(&'a Database),
}

impl Place<'_> {
    async fn stores(self) -> Stores {
        match self {
            Self::Files(folder) => open_stores(folder).unwrap(),
            Self::Postgres(database) => open(database.options("copy")).await.unwrap(),
        }
    }
}

/// Does some work in a runtime of its own, so that nothing of it is left.
pub(super) fn process<T, F: Future<Output = T>>(work: F) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(PATIENCE);
    done
}

/// Does some work with a service over a place.
fn serve<T, F: Future<Output = T>>(place: Place<'_>, work: impl FnOnce(Arc<dyn SessionService>) -> F) -> T {
    process(async {
        let agent = AgentBuildConfig::new().stores(place.stores().await).build().unwrap();
        let done = work(agent.service().clone()).await;
        agent.service().shut_down(1000).await;
        done
    })
}

fn copied(from: Place<'_>, to: Place<'_>) -> Result<Copied, (ErrorCode, String)> {
    process(async {
        let (from, to) = (from.stores().await, to.stores().await);
        let done = copy(&from, &to, [None, None], &|_, _| {}).await;
        done.map_err(|error| (error.code(), error.to_string()))
    })
}

async fn say(service: &Arc<dyn SessionService>, session_id: SessionId, text: &str) {
    service.start_turn(StartTurn::new(session_id, format!("@say {text}"))).await.unwrap();
}

fn keyed() -> CreateSession {
    CreateSession { idempotency_key: Some("once".to_owned()), ..CreateSession::default() }
}

/// Sessions with a key, a blob, a fork and a reader. The oldest one changes last.
fn live(place: Place<'_>) -> Vec<SessionId> {
    serve(place, async |service| {
        let first = service.create_session(keyed()).await.unwrap().session_id;
        let second = service.create_session(CreateSession::default()).await.unwrap().session_id;
        say(&service, second, &"long ".repeat(100_000)).await;
        let fork = service.fork(ForkSession { session_id: second, turn: None }).await.unwrap().session_id;
        say(&service, first, "short").await;
        service.create_reader(NamedReader { reader: "audit".to_owned() }).await.unwrap();
        let done = AcknowledgeReader { reader: "audit".to_owned(), session_id: second, seq: 3 };
        service.acknowledge_reader(done).await.unwrap();
        vec![first, second, fork]
    })
}

/// Everything that a store shows: its lists in order, bundles, readers, and the session of the key.
fn shown(place: Place<'_>) -> (Vec<SessionId>, Vec<Vec<String>>, u64, SessionId) {
    serve(place, async |service| {
        let listed = service.list(SessionQuery::default()).await.unwrap().items;
        let listed: Vec<_> = listed.iter().map(|session| session.session_id).collect();
        let mut bundles = Vec::new();
        for &session_id in &listed {
            let (mut pages, mut cursor) = (Vec::new(), None);
            loop {
                let request = ExportSession { cursor, ..ExportSession::new(session_id) };
                let page = service.export_session(request).await.unwrap();
                pages.push(page.data);
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            bundles.push(pages);
        }
        let readers = service.list_readers().await.unwrap().items;
        let audit = readers.iter().find(|reader| reader.reader == "audit").unwrap();
        let key = service.create_session(keyed()).await.unwrap().session_id;
        (listed, bundles, audit.records_behind, key)
    })
}

#[test]
fn sessions_go_into_a_database_and_back_as_they_are() {
    let database = database!();
    let (one, two) = (meerkat_testkit::folder(), meerkat_testkit::folder());
    let (one, two) = (Place::Files(one.path()), Place::Files(two.path()));
    let made = live(one);
    let done = copied(one, Place::Postgres(&database)).unwrap();
    assert_eq!((done.sessions, done.copied, done.damaged_blobs), (3, 3, 0));
    assert!(done.blobs >= 2 && done.records > 10, "{done:?}");
    let nothing = Copied { sessions: 3, ..Copied::default() };
    assert_eq!(copied(one, Place::Postgres(&database)), Ok(nothing.clone()));
    assert_eq!(copied(Place::Postgres(&database), two).unwrap(), done);
    assert_eq!(copied(Place::Postgres(&database), two), Ok(nothing));
    let (listed, bundles, behind, key) = shown(one);
    assert_eq!((listed[0], key, listed.len()), (made[0], made[0], 3));
    assert!(behind > 0);
    for place in [Place::Postgres(&database), two] {
        let there = shown(place);
        assert!(there.1 == bundles, "the bundles differ");
        assert_eq!((there.0, there.2, there.3), (listed.clone(), behind, key));
    }
}

/// A copy that ends anywhere leaves whole sessions, and the next one goes on with the others.
#[test]
fn a_copy_that_was_cut_off_goes_on() {
    let database = database!();
    let folder = meerkat_testkit::folder();
    let (from, to) = (Place::Files(folder.path()), Place::Postgres(&database));
    live(from);
    process(async {
        let (from, to) = (from.stores().await, to.stores().await);
        let (cut, is_cut) = (tokio::sync::Notify::new(), AtomicBool::new(false));
        let progress = |done, _| {
            if done == 1 {
                is_cut.store(true, Ordering::Relaxed);
                cut.notify_one();
            }
        };
        tokio::select! {
            biased;
            () = cut.notified() => {}
            done = copy(&from, &to, [None, None], &progress) => panic!("it went on: {done:?}"),
        }
        assert!(is_cut.load(Ordering::Relaxed));
    });
    let done = copied(from, to).unwrap();
    assert_eq!((done.sessions, done.copied), (3, 2));
    assert!(shown(to).1 == shown(from).1, "the bundles differ");
}

#[test]
fn a_session_with_other_records_is_refused_and_nothing_is_changed() {
    let database = database!();
    let folder = meerkat_testkit::folder();
    let (from, to) = (Place::Files(folder.path()), Place::Postgres(&database));
    let first = live(from)[0];
    assert_eq!(copied(from, to).unwrap().copied, 3);
    let later = serve(to, async |service| {
        say(&service, first, "There it goes on.").await;
        service.create_session(CreateSession::default()).await.unwrap().session_id
    });
    let (code, message) = copied(from, to).unwrap_err();
    assert!(code == ErrorCode::InvalidRequest && message.contains(&first.to_string()), "{message}");
    // The other way round there is one to copy, which is not copied either.
    let (code, message) = copied(to, from).unwrap_err();
    assert!(code == ErrorCode::InvalidRequest && message.contains(&first.to_string()), "{message}");
    let listed = serve(from, async |service| service.list(SessionQuery::default()).await.unwrap().items);
    assert!(listed.len() == 3 && listed.iter().all(|session| session.session_id != later));
}

/// What a node works on is named, and everything else is copied.
#[test]
fn a_session_that_runs_is_named_and_left() {
    let database = database!();
    let folder = meerkat_testkit::folder();
    let (from, to) = (Place::Postgres(&database), Place::Files(folder.path()));
    live(from);
    let held = process(async {
        let node = super::node(&database, "busy").await;
        let lease = node.lease(super::id(9)).await.unwrap();
        append(&node, &lease, 9, 1..=2, meerkat_words::answers::SessionState::Running).await.unwrap();
        lease.session_id
    });
    let (code, message) = copied(from, to).unwrap_err();
    assert!(code == ErrorCode::SessionBusy && message.contains(&held.to_string()), "{message}");
    assert!(message.contains("1 of 4 sessions") && message.contains("busy"), "{message}");
    assert_eq!(shown(to).0.len(), 3);
    // Its node has ended, but its turn has not.
    database.expire("busy");
    let (code, message) = copied(from, to).unwrap_err();
    assert!(code == ErrorCode::SessionBusy && message.contains("let them end"), "{message}");
    assert_eq!(shown(to).0.len(), 3);
}

#[test]
fn what_memory_is_to_forget_goes_from_one_database_into_another() {
    let (one, two) = (database!(), database!());
    let (from, to) = (Place::Postgres(&one), Place::Postgres(&two));
    let session_id = live(from)[0];
    let decided = ForgetMemory { session_id: Some(session_id), to_seq: Some(2), ..ForgetMemory::default() };
    process(async { from.stores().await.events.record_forgotten(std::slice::from_ref(&decided)).await.unwrap() });
    for _ in 0..2 {
        copied(from, to).unwrap();
        let there = process(async { to.stores().await.events.forgotten(0).await.unwrap() });
        let there: Vec<ForgetMemory> = there.into_iter().map(|(_, request)| request).collect();
        assert_eq!(there, std::slice::from_ref(&decided));
    }
}

/// A blob that is not what it was is left out and counted; nothing stays of its copy.
#[test]
fn a_damaged_blob_is_counted() {
    let database = database!();
    let folder = meerkat_testkit::folder();
    let second = live(Place::Postgres(&database))[1];
    database.psql("UPDATE blob_parts SET data = set_byte(data, 7, 0)");
    let done = copied(Place::Postgres(&database), Place::Files(folder.path())).unwrap();
    assert_eq!((done.copied, done.blobs), (3, 0));
    assert!(done.damaged_blobs >= 2, "{done:?}");
    let left = process(async { Place::Files(folder.path()).stores().await.blobs.list(second).await.unwrap() });
    assert!(left.is_empty(), "{left:?}");
}

/// Another process makes, changes or deletes a session during a copy: it does not say that all is copied.
#[test]
fn a_copy_of_a_store_that_moves_on_names_what_it_lacks() {
    for what in ["made", "changed", "deleted"] {
        let database = database!();
        let folder = meerkat_testkit::folder();
        let first = live(Place::Postgres(&database))[0];
        let new = super::id(7);
        let (sql, named) = match what {
            "made" => (format!("INSERT INTO sessions (id, epoch, tail) VALUES ('{new}', 1, 5)"), new),
            "changed" => (format!("UPDATE sessions SET tail = tail + 1 WHERE id = '{first}'"), first),
            _ => (format!("UPDATE sessions SET tail = 0 WHERE id = '{first}'"), first),
        };
        let (code, message) = process(async {
            let (from, to) = (Place::Postgres(&database).stores().await, Place::Files(folder.path()).stores().await);
            let moves_on = |done, of| {
                if done == of {
                    database.psql(&sql);
                }
            };
            let error = copy(&from, &to, [None, None], &moves_on).await.unwrap_err();
            (error.code(), error.to_string())
        });
        assert_eq!(code, ErrorCode::SessionBusy, "{message}");
        assert!(message.contains(&named.to_string()) && message.contains("not whole"), "{what}: {message}");
    }
}

/// A server that works on the database would go on with sessions that are copied.
#[tokio::test]
async fn a_database_that_a_server_works_on_is_not_copied() {
    let database = database!();
    let options = database.options("looks");
    check_at_rest(&options, "copy-").await.unwrap();
    let nodes = [super::node(&database, "copy-1").await, super::node(&database, "desk").await];
    let error = check_at_rest(&options, "copy-").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidRequest);
    let message = error.to_string();
    assert!(message.contains("FROM") && message.contains("the node desk works on it"), "{message}");
    drop(nodes);
    database.expire("desk");
    check_at_rest(&options, "copy-").await.unwrap();
}
