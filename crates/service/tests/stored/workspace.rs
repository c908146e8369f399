//! A session's workspace: where it may be, and the reminders that tell the model of it.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use meerkat_service::{
    AgentBuildConfig, Operation, SessionError,
    clock::Timestamp,
    options::EngineOptions,
    service::{CreateSession, Remind, StartTurn},
    session::reminder::{Reminder, SystemReminderType},
    tool::WorkspaceNotes,
    wire,
};

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

#[tokio::test]
async fn reminders_of_the_workspace_are_renewed_and_a_persons_stay() {
    let folder = meerkat_testkit::folder();
    let notes = Arc::new(Notes::default());
    let data = meerkat_testkit::folder();
    let build = AgentBuildConfig::new().store(data.path().to_owned());
    let agent = build.workspace_notes(notes.clone()).build().unwrap();
    let service = agent.service();
    let session_id = service.create_session(in_folder(folder.path())).await.unwrap().session_id;
    let kind = SystemReminderType::GitStatus;
    let (rules, status) = (SystemReminderType::ClaudeMd, SystemReminderType::Environment);
    let set = Remind { session_id, kind: kind.clone(), text: "A person's.".to_owned() };
    service.remind(set).await.unwrap();
    let turn = async |written: &[(&SystemReminderType, Option<&str>)]| -> Vec<Reminder> {
        let owned = |text: &Option<&str>| text.map(str::to_owned);
        *notes.0.lock().unwrap() = written.iter().map(|(kind, text)| ((*kind).clone(), owned(text))).collect();
        service.start_turn(StartTurn::new(session_id, "hello")).await.unwrap();
        service.read(&session_id).await.unwrap().reminders
    };
    let texts = |reminders: &[Reminder]| -> BTreeMap<String, String> {
        reminders.iter().map(|reminder| (reminder.kind.to_string(), reminder.text.clone())).collect()
    };
    let expected = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(kind, text)| ((*kind).to_owned(), (*text).to_owned())).collect()
    };

    let first = turn(&[(&rules, Some("Tabs.")), (&kind, Some("dirty")), (&status, Some("linux"))]).await;
    let shown = [("claude_md", "Tabs."), ("git_status", "A person's."), ("environment", "linux")];
    assert_eq!(texts(&first), expected(&shown));
    let again = turn(&[(&rules, Some("Tabs.")), (&kind, Some("dirty")), (&status, Some("linux"))]).await;
    assert_eq!(again, first, "notes that have not changed are recorded once");
    let changed = turn(&[(&rules, None), (&kind, None), (&status, Some("linux, later"))]).await;
    assert_eq!(texts(&changed), expected(&[("git_status", "A person's."), ("environment", "linux, later")]));
}

/// A client that speaks JSON may be anybody on the network; the folders it may name are configured.
#[tokio::test]
async fn a_client_names_a_configured_folder_and_no_path() {
    let folder = meerkat_testkit::folder();
    let path = folder.path().canonicalize().unwrap();
    std::fs::write(path.join("file"), "").unwrap();
    let mut options = EngineOptions::default();
    options.tools.folders.insert("site".to_owned(), path.clone());
    options.tools.folders.insert("gone".to_owned(), path.join("gone"));
    let data = meerkat_testkit::folder();
    let agent = AgentBuildConfig::new().store(data.path().to_owned()).options(options).build().unwrap();
    let service = agent.service();
    let ask = async |workspace: &str| {
        let params = serde_json::json!({ "workspace": workspace }).to_string();
        wire::call(service.as_ref(), Operation::CreateSession, &params).await
    };
    let refusal = async |workspace: &str| match ask(workspace).await {
        Err(SessionError::InvalidRequest { field, message }) if field == "workspace" => message,
        other => panic!("{workspace}: {other:?}"),
    };
    let text = path.to_str().unwrap();
    assert!(refusal(text).await.contains("tools.folders"));
    assert!(refusal("../x").await.contains("tools.folders"));
    assert!(refusal("other").await.contains("the names are: gone, site"));
    assert!(refusal("gone").await.contains("No such file"));
    let created: serde_json::Value = serde_json::from_slice(&ask("site").await.unwrap()).unwrap();
    let session_id = created["session_id"].as_str().unwrap().parse().unwrap();
    assert_eq!(service.read(&session_id).await.unwrap().workspace.as_deref(), Some(text));

    // A program may name any folder, and nothing else.
    service.create_session(in_folder(&path)).await.unwrap();
    let refused = service.create_session(in_folder(&path.join("file"))).await;
    assert!(matches!(refused, Err(SessionError::InvalidRequest { message, .. }) if message.contains("not a folder")));
}
