//! Retrieval on the generated corpora, and on the public datasets that are named.
//!
//! `--endpoint URL` measures memory with the vectors of that server too, and `--model DIR` with those of a table, on the
//! public datasets. `--save FILE` keeps the result of every question, and `--against FILE` prints the differences from an
//! earlier run: what a change of the ranking is worth.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use meerkat_recall::{EndpointEmbedder, EndpointOptions, LocalEmbedder};
use meerkat_words::{clock::World, memory::Embedder};

use super::{
    agents,
    corpus::Size,
    load::{self, ADVERSARIAL},
    metrics::{Scores, paired},
    option,
    questions::{Haystack, report, tune},
    ways::{MEMORY, WITH_MODEL, WORDS, measure},
};

/// Size of the corpora of dialogues.
const FULL: Size = Size { sessions: 130, messages: 36, people: 7 };

/// First conversations of LoCoMo, which constants may be tuned on.
const LOCOMO_TUNING: usize = 5;

/// Results of every question, by corpus and way.
type Results = BTreeMap<String, Vec<[f64; 2]>>;

/// Measures the generated corpora, and the named files.
pub(crate) fn run(args: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let model = model(args);
    let mut results = Results::new();
    let generated: [(&str, Haystack); 4] = [
        ("dialogues, tuning", nameless(tune(FULL))),
        ("dialogues, held out", nameless(report(FULL))),
        ("agents, tuning", agents::tune(agents::FULL)),
        ("agents, held out", agents::report(agents::FULL)),
    ];
    for (name, haystack) in generated {
        let mut scores = Scores::default();
        let messages: usize = haystack.sessions.iter().map(|session| session.passages.len()).sum();
        runtime.block_on(measure(&haystack, None, &mut scores));
        let (sessions, questions) = (haystack.sessions.len(), haystack.questions.len());
        println!(
            "{}",
            scores.table(&format!("\n{name}: {sessions} sessions, {messages} messages, {questions} questions"))
        );
        assert!(scores.of("exact match").recall() < 0.7, "the corpus does not discriminate");
        keep(&mut results, name, &scores);
    }
    if let Some(path) = option(args, "--locomo") {
        let mut halves = [Scores::with_apart(&[ADVERSARIAL]), Scores::with_apart(&[ADVERSARIAL])];
        let file = fs::File::open(path).unwrap();
        let mut nth = 0;
        let take = |haystack| {
            let is_held_out = nth >= LOCOMO_TUNING;
            runtime.block_on(measure(&haystack, model.clone(), &mut halves[usize::from(is_held_out)]));
            nth += 1;
        };
        load::locomo(file, take).unwrap();
        for (name, scores) in ["LoCoMo, tuning", "LoCoMo, held out"].into_iter().zip(&halves) {
            println!("{}", scores.table(&format!("\n{name}; adversarial questions are counted apart")));
            keep(&mut results, name, scores);
        }
    }
    if let Some(path) = option(args, "--longmemeval") {
        let mut scores = Scores::default();
        let file = fs::File::open(path).unwrap();
        let take = |haystack: Haystack| runtime.block_on(measure(&haystack, model.clone(), &mut scores));
        load::longmemeval(file, take).unwrap();
        println!("{}", scores.table("\nLongMemEval, held out, evidence by turn"));
        keep(&mut results, "LongMemEval", &scores);
    }
    compare(&results, option(args, "--against"));
    if let Some(path) = option(args, "--save") {
        fs::write(path, serde_json::to_vec(&results).unwrap()).unwrap();
    }
}

/// Opens the model that is named.
fn model(args: &[String]) -> Option<Arc<dyn Embedder>> {
    if let Some(url) = option(args, "--endpoint") {
        let (base_url, model) = (url.to_owned(), "the only one".to_owned());
        let options = EndpointOptions { base_url, model, ..EndpointOptions::default() };
        return Some(Arc::new(EndpointEmbedder::new(options, World::system()).unwrap()));
    }
    option(args, "--model").map(|dir| Arc::new(LocalEmbedder::open(Path::new(dir)).unwrap()) as Arc<dyn Embedder>)
}

/// Removes the speaker's name before each prompt: memory stores a message's text alone.
fn nameless(mut haystack: Haystack) -> Haystack {
    for passage in haystack.sessions.iter_mut().flat_map(|session| &mut session.passages) {
        if let Some((_, text)) = passage.text.split_once(": ").filter(|_| passage.role == "user") {
            passage.text = text.to_owned();
        }
    }
    haystack
}

fn keep(results: &mut Results, corpus: &str, scores: &Scores) {
    for way in ["plain BM25", WORDS, MEMORY, WITH_MODEL] {
        let each = scores.of(way).each().to_vec();
        if !each.is_empty() {
            results.insert(format!("{corpus}: {way}"), each);
        }
    }
}

/// Prints what words gain over plain BM25, what vectors gain over words, and the differences from an earlier run.
fn compare(results: &Results, before: Option<&str>) {
    println!("\ndifferences, with standard errors             recall@20                MRR");
    let line = |title: &str, one: &[[f64; 2]], other: &[[f64; 2]]| {
        let of = |nth: usize| paired(&column(one, nth), &column(other, nth));
        let ((recall, recall_error), (rank, rank_error)) = (of(0), of(1));
        println!("{title:<44}{recall:>+8.3} ± {recall_error:.3}   {rank:>+8.3} ± {rank_error:.3}");
    };
    for (name, each) in results {
        for (way, than) in [(WORDS, "plain BM25"), (MEMORY, WORDS), (WITH_MODEL, WORDS)] {
            if let Some(corpus) = name.strip_suffix(&format!(": {way}"))
                && let Some(other) = results.get(&format!("{corpus}: {than}"))
            {
                line(&format!("{corpus}: {way} - {than}"), each, other);
            }
        }
    }
    let Some(path) = before else { return };
    let before: Results = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    println!("since the earlier run");
    for (name, each) in results {
        if let Some(other) = before.get(name).filter(|other| other.len() == each.len()) {
            line(name, each, other);
        }
    }
}

fn column(each: &[[f64; 2]], nth: usize) -> Vec<f64> {
    each.iter().map(|it| it[nth]).collect()
}
