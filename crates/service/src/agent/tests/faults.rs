//! A panic or a failure in every part that the engine calls: the turn fails, the session and the process go on.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt as _, StreamExt as _};
use tokio::sync::{mpsc, oneshot, watch};

use super::{Rig, Subject, fakes::does, ticks};
use crate::{
    ErrorCode, Session, SessionError, SessionId,
    agent::tests::Service,
    agent::{actor::Actor, command::Command, shared::Shared},
    follow::live::LiveHub,
    ids::Seq,
    model::{
        ModelClient, ModelError, ModelPart, ModelRequest, ModelResolver, ModelStream, ResolvedModel, StaticModels,
        ToolSpec, scripted::ScriptedModel,
    },
    options::Policy,
    service::{
        AnswerCall, CreateSession, EditQueued, InterruptTurn, PinFact, PromptBlock, SessionService as _, StartTurn,
        TurnStatus,
    },
    session::{
        event::Record,
        message::RawJson,
        tests::{created, record},
    },
    store::{
        BlobStore, BlobWriter, EventStore, FramePage, Lease, MemoryBlobStore, MemoryEventStore, MemoryIndex, ReadLimit,
        RecordSource, StoreError, Stores, Ticket,
    },
    tool::{Effect, Invocation, OutputSink, Plan, Tool, ToolError},
};

/// Times that a held writer gives its core to others.
const HELD_YIELDS: usize = 10_000;

/// Header of an image, which is all that is looked at.
pub(super) const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x02\x80\0\0\x01\xe0\x08\x02\0\0\0";

/// Fails the calls from the `at`-th on, `times` of them.
#[derive(Clone)]
pub(super) struct Fuse {
    calls: Arc<AtomicUsize>,
    at: usize,
    times: usize,
}

impl Fuse {
    pub(super) fn new(at: usize, times: usize) -> Self {
        Self { calls: Arc::default(), at, times }
    }

    /// Counts the calls.
    pub(super) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn blows(&self) -> bool {
        (self.at..self.at + self.times).contains(&self.calls.fetch_add(1, Ordering::Relaxed))
    }

    #[expect(clippy::panic, reason = "the panic is what is tested")]
    fn panic(&self, part: &str) {
        if self.blows() {
            panic!("{part} panics");
        }
    }
}

/// Place of a model's panic.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Vendor,
    Call,
    Stream,
    Resolve,
}

struct FaultyModel(Place, Fuse);

#[async_trait]
impl ModelClient for FaultyModel {
    fn vendor(&self) -> &str {
        if self.0 == Place::Vendor {
            self.1.panic("vendor");
        }
        "scripted"
    }

    async fn stream_response(&self, request: ModelRequest) -> Result<ModelStream, ModelError> {
        if self.0 == Place::Call {
            self.1.panic("stream_response");
        }
        let stream = ScriptedModel.stream_response(request).await?;
        if self.0 != Place::Stream {
            return Ok(stream);
        }
        let fuse = self.1.clone();
        Ok(stream.inspect(move |_: &Result<ModelPart, ModelError>| fuse.panic("the stream")).boxed())
    }
}

struct FaultyModels(StaticModels, Place, Fuse);

impl ModelResolver for FaultyModels {
    fn default_model(&self) -> &str {
        "scripted"
    }

    fn resolve(&self, name: &str) -> Result<ResolvedModel, SessionError> {
        // The first resolution is the create's and the second the acceptance's, in their callers' own tasks.
        if self.1 == Place::Resolve {
            self.2.panic("resolve");
        }
        self.0.resolve(name)
    }
}

async fn with_model(place: Place, fuse: Fuse) -> Subject {
    let mut rig = Rig::new(Vec::new());
    let models = StaticModels::new("scripted", Arc::new(FaultyModel(place, fuse.clone())), 100_000);
    rig.models = Arc::new(FaultyModels(models, place, fuse));
    Subject::new(rig.service()).await
}

/// A turn in which a part panicked has failed with `INTERNAL`, or its caller learns so at once; afterwards the
/// session works.
async fn check_fails_alone(subject: &Subject, prompt: &str, place: &str) {
    let error = match subject.turn(prompt).await {
        Ok(result) => result.error.unwrap(),
        Err(error) => error.body(),
    };
    assert_eq!(error.code.as_str(), "INTERNAL", "{place}");
    subject.check().await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_model_fails_its_turn_alone() {
    let places = [Place::Call, Place::Stream, Place::Vendor].map(|place| (place, 0));
    for (place, at) in places.into_iter().chain([(Place::Stream, 1), (Place::Resolve, 3), (Place::Resolve, 2)]) {
        let subject = with_model(place, Fuse::new(at, 1)).await;
        check_fails_alone(&subject, "@say One two three.", &format!("{place:?} {at}")).await;
    }
}

struct FaultyTool {
    spec: ToolSpec,
    place: &'static str,
    fuse: Fuse,
}

#[async_trait]
impl Tool for FaultyTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn plan(&self, _: &Invocation) -> Result<Plan, ToolError> {
        if self.place == "plan" {
            self.fuse.panic("plan");
        }
        Ok(Plan::once())
    }

    async fn call(&self, _: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        output.write("begun").await?;
        if self.place == "call" {
            self.fuse.panic("call");
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_a_tool_fails_its_turn_alone() {
    for (place, at) in [("call", 0), ("plan", 0)] {
        let spec = ToolSpec { name: "faulty".into(), description: "Fails.".into(), schema: RawJson::empty_object() };
        let tool = FaultyTool { spec, place, fuse: Fuse::new(at, 1) };
        let fuse = tool.fuse.clone();
        let subject = Subject::new(Rig::new(vec![Arc::new(tool)]).service()).await;
        check_fails_alone(&subject, "@call faulty {} @say Done.", &format!("{place} {at}")).await;
        assert!(fuse.calls.load(Ordering::Relaxed) > at, "{place} was never reached {at} times");
    }
}

/// Fault of a store, mostly of `stage`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    Panic,
    Failure,
    Fenced,
    /// The batch is written, and its sync fails.
    LostSync,
    /// The batch is not written, and its sync fails.
    LostWrite,
    /// There is no room for it. Every stored session may have been left by a process that ended.
    Full,
    /// No new work has room.
    Roomless,
    /// A batch is durable only after some time.
    Slow,
    /// A batch is durable long before its writer goes on, unless somebody calls the fuse meanwhile.
    Held,
    /// A lease is given, and a fork known, only after some time; the fuse counts the leases that were given back.
    LateLease,
    /// A journal cannot be read for a moment, for example without free descriptors. Every stored session may have been
    /// left by a former process.
    Unread,
    /// Like `Unread`, but no session was left by a former process.
    UnreadLines,
    /// A session appears right after it was read in vain.
    Appears,
    /// A session cannot be deleted.
    Undeleted,
    /// The size of this session cannot be read, whatever the fuse says.
    Unsized(SessionId),
}

pub(super) struct FaultyEvents(pub(super) Arc<dyn EventStore>, pub(super) Fault, pub(super) Fuse);

#[async_trait]
impl EventStore for FaultyEvents {
    async fn lease(&self, session_id: SessionId) -> Result<Lease, StoreError> {
        if self.1 == Fault::LateLease {
            ticks(20).await;
        }
        self.0.lease(session_id).await
    }

    fn stage(&self, lease: &Lease, batch: &[Record]) -> Result<Ticket, StoreError> {
        match self.1 {
            Fault::Panic => self.2.panic("stage"),
            Fault::Failure if self.2.blows() => return Err(StoreError::Failed("EIO".to_owned())),
            Fault::Fenced if self.2.blows() => return Err(StoreError::Fenced),
            Fault::LostSync if self.2.blows() => {
                drop(self.0.stage(lease, batch)?);
                let (done, ticket) = Ticket::new();
                drop(done.send(Err(StoreError::Failed("EIO".to_owned()))));
                return Ok(ticket);
            }
            Fault::LostWrite | Fault::Full if self.2.blows() => {
                let (done, ticket) = Ticket::new();
                let lost = || StoreError::Failed("EIO".to_owned());
                drop(done.send(Err(if self.1 == Fault::Full { StoreError::Full } else { lost() })));
                return Ok(ticket);
            }
            Fault::Slow => {
                let (written, (done, ticket)) = (self.0.stage(lease, batch)?, Ticket::new());
                tokio::spawn(async move {
                    ticks(3).await;
                    drop(done.send(written.durable().await));
                });
                return Ok(ticket);
            }
            Fault::Held => {
                let (ticket, calls) = (self.0.stage(lease, batch)?, self.2.calls());
                (0..HELD_YIELDS).take_while(|_| self.2.calls() == calls).for_each(|_| std::thread::yield_now());
                return Ok(ticket);
            }
            Fault::Failure | Fault::Fenced | Fault::LostSync | Fault::LostWrite | Fault::Full => {}
            Fault::Roomless
            | Fault::LateLease
            | Fault::Unread
            | Fault::UnreadLines
            | Fault::Appears
            | Fault::Undeleted => {}
            Fault::Unsized(_) => {}
        }
        self.0.stage(lease, batch)
    }

    async fn read(&self, session_id: SessionId, after: Seq, limit: ReadLimit) -> Result<Option<FramePage>, StoreError> {
        if matches!(self.1, Fault::Unread | Fault::UnreadLines) && self.2.blows() {
            return Err(StoreError::Failed("EMFILE".to_owned()));
        }
        if self.1 == Fault::Appears && self.2.blows() {
            return Ok(None);
        }
        self.0.read(session_id, after, limit).await
    }

    async fn release(&self, lease: Lease) -> Result<(), StoreError> {
        if self.1 == Fault::LateLease {
            self.2.blows();
        }
        self.0.release(lease).await
    }

    async fn watch(&self, session_id: SessionId) -> Result<Option<watch::Receiver<Seq>>, StoreError> {
        self.0.watch(session_id).await
    }

    async fn room(&self) -> Result<(), StoreError> {
        if self.1 == Fault::Roomless { Err(StoreError::Full) } else { self.0.room().await }
    }

    async fn fork(&self, parent: SessionId, at: Seq, first: &[Record]) -> Result<(), StoreError> {
        let forked = self.0.fork(parent, at, first).await;
        if self.1 == Fault::LateLease {
            ticks(20).await;
        }
        forked
    }

    async fn import(&self, session_id: SessionId, records: &mut dyn RecordSource) -> Result<(), StoreError> {
        self.0.import(session_id, records).await
    }

    async fn bytes(&self, session_id: SessionId) -> Result<u64, StoreError> {
        if self.1 == Fault::Unsized(session_id) || self.1 == Fault::Unread && self.2.blows() {
            return Err(StoreError::Failed("EMFILE".to_owned()));
        }
        self.0.bytes(session_id).await
    }

    async fn unsettled(&self) -> Result<Vec<SessionId>, StoreError> {
        match self.1 {
            Fault::Full | Fault::Unread | Fault::Unsized(_) => self.0.sessions(None, 100).await,
            _ => self.0.unsettled().await,
        }
    }

    async fn sessions(&self, after: Option<SessionId>, limit: usize) -> Result<Vec<SessionId>, StoreError> {
        self.0.sessions(after, limit).await
    }

    async fn delete(&self, session_id: SessionId) -> Result<(), StoreError> {
        if self.1 == Fault::Undeleted && self.2.blows() {
            return Err(StoreError::Failed("EIO".to_owned()));
        }
        self.0.delete(session_id).await
    }
}

impl Rig {
    /// A service over journals whose writes fail.
    pub(super) fn faulty(self, fault: Fault, fuse: &Fuse) -> Service {
        self.service_over(|events| Arc::new(FaultyEvents(events, fault, fuse.clone())), |blobs| blobs)
    }
}

/// The code that a caller is told of a fault in the store.
fn code_of(fault: Fault) -> ErrorCode {
    if fault == Fault::Panic { ErrorCode::Internal } else { ErrorCode::StoreFailed }
}

/// Fails each write of a turn: its caller gets a code, the journal stays whole, and the session goes on. A turn whose
/// start was lost never happened.
#[tokio::test(start_paused = true)]
async fn a_fault_at_every_write_of_a_turn() {
    for fault in [Fault::Panic, Fault::Failure, Fault::Fenced, Fault::LostSync, Fault::LostWrite] {
        for at in 1..6 {
            let tool = does("once", Effect::Once, |_, output| output.write("done").boxed());
            let subject = Subject::new(Rig::new(vec![Arc::new(tool)]).faulty(fault, &Fuse::new(at, 1))).await;
            match subject.turn("@call once {} @say Done.").await {
                // A write whose loss nobody waits for may be noticed by nobody: the journal has it. A turn whose start
                // met another's lease is asked for once more.
                Ok(result) => {
                    let is_unnoticed = fault == Fault::LostSync || (fault == Fault::Fenced && at == 1);
                    assert!(is_unnoticed && result.status == TurnStatus::Completed, "{at}: {result:?}");
                }
                Err(error) => assert_eq!(error.code(), code_of(fault), "{fault:?} {at}: {error:?}"),
            }
            let events = subject.check().await;
            let started = events.iter().filter(|event| event["type"] == "turn_started").count();
            let is_lost = at == 1 && matches!(fault, Fault::Panic | Fault::Failure | Fault::LostWrite);
            assert_eq!(started, if is_lost { 1 } else { 2 }, "{fault:?} {at}");
        }
    }
}

/// A text turn is written twice: its start, and its answer together with its end.
#[tokio::test(start_paused = true)]
async fn a_text_turn_is_two_batches() {
    let fuse = Fuse::new(usize::MAX, 0);
    let subject = Subject::new(Rig::new(Vec::new()).faulty(Fault::Failure, &fuse)).await;
    let before = fuse.calls();
    subject.turn("@say One.").await.unwrap();
    assert_eq!(fuse.calls() - before, 2);
    subject.check().await;
}

/// A store that keeps failing makes the session read-only: it can be read until it leaves memory.
#[tokio::test(start_paused = true)]
async fn a_store_that_stays_broken_leaves_the_session_readable() {
    for fault in [Fault::Panic, Fault::Failure] {
        let mut rig = Rig::new(Vec::new());
        (rig.options.ephemeral.idle_ms, rig.options.ephemeral.max_sessions) = (1_000, 1);
        rig.options.limits.pins = 0;
        // The end of the turn fails twice.
        let subject = Subject::new(rig.faulty(fault, &Fuse::new(2, 2))).await;
        let pin = PinFact { session_id: subject.session_id, text: "fact".into() };
        assert_eq!(subject.service.pin(pin).await.unwrap_err().body().details["what"], "pins", "what is full");
        let failed = subject.turn("@say One.").await.unwrap_err();
        assert_eq!(failed.code(), code_of(fault), "{failed:?}");
        let refused = subject.turn("@say Two.").await.unwrap_err();
        assert_eq!(refused.code().as_str(), "SESSION_CORRUPTED");
        let answer = AnswerCall::text(subject.session_id, "call_2_0", "x");
        assert_eq!(subject.service.answer_call(answer).await.unwrap_err().code(), ErrorCode::SessionCorrupted);
        assert_eq!(subject.events().await.len(), 2, "the creation and the turn's start can be read");
        tokio::time::sleep(Duration::from_secs(100)).await;
        subject.service.create_session(CreateSession::default()).await.unwrap();
    }
}

/// Blobs with a panic where the fuse says, or none of which finds room.
struct FaultyBlobs(Arc<dyn BlobStore>, Fault, Fuse);

#[async_trait]
impl BlobStore for FaultyBlobs {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        if self.1 == Fault::Full {
            return Box::new(FullWriter);
        }
        self.2.panic("writer");
        self.0.writer(session_id)
    }

    async fn read(
        &self,
        session_id: SessionId,
        blob: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        self.2.panic("read");
        self.0.read(session_id, blob, offset, limit).await
    }

    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError> {
        self.0.list(session_id).await
    }

    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError> {
        self.0.remove(session_id, names).await
    }

    async fn forget(&self, session_id: SessionId) {
        self.0.forget(session_id).await;
    }
}

impl Rig {
    /// A service over blobs with a fault.
    fn with_faulty_blobs(self, fault: Fault, fuse: Fuse) -> Service {
        self.service_over(|events| events, |blobs| Arc::new(FaultyBlobs(blobs, fault, fuse)))
    }
}

struct FullWriter;

#[async_trait]
impl BlobWriter for FullWriter {
    async fn write(&mut self, _: &[u8]) -> Result<(), StoreError> {
        Err(StoreError::Full)
    }

    async fn finish(self: Box<Self>) -> Result<(String, u64), StoreError> {
        Err(StoreError::Full)
    }
}

/// A prompt whose image finds no room is refused, and the turn that runs goes on.
#[tokio::test(start_paused = true)]
async fn an_image_without_room_fails_no_turn_that_runs() {
    let service = Rig::new(Vec::new()).with_faulty_blobs(Fault::Full, Fuse::new(usize::MAX, 0));
    let subject = Subject::new(service).await;
    let session_id = subject.session_id;
    let running = subject.service.begin_turn(StartTurn::new(session_id, "@stall")).await.unwrap();
    let shown = || vec![PromptBlock::image("image/png", PNG)];
    for policy in [Policy::Queue, Policy::Steer, Policy::Interrupt] {
        let request = StartTurn { policy, ..StartTurn::new(session_id, shown()) };
        assert_eq!(subject.service.begin_turn(request).await.err().unwrap().code(), ErrorCode::StoreFull);
    }
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "@say Waited.") };
    let queued = subject.service.begin_turn(queued).await.unwrap();
    let edit = EditQueued { session_id, turn: queued.accepted.turn, prompt: Some(shown().into()), position: None };
    assert_eq!(subject.service.edit_queued(edit).await.unwrap_err().code(), ErrorCode::StoreFull);
    subject.service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    assert_eq!(running.result.await.unwrap().status, TurnStatus::Interrupted);
    assert_eq!(queued.result.await.unwrap().text, "Waited.");
    subject.check().await;
}

/// A long prompt goes to a blob and comes back whole; a panic on either way fails its turn alone.
#[tokio::test(start_paused = true)]
async fn a_panic_in_the_blobs_fails_its_turn_alone() {
    let long = format!("@say Read. @note {}", "long ".repeat(30_000));
    for at in [0, 1] {
        let subject = Subject::new(Rig::new(Vec::new()).with_faulty_blobs(Fault::Panic, Fuse::new(at, 1))).await;
        check_fails_alone(&subject, &long, &format!("{at}")).await;
        assert_eq!(subject.turn(&long).await.unwrap().text, "Read.");
    }
}

/// A blob that is lost fails no later turn: the model reads the beginning and the end of what it held.
#[tokio::test(start_paused = true)]
async fn a_lost_blob_fails_no_later_turn() {
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobStore::new(Arc::default()));
    let seen = blobs.clone();
    let subject = Subject::new(Rig::new(Vec::new()).service_over(|events| events, |_| seen)).await;
    let long = format!("@say Read. @note {} the end", "long ".repeat(30_000));
    subject.turn(&long).await.unwrap();
    blobs.forget(subject.session_id).await;
    let result = subject.turn("@echo first").await.unwrap();
    assert_eq!(result.status, TurnStatus::Completed, "{result:?}");
    assert!(result.text.starts_with("first: @say Read. @note long "), "{result:?}");
}

/// What a damaged session has may still be needed to repair it.
#[tokio::test]
async fn a_session_that_can_only_be_read_keeps_its_blobs() {
    for is_read_only in [false, true] {
        let stores = Stores::in_memory(u64::MAX, &Arc::default());
        let session = Session::begin(&record(1, None, created())).unwrap();
        let session_id = session.id;
        let mut writer = stores.blobs.writer(session_id);
        writer.write(b"a body").await.unwrap();
        let names = BTreeSet::from([writer.finish().await.unwrap().0]);
        let (blobs, lease) = (stores.blobs.clone(), stores.events.lease(session_id).await.unwrap());
        let ports = Rig::new(Vec::new()).engine(stores, true).ports;
        let shared = Shared::new(&session, Arc::new(LiveHub::new(session_id, Weak::new())));
        shared.is_read_only.store(is_read_only, Ordering::Release);
        let (_mailbox, commands) = mpsc::channel(1);
        let mut actor = Actor::new(session, lease, ports, shared, Weak::new(), commands);
        let (reply, answer) = oneshot::channel();
        actor.handle(Command::DropBlobs { names: names.clone(), last_seq: 1, reply }).await;
        let answer = answer.await.unwrap().map_err(|error| error.code());
        assert_eq!(answer, if is_read_only { Err(ErrorCode::SessionCorrupted) } else { Ok(()) });
        let kept = blobs.list(session_id).await.unwrap();
        assert_eq!(kept, if is_read_only { names } else { BTreeSet::new() });
    }
}

/// A command on a lease that was taken is sent again, to the new lease.
#[tokio::test(start_paused = true)]
async fn a_command_whose_lease_was_taken_is_asked_again() {
    for times in [1, 4] {
        let fenced = |events| Arc::new(FaultyEvents(events, Fault::Fenced, Fuse::new(1, times)));
        let events = fenced(Arc::new(MemoryEventStore::new(u64::MAX, Arc::default())));
        let service = Rig::new(Vec::new()).stored(events, Arc::new(MemoryIndex::default()));
        let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
        let pin = || service.pin(PinFact { session_id, text: "a fact".to_owned() });
        assert_eq!(pin().await.unwrap().seq, 2);
        assert_eq!(pin().await.unwrap().seq, 3, "it was pinned once");
    }
}
