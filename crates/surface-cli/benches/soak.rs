//! Memory that a server keeps after a mixed load of 80,000 requests over REST, JSON-RPC and MCP, beside what a server
//! needs that is started again over the same sessions. In memory, so that no disk is measured.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
#![allow(dead_code, reason = "the benchmarks share one module and need different parts of it")]

mod side_by_side;

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use side_by_side::{Client, Server, in_memory, meerkat_over};

const CLIENTS: usize = 16;
/// What each client does over and over, 20 requests each time.
const ROUNDS: usize = 250;
const REQUESTS: usize = CLIENTS * ROUNDS * 20;
const JSON: &str = "content-type: application/json\r\n";
const MCP: &str = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";

/// A client's connection, and its session of the Model Context Protocol.
struct Caller {
    client: Client,
    mcp: String,
}

impl Caller {
    fn new(port: u16) -> Self {
        let mut client = Client::http(port, "GET /healthz", "", "");
        let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",
            "capabilities":{},"clientInfo":{"name":"soak","version":"1"}}}"#;
        let head = client.ask_for("POST /mcp", MCP, hello).head;
        let id = head.split_once("mcp-session-id: ").unwrap().1.split_once('\r').unwrap().0;
        let mcp = format!("{MCP}mcp-session-id: {id}\r\nmcp-protocol-version: 2025-06-18\r\n");
        let begun = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
        client.ask_for("POST /mcp", &mcp, begun);
        Self { client, mcp }
    }

    fn rest(&mut self, line: &str, body: &str) -> Vec<u8> {
        let answer = self.client.ask_for(line, if body.is_empty() { "" } else { JSON }, body);
        assert!(answer.head.starts_with("http/1.1 20"), "{line}: {}", answer.head);
        answer.body
    }

    fn id(&mut self, line: &str, body: &str) -> String {
        let answer: Value = serde_json::from_slice(&self.rest(line, body)).unwrap();
        answer["session_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn rpc(&mut self, method: &str, params: &str) {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let answer: Value = serde_json::from_slice(&self.rest("POST /rpc", &body)).unwrap();
        assert!(answer["result"].is_object(), "{method}: {answer}");
    }

    fn tool(&mut self, name: &str, arguments: &str) {
        let params = format!(r#"{{"name":"{name}","arguments":{arguments}}}"#);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}"#);
        let answer = self.client.ask_for("POST /mcp", &self.mcp, &body).body;
        let text = String::from_utf8(answer).unwrap();
        assert!(text.contains(r#""structuredContent""#) && !text.contains(r#""isError":true"#), "{name}: {text}");
    }

    /// 20 requests: a session that is made, talked to, read, listed, forked and exported.
    fn round(&mut self, number: usize) {
        let id = self.id("POST /v1/sessions", r#"{"labels":{"soak":"yes"}}"#);
        let (turns, own) = (format!("POST /v1/sessions/{id}/turns"), format!(r#"{{"session_id":"{id}"}}"#));
        self.rest(&turns, r#"{"prompt":"@chunks 2048 @long 2048"}"#);
        self.rest(&turns, r#"{"prompt":"@repeat 5 @call none {\"text\":\"x\"} @say Done."}"#);
        self.rest(&turns, &format!(r#"{{"prompt":"@say {}"}}"#, "y".repeat(8_192)));
        self.rpc("turn/start", &format!(r#"{{"session_id":"{id}","prompt":"@long 4096"}}"#));
        self.tool("turn_start", &format!(r#"{{"session_id":"{id}","prompt":"@say Over MCP."}}"#));
        self.rest(&format!("GET /v1/sessions/{id}"), "");
        self.rest(&format!("GET /v1/sessions/{id}/messages"), "");
        self.rest(&format!("GET /v1/sessions/{id}/events"), "");
        self.rpc("session/events", &own);
        self.rpc("session/read", &own);
        self.tool("session_events", &own);
        self.tool("session_read", &own);
        self.rest("GET /v1/sessions?limit=50", "");
        self.rpc("session/list", r#"{"limit":10}"#);
        let fork = self.id(&format!("POST /v1/sessions/{id}/fork"), "{}");
        self.rest(&format!("POST /v1/sessions/{fork}/turns"), r#"{"prompt":"@long 1024"}"#);
        self.rest(&format!("GET /v1/sessions/{fork}/bundle"), "");
        self.rest(&format!("GET /v1/sessions/{fork}/events?limit={}", 10 + number % 40), "");
        self.rest(&format!("DELETE /v1/sessions/{fork}"), "");
    }
}

fn load(server: &Server) -> Duration {
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut caller = Caller::new(server.port);
                (0..ROUNDS).for_each(|number| caller.round(number));
            });
        }
    });
    began.elapsed()
}

/// Reads every session once, as the load did.
fn read_all(server: &Server) -> usize {
    let mut caller = Caller::new(server.port);
    let (mut path, mut count) = ("/v1/sessions?limit=100".to_owned(), 0);
    loop {
        let page: Value = serde_json::from_slice(&caller.rest(&format!("GET {path}"), "")).unwrap();
        for session in page["items"].as_array().unwrap() {
            let id = session["session_id"].as_str().unwrap();
            caller.rest(&format!("GET /v1/sessions/{id}/events"), "");
            count += 1;
        }
        let Some(next) = page["next_cursor"].as_str() else { return count };
        path = format!("/v1/sessions?limit=100&cursor={next}");
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn main() {
    let data_dir = in_memory();
    let server = meerkat_over(data_dir.path(), &[]);
    let before = server.resident();
    let took = load(&server);
    let busy = server.resident();
    thread::sleep(Duration::from_secs(60));
    let after = server.resident();
    thread::sleep(Duration::from_secs(60));
    let later = server.resident();
    server.end();

    let server = meerkat_over(data_dir.path(), &[]);
    let again = server.resident();
    let sessions = read_all(&server);
    thread::sleep(Duration::from_secs(120));
    let read = server.resident();
    server.end();

    println!("a server: {:.1} MB resident; after {REQUESTS} requests in {took:.0?}: {:.1} MB", mb(before), mb(busy));
    println!("60 s later: {:.1} MB; 120 s later: {:.1} MB", mb(after), mb(later));
    println!("started again: {:.1} MB; 120 s after {sessions} sessions were read: {:.1} MB", mb(again), mb(read));
    println!("60 s after the load: {:.2} x the one that is started again", after as f64 / again as f64);
    println!("120 s after the load: {:.2} x the one that read all sessions", later as f64 / read as f64);
}
