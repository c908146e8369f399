//! Tool by which a model pins a fact of its own session, and the source that offers it in workspaces.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use serde::Deserialize;

use super::sessions::{Inner, Sessions};
use crate::{
    SessionError,
    model::ToolSpec,
    session::message::RawJson,
    tool::{ENGINE, Invocation, OutputSink, PIN_FACT, Plan, Tool, ToolError, ToolScope, ToolSet, ToolSource},
};

const DESCRIPTION: &str = "Pins a fact: it stays in your context word for word, whatever else is summarised. For the few \
                           things that must not be lost, such as decisions and constraints; keep it short.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"text":{"type":"string","minLength":1,"description":"The fact, understandable by itself."}
},"required":["text"],"additionalProperties":false}"#;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    text: String,
}

/// `pin_fact`.
pub(crate) struct PinFact {
    spec: ToolSpec,
    /// The service, which is made of its tools and so comes later. Weak: a tool does not keep it alive.
    service: OnceLock<Weak<Inner>>,
}

impl PinFact {
    /// Makes the tool. It pins nothing before [`Self::serve`].
    ///
    /// # Errors
    /// If its schema is not valid.
    pub(crate) fn new() -> Result<Arc<Self>, SessionError> {
        let (name, description) = (PIN_FACT.to_owned(), DESCRIPTION.to_owned());
        let spec = ToolSpec { name, description, schema: RawJson::parse(SCHEMA)? };
        Ok(Arc::new(Self { spec, service: OnceLock::new() }))
    }

    /// Sets the service whose sessions it pins facts of.
    pub(crate) fn serve(&self, service: &Sessions) {
        self.service.get_or_init(|| Arc::downgrade(&service.inner));
    }
}

#[async_trait]
impl Tool for PinFact {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn has_checked_schema(&self) -> bool {
        // A test checks it.
        true
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::idempotent())
    }

    async fn call(&self, invocation: Invocation, output: &OutputSink) -> Result<(), ToolError> {
        let Arguments { text } = ToolError::decode(&invocation.arguments)?;
        let ended = || ToolError::Refused("The service has ended.".to_owned());
        let service = self.service.get().and_then(Weak::upgrade).map(Sessions::of).ok_or_else(ended)?;
        // A failed call has changed nothing, and its reason says what the model can do.
        let pinned = service.pin_in_turn(invocation.session_id, invocation.turn, &text).await;
        let pinned = pinned.map_err(|error| ToolError::Refused(error.to_string()))?;
        output.write(&format!("Pinned as {}.", pinned.seq)).await
    }
}

/// Source that offers the tool to sessions with a workspace.
pub(crate) struct PinsInWorkspaces {
    tool: ToolSet,
    none: ToolSet,
}

impl PinsInWorkspaces {
    pub(crate) fn new(tool: Arc<PinFact>) -> Self {
        Self { tool: ToolSet::new(vec![tool]), none: ToolSet::default() }
    }
}

#[async_trait]
impl ToolSource for PinsInWorkspaces {
    fn tools(&self, scope: &ToolScope<'_>) -> ToolSet {
        if scope.workspace.is_some() { self.tool.clone() } else { self.none.clone() }
    }

    fn may_offer(&self, name: &str) -> bool {
        name == PIN_FACT
    }

    fn origin(&self, _: &str) -> String {
        ENGINE.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        runtime::read_blob::ReadBlob,
        store::MemoryBlobStore,
        tool::{SearchTools, check_schema},
    };

    /// A start checks none of them.
    #[test]
    fn the_schemas_of_the_engines_own_tools_can_be_used() {
        let blobs = Arc::new(MemoryBlobStore::default());
        let tools: [Arc<dyn Tool>; 3] = [
            PinFact::new().unwrap(),
            Arc::new(ReadBlob::new(blobs, 1024).unwrap()),
            Arc::new(SearchTools::new().unwrap()),
        ];
        for tool in tools {
            assert!(tool.has_checked_schema());
            assert_eq!(check_schema(&tool.spec().schema), Ok(()), "{}", tool.spec().name);
        }
    }
}
