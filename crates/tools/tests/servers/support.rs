//! Pools and calls as a session makes them.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use meerkat_service::{
    SessionId,
    clock::{Clock, IdSource as _, RandomIds, Timestamp},
    redact::Secrets,
    session::message::{Body, RawJson},
    store::MemoryBlobStore,
    tool::{Invocation, OutputLimits, OutputSink, Tool, ToolError, ToolScope, ToolSource},
};
pub(crate) use meerkat_testkit::until_async as until;
use meerkat_tools::servers::{ServerConfig, Servers, ServersOptions, servers};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Clock that a test moves.
pub(crate) struct Moved(watch::Sender<Duration>);

impl Moved {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(Duration::ZERO)))
    }

    pub(crate) fn pass(&self, milliseconds: u64) {
        self.0.send_modify(|now| *now += Duration::from_millis(milliseconds));
    }
}

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(0)
    }

    fn elapsed(&self) -> Duration {
        *self.0.borrow()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (mut now, end) = (self.0.subscribe(), self.elapsed() + duration);
        async move { drop(now.wait_for(|now| *now >= end).await) }.boxed()
    }
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Returns the configuration of the tested server with this folder and manner, and further keys.
pub(crate) fn config(folder: &Path, manner: &str, keys: Value) -> ServerConfig {
    let program = std::env::current_exe().unwrap();
    let mut config = json!({ "command": program, "args": [super::server::MARK, folder, manner] });
    for (key, value) in keys.as_object().unwrap() {
        config[key] = value.clone();
    }
    serde_json::from_value(config).unwrap()
}

/// Makes a pool with one server named `t`, and without lists on disk.
pub(crate) fn pool(config: ServerConfig) -> Arc<Servers> {
    servers(options(config)).unwrap()
}

pub(crate) fn options(config: ServerConfig) -> ServersOptions {
    ServersOptions { servers: BTreeMap::from([("t".to_owned(), config)]), ..ServersOptions::default() }
}

pub(crate) fn session() -> SessionId {
    RandomIds::new().next_session_id(Timestamp::from_millis(0))
}

/// Returns the tools of a session's first step, and the version of the set.
pub(crate) async fn step(pool: &Servers) -> (u64, Vec<Arc<dyn Tool>>) {
    let scope = ToolScope { session_id: session(), workspace: None };
    ToolSource::ready(pool, &scope).await;
    pool.offered()
}

/// Lists the names of a step's tools, without what all have in common.
pub(crate) async fn names(pool: &Servers) -> Vec<String> {
    step(pool).await.1.iter().map(|tool| tool.spec().name.trim_start_matches("mcp__t__").to_owned()).collect()
}

pub(crate) async fn tool(pool: &Servers, name: &str) -> Arc<dyn Tool> {
    let (_, tools) = step(pool).await;
    tools.into_iter().find(|tool| tool.spec().name == format!("mcp__t__{name}")).unwrap()
}

pub(crate) fn invocation(session_id: SessionId, arguments: Value, cancel: &CancellationToken) -> Invocation {
    let arguments = RawJson::parse(&arguments.to_string()).unwrap();
    let (call_id, cancel) = ("c".to_owned(), cancel.clone());
    Invocation {
        session_id,
        turn: 1,
        call_id,
        arguments,
        workspace: None,
        is_approved: false,
        search_path: None,
        cancel,
    }
}

/// Output of a call, with its progress.
pub(crate) struct Call {
    pub(crate) result: Result<(), ToolError>,
    pub(crate) output: Body,
    pub(crate) progress: String,
}

impl Call {
    #[track_caller]
    pub(crate) fn text(&self) -> String {
        self.result.as_ref().unwrap();
        self.output.excerpt().into_owned()
    }
}

/// Calls a tool as the engine does.
pub(crate) async fn call_as(tool: &dyn Tool, session: SessionId, arguments: Value, cancel: &CancellationToken) -> Call {
    call_heard(tool, session, arguments, cancel, || ()).await
}

/// Calls a tool, and does something whenever there is progress.
pub(crate) async fn call_heard(
    tool: &dyn Tool,
    session: SessionId,
    arguments: Value,
    cancel: &CancellationToken,
    on_progress: impl Fn(),
) -> Call {
    let (sender, mut said) = mpsc::channel(16);
    let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
    let sink = OutputSink::new(OutputLimits::default(), blobs, session, Secrets::default().stream(), sender);
    let mut running = tool.call(invocation(session, arguments, cancel), &sink);
    let mut progress = String::new();
    let result = loop {
        tokio::select! {
            Some(text) = said.recv() => {
                progress.push_str(&text);
                on_progress();
            }
            result = &mut running => break result,
        }
    };
    Call { result, output: sink.finish().await.unwrap(), progress }
}

pub(crate) async fn call(pool: &Servers, name: &str, arguments: Value) -> Call {
    call_as(&*tool(pool, name).await, session(), arguments, &CancellationToken::new()).await
}

/// Lines that a pool told.
pub(crate) type Told = Arc<Mutex<Vec<String>>>;
