//! The server of the fixtures.

#![expect(deprecated, reason = "the suite asks for what only the older revisions have")]

use std::sync::{Mutex, PoisonError};

use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CompleteRequestParams, CompleteResult,
        GetPromptRequestParams, GetPromptResponse, GetPromptResult, Implementation, ListPromptsResult,
        ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, LoggingLevel, PaginatedRequestParams,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerConfig, ServerNotification,
        ServerRequest, SetLevelRequestMethod, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter, Tool,
        UnsubscribeRequestParams,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use crate::{
    fixtures::{self, read, text},
    guarded::Cut,
    rounds::{Sent, Step, step},
};

/// A change, for the subscriptions.
#[derive(Clone, Copy, PartialEq)]
enum Change {
    Tools,
    Prompts,
}

/// The changes of all servers of a listener.
#[derive(Clone)]
pub(crate) struct Changes(broadcast::Sender<Change>);

impl Default for Changes {
    fn default() -> Self {
        Self(broadcast::Sender::new(16))
    }
}

/// A server for one client.
pub(crate) struct Fixtures {
    changes: Changes,
    /// The least level of a message that the client wants to see.
    level: Mutex<LoggingLevel>,
}

impl Fixtures {
    pub(crate) fn new(changes: Changes) -> Self {
        Self { changes, level: Mutex::new(LoggingLevel::Debug) }
    }

    /// Sends messages of the level `info` to clients that want them. Old revisions set a level for the session, new ones
    /// name one in the request.
    async fn log(&self, context: &RequestContext<RoleServer>, messages: &[&str]) -> Result<(), ErrorData> {
        let level = match is_legacy(context) {
            true => Some(*self.level.lock().unwrap_or_else(PoisonError::into_inner)),
            false => context.meta.log_level(),
        };
        let is_wanted = level.is_some_and(|level| level as u8 <= LoggingLevel::Info as u8);
        for message in messages.iter().filter(|_| is_wanted) {
            let params = json!({ "level": "info", "logger": "fixtures", "data": message });
            notify(context, json!({ "method": "notifications/message", "params": params })).await?;
        }
        Ok(())
    }

    async fn call(&self, tool: &str, context: &RequestContext<RoleServer>) -> Result<Option<Value>, ErrorData> {
        let said = match tool {
            "test_tool_with_logging" | "test_logging_tool" => {
                let messages = ["Tool execution started", "Tool processing data", "Tool execution completed"];
                self.log(context, &messages).await?;
                "Logged."
            }
            "test_tool_with_progress" => {
                for progress in [0, 50, 100] {
                    let Some(token) = context.meta.get_progress_token() else { break };
                    let params = json!({ "progressToken": token, "progress": progress, "total": 100 });
                    notify(context, json!({ "method": "notifications/progress", "params": params })).await?;
                }
                "Progressed."
            }
            "test_reconnection" => {
                let request = context.extensions.get::<http::request::Parts>();
                let cut = request.and_then(|request| request.extensions.get::<Cut>());
                let cut = cut.ok_or_else(|| ErrorData::internal_error("there is nothing to cut", None))?;
                tokio::select! {
                    () = cut.until_return() => "Reconnected.",
                    () = context.ct.cancelled() => "Nobody came back.",
                }
            }
            "test_trigger_tool_change" => self.change(Change::Tools),
            "test_trigger_prompt_change" => self.change(Change::Prompts),
            _ => return Ok(fixtures::answer(tool)),
        };
        Ok(Some(json!({ "content": [text(said)] })))
    }

    fn change(&self, what: Change) -> &'static str {
        match self.changes.0.send(what) {
            Ok(_) => "Told.",
            Err(_) => "Nobody listens.",
        }
    }
}

/// Data as a complete result. New revisions have results with questions too.
fn result<T: DeserializeOwned>(mut data: Value) -> Result<T, ErrorData> {
    data["resultType"] = json!("complete");
    read(data)
}

/// Whether a request is of a revision that begins with `initialize`.
fn is_legacy(context: &RequestContext<RoleServer>) -> bool {
    context.protocol_version().is_some_and(|version| version.has_initialize())
}

async fn notify(context: &RequestContext<RoleServer>, notification: Value) -> Result<(), ErrorData> {
    let notification: ServerNotification = read(notification)?;
    let sent = context.peer.send_notification(notification).await;
    sent.map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

/// Asks the client; returns its answer in the suite's words.
async fn ask(tool: &str, question: Value, context: &RequestContext<RoleServer>) -> Result<Value, ErrorData> {
    let question: ServerRequest = read(question)?;
    let answer = context.peer.send_request(question).await;
    let answer = json!(answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?);
    let (action, content) = (&answer["action"], &answer["content"]);
    let said = match tool {
        "test_sampling" => format!("LLM response: {}", content["text"].as_str().unwrap_or_default()),
        "test_elicitation" => format!("User response: action={action}, content={content}"),
        _ => format!("Elicitation completed: action={action}, content={content}"),
    };
    Ok(json!({ "content": [text(said)] }))
}

impl ServerHandler for Fixtures {
    fn get_info(&self) -> ServerConfig {
        let capabilities = json!({
            "tools": { "listChanged": true },
            "prompts": { "listChanged": true },
            "resources": { "subscribe": true },
            "completions": {},
            "logging": {},
        });
        ServerConfig::new(read(capabilities).unwrap_or_default())
            .with_server_info(Implementation::new("meerkat-conformance", env!("CARGO_PKG_VERSION")))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(read(json!(fixtures::tools()))?))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        let tool = fixtures::tools().into_iter().find(|tool| tool["name"] == name)?;
        read(tool).ok()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = request.name.as_ref();
        let sent = Sent {
            responses: request.input_responses.as_ref(),
            state: request.request_state.as_deref(),
            capabilities: context.client_capabilities(),
        };
        if let Some(step) = step(tool, sent) {
            let answers = match step? {
                Step::Ask(questions) => return Ok(questions.into()),
                Step::Done(answers) => answers,
            };
            let said = match tool {
                "test_input_required_result_elicitation" => {
                    format!("Hello, {}!", answers["user_name"]["content"]["name"].as_str().unwrap_or_default())
                }
                "test_input_required_result_request_state" => "state-ok".to_owned(),
                _ => json!(answers).to_string(),
            };
            return Ok(result::<CallToolResult>(json!({ "content": [text(said)] }))?.into());
        }
        let arguments = request.arguments.unwrap_or_default();
        let answer = match fixtures::question(tool, &arguments) {
            Some(question) => Some(ask(tool, question, &context).await?),
            None => self.call(tool, &context).await?,
        };
        let answer = answer.ok_or_else(|| ErrorData::invalid_params(format!("no such tool: {tool}"), None))?;
        Ok(result::<CallToolResult>(answer)?.into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult::with_all_items(read(fixtures::prompts())?))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let sent = Sent {
            responses: request.input_responses.as_ref(),
            state: request.request_state.as_deref(),
            capabilities: context.client_capabilities(),
        };
        let prompt = match step(&request.name, sent).transpose()? {
            Some(Step::Ask(questions)) => return Ok(questions.into()),
            Some(Step::Done(answers)) => {
                let content = text(json!(answers).to_string());
                Some(json!({ "messages": [{ "role": "user", "content": content }] }))
            }
            None => fixtures::prompt(&request.name, &request.arguments.unwrap_or_default()),
        };
        let prompt = prompt.ok_or_else(|| ErrorData::invalid_params("no such prompt, or not its arguments", None))?;
        Ok(result::<GetPromptResult>(prompt)?.into())
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let begun = request.argument.value;
        let values: Vec<&str> =
            ["paris", "park", "party"].into_iter().filter(|word| word.starts_with(&begun)).collect();
        result(json!({ "completion": { "total": values.len(), "values": values, "hasMore": false } }))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(read(fixtures::resources())?))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(read(fixtures::templates())?))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let resource = fixtures::resource(&request.uri)
            .ok_or_else(|| ErrorData::resource_not_found("no such resource", Some(json!({ "uri": request.uri }))))?;
        Ok(result::<ReadResourceResult>(resource)?.into())
    }

    async fn set_level(
        &self,
        request: SetLevelRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if !is_legacy(&context) {
            return Err(ErrorData::method_not_found::<SetLevelRequestMethod>());
        }
        *self.level.lock().unwrap_or_else(PoisonError::into_inner) = request.level;
        Ok(())
    }

    async fn subscribe(&self, _: SubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        // No resource changes here.
        Ok(())
    }

    async fn unsubscribe(&self, _: UnsubscribeRequestParams, _: RequestContext<RoleServer>) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.0.subscribe();
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changes.recv() => change.map_err(|error| ErrorData::internal_error(error.to_string(), None))?,
            };
            let (sink, accepted) = (context.sink(), context.accepted());
            let sent = match change {
                Change::Tools if accepted.tools_list_changed == Some(true) => sink.notify_tool_list_changed().await,
                Change::Prompts if accepted.prompts_list_changed == Some(true) => {
                    sink.notify_prompt_list_changed().await
                }
                Change::Tools | Change::Prompts => Ok(()),
            };
            sent.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        }
    }
}
