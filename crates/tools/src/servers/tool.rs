//! A server's tool as a tool of the engine.

use std::sync::Arc;

use async_trait::async_trait;
use meerkat_service::{
    model::ToolSpec,
    tool::{Approval, Effect, Invocation, OutputSink, Plan, Tool, ToolError},
};

use super::{
    answer::CallEnd,
    config::{Scope, ServerApproval},
    listing::Definition,
    server::Server,
};

/// Connections that a call tries: the second only if the server has not seen the call over the first.
const TRIES: usize = 2;
/// Bytes of a hash that a person is shown, in hexadecimal; few enough to read, too many to find another with them.
const SHOWN_HASH_BYTES: usize = 16;

/// Tool of a server.
pub(super) struct ServerTool {
    pub(super) server: Arc<Server>,
    pub(super) definition: Arc<Definition>,
}

impl ServerTool {
    /// Returns the effect: what the tool says of itself if its server is trusted.
    fn effect(&self) -> Effect {
        if !self.server.config.is_trusted() {
            Effect::Once
        } else if self.definition.says_read_only {
            Effect::ReadOnly
        } else if self.definition.says_idempotent {
            Effect::Idempotent
        } else {
            Effect::Once
        }
    }

    /// Names what an approval is for: the server and the tool as they are defined now, and the arguments. After a
    /// change of one of these, an approval no longer holds.
    fn preview(&self, arguments: &str) -> String {
        let [server, tool] = [&self.server.definition, &self.definition.hash];
        let short = |hash: &str| hash[..hash.floor_char_boundary(SHOWN_HASH_BYTES)].to_owned();
        format!(
            "server {} (definition {}), tool {} (definition {}):\n{arguments}",
            self.server.name,
            short(server),
            self.definition.remote,
            short(tool)
        )
    }

    fn approval(&self) -> Approval {
        let config = &self.server.config;
        config.tools.get(&self.definition.remote).copied().unwrap_or(match config.approval {
            ServerApproval::Allow => Approval::Allow,
            ServerApproval::Ask => Approval::Ask,
            ServerApproval::Deny => Approval::Deny,
            ServerApproval::Reads if self.definition.says_read_only => Approval::Allow,
            ServerApproval::Reads => Approval::Ask,
        })
    }
}

#[async_trait]
impl Tool for ServerTool {
    fn spec(&self) -> &ToolSpec {
        &self.definition.spec
    }

    fn has_checked_schema(&self) -> bool {
        // One that could not be used was not accepted.
        true
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::new(self.effect(), self.approval()))
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        self.server.check(&self.definition).map_err(ToolError::Refused)?;
        let mut plan = Plan::new(self.effect(), self.approval());
        plan.preview = Some(self.preview(invocation.arguments.as_str()));
        plan.rule = Some(self.definition.spec.name.clone());
        plan.timeout = Some(std::time::Duration::from_millis(self.server.config.call_timeout_ms));
        Ok(plan)
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let server = &self.server;
        let session = match server.config.scope {
            Scope::Process => None,
            Scope::Session => Some(invocation.session_id),
        };
        let cancel = &invocation.cancel;
        for _ in 0..TRIES {
            let used = tokio::select! {
                biased;
                () = cancel.cancelled() => return Err(ToolError::Cancelled),
                opened = server.open(session) => opened.map_err(ToolError::Refused)?,
            };
            // A start lists the tools again, so they may have changed since the plan.
            server.check(&self.definition).map_err(ToolError::Refused)?;
            let arguments = ToolError::decode(&invocation.arguments)?;
            match used.0.call(&self.definition.remote, arguments, cancel, output).await {
                Ok(()) => return Ok(()),
                Err(CallEnd::NotSent) => used.0.close(),
                Err(CallEnd::Failed(why)) => return Err(ToolError::Failed(why)),
                Err(CallEnd::Unknown(why)) => return Err(ToolError::Unknown(server.redact(&why))),
                Err(CallEnd::Output(error)) => return Err(error),
                Err(CallEnd::Stopped(true)) if self.effect() != Effect::ReadOnly => {
                    return Err(ToolError::Unknown(format!("The server {} was asked to stop it.", server.name)));
                }
                Err(CallEnd::Stopped(_)) => return Err(ToolError::Cancelled),
            }
        }
        Err(ToolError::Refused(format!("The server {} ended before it saw the call; try it again.", server.name)))
    }
}
