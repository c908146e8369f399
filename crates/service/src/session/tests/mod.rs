//! What the tests of events share: records, one sample of each kind, and how a generated file is compared.

mod apply;
mod costs;
mod fork;
mod json;
mod keys;
mod naive;
mod pages;
mod reminders;
mod said;
mod samples;
mod snapshot;
pub(crate) mod walk;

use std::{fs, path::Path};

pub(crate) use json::{damaged, edits, tokens};
pub(crate) use samples::{Filling, Sample, filling, sample};

use super::event::{Event, Pinned, Record, SessionCreated};
use crate::{
    Session, SessionId,
    clock::SeededIds,
    ids::{Seq, TurnNumber},
};

pub(crate) fn session_id() -> SessionId {
    SessionId::from_uuid(uuid::Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001))
}

pub(crate) fn record(seq: Seq, turn: Option<TurnNumber>, event: Event) -> Record {
    Record { session_id: session_id(), seq, turn, time: SeededIds::wall_time(), event }
}

/// The session that these records make.
pub(crate) fn fold(records: &[Record]) -> Session {
    let mut session = Session::begin(&records[0]).unwrap();
    records[1..].iter().for_each(|record| session.apply(record).unwrap());
    session
}

pub(crate) fn pinned(seq: Seq, text: &str) -> Record {
    record(seq, None, Event::Pinned(Pinned { text: text.to_owned() }))
}

pub(crate) fn created() -> Event {
    Event::SessionCreated(SessionCreated { model: "scripted".to_owned(), ..SessionCreated::default() })
}

/// Compares a committed file with its generated content, or writes it.
pub(crate) fn assert_committed(path: &str, content: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    if std::env::var_os("MEERKAT_BLESS").is_some_and(|value| value == "1") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    let name = path.display();
    assert!(committed == content, "{name} is stale: run `MEERKAT_BLESS=1 cargo test -p meerkat-service` and commit it");
}
