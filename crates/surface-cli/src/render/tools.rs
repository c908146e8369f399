//! Tools and their servers as tables.

use meerkat_service::{
    service::{ToolServerState, ToolServerView, ToolView},
    tool::Approval,
};

use super::table;

/// Renders tools. What is left out says why instead of what it does.
pub(super) fn tools(tools: &[ToolView], width: Option<usize>) -> String {
    let row = |tool: &ToolView| {
        let calls = match tool.approval {
            Some(Approval::Allow) => "run",
            Some(Approval::Ask) => "ask",
            Some(Approval::Deny) => "are denied",
            None => "-",
        };
        let about = match (&tool.left_out, &tool.description) {
            (Some(why), _) => format!("left out: {why}"),
            (None, about) => about.as_deref().and_then(|about| about.lines().next()).unwrap_or("-").to_owned(),
        };
        [tool.name.clone(), tool.source.clone(), calls.to_owned(), tool.tokens.to_string(), about]
    };
    table(["TOOL", "SOURCE", "CALLS", "TOKENS", "ABOUT"], tools.iter().map(row), width)
}

/// Renders servers; empty if there are none.
pub(super) fn servers(servers: &[ToolServerView]) -> String {
    let row = |server: &ToolServerView| {
        [
            server.name.clone(),
            server.kind.clone(),
            state(server.state).to_owned(),
            server.tools.to_string(),
            server.tokens.to_string(),
            server.error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    };
    if servers.is_empty() {
        return String::new();
    }
    table(["SERVER", "KIND", "STATE", "TOOLS", "TOKENS", "ERROR"], servers.iter().map(row), None)
}

/// Returns the word for a server's state.
pub(crate) const fn state(state: ToolServerState) -> &'static str {
    match state {
        ToolServerState::Configured => "not listed yet",
        ToolServerState::Listed => "listed",
        ToolServerState::Running => "running",
        ToolServerState::LoginNeeded => "login needed",
        ToolServerState::Failed => "failed",
        ToolServerState::NotTrusted => "not trusted",
    }
}
