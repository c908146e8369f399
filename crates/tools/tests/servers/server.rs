//! The tested server, of the official library. It writes into its folder what has happened to it.

use std::{
    fs::{self, OpenOptions},
    io::{BufRead as _, Write as _},
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, Mutex},
};

use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, ClientResult, ContentBlock, ElicitRequest,
        InitializeResult, InputRequest, InputRequiredResult, ListToolsResult, PaginatedRequestParams,
        ProgressNotificationParam, ServerCapabilities, ServerNotification, ServerRequest, SubscriptionFilter, Tool,
        ToolAnnotations,
    },
    service::{RequestContext, SubscriptionContext},
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

/// First argument of this program as a server.
pub(crate) const MARK: &str = "--server";

/// Bytes of the text that the tool `huge` writes.
pub(crate) const HUGE_BYTES: usize = 5 * 1024 * 1024;

/// Tools that the manner `many` adds.
const MANY: usize = 100;

/// Bytes of a text that is longer than anybody wants to read.
const LONG_BYTES: usize = 1024 * 1024;

/// Questions at once, more than the pipe to the server has room for answers.
const QUESTIONS: usize = 20_000;

#[derive(Clone)]
pub(crate) struct Tested {
    folder: PathBuf,
    /// Tools that were added or changed, by name with their description.
    changed: Arc<Mutex<Vec<(String, String)>>>,
    /// Fires at each such change, for those that listen.
    changes: Arc<Notify>,
}

impl Tested {
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), changed: Arc::default(), changes: Arc::default() }
    }

    /// Asks the client's person; without a question it says if the client can ask one.
    async fn ask(&self, question: &str, context: &RequestContext<RoleServer>) -> String {
        if question.is_empty() {
            let client = context.peer.peer_info();
            return client.map_or_else(String::new, |client| json!(client.capabilities.elicitation).to_string());
        }
        let question = ElicitRequest::new(serde_json::from_str(question).unwrap());
        match context.peer.send_request(ServerRequest::ElicitRequest(question)).await {
            Ok(ClientResult::ElicitResult(answer)) => serde_json::to_string(&answer).unwrap(),
            other => format!("{other:?}"),
        }
    }

    fn note(&self, file: &str, line: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(self.folder.join(file)).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

/// Counts the lines that a server noted.
pub(crate) fn noted(folder: &Path, file: &str) -> usize {
    fs::read_to_string(folder.join(file)).unwrap_or_default().lines().count()
}

fn schema() -> Arc<Map<String, Value>> {
    let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    Arc::new(schema.as_object().unwrap().clone())
}

const TOOLS: [&str; 12] =
    ["add", "ask", "change", "count", "die", "echo", "environment", "fail", "huge", "parts", "slow", "structured"];

impl ServerHandler for Tested {
    fn get_info(&self) -> InitializeResult {
        InitializeResult::new(ServerCapabilities::builder().enable_tools().enable_tool_list_changed().build())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changed = std::pin::pin!(self.changes.notified());
        changed.as_mut().enable();
        self.note("listening", "once");
        tokio::select! {
            () = context.cancelled() => {}
            () = changed => {
                let changed = ServerNotification::ToolListChangedNotification(Default::default());
                context.sink().send(changed).await.unwrap();
                context.cancelled().await;
            }
        }
        Ok(())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.note("lists", "list");
        let mut tools: Vec<Tool> =
            TOOLS.iter().map(|name| Tool::new(*name, format!("Does {name}."), schema())).collect();
        for tool in &mut tools {
            if tool.name == "echo" {
                tool.annotations = Some(ToolAnnotations::new().read_only(true));
            }
        }
        for (name, description) in self.changed.lock().unwrap().iter() {
            match tools.iter_mut().find(|tool| tool.name == *name) {
                Some(tool) => tool.description = Some(description.clone().into()),
                None => tools.push(Tool::new(name.clone(), description.clone(), schema())),
            }
        }
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name.to_string();
        if name != "echo" {
            self.note("calls", &name);
        }
        let text = request.arguments.unwrap_or_default().get("text").and_then(Value::as_str).unwrap_or("").to_owned();
        let result = match name.as_str() {
            "echo" => CallToolResult::success(vec![ContentBlock::text(text)]),
            "count" => CallToolResult::success(vec![ContentBlock::text(noted(&self.folder, "calls").to_string())]),
            // Without a session a question is the answer to a call, which then goes on with the answers.
            "ask" if request.request_state.is_some() => {
                let rest = json!({ "answers": request.input_responses, "state": request.request_state });
                CallToolResult::success(vec![ContentBlock::text(rest.to_string())])
            }
            "ask" if text == "later" => return Ok(InputRequiredResult::from_request_state("later").into()),
            "ask" if !text.is_empty() && context.meta.protocol_version().is_some() => {
                let question = || InputRequest::Elicitation(ElicitRequest::new(serde_json::from_str(&text).unwrap()));
                let questions = ["first", "second"].map(|key| (key.to_owned(), question())).into();
                return Ok(InputRequiredResult::new(Some(questions), Some("asked".to_owned())).into());
            }
            "ask" => {
                let answer = self.ask(&text, &context).await;
                self.note("answers", &answer);
                CallToolResult::success(vec![ContentBlock::text(answer)])
            }
            "die" => std::process::exit(3),
            "environment" => {
                let names: Vec<String> = std::env::vars().map(|(name, value)| format!("{name}={value}")).collect();
                CallToolResult::success(vec![ContentBlock::text(names.join("\n"))])
            }
            "slow" => {
                self.note("begun", "slow");
                if let Some(token) = context.meta.get_progress_token() {
                    let progress = ProgressNotificationParam::new(token, 1.0).with_total(4.0).with_message("begun");
                    context.peer.notify_progress(progress).await.ok();
                }
                context.ct.cancelled().await;
                self.note("cancelled", "slow");
                CallToolResult::success(vec![])
            }
            "huge" => CallToolResult::success(vec![ContentBlock::text("x".repeat(HUGE_BYTES))]),
            "parts" => CallToolResult::success(vec![
                ContentBlock::text("one"),
                ContentBlock::image("iVBORw0KGgoAAAANSUhEUgAAAoAAAAHgCAIAAAA=", "image/png"),
                ContentBlock::image("AAAA", "image/png"),
                ContentBlock::text("two"),
            ]),
            "structured" => {
                serde_json::from_value(json!({ "content": [], "structuredContent": { "a": [1, 2] } })).unwrap()
            }
            "fail" => CallToolResult::error(vec![ContentBlock::text("no such issue")]),
            "add" | "change" => {
                let changed = if name == "add" { "added" } else { "echo" };
                self.changed.lock().unwrap().push((changed.to_owned(), text));
                context.peer.notify_tool_list_changed().await.ok();
                self.changes.notify_waiters();
                CallToolResult::success(vec![])
            }
            name if name.starts_with("issue_") => CallToolResult::success(vec![ContentBlock::text(name)]),
            _ => return Err(ErrorData::invalid_params("there is no such tool", None)),
        };
        Ok(result.into())
    }
}

/// Serves over the input and output. The arguments are the folder and a manner.
pub(crate) fn main(arguments: &[String]) {
    let folder = PathBuf::from(&arguments[0]);
    let tested = Tested::new(&folder);
    let former = fs::read_to_string(folder.join("starts")).unwrap_or_default();
    if former.lines().any(|pid| Path::new("/proc").join(pid).exists()) {
        tested.note("beside", "another one");
    }
    tested.note("starts", &std::process::id().to_string());
    eprintln!("the server says hello");
    match arguments.get(1).map_or("", String::as_str) {
        "refusing" if !folder.join("allowed").exists() => {
            eprintln!("there is no database");
            std::process::exit(5);
        }
        "silent" => loop {
            std::thread::park();
        },
        "crowded" => {
            // A child that leaves its group and session, is nobody's child any more, and ignores a polite end.
            let script = "(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1000; done' &) ; sleep 1000";
            let mut shell = Command::new("sh").args(["-c", script]).spawn().unwrap();
            serve(tested);
            // Our end is not to wait for it: it is the supervisor who ends it.
            shell.try_wait().unwrap();
        }
        "many" => {
            let tool = |n: usize| (format!("issue_{n:03}"), format!("Does issue {n:03}. {}", "d".repeat(100)));
            tested.changed.lock().unwrap().extend((0..MANY).map(tool));
            serve(tested);
        }
        // It takes no notice of the end of its input, and ends when somebody writes to a pipe, if there is one.
        "lingering" => {
            serve(tested.clone());
            tested.note("closed", "input");
            while fs::read(folder.join("end")).is_err() {
                std::thread::park();
            }
            tested.note("ended", "by itself");
        }
        manner @ ("careless" | "changing" | "chatty" | "deaf" | "endless" | "flooding" | "logging" | "rambling"
        | "rubbish" | "stalling" | "talkative" | "telling") => by_hand(&tested, manner),
        _ => serve(tested),
    }
}

fn serve(tested: Tested) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let running = tested.serve(rmcp::transport::stdio()).await.unwrap();
        running.waiting().await.unwrap();
    });
}

/// A message that nobody asked for, as a line.
fn unasked(manner: &str) -> String {
    let message = match manner {
        "logging" => {
            json!({ "method": "notifications/message", "params": { "level": "info", "data": "x".repeat(100) } })
        }
        "changing" => json!({ "method": "notifications/tools/list_changed" }),
        _ => json!({ "id": 1, "method": "nobody/knows" }),
    };
    let mut line = json!({ "jsonrpc": "2.0" });
    line.as_object_mut().unwrap().extend(message.as_object().unwrap().clone());
    format!("{line}\n")
}

/// Says the same without end, and takes what it is answered.
fn talk(manner: &str) {
    std::thread::spawn(|| std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()));
    let lines = unasked(manner).repeat(100);
    while std::io::stdout().write_all(lines.as_bytes()).is_ok() {}
}

/// Answers by hand, as no library would.
fn by_hand(tested: &Tested, manner: &str) {
    match manner {
        "careless" => println!("Welcome to the server!"),
        "rubbish" => return std::io::stdout().write_all(&b"\xff\xfe\0{[\n".repeat(1000)).unwrap(),
        _ => {}
    }
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let Some(method) = request["method"].as_str() else { continue };
        let result = match (method, manner) {
            ("initialize", "rambling") => json!({ "protocolVersion": "x".repeat(LONG_BYTES) }),
            ("initialize", _) => json!({
                "protocolVersion": "2025-06-18", "capabilities": { "tools": {} }, "serverInfo": { "name": "c", "version": "1" },
            }),
            ("tools/list", "stalling") if noted(&tested.folder, "lists") > 0 => {
                tested.note("lists", "without an answer");
                continue;
            }
            ("tools/list", "endless") => {
                let tool = json!({ "name": "long", "description": "x".repeat(LONG_BYTES), "inputSchema": {} });
                json!({ "tools": [tool], "nextCursor": "more" })
            }
            // It tells what it was given, wherever a list has a place for a text.
            ("tools/list", "telling") => {
                let given = ["GIVEN_VARIABLE", "GIVEN_LITERAL"].map(|name| std::env::var(name).unwrap());
                let told = given.join(" and ");
                json!({ "tools": [
                    { "name": "tell", "description": format!("Uses {told} in production."), "inputSchema": {
                        "type": "object",
                        "properties": {
                            "where": { "enum": ["production", "elsewhere"], "description": told },
                            "key": { "default": given[0], "examples": [told] },
                        },
                    } },
                    { "name": given[0], "inputSchema": { "type": "object" } },
                ] })
            }
            ("tools/list", _) => {
                tested.note("lists", "list");
                json!({ "tools": [
                    { "name": "bad", "inputSchema": ["no", "object"] },
                    { "name": "good", "description": "works", "inputSchema": { "type": "object" } },
                    { "name": "none" },
                ] })
            }
            ("tools/call", "flooding") => {
                json!({ "content": [{ "type": "text", "text": "x".repeat(HUGE_BYTES * 20) }] })
            }
            ("tools/call", "talkative") => {
                let asked =
                    (0..QUESTIONS).map(|id| json!({ "jsonrpc": "2.0", "id": id, "method": "ping" }).to_string());
                println!("{}", asked.collect::<Vec<_>>().join("\n"));
                break;
            }
            ("tools/call", "changing" | "logging") => return talk(manner),
            ("tools/call", _) => {
                if manner == "chatty" {
                    let lines = [("logging", 5000), ("changing", 5000), ("asking", 100)];
                    lines.into_iter().for_each(|(kind, times)| print!("{}", unasked(kind).repeat(times)));
                }
                json!({ "content": [{ "type": "text", "text": "done" }] })
            }
            _ => continue,
        };
        println!("{}", json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
        if request["method"] == "tools/list" {
            match manner {
                "deaf" => break,
                "stalling" => println!("{}", json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" })),
                _ => {}
            }
        }
    }
    // From here on it reads nothing, not even the end of its input.
    while ["deaf", "talkative"].contains(&manner) {
        std::thread::park();
    }
}
