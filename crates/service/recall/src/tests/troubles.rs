//! Embedders that panic or never answer, a file that cannot be opened, a damaged log.

use std::time::Duration;

use meerkat_testkit::until_async;
use tokio::sync::Notify;

use super::{
    super::{file::Trouble, mend_log, tables::META},
    *,
};
use meerkat_errors::ErrorCode;

const SAID: &str = "The bassoon is in the attic.";

/// Embedder that makes vectors of passages, or never answers; it makes none of queries.
struct Odd {
    panics: bool,
    is_silent: bool,
    asked: Notify,
}

impl Odd {
    fn new(panics: bool, is_silent: bool) -> Arc<Self> {
        Arc::new(Self { panics, is_silent, asked: Notify::new() })
    }
}

#[async_trait]
impl Embedder for Odd {
    fn id(&self) -> String {
        "odd".to_owned()
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        self.asked.notify_one();
        match purpose {
            EmbedFor::Passage if !self.is_silent => Ok(texts.iter().map(|text| toy(text)).collect()),
            EmbedFor::Query if self.panics => panic!("it was told to"),
            EmbedFor::Passage | EmbedFor::Query => std::future::pending().await,
        }
    }
}

/// A panic of the embedder once counted as damage, and a healthy file was set aside.
#[tokio::test]
async fn an_embedder_that_panics_leaves_the_file_and_the_words() {
    let dir = meerkat_testkit::folder();
    let store = memory(Some(dir.path()), Some(Odd::new(true, false)), false);
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.made().await;
    let hits = find(&store, "bassoon").await;
    assert_eq!(hits[0].lanes.keys().collect::<Vec<_>>(), ["words"]);
    assert!(!dir.path().join("memory.redb.set-aside-1").exists());
}

#[tokio::test(start_paused = true)]
async fn a_search_waits_a_second_for_an_embedder_that_is_silent() {
    let store = memory(None, Some(Odd::new(false, false)), false);
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.made().await;
    let started = tokio::time::Instant::now();
    let hits = find(&store, "bassoon").await;
    assert_eq!((hits[0].text.as_str(), hits[0].lanes.contains_key("vector")), (SAID, false));
    assert_eq!(started.elapsed().as_secs(), 1);
    assert!(find(&store, "?!").await.is_empty() && started.elapsed() < Duration::from_secs(2), "nothing is looked for");
}

/// Closing and taking in once waited for requests to an endpoint, each of which may take minutes.
#[tokio::test]
async fn neither_taking_in_nor_closing_waits_for_an_embedder_that_is_silent() {
    let embedder = Odd::new(false, true);
    let store = memory(None, Some(embedder.clone()), false);
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    embedder.asked.notified().await;
    store.add(vec![talk(2, &["The harbour."])]).await.unwrap();
    forgets(&store, ForgetMemory { session_id: Some(session(2)), ..ForgetMemory::default() }).await;
    assert_eq!(find(&store, "bassoon").await[0].text, SAID);
    store.close().await;
}

/// Embedder whose vectors have as many components as it is told: a server may run another model under the same name.
struct Sized(AtomicUsize);

#[async_trait]
impl Embedder for Sized {
    fn id(&self) -> String {
        "sized".to_owned()
    }

    async fn embed(&self, texts: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        Ok(texts.iter().map(|_| vec![1.0; self.0.load(Ordering::Relaxed)]).collect())
    }
}

#[tokio::test]
async fn vectors_of_another_length_are_refused() {
    let embedder = Arc::new(Sized(8.into()));
    let store = memory(None, Some(embedder.clone()), false);
    let has_vector = async |text: &str| {
        let hits = find(&store, text).await;
        hits.iter().find(|hit| hit.text.contains(text)).map(|hit| hit.lanes.contains_key("vector"))
    };
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.made().await;
    assert_eq!(has_vector("bassoon").await, Some(true));

    embedder.0.store(9, Ordering::Relaxed);
    store.add(vec![talk(2, &["The harbour."])]).await.unwrap();
    store.made().await;
    assert_eq!(has_vector("harbour").await, Some(false), "words alone");

    // What was refused was not stored: the model that is back makes it.
    embedder.0.store(8, Ordering::Relaxed);
    store.add(vec![talk(3, &["And more."])]).await.unwrap();
    store.made().await;
    assert_eq!((has_vector("bassoon").await, has_vector("harbour").await), (Some(true), Some(true)));
}

/// Embedder that waits for permission to answer, and notes its requests.
#[derive(Default)]
struct Slow {
    asked: std::sync::Mutex<Vec<String>>,
    may_answer: Notify,
}

#[async_trait]
impl Embedder for Slow {
    fn id(&self) -> String {
        "slow".to_owned()
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        if purpose == EmbedFor::Passage {
            self.asked.lock().unwrap().extend_from_slice(texts);
            self.may_answer.notified().await;
        }
        Ok(texts.iter().map(|text| toy(text)).collect())
    }
}

/// A search or an intake during a rebuild once requested the same vectors again.
#[tokio::test]
async fn no_vector_is_asked_for_twice_while_all_are_made_anew() {
    let embedder = Arc::<Slow>::default();
    let store = memory(None, Some(embedder.clone()), false);
    embedder.may_answer.notify_one();
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.made().await;
    let reindex = store.reindex(&|_, _| ());
    let meanwhile = async {
        until_async("it is asked for all again", || embedder.asked.lock().unwrap().len() == 2).await;
        store.add(vec![talk(2, &["And more."])]).await.unwrap();
        assert_eq!(find(&store, "bassoon").await.len(), 1);
        embedder.may_answer.notify_one();
        until_async("it is asked for the new one", || embedder.asked.lock().unwrap().len() == 3).await;
        embedder.may_answer.notify_one();
    };
    assert_eq!(tokio::join!(reindex, meanwhile).0.unwrap().indexed, 1);
    store.made().await;
    assert_eq!(*embedder.asked.lock().unwrap(), [SAID, SAID, "And more."]);
}

/// It once reported that nothing was lost, so that texts up to the checkpoints were never taken in again.
#[tokio::test]
async fn a_file_that_cannot_be_opened_does_not_say_that_it_is_whole() {
    let dir = meerkat_testkit::folder();
    let path = dir.path().join("memory.redb");
    std::fs::create_dir(&path).unwrap();
    let store = open(Some(dir.path()), false);
    assert_eq!(store.needs_rebuild().await.unwrap_err().code(), ErrorCode::MemoryIndexUnavailable);
    assert_eq!(store.search(query("bassoon")).await.unwrap_err().code(), ErrorCode::MemoryIndexUnavailable);
    std::fs::remove_dir(&path).unwrap();
    assert!(store.needs_rebuild().await.unwrap());
}

/// Damages the first entry of the log, and removes the file.
fn lose(dir: &Path) {
    let log = std::fs::read_dir(dir.join("memory")).unwrap().map(|entry| entry.unwrap().path());
    let log = log.into_iter().find(|path| path.extension().is_some_and(|it| it == "mlog")).unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    let at = bytes.windows(10).position(|bytes| bytes == b"session_id").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    std::fs::remove_file(dir.join("memory.redb")).unwrap();
}

/// After the loss of the file and of a forgetting in the log, forgotten texts once came back silently.
#[tokio::test]
async fn nothing_is_taken_in_from_nothing_while_it_is_not_known_what_to_forget() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), false);
    for n in [1, 2] {
        store.add(vec![talk(n, &[SAID])]).await.unwrap();
        let forget = ForgetMemory { session_id: Some(session(n)), ..ForgetMemory::default() };
        assert_eq!(forgets(&store, forget).await, 1);
    }
    drop(store);
    lose(dir.path());
    for _ in 0..2 {
        let store = open(Some(dir.path()), false);
        assert!(store.needs_rebuild().await.is_err());
        assert!(store.add(vec![talk(1, &[SAID])]).await.is_err());
        assert!(store.search(query("bassoon")).await.is_err());
    }
    // A repair says what is missing, and the user accepts that.
    mend_log(dir.path()).unwrap();
    let store = open(Some(dir.path()), false);
    assert!(store.needs_rebuild().await.unwrap());
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    assert_eq!(find(&store, "bassoon").await.len(), 1);
}

/// Without journals, the readable part of the log is all there is.
#[tokio::test]
async fn what_is_good_in_a_damaged_log_without_journals_comes_back() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), true);
    store.add(vec![talk(1, &["The harbour."])]).await.unwrap();
    store.add(vec![talk(2, &[SAID])]).await.unwrap();
    drop(store);
    lose(dir.path());
    let store = open(Some(dir.path()), true);
    assert_eq!(find(&store, "bassoon").await[0].session_id, session(2));
    assert!(find(&store, "harbour").await.is_empty());
}

/// While sessions were added again after a loss, a second loss went unnoticed: the sessions that were added before it
/// stayed lost, and the file counted as whole.
#[tokio::test]
async fn a_file_that_is_lost_again_during_a_rebuild_is_not_whole() {
    let dir = meerkat_testkit::folder();
    let path = dir.path().join("memory.redb");
    let mut store = open(Some(dir.path()), false);
    assert!(store.needs_rebuild().await.unwrap());
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.core.work(|| Err::<(), _>(Trouble::Damaged("it is damaged".to_owned()))).unwrap_err();
    store.add(vec![talk(2, &["The harbour."])]).await.unwrap();
    store.rebuilt().await.unwrap();
    assert!(store.needs_rebuild().await.unwrap(), "the first session is lost");
    assert!(path.exists() && find(&store, "bassoon").await.is_empty());
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.rebuilt().await.unwrap();
    assert!(!store.needs_rebuild().await.unwrap());
    drop(store);
    store = open(Some(dir.path()), false);
    assert!(!store.needs_rebuild().await.unwrap());
}

/// Returns the names of the files that were set aside.
fn aside(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.contains("set-aside")).collect()
}

/// Copies that were set aside stayed for ever, with what was forgotten later.
#[tokio::test]
async fn one_damaged_file_is_kept_and_none_after_a_forgetting() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), true);
    for n in 1..=3 {
        store.add(vec![talk(n, &[SAID])]).await.unwrap();
        store.core.work(|| Err::<(), _>(Trouble::Damaged("it is damaged".to_owned()))).unwrap_err();
        assert_eq!(aside(dir.path()).len(), 1);
    }
    let forget = ForgetMemory { session_id: Some(session(1)), ..ForgetMemory::default() };
    assert_eq!(forgets(&store, forget).await, 1);
    assert_eq!(aside(dir.path()), [""; 0]);
}

/// A file with other tables is made again from the journals, once.
#[tokio::test]
async fn a_file_of_an_older_version_is_set_aside_and_made_again() {
    let dir = meerkat_testkit::folder();
    let path = dir.path().join("memory.redb");
    let store = open(Some(dir.path()), false);
    store.add(vec![talk(1, &[SAID])]).await.unwrap();
    store.rebuilt().await.unwrap();
    drop(store);
    let database = redb::Database::open(&path).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(META).unwrap().insert("layout", &2_u32.to_le_bytes()[..]).unwrap();
    transaction.commit().unwrap();
    drop(database);
    std::fs::write(dir.path().join("vectors.graph"), "a graph").unwrap();
    for is_first in [true, false] {
        let store = open(Some(dir.path()), false);
        assert_eq!(store.needs_rebuild().await.unwrap(), is_first);
        if is_first {
            store.add(vec![talk(1, &[SAID])]).await.unwrap();
            store.rebuilt().await.unwrap();
        }
        assert_eq!(find(&store, "bassoon").await[0].text, SAID);
        assert_eq!(aside(dir.path()).len(), 1);
        assert!(!dir.path().join("vectors.graph").exists());
    }
}

/// More than 65,536 names of tools once stopped memory for ever.
#[tokio::test]
async fn any_number_of_tools_may_have_said_something() {
    let store = open(None, false);
    let of = |n: u64| Passage { source: format!("tool:{n}"), ..said(n, "tool_results", "x") };
    store.add(vec![intake(1, (1..=65_540).map(of).collect()), talk(2, &[SAID])]).await.unwrap();
    assert_eq!(find(&store, "bassoon").await.len(), 1);
    let forget = ForgetMemory { source: Some("tool:65540".to_owned()), ..ForgetMemory::default() };
    assert_eq!(forgets(&store, forget).await, 1);
}
