//! Answers that were cut off: what had come of them is in the next request, so that "continue" means something.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    Rig, Subject,
    fakes::{Answer, Heard, says},
};
use crate::{
    ErrorCode, SessionId,
    agent::tests::Service,
    service::{
        CreateSession, ForkSession, InterruptTurn, ReadHistory, ResumeTurn, SessionService as _, StartTurn, TurnStatus,
    },
    store::{EventStore, MemoryEventStore, MemoryIndex, MemorySessionStore, SessionStore},
};

/// A service over journals and snapshots that outlive it.
struct Stored {
    events: Arc<dyn EventStore>,
    snapshots: Arc<dyn SessionStore>,
}

impl Stored {
    fn new() -> Self {
        let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        Self { snapshots: Arc::new(MemorySessionStore::new(events.clone())), events }
    }

    fn without_snapshots(&self) -> Self {
        Self { snapshots: Arc::new(MemorySessionStore::new(self.events.clone())), events: self.events.clone() }
    }

    fn service(&self, model: &Arc<Heard>) -> Service {
        rig(model).stored_with(self.snapshots.clone(), self.events.clone(), Arc::new(MemoryIndex::default()))
    }
}

fn rig(model: &Arc<Heard>) -> Rig {
    let mut rig = Rig::new(Vec::new());
    rig.models = Arc::new(crate::model::StaticModels::new("heard", model.clone(), 1_000_000));
    rig
}

/// The texts of the last request.
fn heard(model: &Heard) -> Vec<String> {
    model.last().iter().map(|message| message.text()).collect()
}

/// Begins a turn, and interrupts it once the model has said all it says.
async fn interrupted(service: &Service, session_id: SessionId, prompt: &str, said: &Notify) {
    service.accept_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    said.notified().await;
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
}

/// Broken once: the model was shown nothing of its own answer, and "continue" began anew.
#[tokio::test(start_paused = true)]
async fn an_interrupted_answer_is_in_the_next_request() {
    let said = Arc::new(Notify::new());
    let model = Heard::new([Answer::Halts("Half of it ", said.clone()), says("The rest."), says("Fine.")]);
    let stored = Stored::new();
    let service = stored.service(&model);
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    interrupted(&service, session_id, "Write.", &said).await;
    service.start_turn(StartTurn::new(session_id, "Continue.")).await.unwrap();
    let due = ["Write.", "Half of it [cut off]", "Continue."];
    assert_eq!(heard(&model), due);
    service.start_turn(StartTurn::new(session_id, "Thanks.")).await.unwrap();
    assert_eq!(heard(&model)[..3], due);
    // It is a message like any other, in the history too.
    let view = service.read(&session_id).await.unwrap();
    assert_eq!((view.context.messages, view.message_count), (6, 6));
    let history = ReadHistory { session_id, cursor: None, limit: None, skip_damage: false };
    let page = service.history(history).await.unwrap();
    let texts = page.items.iter().map(|item| item.message.text()).collect::<Vec<_>>();
    assert_eq!((texts.len(), &texts[..3], page.items[1].role.as_str()), (6, &due.map(str::to_owned)[..], "assistant"));
    // Each page begins where the one before ended.
    let mut cursor = None;
    for text in texts {
        let history = ReadHistory { session_id, cursor, limit: Some(1), skip_damage: false };
        let page = service.history(history).await.unwrap();
        assert_eq!(page.items[0].message.text(), text);
        cursor = page.next_cursor;
    }
}

/// Whether it is a snapshot or the journal that the session is loaded from; and a fork has it too.
#[tokio::test(start_paused = true)]
async fn a_cut_off_answer_outlives_the_service() {
    let said = Arc::new(Notify::new());
    let model = Heard::new([says("Yes."), Answer::Halts("Half", said.clone())]);
    let stored = Stored::new();
    let former = stored.service(&model);
    let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
    former.start_turn(StartTurn::new(session_id, "Are you there?")).await.unwrap();
    interrupted(&former, session_id, "Write.", &said).await;
    former.shut_down(0).await;
    for stored in [stored.without_snapshots(), stored] {
        let model = Heard::new([says("Fine."), says("Fine.")]);
        let service = stored.service(&model);
        let fork = service.fork(ForkSession { session_id, turn: Some(1) }).await.unwrap().session_id;
        for session_id in [fork, session_id] {
            service.start_turn(StartTurn::new(session_id, "Continue.")).await.unwrap();
            let request = heard(&model);
            assert_eq!(request[..4], ["Are you there?", "Yes.", "Write.", "Half [cut off]"]);
            assert_eq!(request.last().unwrap(), "Continue.");
            let view = service.read(&session_id).await.unwrap();
            assert_eq!(view.context.messages, view.message_count);
        }
        service.shut_down(0).await;
    }
}

/// A stream that is cut fails the turn, and its text goes on; of a call that had begun there is nothing.
#[tokio::test(start_paused = true)]
async fn a_cut_stream_is_in_the_next_request() {
    let model = Heard::new([Answer::Cuts("Half of it"), says("The rest.")]);
    let subject = Subject::new(rig(&model).service()).await;
    let failed = subject.turn("Write.").await.unwrap();
    let code = failed.error.map(|error| error.code);
    assert_eq!((failed.status, code), (TurnStatus::Failed, Some(ErrorCode::ModelStreamIncomplete)));
    subject.turn("Continue.").await.unwrap();
    assert_eq!(heard(&model), ["Write.", "Half of it [cut off]", "Continue."]);
    assert!(model.last().iter().all(|message| message.tool_calls().next().is_none()));
}

/// Vendors refuse a request that ends with an answer: one that goes on without a prompt ends with the wish to go on.
#[tokio::test(start_paused = true)]
async fn a_turn_that_goes_on_asks_for_the_rest() {
    let said = Arc::new(Notify::new());
    let halts = |text| Answer::Halts(text, said.clone());
    let model = Heard::new([halts("One,"), halts("two,"), says("three."), says("Fine.")]);
    let stored = Stored::new();
    let service = stored.service(&model);
    let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
    interrupted(&service, session_id, "Count.", &said).await;
    let resume = tokio::spawn({
        let service = service.clone();
        async move { service.resume(&session_id, ResumeTurn::default()).await }
    });
    said.notified().await;
    let tail = |model: &Heard| model.requests.lock().unwrap().last().unwrap().tail.clone();
    assert_eq!(heard(&model), ["Count.", "One, [cut off]"]);
    assert!(tail(&model).is_some_and(|tail| tail.contains("was cut off")), "{:?}", tail(&model));
    service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    assert_eq!(resume.await.unwrap().unwrap().status, TurnStatus::Interrupted);
    // Two answers of one turn that were cut off are both there.
    assert_eq!(service.resume(&session_id, ResumeTurn::default()).await.unwrap().text, "three.");
    assert_eq!(heard(&model), ["Count.", "One, [cut off]", "two, [cut off]"]);
    service.start_turn(StartTurn::new(session_id, "Thanks.")).await.unwrap();
    assert_eq!(tail(&model), None, "the answer is whole now");
}

/// A text that is too long for its event is sent whole, with the mark at its end.
#[tokio::test(start_paused = true)]
async fn a_long_answer_that_was_cut_off_is_sent_whole() {
    let text: &'static str = "word ".repeat(60_000).leak();
    let model = Heard::new([Answer::Cuts(text), says("The rest.")]);
    let subject = Subject::new(rig(&model).service()).await;
    subject.turn("Write.").await.unwrap();
    assert!(subject.event("partial_text").await["text"]["blob"].is_string(), "the text is in a blob");
    subject.turn("Continue.").await.unwrap();
    assert!(heard(&model)[1] == format!("{} [cut off]", text.trim_end()), "the whole text");
}
