//! Hands: the tools of a workspace as one source. Sessions without a workspace have none of them.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use meerkat_service::{
    SessionError,
    model::ToolSpec,
    tool::{Access, Approval, Ask, Invocation, OutputSink, Plan, Tool, ToolError, ToolScope, ToolSet, ToolSource},
};

use crate::{
    FileAccess, ShellOptions, confine, file_tools,
    shell::{self, Named},
};

/// Tool that runs commands.
const SHELL: &str = "shell";
/// Names of all tools of a workspace.
pub(crate) const NAMES: [&str; 8] = ["read", "grep", "glob", "edit", "write", SHELL, "shell_output", "shell_stop"];

/// Options of a workspace's tools.
#[derive(Clone, Debug, Default)]
pub struct HandsOptions {
    /// What they may do.
    pub access: Access,
    /// Calls that need a decision.
    pub ask: Ask,
    /// Options of the commands.
    pub shell: ShellOptions,
}

/// Makes the tools of workspaces. Commands are among them only if the program's `main` begins with
/// [`launcher`](crate::launcher()).
///
/// # Errors
/// Returns an error if an option is out of its range.
pub fn hands(options: HandsOptions) -> Result<Arc<dyn ToolSource>, SessionError> {
    Ok(Arc::new(Hands { tools: ToolSet::new(workspace_tools(options)?), none: ToolSet::default() }))
}

/// Makes the tools of workspaces as a list, for a program that calls them itself.
///
/// # Errors
/// Returns an error if an option is out of its range.
pub fn workspace_tools(options: HandsOptions) -> Result<Vec<Arc<dyn Tool>>, SessionError> {
    let HandsOptions { access, ask, shell } = options;
    let mut tools = match access {
        Access::Off => Vec::new(),
        Access::Read => file_tools(FileAccess::Read)?,
        Access::Write => file_tools(FileAccess::Write)?,
    };
    let mut named = None;
    if access == Access::Write {
        let (commands, paths) = shell::tools(shell)?;
        tools.extend(commands);
        named = paths;
    }
    let asking = |tool| -> Arc<dyn Tool> { Arc::new(Asking { tool, ask, named: named.clone() }) };
    Ok(tools.into_iter().map(asking).collect())
}

/// Source of the tools.
struct Hands {
    tools: ToolSet,
    none: ToolSet,
}

#[async_trait]
impl ToolSource for Hands {
    fn tools(&self, scope: &ToolScope<'_>) -> ToolSet {
        if scope.workspace.is_some() { self.tools.clone() } else { self.none.clone() }
    }

    fn may_offer(&self, name: &str) -> bool {
        NAMES.contains(&name)
    }

    fn origin(&self, _: &str) -> String {
        "workspace".to_owned()
    }
}

/// Tool that asks as often as it is configured, and for each change of a file that git's configuration names.
struct Asking {
    tool: Arc<dyn Tool>,
    ask: Ask,
    named: Option<Named>,
}

impl Asking {
    fn asking(&self, plan: Plan) -> Plan {
        let runs = match self.ask {
            Ask::Always | Ask::Changes => false,
            // A command that escapes its confinement always asks.
            Ask::Escapes => self.spec().name == SHELL,
            Ask::Never => true,
        };
        let approval = match plan.approval {
            Approval::Allow if self.ask == Ask::Always => Approval::Ask,
            Approval::Ask if runs && !plan.always_asks => Approval::Allow,
            own => own,
        };
        Plan { approval, ..plan }
    }

    /// Returns true if the plan changes a file that git or another program obeys because git's configuration names it, or
    /// because a link leads to it.
    async fn changes_what_is_obeyed(&self, invocation: &Invocation, plan: &Plan) -> bool {
        let (Some(named), Some(workspace)) = (&self.named, invocation.workspace.clone()) else { return false };
        if plan.always_asks || plan.files.is_empty() {
            return false;
        }
        // What cannot be found out may be so.
        let Ok(paths) = named.of(invocation.session_id, &workspace).await else { return true };
        let files: Vec<PathBuf> = plan.files.iter().map(|file| workspace.join(&file.path)).collect();
        let obeyed = tokio::task::spawn_blocking(move || confine::obeyed(&workspace, paths)).await;
        let Ok(Ok(obeyed)) = obeyed else { return true };
        obeyed.iter().any(|path| files.iter().any(|file| file.starts_with(path)))
    }
}

#[async_trait]
impl Tool for Asking {
    fn spec(&self) -> &ToolSpec {
        self.tool.spec()
    }

    fn has_checked_schema(&self) -> bool {
        // Tests check it.
        true
    }

    fn usual_plan(&self) -> Option<Plan> {
        self.tool.usual_plan().map(|plan| self.asking(plan))
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        let mut plan = self.tool.plan(invocation).await?;
        if self.changes_what_is_obeyed(invocation, &plan).await {
            (plan.always_asks, plan.rule) = (true, None);
        }
        Ok(self.asking(plan))
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        self.tool.call(invocation, output).await
    }
}

#[cfg(test)]
mod tests {
    use meerkat_service::tool::check_schema;

    use super::*;

    #[test]
    fn tools_are_offered_by_access() {
        let names = |access| -> Vec<String> {
            file_tools(access).unwrap().iter().map(|tool| tool.spec().name.clone()).collect()
        };
        assert_eq!(names(FileAccess::Read), ["read", "grep", "glob"]);
        assert_eq!(names(FileAccess::Write), ["read", "grep", "glob", "edit", "write"]);
        for tool in file_tools(FileAccess::Write).unwrap() {
            assert_eq!(check_schema(&tool.spec().schema), Ok(()), "a start does not check it");
        }
    }
}
