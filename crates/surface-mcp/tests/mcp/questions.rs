//! Calls that wait for approval, asked about by the client's own forms.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use meerkat_service::{
    Agent, AgentBuildConfig,
    clock::SystemClock,
    model::ToolSpec,
    service::{CreateSession, SessionCreated, StartTurn},
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Question, Tool, ToolError, test_tools::test_tools},
};
use meerkat_surface_mcp::tools::Offer;
use rmcp::{
    ClientHandler, ErrorData, RoleClient,
    model::{
        ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationCapability,
        Implementation, ProtocolVersion,
    },
    service::{RequestContext, RunningService},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify, mpsc};

use super::{
    HOLD, Way, agent, build, connect, everywhere, framing::Wire, lines, params, soon, structured, turns::release,
    types_until,
};

/// Client whose person gives one answer to everything; without one, the questions stay open.
struct Person {
    version: ProtocolVersion,
    answer: Option<ElicitResult>,
    /// Each question, and `null` when one is withdrawn.
    asked: mpsc::UnboundedSender<Value>,
}

impl ClientHandler for Person {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::default());
        ClientConfig::new(capabilities, Implementation::new("test", "0")).with_protocol_version(self.version.clone())
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        self.asked.send(serde_json::to_value(request).unwrap()).unwrap();
        match &self.answer {
            Some(answer) => Ok(answer.clone()),
            None => {
                context.ct.cancelled().await;
                self.asked.send(Value::Null).unwrap();
                Ok(ElicitResult::new(ElicitationAction::Cancel))
            }
        }
    }
}

struct Client {
    running: Arc<RunningService<RoleClient, Person>>,
    asked: Mutex<mpsc::UnboundedReceiver<Value>>,
}

impl Client {
    /// Connects to a server whose client's model may approve nothing.
    async fn connect(agent: &Agent, way: Way, version: &ProtocolVersion, answer: Option<ElicitResult>) -> Self {
        let (sender, asked) = mpsc::unbounded_channel();
        let person = Person { version: version.clone(), answer, asked: sender };
        let (running, _) = connect(person, (agent, Offer::default()), way, version).await;
        Self { running: Arc::new(running), asked: Mutex::new(asked) }
    }

    /// Begins a turn that asks.
    fn turn(&self, session: &SessionCreated) -> impl Future<Output = Value> + use<> {
        self.turn_with(session, HOLD)
    }

    fn turn_with(&self, session: &SessionCreated, prompt: &'static str) -> impl Future<Output = Value> + use<> {
        let (running, session_id) = (self.running.clone(), session.session_id);
        async move {
            let arguments = json!({ "session_id": session_id, "prompt": prompt, "attended": true });
            structured(&running.call_tool(params("turn_start", arguments)).await.unwrap())
        }
    }

    async fn asked(&self) -> Value {
        soon(self.asked.lock().await.recv()).await.unwrap()
    }
}

fn answer(action: ElicitationAction, content: Value) -> Option<ElicitResult> {
    Some(ElicitResult::new(action).with_content(content))
}

/// The outcome of the call, and the reason for the decision.
async fn decided(agent: &Agent, session: &SessionCreated) -> (Value, Value) {
    let lines = lines(agent, session, 0).await;
    let event = |kind: &str| {
        let mut events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.rfind(|event| event["type"] == kind).unwrap()
    };
    (event("tool_finished")["outcome"].clone(), event("approval_decided")["reason"].clone())
}

#[tokio::test]
async fn a_person_decides_by_a_form() {
    for (way, version) in everywhere() {
        for (given, outcome, reason) in [
            (answer(ElicitationAction::Accept, json!({ "decision": "approve" })), "succeeded", Value::Null),
            (
                answer(ElicitationAction::Accept, json!({ "decision": "deny", "reason": "too late" })),
                "not_run",
                "too late".into(),
            ),
            (Some(ElicitResult::new(ElicitationAction::Decline)), "not_run", Value::Null),
        ] {
            let agent = agent();
            let session = agent.create_session().await.unwrap();
            let client = Client::connect(&agent, way, &version, given).await;
            let result = soon(client.turn(&session)).await;
            assert_eq!(result["text"], "Done.", "{way:?} {version}: {result}");
            let asked = client.asked().await;
            assert_eq!(asked["message"], "The tool hold waits for approval:\n{}");
            let schema = &asked["requestedSchema"];
            assert_eq!(schema["properties"]["decision"]["enum"], json!(["approve", "deny"]), "{asked}");
            assert_eq!(schema["properties"].get("scope"), None, "it proposes no rule");
            assert_eq!(decided(&agent, &session).await, (outcome.into(), reason), "{way:?} {version}");
        }
    }
}

/// A question that is put aside, and an answer to something else, decide nothing.
/// The question came before the text, so no line that follows has it.
#[tokio::test]
async fn a_request_that_steers_asks_about_what_waits_already() {
    for (way, version) in everywhere() {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let waits = StartTurn { attended: true, ..StartTurn::new(session.session_id, HOLD) };
        agent.service().accept_turn(waits).await.unwrap();
        types_until(&agent, &session, &["approval_requested"]).await;
        let given = answer(ElicitationAction::Accept, json!({ "decision": "approve" }));
        let client = Client::connect(&agent, way, &version, given).await;
        let arguments = json!({
            "session_id": session.session_id, "prompt": "@say Steered.", "policy": "steer", "attended": true,
        });
        let result = soon(client.running.call_tool(params("turn_start", arguments))).await.unwrap();
        assert_eq!(structured(&result)["text"], "Steered.", "{way:?} {version}");
        assert_eq!(client.asked().await["message"], "The tool hold waits for approval:\n{}");
        assert!(client.asked.lock().await.try_recv().is_err(), "it is asked about once");
    }
}

/// A session whose turn waits until its caller answers a call. Then it asks about another one.
async fn waits_for_its_caller(agent: &Agent) -> (SessionCreated, Value) {
    let spec = json!({ "name": "weather", "description": "The weather.", "input_schema": { "type": "object" } });
    let client_tools = Some(vec![serde_json::from_value(spec).unwrap()]);
    let session = agent.service().create_session(CreateSession { client_tools, ..CreateSession::default() });
    let session = session.await.unwrap();
    let prompt = "@call weather {} @step @call hold {} @say Done.";
    let turn = StartTurn { attended: true, ..StartTurn::new(session.session_id, prompt) };
    let waiting = soon(agent.service().start_turn(turn)).await.unwrap();
    let arguments = json!({
        "session_id": session.session_id, "call_id": waiting.calls[0].call_id, "outcome": "succeeded", "wait": true,
    });
    (session, arguments)
}

/// What is asked about after the answer, the answer's client is asked.
#[tokio::test]
async fn a_request_that_answers_a_call_and_waits_asks_about_what_comes_later() {
    for (way, version) in everywhere() {
        let agent = agent();
        let (session, arguments) = waits_for_its_caller(&agent).await;
        let given = answer(ElicitationAction::Accept, json!({ "decision": "approve" }));
        let client = Client::connect(&agent, way, &version, given).await;
        let result = soon(client.running.call_tool(params("turn_answer", arguments))).await.unwrap();
        assert_eq!(
            (&structured(&result)["text"], result.is_error),
            (&json!("Done."), Some(false)),
            "{way:?} {version}"
        );
        assert_eq!(client.asked().await["message"], "The tool hold waits for approval:\n{}");
        assert_eq!(decided(&agent, &session).await, ("succeeded".into(), Value::Null), "{way:?} {version}");
    }
}

#[tokio::test]
async fn what_is_no_answer_leaves_the_call_waiting() {
    for given in [
        Some(ElicitResult::new(ElicitationAction::Cancel)),
        answer(ElicitationAction::Accept, json!({ "decision": "perhaps" })),
        answer(ElicitationAction::Accept, json!([])),
    ] {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let client = Client::connect(&agent, Way::Streams, &ProtocolVersion::V_2025_06_18, given).await;
        let turn = tokio::spawn(client.turn(&session));
        client.asked().await;
        types_until(&agent, &session, &["approval_requested"]).await;
        assert_eq!(release(&agent, &session).await, "turn_completed");
        assert_eq!(soon(turn).await.unwrap()["text"], "Done.");
    }
}

#[tokio::test]
async fn a_question_is_withdrawn_when_the_call_is_decided_elsewhere() {
    for way in [Way::Streams, Way::Http] {
        let agent = agent();
        let session = agent.create_session().await.unwrap();
        let client = Client::connect(&agent, way, &ProtocolVersion::V_2025_06_18, None).await;
        let turn = tokio::spawn(client.turn(&session));
        assert_ne!(client.asked().await, Value::Null);
        assert_eq!(release(&agent, &session).await, "turn_completed");
        assert_eq!(client.asked().await, Value::Null, "{way:?}");
        assert_eq!(soon(turn).await.unwrap()["text"], "Done.");
    }
}

/// The client's person sees the server's own form, and the server gets the answer.
#[tokio::test]
async fn a_question_of_a_server_is_passed_on() {
    const PROMPT: &str = r#"@call test_form {"message":"Who are you?"} @echo last_result"#;
    for (given, expected) in [
        (answer(ElicitationAction::Accept, json!({ "name": "Ann" })), r#"accepted {"count":3,"name":"Ann"}"#),
        (Some(ElicitResult::new(ElicitationAction::Decline)), "declined"),
    ] {
        let folder = meerkat_testkit::folder();
        let tools = test_tools(folder.path().to_owned(), Arc::new(SystemClock::new()));
        let build = tools.into_iter().fold(AgentBuildConfig::new(), |build, tool| build.tool(tool));
        let agent = build.build().unwrap();
        let session = agent.create_session().await.unwrap();
        let client = Client::connect(&agent, Way::Streams, &ProtocolVersion::V_2025_06_18, given).await;
        let result = soon(client.turn_with(&session, PROMPT)).await;
        assert_eq!(result["text"], format!("last_result: {expected}"), "{result}");
        let asked = client.asked().await;
        let message = asked["message"].as_str().unwrap();
        assert!(message.starts_with("The tool server test asks this, and gets the answer"), "{message}");
        assert!(message.ends_with("Give it no secrets.\n\nWho are you?"), "{message}");
        assert_eq!(asked["requestedSchema"]["properties"]["count"]["default"], 3);
        assert_eq!(asked["requestedSchema"]["required"], json!(["name"]));
    }
}

/// Tool that asks a person, and returns without the answer.
struct Impatient(ToolSpec, Arc<Notify>);

#[async_trait]
impl Tool for Impatient {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let schema = RawJson::parse(r#"{"type":"object","properties":{}}"#).unwrap();
        tokio::select! {
            _ = output.ask(Question::new("test", "Who are you?", &schema).unwrap()) => {}
            () = self.1.notified() => {}
        }
        Ok(())
    }
}

/// The turn goes on, so its end does not withdraw it.
#[tokio::test]
async fn a_question_is_withdrawn_when_its_call_ends() {
    let (schema, ends) = (RawJson::parse(r#"{"type":"object"}"#).unwrap(), Arc::new(Notify::new()));
    let spec = ToolSpec { name: "impatient".to_owned(), description: "Asks.".to_owned(), schema };
    let agent = build().tool(Arc::new(Impatient(spec, ends.clone()))).build().unwrap();
    let session = agent.create_session().await.unwrap();
    let client = Client::connect(&agent, Way::Streams, &ProtocolVersion::V_2025_06_18, None).await;
    let turn = tokio::spawn(client.turn_with(&session, "@call impatient {} @step @call hold {} @say Done."));
    assert!(client.asked().await["message"].as_str().unwrap().ends_with("Who are you?"));
    ends.notify_one();
    assert_eq!(client.asked().await, Value::Null);
    assert_eq!(client.asked().await["message"], "The tool hold waits for approval:\n{}");
    assert_eq!(release(&agent, &session).await, "turn_completed");
    assert_eq!(soon(turn).await.unwrap()["text"], "Done.");
}

/// Broken once: while a client was slow to read the progress, nobody looked at what its person had answered.
#[tokio::test(start_paused = true)]
async fn an_answer_counts_at_once_however_slowly_the_progress_is_read() {
    let agent = agent();
    let session = agent.create_session().await.unwrap();
    let mut wire = Wire::open(&agent, 100_000, 1000);
    wire.initialize_with("2025-06-18", &json!({ "elicitation": {} })).await;
    // The second question's line does not fit into the pipe.
    let prompt = format!(r#"@call hold {{}} @call hold {{"much":"{}"}} @say Done."#, "x".repeat(50_000));
    let arguments = json!({ "session_id": session.session_id, "prompt": prompt, "attended": true });
    let call = json!({ "name": "turn_start", "arguments": arguments, "_meta": { "progressToken": "t" } });
    wire.write(&[json!({ "jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call })]).await;
    let question = loop {
        let message = wire.read().await;
        if message["method"] == "elicitation/create" {
            break message;
        }
    };
    let began = tokio::time::Instant::now();
    let answer = json!({ "action": "accept", "content": { "decision": "approve" } });
    wire.write(&[json!({ "jsonrpc": "2.0", "id": question["id"], "result": answer })]).await;
    types_until(&agent, &session, &["approval_decided"]).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
