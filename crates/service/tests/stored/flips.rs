//! One changed bit anywhere in the files of a session or of its fork, through everything that a caller holds: no reading
//! ends there in silence, and after a repair all good events are there and the session goes on.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    ops::Range,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use meerkat_service::{
    ErrorCode, SessionId,
    clock::{Clock as _, SystemClock},
    doctor::{Finding, Severity},
    service::ExportSession,
};
use meerkat_testkit::{Random, campaigns::Part, seed};

use crate::stored::{
    Place, Process, change,
    damaged::{Lines, goes_on, keyed, last_good, read, shown, without_damage},
    whole,
};

/// Places at which a bit is changed if no campaign is asked for.
const FEW: usize = 8;
/// Places that are tried at once: each waits for the disk most of the time.
const AT_ONCE: usize = 4;

/// Places at which a bit is changed, and turns of the session: few of both, unless the campaign `journal` is asked for.
fn sizes() -> (usize, usize) {
    if Part::Journal.is_whole() { (1000, 300) } else { (FEW, 24) }
}

/// Changes a bit of a session's files, also for whoever shares the file; returns its place.
fn flip(place: &Place, id: SessionId, random: &mut Random) -> String {
    let paths = place.segments(id);
    let path = &paths[random.below(paths.len() as u64) as usize];
    let at = random.below(fs::metadata(path).unwrap().len());
    change(path, at as usize, 1 << random.below(8));
    format!("{}, byte {at}", path.display())
}

/// A copy in which files that sessions share are shared as well.
fn copied(place: &Place) -> Place {
    let copy = Place::new();
    let done = Command::new("cp").arg("-a").arg(place.data_dir()).arg(copy.dir.path()).status().unwrap();
    assert!(done.success());
    copy
}

fn end(lines: &Lines) -> u64 {
    *lines.keys().next_back().unwrap()
}

/// Checks every reading of a session; returns its good lines, and a bundle without damage.
async fn check(process: &Process, id: SessionId, before: &Lines, what: &str) -> (Lines, Vec<u8>) {
    let strict = read(process, id, before, false).await;
    let is_damaged = strict.error.is_some();
    let last = strict.error.as_ref().map_or(end(before), last_good);
    let is_whole = strict.lines.iter().eq(before.range(..=last)) && strict.lost.is_empty();
    assert!(is_whole, "{what}: it ends at {:?}", strict.lines.keys().last());
    // Who passes over damage gets the rest, and reads what is missing.
    let lenient = read(process, id, before, true).await;
    let last = lenient.error.as_ref().map_or(end(before), last_good);
    let is_lost = |seq: u64| lenient.lost.iter().any(|(from, to)| (*from..=*to).contains(&seq));
    let due = before.range(..=last).filter(|(seq, _)| !is_lost(**seq));
    let due: Lines = due.map(|(seq, line)| (*seq, line.clone())).collect();
    assert!(lenient.lines == due, "{what}: {:?} to {last}", lenient.lost);
    assert_eq!(is_damaged, due.len() != before.len(), "{what}");
    // A bit costs a record, or two if the next one needs it.
    assert!(due.len() + 2 >= before.len(), "{what}: {} of {}", due.len(), before.len());
    // No other reading ends in silence.
    let damaged = is_damaged.then_some(ErrorCode::SessionCorrupted);
    let ends = shown(process, id, 100, false).await.ends.map(|end| end.map(|error| error.code()));
    assert_eq!(ends, [damaged; 3], "{what}: messages, steps and turns");
    let mut follower = process.service.follow(&id, 0).await.unwrap();
    for _ in 0..strict.lines.len() {
        assert!(follower.next().await.unwrap().unwrap().seq.is_some(), "{what}");
    }
    if is_damaged {
        assert_eq!(follower.next().await.unwrap_err().code(), ErrorCode::SessionCorrupted, "{what}: a stream");
    }
    // An export fails, or says what it leaves out.
    let export = process.bundle(ExportSession::new(id)).await;
    assert_eq!(export.err().map(|error| error.code()), damaged, "{what}: an export");
    let (bundle, lost) = without_damage(process, id, false).await;
    let is_named = |seq: &u64| lost.iter().any(|(from, to)| (from..=to).contains(&seq));
    let mut missing = before.keys().filter(|seq| !due.contains_key(seq));
    assert!(missing.all(is_named), "{what}: the bundle names {lost:?}, and {:?} are good", due.keys());
    (due, bundle)
}

/// Says in a campaign how far it is. No harness keeps it back: a campaign takes minutes.
fn progress(done: usize, places: usize, seed: u64, since: &SystemClock) {
    if places > FEW && (done.is_multiple_of(50) || done == places) {
        let line = format!("MEERKAT_SEED={seed}: {done} of {places} places, {} s\n", since.elapsed().as_secs());
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}

#[test]
fn a_changed_bit_ends_no_reading_in_silence_and_a_repair_keeps_what_is_good() {
    let (places, turns) = sizes();
    let written = Written::new(turns);
    let (seed, since) = (seed(), SystemClock::new());
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // Each place is found by the seed and its number alone, whoever comes to it.
    let work = || {
        let _ends = EndsAll(&next);
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= places {
                return;
            }
            written.flipped(n, &mut Random::new(seed.wrapping_add((n as u64) << 32)));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, places, seed, &since);
        }
    };
    thread::scope(|scope| {
        for _ in 1..AT_ONCE {
            scope.spawn(work);
        }
        work();
    });
}

/// Ends the work of all threads if that of one has failed.
struct EndsAll<'a>(&'a AtomicUsize);

impl Drop for EndsAll<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.store(usize::MAX / 2, Ordering::Relaxed);
        }
    }
}

/// What is changed, and what it held before: a session, and a fork of it that went on.
struct Written {
    place: Place,
    parent: SessionId,
    fork: SessionId,
    turns: usize,
    before: BTreeMap<SessionId, Lines>,
}

impl Written {
    fn new(turns: usize) -> Self {
        let place = Place::new();
        let (parent, fork, before) = place.process(true, async |process| {
            let parent = process.create().await;
            let mut fork = parent;
            for turn in 0..turns {
                process.service.start_turn(keyed(parent, turn)).await.unwrap();
                // Each fork ends a segment of its parent.
                if turn == turns / 3 || turn == turns / 2 {
                    fork = process.fork(parent, None).await.unwrap();
                }
            }
            for turn in 0..3 {
                process.service.start_turn(keyed(fork, turns + turn)).await.unwrap();
            }
            let mut before = BTreeMap::new();
            for id in [parent, fork] {
                before.insert(id, read(&process, id, &Lines::new(), false).await.lines);
            }
            (parent, fork, before)
        });
        Self { place, parent, fork, turns, before }
    }

    /// Returns the last seq and the keys of a session. A fork has keys of its own.
    fn due(&self, id: SessionId) -> (u64, Range<usize>) {
        let keys = if id == self.parent { 0..self.turns } else { self.turns..self.turns + 3 };
        (end(&self.before[&id]), keys)
    }

    /// Changes a bit of a copy, and does everything with it that a caller and an operator can do.
    fn flipped(&self, n: usize, random: &mut Random) {
        let place = copied(&self.place);
        let id = if n.is_multiple_of(2) { self.parent } else { self.fork };
        let what = &format!("place {n}: {}", flip(&place, id, random));
        let found = place.process(true, async |process| {
            let mut found = BTreeMap::new();
            for (id, before) in &self.before {
                found.insert(*id, check(&process, *id, before, what).await);
            }
            found
        });
        let (good, bundle) = &found[&id];
        Place::new().process(false, async |process| {
            process.service.import_bundle(whole(bundle, false)).await.unwrap();
            goes_on(&process, id, good, self.due(id), &format!("{what}, imported")).await;
        });
        let repaired = place.examine(true).findings;
        let is_done = |finding: &Finding| finding.mended || finding.severity == Severity::Warning;
        assert!(repaired.iter().all(is_done), "{what}: {repaired:#?}");
        place.process(false, async |process| {
            for (id, (good, _)) in &found {
                let (before, now) = (&self.before[id], read(&process, *id, good, false).await.lines);
                let kept = before.iter().filter(|(seq, line)| now.get(seq) == Some(line)).count();
                assert!(kept + 2 >= before.len(), "{what}: a repair kept {kept} of {}", before.len());
                goes_on(&process, *id, good, self.due(*id), &format!("{what}, repaired")).await;
            }
        });
    }
}
