//! Sessions as files: they follow the journals beside the turns, and come back to the byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use meerkat_service::{
    AgentBuildConfig, ErrorCode, Seq, SessionId,
    clock::Timestamp,
    doctor::Check,
    service::{CompactJournal, DeleteSession, ForkSession, WaitReader},
    store::{JournalPruner, StoreError, open_stores},
};
use meerkat_testkit::{PATIENCE, until_async, until_got};
use tokio::sync::mpsc;

use crate::stored::{Place, Process, files};

impl Place {
    pub(crate) fn projected() -> Self {
        let mut place = Self::new();
        place.options.projection.dir = Some(place.rkat());
        place
    }

    pub(crate) fn rkat(&self) -> PathBuf {
        self.dir.path().join("project/.rkat")
    }

    fn has_stale_files(&self) -> bool {
        self.examine(false).findings.iter().any(|finding| finding.check == Check::Projection)
    }

    /// The next start makes the files of a session what its journal is now.
    fn is_made_anew(&self, id: SessionId) {
        self.process(true, |process| async move {
            process.projected(id).await;
            let lines = process.lines(id).await;
            let kept = lines.iter().filter(|line| !line.contains(r#""type":"pruned""#));
            let wanted: String = kept.map(|line| format!("{line}\n")).collect();
            let path = self.rkat().join(format!("sessions/{id}/events.jsonl"));
            assert_eq!(fs::read_to_string(path).unwrap(), wanted);
        });
        assert!(!self.has_stale_files());
    }

    /// Every file of the projection with its bytes.
    fn projection(&self) -> BTreeMap<String, Vec<u8>> {
        files(&self.rkat()).into_iter().map(|name| (name.clone(), fs::read(self.rkat().join(name)).unwrap())).collect()
    }
}

impl Process {
    /// Waits until the files have a session whole.
    pub(crate) async fn projected(&self, session_id: SessionId) {
        let seq = self.service.read(&session_id).await.unwrap().last_seq;
        let wait = WaitReader { reader: "projection".to_owned(), session_id, seq, wait_ms: 60_000 };
        assert!(self.service.wait_reader(wait).await.unwrap().seq >= seq);
    }
}

/// Waits until the list names these sessions as they are, and no other.
async fn listed(process: &Process, rkat: &Path, ids: &[SessionId]) {
    let mut wanted = Vec::new();
    for id in ids {
        wanted.push((id.to_string(), process.service.read(id).await.unwrap().last_seq));
    }
    let is_so = || {
        let index = fs::read(rkat.join("index.json")).ok()?;
        let index: serde_json::Value = serde_json::from_slice(&index).ok()?;
        let of = |it: &serde_json::Value| Some((it["session_id"].as_str()?.to_owned(), it["last_seq"].as_u64()?));
        Some(index["sessions"].as_array()?.iter().map(of).collect::<Option<Vec<_>>>()? == wanted)
    };
    until_async("the list names them", || is_so() == Some(true)).await;
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
        listed(&process, &rkat, &[first, second]).await;
        (first, second)
    });
    let whole = place.projection();
    let names: Vec<&str> = whole.keys().map(String::as_str).collect();
    let of = |id: SessionId, name: &str| format!("sessions/{id}/{name}");
    let mut wanted = vec![".gitignore".to_owned(), "index.json".to_owned()];
    for id in [first, second] {
        wanted.extend(["checkpoint", "events.jsonl", "session.json", "transcript.md"].map(|name| of(id, name)));
    }
    wanted.push("store".to_owned());
    assert_eq!(names, wanted);
    let index: serde_json::Value = serde_json::from_slice(&whole["index.json"]).unwrap();
    let named: Vec<_> = index["sessions"].as_array().unwrap().iter().map(|it| it["session_id"].to_string()).collect();
    assert_eq!(named, [format!("\"{first}\""), format!("\"{second}\"")]);
    let lines = place.process(true, |process| async move { process.lines(first).await });
    assert_eq!(whole[&of(first, "events.jsonl")], (lines.join("\n") + "\n").into_bytes());
    assert_eq!(place.projection(), whole, "a start without a turn changes nothing");
    // All of it is deleted: the next start rebuilds it.
    fs::remove_dir_all(place.rkat()).unwrap();
    let rkat = place.rkat();
    place.process(true, |process| async move {
        process.service.read(&first).await.unwrap();
        listed(&process, &rkat, &[first, second]).await;
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
        listed(&process, &rkat, &[child]).await;
        (session_id, child)
    });
    let whole = place.projection();
    assert!(whole.contains_key(&format!("sessions/{child}/transcript.md")));
    assert!(!whole.keys().any(|name| name.contains(&parent.to_string())), "{:?}", whole.keys());
    assert!(!String::from_utf8_lossy(&whole["index.json"]).contains(&format!("\"session_id\":\"{parent}\"")));
}

/// The events in a session's files, a line each.
fn event_lines(rkat: &Path, id: SessionId) -> Vec<String> {
    let text = fs::read_to_string(rkat.join(format!("sessions/{id}/events.jsonl"))).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// What a fork shares with its parent is in the parent's files alone, for as long as there are any.
#[test]
fn a_fork_refers_to_the_files_of_its_parent_and_is_whole_once_these_are_gone() {
    for is_deleted_by_another in [false, true] {
        let mut place = Place::projected();
        let rkat = &place.rkat();
        let text = |id: SessionId| fs::read_to_string(rkat.join(format!("sessions/{id}/transcript.md"))).unwrap();
        let fork = async |process: &Process, session_id, say: &str| {
            let child = process.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id;
            process.turn(child, say).await.unwrap();
            process.projected(child).await;
            child
        };
        let (parent, child, grandchild) = place.process(true, |process| async move {
            let parent = process.create().await;
            process.turn(parent, "@say One.").await.unwrap();
            let child = fork(&process, parent, "@say Two.").await;
            let grandchild = fork(&process, child, "@say Three.").await;
            process.turn(parent, "@say Beside.").await.unwrap();
            process.projected(parent).await;
            (parent, child, grandchild)
        });
        for (id, before, turn, said, unsaid) in
            [(child, parent, 0, "Two.", ["One.", "Three."]), (grandchild, child, 1, "Three.", ["One.", "Two."])]
        {
            let (lines, transcript) = (event_lines(rkat, id), text(id));
            let is_own = |line: &String| line.contains(&format!(r#""session_id":"{id}""#));
            assert!(lines[0].contains(r#""type":"session_forked""#) && lines.iter().all(is_own), "{lines:#?}");
            assert!(lines[0].contains(&before.to_string()), "{lines:#?}");
            assert!(transcript.contains(&format!("(../{before}/transcript.md) up to turn {turn}.")), "{transcript}");
            assert!(transcript.contains("## Turn") && !transcript.contains("removed by"), "{transcript}");
            assert!(transcript.contains(said) && unsaid.iter().all(|said| !transcript.contains(said)), "{transcript}");
        }
        let files = place.projection();
        place.process(true, |process| async move {
            process.service.rebuild_projection().await.unwrap();
        });
        assert_eq!(place.projection(), files);

        let delete = |process: Process| async move {
            process.service.delete(DeleteSession { session_id: parent, force: false }).await.unwrap();
        };
        if is_deleted_by_another {
            place.options.projection.enabled = false;
            place.process(true, delete);
            place.options.projection.enabled = true;
            // As after a kill while the files were written.
            fs::remove_file(rkat.join(format!("sessions/{child}/checkpoint"))).unwrap();
        }
        let lines = place.process(true, |process| async move {
            let lines = process.lines(child).await;
            if !is_deleted_by_another {
                delete(Process { service: process.service.clone() }).await;
            }
            if is_deleted_by_another {
                until_async("the files are whole", || event_lines(rkat, child) == lines).await;
            }
            lines
        });
        // The files are whole once the process that deleted the parent has ended, however short it lived.
        assert_eq!(event_lines(rkat, child), lines);
        assert!(lines.iter().any(|line| line.contains("One.")), "{lines:#?}");
        let transcript = text(child);
        assert!(["One.", "Two."].iter().all(|said| transcript.contains(said)), "{transcript}");
        assert!(!transcript.contains("](../"), "{transcript}");
        // The grandchild has still a parent with files.
        for name in ["events.jsonl", "transcript.md"].map(|name| format!("sessions/{grandchild}/{name}")) {
            assert_eq!(place.projection()[&name], files[&name]);
        }
    }
}

/// A copy refers to no session that only has its parent's name: that one went on differently here.
#[test]
fn a_copy_whose_parent_is_another_here_has_files_of_its_own() {
    let (there, here) = (Place::projected(), Place::projected());
    let bundles = there.process(true, |process| async move {
        let id = process.create().await;
        process.turn(id, "@say Both.").await.unwrap();
        let early = process.exported(&[id]).await;
        process.turn(id, "@say There.").await.unwrap();
        [early, process.exported(&[id]).await]
    });
    let rkat = &here.rkat();
    here.process(true, |process| async move {
        let [early, late] = bundles;
        let parent = process.import(&early, usize::MAX, false).await.unwrap()[0].session_id;
        for _ in 0..3 {
            process.turn(parent, "@say Here.").await.unwrap();
        }
        process.projected(parent).await;
        for (bundle, is_whole) in [(late, true), (early, false)] {
            let copy = process.import(&bundle, usize::MAX, true).await.unwrap()[0].session_id;
            process.projected(copy).await;
            let lines = event_lines(rkat, copy);
            assert!(lines.iter().any(|line| line.contains(&format!(r#""parent":"{parent}""#))), "{lines:#?}");
            assert_eq!(lines == process.lines(copy).await, is_whole, "{lines:#?}");
            let transcript = fs::read_to_string(rkat.join(format!("sessions/{copy}/transcript.md"))).unwrap();
            assert_eq!(transcript.contains("There."), is_whole, "{transcript}");
            assert_eq!(transcript.contains("(../"), !is_whole, "{transcript}");
        }
    });
}

/// Files that are all there are not written once more because their folder was not there for a while.
#[test]
fn a_folder_that_cannot_be_written_disturbs_no_turn_and_sends_no_session_back() {
    let place = Place::projected();
    place.process(true, |process| async move {
        for _ in 0..3 {
            process.projected(process.create().await).await;
        }
    });
    fs::rename(place.rkat(), place.dir.path().join("away")).unwrap();
    fs::write(place.rkat(), "a file where the folder should be").unwrap();
    place.process(true, |process| async move {
        let refused = process.service.rebuild_projection().await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
        let reader = async || process.service.list_readers().await.unwrap().items.remove(0);
        assert_eq!(reader().await.records_behind, 0);
        let id = process.create().await;
        assert_eq!(process.turn(id, "@say One.").await.unwrap().text, "One.");
        let reader = reader().await;
        assert!(reader.built_in && reader.sessions_behind == 1 && reader.records_behind >= 4, "{reader:?}");
    });
}

/// A deleted session's files that cannot be removed keep no other session from its own.
#[test]
fn files_that_cannot_be_removed_are_in_nobodys_way() {
    let place = Place::projected();
    let rkat = place.rkat();
    place.process(true, |process| async move {
        let first = process.create().await;
        process.projected(first).await;
        let folder = rkat.join("sessions").join(first.to_string());
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "a file where the folder should be").unwrap();
        process.service.delete(DeleteSession { session_id: first, force: false }).await.unwrap();
        let second = process.create().await;
        process.projected(second).await;
    });
}

/// Two data directories of one project: the files are the first one's, and the other says so.
#[test]
fn files_of_another_data_directory_are_left_alone() {
    let (first, mut second) = (Place::projected(), Place::projected());
    let id = first.process(true, |process| async move {
        let id = process.create().await;
        process.turn(id, "@say Mine.").await.unwrap();
        process.projected(id).await;
        id
    });
    let whole = first.projection();
    second.options.projection.dir = Some(first.rkat());
    let other = second.process(true, |process| async move {
        let id = process.create().await;
        assert_eq!(process.turn(id, "@say Mine.").await.unwrap().text, "Mine.");
        let refused = process.service.rebuild_projection().await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
        assert!(refused.body().details["why"].as_str().unwrap().contains("another data directory"), "{refused}");
        process.service.delete(DeleteSession { session_id: id, force: false }).await.unwrap();
        process.create().await
    });
    assert_eq!(first.projection(), whole);
    // Without the mark, the other store may have the folder.
    fs::remove_file(first.rkat().join("store")).unwrap();
    second.process(true, |process| async move {
        assert_eq!(process.service.rebuild_projection().await.unwrap().sessions, 1);
    });
    let names: Vec<String> = first.projection().into_keys().collect();
    let is_of = |id: SessionId| names.iter().any(|name| name.contains(&id.to_string()));
    assert!(is_of(other) && !is_of(id), "{names:?}");
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
        until_got("the directory is let go", async || match place.agent().build() {
            Err(error) if error.code() == ErrorCode::StoreLocked => None,
            built => Some(built.unwrap()),
        })
        .await;
    });
}

/// Prunes, says so, and never comes back: the process ends there.
struct Dying(Arc<dyn JournalPruner>, mpsc::UnboundedSender<u64>);

#[async_trait]
impl JournalPruner for Dying {
    async fn parts(&self, session_id: SessionId) -> Result<Vec<(Seq, Seq)>, StoreError> {
        self.0.parts(session_id).await
    }

    async fn prune(
        &self,
        session_id: SessionId,
        up_to: Seq,
        keep: &BTreeSet<Seq>,
        older_than: Timestamp,
    ) -> Result<u64, StoreError> {
        let dropped = self.0.prune(session_id, up_to, keep, older_than).await?;
        self.1.send(dropped).unwrap();
        std::future::pending().await
    }
}

#[test]
fn what_a_compaction_dropped_is_in_no_file_after_a_kill() {
    let mut place = Place::projected();
    place.options.journal.min_record_age_ms = 0;
    let (id, last_seq) = place.process(true, |process| async move {
        let (id, last_seq) = process.lived().await;
        process.register("one").await;
        process.is_done("one", id, last_seq).await;
        process.projected(id).await;
        (id, last_seq)
    });
    assert!(!place.has_stale_files());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let service = runtime.block_on(async {
        let (pruned, mut prunes) = mpsc::unbounded_channel();
        let mut stores = open_stores(&place.data_dir()).unwrap();
        stores.pruner = Some(Arc::new(Dying(stores.pruner.unwrap(), pruned)));
        let agent = AgentBuildConfig::new().options(place.options.clone()).stores(stores).build().unwrap();
        let service = agent.service().clone();
        let compacting = service.clone();
        let request = CompactJournal { session_id: id, dry_run: false, drop_history: false };
        tokio::spawn(async move { compacting.compact_journal(request).await });
        assert!(prunes.recv().await.unwrap() > 0);
        service
    });
    runtime.shutdown_timeout(PATIENCE);
    drop(service);
    assert!(place.has_stale_files());
    place.is_made_anew(id);
    place.process(true, |process| async move {
        assert_eq!(process.service.read(&id).await.unwrap().last_seq, last_seq);
    });
}

#[test]
fn a_journal_that_a_repair_ended_has_its_files_made_anew() {
    let mut place = Place::projected();
    let (id, whole) = place.process(true, |process| async move {
        let id = process.create().await;
        for prompt in ["@say One.", "@say Two."] {
            process.turn(id, prompt).await.unwrap();
        }
        process.projected(id).await;
        (id, process.lines(id).await)
    });
    let journal = place.data_dir().join("journal");
    let segment = journal.join(files(&journal).iter().find(|name| name.ends_with(".mlog")).unwrap());
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.windows(8).position(|window| window == b"@say Two").unwrap();
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let found = place.examine(true).findings;
    assert!(found.iter().all(|finding| finding.mended || finding.check == Check::Projection), "{found:#?}");
    assert!(found.iter().any(|finding| finding.check == Check::Projection), "{found:#?}");
    // While nothing is projected, the journal grows beyond its old end.
    place.options.projection.enabled = false;
    place.process(true, |process| async move {
        for _ in 0..3 {
            process.turn(id, "@say Three.").await.unwrap();
        }
        assert!(process.lines(id).await.len() > whole.len());
    });
    place.options.projection.enabled = true;
    place.is_made_anew(id);
}
