//! A store of format 1, which had its marks in one file, becomes one of format 2, whatever ends the process meanwhile.

use std::path::{Path, PathBuf};

use super::common::{Rig, session};
use crate::{
    ErrorCode,
    clock::Timestamp,
    ids::SessionId,
    store::directory::journal::{
        Disk as _, Limits,
        disk::write_new,
        frame::{Entry, encode_batch},
        look,
        segment::Header,
        simulated::{Fault, Random, SimulatedDisk},
    },
    store::{EventStore as _, Registration},
};

const MARKS: &str = "store/1.7.mlog";

fn entry(seq: u64, kind: u16, line: String) -> Entry {
    Entry { seq, kind, ms: 0, line: line.into() }
}

/// The file of marks, one batch each: sessions 1 and 3 are active, `a` and `bb` are readers.
fn marks() -> Vec<u8> {
    let of = |n: u128| format!(r#"{{"session_id":"{}"}}"#, session(n));
    let idle = |n: u128| format!(r#"{{"session_id":"{}","seq":1,"chain":5}}"#, session(n));
    let reader = |name: &str| format!(r#"{{"reader":"{name}","created_at":"2026-01-01T00:00:0{}.000Z"}}"#, name.len());
    let marks = [
        (3, reader("a")),
        (1, of(1)),
        (1, of(2)),
        (3, reader("gone")),
        (2, idle(2)),
        (5, format!(r#"{{"session_id":"{}","readers":{{"a":3}}}}"#, session(1))),
        (1, of(4)),
        (4, r#"{"reader":"gone"}"#.to_owned()),
        (7, of(4)),
        (6, r#"{"trusted":true}"#.to_owned()),
        (9, "not even JSON".to_owned()),
        (1, of(3)),
        (3, reader("bb")),
    ];
    let header = Header {
        session_id: SessionId::from_uuid(uuid::Uuid::nil()),
        number: 1,
        generation: 7,
        base_seq: 1,
        base_batch: 1,
        chain: 0,
        previous_end: 0,
        compacted: None,
    };
    let (mut out, mut place) = (header.encode(), header.place());
    for ((kind, line), seq) in marks.into_iter().zip(1..) {
        encode_batch(&mut out, &mut place, seq, [entry(seq, kind, line)]);
    }
    out
}

/// A disk with four sessions, as a process of format 1 left it.
fn older(marks: &[u8]) -> SimulatedDisk {
    let rig = Rig::new();
    for n in 1..=4 {
        rig.release(rig.filled(session(n), 1));
    }
    let disk = rig.disk.revived();
    for folder in ["active", "readers"] {
        disk.remove(Path::new(folder)).unwrap();
    }
    disk.create_dir(Path::new("store")).unwrap();
    write_new(&disk, Path::new(MARKS), marks).unwrap();
    disk.set_bytes(Path::new("format"), b"meerkat store 1\n".to_vec());
    disk.sync_dir(Path::new("store")).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk
}

fn unsettled(rig: &Rig) -> Vec<SessionId> {
    rig.steps.drive(rig.store.unsettled()).unwrap()
}

fn registered() -> [Registration; 2] {
    ["a", "bb"].map(|reader| Registration {
        reader: reader.to_owned(),
        created_at: Timestamp::from_millis(1_767_225_600_000 + 1000 * reader.len() as i64),
    })
}

fn check_made(rig: &Rig) {
    assert_eq!((unsettled(rig), rig.registrations()), (vec![session(1), session(3)], registered().to_vec()));
    assert_eq!(rig.disk.bytes(Path::new("format")), b"meerkat store 2\n");
    assert!(!rig.store.are_marks_lost());
    assert_eq!(rig.seqs(session(2)), [1]);
}

#[test]
fn a_store_of_format_1_keeps_its_marks() {
    let disk = older(&marks());
    let found = look(&disk).unwrap();
    assert!(found.is_whole, "what is not known is no damage");
    assert_eq!(found.readers(), registered());
    assert_eq!(disk.bytes(Path::new("format")), b"meerkat store 1\n", "looking changes nothing");
    let rig = Rig::on(disk, Limits::default(), None);
    check_made(&rig);
    assert!(rig.disk.list(Path::new("store")).is_err(), "what is not used any more is gone");
    check_made(&rig.killed());
}

#[test]
fn a_process_that_ends_while_it_changes_the_format_loses_no_mark() {
    let mut random = Random(3);
    let mut tried = 0;
    for fault in [Fault::Crash, Fault::Eio, Fault::Full] {
        for fails_after in 0.. {
            let disk = older(&marks());
            let before = disk.operations();
            disk.fail(fails_after, fault);
            drop(Rig::try_on(disk.clone(), Limits::default(), None));
            if disk.operations() - before <= fails_after {
                break;
            }
            tried += 1;
            for disk in [disk.revived(), disk.crashed(&mut random)] {
                check_made(&Rig::on(disk, Limits::default(), None));
            }
        }
    }
    assert!(tried > 30, "{tried}");
}

/// The reserve is for this, too. Without it the store waits for room as it is.
#[test]
fn a_full_disk_is_no_reason_to_stay_with_format_1() {
    let disk = older(&marks());
    disk.limit(Some(disk.used()));
    check_made(&Rig::on(disk, Limits::default(), None));
    let disk = older(&marks());
    disk.remove(Path::new("reserve")).unwrap();
    disk.limit(Some(disk.used()));
    let refused = Rig::try_on(disk.clone(), Limits::default(), None).err().map(|error| error.code());
    assert_eq!(refused, Some(ErrorCode::StoreFull));
    assert_eq!(disk.bytes(Path::new("format")), b"meerkat store 1\n");
    disk.limit(None);
    check_made(&Rig::on(disk, Limits::default(), None));
}

#[test]
fn r4_after_damage_to_the_marks_of_format_1_every_session_counts_as_active_and_good_readers_are_kept() {
    let whole = marks();
    let at = |text: &str| whole.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    let cases: [(usize, &[&str]); 3] =
        // The header; the mark of `a`; one behind it.
        [(20, &["a", "bb"]), (at(r#"reader":"a""#), &["bb"]), (at(&session(3).to_string()), &["a", "bb"])];
    for (damaged, names) in cases {
        let mut changed = whole.clone();
        changed[damaged] ^= 1;
        let rig = Rig::on(older(&changed), Limits::default(), None);
        assert_eq!(unsettled(&rig), [1, 2, 3, 4].map(session), "byte {damaged}");
        let found: Vec<String> = rig.registrations().into_iter().map(|known| known.reader).collect();
        assert_eq!(found, names, "byte {damaged}");
    }
    // There is none.
    let disk = older(&whole);
    disk.remove(Path::new(MARKS)).unwrap();
    assert_eq!(unsettled(&Rig::on(disk, Limits::default(), None)), [1, 2, 3, 4].map(session));
}

/// A data directory may be a folder that holds other things.
#[test]
fn only_what_meerkat_put_there_is_removed() {
    let disk = older(&marks());
    let other = PathBuf::from("store/photo.jpg");
    write_new(&disk, &other, b"dear").unwrap();
    let rig = Rig::on(disk, Limits::default(), None).killed();
    check_made(&rig);
    assert_eq!(rig.disk.bytes(&other), b"dear");
    assert_eq!(rig.disk.list(Path::new("store")).unwrap(), ["photo.jpg"]);
}
