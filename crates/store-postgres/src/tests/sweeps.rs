//! What is deleted in the background, now and then, and what is listed.

use meerkat_service::store::BlobStore as _;
use meerkat_testkit::until_async;

use super::{database, id, node};
use crate::blobs::PostgresBlobs;

/// A statement that fails leaves the others to the rest.
#[tokio::test]
async fn a_sweep_that_fails_in_part_does_the_rest() {
    let database = database!();
    drop(node(&database, "old").await);
    database.psql(&format!(
        "INSERT INTO inbox (node, session, operation, params, made) \
         VALUES ('b', gen_random_uuid(), 'o', '', now() - interval '2 days'); \
         INSERT INTO nodes VALUES ('ended', 1, now() - interval '8 days'); \
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'it takes too long' USING ERRCODE = '57014'; END $$; \
         CREATE TRIGGER refuse BEFORE DELETE ON blob_parts FOR EACH STATEMENT EXECUTE FUNCTION {}.refuse()",
        database.schema
    ));
    let _node = node(&database, "a").await;
    let left = || database.psql("SELECT (SELECT count(*) FROM inbox), (SELECT count(*) FROM nodes WHERE id = 'ended')");
    until_async("the letters and nodes are swept", || left() == "0|0").await;
}

/// Parts of blobs that no session has leave in many small statements.
#[tokio::test]
async fn many_parts_of_blobs_are_swept() {
    let database = database!();
    drop(node(&database, "old").await);
    database.psql(
        "INSERT INTO blob_parts (body, part, made, data) SELECT gen_random_uuid(), n, now() - interval '2 days', '' \
         FROM generate_series(1, 2500) n",
    );
    let _node = node(&database, "a").await;
    until_async("the parts are swept", || database.psql("SELECT count(*) FROM blob_parts") == "0").await;
}

/// An upload that is cut off, or a tool's output that is interrupted.
#[tokio::test]
async fn a_blob_that_is_not_finished_leaves_no_part() {
    let database = database!();
    let blobs = PostgresBlobs(node(&database, "a").await);
    let parts = || database.psql("SELECT count(*) FROM blob_parts");
    let mut writer = blobs.writer(id(1));
    writer.write(&vec![7; 1_000_000]).await.unwrap();
    assert_eq!(parts(), "3");
    drop(writer);
    until_async("its parts are gone", || parts() == "0").await;
    let mut writer = blobs.writer(id(1));
    writer.write(&vec![7; 1_000_000]).await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(parts(), "4");
}

/// The database's clock is days ahead when it sweeps, or was behind when a key was stored.
#[tokio::test]
async fn no_reading_of_the_databases_clock_takes_a_key() {
    let database = database!();
    drop(node(&database, "old").await);
    let store = |name: &str, count: u64, days: u64| {
        database.psql(&format!(
            "INSERT INTO keys (scope, key, session, time, entry, stored) SELECT '00000000-0000-0000-0000-000000000000', \
             '{name}' || n, gen_random_uuid(), 0, '', now() - interval '{days} days' FROM generate_series(1, {count}) n"
        ))
    };
    // The letter is swept before the keys, and the node after them.
    let letter = || {
        database.psql(
            "INSERT INTO inbox (node, session, operation, params, made) \
             VALUES ('b', gen_random_uuid(), 'o', '', now() - interval '2 days'); \
             INSERT INTO nodes VALUES ('ended', 1, now() - interval '8 days')",
        )
    };
    let swept = || database.psql("SELECT count(*) FROM nodes WHERE id = 'ended'") == "0";
    let left = || database.psql("SELECT count(*), count(*) FILTER (WHERE key LIKE 'old%') FROM keys");
    store("old", 3, 30);
    store("newer", 9997, 3);
    letter();
    let first = node(&database, "a").await;
    until_async("the first sweep", swept).await;
    assert_eq!(left(), "10000|3");
    drop(first);
    // Beyond the newest, those leave that are old by the time which these have reached.
    store("new", 10_000, 1);
    letter();
    let _second = node(&database, "b").await;
    until_async("the second sweep", swept).await;
    assert_eq!(left(), "10000|0");
}
