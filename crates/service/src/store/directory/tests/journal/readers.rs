//! What the store journal keeps of readers: registrations and what pruning relies on outlive every end of a process,
//! every rewrite, and what is damaged behind them.

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;

use super::common::{Rig, SMALL, session};
use crate::{
    clock::{SeededIds, Timestamp},
    ids::{Seq, SessionId},
    store::directory::{
        journal::{
            disk::Disk as _,
            frame::{BATCH_END, Entry, encode},
            segment::{HEADER_BYTES, Header, HeaderFound, Mark, Reader, Step, scan},
            simulated::{Fault, Random, SimulatedDisk},
        },
        readers::FileReaders,
    },
    store::{EventStore as _, ReaderStore as _, Registration, StoreError},
};

const FIRST: &str = "store/1.1.mlog";
const SECOND: &str = "store/1.2.mlog";

type Relied = BTreeMap<String, Seq>;

fn relied(of: &[(&str, Seq)]) -> Relied {
    of.iter().map(|(reader, seq)| ((*reader).to_owned(), *seq)).collect()
}

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

    fn rely(&self, id: SessionId, of: Relied) -> Result<(), StoreError> {
        self.steps.drive(self.readers().rely(id, of))
    }

    fn names(&self) -> Vec<String> {
        self.steps.drive(self.readers().readers()).unwrap().into_iter().map(|known| known.reader).collect()
    }

    fn relied(&self, id: SessionId) -> Relied {
        self.steps.drive(self.readers().relied(id)).unwrap()
    }

    fn trusts(&self) -> bool {
        self.readers().is_trusted()
    }
}

/// Two readers, and what is relied on of them in two sessions.
fn filled() -> Rig {
    let rig = Rig::new();
    rig.register("a").unwrap();
    rig.register("bb").unwrap();
    rig.rely(session(1), relied(&[("a", 3), ("bb", 7)])).unwrap();
    rig.rely(session(2), relied(&[("bb", 1)])).unwrap();
    rig
}

#[test]
fn what_is_relied_on_already_is_not_written_again() {
    let rig = filled();
    rig.disk.take_counts();
    rig.rely(session(1), relied(&[("a", 3), ("bb", 6)])).unwrap();
    rig.steps.drive(rig.readers().forget(session(9))).unwrap();
    assert_eq!(rig.disk.take_counts().writes, 0);
    rig.rely(session(1), relied(&[("a", 4)])).unwrap();
    assert_eq!((rig.disk.take_counts().syncs, rig.relied(session(1))), (1, relied(&[("a", 4), ("bb", 7)])));
}

/// Appends a mark of a kind that this version does not know.
fn append_newer(disk: &SimulatedDisk, path: &Path, kind: u16, line: &'static [u8]) {
    let mut bytes = disk.bytes(path);
    let file = disk.open(path, false).unwrap();
    let HeaderFound::Good(header) = Header::read(file.as_ref()).unwrap() else { panic!("a bad header") };
    let from = Mark { offset: HEADER_BYTES, place: header.place() };
    let mut place = scan(Reader::new(file.as_ref(), from, bytes.len() as u64), |_| true).unwrap().end.place;
    let (seq, batch) = (place.seq + 1, place.batch + 1);
    encode(&mut bytes, &mut place, batch, BATCH_END, &Entry { seq, kind, ms: 0, line: Bytes::from_static(line) });
    disk.set_bytes(path, bytes);
}

/// The marks of one kind on the disk.
fn marks_of(disk: &SimulatedDisk, path: &Path, kind: u16) -> Vec<Bytes> {
    let file = disk.open(path, false).unwrap();
    let HeaderFound::Good(header) = Header::read(file.as_ref()).unwrap() else { panic!("a bad header") };
    let from = Mark { offset: HEADER_BYTES, place: header.place() };
    let mut reader = Reader::new(file.as_ref(), from, disk.bytes(path).len() as u64);
    let mut found = Vec::new();
    while let Step::Frame(frame, line) = reader.next().unwrap() {
        if frame.kind == kind {
            found.push(line);
        }
    }
    found
}

#[test]
fn a_store_journal_that_is_written_anew_keeps_its_readers_and_what_it_does_not_know() {
    let rig = filled();
    append_newer(&rig.disk, Path::new(FIRST), 9, br#"{"of":"tomorrow"}"#);
    append_newer(&rig.disk, Path::new(FIRST), 12, b"not even JSON");
    let rig = rig.killed();
    assert!(rig.trusts(), "what is not known is no damage");
    assert_eq!(rig.steps.drive(rig.store.unsettled()).unwrap(), []);
    // Long marks, until the journal is.
    let names: Vec<String> = (0..60).map(|n| format!("{n:060}")).collect();
    let mut seq = 0;
    while rig.disk.open(Path::new(SECOND), false).is_err() {
        seq += 1;
        assert!(seq < 10_000, "it was never written anew");
        rig.rely(session(3), names.iter().map(|name| (name.clone(), seq)).collect()).unwrap();
    }
    assert!(rig.disk.open(Path::new(FIRST), false).is_err());
    let second = Path::new(SECOND);
    assert_eq!(marks_of(&rig.disk, second, 9), [&br#"{"of":"tomorrow"}"#[..]]);
    assert_eq!(marks_of(&rig.disk, second, 12), [&b"not even JSON"[..]]);
    let rig = rig.killed();
    assert_eq!(rig.names(), ["a", "bb"]);
    assert_eq!(rig.relied(session(1)), relied(&[("a", 3), ("bb", 7)]));
    assert_eq!(rig.relied(session(3)).values().copied().collect::<Vec<_>>(), [seq; 60]);
    assert!(rig.trusts());
}

#[test]
fn r4_a_damaged_store_journal_keeps_its_good_readers_and_is_not_trusted_until_somebody_looked() {
    let first = Rig::new();
    first.register("a").unwrap();
    let of_a = first.disk.bytes(Path::new(FIRST)).len() - 20;
    let of_two = filled().disk.bytes(Path::new(FIRST)).len() - 20;
    let (one, two) = (relied(&[("a", 3), ("bb", 7)]), relied(&[("bb", 1)]));
    for (damaged, names, left) in [
        // Its header.
        (20, &["a", "bb", "last"][..], [&one, &two]),
        // A mark, and good ones follow.
        (of_a, &["bb", "last"], [&one, &two]),
        (of_two, &["a", "bb", "last"], [&one, &relied(&[])]),
    ] {
        let check = |rig: &Rig| assert_eq!([&rig.relied(session(1)), &rig.relied(session(2))], left, "byte {damaged}");
        let rig = filled();
        rig.register("last").unwrap();
        let mut changed = rig.disk.bytes(Path::new(FIRST));
        changed[damaged] ^= 1;
        rig.disk.set_bytes(Path::new(FIRST), changed);
        let rig = rig.killed();
        assert!(!rig.trusts(), "byte {damaged}");
        assert_eq!(rig.names(), names, "byte {damaged}");
        check(&rig);
        // No number of starts makes it trusted, nor what is registered since.
        rig.register("since").unwrap();
        let rig = rig.killed().killed();
        assert!(!rig.trusts() && rig.names().contains(&"since".to_owned()));
        rig.steps.drive(rig.readers().trust()).unwrap();
        assert!(rig.trusts());
        let rig = rig.killed();
        assert!(rig.trusts());
        assert_eq!(rig.names().len(), names.len() + 1);
        check(&rig);
    }
}

#[test]
fn a_store_journal_that_is_missing_is_not_trusted() {
    let rig = filled();
    rig.disk.remove(Path::new(FIRST)).unwrap();
    let rig = rig.killed();
    assert_eq!((rig.trusts(), rig.names()), (false, Vec::new()));
    assert!(!rig.killed().trusts());
}

/// Counts the steps of a script that succeeded before the first refusal of the disk.
fn script(rig: &Rig) -> usize {
    let steps: [&dyn Fn() -> Result<(), StoreError>; 5] = [
        &|| rig.register("a"),
        &|| rig.register("bb"),
        &|| rig.rely(session(1), relied(&[("a", 3), ("bb", 7)])),
        &|| rig.rely(session(1), relied(&[("a", 9)])),
        &|| rig.unregister("bb"),
    ];
    steps.iter().take_while(|step| step().is_ok()).count()
}

/// What holds when so many steps of the script are done.
fn after(steps: usize) -> (Vec<&'static str>, Relied) {
    [
        (vec![], relied(&[])),
        (vec!["a"], relied(&[])),
        (vec!["a", "bb"], relied(&[])),
        (vec!["a", "bb"], relied(&[("a", 3), ("bb", 7)])),
        (vec!["a", "bb"], relied(&[("a", 9), ("bb", 7)])),
        (vec!["a"], relied(&[("a", 9)])),
    ][steps]
        .clone()
}

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
                assert_eq!(done, 5, "nothing failed");
                break;
            }
            tried += 1;
            for disk in [rig.disk.revived(), rig.disk.crashed(&mut random)] {
                let rig = Rig::on(disk, SMALL, None);
                let found = (rig.names(), rig.relied(session(1)));
                let is = |steps: usize| {
                    let (names, of) = after(steps);
                    found == (names.into_iter().map(str::to_owned).collect(), of)
                };
                // The refused step may have happened.
                assert!(is(done) || done < 5 && is(done + 1), "{fault:?} {fails_after}: {done} done, {found:?}");
                assert!(rig.trusts());
            }
        }
    }
    assert!(tried > 20, "{tried}");
}
