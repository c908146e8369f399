//! The surface for its clients: the library's own client over a pair of streams and over a listener on loopback, and plain
//! messages if a client would hide what matters.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an impossible value stops there")]

mod calls;
mod framing;
mod questions;
mod rounds;
mod table;
mod turns;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use meerkat_service::{
    Agent, AgentBuildConfig,
    model::ToolSpec,
    options::{EngineOptions, Unattended},
    service::{ReadEvents, SessionCreated},
    session::message::RawJson,
    tool::{Invocation, OutputSink, Plan, Tool, ToolError},
};
use meerkat_surface_mcp::{HttpOptions, MESSAGE_BYTES_MAX, McpHttpService, serve_io, tools::Offer};
use rmcp::{
    ClientHandler, ClientLifecycleMode, ClientServiceExt as _, RoleClient, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
        Implementation, ProgressNotificationParam, ProtocolVersion,
    },
    service::{NotificationContext, PeerRequestOptions, RequestHandle, RunningService},
    transport::{StreamableHttpClientTransport, streamable_http_client::StreamableHttpClientTransportConfig},
};
use serde_json::Value;
use tokio::{net::TcpListener, sync::mpsc, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// A prompt whose turn waits until its call is approved.
const HOLD: &str = r"@call hold {} @say Done.";

struct Hold(ToolSpec);

#[async_trait]
impl Tool for Hold {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(Plan::read_only().ask())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        output.write("held").await
    }
}

fn agent() -> Agent {
    build().build().unwrap()
}

fn build() -> AgentBuildConfig {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let spec = ToolSpec { name: "hold".to_owned(), description: "Holds the turn.".to_owned(), schema };
    let mut options = EngineOptions::default();
    options.approval.unattended = Unattended::Wait;
    // Long enough that no loaded machine is slower.
    options.limits.wait_ms = 60_000;
    AgentBuildConfig::new().options(options).tool(Arc::new(Hold(spec)))
}

/// Waits for what must come, or fails the test.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it never came")
}

/// The lines of a session after a cursor, from the service.
async fn lines(agent: &Agent, session: &SessionCreated, since_seq: u64) -> Vec<String> {
    let request = ReadEvents::new(session.session_id, since_seq);
    let page = agent.service().events(request).await.unwrap();
    page.items.iter().map(|line| String::from_utf8(line.to_vec()).unwrap()).collect()
}

fn type_of(line: &str) -> String {
    serde_json::from_str::<Value>(line).unwrap()["type"].as_str().unwrap().to_owned()
}

/// Follows a session from its beginning to an event of one of these types; returns the types up to it.
async fn types_until(agent: &Agent, session: &SessionCreated, ends: &[&str]) -> Vec<String> {
    let mut follower = agent.service().follow(&session.session_id, 0).await.unwrap();
    let mut types = Vec::new();
    while types.last().is_none_or(|kind: &String| !ends.contains(&kind.as_str())) {
        let line = soon(follower.next()).await.unwrap().unwrap();
        types.push(type_of(std::str::from_utf8(&line.line).unwrap()));
    }
    types
}

/// How a client reaches the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Streams,
    Http,
}

/// Every way in every revision that the library speaks.
fn everywhere() -> impl Iterator<Item = (Way, ProtocolVersion)> {
    let ways = [Way::Streams, Way::Http];
    ways.into_iter().flat_map(|way| ProtocolVersion::KNOWN_VERSIONS.iter().map(move |version| (way, version.clone())))
}

/// Whether `notifications/cancelled` reaches its request: on a stream always, over HTTP with a session.
fn can_cancel(way: Way, version: &ProtocolVersion) -> bool {
    way == Way::Streams || version.has_initialize()
}

struct Recorder {
    version: ProtocolVersion,
    progress: mpsc::UnboundedSender<ProgressNotificationParam>,
}

impl ClientHandler for Recorder {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("test", "0"))
            .with_protocol_version(self.version.clone())
    }

    async fn on_progress(&self, mut params: ProgressNotificationParam, context: NotificationContext<RoleClient>) {
        params.meta = context.extensions.get().cloned();
        self.progress.send(params).unwrap();
    }
}

/// The server's end, where it has one of its own.
type ServerEnd = Option<JoinHandle<std::io::Result<()>>>;

struct Client {
    running: RunningService<RoleClient, Recorder>,
    progress: mpsc::UnboundedReceiver<ProgressNotificationParam>,
    server: ServerEnd,
}

fn http(agent: &Agent) -> McpHttpService {
    McpHttpService::new(agent.service().clone(), HttpOptions { offer: Offer::ALL, ..HttpOptions::default() })
}

async fn listen(service: McpHttpService) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                // A client may leave at any time.
                let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    url
}

/// Connects a client; over streams to a server that offers this.
async fn connect<H: ClientHandler>(
    client: H,
    (agent, offer): (&Agent, Offer),
    way: Way,
    version: &ProtocolVersion,
) -> (RunningService<RoleClient, H>, ServerEnd) {
    let lifecycle = match version.has_initialize() {
        true => ClientLifecycleMode::Initialize,
        false => ClientLifecycleMode::Discover { preferred_versions: vec![version.clone()] },
    };
    if way == Way::Streams {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (service, streams) = (agent.service().clone(), tokio::io::split(far));
        let server = serve_io(service, offer, streams, MESSAGE_BYTES_MAX, CancellationToken::new());
        let server = Some(tokio::spawn(server));
        return (client.serve_with_lifecycle(near, lifecycle).await.unwrap(), server);
    }
    // Another test may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let url = listen(http(agent)).await;
    let transport = StreamableHttpClientTransport::with_client(
        reqwest::Client::builder().no_proxy().build().unwrap(),
        StreamableHttpClientTransportConfig::with_uri(url),
    );
    (client.serve_with_lifecycle(transport, lifecycle).await.unwrap(), None)
}

impl Client {
    async fn connect(agent: &Agent, way: Way, version: &ProtocolVersion) -> Self {
        let (sender, progress) = mpsc::unbounded_channel();
        let recorder = Recorder { version: version.clone(), progress: sender };
        let (running, server) = connect(recorder, (agent, Offer::ALL), way, version).await;
        Self { running, progress, server }
    }

    async fn call(&self, tool: &'static str, arguments: Value) -> Result<CallToolResult, ServiceError> {
        self.running.call_tool(params(tool, arguments)).await
    }

    /// The structured answer of a call that must not fail.
    async fn answer(&self, tool: &'static str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await.unwrap();
        assert_ne!(result.is_error, Some(true), "{result:?}");
        structured(&result)
    }

    /// The body of a call that must fail.
    async fn refusal(&self, tool: &'static str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await.unwrap();
        assert_eq!(result.is_error, Some(true), "{result:?}");
        structured(&result)
    }

    /// Begins a call that can be cancelled.
    async fn begin(&self, tool: &'static str, arguments: Value) -> RequestHandle<RoleClient> {
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params(tool, arguments)));
        self.running.send_cancellable_request(request, PeerRequestOptions::no_options()).await.unwrap()
    }

    /// The lines that come as progress, up to one of this type.
    async fn progress_until(&mut self, kind: &str) -> Vec<String> {
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| type_of(line) != kind) {
            lines.push(line_of(&soon(self.progress.recv()).await.unwrap()));
        }
        lines
    }
}

fn params(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    CallToolRequestParams::new(tool).with_arguments(arguments.as_object().unwrap().clone())
}

/// The structured content. The text beside it must be the same JSON.
fn structured(result: &CallToolResult) -> Value {
    let tree = result.structured_content.clone().unwrap();
    assert_eq!(result.content[0].as_text().unwrap().text, tree.to_string());
    tree
}

/// The event's line in a progress notification.
fn line_of(params: &ProgressNotificationParam) -> String {
    params.meta.as_ref().unwrap().get("meerkat/event").unwrap().as_str().unwrap().to_owned()
}
