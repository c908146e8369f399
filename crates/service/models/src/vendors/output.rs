//! Answers by a schema: in the vendor's own mode, or by the call of a tool.
//!
//! The schema goes out as it is. The engine checks every answer, whatever a vendor makes of it.

use std::sync::Arc;

use genai::{
    adapter::AdapterKind,
    chat::{ChatOptions, JsonSpec},
};
use meerkat_errors::ErrorCode;
use meerkat_words::output::{ANSWER_TOOL, ANSWER_TOOL_DESCRIPTION, OutputSpec};
use serde_json::{Map, Value, json};

use super::{Api, family::Family};
use crate::{AnswerBlock, ModelAnswer, ModelError, ModelRequest, StopReason, ToolSpec};

/// Keywords that OpenAI's strict mode and Anthropic's only mode both take.
const KEYWORDS: [&str; 10] = [
    "type",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "enum",
    "const",
    "anyOf",
    "title",
    "description",
];

/// How a request asks for an answer by a schema.
pub(super) enum Asked {
    /// In the vendor's own mode.
    ByMode(Format),
    /// By a tool, which is among the request's tools.
    ByTool,
}

/// Schema as a vendor's own mode takes it.
pub(super) struct Format {
    name: String,
    schema: Value,
}

/// Decides how a request asks for its answer, and adds the tool if it is by one.
///
/// # Errors
/// `MODEL_REJECTED` for a schema with a number that no wire format can carry.
pub(super) fn ask(request: &mut ModelRequest, api: Api, family: Family) -> Result<Option<Asked>, ModelError> {
    let Some(output) = request.output.clone() else { return Ok(None) };
    let schema = output.schema.decode::<Value>().map_err(|error| {
        ModelError::new(ErrorCode::ModelRejected, format!("the schema of the answer cannot be sent: {error}"))
    })?;
    // Anthropic's mode refuses what it cannot hold a model to; its tools take every schema.
    let is_taken = api != Api::Anthropic || is_plain(&schema, false);
    if family.has_output_mode(!request.tools.is_empty()) && is_taken {
        return Ok(Some(Asked::ByMode(Format { name: output.name().to_owned(), schema })));
    }
    // At the end: what a vendor has cached of the other tools stays valid.
    request.tools = request.tools.iter().cloned().chain([tool(&output)]).collect();
    Ok(Some(Asked::ByTool))
}

fn tool(output: &Arc<OutputSpec>) -> ToolSpec {
    let (name, description) = (ANSWER_TOOL.to_owned(), ANSWER_TOOL_DESCRIPTION.to_owned());
    ToolSpec { name, description, schema: output.schema.clone() }
}

impl Format {
    /// Adds it to the options of a request.
    pub(super) fn add_to(self, mut options: ChatOptions, adapter: AdapterKind) -> ChatOptions {
        let Self { name, schema } = self;
        // genai would make optional properties required ones.
        let is_strict = is_plain(&schema, true);
        let (key, format) = match adapter {
            AdapterKind::OpenAIResp => {
                let format = json!({ "type": "json_schema", "name": name, "strict": is_strict, "schema": schema });
                ("text", json!({ "format": format }))
            }
            AdapterKind::OpenAI => {
                let format = json!({ "name": name, "strict": is_strict, "schema": schema });
                ("response_format", json!({ "type": "json_schema", "json_schema": format }))
            }
            _ => return options.with_response_format(JsonSpec::new(name, schema)),
        };
        let mut body = options.extra_body.take().unwrap_or_else(|| json!({}));
        body[key] = format;
        options.with_extra_body(body)
    }
}

/// Returns true if a schema has only keywords that vendors hold their models to, and allows no other properties. For
/// `is_strict` it says so itself, and requires all properties.
fn is_plain(schema: &Value, is_strict: bool) -> bool {
    let Value::Object(fields) = schema else { return false };
    let is_part = |part: &Value| is_plain(part, is_strict);
    let is_plain_at = |(key, value): (&String, &Value)| match key.as_str() {
        "properties" => value.as_object().is_some_and(|named| named.values().all(is_part)),
        "anyOf" => value.as_array().is_some_and(|parts| parts.iter().all(is_part)),
        "items" => is_part(value),
        "additionalProperties" => *value == Value::Bool(false),
        key => KEYWORDS.contains(&key),
    };
    let is_object = fields.get("type").is_some_and(|kind| kind == "object") || fields.contains_key("properties");
    fields.iter().all(is_plain_at) && (!is_strict || !is_object || is_closed(fields))
}

/// Returns true if a schema of an object requires all its properties, and allows no others.
fn is_closed(fields: &Map<String, Value>) -> bool {
    let required = fields.get("required").and_then(Value::as_array);
    let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|required| required == name));
    let mut names = fields.get("properties").and_then(Value::as_object).into_iter().flat_map(|named| named.keys());
    fields.contains_key("additionalProperties") && names.all(is_required)
}

/// Makes the answer's text of the calls of the tool.
pub(super) fn said(mut answer: ModelAnswer) -> ModelAnswer {
    for block in &mut answer.blocks {
        if let AnswerBlock::ToolCall(call) = block
            && call.name == ANSWER_TOOL
        {
            // Malformed arguments are a JSON string of what the model wrote.
            let text = call.arguments.decode().unwrap_or_else(|_| call.arguments.as_str().to_owned());
            *block = AnswerBlock::Text(text);
        }
    }
    let calls = answer.blocks.iter().any(|block| matches!(block, AnswerBlock::ToolCall(_)));
    if answer.stop_reason == StopReason::ToolUse && !calls {
        answer.stop_reason = StopReason::EndTurn;
    }
    answer
}
