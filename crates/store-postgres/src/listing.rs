//! Rows in lists that come from a session's own records: written in the transaction that makes a whole session, so that
//! it is never there without being listed, and later for sessions that have none.

use meerkat_service::{Session, SessionId, session::event::Record, wire::decode_event};
use meerkat_words::answers::{SessionState, SessionSummary};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    db::{Db, Work, column, signed, unsigned},
    trouble::Trouble,
};

/// Records to read at once.
const RECORDS_READ: i64 = 256;
/// Sessions without a row to look for at once.
const SESSIONS_READ: i64 = 100;

/// A session as far as its records were read.
#[derive(Default)]
pub(crate) struct Fold {
    session: Option<Session>,
    /// Reason that the records make no session.
    broken: Option<String>,
}

impl Fold {
    pub(crate) fn push(&mut self, record: &Record) {
        if self.broken.is_some() {
            return;
        }
        let done = match &mut self.session {
            Some(session) => session.apply(record),
            None => Session::begin(record).map(|begun| self.session = Some(begun)),
        };
        self.broken = done.err().map(|error| error.to_string());
    }

    /// Returns the row; `None` if the records make no session of this id, which then stays out of lists.
    fn row(self, session_id: SessionId) -> Option<SessionSummary> {
        if let Some(why) = self.broken {
            tracing::warn!(%session_id, why, "a session is in no list: its records cannot be read");
            return None;
        }
        self.session.map(|session| session.summary()).filter(|row| row.session_id == session_id)
    }
}

/// Reads all records of a session.
pub(crate) async fn fold(work: &Work<'_>, session_id: SessionId) -> Result<Fold, Trouble> {
    let (mut fold, mut after) = (Fold::default(), 0);
    loop {
        let rows = work
            .query(
                "SELECT seq, line FROM meerkat.events WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3",
                &[(session_id.as_uuid(), Type::UUID), (&signed(after), Type::INT8), (&RECORDS_READ, Type::INT8)],
            )
            .await?;
        for row in &rows {
            after = unsigned(column(row, 0)?)?;
            let line = std::str::from_utf8(column(row, 1)?).map_err(|error| error.to_string());
            match line.and_then(|line| decode_event(line).map_err(|error| error.to_string())) {
                Ok(record) => fold.push(&record),
                Err(why) => fold.broken = Some(why),
            }
        }
        if rows.is_empty() || fold.broken.is_some() {
            return Ok(fold);
        }
    }
}

/// Lists a session that a transaction makes. One that has nothing to do is no node's any more.
pub(crate) async fn list_made(work: &Work<'_>, session_id: SessionId, fold: Fold) -> Result<(), Trouble> {
    let Some(row) = fold.row(session_id) else { return Ok(()) };
    put(work, &row).await?;
    let sql = "UPDATE meerkat.sessions SET node = NULL WHERE id = $1 AND is_idle";
    work.execute(sql, &[(session_id.as_uuid(), Type::UUID)]).await?;
    Ok(())
}

/// Writes the row of a session that has exactly its records.
pub(crate) async fn put(work: &Work<'_>, row: &SessionSummary) -> Result<(), Trouble> {
    let text = serde_json::to_string(row).map_err(|error| Trouble::Unreadable(error.to_string()))?;
    let is_idle = row.state == SessionState::Idle;
    work.execute(
        "UPDATE meerkat.sessions SET summary = $2, summary_seq = tail, is_idle = $3, \
         changed = greatest(changed + 1, (extract(epoch FROM clock_timestamp()) * 1000000)::int8) WHERE id = $1",
        &[(row.session_id.as_uuid(), Type::UUID), (&text, Type::TEXT), (&is_idle, Type::BOOL)],
    )
    .await?;
    Ok(())
}

/// Finds sessions after this one that are in no list, in the order of their ids.
pub(crate) async fn unlisted(db: &Db, after: Option<SessionId>) -> Result<Vec<SessionId>, Trouble> {
    let after = after.map(|id| *id.as_uuid());
    let sql = "SELECT id FROM meerkat.sessions WHERE tail > 0 AND (changed IS NULL OR summary IS NULL) \
        AND ($1::uuid IS NULL OR id > $1) ORDER BY id LIMIT $2";
    let rows = db.query(sql, &[(&after, Type::UUID), (&SESSIONS_READ, Type::INT8)]).await?;
    rows.iter().map(|row| Ok(SessionId::from_uuid(column::<Uuid>(row, 0)?))).collect()
}

/// Lists a session that is in no list. Returns false if its records cannot be read.
pub(crate) async fn list(db: &Db, session_id: SessionId) -> Result<bool, Trouble> {
    let mut connection = db.connection().await?;
    let done = async {
        let work = connection.begin().await?;
        // Locked, so that no record is appended meanwhile.
        let sql = "SELECT FROM meerkat.sessions WHERE id = $1 AND tail > 0 \
            AND (changed IS NULL OR summary IS NULL) FOR UPDATE";
        if work.query_opt(sql, &[(session_id.as_uuid(), Type::UUID)]).await?.is_none() {
            return Ok(true);
        }
        let Some(row) = fold(&work, session_id).await?.row(session_id) else { return Ok(false) };
        put(&work, &row).await?;
        work.commit().await?;
        Ok(true)
    };
    let done = done.await;
    connection.end(done)
}

/// Lists every session that is in no list.
pub(crate) async fn list_all(db: &Db) -> Result<(), Trouble> {
    let mut after = None;
    loop {
        let found = unlisted(db, after).await?;
        let Some(last) = found.last() else { return Ok(()) };
        after = Some(*last);
        for session_id in found {
            if list(db, session_id).await? {
                tracing::warn!(%session_id, "a session was in no list; it is listed now");
            }
        }
    }
}
