//! Whole nodes: a service on a runtime of its own, behind a proxy of its own, that can be killed at any statement, or
//! stopped as a process is that gets no time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use async_trait::async_trait;
use meerkat_service::{
    clock::{Clock, RandomIds, SystemClock, Timestamp, World},
    options::{EngineOptions, Overflow},
    prelude::*,
};
use meerkat_testkit::Random;
use serde_json::Value;
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinError,
};
use tracing::{Dispatch, Event, Metadata, Subscriber, dispatcher, field, span};

use super::proxy::{Lose, Proxy};
use crate::{PostgresOptions, open};

/// Message of the engine when an owner finds that its lease is gone.
const FENCED: &str = "a session was taken over by another owner";

/// Parts that the nodes of a trial share.
#[derive(Clone, Default)]
pub(super) struct Shared {
    /// Effects of calls, by their marks.
    pub(super) effects: Arc<Mutex<HashMap<String, u32>>>,
    /// Owners that found themselves fenced.
    pub(super) fenced: Arc<AtomicU64>,
}

/// Tool whose effect must not happen twice. Its output is long enough for a blob.
struct Mark {
    spec: ToolSpec,
    shared: Shared,
}

#[async_trait]
impl Tool for Mark {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::once())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let arguments: Value = serde_json::from_str(invocation.arguments.as_str()).unwrap();
        let mark = arguments["mark"].as_str().unwrap().to_owned();
        *self.shared.effects.lock().unwrap().entry(mark).or_default() += 1;
        output.write(&"done ".repeat(20_000)).await
    }
}

/// Clock that jumps up to an hour forth and back whenever it is asked for the time of day.
struct Jumping(SystemClock, Mutex<Random>);

impl Clock for Jumping {
    fn now(&self) -> Timestamp {
        let jump = i64::try_from(self.1.lock().unwrap().below(7_200_000)).unwrap() - 3_600_000;
        Timestamp::from_millis(self.0.now().as_millis() + jump)
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}

/// Counts how often a warning is logged.
struct Warnings {
    message: &'static str,
    count: Arc<AtomicU64>,
}

/// Counts how often a warning is logged on this thread, until what is returned is dropped.
pub(super) fn hear(message: &'static str, count: Arc<AtomicU64>) -> dispatcher::DefaultGuard {
    dispatcher::set_default(&Dispatch::new(Warnings { message, count }))
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct IsMeant(&'static str, bool);
        impl field::Visit for IsMeant {
            fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
                self.1 |= field.name() == "message" && format!("{value:?}") == self.0;
            }
        }
        let mut is_meant = IsMeant(self.message, false);
        event.record(&mut is_meant);
        self.count.fetch_add(is_meant.1.into(), Ordering::Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Running node.
pub(super) struct Node {
    pub(super) proxy: Proxy,
    service: Arc<dyn SessionService>,
    /// `None` once it was killed.
    runtime: Mutex<Option<Runtime>>,
}

/// A node gets no time until this is dropped.
pub(super) struct Stopped {
    _held: mpsc::Sender<()>,
}

impl Node {
    /// Starts a node, which is killed by losing what passes `proxy`, with a clock that jumps by this seed.
    pub(super) async fn start(options: PostgresOptions, proxy: Proxy, shared: &Shared, seed: u64) -> Self {
        let fenced = shared.fenced.clone();
        let watched = move || std::mem::forget(hear(FENCED, fenced.clone()));
        // One thread, so that all of the node stops at once.
        let runtime = Builder::new_multi_thread().worker_threads(1).on_thread_start(watched).enable_all().build();
        let runtime = runtime.unwrap();
        let schema = r#"{"type":"object","properties":{"mark":{"type":"string"}},"required":["mark"]}"#;
        let (name, description) = ("mark".to_owned(), "Marks.".to_owned());
        let spec = ToolSpec { name, description, schema: RawJson::parse(schema).unwrap() };
        let clock = Arc::new(Jumping(SystemClock::new(), Mutex::new(Random::new(seed))));
        let world = World { clock, ids: Arc::new(RandomIds::new()), is_frozen: false };
        let mut limits = EngineOptions::default();
        // No trial is so long that its turns fail.
        limits.context.overflow = Overflow::Slide;
        limits.tools.approval = [("bu*".to_owned(), Approval::Ask)].into();
        let build =
            AgentBuildConfig::new().options(limits).world(world).tool(Arc::new(Mark { spec, shared: shared.clone() }));
        let started = runtime.spawn(async move {
            let agent = build.stores(open(options).await?).build()?;
            agent.service().ready().await?;
            Ok::<_, SessionError>(agent.service().clone())
        });
        let service = started.await.unwrap().unwrap();
        Self { proxy, service, runtime: Mutex::new(Some(runtime)) }
    }

    /// Asks it for something; `None` if it is killed before it answers.
    pub(super) async fn ask<T, Work>(&self, work: impl FnOnce(Arc<dyn SessionService>) -> Work) -> Option<T>
    where
        T: Send + 'static,
        Work: Future<Output = T> + Send + 'static,
    {
        let work = work(self.service.clone());
        let asked = self.runtime.lock().unwrap().as_ref()?.spawn(work);
        match asked.await {
            Ok(answer) => Some(answer),
            Err(killed) if JoinError::is_cancelled(&killed) => None,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Kills it: nothing of it goes on, and nothing more reaches the database.
    pub(super) fn kill(&self) {
        self.proxy.lose(Lose::All);
        if let Some(runtime) = self.runtime.lock().unwrap().take() {
            runtime.shutdown_background();
        }
    }

    /// Stops it as SIGSTOP would, until the answer is dropped.
    pub(super) fn stop(&self) -> Stopped {
        let (held, holds) = mpsc::channel::<()>();
        if let Some(runtime) = self.runtime.lock().unwrap().as_ref() {
            runtime.spawn(async move {
                // Nothing is ever sent: it ends when the sender is dropped.
                holds.recv().unwrap_err();
            });
        }
        Stopped { _held: held }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
