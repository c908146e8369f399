//! Filters, neighbours, scripts and odd queries.

use super::*;

fn labelled(n: u64, label: (&str, &str), texts: &[&str]) -> Intake {
    let labels = BTreeMap::from([(label.0.to_owned(), label.1.to_owned())]);
    Intake { labels, ..talk(n, texts) }
}

#[tokio::test]
async fn filters_come_before_ranking() {
    let store = open(None, false);
    let notes = |n: u64| (1..=40).map(|seq| said(seq, "user", &format!("tulips {n} {seq}"))).collect();
    store.add(vec![intake(1, notes(1)), labelled(2, ("team", "garden"), &["tulips?", "tulips!"])]).await.unwrap();
    let at = |seq: u64| Some(said(seq, "", "").time);
    let all = |request: SearchMemory| SearchMemory { limit: Some(100), ..request };
    let found = async |request: SearchMemory| texts(&store, all(request)).await;

    assert_eq!(found(query("tulips")).await.len(), 42);
    let scoped = SearchMemory { scope: SearchScope::Session, session_id: Some(session(2)), ..query("tulips") };
    assert_eq!(found(scoped.clone()).await.len(), 2);
    assert_eq!(found(SearchMemory { session_id: None, ..scoped.clone() }).await.len(), 0);
    assert_eq!(found(SearchMemory { session_id: Some(session(9)), ..scoped }).await.len(), 0);
    assert_eq!(found(SearchMemory { role: Some("assistant".to_owned()), ..query("tulips") }).await, ["tulips!"]);
    assert_eq!(found(SearchMemory { role: Some("nobody".to_owned()), ..query("tulips") }).await.len(), 0);
    let labels = BTreeMap::from([("team".to_owned(), "garden".to_owned())]);
    assert_eq!(found(SearchMemory { labels, ..query("tulips") }).await.len(), 2);
    let labels = BTreeMap::from([("team".to_owned(), "kitchen".to_owned())]);
    assert_eq!(found(SearchMemory { labels, ..query("tulips") }).await.len(), 0);
    let between = SearchMemory { since: at(10), until: at(12), ..query("tulips") };
    let mut hits = found(between).await;
    hits.sort();
    assert_eq!(hits, ["tulips 1 10", "tulips 1 11", "tulips 1 12"]);

    // Labels are those of the newest intake.
    store.add(vec![labelled(2, ("team", "kitchen"), &[])]).await.unwrap();
    let labels = BTreeMap::from([("team".to_owned(), "kitchen".to_owned())]);
    assert_eq!(found(SearchMemory { labels, ..query("tulips") }).await.len(), 2);
}

#[tokio::test]
async fn an_answer_is_found_by_the_question_beside_it() {
    let store = open(None, false);
    let texts = ["Which port does the staging database listen on?", "It is 7432.", "Thanks, noted.", "Any time."];
    store.add(vec![talk(1, &texts), talk(2, &["The weather is nice.", "It is 21 degrees."])]).await.unwrap();
    let hits = find(&store, "port of the staging database").await;
    let answer = hits.iter().position(|hit| hit.text == texts[1]).unwrap();
    assert!(answer <= 1, "{hits:?}");
}

#[tokio::test]
async fn a_question_for_a_time_is_answered_by_a_text_that_names_one() {
    let store = open(None, false);
    let texts = ["The tulips in the yard bloomed nicely.", "The tulips in the yard bloomed yesterday."];
    store.add(vec![talk(1, &texts[..1]), talk(2, &texts[1..]), talk(3, &["Rain.", "Snow."])]).await.unwrap();
    assert_eq!(find(&store, "When did the tulips in the yard bloom?").await[0].text, texts[1]);
    store.add(vec![talk(4, &["When did the tulips bloom?"])]).await.unwrap();
    assert_eq!(find(&store, "When did the tulips bloom?").await[0].text, texts[1]);
}

#[tokio::test]
async fn names_paths_and_other_scripts_are_found() {
    let store = open(None, false);
    let texts = [
        "The bug is in src/foo_bar.rs near parseHeader",
        "released v1.2.3 on 2024-03-05",
        "José likes crème brûlée",
        "東京で寿司を食べました",
        "мы говорили о погоде",
        "फिर मिलेंगे",
        "party 🎉 tonight",
        "the studies were planned carefully",
    ];
    store.add(vec![talk(1, &texts)]).await.unwrap();
    let pairs = [
        ("foo_bar", 0),
        ("foo_bar.rs", 0),
        ("src/foo_bar.rs", 0),
        ("parse header", 0),
        ("ParseHeader", 0),
        ("v1.2.3", 1),
        ("2024-03-05", 1),
        ("jose creme brulee", 2),
        ("寿司", 3),
        ("погода", 4),
        ("मिलेंगे", 5),
        ("🎉", 6),
        ("study plan", 7),
        ("carefuly planing", 7),
    ];
    for (text, expected) in pairs {
        let hits = find(&store, text).await;
        assert_eq!(hits.first().map(|hit| hit.text.as_str()), Some(texts[expected]), "{text}");
    }
}

/// A word in more texts than are looked at once found nothing: "error" in a large project.
#[tokio::test]
async fn a_word_of_very_many_texts_finds_the_newest_of_them() {
    let store = open(None, false);
    let texts = (1..=2_600).map(|seq| said(seq, "user", &format!("error {seq}")));
    store.add(vec![intake(1, texts.collect())]).await.unwrap();
    let hits = find(&store, "errors").await;
    assert_eq!(hits.len(), 10);
    assert!(hits.iter().all(|hit| hit.from_seq > 100), "{hits:?}");
}

#[tokio::test]
async fn odd_queries_are_answered() {
    let store = open(None, false);
    store.add(vec![talk(1, &["the quick brown fox", "jumps over\u{0} the \u{1b}[31mlazy dog"])]).await.unwrap();
    let long = "fox ".repeat(256 * 1024);
    for text in ["", "  ", "?!…—", "\u{0}\u{1}\u{7f}", "\u{202e}\u{200b}"] {
        assert!(find(&store, text).await.is_empty(), "{text:?}");
    }
    assert_eq!(find(&store, &long).await[0].from_seq, 1);
    assert_eq!(find(&store, "l\u{0}azy\u{200b}").await[0].from_seq, 2);
    let limited = async |limit: usize| texts(&store, SearchMemory { limit: Some(limit), ..query("the") }).await.len();
    assert_eq!((limited(0).await, limited(1).await, limited(1_000_000).await), (0, 1, 2));
}
