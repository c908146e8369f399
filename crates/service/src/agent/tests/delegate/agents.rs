//! Agents of files: what a sub-agent that is one of them may do, what the model reads of them, and that a call's agent does
//! not change after its start.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use futures::FutureExt as _;

use super::{Place, Rig, Service, Subject, ended, ticks};
use crate::{
    SessionId,
    agent::delegate::Agents,
    clock::Timestamp,
    model::{StaticModels, scripted::ScriptedModel},
    options::Budgets,
    redact::Secrets,
    runtime::sessions::Sessions,
    service::{SessionService as _, StartTurn, TurnStatus},
    session::{event::Agent, reminder::SystemReminderType},
    store::Stores,
    tool::{AgentFile, WorkspaceNotes},
};

/// The agents of files, which may change.
#[derive(Default)]
struct Files(Mutex<Vec<AgentFile>>);

#[async_trait]
impl WorkspaceNotes for Files {
    async fn write(&self, _: &Path, _: Timestamp) -> Vec<(SystemReminderType, Option<String>)> {
        Vec::new()
    }

    async fn agents(&self, _: Option<&Path>) -> Vec<AgentFile> {
        self.0.lock().unwrap().clone()
    }
}

fn agent(name: &str, tools: Option<&[&str]>, model: Option<&str>) -> AgentFile {
    let tools = tools.map(|tools| tools.iter().map(|tool| (*tool).to_owned()).collect());
    let (name, prompt) = (name.to_owned(), format!("You are the {name}."));
    let description = format!("Does what a {name} does.");
    AgentFile { description, agent: Agent { name, tools, model: model.map(str::to_owned), prompt } }
}

fn files(agents: &[AgentFile]) -> Arc<Files> {
    Arc::new(Files(Mutex::new(agents.to_vec())))
}

fn with(files: &Arc<Files>) -> impl FnOnce(&mut Rig) + use<> {
    let files = files.clone();
    move |rig: &mut Rig| {
        rig.notes = Some(files);
        let models = StaticModels::new("scripted", Arc::new(ScriptedModel), 100_000);
        rig.models = Arc::new(models.with("other", Arc::new(ScriptedModel), 100_000));
    }
}

fn calls(arguments: &serde_json::Value) -> String {
    format!("@call delegate {arguments} ")
}

#[tokio::test(start_paused = true)]
async fn a_sub_agent_has_the_prompt_the_model_and_the_tools_of_its_file() {
    let reviewer = agent("reviewer", Some(&["look", "shell", "delegate"]), Some("other"));
    let files = files(&[reviewer, agent("writer", None, Some("sonnet"))]);
    let subject = Subject::new(Place::new().process(with(&files))).await;
    let ask = |agent: &str| calls(&serde_json::json!({"agent": agent, "prompt": "@echo system @echo tools"}));
    let prompt = [ask("reviewer"), ask("writer"), ask("nobody")].concat();
    let done = subject.turn(&format!("{prompt}@echo tail")).await.unwrap();
    assert_eq!(done.status, TurnStatus::Completed);
    let list = "Agents that `delegate` can start, by its argument `agent`:\n- reviewer: Does what a reviewer does.\n\
                - writer: Does what a writer does.";
    assert!(done.text.contains(list), "{}", done.text);
    let mut results = subject.results().await;
    results.sort();
    let refused = "There is no agent \"nobody\". There are reviewer, writer. Name one of them, or leave `agent` out.";
    assert!(results[0].contains(refused), "{results:?}");
    // It has no `shell` because the session has none, and no `delegate` because it is the deepest.
    assert!(results[1].starts_with("system: You are the reviewer.tools: look\n"), "{results:?}");
    assert!(results[2].starts_with("system: You are the writer.tools: edit look\n"), "{results:?}");
    let children = subject.children().await;
    let of = |name: &str| children.iter().find(|child| child.title.as_deref() == Some(name)).unwrap();
    assert_eq!(of("reviewer").model, "other");
    // A model that is not configured is the caller's.
    assert_eq!(of("writer").model, "scripted");
}

/// Somebody wrote a configured key into a file.
#[tokio::test(start_paused = true)]
async fn no_secret_of_an_agents_file_reaches_a_journal_or_a_model() {
    const KEY: &str = "opensesame-0123456789";
    let mut leaky = agent("leaky", None, None);
    leaky.agent.prompt = format!("Log in with {KEY}.");
    leaky.description = format!("Logs in with {KEY}.");
    let files = files(&[leaky]);
    let place = Place::new();
    let subject = Subject::new(place.process(|rig| {
        with(&files)(rig);
        rig.secrets = Secrets::new([KEY.to_owned().into()]);
    }))
    .await;
    let ask = calls(&serde_json::json!({"agent": "leaky", "prompt": "@echo system"}));
    let done = subject.turn(&format!("{ask}@echo tail")).await.unwrap();
    assert!(done.text.contains("leaky: Logs in with [redacted]."), "{}", done.text);
    assert!(subject.results().await[0].contains("Log in with [redacted]."));
    let child = subject.children().await.remove(0).session_id;
    for subject in [&subject, &subject.other(child)] {
        let events = serde_json::to_string(&subject.events().await).unwrap();
        assert!(events.contains("Log in with [redacted].") && !events.contains(KEY), "{events}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_call_asks_of_an_agent_only_narrows_it() {
    let files = files(&[agent("reviewer", Some(&["look"]), None), agent("both", Some(&["look", "edit"]), None)]);
    let subject = Subject::new(Place::new().process(with(&files))).await;
    let ask = |agent: &str, tools: &[&str]| {
        calls(&serde_json::json!({"agent": agent, "prompt": "@echo tools", "tools": tools}))
    };
    let prompt = [ask("reviewer", &["edit"]), ask("both", &["edit"])].concat();
    subject.turn(&format!("{prompt}@say Done.")).await.unwrap();
    let mut results = subject.results().await;
    results.sort();
    assert!(
        results[0].contains("The agent \"reviewer\" may not use the tool \"edit\". Its tools: look."),
        "{results:?}"
    );
    assert!(results[1].starts_with("tools: edit\n"), "{results:?}");
}

/// The list is a reminder that follows the files, and is there only for a turn that may start sub-agents.
#[tokio::test(start_paused = true)]
async fn the_list_follows_the_files_and_costs_nothing_without_them() {
    let files = files(&[]);
    let subject = Subject::new(Place::new().process(with(&files))).await;
    subject.turn("@say One.").await.unwrap();
    assert!(!subject.types().await.contains(&"reminder_set".to_owned()));
    let many = (0..100).map(|n| AgentFile { description: "x".repeat(600), ..agent(&format!("a{n}"), None, None) });
    *files.0.lock().unwrap() = many.collect();
    subject.turn("@say Two.").await.unwrap();
    let text = subject.event("reminder_set").await["text"].as_str().unwrap().to_owned();
    assert!(text.len() < 9 * 1024 && text.ends_with("\n- and 84 more"), "{text}");
    let budgets = Budgets { agents: Some(0), ..Budgets::default() };
    let turn = StartTurn { budgets, ..StartTurn::new(subject.session_id, "@say Three.") };
    subject.service.start_turn(turn).await.unwrap();
    assert!(subject.types().await.contains(&"reminder_cleared".to_owned()));
}

/// A kill between the start of a call and the making of its session: the file that changed meanwhile changes nothing.
#[tokio::test(start_paused = true)]
async fn an_agent_is_what_its_file_said_when_its_call_started() {
    let (place, files) = (Place::new(), files(&[agent("old", Some(&["look"]), Some("other"))]));
    let mut rig = super::rig();
    with(&files)(&mut rig);
    let Place { events, blobs, index } = place.clone();
    let stores = Stores { events, blobs, index, ..Stores::in_memory(u64::MAX, &Arc::default()) };
    let engine = rig.engine(stores, true);
    // The process is killed before it does anything for the sub-agent.
    let agents = Agents {
        attend: Box::new(|_| ()),
        below: Box::new(|_| std::future::ready(Ok(Vec::new())).boxed()),
        delete: Box::new(|_| std::future::ready(Ok(())).boxed()),
    };
    assert!(engine.agents.set(agents).is_ok());
    let subject = Subject::new(Service::new(Sessions::new(engine))).await;
    let session_id = subject.session_id;
    let prompt = calls(&serde_json::json!({"agent": "old", "prompt": "@echo system"})) + "@say Done.";
    subject.service.accept_turn(StartTurn::new(session_id, prompt)).await.unwrap();
    ticks(200).await;
    let child: SessionId = subject.event("delegate_started").await["child"].as_str().unwrap().parse().unwrap();
    drop(subject);
    ticks(200).await;
    assert!(place.events.tail(child).await.unwrap().is_none(), "its session is not made yet");
    let mut changed = agent("old", None, None);
    changed.agent.prompt = "You are new.".to_owned();
    *files.0.lock().unwrap() = vec![changed];
    let subject = Subject { service: place.process(with(&files)), session_id };
    subject.service.ready().await.unwrap();
    ended(&subject).await;
    let created = subject.other(child).event("session_created").await;
    let seen = (&created["system_prompt"], &created["tools"], &created["model"]);
    assert_eq!(seen, (&"You are the old.".into(), &serde_json::json!(["look"]), &"other".into()));
}
