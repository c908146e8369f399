//! [`PostgresInbox`]: letters to other nodes. A letter is taken once, by the process that the node is then.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    SessionId,
    store::{Fate, Inbox, Letter, StoreError, TAKEN_WITHIN},
};
use tokio_postgres::{Row, types::Type};
use uuid::Uuid;

use crate::{db::column, store::Store, trouble::Trouble};

/// Most letters to take at once.
const TAKEN_MAX: i64 = 64;

/// Letters of one database.
pub(crate) struct PostgresInbox(pub(crate) Arc<Store>);

#[async_trait]
impl Inbox for PostgresInbox {
    async fn leave(&self, id: Uuid, letter: &Letter) -> Result<(), StoreError> {
        let Letter { node, session_id, operation, params } = letter;
        let sql = "INSERT INTO meerkat.inbox (id, node, session, operation, params) VALUES ($1, $2, $3, $4, $5) \
            ON CONFLICT DO NOTHING";
        let params = [
            (&id as _, Type::UUID),
            (node as _, Type::TEXT),
            (session_id.as_uuid() as _, Type::UUID),
            (operation as _, Type::TEXT),
            (params as _, Type::TEXT),
        ];
        self.0.db.execute(sql, &params).await?;
        Ok(())
    }

    /// What is returned is what the deleted row was by then, even if it was taken meanwhile. An answer is deleted after it
    /// was read, so that it is there still if the reply goes lost.
    async fn fate(&self, id: Uuid, is_over: bool) -> Result<Fate, StoreError> {
        let sql = "WITH gone AS (DELETE FROM meerkat.inbox i WHERE id = $1 AND answer IS NULL AND (taken IS NULL AND ($2 OR NOT EXISTS (SELECT FROM meerkat.sessions s JOIN meerkat.nodes n ON n.id = s.node \
            WHERE s.id = i.session AND s.node = i.node AND NOT s.is_idle AND n.alive_until > clock_timestamp())) \
            OR taken IS NOT NULL AND NOT EXISTS (SELECT FROM meerkat.nodes n \
            WHERE n.id = i.node AND n.incarnation = i.taken AND n.alive_until > clock_timestamp())) \
            RETURNING answer, taken) SELECT answer, taken FROM gone UNION ALL \
            SELECT answer, taken FROM meerkat.inbox WHERE id = $1 AND answer IS NOT NULL UNION ALL \
            SELECT NULL, 0 WHERE NOT EXISTS (SELECT FROM meerkat.inbox WHERE id = $1)";
        let row = self.0.db.query_opt(sql, &[(&id, Type::UUID), (&is_over, Type::BOOL)]).await?;
        let Some(row) = row else { return Ok(Fate::Open) };
        let (answer, taken): (Option<String>, Option<i64>) = (column(&row, 0)?, column(&row, 1)?);
        Ok(match (answer, taken) {
            (Some(answer), _) => {
                // What stays is removed after a day.
                let deleted = self.0.db.execute("DELETE FROM meerkat.inbox WHERE id = $1", &[(&id, Type::UUID)]).await;
                tracing::debug!(?deleted, "a letter was answered");
                Fate::Answered(answer)
            }
            (None, Some(_)) => Fate::Lost,
            (None, None) => Fate::Returned,
        })
    }

    async fn take(&self, work: &[Uuid]) -> Result<Vec<(Uuid, Letter)>, StoreError> {
        if !self.0.node.has_authority() {
            return Ok(Vec::new());
        }
        let (name, incarnation) = (&self.0.node.name, self.0.node.incarnation());
        let sql = "UPDATE meerkat.inbox SET taken = $2 WHERE id IN (SELECT id FROM meerkat.inbox WHERE node = $1 \
            AND answer IS NULL AND (taken IS NULL AND made > clock_timestamp() - make_interval(secs => $5) \
            OR taken = $2 AND NOT id = ANY($4)) \
            ORDER BY made LIMIT $3 FOR UPDATE SKIP LOCKED) AND EXISTS (SELECT FROM meerkat.nodes n \
            WHERE n.id = $1 AND n.incarnation = $2 AND n.alive_until > clock_timestamp()) \
            RETURNING id, session, operation, params";
        let params = [
            (name as _, Type::TEXT),
            (&incarnation as _, Type::INT8),
            (&TAKEN_MAX as _, Type::INT8),
            (&work as _, Type::UUID_ARRAY),
            (&TAKEN_WITHIN.as_secs_f64() as _, Type::FLOAT8),
        ];
        let rows = self.0.db.query(sql, &params).await?;
        let letter = |row: &Row| {
            let letter = Letter {
                node: name.clone(),
                session_id: SessionId::from_uuid(column(row, 1)?),
                operation: column(row, 2)?,
                params: column(row, 3)?,
            };
            Ok((column(row, 0)?, letter))
        };
        Ok(rows.iter().map(letter).collect::<Result<_, Trouble>>()?)
    }

    async fn answer(&self, id: Uuid, answer: String) -> Result<(), StoreError> {
        let sql = "UPDATE meerkat.inbox SET answer = $2 WHERE id = $1";
        self.0.db.execute(sql, &[(&id, Type::UUID), (&answer, Type::TEXT)]).await?;
        Ok(())
    }
}
