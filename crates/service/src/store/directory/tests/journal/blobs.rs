//! Blobs of one session beside each other, and one that cannot be named.

use std::path::Path;

use super::common::{Rig, SMALL, Steps, session};
use crate::{
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
