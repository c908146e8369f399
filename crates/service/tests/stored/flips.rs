//! One changed bit anywhere in the files of a session or of its fork, through everything that a caller holds: no reading
//! ends there in silence, and after a repair all good events are there and the session goes on.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::{Seek as _, SeekFrom, Write as _},
    ops::Range,
    path::PathBuf,
    process::Command,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    ErrorCode, SessionError, SessionId,
    doctor::{Finding, Severity},
    service::{ExportSession, ForkSession, ImportBundle, ReadEvents, ReadHistory, StartTurn},
};
use meerkat_testkit::{Random, seed};
use serde_json::Value;

use crate::{Place, Process};

/// Lines of a session by their seqs.
type Lines = BTreeMap<u64, String>;

/// Places at which a bit is changed, and turns of the session: few of both, unless the campaign `journal` is asked for.
fn sizes() -> (usize, usize) {
    let asked = std::env::var("MEERKAT_CAMPAIGNS").unwrap_or_default();
    if asked.split(',').any(|part| part == "journal" || part == "all") { (1000, 300) } else { (8, 24) }
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

async fn read(process: &Process, session_id: SessionId, skip_damage: bool) -> Read {
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
        for line in page.items {
            let text = String::from_utf8(line.to_vec()).unwrap();
            let line: Value = serde_json::from_str(&text).unwrap();
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

/// Checks every reading of a session; returns its good lines, true if its end is lost, and a bundle without damage.
async fn check(process: &Process, id: SessionId, before: &Lines, what: &str) -> (Lines, bool, Vec<u8>) {
    let whole = *before.keys().next_back().unwrap();
    let strict = read(process, id, false).await;
    let is_damaged = strict.error.is_some();
    let end = strict.error.as_ref().map_or(whole, last_good);
    let due: Lines = before.range(..=end).map(|(seq, line)| (*seq, line.clone())).collect();
    assert!(strict.lines == due && strict.lost.is_empty(), "{what}: it ends at {:?}", strict.lines.keys().last());
    // Who passes over damage gets the rest, and reads what is missing.
    let lenient = read(process, id, true).await;
    let end = lenient.error.as_ref().map_or(whole, last_good);
    let is_lost = |seq: u64| lenient.lost.iter().any(|(from, to)| (*from..=*to).contains(&seq));
    let due: Lines =
        before.range(..=end).filter(|(seq, _)| !is_lost(**seq)).map(|(seq, line)| (*seq, line.clone())).collect();
    assert!(lenient.lines == due, "{what}: {:?} to {end}", lenient.lost);
    assert_eq!(is_damaged, due.len() != before.len(), "{what}");
    // A bit costs a record, or two if the next one needs it. What is left of the last batch is in doubt up to a repair.
    assert!(due.len() + 2 >= before.len() || lenient.error.is_some(), "{what}: {} of {}", due.len(), before.len());
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
    (due, lenient.error.is_some(), bundle)
}

/// Checks that a session has these lines, runs no key again, and goes on behind all that it ever had.
async fn goes_on(process: &Process, id: SessionId, good: &Lines, (whole, keys): (u64, Range<usize>), what: &str) {
    let now = read(process, id, false).await;
    assert!(now.error.is_none(), "{what}");
    assert!(
        good.iter().all(|(seq, line)| now.lines.get(seq) == Some(line)),
        "{what}: a good event is gone, or changed"
    );
    for turn in keys {
        drop(process.service.start_turn(keyed(id, turn)).await);
    }
    let after = read(process, id, false).await.lines;
    assert_eq!(after.len(), now.lines.len(), "{what}: a key ran again");
    let next = StartTurn { model: Some("scripted".to_owned()), ..StartTurn::new(id, "@say Next.") };
    assert_eq!(process.service.start_turn(next).await.unwrap().text, "Next.", "{what}");
    let added = read(process, id, false).await.lines;
    let new: Vec<&u64> = added.keys().filter(|seq| !good.contains_key(seq)).collect();
    assert!(new.iter().all(|seq| **seq > whole), "{what}: {new:?} were used before");
}

#[test]
fn a_changed_bit_ends_no_reading_in_silence_and_a_repair_keeps_what_is_good() {
    let (places, turns) = sizes();
    let place = Place::new();
    let (parent, fork) = written(&place, turns);
    let before: BTreeMap<SessionId, Lines> = place.process(true, |process| async move {
        let mut before = BTreeMap::new();
        for id in [parent, fork] {
            before.insert(id, read(&process, id, false).await.lines);
        }
        before
    });
    // A fork has keys of its own.
    let keys = move |id| if id == parent { 0..turns } else { turns..turns + 3 };
    let mut random = Random::new(seed());
    for n in 0..places {
        let place = copied(&place);
        let id = if n % 2 == 0 { parent } else { fork };
        let what = flip(&place, id, &mut random);
        let (expected, at) = (before.clone(), what.clone());
        let found = place.process(true, |process| async move {
            let mut found = BTreeMap::new();
            for (id, before) in &expected {
                found.insert(*id, check(&process, *id, before, &at).await);
            }
            found
        });
        let (_, _, bundle) = &found[&id];
        let whole = *before[&id].keys().next_back().unwrap();
        let (data, good, at) = (BASE64_STANDARD.encode(bundle), found[&id].0.clone(), what.clone());
        Place::new().process(true, |process| async move {
            let (upload, offset, is_last) = (None, 0, true);
            let request = ImportBundle { upload, offset, data, is_last, new_ids: false, keep_scope: false };
            process.service.import_bundle(request).await.unwrap();
            goes_on(&process, id, &good, (whole, keys(id)), &format!("{at}, imported")).await;
        });
        let repaired = place.examine(true).findings;
        let is_done = |finding: &Finding| finding.mended || finding.severity == Severity::Warning;
        assert!(repaired.iter().all(is_done), "{what}: {repaired:#?}");
        let before = before.clone();
        place.process(true, |process| async move {
            for (id, (good, is_end_lost, _)) in &found {
                let now = read(&process, *id, false).await.lines;
                let kept = before[id].iter().filter(|(seq, line)| now.get(seq) == Some(line)).count();
                // Of a last batch whose end cannot be read, a repair may keep nothing: it looks like a write that was cut off.
                let due = if *is_end_lost { good.len() } else { before[id].len() - 2 };
                assert!(kept >= due, "{what}: a repair kept {kept} of {}", before[id].len());
                let whole = *before[id].keys().next_back().unwrap();
                goes_on(&process, *id, good, (whole, keys(*id)), &format!("{what}, repaired")).await;
            }
        });
    }
}
