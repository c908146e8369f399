//! The promises of memory, tested through its trait.

mod floor;
mod lanes;
mod lives;
mod model;
mod postings;
mod troubles;
mod words;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;

use super::{HashedEmbedder, HnswMemoryStore};
use meerkat_words::{
    SessionError, SessionId,
    answers::SearchHit,
    clock::{IdSource as _, SeededIds, Timestamp},
    memory::{EmbedFor, Embedder, Intake, MemoryStore as _, Passage},
    requests::{SearchMemory, SearchScope},
};

/// Returns the n-th session.
pub(super) fn session(n: u64) -> SessionId {
    SeededIds::new(7, n).next_session_id(SeededIds::wall_time())
}

/// Makes a passage of minute `seq`.
pub(super) fn said(seq: u64, role: &str, text: &str) -> Passage {
    Passage {
        seq,
        to_seq: seq,
        part: 0,
        role: role.to_owned(),
        source: role.to_owned(),
        time: Timestamp::from_millis(SeededIds::wall_time().as_millis() + 60_000 * i64::try_from(seq).unwrap()),
        text: text.to_owned(),
    }
}

pub(super) fn intake(n: u64, passages: Vec<Passage>) -> Intake {
    let up_to = passages.iter().map(|passage| passage.to_seq).max().unwrap_or(0);
    Intake { session_id: session(n), labels: BTreeMap::new(), passages, up_to, inherited: BTreeMap::new() }
}

/// Makes an intake with texts of user and assistant in turns.
pub(super) fn talk(n: u64, texts: &[&str]) -> Intake {
    let passages =
        (1_u64..).zip(texts).map(|(seq, text)| said(seq, if seq % 2 == 1 { "user" } else { "assistant" }, text));
    intake(n, passages.collect())
}

pub(super) fn query(text: &str) -> SearchMemory {
    SearchMemory { query: text.to_owned(), ..SearchMemory::default() }
}

/// Makes a store with the built-in embedder.
pub(super) fn open(dir: Option<&Path>, records_intake: bool) -> HnswMemoryStore {
    HnswMemoryStore::new(dir, Arc::new(HashedEmbedder), records_intake)
}

pub(super) async fn find(store: &HnswMemoryStore, text: &str) -> Vec<SearchHit> {
    store.search(query(text)).await.unwrap().items
}

/// Returns the texts of the hits, best first.
pub(super) async fn texts(store: &HnswMemoryStore, request: SearchMemory) -> Vec<String> {
    store.search(request).await.unwrap().items.into_iter().map(|hit| hit.text).collect()
}

/// Embedder that fails on demand.
pub(super) struct Faulty {
    pub(super) id: &'static str,
    pub(super) fails: AtomicBool,
}

impl Faulty {
    pub(super) fn new(id: &'static str, fails: bool) -> Arc<Self> {
        Arc::new(Self { id, fails: AtomicBool::new(fails) })
    }
}

#[async_trait]
impl Embedder for Faulty {
    fn id(&self) -> String {
        self.id.to_owned()
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(SessionError::MemoryDisabled { configured: false });
        }
        HashedEmbedder.embed(texts, purpose).await
    }
}
