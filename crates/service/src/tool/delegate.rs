//! Tool by which a model starts a sub-agent. Its calls never run as other calls do: the engine starts a session for each
//! (`agent/delegate.rs`).

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;

use super::{DELEGATE, Invocation, OutputSink, Plan, Tool, ToolError, check_answer_schema};
use crate::{SessionError, model::ToolSpec, options::Budgets, output::OutputSpec, session::message::RawJson};

const DESCRIPTION: &str = "Has a sub-agent do a part of the work in a session of its own, and returns its last answer. It \
                           knows nothing of this conversation. Calls of one message work at the same time. Its budget \
                           comes out of yours.";

const SCHEMA: &str = r#"{"type":"object","properties":{
"prompt":{"type":"string","minLength":1,"description":"The whole task, and what to answer."},
"agent":{"type":"string","description":"Name of the agent that it is, of those that a reminder lists."},
"tools":{"type":"array","items":{"type":"string"},"description":"Tools that it may use, of yours; all of them if left out."},
"budget":{"type":"object","properties":{"tokens":{"type":"integer","minimum":1},"steps":{"type":"integer","minimum":1},
"tool_calls":{"type":"integer","minimum":0},"wall_ms":{"type":"integer","minimum":1},"agents":{"type":"integer","minimum":0},
"cost":{"type":"object","properties":{"amount":{"type":"string"},"currency":{"const":"USD"}},"required":["amount","currency"]}},
"additionalProperties":false,"description":"The most that it may use; a share of what is left if left out."},
"output":{"type":"object","description":"JSON Schema that its answer must fit."}
},"required":["prompt"],"additionalProperties":false}"#;

/// Sub-agent that a call asks for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    pub(crate) prompt: String,
    #[serde(default)]
    pub(crate) agent: Option<String>,
    #[serde(default)]
    pub(crate) tools: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) budget: Budgets,
    #[serde(default)]
    pub(crate) output: Option<RawJson>,
}

/// `delegate`.
pub(crate) struct Delegate {
    spec: ToolSpec,
}

impl Delegate {
    /// Makes the tool.
    ///
    /// # Errors
    /// If its schema is not valid.
    pub(crate) fn new() -> Result<Arc<Self>, SessionError> {
        let (name, description) = (DELEGATE.to_owned(), DESCRIPTION.to_owned());
        let spec = ToolSpec { name, description, schema: RawJson::parse(SCHEMA)? };
        Ok(Arc::new(Self { spec }))
    }
}

#[async_trait]
impl Tool for Delegate {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn has_checked_schema(&self) -> bool {
        // A test checks it.
        true
    }

    fn usual_plan(&self) -> Option<Plan> {
        // The call itself changes nothing, and each call of the sub-agent is judged by its own plan.
        Some(Plan::read_only())
    }

    async fn plan(&self, invocation: &Invocation) -> Result<Plan, ToolError> {
        let wanted: Wanted = ToolError::decode(&invocation.arguments)?;
        let arguments = |error: SessionError| ToolError::Arguments(error.to_string());
        wanted.budget.check().map_err(arguments)?;
        if let Some(schema) = wanted.output {
            OutputSpec::new(schema.clone()).check().map_err(arguments)?;
            check_answer_schema(&schema).map_err(|why| ToolError::Arguments(format!("output: {why}")))?;
        }
        Ok(Plan::read_only())
    }

    async fn call(&self, _: Invocation, _: &OutputSink) -> Result<(), ToolError> {
        Err(ToolError::Refused("The engine starts sub-agents.".to_owned()))
    }
}
