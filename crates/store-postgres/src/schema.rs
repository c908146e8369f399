//! The schema: numbered migrations, each run once, under the lock of one row. A newer schema is refused.

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::SessionError;
use uuid::Uuid;

use crate::{
    db::{Db, column},
    trouble::Trouble,
};

/// Migrations in order; the first makes version 1.
const MIGRATIONS: [&str; 3] =
    [include_str!("migrations/0001.sql"), include_str!("migrations/0002.sql"), include_str!("migrations/0003.sql")];

/// Oldest server that is supported.
const SERVER_VERSION_MIN: i32 = 140_000;

/// Attempts to make the schema while another process makes it, too.
const ATTEMPTS: u32 = 5;

/// Reason that a database cannot be used.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// With the code and sentence for users.
    Named(ErrorCode, String),
    Trouble(Trouble),
}

impl From<Trouble> for Refusal {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl Refusal {
    /// Makes the error of a service that cannot be opened.
    pub(crate) fn error(self, database: &str) -> SessionError {
        let (code, message) = match self {
            Self::Named(code, message) => (code, message),
            Self::Trouble(Trouble::Refused { state, message }) => described(&state, &message, database),
            Self::Trouble(Trouble::Unreached(why)) => unreached(&why, database),
            Self::Trouble(Trouble::Lost(why)) => {
                (ErrorCode::StoreFailed, format!("The database {database} does not answer: {why}. Try again."))
            }
            Self::Trouble(Trouble::Unreadable(why)) => {
                (ErrorCode::StoreFormatUnsupported, format!("The database {database} cannot be read: {why}."))
            }
            Self::Trouble(Trouble::Answer(error)) => return error.into(),
        };
        SessionError::Failed(Box::new(ErrorBody::with_message(code, message)))
    }
}

/// Describes a server's refusal of a statement.
fn described(state: &str, message: &str, database: &str) -> (ErrorCode, String) {
    match state {
        "42501" => (
            ErrorCode::StoreNotWritable,
            format!(
                "The user of store.url lacks a right in {database}: {message}. Grant it (GRANT CREATE ON DATABASE makes \
                 the schema, USAGE and CREATE ON SCHEMA its tables), or name another user."
            ),
        ),
        "25006" => (ErrorCode::StoreNotWritable, standby(database)),
        "53100" => (
            ErrorCode::StoreFull,
            format!("The database {database} has no room left: {message}. Free some space and try again."),
        ),
        _ => (ErrorCode::StoreFailed, format!("The database {database} refused: {message} ({state}).")),
    }
}

fn standby(database: &str) -> String {
    format!(
        "The database {database} takes no writes; it is a standby, or its user is read-only. Name the primary server in \
         store.url; with several hosts, target_session_attrs=read-write finds it."
    )
}

/// Describes a connection that could not be made.
fn unreached(why: &str, database: &str) -> (ErrorCode, String) {
    let advice = match why {
        _ if why.contains("(28P01)") || why.contains("(28000)") => "Correct the user or the password in store.url",
        _ if why.contains("password missing") => "Put the password of the user into store.url",
        _ if why.contains("(3D000)") => "Create the database, or name another one in store.url",
        _ if why.contains("certificate") => {
            "Name the host as its certificate does, or the file of its authority with ?sslrootcert=FILE in store.url"
        }
        _ if why.contains("does not support TLS") => {
            "Switch TLS on at the server, or, in a network that no one else can read, add ?sslmode=disable to store.url"
        }
        _ => {
            return (
                ErrorCode::StoreFailed,
                format!(
                    "The database {database} cannot be reached: {why}. Start it, or correct the address in store.url."
                ),
            );
        }
    };
    (ErrorCode::ConfigInvalid, format!("store.url: the database {database} refused the connection: {why}. {advice}."))
}

/// Checks that a name can be a schema's.
pub(crate) fn check_name(schema: &str) -> Result<(), String> {
    let is_word = schema.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    let begins = schema.bytes().next().is_some_and(|byte| !byte.is_ascii_digit());
    match is_word && begins && schema.len() <= 48 && !schema.starts_with("pg_") {
        true => Ok(()),
        false => Err("it must have 1 to 48 of a-z, 0-9 and _, begin with no digit, and not with pg_".to_owned()),
    }
}

/// Returns the version that this program makes.
pub(crate) fn current() -> i32 {
    i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX)
}

/// Makes or updates the schema; returns the store's id.
pub(crate) async fn prepare(db: &Db) -> Result<Uuid, Refusal> {
    check_server(db).await?;
    let current = current();
    if let Some((version, id)) = stored(db).await? {
        refuse_newer(db, version)?;
        if version == current {
            return Ok(id);
        }
    }
    let mut attempt = 1;
    loop {
        match migrate(db, current).await {
            // Another process makes the same objects at the same time.
            Err(Refusal::Trouble(Trouble::Refused { state, .. }))
                if attempt < ATTEMPTS
                    && matches!(state.as_str(), "23505" | "42P06" | "42P07" | "40001" | "40P01" | "XX000") =>
            {
                attempt += 1;
            }
            done => return done,
        }
    }
}

/// Refuses servers that cannot keep the store's promises.
pub(crate) async fn check_server(db: &Db) -> Result<(), Refusal> {
    let row = db
        .query_opt(
            "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), \
             current_setting('synchronous_commit'), pg_is_in_recovery(), \
             current_setting('transaction_read_only') = 'on'",
            &[],
        )
        .await?;
    let Some(row) = row else { return Err(Trouble::Unreadable("it has no settings".to_owned()).into()) };
    let version: i32 = column(&row, 0)?;
    let (encoding, commits): (String, String) = (column(&row, 1)?, column(&row, 2)?);
    let (is_standby, is_read_only): (bool, bool) = (column(&row, 3)?, column(&row, 4)?);
    let refuse = |code, message: String| Err(Refusal::Named(code, message));
    let name = &db.name;
    if version < SERVER_VERSION_MIN {
        let found = version / 10_000;
        let message = format!("The database {name} is PostgreSQL {found}; meerkat needs 14 or later.");
        return refuse(ErrorCode::StoreFormatUnsupported, message);
    }
    if is_standby || is_read_only {
        return refuse(ErrorCode::StoreNotWritable, standby(name));
    }
    if encoding != "UTF8" {
        let message = format!(
            "The database {name} has the encoding {encoding}; create one with ENCODING 'UTF8' and name it in store.url."
        );
        return refuse(ErrorCode::StoreFormatUnsupported, message);
    }
    if commits == "off" {
        let message = format!(
            "store.url: synchronous_commit is off for this user of {name}, so that what was confirmed could be lost; run \
             ALTER ROLE … SET synchronous_commit = on."
        );
        return refuse(ErrorCode::ConfigInvalid, message);
    }
    Ok(())
}

/// Reads the schema's version and the store's id, if there is a schema.
pub(crate) async fn stored(db: &Db) -> Result<Option<(i32, Uuid)>, Trouble> {
    let is_there = db.query_opt("SELECT to_regclass('meerkat.store') IS NOT NULL", &[]).await?;
    let is_there: bool = is_there.map_or(Ok(false), |row| column(&row, 0))?;
    if !is_there {
        return Ok(None);
    }
    let row = db.query_opt("SELECT version, id FROM meerkat.store", &[]).await?;
    row.map(|row| Ok((column(&row, 0)?, column(&row, 1)?))).transpose()
}

/// Refuses the schema of a newer version.
pub(crate) fn refuse_newer(db: &Db, version: i32) -> Result<(), Refusal> {
    let known = MIGRATIONS.len();
    if usize::try_from(version).is_ok_and(|version| version <= known) {
        return Ok(());
    }
    let name = &db.name;
    let message = format!(
        "The schema in {name} has version {version}, and this meerkat knows {known}; use the version that made it, or \
         name another schema with store.schema. Nothing was changed."
    );
    Err(Refusal::Named(ErrorCode::StoreFormatUnsupported, message))
}

async fn migrate(db: &Db, current: i32) -> Result<Uuid, Refusal> {
    let mut connection = db.connection().await?;
    let done = async {
        let work = connection.begin().await?;
        let is_there = work.query_opt("SELECT to_regclass('meerkat.store') IS NOT NULL", &[]).await?;
        let is_there: bool = is_there.map_or(Ok(false), |row| column(&row, 0))?;
        if !is_there {
            let schema = db.schema_name();
            let exists = work.query("SELECT FROM pg_namespace WHERE nspname = $1", &[(&schema, TEXT)]).await?;
            if exists.is_empty() {
                work.batch(&format!("CREATE SCHEMA \"{schema}\"")).await?;
            }
            // One row, which a migration locks.
            work.batch(
                "CREATE TABLE meerkat.store (is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only), \
                 version integer NOT NULL, id uuid NOT NULL); \
                 INSERT INTO meerkat.store (version, id) VALUES (0, gen_random_uuid())",
            )
            .await?;
        }
        let row = work.query_opt("SELECT version, id FROM meerkat.store FOR UPDATE", &[]).await?;
        let row = row.ok_or_else(|| Trouble::Unreadable("the table store has no row".to_owned()))?;
        let (version, id): (i32, Uuid) = (column(&row, 0)?, column(&row, 1)?);
        refuse_newer(db, version)?;
        for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
            work.batch(migration).await?;
        }
        work.execute("UPDATE meerkat.store SET version = $1", &[(&current, INT4)]).await?;
        work.commit().await?;
        Ok(id)
    };
    match done.await {
        Err(Refusal::Trouble(trouble)) => connection.end(Err(trouble)).map_err(Refusal::Trouble),
        done => done,
    }
}

const TEXT: tokio_postgres::types::Type = tokio_postgres::types::Type::TEXT;
const INT4: tokio_postgres::types::Type = tokio_postgres::types::Type::INT4;
