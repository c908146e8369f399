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
    if is_by_mode(request, &schema, api, family) {
        return Ok(Some(Asked::ByMode(Format { name: output.name().to_owned(), schema })));
    }
    // At the end: what a vendor has cached of the other tools stays valid.
    request.tools = request.tools.iter().cloned().chain([tool(&output)]).collect();
    Ok(Some(Asked::ByTool))
}

/// Returns true if a request asks for its answer in the vendor's own mode.
pub(super) fn asks_by_mode(request: &ModelRequest, api: Api, family: Family) -> bool {
    let schema = request.output.as_ref().and_then(|output| output.schema.decode().ok());
    schema.is_some_and(|schema| is_by_mode(request, &schema, api, family))
}

fn is_by_mode(request: &ModelRequest, schema: &Value, api: Api, family: Family) -> bool {
    // Anthropic's mode refuses what it cannot hold a model to; its tools take every schema.
    let is_taken = api != Api::Anthropic || is_plain(schema, is_whole);
    family.has_output_mode(!request.tools.is_empty()) && is_taken && !request.answers_by_tool
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
        let is_strict = is_plain(&schema, is_closed);
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

/// Returns true if a schema has only keywords that vendors hold their models to, allows no properties by a schema, and
/// `takes_object` is true of each of its objects.
fn is_plain(schema: &Value, takes_object: fn(&Map<String, Value>) -> bool) -> bool {
    let Value::Object(fields) = schema else { return false };
    let is_part = |part: &Value| is_plain(part, takes_object);
    let is_plain_at = |(key, value): (&String, &Value)| match key.as_str() {
        "properties" => value.as_object().is_some_and(|named| named.values().all(is_part)),
        "anyOf" => value.as_array().is_some_and(|parts| parts.iter().all(is_part)),
        "items" => is_part(value),
        "additionalProperties" => *value == Value::Bool(false),
        key => KEYWORDS.contains(&key),
    };
    let kinds =
        fields.get("type").map_or(&[][..], |kind| kind.as_array().map_or(std::slice::from_ref(kind), Vec::as_slice));
    let is_object = kinds.iter().any(|kind| kind == "object") || fields.contains_key("properties");
    fields.iter().all(is_plain_at) && (!is_object || takes_object(fields))
}

/// Returns true if a schema of an object requires all its properties, and allows no others.
fn is_closed(fields: &Map<String, Value>) -> bool {
    let required: Vec<&Value> = fields.get("required").and_then(Value::as_array).into_iter().flatten().collect();
    fields.contains_key("additionalProperties") && names(fields).all(|name| required.iter().any(|it| *it == name))
}

/// Returns true if a schema of an object names all that it has to have, so that it may allow no others: an object that is
/// free would be an empty one.
fn is_whole(fields: &Map<String, Value>) -> bool {
    let mut required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
    let are_named = required.all(|required| names(fields).any(|name| required == name));
    fields.contains_key("additionalProperties") || (are_named && names(fields).next().is_some())
}

/// The names of an object's properties.
fn names(fields: &Map<String, Value>) -> impl Iterator<Item = &String> {
    fields.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::keys)
}

/// Makes the answer's text of the calls of the tool.
pub(super) fn said(mut answer: ModelAnswer) -> ModelAnswer {
    let is_answer = |block: &AnswerBlock| matches!(block, AnswerBlock::ToolCall(call) if call.name == ANSWER_TOOL);
    let is_call = |block: &AnswerBlock| matches!(block, AnswerBlock::ToolCall(_));
    if !answer.blocks.iter().any(|block| is_call(block) && !is_answer(block)) {
        // The last text counts, so what was said behind the call comes before it.
        answer.blocks.sort_by_key(is_answer);
        if answer.stop_reason == StopReason::ToolUse {
            answer.stop_reason = StopReason::EndTurn;
        }
    }
    for block in &mut answer.blocks {
        if let AnswerBlock::ToolCall(call) = block
            && call.name == ANSWER_TOOL
        {
            // Malformed arguments are a JSON string of what the model wrote.
            let text = call.arguments.decode().unwrap_or_else(|_| call.arguments.as_str().to_owned());
            *block = AnswerBlock::Text(text);
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use meerkat_words::message::{RawJson, ToolCall};

    use super::*;
    use crate::Usage;

    fn call(name: &str, arguments: &str) -> AnswerBlock {
        let (call_id, name, arguments) = (String::new(), name.to_owned(), RawJson::parse(arguments).unwrap());
        AnswerBlock::ToolCall(ToolCall { call_id, name, arguments, opaque: None })
    }

    fn text(text: &str) -> AnswerBlock {
        AnswerBlock::Text(text.to_owned())
    }

    /// Broken once: what was said behind the call was taken for the answer, and refused.
    #[test]
    fn the_call_is_the_last_text_whatever_is_said_behind_it() {
        let blocks = vec![text("Here."), call(ANSWER_TOOL, r#"{"n":1}"#), text("Done.")];
        let answer = said(ModelAnswer { blocks, stop_reason: StopReason::ToolUse, usage: Usage::default() });
        let texts = [text("Here."), text("Done."), text(r#"{"n":1}"#)];
        assert_eq!(format!("{:?}", answer.blocks), format!("{texts:?}"));
        assert_eq!(answer.stop_reason, StopReason::EndTurn);
        let blocks = vec![call(ANSWER_TOOL, r#""{cut""#), call("look", "{}")];
        let answer = said(ModelAnswer { blocks, stop_reason: StopReason::ToolUse, usage: Usage::default() });
        assert_eq!(format!("{:?}", answer.blocks), format!("{:?}", [text("{cut"), call("look", "{}")]));
        assert_eq!(answer.stop_reason, StopReason::ToolUse);
    }
}
