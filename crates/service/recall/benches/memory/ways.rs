//! Measured ways of searching: memory with the built-in vectors, without any, with those of a model, and the baselines.

use std::sync::Arc;

use meerkat_recall::{builtin_embedder, open_memory};
use meerkat_words::{
    memory::{Embedder, Intake, MemoryOptions, SharedMemory},
    requests::SearchMemory,
};

use super::{
    baselines::{Exact, PlainBm25, Search},
    corpus::Place,
    metrics::{DEEP, Scores},
    questions::Haystack,
};

/// Memory as it is out of the box.
pub(crate) const MEMORY: &str = "memory";
/// Memory without vectors.
pub(crate) const WORDS: &str = "words alone";
/// Memory with the vectors of a model.
pub(crate) const WITH_MODEL: &str = "memory and model";

/// Sessions added at once.
const BATCH: usize = 20;

/// Makes a memory with these sessions, and all of their vectors.
async fn memory(sessions: &[Intake], embedder: Option<Arc<dyn Embedder>>) -> SharedMemory {
    let has_model = embedder.is_some();
    let memory = open_memory(None, MemoryOptions { embedder, ..MemoryOptions::default() }).unwrap();
    for batch in sessions.chunks(BATCH) {
        memory.add(batch.to_vec()).await.unwrap();
    }
    if has_model {
        memory.reindex(&|_, _| ()).await.unwrap();
    }
    memory
}

/// Makes a search of the whole project.
pub(crate) fn request(query: &str, limit: usize) -> SearchMemory {
    SearchMemory { query: query.to_owned(), limit: Some(limit), ..SearchMemory::default() }
}

/// Asks the baselines and memory all questions of a haystack.
pub(crate) async fn measure(haystack: &Haystack, model: Option<Arc<dyn Embedder>>, scores: &mut Scores) {
    let baselines: [(&'static str, Box<dyn Search>); 2] = [
        ("exact match", Box::new(Exact::new(&haystack.sessions))),
        ("plain BM25", Box::new(PlainBm25::new(&haystack.sessions))),
    ];
    for question in &haystack.questions {
        for (way, baseline) in &baselines {
            scores.count(way, question, &baseline.search(&question.text, DEEP));
        }
    }
    let with_model = model.map(|model| (WITH_MODEL, Some(model)));
    for (way, embedder) in [(WORDS, None), (MEMORY, builtin_embedder())].into_iter().chain(with_model) {
        let memory = memory(&haystack.sessions, embedder).await;
        for question in &haystack.questions {
            let hits = memory.search(request(&question.text, DEEP)).await.unwrap().items;
            let places: Vec<Place> = hits.iter().map(|hit| (hit.session_id, hit.from_seq)).collect();
            scores.count(way, question, &places);
        }
        memory.close().await;
    }
}
