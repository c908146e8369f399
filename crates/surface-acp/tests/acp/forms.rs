//! Questions of a tool's server during its call, which a client may show as forms.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    Agent, AgentBuildConfig,
    clock::SystemClock,
    model::ToolSpec,
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Question, Tool, ToolError, test_tools::test_tools},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::{Client, prompt, texts};

/// Makes a client that shows forms and notices, or notices alone, and its session.
async fn begun(agent: &Agent, has_forms: bool) -> (Client, String) {
    let mut client = Client::of(agent);
    let mut capabilities = json!({ "session": { "notices": {} } });
    if has_forms {
        capabilities["elicitation"] = json!({ "form": {} });
    }
    client.ends("initialize", json!({ "protocolVersion": 1, "clientCapabilities": capabilities })).await;
    let session = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
    (client, session["sessionId"].as_str().unwrap().to_owned())
}

/// Allows the call that is asked about.
async fn allowed(client: &mut Client) {
    let asked = client.asked("session/request_permission").await;
    let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
    client.write(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string()).await;
}

#[tokio::test]
async fn a_form_of_a_server_is_shown_and_its_answer_passed_on() {
    const ASKS: &str = r#"@call test_form {"message":"Who are you?"} @echo last_result"#;
    let folder = meerkat_testkit::folder();
    let tools = test_tools(folder.path().to_owned(), Arc::new(SystemClock::new()));
    let agent = tools.into_iter().fold(AgentBuildConfig::new(), |build, tool| build.tool(tool)).build().unwrap();
    let accept = |content: Value| json!({ "result": { "action": "accept", "content": content } });
    for (answer, expected) in [
        (accept(json!({ "name": "Ann" })), r#"accepted {"count":3,"name":"Ann"}"#),
        (json!({ "result": { "action": "decline" } }), "declined"),
        // What is no answer to the form declines it, so that no call waits for nothing.
        (accept(json!({ "name": 7 })), "declined"),
        (accept(json!("Ann")), "declined"),
        (json!({ "result": { "action": "accept" } }), "declined"),
        (json!({ "result": { "action": "cancel" } }), "declined"),
        (json!({ "result": [] }), "declined"),
        (json!({ "error": { "code": -32601, "message": "Method not found" } }), "declined"),
    ] {
        let (mut client, session) = begun(&agent, true).await;
        let id = client.prompt(&session, ASKS).await;
        // The call itself is asked about in this mode.
        allowed(&mut client).await;
        let asked = client.asked("elicitation/create").await;
        let params = &asked["params"];
        assert_eq!((&params["sessionId"], &params["mode"]), (&json!(session), &json!("form")), "{asked}");
        assert!(params["toolCallId"].is_string(), "{asked}");
        assert!(params["message"].as_str().unwrap().contains("Who are you?"), "{asked}");
        assert_eq!(params["requestedSchema"]["properties"]["count"]["default"], 3, "{asked}");
        let mut message = answer.clone();
        (message["jsonrpc"], message["id"]) = (json!("2.0"), asked["id"].clone());
        client.write(&message.to_string()).await;
        let ended = client.answer(id).await;
        assert_eq!(ended["result"]["stopReason"], "end_turn", "{answer}: {ended}");
        let said = texts(&client.updates(), "agent_message_chunk");
        assert_eq!(said, format!("last_result: {expected}"), "{answer}");
    }
}

/// Asks during its call, which ends when it is notified.
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

/// The turn goes on, so its end does not withdraw the form. A client without forms hears where to answer.
#[tokio::test]
async fn a_form_is_withdrawn_when_its_call_ends() {
    let (schema, ends) = (RawJson::parse(r#"{"type":"object"}"#).unwrap(), Arc::new(Notify::new()));
    let spec = ToolSpec { name: "impatient".to_owned(), description: "Asks.".to_owned(), schema };
    let agent = super::built(AgentBuildConfig::new().tool(Arc::new(Impatient(spec, ends.clone()))));
    for has_forms in [true, false] {
        let (mut client, session) = begun(&agent, has_forms).await;
        let id =
            client.ask("session/prompt", prompt(&session, "@call impatient {} @step @call hold {} @say Done.")).await;
        if has_forms {
            let asked = client.asked("elicitation/create").await;
            ends.notify_one();
            let withdrawn = client.asked("$/cancel_request").await;
            assert_eq!(withdrawn["params"]["requestId"], asked["id"], "{withdrawn}");
        } else {
            let notice = loop {
                let update = client.asked("session/update").await["params"]["update"].clone();
                if update["sessionUpdate"] == "notice" {
                    break update;
                }
            };
            assert!(notice.to_string().contains("Who are you?"), "{notice}");
            ends.notify_one();
        }
        allowed(&mut client).await;
        let ended = client.answer(id).await;
        assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    }
}
