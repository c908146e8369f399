//! Filters, neighbours, scripts and odd queries.

use super::{
    super::{
        lexical::{self, Window},
        text::analyse_query,
    },
    *,
};

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
    let within = |value: Option<&str>| Some(("team".to_owned(), value.map(str::to_owned)));
    for (value, hits) in [(Some("garden"), 2), (Some("kitchen"), 0), (None, 40)] {
        assert_eq!(found(SearchMemory { within: within(value), ..query("tulips") }).await.len(), hits, "{value:?}");
    }
    // The best of all are not what is searched among.
    let few = SearchMemory { within: within(Some("garden")), limit: Some(1), ..query("tulips") };
    assert_eq!(texts(&store, few).await.len(), 1);
    let between = SearchMemory { since: at(10), until: at(12), ..query("tulips") };
    let mut hits = found(between).await;
    hits.sort();
    assert_eq!(hits, ["tulips 1 10", "tulips 1 11", "tulips 1 12"]);

    // Labels are those of the newest intake.
    store.add(vec![labelled(2, ("team", "kitchen"), &[])]).await.unwrap();
    let labels = BTreeMap::from([("team".to_owned(), "kitchen".to_owned())]);
    assert_eq!(found(SearchMemory { labels, ..query("tulips") }).await.len(), 2);
}

/// A model once learnt from its own hits, and from their order, which words were said under another value of the label.
#[tokio::test]
async fn what_others_say_changes_no_answer_within_a_label() {
    let bobs = [
        "We saw Quixotronicpenq in the news.",
        "The red bicycle needs a chain.",
        "A heron by the pond, and a second heron.",
        "A kestrel by the pond, and then a kestrel by the mill.",
    ];
    let anas = ["Quixotronicpen is the name.", "A heron. A heron.", "Heron, heron.", "The heron.", "My heron."];
    let ask = async |store: &HnswMemoryStore, asked: &str| {
        texts(store, SearchMemory { within: Some(("user".to_owned(), Some("bob".to_owned()))), ..query(asked) }).await
    };
    let alone = open(None, false);
    alone.add(vec![labelled(1, ("user", "bob"), &bobs)]).await.unwrap();
    let shared = open(None, false);
    shared.add(vec![labelled(1, ("user", "bob"), &bobs), labelled(2, ("user", "ana"), &anas)]).await.unwrap();
    for asked in ["Quixotronicpen", "plainly Quixotronicpen", "heron kestrel", "heron kestrel pond"] {
        let found = ask(&alone, asked).await;
        assert!(!found.is_empty(), "{asked}");
        assert_eq!(ask(&shared, asked).await, found, "{asked}");
    }
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

/// Of two texts, both with the word, it says little about either; a question for it still means them.
#[tokio::test]
async fn the_only_thing_that_was_said_is_found_by_a_question() {
    let store = open(None, false);
    let said = "For the index we chose redb as the database.";
    store.add(vec![talk(1, &[said, &format!("Hello! You said: \"{said}\"")])]).await.unwrap();
    for question in ["which database did we choose", "databse", "why redb and no other database"] {
        assert_eq!(find(&store, question).await.len(), 2, "{question}");
    }
    assert_eq!(find(&store, "a kangaroo in the garden").await.len(), 0);
}

#[tokio::test]
async fn a_text_that_tells_comes_before_one_that_asks() {
    let store = open(None, false);
    let texts = ["The tulips in the yard bloom.", "The tulips in the yard bloom?"];
    // Of equal scores the older session comes first.
    store.add(vec![talk(1, &texts[1..]), talk(2, &texts[..1]), talk(3, &["Rain.", "Snow."])]).await.unwrap();
    let found = find(&store, "tulips in the yard").await;
    assert_eq!(found.iter().map(|hit| hit.text.as_str()).collect::<Vec<_>>(), texts);
}

#[tokio::test]
async fn a_named_month_comes_first() {
    let store = open(None, false);
    let at = |n: u64, day: &str, text: &str| {
        let time = Timestamp::from_millis(day.parse::<jiff::Timestamp>().unwrap().as_millisecond());
        intake(n, vec![Passage { time, ..said(1, "user", text) }])
    };
    let texts = ["Red tulips bloom in the yard.", "Red tulips wilt in the yard."];
    let (may, june) = (at(1, "2024-05-07T10:00:00Z", texts[0]), at(2, "2024-06-07T10:00:00Z", texts[1]));
    store.add(vec![may, june, talk(3, &["Rain.", "Snow."])]).await.unwrap();
    for (month, text) in [("May", texts[0]), ("June", texts[1])] {
        assert_eq!(find(&store, &format!("red tulips in the yard in {month} 2024")).await[0].text, text);
    }
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

/// A word that occurs nowhere made a query of a frequent word find nothing.
#[tokio::test]
async fn a_word_of_very_many_texts_finds_them_beside_a_word_of_none() {
    let store = open(None, false);
    let texts = (1..=2_600).map(|seq| said(seq, "user", &format!("error {seq}")));
    store.add(vec![intake(1, texts.collect())]).await.unwrap();
    let terms = analyse_query("errors zyzzyva");
    let newest =
        store.core.read(|open| Ok(lexical::score(open, &terms, |_| true)?.windowed(&Window::of(&open.columns, 2_599))));
    assert!(newest.unwrap()[0] > 0.0);
}

/// Fifty copies of each text once left one of ten in the answer.
#[tokio::test]
async fn equal_texts_come_once_and_name_the_oldest_session() {
    let store = open(None, false);
    let facts: Vec<String> = (0..10).map(|n| format!("The harbour has fact number{n}.")).collect();
    let facts: Vec<&str> = facts.iter().map(String::as_str).collect();
    let fork = |n: u64| Intake { inherited: [(session(1), 10)].into(), ..talk(n, &facts) };
    store.add([talk(1, &facts)].into_iter().chain((2..=50).map(fork)).collect()).await.unwrap();
    let hits = find(&store, "harbour fact").await;
    let distinct: std::collections::BTreeSet<&str> = hits.iter().map(|hit| hit.text.as_str()).collect();
    assert_eq!((hits.len(), distinct.len()), (10, 10));
    assert!(hits.iter().all(|hit| hit.session_id == session(1)), "{hits:?}");
}

/// A single letter is found in the words of a script without spaces, and a misspelt word in those spelt alike.
#[tokio::test]
async fn a_word_of_no_text_finds_those_spelt_alike() {
    let store = open(None, false);
    let texts = ["黒猫が寝ている", "The electrician came.", "Nothing else."];
    store.add((1..).zip(texts).map(|(n, text)| talk(n, &[text])).collect()).await.unwrap();
    for (query, text) in [("猫", texts[0]), ("electricain", texts[1])] {
        let hits = find(&store, query).await;
        assert_eq!(hits.iter().map(|hit| hit.text.as_str()).collect::<Vec<_>>(), [text]);
        assert_eq!(hits[0].lanes.keys().collect::<Vec<_>>(), ["ngrams"]);
    }
    assert!(
        find(&store, "electricain",).await[0].lanes["ngrams"] < find(&store, "electrician").await[0].lanes["words"]
    );
}

/// One hit once lifted every text of a very long session above the hits of others.
#[tokio::test]
async fn a_hit_lifts_its_neighbours_and_not_a_whole_long_session() {
    let store = open(None, false);
    let long = (1..=400).map(|seq| {
        said(
            seq,
            "user",
            &if seq == 1 { "The harbour and the tulips.".to_owned() } else { format!("tulips number{seq}") },
        )
    });
    let rain = (1..=1_000).map(|seq| said(seq, "user", &format!("rain number{seq}")));
    store
        .add(vec![
            intake(1, long.collect()),
            talk(2, &["tulips a", "tulips b", "tulips elsewhere", "tulips d", "tulips e"]),
            intake(3, rain.collect()),
        ])
        .await
        .unwrap();
    let hits = store.search(SearchMemory { limit: Some(1_000), ..query("harbour tulips") }).await.unwrap().items;
    let place = |text: &str| hits.iter().position(|hit| hit.text == text).unwrap();
    assert_eq!(place("The harbour and the tulips."), 0);
    assert!(place("tulips number3") < place("tulips elsewhere"));
    let (far, other) = (&hits[place("tulips number399")], &hits[place("tulips elsewhere")]);
    assert!(
        far.score < hits[place("tulips number20")].score && far.score < 1.1 * other.score,
        "{} {}",
        far.score,
        other.score
    );
}

/// Each search needs some bytes for every text: without a limit, many of them took all memory.
#[tokio::test(start_paused = true)]
async fn a_search_waits_while_as_many_run_as_may() {
    let store = open(None, false);
    store.add(vec![talk(1, &["the quick brown fox"])]).await.unwrap();
    let all = u32::try_from(store.searches.available_permits()).unwrap();
    assert!(all < 10);
    let running = store.searches.acquire_many(all).await.unwrap();
    let mut search = std::pin::pin!(find(&store, "fox"));
    // The clock goes on once nothing else does.
    assert!(tokio::time::timeout(std::time::Duration::from_secs(1), &mut search).await.is_err());
    drop(running);
    assert_eq!(search.await.len(), 1);
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

/// Embedder of texts that are about the port, whatever their words, and of others.
struct Port {
    is_table: bool,
}

#[async_trait]
impl Embedder for Port {
    fn id(&self) -> String {
        format!("port-{}", self.is_table)
    }

    fn is_table(&self) -> bool {
        self.is_table
    }

    async fn embed(&self, texts: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let vector = |text: &String| if text.contains("anchor bolt") { vec![1.0, 0.0] } else { vec![0.0, 1.0] };
        Ok(texts.iter().map(vector).collect())
    }
}

/// By a server's vectors the text of the nearest meaning counts half as much as the one with the most words. A table's
/// do not count beside words that find something.
#[tokio::test]
async fn a_servers_vectors_count_by_half_and_a_tables_only_without_words() {
    for is_table in [false, true] {
        let store = memory(None, Some(Arc::new(Port { is_table })), false);
        let (by_words, by_meaning) = ("The anchor bolt is too short.", "Ships lie in the harbour.");
        store.add(vec![talk(1, &[by_words]), talk(2, &[by_meaning])]).await.unwrap();
        store.made().await;
        let hits = find(&store, "anchor").await;
        let found: Vec<(&str, Vec<&str>)> =
            hits.iter().map(|hit| (&*hit.text, hit.lanes.keys().map(String::as_str).collect())).collect();
        if is_table {
            assert_eq!(found, [(by_words, vec!["words"])]);
            continue;
        }
        assert_eq!(found, [(by_words, vec!["words"]), (by_meaning, vec!["vector"])]);
        let share = hits[1].score / hits[0].score;
        assert!((share - 0.5).abs() < 1e-3, "{share}");
    }
}
