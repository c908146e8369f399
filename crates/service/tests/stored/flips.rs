//! One changed bit anywhere in the files of a session or of its fork, through everything that a caller holds: no reading
//! ends there in silence, and after a repair all good events are there and the session goes on.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{Seek as _, SeekFrom, Write as _},
    ops::Range,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use meerkat_service::{
    ErrorCode, SessionError, SessionId,
    clock::{Clock as _, SystemClock},
    doctor::{Finding, Severity},
    service::{ExportSession, ForkSession, ImportBundle, ReadEvents, ReadHistory, StartTurn},
};
use meerkat_testkit::{Random, campaigns::Part, seed};
use serde_json::Value;

use crate::stored::{Place, Process};

/// Lines of a session by their seqs.
type Lines = BTreeMap<u64, Bytes>;

/// Places at which a bit is changed if no campaign is asked for.
const FEW: usize = 8;
/// Places that are tried at once: each waits for the disk most of the time.
const AT_ONCE: usize = 4;

/// Places at which a bit is changed, and turns of the session: few of both, unless the campaign `journal` is asked for.
fn sizes() -> (usize, usize) {
    if Part::Journal.is_whole() { (1000, 300) } else { (FEW, 24) }
}

fn key(turn: usize) -> String {
    format!("key-{turn}")
}

fn keyed(session_id: SessionId, turn: usize) -> StartTurn {
    let prompt = format!(r#"@call test_echo {{"text":"call {turn}."}} @say Text {turn}."#);
    StartTurn { idempotency_key: Some(key(turn)), ..StartTurn::new(session_id, prompt) }
}

/// A session, and a fork of it that went on. Each fork ends a segment of its parent.
fn written(place: &Place, turns: usize) -> (SessionId, SessionId) {
    place.process(true, |process| async move {
        let parent = process.create().await;
        let mut fork = parent;
        for turn in 0..turns {
            process.service.start_turn(keyed(parent, turn)).await.unwrap();
            if turn == turns / 3 || turn == turns / 2 {
                fork = process.service.fork(ForkSession { session_id: parent, turn: None }).await.unwrap().session_id;
            }
        }
        for turn in 0..3 {
            process.service.start_turn(keyed(fork, turns + turn)).await.unwrap();
        }
        (parent, fork)
    })
}

fn segments(place: &Place, id: SessionId) -> Vec<PathBuf> {
    let id = id.to_string();
    let dir = place.data_dir().join("journal").join(&id[id.len() - 2..]).join(&id);
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|it| it == "mlog")).collect();
    paths.sort();
    paths
}

/// Changes a bit of a session's files, also for whoever shares the file; returns its place.
fn flip(place: &Place, id: SessionId, random: &mut Random) -> String {
    let paths = segments(place, id);
    let path = &paths[random.below(paths.len() as u64) as usize];
    let bytes = fs::read(path).unwrap();
    let at = random.below(bytes.len() as u64);
    let changed = bytes[at as usize] ^ (1 << random.below(8));
    let mut file = OpenOptions::new().write(true).open(path).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[changed]).unwrap();
    format!("{}, byte {at}", path.display())
}

/// A copy in which files that sessions share are shared as well.
fn copied(place: &Place) -> Place {
    let copy = Place::new();
    let done = Command::new("cp").arg("-a").arg(place.data_dir()).arg(copy.dir.path()).status().unwrap();
    assert!(done.success());
    copy
}

/// What a reading of events gave: its lines, the ranges that it named as damaged, and why it ended.
struct Read {
    lines: Lines,
    lost: Vec<(u64, u64)>,
    error: Option<SessionError>,
}

/// Reads all events. A line that is the same as that of the next seq in `before` needs no parsing.
async fn read(process: &Process, session_id: SessionId, before: &Lines, skip_damage: bool) -> Read {
    let (mut read, mut since_seq) = (Read { lines: Lines::new(), lost: Vec::new(), error: None }, 0);
    loop {
        let request = ReadEvents { limit: Some(100), skip_damage, ..ReadEvents::new(session_id, since_seq) };
        let page = match process.service.events(request).await {
            Ok(page) if page.items.is_empty() => return read,
            Ok(page) => page,
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::SessionCorrupted, "{error}");
                read.error = Some(error);
                return read;
            }
        };
        for text in page.items {
            let next = read.lines.last_key_value().map_or(0, |(seq, _)| *seq) + 1;
            if before.get(&next) == Some(&text) {
                read.lines.insert(next, text);
                continue;
            }
            let line: Value = serde_json::from_slice(&text).unwrap();
            match line["seq"].as_u64() {
                Some(seq) => drop(read.lines.insert(seq, text)),
                // What a repair closed, or an import took in, is missing for good.
                None if line["reason"] != "damage" => assert_eq!(line["type"], "pruned"),
                None => read.lost.push((line["from"].as_u64().unwrap(), line["to"].as_u64().unwrap())),
            }
        }
        since_seq = page.next_seq;
    }
}

fn last_good(error: &SessionError) -> u64 {
    error.body().details["last_good_seq"].as_u64().unwrap()
}

/// Reads messages or turns page by page; returns how many there are, and the error at the end if there is one.
async fn count<Reading>(ask: impl Fn(Option<String>) -> Reading) -> (usize, Option<ErrorCode>)
where
    Reading: Future<Output = Result<(usize, Option<String>), SessionError>>,
{
    let (mut all, mut cursor) = (0, None);
    loop {
        match ask(cursor).await {
            Err(error) => return (all, Some(error.code())),
            Ok((items, None)) => return (all + items, None),
            Ok((items, next)) => (all, cursor) = (all + items, next),
        }
    }
}

/// Checks every reading of a session; returns its good lines, and a bundle without damage.
async fn check(process: &Process, id: SessionId, before: &Lines, what: &str) -> (Lines, Vec<u8>) {
    let whole = *before.keys().next_back().unwrap();
    let strict = read(process, id, before, false).await;
    let is_damaged = strict.error.is_some();
    let end = strict.error.as_ref().map_or(whole, last_good);
    assert!(
        strict.lines.iter().eq(before.range(..=end)) && strict.lost.is_empty(),
        "{what}: it ends at {:?}",
        strict.lines.keys().last()
    );
    // Who passes over damage gets the rest, and reads what is missing.
    let lenient = read(process, id, before, true).await;
    let end = lenient.error.as_ref().map_or(whole, last_good);
    let is_lost = |seq: u64| lenient.lost.iter().any(|(from, to)| (*from..=*to).contains(&seq));
    let due: Lines =
        before.range(..=end).filter(|(seq, _)| !is_lost(**seq)).map(|(seq, line)| (*seq, line.clone())).collect();
    assert!(lenient.lines == due, "{what}: {:?} to {end}", lenient.lost);
    assert_eq!(is_damaged, due.len() != before.len(), "{what}");
    // A bit costs a record, or two if the next one needs it.
    assert!(due.len() + 2 >= before.len(), "{what}: {} of {}", due.len(), before.len());
    // No other reading ends in silence.
    let damaged = is_damaged.then_some(ErrorCode::SessionCorrupted);
    let request = |cursor| ReadHistory { cursor, limit: Some(100), ..ReadHistory::new(id) };
    let messages =
        async |cursor| process.service.history(request(cursor)).await.map(|page| (page.items.len(), page.next_cursor));
    assert_eq!(count(messages).await.1, damaged, "{what}: messages");
    let turns =
        async |cursor| process.service.turns(request(cursor)).await.map(|page| (page.items.len(), page.next_cursor));
    assert_eq!(count(turns).await.1, damaged, "{what}: turns");
    let steps =
        async |cursor| process.service.steps(request(cursor)).await.map(|page| (page.items.len(), page.next_cursor));
    assert_eq!(count(steps).await.1, damaged, "{what}: steps");
    let mut follower = process.service.follow(&id, 0).await.unwrap();
    let mut followed = 0;
    while followed < strict.lines.len() {
        assert!(follower.next().await.unwrap().unwrap().seq.is_some(), "{what}");
        followed += 1;
    }
    if is_damaged {
        assert_eq!(follower.next().await.unwrap_err().code(), ErrorCode::SessionCorrupted, "{what}: a stream");
    }
    // An export fails, or says what it leaves out.
    let export = async |skip_damage| {
        let (mut bytes, mut cursor) = (Vec::new(), None);
        loop {
            let request = ExportSession { skip_damage, cursor, ..ExportSession::new(id) };
            let page = process.service.export_session(request).await?;
            bytes.extend(BASE64_STANDARD.decode(page.data).unwrap());
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok::<_, SessionError>((bytes, page.lost));
            }
        }
    };
    assert_eq!(export(false).await.err().map(|error| error.code()), damaged, "{what}: an export");
    let (bundle, lost) = export(true).await.unwrap();
    let is_named = |seq: &u64| lost.iter().any(|(from, to)| (from..=to).contains(&seq));
    let missing = before.keys().filter(|seq| !due.contains_key(seq));
    assert!(
        missing.clone().all(is_named),
        "{what}: the bundle names {lost:?}, and {:?} are missing",
        missing.collect::<Vec<_>>()
    );
    (due, bundle)
}

/// Checks that a session has these lines, runs no key again, and goes on behind all that it ever had.
async fn goes_on(process: &Process, id: SessionId, good: &Lines, (whole, keys): (u64, Range<usize>), what: &str) {
    let now = read(process, id, good, false).await;
    assert!(now.error.is_none(), "{what}");
    assert!(
        good.iter().all(|(seq, line)| now.lines.get(seq) == Some(line)),
        "{what}: a good event is gone, or changed"
    );
    for turn in keys {
        drop(process.service.start_turn(keyed(id, turn)).await);
    }
    let after = read(process, id, &now.lines, false).await.lines;
    assert_eq!(after.len(), now.lines.len(), "{what}: a key ran again");
    let next = StartTurn { model: Some("scripted".to_owned()), ..StartTurn::new(id, "@say Next.") };
    assert_eq!(process.service.start_turn(next).await.unwrap().text, "Next.", "{what}");
    let added = read(process, id, &now.lines, false).await.lines;
    let new: Vec<&u64> = added.keys().filter(|seq| !good.contains_key(seq)).collect();
    assert!(new.iter().all(|seq| **seq > whole), "{what}: {new:?} were used before");
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
    let place = Place::new();
    let (parent, fork) = written(&place, turns);
    let before: BTreeMap<SessionId, Lines> = place.process(true, |process| async move {
        let mut before = BTreeMap::new();
        for id in [parent, fork] {
            before.insert(id, read(&process, id, &Lines::new(), false).await.lines);
        }
        before
    });
    let written = Written { place, parent, fork, turns, before };
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

/// What is changed, and what it held before.
struct Written {
    place: Place,
    parent: SessionId,
    fork: SessionId,
    turns: usize,
    before: BTreeMap<SessionId, Lines>,
}

impl Written {
    /// Returns the keys of a session. A fork has keys of its own.
    fn keys(&self, id: SessionId) -> Range<usize> {
        if id == self.parent { 0..self.turns } else { self.turns..self.turns + 3 }
    }

    fn whole(&self, id: SessionId) -> u64 {
        *self.before[&id].keys().next_back().unwrap()
    }

    /// Changes a bit of a copy, and does everything with it that a caller and an operator can do.
    fn flipped(&self, n: usize, random: &mut Random) {
        let place = copied(&self.place);
        let id = if n.is_multiple_of(2) { self.parent } else { self.fork };
        let what = format!("place {n}: {}", flip(&place, id, random));
        let at = &what;
        let found = place.process(true, |process| async move {
            let mut found = BTreeMap::new();
            for (id, before) in &self.before {
                found.insert(*id, check(&process, *id, before, at).await);
            }
            found
        });
        let (good, bundle) = &found[&id];
        let data = BASE64_STANDARD.encode(bundle);
        Place::new().process(false, |process| async move {
            let (upload, offset, is_last) = (None, 0, true);
            let request = ImportBundle { upload, offset, data, is_last, new_ids: false, keep_scope: false };
            process.service.import_bundle(request).await.unwrap();
            goes_on(&process, id, good, (self.whole(id), self.keys(id)), &format!("{at}, imported")).await;
        });
        let repaired = place.examine(true).findings;
        let is_done = |finding: &Finding| finding.mended || finding.severity == Severity::Warning;
        assert!(repaired.iter().all(is_done), "{what}: {repaired:#?}");
        place.process(false, |process| async move {
            for (id, (good, _)) in &found {
                let (before, now) = (&self.before[id], read(&process, *id, good, false).await.lines);
                let kept = before.iter().filter(|(seq, line)| now.get(seq) == Some(line)).count();
                assert!(kept + 2 >= before.len(), "{at}: a repair kept {kept} of {}", before.len());
                goes_on(&process, *id, good, (self.whole(*id), self.keys(*id)), &format!("{at}, repaired")).await;
            }
        });
    }
}
