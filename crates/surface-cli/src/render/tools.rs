//! Tools and their servers as tables.

use meerkat_service::{
    service::{ToolServerState, ToolServerView, ToolView},
    tool::Approval,
};

use meerkat_tools::servers::ToolStatus;

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

/// Renders the tools of a server that was started.
pub(crate) fn checked(tools: &[ToolStatus], width: Option<usize>) -> String {
    let row = |tool: &ToolStatus| {
        let about = match &tool.quarantined {
            Some(why) => format!("left out: {why}"),
            None => tool.description.lines().next().unwrap_or("-").to_owned(),
        };
        [tool.name.clone(), tool.tokens.to_string(), about]
    };
    table(["TOOL", "TOKENS", "ABOUT"], tools.iter().map(row), width)
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Broken once: a person got the tools of a server as one line of JSON.
    #[test]
    fn the_tools_of_a_server_that_was_checked_are_a_table() {
        let tool = |name: &str, quarantined: Option<&str>| ToolStatus {
            name: format!("mcp__clock__{name}"),
            remote: name.to_owned(),
            description: "Tells the time.\nIn UTC.".to_owned(),
            tokens: 42,
            quarantined: quarantined.map(str::to_owned),
        };
        let expected = "\
TOOL              TOKENS  ABOUT
mcp__clock__now   42      Tells the time.
mcp__clock__then  42      left out: it changed
";
        assert_eq!(checked(&[tool("now", None), tool("then", Some("it changed"))], Some(80)), expected);
    }
}
