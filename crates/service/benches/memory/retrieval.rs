//! How much of what was said is found, on the two corpora, and in the public tests' files where they are named.

use super::{
    corpus::Size,
    load::{self, ADVERSARIAL},
    metrics::Scores,
    option,
    questions::{report, tune},
    ways::measure,
};

/// The corpora that are measured.
const FULL: Size = Size { sessions: 130, messages: 36, people: 7 };

/// Measures the two corpora, and the files that are named.
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
