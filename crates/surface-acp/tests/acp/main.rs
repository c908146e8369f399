//! The surface as a client meets it: lines on a pair of streams, written and read by hand, so that no library hides
//! what is sent.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an impossible value stops there")]

mod forms;
mod framing;
mod questions;
mod sessions;
mod settings;
mod turns;

use std::{collections::VecDeque, path::Path, sync::Arc, time::Duration};

use async_trait::async_trait;
use meerkat_service::{
    Agent, AgentBuildConfig,
    model::{StaticModels, ToolSpec, scripted::ScriptedModel},
    session::message::RawJson,
    tool::{Access, Invocation, OutputSink, Plan, Tool, ToolError},
};
use meerkat_surface_acp::{AcpOptions, lines, serve};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

/// Bytes of a message in these tests.
const MESSAGE_BYTES: usize = 64 * 1024;

/// Tool with this plan, which says that it did its work.
struct Fake(ToolSpec, Plan, &'static str);

#[async_trait]
impl Tool for Fake {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        Ok(self.1.clone())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        output.write(self.2).await
    }
}

fn agent() -> Agent {
    built(AgentBuildConfig::new())
}

/// An agent that keeps its sessions in a folder.
fn stored(folder: &Path) -> Agent {
    built(AgentBuildConfig::new().store(folder.to_owned()))
}

fn built(config: AgentBuildConfig) -> Agent {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let spec = |name: &str| ToolSpec {
        name: name.to_owned(),
        description: "Says that it did.".to_owned(),
        schema: schema.clone(),
    };
    let hold = Plan { preview: Some("It holds.".to_owned()), ..Plan::read_only().ask() };
    let model = |models: StaticModels, name| models.with(name, Arc::new(ScriptedModel), 100_000);
    let models = model(StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000), "other");
    config
        .models(Arc::new(models))
        .tool(Arc::new(Fake(spec("hold"), hold, "held")))
        .tool(Arc::new(Fake(spec("change"), Plan::once(), "changed")))
        .build()
        .unwrap()
}

fn options() -> AcpOptions {
    AcpOptions {
        message_bytes: MESSAGE_BYTES,
        workspaces: Arc::new(|_| Ok(None)),
        access: Access::Write,
        has_full: false,
        models: vec!["scripted".to_owned(), "other".to_owned()],
        search_path: None,
    }
}

/// A client and its server.
struct Client {
    writer: DuplexStream,
    lines: Lines<BufReader<DuplexStream>>,
    server: JoinHandle<std::io::Result<()>>,
    stop: CancellationToken,
    id: u64,
    /// Messages that were read before an answer.
    before: VecDeque<Value>,
}

impl Client {
    fn of(agent: &Agent) -> Self {
        Self::with(agent, options())
    }

    fn with(agent: &Agent, options: AcpOptions) -> Self {
        let (writer, reader) = tokio::io::duplex(4096);
        let (answers, shown) = tokio::io::duplex(4096);
        let (service, stop) = (agent.service().clone(), CancellationToken::new());
        let (stopped, messages) = (stop.clone(), lines(reader, answers, options.message_bytes));
        let server = tokio::spawn(async move { serve(service, options, messages, stopped).await });
        Self { writer, lines: BufReader::new(shown).lines(), server, stop, id: 0, before: VecDeque::new() }
    }

    /// Makes a client that has begun, and a session of it.
    async fn begun(agent: &Agent) -> (Self, String) {
        let mut client = Self::of(agent);
        let session = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
        let session = session["sessionId"].as_str().unwrap().to_owned();
        (client, session)
    }

    async fn write(&mut self, line: &str) {
        soon(self.writer.write_all(format!("{line}\n").as_bytes())).await.unwrap();
    }

    /// Reads the next message.
    async fn read(&mut self) -> Value {
        match self.before.pop_front() {
            Some(message) => message,
            None => serde_json::from_str(&soon(self.lines.next_line()).await.unwrap().unwrap()).unwrap(),
        }
    }

    async fn ask(&mut self, method: &str, params: Value) -> u64 {
        self.id += 1;
        self.write(&json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params }).to_string()).await;
        self.id
    }

    /// Reads up to the answer of a request; what comes before is read again.
    async fn answer(&mut self, id: u64) -> Value {
        let mut before = VecDeque::new();
        loop {
            let message = self.read().await;
            if message["id"] == id && message.get("method").is_none() {
                self.before.extend(before);
                return message;
            }
            before.push_back(message);
        }
    }

    /// Asks, and returns the result.
    async fn ends(&mut self, method: &str, params: Value) -> Value {
        let id = self.ask(method, params).await;
        let answer = self.answer(id).await;
        assert!(answer.get("error").is_none(), "{answer}");
        answer["result"].clone()
    }

    async fn prompt(&mut self, session: &str, text: &str) -> u64 {
        self.ask("session/prompt", prompt(session, text)).await
    }

    /// Takes the updates that were read before an answer.
    fn updates(&mut self) -> Vec<Value> {
        let updates = std::mem::take(&mut self.before).into_iter();
        updates
            .filter(|message| message["method"] == "session/update")
            .map(|message| message["params"]["update"].clone())
            .collect()
    }

    /// Reads up to a request of the server.
    async fn asked(&mut self, method: &str) -> Value {
        loop {
            let message = self.read().await;
            if message["method"] == method {
                return message;
            }
        }
    }
}

fn prompt(session: &str, text: &str) -> Value {
    json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] })
}

/// The text of all chunks of a kind.
fn texts(updates: &[Value], kind: &str) -> String {
    let chunks = updates.iter().filter(|update| update["sessionUpdate"] == kind);
    chunks.filter_map(|update| update["content"]["text"].as_str()).collect()
}

/// Waits for what must come, or fails the test.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what).await.expect("it never came")
}
