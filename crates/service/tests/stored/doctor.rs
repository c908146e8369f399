//! Reports of the doctor on a sound directory, and on one where something was removed, cut or changed.

use std::{
    fs::{self, OpenOptions, Permissions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
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
    service::{ListTools, ReadBlob, TurnStatus},
};
use meerkat_testkit::in_time;

use crate::stored::{Place, change, contents};

mod repairs;

impl Place {
    /// The one finding.
    fn finding(&self) -> Finding {
        let found = self.examine(false).findings;
        let [finding] = &found[..] else { panic!("{found:#?}") };
        finding.clone()
    }

    /// The one finding, of this kind, which says so and advises so.
    fn finds(&self, check: Check, severity: Severity, what: &str, remedy: &str) -> Finding {
        let found = self.finding();
        assert_eq!((found.check, found.severity), (check, severity), "{found:?}");
        assert!(found.what.contains(what) && found.remedy.contains(remedy), "{found:?}");
        found
    }

    fn is_sound(&self) {
        assert_eq!(self.examine(false).findings, []);
    }

    /// A session with these turns, whose process ended well.
    fn stored(&self, prompts: &[&str]) -> SessionId {
        self.process(true, async |process| {
            let session_id = process.create().await;
            for prompt in prompts {
                assert_eq!(process.turn(session_id, prompt).await.unwrap().status, TurnStatus::Completed);
            }
            session_id
        })
    }

    /// A session whose journal has two segments. Its turns end for want of room in the context, and are recorded.
    fn long(&self) -> SessionId {
        let id = self.process(true, async |process| {
            let session_id = process.create().await;
            // Short enough for the journal itself.
            let text = "x".repeat(110_000);
            for _ in 0..90 {
                process.turn(session_id, &format!("@say Well. {text}")).await.unwrap();
            }
            session_id
        });
        assert_eq!(self.segments(id).len(), 2);
        id
    }

    /// Starts, and runs a turn in a session.
    fn goes_on(&self, id: SessionId) -> Result<TurnStatus, ErrorCode> {
        let turn = self.process(true, async |process| process.turn(id, "@say Next.").await);
        turn.map(|result| result.status).map_err(|error| error.code())
    }
}

/// It can be read and written.
const GOES_ON: Result<TurnStatus, ErrorCode> = Ok(TurnStatus::Completed);

#[test]
fn a_thousand_sessions_that_are_sound_have_nothing_wrong() {
    let place = Place::new();
    place.process(true, async |process| {
        let make = async |n: u32| {
            let session_id = process.create().await;
            if n.is_multiple_of(10) {
                process.turn(session_id, r#"@call test_echo {"text":"hi"} @say Done."#).await.unwrap();
            }
        };
        stream::iter(0..1000).map(make).buffer_unordered(64).collect::<()>().await;
    });
    let contents = || {
        let mut contents = contents(&place.data_dir());
        // It names the last owner of the directory.
        contents.remove("lock");
        contents
    };
    let before = contents();
    let found = place.examine(false);
    assert_eq!((found.findings, found.sessions, found.owner_pid), (vec![], 1000, None));
    assert!(found.records > 1000);
    assert_eq!(place.examine(true).findings, []);
    assert!(contents() == before, "looking changes something");
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
            let turns = || ids.iter().for_each(|id| assert_eq!(place.goes_on(*id), GOES_ON));
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
    // Who repairs has it alone from the beginning.
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
    place.process(true, async |process| {
        let sound = process.service.diagnose().await.unwrap();
        assert_eq!((sound.findings, sound.sessions, sound.records), (vec![], 2, 8));
        assert_eq!(sound.owner_pid, Some(std::process::id()));
    });
    place.damage(ids[0], "@say One.");
    let found = place.process(true, async |process| process.service.diagnose().await.unwrap().findings);
    let [finding] = &found[..] else { panic!("{found:#?}") };
    assert_eq!((finding.check, finding.session_id), (Check::Journal, Some(ids[0])), "{found:#?}");
    assert!(!finding.mended && finding.remedy.contains("meerkat doctor"), "{found:#?}");
}

/// The header of a segment names its format.
#[test]
fn a_session_of_a_newer_format_refuses_all_but_its_deletion() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let path = place.segments(id).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] += 1;
    let crc = crc32c::crc32c(&bytes[..120]);
    bytes[120..124].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    place.process(true, async |process| {
        let tools = process.service.tools(ListTools { session_id: Some(id), ..ListTools::default() }).await;
        let read = process.service.read(&id).await;
        for refused in [tools.map(drop), read.map(drop), process.turn(id, "@say Two.").await.map(drop)] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::SessionFormatNewer);
        }
        process.delete(id).await;
        assert_eq!(process.service.read(&id).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    });
}

#[test]
fn a_directory_that_is_no_store_any_more_is_not_examined() {
    let place = Place::new();
    let [format, aside] = ["format", "aside"].map(|name| place.data_dir().join(name));
    place.process(true, async |process| {
        process.create().await;
        fs::rename(&format, &aside).unwrap();
        assert_eq!(process.service.diagnose().await.unwrap_err().code(), ErrorCode::StoreNotWritable);
        fs::rename(&aside, &format).unwrap();
    });
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
    let found = place.process(true, async |process| process.service.diagnose().await.unwrap()).findings;
    assert_eq!(found.len(), 1001);
    assert_eq!(found[1000].what, "there are 200 further findings");
}

#[test]
fn a_torn_tail_is_no_loss() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let path = place.segments(id).remove(0);
    let bytes = fs::read(&path).unwrap();
    // The beginning of a record like the first one, cut short.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(&bytes[128..200]).unwrap();
    let found = place.finds(Check::Journal, Severity::Warning, "72 bytes", "Nothing is lost");
    assert_eq!(found.session_id, Some(id));
    assert_eq!(place.goes_on(id), GOES_ON);
    place.is_sound();
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
    change(&place.segments(id)[0], 4_000_000, 1);
    let (rests, mut rested) = tokio::sync::mpsc::unbounded_channel();
    let clock = Arc::new(Hurried { system: SystemClock::new(), rests });
    let hurried = || place.agent().world(World { clock, ..World::system() });
    Place::process_of(hurried, true, async |process| {
        // The first request opens the store.
        process.view(sound).await;
        in_time("everything was read", rested.recv()).await.unwrap();
        assert_eq!(process.turn(id, "@say Next.").await.unwrap_err().code(), ErrorCode::SessionCorrupted);
        let found = process.service.diagnose().await.unwrap().findings;
        let [only] = &found[..] else { panic!("{found:#?}") };
        assert_eq!((only.session_id, only.check), (Some(id), Check::Journal));
    });
}

#[test]
fn a_missing_segment_is_found() {
    let place = Place::new();
    let id = place.long();
    fs::remove_file(&place.segments(id)[0]).unwrap();
    let found = place.examine(false).findings;
    assert!(found.iter().any(|finding| finding.check == Check::Journal && finding.severity == Severity::Error));
    assert_eq!(place.goes_on(id), Err(ErrorCode::SessionCorrupted));
}

#[test]
fn a_blob_that_is_gone_or_changed_is_found() {
    let place = Place::new();
    let (id, blob) = place.process(true, async |process| {
        let session_id = process.create().await;
        process.turn(session_id, &format!("@say Well. {}", "y".repeat(400_000))).await.unwrap();
        let started = process.until(session_id, "turn_started").await;
        let blob = started["prompt"]["blob"].as_str().unwrap().to_owned();
        let request = ReadBlob { session_id, blob: blob.clone(), offset: 0, limit: None };
        assert!(process.service.blob(request).await.is_ok());
        (session_id, blob)
    });
    place.is_sound();
    let path = place.session_dir(id).join("blobs").join(&blob);
    change(&path, 1000, 1);
    let found = place.finds(Check::Blob, Severity::Error, "is not what was written", "");
    assert!(found.what.contains(&blob) && found.session_id == Some(id), "{found:?}");
    fs::remove_file(path).unwrap();
    assert!(place.finds(Check::Blob, Severity::Error, "cannot be read", "").what.contains(&blob));
}

#[test]
fn an_index_that_is_ahead_or_behind_is_found() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let segment = place.segments(id).remove(0);
    let (early, journal) = (fs::read(place.index()).unwrap(), fs::read(&segment).unwrap());
    place.goes_on(id).unwrap();
    let late = fs::read(place.index()).unwrap();
    fs::write(place.index(), early).unwrap();
    place.finds(Check::Index, Severity::Warning, "", "");
    let found = place.examine(true).findings;
    assert!(found.iter().all(|finding| finding.mended), "{found:?}");
    place.process(true, async |process| process.view(id).await);
    place.is_sound();
    // The journal of a moment ago, whose last records are lost.
    fs::write(place.index(), late).unwrap();
    fs::write(segment, journal).unwrap();
    let found = place.examine(false).findings;
    let is_ahead = |finding: &Finding| finding.check == Check::Journal && finding.severity == Severity::Error;
    assert!(found.iter().any(is_ahead), "{found:#?}");
}

#[test]
fn a_call_without_a_result_is_found() {
    let place = Place::new();
    let id = place.process(false, async |process| {
        let (id, waits) = (process.create().await, process.create().await);
        drop(process.begin(id, r#"@call test_sleep {"ms":600000} @say Done."#).await);
        process.until(id, "tool_started").await;
        drop(process.begin(waits, r#"@call test_ask {"name":"out","line":"x"} @say Done."#).await);
        process.until(waits, "approval_requested").await;
        id
    });
    let mut found = place.examine(false).findings;
    // A turn that waits for approval goes on with the next start.
    found.retain(|finding| finding.check == Check::ToolCall);
    let [found] = &found[..] else { panic!("{found:#?}") };
    assert_eq!(found.session_id, Some(id));
    assert!(found.what.contains("`test_sleep`") && found.remedy.contains("meerkat resume"), "{found:?}");
    place.process(true, async |process| process.until(id, "turn_interrupted").await);
    place.is_sound();
}

#[test]
fn modes_that_let_others_in_are_found_and_set() {
    let place = Place::new();
    let file = place.segments(place.stored(&[])).remove(0);
    // A file that others may read, and a folder that its owner may not enter.
    for (path, wrong, due) in [(file, 0o644, 0o600), (place.data_dir().join("trash"), 0o600, 0o700)] {
        fs::set_permissions(&path, Permissions::from_mode(wrong)).unwrap();
        let found = place.finding();
        assert_eq!(found.check, Check::Permissions);
        assert!([wrong, due].iter().all(|mode| found.what.contains(&format!("{mode:04o}"))), "{found:?}");
        assert!(place.examine(true).findings[0].mended);
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, due);
        place.is_sound();
    }
}

#[test]
fn a_missing_folder_of_marks_is_found_and_made_good_by_the_next_start() {
    let place = Place::pruned();
    let id = place.stored(&["@say One."]);
    place.is_sound();
    fs::remove_dir_all(place.data_dir().join("active")).unwrap();
    let found = place.finds(Check::Store, Severity::Warning, "every session is looked at", "");
    // A repair makes no empty folder: that would say that no session has to be looked at.
    assert_eq!(place.examine(true).findings, [found]);
    assert!(!place.data_dir().join("active").exists());
    place.goes_on(id).unwrap();
    place.is_sound();
}

#[test]
fn a_projection_that_is_behind_is_found() {
    let mut place = Place::projected();
    place.options.projection.enabled = false;
    let id = place.stored(&["@say One."]);
    assert_eq!(place.examine(false).findings, [], "one that is not there yet is not behind");
    place.options.projection.enabled = true;
    place.process(true, async |process| process.service.rebuild_projection().await.unwrap());
    place.is_sound();
    place.options.projection.enabled = false;
    place.goes_on(id).unwrap();
    let found = place.finding();
    assert_eq!(found.check, Check::Projection);
    assert!(found.remedy.contains("meerkat call projection/rebuild"), "{found:?}");
    fs::write(place.rkat().join("store"), "another\n").unwrap();
    let found = place.finding();
    assert_eq!(found.check, Check::Projection);
    assert!(found.what.contains("another data directory") && found.remedy.contains("projection.dir"), "{found:?}");
}
