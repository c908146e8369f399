//! Whole sessions: created, forked, imported and deleted, each in one transaction, so that all of it is there or nothing.
//!
//! If the answer to a commit is lost, the session's row says if it happened: nobody else writes under its epoch.

use meerkat_service::{
    Seq, SessionId,
    session::event::Record,
    store::{Creation, IndexedKey, Lease, RecordSource, StoreError},
};
use meerkat_words::answers::SessionSummary;
use tokio_postgres::types::Type;

use crate::{
    db::{Param, Work, column, signed, unsigned},
    events::entries,
    index::{key_params, scope},
    leases::{HOLDER, holder_of},
    listing::{self, Fold, fold, list_made},
    log::Entry,
    store::Store,
    trouble::Trouble,
};

/// Attempts to ask if a commit happened whose answer was lost.
const ASKS: u32 = 3;
/// Attempts to delete a session whose holder has just let go of it.
const ATTEMPTS: u32 = 5;

/// Outcome of a creation's transaction.
enum Created {
    Made { epoch: i64 },
    Exists(Box<IndexedKey>),
}

impl Store {
    /// Creates a session from its first records, unless its key has one.
    pub(crate) async fn create(
        &self,
        first: Vec<Entry>,
        row: &SessionSummary,
        key: Option<&IndexedKey>,
    ) -> Result<Creation, StoreError> {
        let session_id = row.session_id;
        let tail = check_dense(&first, 0)?;
        let created = match self.create_once(&first, row, key).await {
            // Nothing happened; whoever was in the way has its session by now.
            Err(trouble @ Trouble::Refused { .. }) if trouble.is_passing() => self.create_once(&first, row, key).await,
            created => created,
        };
        let epoch = match created {
            Ok(Created::Exists(entry)) => return Ok(Creation::Exists(*entry)),
            Ok(Created::Made { epoch }) => epoch,
            Err(Trouble::Lost(why)) => self.made(session_id, tail, why).await?,
            Err(trouble) => return Err(trouble.into()),
        };
        let mut logs = self.logs();
        logs.lease(session_id, epoch, tail);
        logs.wrote(row.clone());
        drop(logs);
        Ok(Creation::Made(Lease { session_id, epoch: unsigned(epoch)?, tail }))
    }

    async fn create_once(
        &self,
        first: &[Entry],
        row: &SessionSummary,
        key: Option<&IndexedKey>,
    ) -> Result<Created, Trouble> {
        let mut connection = self.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            if let Some(key) = key
                && let Some(taken) = claim(&work, key).await?
            {
                return Ok(Created::Exists(Box::new(taken)));
            }
            let epoch = appear(&work, row.session_id, &self.node.name).await?;
            insert(&work, row.session_id, first).await?;
            finish(&work, row.session_id, first.last().map_or(0, |last| last.seq)).await?;
            listing::put(&work, row).await?;
            work.commit().await?;
            Ok(Created::Made { epoch })
        };
        let done = done.await;
        connection.end(done)
    }

    /// Copies the beginning of a session, with its blobs, and continues it with `first`. If the session's version is
    /// given, it must be the same.
    pub(crate) async fn fork(
        &self,
        parent: SessionId,
        version: Option<u64>,
        at: Seq,
        first: &[Record],
    ) -> Result<(), StoreError> {
        let child = first.first().map(|record| record.session_id);
        let child = child.ok_or_else(|| StoreError::Failed("a fork has no record of its own".to_owned()))?;
        let first = entries(first)?;
        let tail = check_dense(&first, at)?;
        let mut connection = self.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            // Locked, so that it is not deleted meanwhile, nor its blobs, and no record is dropped.
            let sql = "SELECT tail, version FROM meerkat.sessions WHERE id = $1 AND tail > 0 FOR SHARE";
            let found = work.query_opt(sql, &[(parent.as_uuid(), Type::UUID)]).await?;
            let found = found.ok_or(StoreError::NotFound(parent))?;
            if unsigned(column(&found, 0)?)? < at {
                return Err(StoreError::Failed("a fork begins after its parent's last record".to_owned()).into());
            }
            let current = unsigned(column(&found, 1)?)?;
            if version.is_some_and(|version| version != current) {
                return Err(StoreError::Fenced.into());
            }
            appear(&work, child, &self.node.name).await?;
            let both = [(parent.as_uuid() as _, Type::UUID), (child.as_uuid() as _, Type::UUID)];
            let up_to = [both[0].clone(), both[1].clone(), (&signed(at) as _, Type::INT8)];
            work.execute(
                "INSERT INTO meerkat.events (session, seq, time, line) SELECT $2, seq, time, line \
                 FROM meerkat.events WHERE session = $1 AND seq <= $3",
                &up_to,
            )
            .await?;
            work.execute(
                "INSERT INTO meerkat.blobs (session, name, length, body) SELECT $2, name, length, body \
                 FROM meerkat.blobs WHERE session = $1 AND uploaded = 0 ON CONFLICT DO NOTHING",
                &both,
            )
            .await?;
            insert(&work, child, &first).await?;
            finish(&work, child, tail).await?;
            list_made(&work, child, fold(&work, child).await?).await?;
            work.commit().await
        };
        let done = done.await;
        self.settled(connection.end(done), child, tail).await
    }

    /// Takes in records as they are, part by part.
    pub(crate) async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        // Its source may read from this store, too.
        let closed = |_| StoreError::Failed("the store is closed".to_owned());
        let _room = self.imports.acquire().await.map_err(closed)?;
        let mut connection = self.db.connection().await?;
        let mut tail = 0;
        let done = async {
            let work = connection.begin().await?;
            appear(&work, session_id, &self.node.name).await?;
            let mut fold = Fold::default();
            loop {
                let part = records.next().await?;
                if part.is_empty() {
                    break;
                }
                let mut entries = Vec::with_capacity(part.len());
                for (record, line) in part {
                    if record.seq <= tail {
                        return Err(StoreError::OutOfOrder.into());
                    }
                    tail = record.seq;
                    fold.push(&record);
                    entries.push(Entry { seq: tail, time_ms: record.time.as_millis(), line });
                }
                insert(&work, session_id, &entries).await?;
            }
            if tail == 0 {
                return Err(StoreError::Failed("there is nothing to import".to_owned()).into());
            }
            finish(&work, session_id, tail).await?;
            list_made(&work, session_id, fold).await?;
            work.commit().await
        };
        let done = done.await;
        self.settled(connection.end(done), session_id, tail).await
    }

    /// Deletes a session with its records, blobs and snapshot. Its row stays, for its epoch, and for its place in lists
    /// until that is removed.
    pub(crate) async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        let id = [(session_id.as_uuid() as _, Type::UUID)];
        let mut connection = self.db.connection().await?;
        let done = async {
            let work = connection.begin().await?;
            self.take_away(&work, session_id).await?;
            work.execute("DELETE FROM meerkat.events WHERE session = $1", &id).await?;
            work.execute("DELETE FROM meerkat.snapshots WHERE session = $1", &id).await?;
            crate::blobs::remove_all(&work, session_id).await?;
            work.commit().await
        };
        let done = done.await;
        let done = match connection.end(done) {
            // What is deleted twice is deleted.
            Err(Trouble::Lost(_)) => self.is_deleted(session_id).await,
            done => done,
        };
        done?;
        self.logs().delete(session_id);
        self.signals.ended.notify_waiters();
        Ok(())
    }

    /// Ends a session's existence in its row, which stays locked. A session that another node works on stays: what this
    /// process knows of it may be old.
    async fn take_away(&self, work: &Work<'_>, session_id: SessionId) -> Result<(), Trouble> {
        let params: [Param<'_>; 2] = [(session_id.as_uuid(), Type::UUID), (&self.node.name, Type::TEXT)];
        for _ in 0..ATTEMPTS {
            // If this process ends before the row in lists is removed, the next one of this node finds it.
            let row = work
                .query_opt(
                    "WITH taken AS (UPDATE meerkat.sessions s SET epoch = epoch + 1, tail = 0, bytes = 0, \
                     version = version + 1, is_idle = false, node = CASE WHEN summary IS NULL THEN NULL ELSE $2 END \
                     WHERE id = $1 AND (s.node IS NULL OR s.node = $2 OR s.is_idle OR NOT EXISTS \
                     (SELECT FROM meerkat.nodes n WHERE n.id = s.node AND n.alive_until > clock_timestamp())) \
                     RETURNING id) SELECT EXISTS (SELECT FROM taken), EXISTS (SELECT FROM meerkat.sessions WHERE id = $1)",
                    &params,
                )
                .await?;
            let row = row.ok_or_else(|| Trouble::Unreadable("a deletion has no answer".to_owned()))?;
            let (is_taken, exists): (bool, bool) = (column(&row, 0)?, column(&row, 1)?);
            if is_taken || !exists {
                return Ok(());
            }
            if let Some(holder) = holder_of(work.query_opt(HOLDER, &params).await?)? {
                return Err(StoreError::HeldBy { session_id, holder }.into());
            }
        }
        Err(StoreError::Failed("the session changes hands all the time".to_owned()).into())
    }

    async fn is_deleted(&self, session_id: SessionId) -> Result<(), Trouble> {
        let sql = "SELECT FROM meerkat.sessions WHERE id = $1 AND tail > 0";
        match self.db.query_opt(sql, &[(session_id.as_uuid(), Type::UUID)]).await? {
            None => Ok(()),
            Some(_) => Err(Trouble::Lost("the deletion was not confirmed".to_owned())),
        }
    }

    /// Finds out if a transaction whose commit was not confirmed made its session.
    async fn settled(&self, done: Result<(), Trouble>, session_id: SessionId, tail: Seq) -> Result<(), StoreError> {
        match done {
            Err(Trouble::Lost(why)) if tail > 0 => self.made(session_id, tail, why).await.map(drop),
            done => Ok(done?),
        }
    }

    /// Returns the epoch of a session that was just made, as far as can be known.
    async fn made(&self, session_id: SessionId, tail: Seq, why: String) -> Result<i64, StoreError> {
        let sql = "SELECT epoch FROM meerkat.sessions WHERE id = $1 AND tail = $2 AND written_epoch = epoch";
        let params: [Param<'_>; 2] = [(session_id.as_uuid(), Type::UUID), (&signed(tail), Type::INT8)];
        for _ in 0..ASKS {
            if let Ok(found) = self.db.query_opt(sql, &params).await {
                // Without a row it may still be on its way, so that nothing is certain.
                return found.map_or_else(|| Err(Trouble::Lost(why).into()), |row| Ok(column(&row, 0)?));
            }
        }
        Err(Trouble::Lost(why).into())
    }
}

/// Checks that records follow a seq without a gap; returns the last one's seq.
fn check_dense(entries: &[Entry], after: Seq) -> Result<Seq, StoreError> {
    match entries.last() {
        Some(last) if entries.iter().zip(after + 1..).all(|(entry, seq)| entry.seq == seq) => Ok(last.seq),
        Some(_) => Err(StoreError::OutOfOrder),
        None => Err(StoreError::Failed("a session has no record of its own".to_owned())),
    }
}

/// Makes the row of a session that does not exist; returns its epoch. It is this node's until it is listed, so that another
/// one lists it if this one ends before.
async fn appear(work: &Work<'_>, session_id: SessionId, node: &str) -> Result<i64, Trouble> {
    let row = work
        .query_opt(
            "INSERT INTO meerkat.sessions AS s (id, epoch, node) VALUES ($1, 1, $2) ON CONFLICT (id) DO UPDATE \
             SET epoch = s.epoch + 1, node = excluded.node WHERE s.tail = 0 RETURNING epoch",
            &[(session_id.as_uuid(), Type::UUID), (&node, Type::TEXT)],
        )
        .await?;
    let exists = || StoreError::Failed("the session exists already".to_owned());
    column(&row.ok_or_else(exists)?, 0)
}

/// Inserts records.
async fn insert(work: &Work<'_>, session_id: SessionId, entries: &[Entry]) -> Result<(), Trouble> {
    let seqs: Vec<i64> = entries.iter().map(|entry| signed(entry.seq)).collect();
    let times: Vec<i64> = entries.iter().map(|entry| entry.time_ms).collect();
    let lines: Vec<&[u8]> = entries.iter().map(|entry| &entry.line[..]).collect();
    work.execute(
        "INSERT INTO meerkat.events (session, seq, time, line) \
         SELECT $1, e.* FROM unnest($2::int8[], $3::int8[], $4::bytea[]) AS e",
        &[
            (session_id.as_uuid(), Type::UUID),
            (&seqs, Type::INT8_ARRAY),
            (&times, Type::INT8_ARRAY),
            (&lines, Type::BYTEA_ARRAY),
        ],
    )
    .await?;
    Ok(())
}

/// Makes a session exist, whose records are inserted.
async fn finish(work: &Work<'_>, session_id: SessionId, tail: Seq) -> Result<(), Trouble> {
    work.execute(
        "UPDATE meerkat.sessions SET tail = $2, written_epoch = epoch, bytes = \
         (SELECT coalesce(sum(octet_length(line)), 0)::int8 FROM meerkat.events WHERE session = $1) WHERE id = $1",
        &[(session_id.as_uuid(), Type::UUID), (&signed(tail), Type::INT8)],
    )
    .await?;
    Ok(())
}

/// Takes a key for a new session; returns its entry if it has a session that still exists.
async fn claim(work: &Work<'_>, key: &IndexedKey) -> Result<Option<IndexedKey>, Trouble> {
    let (scope, entry) = (scope(key.scope), key_params(key)?);
    let time = key.time.as_millis();
    let params: [Param<'_>; 5] = [
        (&scope, Type::UUID),
        (&key.key.key, Type::TEXT),
        (key.session_id.as_uuid(), Type::UUID),
        (&time, Type::INT8),
        (&entry, Type::TEXT),
    ];
    let inserted = work
        .execute(
            "INSERT INTO meerkat.keys (scope, key, session, time, entry) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT DO NOTHING",
            &params,
        )
        .await?;
    if inserted > 0 {
        return Ok(None);
    }
    // A statement of its own: it sees what the transaction that was waited for has made.
    let row = work
        .query_opt(
            "SELECT k.entry, s.tail > 0 FROM meerkat.keys k LEFT JOIN meerkat.sessions s ON s.id = k.session \
             WHERE k.scope = $1 AND k.key = $2 FOR UPDATE OF k",
            &params[..2],
        )
        .await?;
    // However old its time looks: a clock may be wrong for a moment.
    if let Some(row) = row
        && column::<Option<bool>>(&row, 1)? == Some(true)
    {
        let text: &str = column(&row, 0)?;
        return serde_json::from_str(text).map(Some).map_err(|error| Trouble::Unreadable(error.to_string()));
    }
    work.execute(
        "INSERT INTO meerkat.keys (scope, key, session, time, entry) VALUES ($1, $2, $3, $4, $5) \
         ON CONFLICT (scope, key) DO UPDATE SET session = excluded.session, time = excluded.time, \
         entry = excluded.entry, stored = now()",
        &params,
    )
    .await?;
    Ok(None)
}
