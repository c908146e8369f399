//! How many files a section may have, and how much work its events may make, with smaller numbers than those of the
//! product.

use std::sync::Arc;

use super::{
    FORMAT, FileRow, Manifest, Name,
    archive::{header, padding},
    sha256,
    verify::{Rules, Sections, Upload},
};
use crate::{
    options::Limits,
    session::event::{Event, ReminderSet},
    session::reminder::SystemReminderType,
    session::tests::{created, record, session_id},
    store::{BlobStore as _, MemoryBlobStore},
    wire::encode_event,
};

const FILES_MAX: usize = 200;
const EFFORT_MAX: u64 = 1000;

fn add(out: &mut Vec<u8>, name: &Name, body: &[u8]) -> FileRow {
    let (name, bytes) = (name.to_string(), body.len() as u64);
    out.extend(header(&session_id().to_string(), &name, bytes).unwrap());
    out.extend_from_slice(body);
    out.resize(out.len() + padding(bytes) as usize, 0);
    FileRow { name, bytes, sha256: sha256(body) }
}

/// A session of one event, with so many files in all.
fn section(files: usize) -> Vec<u8> {
    section_of(&[created()], files)
}

fn section_of(events: &[Event], files: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let (mut lines, last_seq) = (Vec::new(), events.len() as u64);
    for (seq, event) in (1..).zip(events) {
        lines.extend_from_slice(&encode_event(&record(seq, None, event.clone())).unwrap());
        lines.push(b'\n');
    }
    let mut rows = vec![add(&mut out, &Name::Events { from: 1, to: last_seq }, &lines)];
    for body in (2..files).map(usize::to_le_bytes) {
        rows.push(add(&mut out, &Name::Blob(sha256(&body)), &body));
    }
    let format = FORMAT.to_owned();
    let manifest =
        Manifest { format, session_id: session_id(), last_seq, redacted: false, lost: Vec::new(), files: rows };
    add(&mut out, &Name::Manifest, &serde_json::to_vec(&manifest).unwrap());
    out
}

async fn refused(bundle: &[u8]) -> Option<String> {
    let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
    let mut writer = blobs.writer(session_id());
    writer.write(bundle).await.unwrap();
    let (hash, bytes) = writer.finish().await.unwrap();
    let upload = Upload { blobs, id: session_id(), hash, bytes };
    let latest = record(1, None, created()).time;
    let mut sections = Sections::of(&upload, Rules::new(latest, Limits::default()).at_most(FILES_MAX, EFFORT_MAX));
    loop {
        match sections.next().await {
            Ok(Some(_)) => {}
            Ok(None) => return None,
            Err(error) => return Some(error.to_string()),
        }
    }
}

/// So many files of a session are looked at, and no more; an export of many sessions may have more.
#[tokio::test]
async fn endless_files_are_refused() {
    assert_eq!(refused(&section(FILES_MAX)).await, None);
    let why = refused(&section(FILES_MAX + 1)).await.unwrap();
    assert!(why.contains("more than 200 files"), "{why}");
    let why = refused(&section(FILES_MAX).repeat(2)).await.unwrap();
    assert!(why.contains("twice"), "{why}");
}

/// Each of many reminders is searched for among all before it.
#[tokio::test]
async fn events_that_make_too_much_work_are_refused() {
    let set = |number: usize| {
        let kind = SystemReminderType::Custom(format!("kind{number}"));
        Event::ReminderSet(ReminderSet { kind, text: "x".to_owned(), automatic: false })
    };
    let session = |kinds: usize, events: usize| {
        let events = std::iter::once(created()).chain((0..events).map(|number| set(number % kinds)));
        section_of(&events.collect::<Vec<_>>(), 2)
    };
    assert_eq!(refused(&session(32, 2000)).await, None);
    let why = refused(&session(2000, 2000)).await.unwrap();
    assert!(why.contains("too much work"), "{why}");
    // They are few enough to be read, and more than a session has.
    let why = refused(&session(33, 33)).await.unwrap();
    assert!(why.contains("33 reminders"), "{why}");
}
