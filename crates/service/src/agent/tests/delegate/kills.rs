//! A tree of seven whose store fails, or whose process is killed, at every write: each call has at most one sub-agent, the
//! whole ends, and nothing is used that the root's budget does not allow.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use super::{Place, Subject, check_journal, delegates, ticks};
use crate::{
    agent::tests::faults::{Fault, FaultyEvents, Fuse},
    clock::{Clock as _, SystemClock},
    options::Budgets,
    runtime::sessions::Sessions,
    service::{CreateSession, SessionService as _, SessionState, StartTurn},
    store::Stores,
};

/// Most steps of the tree.
const STEPS: u64 = 40;

impl Place {
    /// A process whose store fails at a write, for a moment or for good.
    pub(super) fn failing(&self, fault: Fault, fuse: &Fuse) -> super::Service {
        let mut rig = super::rig();
        rig.options.agents.depth = 2;
        let Self { events, blobs, index } = self.clone();
        let events = std::sync::Arc::new(FaultyEvents(events, fault, fuse.clone()));
        let stores = Stores { events, blobs, index, ..Stores::in_memory(u64::MAX, &Default::default()) };
        super::Service::new(Sessions::new(rig.engine(stores, true)))
    }
}

/// Waits until the turn has ended, as far as the store says so.
async fn go_on(subject: &Subject, turn: &StartTurn, seconds: usize) {
    for _ in 0..seconds {
        subject.service.accept_turn(turn.clone()).await.ok();
        // The time passes when nothing else happens.
        SystemClock::new().sleep(Duration::from_secs(1)).await;
        if subject.service.read(&subject.session_id).await.is_ok_and(|view| view.state == SessionState::Idle) {
            return;
        }
    }
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events.iter().filter(|event| event["type"] == kind).collect()
}

#[tokio::test(start_paused = true)]
async fn a_tree_of_seven_with_a_fault_at_every_write() {
    let leaf = || delegates("@say Leaf.");
    let branch = || delegates(&format!("{}{}@say Branch.", leaf(), leaf()));
    let prompt = format!("{}{}@say Root.", branch(), branch());
    const FOR_GOOD: usize = usize::MAX / 2;
    for (fault, times) in
        [(Fault::LostWrite, FOR_GOOD), (Fault::LostSync, 1), (Fault::Failure, 1), (Fault::Fenced, 1), (Fault::Panic, 1)]
    {
        let mut whole = 0;
        for at in 1.. {
            let (place, fuse) = (Place::new(), Fuse::new(at, times));
            let service = place.failing(fault, &fuse);
            let session_id = service.create_session(CreateSession::default()).await.unwrap().session_id;
            let budgets = Budgets { steps: Some(STEPS), ..Budgets::default() };
            let key = Some("k".to_owned());
            let turn = StartTurn { budgets, idempotency_key: key, ..StartTurn::new(session_id, prompt.as_str()) };
            let subject = Subject { service, session_id };
            go_on(&subject, &turn, 5).await;
            drop(subject);
            ticks(200).await;
            let service = place.failing(Fault::Full, &Fuse::new(usize::MAX, 0));
            service.ready().await.unwrap();
            let subject = Subject { service, session_id };
            go_on(&subject, &turn, 600).await;

            let why = format!("{fault:?} at {at}, {times} times");
            let children = subject.children().await;
            let (mut started, mut steps) = (BTreeMap::new(), 0);
            for id in children.iter().map(|child| child.session_id).chain([session_id]) {
                let events = subject.other(id).events().await;
                check_journal(&events);
                steps += of(&events, "assistant_message").len() as u64;
                let turns = of(&events, "turn_started").len();
                assert!(turns <= 2 && (id != session_id || turns == 1), "{why}: {events:#?}");
                for event in of(&events, "delegate_started") {
                    let call = (event["session_id"].clone(), event["call_id"].clone());
                    assert_eq!(started.insert(event["child"].to_string(), call), None, "{why}");
                }
            }
            // Each is the one of its call, and a call may have none whose session could not be made.
            for child in &children {
                assert_eq!(child.state, SessionState::Idle, "{why}");
                let parent = child.parent.as_ref().unwrap();
                let call = (parent.session_id.to_string().into(), parent.call_id.clone().into());
                assert_eq!(started.remove(&format!("\"{}\"", child.session_id)), Some(call), "{why}");
            }
            assert!(steps <= STEPS && children.len() <= 6, "{why}: {steps}");
            let events = subject.events().await;
            let totals = &events.last().unwrap()["totals"];
            let told = totals["steps"].as_u64().unwrap() + totals["delegated"]["steps"].as_u64().unwrap_or(0);
            assert!(told >= steps, "{why}: {told} of {steps}: {events:#?}");
            whole += usize::from(told == steps && children.len() == 6);
            if fuse.calls() <= at {
                break;
            }
        }
        assert!(whole > 0, "{fault:?} {times}: the tree was never whole");
    }
}
