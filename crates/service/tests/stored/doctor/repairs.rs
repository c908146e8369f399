//! What a repair takes away and what it leaves: forks that share files, readers, and whatever it kept before.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _};

use meerkat_service::{
    ErrorCode, SessionId,
    clock::Timestamp,
    doctor::{Check, Examination, Severity, examine},
    service::{FetchReader, WaitReader},
    store::{Registration, open_stores},
    wire::decode_event,
};

use super::GOES_ON;
use crate::stored::{Place, Process, change, contents};

impl Place {
    fn fork(&self, session_id: SessionId) -> SessionId {
        self.process(true, async |process| process.fork(session_id, None).await.unwrap())
    }

    /// The whole segments that repairs took away.
    fn kept(&self) -> BTreeMap<String, Vec<u8>> {
        let mut kept = contents(&self.data_dir().join("quarantine"));
        kept.retain(|name, _| name.contains(".whole"));
        kept
    }

    fn has_damaged_journal(&self) -> bool {
        self.examine(false).findings.iter().any(|finding| finding.check == Check::Journal)
    }
}

async fn checkpoint(process: &Process, session_id: SessionId) -> u64 {
    let request = WaitReader { reader: "one".to_owned(), session_id, seq: 0, wait_ms: 0 };
    process.service.wait_reader(request).await.unwrap().seq
}

/// A repair of the parent once cut the segment that both name, and then both wrote to it.
#[test]
fn a_repair_leaves_a_fork_as_it_was() {
    let place = Place::new();
    let id = place.long();
    let child = place.fork(id);
    let inodes = [id, child].map(|id| fs::metadata(&place.segments(id)[0]).unwrap().ino());
    assert_eq!(inodes[0], inodes[1], "they share a file");
    let before = contents(&place.session_dir(child));
    // The header of the parent's second segment, which is its own.
    change(&place.segments(id)[1], 40, 1);
    assert_eq!(place.goes_on(id), Err(ErrorCode::SessionCorrupted));
    place.examine(true);
    assert!(contents(&place.session_dir(child)) == before, "the fork changed");
    assert!(place.goes_on(id).is_ok());
    assert!(contents(&place.session_dir(child)) == before, "the parent wrote to the fork's file");
    assert!(place.goes_on(child).is_ok());
    place.is_sound();
}

/// Each of them loses the record that both share, and nothing else.
#[test]
fn a_fork_whose_shared_part_is_damaged_is_repaired_like_its_parent() {
    let place = Place::new();
    let id = place.long();
    let ids = [id, place.fork(id)];
    let before = ids.map(|id| place.segments(id).len());
    change(&place.segments(id)[0], 4_000_000, 1);
    let found = place.examine(true).findings;
    for id in ids {
        assert!(found.iter().any(|it| it.session_id == Some(id) && it.mended), "{found:#?}");
        assert!(place.goes_on(id).is_ok());
    }
    assert_eq!(ids.map(|id| place.segments(id).len()), before.map(|count| count + 1));
    assert!(!place.has_damaged_journal());
}

/// The offset of the payload of a record that is not the first of its batch, after other batches.
fn within_a_batch(segment: &[u8]) -> usize {
    let (mut at, mut batches) = (128, 0);
    loop {
        let payload = u32::from_le_bytes(segment[at + 8..at + 12].try_into().unwrap());
        let is_end = segment[at + 14] & 1 == 1;
        at += (48 + payload as usize).next_multiple_of(8);
        batches += u32::from(is_end);
        if !is_end && batches > 1 {
            return at + 48;
        }
    }
}

#[test]
fn a_changed_byte_is_found_and_repairs_keep_all_that_they_take_away() {
    let place = Place::new();
    let id = place.stored(&["@say One.", "@say Two.", "@say Three."]);
    let whole = fs::read(&place.segments(id)[0]).unwrap();
    place.damage(id, "@say Thre");
    let found = place.finds(Check::Journal, Severity::Error, "", "meerkat doctor --repair");
    assert_eq!(found.session_id, Some(id));
    assert_eq!(place.goes_on(id), Err(ErrorCode::SessionCorrupted));
    let changed = fs::read(&place.segments(id)[0]).unwrap();
    assert!(place.examine(true).findings.iter().all(|finding| finding.mended));
    let kept = place.kept();
    assert_eq!(kept.values().collect::<Vec<_>>(), [&changed], "nothing is thrown away");
    // The rest of a batch stays, and does not look torn.
    change(&place.segments(id)[0], within_a_batch(&whole), 1);
    assert!(place.examine(true).findings.iter().any(|finding| finding.mended));
    let both = place.kept();
    assert!(both.len() == 2 && kept.iter().all(|kept| both.contains_key(kept.0)), "{:?}", both.keys());
    assert!(!place.has_damaged_journal());
    assert_eq!(place.goes_on(id), GOES_ON);
    place.is_sound();
}

/// The index knows that their batch was acknowledged, so it was no write that was cut off.
#[test]
fn a_changed_bit_in_the_last_batch_is_damage_and_costs_its_event_alone() {
    for (text, from_end) in [(r#""type":"assistant_message""#, 1), (r#""type":"turn_completed""#, 0)] {
        let place = Place::new();
        let id = place.stored(&["@say One.", "@say Two."]);
        let before = place.process(true, async |process| process.lines(id).await);
        let path = place.segments(id).remove(0);
        let bytes = fs::read(&path).unwrap();
        change(&path, bytes.windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap(), 1);
        let of_journal = |is_repair| {
            let mut found = place.examine(is_repair).findings;
            found.retain(|finding| finding.check == Check::Journal);
            let [only] = &found[..] else { panic!("{text}: {found:#?}") };
            only.clone()
        };
        let found = of_journal(false);
        assert_eq!(found.severity, Severity::Error, "{text}: {found:#?}");
        let lost = format!("lost are the events {}", before.len() - from_end);
        assert!(found.what.contains(&lost), "{text}: {found:#?}");
        assert!(of_journal(true).mended, "{text}");
        let after = place.process(true, async |process| process.lines(id).await);
        let kept = before.iter().filter(|line| after.contains(line)).count();
        assert_eq!(kept, before.len() - 1, "{text}: {after:#?}");
        assert_eq!(place.goes_on(id), GOES_ON, "{text}");
        assert_eq!(place.examine(false).findings, [], "{text}");
    }
}

#[test]
fn a_reader_that_had_all_events_gets_the_one_that_says_what_is_lost() {
    let place = Place::new();
    let id = place.stored(&["@say One.", "@say Two.", "@say Three."]);
    let tail = place.process(true, async |process| {
        process.is_read(id).await;
        process.last_seq(id).await
    });
    place.damage(id, "@say Tw");
    let found = place.examine(true).findings;
    assert!(found.iter().any(|finding| finding.what.contains("all other events are kept")), "{found:#?}");
    place.process(true, async |process| {
        assert_eq!(checkpoint(&process, id).await, tail);
        process.turn(id, "@say Next.").await.unwrap();
        let request = FetchReader { reader: "one".to_owned(), limit: Some(1000), wait_ms: 0 };
        let fetched = process.service.fetch_reader(request).await.unwrap().items;
        let seqs: Vec<u64> = fetched.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, (tail + 1..=tail + 4).collect::<Vec<_>>(), "what is lost, and a turn");
    });
}

#[test]
fn an_index_that_a_kill_left_behind_is_for_the_next_start() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    place.process(true, async |process| {
        process.register("one").await;
        process.is_done("one", id, 3).await;
    });
    let early = fs::read(place.index()).unwrap();
    place.process(false, async |process| process.turn(id, "@say Two.").await.unwrap());
    // What the index had committed when it was killed.
    fs::write(place.index(), &early).unwrap();
    let found = place.finds(Check::Index, Severity::Warning, "", "next start");
    assert!(!found.remedy.contains("--repair"), "{found:?}");
    let found = place.examine(true).findings;
    assert!(found.iter().all(|finding| !finding.mended), "{found:#?}");
    assert!(fs::read(place.index()).unwrap() == early, "the index changed");
    place.process(true, async |process| assert_eq!(checkpoint(&process, id).await, 3));
    place.is_sound();
}

#[test]
fn an_index_that_cannot_be_read_is_set_aside() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    fs::write(place.index(), b"no table").unwrap();
    place.finds(Check::Index, Severity::Warning, "", "");
    assert!(place.examine(true).findings[0].mended);
    assert_eq!(fs::read(place.data_dir().join("index.redb.set-aside-1")).unwrap(), b"no table");
    assert_eq!(place.goes_on(id), GOES_ON);
    place.is_sound();
}

#[test]
fn one_file_that_cannot_be_read_hides_no_other() {
    let place = Place::new();
    let ids = [place.stored(&["@say One."]), place.stored(&["@say One."])];
    let (path, moved) = (place.segments(ids[0]).remove(0), place.dir.path().join("moved"));
    fs::rename(&path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &path).unwrap();
    change(&place.segments(ids[1])[0], 200, 1);
    let found = place.examine(false).findings;
    let of = |id| found.iter().any(|it| it.session_id == Some(id) && it.severity == Severity::Error);
    assert!(ids.into_iter().all(of), "{found:#?}");
}

#[test]
fn a_store_of_another_format_is_left_alone() {
    let place = Place::new();
    place.stored(&["@say One."]);
    fs::write(place.data_dir().join("format"), "meerkat store 3\n").unwrap();
    let before = contents(&place.data_dir());
    for is_repair in [false, true] {
        let what = Examination { data_dir: place.data_dir(), projection: None, is_repair };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let refused = runtime.block_on(examine(what, &|_, _| true)).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::StoreFormatUnsupported);
    }
    assert!(contents(&place.data_dir()) == before, "something changed");
}

#[test]
fn a_reader_that_does_not_come_is_found() {
    let template = Place::new();
    let id = template.stored(&["@say One."]);
    let lines = template.process(true, async |process| process.lines(id).await);
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stores = open_stores(&place.data_dir()).unwrap();
        for (reader, created_at) in [("old", 0), ("new", 4_000_000_000_000)] {
            let created_at = Timestamp::from_millis(created_at);
            stores.readers.register(Registration { reader: reader.to_owned(), created_at }).await.unwrap();
        }
        let mut records: Vec<_> = lines.iter().map(|line| decode_event(line).unwrap()).collect();
        records.iter_mut().for_each(|record| record.time = Timestamp::from_millis(0));
        let lease = stores.events.lease(id).await.unwrap();
        stores.events.stage(&lease, &records).unwrap().durable().await.unwrap();
        stores.events.release(lease).await.unwrap();
    });
    drop(runtime);
    place.process(true, async |process| process.view(id).await);
    place.finds(Check::Readers, Severity::Warning, "`old`", "meerkat call reader/delete");
}
