//! Bundles: what is exported comes back the same, and what no export made does not come in at all.

mod archive;
mod copies;
mod hostile;
mod images;
mod mutated;
mod pages;
mod trees;
mod uploads;

use std::sync::Arc;

use meerkat_service::{
    AgentBuildConfig, ErrorCode, SessionError, SessionId,
    options::EngineOptions,
    output::OutputSpec,
    service::{
        ImportBundle, Imported, ImportedSession, PinFact, ReadBlob, ResumeTurn, SessionView, StartTurn, UpdateSession,
    },
    session::message::RawJson,
    store::{MemoryBlobStore, MemoryEventStore, MemoryIndex, MemoryReaders, MemorySessionStore, MemoryUse, Stores},
};
use serde_json::{Value, json};

use crate::stored::{Place, Process, files, number, piece, whole};

/// Everything that can be asked of a session.
#[derive(Clone, Debug, PartialEq)]
struct Answers {
    lines: Vec<String>,
    said: Vec<Value>,
    view: SessionView,
    /// Its blobs, as pages of base64.
    bodies: Vec<String>,
}

impl Process {
    async fn exported(&self, ids: &[SessionId]) -> Vec<u8> {
        let mut bundle = Vec::new();
        for id in ids {
            bundle.extend(self.export(*id, false).await);
        }
        bundle
    }

    /// Uploads a bundle in pieces of `bytes`.
    async fn import(&self, bundle: &[u8], bytes: usize, new_ids: bool) -> Result<Vec<ImportedSession>, SessionError> {
        let (mut upload, mut offset) = (None, 0);
        loop {
            let end = bundle.len().min(offset + bytes);
            let is_last = end == bundle.len();
            let request = ImportBundle { is_last, new_ids, ..piece(upload, offset as u64, &bundle[offset..end]) };
            let imported = self.service.import_bundle(request).await?;
            offset = end;
            assert_eq!(imported.next_offset, offset as u64);
            assert_eq!(imported.upload.is_none(), is_last, "an upload is named until it is done");
            if is_last {
                return Ok(imported.sessions);
            }
            upload = imported.upload;
        }
    }

    /// Imports a bundle of one session that is good; returns its id here.
    pub(super) async fn takes(&self, bundle: &[u8], new_ids: bool) -> SessionId {
        let made = self.import(bundle, 100_000, new_ids).await.unwrap();
        assert_eq!(made.len(), 1);
        made[0].session_id
    }

    /// Has a bundle refused; returns why.
    async fn refuses(&self, bundle: &[u8], new_ids: bool) -> (Value, String) {
        let mut refused = self.import(bundle, usize::MAX, new_ids).await.unwrap_err().body();
        assert_eq!(refused.code, ErrorCode::BundleInvalid);
        (refused.details["reason"].take(), refused.message)
    }

    async fn answers(&self, session_id: SessionId) -> Answers {
        let (lines, view) = (self.lines(session_id).await, self.view(session_id).await);
        let mut bodies = Vec::new();
        for line in &lines {
            for (at, name) in line.match_indices(r#""blob":""#) {
                let blob = line[at + name.len()..][..64].to_owned();
                let request = ReadBlob { session_id, blob, offset: 0, limit: None };
                bodies.push(self.service.blob(request).await.unwrap().data);
            }
        }
        Answers { lines, said: self.said(session_id).await, view, bodies }
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

pub(super) fn found(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A place where even short outputs are in blobs, and no record is too young to be dropped.
fn place() -> Place {
    let mut place = Place::pruned();
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
    process.remind(session_id, "custom:tone", "Be kind.").await;
    service.pin(PinFact { session_id, text: "The sky is \"blue\".\n\u{7f}\u{85}".to_owned() }).await.unwrap();
    let labels = Some([("kind".to_owned(), "sample".to_owned())].into());
    service.update(UpdateSession { session_id, title: Some("A sample".to_owned()), labels }).await.unwrap();
    let fork = process.fork(session_id, Some(1)).await.unwrap();
    process.turn(fork, "@say Its own way.").await.unwrap();
    service.archive(&fork).await.unwrap();
    [session_id, fork]
}

#[test]
fn what_is_exported_comes_back_to_the_byte() {
    let (place, elsewhere) = (place(), place());
    let (ids, bundle, before) = place.process(true, async |process| {
        let ids = sample(&process).await;
        let before = [process.answers(ids[0]).await, process.answers(ids[1]).await];
        assert!(!before[0].bodies.is_empty(), "a body is in a blob");
        (ids, process.exported(&ids).await, before)
    });
    for (place, is_wiped) in [(&elsewhere, false), (&place, true)] {
        place.process(false, async |process| {
            for id in ids.into_iter().filter(|_| is_wiped) {
                process.delete(id).await;
            }
            let made = process.import(&bundle, 3000, false).await.unwrap();
            let same = [0, 1].map(|at| ImportedSession {
                session_id: ids[at],
                imported_from: ids[at],
                last_seq: before[at].lines.len() as u64,
                lost: vec![],
            });
            assert_eq!(made, same);
            assert_eq!([process.answers(ids[0]).await, process.answers(ids[1]).await], before);
            assert_eq!(process.exported(&ids).await, bundle, "a bundle of it is the same bundle");
        });
        // Also for the next process, which goes on with it.
        place.process(true, async |process| {
            assert_eq!([process.answers(ids[0]).await, process.answers(ids[1]).await], before);
            let mut listed: Vec<_> = process.listed().await.iter().map(|summary| summary.session_id).collect();
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
    let (ids, one, all) = place.process(true, async |process| {
        let ids = sample(&process).await;
        (ids, process.exported(&ids[..1]).await, process.exported(&ids).await)
    });
    let first = elsewhere.process(true, async |process| {
        process.takes(&one, false).await;
        process.answers(ids[0]).await
    });
    elsewhere.process(true, async |process| {
        let repeat = async || {
            let Imported { sessions, skipped, .. } = process.service.import_bundle(whole(&all, false)).await.unwrap();
            [sessions, skipped].map(|imported| imported.iter().map(|it| it.session_id).collect::<Vec<_>>())
        };
        assert_eq!(repeat().await, [vec![ids[1]], vec![ids[0]]]);
        assert_eq!(process.answers(ids[0]).await, first);
        let listed = process.listed().await;
        assert_eq!(listed.len(), 2, "what was passed over is listed as before: {listed:?}");
        // It has gone on meanwhile, and still has all of the bundle.
        process.turn(ids[0], "@say More.").await.unwrap();
        assert_eq!(repeat().await, [vec![], ids.to_vec()]);
    });
}

/// Import under new ids keeps all but the names: it is a fork of a session that was never here.
#[test]
fn under_new_ids_everything_else_is_the_same() {
    place().process(true, async |process| {
        let ids = sample(&process).await;
        let bundle = process.exported(&ids).await;
        for _ in 0..2 {
            let made = process.import(&bundle, usize::MAX, true).await.unwrap();
            for (made, id) in made.iter().zip(ids) {
                let (copy, origin) = (process.answers(made.session_id).await, process.answers(id).await);
                assert_eq!((&copy.said, &copy.bodies), (&origin.said, &origin.bodies));
                let [lines, due] = [&copy, &origin].map(|answers| answers.lines.as_slice());
                assert_eq!((&lines[..due.len()], lines.len()), (due, due.len() + 1));
                assert_eq!((made.imported_from, made.last_seq), (id, lines.len() as u64));
                assert_eq!(copy.view.forked_from, Some(id));
                let [view, due] = [copy.view, origin.view].map(|view| {
                    let mut view = json!(view);
                    for other in ["session_id", "forked_from", "created_at", "updated_at", "last_seq", "archived"] {
                        view.as_object_mut().unwrap().remove(other).unwrap();
                    }
                    view
                });
                assert_eq!(view, due);
            }
            assert_eq!(process.turn(made[0].session_id, "@echo messages").await.unwrap().text, "messages: 8");
        }
    });
}

/// A running turn is exported as it is. Under its own id its turn ends as one of a process that was killed; under a new
/// one it never began.
#[test]
fn a_session_whose_turn_runs_is_exported_as_it_is() {
    let (place, elsewhere) = (place(), place());
    let (id, bundle) = place.process(true, async |process| {
        let id = process.create().await;
        let first = process.begin(id, "@stall").await;
        assert_eq!(process.refuses(&process.export(id, false).await, true).await.0, "open_turn");
        process.interrupt(id, None).await;
        first.result.await.unwrap();
        let _running = process.begin(id, "@say Part. @stall").await;
        (id, process.export(id, false).await)
    });
    elsewhere.process(true, async |process| {
        let own = process.import(&bundle, usize::MAX, false).await.unwrap();
        let new = process.import(&bundle, usize::MAX, true).await.unwrap();
        assert_eq!((own[0].session_id, own[0].last_seq, new[0].last_seq), (id, 4, 4));
        assert_eq!(process.turn(id, "@echo messages").await.unwrap().turn, 2);
        let types: Vec<_> = process.events(id).await.iter().map(|event| event["type"].clone()).collect();
        assert_eq!(types[3..5], ["turn_started", "turn_interrupted"]);
        assert_eq!(process.turn(new[0].session_id, "@echo messages").await.unwrap().turn, 1);
    });
}

/// A copy of a turn that was interrupted, made by a fork or an import, goes on with its schema too.
#[test]
fn a_copied_turn_goes_on_with_its_schema() {
    let (place, elsewhere) = (place(), place());
    let schema = r#"{"type":"object","required":["n"]}"#;
    let goes_on = async |process: &Process, id| {
        let begun = process.service.begin_resume(&id, ResumeTurn::default()).await.unwrap();
        let started = process.events(id).await.pop().unwrap();
        assert_eq!((&started["type"], &started["continues"]), (&json!("turn_started"), &json!(0)));
        assert_eq!(started["output"], json!({ "schema": { "type": "object", "required": ["n"] }, "repairs": 2 }));
        process.interrupt(id, None).await;
        begun.result.await.unwrap();
    };
    let (id, bundle) = place.process(true, async |process| {
        let id = process.create().await;
        let output = Some(OutputSpec::new(RawJson::parse(schema).unwrap()));
        let turn = StartTurn { output, ..StartTurn::new(id, "@json {} @step @stall") };
        let begun = process.service.begin_turn(turn).await.unwrap();
        process.until(id, "output_refused").await;
        process.interrupt(id, None).await;
        begun.result.await.unwrap();
        let bundle = process.export(id, false).await;
        goes_on(&process, process.fork(id, None).await.unwrap()).await;
        (id, bundle)
    });
    elsewhere.process(true, async |process| {
        assert_eq!(process.takes(&bundle, false).await, id);
        goes_on(&process, id).await;
        goes_on(&process, process.takes(&bundle, true).await).await;
    });
}

/// The files of a data directory with their lengths, but for the copies in redb, which are written when there is time.
fn stored(place: &Place) -> Vec<(String, u64)> {
    let root = place.data_dir();
    let names = files(&root).into_iter().filter(|path| path != "index.redb");
    names.map(|path| (path.clone(), std::fs::metadata(root.join(path)).unwrap().len())).collect()
}

/// The same session, whose first file of lines ends before its first gap.
fn split_at_gap(bundle: &[u8]) -> Vec<u8> {
    let mut files = archive::unpack(bundle);
    let seq = |line: &&str| number(&serde_json::from_str(line).unwrap(), "seq");
    let text = String::from_utf8(files[0].body.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let seqs: Vec<u64> = lines.iter().map(seq).collect();
    let gap = seqs.windows(2).position(|pair| pair[1] > pair[0] + 1).unwrap() + 1;
    let part = |from: usize, to: usize| {
        files[0].but(|file| {
            file.fill(lines[from..to].join("\n") + "\n");
            file.set(archive::NAME, &format!("events/{}-{}.jsonl", seqs[from], seqs[to - 1]));
        })
    };
    let parts = [part(0, gap), part(gap, lines.len())];
    files.splice(..1, parts);
    archive::seal(&mut files);
    archive::pack(&files)
}

#[test]
fn what_was_compacted_comes_back_as_it_is() {
    Place::pruned().process(true, async |process| {
        let id = process.lived().await;
        process.is_read(id).await;
        assert!(process.compact(id, false, false).await.dropped > 0);
        let (bundle, view) = (process.export(id, false).await, process.view(id).await);
        process.delete(id).await;
        process.import(&bundle, 1024, false).await.unwrap();
        assert_eq!((process.export(id, false).await, process.view(id).await), (bundle.clone(), view.clone()));
        // Records may also be missing between one file and the next.
        for bundle in [&bundle, &split_at_gap(&bundle)] {
            let copy = process.takes(bundle, true).await;
            assert_eq!(process.view(copy).await.message_count, view.message_count);
            process.turn(copy, "@say Here.").await.unwrap();
        }
    });
}
