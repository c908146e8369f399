//! Retrieval quality: memory against its lanes and plain searches, on a small corpus of the benchmark; and the parsers
//! of the public datasets.
//!
//! The benchmark measures; these are the minimums.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[allow(dead_code, reason = "the benchmark measures the full corpora")]
#[path = "../../benches/memory/agents.rs"]
mod agents;
#[path = "../../benches/memory/baselines.rs"]
mod baselines;
#[path = "../../benches/memory/book.rs"]
mod book;
#[path = "../../benches/memory/corpus.rs"]
mod corpus;
#[path = "../../benches/memory/load.rs"]
mod load;
#[allow(dead_code, reason = "the benchmark counts some categories apart, and compares results")]
#[path = "../../benches/memory/metrics.rs"]
mod metrics;
#[path = "../../benches/memory/questions.rs"]
mod questions;
#[path = "../../benches/memory/random.rs"]
mod random;
#[path = "../../benches/memory/ways.rs"]
mod ways;

use corpus::Size;
use metrics::Scores;
use questions::Haystack;

const SMALL: Size = Size { sessions: 30, messages: 14, people: 2 };

/// Least recall: paraphrases, misspellings and context in neighbouring messages may cost one question of five.
const FOUND_MIN: f64 = 0.8;
/// Margin over plain BM25, which justifies windows and priors.
const OVER_PLAIN_MIN: f64 = 0.1;
/// Least abstention of words on questions about things never said: some share a word with what was.
const ABSTAINED_MIN: f64 = 0.7;
/// Least abstention with vectors, which answer with what was said about the like.
const ABSTAINED_BY_MEANING_MIN: f64 = 0.4;

/// Least recall in agents' sessions, where many texts are nearly equal.
const FOUND_BY_AGENTS_MIN: f64 = 0.6;

#[tokio::test]
async fn memory_finds_more_than_a_plain_search() {
    let dialogues = (questions::report(SMALL), FOUND_MIN);
    let sessions = (agents::report(agents::SMALL), FOUND_BY_AGENTS_MIN);
    let mut gained = 0.0;
    for (haystack, found_min) in [dialogues, sessions] {
        let mut scores = Scores::default();
        ways::measure(&haystack, None, &mut scores).await;
        let table = scores.table("a small corpus");
        let recall = scores.of(ways::MEMORY).recall();
        assert!(recall > scores.of("plain BM25").recall() + OVER_PLAIN_MIN, "{table}");
        assert!(recall > found_min, "{table}");
        gained += recall - scores.of(ways::WORDS).recall();
        let abstention = |way| scores.of_category("foreign", way).abstention();
        assert!(abstention(ways::WORDS) > ABSTAINED_MIN, "{table}");
        assert!(abstention(ways::MEMORY) > ABSTAINED_BY_MEANING_MIN, "{table}");
    }
    assert!(gained > 0.0, "the built-in vectors find what words do not: {gained}");
}

#[test]
fn a_difference_has_its_standard_error() {
    let (mean, error) = metrics::paired(&[1.0, 0.0, 1.0, 0.5], &[0.0, 0.0, 1.0, 0.0]);
    // Differences 1, 0, 0, 0.5: mean 0.375, variance 0.229, over 4 questions.
    assert!((mean - 0.375).abs() < 1e-9 && (error - 0.2394).abs() < 1e-4, "{mean} {error}");
}

#[test]
fn the_two_corpora_are_the_same_each_time_and_share_nothing() {
    let texts = |haystack: &Haystack| -> Vec<String> {
        haystack.questions.iter().map(|question| question.text.clone()).collect()
    };
    let (tune, report) = (texts(&questions::tune(SMALL)), texts(&questions::report(SMALL)));
    assert_eq!(report, texts(&questions::report(SMALL)));
    assert!(tune.iter().all(|question| !report.contains(question)));
}

#[test]
fn every_evidence_stands_in_a_session() {
    for haystack in [questions::tune(SMALL), questions::report(SMALL)] {
        let known: Vec<_> = haystack
            .sessions
            .iter()
            .flat_map(|session| session.passages.iter().map(|passage| (session.session_id, passage.seq)))
            .collect();
        assert!(haystack.questions.iter().flat_map(|question| &question.evidence).all(|place| known.contains(place)));
        let has_slot = |text: &str| text.contains(['{', '}']) && !text.contains("{}");
        assert!(!haystack.questions.iter().any(|question| has_slot(&question.text)));
        let texts = haystack.sessions.iter().flat_map(|session| &session.passages);
        assert!(!texts.clone().any(|passage| has_slot(&passage.text)));
    }
}

/// Has the form of LoCoMo's file.
const LOCOMO: &str = r#"[{
    "sample_id": "conv-0",
    "conversation": {
        "speaker_a": "Ada", "speaker_b": "Ben",
        "session_2_date_time": "10:37 am on 27 June, 2023",
        "session_2": [{"speaker": "Ben", "dia_id": "D2:1", "text": "I sold the boat."}],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_1": [
            {"speaker": "Ada", "dia_id": "D1:1", "text": "Hi Ben!"},
            {"speaker": "Ben", "dia_id": "D1:2", "text": "Look.", "blip_caption": "a photo of a red boat", "img_url": ["x"]}
        ],
        "session_3_date_time": "9:00 am on 1 July, 2023"
    },
    "event_summary": {},
    "qa": [
        {"question": "What does Ben's boat look like?", "answer": "red", "evidence": ["D1:2; D2:1"], "category": 1},
        {"question": "When was it sold?", "answer": 2023, "evidence": ["D:2:01"], "category": 2},
        {"question": "What did Ada sell?", "adversarial_answer": "a boat", "evidence": ["D2:1"], "category": 5},
        {"question": "Who else?", "answer": "nobody", "evidence": ["D"], "category": 3}
    ]
}]"#;

#[test]
fn locomo_is_read_as_it_is_written() {
    let mut read = Vec::new();
    load::locomo(LOCOMO.as_bytes(), |haystack| read.push(haystack)).unwrap();
    let [haystack] = &read[..] else { panic!("one sample is one haystack") };
    let said: Vec<_> = haystack.sessions.iter().flat_map(|session| &session.passages).collect();
    let texts: Vec<&str> = said.iter().map(|passage| &*passage.text).collect();
    assert_eq!(texts, ["Hi Ben!", "[shows a photo of a red boat] Look.", "I sold the boat."]);
    assert_eq!([&said[0].role, &said[1].role], ["user", "assistant"]);
    assert!(said[1].time.to_string().starts_with("2023-05-08T13:5"), "{}", said[1].time);
    assert!(said[2].time.to_string().starts_with("2023-06-27T10:3"), "{}", said[2].time);
    let places: Vec<_> =
        haystack.sessions.iter().flat_map(|s| s.passages.iter().map(|p| (s.session_id, p.seq))).collect();
    let asked: Vec<_> = haystack.questions.iter().map(|question| (question.category, &question.evidence[..])).collect();
    assert_eq!(asked, [("multi-hop", &places[1..]), ("temporal", &places[2..]), (load::ADVERSARIAL, &places[2..])]);
}

/// Has the form of LongMemEval's file.
const LONGMEMEVAL: &str = r#"[
    {
        "question_id": "q1", "question_type": "knowledge-update", "question": "Which bike?", "answer": "a folding one",
        "question_date": "2023/06/01 (Thu) 09:00", "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 10:00"],
        "haystack_session_ids": ["s1", "s2"], "answer_session_ids": ["s2"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello!"}],
            [{"role": "user", "content": "I ride a folding bike.", "has_answer": true}]
        ]
    },
    {
        "question_id": "q2_abs", "question_type": "multi-session", "question": "Which boat?", "answer": "not said",
        "haystack_dates": [], "haystack_sessions": [[{"role": "user", "content": "Hello", "has_answer": false}]]
    }
]"#;

#[test]
fn longmemeval_is_read_as_it_is_written() {
    let mut read = Vec::new();
    load::longmemeval(LONGMEMEVAL.as_bytes(), |haystack| read.push(haystack)).unwrap();
    let [one, other] = &read[..] else { panic!("one question is one haystack") };
    let said = &one.sessions[1].passages[0];
    assert!(said.time.to_string().starts_with("2023-05-21T10:00"), "{}", said.time);
    assert_eq!(one.questions[0].evidence, [(one.sessions[1].session_id, said.seq)]);
    assert_eq!((one.questions[0].category, other.questions[0].category), ("update", "abstention"));
    assert!(other.questions[0].evidence.is_empty());
}
