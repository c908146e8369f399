//! Configured secrets are replaced before an event is made, so that live and replay agree, wherever they turn up.

use std::sync::{Arc, Mutex};

use crate::common::lines;
use async_trait::async_trait;
use meerkat_service::{
    AgentBuildConfig, ErrorCode,
    clock::{SystemClock, World},
    model::{ModelClient, ModelError, ModelRequest, ModelStream, ToolSpec, scripted::ScriptedModel},
    options::{EngineOptions, ModelOptions, Policy},
    output::OutputSpec,
    service::{CreateSession, DecideApproval, EditQueued, PinFact, Remind, StartTurn},
    session::{
        event::{Decision, Scope},
        message::RawJson,
        reminder::SystemReminderType,
    },
    tool::{Answer, Invocation, OutputSink, Plan, Question, Tool, ToolError},
};

const KEY: &str = "sk-planted-\"quoted\"-0123456789abcdef";

/// Says the key in its output, in pieces, in its progress and in its failure.
struct Leaky {
    spec: ToolSpec,
}

#[async_trait]
impl Tool for Leaky {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only().ask())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        output.progress(format!("using {KEY}"));
        for piece in KEY.split_inclusive('-') {
            output.write(piece).await?;
        }
        Err(ToolError::Failed(format!("the key {KEY} was refused")))
    }
}

/// Fails with the key in its message; otherwise the scripted model. It keeps what it was sent.
struct LeakyModel {
    sent: Arc<Mutex<Vec<String>>>,
}

#[async_trait]
impl ModelClient for LeakyModel {
    fn vendor(&self) -> &str {
        "scripted"
    }

    fn lacks(&self, _: &str, _: &ModelOptions) -> Option<&'static str> {
        None
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        self.sent.lock().unwrap().push(format!("{request:?}"));
        if format!("{:?}", request.messages.last()).contains("please fail") {
            return Err(ModelError::new(ErrorCode::ModelUnauthorized, format!("the key {KEY} is not valid")));
        }
        ScriptedModel.stream_response(request).await
    }
}

fn stopped_by_the_key() -> ModelOptions {
    ModelOptions { stop: Some(vec![format!("up to {KEY}")]), ..ModelOptions::default() }
}

#[tokio::test]
async fn a_planted_key_is_in_no_event_no_answer_and_no_error() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let spec = ToolSpec { name: "leaky".into(), description: "Leaks.".into(), schema: RawJson::empty_object() };
    let world = World { clock: Arc::new(SystemClock::new()), ..World::system() };
    let agent = AgentBuildConfig::new()
        .model("scripted", Arc::new(LeakyModel { sent: sent.clone() }), 100_000)
        .tool(Arc::new(Leaky { spec }))
        .options(EngineOptions::default())
        .secret(KEY.into())
        .world(world)
        .build()
        .unwrap();
    let service = agent.service();
    let request = CreateSession {
        system_prompt: Some(format!("Use {KEY}.")),
        labels: [("key".to_owned(), KEY.to_owned())].into(),
        idempotency_key: Some(KEY.to_owned()),
        options: stopped_by_the_key(),
        ..CreateSession::default()
    };
    let session = service.create_session(request).await.unwrap();
    let session_id = session.session_id;
    let mut follower = service.follow(&session_id, 0).await.unwrap();
    let followed = tokio::spawn(async move {
        let mut seen = Vec::new();
        while let Some(line) = follower.next().await.unwrap() {
            seen.push(String::from_utf8(line.line.to_vec()).unwrap());
            if seen.last().unwrap().contains("turn_failed") {
                return seen;
            }
        }
        seen
    });
    let kind = SystemReminderType::Environment;
    service.remind(Remind { session_id, kind, text: format!("KEY={KEY}") }).await.unwrap();
    service.pin(PinFact { session_id, text: KEY.to_owned() }).await.unwrap();
    let arguments = serde_json::json!({ "key": KEY }).to_string();
    // The escaped spaces keep the script's words apart from its directives.
    let prompt = format!("@think {KEY} @say The key is {KEY}. @call leaky {arguments} @echo last_result");
    let turn = tokio::spawn({
        let service = service.clone();
        async move {
            let turn = StartTurn::new(session_id, prompt);
            service.start_turn(StartTurn { attended: true, options: stopped_by_the_key(), ..turn }).await
        }
    });
    let mut approvals = service.follow(&session_id, 0).await.unwrap();
    let asked = crate::common::next_of(&mut approvals, "approval_requested").await;
    let call_id = asked["call_id"].as_str().unwrap().to_owned();
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "@say Old.") };
    let queued = service.begin_turn(queued).await.unwrap();
    let prompt = Some(format!("@say It waits for {KEY}.").into());
    let edited = EditQueued { session_id, turn: queued.accepted.turn, prompt, position: None };
    service.edit_queued(edited).await.unwrap();
    let decision = DecideApproval {
        session_id,
        call_id,
        decision: Decision::Approve,
        scope: Scope::Once,
        reason: Some(format!("it is {KEY}")),
        answer: None,
    };
    service.decide_approval(decision).await.unwrap();
    let answered = turn.await.unwrap().unwrap();
    assert_eq!(queued.result.await.unwrap().text, "It waits for [redacted].");
    assert!(answered.text.contains("the key [redacted] was refused"), "{}", answered.text);
    let failed = agent.turn(&session, &format!("please fail {KEY}")).await.unwrap();
    assert_eq!(failed.error.as_ref().unwrap().message, "the key [redacted] is not valid");

    // A schema and an answer by it lose the key alike.
    let schema = serde_json::json!({ "type": "object", "title": KEY, "properties": { "key": { "const": KEY } } });
    let output = OutputSpec { repairs: 0, ..OutputSpec::new(RawJson::parse(&schema.to_string()).unwrap()) };
    let turn = StartTurn { output: Some(output), ..StartTurn::new(session_id, format!("@json {arguments}")) };
    let by_schema = service.start_turn(turn).await.unwrap();
    assert_eq!(by_schema.output.as_ref().map(RawJson::as_str), Some(r#"{"key":"[redacted]"}"#));

    // However it is spelt, as a value and as a name, in an answer that fits and in one that does not.
    let spelt: String = KEY.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
    let fails = serde_json::json!({ "type": "object", "additionalProperties": { "type": "integer" } }).to_string();
    for (schema, fits) in [(r#"{"type":"object"}"#, true), (&fails, false)] {
        let output = OutputSpec { repairs: 1, ..OutputSpec::new(RawJson::parse(schema).unwrap()) };
        let answer = format!(r#"@json {{"{spelt}":"{spelt}"}}"#);
        let turn = StartTurn::new(session_id, format!("{answer} @step {answer}"));
        let result = service.start_turn(StartTurn { output: Some(output), ..turn }).await.unwrap();
        let clean = r#"{"[redacted]":"[redacted]"}"#;
        assert_eq!(result.output.as_ref().map(RawJson::as_str), fits.then_some(clean));
        assert_eq!(result.text, clean);
        let paths = result.error.map(|error| error.details["paths"].clone());
        assert_eq!(paths, (!fits).then(|| serde_json::json!(["/[redacted]"])));
    }

    let escaped = serde_json::to_string(KEY).unwrap();
    let inner = &escaped[1..escaped.len() - 1];
    let mut everything = followed.await.unwrap();
    assert!(everything.iter().any(|line| line.contains("text_delta")), "the live events were followed too");
    everything.extend(lines(&agent, &session).await.iter().map(ToString::to_string));
    everything.push(format!("{answered:?}{failed:?}{by_schema:?}"));
    everything.extend(sent.lock().unwrap().iter().cloned());
    for text in everything {
        assert!(!text.contains(KEY) && !text.contains(inner) && !text.contains("planted"), "{text}");
    }
}

/// Asks a person about the key, and says if it got it.
struct Asking(ToolSpec);

#[async_trait]
impl Tool for Asking {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let field = serde_json::json!({ "type": "string", "enum": [KEY, "another"] });
        let schema = serde_json::json!({ "type": "object", "properties": { "key": field } });
        let schema = RawJson::parse(&schema.to_string()).unwrap();
        let answer = output.ask(Question::new("test", &format!("Is it {KEY}?"), &schema).unwrap()).await;
        let whole = serde_json::json!({ "key": KEY }).to_string();
        let has_it = matches!(answer, Answer::Accepted(given) if given.as_str() == whole);
        output.write(if has_it { "It has it." } else { "It has something else." }).await
    }
}

#[tokio::test]
async fn a_key_in_a_question_and_its_answer_goes_to_the_tool_alone() {
    let spec = ToolSpec { name: "asking".into(), description: "Asks.".into(), schema: RawJson::empty_object() };
    let agent = AgentBuildConfig::new().tool(Arc::new(Asking(spec))).secret(KEY.into()).build().unwrap();
    let (service, session) = (agent.service(), agent.create_session().await.unwrap());
    let session_id = session.session_id;
    let turn = StartTurn { attended: true, ..StartTurn::new(session_id, "@call asking {} @echo last_result") };
    let begun = service.begin_turn(turn).await.unwrap();
    let mut follower = service.follow(&session_id, 0).await.unwrap();
    let call_id = loop {
        let line = follower.next().await.unwrap().unwrap();
        let event: serde_json::Value = serde_json::from_slice(&line.line).unwrap();
        if event["type"] == "approval_requested" {
            break event["call_id"].as_str().unwrap().to_owned();
        }
    };
    let answer = RawJson::parse(&serde_json::json!({ "key": KEY }).to_string()).ok();
    let decided = DecideApproval { answer, ..DecideApproval::new(session_id, call_id, Decision::Approve) };
    let first = service.decide_approval(decided.clone()).await.unwrap();
    assert_eq!(begun.result.await.unwrap().text, "last_result: It has it.");
    assert_eq!(service.decide_approval(decided).await.unwrap(), first, "the same answer again");
    let events = lines(&agent, &session).await;
    assert!(!serde_json::to_string(&events).unwrap().contains("sk-planted"), "{events:#?}");
    assert_eq!(events.iter().filter(|event| event.to_string().contains("[redacted]")).count(), 2, "{events:#?}");
}
