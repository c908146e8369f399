//! A look at a database by an upkeep command: its nodes, and what is wrong in it. It makes no schema and is no node, so it
//! works beside any number of them, and changes nothing unless it is asked to repair.

use meerkat_service::{
    SessionError, SessionId,
    doctor::{Check, Diagnosis, Finding, Severity},
};
use serde::Serialize;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    PostgresOptions, connect,
    db::{Db, column, unsigned},
    listing::{list, unlisted},
    schema::{Refusal, check_server, current, refuse_newer, stored},
    trouble::Trouble,
};

/// Most sessions of a node, and most faults of one kind, that are named.
const NAMED_MAX: i64 = 100;

/// Condition of blob parts that nothing names. Newer ones may belong to a session that is being copied.
const UNNAMED: &str = "p.made < now() - interval '1 day' AND NOT EXISTS (SELECT FROM meerkat.blobs b \
    JOIN meerkat.sessions s ON s.id = b.session AND s.tail > 0 WHERE b.body = p.body)";

/// Node of a database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeView {
    /// Its name.
    pub node: String,
    /// True if its lease holds, by the database's clock.
    pub is_alive: bool,
    /// Milliseconds until its lease ends, unless it renews it; below 0 since it has ended.
    pub lease_ms: i64,
    /// Number of sessions that it holds.
    pub sessions: u64,
    /// Those that are not idle, at most 100 of them.
    pub working: Vec<SessionId>,
}

/// Lists the nodes that are alive, and those that have ended with work to do.
///
/// # Errors
/// Those of [`crate::open`] for a database that cannot be reached or has another schema.
pub async fn nodes(options: &PostgresOptions) -> Result<Vec<NodeView>, SessionError> {
    let db = connect(options)?;
    let refused = |trouble: Trouble| Refusal::from(trouble).error(&db.name);
    let Some((version, _)) = stored(&db).await.map_err(refused)? else { return Ok(Vec::new()) };
    refuse_newer(&db, version).map_err(|refusal| refusal.error(&db.name))?;
    let sql = "SELECT n.id, n.alive_until > clock_timestamp(), \
        (extract(epoch FROM n.alive_until - clock_timestamp()) * 1000)::int8, count(s.id), \
        (coalesce(array_agg(s.id ORDER BY s.id) FILTER (WHERE NOT s.is_idle), '{}'))[1:$1] \
        FROM meerkat.nodes n LEFT JOIN meerkat.sessions s ON s.node = n.id AND s.tail > 0 \
        GROUP BY n.id HAVING n.alive_until > clock_timestamp() OR count(s.id) FILTER (WHERE NOT s.is_idle) > 0 \
        ORDER BY n.id COLLATE \"C\"";
    let limit = i32::try_from(NAMED_MAX).unwrap_or(i32::MAX);
    let rows = db.query(sql, &[(&limit, Type::INT4)]).await.map_err(refused)?;
    let node = |row: &tokio_postgres::Row| {
        let working: Vec<Uuid> = column(row, 4)?;
        Ok(NodeView {
            node: column(row, 0)?,
            is_alive: column(row, 1)?,
            lease_ms: column(row, 2)?,
            sessions: unsigned(column(row, 3)?)?,
            working: working.into_iter().map(SessionId::from_uuid).collect(),
        })
    };
    rows.iter().map(node).collect::<Result<_, Trouble>>().map_err(refused)
}

/// Refuses a database that a node works on, unless its name begins with `copiers`: those only copy.
///
/// # Errors
/// `INVALID_REQUEST` if a node is alive; those of [`nodes`].
pub async fn check_at_rest(options: &PostgresOptions, copiers: &str) -> Result<(), SessionError> {
    let working = nodes(options).await?.into_iter().find(|node| node.is_alive && !node.node.starts_with(copiers));
    let Some(NodeView { node, lease_ms, .. }) = working else { return Ok(()) };
    let why = format!(
        "the node {node} works on it; end every server of this database and copy again. If that node has ended, wait {} \
         seconds until its lease has, too",
        lease_ms / 1000 + 1
    );
    Err(SessionError::invalid("FROM", why))
}

/// Examines a database. What makes it unusable is a finding, not an error.
///
/// # Errors
/// `CONFIG_INVALID` if the options name no database.
pub async fn examine(options: &PostgresOptions, is_repair: bool) -> Result<Diagnosis, SessionError> {
    let db = connect(options)?;
    let mut doctor = Doctor { db, is_repair, diagnosis: Diagnosis::default() };
    if let Err(trouble) = doctor.examine().await {
        let error = Refusal::from(trouble).error(&doctor.db.name);
        doctor.find(Severity::Error, None, error.to_string(), "Then run `meerkat doctor` again.");
    }
    doctor.diagnosis.findings.sort_by_key(|finding| (finding.severity, finding.check));
    Ok(doctor.diagnosis)
}

struct Doctor {
    db: Db,
    is_repair: bool,
    diagnosis: Diagnosis,
}

impl Doctor {
    fn find(&mut self, severity: Severity, session_id: Option<SessionId>, what: String, remedy: &str) {
        let check = if session_id.is_some() { Check::Journal } else { Check::Database };
        let remedy = remedy.to_owned();
        self.diagnosis.findings.push(Finding { check, severity, session_id, what, remedy, mended: false });
    }

    async fn examine(&mut self) -> Result<(), Trouble> {
        if let Err(refusal) = check_server(&self.db).await {
            let error = refusal.error(&self.db.name);
            self.find(Severity::Error, None, error.to_string(), "No server of meerkat starts until this is done.");
        }
        let Some((version, _)) = stored(&self.db).await? else {
            let what = format!("The database {} has no schema {:?}.", self.db.name, self.db.schema_name());
            let remedy = "The first start makes it; if sessions should be there, correct store.url or store.schema.";
            self.find(Severity::Warning, None, what, remedy);
            return self.may_make_schema().await;
        };
        if let Err(refusal) = refuse_newer(&self.db, version) {
            let error = refusal.error(&self.db.name);
            self.find(Severity::Error, None, error.to_string(), "Nothing else was checked.");
            return Ok(());
        }
        if version < current() {
            let what = format!("The schema has version {version}; this meerkat knows {}.", current());
            self.find(Severity::Warning, None, what, "The next start updates it. Until then nothing else is checked.");
            return Ok(());
        }
        if !self.has_rights().await? {
            return Ok(());
        }
        self.functions().await?;
        self.tails().await?;
        self.lists().await?;
        self.leases().await?;
        self.blobs().await
    }

    /// Finds out if the first start may make the schema.
    async fn may_make_schema(&mut self) -> Result<(), Trouble> {
        let sql = "SELECT has_database_privilege(current_database(), 'CREATE') OR EXISTS \
            (SELECT FROM pg_namespace WHERE nspname = $1 AND has_schema_privilege(oid, 'CREATE'))";
        let row = self.db.query_opt(sql, &[(&self.db.schema_name(), Type::TEXT)]).await?;
        if !row.map_or(Ok(false), |row| column(&row, 0))? {
            let what = format!("The user of store.url may not make a schema in {}.", self.db.name);
            self.find(Severity::Error, None, what, "Run GRANT CREATE ON DATABASE as its owner.");
        }
        Ok(())
    }

    /// Finds the tables that the user may not read and write; returns true if there are none.
    async fn has_rights(&mut self) -> Result<bool, Trouble> {
        let sql = "SELECT coalesce(string_agg(c.relname, ', ' ORDER BY c.relname), '') FROM pg_class c \
            JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r' AND NOT \
            (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND \
            has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE') AND \
            has_table_privilege(c.oid, 'DELETE'))";
        let row = self.db.query_opt(sql, &[(&self.db.schema_name(), Type::TEXT)]).await?;
        let tables: String = row.map_or(Ok(String::new()), |row| column(&row, 0))?;
        if tables.is_empty() {
            return Ok(true);
        }
        let schema = self.db.schema_name();
        let what = format!("The user of store.url may not use these tables of the schema {schema:?}: {tables}.");
        let remedy = format!(
            "Run GRANT USAGE ON SCHEMA {schema} and GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA \
             {schema} as its owner, or name the owner in store.url."
        );
        self.find(Severity::Error, None, what, &remedy);
        Ok(false)
    }

    /// Finds out if the schema lacks the function that appends.
    async fn functions(&mut self) -> Result<(), Trouble> {
        let sql = "SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace \
            WHERE n.nspname = $1 AND p.proname = 'append' AND has_function_privilege(p.oid, 'EXECUTE')";
        if self.db.query_opt(sql, &[(&self.db.schema_name(), Type::TEXT)]).await?.is_none() {
            let schema = self.db.schema_name();
            let what =
                format!("The schema {schema:?} lacks the function append, or the user of store.url may not use it.");
            let remedy = "No turn is recorded without it. Restore the whole database from a backup, or grant EXECUTE.";
            self.find(Severity::Error, None, what, remedy);
        }
        Ok(())
    }

    /// Finds sessions whose records do not end at their tail, or do not begin at 1.
    async fn tails(&mut self) -> Result<(), Trouble> {
        // One statement, so that no append comes between.
        let sql = "SELECT coalesce(s.id, e.session), coalesce(s.tail, 0), e.first, e.last, e.records \
            FROM (SELECT id, tail FROM meerkat.sessions WHERE tail > 0) s FULL JOIN \
            (SELECT session, min(seq) AS first, max(seq) AS last, count(*) AS records FROM meerkat.events \
            GROUP BY session) e ON e.session = s.id";
        for row in self.db.query(sql, &[]).await? {
            let (id, tail): (Uuid, i64) = (column(&row, 0)?, column(&row, 1)?);
            let (first, last): (Option<i64>, Option<i64>) = (column(&row, 2)?, column(&row, 3)?);
            let records: Option<i64> = column(&row, 4)?;
            self.diagnosis.sessions += 1;
            self.diagnosis.records += unsigned(records.unwrap_or(0))?;
            if (first, last) == (Some(1), Some(tail)) {
                continue;
            }
            let found = match (first, last) {
                (Some(first), Some(last)) => format!("its records go from {first} to {last}"),
                _ => "it has no records".to_owned(),
            };
            let what = format!("its row says that it has the records 1 to {tail}, but {found}");
            let remedy = "Something else has changed the tables, or a restore is not complete; restore the whole database \
                          from a backup.";
            self.find(Severity::Error, Some(SessionId::from_uuid(id)), what, remedy);
        }
        Ok(())
    }

    /// Finds sessions that are in no list.
    async fn lists(&mut self) -> Result<(), Trouble> {
        for session_id in unlisted(&self.db, None).await? {
            let what = "it is in no list, so that readers and an export of all sessions miss it".to_owned();
            let remedy = "`meerkat doctor --repair` lists it; so does every server at its start, and once an hour. If it \
                          stays, its records cannot be read: export it by its id, or restore the database.";
            self.find(Severity::Error, Some(session_id), what, remedy);
            if self.is_repair
                && list(&self.db, session_id).await?
                && let Some(finding) = self.diagnosis.findings.last_mut()
            {
                finding.mended = true;
            }
        }
        Ok(())
    }

    /// Finds sessions that work on nodes whose lease has ended.
    async fn leases(&mut self) -> Result<(), Trouble> {
        let sql = "SELECT s.id, s.node, (extract(epoch FROM clock_timestamp() - n.alive_until))::int8 \
            FROM meerkat.sessions s LEFT JOIN meerkat.nodes n ON n.id = s.node WHERE s.node IS NOT NULL AND s.tail > 0 \
            AND NOT s.is_idle AND (n.id IS NULL OR n.alive_until <= clock_timestamp()) ORDER BY s.id LIMIT $1";
        for row in self.db.query(sql, &[(&NAMED_MAX, Type::INT8)]).await? {
            let (id, node, seconds): (Uuid, String, Option<i64>) =
                (column(&row, 0)?, column(&row, 1)?, column(&row, 2)?);
            let since = seconds.map_or(String::new(), |seconds| format!(" {seconds} seconds ago"));
            let what = format!("it has work to do on the node {node}, whose lease ended{since}");
            let remedy = "Nothing is lost. Any server of this database takes it over in a second; start one.";
            self.find(Severity::Warning, Some(SessionId::from_uuid(id)), what, remedy);
        }
        Ok(())
    }

    /// Finds blobs that lack a part, and parts that no session names.
    async fn blobs(&mut self) -> Result<(), Trouble> {
        let sql = "SELECT b.session, b.name FROM meerkat.blobs b JOIN meerkat.sessions s ON s.id = b.session AND s.tail > 0 \
            WHERE b.length <> (SELECT coalesce(sum(octet_length(p.data)), 0) FROM meerkat.blob_parts p \
            WHERE p.body = b.body) ORDER BY b.session, b.name LIMIT $1";
        for row in self.db.query(sql, &[(&NAMED_MAX, Type::INT8)]).await? {
            let (id, name): (Uuid, String) = (column(&row, 0)?, column(&row, 1)?);
            let what = format!("blob {name} lacks a part");
            let remedy =
                "The text that it held is lost but for its beginning and end; a backup or a bundle may have it.";
            self.find(Severity::Error, Some(SessionId::from_uuid(id)), what, remedy);
        }
        let sql = format!(
            "SELECT count(DISTINCT p.body), coalesce(sum(octet_length(p.data)), 0)::int8 FROM meerkat.blob_parts p \
             WHERE {UNNAMED}"
        );
        let row = self.db.query_opt(&sql, &[]).await?;
        let row = row.ok_or_else(|| Trouble::Unreadable("a count has no row".to_owned()))?;
        let (bodies, bytes): (i64, i64) = (column(&row, 0)?, column(&row, 1)?);
        if bodies > 0 {
            let what = format!("{bodies} blobs with {bytes} bytes belong to no session.");
            self.find(Severity::Warning, None, what, "Nothing needs them; `meerkat doctor --repair` deletes them.");
            if self.is_repair {
                self.db.execute(&format!("DELETE FROM meerkat.blob_parts p WHERE {UNNAMED}"), &[]).await?;
                let sql = "DELETE FROM meerkat.blobs b WHERE NOT EXISTS \
                    (SELECT FROM meerkat.blob_parts p WHERE p.body = b.body) \
                    AND NOT EXISTS (SELECT FROM meerkat.sessions s WHERE s.id = b.session AND s.tail > 0)";
                self.db.execute(sql, &[]).await?;
                if let Some(finding) = self.diagnosis.findings.last_mut() {
                    finding.mended = true;
                }
            }
        }
        Ok(())
    }
}
