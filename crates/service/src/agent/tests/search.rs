//! Many tools of servers: a request shows those that the session found or called, and the others can be searched.

use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use serde_json::{Value, json};

use super::{
    Rig, Subject, check_journal,
    fakes::{Does, Heard, calls, does, says},
};
use crate::{
    compaction::CompactionConfig,
    model::{ModelRequest, StaticModels, ToolSpec},
    service::{CompactSession, CreateSession, ListTools, SessionService as _, StartTurn, TurnStatus},
    session::message::{Message, RawJson},
    store::{MemoryEventStore, MemoryIndex},
    tool::{Approval, Effect, SearchTools, Tool, ToolScope, ToolSet, ToolSource},
};

/// Window of the model. The tools of both servers take about a fifth of it.
const WINDOW: u64 = 200_000;

struct Servers(ToolSet);

#[async_trait]
impl ToolSource for Servers {
    fn tools(&self, _: &ToolScope<'_>) -> ToolSet {
        self.0.clone()
    }

    fn may_offer(&self, name: &str) -> bool {
        name.starts_with("mcp__")
    }
}

/// A tool of a server, with some 800 bytes.
fn tool(name: &str) -> Arc<dyn Tool> {
    let schema = json!({ "type": "object", "properties": { "text": { "description": "t".repeat(600) } } });
    let (description, schema) =
        (format!("Does {name}. {}", "d".repeat(100)), RawJson::parse(&schema.to_string()).unwrap());
    let tool = does(name, Effect::Once, |invocation, output| {
        async move { output.write(&format!("ran {}", invocation.arguments.as_str())).await }.boxed()
    });
    Arc::new(Does { spec: ToolSpec { name: name.to_owned(), description, schema }, ..tool })
}

/// So many tools of each of two servers, and one of the service's own.
fn rig(model: &Arc<Heard>, tools: usize, window_tokens: u64) -> Rig {
    let own = does("own", Effect::ReadOnly, |_, output| async { output.write("own").await }.boxed());
    let mut rig = Rig::new(vec![Arc::new(own), Arc::new(SearchTools::new().unwrap())]);
    let of = |server: &'static str| (0..tools).map(move |n| tool(&format!("mcp__{server}__issue_{n:03}")));
    rig.models = Arc::new(StaticModels::new("heard", model.clone(), window_tokens));
    rig.sources = vec![Arc::new(Servers(ToolSet::new(of("hub").chain(of("lab")).collect())))];
    rig
}

fn names(request: &ModelRequest) -> Vec<&str> {
    request.tools.iter().map(|spec| spec.name.as_str()).collect()
}

fn tokens(request: &ModelRequest) -> u64 {
    let bytes = |spec: &ToolSpec| spec.name.len() + spec.description.len() + spec.schema.as_str().len();
    request.tools.iter().map(bytes).sum::<usize>() as u64 / 4
}

fn results(request: &ModelRequest) -> Vec<String> {
    let Some(Message::ToolResults { results }) = request.messages.last().map(AsRef::as_ref) else { return Vec::new() };
    results.iter().map(|result| result.content.excerpt().into_owned()).collect()
}

fn search(query: &str) -> (&'static str, String) {
    ("search_tools", json!({ "query": query }).to_string())
}

#[tokio::test(start_paused = true)]
async fn of_many_tools_a_request_shows_those_that_were_found_or_called() {
    let first = "mcp__lab__issue_017";
    let model = Heard::new([
        calls([search("lab 017")]),
        calls([(first, r#"{"text":"x"}"#), ("mcp__hub__issue_099", "{}"), ("mcp__hub__isue", "{}")]),
        says("Done."),
        calls([search("lab 017"), search("nowhere")]),
        says("Nothing."),
    ]);
    let subject = Subject::new(rig(&model, 100, WINDOW).service()).await;
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
    subject.turn("Again.").await.unwrap();
    check_requests(&model.requests.lock().unwrap(), first);
    let events = subject.events().await;
    check_journal(&events);
    let hashes: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "assistant_message").map(|event| &event["tools"]).collect();
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[2] == hashes[3], "{hashes:?}");
}

/// The list says of each tool if the next request shows it.
#[tokio::test(start_paused = true)]
async fn a_list_of_many_tools_says_which_are_found_by_a_search() {
    let model = Heard::new([calls([search("lab 017")]), says("Done."), says("Again.")]);
    let subject = Subject::new(rig(&model, 100, WINDOW).service()).await;
    subject.turn("Go.").await.unwrap();
    let listed = async |session_id| {
        let items = subject.service.tools(ListTools { session_id, with_workspace: false }).await.unwrap().items;
        let (offered, left): (Vec<_>, Vec<_>) = items.into_iter().partition(|item| item.left_out.is_none());
        assert!(left.iter().all(|item| item.left_out.as_deref() == Some("it is found by search_tools")), "{left:?}");
        assert_eq!(offered.iter().chain(&left).filter(|item| item.source == "engine").count(), 1, "the search");
        (offered.into_iter().map(|item| item.name).collect::<Vec<_>>(), left.len())
    };
    let (offered, left) = listed(Some(subject.session_id)).await;
    subject.turn("Again.").await.unwrap();
    assert_eq!(listed(None).await, (vec!["own".to_owned(), "search_tools".to_owned()], 200));
    let requests = model.requests.lock().unwrap();
    let mut shown = names(&requests[2]);
    shown.sort_unstable();
    assert_eq!((offered, left), (shown.iter().map(|&name| name.to_owned()).collect(), 202 - shown.len()));
}

/// The requests of that session, in order.
fn check_requests(requests: &[ModelRequest], first: &str) {
    assert_eq!(names(&requests[0]), ["own", "search_tools"]);
    assert!(requests[0].tools[1].description.ends_with("Servers and their tools: hub (100), lab (100)."));
    let found = results(&requests[1]).remove(0);
    assert!(found.starts_with(&format!("You may call these tools from now on: {first}, mcp__")), "{found}");
    assert!(found.contains(&format!("\n{first}: Does {first}. d")) && found.contains(r#"{"description":"ttt"#));
    // The best is the newest.
    assert_eq!((names(&requests[1]).len(), names(&requests[1])[6]), (7, first));
    assert!(tokens(&requests[1]) < WINDOW / 10 / 10, "{}", tokens(&requests[1]));
    let ran = results(&requests[2]);
    assert_eq!(ran[..2], [r#"ran {"text":"x"}"#, "ran {}"], "a tool that is not shown can be called");
    assert!(
        ran[2].contains("own, mcp__hub__issue_000, ") && ran[2].contains(", and 137 more, which search_tools finds.")
    );
    // A called tool that was shown keeps its place.
    let before = names(&requests[1]);
    assert_eq!(names(&requests[2]), [&before[..], &["mcp__hub__issue_099"]].concat());
    assert_eq!(names(&requests[3]), names(&requests[2]), "the set is that of the session");
    // What is shown is not found again.
    assert!(!results(&requests[4])[0].contains(first));
    assert_eq!(
        results(&requests[4])[1],
        "No other tool has these words. Try others, such as a server's name or what the tool acts on."
    );
}

/// Few tools, or a session that cannot search: all are shown, as if there were no search.
#[tokio::test(start_paused = true)]
async fn a_set_with_room_is_shown_whole() {
    let denied = |rig: &mut Rig| {
        rig.options.tools.approval.insert("search_tools".to_owned(), Approval::Deny);
    };
    let unchanged = |_: &mut Rig| ();
    let chosen = ["own", "mcp__hub__issue_000", "mcp__lab__issue_001"];
    for (tools, window_tokens, change, only, expected) in [
        (100, WINDOW * 10, unchanged as fn(&mut Rig), None, 201),
        (3, WINDOW, unchanged, None, 7),
        (100, WINDOW, denied, None, 201),
        (3, 1_000, unchanged, Some(chosen), 3),
    ] {
        let model = Heard::new([says("Yes.")]);
        let mut rig = rig(&model, tools, window_tokens);
        change(&mut rig);
        let service = rig.service();
        let only = only.map(|names| names.map(str::to_owned).to_vec());
        let session_id =
            service.create_session(CreateSession { tools: only, ..CreateSession::default() }).await.unwrap().session_id;
        service.start_turn(StartTurn::new(session_id, "Go.")).await.unwrap();
        let requests = model.requests.lock().unwrap();
        let shown = names(&requests[0]);
        assert_eq!(shown.len(), expected);
        assert!(shown.is_sorted_by_key(|name| (*name).to_owned()) && !shown.contains(&"search_tools"), "{shown:?}");
    }
}

/// The found tools take no more than their share; the newest are shown.
#[tokio::test(start_paused = true)]
async fn what_was_found_has_its_own_bound() {
    let queries = (0..20).map(|n| calls([search(&format!("hub {n:03}"))]));
    let model = Heard::new(queries.chain([says("Done.")]));
    let subject = Subject::new(rig(&model, 100, 50_000).service()).await;
    subject.turn("Go.").await.unwrap();
    let requests = model.requests.lock().unwrap();
    let last = requests.last().unwrap();
    assert!((4_000..5_500).contains(&tokens(last)), "{}", tokens(last));
    assert_eq!(names(last).last(), Some(&"mcp__hub__issue_019"));
}

#[tokio::test(start_paused = true)]
async fn what_was_found_outlives_a_compaction_and_a_restart() {
    let events = Arc::new(MemoryEventStore::new(u64::MAX, Arc::default()));
    let service = |model: &Arc<Heard>| {
        let mut rig = rig(model, 100, WINDOW);
        rig.compaction = Some(CompactionConfig { recent_turn_budget: 1, ..CompactionConfig::default() });
        rig.stored(events.clone(), Arc::new(MemoryIndex::default()))
    };
    let model = Heard::new([
        calls([search("hub 042")]),
        says(&"long ".repeat(1_000)),
        says("Short."),
        says("It was found."),
        says("After."),
    ]);
    let former = service(&model);
    let session_id = former.create_session(CreateSession::default()).await.unwrap().session_id;
    for prompt in ["Go.", "On."] {
        former.start_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    }
    former.compact(CompactSession { session_id, compaction: None }).await.unwrap();
    former.start_turn(StartTurn::new(session_id, "After.")).await.unwrap();
    former.shut_down(0).await;
    let shown = |model: &Heard, at: usize| {
        let requests = model.requests.lock().unwrap();
        let bytes = |spec: &ToolSpec| format!("{} {} {}", spec.name, spec.description, spec.schema.as_str());
        requests[at].tools.iter().map(bytes).collect::<Vec<_>>()
    };
    assert!(shown(&model, 1).last().unwrap().starts_with("mcp__hub__issue_042 "));
    let is_left = model.last().iter().all(|message| !message.text().contains("You may call these tools"));
    assert!(is_left, "the search itself has left the context");
    // The summary's request, and the next one, begin as the one before: a vendor has them in its cache.
    for at in 2..5 {
        assert_eq!(shown(&model, at), shown(&model, 1), "request {at}");
    }
    let next = Heard::new([says("Here.")]);
    service(&next).start_turn(StartTurn::new(session_id, "And now?")).await.unwrap();
    assert_eq!(shown(&next, 0), shown(&model, 1));
}
