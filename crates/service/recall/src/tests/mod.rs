//! The promises of memory, tested through its trait.

mod damage;
mod floor;
mod lanes;
mod lives;
mod meaning;
mod model;
mod postings;
mod troubles;
mod vectors;
mod words;

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;

use super::HnswMemoryStore;
use meerkat_words::{
    Absence, SessionError, SessionId,
    answers::SearchHit,
    clock::{IdSource as _, SeededIds, Timestamp},
    memory::{EmbedFor, Embedder, Intake, MemoryOptions, MemoryStore as _, Passage},
    requests::{ForgetMemory, SearchMemory, SearchScope},
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

/// Makes a store that builds a graph of few vectors.
pub(super) fn memory(dir: Option<&Path>, embedder: Option<Arc<dyn Embedder>>, records_intake: bool) -> HnswMemoryStore {
    HnswMemoryStore::new(dir, MemoryOptions { embedder, graph_from: 301, records_intake, ..MemoryOptions::default() })
}

/// Makes a store that has no embedder.
pub(super) fn open(dir: Option<&Path>, records_intake: bool) -> HnswMemoryStore {
    memory(dir, None, records_intake)
}

pub(super) async fn find(store: &HnswMemoryStore, text: &str) -> Vec<SearchHit> {
    store.search(query(text)).await.unwrap().items
}

/// Forgets for a request; returns how many texts.
pub(super) async fn forgets(store: &HnswMemoryStore, request: ForgetMemory) -> u64 {
    let decided = store.to_forget(request).await.unwrap();
    store.forget(decided).await.unwrap()
}

/// Returns the texts of the hits, best first.
pub(super) async fn texts(store: &HnswMemoryStore, request: SearchMemory) -> Vec<String> {
    store.search(request).await.unwrap().items.into_iter().map(|hit| hit.text).collect()
}

/// Makes a vector of a text's words, so that texts with common words are near.
pub(super) fn toy(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0; 64];
    for word in text.to_lowercase().split(|letter: char| !letter.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let hash = word.bytes().fold(7_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut mixed = hash;
        for component in &mut vector {
            mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *component += if mixed >> 63 == 0 { 1.0 } else { -1.0 };
        }
    }
    vector
}

/// Embedder that counts the texts that it embeds, and fails on demand.
pub(super) struct Faulty {
    pub(super) id: &'static str,
    pub(super) fails: AtomicBool,
    pub(super) embedded: AtomicUsize,
}

impl Faulty {
    pub(super) fn new(id: &'static str, fails: bool) -> Arc<Self> {
        Arc::new(Self { id, fails: AtomicBool::new(fails), embedded: AtomicUsize::new(0) })
    }
}

#[async_trait]
impl Embedder for Faulty {
    fn id(&self) -> String {
        self.id.to_owned()
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(SessionError::MemoryDisabled { absence: Absence::NotBuilt });
        }
        if purpose == EmbedFor::Passage {
            self.embedded.fetch_add(texts.len(), Ordering::Relaxed);
        }
        Ok(texts.iter().map(|text| toy(text)).collect())
    }
}
