//! A session's workspace: where it may be, and the reminders that tell the model of it.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use meerkat_service::{
    Operation, SessionError,
    clock::Timestamp,
    service::CreateSession,
    session::reminder::{Reminder, SystemReminderType},
    tool::WorkspaceNotes,
    wire,
};
use serde_json::{Value, json};

use crate::stored::Place;

type Written = Vec<(SystemReminderType, Option<String>)>;

/// Notes that a test changes between turns.
#[derive(Default)]
struct Notes(Mutex<Written>);

#[async_trait]
impl WorkspaceNotes for Notes {
    async fn write(&self, _workspace: &Path, _now: Timestamp) -> Written {
        self.0.lock().unwrap().clone()
    }
}

fn in_folder(folder: &Path) -> CreateSession {
    CreateSession { workspace: folder.to_str().map(str::to_owned), ..CreateSession::default() }
}

fn texts(reminders: &[Reminder]) -> BTreeMap<String, &str> {
    reminders.iter().map(|reminder| (reminder.kind.to_string(), reminder.text.as_str())).collect()
}

fn expected<const N: usize>(texts: [(&str, &'static str); N]) -> BTreeMap<String, &'static str> {
    texts.into_iter().map(|(kind, text)| (kind.to_owned(), text)).collect()
}

#[test]
fn reminders_of_the_workspace_are_renewed_and_a_persons_stay() {
    let (place, folder, notes) = (Place::new(), meerkat_testkit::folder(), Arc::new(Notes::default()));
    let with_notes = || place.agent().workspace_notes(notes.clone());
    Place::process_of(with_notes, true, async |process| {
        let session_id = process.service.create_session(in_folder(folder.path())).await.unwrap().session_id;
        process.remind(session_id, "git_status", "A person's.").await;
        let turn = async |written: [(&str, Option<&str>); 3]| {
            let written = written.map(|(kind, text)| (kind.parse().unwrap(), text.map(str::to_owned)));
            *notes.0.lock().unwrap() = written.to_vec();
            process.turn(session_id, "hello").await.unwrap();
            process.view(session_id).await.reminders
        };
        let written = [("claude_md", Some("Tabs.")), ("git_status", Some("dirty")), ("environment", Some("linux"))];
        let first = turn(written).await;
        let shown = [("claude_md", "Tabs."), ("git_status", "A person's."), ("environment", "linux")];
        assert_eq!(texts(&first), expected(shown));
        assert_eq!(turn(written).await, first, "notes that have not changed are recorded once");
        let changed = turn([("claude_md", None), ("git_status", None), ("environment", Some("linux, later"))]).await;
        let shown = [("git_status", "A person's."), ("environment", "linux, later")];
        assert_eq!(texts(&changed), expected(shown));
    });
}

/// A client that speaks JSON may be anybody on the network; the folders it may name are configured.
#[test]
fn a_client_names_a_configured_folder_and_no_path() {
    let (mut place, folder) = (Place::new(), meerkat_testkit::folder());
    let path = folder.path().canonicalize().unwrap();
    std::fs::write(path.join("file"), "").unwrap();
    place.options.tools.folders =
        [("site", path.clone()), ("gone", path.join("gone"))].map(|(name, path)| (name.to_owned(), path)).into();
    place.process(true, async |process| {
        let service = process.service.as_ref();
        let ask = async |workspace: &str| {
            let params = json!({ "workspace": workspace }).to_string();
            wire::call(service, Operation::CreateSession, &params).await
        };
        let text = path.to_str().unwrap();
        for (workspace, why) in [
            (text, "tools.folders"),
            ("../x", "tools.folders"),
            ("other", "the names are: gone, site"),
            ("gone", "No such file"),
        ] {
            match ask(workspace).await {
                Err(SessionError::InvalidRequest { field, message })
                    if field == "workspace" && message.contains(why) => {}
                other => panic!("{workspace}: {other:?}"),
            }
        }
        let created: Value = serde_json::from_slice(&ask("site").await.unwrap()).unwrap();
        let view = process.view(created["session_id"].as_str().unwrap().parse().unwrap()).await;
        assert_eq!(view.workspace.as_deref(), Some(text));

        // A program may name any folder, and nothing else.
        service.create_session(in_folder(&path)).await.unwrap();
        let refused = service.create_session(in_folder(&path.join("file"))).await;
        assert!(
            matches!(refused, Err(SessionError::InvalidRequest { message, .. }) if message.contains("not a folder"))
        );
    });
}
