//! Replies that are lost, databases without room, and statements that fail: nothing acknowledged is lost, nothing happens
//! twice.

use std::time::Duration;

use meerkat_service::{
    clock::Timestamp,
    session::event::Key,
    store::{Creation, EventStore as _, IndexedKey, ReadLimit, ReaderStore as _, Registration, StoreError},
};
use meerkat_testkit::{in_time, until, until_async};
use meerkat_words::answers::SessionState::{Idle, Running};

use super::{
    append, cluster, database, events, id, jump, node, node_with,
    proxy::{Lose, Proxy},
    record, row, seqs, time,
};
use crate::{connect, events::entries, log::Append, readers::PostgresReaders};

/// The first reply after a partition is lost, whichever statement it answers: the append is asked about, and happened
/// once.
#[tokio::test]
async fn an_append_whose_request_or_reply_is_lost_happens_once() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let a = node_with(database.options_by(proxy.url(), "a")).await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    let mut tail = 1;
    let reply = Lose::ReplyTo(".append(");
    for lost in [Lose::Request, reply, Lose::Request, reply] {
        proxy.lose(lost);
        assert_eq!(append(&a, &lease, 1, tail + 1..=tail + 2, Running).await, Ok(tail + 2), "{lost:?}");
        assert!(proxy.has_lost(), "{lost:?}");
        tail += 2;
    }
    assert_eq!(seqs(&a, 1).await, Some((1..=9).collect()));
    assert_eq!(database.psql("SELECT tail, (SELECT count(*) FROM events) FROM sessions"), "9|9");
}

/// Two sessions share a statement: one is appended to, and the other fenced. Then the database is away, and another node
/// takes both.
#[tokio::test]
async fn an_append_that_was_confirmed_stays_so_whatever_becomes_of_those_beside_it() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let mut group = Vec::new();
    for n in [1, 2] {
        let lease = a.lease(id(n)).await.unwrap();
        append(&a, &lease, n, 1..=1, Idle).await.unwrap();
        let epoch = i64::try_from(lease.epoch).unwrap();
        group.push(Append::new(id(n), epoch, 1, entries(&[record(n, 2)]).unwrap()));
    }
    b.lease(id(2)).await.unwrap();
    let proxy = Proxy::start(&database).await;
    let way = connect(&database.options_by(proxy.url(), "a")).unwrap();
    way.query("SELECT 1", &[]).await.unwrap();
    // The statement passes, and the question for those that it left out goes lost.
    proxy.lose_at(Lose::Request, 1, Lose::All);
    let taken = async {
        proxy.losing().await;
        database.expire("a");
        let of_b = b.lease(id(1)).await.unwrap();
        append(&b, &of_b, 1, 3..=3, Running).await.unwrap();
        proxy.lose(Lose::Nothing);
    };
    let (outcomes, ()) = tokio::join!(crate::append::append(&way, "a", &group, way.limit() * 2), taken);
    assert_eq!(outcomes, [Ok(()), Err(StoreError::Fenced)]);
    assert_eq!(seqs(&b, 1).await, Some(vec![1, 2, 3]));
}

/// The standby that is to confirm every commit is away for longer than an append waits. What it did not confirm is not
/// acknowledged, and not seen.
#[tokio::test]
async fn nothing_is_acknowledged_that_a_standby_has_not_confirmed() {
    let database = database!(cluster::own("off"));
    let a = node(&database, "a").await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    let standby = |name| {
        database.cluster.psql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"));
        database.cluster.psql("SELECT pg_reload_conf()");
    };
    standby("away");
    // The server heeds it a moment later.
    let mut probe = database.cluster.client("psql");
    probe.args(["-X", "-q", "-d", "postgres", "-c", "CREATE SCHEMA IF NOT EXISTS probe; DROP SCHEMA probe"]);
    let mut waiting = probe.spawn().unwrap();
    let waits = |statement: &str| {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE";
        database.psql(&format!("{sql} '%{statement}%'")) != "0"
    };
    until("the server heeds it", || {
        if waiting.try_wait().unwrap().is_some() {
            waiting = probe.spawn().unwrap();
        }
        waits("SCHEMA probe")
    });
    // Longer than an append waits, which is twice the time of a statement.
    let passes = async |statement| {
        until_async("it waits for the standby", || waits(statement)).await;
        jump(a.db.limit() * 2).await;
    };
    let (outcome, ()) = tokio::join!(append(&a, &lease, 1, 2..=2, Running), passes(".append("));
    assert!(matches!(outcome, Err(StoreError::Failed(_))), "{outcome:?}");
    assert_eq!(database.psql("SELECT tail FROM sessions"), "1");
    let readers = PostgresReaders(a.clone());
    let registration = Registration { reader: "backup".to_owned(), created_at: time(1) };
    let (registered, ()) = tokio::join!(readers.register(registration), passes(".readers ("));
    assert!(registered.is_err());
    assert_eq!(readers.readers().await, Ok(Vec::new()));
    standby("");
    waiting.wait().unwrap();
    // It waits for the append, which goes on now.
    assert_eq!(database.psql("SELECT tail FROM sessions FOR UPDATE"), "2");
}

/// If another node has written since, nobody can know: the answer is the third one, not a guess.
#[tokio::test]
async fn a_lost_reply_behind_which_another_node_has_written_is_unknown() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let (a, b) = (node_with(database.options_by(proxy.url(), "a")).await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    proxy.lose(Lose::All);
    let ticket = events(&a).stage(&lease, &[record(1, 2)]).unwrap();
    database.expire("a");
    let of_b = b.lease(id(1)).await.unwrap();
    append(&b, &of_b, 1, 2..=3, Running).await.unwrap();
    proxy.lose(Lose::Nothing);
    let outcome = ticket.durable().await;
    assert!(matches!(&outcome, Err(StoreError::Failed(why)) if why.contains("unknown")), "{outcome:?}");
    assert_eq!(seqs(&b, 1).await, Some(vec![1, 2, 3]));
}

#[tokio::test]
async fn a_key_makes_one_session_until_that_is_deleted() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let key = |n: u8, at: Timestamp| IndexedKey {
        scope: None,
        key: Key { key: "k".to_owned(), request: "r".to_owned() },
        session_id: id(n),
        turn: None,
        time: at,
    };
    let create = |store, n, at| {
        let events = events(store);
        async move { events.create(&[record(n, 1)], &row(n, 1, Idle), Some(&key(n, at))).await }
    };
    // Both at once: one makes the session, the other learns of it.
    let (one, other) = tokio::join!(create(&a, 1, time(1)), create(&b, 2, time(1)));
    let mut exists = Vec::new();
    for created in [one.unwrap(), other.unwrap()] {
        if let Creation::Exists(entry) = created {
            exists.push(entry.session_id);
        }
    }
    let made = seqs(&a, 1).await.map_or(2, |_| 1);
    assert_eq!(exists, [id(made)]);
    assert_eq!(database.psql("SELECT count(*) FROM sessions WHERE tail > 0"), "1");
    // A deleted session's key is free.
    events(&a).delete(id(made)).await.unwrap();
    assert!(matches!(create(&a, 3, time(2)).await, Ok(Creation::Made(_))));
    assert!(matches!(create(&b, 4, time(3)).await, Ok(Creation::Exists(entry)) if entry.session_id == id(3)));
    // No reading of a clock makes it old.
    for days in [2, -2, 1000] {
        let at = Timestamp::from_millis(time(2).as_millis() + days * meerkat_service::store::KEY_KEPT_MS);
        assert!(matches!(create(&b, 4, at).await, Ok(Creation::Exists(entry)) if entry.session_id == id(3)), "{days}");
    }
}

/// The reply to the COMMIT is lost: the session is asked for, and is there once.
#[tokio::test]
async fn a_creation_and_a_fork_whose_reply_is_lost_are_known() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let a = node_with(database.options_by(proxy.url(), "a")).await;
    proxy.lose(Lose::ReplyTo("COMMIT\0"));
    let created = events(&a).create(&[record(1, 1)], &row(1, 1, Idle), None).await;
    assert!(proxy.has_lost());
    let Ok(Creation::Made(lease)) = created else { panic!("{created:?}") };
    assert_eq!(append(&a, &lease, 1, 2..=2, Idle).await, Ok(2));
    proxy.lose(Lose::ReplyTo("COMMIT\0"));
    assert_eq!(events(&a).fork(id(1), 2, &[record(2, 3)]).await, Ok(()));
    assert!(proxy.has_lost());
    assert_eq!((seqs(&a, 1).await, seqs(&a, 2).await), (Some(vec![1, 2]), Some(vec![1, 2, 3])));
}

#[tokio::test]
async fn a_database_without_room_is_full_and_recovers() {
    let database = database!();
    let a = node(&database, "a").await;
    let (lease, other) = (a.lease(id(1)).await.unwrap(), a.lease(id(2)).await.unwrap());
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    append(&a, &other, 2, 1..=1, Running).await.unwrap();
    database.psql(&format!(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'could not extend file' USING ERRCODE = '53100'; END $$; \
         CREATE TRIGGER full_disk BEFORE INSERT ON events FOR EACH ROW WHEN (NEW.session = '{}') \
         EXECUTE FUNCTION full_disk()",
        id(1)
    ));
    // The other session's records are not refused with it.
    let (full, fits) = tokio::join!(append(&a, &lease, 1, 2..=2, Running), append(&a, &other, 2, 2..=2, Running));
    assert_eq!((full, fits), (Err(StoreError::Full), Ok(2)));
    assert_eq!(a.room(), Err(StoreError::Full));
    database.psql("DROP TRIGGER full_disk ON events");
    let again = a.lease(id(1)).await.unwrap();
    assert_eq!(again.tail, 1);
    assert_eq!(append(&a, &again, 1, 2..=2, Running).await, Ok(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_append_at_once_share_statements_and_stay_apart() {
    let database = database!();
    let a = node(&database, "a").await;
    let sessions = (1..=60).map(async |n| {
        let lease = a.lease(id(n)).await.unwrap();
        let mut tickets = Vec::new();
        for seq in 1..=10 {
            tickets.push(events(&a).stage(&lease, &[record(n, seq)]).unwrap());
        }
        for (ticket, seq) in tickets.into_iter().zip(1..) {
            assert_eq!(ticket.durable().await, Ok(seq));
        }
        a.release(lease).await.unwrap();
        assert_eq!(seqs(&a, n).await, Some((1..=10).collect()));
    });
    futures::future::join_all(sessions).await;
    assert_eq!(database.psql("SELECT count(*) FROM sessions WHERE node IS NOT NULL"), "0");
}

/// The trouble of one killed connection is not seen by who waits.
#[tokio::test]
async fn connections_that_the_server_ends_cost_nothing() {
    let database = database!();
    let a = node(&database, "a").await;
    let lease = a.lease(id(1)).await.unwrap();
    for seq in 1..=5 {
        database.psql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
             WHERE application_name = 'meerkat' AND query LIKE '%\"' || current_setting('search_path') || '\".%'",
        );
        assert_eq!(append(&a, &lease, 1, seq..=seq, Running).await, Ok(seq));
    }
    assert_eq!(seqs(&a, 1).await, Some((1..=5).collect()));
}

/// While another server takes over, the proxy may still lead to the one that takes no writes any more. What runs goes on,
/// also after a deadlock or a conflict with another transaction.
#[tokio::test]
async fn an_append_outlasts_a_server_that_takes_no_writes_for_a_moment() {
    for code in ["25006", "57P03", "53300", "40001", "40P01"] {
        let database = database!();
        let a = node(&database, "a").await;
        let lease = a.lease(id(1)).await.unwrap();
        append(&a, &lease, 1, 1..=1, Running).await.unwrap();
        // A sequence counts also what is rolled back.
        database.psql(&format!(
            "CREATE SEQUENCE tries; CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             PERFORM nextval('{0}.tries'); RAISE EXCEPTION 'not now' USING ERRCODE = '{code}'; END $$; \
             CREATE TRIGGER refuse BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION refuse()",
            database.schema
        ));
        let ticket = events(&a).stage(&lease, &[record(1, 2)]).unwrap();
        let tried = || database.psql("SELECT last_value > 1 FROM tries") == "t";
        until_async("the append is tried again", tried).await;
        database.psql("DROP TRIGGER refuse ON events");
        assert_eq!(ticket.durable().await, Ok(2), "{code}");
        assert_eq!(seqs(&a, 1).await, Some(vec![1, 2]), "{code}");
    }
}

/// Nothing is refused and nothing is answered. A read fails after the limit; the append goes on over another connection,
/// once.
#[tokio::test]
async fn a_database_that_falls_silent_is_asked_again_over_another_connection() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let options = database.options_by(proxy.url(), "a");
    let (a, limit) = (node_with(options.clone()).await, Duration::from_millis(options.statement_timeout_ms));
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    proxy.lose(Lose::Silence);
    let ticket = events(&a).stage(&lease, &[record(1, 2)]).unwrap();
    proxy.losing().await;
    let of_a = events(&a);
    let read = of_a.read(id(1), 0, ReadLimit::frames(9));
    let (read, ()) = tokio::join!(read, async {
        proxy.losing().await;
        proxy.lose(Lose::Nothing);
        jump(limit).await;
    });
    assert!(matches!(read, Err(StoreError::Failed(_))), "{read:?}");
    assert_eq!(in_time("the append", ticket.durable()).await, Ok(2));
    assert_eq!(database.psql("SELECT tail, (SELECT count(*) FROM events) FROM sessions"), "2|2");
    assert_eq!(seqs(&a, 1).await, Some(vec![1, 2]));
}
