//! Tools of sources: they change between steps, and never inside one.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use futures::FutureExt as _;

use super::{
    Rig, Subject, check_journal,
    fakes::{Does, Heard, calls, does, says},
};
use crate::{
    model::{StaticModels, ToolSpec},
    service::{ClientTool, SessionService as _, TurnStatus},
    session::message::RawJson,
    tool::{ClientTools, Effect, LeftOut, Tool, ToolRegistry, ToolScope, ToolSet, ToolSource, Toolbox},
};

/// Offers one set after another: each call of a tool changes to the next one.
struct Changing {
    sets: Vec<ToolSet>,
    steps: AtomicUsize,
    ended: AtomicUsize,
}

#[async_trait]
impl ToolSource for Changing {
    fn tools(&self, _: &ToolScope<'_>) -> ToolSet {
        let step = self.steps.fetch_add(1, Ordering::Relaxed);
        self.sets[step.min(self.sets.len() - 1)].clone()
    }

    async fn shut_down(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }
}

fn tool(name: &str, effect: Effect) -> Does {
    does(name, effect, |invocation, output| async move { output.write(&invocation.call_id).await }.boxed())
}

fn set(names: &[&str]) -> ToolSet {
    ToolSet::new(names.iter().map(|name| Arc::new(tool(name, Effect::Once)) as Arc<dyn Tool>).collect())
}

fn with_schema(name: &str, schema: &str) -> Arc<dyn Tool> {
    let (name, description) = (name.to_owned(), "Works.".to_owned());
    let spec = ToolSpec { name, description, schema: RawJson::parse(schema).unwrap() };
    Arc::new(Does { spec, ..tool("x", Effect::ReadOnly) })
}

fn rig(model: &Arc<Heard>, source: &Arc<Changing>) -> Rig {
    let mut rig = Rig::new(vec![Arc::new(tool("own", Effect::ReadOnly))]);
    rig.models = Arc::new(StaticModels::new("heard", model.clone(), 100_000));
    rig.sources = vec![source.clone()];
    rig
}

fn changing(sets: Vec<ToolSet>) -> Arc<Changing> {
    Arc::new(Changing { sets, steps: AtomicUsize::new(0), ended: AtomicUsize::new(0) })
}

#[tokio::test(start_paused = true)]
async fn tools_change_between_steps_and_never_inside_one() {
    let answers =
        [calls([("first", "{}"), ("first", "{}")]), calls([("first", "{}"), ("second", "{}")]), says("Done.")];
    let (model, source) = (Heard::new(answers), changing(vec![set(&["first"]), set(&["second"])]));
    let subject = Subject::new(rig(&model, &source).service()).await;
    assert_eq!(subject.turn("Go.").await.unwrap().status, TurnStatus::Completed);
    let offered: Vec<Vec<String>> = {
        let requests = model.requests.lock().unwrap();
        requests.iter().map(|request| request.tools.iter().map(|spec| spec.name.clone()).collect()).collect()
    };
    assert_eq!(offered, [["first", "own"], ["own", "second"], ["own", "second"]]);
    let events = subject.events().await;
    let results: Vec<(&str, &str)> = events
        .iter()
        .filter(|event| event["type"] == "tool_finished")
        .map(|event| (event["name"].as_str().unwrap(), event["outcome"].as_str().unwrap()))
        .collect();
    let expected = [("first", "succeeded"), ("first", "succeeded"), ("first", "not_run"), ("second", "succeeded")];
    assert_eq!(results, expected);
    let tools: Vec<&str> = events
        .iter()
        .filter(|event| event["type"] == "assistant_message")
        .map(|event| event["tools"].as_str().unwrap())
        .collect();
    assert!(tools[0] != tools[1] && tools[1] == tools[2], "each step says what it was offered: {tools:?}");
    assert!(tools.iter().all(|hash| hash.len() == 16));
    let gone = events.iter().find(|event| event["outcome"] == "not_run").unwrap();
    assert_eq!(gone["error"]["code"], "TOOL_NOT_FOUND");
    check_journal(&events);
}

#[tokio::test(start_paused = true)]
async fn a_source_ends_once_with_the_service() {
    let source = changing(vec![set(&["first"])]);
    let subject = Subject::new(rig(&Heard::new([]), &source).service()).await;
    assert_eq!(source.ended.load(Ordering::Relaxed), 0);
    subject.service.shut_down(1_000).await;
    assert_eq!(source.ended.load(Ordering::Relaxed), 1);
}

/// A bad tool is left out, with its reason; the others of its set are offered. The service's own tool keeps its name.
#[test]
fn a_bad_tool_is_left_out_alone() {
    let set = ToolSet::new(vec![
        with_schema("far", r#"{"$ref":"https://example.com/schema.json"}"#),
        with_schema("two words", "{}"),
        with_schema("own", r#"{"title":"theirs"}"#),
        with_schema("good", "{}"),
    ]);
    let own = ToolRegistry::new(vec![with_schema("own", r#"{"title":"ours"}"#)], Default::default()).unwrap();
    let toolbox = Toolbox::new(own, vec![changing(vec![set])]);
    let scope = ToolScope { session_id: crate::SessionId::from_uuid(uuid::Uuid::nil()), workspace: None };
    let tools = toolbox.of(&scope, None);
    assert_eq!(tools.specs().iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>(), ["good", "own"]);
    assert!(tools.get("own").unwrap().spec().schema.as_str().contains("ours"));
    let left_out: Vec<&str> = tools.left_out().iter().map(|LeftOut { name, .. }| name.as_str()).collect();
    assert_eq!(left_out, ["far", "two words", "own"]);
    assert!(tools.left_out().iter().all(|LeftOut { reason, .. }| !reason.is_empty()));
}

/// A source comes later with the name of a caller's tool: one of them is offered, and the list says that the other is not.
#[test]
fn a_source_that_comes_later_takes_the_name_of_a_callers_tool() {
    let own = ToolRegistry::new(Vec::new(), Default::default()).unwrap();
    let toolbox = Toolbox::new(own, vec![changing(vec![set(&["other"]), set(&["look"])])]);
    let of_client = |name: &str| ClientTool {
        name: name.to_owned(),
        description: "Looks.".to_owned(),
        input_schema: RawJson::parse(r#"{"type":"object"}"#).unwrap(),
        effect: Effect::Once,
        timeout_ms: None,
    };
    let client = ClientTools::new(2, "hash".to_owned(), vec![of_client("look"), of_client("order")]);
    let scope = ToolScope { session_id: crate::SessionId::from_uuid(uuid::Uuid::nil()), workspace: None };
    for (names, of_client, left_out) in [
        (&["look", "order", "other"][..], &["look", "order"][..], &[][..]),
        (&["look", "order"], &["order"], &["look"]),
    ] {
        let tools = toolbox.of(&scope, Some(&client));
        let offered: Vec<&str> = tools.specs().iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(offered, names);
        let is_of_client = |name: &&str| tools.is_of_client(name);
        assert_eq!(offered.iter().copied().filter(is_of_client).collect::<Vec<_>>(), of_client);
        assert_eq!(tools.left_out().iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), left_out);
    }
}
