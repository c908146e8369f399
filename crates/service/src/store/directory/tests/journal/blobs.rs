//! Blobs of one session beside each other, and one that cannot be named.

use std::path::Path;

use super::common::{Rig, SMALL, Steps, long, session};
use crate::{
    clock::Timestamp,
    store::directory::journal::{
        Disk as _, Limits,
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{BlobStore as _, EventStore as _, StoreError},
};

#[test]
fn two_blobs_of_a_session_do_not_get_their_names_at_once() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    let blobs = rig.blobs();
    let begun = |bytes: &'static [u8]| {
        let mut writer = blobs.writer(session(1));
        rig.steps.drive(writer.write(bytes)).unwrap();
        writer.finish()
    };
    let mut both = [begun(b"first"), begun(b"second")];
    for finish in &mut both {
        // Written, then synced.
        for _ in 0..2 {
            assert!(Steps::peek(finish.as_mut()).is_none());
            assert!(rig.steps.step());
        }
    }
    both.iter_mut().for_each(|finish| assert!(Steps::peek(finish.as_mut()).is_none()));
    assert!(rig.steps.step(), "the first is named");
    assert!(!rig.steps.step(), "and the second meanwhile is not");
    for finish in both {
        let (name, _) = rig.steps.drive(finish).unwrap();
        assert!(rig.steps.drive(blobs.read(session(1), &name, 0, 9)).unwrap().is_some());
    }
}

#[test]
fn a_folder_of_blobs_that_is_not_durable_is_made_anew_for_the_next_blob() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    // The file, its bytes, their sync and the folder come first.
    rig.disk.fail(4, Fault::Eio);
    assert!(rig.blob(session(1), b"first").is_err());
    let name = rig.blob(session(1), b"second").unwrap();
    for seed in 0..40 {
        let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), Limits::default(), None);
        assert!(crashed.steps.drive(crashed.blobs().read(session(1), &name, 0, 9)).unwrap().is_some(), "seed {seed}");
    }
}

#[test]
fn r6_only_what_a_session_says_that_is_there_may_use_the_reserve() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.filled(session(1), 1);
    rig.disk.limit(Some(rig.disk.used()));
    let reserve = || rig.disk.bytes(Path::new("reserve")).len() as u64;
    // Such as a bundle that is on its way.
    assert_eq!(rig.blob(session(2), &[b'x'; 1000]), Err(StoreError::Full));
    assert_eq!((reserve(), rig.steps.drive(rig.store.room())), (SMALL.reserve_bytes, Ok(())));
    rig.blob(session(1), &[b'x'; 1000]).unwrap();
    assert_eq!(rig.steps.drive(rig.store.room()), Err(StoreError::Full));
}

/// For want of bytes or of inodes, or because whoever wrote it has left meanwhile.
#[test]
fn a_blob_that_gets_no_name_leaves_no_file() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.filled(session(1), 1);
    let left = || {
        while rig.steps.step() {}
        rig.disk.list(Path::new("new")).unwrap()
    };
    // One of a bundle may not use the reserve.
    rig.disk.limit(Some(rig.disk.used() + 100));
    assert_eq!(rig.blob(session(2), &[b'x'; 1000]), Err(StoreError::Full));
    assert_eq!(left(), Vec::<String>::new());
    rig.disk.limit(None);
    // The second inode would be that of the folder.
    rig.disk.limit_files(Some(1));
    assert_eq!(rig.blob(session(2), &[b'x'; 1000]), Err(StoreError::Full));
    rig.disk.limit_files(None);
    assert_eq!(left(), Vec::<String>::new());
    for steps in 0..4 {
        let mut writer = rig.blobs().writer(session(1));
        rig.steps.drive(writer.write(&[b'x'; 1000])).unwrap();
        let mut finish = writer.finish();
        for _ in 0..steps {
            assert!(Steps::peek(finish.as_mut()).is_none());
            assert!(rig.steps.step());
        }
        let is_over = steps == 3 && Steps::peek(finish.as_mut()).is_some();
        assert_eq!(is_over, steps == 3, "written, synced and named");
        // The next job is taken, and nobody waits for it.
        drop(finish);
        assert_eq!(left(), Vec::<String>::new(), "after {steps} steps");
    }
}

#[test]
fn r6_a_blob_that_waits_for_room_leaves_the_reserve_to_turns_that_run() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.filled(session(1), 1);
    rig.disk.limit(Some(rig.disk.used()));
    let mut writer = rig.blobs().writer(session(1));
    writer.waits_for_room();
    rig.steps.drive(writer.write(&[b'x'; 1000])).unwrap();
    assert_eq!(rig.steps.drive(writer.finish()), Err(StoreError::Full));
    assert_eq!(rig.disk.bytes(Path::new("reserve")).len() as u64, SMALL.reserve_bytes);
    // What a call of the running turn returns may use it.
    rig.blob(session(1), &[b'x'; 1000]).unwrap();
    assert_eq!(rig.steps.drive(rig.store.room()), Err(StoreError::Full));
}

/// Uploads a body to session 1.
fn upload(rig: &Rig, bytes: &[u8]) -> Result<String, StoreError> {
    let mut writer = rig.blobs().writer(session(1));
    rig.steps.drive(writer.write(bytes))?;
    Ok(rig.steps.drive(writer.upload(Timestamp::from_millis(7)))?.0)
}

/// The session's upload and its blob of this name.
fn found(rig: &Rig, name: &str) -> [Option<Vec<u8>>; 2] {
    let blobs = rig.blobs();
    let upload = rig.steps.drive(blobs.read_upload(session(1), name, Timestamp::from_millis(7), 0, 99)).unwrap();
    let blob = rig.steps.drive(blobs.read(session(1), name, 0, 99)).unwrap();
    [upload, blob].map(|bytes| bytes.map(|bytes| bytes.to_vec()))
}

#[test]
fn an_upload_survives_a_crash_at_every_write_until_it_is_a_blob() {
    let crashed = |rig: &Rig, seed| Rig::on(rig.disk.crashed(&mut Random(seed)), Limits::default(), None);
    let whole = Some(b"a body".to_vec());
    for fault in [Fault::Crash, Fault::Eio, Fault::Full] {
        let mut is_done = false;
        for after in 0.. {
            let rig = Rig::new();
            rig.filled(session(1), 1);
            rig.disk.fail(after, fault);
            let uploaded = upload(&rig, b"a body");
            let Ok(name) = uploaded else {
                assert!(after < 20, "{fault:?}: it is never done");
                // Uploaded again, it is there.
                if fault != Fault::Crash {
                    let name = upload(&rig, b"a body").unwrap();
                    assert_eq!(found(&rig, &name), [whole.clone(), None], "{fault:?} after {after}");
                }
                continue;
            };
            for seed in 0..8 {
                assert_eq!(found(&crashed(&rig, seed), &name), [whole.clone(), None], "{fault:?}, seed {seed}");
            }
            let mut kept_after = 0;
            loop {
                let rig = crashed(&rig, 1);
                rig.disk.fail(kept_after, fault);
                let kept = rig.steps.drive(rig.blobs().keep(session(1), &name, Timestamp::from_millis(7)));
                for seed in 0..8 {
                    let [upload, blob] = found(&crashed(&rig, seed), &name);
                    let place = format!("{fault:?} after {kept_after}, seed {seed}: {kept:?}");
                    assert!(upload == whole || blob == whole, "{place}");
                    assert!(kept.is_err() || blob == whole, "{place}");
                    assert!([upload, blob].into_iter().flatten().all(|bytes| Some(bytes) == whole), "{place}");
                }
                if kept.is_ok() {
                    break;
                }
                if fault != Fault::Crash {
                    assert_eq!(
                        rig.steps.drive(rig.blobs().keep(session(1), &name, Timestamp::from_millis(7))),
                        Ok(true),
                        "a second time"
                    );
                    assert_eq!(found(&crashed(&rig, 3), &name)[1], whole);
                }
                kept_after += 1;
                assert!(kept_after < 20, "{fault:?}: it is never kept");
            }
            assert!(kept_after > 1, "{fault:?}");
            is_done = true;
            break;
        }
        assert!(is_done);
    }
}

#[test]
fn a_fork_has_what_is_kept_and_no_upload() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    let (used, unused) = (upload(&rig, b"used").unwrap(), upload(&rig, b"unused").unwrap());
    assert_eq!(rig.steps.drive(rig.blobs().keep(session(1), &used, Timestamp::from_millis(7))), Ok(true));
    let bytes = rig.steps.drive(rig.store.bytes(session(1))).unwrap();
    let journal = rig.steps.drive(rig.store.journal_bytes(session(1))).unwrap();
    assert_eq!(bytes - journal, 4 + 6, "both take room");
    rig.steps.drive(rig.store.fork(session(1), 1, &[long(session(2), 2, 30)])).unwrap();
    let read = |name| rig.steps.drive(rig.blobs().read(session(2), name, 0, 9)).unwrap();
    assert_eq!(read(&used).as_deref(), Some(&b"used"[..]));
    assert_eq!(read(&unused), None);
    assert_eq!(
        rig.steps.drive(rig.blobs().read_upload(session(2), &unused, Timestamp::from_millis(7), 0, 9)),
        Ok(None)
    );
    assert_eq!(rig.steps.drive(rig.blobs().keep(session(2), &unused, Timestamp::from_millis(7))), Ok(false));
}

#[test]
fn an_upload_that_is_being_kept_is_not_deleted_as_too_old_meanwhile() {
    let rig = Rig::new();
    rig.filled(session(1), 1);
    let name = upload(&rig, b"a body").unwrap();
    let blobs = rig.blobs();
    let mut keep = blobs.keep(session(1), &name, Timestamp::from_millis(7));
    assert_eq!(Steps::peek(&mut keep), None);
    // What is kept has its job to do: the deletion may only follow it.
    let mut expire = blobs.expire(session(1), Timestamp::from_millis(8));
    assert_eq!(Steps::peek(&mut expire), None);
    assert!(rig.steps.step());
    assert!(!rig.steps.step(), "there is no second job beside it");
    assert_eq!(rig.steps.drive(keep), Ok(true));
    assert_eq!(rig.steps.drive(expire), Ok(()));
    assert_eq!(found(&rig, &name), [None, Some(b"a body".to_vec())]);
    let bad = "../".repeat(21) + "x";
    assert_eq!(rig.steps.drive(blobs.keep(session(1), &bad, Timestamp::from_millis(0))), Ok(false));
}
