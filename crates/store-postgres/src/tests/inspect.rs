//! What upkeep sees of a database: its nodes, and each fault with advice.

use meerkat_service::{
    doctor::{Check, Diagnosis, Severity},
    store::{BlobStore as _, EventStore as _},
};
use meerkat_words::answers::SessionState::{Idle, Running};

use super::{append, bad_input::user, cluster::Database, database, events, id, node};
use crate::{PostgresOptions, blobs::PostgresBlobs, examine, nodes};

async fn look(options: &PostgresOptions) -> Diagnosis {
    examine(options, false).await.unwrap()
}

/// Examines, and expects one finding of this kind with these words.
#[track_caller]
fn one(diagnosis: &Diagnosis, check: Check, severity: Severity, says: &str) {
    let found = &diagnosis.findings;
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].check, found[0].severity), (check, severity), "{found:#?}");
    assert!(found[0].what.contains(says) && !found[0].remedy.is_empty(), "{found:#?}");
}

/// Two nodes with a session each that works, and one that is idle.
async fn worked(database: &Database) {
    let (a, b) = (node(database, "a").await, node(database, "b").await);
    for (store, n, state) in [(&a, 1, Running), (&a, 2, Idle), (&b, 3, Running)] {
        let lease = store.lease(id(n)).await.unwrap();
        append(store, &lease, n, 1..=2, state).await.unwrap();
    }
}

#[tokio::test]
async fn nodes_are_listed_with_their_sessions_and_leases() {
    let database = database!();
    let options = database.options("looks");
    assert_eq!(nodes(&options).await.unwrap(), []);
    worked(&database).await;
    database.expire("b");
    let seen = nodes(&options).await.unwrap();
    let of = |at: usize| (seen[at].node.as_str(), seen[at].is_alive, seen[at].sessions, seen[at].working.clone());
    assert_eq!((seen.len(), of(0), of(1)), (2, ("a", true, 2, vec![id(1)]), ("b", false, 1, vec![id(3)])));
    assert!((500_000..=600_000).contains(&seen[0].lease_ms) && seen[1].lease_ms < 0, "{seen:?}");
    // A node that has ended with nothing to do is not one any more. Looking made no node.
    database.psql("UPDATE sessions SET is_idle = true WHERE node = 'b'");
    assert_eq!(nodes(&options).await.unwrap().iter().map(|it| it.node.clone()).collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn a_sound_database_has_no_findings_and_is_not_changed() {
    let database = database!();
    let options = database.options("looks");
    one(&look(&options).await, Check::Database, Severity::Warning, "has no schema");
    assert_eq!(database.psql("SELECT to_regnamespace(current_schema()) IS NULL"), "t");
    worked(&database).await;
    let diagnosis = look(&options).await;
    assert_eq!((diagnosis.findings.len(), diagnosis.sessions, diagnosis.records), (0, 3, 6), "{diagnosis:#?}");
    assert_eq!(database.psql("SELECT count(*) FROM nodes"), "2");
}

#[tokio::test]
async fn each_fault_is_found_with_its_session() {
    let database = database!();
    let options = database.options("looks");
    worked(&database).await;
    database.psql("DELETE FROM events WHERE seq = 2 AND session = (SELECT min(id::text)::uuid FROM sessions)");
    let diagnosis = look(&options).await;
    one(&diagnosis, Check::Journal, Severity::Error, "1 to 2, but its records go from 1 to 1");
    assert_eq!(diagnosis.findings[0].session_id, Some(id(1)));
    database.psql("DELETE FROM events WHERE session = (SELECT min(id::text)::uuid FROM sessions)");
    one(&look(&options).await, Check::Journal, Severity::Error, "it has no records");
    database.psql("DELETE FROM sessions WHERE id = (SELECT min(id::text)::uuid FROM sessions)");
    assert_eq!(look(&options).await.findings, []);
    database.psql("ALTER FUNCTION append RENAME TO former");
    one(&look(&options).await, Check::Database, Severity::Error, "lacks the function append");
    database.psql("ALTER FUNCTION former RENAME TO append");
    database.expire("b");
    let diagnosis = look(&options).await;
    one(&diagnosis, Check::Journal, Severity::Warning, "the node b, whose lease ended");
    assert_eq!(diagnosis.findings[0].session_id, Some(id(3)));
}

#[tokio::test]
async fn blobs_of_no_session_are_found_and_deleted_and_those_of_sessions_stay() {
    let database = database!();
    let options = database.options("looks");
    worked(&database).await;
    let store = node(&database, "a").await;
    let blobs = PostgresBlobs(store.clone());
    let write = async |n: u8, text: &str| {
        let mut writer = blobs.writer(id(n));
        writer.write(text.as_bytes()).await.unwrap();
        writer.finish().await.unwrap().0
    };
    let kept = write(1, "of a session").await;
    write(9, "of none").await;
    // A session that is being copied has its blobs before its records.
    assert_eq!(look(&options).await.findings, []);
    database.psql("UPDATE blob_parts SET made = now() - interval '2 days'");
    one(&look(&options).await, Check::Database, Severity::Warning, "1 blobs with 7 bytes");
    let mended = examine(&options, true).await.unwrap();
    assert!(mended.findings.len() == 1 && mended.findings[0].mended, "{mended:#?}");
    assert_eq!(look(&options).await.findings, []);
    assert_eq!(database.psql("SELECT (SELECT count(*) FROM blobs), (SELECT count(*) FROM blob_parts)"), "1|1");
    assert_eq!(blobs.list(id(1)).await.unwrap(), [kept.clone()].into());
    database.psql("DELETE FROM blob_parts");
    one(&look(&options).await, Check::Journal, Severity::Error, &format!("blob {kept} lacks a part"));
    assert!(events(&store).tail(id(1)).await.unwrap().is_some());
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_a_finding() {
    let database = database!();
    let poor = user(&database, "poor", "");
    let by = |url: String| database.options_by(url, "looks");
    let url = |user: &str, base: &str| by(database.cluster.url(user, base));
    let is_error = |diagnosis: &Diagnosis, says: &str| {
        let found = diagnosis.findings.iter().find(|it| it.severity == Severity::Error && it.what.contains(says));
        assert!(found.is_some_and(|it| it.check == Check::Database), "{says}: {:#?}", diagnosis.findings);
        assert!(!format!("{diagnosis:?}").contains(super::bad_input::PASSWORD), "{diagnosis:?}");
    };
    is_error(&look(&url(&poor, "nowhere")).await, "Create the database");
    is_error(&look(&by("postgres://u@127.0.0.1:1/d".to_owned())).await, "cannot be reached");
    is_error(&look(&url(&poor, "postgres")).await, "may not make a schema");
    worked(&database).await;
    is_error(&look(&url(&poor, "postgres")).await, "lacks a right");
    let (name, schema) = (poor.split(':').next().unwrap(), &database.schema);
    database.psql(&format!(
        "GRANT USAGE ON SCHEMA {schema} TO {name}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}"
    ));
    is_error(&look(&url(&poor, "postgres")).await, "may not use these tables");
    let everything = format!("GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {name}");
    database.psql(&everything);
    assert_eq!(look(&url(&poor, "postgres")).await.findings, []);
    database.psql(&format!("ALTER ROLE {name} SET default_transaction_read_only = on"));
    is_error(&look(&url(&poor, "postgres")).await, "takes no writes");
    database.psql("UPDATE store SET version = 99");
    one(&look(&database.options("looks")).await, Check::Database, Severity::Error, "version 99");
    database.psql("UPDATE store SET version = 0");
    one(&look(&database.options("looks")).await, Check::Database, Severity::Warning, "version 0");
}
