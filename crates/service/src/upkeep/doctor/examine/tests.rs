//! Findings about the room of a disk.

use super::*;

#[test]
fn a_disk_without_room_is_found() {
    let dir = meerkat_testkit::folder();
    let data_dir = dir.path().join("data");
    drop(crate::store::open_stores(&data_dir).unwrap());
    let mut doctor = Doctor::enter(Examination { data_dir, projection: None, is_repair: false }, true).unwrap();
    doctor.room(Some(FREE_BYTES_MIN));
    assert_eq!(doctor.diagnosis.findings, []);
    doctor.room(Some(4096));
    let found = &doctor.diagnosis.findings[0];
    assert_eq!((found.check, found.severity), (Check::DiskSpace, Severity::Error));
    assert!(found.what.contains("is full: 4096 bytes are free"), "{found:?}");
    // Turns still run with that, so it is no error.
    doctor.room(Some(8_495_104));
    let found = &doctor.diagnosis.findings[1];
    assert_eq!((found.check, found.severity), (Check::DiskSpace, Severity::Warning));
    assert!(found.what.contains("is nearly full: 8495104 bytes are free"), "{found:?}");
    assert!(found.remedy.contains("Free 8 MiB or more"), "{found:?}");
    // Bytes are free, and no file can be made.
    doctor.files(Some(INODES_MIN));
    assert_eq!(doctor.diagnosis.findings.len(), 2);
    doctor.files(Some(1000));
    let found = &doctor.diagnosis.findings[2];
    assert_eq!((found.check, found.severity), (Check::DiskSpace, Severity::Warning));
    assert!(found.what.contains("has few inodes left: 1000 are free"), "{found:?}");
    doctor.files(Some(0));
    let found = &doctor.diagnosis.findings[3];
    assert_eq!((found.check, found.severity), (Check::DiskSpace, Severity::Error));
    assert!(found.what.contains("has no inodes left: 0 are free"), "{found:?}");
    assert!(found.remedy.contains("Delete or move 1024 files or more"), "{found:?}");
}
