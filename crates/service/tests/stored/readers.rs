//! Readers through the front door: their names, how long they wait, and that a lost index hides no session from them.

use meerkat_service::{
    ErrorCode,
    service::{FetchReader, NamedReader, ReaderRecord, ReaderView, WaitReader},
};

use crate::stored::{
    Place, Process, files,
    index::{SESSIONS, create, flip},
};

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
