//! Appends: one statement compares the epoch and the tail of each session, and inserts its records and its row in lists.
//!
//! A session whose row did not match is fenced. If the answer is lost, the same append is sent again: it happens at most
//! once, because its tail would not match any more; and the session's row says if it was this one.

use std::{collections::HashMap, time::Duration};

use meerkat_service::{SessionId, store::StoreError};
use meerkat_words::answers::SessionState;
use tokio::time::{Instant, sleep};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::{
    db::{Db, column, signed, unsigned},
    log::Append,
    trouble::Trouble,
};

/// First and longest pause before an append is sent again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Statement of all appends; migration 3 has the function.
const APPEND: &str = "SELECT meerkat.append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";

/// State of a session after an append whose answer is not known.
struct Found {
    epoch: i64,
    written_epoch: i64,
    tail: u64,
}

/// Appends everything that the group holds; each append gets its outcome, in the same order. `patience` is how long an
/// answer is looked for before the outcome counts as unknown.
pub(crate) async fn append(db: &Db, node: &str, group: &[Append], patience: Duration) -> Vec<Result<(), StoreError>> {
    let ends = Instant::now() + patience;
    let mut outcomes: HashMap<SessionId, Result<(), StoreError>> = HashMap::new();
    let (mut open, mut pause, mut is_unsure): (Vec<&Append>, _, _) = (group.iter().collect(), PAUSES.0, false);
    while !open.is_empty() {
        let trouble = match attempt(db, node, &open, is_unsure).await {
            Ok(settled) => {
                outcomes.extend(settled);
                open.retain(|append| !outcomes.contains_key(&append.session_id));
                Trouble::Refused { state: "40001".to_owned(), message: "the session changes".to_owned() }
            }
            Err(trouble) => trouble,
        };
        is_unsure |= matches!(trouble, Trouble::Lost(_));
        let is_over = Instant::now() >= ends || !trouble.is_passing();
        if open.is_empty() {
            break;
        }
        if is_over && open.len() > 1 && !trouble.is_passing() {
            // One session's records do not fail those of the others.
            for append in std::mem::take(&mut open) {
                let alone = attempt(db, node, &[append], is_unsure).await;
                let outcome = alone.map(|mut settled| settled.remove(&append.session_id));
                let changes = || Err(StoreError::Failed("the session changes all the time".to_owned()));
                let outcome =
                    outcome.map_or_else(|trouble| Err(trouble.into()), |outcome| outcome.unwrap_or_else(changes));
                outcomes.insert(append.session_id, outcome);
            }
        } else if is_over {
            for append in std::mem::take(&mut open) {
                outcomes.insert(append.session_id, Err(trouble.clone().into()));
            }
        } else {
            tracing::debug!(?trouble, "an append is sent again");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }
    let unknown = || Err(StoreError::Failed("an append has no outcome".to_owned()));
    group.iter().map(|append| outcomes.remove(&append.session_id).unwrap_or_else(unknown)).collect()
}

/// Sends one statement; returns the outcomes that are known by then.
async fn attempt(
    db: &Db,
    node: &str,
    group: &[&Append],
    is_unsure: bool,
) -> Result<HashMap<SessionId, Result<(), StoreError>>, Trouble> {
    let taken = send(db, node, group).await?;
    let mut outcomes: HashMap<_, _> = taken.iter().map(|id| (SessionId::from_uuid(*id), Ok(()))).collect();
    let left: Vec<&Append> =
        group.iter().filter(|append| !outcomes.contains_key(&append.session_id)).copied().collect();
    if !left.is_empty() {
        let mut found = match ask(db, &left).await {
            Ok(found) => found,
            // Those are sent again, and not the ones whose outcome is known.
            Err(_) if !outcomes.is_empty() => return Ok(outcomes),
            Err(trouble) => return Err(trouble),
        };
        for append in left {
            if let Some(outcome) = judge(append, found.remove(append.session_id.as_uuid()), is_unsure) {
                outcomes.insert(append.session_id, outcome);
            }
        }
    }
    Ok(outcomes)
}

/// Judges an append that changed nothing when it was sent last; `None` if it must be sent again.
fn judge(append: &Append, found: Option<Found>, is_unsure: bool) -> Option<Result<(), StoreError>> {
    let Some(Found { epoch, written_epoch, tail }) = found else { return Some(Err(StoreError::Fenced)) };
    let is_behind = tail >= append.tail();
    match (written_epoch == append.epoch, epoch == append.epoch) {
        // Only this process writes under its epoch, and one batch at a time.
        (true, _) if is_behind => Some(Ok(())),
        (_, true) if tail == append.after => None,
        // Somebody else has written since, perhaps behind this append.
        (false, _) if is_unsure && is_behind => {
            Some(Err(StoreError::Failed("another node has the session by now; the outcome is unknown".to_owned())))
        }
        (_, true) => Some(Err(StoreError::OutOfOrder)),
        (_, false) => Some(Err(StoreError::Fenced)),
    }
}

/// Sends the statement; returns the sessions that were appended to.
async fn send(db: &Db, node: &str, group: &[&Append]) -> Result<Vec<Uuid>, Trouble> {
    let (mut ids, mut epochs, mut afters, mut tails) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut sums, mut rows, mut idles) = (Vec::new(), Vec::new(), Vec::new());
    let (mut of, mut seqs, mut times, mut lines) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for append in group {
        let id = *append.session_id.as_uuid();
        let (mut bytes, row) = (0, append.row.as_ref());
        for entry in &append.entries {
            bytes += signed(entry.line.len() as u64);
            of.push(id);
            seqs.push(signed(entry.seq));
            times.push(entry.time_ms);
            lines.push(&entry.line[..]);
        }
        ids.push(id);
        epochs.push(append.epoch);
        afters.push(signed(append.after));
        tails.push(signed(append.tail()));
        sums.push(bytes);
        let row_text = row.map(serde_json::to_string).transpose();
        rows.push(row_text.map_err(|error| Trouble::Unreadable(error.to_string()))?);
        idles.push(row.is_some_and(|row| row.state == SessionState::Idle));
    }
    let taken = db
        .record(
            APPEND,
            &[
                (&ids, Type::UUID_ARRAY),
                (&epochs, Type::INT8_ARRAY),
                (&afters, Type::INT8_ARRAY),
                (&tails, Type::INT8_ARRAY),
                (&sums, Type::INT8_ARRAY),
                (&rows, Type::TEXT_ARRAY),
                (&idles, Type::BOOL_ARRAY),
                (&of, Type::UUID_ARRAY),
                (&seqs, Type::INT8_ARRAY),
                (&times, Type::INT8_ARRAY),
                (&lines, Type::BYTEA_ARRAY),
                (&node, Type::TEXT),
            ],
        )
        .await?;
    taken.iter().map(|row| column(row, 0)).collect()
}

/// Asks how far sessions have come.
async fn ask(db: &Db, appends: &[&Append]) -> Result<HashMap<Uuid, Found>, Trouble> {
    let ids: Vec<Uuid> = appends.iter().map(|append| *append.session_id.as_uuid()).collect();
    let rows = db
        .query(
            "SELECT id, epoch, written_epoch, tail FROM meerkat.sessions WHERE id = ANY($1)",
            &[(&ids, Type::UUID_ARRAY)],
        )
        .await?;
    let found = |row: &tokio_postgres::Row| {
        let (epoch, written_epoch, tail) = (column(row, 1)?, column(row, 2)?, unsigned(column(row, 3)?)?);
        Ok((column(row, 0)?, Found { epoch, written_epoch, tail }))
    };
    rows.iter().map(found).collect()
}
