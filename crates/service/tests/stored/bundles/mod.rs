//! Bundles: what is exported comes back the same, and what no export made does not come in at all.

mod archive;
mod copies;
mod hostile;
mod images;
mod mutated;
mod pages;
mod uploads;

use std::{path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use meerkat_service::{
    AgentBuildConfig, ErrorCode, SessionError, SessionId,
    options::EngineOptions,
    service::{
        CreateSession, DeleteSession, ExportSession, ForkSession, ImportBundle, Imported, ImportedSession, PinFact,
        ReadBlob, ReadHistory, Remind, SessionQuery, StartTurn, UpdateSession,
    },
    session::reminder::SystemReminderType,
    store::{MemoryBlobStore, MemoryEventStore, MemoryIndex, MemoryReaders, MemorySessionStore, MemoryUse, Stores},
};
use serde_json::{Value, json};

use crate::stored::{Place, Process, files};

impl Process {
    /// The whole bundle of a session.
    async fn export(&self, session_id: SessionId, redact: bool) -> Result<Vec<u8>, SessionError> {
        let (mut bundle, mut cursor) = (Vec::new(), None);
        loop {
            let page =
                self.service.export_session(ExportSession { redact, cursor, ..ExportSession::new(session_id) }).await?;
            bundle.extend(BASE64_STANDARD.decode(page.data).unwrap());
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(bundle);
            }
        }
    }

    pub(crate) async fn exported(&self, ids: &[SessionId]) -> Vec<u8> {
        let mut bundle = Vec::new();
        for id in ids {
            bundle.extend(self.export(*id, false).await.unwrap());
        }
        bundle
    }

    /// Uploads a bundle in pieces of `bytes`.
    pub(crate) async fn import(
        &self,
        bundle: &[u8],
        bytes: usize,
        new_ids: bool,
    ) -> Result<Vec<ImportedSession>, SessionError> {
        let (mut upload, mut offset) = (None, 0);
        loop {
            let piece = &bundle[offset..bundle.len().min(offset + bytes)];
            let is_last = offset + piece.len() == bundle.len();
            let data = BASE64_STANDARD.encode(piece);
            let request = ImportBundle { upload, offset: offset as u64, data, is_last, new_ids, keep_scope: false };
            let imported = self.service.import_bundle(request).await?;
            offset += piece.len();
            assert_eq!(imported.next_offset, offset as u64);
            assert_eq!(imported.upload.is_none(), is_last, "an upload is named until it is done");
            if is_last {
                return Ok(imported.sessions);
            }
            upload = imported.upload;
        }
    }

    /// Everything that can be asked of a session.
    async fn answers(&self, session_id: SessionId) -> Value {
        let lines = self.lines(session_id).await;
        let history =
            self.service.history(ReadHistory { limit: Some(1000), ..ReadHistory::new(session_id) }).await.unwrap();
        let view = self.service.read(&session_id).await.unwrap();
        let mut bodies = Vec::new();
        for (_, rest) in
            lines.iter().flat_map(|line| line.match_indices(r#""blob":""#).map(|(at, _)| line.split_at(at + 8)))
        {
            let blob = ReadBlob { session_id, blob: rest[..64].to_owned(), offset: 0, limit: None };
            bodies.push(self.service.blob(blob).await.unwrap().data);
        }
        json!({ "events": lines, "history": history.items, "view": view, "bodies": bodies })
    }
}

/// A service over stores in memory, which forget everything with it, and what they hold.
fn in_memory(options: EngineOptions) -> (Process, Arc<MemoryUse>) {
    let held = Arc::<MemoryUse>::default();
    let events = Arc::new(MemoryEventStore::new(u64::MAX, held.clone()));
    let stores = Stores {
        blobs: Arc::new(MemoryBlobStore::new(held.clone())),
        snapshots: Arc::new(MemorySessionStore::new(events.clone())),
        index: Arc::new(MemoryIndex::default()),
        readers: Arc::new(MemoryReaders::default()),
        pruner: None,
        inbox: None,
        events,
    };
    let service = AgentBuildConfig::new().options(options).stores(stores).build().unwrap().service().clone();
    (Process { service }, held)
}

/// A place where even short outputs are in blobs.
fn place() -> Place {
    let mut place = Place::new();
    place.options.tools.inline_bytes = 64;
    place
}

/// A session with turns, a tool whose output is in a blob, a reminder, a pin, a title; and its fork.
async fn sample(process: &Process) -> [SessionId; 2] {
    let session_id = process.create().await;
    let call = format!(r#"@call test_echo {{"text":"{}"}} @echo last_result"#, "long ".repeat(40));
    for prompt in ["@say One.", &call, "@fail rejected"] {
        process.turn(session_id, prompt).await.unwrap();
    }
    let service = process.service.as_ref();
    let text = "Be kind.".to_owned();
    service.remind(Remind { session_id, kind: SystemReminderType::Custom("tone".to_owned()), text }).await.unwrap();
    service.pin(PinFact { session_id, text: "The sky is \"blue\".\n\u{7f}\u{85}".to_owned() }).await.unwrap();
    let labels = Some([("kind".to_owned(), "sample".to_owned())].into());
    service.update(UpdateSession { session_id, title: Some("A sample".to_owned()), labels }).await.unwrap();
    let fork = service.fork(ForkSession { session_id, turn: Some(1) }).await.unwrap().session_id;
    process.turn(fork, "@say Its own way.").await.unwrap();
    service.archive(&fork).await.unwrap();
    [session_id, fork]
}

#[test]
fn what_is_exported_comes_back_to_the_byte() {
    let (place, elsewhere) = (place(), place());
    let (ids, bundle, before) = place.process(true, |process| async move {
        let ids = sample(&process).await;
        let before = [process.answers(ids[0]).await, process.answers(ids[1]).await];
        assert_ne!(before[0]["bodies"], json!([]), "a body stands in a blob");
        (ids, process.exported(&ids).await, before)
    });
    for (place, is_wiped) in [(&elsewhere, false), (&place, true)] {
        let (ids, bundle, before) = (ids, bundle.clone(), before.clone());
        let expected = before.clone();
        place.process(false, |process| async move {
            if is_wiped {
                for session_id in ids {
                    process.service.delete(DeleteSession { session_id, force: false }).await.unwrap();
                }
            }
            let made = process.import(&bundle, 3000, false).await.unwrap();
            let last_seqs = before.each_ref().map(|answers| answers["events"].as_array().unwrap().len() as u64);
            let same = |at: usize| ImportedSession {
                session_id: ids[at],
                imported_from: ids[at],
                last_seq: last_seqs[at],
                lost: vec![],
            };
            assert_eq!(made, [same(0), same(1)]);
            assert_eq!([process.answers(ids[0]).await, process.answers(ids[1]).await], before);
            assert_eq!(process.exported(&ids).await, bundle, "a bundle of it is the same bundle");
        });
        // Also for the next process, which goes on with it.
        place.process(true, |process| async move {
            assert_eq!([process.answers(ids[0]).await, process.answers(ids[1]).await], expected);
            let listed = process.service.list(SessionQuery::default()).await.unwrap().items;
            let mut listed: Vec<SessionId> = listed.iter().map(|summary| summary.session_id).collect();
            listed.sort_unstable();
            assert_eq!(listed, ids);
            // Seven were said, and the prompt is the eighth.
            let next = process.turn(ids[0], "@echo messages").await.unwrap();
            assert_eq!((next.turn, next.text.as_str()), (3, "messages: 8"));
        });
    }
}

/// A process was killed when it had made some sessions of a bundle, and the whole bundle is sent again.
#[test]
fn an_import_that_was_cut_off_is_repeated_and_passes_over_what_is_there() {
    let (place, elsewhere) = (place(), place());
    let (ids, one, all) = place.process(true, |process| async move {
        let ids = sample(&process).await;
        (ids, process.exported(&ids[..1]).await, process.exported(&ids).await)
    });
    let first = elsewhere.process(true, |process| async move {
        process.import(&one, usize::MAX, false).await.unwrap();
        process.answers(ids[0]).await
    });
    elsewhere.process(true, |process| async move {
        let repeat = async || {
            let data = BASE64_STANDARD.encode(&all);
            let request =
                ImportBundle { upload: None, offset: 0, data, is_last: true, new_ids: false, keep_scope: false };
            let Imported { sessions, skipped, .. } = process.service.import_bundle(request).await.unwrap();
            let ids = |imported: Vec<ImportedSession>| imported.iter().map(|it| it.session_id).collect::<Vec<_>>();
            (ids(sessions), ids(skipped))
        };
        assert_eq!(repeat().await, (vec![ids[1]], vec![ids[0]]));
        assert_eq!(process.answers(ids[0]).await, first);
        let listed = process.service.list(SessionQuery::default()).await.unwrap().items;
        assert_eq!(listed.len(), 2, "what was passed over is listed as before: {listed:?}");
        // It has gone on meanwhile, and still has all of the bundle.
        process.turn(ids[0], "@say More.").await.unwrap();
        assert_eq!(repeat().await, (vec![], ids.to_vec()));
    });
}

/// Import under new ids keeps all but the names: it is a fork of a session that was never here.
#[test]
fn under_new_ids_everything_else_is_the_same() {
    let place = place();
    place.process(true, |process| async move {
        let ids = sample(&process).await;
        let bundle = process.exported(&ids).await;
        for _ in 0..2 {
            let made = process.import(&bundle, usize::MAX, true).await.unwrap();
            for (made, id) in made.iter().zip(ids) {
                let (copy, origin) = (process.answers(made.session_id).await, process.answers(id).await);
                assert_eq!(
                    (copy["history"].clone(), copy["bodies"].clone()),
                    (origin["history"].clone(), origin["bodies"].clone())
                );
                let (lines, of) = (copy["events"].as_array().unwrap(), origin["events"].as_array().unwrap());
                assert_eq!((&lines[..of.len()], lines.len()), (&of[..], of.len() + 1));
                assert_eq!((made.imported_from, made.last_seq), (id, lines.len() as u64));
                let view = |answers: &Value| {
                    let mut view = answers["view"].clone();
                    for other in ["session_id", "forked_from", "created_at", "updated_at", "last_seq", "archived"] {
                        view.as_object_mut().unwrap().remove(other).unwrap();
                    }
                    view
                };
                assert_eq!(view(&copy), view(&origin));
                assert_eq!(copy["view"]["forked_from"], json!(id));
            }
            assert_eq!(process.turn(made[0].session_id, "@echo messages").await.unwrap().text, "messages: 8");
        }
    });
}

/// A key stands for the session that was made with it last, even if an older one is imported later.
#[test]
fn an_import_takes_no_key_from_a_newer_session() {
    let (place, elsewhere) = (place(), place());
    let nightly = || CreateSession { idempotency_key: Some("nightly".to_owned()), ..CreateSession::default() };
    let create = |process: Process| async move { process.service.create_session(nightly()).await.unwrap().session_id };
    let (old, bundle) = place.process(true, |process| async move {
        let old = create(process.clone()).await;
        (old, process.export(old, false).await.unwrap())
    });
    let new = elsewhere.process(true, |process| async move {
        let new = create(process.clone()).await;
        process.import(&bundle, usize::MAX, false).await.unwrap();
        new
    });
    assert!(old < new);
    assert_eq!(elsewhere.process(true, create), new);
}

/// A running turn is exported as it is. Under its own id its turn ends as one of a process that was killed; under a new
/// one it never began.
#[test]
fn a_session_whose_turn_runs_is_exported_as_it_stands() {
    let (place, elsewhere) = (place(), place());
    let (id, bundle) = place.process(true, |process| async move {
        let id = process.create().await;
        let first = process.service.begin_turn(StartTurn::new(id, "@stall")).await.unwrap();
        let unborn = process.export(id, false).await.unwrap();
        let refused = process.import(&unborn, usize::MAX, true).await.unwrap_err().body();
        assert_eq!((refused.code, &refused.details["reason"]), (ErrorCode::BundleInvalid, &json!("open_turn")));
        let stop = meerkat_service::service::InterruptTurn { session_id: id, turn: None };
        process.service.interrupt(stop).await.unwrap();
        first.result.await.unwrap();
        let running = process.service.begin_turn(StartTurn::new(id, "@say Part. @stall")).await.unwrap();
        let bundle = process.export(id, false).await.unwrap();
        drop(running);
        (id, bundle)
    });
    elsewhere.process(true, |process| async move {
        let own = process.import(&bundle, usize::MAX, false).await.unwrap();
        let new = process.import(&bundle, usize::MAX, true).await.unwrap();
        assert_eq!((own[0].session_id, own[0].last_seq, new[0].last_seq), (id, 4, 4));
        assert_eq!(process.turn(id, "@echo messages").await.unwrap().turn, 2);
        let types: Vec<_> = process.events(id).await.iter().map(|event| event["type"].clone()).collect();
        assert_eq!(types[3..5], ["turn_started", "turn_interrupted"]);
        assert_eq!(process.turn(new[0].session_id, "@echo messages").await.unwrap().turn, 1);
    });
}

/// The files of a data directory with their lengths, but for the copies in redb, which are written when there is time.
fn stored(place: &Place) -> Vec<(String, u64)> {
    let root = place.data_dir();
    let len = |path: &String| std::fs::metadata(Path::new(&root).join(path)).unwrap().len();
    let names = files(&root).into_iter().filter(|path| path != "index.redb");
    names.map(|path| (path.clone(), len(&path))).collect()
}

/// The same session, whose first file of lines ends before its first gap.
fn split_at_gap(bundle: &[u8]) -> Vec<u8> {
    let mut files = archive::unpack(bundle);
    let seq = |line: &&str| serde_json::from_str::<Value>(line).unwrap()["seq"].as_u64().unwrap();
    let text = String::from_utf8(files[0].body.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let seqs: Vec<u64> = lines.iter().map(seq).collect();
    let gap = seqs.windows(2).position(|pair| pair[1] > pair[0] + 1).unwrap() + 1;
    let part = |from: usize, to: usize| {
        let name = format!("events/{}-{}.jsonl", seqs[from], seqs[to - 1]);
        files[0].clone().of((lines[from..to].join("\n") + "\n").into_bytes()).named(&name)
    };
    let parts = [part(0, gap), part(gap, lines.len())];
    files.splice(..1, parts);
    archive::seal(&mut files);
    archive::pack(&files)
}

#[test]
fn what_was_compacted_comes_back_as_it_is() {
    let mut place = Place::new();
    place.options.journal.min_record_age_ms = 0;
    let kept = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| !line.contains(r#""type":"pruned""#)).collect()
    };
    let (id, lines) = place.process(true, |process| async move {
        let (id, last_seq) = process.lived().await;
        process.register("one").await;
        process.is_done("one", id, last_seq).await;
        assert!(process.compact(id, false, false).await.dropped > 0);
        let (bundle, lines) = (process.exported(&[id]).await, kept(process.lines(id).await));
        let view = process.service.read(&id).await.unwrap();
        process.service.delete(DeleteSession { session_id: id, force: false }).await.unwrap();
        process.import(&bundle, 1024, false).await.unwrap();
        assert_eq!(kept(process.lines(id).await), lines);
        assert_eq!(process.service.read(&id).await.unwrap(), view);
        assert_eq!(process.exported(&[id]).await, bundle);
        // Records may also be missing between one file and the next.
        assert_eq!(process.import(&split_at_gap(&bundle), usize::MAX, true).await.unwrap().len(), 1);
        let copy = process.import(&bundle, 1 << 20, true).await.unwrap()[0].session_id;
        assert_eq!(process.service.read(&copy).await.unwrap().message_count, view.message_count);
        process.turn(copy, "@say Here.").await.unwrap();
        (id, lines)
    });
    place.process(true, |process| async move {
        assert_eq!(kept(process.lines(id).await), lines);
        process.turn(id, "@say Here.").await.unwrap();
    });
}
