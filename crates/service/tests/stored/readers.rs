//! Readers through the front door: what is acknowledged stays so, what is not comes again, in every process.

use std::collections::BTreeMap;

use meerkat_service::{
    ErrorCode, SessionId,
    service::{
        AcknowledgeReader, DeleteSession, FetchReader, ForkSession, NamedReader, ReaderRecord, ReaderView, WaitReader,
    },
};

use crate::stored::{
    Place, Process, files,
    index::{SESSIONS, create, flip},
};

/// As long as any poll waits here.
const WAIT_MS: u64 = 60_000;

fn named(reader: &str) -> NamedReader {
    NamedReader { reader: reader.to_owned() }
}

impl Process {
    async fn reader(&self, reader: &str) -> ReaderView {
        self.service.create_reader(named(reader)).await.unwrap()
    }

    async fn fetch(&self, reader: &str, limit: usize, wait_ms: u64) -> Vec<ReaderRecord> {
        let request = FetchReader { reader: reader.to_owned(), limit: Some(limit), wait_ms };
        self.service.fetch_reader(request).await.unwrap().items
    }

    async fn acknowledge(&self, reader: &str, session_id: SessionId, seq: u64) -> Result<u64, ErrorCode> {
        let request = AcknowledgeReader { reader: reader.to_owned(), session_id, seq };
        self.service.acknowledge_reader(request).await.map(|done| done.seq).map_err(|error| error.code())
    }

    /// Takes everything that there is, by pages of `limit`, and acknowledges it.
    async fn consume(&self, reader: &str, limit: usize) -> Vec<ReaderRecord> {
        let mut all = Vec::new();
        loop {
            let page = self.fetch(reader, limit, 0).await;
            if page.is_empty() {
                return all;
            }
            for record in &page {
                self.acknowledge(reader, record.session_id, record.seq).await.unwrap();
            }
            all.extend(page);
        }
    }
}

/// What is left of an index is not what a reader is behind in.
#[test]
fn a_reader_that_is_registered_after_the_index_was_lost_is_behind_in_every_session() {
    let place = Place::new();
    place.process(true, |process| async move {
        for n in 0..SESSIONS {
            process.service.create_session(create(n)).await.unwrap();
        }
    });
    place.process(true, |process| {
        let place = &place;
        async move {
            process.service.ready().await.unwrap();
            flip(place);
            // The caller that finds the damage may fail.
            drop(process.service.create_reader(named("r")).await);
            assert!(files(&place.data_dir()).iter().any(|path| path.contains("set-aside")), "nobody noticed");
            assert_eq!(process.reader("r").await.sessions_behind, SESSIONS as u64);
        }
    });
}

/// The lines of each session, in the order in which they came.
fn by_session(records: &[ReaderRecord]) -> BTreeMap<SessionId, Vec<String>> {
    let mut sessions: BTreeMap<SessionId, Vec<String>> = BTreeMap::new();
    for record in records {
        let line = String::from_utf8(record.line.to_vec()).unwrap();
        sessions.entry(record.session_id).or_default().push(line);
    }
    sessions
}

/// Each life takes in a part, and ends without a word, now and then in the middle of a turn.
#[test]
fn nothing_is_missed_over_many_lives() {
    let place = Place::new();
    let mut seen: BTreeMap<SessionId, Vec<String>> = BTreeMap::new();
    for life in 0..6 {
        let page = place.process(false, |process| async move {
            process.reader("r").await;
            let session_id = process.create().await;
            process.turn(session_id, "@say One.").await.unwrap();
            let page = process.fetch("r", 3 + life, 0).await;
            for record in &page {
                process.acknowledge("r", record.session_id, record.seq).await.unwrap();
            }
            let request = meerkat_service::service::StartTurn::new(session_id, "@say Part. @stall");
            drop(process.service.begin_turn(request).await.unwrap());
            page
        });
        by_session(&page).into_iter().for_each(|(id, lines)| seen.entry(id).or_default().extend(lines));
    }
    place.process(true, |process| async move {
        let rest = process.consume("r", 7).await;
        by_session(&rest).into_iter().for_each(|(id, lines)| seen.entry(id).or_default().extend(lines));
        assert_eq!(seen.len(), 6);
        for (session_id, lines) in seen {
            // What is acknowledged never comes again, so that each came once.
            let mut due = process.lines(session_id).await;
            if lines.len() < due.len() {
                // The end of the turn that was cut is recorded in its own time.
                process.until(session_id, "turn_interrupted").await;
                due = process.lines(session_id).await;
            }
            assert_eq!(lines, due[..lines.len()]);
            assert!(lines.len() >= 4, "{lines:?}");
        }
    });
}

#[test]
fn a_fetch_that_waits_is_woken_by_whatever_is_recorded() {
    let place = Place::new();
    place.process(true, |process| async move {
        process.reader("r").await;
        let waiting = |process: Process| tokio::spawn(async move { process.fetch("r", 100, WAIT_MS).await });

        let fetch = waiting(process.clone());
        let session_id = process.create().await;
        let page = fetch.await.unwrap();
        assert_eq!((page[0].session_id, page[0].seq), (session_id, 1));
        assert_eq!(process.consume("r", 100).await.len(), 1);

        let fetch = waiting(process.clone());
        process.turn(session_id, "@say One.").await.unwrap();
        let page = fetch.await.unwrap();
        assert_eq!((page[0].session_id, page[0].seq), (session_id, 2));
        process.consume("r", 100).await;

        // A fork is a session of its own: its records come under its id, those of its parent, too.
        let fetch = waiting(process.clone());
        let fork = process.service.fork(ForkSession { session_id, turn: None }).await.unwrap();
        let page = fetch.await.unwrap();
        let keys: Vec<String> = page.iter().map(ReaderRecord::idempotency_key).collect();
        assert_eq!(keys, (1..=fork.seq).map(|seq| format!("{}:{seq}", fork.session_id)).collect::<Vec<_>>());
        assert_eq!(by_session(&page)[&fork.session_id], process.lines(fork.session_id).await);

        // It is deleted while it is read.
        process.service.delete(DeleteSession { session_id: fork.session_id, force: false }).await.unwrap();
        assert_eq!(process.acknowledge("r", fork.session_id, 1).await, Err(ErrorCode::SessionNotFound));
        assert_eq!(process.fetch("r", 100, 0).await, []);

        let wait = WaitReader { reader: "r".to_owned(), session_id, seq: 5, wait_ms: WAIT_MS };
        let waiting = tokio::spawn({
            let process = process.clone();
            async move { process.service.wait_reader(wait).await.unwrap() }
        });
        process.turn(session_id, "@say Two.").await.unwrap();
        assert_eq!(process.acknowledge("r", session_id, 6).await, Ok(6));
        assert_eq!(waiting.await.unwrap().seq, 6);
    });
}

/// A reader that keeps up has every session's journal whole and in order while turns run in all of them.
#[test]
fn a_reader_that_follows_has_every_journal() {
    let place = Place::new();
    place.process(true, |process| async move {
        process.reader("r").await;
        let mut turns = Vec::new();
        for _ in 0..5 {
            let (process, session_id) = (process.clone(), process.create().await);
            turns.push(tokio::spawn(async move {
                for n in 0..6 {
                    process.turn(session_id, &format!("@say {n}.")).await.unwrap();
                }
                session_id
            }));
        }
        let mut all = Vec::new();
        while by_session(&all).values().map(Vec::len).sum::<usize>() < 5 * (1 + 6 * 3) {
            let page = process.fetch("r", 4, WAIT_MS).await;
            assert!(!page.is_empty(), "it waited for what never came");
            for record in &page {
                process.acknowledge("r", record.session_id, record.seq).await.unwrap();
            }
            all.extend(page);
        }
        let found = by_session(&all);
        for turns in turns {
            let session_id = turns.await.unwrap();
            assert_eq!(found[&session_id], process.lines(session_id).await);
        }
    });
}

#[test]
fn a_readers_name_is_checked() {
    let place = Place::new();
    place.process(true, |process| async move {
        let service = &process.service;
        let long = "x".repeat(65);
        for name in ["", "A", "ä", "a b", "a/b", "a\n", &long, "projection", "memory"] {
            for refused in [service.create_reader(named(name)).await, service.delete_reader(named(name)).await] {
                assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRequest, "{name:?}");
            }
        }
        let longest = "x".repeat(64);
        for name in ["a", "0", "a.b_c-9", &longest] {
            assert_eq!(process.reader(name).await.reader, name);
        }
    });
}

#[test]
fn no_poll_waits_longer_than_the_service_does() {
    let mut place = Place::new();
    place.options.limits.wait_ms = 1;
    place.process(true, |process| async move {
        process.reader("r").await;
        assert_eq!(process.fetch("r", 9, u64::MAX).await, []);
        let wait = WaitReader { reader: "r".to_owned(), session_id: process.create().await, seq: 1, wait_ms: u64::MAX };
        assert_eq!(process.service.wait_reader(wait).await.unwrap().seq, 0);
    });
}
