//! Measured ways of searching: memory's lanes alone, their fusion, and the baselines.

use meerkat_recall::open_memory;
use meerkat_words::{
    answers::SearchHit,
    memory::{Intake, MemoryOptions, SharedMemory},
    requests::SearchMemory,
};

use super::{
    baselines::{Exact, Hashed, PlainBm25, Search},
    corpus::Place,
    metrics::{DEEP, Scores},
    questions::Haystack,
};

/// Lanes of memory.
pub(crate) const LANES: [&str; 3] = ["words", "ngrams", "vector"];
/// All lanes together.
pub(crate) const FUSION: &str = "fusion";

/// Most hits of a search; a lane's own best are nearly always among them.
const ALL: usize = 100;

/// Sessions added at once.
const BATCH: usize = 20;

/// Makes a memory with these sessions.
async fn memory(sessions: &[Intake]) -> SharedMemory {
    let memory = open_memory(None, MemoryOptions::default()).unwrap();
    for batch in sessions.chunks(BATCH) {
        memory.add(batch.to_vec()).await.unwrap();
    }
    memory
}

/// Makes a search of the whole project.
pub(crate) fn request(query: &str, limit: usize) -> SearchMemory {
    SearchMemory { query: query.to_owned(), limit: Some(limit), ..SearchMemory::default() }
}

/// Asks the baselines and memory all questions of a haystack.
pub(crate) async fn measure(haystack: &Haystack, scores: &mut Scores) {
    let baselines: [(&'static str, Box<dyn Search>); 3] = [
        ("exact match", Box::new(Exact::new(&haystack.sessions))),
        ("hashed words", Box::new(Hashed::new(&haystack.sessions))),
        ("plain BM25", Box::new(PlainBm25::new(&haystack.sessions))),
    ];
    let memory = memory(&haystack.sessions).await;
    for question in &haystack.questions {
        for (way, baseline) in &baselines {
            scores.count(way, question, &baseline.search(&question.text, DEEP));
        }
        let hits = memory.search(request(&question.text, ALL)).await.unwrap().items;
        for lane in LANES {
            scores.count(lane, question, &by_lane(&hits, lane));
        }
        let hits = memory.search(request(&question.text, DEEP)).await.unwrap().items;
        scores.count(FUSION, question, &places(&hits));
    }
    memory.close().await;
}

/// Returns the answer of one lane alone.
fn by_lane(hits: &[SearchHit], lane: &str) -> Vec<Place> {
    let mut given: Vec<(f64, &SearchHit)> =
        hits.iter().filter_map(|hit| hit.lanes.get(lane).map(|score| (*score, hit))).collect();
    given.sort_by(|one, other| other.0.total_cmp(&one.0));
    given.iter().take(DEEP).map(|(_, hit)| (hit.session_id, hit.from_seq)).collect()
}

fn places(hits: &[SearchHit]) -> Vec<Place> {
    hits.iter().map(|hit| (hit.session_id, hit.from_seq)).collect()
}
