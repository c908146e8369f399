//! Requests of the protocol, each answered by one call of the service.

use std::future::ready;

use ::http::request::Parts;
use bytes::Bytes;
use meerkat_service::{
    Operation, SessionError,
    capability::Capability,
    follow::turn::{answered, handle},
    service::{AnswerCall, SessionQuery},
    wire as service_wire,
    wire::Room,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestMethod, CallToolRequestParams, CallToolResponse, CallToolResult, CancelledNotificationParam,
        CompleteRequestMethod, CompleteRequestParams, CompleteResult, ConstString as _, CustomRequest, CustomResult,
        GetPromptRequestMethod, GetPromptRequestParams, GetPromptResponse, Implementation, ListPromptsRequestMethod,
        ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
        ReadResourceRequestMethod, ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig,
        SetLevelRequestMethod, SubscribeRequestMethod, SubscribeRequestParams, UnsubscribeRequestMethod,
        UnsubscribeRequestParams,
    },
    service::{NotificationContext, RequestContext},
};

use crate::{
    McpServer, error,
    http::Held,
    rounds::Rounds,
    stream::{self, Answer},
    tools::Toolset,
    wire,
};

/// Instructions for a client's model, for each set of tools.
const INSTRUCTIONS: &str = "meerkat keeps agent sessions. Create one with `session_create`, run turns on it with \
    `turn_start`, read its events with `session_events`, end a running turn with `turn_interrupt`. Every failure is a \
    body with a stable `code`; `errors` lists the codes.";
const INSTRUCTIONS_CORE: &str = "meerkat keeps agent sessions. Create one with `session_create`, run turns on it with \
    `turn_start`, continue later with `session_resume`. `session_list` and `session_history` show what there is, \
    `search_project_history` finds what was said. Every failure is a body with a stable `code`.";

/// Refuses methods that this server does not have.
macro_rules! refuse {
    ($( $(#[$attribute:meta])* $name:ident($params:ty) -> $answer:ty, $method:ident; )*) => { $(
        $(#[$attribute])*
        async fn $name(&self, _: $params, _: RequestContext<RoleServer>) -> Result<$answer, ErrorData> {
            Err(error::unknown_method($method::VALUE, false))
        }
    )* };
}

/// Keeps the room of a result until its response is sent.
fn keep(room: Option<Room>, context: &RequestContext<RoleServer>) {
    let held = context.extensions.get::<Parts>().and_then(|parts| parts.extensions.get::<Held>());
    if let (Some(room), Some(held)) = (room, held) {
        held.keep(room);
    }
}

impl McpServer {
    async fn call(
        &self,
        operation: Operation,
        params: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, SessionError> {
        let (answer, room) = self.answers.call(self.service.as_ref(), operation, params).await?.into_parts();
        let result = wire::result(&answer);
        keep(room, context);
        result
    }

    async fn turn(
        &self,
        operation: Operation,
        params: &str,
        answer: Option<AnswerCall>,
        rounds: Option<Rounds>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, SessionError> {
        let service = self.service.as_ref();
        let request = self.cancellations.begin(context, &self.ending);
        let begun = match (rounds.as_ref().and_then(|rounds| rounds.resumed.as_ref()), answer) {
            (Some(place), _) => handle(self.service.clone(), place.accepted.clone()),
            (None, Some(answer)) => handle(self.service.clone(), answered(service, answer).await?),
            (None, None) if operation == Operation::Resume => service_wire::begin_resume(service, params).await?,
            (None, None) => service_wire::begin_turn(service, params).await?,
        };
        let (answer, is_failed) = match stream::answer(service, begun, rounds, &request, context).await? {
            Answer::Ask(asked) => return Ok(asked.into()),
            Answer::End { body, is_failed } => (body, is_failed),
        };
        let mut result = wire::result(&answer)?;
        // A client that looks at nothing else must not take a failed turn for a good one.
        result.is_error = Some(is_failed);
        Ok(result.into())
    }

    async fn compact(
        &self,
        params: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, SessionError> {
        let request = self.cancellations.begin(context, &self.ending);
        wire::result(&stream::compact(self.service.as_ref(), service_wire::decode_params(params)?, &request).await?)
    }
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().enable_resources().build())
            .with_server_info(Implementation::new("meerkat", env!("CARGO_PKG_VERSION")))
            .with_instructions(match self.offer.set {
                Toolset::Core => INSTRUCTIONS_CORE,
                Toolset::All => INSTRUCTIONS,
            })
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.offer.tools()))
    }

    async fn call_tool(
        &self,
        mut request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let operation = self.offer.operation(&request.name).ok_or_else(|| error::unknown_tool(&request.name))?;
        if let Err(absent) = self.service.capabilities().admit(operation) {
            let params = wire::params(request.arguments);
            let refused = ready(Err(absent));
            let answer = service_wire::in_span::<CallToolResponse>("mcp", operation, &params, refused).await;
            return Ok(answer.unwrap_or_else(|absent| error::refused(&absent).into()));
        }
        let rounds = Rounds::of(&self.state_key, &mut request, &context)?;
        let is_allowing = request.arguments.as_ref().is_some_and(|arguments| arguments.contains_key("allow"));
        let params = wire::params(request.arguments);
        let work = async {
            if is_allowing && !self.offer.approve {
                let message = "this server was started without `--approve`, so its client's turns may allow no calls";
                return Err(SessionError::invalid("allow", message));
            }
            match operation {
                Operation::StartTurn | Operation::Resume => self.turn(operation, &params, None, rounds, &context).await,
                Operation::AnswerCall => match service_wire::decode_params::<AnswerCall>(&params)? {
                    answer if answer.wait => self.turn(operation, &params, Some(answer), rounds, &context).await,
                    _ => self.call(operation, &params, &context).await.map(Into::into),
                },
                Operation::Compact => self.compact(&params, &context).await.map(Into::into),
                // A long poll ends with its client.
                Operation::Events | Operation::Changes => tokio::select! {
                    result = self.call(operation, &params, &context) => result.map(Into::into),
                    () = context.ct.cancelled() => Err(SessionError::Internal("the client cancelled the request".to_owned())),
                },
                _ => self.call(operation, &params, &context).await.map(Into::into),
            }
        };
        // Boxed, because the library moves the future.
        let answer = service_wire::in_span("mcp", operation, &params, Box::pin(work)).await;
        Ok(answer.unwrap_or_else(|refusal| error::refused(&refusal).into()))
    }

    refuse! {
        // The library refuses these too, but without our body.
        #[expect(deprecated, reason = "clients of older revisions send it")]
        set_level(rmcp::model::SetLevelRequestParams) -> (), SetLevelRequestMethod;
        get_prompt(GetPromptRequestParams) -> GetPromptResponse, GetPromptRequestMethod;
        subscribe(SubscribeRequestParams) -> (), SubscribeRequestMethod;
        unsubscribe(UnsubscribeRequestParams) -> (), UnsubscribeRequestMethod;
        complete(CompleteRequestParams) -> CompleteResult, CompleteRequestMethod;
        // The library answers this one with an empty list, as if there were prompts.
        list_prompts(Option<PaginatedRequestParams>) -> ListPromptsResult, ListPromptsRequestMethod;
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        // Clients list resources when they connect, so a build without a store has none instead of a refusal.
        // `session_list` says why, and every session can be read by its URI.
        if self.service.capabilities().require(Capability::SessionStore).is_err() {
            return Ok(ListResourcesResult::default());
        }
        let cursor = request.and_then(|request| request.cursor);
        let page = self.service.list(SessionQuery { cursor, ..SessionQuery::default() }).await;
        page.map(wire::resources).map_err(|refusal| error::resource(&refusal))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(wire::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let unread = |refusal: SessionError| error::unread(&refusal, &request.uri);
        if let Some(list) = wire::changes_of(&request.uri) {
            let room = self.answers.room(Operation::Changes).await.map_err(unread)?;
            let page = self.service.changes(list).await.map_err(unread)?;
            let contents = wire::list_contents(request.uri.clone(), &page).map_err(unread)?;
            keep(room, &context);
            return Ok(contents.into());
        }
        let page = wire::page_of(&request.uri).map_err(unread)?;
        let mut room = self.answers.room(Operation::Events).await.map_err(unread)?;
        let page = self.service.events(page).await.map_err(unread)?;
        if let Some(room) = &mut room {
            room.shrink(page.items.iter().map(Bytes::len).sum());
        }
        let contents = wire::contents(request.uri.clone(), &page);
        keep(room, &context);
        Ok(contents.into())
    }

    async fn on_cancelled(&self, notification: CancelledNotificationParam, _: NotificationContext<RoleServer>) {
        if let Some(id) = notification.request_id {
            self.cancellations.cancel(id);
        }
    }

    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let known = [CallToolRequestMethod::VALUE, ReadResourceRequestMethod::VALUE];
        Err(error::unknown_method(&request.method, known.contains(&request.method.as_str())))
    }
}
