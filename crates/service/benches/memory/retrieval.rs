//! How much of what was said is found: memory's lanes alone, their fusion, and what they are held against.

use std::collections::BTreeMap;

use meerkat_service::{
    memory::{Intake, MemoryOptions, SharedMemory, open_memory},
    service::{SearchHit, SearchMemory, SearchScope},
};

use super::{
    baselines::{Exact, Hashed, PlainBm25, Search},
    corpus::{Place, Size},
    load::{self, ADVERSARIAL},
    metrics::{DEEP, Scores},
    option,
    questions::{Haystack, report, tune},
};

/// The corpora that are measured.
const FULL: Size = Size { sessions: 130, messages: 36, people: 7 };

/// The lanes of memory.
pub(crate) const LANES: [&str; 3] = ["words", "ngrams", "vector"];
/// All of them together.
pub(crate) const FUSION: &str = "fusion";

/// As many hits as show a lane's own order.
const ALL: usize = 1_000;

/// What memory is told at once.
const BATCH: usize = 20;

/// A memory in this process that was told all of it.
pub(crate) async fn memory(sessions: &[Intake]) -> SharedMemory {
    let memory = open_memory(None, MemoryOptions::default()).unwrap();
    for batch in sessions.chunks(BATCH) {
        memory.add(batch.to_vec()).await.unwrap();
    }
    memory
}

/// A question to the whole project.
pub(crate) fn request(query: &str, limit: usize) -> SearchMemory {
    SearchMemory {
        query: query.to_owned(),
        scope: SearchScope::Project,
        session_id: None,
        role: None,
        labels: BTreeMap::new(),
        since: None,
        until: None,
        limit: Some(limit),
    }
}

/// Asks the baselines and memory all questions of a haystack.
pub(crate) async fn measure(haystack: &Haystack, scores: &mut Scores) {
    let baselines: [(&'static str, Box<dyn Search>); 3] = [
        ("exact match", Box::new(Exact::new(&haystack.sessions))),
        ("hashed words", Box::new(Hashed::new(&haystack.sessions))),
        ("plain BM25", Box::new(PlainBm25::new(&haystack.sessions))),
    ];
    let Ok(memory) = open_memory(None, MemoryOptions::default()) else {
        for question in &haystack.questions {
        if std::env::var("DUMP").is_ok() {
            let text = |p: &Place| haystack.sessions.iter().find(|s| s.session_id == p.0).unwrap().passages.iter().find(|q| q.seq == p.1).unwrap().text.clone();
            let f = baselines[2].1.search(&question.text, DEEP);
            println!("[{}] {}\n     rank {:?}: {:?}\n     first: {:?}", question.category, question.text, f.iter().position(|p| question.evidence.contains(p)), question.evidence.iter().map(text).collect::<Vec<_>>(), f.iter().take(2).map(text).collect::<Vec<_>>());
        }
        for (way, baseline) in &baselines {
            scores.count(way, question, &baseline.search(&question.text, DEEP));
        }}
 return; };
 memory.close().await; let memory = self::memory(&haystack.sessions).await; //TMP
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

/// What one lane alone would have answered.
fn by_lane(hits: &[SearchHit], lane: &str) -> Vec<Place> {
    let mut given: Vec<(f64, &SearchHit)> =
        hits.iter().filter_map(|hit| hit.lanes.get(lane).map(|score| (*score, hit))).collect();
    given.sort_by(|one, other| other.0.total_cmp(&one.0));
    given.iter().take(DEEP).map(|(_, hit)| (hit.session_id, hit.from_seq)).collect()
}

fn places(hits: &[SearchHit]) -> Vec<Place> {
    hits.iter().map(|hit| (hit.session_id, hit.from_seq)).collect()
}

/// Measures the two corpora, and the files that are named.
pub(crate) fn run(args: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, haystack) in [("tuning", tune(FULL)), ("reporting", report(FULL))] {
        if std::env::var("JSON").is_ok() {
            let q: Vec<_> = haystack.questions.iter().map(|q| (&q.text, q.category, &q.evidence)).collect();
            std::fs::write(format!("/tmp/corpus-{name}.json"), serde_json::to_string(&(&haystack.sessions, q)).unwrap()).unwrap();
            continue;
        }
        let mut scores = Scores::default();
        let messages: usize = haystack.sessions.iter().map(|session| session.passages.len()).sum();
        runtime.block_on(measure(&haystack, &mut scores));
        let title = format!(
            "\nThe corpus for {name}: {} sessions, {messages} messages, {} questions",
            haystack.sessions.len(),
            haystack.questions.len()
        );
        println!("{}", scores.table(&title));
        assert!(scores.of("hashed words").recall() < 0.5, "the corpus does not discriminate");
        assert!(scores.of("exact match").recall() < 0.7, "the corpus does not discriminate");
    }
    if let Some(path) = option(args, "--locomo") {
        let mut scores = Scores::with_apart(&[ADVERSARIAL]);
        let file = std::fs::File::open(path).unwrap();
        load::locomo(file, |haystack| runtime.block_on(measure(&haystack, &mut scores))).unwrap();
        println!("{}", scores.table("\nLoCoMo, held out; its adversarial questions are counted apart"));
    }
    if let Some(path) = option(args, "--longmemeval") {
        let mut scores = Scores::default();
        let file = std::fs::File::open(path).unwrap();
        load::longmemeval(file, |haystack| runtime.block_on(measure(&haystack, &mut scores))).unwrap();
        println!("{}", scores.table("\nLongMemEval, held out, evidence by turn"));
    }
}
