//! What a repair takes away and what it leaves: forks that share files, readers, and whatever it kept before.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _, path::Path};

use meerkat_service::{
    ErrorCode, SessionId,
    clock::Timestamp,
    doctor::{Check, Examination, Severity, examine},
    service::{AcknowledgeReader, FetchReader, ForkSession, NamedReader, WaitReader},
    store::{Registration, open_stores},
    wire::decode_event,
};

use super::{change, first_segment, segments};
use crate::stored::{Place, Process, files};

/// The bytes of each file beneath a folder.
pub(super) fn contents(root: &Path) -> BTreeMap<String, Vec<u8>> {
    files(root).into_iter().map(|name| (name.clone(), fs::read(root.join(name)).unwrap())).collect()
}

impl Place {
    fn fork(&self, session_id: SessionId) -> SessionId {
        self.process(true, |process| async move {
            process.service.fork(ForkSession { session_id, turn: None }).await.unwrap().session_id
        })
    }

    /// What was kept of whole segments.
    fn kept(&self) -> Vec<String> {
        files(&self.data_dir()).into_iter().filter(|name| name.contains(".whole")).collect()
    }
}

impl Process {
    async fn registered(&self, session_id: SessionId, seq: u64) {
        let reader = "billing".to_owned();
        self.service.create_reader(NamedReader { reader: reader.clone() }).await.unwrap();
        self.service.acknowledge_reader(AcknowledgeReader { reader, session_id, seq }).await.unwrap();
    }

    async fn checkpoint(&self, session_id: SessionId) -> u64 {
        let request = WaitReader { reader: "billing".to_owned(), session_id, seq: 0, wait_ms: 0 };
        self.service.wait_reader(request).await.unwrap().seq
    }
}

/// A repair of the parent once cut the segment that both name, and then both wrote to it.
#[test]
fn a_repair_leaves_a_fork_as_it_was() {
    let place = Place::new();
    let id = place.long();
    let child = place.fork(id);
    let [shared, of_child] = [id, child].map(|id| first_segment(&place, id));
    assert_eq!(fs::metadata(&shared).unwrap().ino(), fs::metadata(&of_child).unwrap().ino(), "they share a file");
    let before = contents(&place.session_dir(child));
    // The header of the parent's second segment, which is its own.
    change(&segments(&place, id)[1], 40);
    assert_eq!(place.starts(id).1, Err(ErrorCode::SessionCorrupted));
    place.examine(true);
    assert!(contents(&place.session_dir(child)) == before, "the fork changed");
    assert!(place.starts(id).1.is_ok());
    assert!(contents(&place.session_dir(child)) == before, "the parent wrote to the fork's file");
    assert!(place.starts(child).1.is_ok());
    assert_eq!(place.examine(false).findings, []);
}

/// Each of them loses the record that both share, and nothing else.
#[test]
fn a_fork_whose_shared_part_is_damaged_is_repaired_like_its_parent() {
    let place = Place::new();
    let id = place.long();
    let child = place.fork(id);
    let before = [id, child].map(|id| segments(&place, id).len());
    change(&first_segment(&place, id), 4_000_000);
    let found = place.examine(true).findings;
    for id in [id, child] {
        assert!(found.iter().any(|it| it.session_id == Some(id) && it.mended), "{found:#?}");
        assert!(place.starts(id).1.is_ok());
    }
    assert_eq!([id, child].map(|id| segments(&place, id).len()), before.map(|count| count + 1));
    assert!(!place.examine(false).findings.iter().any(|finding| finding.check == Check::Journal));
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
fn a_second_repair_keeps_what_the_first_one_kept() {
    let place = Place::new();
    let id = place.stored(&["@say One.", "@say Two.", "@say Three."]);
    let path = first_segment(&place, id);
    let whole = fs::read(&path).unwrap();
    let last = whole.windows(9).rposition(|window| window == b"@say Thre").unwrap();
    change(&path, last as u64);
    place.examine(true);
    assert_eq!(place.kept().len(), 1);
    // The rest of a batch stays, and does not look torn.
    change(&first_segment(&place, id), within_a_batch(&whole) as u64);
    let found = place.examine(true).findings;
    assert!(found.iter().any(|finding| finding.mended), "{found:#?}");
    assert_eq!(place.kept().len(), 2, "{:?}", place.kept());
    let found = place.examine(false).findings;
    assert!(!found.iter().any(|finding| finding.check == Check::Journal), "{found:#?}");
    assert_eq!(place.starts(id).1, Ok("Next.".to_owned()));
    assert_eq!(place.examine(false).findings, []);
}

/// The index knows that their batch was acknowledged, so it was no write that was cut off.
#[test]
fn a_changed_bit_in_the_last_batch_is_damage_and_costs_its_event_alone() {
    for text in [r#""type":"assistant_message""#, r#""type":"turn_completed""#] {
        let place = Place::new();
        let id = place.stored(&["@say One.", "@say Two."]);
        let before = place.process(true, |process| async move { process.lines(id).await });
        let path = first_segment(&place, id);
        let at = fs::read(&path).unwrap().windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap();
        change(&path, at as u64);
        let of_journal = |is_repair| {
            let found = place.examine(is_repair).findings.into_iter();
            found.filter(|finding| finding.check == Check::Journal).collect::<Vec<_>>()
        };
        let found = of_journal(false);
        assert!(matches!(&found[..], [only] if only.severity == Severity::Error), "{text}: {found:#?}");
        let lost = if text.contains("turn_completed") { before.len() } else { before.len() - 1 };
        assert!(found[0].what.contains(&format!("lost are the events {lost}")), "{text}: {found:#?}");
        assert!(of_journal(true)[0].mended, "{text}");
        let after = place.process(true, |process| async move { process.lines(id).await });
        let kept = before.iter().filter(|line| after.contains(line)).count();
        assert_eq!(kept, before.len() - 1, "{text}: {after:#?}");
        assert_eq!(place.starts(id).1, Ok("Next.".to_owned()), "{text}");
        assert_eq!(place.examine(false).findings, [], "{text}");
    }
}

#[test]
fn a_reader_that_had_all_events_gets_the_one_that_says_what_is_lost() {
    let place = Place::new();
    let id = place.stored(&["@say One.", "@say Two.", "@say Three."]);
    let tail = place.process(true, |process| async move {
        let tail = process.lines(id).await.len() as u64;
        process.registered(id, tail).await;
        tail
    });
    let path = first_segment(&place, id);
    let at = fs::read(&path).unwrap().windows(7).position(|window| window == b"@say Tw").unwrap();
    change(&path, at as u64);
    let found = place.examine(true).findings;
    assert!(found.iter().any(|finding| finding.what.contains("all other events are kept")), "{found:#?}");
    place.process(true, |process| async move {
        assert_eq!(process.checkpoint(id).await, tail);
        process.turn(id, "@say Next.").await.unwrap();
        let request = FetchReader { reader: "billing".to_owned(), limit: Some(1000), wait_ms: 0 };
        let fetched = process.service.fetch_reader(request).await.unwrap().items;
        let seqs: Vec<u64> = fetched.iter().map(|record| record.seq).collect();
        assert_eq!(seqs, (tail + 1..=tail + 4).collect::<Vec<_>>(), "what is lost, and a turn");
    });
}

#[test]
fn an_index_that_a_kill_left_behind_is_for_the_next_start() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    place.process(true, |process| async move { process.registered(id, 3).await });
    let path = place.data_dir().join("index.redb");
    let early = fs::read(&path).unwrap();
    place.process(false, |process| async move { process.turn(id, "@say Two.").await.unwrap() });
    // What the index had committed when it was killed.
    fs::write(&path, &early).unwrap();
    let found = place.finding();
    assert_eq!((found.check, found.severity), (Check::Index, Severity::Warning));
    assert!(found.remedy.contains("next start") && !found.remedy.contains("--repair"), "{found:?}");
    let found = place.examine(true).findings;
    assert!(found.iter().all(|finding| !finding.mended), "{found:#?}");
    assert!(fs::read(&path).unwrap() == early, "the index changed");
    place.process(true, |process| async move { assert_eq!(process.checkpoint(id).await, 3) });
    assert_eq!(place.examine(false).findings, []);
}

#[test]
fn an_index_that_cannot_be_read_is_set_aside() {
    let place = Place::new();
    let id = place.stored(&["@say One."]);
    let path = place.data_dir().join("index.redb");
    fs::write(&path, b"no table").unwrap();
    let found = place.finding();
    assert_eq!((found.check, found.severity), (Check::Index, Severity::Warning));
    assert!(place.examine(true).findings[0].mended);
    assert_eq!(fs::read(place.data_dir().join("index.redb.set-aside-1")).unwrap(), b"no table");
    assert_eq!(place.starts(id).1, Ok("Next.".to_owned()));
    assert_eq!(place.examine(false).findings, []);
}

#[test]
fn one_file_that_cannot_be_read_hides_no_other() {
    let place = Place::new();
    let [bad, torn] = [place.stored(&["@say One."]), place.stored(&["@say One."])];
    let path = first_segment(&place, bad);
    let moved = place.dir.path().join("moved");
    fs::rename(&path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &path).unwrap();
    change(&first_segment(&place, torn), 200);
    let found = place.examine(false).findings;
    let of = |id| found.iter().any(|it| it.session_id == Some(id) && it.severity == Severity::Error);
    assert!(of(bad) && of(torn), "{found:#?}");
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
    let lines = template.process(true, |process| async move { process.lines(id).await });
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
    place.process(true, |process| async move { process.service.read(&id).await.unwrap() });
    let found = place.finding();
    assert_eq!((found.check, found.severity), (Check::Readers, Severity::Warning));
    assert!(found.what.contains("`old`") && found.remedy.contains("meerkat call reader/delete"), "{found:?}");
}
