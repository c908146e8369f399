//! Connections to the database, and the statements over them: each with a limit of time, none prepared under a name.
//!
//! Every statement is whole in one message, so that poolers which lend a connection for one transaction can be between.

use std::{borrow::Cow, fmt, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, Runtime, Timeouts, Transaction};
use tokio::time::{Instant, timeout};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{address::Address, tls::Tls, trouble::Trouble};

/// Schema's name in the statements of this crate, replaced by the configured one.
const WRITTEN_SCHEMA: &str = "meerkat.";

/// Beginning of a statement that changes nothing, unless it is sent as what is acknowledged.
const READ: &str = "SELECT";

/// Value and type of a parameter.
pub(crate) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Connections to one database; cheap to clone.
#[derive(Clone)]
pub(crate) struct Db {
    pool: Pool,
    tls: Tls,
    schema: String,
    limit: Duration,
    /// Hosts and database, for messages.
    pub(crate) name: String,
}

impl fmt::Debug for Db {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Db").field("name", &self.name).field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Db {
    /// Prepares connections; none is made yet.
    pub(crate) fn new(address: Address, tls: Tls, schema: &str, connections: usize, limit: Duration) -> Self {
        let Address { mut config, name, .. } = address;
        config.connect_timeout(config.get_connect_timeout().copied().unwrap_or(limit).min(limit));
        let manager = Manager::from_config(config, tls.clone(), ManagerConfig::default());
        let pool = Pool::builder(manager).max_size(connections.max(1)).runtime(Runtime::Tokio1).build();
        // It fails only without a runtime, which is named above.
        let pool = pool.unwrap_or_else(|error| unreachable!("a pool with a runtime was refused: {error}"));
        Self { pool, tls, schema: schema.to_owned(), limit, name }
    }

    /// Returns the schema's name.
    pub(crate) fn schema_name(&self) -> &str {
        &self.schema
    }

    /// Returns the same connections with a shorter limit.
    pub(crate) fn within(&self, limit: Duration) -> Self {
        Self { limit: limit.min(self.limit), ..self.clone() }
    }

    /// Returns the longest time of a statement.
    pub(crate) const fn limit(&self) -> Duration {
        self.limit
    }

    /// Puts the schema's name into a statement.
    pub(crate) fn sql<'a>(&self, statement: &'a str) -> Cow<'a, str> {
        match WRITTEN_SCHEMA.strip_suffix('.') == Some(&self.schema) {
            true => Cow::Borrowed(statement),
            false => Cow::Owned(statement.replace(WRITTEN_SCHEMA, &format!("\"{}\".", self.schema))),
        }
    }

    /// Returns a free connection.
    pub(crate) async fn connection(&self) -> Result<Connection<'_>, Trouble> {
        let limit = Some(self.limit);
        let limits = Timeouts { wait: limit, create: limit, recycle: limit };
        Ok(Connection { db: self, client: self.pool.timeout_get(&limits).await? })
    }

    /// Runs one statement in a transaction of its own; returns its rows. One whose answer does not come is cancelled. One
    /// that only reads is sent once more if the connection broke: after a restart of the server all of them have.
    pub(crate) async fn query(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Trouble> {
        let sent = Instant::now();
        let (connection, done) = self.rows(statement, params).await?;
        match connection.cancel(done) {
            Err(Trouble::Lost(_)) if statement.starts_with(READ) && sent.elapsed() < self.limit => {
                self.pool.retain(|_, _| false);
                let (connection, done) = self.rows(statement, params).await?;
                connection.cancel(done)
            }
            done => done,
        }
    }

    /// Like [`Self::query`], for what is acknowledged: one whose answer does not come goes on.
    pub(crate) async fn record(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Trouble> {
        let (connection, done) = self.rows(statement, params).await?;
        connection.end(done)
    }

    async fn rows(
        &self,
        statement: &str,
        params: &[Param<'_>],
    ) -> Result<(Connection<'_>, Result<Vec<Row>, Trouble>), Trouble> {
        let connection = self.connection().await?;
        let done = connection.within(connection.client.query_typed(&self.sql(statement), params)).await;
        Ok((connection, done))
    }

    /// Runs one statement that returns one row or none.
    pub(crate) async fn query_opt(&self, statement: &str, params: &[Param<'_>]) -> Result<Option<Row>, Trouble> {
        Ok(self.query(statement, params).await?.into_iter().next())
    }

    /// Runs one statement in a transaction of its own; returns the number of changed rows.
    pub(crate) async fn execute(&self, statement: &str, params: &[Param<'_>]) -> Result<u64, Trouble> {
        let connection = self.connection().await?;
        let statement = self.sql(statement);
        let done = connection.within(connection.client.execute_typed(&statement, params)).await;
        connection.cancel(done)
    }
}

/// Connection that is in use.
pub(crate) struct Connection<'a> {
    db: &'a Db,
    client: Object,
}

impl Connection<'_> {
    /// Waits for the server's answer; [`Trouble::Lost`] after the limit.
    async fn within<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Trouble> {
        match timeout(self.db.limit, work).await {
            Ok(done) => done.map_err(Trouble::from),
            Err(_) => Err(Trouble::Lost(format!("no answer in {} ms", self.db.limit.as_millis()))),
        }
    }

    /// Gives the connection back. One that was lost, or that leads to a server which takes no writes, is closed, and what the server still does for it goes on: a commit
    /// that waits for a standby would be seen without being there if it were cancelled.
    pub(crate) fn end<T>(self, done: Result<T, Trouble>) -> Result<T, Trouble> {
        if done.as_ref().is_err_and(Trouble::is_of_the_connection) {
            drop(Object::take(self.client));
        }
        done
    }

    /// Like [`Self::end`], and cancels what the server still does for a connection that was lost.
    fn cancel<T>(self, done: Result<T, Trouble>) -> Result<T, Trouble> {
        if matches!(done, Err(Trouble::Lost(_))) {
            let (cancel, tls, limit) = (self.client.cancel_token(), self.db.tls.clone(), self.db.limit);
            tokio::spawn(async move {
                // If it cannot be cancelled, the server finds out when it answers.
                let cancelled = timeout(limit, cancel.cancel_query(tls)).await;
                tracing::debug!(?cancelled, "a statement whose answer did not come was cancelled");
            });
        }
        self.end(done)
    }

    /// Begins a transaction. Dropped without a commit, it is rolled back.
    pub(crate) async fn begin(&mut self) -> Result<Work<'_>, Trouble> {
        let limit = self.db.limit;
        let begun = timeout(limit, self.client.transaction()).await;
        let transaction = begun.map_err(|_| Trouble::Lost("the transaction did not begin in time".to_owned()))??;
        let work = Work { db: self.db, transaction };
        // Without the second limit, a process that is stopped in a transaction would keep its locks from its successor.
        let sql = format!(
            "SET LOCAL statement_timeout = {0}; SET LOCAL idle_in_transaction_session_timeout = {0}",
            limit.as_millis()
        );
        work.within(work.transaction.batch_execute(&sql)).await?;
        Ok(work)
    }
}

/// Open transaction.
pub(crate) struct Work<'a> {
    db: &'a Db,
    transaction: Transaction<'a>,
}

impl Work<'_> {
    async fn within<T>(&self, work: impl Future<Output = Result<T, tokio_postgres::Error>>) -> Result<T, Trouble> {
        match timeout(self.db.limit, work).await {
            Ok(done) => done.map_err(Trouble::from),
            Err(_) => Err(Trouble::Lost(format!("no answer in {} ms", self.db.limit.as_millis()))),
        }
    }

    /// Runs a statement; returns its rows.
    pub(crate) async fn query(&self, statement: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Trouble> {
        self.within(self.transaction.query_typed(&self.db.sql(statement), params)).await
    }

    /// Runs a statement that returns one row or none.
    pub(crate) async fn query_opt(&self, statement: &str, params: &[Param<'_>]) -> Result<Option<Row>, Trouble> {
        Ok(self.query(statement, params).await?.into_iter().next())
    }

    /// Runs a statement; returns the number of changed rows.
    pub(crate) async fn execute(&self, statement: &str, params: &[Param<'_>]) -> Result<u64, Trouble> {
        self.within(self.transaction.execute_typed(&self.db.sql(statement), params)).await
    }

    /// Runs several statements without parameters.
    pub(crate) async fn batch(&self, statements: &str) -> Result<(), Trouble> {
        self.within(self.transaction.batch_execute(&self.db.sql(statements))).await
    }

    /// Commits; [`Trouble::Lost`] if nobody knows whether it did.
    pub(crate) async fn commit(self) -> Result<(), Trouble> {
        let limit = self.db.limit;
        match timeout(limit, self.transaction.commit()).await {
            Ok(done) => done.map_err(Trouble::from),
            Err(_) => Err(Trouble::Lost("the commit was not confirmed in time".to_owned())),
        }
    }
}

/// Reads a column.
pub(crate) fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, at: usize) -> Result<T, Trouble> {
    row.try_get(at).map_err(|error| Trouble::Unreadable(crate::trouble::chain(&error)))
}

/// Converts a number of the database, which has none without a sign.
pub(crate) fn unsigned(number: i64) -> Result<u64, Trouble> {
    u64::try_from(number).map_err(|_| Trouble::Unreadable(format!("the database holds the number {number}")))
}

/// Converts a number for the database.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
