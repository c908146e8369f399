//! Pins that the model itself sets.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Rig, Subject};
use crate::{
    AgentBuildConfig, SessionId,
    options::EngineOptions,
    redact::Secrets,
    runtime::pin_fact::PinFact,
    service::{CreateSession, ReadEvents, SessionService, StartTurn},
    session::message::RawJson,
    store::MemoryBlobStore,
    tool::{Invocation, OutputLimits, OutputSink, Tool as _, ToolError},
};

/// A call that outlives its turn cannot pin anything in a later one.
#[tokio::test]
async fn a_call_whose_turn_has_ended_pins_nothing() {
    let (mut rig, tool) = (Rig::new(vec![]), PinFact::new().unwrap());
    rig.tools.push(tool.clone());
    let service = rig.service();
    tool.serve(&service);
    let subject = Subject::new(service).await;
    subject.turn("@say Done.").await.unwrap();
    let (session_id, turn) = (subject.session_id, 0);
    let arguments = RawJson::parse(r#"{"text":"Late."}"#).unwrap();
    let (cancel, call_id) = (CancellationToken::new(), "call_3_0".to_owned());
    let invocation = Invocation {
        session_id,
        turn,
        call_id,
        arguments,
        workspace: None,
        is_approved: false,
        search_path: None,
        cancel,
    };
    let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
    let progress = tokio::sync::mpsc::channel(1).0;
    let output = OutputSink::new(OutputLimits::default(), blobs, session_id, Secrets::default().stream(), progress);
    let refused = tool.call(invocation, &output).await;
    assert!(matches!(refused, Err(ToolError::Refused(_))), "{refused:?}");
    assert!(subject.service.pins(&session_id).await.unwrap().items.is_empty());
}

async fn tools_of(service: &dyn SessionService, session_id: SessionId) -> String {
    service.start_turn(StartTurn::new(session_id, "@echo tools")).await.unwrap().text
}

/// Without a workspace a request is as it was, unless the configuration says more.
#[tokio::test]
async fn it_is_offered_in_workspaces_and_where_it_is_configured() {
    let folder = meerkat_testkit::folder();
    for (pin_fact, without) in [(false, "tools: none"), (true, "tools: pin_fact")] {
        let mut options = EngineOptions::default();
        options.tools.pin_fact = pin_fact;
        let agent = AgentBuildConfig::new().options(options).build().unwrap();
        let service = agent.service().as_ref();
        let workspace = Some(folder.path().to_str().unwrap().to_owned());
        let request = CreateSession { workspace, ..CreateSession::default() };
        let within = service.create_session(request).await.unwrap().session_id;
        assert_eq!(tools_of(service, within).await, "tools: pin_fact");
        let session_id = agent.create_session().await.unwrap().session_id;
        assert_eq!(tools_of(service, session_id).await, without);
        let request = ReadEvents::new(session_id, 0);
        let lines = service.events(request).await.unwrap().items;
        assert!(!lines.iter().any(|line| String::from_utf8_lossy(line).contains(r#""tools":"""#)));
    }
}
