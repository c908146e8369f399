//! Calls: each reaches its server at most once, and says honestly what became of it.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::response::Response;
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use meerkat_service::{
    AgentBuildConfig,
    model::scripted::ScriptedModel,
    service::{ReadEvents, StartTurn},
    session::message::Body,
    tool::{Approval, Effect, ToolError, ToolServerState, ToolSource as _},
};
use meerkat_tools::servers::{Servers, ServersOptions, servers};
use rmcp::transport::{
    StreamableHttpServerConfig, StreamableHttpService, streamable_http_server::session::local::LocalSessionManager,
};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    server::{HUGE_BYTES, Tested, noted},
    support::{Call, call, call_as, call_heard, config, invocation, names, pool, session, tool, until},
};

crate::tests!(
    results_become_text,
    a_turn_calls_a_server_and_the_ledger_says_what_became_of_it,
    of_many_tools_those_are_shown_that_were_found,
    huge_output_goes_to_a_blob,
    a_cancel_reaches_the_server,
    a_call_that_ends_its_server_is_sent_once_and_unknown,
    a_connection_that_was_lost_before_a_call_is_replaced,
    plans_follow_the_configuration,
    the_environment_is_scrubbed,
    calls_over_http,
    a_lost_http_session_is_replaced,
    a_call_over_a_lost_http_connection_is_unknown,
    a_server_that_is_to_keep_state_is_asked_for_a_session,
    a_server_without_sessions_tells_of_a_new_tool,
);

async fn results_become_text() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    check_results(&pool).await;
    pool.shut_down().await;
}

async fn check_results(pool: &Servers) {
    assert_eq!(call(pool, "echo", json!({ "text": "a\u{0}é" })).await.text(), "a\u{0}é");
    let parts = call(pool, "parts", json!({})).await.text();
    let why = "it is not a PNG, JPEG, GIF or WebP image";
    let dropped = format!("[image, image/png, 3 bytes, which are not kept: {why}]");
    assert_eq!(parts, format!("one\n[Image: image/png, 640 x 480 pixels, 29 bytes]\n{dropped}\ntwo"));
    assert_eq!(call(pool, "structured", json!({})).await.text(), r#"{"a":[1,2]}"#);
    let failed = call(pool, "fail", json!({})).await;
    assert!(matches!(&failed.result, Err(ToolError::Failed(why)) if why.contains("server t")), "{:?}", failed.result);
    assert_eq!(failed.output.excerpt(), "no such issue");
}

async fn a_turn_calls_a_server_and_the_ledger_says_what_became_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({ "approval": "allow" })));
    pool.ready().await;
    let agent = AgentBuildConfig::new().tool_source(pool.clone()).build().unwrap();
    let session_id = agent.create_session().await.unwrap().session_id;
    let prompt = r#"@call mcp__t__echo {"text":"hello"} @call mcp__t__fail {} @call mcp__t__die {} @say Done."#;
    agent.service().start_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    let read = ReadEvents::new(session_id, 0);
    let events = agent.service().events(read).await.unwrap().items;
    let events = events.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let finished = events.filter(|event| event["type"] == "tool_finished");
    let outcomes: Vec<(Value, Value)> =
        finished.map(|event| (event["name"].clone(), event["outcome"].clone())).collect();
    let expected = [("echo", "succeeded"), ("fail", "failed"), ("die", "unknown")];
    let expected = expected.map(|(name, outcome)| (format!("mcp__t__{name}").into(), outcome.into()));
    assert_eq!(outcomes, expected);
    assert_eq!(noted(folder.path(), "calls"), 2);
    pool.shut_down().await;
}

/// Two servers with some hundred tools each, and a model with a window of 20,000 tokens.
async fn of_many_tools_those_are_shown_that_were_found() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let server = |at: usize| config(folders[at].path(), "many", json!({ "approval": "allow" }));
    let configured = BTreeMap::from([("hub".to_owned(), server(0)), ("lab".to_owned(), server(1))]);
    let pool = servers(ServersOptions { servers: configured, ..ServersOptions::default() }).unwrap();
    pool.ready().await;
    let build = AgentBuildConfig::new().model("scripted", Arc::new(ScriptedModel), 20_000);
    let agent = build.tool_source(pool.clone()).build().unwrap();
    let session_id = agent.create_session().await.unwrap().session_id;
    let turn = async |prompt: &str| agent.service().start_turn(StartTurn::new(session_id, prompt)).await.unwrap().text;
    let prompt = r#"@call search_tools {"query":"lab issue 042"} @step @call mcp__lab__issue_042 {} @step @echo tools"#;
    let shown = turn(prompt).await;
    assert!(shown.contains("search_tools") && shown.contains("mcp__lab__issue_042"), "{shown}");
    assert_eq!(shown.matches("mcp__").count(), 5, "{shown}");
    assert_eq!(turn("@echo tools").await, shown);
    let read = ReadEvents::new(session_id, 0);
    let events = agent.service().events(read).await.unwrap().items;
    let ran = events.iter().map(|line| serde_json::from_slice::<Value>(line).unwrap());
    let ran: Vec<Value> =
        ran.filter(|event| event["type"] == "tool_finished").map(|event| event["output"].clone()).collect();
    assert_eq!(ran[1], "issue_042");
    pool.shut_down().await;
}

async fn huge_output_goes_to_a_blob() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let huge = call(&pool, "huge", json!({})).await;
    let Body::Blob(blob) = &huge.output else { panic!("{} bytes are inline", huge.output.len()) };
    assert_eq!(blob.bytes, HUGE_BYTES as u64);
    pool.shut_down().await;
}

async fn a_cancel_reaches_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let slow = tool(&pool, "slow").await;
    let cancel = CancellationToken::new();
    let called = call_heard(&*slow, session(), json!({}), &cancel, || cancel.cancel()).await;
    // The server may have finished it before it heard.
    assert!(matches!(called.result, Err(ToolError::Unknown(_))), "{:?}", called.result);
    assert!(called.progress.starts_with("begun (1 of 4)\n"), "{}", called.progress);
    until("the server heard of it", || noted(folder.path(), "cancelled") == 1).await;
    // The connection is still good.
    assert_eq!(call(&pool, "echo", json!({ "text": "b" })).await.text(), "b");
    assert_eq!(noted(folder.path(), "starts"), 1);
    pool.shut_down().await;
}

async fn a_call_that_ends_its_server_is_sent_once_and_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let died = call(&pool, "die", json!({})).await;
    assert!(
        matches!(&died.result, Err(ToolError::Unknown(why)) if why.contains("server t was lost")),
        "{:?}",
        died.result
    );
    assert_eq!(noted(folder.path(), "calls"), 1);
    // The next call starts it again.
    assert_eq!(call(&pool, "count", json!({})).await.text(), "2");
    assert_eq!(noted(folder.path(), "starts"), 2);
    pool.shut_down().await;
}

async fn a_connection_that_was_lost_before_a_call_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let echo = tool(&pool, "echo").await;
    let pid: i32 = std::fs::read_to_string(folder.path().join("starts")).unwrap().trim().parse().unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), rustix::process::Signal::KILL).unwrap();
    until("its end is seen", || pool.status()[0].state == ToolServerState::Listed).await;
    let echoed = call_as(&*echo, session(), json!({ "text": "a" }), &CancellationToken::new()).await;
    assert_eq!(echoed.text(), "a");
    assert_eq!(noted(folder.path(), "starts"), 2);
    pool.shut_down().await;
}

async fn plans_follow_the_configuration() {
    use Approval::{Allow, Ask, Deny};
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        // The tool `echo` says that it only reads, `count` says nothing.
        ("ask", (Effect::Once, Ask), (Effect::Once, Ask)),
        ("deny", (Effect::Once, Deny), (Effect::Once, Deny)),
        ("reads", (Effect::ReadOnly, Allow), (Effect::Once, Ask)),
        ("allow", (Effect::ReadOnly, Allow), (Effect::Once, Allow)),
    ];
    for (approval, echo, count) in cases {
        let keys = json!({ "approval": approval, "tools": { "fail": "deny" }, "call_timeout_ms": 1234 });
        let pool = pool(config(folder.path(), "", keys));
        for (name, (effect, approval)) in [("echo", echo), ("count", count), ("fail", (Effect::Once, Deny))] {
            let tool = tool(&pool, name).await;
            let plan = tool.plan(&invocation(session(), json!({}), &CancellationToken::new())).await.unwrap();
            assert_eq!((plan.effect, plan.approval), (effect, approval), "{name}");
            assert_eq!(plan.rule, Some(format!("mcp__t__{name}")));
            assert_eq!(plan.timeout, Some(std::time::Duration::from_millis(1234)));
        }
        pool.shut_down().await;
    }
}

async fn the_environment_is_scrubbed() {
    let folder = tempfile::tempdir().unwrap();
    let keys = json!({ "env": { "GIVEN": "a ${TOKEN}", "DEFAULT": "${NONE:-d}" } });
    let mut options = crate::support::options(config(folder.path(), "", keys));
    let pairs =
        [("PATH", "/bin:/usr/bin"), ("LC_ALL", "C"), ("HOME", "/home/x"), ("TOKEN", "t0ken-value"), ("OTHER", "o")];
    options.environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let pool = servers(options).unwrap();
    let text = call(&pool, "environment", json!({})).await.text();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["DEFAULT=d", "GIVEN=a t0ken-value", "HOME=/home/x", "LC_ALL=C", "PATH=/bin:/usr/bin"]);
    use secrecy::ExposeSecret as _;
    let secrets = pool.secrets();
    assert_eq!(secrets.iter().map(|secret| secret.expose_secret()).collect::<Vec<_>>(), ["t0ken-value"]);
    pool.shut_down().await;
}

/// Server over HTTP on loopback. It can forget its sessions, and cut its connections.
struct Http {
    url: String,
    service: Arc<Mutex<StreamableHttpService<Tested, LocalSessionManager>>>,
    connections: Arc<Mutex<JoinSet<()>>>,
    sessions: Arc<Mutex<usize>>,
}

impl Http {
    /// Starts it. One with sessions alone answers what it does not know by an error without a message.
    async fn start(folder: &Path, has_sessions: bool) -> Self {
        let sessions = Arc::new(Mutex::new(0));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let service = Arc::new(Mutex::new(Self::service(folder, &sessions)));
        let connections = Arc::new(Mutex::new(JoinSet::new()));
        let (current, running) = (service.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let current = current.clone();
                let service = hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    let service = TowerToHyperService::new(current.lock().unwrap().clone());
                    let method = request.headers().get("mcp-method");
                    let is_unknown = has_sessions && method.is_some_and(|method| method == "server/discover");
                    async move {
                        let answer = match is_unknown {
                            true => Response::builder().status(400).body("no session".into()).unwrap(),
                            false => hyper::service::Service::call(&service, request)
                                .await
                                .unwrap()
                                .map(axum::body::Body::new),
                        };
                        Ok::<_, Infallible>(answer)
                    }
                });
                running.lock().unwrap().spawn(async move {
                    let io = TokioIo::new(socket);
                    drop(hyper::server::conn::http1::Builder::new().serve_connection(io, service).await);
                });
            }
        });
        Self { url, service, connections, sessions }
    }

    fn service(folder: &Path, sessions: &Arc<Mutex<usize>>) -> StreamableHttpService<Tested, LocalSessionManager> {
        let (tested, sessions) = (Tested::new(folder), sessions.clone());
        let make = move || {
            *sessions.lock().unwrap() += 1;
            Ok(tested.clone())
        };
        StreamableHttpService::new(make, Arc::default(), StreamableHttpServerConfig::default())
    }

    fn forget(&self, folder: &Path) {
        *self.service.lock().unwrap() = Self::service(folder, &self.sessions);
    }

    fn pool(&self) -> Arc<Servers> {
        self.pool_of("process")
    }

    fn pool_of(&self, scope: &str) -> Arc<Servers> {
        let config = json!({ "url": self.url, "headers": { "x-test": "1" }, "scope": scope });
        pool(serde_json::from_value(config).unwrap())
    }
}

async fn calls_over_http() {
    for has_sessions in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let http = Http::start(folder.path(), has_sessions).await;
        let pool = http.pool();
        check_results(&pool).await;
        assert_eq!(has_sessions, *http.sessions.lock().unwrap() == 1);
        let slow = tool(&pool, "slow").await;
        let cancel = CancellationToken::new();
        let stop = async {
            until("the call has begun", || noted(folder.path(), "begun") == 1).await;
            cancel.cancel();
        };
        let (called, ()) = tokio::join!(call_as(&*slow, session(), json!({}), &cancel), stop);
        assert!(matches!(called.result, Err(ToolError::Unknown(_))), "{:?}", called.result);
        until("the server heard of it", || noted(folder.path(), "cancelled") == 1).await;
        pool.shut_down().await;
    }
}

async fn a_lost_http_session_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let http = Http::start(folder.path(), true).await;
    let pool = http.pool();
    assert_eq!(call(&pool, "count", json!({})).await.text(), "1");
    http.forget(folder.path());
    // The server refused the call before it ran, so it is sent again over a new session.
    assert_eq!(call(&pool, "count", json!({})).await.text(), "2");
    assert_eq!(*http.sessions.lock().unwrap(), 2);
    pool.shut_down().await;
}

async fn a_call_over_a_lost_http_connection_is_unknown() {
    for has_sessions in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let http = Http::start(folder.path(), has_sessions).await;
        let pool = http.pool();
        let slow = tool(&pool, "slow").await;
        let cut = async {
            until("the call has begun", || noted(folder.path(), "begun") == 1).await;
            http.forget(folder.path());
            let mut connections = http.connections.lock().unwrap();
            connections.abort_all();
            connections.len()
        };
        let cancel = CancellationToken::new();
        let (called, cut) = tokio::join!(call_as(&*slow, session(), json!({}), &cancel), cut);
        assert!(matches!(called.result, Err(ToolError::Unknown(_))), "{:?}", called.result);
        assert_eq!(noted(folder.path(), "calls"), 1);
        // The client may not have seen the end of each connection yet: a call that meets one is unknown as well, and takes
        // it away.
        let echo = tool(&pool, "echo").await;
        let mut later = Vec::new();
        while later.len() <= cut && later.last().is_none_or(|last: &Call| last.result.is_err()) {
            later.push(call_as(&*echo, session(), json!({ "text": "a" }), &cancel).await);
        }
        let unknown = |called: &Call| matches!(called.result, Err(ToolError::Unknown(_)));
        let last = later.pop().unwrap();
        assert!(later.iter().all(unknown), "{:?}", later.iter().map(|called| &called.result).collect::<Vec<_>>());
        assert_eq!(last.text(), "a");
        pool.shut_down().await;
    }
}

/// The newest revision of the protocol has no session that could keep state.
async fn a_server_that_is_to_keep_state_is_asked_for_a_session() {
    let folder = tempfile::tempdir().unwrap();
    let http = Http::start(folder.path(), false).await;
    let pool = http.pool_of("session");
    let count = tool(&pool, "count").await;
    let (a, b) = (session(), session());
    for session in [a, b, a] {
        call_as(&*count, session, json!({}), &CancellationToken::new()).await.text();
    }
    // One for the list, one for each session.
    assert_eq!(*http.sessions.lock().unwrap(), 3);
    pool.shut_down().await;
}

/// A server without sessions tells of changed tools only who listens for that.
async fn a_server_without_sessions_tells_of_a_new_tool() {
    let folder = tempfile::tempdir().unwrap();
    let http = Http::start(folder.path(), false).await;
    let pool = http.pool();
    assert_eq!(call(&pool, "echo", json!({ "text": "a" })).await.text(), "a");
    until("it listens", || noted(folder.path(), "listening") == 1).await;
    assert!(!names(&pool).await.contains(&"added".to_owned()));
    call(&pool, "add", json!({ "text": "Is new." })).await.text();
    until("the tool is offered", || pool.offered().1.iter().any(|tool| tool.spec().name == "mcp__t__added")).await;
    pool.shut_down().await;
}
