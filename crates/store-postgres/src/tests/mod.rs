//! Tests over a database of their own. Without PostgreSQL they say that they did not run.

mod agents;
mod bad_input;
mod births;
mod campaigns;
mod cluster;
mod conformance;
mod connections;
mod copy;
mod deletion;
mod faults;
mod forgotten;
mod history;
mod inspect;
mod lists;
mod model;
mod nodes;
mod pooler;
mod proxy;
mod scope;
mod sweeps;

use std::{sync::Arc, time::Duration};

use meerkat_service::{
    Seq, SessionId,
    clock::Timestamp,
    options::Budgets,
    session::event::{Event, Record, SessionCreated, TurnStarted},
    store::{EventStore, Lease, ReadLimit, StoreError},
};
use meerkat_words::{
    answers::{SessionState, SessionSummary},
    model::Usage,
};
use uuid::Uuid;

use crate::{PostgresOptions, events::PostgresEvents, parts, store::Store};

/// Empty schema for a test, or another database. Ends the test where there is no PostgreSQL.
macro_rules! database {
    () => {
        database!(crate::tests::cluster::fresh())
    };
    ($database:expr) => {{
        meerkat_testkit::needs!(crate::tests::cluster::NEEDED => crate::tests::cluster::is_here());
        $database
    }};
}
pub(crate) use database;

/// Opens the shared part of the stores of a node.
async fn node(database: &cluster::Database, name: &str) -> Arc<Store> {
    parts(database.options(name)).await.unwrap()
}

/// Opens a node by other options.
async fn node_with(options: PostgresOptions) -> Arc<Store> {
    parts(options).await.unwrap()
}

/// Lets so much time pass at once, for every node of the current thread.
async fn jump(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

fn events(store: &Arc<Store>) -> PostgresEvents {
    PostgresEvents(store.clone())
}

fn id(n: u8) -> SessionId {
    SessionId::from_uuid(Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(n)))
}

/// Record of session `n`.
fn record(n: u8, seq: Seq) -> Record {
    let (model, budgets) = ("scripted".to_owned(), Budgets::default());
    let event = match seq {
        1 => Event::SessionCreated(SessionCreated { model, budgets, ..SessionCreated::default() }),
        _ => {
            let prompt = Some(format!("say {seq}").into());
            Event::TurnStarted(TurnStarted { prompt, model, budgets, ..TurnStarted::default() })
        }
    };
    let turn = (seq > 1).then_some(0);
    Record { session_id: id(n), seq, turn, time: time(seq), event }
}

fn time(n: u64) -> Timestamp {
    Timestamp::from_millis(1_767_225_600_000 + i64::try_from(n).unwrap() * 1000)
}

/// Row of session `n` in lists.
fn row(n: u8, last_seq: Seq, state: SessionState) -> SessionSummary {
    SessionSummary {
        session_id: id(n),
        title: Some(format!("session {n}")),
        labels: [("parity".to_owned(), (n % 2).to_string())].into(),
        model: "scripted".to_owned(),
        state,
        archived: false,
        created_at: time(u64::from(n)),
        updated_at: time(last_seq),
        turn_count: 0,
        message_count: last_seq,
        last_seq,
        usage: Usage::default(),
        cost: None,
        forked_from: None,
        last_error: None,
        parent: None,
    }
}

/// Appends the records up to `last`, with a row that says `state`.
async fn append(
    store: &Arc<Store>,
    lease: &Lease,
    n: u8,
    seqs: std::ops::RangeInclusive<Seq>,
    state: SessionState,
) -> Result<Seq, StoreError> {
    let (records, last): (Vec<Record>, Seq) = (seqs.clone().map(|seq| record(n, seq)).collect(), *seqs.end());
    events(store).stage_listed(lease, &records, &row(n, last, state))?.durable().await
}

/// Seqs of a session.
async fn seqs(store: &Arc<Store>, n: u8) -> Option<Vec<Seq>> {
    let page = events(store).read(id(n), 0, ReadLimit::frames(1000)).await.unwrap();
    page.map(|page| page.frames.iter().map(|frame| frame.seq).collect())
}
