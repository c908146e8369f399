//! What one session's files refuse is that session's matter alone, and a disk that has no room is no broken one.

use std::path::Path;

use super::common::{Rig, SMALL, of, said, session};
use crate::{
    store::directory::journal::{
        Disk as _, check,
        layout::{fan_out, segment_name, session_dir},
        mend,
        simulated::{Random, SimulatedDisk},
    },
    store::{EventStore as _, ReadLimit, StoreError},
};

fn knows(_: u16) -> bool {
    true
}

/// A session of several segments, and a second one beside it.
fn filled() -> Rig {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.grown(session(1), 30, 1000);
    rig.filled(session(2), 2);
    rig
}

/// Ways in which a segment is damaged: it cannot be read, or a bit is another one.
const HARMS: [fn(&SimulatedDisk, &Path); 2] = [
    |disk, path| disk.wear_out(path, 4000),
    |disk, path| {
        let mut bytes = disk.bytes(path);
        bytes[4000] ^= 0x10;
        disk.set_bytes(path, bytes);
    },
];

#[test]
fn r3_a_damaged_session_is_read_up_to_the_damage_and_nothing_of_it_or_others_changes() {
    for (number, harm) in (1..=4).flat_map(|number| HARMS.map(|harm| (number, harm))) {
        let rig = filled();
        let path = session_dir(session(1)).join(segment_name(number, 1));
        harm(&rig.disk, &path);
        let before = rig.disk.bytes(&path);
        let rig = rig.killed();
        let seqs = rig.seqs(session(1));
        let last = seqs.len() as u64;
        assert!(last > (number - 1) * 6 && last < 30, "segment {number}: {last}");
        assert_eq!(seqs, (1..=last).collect::<Vec<_>>(), "segment {number}");
        let refused = rig.lease(session(1));
        assert!(
            matches!(refused, Err(StoreError::Corrupted { last_good_seq, .. }) if last_good_seq == last),
            "segment {number}: {refused:?}"
        );
        assert_eq!(rig.disk.bytes(&path), before, "segment {number}");
        // The others are as they were, and what is good can be forked.
        assert_eq!(rig.filled(session(2), 1).tail, 2);
        rig.steps.drive(rig.store.fork(session(1), last, &[of(session(3), last + 1)])).unwrap();
        assert_eq!(rig.seqs(session(3)).len() as u64, last + 1);
        let checked = check(&rig.disk, session(1), knows, 0, &mut |_, _| {}).unwrap().unwrap();
        let damage = checked.damage.clone().expect("damage");
        assert_eq!(damage.last_good_seq, last, "segment {number}");
        // What can be read is kept, and the session goes on from there.
        let mended = Rig::on(rig.disk.revived(), SMALL, None);
        let done = mend(&mended.disk, session(1), &checked, &mut said).unwrap();
        let lost = damage.lost.iter().map(|(from, to)| to - from + 1).sum::<u64>();
        assert!(done.kept.is_some() && lost > 0, "segment {number}: {done:?}");
        let mended = Rig::on(mended.disk.revived(), SMALL, None);
        assert_eq!(mended.filled(session(1), 1).tail, done.end, "segment {number}");
        assert_eq!(mended.seqs(session(1)).len() as u64 + lost, done.end + 1, "segment {number}");
        // It can be deleted as it is.
        assert_eq!(rig.steps.drive(rig.store.delete(session(1))), Ok(()), "segment {number}");
        assert!(rig.read(session(1), 5).is_none());
        assert_eq!(rig.steps.drive(rig.store.room()), Ok(()));
    }
}

#[test]
fn a_header_that_cannot_be_read_is_not_taken_for_one_that_was_never_written() {
    let rig = filled();
    let names = rig.disk.list(&session_dir(session(1))).unwrap();
    let last = names.iter().filter_map(|name| name.split('.').next()?.parse::<u64>().ok()).max().unwrap();
    let path = session_dir(session(1)).join(segment_name(last, 1));
    let before = rig.disk.bytes(&path);
    rig.disk.wear_out(&path, 0);
    let rig = rig.killed();
    assert!(matches!(rig.lease(session(1)), Err(StoreError::Corrupted { .. })));
    assert_eq!(rig.disk.bytes(&path), before);
}

#[test]
fn a_folder_that_cannot_be_listed_is_one_sessions_matter() {
    let rig = filled();
    for n in 3..=6 {
        rig.release(rig.filled(session(n), 1));
        rig.disk.wear_out(&session_dir(session(n)), 0);
    }
    let rig = rig.killed();
    for n in 3..=6 {
        assert_eq!(rig.reads(session(n), 0, ReadLimit::frames(5)).unwrap().stopped_after, Some(0));
        assert!(matches!(rig.lease(session(n)), Err(StoreError::Corrupted { last_good_seq: 0, .. })));
        let bytes = rig.steps.drive(rig.store.journal_bytes(session(n)));
        assert!(matches!(bytes, Err(StoreError::Corrupted { .. })), "{bytes:?}");
    }
    assert_eq!(rig.filled(session(2), 1).tail, 2);
    assert_eq!(rig.steps.drive(rig.store.room()), Ok(()), "no session's folder makes the store read-only");
    // Of all 256 folders, one that cannot be listed hides only its own sessions.
    rig.disk.wear_out(&fan_out(session(3)), 0);
    let rig = rig.killed();
    let listed = rig.steps.drive(rig.store.sessions(None, 100)).unwrap();
    assert!(listed.contains(&session(2)) && !listed.contains(&session(3)), "{listed:?}");
}

#[test]
fn a_disk_without_room_for_names_and_syncs_is_full_and_not_broken() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    let running = rig.filled(session(1), 3);
    for n in 2..=5 {
        rig.filled(session(20 + n), 1);
    }
    rig.disk.fill_late(true);
    for n in 2..=5 {
        let lease = rig.lease(session(n)).unwrap();
        assert_eq!(rig.append(&lease, &[of(session(n), 1)]), Err(StoreError::Full), "{n}");
        rig.steps.drive(rig.store.give_up(lease));
        let forked = rig.steps.drive(rig.store.fork(session(1), 2, &[of(session(10 + n), 3)]));
        assert_eq!(forked, Err(StoreError::Full), "{n}");
        assert_eq!(rig.steps.drive(rig.store.delete(session(20 + n))), Err(StoreError::Full), "{n}");
    }
    let _ = rig.append(&running, &[of(session(1), 4)]);
    for _ in 0..3 {
        let lease = rig.lease(session(1)).unwrap();
        assert_eq!(lease.tail, 3);
        assert!(rig.append(&lease, &[of(session(1), 4)]).is_err());
    }
    assert_eq!(rig.seqs(session(1)), [1, 2, 3]);
    rig.disk.fill_late(false);
    assert_eq!(rig.steps.drive(rig.store.room()), Ok(()), "room is enough, no restart is needed");
    assert_eq!(rig.filled(session(1), 2).tail, 3);
    rig.filled(session(2), 1);
    for seed in 0..20 {
        let crashed = Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None);
        assert_eq!(crashed.seqs(session(1)), [1, 2, 3, 4, 5], "{seed}");
        assert_eq!(crashed.seqs(session(2)), [1], "{seed}");
        crashed.filled(session(1), 1);
    }
}

#[test]
fn folders_that_a_backup_left_out_come_back() {
    let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
    rig.release(rig.filled(session(1), 2));
    let disk = rig.disk.clone();
    let empty = || {
        let folders: Vec<String> = (0..=255).map(|n| format!("journal/{n:02x}")).collect();
        let folders = folders.into_iter().chain(["new", "trash", "quarantine"].map(str::to_owned));
        for folder in folders.filter(|folder| disk.list(Path::new(folder)).is_ok_and(|names| names.is_empty())) {
            disk.remove(Path::new(&folder)).unwrap();
        }
    };
    // While it is open, too: each of these meets a folder that is missing.
    empty();
    rig.release(rig.filled(session(2), 1));
    empty();
    rig.blob(session(3), b"blob").unwrap();
    rig.release(rig.filled(session(3), 1));
    empty();
    rig.steps.drive(rig.store.delete(session(2))).unwrap();
    while rig.steps.step() {}
    assert!(rig.read(session(2), 5).is_none());
    assert_eq!(rig.steps.drive(rig.store.room()), Ok(()));
    drop(rig);
    empty();
    let rig = Rig::on(disk.revived(), SMALL, None);
    assert_eq!(rig.seqs(session(1)), [1, 2]);
    assert!(rig.read(session(2), 5).is_none());
    rig.filled(session(4), 1);
}

#[test]
fn the_reserve_is_room_also_where_files_are_compressed() {
    let rig = Rig::new();
    let reserve = rig.disk.bytes(Path::new("reserve"));
    let words: std::collections::BTreeSet<&[u8]> = reserve.chunks(8).collect();
    assert_eq!(words.len(), reserve.len() / 8, "what comes twice takes room once");
}

/// What a killed process left: a folder of blobs whose name nobody made durable.
#[test]
fn a_folder_of_blobs_that_was_there_is_made_durable_with_its_first_blob() {
    let rig = Rig::new();
    rig.release(rig.filled(session(1), 1));
    rig.disk.create_dir(&session_dir(session(1)).join("blobs")).unwrap();
    let rig = rig.killed();
    let name = rig.blob(session(1), b"blob").unwrap();
    for seed in 0..10 {
        let crashed = rig.disk.crashed(&mut Random(seed));
        let path = session_dir(session(1)).join("blobs").join(&name);
        assert_eq!(crashed.bytes(&path), b"blob", "{seed}");
    }
}
