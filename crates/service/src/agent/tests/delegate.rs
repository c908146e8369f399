//! Sub-agents: each is one session for one call, within the budgets of the turn that called, through restarts and to the
//! end.

mod agents;
mod kills;
mod shares;
mod together;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{Rig, Service, Subject, check_journal, ticks};
use crate::{
    ErrorCode, SessionId,
    agent::tests::{
        fakes::does,
        faults::{Fault, FaultyEvents, Fuse},
    },
    clock::{Clock as _, SystemClock},
    options::Budgets,
    runtime::sessions::Sessions,
    service::{
        CreateSession, DecideApproval, InterruptTurn, ReadEvents, SessionQuery, SessionService, SessionState,
        SessionSummary, StartTurn, TurnResult, TurnStatus,
    },
    session::event::Decision,
    store::{BlobStore, EventStore, MemoryBlobStore, MemoryEventStore, MemoryIndex, SessionIndex, Stores},
    tool::{Approval, Delegate, Effect, TurnAccess},
};

/// Journals that outlive their processes.
#[derive(Clone)]
struct Place {
    events: Arc<dyn EventStore>,
    blobs: Arc<dyn BlobStore>,
    index: Arc<dyn SessionIndex>,
}

impl Place {
    fn new() -> Self {
        let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
        let blobs = Arc::new(MemoryBlobStore::new(Arc::default()));
        Self { events, blobs, index: Arc::new(MemoryIndex::default()) }
    }

    /// A process whose models start sub-agents, and whose tools are `edit`, which is asked about, and `look`.
    fn process(&self, change: impl FnOnce(&mut Rig)) -> Service {
        let mut rig = rig();
        change(&mut rig);
        let Self { events, blobs, index } = self.clone();
        // At a start it says which sessions a former process left.
        let events = Arc::new(FaultyEvents(events, Fault::Full, Fuse::new(usize::MAX, 0)));
        let stores = Stores { events, blobs, index, ..Stores::in_memory(u64::MAX, &Arc::default()) };
        Service::new(Sessions::new(rig.engine(stores, true)))
    }
}

fn rig() -> Rig {
    let mut edit = does("edit", Effect::Once, |_, output| Box::pin(async { output.write("edited").await }));
    edit.approval = Approval::Ask;
    let look = does("look", Effect::ReadOnly, |_, output| Box::pin(async { output.write("seen").await }));
    let mut rig = Rig::new(vec![Arc::new(edit), Arc::new(look), Delegate::new().unwrap()]);
    rig.options.agents.enabled = true;
    rig
}

/// A script's call of a sub-agent with this script.
fn delegates(prompt: &str) -> String {
    format!("@call delegate {} ", json!({ "prompt": prompt }))
}

impl Subject {
    /// The sessions below it, the oldest first.
    async fn children(&self) -> Vec<SessionSummary> {
        let query = SessionQuery { children: true, ..SessionQuery::default() };
        let mut all = self.service.list(query).await.unwrap().items;
        all.retain(|session| session.parent.is_some());
        all.sort_by_key(|session| session.session_id);
        all
    }

    fn other(&self, session_id: SessionId) -> Self {
        Self { service: self.service.clone(), session_id }
    }

    /// Results of its calls, as the model reads them.
    async fn results(&self) -> Vec<String> {
        let finished = self.events().await.into_iter().filter(|event| event["type"] == "tool_finished");
        finished.map(|event| event["output"].as_str().unwrap().to_owned()).collect()
    }

    async fn types(&self) -> Vec<String> {
        self.events().await.into_iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
    }
}

/// What a turn used, its sub-agents included.
fn steps(result: &TurnResult) -> u64 {
    u64::from(result.steps) + result.delegated.map_or(0, |delegated| delegated.steps)
}

#[tokio::test(start_paused = true)]
async fn a_call_starts_one_session_and_its_answer_is_the_result() {
    let place = Place::new();
    let subject = Subject::new(place.process(|_| {})).await;
    let done = subject.turn(&format!("{}@say Thanks.", delegates("@call look {} @say Forty-two."))).await.unwrap();
    assert_eq!(
        (done.status, done.text.as_str(), done.steps, done.tool_calls),
        (TurnStatus::Completed, "Thanks.", 2, 1)
    );
    let [child] = &subject.children().await[..] else { panic!("one child") };
    let parent = child.parent.as_ref().unwrap();
    assert_eq!((parent.session_id, parent.turn, parent.call_id.as_str()), (subject.session_id, 0, "call_3_0"));
    assert_eq!(subject.results().await, [format!("Forty-two.\n[sub-agent {}]", child.session_id)]);
    let expected = [
        "session_created",
        "turn_started",
        "assistant_message",
        "delegate_started",
        "tool_finished",
        "assistant_message",
        "turn_completed",
    ];
    assert_eq!(subject.types().await, expected);
    let started = subject.event("delegate_started").await;
    assert_eq!(started["child"], child.session_id.to_string());
    // 100 steps: one is used, one is kept, the rest is for four.
    assert_eq!(started["reserved"]["steps"], 98 / 4);
    // 500 calls: this one is used.
    assert_eq!(started["reserved"]["tool_calls"], 499 / 4);
    assert_eq!(started["reserved"]["agents"], 0);
    let used = done.delegated.unwrap();
    assert_eq!((used.agents, used.steps, used.tool_calls), (1, 2, 1));
    assert_eq!(used.tokens, child.usage.total());
    let its = subject.other(child.session_id);
    let begun = its.event("turn_started").await;
    assert_eq!(begun["budgets"], started["reserved"]);
    assert_eq!(begun["key"]["key"], format!("{}:0:call_3_0", subject.session_id));
    let created = its.event("session_created").await;
    assert_eq!(created["key"]["key"], begun["key"]["key"]);
    assert_eq!(created["descent"]["root"], subject.session_id.to_string());
    let read = subject.service.read(&child.session_id).await.unwrap();
    assert_eq!(read.parent, child.parent);
}

/// Counted in writes: who starts no sub-agent pays nothing for the setting.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_costs_at_most_twice_what_a_session_does() {
    let writes = async |enabled: bool, prompt: &str| {
        let (fuse, mut rig) = (Fuse::new(usize::MAX, 0), rig());
        rig.options.agents.enabled = enabled;
        let Place { events, blobs, index } = Place::new();
        let events = Arc::new(FaultyEvents(events, Fault::Failure, fuse.clone()));
        let stores = Stores { events, blobs, index, ..Stores::in_memory(u64::MAX, &Arc::default()) };
        let subject = Subject::new(Service::new(Sessions::new(rig.engine(stores, true)))).await;
        let created = fuse.calls();
        subject.turn(prompt).await.unwrap();
        (created, fuse.calls() - created)
    };
    let (created, turn) = writes(false, "@say One.").await;
    assert_eq!((created, turn), (1, 2), "a session, the start of its turn, and the answer with the end");
    assert_eq!(writes(true, "@say One.").await, (created, turn));
    let (_, call) = writes(false, "@call look {} @say Done.").await;
    assert_eq!(writes(true, "@call look {} @say Done.").await.1, call);
    let (_, delegated) = writes(true, &format!("{}@say Done.", delegates("@say One."))).await;
    assert!(delegated - call <= 2 * (created + turn), "{delegated} instead of {call}");
}

#[tokio::test(start_paused = true)]
async fn plain_lists_leave_sub_agents_out() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    subject.turn(&format!("{}@say Thanks.", delegates("hello"))).await.unwrap();
    let ids = async |query| {
        let page = subject.service.list(query).await.unwrap();
        page.items.into_iter().map(|session| session.session_id).collect::<Vec<_>>()
    };
    assert_eq!(ids(SessionQuery::default()).await, [subject.session_id]);
    assert_eq!(ids(SessionQuery { children: true, ..SessionQuery::default() }).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_there_is_no_such_tool_and_no_budget() {
    let subject = Subject::new(Place::new().process(|rig| {
        rig.options.agents.enabled = false;
        rig.tools.pop();
    }))
    .await;
    let done = subject.turn(&format!("{}@echo tools", delegates("hello"))).await.unwrap();
    assert_eq!(done.text, "tools: edit look");
    assert!(subject.results().await[0].starts_with("There is no tool \"delegate\""));
    assert!(!subject.event("turn_started").await["budgets"].to_string().contains("agents"));
    assert_eq!((done.delegated, subject.children().await.len()), (None, 0));
}

/// The limit is a budget, which a request can lower; then the tool is not offered.
#[tokio::test(start_paused = true)]
async fn a_turn_without_sub_agents_is_offered_none_and_is_told_so() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    let budgets = Budgets { agents: Some(0), ..Budgets::default() };
    let prompt = format!("{}@echo tools", delegates("hello"));
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, prompt) };
    let done = subject.service.start_turn(turn).await.unwrap();
    assert_eq!(done.text, "tools: edit look");
    assert_eq!(subject.results().await, ["No sub-agent can be started here. Do the work yourself."]);
    let done = subject.turn("@echo tools").await.unwrap();
    assert_eq!(done.text, "tools: delegate edit look");
}

/// One level by default, and the sub-agent is not offered what it may not do.
#[tokio::test(start_paused = true)]
async fn the_levels_of_a_tree_are_limited() {
    for (depth, made) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
        let subject = Subject::new(Place::new().process(|rig| {
            rig.options.agents.depth = depth;
            rig.options.turn.default_steps = 1000;
        }))
        .await;
        let deepest = format!("{}@say Three.", delegates("@say Four."));
        let second = format!("{}@say Two.", delegates(&deepest));
        let done = subject.turn(&format!("{}@say One.", delegates(&second))).await.unwrap();
        assert_eq!(done.status, TurnStatus::Completed);
        let children = subject.children().await;
        assert_eq!(children.len(), made, "{depth}");
        assert_eq!(done.delegated.map_or(0, |delegated| delegated.agents), made as u64);
        assert_eq!(steps(&done), 2 + 2 * made as u64 - u64::from(made == 3));
        if let Some(last) = children.last() {
            let results = subject.other(last.session_id).results().await;
            let expected: &[&str] =
                if made == 3 { &[] } else { &["No sub-agent can be started here. Do the work yourself."] };
            assert_eq!(results, expected);
        }
    }
}

/// A public accident: 48 agents from one call.
#[tokio::test(start_paused = true)]
async fn of_48_sub_agents_in_one_message_four_work_and_the_model_reads_why() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    let many: String = (0..48).map(|n| delegates(&format!("@say I am {n}."))).collect();
    let done = subject.turn(&format!("{many}@say Enough.")).await.unwrap();
    assert_eq!((done.status, done.delegated.unwrap().agents), (TurnStatus::Completed, 4));
    let results = subject.results().await;
    let refused = results.iter().filter(|text| text.starts_with("4 sub-agents work already")).count();
    assert_eq!((results.len(), refused, subject.children().await.len()), (48, 44, 4));
    check_journal(&subject.events().await);
}

/// A public accident: a model that delegates without end. Its sub-agents' steps are its own, and their number is limited.
#[tokio::test(start_paused = true)]
async fn a_model_that_delegates_without_end_stops_with_a_message() {
    for (depth, steps_max, agents) in [(1, 1000, 32), (1, 20, 9), (3, 1000, 32), (3, 50, 24)] {
        let subject = Subject::new(Place::new().process(|rig| {
            rig.options.agents.depth = depth;
            rig.options.turn.loop_repeats = 0;
        }))
        .await;
        let mut prompt = format!("@repeat 90 {}", delegates("@say Nothing."));
        for _ in 1..depth {
            prompt = format!("@repeat 90 {}", delegates(&prompt));
        }
        let budgets = Budgets { steps: Some(steps_max), ..Budgets::default() };
        let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, prompt) };
        let done = subject.service.start_turn(turn).await.unwrap();
        let used = done.delegated.unwrap();
        assert!(steps(&done) <= steps_max, "{depth} {steps_max}: {done:?}");
        assert!(used.agents <= 32 && used.agents >= agents.min(8), "{depth} {steps_max}: {used:?}");
        assert_eq!(subject.children().await.len() as u64, used.agents);
        let results = subject.results().await;
        let told =
            |text: &String| text.contains("may start no further sub-agent") || text.contains("is left for sub-agents");
        assert!(results.iter().any(told) || done.error.is_some(), "{results:#?}");
    }
}

/// The end of one that fails is a result, and its turn goes on.
#[tokio::test(start_paused = true)]
async fn the_failure_of_a_sub_agent_is_the_result_of_its_call() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    let calls = [delegates("@fail rejected"), delegates("@say Half. @call look {} @fail rejected")].concat();
    let bad = r#"@call delegate {"prompt":" "} @call delegate {"prompt":"hi","tools":["nail"]} "#;
    let done = subject.turn(&format!("{calls}{bad}@say On.")).await.unwrap();
    assert_eq!((done.status, done.text.as_str()), (TurnStatus::Completed, "On."));
    let mut results = subject.results().await;
    results.sort();
    let expected = [
        "The sub-agent could not work: There is no tool \"nail\"",
        "The sub-agent could not work: ",
        "The sub-agent did not finish: ",
        "The sub-agent did not finish: ",
    ];
    for (result, expected) in results.iter().zip(expected) {
        assert!(result.starts_with(expected), "{result}");
    }
    assert_eq!(results.len(), 4);
    check_journal(&subject.events().await);
}

/// What is asked for beside the prompt.
#[tokio::test(start_paused = true)]
async fn a_call_names_tools_a_budget_and_a_schema() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    let schema = json!({ "type": "object", "properties": { "n": { "type": "integer" } }, "required": ["n"] });
    let answer = json!({ "prompt": r#"@json {"n":1}"#, "output": schema });
    let tools = json!({ "prompt": "@echo tools", "tools": ["look"], "budget": { "steps": 3, "tokens": 500 } });
    let done = subject.turn(&format!("@call delegate {answer} @call delegate {tools} @say On.")).await.unwrap();
    assert_eq!(done.status, TurnStatus::Completed);
    let results = subject.results().await;
    assert!(results.iter().any(|text| text.starts_with("{\"n\":1}\n")), "{results:?}");
    assert!(results.iter().any(|text| text.starts_with("tools: look\n")), "{results:?}");
    let events = subject.events().await;
    let asked = events.iter().find(|event| event["reserved"]["tokens"] == 500).unwrap();
    assert_eq!(asked["reserved"]["steps"], 3);
}

/// A killed process leaves a turn that waits; the next one finds the same sub-agents.
#[tokio::test(start_paused = true)]
async fn after_a_kill_a_turn_finds_its_sub_agents_and_one_that_was_cut_off_goes_on_once() {
    let place = Place::new();
    let prompt = format!("{}{}@say Both.", delegates("@stall times=1"), delegates("@call edit {} @say Edited."));
    let first = Subject::new(place.process(|_| {})).await;
    let turn = StartTurn { attended: true, ..StartTurn::new(first.session_id, prompt) };
    first.service.accept_turn(turn).await.unwrap();
    let asked = until_asked(&first).await;
    assert_eq!(first.service.read(&first.session_id).await.unwrap().state, SessionState::Waiting);
    let before = first.children().await;
    let session_id = first.session_id;
    drop(first);
    ticks(200).await;

    let next = Subject { service: place.process(|_| {}), session_id };
    next.service.ready().await.unwrap();
    let again = until_asked(&next).await;
    assert_eq!(again, asked, "it asks no second time");
    let (child, call_id) = asked;
    next.service.decide_approval(DecideApproval::new(child, call_id, Decision::Approve)).await.unwrap();
    let events = ended(&next).await;
    let ids = |children: &[SessionSummary]| children.iter().map(|child| child.session_id).collect::<Vec<_>>();
    let children = next.children().await;
    assert_eq!((ids(&children), children.len()), (ids(&before), 2));
    assert_eq!(events.last().unwrap()["type"], "turn_completed");
    let mut results = next.results().await;
    results.sort();
    assert!(results[0].starts_with("Edited."), "{results:?}");
    assert!(results[1].starts_with("The sub-agent gave no answer."), "{results:?}");
    let stalled = children.iter().find(|session| session.session_id != child).unwrap().session_id;
    let types = next.other(stalled).types().await;
    assert_eq!(types.iter().filter(|kind| *kind == "turn_started").count(), 2, "{types:?}");
    let total = events.last().unwrap()["totals"]["delegated"].clone();
    assert_eq!(total["agents"], 2);
    check_journal(&events);
}

/// Waits until a call of a sub-agent asks; answers with the sub-agent and the call.
async fn until_asked(subject: &Subject) -> (SessionId, String) {
    for _ in 0..100 {
        ticks(50).await;
        let open = subject.service.approvals(Default::default()).await.unwrap().items;
        if let Some(asked) = open.first() {
            return (asked.session_id, asked.approval.call_id.clone());
        }
    }
    panic!("nothing asks: {:#?}", subject.events().await);
}

/// All events, once no turn runs.
async fn ended(subject: &Subject) -> Vec<Value> {
    for _ in 0..1000 {
        ticks(50).await;
        if subject.service.read(&subject.session_id).await.unwrap().state == SessionState::Idle {
            return subject.events().await;
        }
        SystemClock::new().sleep(Duration::from_secs(1)).await;
    }
    panic!("it does not end: {:#?}", subject.events().await);
}

/// An interrupt ends the whole tree, and each call has its result.
#[tokio::test(start_paused = true)]
async fn an_interrupt_of_a_turn_interrupts_its_sub_agents_and_theirs() {
    let subject = Subject::new(Place::new().process(|rig| rig.options.agents.depth = 2)).await;
    let session_id = subject.session_id;
    let deep = format!("{}@say Two.", delegates("@say Deep. @stall"));
    let prompt = format!("{}{}@say One.", delegates(&deep), delegates("@stall"));
    let turn = subject.service.begin_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    while subject.children().await.len() < 3 {
        ticks(20).await;
    }
    ticks(100).await;
    subject.service.interrupt(InterruptTurn { session_id, turn: None }).await.unwrap();
    let done = turn.result.await.unwrap();
    assert_eq!(done.status, TurnStatus::Interrupted);
    assert_eq!(done.delegated.unwrap().agents, 3);
    for child in subject.children().await {
        assert_eq!(child.state, SessionState::Idle);
        let events = subject.other(child.session_id).events().await;
        assert_eq!(events.last().unwrap()["type"], "turn_interrupted");
        check_journal(&events);
    }
    check_journal(&subject.events().await);
}

/// A person ends one sub-agent; that is a result for the model.
#[tokio::test(start_paused = true)]
async fn an_interrupt_of_a_sub_agent_is_the_result_of_its_call_and_it_does_not_go_on() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    let prompt = format!("{}@say One.", delegates("@stall"));
    let turn = subject.service.begin_turn(StartTurn::new(subject.session_id, prompt)).await.unwrap();
    while subject.children().await.is_empty() {
        ticks(20).await;
    }
    ticks(100).await;
    let child = subject.children().await.remove(0).session_id;
    subject.service.interrupt(InterruptTurn { session_id: child, turn: None }).await.unwrap();
    let done = turn.result.await.unwrap();
    assert_eq!((done.status, done.text.as_str()), (TurnStatus::Completed, "One."));
    assert!(subject.results().await[0].starts_with("The sub-agent did not finish: "));
    let types = subject.other(child).types().await;
    assert_eq!(types.iter().filter(|kind| *kind == "turn_started").count(), 1);
}

/// A public accident: a grandchild that edits although its root may only read.
#[tokio::test(start_paused = true)]
async fn no_sub_agent_does_what_its_root_may_not() {
    let cases: [(Option<TurnAccess>, Vec<String>, &str); 4] = [
        (Some(TurnAccess::Read), vec!["edit".to_owned()], "may change nothing"),
        (None, vec![], "asks before it runs"),
        (Some(TurnAccess::Ask), vec!["edit".to_owned()], "edited"),
        (None, vec!["edit".to_owned()], "edited"),
    ];
    for (access, allow, expected) in cases {
        let subject = Subject::new(Place::new().process(|rig| {
            rig.options.agents.depth = 2;
            rig.options.approval.unattended = crate::options::Unattended::Deny;
        }))
        .await;
        let grandchild = format!("{}@echo last_result", delegates("@call edit {} @echo last_result"));
        let prompt = format!("{}@echo last_result", delegates(&grandchild));
        let turn = StartTurn { access, allow: allow.clone(), ..StartTurn::new(subject.session_id, prompt) };
        let done = subject.service.start_turn(turn).await.unwrap();
        assert!(done.text.contains(expected), "{access:?} {allow:?}: {}", done.text);
        assert_eq!(done.delegated.unwrap().agents, 2);
    }
}

/// The parent's rules are the parent's: what its session names, its sub-agents' name at most.
#[tokio::test(start_paused = true)]
async fn sub_agents_have_the_tools_the_labels_and_the_memory_of_the_session() {
    let service = Place::new().process(|_| {});
    let request = CreateSession {
        tools: Some(vec!["look".to_owned(), "delegate".to_owned()]),
        labels: [("user".to_owned(), "ada".to_owned())].into(),
        ..CreateSession::default()
    };
    let session_id = service.create_session(request).await.unwrap().session_id;
    let subject = Subject { service, session_id };
    let wide = json!({ "prompt": "hi", "tools": ["edit"] });
    let done = subject.turn(&format!("{}@call delegate {wide} @echo results", delegates("@echo tools"))).await.unwrap();
    assert!(done.text.contains("tools: look\n"), "{}", done.text);
    assert!(done.text.contains("You may not use the tool \"edit\""), "{}", done.text);
    let child = subject.children().await.remove(0);
    assert_eq!(child.labels, subject.service.read(&session_id).await.unwrap().labels);
}

/// Its question is in the one list, and a decision there lets it go on.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_asks_in_the_list_of_all_approvals() {
    let subject = Subject::new(Place::new().process(|_| {})).await;
    let prompt = format!("{}@echo last_result", delegates("@call edit {} @echo last_result"));
    let turn = StartTurn { attended: true, ..StartTurn::new(subject.session_id, prompt) };
    let turn = subject.service.begin_turn(turn).await.unwrap();
    let (child, call_id) = until_asked(&subject).await;
    let open = subject.service.approvals(Default::default()).await.unwrap().items;
    assert_eq!(open[0].root, Some(subject.session_id));
    subject.service.decide_approval(DecideApproval::new(child, call_id, Decision::Approve)).await.unwrap();
    assert!(turn.result.await.unwrap().text.contains("edited"));
}

/// A turn in which nobody waits for anything ends in time, and its sub-agents with it.
#[tokio::test(start_paused = true)]
async fn the_time_of_a_turn_is_that_of_its_sub_agents() {
    let subject = Subject::new(Place::new().process(|rig| rig.options.turn.model_idle_timeout_ms = 0)).await;
    let budgets = Budgets { wall_ms: Some(5_000), ..Budgets::default() };
    let prompt = format!("{}@say One.", delegates("@stall"));
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, prompt) };
    let done = subject.service.start_turn(turn).await.unwrap();
    let used = done.delegated.unwrap();
    assert_eq!((used.agents, done.status), (1, TurnStatus::Failed), "{done:?}");
    assert_eq!(done.error.unwrap().code, ErrorCode::BudgetExhausted);
    let child = subject.children().await.remove(0);
    assert_eq!(child.state, SessionState::Idle);
}

/// Fuller than the scheduler's places: the next start also ends what a drain left.
#[tokio::test(start_paused = true)]
async fn a_drain_interrupts_no_turn_that_waits_for_sub_agents() {
    let place = Place::new();
    let first = Subject::new(place.process(|_| {})).await;
    let prompt = format!("{}@say One.", delegates("@stall times=1 @say Back."));
    first.service.accept_turn(StartTurn::new(first.session_id, prompt)).await.unwrap();
    while first.children().await.is_empty() {
        ticks(20).await;
    }
    ticks(100).await;
    first.service.shut_down(0).await;
    let session_id = first.session_id;
    assert!(!first.types().await.contains(&"tool_finished".to_owned()));
    drop(first);
    let next = Subject { service: place.process(|_| {}), session_id };
    next.service.ready().await.unwrap();
    let events = ended(&next).await;
    assert_eq!(events.last().unwrap()["type"], "turn_completed");
    assert!(next.results().await[0].starts_with("Back."), "{:?}", next.results().await);
    let page = next.service.events(ReadEvents::new(next.children().await[0].session_id, 0)).await.unwrap();
    assert!(page.items.len() > 4);
}
