//! How many files a section may have, with a smaller number than that of the product.

use std::sync::Arc;

use super::{
    FORMAT, FileRow, Manifest, Name,
    archive::{header, padding},
    sha256,
    verify::{Sections, Upload},
};
use crate::{
    session::tests::{created, record, session_id},
    store::{BlobStore as _, MemoryBlobStore},
    wire::encode_event,
};

const FILES_MAX: usize = 200;

fn add(out: &mut Vec<u8>, name: &Name, body: &[u8]) -> FileRow {
    let (name, bytes) = (name.to_string(), body.len() as u64);
    out.extend(header(&session_id().to_string(), &name, bytes).unwrap());
    out.extend_from_slice(body);
    out.resize(out.len() + padding(bytes) as usize, 0);
    FileRow { name, bytes, sha256: sha256(body) }
}

/// A session of one event, with so many files in all.
fn section(files: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let record = record(1, None, created());
    let line = [&encode_event(&record).unwrap()[..], b"\n"].concat();
    let mut rows = vec![add(&mut out, &Name::Events { from: 1, to: 1 }, &line)];
    for body in (2..files).map(usize::to_le_bytes) {
        rows.push(add(&mut out, &Name::Blob(sha256(&body)), &body));
    }
    let format = FORMAT.to_owned();
    let manifest =
        Manifest { format, session_id: session_id(), last_seq: 1, redacted: false, lost: Vec::new(), files: rows };
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
    let mut sections = Sections::of(&upload, latest).at_most(FILES_MAX);
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
