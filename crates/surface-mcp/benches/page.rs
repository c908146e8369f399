//! A page of events and a `read` over the Model Context Protocol with all guards on, by streamable HTTP in a session of
//! the protocol, against a bare rmcp server that answers with the same bytes.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

#[path = "../../surface-cli/benches/side_by_side/mod.rs"]
mod side_by_side;

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{CallToolRequestParams, CallToolResponse, CallToolResult, ServerCapabilities, ServerConfig},
    service::RequestContext,
    transport::{StreamableHttpService, streamable_http_server::session::local::LocalSessionManager},
};
use side_by_side::{Client, compare, floor, is_floor, meerkat, runtime, session};

/// A server with one tool, whose result is always the same.
#[derive(Clone)]
struct Bare(CallToolResult);

impl ServerHandler for Bare {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        Ok(self.0.clone().into())
    }
}

/// Serves with rmcp as it comes.
fn serve(result: &[u8]) {
    let bare = Bare(serde_json::from_slice(result).unwrap());
    runtime().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        let service = StreamableHttpService::new(
            move || Ok(bare.clone()),
            LocalSessionManager::default().into(),
            Default::default(),
        );
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            // An answer here is more than one write, and would wait for the client's delayed acknowledgement.
            stream.set_nodelay(true).unwrap();
            let service = TowerToHyperService::new(service.clone());
            tokio::spawn(async move {
                drop(auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await);
            });
        }
    });
}

const HEADERS: &str = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";

/// A client that has a session of the protocol and calls a tool.
fn asking(port: u16, params: &str) -> Client {
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",
        "capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}"#;
    let head = Client::http(port, "POST /mcp", HEADERS, hello).ask().head;
    let session = head.split_once("mcp-session-id: ").unwrap().1.split_once('\r').unwrap().0;
    let headers = format!("{HEADERS}mcp-session-id: {session}\r\nmcp-protocol-version: 2025-06-18\r\n");
    let begun = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    Client::http(port, "POST /mcp", &headers, begun).ask();
    let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
    Client::http(port, "POST /mcp", &headers, &call)
}

/// The message in an answer, which is an event stream.
fn message(body: &[u8]) -> &str {
    let text = std::str::from_utf8(body).unwrap();
    text.lines().filter_map(|line| line.strip_prefix("data: ")).find(|data| data.starts_with('{')).unwrap()
}

fn main() {
    if let Some((_, result)) = is_floor() {
        return serve(&result);
    }
    let server = meerkat(&[]);
    let id = session(server.port);
    let page = format!(r#"{{"name":"session_events","arguments":{{"session_id":"{id}","limit":49}}}}"#);
    let read = format!(r#"{{"name":"session_read","arguments":{{"session_id":"{id}"}}}}"#);
    for (what, params) in [("a page over MCP", page), ("a read over MCP", read)] {
        let answer = asking(server.port, &params).ask().body;
        let (_, result) = message(&answer).split_once(r#","result":"#).unwrap();
        let bare = floor("bare", result.strip_suffix('}').unwrap().as_bytes());
        assert_eq!(message(&asking(bare.port, &params).ask().body), message(&answer));
        compare(what, || asking(server.port, &params), "bare rmcp", || asking(bare.port, &params));
        drop(bare);
    }
    drop(server);
}
