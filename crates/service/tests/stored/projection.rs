//! Sessions as files: they follow the journals beside the turns, and come back to the byte.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use meerkat_service::{
    ErrorCode, Seq, SessionId,
    clock::Timestamp,
    doctor::Check,
    service::{CompactJournal, WaitReader},
    store::{JournalPruner, StoreError, Stores},
};
use meerkat_testkit::{until_asked, until_async, until_got};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::stored::{Place, Process, contents, whole};

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

    /// The file of a session; empty if there is none.
    fn file(&self, id: SessionId, name: &str) -> String {
        fs::read_to_string(self.rkat().join(format!("sessions/{id}/{name}"))).unwrap_or_default()
    }

    fn event_lines(&self, id: SessionId) -> Vec<String> {
        self.file(id, "events.jsonl").lines().map(str::to_owned).collect()
    }

    /// The next start makes the files of a session what its journal is now.
    fn is_made_again(&self, id: SessionId) {
        self.process(true, async |process| {
            process.projected(id).await;
            let mut lines = process.lines(id).await;
            lines.retain(|line| !line.contains(r#""type":"pruned""#));
            assert_eq!(self.event_lines(id), lines);
        });
        assert!(!self.has_stale_files());
    }

    /// Every file of the projection with its bytes.
    fn projection(&self) -> BTreeMap<String, Vec<u8>> {
        contents(&self.rkat())
    }
}

impl Process {
    /// Waits until the files have a session whole.
    pub(crate) async fn projected(&self, session_id: SessionId) {
        let seq = self.last_seq(session_id).await;
        let wait = WaitReader { reader: "projection".to_owned(), session_id, seq, wait_ms: 60_000 };
        assert!(self.service.wait_reader(wait).await.unwrap().seq >= seq);
    }

    /// A session with these turns, whose files are written.
    async fn written(&self, prompts: &[&str]) -> SessionId {
        let id = self.create().await;
        for prompt in prompts {
            assert_eq!(Some(self.turn(id, prompt).await.unwrap().text.as_str()), prompt.strip_prefix("@say "));
        }
        self.projected(id).await;
        id
    }
}

/// Waits until the list names these sessions as they are, and no other.
async fn listed(process: &Process, rkat: &Path, ids: &[SessionId]) {
    let mut wanted = Vec::new();
    for id in ids {
        wanted.push((id.to_string(), process.last_seq(*id).await));
    }
    let is_so = || {
        let index: Value = serde_json::from_slice(&fs::read(rkat.join("index.json")).ok()?).ok()?;
        let of = |it: &Value| Some((it["session_id"].as_str()?.to_owned(), it["last_seq"].as_u64()?));
        Some(index["sessions"].as_array()?.iter().map(of).collect::<Option<Vec<_>>>()? == wanted)
    };
    until_async("the list names them", || is_so() == Some(true)).await;
}

#[test]
fn the_files_follow_the_turns_and_come_back_to_the_byte() {
    let place = Place::projected();
    let rkat = &place.rkat();
    let (first, second, lines) = place.process(true, async |process| {
        let first = process.create().await;
        process.turn(first, r#"@call test_echo {"text":"hi"} @say Done."#).await.unwrap();
        let second = process.written(&[]).await;
        process.projected(first).await;
        process.turn(first, "@say Again.").await.unwrap();
        process.projected(first).await;
        listed(&process, rkat, &[first, second]).await;
        (first, second, process.lines(first).await)
    });
    let whole = place.projection();
    let of = |id: SessionId, name: &str| format!("sessions/{id}/{name}");
    let mut wanted = vec![".gitignore".to_owned(), "index.json".to_owned()];
    for id in [first, second] {
        wanted.extend(["checkpoint", "events.jsonl", "session.json", "transcript.md"].map(|name| of(id, name)));
    }
    wanted.push("store".to_owned());
    assert!(whole.keys().eq(&wanted), "{:?}", whole.keys());
    assert_eq!(place.event_lines(first), lines);
    place.process(true, async |process| process.service.ready().await.unwrap());
    assert_eq!(place.projection(), whole, "a start without a turn changes nothing");
    // All of it is deleted: the next start rebuilds it.
    fs::remove_dir_all(rkat).unwrap();
    place.process(true, async |process| listed(&process, rkat, &[first, second]).await);
    assert_eq!(place.projection(), whole);
    // A part of it is gone, and something else is there: a rebuild makes it whole.
    fs::remove_file(rkat.join(of(first, "transcript.md"))).unwrap();
    fs::remove_dir_all(rkat.join(of(second, ""))).unwrap();
    let stray = rkat.join("sessions/0190a5f0-0000-7000-8000-000000000000");
    fs::create_dir(&stray).unwrap();
    place.process(true, async |process| {
        let rebuilt = process.service.rebuild_projection().await.unwrap();
        assert_eq!((rebuilt.sessions, rebuilt.events), (2, lines.len() as u64 + 1));
    });
    assert!(!stray.exists());
    assert_eq!(place.projection(), whole);
}

/// What a fork shares with its parent is in the parent's files alone, for as long as there are any.
#[test]
fn a_fork_refers_to_the_files_of_its_parent_and_is_whole_once_these_are_gone() {
    for is_deleted_by_another in [false, true] {
        let mut place = Place::projected();
        let rkat = &place.rkat();
        let fork = async |process: &Process, session_id, say: &str| {
            let child = process.fork(session_id, None).await.unwrap();
            process.turn(child, say).await.unwrap();
            process.projected(child).await;
            child
        };
        let (parent, child, grandchild) = place.process(true, async |process| {
            let parent = process.written(&["@say One."]).await;
            let child = fork(&process, parent, "@say Two.").await;
            let grandchild = fork(&process, child, "@say Three.").await;
            process.turn(parent, "@say Beside.").await.unwrap();
            process.projected(parent).await;
            (parent, child, grandchild)
        });
        for (id, before, turn, said, unsaid) in
            [(child, parent, 0, "Two.", ["One.", "Three."]), (grandchild, child, 1, "Three.", ["One.", "Two."])]
        {
            let (lines, transcript) = (place.event_lines(id), place.file(id, "transcript.md"));
            let is_own = |line: &String| line.contains(&format!(r#""session_id":"{id}""#));
            assert!(lines[0].contains(r#""type":"session_forked""#) && lines.iter().all(is_own), "{lines:#?}");
            assert!(lines[0].contains(&before.to_string()), "{lines:#?}");
            assert!(transcript.contains(&format!("(../{before}/transcript.md) up to turn {turn}.")), "{transcript}");
            assert!(transcript.contains("## Turn") && !transcript.contains("removed by"), "{transcript}");
            assert!(transcript.contains(said) && unsaid.iter().all(|said| !transcript.contains(said)), "{transcript}");
        }
        let files = place.projection();
        place.process(true, async |process| process.service.rebuild_projection().await.unwrap());
        assert_eq!(place.projection(), files);

        if is_deleted_by_another {
            place.options.projection.enabled = false;
            place.process(true, async |process| process.delete(parent).await);
            place.options.projection.enabled = true;
            // As after a kill while the files were written.
            fs::remove_file(rkat.join(format!("sessions/{child}/checkpoint"))).unwrap();
        }
        let lines = place.process(true, async |process| {
            let lines = process.lines(child).await;
            match is_deleted_by_another {
                true => until_async("the files are whole", || place.event_lines(child) == lines).await,
                false => process.delete(parent).await,
            }
            lines
        });
        // All is done once the process that deleted the parent has ended, however short it lived.
        assert_eq!(place.event_lines(child), lines);
        let of_parent = rkat.join(format!("sessions/{parent}"));
        assert!(is_deleted_by_another || !of_parent.exists());
        assert!(lines.iter().any(|line| line.contains("One.")), "{lines:#?}");
        let transcript = place.file(child, "transcript.md");
        assert!(["One.", "Two."].iter().all(|said| transcript.contains(said)), "{transcript}");
        assert!(!transcript.contains("](../"), "{transcript}");
        place.process(true, async |process| {
            listed(&process, rkat, &[child, grandchild]).await;
            until_async("its files are removed", || !of_parent.exists()).await;
        });
        // The grandchild has still a parent with files.
        let now = place.projection();
        for name in ["events.jsonl", "transcript.md"].map(|name| format!("sessions/{grandchild}/{name}")) {
            assert_eq!(now[&name], files[&name]);
        }
    }
}

/// A copy refers to no session that only has its parent's name: that one went on differently here.
#[test]
fn a_copy_whose_parent_is_another_here_has_files_of_its_own() {
    let (there, here) = (Place::new(), Place::projected());
    let [early, late] = there.process(true, async |process| {
        let id = process.create().await;
        process.turn(id, "@say Both.").await.unwrap();
        let early = process.export(id, false).await;
        process.turn(id, "@say There.").await.unwrap();
        [early, process.export(id, false).await]
    });
    here.process(true, async |process| {
        let import = async |bundle: &[u8], new_ids| {
            process.service.import_bundle(whole(bundle, new_ids)).await.unwrap().sessions[0].session_id
        };
        let parent = import(&early, false).await;
        for _ in 0..3 {
            process.turn(parent, "@say Here.").await.unwrap();
        }
        process.projected(parent).await;
        for (bundle, is_whole) in [(&late, true), (&early, false)] {
            let copy = import(bundle, true).await;
            process.projected(copy).await;
            let lines = here.event_lines(copy);
            assert!(lines.iter().any(|line| line.contains(&format!(r#""parent":"{parent}""#))), "{lines:#?}");
            assert_eq!(lines == process.lines(copy).await, is_whole, "{lines:#?}");
            let transcript = here.file(copy, "transcript.md");
            assert_eq!(transcript.contains("There."), is_whole, "{transcript}");
            assert_eq!(transcript.contains("(../"), !is_whole, "{transcript}");
        }
    });
}

/// Files that are all there are not written once more because their folder was not there for a while.
#[test]
fn a_folder_that_cannot_be_written_disturbs_no_turn_and_sends_no_session_back() {
    let place = Place::projected();
    place.process(true, async |process| {
        for _ in 0..3 {
            process.written(&[]).await;
        }
    });
    fs::rename(place.rkat(), place.dir.path().join("away")).unwrap();
    fs::write(place.rkat(), "a file where the folder should be").unwrap();
    place.process(true, async |process| {
        let refused = process.service.rebuild_projection().await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
        let reader = async || process.service.list_readers().await.unwrap().items.remove(0);
        let view = reader().await;
        assert!(view.built_in && view.records_behind == 0, "{view:?}");
        let id = process.create().await;
        assert_eq!(process.turn(id, "@say One.").await.unwrap().text, "One.");
        assert!(reader().await.records_behind >= 4);
        // While a pass over all of them is on, all are behind.
        until_asked("only the new one is behind", async || reader().await.sessions_behind == 1).await;
    });
}

/// A deleted session's files that cannot be removed keep no other session from its own.
#[test]
fn files_that_cannot_be_removed_are_in_nobodys_way() {
    let place = Place::projected();
    place.process(true, async |process| {
        let first = process.written(&[]).await;
        let folder = place.rkat().join("sessions").join(first.to_string());
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "a file where the folder should be").unwrap();
        process.delete(first).await;
        process.written(&[]).await;
    });
}

/// A command could once make such a folder there, and every later start ended when it was to be removed.
#[test]
fn a_folder_of_any_depth_among_the_files_ends_no_start() {
    let place = Place::projected();
    let [gone, stays] = place.process(true, async |process| {
        [process.written(&["@say Gone."]).await, process.written(&["@say Stays."]).await]
    });
    let folder = |id: SessionId| place.rkat().join("sessions").join(id.to_string());
    let unknown: SessionId = "01900000-0000-7000-8000-000000000001".parse().unwrap();
    fs::create_dir(folder(unknown)).unwrap();
    let _deep = [gone, stays, unknown].map(|id| Deep::below(&folder(id)));
    // Without the list, every folder is looked at.
    fs::remove_file(place.rkat().join("index.json")).unwrap();
    place.process(true, async |process| {
        process.projected(stays).await;
        process.delete(gone).await;
        until_async("its folder is removed", || !folder(gone).exists()).await;
        assert_eq!(process.service.rebuild_projection().await.unwrap().sessions, 1);
        assert!(!folder(unknown).exists());
        process.turn(stays, "@say More.").await.unwrap();
    });
    place.is_made_again(stays);
}

/// Folders in one another, so many that a recursion over them overflows a thread's stack, as the end of a test's folder
/// would.
struct Deep(PathBuf);

impl Deep {
    fn below(parent: &Path) -> Self {
        let deep = Self(parent.to_owned());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut folder = openat(CWD, parent, flags, Mode::empty()).unwrap();
        for _ in 0..30_000 {
            mkdirat(&folder, "deep", Mode::RWXU).unwrap();
            folder = openat(&folder, "deep", flags, Mode::empty()).unwrap();
        }
        deep
    }
}

impl Drop for Deep {
    fn drop(&mut self) {
        if self.0.join("deep").exists() {
            fs::File::open(&self.0).map(|folder| meerkat_service::folder::remove(folder, Path::new("deep"))).ok();
        }
    }
}

/// Two data directories of one project: the files are the first one's, and the other says so.
#[test]
fn files_of_another_data_directory_are_left_alone() {
    let (first, mut second) = (Place::projected(), Place::new());
    let id = first.process(true, async |process| process.written(&["@say Mine."]).await);
    let whole = first.projection();
    second.options.projection.dir = Some(first.rkat());
    let other = second.process(true, async |process| {
        let id = process.create().await;
        assert_eq!(process.turn(id, "@say Mine.").await.unwrap().text, "Mine.");
        let refused = process.service.rebuild_projection().await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
        assert!(refused.body().details["why"].as_str().unwrap().contains("another data directory"), "{refused}");
        process.delete(id).await;
        process.create().await
    });
    assert_eq!(first.projection(), whole);
    // Without the mark, the other store may have the folder.
    fs::remove_file(first.rkat().join("store")).unwrap();
    second.process(true, async |process| {
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
        place.process(true, async |process| {
            process.turn(process.create().await, "@say One.").await.unwrap();
            assert_eq!(process.service.list_readers().await.unwrap().items, []);
            let refused = process.service.rebuild_projection().await.unwrap_err();
            assert_eq!(refused.code(), ErrorCode::InvalidRequest);
        });
        assert!(!place.rkat().exists());
    }
}

/// A service that is dropped lets go of its directory, whatever its projector does.
#[test]
fn a_service_that_is_dropped_ends_its_projector() {
    let place = Place::projected();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let process = Process { service: place.agent().build().unwrap().service().clone() };
        process.written(&[]).await;
        drop(process);
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
    let (id, last_seq) = place.process(true, async |process| {
        let id = process.lived().await;
        process.is_read(id).await;
        process.projected(id).await;
        (id, process.last_seq(id).await)
    });
    assert!(!place.has_stale_files());
    let (pruned, mut prunes) = mpsc::unbounded_channel();
    let dying = |stores: &mut Stores| stores.pruner = Some(Arc::new(Dying(stores.pruner.take().unwrap(), pruned)));
    place.process_over(false, dying, async |process, ()| {
        let request = CompactJournal::new(id);
        tokio::spawn(async move { process.service.compact_journal(request).await });
        assert!(prunes.recv().await.unwrap() > 0);
    });
    assert!(place.has_stale_files());
    place.is_made_again(id);
    place.process(true, async |process| assert_eq!(process.last_seq(id).await, last_seq));
}

#[test]
fn a_journal_that_a_repair_ended_has_its_files_made_again() {
    let mut place = Place::projected();
    let (id, whole) = place.process(true, async |process| {
        let id = process.written(&["@say One.", "@say Two."]).await;
        (id, process.lines(id).await)
    });
    place.damage(id, "@say Two");
    let found = place.examine(true).findings;
    assert!(found.iter().all(|finding| finding.mended || finding.check == Check::Projection), "{found:#?}");
    assert!(found.iter().any(|finding| finding.check == Check::Projection), "{found:#?}");
    // While nothing is projected, the journal grows beyond its old end.
    place.options.projection.enabled = false;
    place.process(true, async |process| {
        for _ in 0..3 {
            process.turn(id, "@say Three.").await.unwrap();
        }
        assert!(process.lines(id).await.len() > whole.len());
    });
    place.options.projection.enabled = true;
    place.is_made_again(id);
}
