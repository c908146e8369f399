//! Two nodes on one database: who may append, and what a stalled owner can still do.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use meerkat_service::store::{
    EventStore as _, Fate, Inbox as _, Lease, Letter, ReadLimit, SessionIndex as _, StoreError,
};
use meerkat_testkit::{campaigns::Part, in_time, until_asked, until_async};
use meerkat_words::{
    SessionError,
    answers::SessionState::{Idle, Running},
};
use uuid::Uuid;

use super::{
    agents::hear,
    append,
    cluster::Database,
    database, events, id, jump, node, node_with,
    proxy::{Lose, Proxy},
    record, row, seqs,
};
use crate::{PostgresOptions, inbox::PostgresInbox, index::PostgresIndex, node::Moment, store::Store};

#[tokio::test]
async fn a_live_node_that_works_keeps_its_session_and_an_idle_session_moves() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let of_a = a.lease(id(1)).await.unwrap();
    append(&a, &of_a, 1, 1..=2, Running).await.unwrap();
    match b.lease(id(1)).await {
        Err(StoreError::HeldBy { session_id, holder }) => {
            assert_eq!((session_id, holder.node.as_str()), (id(1), "a"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(b.holder(id(1)).await.unwrap().map(|holder| holder.node), Some("a".to_owned()));
    append(&a, &of_a, 1, 3..=3, Idle).await.unwrap();
    assert_eq!(b.holder(id(1)).await.unwrap(), None);
    let of_b = b.lease(id(1)).await.unwrap();
    assert!(of_b.epoch > of_a.epoch && of_b.tail == 3, "{of_b:?}");
    // What the former owner still has is refused, and nothing of it is stored.
    assert_eq!(append(&a, &of_a, 1, 4..=4, Running).await, Err(StoreError::Fenced));
    assert_eq!(events(&a).stage(&of_a, &[record(1, 4)]).err(), Some(StoreError::Fenced));
    assert_eq!(append(&b, &of_b, 1, 4..=5, Running).await, Ok(5));
    assert_eq!(seqs(&a, 1).await, Some(vec![1, 2, 3, 4, 5]));
}

/// The three traps of leases: a stalled owner that extends, strips, or overwrites what its successor has.
#[tokio::test]
async fn a_stalled_owner_neither_extends_nor_strips_nor_overwrites_its_successors_lease() {
    let database = database!();
    let (a, b, c) = (node(&database, "a").await, node(&database, "b").await, node(&database, "c").await);
    let of_a = a.lease(id(1)).await.unwrap();
    append(&a, &of_a, 1, 1..=2, Running).await.unwrap();
    assert_eq!(b.orphans(false).await.unwrap(), []);
    database.expire("a");
    assert_eq!(b.orphans(false).await.unwrap(), [id(1)]);
    let of_b = b.lease(id(1)).await.unwrap();
    assert!(of_b.epoch > of_a.epoch && of_b.tail == 2, "{of_b:?}");
    append(&b, &of_b, 1, 3..=3, Running).await.unwrap();
    let owner = || database.psql("SELECT node, epoch, tail FROM sessions");
    let due = format!("b|{}|3", of_b.epoch);

    // Extends: its renewal is for its own row alone, so that the end of b's lease stays b's.
    let until = || database.psql("SELECT alive_until FROM nodes WHERE id = 'b'");
    let before = until();
    a.renew().await.unwrap();
    assert_eq!((until(), owner()), (before, due.clone()));
    database.expire("b");
    assert_eq!(c.orphans(false).await.unwrap(), [id(1)]);
    b.renew().await.unwrap();

    // Strips: what it gives back is not b's lease.
    a.release(of_a).await.unwrap();
    a.settle(id(1), 3).await.unwrap();
    assert_eq!(owner(), due);
    assert!(matches!(c.lease(id(1)).await, Err(StoreError::HeldBy { .. })));

    // Overwrites: a batch that it had staged for the same place is not stored, even by a copy that trusts its lease.
    for tail in [2, 3] {
        a.logs().lease(id(1), i64::try_from(of_a.epoch).unwrap(), tail);
        assert_eq!(append(&a, &of_a, 1, tail + 1..=4, Idle).await, Err(StoreError::Fenced), "{tail}");
    }
    assert_eq!(owner(), due);
    assert_eq!(append(&b, &of_b, 1, 4..=4, Running).await, Ok(4));
}

#[tokio::test]
async fn a_successor_of_the_same_name_has_the_sessions_at_once() {
    let database = database!();
    let first = node(&database, "a").await;
    let of_first = first.lease(id(1)).await.unwrap();
    append(&first, &of_first, 1, 1..=2, Running).await.unwrap();
    let resting = first.lease(id(2)).await.unwrap();
    append(&first, &resting, 2, 1..=1, Idle).await.unwrap();
    first.release(resting).await.unwrap();
    let second = node(&database, "a").await;
    assert_eq!(second.orphans(true).await.unwrap(), [id(1)]);
    let of_second = second.lease(id(1)).await.unwrap();
    assert_eq!(of_second.tail, 2);
    // The former process gives way as soon as it renews.
    first.renew().await.unwrap();
    assert!(!first.node.has_authority());
    let told = SessionError::from(first.room().unwrap_err()).to_string();
    assert_eq!(told, "The store cannot be written: another process runs as node a; give each its own name.");
    assert_eq!(append(&first, &of_first, 1, 3..=3, Running).await, Err(StoreError::Fenced));
    assert_eq!(append(&second, &of_second, 1, 3..=3, Running).await, Ok(3));
    assert_eq!(second.orphans(false).await.unwrap(), []);
}

/// Without a confirmed renewal a node gives up, and what is staged there is fenced.
#[tokio::test]
async fn a_lease_that_is_not_confirmed_in_time_is_lost() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let a = node_with(database.options_by(proxy.url(), "a")).await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    proxy.lose(Lose::All);
    assert!(a.node.has_authority());
    jump(a.node.pause() * 3).await;
    assert_eq!(events(&a).stage(&lease, &[record(1, 2)]).err(), Some(StoreError::Fenced));
    assert!(matches!(a.lease(id(1)).await, Err(StoreError::Failed(_))));
    proxy.lose(Lose::Nothing);
    a.renew().await.unwrap();
    let again = a.lease(id(1)).await.unwrap();
    assert!(again.epoch > lease.epoch && again.tail == 1, "{again:?}");
    assert_eq!(append(&a, &again, 1, 2..=2, Running).await, Ok(2));
}

/// A node that was stopped for too long, with its lease: it believes that it still works on a session of two records, of
/// which another node has made five.
async fn stalled(database: &Database) -> (Arc<Store>, Lease) {
    let (a, b) = (node(database, "a").await, node(database, "b").await);
    let of_a = a.lease(id(1)).await.unwrap();
    append(&a, &of_a, 1, 1..=2, Running).await.unwrap();
    database.expire("a");
    let of_b = b.lease(id(1)).await.unwrap();
    append(&b, &of_b, 1, 3..=5, Running).await.unwrap();
    (a, of_a)
}

#[tokio::test]
async fn what_a_stalled_owner_shows_is_what_the_database_has() {
    let database = database!();
    let (a, _) = stalled(&database).await;
    let watch = events(&a).watch(id(1)).await.unwrap().unwrap();
    assert_eq!(*watch.borrow(), 5);
    assert!(!events(&a).holds(id(1)).await.unwrap());
}

#[tokio::test]
async fn an_owner_whose_lease_has_ended_by_its_own_clock_asks_the_database() {
    let database = database!();
    let (a, of_a) = stalled(&database).await;
    jump(a.node.pause() * 3).await;
    assert_eq!(events(&a).tail(id(1)).await.unwrap(), Some(5));
    a.logs().lease(id(1), i64::try_from(of_a.epoch).unwrap(), 2);
    jump(a.node.pause() * 3).await;
    a.renew().await.unwrap();
    assert!(a.node.has_authority() && !a.logs().is_leased(id(1)), "a renewal brings no lease back");
}

/// Its sender has ended, or has given up: what it asked for is not done an hour later.
#[tokio::test]
async fn a_letter_that_lay_there_for_too_long_is_never_run() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let (a, b) = (PostgresInbox(a), PostgresInbox(b));
    let (node, operation, params) = ("a".to_owned(), "pin".to_owned(), "{}".to_owned());
    let letter = Letter { node, session_id: id(1), operation, params };
    let taken = async |work: &[_]| a.take(work).await.unwrap().into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    let leave = async |number| {
        let id = Uuid::from_u128(number);
        b.leave(id, &letter).await.unwrap();
        id
    };
    let at_work = leave(1).await;
    assert_eq!(taken(&[]).await, [at_work]);
    let late = leave(2).await;
    database.psql("UPDATE inbox SET made = made - interval '30 seconds'");
    assert_eq!(taken(&[]).await, [at_work], "the reply that brought it may have gone lost");
    assert_eq!(b.fate(late, true).await, Ok(Fate::Returned));
    let new = leave(3).await;
    assert_eq!(taken(&[at_work]).await, [new]);
}

/// A node that was replaced, and has not noticed it yet, takes nothing; and what it had taken is lost, not for ever open.
#[tokio::test]
async fn letters_are_for_the_newest_process_of_a_node() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let (former, b) = (PostgresInbox(a), PostgresInbox(b));
    let (name, operation, params) = ("a".to_owned(), "pin".to_owned(), "{}".to_owned());
    let letter = Letter { node: name, session_id: id(1), operation, params };
    let [taken, left] = [1, 2].map(Uuid::from_u128);
    b.leave(taken, &letter).await.unwrap();
    assert_eq!(former.take(&[]).await, Ok(vec![(taken, letter.clone())]));
    assert_eq!(b.fate(taken, false).await, Ok(Fate::Open));
    let newest = PostgresInbox(node(&database, "a").await);
    b.leave(left, &letter).await.unwrap();
    assert_eq!(former.take(&[taken]).await, Ok(vec![]));
    assert_eq!(newest.take(&[]).await, Ok(vec![(left, letter)]));
    assert_eq!(b.fate(taken, false).await, Ok(Fate::Lost));
}

/// A letter is there once, and its answer for as long as its sender has not read it.
#[tokio::test]
async fn a_letter_and_its_answer_survive_replies_that_are_lost() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let (a, b) = (node(&database, "a").await, node_with(database.options_by(proxy.url(), "b")).await);
    let (a, b) = (PostgresInbox(a), PostgresInbox(b));
    let (node, operation, params) = ("a".to_owned(), "pin".to_owned(), "{}".to_owned());
    let letter = Letter { node, session_id: id(1), operation, params };
    let number = Uuid::from_u128(1);
    proxy.lose(Lose::ReplyTo("inbox (id, node"));
    assert!(b.leave(number, &letter).await.is_err() && proxy.has_lost());
    b.leave(number, &letter).await.unwrap();
    assert_eq!(a.take(&[]).await, Ok(vec![(number, letter)]));
    a.answer(number, "ok {}".to_owned()).await.unwrap();
    proxy.lose(Lose::ReplyTo("inbox i WHERE"));
    assert!(b.fate(number, false).await.is_err() && proxy.has_lost());
    assert_eq!(b.fate(number, false).await, Ok(Fate::Answered("ok {}".to_owned())));
    assert_eq!(database.psql("SELECT count(*) FROM inbox"), "0");
}

/// A renewal is due after a third of the lease; one that failed, after a fifth of that time.
#[tokio::test]
async fn a_renewal_that_fails_is_tried_again_soon() {
    let database = database!();
    let proxy = Proxy::start(&database).await;
    let failed = Arc::<AtomicU64>::default();
    let _hears = hear("the lease of this node was not renewed; it is tried again", failed.clone());
    let (a, b) = (node_with(database.options_by(proxy.url(), "a")).await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    proxy.lose(Lose::ReplyTo("nodes SET alive_until"));
    jump(a.node.pause()).await;
    until_async("a renewal fails", || failed.load(Ordering::Relaxed) == 1).await;
    database.expire("a");
    assert_eq!(b.orphans(false).await, Ok(vec![id(1)]));
    jump(a.node.pause() / 5).await;
    until_asked("it is tried again", async || b.orphans(false).await == Ok(Vec::new())).await;
    assert_eq!(append(&a, &lease, 1, 2..=2, Running).await, Ok(2));
}

/// One session, free each time: given back, or left by a node that ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_who_race_for_a_lease_exactly_one_has_it() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let (races, mut wins, mut epoch) = (if Part::Store.is_whole() { 10_000 } else { 300 }, [0_u64; 2], 0);
    for race in 1..=races {
        let (of_a, of_b) = tokio::join!(a.lease(id(1)), b.lease(id(1)));
        let (winner, lease, lost) = match (of_a, of_b) {
            (Ok(lease), Err(lost)) => (&a, lease, lost),
            (Err(lost), Ok(lease)) => (&b, lease, lost),
            both => panic!("race {race}: {both:?}"),
        };
        let held = matches!(&lost, StoreError::HeldBy { holder, .. } if holder.node == winner.node.name);
        assert!(held, "race {race}: {lost:?}");
        assert!(lease.epoch > epoch, "race {race}: {lease:?}");
        let tail = lease.tail;
        epoch = lease.epoch;
        wins[usize::from(winner.node.name == "b")] += 1;
        assert_eq!(append(winner, &lease, 1, tail + 1..=tail + 1, Running).await, Ok(tail + 1));
        if race % 2 == 0 {
            winner.release(lease).await.unwrap();
        } else {
            winner.logs().unlease(id(1), i64::try_from(lease.epoch).unwrap());
            winner.db.execute("UPDATE meerkat.sessions SET node = 'ended'", &[]).await.unwrap();
        }
    }
    writeln!(std::io::stderr(), "races for one lease: races {races}, won by each {wins:?}, violations 0").unwrap();
    assert_eq!(database.psql("SELECT tail, (SELECT count(*) FROM events) FROM sessions"), format!("{races}|{races}"));
}

/// Other nodes wait for no lease of it; a renewal that was under way changes nothing, nor does what it still has.
#[tokio::test]
async fn the_sessions_of_a_node_that_ends_in_order_are_free_at_once() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=2, Running).await.unwrap();
    assert_eq!(b.orphans(false).await, Ok(vec![]));
    events(&a).end_leases().await;
    a.renew().await.unwrap();
    assert_eq!(b.orphans(false).await, Ok(vec![id(1)]));
    assert_eq!(append(&a, &lease, 1, 3..=3, Running).await, Err(StoreError::Fenced));
    let of_b = b.lease(id(1)).await.unwrap();
    assert_eq!(append(&b, &of_b, 1, 3..=3, Running).await, Ok(3));
    assert_eq!(seqs(&a, 1).await, Some(vec![1, 2, 3]));
    // The next process of the name begins anew.
    let next = node(&database, "a").await;
    let of_next = next.lease(id(2)).await.unwrap();
    assert_eq!(append(&next, &of_next, 2, 1..=1, Running).await, Ok(1));
}

/// The runtime's clock stands still while the machine sleeps, and the database's does not.
#[tokio::test]
async fn a_node_whose_machine_slept_past_its_lease_has_no_authority() {
    let database = database!();
    // The machine must have run for longer.
    let a = node_with(PostgresOptions { lease_ms: 60_000, ..database.options("a") }).await;
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    let Moment(sent, since_boot) = a.node.renew(&a.db).await.unwrap();
    let a_lease = a.node.pause() * 3;
    a.node.confirm(Moment(sent, since_boot.checked_sub(a_lease).unwrap()));
    assert!(!a.node.has_authority());
    assert_eq!(append(&a, &lease, 1, 2..=2, Running).await, Err(StoreError::Fenced));
    // Only the next renewal gives it back, after every lease has ended.
    a.renew().await.unwrap();
    assert!(a.node.has_authority());
    assert_eq!(append(&a, &lease, 1, 2..=2, Running).await, Err(StoreError::Fenced));
}

/// Settling a session may come late, when it is leased again: its work is this node's all the same.
#[tokio::test]
async fn a_session_that_is_settled_late_stays_its_owners() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Idle).await.unwrap();
    database.psql("UPDATE sessions SET node = NULL");
    append(&a, &lease, 1, 2..=2, Running).await.unwrap();
    assert!(matches!(b.lease(id(1)).await, Err(StoreError::HeldBy { holder, .. }) if holder.node == "a"));
    database.expire("a");
    assert_eq!(b.orphans(false).await.unwrap(), [id(1)]);
    // Who looked at it before its last record settles nothing.
    b.settle(id(1), 1).await.unwrap();
    assert_eq!(database.psql("SELECT node FROM sessions"), "a");
    b.settle(id(1), 2).await.unwrap();
    assert_eq!(database.psql("SELECT node FROM sessions"), "");
}

/// A node ends between a fork and its row in lists: the next one that looks finds the fork.
#[tokio::test]
async fn a_fork_that_is_not_listed_yet_is_found_if_its_node_ends() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Idle).await.unwrap();
    a.release(lease).await.unwrap();
    events(&a).fork(id(1), 1, &[record(2, 2)]).await.unwrap();
    database.expire("a");
    assert_eq!(b.orphans(false).await.unwrap(), [id(2)]);
    PostgresIndex(a.clone()).put_found(row(2, 2, Idle)).await.unwrap();
    assert_eq!(
        (b.orphans(true).await.unwrap(), database.psql("SELECT count(node) FROM sessions")),
        (vec![], "0".to_owned())
    );
}

/// Both nodes that live have had the session themselves, and have not looked at it since.
#[tokio::test]
async fn a_lease_of_before_keeps_no_node_from_taking_a_session_over() {
    let database = database!();
    let (a, b, c) = (node(&database, "a").await, node(&database, "b").await, node(&database, "c").await);
    for (of, seq) in [(&b, 1), (&c, 2)] {
        let lease = of.lease(id(1)).await.unwrap();
        append(of, &lease, 1, seq..=seq, Idle).await.unwrap();
    }
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 3..=3, Running).await.unwrap();
    assert_eq!(c.orphans(false).await.unwrap(), [], "its node lives");
    database.expire("a");
    assert_eq!(b.orphans(false).await.unwrap(), [id(1)]);
    assert_eq!(c.orphans(false).await.unwrap(), [id(1)]);
    assert!(!events(&c).holds(id(1)).await.unwrap(), "what is in memory there is of the past");
    let lease = b.lease(id(1)).await.unwrap();
    append(&b, &lease, 1, 4..=4, Running).await.unwrap();
    // Its own work is no orphan.
    database.expire("b");
    assert_eq!(b.orphans(false).await.unwrap(), []);
}

/// A node that is stopped in the middle of a transaction keeps no lock for longer than a statement may take.
#[tokio::test]
async fn an_owner_that_is_stopped_in_a_transaction_does_not_keep_its_session() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    // As if a statement might take so long alone.
    let limited = a.db.within(Duration::from_secs(20));
    let mut connection = limited.connection().await.unwrap();
    let work = connection.begin().await.unwrap();
    work.execute("UPDATE meerkat.sessions SET bytes = bytes", &[]).await.unwrap();
    database.expire("a");
    assert_eq!(b.lease(id(1)).await.map(|lease| lease.tail), Ok(1));
    assert!(work.commit().await.is_err(), "its transaction was ended");
}

#[tokio::test]
async fn a_follower_elsewhere_sees_every_record_and_the_end() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let lease = a.lease(id(1)).await.unwrap();
    append(&a, &lease, 1, 1..=1, Running).await.unwrap();
    let mut watch = events(&b).watch(id(1)).await.unwrap().unwrap();
    assert_eq!(*watch.borrow(), 1);
    append(&a, &lease, 1, 2..=4, Running).await.unwrap();
    in_time("the records", watch.wait_for(|seq| *seq >= 4)).await.unwrap();
    let page = events(&b).read(id(1), 1, ReadLimit::frames(2)).await.unwrap().unwrap();
    assert_eq!(page.frames.iter().map(|frame| frame.seq).collect::<Vec<_>>(), [2, 3]);
    events(&a).delete(id(1)).await.unwrap();
    // The sender is dropped when the deletion is seen.
    in_time("the end", async { while watch.changed().await.is_ok() {} }).await;
    assert!(events(&b).watch(id(1)).await.unwrap().is_none());
}
