//! The log on a disk that crashes: acknowledged entries exist, in order, and nothing else.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use super::{Entry, FORGOT, Forgetting, MemoryLog, TOOK, examine, frames_of, mend};
use meerkat_journal::{
    disk::Disk,
    frame::{HEADER_BYTES, PAYLOAD_BYTES_MAX},
    simulated::{Fault, Random, SimulatedDisk},
};
use meerkat_words::{
    clock::{SeededIds, Timestamp},
    ids::SessionId,
    memory::{Intake, Passage},
    store::StoreError,
};

/// Small, so that a few entries make several segments.
const SEGMENT_BYTES: u64 = 2048;

fn session(n: u8) -> SessionId {
    SessionId::from_uuid(uuid::Uuid::from_bytes([n; 16]))
}

fn passage(seq: u64, text: &str) -> Passage {
    let time = Timestamp::from_millis(SeededIds::wall_time().as_millis() + i64::try_from(seq).unwrap());
    Passage { seq, to_seq: seq, part: 0, role: "user".into(), source: "user".into(), time, text: text.into() }
}

fn took(n: u64) -> Entry {
    let text = format!("what was said {n} {}", "x".repeat((n as usize * 37) % 700));
    let labels = BTreeMap::from([("team".to_owned(), "red".to_owned())]);
    Entry::Took(Intake {
        session_id: session(1),
        labels,
        passages: vec![passage(n, &text)],
        up_to: n,
        inherited: BTreeMap::new(),
    })
}

fn forgot(n: u64) -> Entry {
    let until = Timestamp::from_millis(1_000);
    Entry::Forgot(Forgetting { session_id: Some(session(2)), from_seq: n, to_seq: None, source: None, until })
}

/// Entries of the n-th append: one or three.
fn batch(n: u64) -> Vec<Entry> {
    if n.is_multiple_of(3) { vec![took(n), forgot(n), took(n + 1000)] } else { vec![took(n)] }
}

fn open(disk: &SimulatedDisk, known: u64) -> Result<MemoryLog, StoreError> {
    MemoryLog::open_with(Arc::new(disk.clone()), known, SEGMENT_BYTES)
}

fn entries(log: &MemoryLog, after: u64) -> Vec<(u64, Entry)> {
    let mut found = Vec::new();
    log.replay(after, |position, entry| found.push((position, entry))).unwrap();
    found
}

/// Appends so far, each true if it was acknowledged.
struct Story {
    appends: Vec<(Vec<Entry>, bool)>,
    /// Last acknowledged position.
    acknowledged: u64,
}

/// Opens the log and appends up to `count` times.
fn tell(disk: &SimulatedDisk, story: &mut Story, count: u64) {
    if let Ok(mut log) = open(disk, story.acknowledged) {
        append(disk, &mut log, story, count);
    }
}

fn append(disk: &SimulatedDisk, log: &mut MemoryLog, story: &mut Story, count: u64) {
    for _ in 0..count {
        let entries = batch(story.appends.len() as u64);
        let answer = log.append(&entries);
        story.appends.push((entries, answer.is_ok()));
        if let Ok(position) = answer {
            assert!(position > story.acknowledged, "a position was given twice");
            story.acknowledged = position;
        }
        if disk.is_down() {
            return;
        }
    }
}

/// Checks that every acknowledged append exists, whole and in order, and any other one whole, in its place, or not at
/// all.
fn check(log: &MemoryLog, story: &Story, what: &str) {
    let found = entries(log, 0);
    assert!(log.is_whole(), "{what}: not whole");
    let mut rest: Vec<&Entry> = found.iter().map(|(_, entry)| entry).collect();
    for (entries, is_acknowledged) in &story.appends {
        if rest.len() >= entries.len() && rest.iter().zip(entries).all(|(one, other)| *one == other) {
            rest.drain(..entries.len());
        } else {
            assert!(!is_acknowledged, "{what}: an acknowledged entry is missing");
        }
    }
    assert!(rest.is_empty(), "{what}: {} entries that nobody wrote", rest.len());
    let positions: Vec<u64> = found.iter().map(|(position, _)| *position).collect();
    assert!(positions.is_sorted_by(|one, other| one < other), "{what}: positions do not rise");
    assert!(log.position() >= story.acknowledged, "{what}");
}

const fn new_story() -> Story {
    Story { appends: Vec::new(), acknowledged: 0 }
}

#[test]
fn what_is_appended_is_there_in_order_and_only_what_is_behind_a_position_is_read() {
    let disk = SimulatedDisk::new();
    let mut story = new_story();
    tell(&disk, &mut story, 12);
    tell(&disk, &mut story, 5);
    let log = open(&disk, story.acknowledged).unwrap();
    check(&log, &story, "as written");
    assert!(log.segments.len() > 2, "the log has {} segments", log.segments.len());
    let all = entries(&log, 0);
    assert_eq!(
        all.iter().map(|(position, _)| *position).collect::<Vec<_>>(),
        (1..=all.len() as u64).collect::<Vec<_>>()
    );
    for after in 0..=all.len() {
        assert_eq!(entries(&log, after as u64), all[after..], "after {after}");
    }
    assert!(log.is_whole());
}

#[test]
fn an_empty_append_writes_nothing() {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk, 0).unwrap();
    disk.take_counts();
    assert_eq!(log.append(&[]).unwrap(), 0);
    assert_eq!(disk.take_counts().writes, 0);
    log.append(&[took(1)]).unwrap();
    disk.take_counts();
    log.append(&[took(2), took(3)]).unwrap();
    let counts = disk.take_counts();
    assert_eq!((counts.writes, counts.syncs, counts.dir_syncs), (1, 1, 0), "an append is one write and one sync");
    log.append(&[took(4), forgot(1)]).unwrap();
    let counts = disk.take_counts();
    assert_eq!((counts.writes, counts.syncs, counts.dir_syncs), (2, 2, 1), "a forgetting is noted beside the log too");
}

/// Crashes at every operation, with unsynced bytes lost, torn or reordered; then continues, and crashes once more.
#[test]
fn a_crash_anywhere_loses_nothing_that_was_acknowledged() {
    let whole = SimulatedDisk::new();
    tell(&whole, &mut new_story(), 14);
    for at in 0..whole.operations() {
        for seed in 0..3 {
            let mut random = Random(seed * 1000 + at);
            let (mut disk, mut story) = (SimulatedDisk::new(), new_story());
            disk.fail(at, Fault::Crash);
            tell(&disk, &mut story, 14);
            for again in 0..2 {
                // A kill preserves writes; after a failed sync only a power failure settles the content.
                let is_kept = random.chance(30) && !disk.has_lost();
                disk = if is_kept { disk.revived() } else { disk.crashed(&mut random) };
                let what = format!("operation {at}, seed {seed}, crash {again}");
                check(&open(&disk, story.acknowledged).unwrap(), &story, &what);
                disk.fail(random.below(30), Fault::Crash);
                tell(&disk, &mut story, 8);
            }
        }
    }
}

/// Fails once, or fills the disk for a while, at every operation: the log recovers by itself.
#[test]
fn a_failing_disk_fails_the_append_and_the_log_goes_on() {
    let whole = SimulatedDisk::new();
    tell(&whole, &mut new_story(), 14);
    for at in 0..whole.operations() {
        for (fault, seed) in [(Fault::Eio, 1), (Fault::Eio, 2), (Fault::Full, 3), (Fault::Full, 4)] {
            let (disk, mut story) = (SimulatedDisk::new(), new_story());
            disk.fail(at, fault);
            tell(&disk, &mut story, 14);
            let failed = story.appends.iter().filter(|(_, is_acknowledged)| !is_acknowledged).count();
            assert!(failed <= 1, "operation {at}, {fault:?}: {failed} appends failed");
            // After a failed sync only a power failure settles the content.
            if !disk.has_lost() {
                tell(&disk, &mut story, 3);
            }
            let mut random = Random(seed * 1000 + at);
            let after = disk.crashed(&mut random);
            let log = open(&after, story.acknowledged).unwrap();
            check(&log, &story, &format!("operation {at}, {fault:?}, seed {seed}"));
        }
    }
}

/// Returns an entry without the passages up to `n`.
fn left(entry: &Entry, n: u64) -> Entry {
    let Entry::Took(mut intake) = entry.clone() else { return entry.clone() };
    intake.passages.retain(|passage| passage.seq > n);
    Entry::Took(intake)
}

/// Removes passages up to the `n`-th, one segment after the other.
fn leave_out(log: &mut MemoryLog, n: u64) -> Result<(), StoreError> {
    let mut at = 0;
    while log.leave_out(at, true, |_, passage| passage.seq <= n)? {
        at += 1;
    }
    Ok(())
}

/// Appends, removes passages up to the fifth, and appends again, as far as possible; returns the last passage whose
/// removal was acknowledged.
fn tell_and_forget(disk: &SimulatedDisk, story: &mut Story) -> u64 {
    tell(disk, story, 7);
    let mut forgotten = 0;
    if story.appends.len() < 7 {
        return forgotten;
    }
    // The second removal also affects a replaced segment.
    for n in [3, 5] {
        // After a failed sync only a power failure settles the content.
        if disk.has_lost() {
            return forgotten;
        }
        let Ok(mut log) = open(disk, story.acknowledged) else { return forgotten };
        match leave_out(&mut log, n) {
            Ok(()) => forgotten = n,
            Err(_) if disk.is_down() => return forgotten,
            Err(_) => {}
        }
        // The same open log continues.
        append(disk, &mut log, story, 2);
        drop(log);
        if !disk.has_lost() {
            tell(disk, story, 2);
        }
    }
    forgotten
}

#[test]
fn what_is_left_out_is_in_no_file_and_the_rest_is_as_it_was() {
    let (disk, mut story) = (SimulatedDisk::new(), new_story());
    let forgotten = tell_and_forget(&disk, &mut story);
    let log = open(&disk, story.acknowledged).unwrap();
    let told: Vec<Entry> =
        story.appends.iter().flat_map(|(entries, _)| entries).map(|it| left(it, forgotten)).collect();
    let found = entries(&log, 0);
    assert!(log.is_whole());
    assert_eq!(found.iter().map(|(_, entry)| entry.clone()).collect::<Vec<_>>(), told);
    for after in 0..=found.len() {
        assert_eq!(entries(&log, after as u64), found[after..], "after {after}");
    }
    let names = disk.list(Path::new("memory")).unwrap();
    assert!(names.len() > 2, "{names:?}");
    for name in names {
        let bytes = disk.bytes(&Path::new("memory").join(&name));
        let gone = |n: u64| bytes.windows(16).any(|it| it == format!("what was said {n} ").as_bytes());
        assert!(!(0..=forgotten).any(gone), "{name}");
    }
}

/// Crashes or fails at every operation: no other acknowledged entry is lost, and removed passages disappear as a whole
/// or stay until they are removed again.
#[test]
fn a_crash_while_passages_are_left_out_loses_nothing_else() {
    let whole = SimulatedDisk::new();
    tell_and_forget(&whole, &mut new_story());
    for at in 0..whole.operations() {
        for (fault, seed) in
            [(Fault::Crash, 0), (Fault::Crash, 1), (Fault::Crash, 2), (Fault::Eio, 3), (Fault::Full, 4)]
        {
            let (disk, mut story) = (SimulatedDisk::new(), new_story());
            disk.fail(at, fault);
            let forgotten = tell_and_forget(&disk, &mut story);
            let mut random = Random(seed * 1000 + at);
            let is_kept = random.chance(30) && !disk.has_lost();
            let disk = if is_kept { disk.revived() } else { disk.crashed(&mut random) };
            let what = format!("operation {at}, {fault:?}, seed {seed}");
            let mut log = open(&disk, story.acknowledged).unwrap();
            let least = |story: &mut Story, n: u64| {
                for (entries, _) in &mut story.appends {
                    entries.iter_mut().for_each(|entry| *entry = left(entry, n));
                }
            };
            let stands = |log: &MemoryLog, n: u64| {
                let said = |entry: &Entry| matches!(entry, Entry::Took(it) if it.passages.iter().any(|it| it.seq <= n));
                entries(log, 0).iter().any(|(_, entry)| said(entry))
            };
            assert!(forgotten == 0 || !stands(&log, forgotten), "{what}: it came back");
            leave_out(&mut log, 5).unwrap();
            least(&mut story, 5);
            check(&log, &story, &what);
            check(&open(&disk, story.acknowledged).unwrap(), &story, &what);
        }
    }
}

#[test]
fn a_full_disk_leaves_what_stood_before() {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk, 0).unwrap();
    log.append(&[took(1)]).unwrap();
    disk.limit(Some(disk.used() + 10));
    assert!(matches!(log.append(&[took(2)]), Err(StoreError::Full)));
    disk.limit(None);
    assert_eq!(log.append(&[took(3)]).unwrap(), 2);
    let found: Vec<Entry> = entries(&open(&disk, 2).unwrap(), 0).into_iter().map(|(_, entry)| entry).collect();
    assert_eq!(found, [took(1), took(3)]);
    assert_eq!(log.segments.len(), 1, "a full disk begins no segment");
}

/// Checks that a damaged log is reported with the file's name and repaired, despite crashes: all readable entries stay,
/// and the damaged file is kept.
fn mended(broken: &SimulatedDisk, left: &[(u64, Entry)], name: &str, what: &str) {
    let damages = examine(broken, 0).unwrap().damages;
    assert!(damages.iter().any(|damage| damage.contains(name)), "{what}: {damages:?}");
    let known = left.last().unwrap().0;
    let (disk, before) = (broken.copy(), broken.operations());
    let kept = mend(&disk, known).unwrap().kept;
    let is_there = broken.len(Path::new(name)).is_ok();
    assert_eq!(kept.len(), usize::from(is_there), "{what}: {kept:?}");
    assert!(!is_there || disk.bytes(Path::new(&kept[0])) == broken.bytes(Path::new(name)), "{what}: it is not kept");
    for at in 0..=disk.operations() - before {
        let crashing = broken.copy();
        crashing.fail(at, Fault::Crash);
        drop(mend(&crashing, known));
        let disk = crashing.crashed(&mut Random(at));
        mend(&disk, known).unwrap();
        assert!(examine(&disk, known).unwrap().damages.is_empty(), "{what}, crash {at}");
        let mut log = open(&disk, known).unwrap();
        assert_eq!(entries(&log, 0), left, "{what}, crash {at}");
        assert!(log.is_whole(), "{what}, crash {at}");
        assert_eq!(log.append(&[forgot(9)]).unwrap(), known + 1);
        let log = open(&disk, known + 1).unwrap();
        assert_eq!((entries(&log, known), log.is_whole()), (vec![(known + 1, forgot(9))], true), "{what}, crash {at}");
    }
}

#[test]
fn a_flipped_byte_costs_its_entry_and_no_other() {
    let disk = SimulatedDisk::new();
    let mut story = new_story();
    tell(&disk, &mut story, 9);
    let all = entries(&open(&disk, 0).unwrap(), 0);
    let names = ["memory/1.1.mlog", "memory/2.1.mlog"];
    let mut damaged = 0;
    for name in names {
        let path = Path::new(name);
        let good = disk.bytes(path);
        for at in (0..good.len()).step_by(61) {
            let broken = disk.copy();
            let mut bytes = good.clone();
            bytes[at] ^= 0x41;
            broken.set_bytes(path, bytes);
            let mut log = open(&broken, story.acknowledged).unwrap();
            let found = entries(&log, 0);
            assert!(!log.is_whole(), "{name}, byte {at}: whole");
            let missing = all.iter().filter(|entry| !found.contains(entry)).count();
            assert!(missing <= 1, "{name}, byte {at}: {missing} entries are missing");
            assert!(found.iter().all(|entry| all.contains(entry)), "{name}, byte {at}: nobody wrote that");
            damaged += missing;
            // It continues after every acknowledged position, and new entries are readable.
            let position = log.append(&[took(77)]).unwrap();
            assert!(position > story.acknowledged);
            let again = entries(&open(&broken, position).unwrap(), story.acknowledged);
            assert_eq!(again, [(position, took(77))], "{name}, byte {at}");
            if at % 5 == 0 {
                let left: Vec<_> = found.into_iter().chain(again).collect();
                mended(&broken, &left, name, &format!("{name}, byte {at}"));
            }
        }
    }
    assert!(damaged > 5, "{damaged}");
}

#[test]
fn a_lost_end_is_no_torn_end() {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk, 0).unwrap();
    for n in 1..=4 {
        log.append(&[took(n)]).unwrap();
    }
    let path = Path::new("memory/1.1.mlog");
    let mut bytes = disk.bytes(path);
    bytes.truncate(bytes.len() - HEADER_BYTES);
    disk.set_bytes(path, bytes);
    // Nobody relies on the last entry: it counts as torn.
    let log = open(&disk, 3).unwrap();
    assert_eq!((entries(&log, 0).len(), log.is_whole(), log.position()), (3, true, 3));
    // Somebody relies on it: it is lost, and its position is not used again.
    let mut log = open(&disk, 4).unwrap();
    assert!(!log.is_whole());
    assert_eq!(log.append(&[forgot(1)]).unwrap(), 5);
    let log = open(&disk, 5).unwrap();
    assert_eq!(entries(&log, 4), [(5, forgot(1))]);
    let left = entries(&log, 0);
    assert!(!log.is_whole(), "the gap stays");
    mended(&disk, &left, "memory/1.1.mlog", "a lost end");
}

/// The index that relied on the log's end may be lost next: the loss must stay known.
#[test]
fn that_an_end_was_lost_is_known_from_then_on() {
    let disk = SimulatedDisk::new();
    open(&disk, 0).unwrap().append(&[took(1)]).unwrap();
    disk.remove(Path::new("memory/1.1.mlog")).unwrap();
    assert_eq!(examine(&disk, 1).unwrap().damages, ["memory/1.1.mlog is missing"]);
    assert!(!open(&disk, 1).unwrap().is_whole());
    let log = open(&disk, 0).unwrap();
    assert_eq!(entries(&log, 0), []);
    assert!(!log.is_whole());
    assert_eq!(examine(&disk, 0).unwrap().damages, ["the entries 1 to 1 are missing before memory/1.1.mlog"]);
    mend(&disk, 1).unwrap();
    let log = open(&disk, 1).unwrap();
    assert_eq!((entries(&log, 0), log.is_whole(), log.position()), (vec![], true, 1));
}

#[test]
fn a_missing_segment_is_told_and_the_others_stay() {
    let whole = SimulatedDisk::new();
    let mut story = new_story();
    tell(&whole, &mut story, 12);
    let all = entries(&open(&whole, 0).unwrap(), 0);
    assert!(whole.list(Path::new("memory")).unwrap().len() > 2);
    for name in ["memory/1.1.mlog", "memory/2.1.mlog"] {
        let disk = whole.copy();
        disk.remove(Path::new(name)).unwrap();
        let log = open(&disk, story.acknowledged).unwrap();
        let found = entries(&log, 0);
        assert!(!log.is_whole());
        assert!(found.len() < all.len() && found.iter().all(|entry| all.contains(entry)));
        mended(&disk, &found, name, name);
    }
}

/// A torn write in the middle, followed by good entries.
#[test]
fn a_torn_middle_is_told_and_what_stands_behind_it_stays() {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk, 0).unwrap();
    for n in 1..=5 {
        log.append(&[forgot(n)]).unwrap();
    }
    let path = Path::new("memory/1.1.mlog");
    let (mut bytes, frame) = (disk.bytes(path), disk.bytes(path).len() / 5 / 8 * 8);
    bytes[2 * frame..3 * frame].fill(0);
    disk.set_bytes(path, bytes);
    let left = entries(&open(&disk, 5).unwrap(), 0);
    assert!(left.len() >= 3 && left.len() < 5 && left.last() == Some(&(5, forgot(5))), "{left:?}");
    mended(&disk, &left, "memory/1.1.mlog", "a torn middle");
}

#[test]
fn what_is_too_much_for_a_frame_is_split_between_passages() {
    let long = "x".repeat(PAYLOAD_BYTES_MAX / 3);
    let passages: Vec<Passage> = (1..=7).map(|seq| passage(seq, &long)).collect();
    let whole =
        Intake { session_id: session(1), labels: BTreeMap::new(), passages, up_to: 7, inherited: BTreeMap::new() };
    let mut frames = Vec::new();
    frames_of(&Entry::Took(whole.clone()), &mut frames).unwrap();
    assert!(frames.len() > 1 && frames.iter().all(|(kind, line)| *kind == TOOK && line.len() <= PAYLOAD_BYTES_MAX));
    let parts = frames.iter().map(|(_, line)| serde_json::from_slice::<Intake>(line).unwrap());
    let passages: Vec<Passage> = parts.flat_map(|part| part.passages).collect();
    assert!(passages == whole.passages);
    let one = Intake { passages: vec![passage(1, &"x".repeat(PAYLOAD_BYTES_MAX + 1))], ..whole };
    let disk = SimulatedDisk::new();
    let mut log = open(&disk, 0).unwrap();
    log.append(&[took(1)]).unwrap();
    assert!(log.append(&[forgot(1), Entry::Took(one)]).is_err());
    assert_eq!(log.append(&[took(2)]).unwrap(), 2);
    assert_eq!(log.segments.len(), 1);
    let mut frames = Vec::new();
    frames_of(&forgot(1), &mut frames).unwrap();
    assert_eq!(frames[0].0, FORGOT);
}

#[test]
fn a_forgetting_covers_what_fits_all_of_it() {
    let until = passage(10, "").time;
    let all = Forgetting { session_id: None, from_seq: 0, to_seq: None, source: None, until };
    let passage = Passage { to_seq: 7, source: "tool:fetch".into(), ..passage(5, "") };
    let covers = |forgetting: &Forgetting| forgetting.covers(session(1), &passage);
    assert!(covers(&all));
    assert!(covers(&Forgetting { session_id: Some(session(1)), ..all.clone() }));
    assert!(!covers(&Forgetting { session_id: Some(session(2)), ..all.clone() }));
    for (from_seq, to_seq, is_covered) in
        [(7, None, true), (8, None, false), (0, Some(5), true), (0, Some(4), false), (6, Some(6), true)]
    {
        assert_eq!(covers(&Forgetting { from_seq, to_seq, ..all.clone() }), is_covered, "{from_seq} {to_seq:?}");
    }
    assert!(covers(&Forgetting { source: Some("tool:fetch".into()), ..all.clone() }));
    assert!(!covers(&Forgetting { source: Some("user".into()), ..all.clone() }));
    assert!(covers(&Forgetting { until: passage.time, ..all.clone() }));
    let before = Timestamp::from_millis(passage.time.as_millis() - 1);
    assert!(!covers(&Forgetting { until: before, ..all }));
}
