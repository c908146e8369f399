//! `servers`: the configured servers of the Model Context Protocol, with their tools.

use meerkat_tools::servers::{ServerState, ServerStatus};
use serde_json::{Value, json};

use super::local::print;
use crate::{
    app::App,
    args::{ServersArgs, ServersCommand},
    error::CliError,
};

/// `servers`: lists all, or starts one and shows its tools.
pub(crate) async fn servers(app: &App, args: &ServersArgs) -> Result<u8, CliError> {
    let servers = &app.servers;
    let Some(ServersCommand::Check { name, accept }) = &args.command else {
        let items: Vec<Value> = servers.status().iter().map(row).collect();
        if items.is_empty() {
            app.out.note(
                "No server is configured; docs/tools.md shows how: a table [servers.NAME] with a command or url.",
            );
        }
        return print(&app.out, &json!({ "items": items }));
    };
    let mut status = servers.check(name).await?;
    if *accept {
        status = servers.accept(name)?;
    }
    let tools = status.tools.iter().map(|tool| {
        json!({ "name": tool.name, "tokens": tool.tokens, "left_out": tool.quarantined, "description": tool.description })
    });
    let mut answer = row(&status);
    answer["tools"] = tools.collect();
    print(&app.out, &answer)?;
    Ok(u8::from(matches!(status.state, ServerState::Failed)))
}

/// A server in a list.
fn row(status: &ServerStatus) -> Value {
    let state = match status.state {
        ServerState::Configured => "not listed yet",
        ServerState::Listed => "listed",
        ServerState::Running { .. } => "running",
        ServerState::Failed => "failed",
    };
    json!({
        "server": status.name,
        "kind": status.kind,
        "state": state,
        "tools": status.tools.len(),
        "tokens": status.tokens,
        "error": status.last_error,
    })
}
