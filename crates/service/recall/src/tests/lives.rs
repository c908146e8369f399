//! Taking in and forgetting, across kills, lost files and changes of the embedder.

use std::sync::atomic::Ordering;

use super::{super::segments::MERGED_DOCS_MAX, *};

const TALK: [&str; 4] = [
    "We deploy with the blue pipeline on Fridays.",
    "Understood: the blue pipeline it is.",
    "My sister Amelie plays the bassoon.",
    "A rare choice of instrument!",
];

fn forgetting(n: u64) -> ForgetMemory {
    ForgetMemory { session_id: Some(session(n)), ..ForgetMemory::default() }
}

#[tokio::test]
async fn what_was_taken_in_is_found_also_after_a_kill_and_once() {
    let dir = meerkat_testkit::folder();
    for _ in 0..3 {
        let store = open(Some(dir.path()), false);
        store.add(vec![talk(1, &TALK)]).await.unwrap();
        assert_eq!(store.taken_in(session(1)).await.unwrap(), 4);
        assert_eq!(store.taken_in(session(2)).await.unwrap(), 0);
        let hits = find(&store, "bassoon").await;
        assert_eq!(hits[0].text, TALK[2]);
        assert_eq!((hits[0].session_id, hits[0].from_seq, hits[0].to_seq), (session(1), 3, 3));
        assert_eq!((hits[0].role.as_str(), hits[0].time), ("user", said(3, "user", "").time));
        assert_eq!(hits.iter().filter(|hit| hit.from_seq == 3).count(), 1);
        assert_eq!(hits[0].lanes.keys().collect::<Vec<_>>(), ["words"]);
    }
}

/// A service that ended kept its file while anything held it, and the next one found it locked.
#[tokio::test]
async fn once_closed_it_can_be_opened_again_at_once() {
    let dir = meerkat_testkit::folder();
    let first = open(Some(dir.path()), false);
    first.add(vec![talk(1, &["The bassoon is in the attic."])]).await.unwrap();
    first.close().await;
    let second = open(Some(dir.path()), false);
    assert_eq!(find(&second, "bassoon").await.len(), 1);
    drop(first);
}

#[tokio::test]
async fn many_passages_at_once_are_taken_in_by_parts() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), false);
    let passages = (1..=1_500).map(|seq| said(seq, "user", &format!("note number{seq} of the list"))).collect();
    store.add(vec![intake(1, passages), talk(2, &TALK)]).await.unwrap();
    drop(store);
    let store = open(Some(dir.path()), false);
    assert_eq!(store.taken_in(session(1)).await.unwrap(), 1_500);
    for seq in [1, 1_024, 1_025, 1_500] {
        assert_eq!(find(&store, &format!("number{seq}")).await[0].from_seq, seq);
    }
    assert_eq!(find(&store, "bassoon").await[0].session_id, session(2));
}

#[tokio::test]
async fn what_was_forgotten_does_not_come_back_and_what_comes_later_stays() {
    let dir = meerkat_testkit::folder();
    for request in [
        forgetting(1),
        ForgetMemory { from_seq: Some(3), to_seq: Some(3), ..forgetting(1) },
        ForgetMemory { source: Some("user".to_owned()), ..ForgetMemory::default() },
    ] {
        let dir = tempfile::tempdir_in(dir.path()).unwrap();
        let store = open(Some(dir.path()), false);
        store.add(vec![talk(1, &TALK)]).await.unwrap();
        assert!(forgets(&store, request.clone()).await > 0);
        assert_eq!(forgets(&store, request.clone()).await, 0);
        let is_gone = async |store: &HnswMemoryStore| find(store, "bassoon").await.iter().all(|hit| hit.from_seq != 3);
        assert!(is_gone(&store).await);
        store.add(vec![talk(1, &TALK)]).await.unwrap();
        assert!(is_gone(&store).await);
        drop(store);

        // The file is lost; the log is not.
        std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
        let store = open(Some(dir.path()), false);
        assert!(store.needs_rebuild().await.unwrap());
        store.add(vec![talk(1, &TALK)]).await.unwrap();
        store.rebuilt().await.unwrap();
        assert!(is_gone(&store).await);
        assert!(!store.needs_rebuild().await.unwrap());
        store.add(vec![intake(1, vec![said(9, "user", "The bassoon was sold.")])]).await.unwrap();
        assert_eq!(find(&store, "bassoon").await[0].from_seq, 9);
    }
}

#[tokio::test]
async fn nothing_is_left_of_a_session_that_is_gone_and_what_was_forgotten_of_it_stays_so_in_its_forks() {
    let store = open(None, false);
    store.add(vec![talk(1, &TALK), talk(2, &["The bassoon again."])]).await.unwrap();
    forgets(&store, ForgetMemory { from_seq: Some(1), to_seq: Some(1), ..forgetting(1) }).await;
    store.gone(session(1)).await.unwrap();
    store.gone(session(1)).await.unwrap();
    assert_eq!(store.taken_in(session(1)).await.unwrap(), 0);
    assert_eq!(store.sessions().await.unwrap(), [session(2)]);
    assert!(find(&store, "bassoon pipeline").await.iter().all(|hit| hit.session_id == session(2)));
    store.add(vec![Intake { inherited: [(session(1), 4)].into(), ..talk(3, &TALK) }]).await.unwrap();
    let hits = find(&store, "blue pipeline").await;
    assert_eq!(hits.iter().map(|hit| (hit.session_id, hit.from_seq)).next(), Some((session(3), 2)));
    assert!(hits.iter().all(|hit| hit.from_seq != 1), "{hits:?}");
}

/// What another node decided comes before the texts, and again at each start.
#[tokio::test]
async fn what_was_decided_elsewhere_keeps_texts_out_that_are_not_taken_in_yet() {
    let (dir, other) = (meerkat_testkit::folder(), open(None, false));
    other.add(vec![talk(1, &TALK), talk(2, &["Another bassoon."])]).await.unwrap();
    let mut decided = other.to_forget(ForgetMemory { from_seq: Some(3), ..forgetting(1) }).await.unwrap();
    decided.extend(other.to_forget(ForgetMemory { to_seq: Some(1), ..forgetting(2) }).await.unwrap());
    let of = |hits: Vec<SearchHit>, word: &str| hits.iter().filter(|hit| hit.text.contains(word)).count();
    assert_eq!(of(find(&other, "bassoon").await, "bassoon"), 2, "it is only decided");
    let log_bytes = || {
        let files = std::fs::read_dir(dir.path().join("memory")).unwrap();
        files.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>()
    };
    let mut logged = None;
    for _ in 0..2 {
        let store = open(Some(dir.path()), false);
        assert_eq!(store.forget(decided.clone()).await.unwrap(), 0);
        assert_eq!(*logged.get_or_insert_with(log_bytes), log_bytes(), "the second time nothing is recorded");
        let mut forgotten = store.forgotten().await.unwrap();
        forgotten.sort_by_key(|it| decided.iter().position(|decided| decided == it));
        assert_eq!(forgotten, decided);
        let fork = Intake { inherited: [(session(2), 1)].into(), ..talk(3, &TALK[2..]) };
        store.add(vec![talk(1, &TALK), fork]).await.unwrap();
        assert!(find(&store, "bassoon").await.is_empty());
        assert_eq!(find(&store, "rare instrument").await[0].session_id, session(3));
        assert_eq!(of(find(&store, "pipeline").await, "pipeline"), 2);
    }
    // A text that came in all the same is forgotten by the same decision.
    let store = open(None, false);
    store.add(vec![talk(1, &TALK)]).await.unwrap();
    assert_eq!(store.forget(decided.clone()).await.unwrap(), 2);
    assert!(find(&store, "bassoon").await.is_empty());
}

/// A long fork is taken in by parts, and only a later part may name its parent.
#[tokio::test]
async fn what_is_forgotten_leaves_a_fork_when_it_is_known_whose_it_is() {
    let store = open(None, false);
    store.add(vec![talk(1, &TALK)]).await.unwrap();
    forgets(&store, ForgetMemory { from_seq: Some(3), to_seq: Some(3), ..forgetting(1) }).await;
    store.add(vec![talk(2, &TALK)]).await.unwrap();
    assert_eq!(find(&store, "bassoon").await[0].session_id, session(2));
    let later = intake(2, vec![said(7, "user", "Later words.")]);
    store.add(vec![Intake { inherited: [(session(1), 3)].into(), ..later }]).await.unwrap();
    assert!(find(&store, "bassoon").await.iter().all(|hit| hit.from_seq != 3));
    assert_eq!(find(&store, "rare choice instrument").await[0].from_seq, 4, "it is its own");
}

#[tokio::test]
async fn what_has_no_journal_comes_back_from_the_memorys_own() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), true);
    store.add(vec![talk(1, &TALK)]).await.unwrap();
    store.add(vec![talk(2, &["The bassoon again."])]).await.unwrap();
    forgets(&store, forgetting(1)).await;
    store.add(vec![talk(3, &TALK)]).await.unwrap();
    store.gone(session(3)).await.unwrap();
    drop(store);
    std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
    let store = open(Some(dir.path()), true);
    assert!(!store.needs_rebuild().await.unwrap());
    let hits = find(&store, "bassoon").await;
    assert_eq!(hits.iter().map(|hit| hit.session_id).collect::<Vec<_>>(), [session(2)]);
    assert_eq!(store.taken_in(session(2)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_damaged_file_is_set_aside_and_made_anew() {
    let dir = meerkat_testkit::folder();
    let path = dir.path().join("memory.redb");
    for damage in ["noise", "cut", "empty"] {
        let store = open(Some(dir.path()), true);
        store.add(vec![talk(1, &TALK)]).await.unwrap();
        drop(store);
        let bytes = std::fs::read(&path).unwrap();
        let damaged = match damage {
            "noise" => bytes.iter().map(|byte| byte ^ 0x5a).collect(),
            "cut" => bytes[..bytes.len() / 2].to_vec(),
            _ => Vec::new(),
        };
        std::fs::write(&path, damaged).unwrap();
        let store = open(Some(dir.path()), true);
        assert_eq!(find(&store, "bassoon").await[0].text, TALK[2], "{damage}");
        assert_eq!(store.taken_in(session(1)).await.unwrap(), 4);
    }
}

/// An embedder that fails leaves the words, and the vectors of another one are made again.
#[tokio::test]
async fn vectors_come_once_the_embedder_works() {
    let dir = meerkat_testkit::folder();
    let has_vector = async |store: &HnswMemoryStore| {
        let hits = find(store, "bassoon").await;
        assert_eq!(hits[0].text, TALK[2]);
        hits[0].lanes.contains_key("vector")
    };
    for id in ["one", "other"] {
        let embedder = Faulty::new(id, true);
        let store = memory(Some(dir.path()), Some(embedder.clone()), false);
        store.add(vec![talk(1, &TALK)]).await.unwrap();
        assert!(!has_vector(&store).await, "{id}");
        if id == "one" {
            assert!(store.reindex(&|_, _| ()).await.is_err());
        }
        let store = if id == "other" {
            // Reopens it while it still lacks its vectors.
            store.close().await;
            drop(store);
            embedder.fails.store(false, Ordering::Relaxed);
            memory(Some(dir.path()), Some(embedder.clone()), false)
        } else {
            embedder.fails.store(false, Ordering::Relaxed);
            store
        };
        store.add(vec![talk(2, &[id])]).await.unwrap();
        store.made().await;
        assert!(has_vector(&store).await, "{id}");
        embedder.fails.store(true, Ordering::Relaxed);
        assert!(!has_vector(&store).await, "a query without its vector");
        store.close().await;
    }
}

#[tokio::test]
async fn building_anew_changes_nothing_that_is_found() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), false);
    let notes = (1..=50).map(|seq| said(seq, "user", &format!("note number{seq} about the harbour"))).collect();
    store.add(vec![talk(1, &TALK), intake(2, notes)]).await.unwrap();
    forgets(&store, ForgetMemory { from_seq: Some(20), to_seq: Some(30), ..forgetting(2) }).await;
    let before = find(&store, "harbour bassoon number7").await;
    let told = std::sync::Mutex::new(Vec::new());
    let indexed = store.reindex(&|done, of| told.lock().unwrap().push((done, of))).await.unwrap();
    assert_eq!(indexed.indexed, 43);
    assert_eq!(told.lock().unwrap().last(), Some(&(43, 43)));
    assert_eq!(find(&store, "harbour bassoon number7").await, before);
    drop(store);
    assert_eq!(find(&open(Some(dir.path()), false), "harbour bassoon number7").await, before);
}

/// A deletion once waited until all postings were made again.
#[tokio::test]
async fn a_deletion_and_an_addition_run_between_the_steps_of_a_rebuild() {
    let store = open(None, false);
    let notes =
        |of: u64| (1..=200).map(move |seq| said(seq, "user", &format!("note number{seq} of harbour{of}"))).collect();
    store.add(vec![intake(1, notes(1)), intake(2, notes(2))]).await.unwrap();
    let is_built = AtomicBool::new(false);
    let rebuild = async {
        store.reindex(&|_, _| ()).await.unwrap();
        is_built.store(true, Ordering::Relaxed);
    };
    let meanwhile = async {
        store.gone(session(1)).await.unwrap();
        store.add(vec![intake(3, notes(3))]).await.unwrap();
        assert!(!is_built.load(Ordering::Relaxed));
    };
    tokio::join!(rebuild, meanwhile);
    for (word, count) in [("harbour1", 0), ("harbour2", 200), ("harbour3", 200)] {
        let found = store.search(SearchMemory { limit: Some(1_000), ..query(word) }).await.unwrap().items;
        assert_eq!(found.iter().filter(|hit| hit.text.contains(word)).count(), count, "{word}");
    }
}

/// A merge of all postings once kept a deletion waiting, the longer the more there were.
#[tokio::test]
async fn no_merge_is_larger_than_its_limit() {
    let store = open(None, false);
    for first in (0..5 * u64::from(MERGED_DOCS_MAX)).step_by(8) {
        let notes = (first + 1..=first + 8).map(|seq| said(seq, "user", &format!("note number{seq}"))).collect();
        store.add(vec![intake(1, notes)]).await.unwrap();
    }
    let sizes = store.core.read(|open| Ok(open.segments.iter().map(|it| it.live_docs).collect::<Vec<_>>())).unwrap();
    assert_eq!(sizes, [MERGED_DOCS_MAX; 5]);
    assert_eq!(find(&store, "number3").await[0].from_seq, 3);
}

/// The file once grew with everything that was ever said.
#[tokio::test]
async fn texts_are_numbered_again_once_many_are_gone() {
    let store = open(None, false);
    let notes = |of: u64| (1..=20).map(move |seq| said(seq, "user", &format!("note number{seq} of harbour{of}")));
    store.add(vec![intake(1, notes(1).collect()), intake(2, notes(2).collect())]).await.unwrap();
    store.gone(session(1)).await.unwrap();
    store.erased().await.unwrap();
    assert_eq!(store.core.read(|open| Ok(open.columns.next_doc())).unwrap(), 20);
    assert_eq!(find(&store, "harbour2 number7").await[0].text, "note number7 of harbour2");
}

/// A forgetting once answered only when all of memory was written again, and everything else waited for it.
#[tokio::test]
async fn a_forgetting_answers_before_it_is_erased_and_memory_is_used_meanwhile() {
    let dir = meerkat_testkit::folder();
    let embedder = Faulty::new("one", false);
    let store = memory(Some(dir.path()), Some(embedder), false);
    let notes = |of: u64| (1..=200).map(move |seq| said(seq, "user", &format!("note number{seq} of harbour{of}")));
    store.add(vec![talk(1, &TALK), intake(2, notes(2).collect()), intake(3, notes(3).collect())]).await.unwrap();
    store.made().await;
    let bassoons = || std::fs::read(dir.path().join("memory.redb")).unwrap().windows(7).any(|it| it == b"bassoon");
    assert_eq!(forgets(&store, forgetting(1)).await, 4);
    assert!(bassoons(), "it answers before");
    assert!(find(&store, "bassoon").await.is_empty(), "no search finds it");
    let is_erased = AtomicBool::new(false);
    let erasing = async {
        store.erased().await.unwrap();
        is_erased.store(true, Ordering::Relaxed);
    };
    let meanwhile = async {
        store.add(vec![intake(4, notes(4).collect()), talk(5, &["The lighthouse is open."])]).await.unwrap();
        store.gone(session(2)).await.unwrap();
        // Both had their turn between two steps of it.
        assert!(!is_erased.load(Ordering::Relaxed));
        for text in ["note number7 of harbour3", "note number9 of harbour4"] {
            assert!(find(&store, text).await.iter().any(|hit| hit.text == text), "{text}");
        }
    };
    tokio::join!(erasing, meanwhile);
    assert!(!bassoons());
    store.made().await;
    for _ in 0..2 {
        for (word, count) in [("harbour2", 0), ("harbour3", 200), ("harbour4", 200)] {
            let found = store.search(SearchMemory { limit: Some(1_000), ..query(word) }).await.unwrap().items;
            let found: Vec<_> = found.iter().filter(|hit| hit.text.contains(word)).collect();
            assert_eq!(found.len(), count, "{word}");
            assert!(found.iter().any(|hit| hit.lanes.contains_key("vector")) || count == 0, "{word}");
        }
        assert_eq!(find(&store, "lighthuose").await[0].text, "The lighthouse is open.");
        store.erased().await.unwrap();
    }
}

/// A kill in the middle of an erasure once would have left the text in the file.
#[tokio::test]
async fn an_erasure_that_was_cut_off_is_finished_by_the_next_start() {
    let bassoons = |dir: &Path| std::fs::read(dir.join("memory.redb")).unwrap().windows(7).any(|it| it == b"bassoon");
    for steps in 0.. {
        let dir = meerkat_testkit::folder();
        let store = open(Some(dir.path()), true);
        let notes = (1..=40).map(|seq| said(seq, "user", &format!("note number{seq} of the harbour")));
        store.add(vec![talk(1, &TALK), intake(2, notes.collect())]).await.unwrap();
        let core = &store.core;
        let decided = core.work(|| core.to_forget(&forgetting(1))).unwrap();
        core.work_alone(|| core.forget(decided)).unwrap();
        let has_more = (0..steps).fold(true, |_, _| core.work_alone(|| core.erase_some()).unwrap());
        // A kill leaves the copy as it is.
        let new = dir.path().join("memory.redb.new");
        let left = std::fs::read(&new).unwrap_or_default();
        drop(store);
        if steps > 1 && has_more {
            std::fs::write(&new, left).unwrap();
        }
        assert_eq!(bassoons(dir.path()), has_more, "after {steps} steps");

        let store = open(Some(dir.path()), true);
        assert!(find(&store, "bassoon").await.is_empty());
        store.erased().await.unwrap();
        assert!(!bassoons(dir.path()) && !new.exists(), "after {steps} steps");
        assert_eq!(find(&store, "number7").await[0].text, "note number7 of the harbour");
        if !has_more {
            assert!(steps > 5, "it has {steps} steps");
            break;
        }
    }
}

/// It may hold what was forgotten since.
#[tokio::test]
async fn a_copy_that_a_kill_left_is_gone_with_the_next_start() {
    let dir = meerkat_testkit::folder();
    let left = dir.path().join("memory.redb.new");
    std::fs::write(&left, "bassoon").unwrap();
    assert!(find(&open(Some(dir.path()), true), "bassoon").await.is_empty());
    assert!(!left.exists());
}
