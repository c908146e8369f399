//! `sessions tree`: a session and its sub-agents, with what each branch used.

use std::collections::HashMap;

use meerkat_service::{
    SessionId,
    clock::Timestamp,
    cost::Cost,
    service::{ReadHistory, SessionQuery, SessionSummary, StepKind},
};
use serde_json::{Value, json};

use super::{list::pages, names::resolve};
use crate::{
    app::App,
    error::CliError,
    render::{cost, ending, state_of, table, title},
};

/// A session of a tree, with what it and those below it used.
struct Node {
    session: SessionSummary,
    depth: usize,
    steps: usize,
    branch: Branch,
}

#[derive(Clone, Copy)]
struct Branch {
    sessions: usize,
    steps: usize,
    tokens: u64,
    cost: Option<Cost>,
}

/// Prints the tree below a session.
pub(super) async fn print(app: &App, name: &str) -> Result<u8, CliError> {
    let id = resolve(&app.service, name).await?;
    // No sub-agent is older than the session that called it.
    let since = app.service.read(&id).await?.created_at.as_millis().saturating_sub(1);
    let list = async |cursor| {
        let created_after = Some(Timestamp::from_millis(since));
        let query = SessionQuery { children: true, created_after, cursor, ..SessionQuery::default() };
        app.service.list(query).await
    };
    let (mut root, mut below) = (None, HashMap::<SessionId, Vec<SessionSummary>>::new());
    for session in pages(None, true, list).await?.items {
        match &session.parent {
            _ if session.session_id == id => root = Some(session),
            Some(parent) => below.entry(parent.session_id).or_default().push(session),
            None => {}
        }
    }
    let mut nodes = Vec::new();
    // Depth first, the oldest first; a session comes before those below it.
    let mut open: Vec<(usize, SessionSummary)> = root.into_iter().map(|root| (0, root)).collect();
    while let Some((depth, session)) = open.pop() {
        let steps = steps(app, session.session_id).await?;
        let mut its = below.remove(&session.session_id).unwrap_or_default();
        its.sort_by_key(|session| std::cmp::Reverse(session.session_id));
        open.extend(its.into_iter().map(|session| (depth + 1, session)));
        let branch = Branch { sessions: 1, steps, tokens: session.usage.total(), cost: session.cost };
        nodes.push(Node { session, depth, steps, branch });
    }
    for at in (1..nodes.len()).rev() {
        let (depth, its) = (nodes[at].depth, nodes[at].branch);
        if let Some(above) = nodes[..at].iter_mut().rev().find(|node| node.depth < depth) {
            let Branch { sessions, steps, tokens, cost } = &mut above.branch;
            (*sessions, *steps, *tokens) = (*sessions + its.sessions, *steps + its.steps, *tokens + its.tokens);
            *cost = Cost::sum(*cost, its.cost);
        }
    }
    match app.out.is_json {
        true => {
            app.out.document(json!({ "items": nodes.iter().map(item).collect::<Vec<_>>() }).to_string().as_bytes())?
        }
        false => app.out.readable(&render(&nodes, app.out.width))?,
    }
    Ok(0)
}

/// Counts the model calls of a session that answered.
async fn steps(app: &App, id: SessionId) -> Result<usize, CliError> {
    let page = async |cursor| {
        let request = ReadHistory { cursor, skip_damage: true, ..ReadHistory::new(id) };
        app.service.steps(request).await
    };
    let steps = pages(None, true, page).await?.items;
    Ok(steps.iter().filter(|step| step.kind == StepKind::ModelCall).count())
}

fn item(node: &Node) -> Value {
    let Node { session, depth, steps, branch } = node;
    json!({
        "session_id": session.session_id, "parent": session.parent, "depth": depth, "title": session.title,
        "state": session.state, "steps": steps, "tokens": session.usage.total(), "cost": session.cost,
        "branch": {
            "sessions": branch.sessions, "steps": branch.steps, "tokens": branch.tokens, "cost": branch.cost,
        },
    })
}

/// Renders a tree: each session is indented by its depth. A branch is a session with those below it.
fn render(nodes: &[Node], width: Option<usize>) -> String {
    let row = |Node { session, depth, steps, branch }: &Node| {
        let id = if width.is_some() { ending(&session.session_id) } else { session.session_id.to_string() };
        [
            format!("{}{id}", "· ".repeat(*depth)),
            state_of(session),
            steps.to_string(),
            session.usage.total().to_string(),
            cost(session.cost),
            branch.tokens.to_string(),
            cost(branch.cost),
            title(session),
        ]
    };
    let head = ["SESSION", "STATE", "STEPS", "TOKENS", "COST", "BRANCH TOKENS", "BRANCH COST", "TITLE"];
    table(head, nodes.iter().map(row), width)
}
