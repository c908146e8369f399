//! A session whose journal is damaged in the middle: nothing that reads it ends there as if that were its end, and a
//! repair keeps what is good.

use std::{collections::BTreeMap, fs, ops::Range};

use bytes::Bytes;
use meerkat_service::{
    ErrorCode, SessionError, SessionId,
    doctor::Check,
    service::{ExportSession, HistoryItem, ReadEvents, ReadHistory, StartTurn, StepView, TurnStatus, TurnView},
};
use serde_json::Value;

use crate::stored::{Place, Process, number, pages, whole};

/// Turns of the session.
const TURNS: usize = 8;

pub(super) fn keyed(session_id: SessionId, turn: usize) -> StartTurn {
    let prompt = format!(r#"@call test_echo {{"text":"call {turn}."}} @say Text {turn}."#);
    StartTurn { idempotency_key: Some(format!("key-{turn}")), ..StartTurn::new(session_id, prompt) }
}

/// A session with some turns, each with a call and a key, and its lines.
fn stored(place: &Place) -> (SessionId, Lines) {
    place.process(true, async |process| {
        let session_id = process.create().await;
        for turn in 0..TURNS {
            let result = process.service.start_turn(keyed(session_id, turn)).await.unwrap();
            assert_eq!(result.status, TurnStatus::Completed);
        }
        (session_id, read(&process, session_id, &Lines::new(), false).await.lines)
    })
}

/// Lines of a session by their seqs.
pub(super) type Lines = BTreeMap<u64, Bytes>;

/// What a reading of events gave: its lines, the ranges that it named as damaged, and why it ended.
pub(super) struct Read {
    pub(super) lines: Lines,
    pub(super) lost: Vec<(u64, u64)>,
    pub(super) error: Option<SessionError>,
}

/// Reads all events. A line that is the same as that of the next seq in `before` needs no parsing.
pub(super) async fn read(process: &Process, session_id: SessionId, before: &Lines, skip_damage: bool) -> Read {
    let (mut read, mut since_seq) = (Read { lines: Lines::new(), lost: Vec::new(), error: None }, 0);
    loop {
        let request = ReadEvents { limit: Some(100), skip_damage, ..ReadEvents::new(session_id, since_seq) };
        let page = match process.service.events(request).await {
            Ok(page) if page.items.is_empty() => return read,
            Ok(page) => page,
            Err(error) => {
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
                None => read.lost.push((number(&line, "from"), number(&line, "to"))),
            }
        }
        since_seq = page.next_seq;
    }
}

pub(super) fn last_good(error: &SessionError) -> u64 {
    assert_eq!(error.code(), ErrorCode::SessionCorrupted, "{error}");
    error.body().details["last_good_seq"].as_u64().unwrap()
}

/// What a session shows page by page, and the error at which each kind of page ends.
pub(super) struct Shown {
    messages: Vec<HistoryItem>,
    steps: Vec<StepView>,
    turns: Vec<TurnView>,
    pub(super) ends: [Option<SessionError>; 3],
}

pub(super) async fn shown(process: &Process, id: SessionId, limit: usize, skip_damage: bool) -> Shown {
    let (service, request) =
        (&process.service, ReadHistory { limit: Some(limit), skip_damage, ..ReadHistory::new(id) });
    let behind = |cursor| ReadHistory { cursor, ..request.clone() };
    let (messages, first) = pages(async |cursor| service.history(behind(cursor)).await).await;
    let (steps, second) = pages(async |cursor| service.steps(behind(cursor)).await).await;
    let (turns, third) = pages(async |cursor| service.turns(behind(cursor)).await).await;
    let ends = [first, second, third];
    Shown { messages: messages.concat(), steps: steps.concat(), turns: turns.concat(), ends }
}

impl Shown {
    fn turns(&self) -> Vec<u32> {
        self.turns.iter().map(|turn| turn.turn).collect()
    }
}

/// Checks that a session has these lines, runs no key again, and goes on behind all that it ever had.
pub(super) async fn goes_on(
    process: &Process,
    id: SessionId,
    good: &Lines,
    (end, keys): (u64, Range<usize>),
    what: &str,
) {
    let now = read(process, id, good, false).await;
    assert!(now.error.is_none(), "{what}");
    assert!(
        good.iter().all(|(seq, line)| now.lines.get(seq) == Some(line)),
        "{what}: a good event is gone, or changed"
    );
    // Also not that of a lost turn.
    for turn in keys {
        drop(process.service.start_turn(keyed(id, turn)).await);
    }
    let after = read(process, id, &now.lines, false).await.lines;
    assert_eq!(after.len(), now.lines.len(), "{what}: a key ran again");
    let next = StartTurn { model: Some("scripted".to_owned()), ..StartTurn::new(id, "@say Next.") };
    assert_eq!(process.service.start_turn(next).await.unwrap().text, "Next.", "{what}");
    let added = read(process, id, &now.lines, false).await.lines;
    let new: Vec<&u64> = added.keys().filter(|seq| !good.contains_key(seq)).collect();
    assert!(new.iter().all(|seq| **seq > end), "{what}: {new:?} were used before");
}

/// The bundle of a session without what is damaged, and the ranges that it leaves out.
pub(super) async fn without_damage(process: &Process, id: SessionId, redact: bool) -> (Vec<u8>, Vec<(u64, u64)>) {
    process.bundle(ExportSession { redact, skip_damage: true, ..ExportSession::new(id) }).await.unwrap()
}

#[test]
fn every_way_to_read_a_damaged_session_says_where_it_stops() {
    let place = Place::new();
    let (id, before) = stored(&place);
    place.damage(id, "Text 3.");
    place.process(true, async |process| {
        let service = process.service.as_ref();
        let strict = read(&process, id, &before, false).await;
        let (last, end) = (last_good(&strict.error.unwrap()), before.len() as u64);
        assert!(strict.lines.iter().eq(before.range(..=last)) && last > 10 && last < end - 10, "{last} of {end}");
        let mut follower = service.follow(&id, 0).await.unwrap();
        for seq in 1..=last {
            assert_eq!(follower.next().await.unwrap().unwrap().seq, Some(seq));
        }
        let streamed = follower.next().await.unwrap_err();
        let shown = shown(&process, id, 2, false).await;
        // Of messages the beginning comes first, of the others the end.
        let seqs: Vec<u64> = shown.messages.iter().map(|item| item.seq).collect();
        assert!(!seqs.is_empty() && seqs.iter().all(|seq| *seq <= last), "{seqs:?}");
        let seqs: Vec<u64> = shown.steps.iter().map(|item| item.seq).collect();
        assert!(!seqs.is_empty() && seqs.iter().all(|seq| *seq > last), "{seqs:?}");
        assert_eq!(shown.turns(), [7, 6, 5, 4]);
        let export = service.export_session(ExportSession::new(id)).await.unwrap_err();
        let fork = process.fork(id, None).await.unwrap_err();
        for error in shown.ends.into_iter().flatten().chain([streamed, export, fork]) {
            assert_eq!(last_good(&error), last);
        }
        assert_eq!(process.turn(id, "@say Next.").await.unwrap_err().code(), ErrorCode::SessionCorrupted);
        // What comes behind the damage can be read by whoever has what is before.
        let request = ReadEvents { limit: Some(100), ..ReadEvents::new(id, last + 1) };
        assert!(service.events(request).await.unwrap().items.iter().eq(before.range(last + 2..).map(|(_, line)| line)));
    });
}

/// A caller that asks for it gets everything that is good, and reads which events it passes over.
#[test]
fn who_passes_over_damage_gets_all_that_is_good_and_reads_what_is_not() {
    let place = Place::new();
    let (id, mut good) = stored(&place);
    let before: Vec<Value> = good.values().map(|line| serde_json::from_slice(line).unwrap()).collect();
    place.damage(id, "Text 3.");
    place.process(true, async |process| {
        let bad = last_good(&read(&process, id, &good, false).await.error.unwrap()) + 1;
        good.remove(&bad);
        let lenient = read(&process, id, &good, true).await;
        assert!(lenient.lines == good && lenient.lost == [(bad, bad)] && lenient.error.is_none());
        let request = ReadEvents { skip_damage: true, ..ReadEvents::new(id, 0) };
        let mut follower = process.service.follow_events(request).await.unwrap();
        for seq in 1..=before.len() as u64 {
            let line = follower.next().await.unwrap().unwrap().line;
            if seq == bad {
                let gap: Value = serde_json::from_slice(&line).unwrap();
                assert_eq!((&gap["type"], &gap["reason"]), (&"pruned".into(), &"damage".into()));
                assert_eq!(["after", "from", "to"].map(|field| number(&gap, field)), [bad - 1, bad, bad]);
            } else {
                assert_eq!(line, good[&seq]);
            }
        }
        let shown = shown(&process, id, 2, true).await;
        assert!(shown.ends.iter().all(Option::is_none), "{:?}", shown.ends);
        let of_type = |names: &[&str]| -> Vec<(u64, bool)> {
            let events = before.iter().filter(|line| names.iter().any(|name| line["type"] == *name));
            events.map(|line| number(line, "seq")).map(|seq| (seq, seq == bad)).collect()
        };
        // Messages say the range at its place: it was one of them, the start of turn 3.
        let messages: Vec<_> = shown.messages.iter().map(|item| (item.seq, item.role == "damaged")).collect();
        assert_eq!(messages, of_type(&["turn_started", "assistant_message", "tool_finished"]));
        // Those that begin with the end come to the beginning.
        let steps: Vec<_> = shown.steps.iter().rev().map(|step| (step.seq, false)).collect();
        assert_eq!(steps, of_type(&["assistant_message"]));
        assert_eq!(shown.turns(), [7, 6, 5, 4, 2, 1, 0]);
    });
}

/// One call's result is lost; those of the others of its step are there, before a repair and after it.
#[test]
fn good_results_are_shown_beside_a_lost_one() {
    const TEXTS: [&str; 3] = ["one", "two", "three"];
    for lost in TEXTS {
        let place = Place::new();
        let calls = TEXTS.map(|text| format!(r#"@call test_echo {{"text":"{text}"}} "#)).concat();
        let id = place.process(true, async |process| {
            let id = process.create().await;
            process.turn(id, &format!("{calls} @say Done.")).await.unwrap();
            id
        });
        place.damage(id, &format!(r#""output":"{lost}""#));
        for is_repaired in [false, true] {
            if is_repaired {
                place.examine(true);
            }
            place.process(true, async |process| {
                for limit in [1, 2, 9] {
                    let mut items = shown(&process, id, limit, true).await.messages;
                    let seqs: Vec<u64> = items.iter().map(|item| item.seq).collect();
                    assert!(seqs.is_sorted_by(|one, next| one < next), "{lost} {limit}: {seqs:?}");
                    items.retain(|item| !["damaged", "pruned"].contains(&item.role.as_str()));
                    let roles: Vec<&str> = items.iter().map(|item| item.role.as_str()).collect();
                    assert_eq!(roles, ["user", "assistant", "tool_results", "assistant"], "{lost} {is_repaired}");
                    let shown = serde_json::to_string(&items[2].message).unwrap();
                    let is_there = |text: &&str| shown.contains(&format!(r#""content":"{text}""#));
                    let good: Vec<&str> = TEXTS.into_iter().filter(is_there).collect();
                    assert!(good.len() == 2 && !good.contains(&lost), "{lost} {is_repaired}: {shown}");
                }
            });
        }
    }
}

/// Whatever a lost event began or ended, a repair keeps the others, and a bundle that leaves out what is damaged makes
/// the same session. It goes on, no event is numbered again and no key runs twice.
#[test]
fn a_repair_and_a_bundle_make_the_same_session_that_goes_on_and_knows_its_keys() {
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
        let (id, mut good) = stored(&place);
        let end = good.len() as u64;
        place.damage(id, text);
        let (bundle, redacted, ranges) = place.process(true, async |process| {
            let (bundle, ranges) = without_damage(&process, id, false).await;
            assert_eq!(without_damage(&process, id, false).await, (bundle.clone(), ranges.clone()), "{text}");
            (bundle, without_damage(&process, id, true).await.0, ranges)
        });
        good.retain(|seq, _| !ranges.iter().any(|(from, to)| (from..=to).contains(&seq)));
        let found = place.examine(true).findings;
        assert!(found.iter().all(|finding| finding.mended), "{text}: {found:#?}");
        let found = place.examine(false).findings;
        assert!(found.iter().all(|finding| finding.check == Check::Index), "{text}: {found:#?}");
        let repaired = place.process(true, async |process| {
            let repaired = read(&process, id, &good, false).await.lines;
            let (seq, last) = repaired.last_key_value().unwrap();
            let last: Value = serde_json::from_slice(last).unwrap();
            assert_eq!((&last["type"], *seq, repaired.len()), (&"records_lost".into(), end + 1, good.len() + 1));
            assert_eq!(last["ranges"], serde_json::to_value(&ranges).unwrap(), "{text}");
            assert_eq!(last["keys_unknown"], false, "{text}: the index knows them all");
            goes_on(&process, id, &good, (end, 0..TURNS), text).await;
            let shown = shown(&process, id, 3, false).await;
            assert!(shown.ends[2].is_none() && shown.turns()[0] == TURNS as u32, "{text}: {:?}", shown.turns());
            repaired
        });
        assert_eq!(place.examine(false).findings, [], "{text}");
        for bundle in [bundle, redacted] {
            Place::new().process(true, async |process| {
                let imported = process.service.import_bundle(whole(&bundle, false)).await.unwrap().sessions;
                assert_eq!((imported[0].session_id, &imported[0].lost), (id, &ranges), "{text}");
                // What an import adds comes behind, at the earliest after everything that the session ever had.
                let lines = read(&process, id, &good, false).await.lines;
                let parts = |(seq, line): (&u64, &Bytes)| {
                    let mut line: Value = serde_json::from_slice(line).unwrap();
                    line.as_object_mut().unwrap().retain(|name, _| name != "time");
                    (*seq, line)
                };
                let same: Vec<_> = lines.iter().take(repaired.len()).map(parts).collect();
                assert_eq!(same, repaired.iter().map(parts).collect::<Vec<_>>(), "{text}");
                goes_on(&process, id, &good, (end, 0..TURNS), text).await;
            });
        }
    }
}

/// Behind a lost end there is nothing to go on with: who passes over damage is told as well.
#[test]
fn a_lost_end_is_said_also_to_who_passes_over_damage() {
    let place = Place::new();
    let (id, before) = stored(&place);
    let end = before.len() as u64;
    // The footer says that there was more.
    let (path, at) = place.damage(id, "Text 7.");
    let mut cut = fs::read(&path).unwrap();
    cut[at..].fill(0);
    fs::write(path, cut).unwrap();
    let (bundle, lost) = place.process(true, async |process| {
        let lenient = read(&process, id, &before, true).await;
        let last = last_good(&lenient.error.expect("a lost end looks like the end of the session"));
        assert!(lenient.lines.iter().eq(before.range(..=last)) && last > 10 && last < end, "{last} of {end}");
        let request = ReadEvents { skip_damage: true, ..ReadEvents::new(id, last) };
        let mut follower = process.service.follow_events(request).await.unwrap();
        assert_eq!(last_good(&follower.next().await.unwrap_err()), last);
        let shown = shown(&process, id, 2, true).await;
        assert_eq!(last_good(shown.ends[0].as_ref().unwrap()), last);
        assert!(shown.messages.len() > 5 && !shown.steps.is_empty() && !shown.turns.is_empty());
        let (bundle, lost) = without_damage(&process, id, false).await;
        assert_eq!(lost, [(last + 1, end)]);
        (bundle, lost)
    });
    // A copy does not use the seqs of what is lost again.
    Place::new().process(true, async |process| {
        let imported = process.service.import_bundle(whole(&bundle, false)).await.unwrap().sessions;
        assert_eq!(imported[0].lost, lost);
        assert_eq!(number(&process.until(id, "records_lost").await, "seq"), end + 1);
    });
}
