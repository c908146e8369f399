//! The files follow from the journal alone: in one go or in pieces, after a kill at any step, after any part is gone.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::fs::CWD;
use tempfile::TempDir;

use super::{Projection, files::Files, files::RealFiles};
use crate::{
    AgentBuildConfig, SessionId,
    clock::Timestamp,
    options::{EngineOptions, Policy},
    service::{EditQueued, InterruptTurn, PromptBlock, ReadEvents, SessionSummary, StartTurn},
    session::{
        Session,
        event::{Event, Record},
        tests::fold,
    },
    store::{Frame, restore::decode},
    wire::encode_event,
};

/// Times that the projection writes while its folder is swapped.
const SWAPPED_STEPS: usize = 100;

/// A session with everything that a transcript knows: calls, an answer that was cut off, a turn that waited, one that was
/// interrupted.
async fn frames() -> Vec<Frame> {
    let dir = meerkat_testkit::folder();
    let mut options = EngineOptions::default();
    options.tools.test_dir = Some(dir.path().to_owned());
    let agent = AgentBuildConfig::new().options(options).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let (service, session_id) = (agent.service().clone(), session.session_id);
    agent.turn(&session, "@say Hello ```` there.").await.unwrap();
    let calls = r#"@call test_echo {"text":"a ``` b"} @call test_echo {"text":"two ``\u0007`"} @say Done."#;
    agent.turn(&session, calls).await.unwrap();
    let running = service.begin_turn(StartTurn::new(session_id, "@say Part. @stall")).await.unwrap();
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0";
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "@say Waited.") };
    let queued = service.begin_turn(queued).await.unwrap();
    let shown = vec![PromptBlock::image("image/png", &png[..]), PromptBlock::text("@say Waited, and changed.")];
    let prompt = Some(shown.into());
    let edited = EditQueued { session_id, turn: queued.accepted.turn, prompt, position: None };
    service.edit_queued(edited).await.unwrap();
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    running.result.await.unwrap();
    queued.result.await.unwrap();
    agent.turn(&session, "@say Half @cut").await.unwrap();
    let page = service.events(ReadEvents { limit: Some(1000), ..ReadEvents::new(session_id, 0) }).await.unwrap();
    page.items.into_iter().zip(1..).map(|(line, seq)| Frame { seq, line }).collect()
}

/// What a list says of the session at each of its records.
fn summaries(frames: &[Frame]) -> Vec<Arc<SessionSummary>> {
    let mut session = Session::begin(&decode(&frames[0]).unwrap()).unwrap();
    let mut summaries = vec![Arc::new(session.summary())];
    for frame in &frames[1..] {
        session.apply(&decode(frame).unwrap()).unwrap();
        summaries.push(Arc::new(session.summary()));
    }
    summaries
}

fn projection(dir: PathBuf) -> Projection {
    Projection::new(dir, Some("mine".to_owned()))
}

fn project(projection: &Projection, frames: &[Frame], summary: &Arc<SessionSummary>) -> io::Result<()> {
    let mut session = projection.session(summary.clone(), None, false)?;
    while let Some(after) = session.wants() {
        let from = frames.partition_point(|frame| frame.seq <= after);
        session.push(&frames[from..frames.len().min(from + 3)])?;
    }
    assert_eq!(session.finish()?, summary.last_seq);
    projection.write_list(std::slice::from_ref(summary))
}

/// Every file beneath a folder.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    found.insert(path.strip_prefix(root).unwrap().display().to_string(), fs::read(path).unwrap());
                }
            }
        }
    }
    found
}

struct Sample {
    frames: Vec<Frame>,
    summaries: Vec<Arc<SessionSummary>>,
    /// What one go gives.
    wanted: BTreeMap<String, Vec<u8>>,
}

impl Sample {
    async fn new() -> Self {
        let frames = frames().await;
        let summaries = summaries(&frames);
        let dir = meerkat_testkit::folder();
        project(&projection(dir.path().to_owned()), &frames, summaries.last().unwrap()).unwrap();
        let wanted = files(dir.path());
        Self { frames, summaries, wanted }
    }

    fn id(&self) -> SessionId {
        self.summaries[0].session_id
    }

    fn last(&self) -> &Arc<SessionSummary> {
        self.summaries.last().unwrap()
    }

    fn project(&self, dir: &TempDir) {
        project(&projection(dir.path().to_owned()), &self.frames, self.last()).unwrap();
        assert_eq!(files(dir.path()), self.wanted);
    }
}

#[tokio::test]
async fn the_files_are_the_same_however_often_the_session_was_looked_at() {
    let sample = Sample::new().await;
    let folder = format!("sessions/{}", sample.id());
    let lines: Vec<u8> = sample.frames.iter().flat_map(|frame| [&frame.line[..], b"\n"].concat()).collect();
    assert_eq!(sample.wanted[&format!("{folder}/events.jsonl")], lines);
    let session: SessionSummary = serde_json::from_slice(&sample.wanted[&format!("{folder}/session.json")]).unwrap();
    assert_eq!(&session, sample.last().as_ref());
    for stride in [1, 2, 5] {
        let dir = meerkat_testkit::folder();
        let projection = projection(dir.path().to_owned());
        for summary in sample.summaries.iter().step_by(stride) {
            project(&projection, &sample.frames, summary).unwrap();
            assert_eq!(projection.reached(sample.id()).unwrap(), summary.last_seq);
        }
        sample.project(&dir);
        // Twice is the same as once.
        sample.project(&dir);
    }
}

#[tokio::test]
async fn a_transcript_says_what_was_said() {
    let sample = Sample::new().await;
    let transcript = &sample.wanted[&format!("sessions/{}/transcript.md", sample.id())];
    let transcript = std::str::from_utf8(transcript).unwrap();
    let parts = [
        &format!("# Session {}\n", sample.id()),
        "## Turn 0",
        "### User\n\n@say Hello ```` there.\n",
        "### Assistant\n\nHello ```` there.\n",
        "## Turn 1",
        "### Call of `test_echo`\n\n````json\n{\"text\":\"a ``` b\"}\n````\n",
        "### Result of `test_echo`\n\n````\na ``` b\n````\n",
        // The control character is left out, and what it parted is as long as a fence.
        "### Result of `test_echo`\n\n````\ntwo ```\n````\n",
        "### Assistant\n\nDone.\n",
        "## Turn 2",
        "*Interrupted: ",
        "## Turn 3",
        "### User\n\n@say Waited, and changed.\n\n[Image 1: image/png, 640 x 480 pixels, 29 bytes](blob:",
        "### Assistant\n\nWaited, and changed.\n",
        "## Turn 4",
        "### Assistant\n\nHalf [cut off]\n\n*Failed: ",
    ];
    let mut rest = transcript;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part:?} is missing, or not in its place:\n{transcript}"));
        rest = &rest[at + part.len()..];
    }
}

/// It is no part of what was said: people who read a transcript see nothing of it.
#[tokio::test]
async fn a_transcript_has_nothing_of_a_snapshot_of_the_history() {
    let mut sample = Sample::new().await;
    let records: Vec<Record> = sample.frames.iter().map(|frame| decode(frame).unwrap()).collect();
    let last = records.last().unwrap();
    let history = fold(&records).history_snapshot(last.seq, Timestamp::from_millis(0)).unwrap();
    let snapshot = Record { seq: last.seq + 1, turn: None, event: Event::HistorySnapshot(history), ..last.clone() };
    sample.frames.push(Frame { seq: snapshot.seq, line: encode_event(&snapshot).unwrap() });
    let dir = meerkat_testkit::folder();
    let summary = summaries(&sample.frames).pop().unwrap();
    project(&projection(dir.path().to_owned()), &sample.frames, &summary).unwrap();
    let (made, transcript) = (files(dir.path()), format!("sessions/{}/transcript.md", sample.id()));
    assert_eq!(made[&transcript], sample.wanted[&transcript]);
    let events = format!("sessions/{}/events.jsonl", sample.id());
    assert!(made[&events].len() > sample.wanted[&events].len(), "it is among the events");
}

#[tokio::test]
async fn any_part_that_is_deleted_or_cut_comes_back_to_the_byte() {
    let sample = Sample::new().await;
    for name in sample.wanted.keys() {
        let dir = meerkat_testkit::folder();
        sample.project(&dir);
        let path = dir.path().join(name);
        fs::remove_file(&path).unwrap();
        sample.project(&dir);
        // The owner may change what the repository ignores; the mark names the files' store.
        if !name.ends_with(".json") && name != ".gitignore" && name != "store" {
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
            sample.project(&dir);
        }
    }
    let dir = meerkat_testkit::folder();
    sample.project(&dir);
    projection(dir.path().to_owned()).remove(sample.id()).unwrap();
    sample.project(&dir);
}

/// A folder whose process is killed at some step: that one is done by half, and none after it.
struct Dying {
    files: RealFiles,
    steps_left: AtomicU64,
}

impl Dying {
    /// Returns true if this step is the one; `Err` after it.
    fn step(&self) -> io::Result<bool> {
        let left = self.steps_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match left {
            Ok(left) => Ok(left == 1),
            Err(_) => Err(io::Error::other("killed")),
        }
    }

    fn whole(&self, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.step()?;
        work()
    }
}

impl Files for Dying {
    fn make_dir(&self, path: &str) -> io::Result<()> {
        self.whole(|| self.files.make_dir(path))
    }

    fn create(&self, path: &str) -> io::Result<()> {
        self.whole(|| self.files.create(path))
    }

    fn cut(&self, path: &str, bytes: u64) -> io::Result<()> {
        self.whole(|| self.files.cut(path, bytes))
    }

    fn append(&self, path: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let bytes = if self.step()? { &bytes[..bytes.len() / 2] } else { bytes };
        self.files.append(path, offset, bytes)
    }

    fn sync(&self, path: &str) -> io::Result<()> {
        self.step()?;
        self.files.sync(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.whole(|| self.files.rename(from, to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.whole(|| self.files.remove(path))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        self.whole(|| self.files.remove_dir(path))
    }

    fn len(&self, path: &str) -> io::Result<Option<u64>> {
        self.files.len(path)
    }

    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.files.list(path)
    }

    fn read(&self, path: &str) -> io::Result<Option<Vec<u8>>> {
        self.files.read(path)
    }
}

#[tokio::test]
async fn a_kill_at_any_step_is_made_good_by_the_next_run() {
    let sample = Sample::new().await;
    let halfway = &sample.summaries[sample.summaries.len() / 2];
    let mut is_through = false;
    let mut steps = 0;
    while !is_through {
        for before in [None, Some(halfway)] {
            let dir = meerkat_testkit::folder();
            if let Some(before) = before {
                project(&projection(dir.path().to_owned()), &sample.frames, before).unwrap();
            }
            let files = RealFiles::new(dir.path());
            let files = Arc::new(Dying { files, steps_left: AtomicU64::new(steps) });
            let dying = Projection { files, ..projection(dir.path().to_owned()) };
            let done = project(&dying, &sample.frames, sample.last());
            // A rebuild takes more steps than a continuation.
            is_through = done.is_ok() && before.is_none() || is_through;
            for name in ["events.jsonl", "transcript.md", "session.json"] {
                let path = format!("sessions/{}/{name}", sample.id());
                let found = fs::read(dir.path().join(&path)).unwrap_or_default();
                // What grows in place may stop anywhere; it never says what it should not.
                assert!(name == "session.json" || sample.wanted[&path].starts_with(&found), "{path} after {steps}");
            }
            sample.project(&dir);
        }
        steps += 1;
    }
    assert!(steps > 20, "{steps}");
}

#[tokio::test]
async fn files_of_another_store_are_not_removed() {
    let (sample, dir) = (Sample::new().await, meerkat_testkit::folder());
    sample.project(&dir);
    let other = Projection::new(dir.path().to_owned(), Some("other".to_owned()));
    other.remove(sample.id()).unwrap();
    assert_eq!(files(dir.path()), sample.wanted);
    projection(dir.path().to_owned()).remove(sample.id()).unwrap();
    assert_ne!(files(dir.path()), sample.wanted);
}

#[tokio::test]
async fn nothing_is_written_through_a_link() {
    let sample = Sample::new().await;
    let dir = meerkat_testkit::folder();
    sample.project(&dir);
    let victim = dir.path().join("victim");
    fs::write(&victim, "mine").unwrap();
    for name in [format!("sessions/{}/events.jsonl", sample.id()), "index.json.new".to_owned()] {
        let path = dir.path().join(&name);
        drop(fs::remove_file(&path));
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        // It may fail, but it does not follow.
        drop(project(&projection(dir.path().to_owned()), &sample.frames, sample.last()));
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
    }
    let elsewhere = meerkat_testkit::folder();
    fs::create_dir(elsewhere.path().join(sample.id().to_string())).unwrap();
    for link in ["rkat", "rkat/sessions"] {
        let dir = meerkat_testkit::folder();
        let link = dir.path().join(link);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), link).unwrap();
        let projection = projection(dir.path().join("rkat"));
        assert!(project(&projection, &sample.frames, sample.last()).is_err());
        assert!(projection.remove(sample.id()).is_err());
        assert!(projection.sessions().is_err());
        assert_eq!(files(elsewhere.path()), BTreeMap::new());
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1, "nothing is removed there either");
    }
}

/// A command of a tool swaps each part of the path while the files are written. Each part is a link, or has another name
/// outside, at every moment that a step may find it.
#[tokio::test]
async fn a_part_that_is_swapped_at_any_moment_leads_to_nothing_outside() {
    let sample = Sample::new().await;
    let session = format!("sessions/{}", sample.id());
    let file = |name: &str| format!("{session}/{name}");
    let parts =
        ["sessions".to_owned(), session.clone(), file("transcript.md"), file("events.jsonl"), file("checkpoint")];
    for part in parts {
        let place = meerkat_testkit::folder();
        let (project_dir, outside) = (place.path().join("project"), place.path().join("outside"));
        let root = project_dir.join(".rkat");
        fs::create_dir(&project_dir).unwrap();
        let projection = projection(root.clone());
        project(&projection, &sample.frames, &sample.summaries[sample.summaries.len() / 2]).unwrap();
        // What a link leads to has all that the projection looks for, and its files are not those of the projection.
        copy(&root, &outside);
        let mine = files(&outside);
        let (swapped, link) = (root.join(&part), root.join("swap"));
        std::os::unix::fs::symlink(outside.join(&part), &link).unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let exchange = rustix::fs::RenameFlags::EXCHANGE;
                    // The projection may have removed the part, or replaced it.
                    rustix::fs::renameat_with(CWD, &swapped, CWD, &link, exchange).ok();
                }
            });
            for step in 0..SWAPPED_STEPS {
                // Each may fail; the next one begins where the files are.
                drop(projection.session(sample.summaries[0].clone(), None, step % 16 == 15).map(|session| {
                    session.append("transcript.md", 0, b"stolen").and(session.append("events.jsonl", 0, b"stolen"))
                }));
                drop(projection.remove(sample.id()));
                drop(project(&projection, &sample.frames, sample.last()));
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(files(&outside), mine, "{part}");
    }
}

/// The folder that holds `.rkat`, or `.rkat` itself, becomes a link after the start; and a file gets a second name.
#[tokio::test]
async fn a_swapped_holder_and_a_second_name_lead_to_nothing_outside() {
    let sample = Sample::new().await;
    for part in ["project", "project/.rkat"] {
        let place = meerkat_testkit::folder();
        let (project_dir, outside) = (place.path().join("project"), place.path().join("outside"));
        fs::create_dir(&project_dir).unwrap();
        let projection = projection(project_dir.join(".rkat"));
        project(&projection, &sample.frames, &sample.summaries[0]).unwrap();
        fs::create_dir_all(outside.join(".rkat")).unwrap();
        fs::rename(place.path().join(part), place.path().join("old")).unwrap();
        std::os::unix::fs::symlink(&outside, place.path().join(part)).unwrap();
        drop(project(&projection, &sample.frames, sample.last()));
        drop(projection.remove(sample.id()));
        assert_eq!(files(&outside), BTreeMap::new(), "{part}");
    }
    let dir = meerkat_testkit::folder();
    let root = dir.path().join(".rkat");
    let projection = projection(root.clone());
    project(&projection, &sample.frames, &sample.summaries[0]).unwrap();
    let transcript = root.join(format!("sessions/{}/transcript.md", sample.id()));
    let victim = dir.path().join("victim");
    fs::copy(&transcript, &victim).unwrap();
    let mine = fs::read(&victim).unwrap();
    fs::remove_file(&transcript).unwrap();
    fs::hard_link(&victim, &transcript).unwrap();
    drop(project(&projection, &sample.frames, sample.last()));
    assert_eq!(fs::read(&victim).unwrap(), mine);
}

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    for (name, bytes) in files(from) {
        fs::create_dir_all(to.join(&name).parent().unwrap()).unwrap();
        fs::write(to.join(name), bytes).unwrap();
    }
}

/// What a power failure leaves of the mark says nothing; what a repository brings along is not followed.
#[tokio::test]
async fn a_mark_that_is_broken_is_made_again_and_one_that_is_no_file_is_refused() {
    let sample = Sample::new().await;
    for broken in [&b""[..], b"mi", b"\0\0\0\0\0", b"mine\nmine\n", &[b'x'; 100_000]] {
        let dir = meerkat_testkit::folder();
        fs::write(dir.path().join("store"), broken).unwrap();
        project(&projection(dir.path().to_owned()), &sample.frames, sample.last()).unwrap();
        assert_eq!(fs::read(dir.path().join("store")).unwrap(), b"mine\n");
    }
    let elsewhere = meerkat_testkit::folder();
    fs::write(elsewhere.path().join("store"), "mine\n").unwrap();
    let dir = meerkat_testkit::folder();
    std::os::unix::fs::symlink(elsewhere.path().join("store"), dir.path().join("store")).unwrap();
    assert!(projection(dir.path().to_owned()).is_anothers().is_err(), "a link is followed");
    fs::remove_file(dir.path().join("store")).unwrap();
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(CWD, dir.path().join("store"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // At once, though nobody writes into it.
    assert!(projection(dir.path().to_owned()).is_anothers().is_err(), "a pipe is read");
}
