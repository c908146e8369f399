//! Databases that cannot be used: each with a code and a sentence that says what to do, and never the password.

use meerkat_errors::ErrorCode;
use meerkat_testkit::needs;

use super::{
    cluster::{self, Database},
    database,
};
use crate::{PostgresOptions, open};

/// Password in every address.
pub(super) const PASSWORD: &str = "s3cret-and-long";

async fn refused(options: PostgresOptions) -> (ErrorCode, String) {
    assert!(!format!("{options:?}").contains(PASSWORD));
    let error = open(options).await.err().expect("the database was taken");
    let text = format!("{error} {error:?} {:?}", error.body());
    assert!(!text.contains(PASSWORD), "{text}");
    (error.code(), error.to_string())
}

/// Makes a user whose right to come in is its password.
pub(super) fn user(database: &Database, name: &str, more: &str) -> String {
    let user = format!("{}_{name}", database.schema);
    database.psql(&format!("CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}' {more}"));
    format!("{user}:{PASSWORD}")
}

#[tokio::test]
async fn each_database_that_cannot_be_used_is_refused_with_advice() {
    let database = database!();
    database.psql(&format!("DO $$ BEGIN CREATE ROLE guarded LOGIN PASSWORD '{PASSWORD}'; END $$"));
    let (poor, reader) = (user(&database, "poor", ""), user(&database, "reader", ""));
    let name = reader.split(':').next().unwrap();
    database.psql(&format!("ALTER ROLE {name} SET default_transaction_read_only = on"));
    let careless = user(&database, "careless", "SUPERUSER");
    let name = careless.split(':').next().unwrap();
    database.psql(&format!("ALTER ROLE {name} SET synchronous_commit = off"));
    let url = |user: &str, base: &str| database.options_by(database.cluster.url(user, base), "a");
    for (options, code, says) in [
        (database.options_by(format!("mysql://u:{PASSWORD}@h/d"), "a"), ErrorCode::ConfigInvalid, "postgres://"),
        (
            url(&format!("guarded:{PASSWORD}x"), "postgres"),
            ErrorCode::ConfigInvalid,
            "Correct the user or the password",
        ),
        (url(&poor, "nowhere"), ErrorCode::ConfigInvalid, "Create the database"),
        (url(&poor, "postgres"), ErrorCode::StoreNotWritable, "GRANT CREATE ON DATABASE"),
        (url(&reader, "postgres"), ErrorCode::StoreNotWritable, "takes no writes"),
        (url(&careless, "postgres"), ErrorCode::ConfigInvalid, "synchronous_commit is off"),
        (
            database.options_by(format!("postgres://u:{PASSWORD}@127.0.0.1:1/d"), "a"),
            ErrorCode::StoreFailed,
            "cannot be reached",
        ),
        (
            PostgresOptions { schema: "pg_x".to_owned(), ..url(&poor, "postgres") },
            ErrorCode::ConfigInvalid,
            "store.schema",
        ),
        (
            PostgresOptions { connections: 2, ..database.options("a") },
            ErrorCode::ConfigInvalid,
            "store.connections: it must be from 3 to 1000",
        ),
        (
            PostgresOptions { statement_timeout_ms: 2_147_483_648, ..database.options("a") },
            ErrorCode::ConfigInvalid,
            "store.statement_timeout_ms: it must be from 1 to 2147483647",
        ),
        (
            PostgresOptions { lease_ms: 0, ..database.options("a") },
            ErrorCode::ConfigInvalid,
            "store.lease_ms: it must be from 100 to 2147483647",
        ),
    ] {
        let (found, sentence) = refused(options).await;
        assert!(found == code && sentence.contains(says), "{found:?}: {sentence}");
    }
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_changed() {
    let database = database!();
    drop(open(database.options("a")).await.unwrap());
    database.psql("UPDATE store SET version = 99");
    let (code, sentence) = refused(database.options("a")).await;
    assert!(code == ErrorCode::StoreFormatUnsupported && sentence.contains("version 99"), "{code:?}: {sentence}");
    assert_eq!(database.psql("SELECT version FROM store"), "99");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_that_start_together_make_one_schema() {
    let database = database!();
    let opened = futures::future::join_all(["a", "b", "c", "d"].map(|node| open(database.options(node)))).await;
    let ids: Vec<_> = opened.into_iter().map(|stores| stores.unwrap().events.id().unwrap()).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn a_certificate_that_does_not_match_ends_the_connection() {
    let database = database!();
    needs!("openssl");
    let (cluster, address) = cluster::with_tls();
    let authority = format!("sslrootcert={}", cluster.dir.join("ca.pem").display());
    let options = |host: &str, more: &str| {
        let url = format!("postgres://meerkat:{PASSWORD}@{host}/postgres?hostaddr={address}&{more}");
        database.options_by(url, "a")
    };
    drop(open(options("localhost", &authority)).await.unwrap());
    for (host, more) in [("127.0.0.1", authority.as_str()), ("localhost", "sslmode=verify-full")] {
        let (code, sentence) = refused(options(host, more)).await;
        assert!(code == ErrorCode::ConfigInvalid && sentence.contains("certificate"), "{code:?}: {sentence}");
    }
    // The server takes no connection without TLS, and the file must be one of certificates.
    assert_eq!(refused(options("localhost", "sslmode=disable")).await.0, ErrorCode::ConfigInvalid);
    let (code, sentence) = refused(options("localhost", "sslrootcert=/nowhere.pem")).await;
    assert!(code == ErrorCode::ConfigInvalid && sentence.contains("/nowhere.pem"), "{code:?}: {sentence}");
}
