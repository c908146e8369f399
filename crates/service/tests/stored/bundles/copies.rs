//! Copies of files that tools have changed: they are as secret as the files, and stay as long as their event.

use std::{os::unix::fs::PermissionsExt as _, sync::Arc};

use async_trait::async_trait;
use meerkat_service::{
    ErrorCode, Operation, SessionId,
    model::ToolSpec,
    service::ReadBlob,
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Tool, ToolError, content_of_copy},
    wire,
};
use serde_json::{Value, json};

use super::{Place, Process, found};

const CONTENT: &str = "password = opensesame\n";

/// Notes that it replaces a file, and fails, withdraws or loses its outcome as its argument says.
struct Changer(ToolSpec);

impl Changer {
    fn new() -> Self {
        let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
        Self(ToolSpec { name: "change".to_owned(), description: "Changes a file.".to_owned(), schema })
    }
}

#[async_trait]
impl Tool for Changer {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::once())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let log = output.changes();
        let arguments: Value = ToolError::decode(&invocation.arguments)?;
        log.note("kept", Some(CONTENT.as_bytes()), b"new").await?;
        log.note("large", Some(&vec![b'x'; 1024 * 1024 + 1]), b"new").await?;
        log.note("made", None, b"new").await?;
        log.note("left", Some(b"as it is"), b"new").await?;
        log.withdraw("left");
        match arguments["end"].as_str() {
            Some("fail") => Err(ToolError::Failed("no".to_owned())),
            _ => Ok(()),
        }
    }
}

fn place() -> Place {
    let mut place = super::place();
    place.options.journal.keep_last_replies = 0;
    place
}

fn with_changer<T>(place: &Place, work: impl AsyncFnOnce(Process) -> T) -> T {
    Place::process_of(|| place.agent().tool(Arc::new(Changer::new())), true, work)
}

async fn files_of(process: &Process, session_id: SessionId) -> Value {
    let events = process.events(session_id).await;
    let finished = events.iter().find(|event| event["type"] == "tool_finished" && event["name"] == "change");
    finished.map_or(Value::Null, |finished| finished["files"].clone())
}

fn read(session_id: SessionId, blob: &str) -> ReadBlob {
    ReadBlob { session_id, blob: blob.to_owned(), offset: 0, limit: None }
}

#[test]
fn a_copy_is_for_the_owner_alone() {
    let place = place();
    let (session_id, blob) = with_changer(&place, async |process| {
        let session_id = process.create().await;
        let (call, long) = (r#"@call change {"end":"fail"}"#, "long ".repeat(40));
        process.turn(session_id, &format!(r#"{call} @call test_echo {{"text":"{long}"}} @say Done."#)).await.unwrap();
        let files = files_of(&process, session_id).await;
        let blob = files[0]["before"]["copy"].as_str().unwrap().to_owned();
        let sha256 = "120fd8ed4159ce7f4a2a00456bd65311a9fb9efda357a20d0fd00594e837ee7d";
        let after_sha256 = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437";
        let before = json!({ "sha256": sha256, "bytes": 22, "copy": blob });
        assert_eq!(files[0], json!({ "path": "kept", "before": before, "after_sha256": after_sha256, "order": 0 }));
        let large = &files[1]["before"];
        assert_eq!((&large["bytes"], &large["copy"]), (&json!(1024 * 1024 + 1), &Value::Null));
        assert_eq!((&files[2]["path"], &files[2]["before"]), (&json!("made"), &Value::Null));
        assert_eq!(files.as_array().unwrap().len(), 3, "a change that did not happen is not listed");

        let service = process.service.as_ref();
        let params = json!(read(session_id, &blob)).to_string();
        let called = wire::call(service, Operation::Blob, &params).await;
        for refused in [service.blob(read(session_id, &blob)).await.map(drop), called.map(drop)] {
            assert_eq!(refused.unwrap_err().code(), ErrorCode::InvalidRequest);
        }
        let page = service.answer_blob(read(session_id, &blob)).await.unwrap();
        assert_eq!(content_of_copy(&page.bytes().unwrap()), Some(CONTENT.as_bytes()));
        let call = format!(r#"@call read_blob {{"blob":"{blob}"}} @echo last_result"#);
        let answer = process.turn(session_id, &call).await.unwrap().text;
        assert!(answer.contains("a copy of a file, which is not shown"), "{answer}");
        assert!(!process.lines(session_id).await.concat().contains("opensesame"));
        for redact in [false, true] {
            let bundle = process.export(session_id, redact).await;
            let leaves = [found(&bundle, &blob), found(&bundle, "opensesame")];
            assert_eq!(leaves, [true, false], "the call names the copy, and nothing else of it leaves");
            process.takes(&bundle, true).await;
        }
        (session_id, blob)
    });
    let path = place.session_dir(session_id).join("blobs").join(&blob);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(place.examine(false).findings, []);
    std::fs::write(path, "something else").unwrap();
    let found = place.examine(false).findings;
    assert!(found.len() == 1 && found[0].what.contains(&blob), "{found:?}");
}

#[test]
fn a_copy_goes_with_its_event_and_into_a_fork_but_not_into_a_bundle() {
    let (place, elsewhere) = (place(), place());
    let (bundle, files) = with_changer(&place, async |process| {
        let session_id = process.create().await;
        process.turn(session_id, "@call change {} @step @fail context").await.unwrap();
        process.turn(session_id, "@say Done.").await.unwrap();
        let files = files_of(&process, session_id).await;
        let blob = files[0]["before"]["copy"].as_str().unwrap().to_owned();
        let fork = process.fork(session_id, Some(0)).await.unwrap();
        let bundle = process.export(session_id, false).await;
        process.is_read(fork).await;
        assert!(process.compact(fork, false, false).await.dropped > 0);
        for id in [session_id, fork] {
            assert!(process.service.answer_blob(read(id, &blob)).await.is_ok(), "it stays as long as its event");
        }
        assert_eq!(files_of(&process, fork).await, files);
        (bundle, files)
    });
    assert_eq!(place.examine(false).findings, []);
    assert!(!found(&bundle, "opensesame"), "nothing there could use it");
    elsewhere.process(true, async |process| {
        let imported = process.takes(&bundle, false).await;
        assert_eq!(files_of(&process, imported).await, files);
        let copy = read(imported, files[0]["before"]["copy"].as_str().unwrap());
        assert_eq!(process.service.answer_blob(copy).await.unwrap_err().code(), ErrorCode::ItemNotFound);
    });
    assert_eq!(elsewhere.examine(false).findings, [], "what no bundle brings is not missing");
}
