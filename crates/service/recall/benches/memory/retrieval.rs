//! Retrieval on the two corpora, and on the public datasets that are named.

use super::{
    corpus::Size,
    load::{self, ADVERSARIAL},
    metrics::Scores,
    option,
    questions::{report, tune},
    ways::measure,
};

/// Size of both corpora.
const FULL: Size = Size { sessions: 130, messages: 36, people: 7 };

/// First conversations of LoCoMo, which constants may be tuned on.
const LOCOMO_TUNING: usize = 5;

/// Measures the two corpora, and the named files.
pub(crate) fn run(args: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for (name, haystack) in [("tuning", tune(FULL)), ("reporting", report(FULL))] {
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
        let mut halves = [Scores::with_apart(&[ADVERSARIAL]), Scores::with_apart(&[ADVERSARIAL])];
        let file = std::fs::File::open(path).unwrap();
        let mut nth = 0;
        let take = |haystack| {
            let is_held_out = nth >= LOCOMO_TUNING;
            runtime.block_on(measure(&haystack, &mut halves[usize::from(is_held_out)]));
            nth += 1;
        };
        load::locomo(file, take).unwrap();
        let [tuning, held_out] = halves;
        println!("{}", tuning.table("\nLoCoMo, its first five conversations, which constants were chosen by"));
        println!(
            "{}",
            held_out.table("\nLoCoMo, the other conversations, held out; adversarial questions are counted apart")
        );
    }
    if let Some(path) = option(args, "--longmemeval") {
        let mut scores = Scores::default();
        let file = std::fs::File::open(path).unwrap();
        load::longmemeval(file, |haystack| runtime.block_on(measure(&haystack, &mut scores))).unwrap();
        println!("{}", scores.table("\nLongMemEval, held out, evidence by turn"));
    }
}
