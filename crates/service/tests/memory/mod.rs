//! What memory is given of sessions, and when: by a store of sessions and without one, across restarts, failures,
//! deletions, forks and compactions. What it finds is another matter: here it finds what holds the query to the letter.

mod fake;
mod forgotten;
mod scope;

use std::{
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use meerkat_service::{
    Agent, AgentBuildConfig, ErrorCode, SessionError, SessionId,
    clock::{Clock, SystemClock, Timestamp, World},
    compaction::CompactionConfig,
    memory::{EmbedFor, Embedder, MemoryOptions},
    options::{EmbedderChoice, EngineOptions, Policy},
    service::{
        CompactJournal, CompactSession, CreateSession, DeleteSession, EditQueued, ForgetMemory, ForkSession,
        InterruptTurn, ReadEvents, ReadHistory, SearchHit, SearchMemory, SearchScope, SessionQuery, StartTurn,
        UpdateSession, WaitReader,
    },
};

use fake::Fake;
use meerkat_testkit::{in_time, until_asked};
use serde_json::json;

fn options() -> EngineOptions {
    let mut options = EngineOptions::default();
    options.projection.enabled = false;
    // Long enough that no loaded machine is slower.
    options.limits.wait_ms = 60_000;
    options
}

fn config(memory: &Arc<Fake>, options: EngineOptions) -> AgentBuildConfig {
    AgentBuildConfig::new().options(options).memory_store(memory.clone())
}

fn stored(dir: &Path, memory: &Arc<Fake>) -> Agent {
    config(memory, options()).store(dir.to_owned()).build().unwrap()
}

fn query(query: &str) -> SearchMemory {
    SearchMemory { query: query.to_owned(), ..SearchMemory::default() }
}

/// Searches once memory has caught up.
async fn search(agent: &Agent, words: &str) -> Vec<SearchHit> {
    caught_up(agent).await;
    search_now(agent, words).await
}

async fn search_now(agent: &Agent, words: &str) -> Vec<SearchHit> {
    agent.service().search_memory(query(words)).await.unwrap().items
}

/// Forgetting, here of nothing, waits until all that was said is taken in.
async fn caught_up(agent: &Agent) {
    let nothing = ForgetMemory { source: Some("nothing of this name".to_owned()), ..ForgetMemory::default() };
    until_asked("memory has caught up", async || agent.service().forget_memory(nothing.clone()).await.is_ok()).await;
}

async fn said(agent: &Agent, words: &str) -> Vec<(SessionId, u64, String)> {
    search(agent, words).await.into_iter().map(|hit| (hit.session_id, hit.from_seq, hit.text)).collect()
}

async fn listed(agent: &Agent) -> Vec<SessionId> {
    let page = agent.service().list(SessionQuery::default()).await.unwrap();
    page.items.into_iter().map(|session| session.session_id).collect()
}

async fn end(agent: Agent) {
    agent.service().shut_down(0).await;
}

/// How far the reader is behind.
async fn behind(agent: &Agent) -> u64 {
    let readers = agent.service().list_readers().await.unwrap().items;
    readers.iter().find(|reader| reader.reader == "memory").unwrap().records_behind
}

#[tokio::test]
async fn labels_come_with_what_is_taken_in_next() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let session = agent.create_session().await.unwrap();
    let id = session.session_id;
    agent.turn(&session, "@say One.").await.unwrap();
    search(&agent, "One.").await;
    assert_eq!(behind(&agent).await, 0);
    let labels = Some([("team".to_owned(), "blue".to_owned())].into());
    agent.service().update(UpdateSession { session_id: id, title: None, labels: labels.clone() }).await.unwrap();
    search(&agent, "One.").await;
    assert_eq!(Some(memory.sessions()[&id].labels.clone()), labels);
    end(agent).await;
}

#[tokio::test]
async fn calls_results_and_prompts_that_waited_are_taken_in_and_what_is_open_is_not() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let mut options = options();
    options.tools.test_dir = Some(dir.path().join("tools"));
    let agent = config(&memory, options).store(dir.path().join("data")).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let id = session.session_id;
    let (service, open) = (agent.service(), r#"@note first @call test_echo {"text":"quokka"} @stall @say no"#);
    service.accept_turn(StartTurn::new(id, open)).await.unwrap();
    let mut follower = service.follow(&id, 0).await.unwrap();
    while !String::from_utf8_lossy(&follower.next().await.unwrap().unwrap().line).contains("tool_finished") {}
    assert!(search_now(&agent, "quokka").await.is_empty(), "the turn is open");
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(id, "@note it waited @say Then.") };
    let queued = service.begin_turn(queued).await.unwrap();
    let prompt = Some("@note it changed @say Then.".into());
    service.edit_queued(EditQueued { session_id: id, turn: 1, prompt, position: None }).await.unwrap();
    service.interrupt(InterruptTurn { session_id: id, turn: None }).await.unwrap();
    queued.result.await.unwrap();
    let found = memory_of(&agent, &memory, id).await;
    assert_eq!(found.iter().filter(|text| text.contains("quokka")).count(), 3, "{found:?}");
    // Every hit can be opened at its seq, even the results of calls.
    for hit in search(&agent, "quokka").await {
        let cursor = Some((hit.from_seq - 1).to_string());
        let page =
            agent.service().history(ReadHistory { cursor, limit: Some(1), ..ReadHistory::new(id) }).await.unwrap();
        assert_eq!((page.items[0].seq, &page.items[0].role), (hit.from_seq, &hit.role));
    }
    assert_eq!(found[found.len() - 2..], ["@note it changed @say Then.".to_owned(), "Then.".to_owned()]);
    assert!(!found.iter().any(|text| text.contains("it waited")), "{found:?}");
    end(agent).await;
}

#[tokio::test]
async fn what_a_session_was_given_is_taken_in_before_its_first_turn() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let call = json!({ "type": "tool_call", "call_id": "a", "name": "look", "arguments": { "for": "quokka" } });
    let history = json!([
        { "role": "user", "content": "Where is the quokka?" },
        { "role": "assistant", "blocks": [call] },
        { "role": "tool_results", "results": [{ "call_id": "a", "content": "quokka.txt" }] },
        { "role": "assistant", "content": "The quokka is there." },
    ]);
    let history = serde_json::from_value(history).unwrap();
    let request = CreateSession { history, ..CreateSession::default() };
    let id = agent.service().create_session(request).await.unwrap().session_id;
    let found = memory_of(&agent, &memory, id).await;
    assert_eq!(found, ["Where is the quokka?", r#"look {"for":"quokka"}"#, "quokka.txt", "The quokka is there."]);
    assert_eq!(behind(&agent).await, 0);
    end(agent).await;
}

async fn memory_of(agent: &Agent, memory: &Fake, id: SessionId) -> Vec<String> {
    search(agent, "whatever").await;
    memory.texts(id)
}

#[tokio::test]
async fn nothing_is_given_twice_across_restarts_and_all_is_where_memory_or_checkpoints_are_lost() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    // Nobody searches: it catches up when it ends.
    end(agent).await;
    assert_eq!(memory.given(), 2);

    let agent = stored(dir.path(), &memory);
    assert_eq!(search(&agent, "One.").await.len(), 2);
    agent.turn(&session, "@say Two.").await.unwrap();
    assert_eq!((search(&agent, "Two.").await.len(), memory.given()), (2, 4));
    end(agent).await;

    // The index goes, and its checkpoints with it: memory knows what it has.
    std::fs::remove_file(dir.path().join("index.redb")).unwrap();
    let agent = stored(dir.path(), &memory);
    assert_eq!((search(&agent, "Two.").await.len(), memory.given()), (2, 4));
    assert_eq!(behind(&agent).await, 0);
    end(agent).await;

    // Memory itself goes.
    let memory = Arc::<Fake>::default();
    memory.is_lost.store(true, Ordering::Relaxed);
    let agent = stored(dir.path(), &memory);
    assert_eq!((search(&agent, "Two.").await.len(), memory.given()), (2, 4));
    assert!(!memory.is_lost.load(Ordering::Relaxed), "it is told that it has everything again");
    end(agent).await;
}

/// A memory that was set aside while it was used once stayed empty until the next start, and what its checkpoints cover
/// could be dropped.
#[tokio::test]
async fn a_memory_that_loses_everything_at_run_time_is_given_everything_again() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    assert_eq!(search(&agent, "One.").await.len(), 2);
    let lose = || {
        memory.sessions().clear();
        memory.is_lost.store(true, Ordering::Relaxed);
    };
    lose();
    assert_eq!(search(&agent, "One.").await.len(), 2, "a search notices it");
    lose();
    let other = agent.create_session().await.unwrap();
    agent.turn(&other, "@say Two.").await.unwrap();
    let request = WaitReader { reader: "memory".to_owned(), session_id: other.session_id, seq: 4, wait_ms: 60_000 };
    agent.service().wait_reader(request).await.unwrap();
    assert_eq!(search(&agent, "One.").await.len(), 2, "taking in notices it");
    assert!(!memory.is_lost.load(Ordering::Relaxed), "it is told that it has everything again");
    lose();
    let compacted = CompactJournal::new(session.session_id);
    agent.service().compact_journal(compacted).await.unwrap();
    assert_eq!(memory.texts(session.session_id), ["@say One.", "One."], "nothing is dropped before");
    end(agent).await;
}

/// What was added before a second loss once stayed lost.
#[tokio::test]
async fn a_memory_that_loses_everything_again_while_it_is_filled_is_given_everything_again() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    assert_eq!(search(&agent, "One.").await.len(), 2);
    memory.sessions().clear();
    memory.is_lost.store(true, Ordering::Relaxed);
    memory.is_lost_again.store(true, Ordering::Relaxed);
    search(&agent, "One.").await;
    end(agent).await;
    assert_eq!(memory.texts(session.session_id), ["@say One.", "One."]);
    assert!(!memory.is_lost.load(Ordering::Relaxed) && !memory.is_lost_again.load(Ordering::Relaxed));
}

#[tokio::test]
async fn where_memory_fails_turns_go_on_and_it_is_done_with_nothing() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let session = agent.create_session().await.unwrap();
    memory.fails.store(true, Ordering::Relaxed);
    agent.turn(&session, "@say One.").await.unwrap();
    let searched = agent.service().search_memory(query("One.")).await.unwrap();
    assert!(searched.items.is_empty());
    assert_eq!(behind(&agent).await, 4);
    // Nor if it does not say how far it has a session: that is not a session of which it has nothing.
    memory.is_mute.store(true, Ordering::Relaxed);
    memory.fails.store(false, Ordering::Relaxed);
    let named = ForgetMemory { source: Some("user".to_owned()), ..ForgetMemory::default() };
    let forgetting = agent.service().forget_memory(named).await;
    assert_eq!(forgetting.unwrap_err().code(), ErrorCode::MemoryIndexUnavailable);
    assert_eq!(behind(&agent).await, 4);
    memory.fails.store(true, Ordering::Relaxed);
    memory.is_mute.store(false, Ordering::Relaxed);
    let forgetting =
        agent.service().forget_memory(ForgetMemory { session_id: Some(session.session_id), ..ForgetMemory::default() });
    assert_eq!(forgetting.await.unwrap_err().code(), ErrorCode::MemoryIndexUnavailable);
    memory.fails.store(false, Ordering::Relaxed);
    let (reader, session_id) = ("memory".to_owned(), session.session_id);
    let request = WaitReader { reader, session_id, seq: 4, wait_ms: 60_000 };
    assert_eq!(agent.service().wait_reader(request).await.unwrap().seq, 4);
    assert_eq!(search(&agent, "One.").await.len(), 2);
    end(agent).await;
}

/// The row that stayed of a deleted session was all that said that memory had yet to forget it, and it went.
#[tokio::test]
async fn a_deletion_that_memory_failed_at_is_repeated_by_the_next_start() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    assert_eq!(search(&agent, "One.").await.len(), 2);
    memory.fails.store(true, Ordering::Relaxed);
    agent.service().delete(DeleteSession { session_id: session.session_id, force: false }).await.unwrap();
    end(agent).await;
    // The next start fails at it, too; the one after that does not.
    let agent = stored(dir.path(), &memory);
    agent.service().ready().await.unwrap();
    end(agent).await;
    assert_eq!(memory.sessions().len(), 1);
    memory.fails.store(false, Ordering::Relaxed);
    let agent = stored(dir.path(), &memory);
    agent.service().ready().await.unwrap();
    assert!(memory.sessions().is_empty());
    assert!(listed(&agent).await.is_empty());
    end(agent).await;
}

#[tokio::test]
async fn a_deletion_that_memory_failed_at_is_tried_again_and_then_lists_forget_it() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = stored(dir.path(), &memory);
    let (session, other) = (agent.create_session().await.unwrap(), agent.create_session().await.unwrap());
    agent.turn(&session, "@say One.").await.unwrap();
    assert_eq!(search(&agent, "One.").await.len(), 2);
    memory.fails.store(true, Ordering::Relaxed);
    agent.service().delete(DeleteSession { session_id: session.session_id, force: false }).await.unwrap();
    memory.fails.store(false, Ordering::Relaxed);
    agent.turn(&other, "@say Two.").await.unwrap();
    let request = WaitReader { reader: "memory".to_owned(), session_id: other.session_id, seq: 4, wait_ms: 60_000 };
    assert_eq!(agent.service().wait_reader(request).await.unwrap().seq, 4);
    assert_eq!(memory.sessions().keys().copied().collect::<Vec<_>>(), [other.session_id]);
    assert_eq!(listed(&agent).await, [other.session_id]);
    end(agent).await;
}

/// A memory that could not be opened passed for one that had lost nothing.
#[tokio::test]
async fn a_memory_that_cannot_say_what_it_lost_is_asked_again() {
    let dir = meerkat_testkit::folder();
    let agent = stored(dir.path(), &Arc::default());
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    end(agent).await;
    let memory = Arc::<Fake>::default();
    memory.is_lost.store(true, Ordering::Relaxed);
    memory.fails.store(true, Ordering::Relaxed);
    let agent = stored(dir.path(), &memory);
    assert!(search_now(&agent, "One.").await.is_empty());
    memory.fails.store(false, Ordering::Relaxed);
    let other = agent.create_session().await.unwrap();
    agent.turn(&other, "@say Two.").await.unwrap();
    let request = WaitReader { reader: "memory".to_owned(), session_id: other.session_id, seq: 4, wait_ms: 60_000 };
    assert_eq!(agent.service().wait_reader(request).await.unwrap().seq, 4);
    assert_eq!(memory.texts(session.session_id), ["@say One.", "One."]);
    end(agent).await;
}

/// Clock whose timers never fire.
struct Still(SystemClock);

impl Clock for Still {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// A search that came first waited for more changes, as if nobody had asked.
#[tokio::test]
async fn a_search_waits_for_no_timer() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let agent = AgentBuildConfig::new().options(options()).store(dir.path().to_owned()).build().unwrap();
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    end(agent).await;
    let world = World { clock: Arc::new(Still(SystemClock::new())), ..World::system() };
    let agent = config(&memory, options()).store(dir.path().to_owned()).world(world).build().unwrap();
    for text in ["One.", "Two."] {
        // Without a timer it waits for memory as long as it takes.
        assert_eq!(in_time("a search waits for no timer", search_now(&agent, text)).await.len(), 2);
        agent.turn(&session, "@say Two.").await.unwrap();
    }
}

/// It makes no vector, and says that it was asked for one.
#[derive(Default)]
struct Silent(tokio::sync::Notify);

#[async_trait::async_trait]
impl Embedder for Silent {
    fn id(&self) -> String {
        "silent".to_owned()
    }

    async fn embed(&self, _: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// Searching, forgetting, and the end of the service waited for a request to an embedder, which may take minutes.
#[tokio::test]
async fn nobody_waits_for_an_embedder_that_is_silent() {
    let embedder = Arc::<Silent>::default();
    let memory = MemoryOptions { embedder: Some(embedder.clone()), ..MemoryOptions::default() };
    let agent = AgentBuildConfig::new().options(options()).memory(None, memory).build().unwrap();
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say One.").await.unwrap();
    embedder.0.notified().await;
    let forget = ForgetMemory { session_id: Some(session.session_id), ..ForgetMemory::default() };
    assert_eq!(agent.service().forget_memory(forget).await.unwrap().forgotten, 2);
    agent.turn(&session, "@say Two.").await.unwrap();
    // It looks for what is taken in by then: all of it, though the embedder has not answered for the first part.
    let request = SearchMemory { limit: Some(1), role: Some("assistant".to_owned()), ..query("Two.") };
    caught_up(&agent).await;
    let found = agent.service().search_memory(request).await.unwrap().items;
    assert_eq!(found.iter().map(|hit| hit.text.as_str()).collect::<Vec<_>>(), ["Two."]);
    end(agent).await;
}

#[tokio::test]
async fn a_limit_counts_what_a_fork_does_not_repeat() {
    let dir = meerkat_testkit::folder();
    let config = AgentBuildConfig::new().options(options()).store(dir.path().to_owned());
    let agent = config.memory(Some(dir.path().to_owned()), MemoryOptions::default()).build().unwrap();
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, "@say Shared words.").await.unwrap();
    let parent = session.session_id;
    let fork = agent.service().fork(ForkSession { session_id: parent, turn: None }).await.unwrap().session_id;
    agent.service().start_turn(StartTurn::new(fork, "@say Own words.")).await.unwrap();
    let request = SearchMemory { limit: Some(4), ..query("words") };
    caught_up(&agent).await;
    let hits = agent.service().search_memory(request).await.unwrap().items;
    let of = |id: SessionId| hits.iter().filter(|hit| hit.session_id == id).count();
    assert_eq!((of(parent), of(fork)), (2, 2));
    assert!(hits.iter().any(|hit| hit.text == "Own words."), "{hits:?}");
    end(agent).await;
}

#[tokio::test]
async fn of_turns_that_are_left_out_what_a_compaction_discards_is_taken_in() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let mut options = options();
    options.memory.index_turns = false;
    let kept = CompactionConfig { recent_turn_budget: 1, ..CompactionConfig::default() };
    let build = || config(&memory, options.clone()).compaction(kept).store(dir.path().to_owned()).build().unwrap();
    let agent = build();
    let session = agent.create_session().await.unwrap();
    let id = session.session_id;
    for turn in ["alpha", "beta", "gamma"] {
        let filler = "so it was said, at length, and more than once; ".repeat(30);
        agent.turn(&session, &format!("@note {filler} @say This is {turn}.")).await.unwrap();
    }
    assert!(search(&agent, "This is").await.is_empty());
    assert_eq!(behind(&agent).await, 0, "what is not wanted keeps no journal from being compacted");
    let compact = CompactSession { session_id: id, compaction: None };
    agent.service().compact(compact.clone()).await.unwrap();
    let found = said(&agent, "This is alpha.").await;
    assert_eq!(found.last().map(|hit| hit.2.as_str()), Some("This is alpha."));
    assert!(!search(&agent, "This is beta.").await.is_empty());
    assert!(search(&agent, "This is gamma.").await.is_empty(), "it is in the context");
    end(agent).await;

    // Another process takes in what the next one discards, and nothing else.
    let agent = build();
    let filler = "and so on, and so on, until everybody had heard of it; ".repeat(30);
    agent.turn(&session, &format!("@note {filler} @say This is delta.")).await.unwrap();
    agent.service().compact(compact).await.unwrap();
    assert!(!search(&agent, "This is gamma.").await.is_empty());
    assert!(search(&agent, "This is delta.").await.is_empty());
    end(agent).await;
}

/// It left while memory failed, and what it had said was lost.
#[tokio::test(start_paused = true)]
async fn without_a_store_a_session_stays_until_memory_has_it_unless_there_is_no_room() {
    for (max_sessions, stays) in [(4, true), (1, false)] {
        let memory = Arc::<Fake>::default();
        memory.fails.store(true, Ordering::Relaxed);
        let mut options = options();
        (options.ephemeral.idle_ms, options.ephemeral.max_sessions) = (1_000, max_sessions);
        let agent = config(&memory, options).build().unwrap();
        let session = agent.create_session().await.unwrap();
        agent.turn(&session, "@say One.").await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let events = ReadEvents::new(session.session_id, 0);
        assert_eq!(agent.service().events(events.clone()).await.is_ok(), stays);
        memory.fails.store(false, Ordering::Relaxed);
        // It retries by now; its own thread does not use the paused clock.
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::resume();
        until_asked("it leaves", async || agent.service().events(events.clone()).await.is_err()).await;
        let said: &[&str] = if stays { &["@say One.", "One."] } else { &[] };
        assert_eq!(memory.texts(session.session_id), said);
        if stays {
            let request =
                SearchMemory { scope: SearchScope::Session, session_id: Some(session.session_id), ..query("One.") };
            let found = agent.service().search_memory(request).await.unwrap().items;
            assert_eq!(found.len(), 2, "what it said outlives it");
        }
        agent.create_session().await.unwrap();
        end(agent).await;
        tokio::time::pause();
    }
}

#[tokio::test]
async fn what_failed_is_tried_once_more_when_the_service_ends() {
    for is_stored in [false, true] {
        let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
        let config = config(&memory, options());
        let config = if is_stored { config.store(dir.path().to_owned()) } else { config };
        let agent = config.build().unwrap();
        let session = agent.create_session().await.unwrap();
        memory.fails.store(true, Ordering::Relaxed);
        agent.turn(&session, "@say One.").await.unwrap();
        assert!(search_now(&agent, "One.").await.is_empty());
        memory.fails.store(false, Ordering::Relaxed);
        end(agent).await;
        assert_eq!(memory.texts(session.session_id), ["@say One.", "One."], "{is_stored}");
    }
}

/// More sessions than one round takes in: the others were lost with the first failure of the end.
#[tokio::test]
async fn at_the_end_of_a_service_no_failure_costs_another_session_its_messages() {
    for (failing, failures) in [(70, 0), (1, 0), (0, 1), (0, 3)] {
        let memory = Arc::<Fake>::default();
        let agent = config(&memory, options()).build().unwrap();
        memory.is_mute.store(true, Ordering::Relaxed);
        let mut sessions = Vec::new();
        for _ in 0..150 {
            let session = agent.create_session().await.unwrap();
            agent.turn(&session, "@say One.").await.unwrap();
            sessions.push(session.session_id);
        }
        let (lost, kept) = sessions.split_at(failing);
        *memory.failing.lock().unwrap() = lost.iter().copied().collect();
        memory.failures.store(failures, Ordering::Relaxed);
        memory.is_mute.store(false, Ordering::Relaxed);
        end(agent).await;
        let has_it = |id: &&SessionId| memory.texts(**id) == ["@say One.", "One."];
        assert_eq!((kept.iter().filter(has_it).count(), kept.len()), (kept.len(), 150 - failing));
        assert_eq!(lost.iter().filter(has_it).count(), 0);
    }
}

#[tokio::test]
async fn the_tool_checks_its_limit() {
    let agent = config(&Arc::default(), options()).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let call = r#"@call search_project_history {"query":"x","limit":0} @echo last_result"#;
    let text = agent.turn(&session, call).await.unwrap().text;
    assert!(text.contains("/limit: value is less than the minimum of 1"), "{text}");
    end(agent).await;
}

#[tokio::test]
async fn a_service_without_memory_has_no_tool_for_it() {
    let mut options = options();
    options.memory.enabled = false;
    let agent = config(&Arc::default(), options).build().unwrap();
    let tools = CreateSession { tools: Some(vec!["search_project_history".to_owned()]), ..CreateSession::default() };
    assert_eq!(agent.service().create_session(tools).await.unwrap_err().code(), ErrorCode::ToolNotFound);
}

#[tokio::test]
async fn what_is_asked_is_checked() {
    let agent = config(&Arc::default(), options()).build().unwrap();
    let unknown: SessionId = "01900000-0000-7000-8000-000000000000".parse().unwrap();
    let time = |text: &str| serde_json::from_value(text.into()).unwrap();
    let wrong = [
        ("query", query(" \n")),
        ("query", query(&"x".repeat(16 * 1024 + 1))),
        ("session_id", SearchMemory { scope: SearchScope::Session, ..query("x") }),
        ("session_id", SearchMemory { session_id: Some(unknown), ..query("x") }),
        ("role", SearchMemory { role: Some("system".to_owned()), ..query("x") }),
        ("limit", SearchMemory { limit: Some(0), ..query("x") }),
        ("limit", SearchMemory { limit: Some(101), ..query("x") }),
        ("limit", SearchMemory { limit: Some(1_000_000), ..query("x") }),
        ("labels", SearchMemory { labels: [(String::new(), "x".to_owned())].into(), ..query("x") }),
        (
            "since",
            SearchMemory {
                since: Some(time("2026-01-02T00:00:00Z")),
                until: Some(time("2026-01-01T00:00:00Z")),
                ..query("x")
            },
        ),
    ];
    let service = agent.service();
    for (field, request) in wrong {
        let body = service.search_memory(request).await.unwrap_err().body();
        assert_eq!((body.code, &body.details["field"]), (ErrorCode::InvalidRequest, &field.into()), "{}", body.message);
    }
    let wrong = [
        ("session_id", ForgetMemory::default()),
        ("session_id", ForgetMemory { from_seq: Some(1), source: Some("user".to_owned()), ..ForgetMemory::default() }),
        (
            "from_seq",
            ForgetMemory { session_id: Some(unknown), from_seq: Some(2), to_seq: Some(1), ..ForgetMemory::default() },
        ),
        ("source", ForgetMemory { source: Some(" ".to_owned()), ..ForgetMemory::default() }),
    ];
    for (field, request) in wrong {
        let body = service.forget_memory(request).await.unwrap_err().body();
        assert_eq!((body.code, &body.details["field"]), (ErrorCode::InvalidRequest, &field.into()), "{}", body.message);
    }
    let request = SearchMemory { scope: SearchScope::Session, session_id: Some(unknown), ..query("x") };
    assert_eq!(service.search_memory(request).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    let request = ForgetMemory { session_id: Some(unknown), ..ForgetMemory::default() };
    assert_eq!(service.forget_memory(request).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    for odd in ["?!…", "\u{0}\u{1b}[2J", "何か", &"x".repeat(16 * 1024)] {
        assert!(service.search_memory(query(odd)).await.unwrap().items.is_empty());
    }
}

#[test]
fn a_graph_of_fewer_than_100_vectors_is_refused() {
    for (from, is_taken) in [(0, false), (99, false), (100, true), (usize::MAX, true)] {
        let mut options = options();
        options.memory.graph_from = from;
        match config(&Arc::default(), options).build() {
            Ok(_) => assert!(is_taken, "{from}"),
            Err(refused) => {
                assert!(!is_taken && refused.code() == ErrorCode::ConfigInvalid, "{from}: {refused}");
                assert_eq!(refused.body().details["key"], "memory.graph_from");
                assert!(refused.to_string().contains("from 100 on"), "{refused}");
            }
        }
    }
}

#[test]
fn a_table_in_a_directory_is_named_by_the_configuration() {
    let build = |dir: Option<&Path>| {
        let mut options = options();
        (options.memory.embedder, options.memory.local.dir) = (EmbedderChoice::Local, dir.map(Path::to_owned));
        AgentBuildConfig::new().options(options).memory(None, MemoryOptions::default()).build()
    };
    let table = Path::new(env!("CARGO_MANIFEST_DIR")).join("recall/tests/fixtures/table");
    assert!(build(Some(&table)).is_ok());
    for dir in [None, Some(Path::new("/nowhere/at all"))] {
        let refused = build(dir).err().unwrap();
        assert_eq!(refused.code(), ErrorCode::ConfigInvalid, "{refused}");
        assert_eq!(refused.body().details["key"], "memory.local.dir");
    }
}
