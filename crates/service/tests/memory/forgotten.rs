//! Forgotten messages and deleted sessions are not found again: not in forks and copies, and not if memory was off
//! meanwhile.

use super::*;
use meerkat_service::service::{ExportSession, Forgotten, ImportBundle};
use meerkat_testkit::{until_asked, until_got};

/// A process with the memory of a directory, its store, or both, once the one before has left.
async fn process(dir: &Path, has_store: bool, has_memory: bool) -> Agent {
    until_got("the process before has left", async || {
        let mut config = AgentBuildConfig::new().options(options());
        if has_store {
            config = config.store(dir.to_owned());
        }
        if has_memory {
            config = config.memory(Some(dir.to_owned()), MemoryOptions::default());
        }
        match config.build() {
            Err(SessionError::StoreLocked { .. }) => None,
            built => Some(built.unwrap()),
        }
    })
    .await
}

/// Checks in which sessions a text is found, once what is still to be taken in and out is.
async fn check_found_in(agent: &Agent, text: &str, expected: &[SessionId]) {
    until_asked(&format!("{text:?} is found in {expected:?}"), async || {
        let mut found: Vec<_> = said(agent, text).await.into_iter().map(|hit| hit.0).collect();
        found.sort_unstable();
        found.dedup();
        found == expected
    })
    .await;
}

async fn told(agent: &Agent, text: &str) -> SessionId {
    let session = agent.create_session().await.unwrap();
    agent.turn(&session, text).await.unwrap();
    session.session_id
}

/// It could be found for good: memory was not notified of the deletion.
#[tokio::test]
async fn a_session_that_was_deleted_without_memory_is_forgotten_and_one_that_has_no_journal_is_not() {
    let dir = meerkat_testkit::folder();
    // Equal texts would be one hit.
    let text = |whose: &str| format!("@say The bassoon of {whose} is in the attic.");
    let agent = process(dir.path(), false, true).await;
    let unstored = told(&agent, &text("Ada")).await;
    end(agent).await;
    let agent = process(dir.path(), true, true).await;
    let (deleted, kept) = (told(&agent, &text("Ben")).await, told(&agent, &text("Cleo")).await);
    check_found_in(&agent, "bassoon attic", &[unstored, deleted, kept]).await;
    end(agent).await;
    let agent = process(dir.path(), true, false).await;
    agent.service().delete(DeleteSession { session_id: deleted, force: false }).await.unwrap();
    end(agent).await;

    // A process without a store knows of no session that is not its own, and forgets none.
    let agent = process(dir.path(), false, true).await;
    let last = told(&agent, &text("Dora")).await;
    check_found_in(&agent, "bassoon attic", &[unstored, deleted, kept, last]).await;
    end(agent).await;
    for is_lost in [false, true] {
        if is_lost {
            std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
        }
        let agent = process(dir.path(), true, true).await;
        check_found_in(&agent, "bassoon attic", &[unstored, kept, last]).await;
        end(agent).await;
    }
}

/// A forgetting answered only when all of memory was written again, and everybody else waited for it.
#[tokio::test]
async fn a_forgetting_answers_when_nothing_is_found_and_with_wait_when_it_is_in_no_file() {
    let dir = meerkat_testkit::folder();
    let agent = process(dir.path(), true, true).await;
    let session_id = told(&agent, "@say The bassoon is in the attic.").await;
    check_found_in(&agent, "bassoon attic", &[session_id]).await;
    for (wait, count) in [(false, 2), (true, 0)] {
        let forget = ForgetMemory { session_id: Some(session_id), wait, ..ForgetMemory::default() };
        let Forgotten { forgotten, erased } = agent.service().forget_memory(forget).await.unwrap();
        assert_eq!((forgotten, erased), (count, wait));
        assert!(said(&agent, "bassoon attic").await.is_empty());
    }
    let file = std::fs::read(dir.path().join("memory.redb")).unwrap();
    assert!(!file.windows(7).any(|it| it == b"bassoon"));
    end(agent).await;
}

/// What was forgotten of a session came back with a fork that was made of it later.
#[tokio::test]
async fn what_is_forgotten_of_a_session_is_in_no_fork_and_no_copy_and_what_of_a_fork_stays_in_its_parent() {
    let by_seqs = |session_id: SessionId, (from, to): (u64, u64)| ForgetMemory {
        session_id: Some(session_id),
        from_seq: Some(from),
        to_seq: Some(to),
        ..ForgetMemory::default()
    };
    for is_by_source in [false, true] {
        let dir = meerkat_testkit::folder();
        let agent = process(dir.path(), true, true).await;
        let service = agent.service().clone();
        let fork = async |session_id| service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
        let parent = told(&agent, "@say The bassoon is in the attic.").await;
        service.start_turn(StartTurn::new(parent, "@say The harbour is closed.")).await.unwrap();
        let early = fork(parent).await;
        // The events of the two prompts and answers.
        let (bassoon, harbour) = ((2, 3), (5, 6));
        check_found_in(&agent, "bassoon", &[parent]).await;

        let of_source = |source: &str| ForgetMemory { source: Some(source.to_owned()), ..ForgetMemory::default() };
        let by_source = vec![of_source("assistant"), of_source("user")];
        for request in if is_by_source { by_source } else { vec![by_seqs(parent, bassoon)] } {
            service.forget_memory(request).await.unwrap();
        }
        let late = fork(parent).await;
        service.start_turn(StartTurn::new(late, "@say The tulips bloom.")).await.unwrap();
        let exported = ExportSession::new(parent);
        let data = service.export_session(exported).await.unwrap().data;
        let import = ImportBundle { upload: None, offset: 0, data, is_last: true, new_ids: true, keep_scope: false };
        let copy = service.import_bundle(import).await.unwrap().sessions[0].session_id;
        // Of a fork alone, and then in a fork of that.
        if !is_by_source {
            service.forget_memory(by_seqs(late, harbour)).await.unwrap();
        }
        let last = fork(late).await;
        service.delete(DeleteSession { session_id: parent, force: false }).await.unwrap();
        let orphan = fork(early).await;
        drop(service);
        end(agent).await;

        for is_lost in [false, true] {
            if is_lost {
                std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
            }
            let agent = process(dir.path(), true, true).await;
            let found_in = async |text: &str| {
                let mut found = Vec::new();
                for (name, id) in [("early", early), ("late", late), ("copy", copy), ("last", last), ("orphan", orphan)]
                {
                    let of = SearchMemory { scope: SearchScope::Session, session_id: Some(id), ..query(text) };
                    let hits = agent.service().search_memory(of).await.unwrap().items;
                    assert!(hits.iter().all(|hit| hit.session_id == id));
                    found.extend(hits.iter().any(|hit| hit.text.contains(text)).then_some(name));
                }
                found
            };
            caught_up(&agent).await;
            assert!(found_in("bassoon").await.is_empty(), "{is_by_source} {is_lost}");
            let harbour: &[&str] = if is_by_source { &[] } else { &["early", "copy", "orphan"] };
            assert_eq!(found_in("harbour").await, harbour, "{is_by_source} {is_lost}");
            assert_eq!(found_in("tulips").await, ["late", "last"], "{is_by_source} {is_lost}");
            end(agent).await;
        }
    }
}

/// What a compaction had discarded was dropped from the journal while memory could not take it in.
#[tokio::test]
async fn no_history_is_dropped_that_memory_has_yet_to_take_in_of_what_a_compaction_discarded() {
    let (dir, memory) = (meerkat_testkit::folder(), Arc::<Fake>::default());
    let mut options = options();
    options.memory.index_turns = false;
    (options.journal.min_record_age_ms, options.journal.keep_last_replies) = (0, 0);
    let kept = CompactionConfig { recent_turn_budget: 1, ..CompactionConfig::default() };
    let agent = config(&memory, options).compaction(kept).store(dir.path().to_owned()).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let session_id = session.session_id;
    let filler = "so it was said, at length, and more than once; ".repeat(30);
    let say = async |word: &str| agent.turn(&session, &format!("@note {filler} @say This is {word}.")).await.unwrap();
    say("alpha").await;
    say("beta").await;
    search(&agent, "This is").await;
    assert_eq!(behind(&agent).await, 0);
    memory.fails.store(true, Ordering::Relaxed);
    // The newest compactions can be undone, so what they discarded stays.
    for word in ["gamma", "delta", "epsilon", "zeta"] {
        agent.service().compact(CompactSession { session_id, compaction: None }).await.unwrap();
        say(word).await;
    }
    let drop = CompactJournal { drop_history: true, ..CompactJournal::new(session_id) };
    assert_eq!(agent.service().compact_journal(drop.clone()).await.unwrap().dropped, 0);
    memory.fails.store(false, Ordering::Relaxed);
    let request = WaitReader { reader: "memory".to_owned(), session_id, seq: 30, wait_ms: 60_000 };
    agent.service().wait_reader(request).await.unwrap();
    assert!(agent.service().compact_journal(drop).await.unwrap().dropped > 0);
    assert_eq!(search(&agent, "This is alpha.").await.len(), 2);
    end(agent).await;
}
