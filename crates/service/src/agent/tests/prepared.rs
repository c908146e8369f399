//! What a turn waits for before its first step: sources of tools, and notes about the workspace. Neither keeps a start
//! from becoming durable, nor the service from ending.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::sync::Notify;

use super::{
    Rig, Subject, check_journal,
    fakes::{Does, does},
    faults::{Fault, Fuse},
    stored::FaultyIndex,
    ticks,
    waiting::{keyed, types},
};
use crate::{
    clock::Timestamp,
    service::{CreateSession, DecideApproval, InterruptTurn, SessionService as _, SessionState, StartTurn, TurnStatus},
    session::{event::Decision, reminder::SystemReminderType},
    store::{MemoryEventStore, MemoryIndex},
    tool::{Approval, Effect, Tool, ToolScope, ToolSet, ToolSource, WorkspaceNotes},
};

/// Source that knows its tools late.
#[derive(Default)]
struct Late {
    is_ready: AtomicBool,
    is_awaited: AtomicBool,
    changed: Notify,
    /// True if it ends late, too.
    ends_late: bool,
}

impl Late {
    fn arrive(&self) {
        self.is_ready.store(true, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }

    async fn until_ready(&self) {
        while !self.is_ready.load(Ordering::Relaxed) {
            self.changed.notified().await;
        }
    }
}

fn asks() -> Arc<dyn Tool> {
    let tool = does("asks", Effect::Once, |_, output| async { output.write("asked").await }.boxed());
    Arc::new(Does { approval: Approval::Ask, ..tool })
}

#[async_trait]
impl ToolSource for Late {
    fn tools(&self, _: &ToolScope<'_>) -> ToolSet {
        if self.is_ready.load(Ordering::Relaxed) { ToolSet::new(vec![asks()]) } else { ToolSet::default() }
    }

    async fn ready(&self, _: &ToolScope<'_>) {
        self.is_awaited.store(true, Ordering::Relaxed);
        self.until_ready().await;
    }

    async fn shut_down(&self) {
        if self.ends_late {
            self.until_ready().await;
        }
    }
}

fn rig(source: &Arc<Late>) -> Rig {
    let mut rig = Rig::new(Vec::new());
    rig.sources = vec![source.clone()];
    rig
}

#[tokio::test(start_paused = true)]
async fn a_turn_waits_for_the_sources_of_its_tools() {
    let source = Arc::<Late>::default();
    let subject = Subject::new(rig(&source).service()).await;
    let session_id = subject.session_id;
    // It is accepted at once.
    let begun = subject.service.begin_turn(keyed(session_id)).await.unwrap();
    ticks(100).await;
    assert_eq!(subject.events().await.last().unwrap()["type"], "turn_started");
    subject.service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    assert_eq!(begun.result.await.unwrap().status, TurnStatus::Interrupted);

    subject.service.accept_turn(StartTurn::new(session_id, "@call asks {} @say Done.")).await.unwrap();
    ticks(100).await;
    source.arrive();
    let call_id = subject.asked().await;
    subject.service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
    ticks(100).await;
    let events = subject.events().await;
    assert!(events.iter().any(|event| event["outcome"] == "succeeded"), "{events:#?}");
    check_journal(&events);
}

/// The tools of a server may be known only some time after a start, and nothing needs them before the decision.
#[tokio::test(start_paused = true)]
async fn a_waiting_turn_finds_its_tools_after_a_restart() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let former = Arc::<Late>::default();
    former.arrive();
    let service = rig(&former).stored(events.clone(), Arc::new(MemoryIndex::default()));
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    service.accept_turn(keyed(session_id)).await.unwrap();
    ticks(100).await;
    drop(service);
    ticks(100).await;

    let source = Arc::<Late>::default();
    let service = rig(&source).stored(events, Arc::new(MemoryIndex::default()));
    service.ready().await.unwrap();
    ticks(100).await;
    assert!(!source.is_awaited(), "a start of no turn waits for a server");
    let view = service.read(&session_id).await.unwrap();
    assert_eq!(view.state, SessionState::Waiting);
    let call_id = view.pending_approvals[0].call_id.clone();
    service.decide_approval(DecideApproval::new(session_id, call_id, Decision::Approve)).await.unwrap();
    ticks(100).await;
    assert_eq!(types(&service, session_id, 5).await, [""; 0]);
    source.arrive();
    ticks(200).await;
    let expected = ["tool_started", "tool_finished", "assistant_message", "turn_completed"];
    assert_eq!(types(&service, session_id, 5).await, expected);
}

/// Keeps whether a turn's caller knew of its acceptance when the notes were asked for.
#[derive(Default)]
struct Told {
    is_accepted: AtomicBool,
    was_accepted: AtomicBool,
}

#[async_trait]
impl WorkspaceNotes for Told {
    async fn write(&self, _: &Path, _: Timestamp) -> Vec<(SystemReminderType, Option<String>)> {
        self.was_accepted.store(self.is_accepted.load(Ordering::Relaxed), Ordering::Relaxed);
        vec![(SystemReminderType::GitStatus, Some("clean".to_owned()))]
    }
}

async fn in_folder(notes: &Arc<Told>, fault: Fault, fuse: &Fuse) -> (Subject, tempfile::TempDir) {
    let folder = meerkat_testkit::folder();
    let workspace = folder.path().to_str().map(str::to_owned);
    let mut rig = Rig::new(Vec::new());
    rig.notes = Some(notes.clone());
    let service = rig.faulty(fault, fuse);
    let create = CreateSession { workspace, ..CreateSession::default() };
    let session_id = service.create_session(create).await.unwrap().session_id;
    (Subject { service, session_id }, folder)
}

/// A turn is accepted when its start is durable; by then its notes are under way.
#[tokio::test(start_paused = true)]
async fn notes_are_written_while_the_start_of_a_turn_becomes_durable() {
    let notes = Arc::<Told>::default();
    let (subject, _folder) = in_folder(&notes, Fault::Slow, &Fuse::new(0, 0)).await;
    notes.was_accepted.store(true, Ordering::Relaxed);
    let begun = subject.service.begin_turn(StartTurn::new(subject.session_id, "@say One.")).await.unwrap();
    notes.is_accepted.store(true, Ordering::Relaxed);
    assert_eq!(begun.result.await.unwrap().text, "One.");
    assert!(!notes.was_accepted.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn notes_cost_a_write_only_if_they_have_changed() {
    let fuse = Fuse::new(usize::MAX, 0);
    let (subject, _folder) = in_folder(&Arc::default(), Fault::Failure, &fuse).await;
    for expected in [3, 2, 2] {
        let before = fuse.calls();
        subject.turn("@say One.").await.unwrap();
        assert_eq!(fuse.calls() - before, expected, "the start, perhaps the notes, and the answer with the end");
    }
}

/// A server that ends slowly keeps no list from being written.
#[tokio::test(start_paused = true)]
async fn a_source_that_ends_late_does_not_keep_the_index_waiting() {
    let source = Arc::new(Late { ends_late: true, ..Late::default() });
    let index = Arc::new(FaultyIndex::default());
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let service = rig(&source).stored(events, index.clone());
    let ending = tokio::spawn({
        let service = service.clone();
        async move { service.shut_down(1_000).await }
    });
    ticks(100).await;
    assert_eq!((index.flushes.load(Ordering::Relaxed), ending.is_finished()), (1, false));
    source.arrive();
    ending.await.unwrap();
}
