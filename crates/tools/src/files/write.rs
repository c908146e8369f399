//! `write`: makes a file, or replaces one whole that the session has read.

use std::sync::Arc;

use meerkat_service::{
    SessionError,
    tool::{ChangeLog, Effect, Invocation, Plan, ToolError},
};
use serde::Deserialize;

use super::{
    change::{Changes, FILE_BYTES_MAX, Target},
    common::{Change, spec},
    diff, marks,
    path::Workspace,
};

const DESCRIPTION: &str = "Makes a file in the workspace with this content, and the folders it needs. An existing \
                           file is replaced whole, and must have been read first; to change a part of it use edit.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"path":{"type":"string","minLength":1,"maxLength":4096,"description":"Path of the file, relative to the workspace."},
"content":{"type":"string","description":"Its whole content."}
},"required":["path","content"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    path: String,
    content: String,
}

/// Makes `write`.
pub(super) fn tool(changes: Arc<Changes>) -> Result<Change, SessionError> {
    Ok(Change { spec: spec("write", DESCRIPTION, SCHEMA)?, usual: Plan::idempotent().ask(), changes, plan, call })
}

fn plan(changes: &Changes, invocation: &Invocation) -> Result<Plan, ToolError> {
    let arguments = ToolError::decode(&invocation.arguments)?;
    let target = target(changes, &Workspace::open(invocation)?, invocation, &arguments)?;
    Ok(Changes::plan(Effect::Idempotent, "write", &target, &arguments.content))
}

fn call(changes: &Changes, invocation: &Invocation, log: &ChangeLog) -> Result<String, ToolError> {
    let arguments: Arguments = ToolError::decode(&invocation.arguments)?;
    let workspace = Workspace::open(invocation)?;
    let _lock = changes.lock(&workspace, &workspace.inside(&arguments.path)?);
    let target = target(changes, &workspace, invocation, &arguments)?;
    if target.holds(&arguments.content) {
        return Ok(format!("{} has this content already.\n", target.path));
    }
    changes.commit(&workspace, (invocation, log), &target, arguments.content.as_bytes())?;
    Ok(answer(&target, &arguments.content))
}

/// Finds the file, and refuses to replace one that the session does not know.
fn target(
    changes: &Changes,
    workspace: &Workspace,
    invocation: &Invocation,
    arguments: &Arguments,
) -> Result<Target, ToolError> {
    marks::refuse("content", &arguments.content)?;
    let (bytes, most) = (arguments.content.len(), FILE_BYTES_MAX);
    if bytes as u64 > most {
        return Err(ToolError::Refused(format!("`content` has {bytes} bytes; a file may have {most}.")));
    }
    let target = changes.target(workspace, &arguments.path)?;
    if target.holds(&arguments.content) {
        // A call that is repeated after a crash may find its own work.
        return Ok(target);
    }
    let is_seen = changes.is_seen(workspace, invocation, &target)?;
    if target.found.is_some() && !is_seen {
        let message = format!("{} exists, and this session has not read it; read it first, or use edit.", target.path);
        return Err(ToolError::Refused(message));
    }
    Ok(target)
}

fn answer(target: &Target, content: &str) -> String {
    let (path, lines, bytes) = (&target.path, content.lines().count(), content.len());
    let Some(found) = &target.found else { return format!("Made {path}: {lines} lines, {bytes} bytes.\n") };
    let (added, removed) = diff::counts(&String::from_utf8_lossy(&found.bytes), content);
    format!("Replaced {path}: {lines} lines, {bytes} bytes; {added} lines added, {removed} removed.\n")
}
