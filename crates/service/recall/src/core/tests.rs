//! Failures of the file or the log while memory is used.

use std::{path::Path, sync::Arc};

use super::{Core, Trouble};
use crate::{
    file::{WRITES_LEFT, unavailable},
    log::MemoryLog,
    postings::Terms,
    tests::{intake, query, said, session, talk},
    text,
};
use meerkat_errors::ErrorCode;
use meerkat_journal::simulated::SimulatedDisk;
use meerkat_words::{memory::MemoryOptions, requests::ForgetMemory};

fn core(dir: &Path, records_intake: bool) -> Core {
    Core::new(Some(dir.to_owned()), MemoryOptions { records_intake, ..MemoryOptions::default() })
}

fn full() -> Trouble {
    Trouble::from(redb::Error::Io(std::io::ErrorKind::StorageFull.into()))
}

/// Identifies the open file.
fn opened(core: &Core) -> usize {
    core.read(|open| Ok(Arc::as_ptr(&open.file) as usize)).unwrap()
}

fn found(core: &Core, text: &str) -> usize {
    let request = query(text);
    let found = core
        .work(|| core.asked(&request)?.map_or(Ok(0), |(terms, _)| Ok(core.search(&request, &terms, None)?.0.len())));
    found.unwrap()
}

/// Two threads read a damaged file. The first sets it aside, and a new one is opened before the second fails, which
/// once set the new one aside too.
#[test]
fn who_fails_late_on_a_damaged_file_leaves_the_new_one() {
    let dir = meerkat_testkit::folder();
    let core = core(dir.path(), false);
    let damaged = || Err::<(), _>(Trouble::Damaged("it is damaged".to_owned()));
    let late = core.work(|| {
        assert!(core.work(damaged).is_err());
        core.work_alone(|| core.add(vec![talk(1, &["The bassoon is in the attic."])]))?;
        damaged()
    });
    assert!(late.is_err());
    assert!(dir.path().join("memory.redb.set-aside-1").exists());
    assert!(!dir.path().join("memory.redb.set-aside-2").exists());
    assert_eq!(found(&core, "bassoon"), 1);
}

/// A full disk at an append to the log was once reported as an unavailable index.
#[test]
fn a_log_without_room_answers_so_and_searches_go_on() {
    let dir = meerkat_testkit::folder();
    let (core, disk) = (core(dir.path(), true), SimulatedDisk::new());
    *core.log() = Some(MemoryLog::open(Arc::new(disk.clone()), 0).unwrap());
    core.work_alone(|| core.add(vec![talk(1, &["The bassoon is in the attic."])])).unwrap();
    let file = opened(&core);
    let forget = ForgetMemory { session_id: Some(session(1)), ..ForgetMemory::default() };
    disk.limit(Some(disk.used()));
    let refused = core.work_alone(|| core.forget(core.to_forget(&forget)?)).unwrap_err();
    assert_eq!(unavailable(&refused).code(), ErrorCode::StoreFull);
    assert_eq!((found(&core, "bassoon"), opened(&core)), (1, file), "what is open stays open");
    disk.limit(None);
    assert_eq!(core.work_alone(|| core.forget(core.to_forget(&forget)?)).unwrap(), 1, "there is room again");
    assert_eq!(found(&core, "bassoon"), 0);
}

/// Numbers of hits for each word, after each step.
const HALF_REPLAYED: [[usize; 3]; 5] = [[1, 0, 0], [1, 0, 0], [1, 0, 0], [1, 0, 1], [1, 0, 1]];

/// Loses the file, and replays the log into a new one with room for one write; then two additions are refused, one word
/// is forgotten with room again, and memory is reopened. `lie` changes the log before.
fn half_replayed(room: Option<u32>, lie: impl FnOnce(&Path)) -> Vec<[usize; 3]> {
    let dir = meerkat_testkit::folder();
    let words = ["harbour", "bassoon", "tulips"];
    let add = |core: &Core, n: u64, word: &str| core.work_alone(|| core.add(vec![talk(n, &[word])]));
    let all = |core: &Core| words.map(|word| found(core, word));
    let before = core(dir.path(), true);
    (1..).zip(words).for_each(|(n, word)| add(&before, n, word).unwrap());
    drop(before);
    std::fs::remove_file(dir.path().join("memory.redb")).unwrap();
    lie(&dir.path().join("memory"));

    // One write takes in the first text.
    WRITES_LEFT.set(room);
    let core = core(dir.path(), true);
    let mut seen = vec![all(&core)];
    for _ in 0..2 {
        if let Err(refused) = add(&core, 4, "pipeline") {
            assert_eq!(unavailable(&refused).code(), ErrorCode::StoreFull);
        } else {
            assert_eq!(room, None, "there is no room");
        }
        seen.push(all(&core));
    }
    WRITES_LEFT.set(None);
    let forget = ForgetMemory { session_id: Some(session(2)), ..ForgetMemory::default() };
    assert_eq!(core.work_alone(|| core.forget(core.to_forget(&forget)?)).unwrap(), 1, "it is known by then");
    seen.push(all(&core));
    drop(core);
    seen.push(all(&self::core(dir.path(), true)));
    seen
}

#[test]
fn what_there_was_room_for_of_the_log_is_searched_and_the_rest_comes_before_anything_else() {
    assert_eq!(half_replayed(Some(1), |_| ()), HALF_REPLAYED);
}

/// The check above can fail: with a disk that is never full, and with a log that has lost its end.
#[test]
fn a_replay_that_met_no_full_disk_or_lost_the_rest_is_seen() {
    assert_eq!(half_replayed(None, |_| ())[..3], [[1, 1, 1]; 3]);
    let lost = half_replayed(Some(1), |log| {
        let segments = std::fs::read_dir(log).unwrap().map(|entry| entry.unwrap().path());
        for path in segments {
            let mut bytes = std::fs::read(&path).unwrap();
            let word = b"tulips";
            if let Some(at) = bytes.windows(word.len()).position(|it| it == word) {
                bytes.truncate(at);
                std::fs::write(&path, bytes).unwrap();
            }
        }
    });
    assert_eq!(lost, [[1, 0, 0]; 5], "what is lost never comes");
}

/// After a write to a full disk redb refuses everything, so the file is opened again.
#[test]
fn a_file_without_room_answers_so_and_searches_go_on() {
    let dir = meerkat_testkit::folder();
    let core = core(dir.path(), false);
    core.work_alone(|| core.add(vec![talk(1, &["The bassoon is in the attic."])])).unwrap();
    let refused = core.work_alone(|| {
        let file = core.read(|open| Ok(open.file.clone()))?;
        file.write(|_| Err::<(), _>(full()))
    });
    assert_eq!(unavailable(&refused.unwrap_err()).code(), ErrorCode::StoreFull);
    assert!(core.read(|_| Ok(())).is_err(), "it is closed");
    assert_eq!(found(&core, "bassoon"), 1);
    assert!(!dir.path().join("memory.redb.set-aside-1").exists());
}

/// A thread that the system refused, or any panic in the ranking, once made a healthy file "damaged".
#[test]
fn a_panic_leaves_a_healthy_file_where_it_is() {
    let dir = meerkat_testkit::folder();
    let core = core(dir.path(), false);
    core.work_alone(|| core.add(vec![talk(1, &["The bassoon is in the attic."])])).unwrap();
    let panicked = core.work(|| -> Result<(), Trouble> { panic!("it was told to") });
    assert!(matches!(panicked, Err(Trouble::Failed(_))), "{panicked:?}");
    assert_eq!(found(&core, "bassoon"), 1);
    assert!(!dir.path().join("memory.redb.set-aside-1").exists());
}

/// What redb finds damaged after a panic is set aside.
#[test]
fn a_panic_on_a_damaged_file_sets_it_aside() {
    let dir = meerkat_testkit::folder();
    let path = dir.path().join("memory.redb");
    let core = core(dir.path(), false);
    core.work_alone(|| core.add(vec![talk(1, &["The bassoon is in the attic."])])).unwrap();
    let panicked = core.work(|| -> Result<(), Trouble> {
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(7).position(|it| it == b"bassoon").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        panic!("it was told to")
    });
    assert!(panicked.is_err());
    assert_eq!(found(&core, "bassoon"), 0);
    assert!(dir.path().join("memory.redb.set-aside-1").exists());
}

/// Returns the names of the files that hold these bytes.
fn holding(dir: &Path, bytes: &[u8]) -> Vec<String> {
    let (mut holding, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if std::fs::read(&path).unwrap().windows(bytes.len()).any(|it| it == bytes) {
                holding.push(path.display().to_string());
            }
        }
    }
    holding
}

/// Returns true if a text's words are in no posting.
fn has_no_posting(core: &Core, word: &str) -> bool {
    let term = text::analyse(word).words[0];
    let in_segments = core.read(|open| {
        let mut all = Vec::new();
        for segment in &open.segments {
            let mut terms = Terms::of(&open.snapshot.postings, segment, &open.columns)?;
            while let Some(next) = terms.next_term() {
                terms.take(next, &mut Vec::new())?;
                all.push(next);
            }
        }
        all.extend(open.tail.terms.keys());
        Ok(all.contains(&term))
    });
    !in_segments.unwrap()
}

/// Does all the steps of an erasure.
fn erase(core: &Core) -> Result<(), Trouble> {
    while core.work_alone(|| core.erase_some())? {}
    Ok(())
}

/// Forgotten text once stayed in pages of the file and in postings.
#[test]
fn what_is_forgotten_is_in_no_file_when_it_is_erased() {
    for taken_in in [1, 20] {
        let dir = meerkat_testkit::folder();
        let core = core(dir.path(), true);
        let notes = (1..=taken_in).map(|seq| said(seq, "user", &format!("note number{seq} of the harbour")));
        core.work_alone(|| core.add(vec![intake(2, notes.collect()), talk(1, &["The bassoon is there."])])).unwrap();
        core.work_alone(|| core.flush(true)).unwrap();
        assert!(!holding(dir.path(), b"bassoon").is_empty());
        let forget = ForgetMemory { session_id: Some(session(1)), ..ForgetMemory::default() };
        assert_eq!(core.work_alone(|| core.forget(core.to_forget(&forget)?)).unwrap(), 1);
        assert_eq!(found(&core, "bassoon"), 0);
        assert!(!holding(dir.path(), b"bassoon").is_empty(), "it is not erased before it answers");
        erase(&core).unwrap();
        assert_eq!(holding(dir.path(), b"bassoon"), [""; 0]);
        assert!(has_no_posting(&core, "bassoon") && !has_no_posting(&core, "harbour"));
        assert_eq!(found(&core, "harbour").min(10) as u64, taken_in.min(10), "the rest is found");
        drop(core);
        let core = self::core(dir.path(), true);
        assert!(found(&core, "bassoon") == 0 && found(&core, "number1") > 0);
    }
}

/// The disk is full at each write of a forgetting in turn, and the process ends: the next start does the rest.
#[test]
fn what_is_half_forgotten_leaves_every_file_at_the_next_start() {
    let forget = ForgetMemory { session_id: Some(session(1)), ..ForgetMemory::default() };
    let mut refused = 0;
    loop {
        let dir = meerkat_testkit::folder();
        let core = core(dir.path(), true);
        core.work_alone(|| core.add(vec![talk(1, &["The bassoon is there."]), talk(2, &["The harbour."])])).unwrap();
        WRITES_LEFT.set(Some(refused));
        let answered = core.work_alone(|| core.forget(core.to_forget(&forget)?)).and_then(|_| erase(&core));
        WRITES_LEFT.set(None);
        let is_answered = answered.is_ok();
        assert_eq!(is_answered, holding(dir.path(), b"bassoon").is_empty(), "{refused}: {answered:?}");
        assert!(!dir.path().join("memory.redb.new").exists(), "{refused}: a full disk gets its room back");
        drop(core);
        let core = self::core(dir.path(), true);
        assert_eq!((found(&core, "bassoon"), found(&core, "harbour")), (0, 1), "{refused}");
        erase(&core).unwrap();
        assert_eq!(holding(dir.path(), b"bassoon"), [""; 0], "{refused}");
        if is_answered {
            break;
        }
        refused += 1;
    }
    assert!(refused > 3, "it was refused {refused} times");
}
