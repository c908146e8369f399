//! Forgotten texts stay forgotten whatever happens to one of memory's files: it is deleted, cut off, or a bit of it
//! flips, and memory.redb is lost afterwards.

use std::{fs, path::PathBuf};

use meerkat_errors::ErrorCode;
use meerkat_testkit::{Random, seed};
use tempfile::TempDir;

use super::*;
use crate::{examine_log, mend_log};

/// Texts of two sessions that are forgotten, and one that stays.
const FORGOTTEN: [&str; 2] = ["The bassoon is in the attic.", "Amelie hid the persimmon."];
const KEPT: &str = "The harbour is closed.";
const WORDS: [&str; 2] = ["bassoon", "persimmon"];

/// Bits of memory.redb that are flipped.
const INDEX_FLIPS: u64 = 30;
/// Bytes of another file of which one is flipped.
const STRIDE: u64 = 8;

/// Returns what the journals hold, and a fork of the first session that is made later.
fn journals() -> [Intake; 4] {
    let fork = Intake { inherited: [(session(1), 1)].into(), ..talk(4, &FORGOTTEN[..1]) };
    [talk(1, &FORGOTTEN[..1]), talk(2, &[KEPT]), talk(3, &FORGOTTEN[1..]), fork]
}

/// Makes the files of a memory that was told to forget two texts, one after the other.
async fn made() -> TempDir {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), false);
    assert!(store.needs_rebuild().await.unwrap());
    store.add(journals()[..3].to_vec()).await.unwrap();
    store.rebuilt().await.unwrap();
    for n in [1, 3] {
        let forget = ForgetMemory { session_id: Some(session(n)), ..ForgetMemory::default() };
        assert_eq!(forgets(&store, forget).await, 1);
    }
    store.erased().await.unwrap();
    store.close().await;
    dir
}

/// Lists memory's files in a directory, by their paths in it.
fn files(dir: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path.strip_prefix(dir).unwrap().to_owned()) }
        }
    }
    found.sort();
    found
}

fn copied(from: &Path) -> TempDir {
    let dir = meerkat_testkit::folder();
    for file in files(from) {
        let to = dir.path().join(&file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from.join(&file), to).unwrap();
    }
    dir
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    Deleted,
    CutAt(usize),
    /// Byte, and the bit of it.
    Flipped(usize, u32),
}

impl Damage {
    fn happen(self, file: &Path) {
        let mut bytes = fs::read(file).unwrap();
        match self {
            Self::Deleted => return fs::remove_file(file).unwrap(),
            Self::CutAt(len) => bytes.truncate(len),
            Self::Flipped(at, bit) => bytes[at] ^= 1 << bit,
        }
        fs::write(file, bytes).unwrap();
    }

    /// Lists the damages of a file, spread over all of it.
    fn of(file: &Path, random: &mut Random) -> Vec<Self> {
        let len = fs::metadata(file).unwrap().len();
        let stride = if file.ends_with("memory.redb") { len / INDEX_FLIPS } else { STRIDE };
        let flips =
            (0..len).step_by(usize::try_from(stride).unwrap()).map(|at| (at + random.below(stride)).min(len - 1));
        let flips: Vec<u64> = flips.collect();
        let cuts: Vec<u64> = [0, len - 1].into_iter().chain((0..6).map(|_| random.below(len))).collect();
        let cut = |len: u64| Self::CutAt(usize::try_from(len).unwrap());
        let flips: Vec<Self> = flips
            .into_iter()
            .map(|at| Self::Flipped(usize::try_from(at).unwrap(), u32::try_from(random.below(8)).unwrap()))
            .collect();
        [Self::Deleted].into_iter().chain(cuts.into_iter().map(cut)).chain(flips).collect()
    }
}

/// Gives the store what it lacks of the journals, as its reader does, and checks that it finds nothing that was
/// forgotten. Returns true if it finds what was not, and false if it refuses to work.
async fn serves(store: &HnswMemoryStore, what: &str) -> bool {
    let give = async || {
        let is_lost = store.needs_rebuild().await?;
        for intake in journals() {
            let from = store.taken_in(intake.session_id).await?;
            let passages = intake.passages.iter().filter(|passage| passage.seq > from).cloned().collect();
            store.add(vec![Intake { passages, ..intake }]).await?;
        }
        if is_lost { store.rebuilt().await } else { Ok(()) }
    };
    let mut given = give().await;
    if given.is_err() {
        // The first use of a damaged file only sets it aside.
        given = give().await;
    }
    let mut hits = Vec::new();
    for word in WORDS.into_iter().chain(["harbour"]) {
        hits.extend(store.search(query(word)).await.map(|page| page.items).unwrap_or_default());
    }
    let texts: Vec<String> = hits.into_iter().map(|hit| hit.text).collect();
    assert!(!texts.iter().any(|text| FORGOTTEN.contains(&text.as_str())), "{what}: {texts:?}");
    given.is_ok() && texts.contains(&KEPT.to_owned())
}

/// Checks that no file holds a word that was forgotten.
fn is_in_no_file(dir: &Path, what: &str) {
    for file in files(dir) {
        let bytes = fs::read(dir.join(&file)).unwrap();
        for word in WORDS {
            let is_there = bytes.windows(word.len()).any(|it| it == word.as_bytes());
            assert!(!is_there, "{what}: {word} is in {}", file.display());
        }
    }
}

/// Starts memory, and checks that what was forgotten is neither found nor in a file.
async fn started(dir: &Path, what: &str) -> bool {
    let store = open(Some(dir), false);
    let serves = serves(&store, what).await;
    // Without its log memory refuses to work, and there is no text in its new file.
    assert!(store.erased().await.is_ok() || !serves, "{what}: it is not erased");
    store.close().await;
    drop(store);
    is_in_no_file(dir, what);
    serves
}

fn without_index(dir: &Path) {
    fs::remove_file(dir.join("memory.redb")).unwrap_or_default();
}

/// One flipped bit in the log's last record, or the loss of its file, once went unnoticed, and without memory.redb what
/// was forgotten was found again.
#[tokio::test]
async fn no_damage_of_one_file_brings_back_what_was_forgotten() {
    let (whole, mut random) = (made().await, Random::new(seed()));
    is_in_no_file(whole.path(), "no damage");
    assert_eq!(examine_log(whole.path(), true).unwrap(), [""; 0]);
    let (mut refused, mut repaired) = (0, 0);
    for file in files(whole.path()) {
        for damage in Damage::of(&whole.path().join(&file), &mut random) {
            let what = format!("{}, {damage:?}", file.display());
            let damaged = || {
                let dir = copied(whole.path());
                damage.happen(&dir.path().join(&file));
                dir
            };
            // It is found and repaired, and then the index is lost.
            let dir = damaged();
            if !examine_log(dir.path(), true).unwrap().is_empty() {
                mend_log(dir.path()).unwrap();
                repaired += 1;
            }
            assert_eq!(examine_log(dir.path(), true).unwrap(), [""; 0], "{what}");
            without_index(dir.path());
            assert!(started(dir.path(), &format!("{what}, repaired")).await, "{what}: it does not work after a repair");
            // The index is lost at once.
            let dir = damaged();
            without_index(dir.path());
            refused += usize::from(!started(dir.path(), &format!("{what}, and no index")).await);
            // It is used first, and then the index is lost.
            let dir = damaged();
            started(dir.path(), &format!("{what}, used")).await;
            without_index(dir.path());
            started(dir.path(), &format!("{what}, used, and no index")).await;
        }
    }
    assert!(refused > 40 && repaired > 40, "{refused} refused, {repaired} repaired");
}

/// If the log and the index are both lost, only the user can say that everything may be taken in.
#[tokio::test]
async fn without_log_and_index_nothing_is_taken_in_until_a_repair() {
    let whole = made().await;
    for is_folder in [false, true] {
        let dir = copied(whole.path());
        without_index(dir.path());
        let log = dir.path().join("memory");
        if is_folder {
            fs::remove_dir_all(log).unwrap();
        } else {
            fs::read_dir(log).unwrap().for_each(|entry| fs::remove_file(entry.unwrap().path()).unwrap());
        }
        for _ in 0..2 {
            let store = open(Some(dir.path()), false);
            assert_eq!(store.needs_rebuild().await.unwrap_err().code(), ErrorCode::MemoryIndexUnavailable);
            assert!(store.add(journals().to_vec()).await.is_err());
        }
        assert_eq!(examine_log(dir.path(), true).unwrap().len(), 1);
        let report = mend_log(dir.path()).unwrap();
        assert!(
            report.contains("to forget: nothing") && report.contains("forget again what is missing here"),
            "{report}"
        );
        assert_eq!(examine_log(dir.path(), true).unwrap(), [""; 0]);
        let store = open(Some(dir.path()), false);
        assert!(store.needs_rebuild().await.unwrap());
        store.add(journals().to_vec()).await.unwrap();
        assert!(!find(&store, "bassoon").await.is_empty(), "the user was told that it comes back");
    }
}

/// An intact index was once reported as one that cannot be read, and what only it knew was not written to the log.
#[tokio::test]
async fn a_lost_log_is_made_again_from_the_index() {
    let dir = made().await;
    // So much that not all of it is read when the index is opened.
    let store = open(Some(dir.path()), false);
    let notes = (1..=4_000).map(|seq| said(seq, "user", &format!("note number{seq} of the harbour")));
    store.add(vec![intake(5, notes.collect())]).await.unwrap();
    store.close().await;
    fs::remove_dir_all(dir.path().join("memory")).unwrap();
    let report = mend_log(dir.path()).unwrap();
    assert!(report.contains("2 of that only memory.redb still knew"), "{report}");
    for n in [1, 3] {
        assert!(report.contains(&format!("session {}, events 0 to 1", session(n))), "{report}");
    }
}

/// Where no journal has the texts, memory's log does. What of it cannot be read may be a text that was forgotten.
#[tokio::test]
async fn what_is_in_a_damaged_log_of_texts_is_not_called_erased() {
    let dir = meerkat_testkit::folder();
    let store = open(Some(dir.path()), true);
    store.add(journals()[..3].to_vec()).await.unwrap();
    store.close().await;
    drop(store);
    let segment = files(dir.path()).into_iter().find(|file| file.starts_with("memory") && file.extension().is_some());
    let segment = dir.path().join(segment.unwrap());
    let at = fs::read(&segment).unwrap().windows(WORDS[1].len()).position(|it| it == WORDS[1].as_bytes()).unwrap();
    Damage::Flipped(at, 0).happen(&segment);
    let store = open(Some(dir.path()), true);
    let forget = ForgetMemory { session_id: Some(session(3)), ..ForgetMemory::default() };
    assert_eq!(forgets(&store, forget).await, 1);
    let error = store.erased().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::MemoryIndexUnavailable, "{error}");
    store.close().await;
    drop(store);
    mend_log(dir.path()).unwrap();
    let store = open(Some(dir.path()), true);
    store.erased().await.unwrap();
    store.close().await;
    let left = files(dir.path()).into_iter().filter(|file| {
        let bytes = fs::read(dir.path().join(file)).unwrap();
        bytes.windows(7).any(|it| it == &b"simmon."[..])
    });
    assert_eq!(left.collect::<Vec<_>>(), Vec::<PathBuf>::new());
}
