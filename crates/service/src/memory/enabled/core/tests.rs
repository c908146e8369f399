//! What a memory does whose file or log fails while it is used.

use std::{path::Path, sync::Arc};

use super::{Core, Trouble};
use crate::{
    ErrorCode,
    memory::enabled::{
        HashedEmbedder,
        file::{WRITES_LEFT, unavailable},
        log::MemoryLog,
        tests::{query, session, talk},
    },
    service::ForgetMemory,
    store::enabled::journal::simulated::SimulatedDisk,
};

fn core(dir: &Path, records_intake: bool) -> Core {
    Core::new(Some(dir.to_owned()), Arc::new(HashedEmbedder), records_intake)
}

fn full() -> Trouble {
    Trouble::from(redb::Error::Io(std::io::ErrorKind::StorageFull.into()))
}

/// Which file is open.
fn opened(core: &Core) -> usize {
    core.read(|open| Ok(Arc::as_ptr(&open.file) as usize)).unwrap()
}

fn found(core: &Core, text: &str) -> usize {
    let request = query(text);
    let found = core
        .work(|| core.asked(&request)?.map_or(Ok(0), |(terms, _)| Ok(core.search(&request, &terms, None)?.0.len())));
    found.unwrap()
}

/// Two threads read a damaged file. The first one sets it aside, a new one is opened, and only then the second one fails:
/// it set the new one aside, too.
#[test]
fn who_fails_late_on_a_damaged_file_leaves_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
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

/// The disk is full when the log is written: the answer said that the index was not available.
#[test]
fn a_log_without_room_answers_so_and_searches_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (core, disk) = (core(dir.path(), true), SimulatedDisk::new());
    *core.log() = Some(MemoryLog::open(Arc::new(disk.clone()), 0).unwrap());
    core.work_alone(|| core.add(vec![talk(1, &["The bassoon is in the attic."])])).unwrap();
    let file = opened(&core);
    let forget = ForgetMemory { session_id: Some(session(1)), ..ForgetMemory::default() };
    disk.limit(Some(disk.used()));
    let refused = core.work_alone(|| core.forget(&forget)).unwrap_err();
    assert_eq!(unavailable(&refused).code(), ErrorCode::StoreFull);
    assert_eq!((found(&core, "bassoon"), opened(&core)), (1, file), "what is open stays open");
    disk.limit(None);
    assert_eq!(core.work_alone(|| core.forget(&forget)).unwrap(), 1, "there is room again");
    assert_eq!(found(&core, "bassoon"), 0);
}

/// The file is lost, and the disk is full before all of the log stands in a new one.
#[test]
fn what_there_was_room_for_of_the_log_is_searched_and_the_rest_comes_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["harbour", "bassoon", "tulips"];
    let add = |core: &Core, n: u64, word: &str| core.work_alone(|| core.add(vec![talk(n, &[word])]));
    let all = |core: &Core| words.map(|word| found(core, word));
    let before = core(dir.path(), true);
    (1..).zip(words).for_each(|(n, word)| add(&before, n, word).unwrap());
    drop(before);
    std::fs::remove_file(dir.path().join("memory.redb")).unwrap();

    // One write takes in the first that was said.
    WRITES_LEFT.set(Some(1));
    let core = core(dir.path(), true);
    assert_eq!(all(&core), [1, 0, 0]);
    for _ in 0..2 {
        assert_eq!(unavailable(&add(&core, 4, "pipeline").unwrap_err()).code(), ErrorCode::StoreFull);
        assert_eq!(all(&core), [1, 0, 0]);
    }
    WRITES_LEFT.set(None);
    let forget = ForgetMemory { session_id: Some(session(2)), ..ForgetMemory::default() };
    assert_eq!(core.work_alone(|| core.forget(&forget)).unwrap(), 1, "it is known by then");
    assert_eq!(all(&core), [1, 0, 1]);
    drop(core);
    assert_eq!(all(&Core::new(Some(dir.path().to_owned()), Arc::new(HashedEmbedder), true)), [1, 0, 1]);
}

/// The disk is full when the file is written: redb does nothing more with it, and it is opened anew.
#[test]
fn a_file_without_room_answers_so_and_searches_go_on() {
    let dir = tempfile::tempdir().unwrap();
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
