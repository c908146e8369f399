//! What people look at: the list as it changes, the calls that wait, and the turns and steps of long sessions.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use meerkat_errors::ErrorCode;
use meerkat_service::{
    SessionId,
    clock::{Clock, Timestamp, World},
    service::{
        ChangePage, CreateSession, DecideApproval, Decision, FollowSessions, InterruptTurn, ListApprovals,
        OpenApproval, PinFact, ReadEvents, ReadHistory, SessionQuery, SessionState, SessionSummary, StartTurn,
        StepKind,
    },
};
use meerkat_testkit::{in_time, until_asked, until_async};
use tokio::sync::watch;

use crate::stored::{Place, Process, pages};

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

    /// Reads until nothing else has changed; returns how many pages that were.
    async fn catch_up(&mut self, process: &Process, limit: usize) -> usize {
        let mut pages = 0;
        loop {
            let page = self.read(process, limit, 0).await;
            check_bytes(&page);
            pages += 1;
            if page.is_current {
                return pages;
            }
        }
    }

    fn ids(&self) -> Vec<SessionId> {
        self.sessions.keys().copied().collect()
    }
}

/// A thousand sessions with all labels that they may have were one answer of 65 MB.
fn check_bytes(page: &impl serde::Serialize) {
    // What a page of events may have, with its envelope.
    const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024 + 128 * 1024;
    let bytes = serde_json::to_vec(page).unwrap().len();
    assert!(bytes < PAGE_BYTES_MAX, "{bytes} bytes in a page");
}

impl Process {
    /// Begins a turn in a new session whose calls wait, and waits until all of them do.
    async fn asking(&self, calls: usize, prompt: &str) -> SessionId {
        let id = self.create().await;
        self.service.accept_turn(StartTurn { wait: false, ..StartTurn::new(id, prompt) }).await.unwrap();
        until_asked("the calls", async || self.view(id).await.pending_approvals.len() == calls).await;
        id
    }

    /// The calls that wait, in pages.
    async fn open(&self, limit: usize) -> Vec<Vec<OpenApproval>> {
        let ask = async |cursor| {
            let page = self.service.approvals(ListApprovals { cursor, limit: Some(limit) }).await?;
            check_bytes(&page);
            Ok(page)
        };
        pages(ask).await.0
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
        process.delete(made.remove(6)).await;
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
        process.delete(wanted.remove(0)).await;
        assert!(list.read(&process, 100, 0).await.restarts);
        list.catch_up(&process, 100).await;
        assert_eq!(list.ids(), wanted);
        let refused = FollowSessions { cursor: Some("yesterday".to_owned()), ..FollowSessions::default() };
        assert_eq!(process.service.changes(refused).await.unwrap_err().code(), ErrorCode::InvalidRequest);
    });
}

#[test]
fn a_follower_waits_for_the_first_change_and_sees_a_call_that_begins_to_wait() {
    Place::new().process(true, async |process| {
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
        let call_id = process.open(1).await.remove(0).remove(0).approval.call_id;
        process.service.decide_approval(DecideApproval::new(id, call_id, Decision::Approve)).await.unwrap();
        assert_eq!(turn.await.unwrap().text, "Done.");
        list.catch_up(&process, 10).await;
        assert_eq!(list.sessions[&id].state, SessionState::Idle);
    });
}

/// A clock that goes on only as the test lets it, and counts the pauses of followers.
struct Held {
    passed: watch::Sender<Duration>,
    pauses: AtomicUsize,
}

/// Pause of a follower that waits.
const PAUSE: Duration = Duration::from_millis(250);

impl Held {
    fn pass(&self) {
        self.passed.send_modify(|passed| *passed += PAUSE);
    }
}

impl Clock for Held {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000)
    }

    fn elapsed(&self) -> Duration {
        *self.passed.borrow()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.pauses.fetch_add(usize::from(duration == PAUSE), Ordering::SeqCst);
        let (end, mut passed) = (self.elapsed() + duration, self.passed.subscribe());
        async move { drop(passed.wait_for(|passed| *passed >= end).await) }.boxed()
    }
}

/// Broken once: the first look of each of them went through all sessions in memory.
#[test]
fn followers_that_come_at_once_look_once_together() {
    let place = Place::new();
    let clock = Arc::new(Held { passed: watch::Sender::new(PAUSE), pauses: AtomicUsize::new(0) });
    let world = World { clock: clock.clone(), ..World::system() };
    Place::process_of(
        || place.agent().world(world),
        true,
        async |process| {
            let (id, mut list) = (process.create().await, List::default());
            list.catch_up(&process, 10).await;
            let follow = |cursor: &Option<String>| {
                let follow = FollowSessions { cursor: cursor.clone(), limit: Some(10), wait_ms: 60_000 };
                let service = process.service.clone();
                tokio::spawn(async move { service.changes(follow).await.unwrap() })
            };
            let pauses = async |count: usize| {
                until_async("they wait", || clock.pauses.load(Ordering::SeqCst) >= count).await;
            };
            // The first one looks at once. What comes then is due at the end of its pause.
            let first = follow(&list.cursor);
            pauses(1).await;
            process.begin(id, r#"@call test_echo {"text":"a"} @step @stall"#).await;
            let has = async |kind: &str| {
                let lines = process.service.events(ReadEvents::new(id, 0)).await.unwrap().items;
                lines.iter().any(|line| String::from_utf8_lossy(line).contains(&format!(r#""type":"{kind}""#)))
            };
            until_asked("its first step is over", async || has("tool_finished").await).await;
            // The answer to the request is listed; the step is nobody's answer.
            let seen = first.await.unwrap();
            list.cursor = Some(seen.next_cursor);
            let before = clock.pauses.load(Ordering::SeqCst);
            let followers: Vec<_> = (0..100).map(|_| follow(&list.cursor)).collect();
            pauses(before + 100).await;
            assert!(followers.iter().all(|follower| !follower.is_finished()));
            clock.pass();
            for follower in followers {
                let page = follower.await.unwrap();
                let used: Vec<_> = page.items.iter().map(|change| change.session.as_ref().unwrap().usage).collect();
                assert!(used.len() == 1 && used[0].output_tokens > 0, "{page:?}");
            }
            process.service.interrupt(InterruptTurn { session_id: id, turn: None }).await.unwrap();
            until_asked("it ends", async || has("turn_interrupted").await).await;
        },
    );
}

#[test]
fn calls_of_all_sessions_wait_in_one_list_in_pages() {
    let place = Place::new();
    let two = r#"@call test_ask {"name":"a","line":"1"} @call test_ask {"name":"b","line":"2"}"#;
    let made = place.process(false, async |process| {
        let mut made = Vec::new();
        for _ in 0..3 {
            made.push(process.asking(2, two).await);
            process.create().await;
        }
        made
    });
    place.process(true, async |process| {
        process.service.ready().await.unwrap();
        let shown = process.open(2).await.into_iter().map(|page| page.iter().map(|call| call.session_id).collect());
        let due = made.into_iter().rev().map(|id| vec![id; 2]);
        assert_eq!(shown.collect::<Vec<Vec<_>>>(), due.collect::<Vec<_>>(), "the newest session first, each whole");
    });
}

/// Longer than what is read at once, so that pages end inside of it and at its edges.
#[test]
fn a_long_sessions_turns_and_steps_come_whole_in_pages_of_any_size() {
    Place::new().process(true, async |process| {
        let id = process.create().await;
        for number in 0..100 {
            process.turn(id, &format!("@usage in={number} out=1 cached=0 @say {number}.")).await.unwrap();
        }
        for limit in [1, 7, 99, 100, 1000] {
            let asked = |cursor| ReadHistory { cursor, limit: Some(limit), ..ReadHistory::new(id) };
            let (turns, _) = pages(async |cursor| process.service.turns(asked(cursor)).await).await;
            assert!(turns.iter().all(|page| page.len() <= limit));
            let turns: Vec<_> = turns.concat().iter().map(|it| (it.turn, it.usage.input_tokens, it.steps)).collect();
            assert_eq!(turns, (0..100).rev().map(|turn| (turn, u64::from(turn), 1)).collect::<Vec<_>>(), "{limit}");
            let (steps, _) = pages(async |cursor| process.service.steps(asked(cursor)).await).await;
            let steps: Vec<_> = steps.concat().iter().map(|it| (it.kind, it.turn, it.context.is_some())).collect();
            let wanted = (0..100).rev().map(|turn| (StepKind::ModelCall, Some(turn), true));
            assert_eq!(steps, wanted.collect::<Vec<_>>(), "{limit}");
        }
    });
}

/// The list once said when the session had last changed.
#[test]
fn a_call_waits_since_it_asked() {
    Place::new().process(true, async |process| {
        let id = process.asking(1, r#"@call test_ask {"name":"a","line":"1"}"#).await;
        let last_time = async || process.events(id).await.pop().unwrap()["time"].clone();
        let asked = last_time().await;
        let since = async || serde_json::to_value(process.open(1).await[0][0].waits_since).unwrap();
        assert_eq!(since().await, asked);
        // Times have milliseconds.
        until_asked("a later event", async || {
            process.service.pin(PinFact { session_id: id, text: "meanwhile".to_owned() }).await.unwrap();
            last_time().await != asked
        })
        .await;
        assert_eq!(since().await, asked);
    });
}

#[test]
fn no_page_of_sessions_has_more_bytes_than_a_page_of_events() {
    const SESSIONS: usize = 150;
    Place::new().process(true, async |process| {
        let labels: BTreeMap<String, String> = (0..60).map(|number| (number.to_string(), "x".repeat(900))).collect();
        for _ in 0..SESSIONS {
            let request = CreateSession { labels: labels.clone(), ..CreateSession::default() };
            process.service.create_session(request).await.unwrap();
        }
        let (listed, _) = pages(async |cursor| {
            let query = SessionQuery { cursor, limit: Some(1000), ..SessionQuery::default() };
            let page = process.service.list(query).await?;
            check_bytes(&page);
            Ok(page)
        })
        .await;
        assert_eq!((listed.concat().len(), listed.len()), (SESSIONS, 2));
        let mut list = List::default();
        assert_eq!((list.catch_up(&process, 1000).await, list.sessions.len()), (2, SESSIONS));
        for id in list.ids() {
            process.service.archive(&id).await.unwrap();
        }
        assert_eq!(list.catch_up(&process, 1000).await, 2);
        assert!(list.sessions.values().all(|session| session.archived));
    });
}

/// Each call is shown with its arguments and a preview.
#[test]
fn no_page_of_waiting_calls_has_more_bytes_than_a_page_of_events() {
    const SESSIONS: usize = 72;
    const CALLS: usize = 4;
    Place::new().process(true, async |process| {
        let ask = format!(r#"@call test_ask {{"name":"a","line":"{}","lasting":true}} "#, "x".repeat(22_000));
        for _ in 0..SESSIONS {
            process.asking(CALLS, &ask.repeat(CALLS)).await;
        }
        let open = process.open(1000).await;
        assert_eq!((open.concat().len(), open.len()), (SESSIONS * CALLS, 2));
    });
}
