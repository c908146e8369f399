//! Sessions as files: they follow the journals beside the turns, and come back to the byte.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use meerkat_service::{
    ErrorCode, SessionId,
    service::{DeleteSession, ForkSession, WaitReader},
};

use crate::{Place, Process, files};

impl Place {
    fn projected() -> Self {
        let mut place = Self::new();
        place.options.projection.dir = Some(place.rkat());
        place
    }

    fn rkat(&self) -> PathBuf {
        self.dir.path().join("project/.rkat")
    }

    /// Every file of the projection with its bytes.
    fn projection(&self) -> BTreeMap<String, Vec<u8>> {
        files(&self.rkat()).into_iter().map(|name| (name.clone(), fs::read(self.rkat().join(name)).unwrap())).collect()
    }
}

impl Process {
    /// Waits until the files have a session whole.
    async fn projected(&self, session_id: SessionId) {
        let seq = self.service.read(&session_id).await.unwrap().last_seq;
        let wait = WaitReader { reader: "projection".to_owned(), session_id, seq, wait_ms: 60_000 };
        assert!(self.service.wait_reader(wait).await.unwrap().seq >= seq);
    }
}

/// Waits until the list names these sessions and no other.
async fn listed(rkat: &Path, ids: &[SessionId]) {
    let is_so = || {
        let index = fs::read(rkat.join("index.json")).ok()?;
        let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
        let listed = index["sessions"].as_array()?.iter().map(|it| it["session_id"].as_str().map(str::to_owned));
        Some(listed.collect::<Option<Vec<_>>>()? == ids.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let waiting = async {
        while is_so() != Some(true) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), waiting).await.unwrap();
}

#[test]
fn the_files_follow_the_turns_and_come_back_to_the_byte() {
    let place = Place::projected();
    let rkat = place.rkat();
    let (first, second) = place.process(true, |process| async move {
        let first = process.create().await;
        process.turn(first, r#"@call test_echo {"text":"hi"} @say Done."#).await.unwrap();
        let second = process.create().await;
        process.projected(first).await;
        process.turn(first, "@say Again.").await.unwrap();
        process.projected(first).await;
        process.projected(second).await;
        listed(&rkat, &[first, second]).await;
        (first, second)
    });
    let whole = place.projection();
    let names: Vec<&str> = whole.keys().map(String::as_str).collect();
    let of = |id: SessionId, name: &str| format!("sessions/{id}/{name}");
    let mut wanted = vec![".gitignore".to_owned(), "index.json".to_owned()];
    for id in [first, second] {
        wanted.extend(["checkpoint", "events.jsonl", "session.json", "transcript.md"].map(|name| of(id, name)));
    }
    assert_eq!(names, wanted);
    let index: serde_json::Value = serde_json::from_slice(&whole["index.json"]).unwrap();
    let named: Vec<_> = index["sessions"].as_array().unwrap().iter().map(|it| it["session_id"].to_string()).collect();
    assert_eq!(named, [format!("\"{first}\""), format!("\"{second}\"")]);
    let lines = place.process(true, |process| async move { process.lines(first).await });
    assert_eq!(whole[&of(first, "events.jsonl")], (lines.join("\n") + "\n").into_bytes());
    assert_eq!(place.projection(), whole, "a start without a turn changes nothing");
    // All of it is gone: the next start makes it anew.
    fs::remove_dir_all(place.rkat()).unwrap();
    let rkat = place.rkat();
    place.process(true, |process| async move {
        process.service.read(&first).await.unwrap();
        listed(&rkat, &[first, second]).await;
    });
    assert_eq!(place.projection(), whole);
    // A part of it is gone, and something else is there: a rebuild makes it whole.
    fs::remove_file(place.rkat().join(of(first, "transcript.md"))).unwrap();
    fs::remove_dir_all(place.rkat().join("sessions").join(second.to_string())).unwrap();
    let stray = place.rkat().join("sessions/0190a5f0-0000-7000-8000-000000000000");
    fs::create_dir(&stray).unwrap();
    place.process(true, |process| async move {
        let rebuilt = process.service.rebuild_projection().await.unwrap();
        assert_eq!((rebuilt.sessions, rebuilt.events), (2, lines.len() as u64 + 1));
    });
    assert!(!stray.exists());
    assert_eq!(place.projection(), whole);
}

#[test]
fn a_fork_has_its_files_and_a_deleted_session_has_none() {
    let place = Place::projected();
    let rkat = place.rkat();
    let (parent, child) = place.process(true, |process| async move {
        let session_id = process.create().await;
        process.turn(session_id, "@say One.").await.unwrap();
        let fork = ForkSession { session_id, turn: None };
        let child = process.service.fork(fork).await.unwrap().session_id;
        process.projected(child).await;
        process.projected(session_id).await;
        process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
        listed(&rkat, &[child]).await;
        (session_id, child)
    });
    let whole = place.projection();
    assert!(whole.contains_key(&format!("sessions/{child}/transcript.md")));
    assert!(!whole.keys().any(|name| name.contains(&parent.to_string())), "{:?}", whole.keys());
    assert!(!String::from_utf8_lossy(&whole["index.json"]).contains(&format!("\"session_id\":\"{parent}\"")));
}

#[test]
fn a_process_that_just_ends_leaves_files_that_the_next_one_makes_good() {
    let place = Place::projected();
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(place.process(false, |process| async move {
            let id = process.create().await;
            process.turn(id, "@say One.").await.unwrap();
            id
        }));
    }
    let wanted = ids.clone();
    place.process(true, |process| async move {
        for id in wanted {
            process.projected(id).await;
        }
    });
    let found = place.projection();
    for id in ids {
        let journal = String::from_utf8(found[&format!("sessions/{id}/events.jsonl")].clone()).unwrap();
        assert!(journal.lines().count() >= 4 && journal.ends_with("\n"), "{journal}");
    }
}

#[test]
fn a_folder_that_cannot_be_written_disturbs_no_turn_and_is_told_of() {
    let place = Place::projected();
    fs::write(place.dir.path().join("project"), "a file where the folder should be").unwrap();
    place.process(true, |process| async move {
        let id = process.create().await;
        assert_eq!(process.turn(id, "@say One.").await.unwrap().text, "One.");
        let readers = process.service.list_readers().await.unwrap().items;
        let reader = readers.iter().find(|reader| reader.reader == "projection").unwrap();
        assert!(reader.built_in && reader.sessions_behind == 1 && reader.records_behind >= 4, "{reader:?}");
        let refused = process.service.rebuild_projection().await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
    });
}

#[test]
fn without_a_folder_there_is_no_projection() {
    for (dir, enabled) in [(false, true), (true, false)] {
        let mut place = Place::projected();
        place.options.projection.enabled = enabled;
        place.options.projection.dir.take_if(|_| !dir);
        place.process(true, |process| async move {
            let id = process.create().await;
            process.turn(id, "@say One.").await.unwrap();
            assert_eq!(process.service.list_readers().await.unwrap().items, []);
            let refused = process.service.rebuild_projection().await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::InvalidRequest);
        });
        assert!(!place.rkat().exists());
    }
}

/// A service that is dropped lets go of its directory, whatever its projector does; and a session that cannot be read
/// keeps no other from being projected.
#[test]
fn a_service_that_is_dropped_ends_its_projector() {
    let place = Place::projected();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let service = place.agent().build().unwrap().service().clone();
        let id = Process { service: service.clone() }.create().await;
        Process { service: service.clone() }.projected(id).await;
        drop(service);
        let open = async {
            loop {
                match place.agent().build() {
                    Err(error) if error.code() == ErrorCode::StoreLocked => tokio::task::yield_now().await,
                    built => return built.unwrap(),
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(120), open).await.unwrap();
    });
}
