//! The journal on the real file system, with its own threads.

use super::common::{Known, SMALL, long, of, session};
use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use crate::{
    SessionError,
    clock::Timestamp,
    store::directory::journal::{Pool, RealDisk, check, simulated::SimulatedDisk},
    store::{EventStore as _, ReadLimit, RedbEventStore, Registration, StoreError, Stores, open_stores},
};

/// Says to a process of this test that it holds the directory named there until it is killed.
const HOLD: &str = "MEERKAT_TEST_HOLD_STORE";

async fn append(stores: &Stores, lease: &crate::store::Lease, seq: u64) -> Result<u64, StoreError> {
    stores.events.stage(lease, &[of(lease.session_id, seq)])?.durable().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_journal_that_is_shorter_than_the_index_knows_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("journal/01/{}/1.1.mlog", session(1)));
    let stores = open_stores(dir.path()).unwrap();
    let lease = stores.events.lease(session(1)).await.unwrap();
    append(&stores, &lease, 1).await.unwrap();
    let bytes = path.metadata().unwrap().len();
    append(&stores, &lease, 2).await.unwrap();
    stores.index.flush().await.unwrap();
    drop(stores);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(bytes).unwrap();
    let stores = open_stores(dir.path()).unwrap();
    let refused = stores.events.lease(session(1)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Corrupted { last_good_seq: 1, .. }), "{refused}");
    assert_eq!(stores.events.read(session(1), 0, ReadLimit::frames(9)).await.unwrap().unwrap().frames.len(), 1);
    stores.index.remove(session(1)).await.unwrap();
    stores.index.flush().await.unwrap();
    drop(stores);
    // The index alone knew.
    let stores = open_stores(dir.path()).unwrap();
    assert_eq!(stores.events.lease(session(1)).await.unwrap().tail, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_while_segments_grow_and_are_sealed_meets_no_damage() {
    let (disk, pool) = (Arc::new(SimulatedDisk::new()), Arc::new(Pool::new().unwrap()));
    let store = Arc::new(RedbEventStore::open_with(disk, None, Arc::<Known>::default(), pool, SMALL).unwrap());
    let lease = store.lease(session(1)).await.unwrap();
    let first = store.stage(&lease, &[of(session(1), 1)]).unwrap();
    first.durable().await.unwrap();
    let readers = [1_u64, 7, 40].map(|step| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut durable = store.watch(session(1)).await.unwrap().unwrap();
            let mut after = 0;
            while after < 600 {
                durable.wait_for(|durable| *durable > after).await.unwrap();
                let limit = ReadLimit::frames(step as usize);
                let frames = store.read(session(1), after, limit).await.unwrap().unwrap().frames;
                assert!(!frames.is_empty());
                assert!(frames.iter().map(|frame| frame.seq).eq((after + 1..).take(frames.len())));
                after += frames.len() as u64;
            }
        })
    });
    for seq in 2..=600 {
        store.stage(&lease, &[long(session(1), seq, 700)]).unwrap().durable().await.unwrap();
    }
    for reader in readers {
        reader.await.unwrap();
    }
    assert_eq!(store.lease(session(1)).await.unwrap().tail, 600);
}

#[tokio::test]
async fn the_index_alone_keeps_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    let Stores { index, .. } = open_stores(dir.path()).unwrap();
    assert!(matches!(open_stores(dir.path()).map(drop), Err(SessionError::StoreLocked { .. })));
    drop(index);
    drop(open_stores(dir.path()).unwrap());
}

/// Not a test of its own: the process that the next one kills.
#[test]
fn a_process_that_holds_a_store() {
    let Some(dir) = std::env::var_os(HOLD) else { return };
    let _stores = open_stores(Path::new(&dir)).unwrap();
    std::io::stdout().write_all(b"\nheld\n").unwrap();
    let mut line = String::new();
    // Nobody writes: it waits to be killed.
    std::io::stdin().read_line(&mut line).unwrap();
}

#[test]
fn a_kill_frees_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "store::directory::tests::journal::real::a_process_that_holds_a_store"])
        .env(HOLD, dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "held"));
    match open_stores(dir.path()).map(drop) {
        Err(SessionError::StoreLocked { pid, .. }) => assert_eq!(pid, Some(child.id())),
        other => panic!("{other:?}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    drop(open_stores(dir.path()).unwrap());
}

#[test]
fn a_directory_that_cannot_be_a_store_is_refused_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    for path in [file.clone(), file.join("below")] {
        match open_stores(&path).map(drop) {
            Err(SessionError::StoreNotWritable { path: named, .. }) => {
                assert_eq!(named, path.display().to_string())
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    let newer = dir.path().join("newer");
    std::fs::create_dir(&newer).unwrap();
    std::fs::write(newer.join("format"), "meerkat store 9\n").unwrap();
    match open_stores(&newer).map(drop) {
        Err(SessionError::StoreFormatUnsupported { found, .. }) => assert_eq!(found, "meerkat store 9"),
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_dir(&newer).unwrap().count(), 1);
}

#[tokio::test]
async fn nobody_else_can_look_into_a_store_and_no_link_leads_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("data");
    let stores = open_stores(&data_dir).unwrap();
    let lease = stores.events.lease(session(1)).await.unwrap();
    append(&stores, &lease, 1).await.unwrap();
    let mut writer = stores.blobs.writer(session(1));
    writer.write(b"hello").await.unwrap();
    let (name, bytes) = writer.finish().await.unwrap();
    assert_eq!((name.as_str(), bytes), ("2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", 5));
    assert_eq!(stores.blobs.read(session(1), &name, 1, 3).await.unwrap().as_deref(), Some(&b"ell"[..]));
    let mut folders = vec![data_dir.clone()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700, "{}", folder.display());
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files += 1;
                assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
            }
        }
    }
    assert!(files >= 6, "{files}");
    // A blob's name is a hash; neither a path nor a link is followed.
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    let blobs = data_dir.join(format!("journal/01/{}/blobs", session(1)));
    let link = "0".repeat(64);
    symlink(dir.path().join("secret"), blobs.join(&link)).unwrap();
    assert!(stores.blobs.read(session(1), &link, 0, 9).await.is_err());
    let outside = format!("../../../../../{}", "secret");
    for name in [outside.as_str(), "", &name[1..], &name.to_uppercase()] {
        assert_eq!(stores.blobs.read(session(1), name, 0, 9).await.unwrap(), None, "{name}");
    }
}

/// Somebody else may own the directory by now, and write behind the same record.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_whose_lock_was_removed_or_replaced_acknowledges_nothing_more() {
    for is_replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (lock, path) = (dir.path().join("lock"), dir.path().join(format!("journal/01/{}/1.1.mlog", session(1))));
        let first = open_stores(dir.path()).unwrap();
        let lease = first.events.lease(session(1)).await.unwrap();
        append(&first, &lease, 1).await.unwrap();
        std::fs::remove_file(&lock).unwrap();
        if is_replaced {
            std::fs::write(&lock, "").unwrap();
        }
        let second = open_stores(dir.path()).unwrap();
        let other = second.events.lease(session(1)).await.unwrap();
        append(&second, &other, 2).await.unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let refused = append(&first, &lease, 2).await;
        assert!(refused.is_err(), "{is_replaced}: {refused:?}");
        let again = first.events.lease(session(1)).await;
        assert!(matches!(again, Err(StoreError::ReadOnly(_))), "{is_replaced}: {again:?}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "it wrote into another owner's journal");
        assert_eq!(append(&second, &other, 3).await, Ok(3));
        drop(first);
        assert_eq!(append(&second, &other, 4).await, Ok(4));
        drop(second);
        let stores = open_stores(dir.path()).unwrap();
        assert_eq!(stores.events.lease(session(1)).await.unwrap().tail, 4);
    }
}

/// Nothing but commits: each of these answers only for a directory that is still this store's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_its_lock_makes_and_deletes_no_session() {
    let dir = tempfile::tempdir().unwrap();
    let stores = open_stores(dir.path()).unwrap();
    let lease = stores.events.lease(session(1)).await.unwrap();
    append(&stores, &lease, 1).await.unwrap();
    append(&stores, &lease, 2).await.unwrap();
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let registration = Registration { reader: "reader".to_owned(), created_at: Timestamp::from_millis(0) };
    assert!(stores.events.fork(session(1), 1, &[of(session(2), 2)]).await.is_err());
    assert!(stores.events.delete(session(1)).await.is_err());
    let mut writer = stores.blobs.writer(session(1));
    assert!(writer.write(&[7; 1 << 20]).await.is_err() || writer.finish().await.is_err());
    assert!(stores.readers.register(registration).await.is_err());
    drop(stores);
    let stores = open_stores(dir.path()).unwrap();
    assert_eq!(stores.events.sessions(None, 9).await.unwrap(), [session(1)]);
    assert_eq!(stores.events.lease(session(1)).await.unwrap().tail, 2);
}

/// What is written into a file without a name is gone with the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_acknowledged_in_a_journal_that_was_unlinked_or_replaced() {
    for is_replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("journal/01/{}/1.1.mlog", session(1)));
        let stores = open_stores(dir.path()).unwrap();
        let lease = stores.events.lease(session(1)).await.unwrap();
        append(&stores, &lease, 1).await.unwrap();
        if is_replaced {
            let copy = dir.path().join("copy");
            std::fs::copy(&path, &copy).unwrap();
            std::fs::rename(&copy, &path).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
        let refused = append(&stores, &lease, 2).await;
        assert!(refused.is_err(), "{is_replaced}: {refused:?}");
        // Whoever did that may have done it to all of them.
        let other = stores.events.lease(session(2)).await;
        assert!(matches!(other, Err(StoreError::ReadOnly(_))), "{is_replaced}: {other:?}");
        let names = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(names, usize::from(is_replaced), "{is_replaced}: nothing is made in its place");
    }
}

/// The inode is damaged, or the file is sparse.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_an_impossible_length_damages_only_its_session() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("journal/01/{}/1.1.mlog", session(1)));
    let stores = open_stores(dir.path()).unwrap();
    for id in [session(1), session(2)] {
        let lease = stores.events.lease(id).await.unwrap();
        append(&stores, &lease, 1).await.unwrap();
        append(&stores, &lease, 2).await.unwrap();
    }
    drop(stores);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(1 << 42).unwrap();
    let stores = open_stores(dir.path()).unwrap();
    let refused = stores.events.lease(session(1)).await.unwrap_err();
    assert!(matches!(refused, StoreError::Corrupted { last_good_seq: 2, .. }), "{refused}");
    let frames = stores.events.read(session(1), 0, ReadLimit::frames(9)).await.unwrap().unwrap().frames;
    assert_eq!(frames.len(), 2);
    let lease = stores.events.lease(session(2)).await.unwrap();
    assert_eq!(append(&stores, &lease, 3).await, Ok(3));
    drop(stores);
    let disk = RealDisk::new(dir.path().to_owned());
    let found = check(&disk, session(1), |_| true, 0, &mut |_, _| {}).unwrap().unwrap();
    assert_eq!(found.damage.unwrap().last_good_seq, 2);
}
