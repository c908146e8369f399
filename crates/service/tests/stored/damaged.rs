//! A session whose journal is damaged in the middle: nothing that reads it ends there as if that were its end, and a
//! repair keeps what is good.

use std::{fs, path::PathBuf};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    ErrorCode, SessionError, SessionId,
    doctor::Check,
    service::{ExportSession, ForkSession, ImportBundle, ReadEvents, ReadHistory, StartTurn, TurnStatus},
};
use serde_json::Value;

use crate::stored::{Place, Process};

/// Turns of the session.
const TURNS: usize = 8;

/// The only segment of a session, in whatever generation.
fn segment(place: &Place, id: SessionId) -> PathBuf {
    let id = id.to_string();
    let dir = place.data_dir().join("journal").join(&id[id.len() - 2..]).join(&id);
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths = paths.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("1."));
    paths.next().unwrap()
}

/// Changes a bit of the place in a session's journal where this text is.
fn damage(place: &Place, id: SessionId, text: &str) {
    let path = segment(place, id);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn prompt(turn: usize) -> String {
    format!(r#"@call test_echo {{"text":"call {turn}."}} @say Text {turn}."#)
}

/// A session with some turns, each with a call and a key.
fn stored(place: &Place) -> SessionId {
    place.process(true, |process| async move {
        let session_id = process.create().await;
        for turn in 0..TURNS {
            let request =
                StartTurn { idempotency_key: Some(format!("key-{turn}")), ..StartTurn::new(session_id, prompt(turn)) };
            assert_eq!(process.service.start_turn(request).await.unwrap().status, TurnStatus::Completed);
        }
        session_id
    })
}

fn last_good(error: &SessionError) -> u64 {
    assert_eq!(error.code(), ErrorCode::SessionCorrupted, "{error}");
    error.body().details["last_good_seq"].as_u64().unwrap()
}

/// Reads pages until one fails, or is the last; returns the seqs of the items.
async fn pages<Reading>(read: impl Fn(Option<String>) -> Reading) -> (Vec<u64>, Option<SessionError>)
where
    Reading: Future<Output = Result<(Vec<u64>, Option<String>), SessionError>>,
{
    let (mut all, mut cursor) = (Vec::new(), None);
    loop {
        match read(cursor).await {
            Err(error) => return (all, Some(error)),
            Ok((seqs, next)) => {
                all.extend(seqs);
                cursor = next;
                if cursor.is_none() {
                    return (all, None);
                }
            }
        }
    }
}

async fn events(process: &Process, session_id: SessionId) -> (Vec<u64>, Option<SessionError>) {
    let mut since_seq = 0;
    let mut all = Vec::new();
    loop {
        let request = ReadEvents { limit: Some(5), ..ReadEvents::new(session_id, since_seq) };
        match process.service.events(request).await {
            Err(error) => return (all, Some(error)),
            Ok(page) if page.items.is_empty() => return (all, None),
            Ok(page) => {
                let lines = page.items.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
                all.extend(lines.filter_map(|line| line["seq"].as_u64()));
                since_seq = page.next_seq;
            }
        }
    }
}

#[test]
fn every_way_to_read_a_damaged_session_says_where_it_stops() {
    let place = Place::new();
    let id = stored(&place);
    let whole = place.process(true, |process| async move { process.lines(id).await.len() as u64 });
    damage(&place, id, "Text 3.");
    place.process(true, |process| async move {
        let service = process.service.as_ref();
        let (seqs, error) = events(&process, id).await;
        let last = last_good(&error.unwrap());
        assert_eq!(seqs, (1..=last).collect::<Vec<_>>());
        assert!(last > 10 && last < whole - 10, "{last} of {whole}");
        let mut follower = service.follow(&id, 0).await.unwrap();
        for seq in 1..=last {
            assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(seq));
        }
        assert_eq!(last_good(&follower.next().await.unwrap_err()), last);
        // The beginning comes first.
        let read = async |cursor| {
            let page = service.history(ReadHistory { cursor, limit: Some(2), ..ReadHistory::new(id) }).await?;
            Ok((page.items.iter().map(|item| item.seq).collect(), page.next_cursor))
        };
        let (messages, error) = pages(read).await;
        assert_eq!(last_good(&error.unwrap()), last);
        assert!(!messages.is_empty() && messages.iter().all(|seq| *seq <= last), "{messages:?}");
        // The end comes first.
        let read = async |cursor| {
            let page = service.steps(ReadHistory { cursor, limit: Some(3), ..ReadHistory::new(id) }).await?;
            Ok((page.items.iter().map(|item| item.seq).collect(), page.next_cursor))
        };
        let (steps, error) = pages(read).await;
        assert_eq!(last_good(&error.unwrap()), last);
        assert!(!steps.is_empty() && steps.iter().all(|seq| *seq > last), "{steps:?}");
        let read = async |cursor| {
            let page = service.turns(ReadHistory { cursor, limit: Some(3), ..ReadHistory::new(id) }).await?;
            Ok((page.items.iter().map(|item| u64::from(item.turn)).collect(), page.next_cursor))
        };
        let (turns, error) = pages(read).await;
        assert_eq!(last_good(&error.unwrap()), last);
        assert_eq!(turns, [7, 6, 5, 4]);
        let export = service.export_session(ExportSession::new(id)).await;
        assert_eq!(last_good(&export.unwrap_err()), last);
        let fork = service.fork(ForkSession { session_id: id, turn: None }).await;
        assert_eq!(last_good(&fork.unwrap_err()), last);
        let refused = process.turn(id, "@say Next.").await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::SessionCorrupted);
        // What comes behind the damage can be read by whoever has what is before.
        let request = ReadEvents { limit: Some(100), ..ReadEvents::new(id, last + 1) };
        let behind = process.service.events(request).await.unwrap();
        assert_eq!(behind.items.len() as u64, whole - last - 1);
    });
}

/// A caller that asks for it gets everything that is good, and reads which events it passes over.
#[test]
fn who_passes_over_damage_gets_all_that_is_good_and_reads_what_is_not() {
    let place = Place::new();
    let id = stored(&place);
    let before = place.process(true, |process| async move { process.lines(id).await });
    damage(&place, id, "Text 3.");
    place.process(true, |process| async move {
        let service = process.service.as_ref();
        let (_, error) = events(&process, id).await;
        let bad = last_good(&error.unwrap()) + 1;
        let whole = before.len() as u64;
        let good: Vec<u64> = (1..=whole).filter(|seq| *seq != bad).collect();
        let gone = |line: &Value| {
            let is_gone = line["type"] == "pruned" && line["reason"] == "damage" && line["after"] == bad - 1;
            is_gone.then(|| (line["from"].as_u64().unwrap(), line["to"].as_u64().unwrap()))
        };
        // Page by page, and as a stream.
        let (mut lines, mut since_seq) = (Vec::new(), 0);
        loop {
            let request = ReadEvents { limit: Some(5), skip_damage: true, ..ReadEvents::new(id, since_seq) };
            let page = service.events(request).await.unwrap();
            if page.items.is_empty() {
                break;
            }
            lines.extend(page.items.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap()));
            since_seq = page.next_seq;
        }
        let request = ReadEvents { skip_damage: true, ..ReadEvents::new(id, 0) };
        let mut follower = service.follow_events(request).await.unwrap();
        for line in &lines {
            let followed: Value = serde_json::from_slice(&follower.next().await.unwrap().unwrap().line).unwrap();
            let is_same = ["type", "seq", "from", "to", "reason"].iter().all(|name| followed[name] == line[name]);
            assert!(is_same, "{followed} and {line}");
        }
        assert_eq!(lines.iter().filter_map(gone).collect::<Vec<_>>(), [(bad, bad)]);
        assert_eq!(lines.iter().filter_map(|line| line["seq"].as_u64()).collect::<Vec<_>>(), good);
        // Messages say the range at its place.
        let read = async |cursor| {
            let request = ReadHistory { cursor, limit: Some(2), skip_damage: true, ..ReadHistory::new(id) };
            let page = service.history(request).await?;
            let seqs = page.items.iter().map(|item| if item.role == "damaged" { 0 } else { item.seq });
            Ok((seqs.collect(), page.next_cursor))
        };
        let (messages, error) = pages(read).await;
        assert!(error.is_none(), "{error:?}");
        let of_type = |names: &[&str], skipped: u64| {
            let lines = before.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
            let seqs = lines.filter(|line| names.iter().any(|name| line["type"] == *name));
            seqs.map(|line| line["seq"].as_u64().unwrap()).filter(|seq| *seq != skipped).collect::<Vec<_>>()
        };
        let mut expected = of_type(&["turn_started", "assistant_message", "tool_finished"], bad);
        let at = expected.partition_point(|seq| *seq < bad);
        expected.insert(at, 0);
        assert_eq!(messages, expected);
        // Those that begin with the end come to the beginning.
        let request = ReadHistory { limit: Some(1000), skip_damage: true, ..ReadHistory::new(id) };
        let steps = service.steps(request.clone()).await.unwrap();
        let mut seqs: Vec<u64> = steps.items.iter().map(|step| step.seq).collect();
        seqs.reverse();
        assert_eq!((seqs, steps.next_cursor), (of_type(&["assistant_message"], bad), None));
        let turns = service.turns(request).await.unwrap();
        let turns: Vec<u32> = turns.items.iter().map(|item| item.turn).collect();
        // What is lost is the start of turn 3.
        assert_eq!(turns, [7, 6, 5, 4, 2, 1, 0]);
    });
}

/// One call's result is lost; those of the others of its step are there, before a repair and after it.
#[test]
fn good_results_are_shown_beside_a_lost_one() {
    for lost in ["one", "two", "three"] {
        let place = Place::new();
        let call = |text| format!(r#"@call test_echo {{"text":"{text}"}}"#);
        let prompt = format!("{} {} {} @say Done.", call("one"), call("two"), call("three"));
        let id = place.process(true, async |process| {
            let id = process.create().await;
            process.turn(id, &prompt).await.unwrap();
            id
        });
        damage(&place, id, &format!(r#""output":"{lost}""#));
        for is_repaired in [false, true] {
            if is_repaired {
                place.examine(true);
            }
            place.process(true, async |process| {
                for limit in [1, 2, 9] {
                    let (mut items, mut cursor) = (Vec::new(), None);
                    loop {
                        let request =
                            ReadHistory { cursor, limit: Some(limit), skip_damage: true, ..ReadHistory::new(id) };
                        let page = process.service.history(request).await.unwrap();
                        items.extend(page.items);
                        cursor = page.next_cursor;
                        if cursor.is_none() {
                            break;
                        }
                    }
                    let seqs: Vec<u64> = items.iter().map(|item| item.seq).collect();
                    assert!(seqs.is_sorted_by(|one, next| one < next), "{lost} {limit}: {seqs:?}");
                    items.retain(|item| !["damaged", "pruned"].contains(&item.role.as_str()));
                    let roles: Vec<&str> = items.iter().map(|item| item.role.as_str()).collect();
                    assert_eq!(roles, ["user", "assistant", "tool_results", "assistant"], "{lost} {is_repaired}");
                    let shown = serde_json::to_string(&items[2].message).unwrap();
                    let is_there = |text: &&str| shown.contains(&format!(r#""content":"{text}""#));
                    let good: Vec<&str> = ["one", "two", "three"].into_iter().filter(is_there).collect();
                    assert!(good.len() == 2 && !good.contains(&lost), "{lost} {is_repaired}: {shown}");
                }
            });
        }
    }
}

/// Reads a whole bundle of a damaged session, page by page.
async fn exported(process: &Process, session_id: SessionId, redact: bool) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut bytes, mut cursor) = (Vec::new(), None);
    loop {
        let request = ExportSession { redact, skip_damage: true, cursor, ..ExportSession::new(session_id) };
        let page = process.service.export_session(request.clone()).await.unwrap();
        bytes.extend(BASE64_STANDARD.decode(page.data).unwrap());
        cursor = page.next_cursor;
        if cursor.is_none() {
            return (bytes, page.lost);
        }
    }
}

/// A bundle that leaves out what is damaged says so, and makes the session that a repair would make.
#[test]
fn a_bundle_without_damaged_events_makes_the_session_that_a_repair_makes() {
    let lost = [r#""type":"session_created""#, r#""key":"key-3""#, r#""text":"Text 3.""#, r#""key":"key-7""#];
    for text in lost {
        let place = Place::new();
        let id = stored(&place);
        let whole = place.process(true, |process| async move { process.lines(id).await.len() as u64 });
        damage(&place, id, text);
        let (bundle, redacted, ranges) = place.process(true, |process| async move {
            let (bundle, ranges) = exported(&process, id, false).await;
            assert_eq!(exported(&process, id, false).await, (bundle.clone(), ranges.clone()), "{text}: it is another");
            (bundle, exported(&process, id, true).await.0, ranges)
        });
        assert!(place.examine(true).findings.iter().all(|finding| finding.mended), "{text}");
        let repaired = place.process(true, |process| async move { process.lines(id).await });
        for bundle in [bundle, redacted] {
            let expected = ranges.clone();
            let copy = Place::new().process(true, |process| async move {
                let request = ImportBundle {
                    upload: None,
                    offset: 0,
                    data: BASE64_STANDARD.encode(&bundle),
                    is_last: true,
                    new_ids: false,
                    keep_scope: false,
                };
                let imported = process.service.import_bundle(request).await.unwrap().sessions;
                assert_eq!((imported[0].session_id, &imported[0].lost), (id, &expected), "{text}");
                let lines = process.lines(id).await;
                // No key runs again, also not that of a lost turn, and the session goes on.
                for turn in 0..TURNS {
                    let key = Some(format!("key-{turn}"));
                    let request = StartTurn { idempotency_key: key, ..StartTurn::new(id, prompt(turn)) };
                    drop(process.service.start_turn(request).await);
                }
                let next = StartTurn { model: Some("scripted".to_owned()), ..StartTurn::new(id, "@say Next.") };
                let last = process.lines(id).await.len();
                assert_eq!(process.service.start_turn(next).await.unwrap().text, "Next.", "{text}");
                (lines, last)
            });
            let (lines, after) = copy;
            // What an import adds comes behind, at the earliest after everything that the session ever had.
            let (same, own) = lines.split_at(repaired.len());
            let parts = |line: &String| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                line.as_object_mut().unwrap().retain(|name, _| name != "time");
                line
            };
            assert!(same.iter().map(parts).eq(repaired.iter().map(parts)), "{text}: {same:#?}\n{repaired:#?}");
            let said: Value = serde_json::from_str(same.last().unwrap()).unwrap();
            assert_eq!((&said["type"], &said["seq"]), (&"records_lost".into(), &(whole + 1).into()), "{text}");
            assert_eq!(said["ranges"], serde_json::to_value(&ranges).unwrap(), "{text}");
            assert_eq!(after, lines.len(), "{text}: a key ran again: {own:#?}");
        }
    }
}

/// Behind a lost end there is nothing to go on with: who passes over damage is told as well.
#[test]
fn a_lost_end_is_said_also_to_who_passes_over_damage() {
    let place = Place::new();
    let id = stored(&place);
    let whole = place.process(true, |process| async move { process.lines(id).await.len() as u64 });
    // The footer says that there was more.
    let path = segment(&place, id);
    let bytes = fs::read(&path).unwrap();
    let text = b"Text 7.";
    let at = bytes.windows(text.len()).position(|window| window == text).unwrap();
    let tail = bytes.len();
    let mut cut = bytes;
    cut[at..tail].fill(0);
    fs::write(path, cut).unwrap();
    place.process(true, |process| async move {
        let service = process.service.as_ref();
        let mut lines = 0;
        let mut since_seq = 0;
        let error = loop {
            let request = ReadEvents { limit: Some(5), skip_damage: true, ..ReadEvents::new(id, since_seq) };
            match service.events(request).await {
                Ok(page) => {
                    assert!(!page.items.is_empty(), "a lost end looks like the end of the session");
                    (lines, since_seq) = (lines + page.items.len() as u64, page.next_seq);
                }
                Err(error) => break error,
            }
        };
        assert!(lines > 10 && lines < whole, "{lines} of {whole}");
        assert_eq!(last_good(&error), lines);
        let request = ReadEvents { skip_damage: true, ..ReadEvents::new(id, lines) };
        let mut follower = service.follow_events(request).await.unwrap();
        assert_eq!(last_good(&follower.next().await.unwrap_err()), lines);
        let read = async |cursor| {
            let request = ReadHistory { cursor, limit: Some(2), skip_damage: true, ..ReadHistory::new(id) };
            let page = service.history(request).await?;
            Ok((page.items.iter().map(|item| item.seq).collect(), page.next_cursor))
        };
        let (messages, error) = pages(read).await;
        assert_eq!(last_good(&error.unwrap()), lines);
        assert!(messages.len() > 5, "{messages:?}");
        let request = ReadHistory { skip_damage: true, ..ReadHistory::new(id) };
        assert!(!service.steps(request.clone()).await.unwrap().items.is_empty());
        assert!(!service.turns(request).await.unwrap().items.is_empty());
        // A copy does not use the seqs of what is lost again.
        let (bundle, lost) = exported(&process, id, false).await;
        assert_eq!(lost, [(lines + 1, whole)]);
        let data = BASE64_STANDARD.encode(&bundle);
        let (upload, offset, is_last) = (None, 0, true);
        let request = ImportBundle { upload, offset, data, is_last, new_ids: false, keep_scope: false };
        let other = Place::new();
        let copy = other.agent().build().unwrap();
        let imported = copy.service().import_bundle(request).await.unwrap().sessions;
        let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(id, 0) };
        let said = copy.service().events(request).await.unwrap().items;
        let said: Vec<Value> = said.iter().map(|line| serde_json::from_slice(line).unwrap()).collect();
        let said = said.iter().find(|line| line["type"] == "records_lost").unwrap();
        assert_eq!((&said["seq"], imported[0].lost.as_slice()), (&(whole + 1).into(), &lost[..]));
        copy.service().shut_down(1_000).await;
    });
}

/// Whatever a lost event began or ended: the session goes on, no event is numbered again and no key runs twice.
#[test]
fn a_repaired_session_goes_on_and_knows_its_keys() {
    let lost = [
        // What began the session, and a turn; what a model and a tool answered; and what ended a turn.
        r#""type":"session_created""#,
        r#""key":"key-3""#,
        r#""text":"Text 3.""#,
        r#""text":"call 3."#,
        r#""stop_reason":"end_turn","totals""#,
        r#""key":"key-7""#,
    ];
    for text in lost {
        let place = Place::new();
        let id = stored(&place);
        let before = place.process(true, |process| async move { process.lines(id).await });
        damage(&place, id, text);
        let found = place.examine(true).findings;
        assert!(found.iter().all(|finding| finding.mended), "{text}: {found:#?}");
        let found = place.examine(false).findings;
        assert!(found.iter().all(|finding| finding.check == Check::Index), "{text}: {found:#?}");
        place.process(true, |process| async move {
            let whole = before.len() as u64;
            let after = process.lines(id).await;
            let last: Value = serde_json::from_str(after.last().unwrap()).unwrap();
            assert_eq!((&last["type"], &last["seq"]), (&"records_lost".into(), &(whole + 1).into()), "{text}");
            let ranges = last["ranges"].as_array().unwrap();
            let is_lost = |seq: u64| {
                ranges.iter().any(|range| range[0].as_u64().unwrap() <= seq && seq <= range[1].as_u64().unwrap())
            };
            let good = before.iter().zip(1..).filter(|(_, seq)| !is_lost(*seq)).map(|(line, _)| line);
            let kept = after[..after.len() - 1].iter().filter(|line| !line.contains(r#""type":"pruned""#));
            assert!(kept.eq(good), "{text}: a good event is not there, or changed");
            assert_eq!(last["keys_unknown"], false, "{text}: the index knows them all");
            // No key runs again, also not that of a lost turn.
            for turn in 0..TURNS {
                let key = Some(format!("key-{turn}"));
                let request = StartTurn { idempotency_key: key, ..StartTurn::new(id, prompt(turn)) };
                drop(process.service.start_turn(request).await);
            }
            assert_eq!(process.lines(id).await.len(), after.len(), "{text}: a key ran again");
            let next = StartTurn { model: Some("scripted".to_owned()), ..StartTurn::new(id, "@say Next.") };
            assert_eq!(process.service.start_turn(next).await.unwrap().text, "Next.", "{text}");
            let read = async |cursor| {
                let page =
                    process.service.turns(ReadHistory { cursor, limit: Some(3), ..ReadHistory::new(id) }).await?;
                Ok((page.items.iter().map(|item| u64::from(item.turn)).collect(), page.next_cursor))
            };
            let (turns, error) = pages(read).await;
            assert!(error.is_none() && turns[0] == TURNS as u64, "{text}: {turns:?}");
        });
        assert_eq!(place.examine(false).findings, [], "{text}");
    }
}
