//! Registrations of readers outlive every end of a process, and what is damaged in their files.

use std::path::Path;

use super::common::{Rig, SMALL};
use crate::{
    clock::{SeededIds, Timestamp},
    store::directory::{
        journal::{
            Disk as _,
            simulated::{Fault, Random, SimulatedDisk},
        },
        readers::FileReaders,
    },
    store::{ReaderStore as _, Registration, StoreError},
};

fn at(n: i64) -> Timestamp {
    Timestamp::from_millis(SeededIds::wall_time().as_millis() + n)
}

/// The readers of a store, step by step.
impl Rig {
    fn readers(&self) -> FileReaders {
        FileReaders::new(self.store.context().clone(), None)
    }

    fn register(&self, reader: &str) -> Result<(), StoreError> {
        let registration = Registration { reader: reader.to_owned(), created_at: at(reader.len() as i64) };
        self.steps.drive(self.readers().register(registration))
    }

    fn unregister(&self, reader: &str) -> Result<(), StoreError> {
        self.steps.drive(self.readers().unregister(reader))
    }

    pub(super) fn registrations(&self) -> Vec<Registration> {
        self.steps.drive(self.readers().readers()).unwrap()
    }

    fn names(&self) -> Vec<String> {
        self.registrations().into_iter().map(|known| known.reader).collect()
    }
}

#[test]
fn names_of_folders_are_names_of_readers_too() {
    let rig = Rig::new();
    for name in [".", "..", "a.json", ".json"] {
        rig.register(name).unwrap();
    }
    let rig = rig.killed();
    assert_eq!(rig.names(), [".", "..", ".json", "a.json"]);
    assert_eq!(rig.registrations()[1].created_at, at(2));
    rig.unregister("..").unwrap();
    assert_eq!(rig.killed().names(), [".", ".json", "a.json"]);
}

/// That there is one is what counts: it keeps records from being dropped.
#[test]
fn r4_a_reader_whose_file_is_damaged_is_a_reader_all_the_same() {
    let rig = Rig::new();
    rig.register("a").unwrap();
    rig.register("bb").unwrap();
    let path = Path::new("readers/a.json");
    for bytes in [b"nonsense".to_vec(), Vec::new(), vec![b' '; 1 << 20]] {
        let rig = Rig::on(rig.disk.copy(), SMALL, None);
        rig.disk.set_bytes(path, bytes);
        let rig = rig.killed();
        assert_eq!(rig.names(), ["a", "bb"]);
        rig.unregister("a").unwrap();
        assert_eq!(rig.killed().names(), ["bb"]);
    }
}

/// The file is gone, and its folder could not be synced: who registers the reader again has it.
#[test]
fn a_reader_whose_deletion_failed_half_way_is_registered_again() {
    let rig = Rig::new();
    rig.register("a").unwrap();
    rig.disk.fill_syncs(true);
    assert!(rig.unregister("a").is_err());
    rig.disk.fill_syncs(false);
    rig.register("a").unwrap();
    for seed in 0..12 {
        assert_eq!(Rig::on(rig.disk.crashed(&mut Random(seed)), SMALL, None).names(), ["a"], "{seed}");
    }
}

/// Nobody could delete it by its name.
#[test]
fn a_file_whose_name_no_reader_may_have_is_none() {
    let rig = Rig::new();
    rig.register("a").unwrap();
    for name in ["A.json", "a b.json", "notes.txt"] {
        rig.disk.create(&Path::new("readers").join(name)).unwrap();
    }
    assert_eq!(rig.killed().names(), ["a"]);
}

/// Counts the steps of a script that succeeded before the first refusal of the disk.
fn script(rig: &Rig) -> usize {
    let steps: [&dyn Fn() -> Result<(), StoreError>; 4] =
        [&|| rig.register("a"), &|| rig.register("bb"), &|| rig.unregister("bb"), &|| rig.register("bb")];
    steps.iter().take_while(|step| step().is_ok()).count()
}

/// What holds when so many steps of the script are done.
const AFTER: [&[&str]; 5] = [&[], &["a"], &["a", "bb"], &["a"], &["a", "bb"]];

#[test]
fn a_write_that_fails_anywhere_takes_nothing_that_was_answered() {
    let mut random = Random(5);
    let mut tried = 0;
    for fault in [Fault::Crash, Fault::Eio, Fault::Full] {
        for fails_after in 0.. {
            let rig = Rig::on(SimulatedDisk::new(), SMALL, None);
            let before = rig.disk.operations();
            rig.disk.fail(fails_after, fault);
            let done = script(&rig);
            if rig.disk.operations() - before <= fails_after {
                assert_eq!(done, 4, "nothing failed");
                break;
            }
            tried += 1;
            for disk in [rig.disk.revived(), rig.disk.crashed(&mut random)] {
                let found = Rig::on(disk, SMALL, None).names();
                let is = |steps: usize| found == AFTER[steps];
                // The refused step may have happened.
                assert!(is(done) || done < 4 && is(done + 1), "{fault:?} {fails_after}: {done} done, {found:?}");
            }
        }
    }
    assert!(tried > 20, "{tried}");
}
