//! A waiting turn that is changed: what its model hears, and what refuses the change.

use std::sync::Arc;

use super::{
    Rig, Subject, TICKS_MAX, check_journal,
    faults::{Fault, Fuse},
    nodes::{Node, Way},
    stored::{faulty, journals},
    ticks, walk,
};
use crate::{
    ErrorCode, SessionError, SessionId,
    options::Policy,
    service::{Changed, EditQueued, SessionService as _, StartTurn, TurnAccepted},
    store::MemoryIndex,
};

fn edit(session_id: SessionId, turn: u32, prompt: &str) -> EditQueued {
    EditQueued { session_id, turn, prompt: Some(prompt.into()), position: None }
}

impl Subject {
    async fn waits(&self, policy: Policy, prompt: &str) -> TurnAccepted {
        let request = StartTurn { policy, ..StartTurn::new(self.session_id, prompt) };
        self.service.accept_turn(request).await.unwrap()
    }

    async fn texts(&self) -> Vec<String> {
        let answers = self.events().await.into_iter().filter(|event| event["type"] == "assistant_message");
        answers.map(|event| event["blocks"][0]["text"].as_str().unwrap().to_owned()).collect()
    }
}

/// Wherever the change comes, the model hears the new prompt if it was accepted, and else the old one.
#[test]
fn a_change_against_the_start_of_the_turn() {
    walk(async {
        let (mut heard, mut late) = (0, 0);
        for tick in 0..TICKS_MAX {
            let subject = Subject::new(Rig::new(Vec::new()).service()).await;
            subject.waits(Policy::Reject, "@say First.").await;
            let waiting = subject.waits(Policy::Queue, "@say Old.").await;
            ticks(tick).await;
            let edited = subject.service.edit_queued(edit(subject.session_id, waiting.turn, "@say New.")).await;
            let last = StartTurn { policy: Policy::Queue, ..StartTurn::new(subject.session_id, "@say Last.") };
            assert_eq!(subject.service.start_turn(last).await.unwrap().text, "Last.", "at tick {tick}");
            check_journal(&subject.events().await);
            let second = subject.texts().await.swap_remove(1);
            match edited {
                Ok(_) => {
                    heard += 1;
                    assert_eq!(second, "New.", "at tick {tick}");
                }
                Err(SessionError::ItemNotFound("turn")) => {
                    late += 1;
                    assert_eq!(second, "Old.", "at tick {tick}");
                }
                Err(error) => panic!("{error:?} at tick {tick}"),
            }
            if late == 3 {
                break;
            }
        }
        assert!(heard > 2, "the walk saw only {heard} places before the start");
        assert_eq!(late, 3, "the walk must reach the turn's start");
    });
}

/// The first place is before a turn of policy `interrupt`, too.
#[tokio::test(start_paused = true)]
async fn a_turn_that_is_moved_to_the_first_place_is_the_next() {
    let subject = Subject::new(Rig::new(Vec::new()).service()).await;
    subject.waits(Policy::Reject, "@say Part. @stall").await;
    let moved = subject.waits(Policy::Queue, "@say Moved.").await;
    subject.waits(Policy::Queue, "@say Last.").await;
    let interrupting = StartTurn { policy: Policy::Interrupt, ..StartTurn::new(subject.session_id, "@say Instead.") };
    let move_it = EditQueued { session_id: subject.session_id, turn: moved.turn, prompt: None, position: Some(0) };
    let (asked, changed) =
        tokio::join!(subject.service.accept_turn(interrupting), subject.service.edit_queued(move_it));
    asked.unwrap();
    changed.unwrap();
    ticks(400).await;
    assert_eq!(subject.texts().await, ["Moved.", "Instead.", "Last."]);
}

/// What a former process left waiting can be changed before anybody asks for it.
#[tokio::test(start_paused = true)]
async fn a_turn_that_a_former_process_left_is_changed_before_it_runs() {
    let events = journals();
    let former = Subject::new(Rig::new(Vec::new()).stored(events.clone(), Arc::new(MemoryIndex::default()))).await;
    former.waits(Policy::Reject, "@say Part. @stall").await;
    let waiting = former.waits(Policy::Queue, "@say Old.").await;
    former.service.edit_queued(edit(former.session_id, waiting.turn, "@say Newer.")).await.unwrap();
    former.service.shut_down(0).await;
    // On a full disk the place can be changed, and the prompt cannot.
    let full = faulty(&events, Fault::Roomless, &Fuse::new(0, 0));
    let refused = full.edit_queued(edit(former.session_id, waiting.turn, "@say Other.")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::StoreFull);
    full.edit_queued(EditQueued { position: Some(0), prompt: None, ..edit(former.session_id, waiting.turn, "") })
        .await
        .unwrap();
    full.shut_down(0).await;
    let service = Rig::new(Vec::new()).stored(events, Arc::new(MemoryIndex::default()));
    let subject = Subject { service, session_id: former.session_id };
    let Changed { seq, .. } =
        subject.service.edit_queued(edit(subject.session_id, waiting.turn, "@say Newest.")).await.unwrap();
    subject.waits(Policy::Queue, "@say Last.").await;
    ticks(400).await;
    assert_eq!(subject.texts().await, ["Newest.", "Last."]);
    let all = subject.events().await;
    let started = all.iter().find(|event| event["type"] == "turn_started" && event["turn"] == waiting.turn).unwrap();
    assert_eq!(started["queued"], seq);
    check_journal(&all);
}

/// A change is handed to the node that has the session.
#[tokio::test(start_paused = true)]
async fn another_node_changes_a_waiting_turn() {
    let [a, b] = Node::pair(Way::Inbox).await;
    let session_id = a.creates().await;
    let running = a.begins(session_id).await;
    let queued = StartTurn { policy: Policy::Queue, ..StartTurn::new(session_id, "Old.") };
    let waiting = b.service.begin_turn(queued).await.unwrap();
    let changed = b.service.edit_queued(edit(session_id, waiting.accepted.turn, "New.")).await.unwrap();
    let queue = a.service.queue(&session_id).await.unwrap();
    assert_eq!(queue.items[0].prompt.excerpt(), "New.");
    assert_eq!(a.store.given(session_id), ["a"], "it never moved");
    a.answers();
    running.await.unwrap().unwrap();
    a.answers();
    waiting.result.await.unwrap();
    let all = a.history(session_id).await;
    let started = all.iter().rfind(|event| event["type"] == "turn_started").unwrap();
    assert_eq!(started["queued"], changed.seq);
}
