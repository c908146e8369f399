//! Property: after any adding, forgetting, deleting and reopening, exactly the texts of a simple model are found,
//! answers equal those of a memory newly built from it, and what was forgotten is in no file.

use std::collections::{BTreeMap, BTreeSet};

use meerkat_testkit::cases;
use proptest::{collection::vec, prelude::*};

use super::*;

const WORDS: [&str; 8] = ["harbour", "tulips", "pipeline", "bassoon", "deploy", "sister", "invoice", "garden"];

#[derive(Clone, Debug)]
enum Step {
    Add { session: u64, from: u64, texts: Vec<Vec<usize>> },
    Forget { session: Option<u64>, from: u64, to: u64, source: Option<usize> },
    Gone(u64),
    Open { is_lost: bool, is_closed: bool },
    Reindex,
}

fn step() -> impl Strategy<Value = Step> {
    let text = vec(0..WORDS.len(), 1..5);
    prop_oneof![
        6 => (1..4_u64, 1..30_u64, vec(text, 1..12))
            .prop_map(|(session, from, texts)| Step::Add { session, from, texts }),
        2 => (proptest::option::of(1..4_u64), 1..20_u64, 0..12_u64, proptest::option::of(0..2_usize)).prop_map(
            |(session, from, length, source)| {
                // A request names a session or a source.
                let source = if session.is_none() { source.or(Some(0)) } else { source };
                Step::Forget { session, from, to: from + length, source }
            }
        ),
        1 => (1..4_u64).prop_map(Step::Gone),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(is_lost, is_closed)| Step::Open { is_lost, is_closed }),
        1 => Just(Step::Reindex),
    ]
}

fn role(seq: u64) -> &'static str {
    if seq % 2 == 1 { "user" } else { "assistant" }
}

/// Makes a passage with a unique word.
fn passage(session: u64, seq: u64, words: &[usize]) -> Passage {
    let words: Vec<&str> = words.iter().map(|word| WORDS[*word]).collect();
    said(seq, role(seq), &format!("{} only{session}x{seq}", words.join(" ")))
}

#[derive(Default)]
struct Model {
    passages: BTreeMap<(u64, u64), Passage>,
    up_to: BTreeMap<u64, u64>,
    forgotten: BTreeSet<(u64, u64)>,
}

impl Model {
    fn add(&mut self, session: u64, passages: &[Passage]) {
        for passage in passages {
            let place = (session, passage.seq);
            if !self.forgotten.contains(&place) {
                self.passages.entry(place).or_insert_with(|| passage.clone());
            }
            let up_to = self.up_to.entry(session).or_default();
            *up_to = (*up_to).max(passage.seq);
        }
    }

    fn forget(&mut self, session: Option<u64>, from: u64, to: u64, source: Option<usize>) -> u64 {
        let before = self.passages.len();
        for (of, up_to) in self.up_to.clone() {
            let fits = |seq: u64| source.is_none_or(|source| role(seq) == ["user", "assistant"][source]);
            let seqs: Vec<u64> = (from..=to.min(up_to)).filter(|seq| fits(*seq)).collect();
            let is_any = session.is_some() || seqs.iter().any(|seq| self.passages.contains_key(&(of, *seq)));
            if is_any && session.is_none_or(|session| session == of) {
                self.forgotten.extend(seqs.iter().map(|seq| (of, *seq)));
                self.passages.retain(|(session, seq), _| *session != of || !seqs.contains(seq));
            }
        }
        (before - self.passages.len()) as u64
    }
}

async fn check(store: &HnswMemoryStore, model: &Model) {
    for session in 1..4 {
        let up_to = model.up_to.get(&session).copied().unwrap_or(0);
        assert_eq!(store.taken_in(super::session(session)).await.unwrap(), up_to);
        for seq in (1..42).step_by(3) {
            let hits = find(store, &format!("only{session}x{seq}")).await;
            let is_found = hits.iter().any(|hit| hit.session_id == super::session(session) && hit.from_seq == seq);
            assert_eq!(is_found, model.passages.contains_key(&(session, seq)), "{session} {seq}");
        }
    }
    let fresh = open(None, false);
    for session in 1..4 {
        let passages = model.passages.range((session, 0)..(session + 1, 0)).map(|(_, passage)| passage.clone());
        fresh.add(vec![intake(session, passages.collect())]).await.unwrap();
    }
    for text in ["harbour", "tulips invoice", "deploying the pipelines", "my sister's gardan"] {
        assert_eq!(find(store, text).await, find(&fresh, text).await, "{text}");
    }
}

async fn live(steps: Vec<Step>, records_intake: bool) {
    let dir = meerkat_testkit::folder();
    let (mut store, mut model) = (open(Some(dir.path()), records_intake), Model::default());
    for step in steps {
        match step {
            Step::Add { session, from, texts } => {
                let passages: Vec<Passage> =
                    (from..).zip(&texts).map(|(seq, words)| passage(session, seq, words)).collect();
                model.add(session, &passages);
                store.add(vec![intake(session, passages)]).await.unwrap();
            }
            Step::Forget { session, from, to, source } => {
                let request = ForgetMemory {
                    session_id: session.map(super::session),
                    from_seq: Some(from),
                    to_seq: Some(to),
                    source: source.map(|source| ["user", "assistant"][source].to_owned()),
                    wait: false,
                };
                assert_eq!(forgets(&store, request).await, model.forget(session, from, to, source));
            }
            Step::Gone(_) if records_intake => {}
            Step::Gone(session) => {
                store.gone(super::session(session)).await.unwrap();
                model.passages.retain(|(of, _), _| *of != session);
                model.up_to.remove(&session);
            }
            Step::Open { is_lost, is_closed } => {
                if is_closed {
                    store.close().await;
                }
                drop(store);
                // Without a log of intakes, they would come back from the journals.
                if is_lost && records_intake {
                    std::fs::remove_file(dir.path().join("memory.redb")).unwrap_or_default();
                }
                store = open(Some(dir.path()), records_intake);
            }
            Step::Reindex => drop(store.reindex(&|_, _| ()).await.unwrap()),
        }
    }
    check(&store, &model).await;
    store.erased().await.unwrap();
    store.close().await;
    for (session, seq) in model.forgotten.iter().filter(|place| !model.passages.contains_key(place)) {
        let word = format!("only{session}x{seq}");
        let ends = |rest: &[u8]| rest.first().is_none_or(|next| !next.is_ascii_digit());
        let holds = |bytes: &[u8]| {
            let mut places = bytes.windows(word.len()).enumerate().filter(|(_, it)| *it == word.as_bytes());
            places.any(|(at, _)| ends(&bytes[at + word.len()..]))
        };
        let mut folders = vec![dir.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    assert!(!holds(&std::fs::read(&path).unwrap()), "{word} is in {}", path.display());
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(16))]
    #[test]
    fn what_is_found_is_what_was_said_and_not_forgotten(steps in vec(step(), 1..14), records_intake: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(live(steps, records_intake));
    }
}
