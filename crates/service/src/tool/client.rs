//! Tools that the caller runs: the engine checks and requests their calls, and runs nothing.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use meerkat_words::calls::ClientTool;
use sha2::{Digest as _, Sha256};

use super::{
    Approval, DELEGATE, Effect, Invocation, OutputSink, PIN_FACT, Plan, READ_BLOB, SEARCH_TOOLS, Tool, ToolError,
    ToolSet,
};
use crate::{ids::Seq, model::ToolSpec, redact::Secrets, store::hex};

/// Names that no caller's tool may have, because the engine itself offers such a tool, or may.
pub(super) const RESERVED: &[&str] = &[DELEGATE, PIN_FACT, READ_BLOB, SEARCH_TOOLS];

/// Set of tools that a session's caller runs, as an event defined it.
pub struct ClientTools {
    /// The event that holds it.
    pub seq: Seq,
    /// Its hash.
    pub hash: String,
    tools: Arc<[ClientTool]>,
    /// Made when it is offered first, and shared by all that hold this set: a schema is compiled once.
    set: OnceLock<ToolSet>,
}

impl ClientTools {
    /// The set that an event holds.
    pub(crate) fn new(seq: Seq, hash: String, tools: Vec<ClientTool>) -> Self {
        Self { seq, hash, tools: tools.into(), set: OnceLock::new() }
    }

    /// Hashes a set. Without a set there are no tools.
    pub(crate) fn hash_of(tools: &[ClientTool]) -> String {
        hex(&Sha256::digest(serde_json::to_vec(tools).unwrap_or_default()))
    }

    /// Replaces secrets in what a model reads.
    pub(crate) fn clean(tools: &[ClientTool], secrets: &Secrets) -> Vec<ClientTool> {
        let clean = |tool: &ClientTool| ClientTool {
            description: secrets.replace(&tool.description).into_owned(),
            input_schema: secrets.replace_json(&tool.input_schema),
            ..tool.clone()
        };
        tools.iter().map(clean).collect()
    }

    /// Finds a tool by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ClientTool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// Bytes that it holds in memory, roughly.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |tool: &ClientTool| {
            size_of::<ClientTool>() + tool.name.len() + tool.description.len() + tool.input_schema.as_str().len()
        };
        self.tools.iter().map(bytes).sum::<usize>() as u64
    }

    /// Returns the tools as a step offers them; `None` if there are none.
    pub(super) fn set(&self) -> Option<&ToolSet> {
        let tool = |tool: &ClientTool| Arc::new(OfClient::new(tool)) as Arc<dyn Tool>;
        let set = || ToolSet::new(self.tools.iter().map(tool).collect()).of_client();
        (!self.tools.is_empty()).then(|| self.set.get_or_init(set))
    }
}

impl fmt::Debug for ClientTools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTools").field("seq", &self.seq).field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl PartialEq for ClientTools {
    fn eq(&self, other: &Self) -> bool {
        (self.seq, &self.hash, &self.tools) == (other.seq, &other.hash, &other.tools)
    }
}

/// Tool of a caller, as rules and plans see it.
struct OfClient {
    spec: ToolSpec,
    effect: Effect,
}

impl OfClient {
    fn new(tool: &ClientTool) -> Self {
        let ClientTool { name, description, input_schema: schema, effect, .. } = tool.clone();
        Self { spec: ToolSpec { name, description, schema }, effect }
    }
}

#[async_trait]
impl Tool for OfClient {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn has_checked_schema(&self) -> bool {
        true
    }

    fn usual_plan(&self) -> Option<Plan> {
        Some(Plan::new(self.effect, Approval::Allow))
    }

    async fn call(&self, _: Invocation, _: &OutputSink) -> Result<(), ToolError> {
        Err(ToolError::Refused("its caller runs this tool".to_owned()))
    }
}
