//! Uploads: what a prompt names by its blob was uploaded to this session, within a day, and waits in no fork and no
//! bundle until then.

use std::{
    collections::BTreeSet,
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{
    future,
    stream::{self, StreamExt as _},
};
use meerkat_service::{
    ErrorCode, SessionError, SessionId,
    clock::Timestamp,
    service::{Data, PromptBlock, PutBlob, ReadBlob, StartTurn, StoredBlob, TurnResult},
    store::{BlobStore, BlobWriter, StoreError, Stores, UPLOADS_MAX},
};
use meerkat_testkit::{until_async, until_got};
use sha2::{Digest as _, Sha256};

use crate::{
    common::camera::png,
    stored::{Place, Process},
};

const SECRET: &str = "sk-planted-0123456789abcdef";
const DAY_MS: i64 = 24 * 60 * 60 * 1000;

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn image(blob: &str) -> PromptBlock {
    PromptBlock::Image { media_type: "image/png".to_owned(), data: None, blob: Some(blob.to_owned()) }
}

fn text(blob: &str) -> PromptBlock {
    let (name, media_type) = ("a.txt".to_owned(), "text/plain".to_owned());
    PromptBlock::File { name, media_type, data: None, blob: Some(blob.to_owned()) }
}

impl Process {
    async fn put(&self, session_id: SessionId, bytes: &[u8]) -> Result<StoredBlob, SessionError> {
        let data = Data(Bytes::copy_from_slice(bytes));
        self.service.put_blob(PutBlob { session_id, data }).await
    }

    async fn show(&self, session_id: SessionId, block: PromptBlock) -> Result<TurnResult, SessionError> {
        let prompt = vec![block, PromptBlock::text("@echo blocks")];
        self.service.start_turn(StartTurn::new(session_id, prompt)).await
    }

    /// The whole blob, or the code of its refusal.
    async fn got(&self, session_id: SessionId, blob: &str) -> Result<Vec<u8>, ErrorCode> {
        let request = ReadBlob { session_id, blob: blob.to_owned(), offset: 0, limit: None };
        let page = self.service.blob(request).await.map_err(|error| error.code())?;
        Ok(page.bytes().unwrap())
    }

    /// Checks that a prompt and a reader find no such blob, and that nothing is recorded.
    async fn misses(&self, session_id: SessionId, blob: &str) {
        let before = self.last_seq(session_id).await;
        assert_eq!(self.show(session_id, image(blob)).await.unwrap_err().body().details["what"], "blob");
        assert_eq!(self.show(session_id, text(blob)).await.unwrap_err().code(), ErrorCode::ItemNotFound);
        assert_eq!(self.got(session_id, blob).await, Err(ErrorCode::ItemNotFound));
        assert_eq!(self.last_seq(session_id).await, before);
    }
}

/// Names of the files in a folder of a session, which may not be there.
fn names(place: &Place, session_id: SessionId, folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(place.session_dir(session_id).join(folder)).into_iter().flatten();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_blob_is_found_where_it_was_uploaded_and_belongs_to_what_names_it() {
    let place = Place::pruned();
    let (one, other) = place.process(true, async |process| {
        let (one, other) = (process.create().await, process.create().await);
        let StoredBlob { blob, bytes } = process.put(one, &png(1)).await.unwrap();
        assert_eq!((blob.as_str(), bytes), (sha256(&png(1)).as_str(), 29));
        assert_eq!(process.put(one, &png(1)).await.unwrap().blob, blob, "the same bytes are the same blob");
        let unused = process.put(one, &png(2)).await.unwrap().blob;
        assert_eq!(process.got(one, &blob).await, Ok(png(1)));
        process.misses(other, &blob).await;
        process.misses(one, &sha256(&png(3))).await;
        // It waits as it is, whatever becomes of the prompt that names it.
        let wrong = process.show(one, text(&blob)).await.unwrap_err().body();
        assert_eq!(wrong.details["field"], "prompt[0].blob");
        assert_eq!(names(&place, one, "uploads").len(), 2);

        let shown = process.show(one, image(&blob)).await.unwrap();
        assert_eq!(shown.text, "blocks: [Image 1: image/png, 640 x 480 pixels, 29 bytes]");
        // Once more: by now it is a blob of the session.
        process.show(one, image(&blob)).await.unwrap();
        assert_eq!(names(&place, one, "blobs"), BTreeSet::from([blob.clone()]));
        assert!(names(&place, one, "uploads").iter().all(|name| name.starts_with(&unused)));

        process.is_read(one).await;
        process.compact(one, false, true).await;
        let fork = process.fork(one, None).await.unwrap();
        let whole = process.export(one, false).await;
        let copy = process.takes(&whole, true).await;
        for copy in [fork, copy] {
            assert_eq!(process.got(copy, &blob).await, Ok(png(1)));
            process.misses(copy, &unused).await;
            process.show(copy, image(&blob)).await.unwrap();
        }
        assert_eq!(process.got(one, &unused).await, Ok(png(2)), "a compaction of the journal keeps it");
        (one, other)
    });
    assert_eq!(place.examine(false).findings, []);
    place.process(true, async |process| {
        process.show(one, image(&sha256(&png(2)))).await.unwrap();
        process.put(other, &png(4)).await.unwrap();
        process.delete(other).await;
        assert_eq!(process.put(other, &png(4)).await.unwrap_err().code(), ErrorCode::SessionNotFound);
    });
    assert!(!place.session_dir(other).exists());
}

#[test]
fn an_upload_waits_a_day() {
    let mut place = Place::new();
    let begin = Timestamp::from_millis(1_800_000_000_000);
    let at = |ms: i64| Some(Timestamp::from_millis(begin.as_millis() + ms));
    let (first, second, used) = (sha256(&png(1)), sha256(&png(2)), sha256(&png(3)));
    place.now = at(0);
    let id = place.process(true, async |process| {
        let id = process.create().await;
        for number in 1..=3 {
            process.put(id, &png(number)).await.unwrap();
        }
        process.show(id, image(&used)).await.unwrap();
        id
    });
    place.now = at(1);
    // Uploaded once more, it waits once more.
    place.process(true, async |process| drop(process.put(id, &png(2)).await.unwrap()));
    place.now = at(DAY_MS);
    place.process(true, async |process| assert_eq!(process.got(id, &first).await, Ok(png(1))));
    place.now = at(DAY_MS + 1);
    place.process(true, async |process| {
        process.misses(id, &first).await;
        assert_eq!(names(&place, id, "uploads").len(), 2, "what reads deletes nothing");
        process.show(id, image(&second)).await.unwrap();
        process.put(id, &png(4)).await.unwrap();
        assert_eq!(names(&place, id, "uploads").len(), 1, "the next upload finds the old one deleted");
        process.show(id, image(&used)).await.unwrap();
    });
}

#[test]
fn a_session_has_so_many_uploads_and_so_many_bytes_of_them() {
    let place = Place::new();
    place.process(true, async |process| {
        let (id, other) = (process.create().await, process.create().await);
        let number = |at: usize| at.to_string().into_bytes();
        for at in 0..UPLOADS_MAX {
            process.put(id, &number(at)).await.unwrap();
        }
        let full = process.put(id, &number(64)).await.unwrap_err().body();
        assert_eq!(full.code, ErrorCode::QueueFull);
        assert_eq!(
            (&full.details["what"], &full.details["held"], &full.details["limit"]),
            (&"unused uploads".into(), &64.into(), &64.into())
        );
        // By its length one is refused that nobody has begun to send, unless it may be there already.
        let unsent = process.service.put_blob_from(id, Some(9), stream::pending().boxed());
        assert_eq!(unsent.await.unwrap_err().code(), ErrorCode::QueueFull);
        process.put(id, &number(7)).await.unwrap();
        process.put(other, &number(64)).await.unwrap();
        // A prompt makes room.
        process.show(id, text(&sha256(b"7"))).await.unwrap();
        process.put(id, &number(64)).await.unwrap();
        assert_eq!(process.put(id, &number(65)).await.unwrap_err().code(), ErrorCode::QueueFull);
    });
}

/// A text of so many pieces, each a megabyte and a little, with a character on the border of the first megabyte.
fn pieces(count: usize, last: &'static [u8]) -> Vec<Bytes> {
    let piece = Bytes::from("many words\n".repeat(95_325) + "é.\n");
    (0..count).map(|_| piece.clone()).chain([Bytes::from_static(last)]).collect()
}

#[test]
fn a_text_of_any_length_is_taken_in_pieces_and_loses_its_secrets() {
    let place = Place::new();
    let with_secret = || place.agent().secret(SECRET.into());
    let id = Place::process_of(with_secret, true, async |process| {
        let id = process.create().await;
        let put = async |all: Vec<Bytes>| {
            let body = stream::iter(all.into_iter().map(Ok)).boxed();
            process.service.put_blob_from(id, None, body).await
        };
        let clean = pieces(24, b"The end.");
        let whole = clean.concat();
        let stored = put(clean).await.unwrap();
        assert_eq!((stored.bytes, stored.blob), (whole.len() as u64, sha256(&whole)));
        let shown = process.show(id, text(&sha256(&whole))).await.unwrap().text;
        let head = format!("blocks: [File 1: a.txt, text/plain, {} bytes]\nmany words\n", whole.len());
        assert!(shown.starts_with(&head), "{}", &shown[..200]);
        assert_eq!(names(&place, id, "blobs"), BTreeSet::from([sha256(&whole)]), "it is not written twice");

        // A secret is cut by the end of a piece.
        let mut unclean = pieces(1, b"");
        let cut = 1024 * 1024 - unclean[0].len() % (1024 * 1024) - 9;
        unclean.push(Bytes::from("x".repeat(cut) + SECRET + ", so long."));
        let raw = unclean.concat();
        put(unclean).await.unwrap();
        process.show(id, text(&sha256(&raw))).await.unwrap();
        let stored = names(&place, id, "blobs");
        assert_eq!((stored.len(), stored.contains(&sha256(&raw))), (2, false));
        let holds = |name: &String| {
            let bytes = fs::read(place.session_dir(id).join("blobs").join(name)).unwrap();
            (super::bundles::found(&bytes, SECRET), super::bundles::found(&bytes, ", so long."))
        };
        assert_eq!(stored.iter().map(holds).collect::<BTreeSet<_>>(), BTreeSet::from([(false, false), (false, true)]));

        // What is no text is none, wherever that shows.
        for bad in [&b"\xff"[..], b"\xc3", b"a\0b"] {
            let raw = [pieces(1, b"").concat(), bad.to_vec()].concat();
            put(vec![Bytes::from(raw.clone())]).await.unwrap();
            let refused = process.show(id, text(&sha256(&raw))).await.unwrap_err().body();
            assert_eq!(refused.details["field"], "prompt[0].blob", "{bad:?}");
        }
        let broken = stream::iter([Ok(Bytes::from_static(b"x")), Err(SessionError::StoreFailed)]).boxed();
        assert_eq!(process.service.put_blob_from(id, None, broken).await.unwrap_err().code(), ErrorCode::StoreFailed);
        assert_eq!(process.got(id, &sha256(b"x")).await, Err(ErrorCode::ItemNotFound));
        id
    });
    assert_eq!(fs::read_dir(place.data_dir().join("new")).unwrap().count(), 0);
    assert!(place.session_dir(id).exists());
}

#[test]
fn a_copy_of_a_file_is_no_file_of_a_prompt() {
    let place = Place::new();
    place.process_over(
        true,
        |stores| stores.blobs.clone(),
        async |process, blobs| {
            let id = process.create().await;
            let mut writer = blobs.writer(id);
            writer.write(b"\xffmeerkat: a file before its change\nold").await.unwrap();
            let (copy, _) = writer.finish().await.unwrap();
            for block in [text(&copy), image(&copy)] {
                assert_eq!(process.show(id, block).await.unwrap_err().code(), ErrorCode::ItemNotFound);
            }
        },
    );
}

#[test]
fn an_archived_session_takes_no_upload() {
    let place = Place::new();
    place.process(true, async |process| {
        let session_id = process.create().await;
        process.service.archive(&session_id).await.unwrap();
        assert_eq!(process.put(session_id, &png(1)).await.unwrap_err().code(), ErrorCode::SessionArchived);
        assert_eq!(names(&place, session_id, "uploads").len(), 0);
        process.service.unarchive(&session_id).await.unwrap();
        process.put(session_id, &png(1)).await.unwrap();
    });
}

#[test]
fn so_many_uploads_are_on_their_way_at_one_time() {
    let place = Place::new();
    place.process(true, async |process| {
        let id = process.create().await;
        let begun = Arc::<AtomicU64>::default();
        let endless = || {
            let (service, begun) = (process.service.clone(), begun.clone());
            let body = stream::once(async move { begun.fetch_add(1, Ordering::Relaxed) }).then(|_| future::pending());
            tokio::spawn(async move { service.put_blob_from(id, None, body.boxed()).await })
        };
        let waiting: Vec<_> = (0..16).map(|_| endless()).collect();
        until_async("all are on their way", || begun.load(Ordering::Relaxed) == 16).await;
        let refused = process.put(id, &png(1)).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["what"]), (ErrorCode::SessionLimit, &"uploads".into()));
        // One that has left makes room.
        waiting[0].abort();
        until_got("there is room", async || process.put(id, &png(1)).await.ok()).await;
        for upload in waiting {
            upload.abort();
        }
    });
}

/// Blobs that are read so often, the last time after the upload was made a blob.
struct Moving(Arc<dyn BlobStore>, AtomicU64);

#[async_trait]
impl BlobStore for Moving {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        self.0.writer(session_id)
    }

    async fn read(&self, id: SessionId, blob: &str, offset: u64, limit: usize) -> Result<Option<Bytes>, StoreError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.read(id, blob, offset, limit).await
    }

    async fn read_upload(
        &self,
        id: SessionId,
        blob: &str,
        since: Timestamp,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        // A prompt takes it just before it is looked for.
        self.keep(id, blob, since).await?;
        self.0.read_upload(id, blob, since, offset, limit).await
    }

    async fn keep(&self, id: SessionId, blob: &str, since: Timestamp) -> Result<bool, StoreError> {
        self.0.keep(id, blob, since).await
    }

    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError> {
        self.0.list(session_id).await
    }

    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError> {
        self.0.remove(session_id, names).await
    }

    async fn forget(&self, session_id: SessionId) {
        self.0.forget(session_id).await;
    }
}

fn moving(stores: &mut Stores) -> Arc<Moving> {
    let blobs = Arc::new(Moving(stores.blobs.clone(), AtomicU64::new(0)));
    stores.blobs = blobs.clone();
    blobs
}

#[test]
fn an_upload_is_found_while_a_prompt_takes_it() {
    Place::new().process_over(true, moving, async |process, _| {
        let id = process.create().await;
        let blob = process.put(id, &png(1)).await.unwrap().blob;
        assert_eq!(process.got(id, &blob).await, Ok(png(1)));
    });
}

#[test]
fn a_prompts_texts_are_bounded_and_each_is_read_once() {
    let place = Place::new();
    place.process_over(true, moving, async |process, blobs| {
        let id = process.create().await;
        let put = async |last: &'static [u8]| {
            let body = stream::iter(pieces(40, last).into_iter().map(Ok)).boxed();
            process.service.put_blob_from(id, None, body).await.unwrap().blob
        };
        let ask = async |names: &[&String]| {
            let prompt: Vec<_> = names.iter().map(|name| text(name)).collect();
            process.service.start_turn(StartTurn::new(id, prompt)).await
        };
        let (one, other) = (put(b"one").await, put(b"other").await);
        let before = blobs.1.load(Ordering::Relaxed);
        ask(&[&one; 6]).await.unwrap();
        // In pieces of a megabyte: once to check it, and its head for the model.
        let reads = blobs.1.load(Ordering::Relaxed) - before;
        assert!((40..100).contains(&reads), "{reads} reads");
        let refused = ask(&[&one, &other]).await.unwrap_err().body();
        assert_eq!(refused.code, ErrorCode::PayloadTooLarge);
        assert_eq!(refused.details["what"], "sum of the images and files of a prompt");
        assert_eq!(refused.details["limit"], 64 * 1024 * 1024);
        ask(&[&other]).await.unwrap();
    });
}
