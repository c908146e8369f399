//! Lists of tools and of their servers.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use async_trait::async_trait;
use futures::FutureExt as _;
use tempfile::TempDir;

use super::fakes::{Does, does};
use crate::{
    Agent, AgentBuildConfig, SessionId,
    options::EngineOptions,
    service::{CreateSession, ListTools, StartTurn, ToolServerState, ToolServerView, ToolView},
    tool::{Approval, Effect, LeftOut, Tool, ToolScope, ToolSet, ToolSource},
};

fn tool(name: &str, effect: Effect) -> Does {
    does(name, effect, |_, output| async move { output.write("Done.").await }.boxed())
}

/// Offers a tool named after the workspace, and one of a server.
struct ByWorkspace;

impl ByWorkspace {
    fn name(workspace: &Path) -> String {
        format!("in_{}", workspace.file_name().unwrap_or_default().to_string_lossy().trim_start_matches('.'))
    }
}

#[async_trait]
impl ToolSource for ByWorkspace {
    fn tools(&self, scope: &ToolScope<'_>) -> ToolSet {
        let mut tools: Vec<Arc<dyn Tool>> = vec![
            Arc::new(tool("mcp__a__see", Effect::ReadOnly)),
            Arc::new(tool("two words", Effect::Once)),
            Arc::new(tool("own", Effect::Once)),
        ];
        tools.extend(scope.workspace.map(|folder| Arc::new(tool(&Self::name(folder), Effect::Once)) as Arc<dyn Tool>));
        let changed =
            LeftOut { name: "mcp__a__changed".to_owned(), reason: "the token hunter2-hunter2 changed it".to_owned() };
        ToolSet::new(tools).leaving_out(vec![changed])
    }

    fn may_offer(&self, name: &str) -> bool {
        name.starts_with("mcp__") || name.starts_with("in_")
    }

    fn origin(&self, name: &str) -> String {
        if name.starts_with("mcp__") { "server:a" } else { "workspace" }.to_owned()
    }

    fn servers(&self) -> Vec<ToolServerView> {
        let (kind, state, error) =
            ("url".to_owned(), ToolServerState::Failed, Some("hunter2-hunter2 is refused".to_owned()));
        vec![ToolServerView { name: "a".to_owned(), kind, state, tools: 2, tokens: 7, error }]
    }
}

fn agent(approval: &[(&str, Approval)]) -> Agent {
    let mut options = EngineOptions::default();
    options.tools.approval = approval.iter().map(|(rule, approval)| ((*rule).to_owned(), *approval)).collect();
    options.tools.inline_bytes = 10;
    let long = does("long", Effect::ReadOnly, |_, output| async move { output.write(&"x".repeat(100)).await }.boxed());
    AgentBuildConfig::new()
        .options(options)
        .secret("hunter2-hunter2".into())
        .tool(Arc::new(tool("own", Effect::Once)))
        .tool(Arc::new(long))
        .tool_source(Arc::new(ByWorkspace))
        .build()
        .unwrap()
}

async fn session(agent: &Agent, workspace: Option<&TempDir>, tools: Option<&[&str]>) -> SessionId {
    let workspace = workspace.map(|folder| folder.path().to_str().unwrap().to_owned());
    let tools = tools.map(|tools| tools.iter().map(|&name| name.to_owned()).collect());
    let request = CreateSession { workspace, tools, ..CreateSession::default() };
    agent.service().create_session(request).await.unwrap().session_id
}

async fn listed(agent: &Agent, session_id: Option<SessionId>, with_workspace: bool) -> BTreeMap<String, Vec<ToolView>> {
    let items = agent.service().tools(ListTools { session_id, with_workspace }).await.unwrap().items;
    assert!(items.is_sorted_by(|a, b| a.name <= b.name));
    let mut by_name = BTreeMap::<String, Vec<ToolView>>::new();
    items.into_iter().for_each(|item| by_name.entry(item.name.clone()).or_default().push(item));
    by_name
}

fn offered(listed: &BTreeMap<String, Vec<ToolView>>) -> Vec<&str> {
    let items = listed.values().flatten().filter(|item| item.left_out.is_none());
    items.map(|item| item.name.as_str()).collect()
}

/// What the model itself is offered.
async fn seen(agent: &Agent, session_id: SessionId) -> String {
    agent.service().start_turn(StartTurn::new(session_id, "@echo tools")).await.unwrap().text
}

/// The list is what the next request offers: each session has the tools of its own workspace, and no other's.
#[tokio::test]
async fn a_session_has_the_tools_of_its_own_workspace() {
    let (agent, one, other) = (agent(&[]), meerkat_testkit::folder(), meerkat_testkit::folder());
    for folder in [Some(&one), Some(&other), None] {
        let id = session(&agent, folder, None).await;
        let listed = listed(&agent, Some(id), false).await;
        assert_eq!(format!("tools: {}", offered(&listed).join(" ")), seen(&agent, id).await);
        for other in [&one, &other] {
            let is_own = folder.is_some_and(|folder| folder.path() == other.path());
            assert_eq!(listed.contains_key(&ByWorkspace::name(other.path())), is_own);
        }
    }
    let new = |with_workspace| listed(&agent, None, with_workspace);
    assert_eq!(offered(&new(false).await), ["long", "mcp__a__see", "own"]);
    assert_eq!(offered(&new(true).await), ["in_", "long", "mcp__a__see", "own", "pin_fact"]);
}

#[tokio::test]
async fn each_tool_says_where_it_comes_from_and_why_it_is_left_out() {
    let (agent, folder) = (agent(&[]), meerkat_testkit::folder());
    let id = session(&agent, Some(&folder), Some(&["long", "read_blob", "mcp__a__see"])).await;
    let before = listed(&agent, Some(id), false).await;
    assert_eq!(offered(&before), ["long", "mcp__a__see"]);
    let of = |name: &str| {
        let items = before[name].iter();
        items.map(|item| (item.source.as_str(), item.left_out.as_deref().unwrap_or_default())).collect::<Vec<_>>()
    };
    assert_eq!(of("long"), [("program", "")]);
    assert_eq!(of("mcp__a__see"), [("server:a", "")]);
    assert_eq!(of("mcp__a__changed"), [("server:a", "the token [redacted] changed it")]);
    let own = "the session's own list of tools does not name it";
    assert_eq!(of(&ByWorkspace::name(folder.path())), [("workspace", own)]);
    assert_eq!(of("pin_fact"), [("engine", own)]);
    assert_eq!(of("own"), [("program", own), ("program", "another tool has its name")]);
    assert_eq!(of("read_blob"), [("engine", "it is offered when the context names a blob")]);
    assert!(of("two words")[0].1.contains("letters"), "{:?}", of("two words"));
    let view = &before["long"][0];
    let bytes = "long".len() + "Works.".len() + "{}".len();
    assert_eq!((view.tokens, view.description.as_deref()), (bytes.div_ceil(4) as u64, Some("Works.")));
    agent.service().start_turn(StartTurn::new(id, "@call long {} @say Long.")).await.unwrap();
    assert_eq!(offered(&listed(&agent, Some(id), false).await), ["long", "mcp__a__see", "read_blob"]);
}

#[tokio::test]
async fn each_tool_says_what_the_rules_say_of_it() {
    let rules = [("own", Approval::Deny), ("mcp__a__*", Approval::Ask), ("long: x", Approval::Deny)];
    let agent = agent(&rules);
    let listed = listed(&agent, None, false).await;
    let of = |name: &str| (listed[name][0].effect, listed[name][0].approval);
    assert_eq!(of("own"), (Some(Effect::Once), Some(Approval::Deny)));
    assert_eq!(of("mcp__a__see"), (Some(Effect::ReadOnly), Some(Approval::Ask)));
    // A call may be what the rule denies.
    assert_eq!(of("long"), (Some(Effect::ReadOnly), Some(Approval::Ask)));
    assert_eq!(of("read_blob"), (Some(Effect::ReadOnly), Some(Approval::Allow)));
}

#[tokio::test]
async fn servers_are_listed_without_secrets_and_an_unknown_session_has_no_tools() {
    let agent = agent(&[]);
    let servers = agent.service().tool_servers().await.unwrap().items;
    assert_eq!((servers.len(), servers[0].error.as_deref()), (1, Some("[redacted] is refused")));
    let nobody = SessionId::from_uuid(uuid::Uuid::nil());
    let request = ListTools { session_id: Some(nobody), with_workspace: false };
    assert_eq!(agent.service().tools(request).await.unwrap_err().code(), crate::ErrorCode::SessionNotFound);
}
