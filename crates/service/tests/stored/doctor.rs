//! Reports of the doctor on a sound directory, and on one where something was removed, cut or changed.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::Write as _,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, future::BoxFuture, stream};
use meerkat_service::{
    ErrorCode, SessionId,
    clock::{Clock, SystemClock, Timestamp, World},
    doctor::{Check, Examination, Finding, Severity, examine},
    service::{DeleteSession, ListTools, ReadBlob, ReadEvents, StartTurn, TurnStatus},
};

use meerkat_testkit::in_time;

use crate::stored::{Place, Process, files, journals};
use repairs::contents;

mod repairs;

impl Place {
    /// The one finding.
    fn finding(&self) -> Finding {
        let found = self.examine(false);
        assert_eq!(found.findings.len(), 1, "{found:#?}");
        found.findings[0].clone()
    }

    fn session_dir(&self, id: SessionId) -> PathBuf {
        let id = id.to_string();
        self.data_dir().join("journal").join(&id[id.len() - 2..]).join(id)
    }

    /// A session with these turns, whose process ended well.
    fn stored(&self, prompts: &[&str]) -> SessionId {
        self.process(true, |process| async move {
            let session_id = process.create().await;
            for prompt in prompts {
                assert_eq!(process.turn(session_id, prompt).await.unwrap().status, TurnStatus::Completed);
            }
            session_id
        })
    }

    /// A session whose journal has two segments. Its turns end for want of room in the context, and are recorded.
    fn long(&self) -> SessionId {
        let id = self.process(true, |process| async move {
            let session_id = process.create().await;
            // Short enough for the journal itself.
            let text = "x".repeat(110_000);
            for _ in 0..90 {
                process.turn(session_id, &format!("@say Well. {text}")).await.unwrap();
            }
            session_id
        });
        assert_eq!(segments(self, id).len(), 2);
        id
    }

    /// What the session's journal holds after a start, and whether it can be written.
    fn starts(&self, id: SessionId) -> (usize, Result<String, ErrorCode>) {
        self.process(true, |process| async move {
            let turn = process.turn(id, "@say Next.").await.map(|result| result.text);
            let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(id, 0) };
            // The first event may be damaged.
            let lines = process.service.events(request).await.map_or(0, |page| page.items.len());
            (lines, turn.map_err(|error| error.code()))
        })
    }
}

fn change(path: &Path, offset: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

#[test]
fn a_thousand_sessions_that_are_sound_have_nothing_wrong() {
    let place = Place::new();
    place.process(true, |process| async move {
        let make = |n: u32| {
            let process: Process = process.clone();
            async move {
                let session_id = process.create().await;
                if n.is_multiple_of(10) {
                    process.turn(session_id, r#"@call test_echo {"text":"hi"} @say Done."#).await.unwrap();
                }
            }
        };
        stream::iter(0..1000).map(make).buffer_unordered(64).collect::<()>().await;
    });
    let stands = || {
        let mut stands = contents(&place.data_dir());
        // It names the last owner of the directory.
        stands.remove("lock");
        stands
    };
    let before = stands();
    let found = place.examine(false);
    assert_eq!((found.findings, found.sessions, found.owner_pid), (vec![], 1000, None));
    assert!(found.records > 1000);
    assert_eq!(place.examine(true).findings, []);
    assert!(stands() == before, "looking changes something");
}

/// Reading all journals takes minutes if there are many: no other process has to wait for that.
#[test]
fn while_journals_are_read_another_process_may_use_them() {
    let place = Place::new();
    let ids = [place.stored(&["@say One."]), place.stored(&["@say Two."])];
    let what = |is_repair| Examination { data_dir: place.data_dir(), projection: None, is_repair };
    let is_used = AtomicBool::new(false);
    let use_them = |done: u64, of: u64| {
        // The first one was read by then.
        if (done, of) == (1, 2) && !is_used.swap(true, Ordering::Relaxed) {
            let turns = || ids.iter().for_each(|id| drop(place.starts(*id).1.unwrap()));
            std::thread::scope(|scope| scope.spawn(turns).join().unwrap());
        }
        true
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let found = runtime.block_on(examine(what(false), &use_them)).unwrap();
    assert!(is_used.load(Ordering::Relaxed));
    assert_eq!((found.findings, found.sessions, found.owner_pid), (vec![], 2, None));
    assert_eq!(found.records, place.examine(false).records);
    // It ends when nobody waits any more.
    let given_up = runtime.block_on(examine(what(false), &|_, _| false)).unwrap();
    assert_eq!((given_up.findings, given_up.sessions), (vec![], 0));
    // Who mends has it alone from the beginning.
    let try_it = |_: u64, _: u64| {
        assert_eq!(place.agent().build().err().unwrap().code(), ErrorCode::StoreLocked);
        true
    };
    assert_eq!(runtime.block_on(examine(what(true), &try_it)).unwrap().findings, []);
}

/// A service examines its own directory while it works there, and repairs nothing.
#[test]
fn a_service_says_what_is_wrong_with_its_own_directory() {
    let place = Place::new();
    let ids = [place.stored(&["@say One."]), place.stored(&["@say Two."])];
    place.process(true, |process| async move {
        let sound = process.service.diagnose().await.unwrap();
        assert_eq!((sound.findings, sound.sessions, sound.records), (vec![], 2, 8));
        assert_eq!(sound.owner_pid, Some(std::process::id()));
    });
    let path = first_segment(&place, ids[0]);
    let said = fs::read(&path).unwrap().windows(9).position(|window| window == b"@say One.").unwrap();
    change(&path, said as u64);
    let found = place.process(true, |process| async move { process.service.diagnose().await.unwrap() });
    let [finding] = found.findings.as_slice() else { panic!("{found:#?}") };
    assert_eq!((finding.check, finding.session_id), (Check::Journal, Some(ids[0])), "{found:#?}");
    assert!(!finding.mended && finding.remedy.contains("meerkat doctor"), "{found:#?}");
}

/// The header of a segment names its format.
#[test]
fn a_session_of_a_newer_format_refuses_all_but_its_deletion() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let path = first_segment(&place, id);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] += 1;
    let crc = crc32c::crc32c(&bytes[..120]);
    bytes[120..124].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    place.process(true, |process| async move {
        let tools = process.service.tools(ListTools { session_id: Some(id), ..ListTools::default() }).await;
        let read = process.service.read(&id).await.map(drop);
        let turn = process.turn(id, "@say Two.").await.map(drop);
        for refused in [tools.map(drop), read, turn] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::SessionFormatNewer);
        }
        process.service.delete(DeleteSession { session_id: id, force: false }).await.unwrap();
        assert_eq!(process.service.read(&id).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    });
}

#[test]
fn a_directory_that_is_no_store_any_more_is_not_examined() {
    let place = Place::new();
    let [format, aside] = ["format", "aside"].map(|name| place.data_dir().join(name));
    let refused = place.process(true, |process| async move {
        process.create().await;
        fs::rename(&format, &aside).unwrap();
        let refused = process.service.diagnose().await.unwrap_err();
        fs::rename(&aside, &format).unwrap();
        refused
    });
    assert_eq!(refused.code(), ErrorCode::StoreNotWritable);
}

/// One answer has a thousand findings at most; its last one counts the others.
#[test]
fn a_service_answers_with_so_many_findings() {
    let place = Place::new();
    place.stored(&["@say One."]);
    for file in 0..1200 {
        let file = place.data_dir().join(format!("open-{file}"));
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    }
    let found = place.process(true, |process| async move { process.service.diagnose().await.unwrap() }).findings;
    assert_eq!(found.len(), 1001);
    assert_eq!(found[1000].what, "there are 200 further findings");
}

#[test]
fn a_torn_tail_is_no_loss() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let path = first_segment(&place, id);
    let whole = fs::read(&path).unwrap();
    // The beginning of a record like the first one, cut short.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(&whole[128..200]).unwrap();
    let found = place.finding();
    assert_eq!((found.check, found.severity, found.session_id), (Check::Journal, Severity::Warning, Some(id)));
    assert!(found.what.contains("72 bytes") && found.remedy.contains("Nothing is lost"), "{found:?}");
    assert_eq!(place.starts(id).1, Ok("Next.".to_owned()));
    assert_eq!(place.examine(false).findings, []);
}

/// The files of a session's segments, in order.
fn segments(place: &Place, id: SessionId) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> =
        fs::read_dir(place.session_dir(id)).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "mlog"));
    paths.sort();
    paths
}

fn first_segment(place: &Place, id: SessionId) -> PathBuf {
    segments(place, id).remove(0)
}

#[test]
fn a_flipped_byte_is_found_and_a_repair_keeps_what_it_takes_away() {
    let place = Place::new();
    let id = place.stored(&["@say One.", "@say Two.", "@say Three."]);
    let path = first_segment(&place, id);
    let whole = fs::read(&path).unwrap();
    let at = whole.windows(7).position(|window| window == b"@say Tw").unwrap();
    change(&path, at as u64);
    let found = place.finding();
    assert_eq!((found.check, found.severity, found.session_id), (Check::Journal, Severity::Error, Some(id)));
    assert!(found.remedy.contains("meerkat doctor --repair"), "{found:?}");
    assert_eq!(place.starts(id).1, Err(ErrorCode::SessionCorrupted));
    let mended = place.examine(true);
    assert!(mended.findings.iter().all(|finding| finding.mended), "{mended:#?}");
    let kept = files(&place.data_dir()).into_iter().find(|name| name.starts_with("quarantine/")).unwrap();
    let mut changed = whole.clone();
    changed[at] ^= 1;
    assert_eq!(fs::read(place.data_dir().join(kept)).unwrap(), changed, "nothing is thrown away");
    assert_eq!(place.starts(id).1, Ok("Next.".to_owned()));
    assert_eq!(place.examine(false).findings, []);
}

/// Clock whose pauses are short. It tells when somebody rests for a day.
struct Hurried {
    system: SystemClock,
    rests: tokio::sync::mpsc::UnboundedSender<()>,
}

impl Clock for Hurried {
    fn now(&self) -> Timestamp {
        self.system.now()
    }

    fn elapsed(&self) -> Duration {
        self.system.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        if duration == Duration::from_secs(24 * 60 * 60) {
            let _sent = self.rests.send(());
            return Box::pin(std::future::pending());
        }
        self.system.sleep(duration.min(Duration::from_millis(1)))
    }
}

/// Nobody asks for it, and its end is good.
#[test]
fn a_running_owner_finds_a_changed_bit_in_a_sealed_segment_by_itself() {
    let place = Place::new();
    let (sound, id) = (place.stored(&["@say One."]), place.long());
    change(&first_segment(&place, id), 4_000_000);
    let (rests, mut rested) = tokio::sync::mpsc::unbounded_channel();
    let clock = Arc::new(Hurried { system: SystemClock::new(), rests });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let agent = place.agent().world(World { clock, ..World::system() }).build().unwrap();
        let service = agent.service();
        // The first request opens the store.
        service.read(&sound).await.unwrap();
        in_time("everything was read", rested.recv()).await.unwrap();
        let refused = service.start_turn(StartTurn::new(id, "@say Next.")).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::SessionCorrupted);
        let found = service.diagnose().await.unwrap().findings;
        assert!(
            matches!(&found[..], [only] if only.session_id == Some(id) && only.check == Check::Journal),
            "{found:#?}"
        );
        service.shut_down(1_000).await;
    });
}

#[test]
fn a_missing_segment_is_found() {
    let place = Place::new();
    let id = place.long();
    fs::remove_file(first_segment(&place, id)).unwrap();
    let found = place.examine(false).findings;
    assert!(found.iter().any(|finding| finding.check == Check::Journal && finding.severity == Severity::Error));
    assert_eq!(place.starts(id).1, Err(ErrorCode::SessionCorrupted));
}

#[test]
fn a_blob_that_is_gone_or_changed_is_found() {
    let place = Place::new();
    let (id, blob) = place.process(true, |process| async move {
        let session_id = process.create().await;
        process.turn(session_id, &format!("@say Well. {}", "y".repeat(400_000))).await.unwrap();
        let events = process.events(session_id).await;
        let blob = events.iter().find_map(|event| event["prompt"]["blob"].as_str()).unwrap().to_owned();
        let request = ReadBlob { session_id, blob: blob.clone(), offset: 0, limit: None };
        assert!(process.service.blob(request).await.is_ok());
        (session_id, blob)
    });
    assert_eq!(place.examine(false).findings, []);
    let path = place.session_dir(id).join("blobs").join(&blob);
    change(&path, 1000);
    let found = place.finding();
    assert_eq!((found.check, found.session_id), (Check::Blob, Some(id)));
    assert!(found.what.contains(&blob) && found.what.contains("is not what was written"), "{found:?}");
    fs::remove_file(path).unwrap();
    let found = place.finding();
    assert!(found.what.contains(&blob) && found.what.contains("cannot be read"), "{found:?}");
}

#[test]
fn an_index_that_is_ahead_or_behind_is_found() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let early = fs::read(place.data_dir().join("index.redb")).unwrap();
    let journal = fs::read(first_segment(&place, id)).unwrap();
    place.process(true, |process| async move { process.turn(id, "@say Two.").await.unwrap() });
    let late = fs::read(place.data_dir().join("index.redb")).unwrap();
    fs::write(place.data_dir().join("index.redb"), early).unwrap();
    let behind = place.finding();
    assert_eq!((behind.check, behind.severity), (Check::Index, Severity::Warning));
    let mended = place.examine(true).findings;
    assert!(mended.iter().all(|finding| finding.mended), "{mended:?}");
    place.process(true, |process| async move { process.service.read(&id).await.unwrap() });
    assert_eq!(place.examine(false).findings, []);
    // The journal of a moment ago, whose last records are lost.
    fs::write(place.data_dir().join("index.redb"), late).unwrap();
    let path = first_segment(&place, id);
    fs::write(&path, journal).unwrap();
    let found = place.examine(false).findings;
    let is_ahead = |finding: &Finding| finding.check == Check::Journal && finding.severity == Severity::Error;
    assert!(found.iter().any(is_ahead), "{found:#?}");
}

#[test]
fn a_call_without_a_result_is_found() {
    let place = Place::new();
    let id = place.process(false, |process| async move {
        let session_id = process.create().await;
        let prompt = r#"@call test_sleep {"ms":600000} @say Done."#;
        drop(process.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap());
        process.until(session_id, "tool_started").await;
        let waits = process.create().await;
        let prompt = r#"@call test_ask {"name":"out","line":"x"} @say Done."#;
        drop(process.service.begin_turn(StartTurn::new(waits, prompt)).await.unwrap());
        process.until(waits, "approval_requested").await;
        session_id
    });
    let found = place.examine(false).findings;
    // A turn that waits for approval goes on with the next start.
    let [found] = found.iter().filter(|finding| finding.check == Check::ToolCall).collect::<Vec<_>>()[..] else {
        panic!("{found:#?}")
    };
    assert_eq!(found.session_id, Some(id));
    assert!(found.what.contains("`test_sleep`") && found.remedy.contains("meerkat resume"), "{found:?}");
    place.process(true, |process| async move { process.until(id, "turn_interrupted").await });
    assert_eq!(place.examine(false).findings, []);
}

#[test]
fn modes_that_let_others_in_are_found_and_set() {
    let place = Place::new();
    let id = place.stored(&[]);
    let path = first_segment(&place, id);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let found = place.finding();
    assert_eq!(found.check, Check::Permissions);
    assert!(found.what.contains("0644") && found.what.contains("0600"), "{found:?}");
    assert!(place.examine(true).findings[0].mended);
    assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(place.examine(false).findings, []);
    // A folder that its owner may not enter.
    let folder = place.data_dir().join("trash");
    fs::set_permissions(&folder, Permissions::from_mode(0o600)).unwrap();
    assert!(place.finding().what.contains("should have 0700"));
    place.examine(true);
    assert_eq!(fs::metadata(folder).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_missing_folder_of_marks_is_found_and_made_good_by_the_next_start() {
    let place = journals::place();
    let id = place.stored(&["@say One."]);
    assert_eq!(place.examine(false).findings, []);
    fs::remove_dir_all(place.data_dir().join("active")).unwrap();
    let found = place.finding();
    assert_eq!((found.check, found.severity), (Check::Store, Severity::Warning));
    assert!(found.what.contains("every session is looked at"), "{found:?}");
    // A repair makes no empty folder: that would say that no session has to be looked at.
    assert_eq!(place.examine(true).findings, [found]);
    assert!(!place.data_dir().join("active").exists());
    place.process(true, |process| async move { process.turn(id, "@say Two.").await.unwrap() });
    assert_eq!(place.examine(false).findings, []);
}

#[test]
fn a_projection_that_is_behind_is_found() {
    let mut place = Place::projected();
    place.options.projection.enabled = false;
    let id = place.stored(&["@say One."]);
    assert_eq!(place.examine(false).findings, [], "one that is not there yet is not behind");
    place.options.projection.enabled = true;
    place.process(true, |process| async move { process.service.rebuild_projection().await.unwrap() });
    assert_eq!(place.examine(false).findings, []);
    place.options.projection.enabled = false;
    place.process(true, |process| async move { process.turn(id, "@say Two.").await.unwrap() });
    let found = place.finding();
    assert_eq!(found.check, Check::Projection);
    assert!(found.remedy.contains("meerkat call projection/rebuild"), "{found:?}");
    fs::write(place.rkat().join("store"), "another\n").unwrap();
    let found = place.finding();
    assert_eq!(found.check, Check::Projection);
    assert!(found.what.contains("another data directory") && found.remedy.contains("projection.dir"), "{found:?}");
}
