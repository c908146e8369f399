//! Sub-agents go where the session goes that called them.

use std::time::Duration;

use super::{Place, SessionState, Subject, check_journal, delegates, ended, ticks, until_asked};
use crate::{
    ErrorCode, SessionId,
    agent::tests::{
        Service,
        faults::{Fault, Fuse},
    },
    clock::{Clock as _, SystemClock},
    service::{DeleteSession, Retain, SessionQuery, SessionService as _, SessionSummary, StartTurn},
};

/// A process whose sub-agents may have their own, and whose store has no fault.
fn sound(place: &Place) -> Service {
    place.failing(Fault::Full, &Fuse::new(usize::MAX, 0))
}

fn leaf() -> String {
    delegates("@say Leaf.")
}

/// Makes a session with two sub-agents that have two each.
async fn seven(service: &Service) -> Subject {
    let branch = || delegates(&format!("{}{}@say Branch.", leaf(), leaf()));
    let subject = Subject::new(service.clone()).await;
    subject.turn(&format!("{}{}@say Root.", branch(), branch())).await.unwrap();
    assert_eq!(below(&subject).await.len(), 6);
    subject
}

/// Sub-agents below a session: first its own, in the order in which they were made.
async fn below(subject: &Subject) -> Vec<SessionSummary> {
    let (mut all, mut found) = (subject.children().await, Vec::<SessionSummary>::new());
    let mut callers = vec![subject.session_id];
    while !callers.is_empty() {
        let is_its = |child: &mut SessionSummary| {
            child.parent.as_ref().is_some_and(|parent| callers.contains(&parent.session_id))
        };
        let its: Vec<SessionSummary> = all.extract_if(.., is_its).collect();
        callers = its.iter().map(|child| child.session_id).collect();
        found.extend(its);
    }
    found
}

async fn all(service: &Service) -> Vec<SessionSummary> {
    service.list(SessionQuery { children: true, ..SessionQuery::default() }).await.unwrap().items
}

const fn delete(session_id: SessionId, force: bool) -> DeleteSession {
    DeleteSession { session_id, force }
}

#[tokio::test(start_paused = true)]
async fn whoever_deletes_a_session_deletes_its_sub_agents_and_no_others() {
    let place = Place::new();
    let service = sound(&place);
    let (subject, other) = (seven(&service).await, seven(&service).await);
    let others = below(&other).await;
    let middle = below(&subject).await[1].session_id;
    service.delete(delete(middle, false)).await.unwrap();
    assert_eq!(all(&service).await.len(), 7 + 4);
    service.delete(delete(subject.session_id, false)).await.unwrap();
    let left: Vec<SessionId> = all(&sound(&place)).await.iter().map(|session| session.session_id).collect();
    assert_eq!(left.len(), 7, "{left:?}");
    assert!(others.iter().all(|child| left.contains(&child.session_id)) && left.contains(&other.session_id));
}

/// A person asked a sub-agent for more after its turn had ended.
#[tokio::test(start_paused = true)]
async fn a_session_whose_sub_agent_works_is_not_deleted_and_not_archived() {
    let place = Place::new();
    let subject = seven(&sound(&place)).await;
    let (service, session_id) = (&subject.service, subject.session_id);
    let deep = below(&subject).await.pop().unwrap().session_id;
    let turn = StartTurn { attended: true, ..StartTurn::new(deep, "@call edit {} @say Done.") };
    service.accept_turn(turn).await.unwrap();
    assert_eq!(until_asked(&subject).await.0, deep);
    for error in
        [service.delete(delete(session_id, false)).await.unwrap_err(), service.archive(&session_id).await.unwrap_err()]
    {
        let body = error.body();
        assert_eq!((body.code, &body.details["session_id"]), (ErrorCode::SessionBusy, &deep.to_string().into()));
        assert_eq!(body.message, format!("Its sub-agent {deep} works; wait for it, or interrupt it."));
    }
    let sessions = all(service).await;
    assert!(sessions.len() == 7 && sessions.iter().all(|session| !session.archived), "{sessions:?}");
    service.delete(delete(session_id, true)).await.unwrap();
    assert_eq!(all(&sound(&place)).await, []);
}

/// A deletion that fails at any session leaves each sub-agent with the session that called it, and can be done again.
#[tokio::test(start_paused = true)]
async fn a_tree_of_seven_whose_deletion_fails_at_every_session() {
    for at in 0..8 {
        let place = Place::new();
        let session_id = seven(&sound(&place)).await.session_id;
        ticks(200).await;
        let failing = place.failing(Fault::Undeleted, &Fuse::new(at, usize::MAX / 2));
        let deleted = failing.delete(delete(session_id, false)).await;
        assert_eq!(deleted.is_ok(), at == 7, "{at}: {deleted:?}");
        drop(failing);
        ticks(200).await;
        let service = sound(&place);
        service.ready().await.unwrap();
        let left = all(&service).await;
        assert_eq!(left.len(), 7 - at);
        for child in &left {
            let has = |id: SessionId| left.iter().any(|session| session.session_id == id);
            assert!(child.parent.as_ref().is_none_or(|parent| has(parent.session_id)), "{at}: {left:?}");
        }
        if at < 7 {
            service.delete(delete(session_id, false)).await.unwrap();
            assert_eq!(all(&service).await, []);
        }
    }
}

/// Its call has a result before the sub-agent is gone: no later start makes it again.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_that_is_deleted_while_its_call_is_open_is_not_made_again() {
    for (fault, ats) in [(Fault::LostWrite, 0..6), (Fault::Undeleted, 0..1)] {
        for at in ats {
            let why = format!("{fault:?} {at}");
            let place = Place::new();
            let fuse = Fuse::new(at, usize::MAX / 2);
            let subject = Subject::new(sound(&place)).await;
            let session_id = subject.session_id;
            let prompt = format!("{}{}@echo results", delegates("@call edit {} @say Edited."), leaf());
            let turn = StartTurn { attended: true, ..StartTurn::new(session_id, prompt) };
            subject.service.accept_turn(turn).await.unwrap();
            let (child, call_id) = until_asked(&subject).await;
            subject.service.shut_down(0).await;
            drop(subject);
            ticks(200).await;

            let failing = place.failing(fault, &fuse);
            failing.ready().await.unwrap();
            let subject = Subject { service: failing, session_id };
            let deleted = subject.service.delete(delete(child, true)).await;
            drop(subject);
            ticks(200).await;

            let service = sound(&place);
            service.ready().await.unwrap();
            let subject = Subject { service, session_id };
            let is_there = all(&subject.service).await.iter().any(|session| session.session_id == child);
            assert_eq!(deleted.is_err(), is_there, "{why}: {deleted:?}");
            if is_there {
                // It goes on, or a person deletes it now.
                SystemClock::new().sleep(Duration::from_secs(1)).await;
                subject.service.delete(delete(child, true)).await.unwrap();
            }
            let events = ended(&subject).await;
            check_journal(&events);
            let results = events.iter().filter(|event| event["type"] == "tool_finished");
            let [its] = &results.filter(|event| event["call_id"] != "call_3_1").collect::<Vec<_>>()[..] else {
                panic!("{why}: {events:#?}")
            };
            let text = its["output"].as_str().unwrap();
            // No process waited for it when it was deleted. Where that failed, it may have gone on with its work first.
            assert!(is_there || text == "The sub-agent was deleted.", "{why}: {text}");
            let left = all(&subject.service).await;
            assert!(left.len() == 2 && left.iter().all(|session| session.session_id != child), "{why}: {left:?}");
            drop((subject, call_id));
            ticks(200).await;
            let service = sound(&place);
            service.ready().await.unwrap();
            ticks(200).await;
            assert_eq!(all(&service).await.len(), 2, "{why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_goes_on_when_the_sub_agent_that_it_waits_for_is_deleted() {
    let subject = Subject::new(sound(&Place::new())).await;
    let prompt = format!("{}@echo last_result", delegates("@call edit {} @say Edited."));
    let turn = StartTurn { attended: true, ..StartTurn::new(subject.session_id, prompt) };
    let turn = subject.service.begin_turn(turn).await.unwrap();
    let child = until_asked(&subject).await.0;
    let refused = subject.service.delete(delete(child, false)).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::SessionBusy);
    subject.service.delete(delete(child, true)).await.unwrap();
    let done = turn.result.await.unwrap();
    assert!(done.text.starts_with("last_result: The sub-agent did not finish: "), "{}", done.text);
    let used = done.delegated.unwrap();
    // The call that asked never began.
    assert_eq!((used.agents, used.steps, used.tool_calls), (1, 1, 0));
    assert_eq!(all(&subject.service).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_are_archived_with_their_session_and_come_back_with_it() {
    let place = Place::new();
    let service = sound(&place);
    let (subject, other) = (seven(&service).await, seven(&service).await);
    let archived = async |service: &Service| {
        let found = all(service).await.into_iter().filter(|session| session.archived);
        found.map(|session| session.session_id).collect::<Vec<_>>()
    };
    // One that is archived already is no obstacle.
    let child = below(&subject).await[3].session_id;
    subject.service.archive(&child).await.unwrap();
    assert_eq!(archived(&subject.service).await, [child]);
    subject.service.archive(&subject.session_id).await.unwrap();
    let gone = archived(&subject.service).await;
    assert!(gone.len() == 7 && gone.contains(&subject.session_id) && !gone.contains(&other.session_id), "{gone:?}");
    subject.service.unarchive(&subject.session_id).await.unwrap();
    assert_eq!(archived(&subject.service).await, []);
}

#[tokio::test(start_paused = true)]
async fn retention_counts_a_session_and_its_sub_agents_as_one() {
    let place = Place::new();
    let first = seven(&sound(&place)).await;
    let second = Subject::new(first.service.clone()).await;
    second.turn("hi").await.unwrap();
    let retain = |max_sessions, dry_run| Retain { max_sessions: Some(max_sessions), dry_run, ..Retain::default() };
    let service = &second.service;
    assert_eq!(service.retain(retain(2, false)).await.unwrap().items, []);
    let found = service.retain(retain(1, true)).await.unwrap().items;
    let bytes = async |id| place.events.bytes(id).await.unwrap();
    let mut sum = bytes(first.session_id).await;
    for child in below(&first).await {
        sum += bytes(child.session_id).await;
    }
    assert_eq!((found.len(), found[0].session_id, found[0].bytes), (1, first.session_id, sum));
    // A sub-agent that changed last is the whole session's last change.
    let child = below(&first).await[0].session_id;
    SystemClock::new().sleep(Duration::from_secs(1)).await;
    first.other(child).turn("more").await.unwrap();
    assert_eq!(service.retain(retain(1, true)).await.unwrap().items[0].session_id, second.session_id);
    second.turn("more").await.unwrap();
    assert_eq!(service.retain(retain(1, false)).await.unwrap().deleted, 1);
    let left = all(&sound(&place)).await;
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].session_id, left[0].state), (second.session_id, SessionState::Idle));
}
