//! Deletions beside other nodes.

use meerkat_service::store::{EventStore as _, StoreError};
use meerkat_words::answers::SessionState::{Idle, Running};

use super::{append, database, events, id, node, seqs};

/// A node whose idle session has moved does not know of the turn that runs at the other one.
#[tokio::test]
async fn a_former_owner_deletes_no_session_that_another_node_works_on() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let of_a = a.lease(id(1)).await.unwrap();
    append(&a, &of_a, 1, 1..=2, Idle).await.unwrap();
    let of_b = b.lease(id(1)).await.unwrap();
    append(&b, &of_b, 1, 3..=3, Running).await.unwrap();

    match events(&a).delete(id(1)).await {
        Err(StoreError::HeldBy { session_id, holder }) => {
            assert_eq!((session_id, holder.node.as_str()), (id(1), "b"));
        }
        other => panic!("{other:?}"),
    }
    append(&b, &of_b, 1, 4..=4, Idle).await.unwrap();
    assert_eq!(seqs(&b, 1).await, Some(vec![1, 2, 3, 4]));
    // One that rests anybody may delete; deleted again it is still deleted.
    events(&a).delete(id(1)).await.unwrap();
    events(&a).delete(id(1)).await.unwrap();
    assert_eq!(seqs(&b, 1).await, None);
    assert_eq!(append(&b, &of_b, 1, 5..=5, Running).await, Err(StoreError::Fenced));
}

/// The turn of another node ends between the statement that would delete its session and the question who has it.
#[tokio::test]
async fn a_deletion_beside_a_turn_that_ends_deletes_all_or_nothing() {
    let database = database!();
    let (a, b) = (node(&database, "a").await, node(&database, "b").await);
    let of_b = b.lease(id(1)).await.unwrap();
    append(&b, &of_b, 1, 1..=2, Running).await.unwrap();
    // A statement that changes no session waits behind its work until the gate is open.
    database.psql(&format!(
        "CREATE TABLE gate (is_open boolean); CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         IF NOT EXISTS (SELECT FROM changed) THEN WHILE NOT EXISTS (SELECT FROM {}.gate) LOOP \
         PERFORM pg_sleep(0.005); END LOOP; END IF; RETURN NULL; END $$; \
         CREATE TRIGGER wait AFTER UPDATE ON sessions REFERENCING NEW TABLE AS changed FOR EACH STATEMENT \
         EXECUTE FUNCTION wait()",
        database.schema
    ));
    let deletes = tokio::spawn({
        let events = events(&a);
        async move { events.delete(id(1)).await }
    });
    let sql = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%{}%tail = 0,%'",
        database.schema
    );
    let waits = || database.psql(&sql) != "0";
    meerkat_testkit::until_async("the deletion waits", waits).await;
    append(&b, &of_b, 1, 3..=3, Idle).await.unwrap();
    database.psql("INSERT INTO gate VALUES (true)");
    assert_eq!(deletes.await.unwrap(), Ok(()));
    let left = || database.psql("SELECT tail, (SELECT count(*) FROM events) FROM sessions");
    assert_eq!(left(), "0|0");
    assert_eq!(append(&b, &of_b, 1, 4..=4, Running).await, Err(StoreError::Fenced));
    assert_eq!(left(), "0|0");
}
