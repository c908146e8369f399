//! What people look at: the list as it changes, the calls that wait, and the turns and steps of long sessions.

use std::collections::BTreeMap;

use meerkat_errors::ErrorCode;
use meerkat_service::{
    SessionId,
    service::{
        ChangePage, CreateSession, DecideApproval, Decision, DeleteSession, FollowSessions, ListApprovals, PinFact,
        ReadHistory, SessionQuery, SessionState, SessionSummary, StartTurn, StepKind,
    },
};
use meerkat_testkit::{in_time, until_asked};

use crate::stored::{Place, Process};

/// A follower of the list, as a client keeps it.
#[derive(Default)]
struct List {
    sessions: BTreeMap<SessionId, SessionSummary>,
    cursor: Option<String>,
}

impl List {
    /// Takes a page in; returns it.
    async fn read(&mut self, process: &Process, limit: usize, wait_ms: u64) -> ChangePage {
        let request = FollowSessions { cursor: self.cursor.take(), limit: Some(limit), wait_ms };
        let page = process.service.changes(request).await.unwrap();
        assert!(page.items.len() <= limit);
        if page.restarts {
            self.sessions.clear();
        }
        for change in page.items.clone() {
            match change.session {
                Some(session) => drop(self.sessions.insert(change.session_id, session)),
                None => drop(self.sessions.remove(&change.session_id)),
            }
        }
        self.cursor = Some(page.next_cursor.clone());
        page
    }

    /// Reads until nothing else has changed.
    async fn catch_up(&mut self, process: &Process, limit: usize) {
        while !self.read(process, limit, 0).await.is_current {}
    }

    fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }
}

#[test]
fn a_follower_of_the_list_has_what_is_there_whatever_happens() {
    let place = Place::new();
    let mut list = List::default();
    let mut wanted = place.process(true, async |process| {
        let mut made = Vec::new();
        for _ in 0..7 {
            made.push(process.create().await);
        }
        // The whole list comes in pages. What changes meanwhile comes after it, and a deletion too.
        let first = list.read(&process, 3, 0).await;
        assert!(first.restarts && !first.is_current);
        made.push(process.create().await);
        process.service.delete(DeleteSession { session_id: made.remove(6), force: false }).await.unwrap();
        let rest = list.read(&process, 3, 0).await;
        assert!(!rest.restarts && !rest.is_current);
        list.catch_up(&process, 3).await;
        assert_eq!(list.ids(), made);
        process.service.archive(&made[2]).await.unwrap();
        list.catch_up(&process, 3).await;
        assert!(list.sessions[&made[2]].archived, "archived sessions are in it");
        made
    });
    // Another process knows nothing of the cursor, and nothing is missed.
    place.process(true, async |process| {
        process.service.delete(DeleteSession { session_id: wanted.remove(0), force: false }).await.unwrap();
        assert!(list.read(&process, 100, 0).await.restarts);
        list.catch_up(&process, 100).await;
        assert_eq!(list.ids(), wanted);
        let refused = FollowSessions { cursor: Some("yesterday".to_owned()), ..FollowSessions::default() };
        assert_eq!(process.service.changes(refused).await.unwrap_err().code(), ErrorCode::InvalidRequest);
    });
}

#[test]
fn a_follower_waits_for_the_first_change_and_sees_a_call_that_begins_to_wait() {
    let place = Place::new();
    place.process(true, async |process| {
        let (id, mut list) = (process.create().await, List::default());
        list.catch_up(&process, 10).await;
        let empty = list.read(&process, 10, 1).await;
        assert!(empty.items.is_empty() && empty.is_current, "nothing has changed");
        let asked = process.clone();
        let turn = tokio::spawn(async move {
            asked.turn(id, r#"@call test_ask {"name":"log","line":"asked"} @say Done."#).await.unwrap()
        });
        // No caller is answered while the call waits, and lists show it all the same.
        let waits = async {
            while list.sessions[&id].state != SessionState::Waiting {
                list.read(&process, 10, 60_000).await;
            }
        };
        in_time("the list shows that it waits", waits).await;
        let open = process.service.approvals(ListApprovals::default()).await.unwrap().items.remove(0);
        let decide = DecideApproval::new(id, open.approval.call_id, Decision::Approve);
        process.service.decide_approval(decide).await.unwrap();
        assert_eq!(turn.await.unwrap().text, "Done.");
        list.catch_up(&process, 10).await;
        assert_eq!(list.sessions[&id].state, SessionState::Idle);
    });
}

#[test]
fn calls_of_all_sessions_wait_in_one_list_in_pages() {
    let place = Place::new();
    let made = place.process(false, async |process| {
        let mut made = Vec::new();
        for _ in 0..3 {
            let id = process.create().await;
            let two = r#"@call test_ask {"name":"a","line":"1"} @call test_ask {"name":"b","line":"2"}"#;
            let request = StartTurn { wait: false, ..StartTurn::new(id, two) };
            process.service.accept_turn(request).await.unwrap();
            process.until(id, "approval_requested").await;
            process.create().await;
            made.push(id);
        }
        made
    });
    place.process(true, async |process| {
        process.service.ready().await.unwrap();
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let page = process.service.approvals(ListApprovals { cursor, limit: Some(2) }).await.unwrap();
            assert!(!page.items.is_empty() && page.items.len() <= 2);
            seen.extend(page.items.into_iter().map(|call| call.session_id));
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        seen.dedup();
        assert_eq!(seen, made.into_iter().rev().collect::<Vec<_>>(), "the newest session first, each whole");
    });
}

/// Longer than what is read at once, so that pages end inside of it and at its edges.
#[test]
fn a_long_sessions_turns_and_steps_come_whole_in_pages_of_any_size() {
    let place = Place::new();
    place.process(true, async |process| {
        let id = process.create().await;
        for number in 0..100 {
            process.turn(id, &format!("@usage in={number} out=1 cached=0 @say {number}.")).await.unwrap();
        }
        for limit in [1, 7, 99, 100, 1000] {
            let (mut turns, mut cursor) = (Vec::new(), None);
            loop {
                let request = ReadHistory { cursor, limit: Some(limit), ..ReadHistory::new(id) };
                let page = process.service.turns(request).await.unwrap();
                assert!(page.items.len() <= limit);
                turns.extend(page.items.into_iter().map(|turn| (turn.turn, turn.usage.input_tokens, turn.steps)));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(turns, (0..100).rev().map(|turn| (turn, u64::from(turn), 1)).collect::<Vec<_>>(), "{limit}");
            let (mut steps, mut cursor) = (Vec::new(), None);
            loop {
                let request = ReadHistory { cursor, limit: Some(limit), ..ReadHistory::new(id) };
                let page = process.service.steps(request).await.unwrap();
                steps.extend(page.items.into_iter().map(|step| (step.kind, step.turn, step.context.is_some())));
                cursor = page.next_cursor;
                if cursor.is_none() {
                    break;
                }
            }
            let wanted = (0..100).rev().map(|turn| (StepKind::ModelCall, Some(turn), true));
            assert_eq!(steps, wanted.collect::<Vec<_>>(), "{limit}");
        }
    });
}

/// The list once said when the session had last changed.
#[test]
fn a_call_waits_since_it_asked() {
    let place = Place::new();
    place.process(true, async |process| {
        let id = process.create().await;
        let ask = r#"@call test_ask {"name":"a","line":"1"}"#;
        process.service.accept_turn(StartTurn { wait: false, ..StartTurn::new(id, ask) }).await.unwrap();
        process.until(id, "approval_requested").await;
        let asked = process.events(id).await.pop().unwrap()["time"].clone();
        let since = async || {
            let mut open = process.service.approvals(ListApprovals::default()).await.unwrap().items;
            serde_json::to_value(open.remove(0).waits_since).unwrap()
        };
        assert_eq!(since().await, asked);
        // Times have milliseconds.
        until_asked("a later event", async || {
            process.service.pin(PinFact { session_id: id, text: "meanwhile".to_owned() }).await.unwrap();
            process.events(id).await.pop().unwrap()["time"] != asked
        })
        .await;
        assert_eq!(since().await, asked);
    });
}

/// What a page may have, with its envelope.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024 + 128 * 1024;

/// A thousand sessions with all labels that they may have were one answer of 65 MB.
#[test]
fn no_page_of_sessions_has_more_bytes_than_a_page_of_events() {
    const SESSIONS: usize = 150;
    let place = Place::new();
    place.process(true, async |process| {
        let value = "x".repeat(900);
        let labels: BTreeMap<String, String> = (0..60).map(|number| (number.to_string(), value.clone())).collect();
        for _ in 0..SESSIONS {
            let request = CreateSession { labels: labels.clone(), ..CreateSession::default() };
            process.service.create_session(request).await.unwrap();
        }
        let (mut listed, mut pages, mut cursor) = (0, 0, None);
        loop {
            let query = SessionQuery { cursor, limit: Some(1000), ..SessionQuery::default() };
            let page = process.service.list(query).await.unwrap();
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE_BYTES_MAX, "{} sessions", page.items.len());
            (listed, pages, cursor) = (listed + page.items.len(), pages + 1, page.next_cursor);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((listed, pages), (SESSIONS, 2));
        let (mut list, mut pages) = (List::default(), 0);
        loop {
            let page = list.read(&process, 1000, 0).await;
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE_BYTES_MAX, "{} changes", page.items.len());
            pages += 1;
            if page.is_current {
                break;
            }
        }
        assert_eq!((list.sessions.len(), pages), (SESSIONS, 2));
        for id in list.ids() {
            process.service.archive(&id).await.unwrap();
        }
        let mut pages = 0;
        loop {
            let page = list.read(&process, 1000, 0).await;
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE_BYTES_MAX, "{} changes", page.items.len());
            pages += 1;
            if page.is_current {
                break;
            }
        }
        assert!(pages == 2 && list.sessions.values().all(|session| session.archived), "{pages}");
    });
}

/// Each call is shown with its arguments and a preview.
#[test]
fn no_page_of_waiting_calls_has_more_bytes_than_a_page_of_events() {
    const SESSIONS: usize = 72;
    const CALLS: usize = 4;
    let place = Place::new();
    place.process(true, async |process| {
        let ask =
            format!(r#"@call test_ask {{"name":"a","line":"{}","lasting":true}} "#, "x".repeat(22_000)).repeat(CALLS);
        for _ in 0..SESSIONS {
            let id = process.create().await;
            process.service.accept_turn(StartTurn { wait: false, ..StartTurn::new(id, &ask) }).await.unwrap();
            until_asked("the calls", async || {
                process.service.read(&id).await.unwrap().pending_approvals.len() == CALLS
            })
            .await;
        }
        let (mut seen, mut pages, mut cursor) = (0, 0, None);
        loop {
            let page = process.service.approvals(ListApprovals { cursor, limit: Some(1000) }).await.unwrap();
            assert!(serde_json::to_vec(&page).unwrap().len() < PAGE_BYTES_MAX, "{} calls", page.items.len());
            (seen, pages, cursor) = (seen + page.items.len(), pages + 1, page.next_cursor);
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!((seen, pages), (SESSIONS * CALLS, 2));
    });
}
