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

/// Numbers that follow from a seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    /// Returns the next number below `bound`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

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

/// Counts the owners that are fenced, by what the engine logs.
struct Fences(Arc<AtomicU64>);

impl Subscriber for Fences {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct IsFenced(bool);
        impl field::Visit for IsFenced {
            fn record_debug(&mut self, field: &field::Field, value: &dyn std::fmt::Debug) {
                self.0 |= field.name() == "message" && format!("{value:?}") == FENCED;
            }
        }
        let mut is_fenced = IsFenced(false);
        event.record(&mut is_fenced);
        self.0.fetch_add(is_fenced.0.into(), Ordering::Relaxed);
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
    /// Starts a node, which is killed by losing what passes `proxy`.
    pub(super) async fn start(options: PostgresOptions, proxy: Proxy, shared: &Shared) -> Self {
        let dispatch = Dispatch::new(Fences(shared.fenced.clone()));
        let watched = move || std::mem::forget(dispatcher::set_default(&dispatch));
        // One thread, so that all of the node stops at once.
        let runtime = Builder::new_multi_thread().worker_threads(1).on_thread_start(watched).enable_all().build();
        let runtime = runtime.unwrap();
        let schema = r#"{"type":"object","properties":{"mark":{"type":"string"}},"required":["mark"]}"#;
        let (name, description) = ("mark".to_owned(), "Marks.".to_owned());
        let spec = ToolSpec { name, description, schema: RawJson::parse(schema).unwrap() };
        let seed = Random(proxy.port.into());
        let clock = Arc::new(Jumping(SystemClock::new(), Mutex::new(seed)));
        let world = World { clock, ids: Arc::new(RandomIds::new()), is_frozen: false };
        let mut limits = EngineOptions::default();
        // No trial is so long that its turns fail.
        limits.context.overflow = Overflow::Slide;
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
