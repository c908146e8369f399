//! The engine under every interleaving that a scheduler can make, and with a fault in every part.
//!
//! The runtime has one thread and runs its tasks in turn, so "after k turns of the scheduler" is a place that
//! can be visited again: each test walks k from 0 until the turn under test is over before anything happens.

mod approvals;
mod calls;
mod compaction;
mod costs;
mod cut_off;
mod decided;
mod delegate;
mod edited;
mod fakes;
mod faults;
mod forms;
mod given;
mod interleavings;
mod letters;
mod listed;
mod nodes;
mod options;
mod output;
mod overflow;
mod passing;
mod pins;
mod plans;
mod prepared;
mod promises;
mod search;
mod shared_store;
mod sources;
mod steering;
mod stored;
mod views;
mod waiting;
mod window;

use std::{
    collections::HashSet,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use serde_json::Value;

use super::Ports;
use crate::{
    SessionError,
    capability::{Absence, Capabilities},
    clock::{SystemClock, World},
    compaction::{CompactionConfig, SharedCompactor},
    consumers::readers::Readers,
    engine::{Derived, Engine},
    model::{ModelResolver, StaticModels, scripted::ScriptedModel},
    options::{EngineOptions, Unattended},
    redact::Secrets,
    runtime::{read_blob::ReadBlob, sessions::Sessions},
    service::{CreateSession, ReadEvents, SessionService as _, SessionState, StartTurn, TurnResult},
    store::{
        BlobStore, EventStore, Inbox, MemoryBlobStore, MemoryEventStore, MemoryIndex, MemorySessionStore, ReaderStore,
        SessionIndex, SessionStore, Stores,
    },
    tool::{RuleKeeper, Tool, ToolRegistry, ToolSource, Toolbox, WorkspaceNotes, test_tools::test_tools},
};

/// Scheduler turns after which a test gives up: a turn that is not over by then hangs.
const TICKS_MAX: usize = 400;

/// A session whose tools are those for tests, and whose calls are denied if nobody attends them.
struct Bench {
    subject: Subject,
    _dir: tempfile::TempDir,
}

impl Bench {
    async fn new(change: impl FnOnce(&mut Rig)) -> Self {
        let dir = meerkat_testkit::folder();
        let mut rig = Rig::new(test_tools(dir.path().to_owned(), Arc::new(SystemClock::new())));
        rig.options.approval.unattended = Unattended::Deny;
        change(&mut rig);
        let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        let service = rig.stored(events, Arc::new(MemoryIndex::default()));
        Self { subject: Subject::new(service).await, _dir: dir }
    }

    /// Begins an attended turn that asks; answers with what it asks about.
    async fn asks(&self, prompt: &str) -> String {
        let turn = StartTurn { attended: true, ..StartTurn::new(self.subject.session_id, prompt) };
        self.subject.service.accept_turn(turn).await.unwrap();
        self.subject.asked().await
    }

    async fn state(&self) -> SessionState {
        self.subject.service.read(&self.subject.session_id).await.unwrap().state
    }

    /// All events, once no turn runs.
    async fn ended(&self) -> Vec<Value> {
        while self.state().await != SessionState::Idle {
            ticks(10).await;
        }
        self.subject.events().await
    }
}

/// A service whose parts a test may replace.
struct Rig {
    world: World,
    secrets: Secrets,
    options: EngineOptions,
    models: Arc<dyn ModelResolver>,
    tools: Vec<Arc<dyn Tool>>,
    sources: Vec<Arc<dyn ToolSource>>,
    compaction: Option<CompactionConfig>,
    compactor: Option<SharedCompactor>,
    rule_keeper: Option<Arc<dyn RuleKeeper>>,
    notes: Option<Arc<dyn WorkspaceNotes>>,
    inbox: Option<Arc<dyn Inbox>>,
    /// Registrations that services share; each has its own if `None`.
    readers: Option<Arc<dyn ReaderStore>>,
}

impl Rig {
    fn new(tools: Vec<Arc<dyn Tool>>) -> Self {
        let mut options = EngineOptions::default();
        options.turn.retry_base_ms = 0;
        options.approval.unattended = Unattended::Wait;
        let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000);
        Self {
            world: World::system(),
            secrets: Secrets::default(),
            options,
            models: Arc::new(models),
            tools,
            sources: Vec::new(),
            compaction: None,
            compactor: None,
            rule_keeper: None,
            notes: None,
            inbox: None,
            readers: None,
        }
    }

    fn service(self) -> Service {
        self.service_over(|events| events, |blobs| blobs)
    }

    /// A service whose model may read its blobs.
    fn service_that_reads_blobs(mut self) -> Service {
        let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobStore::new(Arc::default()));
        self.tools.push(Arc::new(ReadBlob::new(blobs.clone(), self.options.tools.inline_bytes).unwrap()));
        self.service_over(|events| events, |_| blobs)
    }

    fn service_over(
        self,
        events_seen: impl FnOnce(Arc<dyn EventStore>) -> Arc<dyn EventStore>,
        blobs_seen: impl FnOnce(Arc<dyn BlobStore>) -> Arc<dyn BlobStore>,
    ) -> Service {
        let stores = Stores::in_memory(u64::MAX, &Arc::default());
        let (events, blobs) = (events_seen(stores.events.clone()), blobs_seen(stores.blobs.clone()));
        Service::new(Sessions::new(self.engine(Stores { events, blobs, ..stores }, false)))
    }

    /// A service whose sessions outlive it: their journals are `events`.
    fn stored(self, events: Arc<dyn EventStore>, index: Arc<dyn SessionIndex>) -> Service {
        let snapshots = Arc::new(MemorySessionStore::new(events.clone()));
        self.stored_with(snapshots, events, index)
    }

    /// Like `stored`, with the snapshots of a former service.
    fn stored_with(
        self,
        snapshots: Arc<dyn SessionStore>,
        events: Arc<dyn EventStore>,
        index: Arc<dyn SessionIndex>,
    ) -> Service {
        let stores = Stores::in_memory(u64::MAX, &Arc::default());
        Service::new(Sessions::new(self.engine(Stores { snapshots, events, index, ..stores }, true)))
    }

    fn engine(self, stores: Stores, is_stored: bool) -> Engine {
        let capabilities = Capabilities::compiled();
        let Stores { events, blobs, snapshots, index, readers, pruner, .. } = stores;
        let readers =
            Readers::new(self.readers.unwrap_or(readers), events.clone(), index.clone(), World::system().clock);
        let derived = Arc::new(Derived::new(index, Arc::new(readers), pruner));
        let own = ToolRegistry::new(self.tools, self.options.tools.approval.clone()).unwrap();
        let ports = Ports {
            notes: self.notes,
            world: self.world,
            tools: Toolbox::new(own, self.sources),
            options: self.options,
            models: self.models,
            secrets: self.secrets,
            events,
            blobs,
            capabilities: if is_stored { capabilities } else { capabilities.without_store(Absence::SwitchedOff) },
            snapshots,
            observer: derived.clone(),
            held: Arc::default(),
            inbox: self.inbox,
            is_shutting_down: AtomicBool::new(false),
            compaction: self.compaction,
            compactor: self.compactor,
            rule_keeper: self.rule_keeper,
            agents: OnceLock::new(),
        };
        Engine { ports: Arc::new(ports), derived, owner: None }
    }
}

/// The sessions of a test.
type Service = Arc<Sessions>;

/// A session and its service.
struct Subject {
    service: Service,
    session_id: crate::SessionId,
}

impl Subject {
    async fn new(service: Service) -> Self {
        let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
        Self { service, session_id }
    }

    async fn turn(&self, prompt: &str) -> Result<TurnResult, SessionError> {
        self.service.start_turn(StartTurn::new(self.session_id, prompt)).await
    }

    async fn events(&self) -> Vec<Value> {
        let request = ReadEvents { limit: Some(1000), ..ReadEvents::new(self.session_id, 0) };
        let page = self.service.events(request).await.unwrap();
        page.items.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    /// The first event of this type.
    async fn event(&self, kind: &str) -> Value {
        self.events().await.into_iter().find(|event| event["type"] == kind).unwrap()
    }

    /// The call that waits for approval, once it does.
    async fn asked(&self) -> String {
        ticks(50).await;
        let last = self.events().await.pop().unwrap();
        assert_eq!(last["type"], "approval_requested");
        last["call_id"].as_str().unwrap().to_owned()
    }

    /// Waits until no turn runs, and then checks the session's promises.
    async fn check(&self) -> Vec<Value> {
        let answer = self.turn("@echo messages").await.unwrap();
        assert_eq!(answer.text.split(':').next(), Some("messages"), "the session takes another turn: {answer:?}");
        let events = self.events().await;
        check_journal(&events);
        events
    }
}

/// Promises of every journal: seqs without a gap, one end for each turn, one result for each call.
fn check_journal(events: &[Value]) {
    let seqs: Vec<u64> = events.iter().map(|event| event["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    let (mut open, mut ended, mut called, mut answered) = (None, HashSet::new(), Vec::new(), Vec::new());
    let mut is_last_answer = false;
    for event in events {
        let turn = event["turn"].as_u64();
        match event["type"].as_str().unwrap() {
            "turn_started" => {
                assert_eq!(open, None, "two turns at once: {events:#?}");
                open = turn;
                is_last_answer = false;
            }
            "turn_completed" | "turn_failed" | "turn_interrupted" => {
                assert_eq!(open.take(), turn);
                assert!(ended.insert(turn), "turn {turn:?} ends twice");
                let is_lost = is_last_answer && event["type"] == "turn_interrupted";
                assert!(!is_lost, "turn {turn:?} is interrupted behind its answer: {events:#?}");
            }
            "assistant_message" => {
                let blocks = event["blocks"].as_array().unwrap();
                is_last_answer = blocks.iter().all(|block| block["type"] != "tool_call");
                called.extend(
                    blocks.iter().filter(|block| block["type"] == "tool_call").map(|block| block["call_id"].clone()),
                );
            }
            "steering_entered" | "output_refused" => is_last_answer = false,
            "tool_finished" => answered.push(event["call_id"].clone()),
            _ => {}
        }
    }
    assert_eq!(open, None, "a turn never ends: {events:#?}");
    called.sort_by_key(Value::to_string);
    answered.sort_by_key(Value::to_string);
    assert_eq!(called, answered, "each call has one result: {events:#?}");
}

/// Runs a test on a scheduler that asks the test again after every single poll of any other task.
fn walk(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).event_interval(1).build();
    runtime.unwrap().block_on(test);
}

/// Lets other tasks be polled `ticks` times in all.
async fn ticks(ticks: usize) {
    for _ in 0..ticks {
        tokio::task::yield_now().await;
    }
}
