//! Pins that the model itself sets.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{Rig, Subject, check_journal};
use crate::{
    AgentBuildConfig, SessionId,
    options::EngineOptions,
    redact::Secrets,
    runtime::pin_fact::PinFact,
    service::{CreateSession, ReadEvents, SessionService, StartTurn, TurnStatus},
    session::message::RawJson,
    store::MemoryBlobStore,
    tool::{Invocation, OutputLimits, OutputSink, Tool as _, ToolError},
};

/// A service whose model may pin facts.
fn rig() -> Rig {
    let mut rig = Rig::new(vec![]);
    rig.options.limits.pins = 2;
    rig.options.limits.pin_bytes = 30;
    rig
}

async fn subject(mut rig: Rig) -> (Subject, Arc<PinFact>) {
    let tool = PinFact::new().unwrap();
    rig.tools.push(tool.clone());
    let service = rig.service();
    tool.serve(&service);
    (Subject::new(service).await, tool)
}

#[tokio::test]
async fn a_fact_is_pinned_in_its_turn_and_the_same_fact_once() {
    let (subject, _) = subject(rig()).await;
    let twice = r#"@call pin_fact {"text":"The key is blue."} @call pin_fact {"text":"The key is blue."} @say Kept."#;
    assert_eq!(subject.turn(twice).await.unwrap().text, "Kept.");
    let events = subject.events().await;
    check_journal(&events);
    let pinned: Vec<_> = events.iter().filter(|event| event["type"] == "pinned").collect();
    assert_eq!(pinned.len(), 1);
    assert_eq!((&pinned[0]["turn"], &pinned[0]["text"]), (&0.into(), &"The key is blue.".into()));
    let results: Vec<_> = events.iter().filter(|event| event["type"] == "tool_finished").collect();
    let said = format!("Pinned as {}.", pinned[0]["seq"]);
    assert!(results.iter().all(|result| result["output"] == said.as_str()), "{results:?}");
    assert_eq!(events.iter().find(|event| event["type"] == "tool_started").unwrap()["effect"], "idempotent");
    let tail = subject.turn("@echo tail").await.unwrap().text;
    assert!(tail.contains("The key is blue."), "{tail}");
}

#[tokio::test]
async fn a_limit_is_told_to_the_model_and_pins_nothing() {
    let (subject, _) = subject(rig()).await;
    for (text, why) in [
        ("This fact is longer than thirty bytes.", "pin has more than 30 bytes"),
        ("", "do not fit"),
        ("One.", ""),
        ("Two.", ""),
        ("Three.", "pins"),
    ] {
        let prompt = format!(r#"@call pin_fact {{"text":"{text}"}} @echo last_result"#);
        let turn = subject.turn(&prompt).await.unwrap();
        assert_eq!(turn.status, TurnStatus::Completed);
        let finished = subject.events().await.into_iter().rfind(|event| event["type"] == "tool_finished").unwrap();
        assert_eq!(finished["outcome"], if why.is_empty() { "succeeded" } else { "not_run" }, "{text}");
        assert!(turn.text.contains(why), "{text}: {}", turn.text);
    }
    let pins = subject.service.pins(&subject.session_id).await.unwrap().items;
    assert_eq!(pins.iter().map(|pin| pin.text.as_str()).collect::<Vec<_>>(), ["One.", "Two."]);
}

/// A call that outlives its turn cannot pin anything in a later one.
#[tokio::test]
async fn a_call_whose_turn_has_ended_pins_nothing() {
    let (subject, tool) = subject(rig()).await;
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
