//! Tools, prompts and resources that the suite expects, to the letter.
//!
//! The texts are from the suite's own description of each scenario.

use rmcp::{ErrorData, model::JsonObject};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A picture of one red pixel.
const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
/// A sound of no samples.
const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQAAAAA=";

/// Data as a type of the protocol.
pub(crate) fn read<T: DeserializeOwned>(data: Value) -> Result<T, ErrorData> {
    serde_json::from_value(data)
        .map_err(|error| ErrorData::internal_error(format!("a fixture is wrong: {error}"), None))
}

/// The list of tools.
pub(crate) fn tools() -> Vec<Value> {
    let tool = |name: &str, schema: Value| json!({ "name": name, "description": name, "inputSchema": schema });
    let asking = |argument: &str| json!({ "type": "object", "properties": { argument: { "type": "string" } }, "required": [argument] });
    let plain = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_error_handling",
        "test_tool_with_logging",
        "test_logging_tool",
        "test_tool_with_progress",
        "test_reconnection",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_trigger_tool_change",
        "test_trigger_prompt_change",
        "test_missing_capability",
        "test_streaming_elicitation",
        "test_input_required_result_elicitation",
        "test_input_required_result_sampling",
        "test_input_required_result_list_roots",
        "test_input_required_result_request_state",
        "test_input_required_result_multiple_inputs",
        "test_input_required_result_multi_round",
        "test_input_required_result_tampered_state",
        "test_input_required_result_capabilities",
    ];
    let mut tools: Vec<Value> = plain.iter().map(|name| tool(name, json!({ "type": "object" }))).collect();
    tools.push(tool("test_sampling", asking("prompt")));
    tools.push(tool("test_elicitation", asking("message")));
    tools.push(tool("json_schema_2020_12_tool", schema_2020_12()));
    let region = json!({ "type": "string", "x-mcp-header": "Region" });
    tools.push(tool("test_header_parameter", json!({ "type": "object", "properties": { "region": region } })));
    tools
}

/// A schema with the keywords that a server must not drop.
fn schema_2020_12() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": { "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
        } },
        "properties": {
            "name": { "type": "string" },
            "address": { "$ref": "#/$defs/address" },
            "contactMethod": { "type": "string", "enum": ["phone", "email"] },
            "phone": { "type": "string" },
            "email": { "type": "string" },
        },
        "allOf": [{ "anyOf": [{ "required": ["phone"] }, { "required": ["email"] }] }],
        "if": { "properties": { "contactMethod": { "const": "phone" } }, "required": ["contactMethod"] },
        "then": { "required": ["phone"] },
        "else": { "required": ["email"] },
        "additionalProperties": false,
    })
}

/// A text as content.
pub(crate) fn text(text: impl Into<String>) -> Value {
    json!({ "type": "text", "text": text.into() })
}

fn image() -> Value {
    json!({ "type": "image", "data": PNG, "mimeType": "image/png" })
}

fn embedded(uri: &str, mime_type: &str, text: &str) -> Value {
    json!({ "type": "resource", "resource": { "uri": uri, "mimeType": mime_type, "text": text } })
}

/// The answer of a tool that only answers.
pub(crate) fn answer(tool: &str) -> Option<Value> {
    let content = match tool {
        "test_simple_text" => json!([text("This is a simple text response for testing.")]),
        "test_image_content" => json!([image()]),
        "test_audio_content" => json!([{ "type": "audio", "data": WAV, "mimeType": "audio/wav" }]),
        "test_embedded_resource" => {
            json!([embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")])
        }
        "test_multiple_content_types" => json!([
            text("Multiple content types test:"),
            image(),
            embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ]),
        "test_error_handling" => {
            let content = [text("This tool intentionally returns an error for testing")];
            return Some(json!({ "content": content, "isError": true }));
        }
        "json_schema_2020_12_tool" | "test_header_parameter" => json!([text("Called.")]),
        _ => return None,
    };
    Some(json!({ "content": content }))
}

/// The question of a tool to the client during a call, in revisions in which a server may ask.
pub(crate) fn question(tool: &str, arguments: &JsonObject) -> Option<Value> {
    let form = |message: &Value, schema: Value| json!({ "method": "elicitation/create", "params": { "message": message, "requestedSchema": schema } });
    let choices = |first: &str, second: &str, third: &str| {
        let titled = [("value1", first), ("value2", second), ("value3", third)];
        titled.map(|(value, title)| json!({ "const": value, "title": title }))
    };
    Some(match tool {
        "test_sampling" => {
            let message = json!({ "role": "user", "content": { "type": "text", "text": arguments.get("prompt")? } });
            json!({ "method": "sampling/createMessage", "params": { "messages": [message], "maxTokens": 100 } })
        }
        "test_elicitation" => {
            let properties = json!({
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            });
            let schema = json!({ "type": "object", "properties": properties, "required": ["username", "email"] });
            form(arguments.get("message")?, schema)
        }
        "test_elicitation_sep1034_defaults" => {
            let statuses = ["active", "inactive", "pending"];
            let properties = json!({
                "name": { "type": "string", "default": "John Doe" },
                "age": { "type": "integer", "default": 30 },
                "score": { "type": "number", "default": 95.5 },
                "status": { "type": "string", "enum": statuses, "default": "active" },
                "verified": { "type": "boolean", "default": true },
            });
            form(&json!("Every value has a default"), json!({ "type": "object", "properties": properties }))
        }
        "test_elicitation_sep1330_enums" => {
            let plain = ["option1", "option2", "option3"];
            let names = ["Option One", "Option Two", "Option Three"];
            let titled = choices("First Option", "Second Option", "Third Option");
            let many = choices("First Choice", "Second Choice", "Third Choice");
            let properties = json!({
                "untitledSingle": { "type": "string", "enum": plain },
                "titledSingle": { "type": "string", "oneOf": titled },
                "legacyEnum": { "type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names },
                "untitledMulti": { "type": "array", "items": { "type": "string", "enum": plain } },
                "titledMulti": { "type": "array", "items": { "anyOf": many } },
            });
            form(&json!("Choose"), json!({ "type": "object", "properties": properties }))
        }
        _ => return None,
    })
}

/// The list of prompts.
pub(crate) fn prompts() -> Value {
    let prompt = |name: &str, arguments: &[&str]| {
        let argument = |name: &&str| json!({ "name": name, "description": name, "required": true });
        let arguments: Vec<Value> = arguments.iter().map(argument).collect();
        json!({ "name": name, "description": name, "arguments": arguments })
    };
    json!([
        prompt("test_simple_prompt", &[]),
        prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
        prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
        prompt("test_prompt_with_image", &[]),
        prompt("test_input_required_result_prompt", &[]),
    ])
}

/// The messages of a prompt.
pub(crate) fn prompt(name: &str, arguments: &JsonObject) -> Option<Value> {
    let argument = |name: &str| arguments.get(name).and_then(Value::as_str);
    let contents = match name {
        "test_simple_prompt" => vec![text("This is a simple prompt for testing.")],
        "test_prompt_with_arguments" => {
            let (first, second) = (argument("arg1")?, argument("arg2")?);
            vec![text(format!("Prompt with arguments: arg1='{first}', arg2='{second}'"))]
        }
        "test_prompt_with_embedded_resource" => vec![
            embedded(argument("resourceUri")?, "text/plain", "Embedded resource content for testing."),
            text("Please process the embedded resource above."),
        ],
        "test_prompt_with_image" => vec![image(), text("Please analyze the image above.")],
        _ => return None,
    };
    let messages: Vec<Value> =
        contents.into_iter().map(|content| json!({ "role": "user", "content": content })).collect();
    Some(json!({ "messages": messages }))
}

/// The list of resources.
pub(crate) fn resources() -> Value {
    let resource = |uri: &str, name: &str, mime_type: &str| json!({ "uri": uri, "name": name, "description": name, "mimeType": mime_type });
    json!([
        resource("test://static-text", "static-text", "text/plain"),
        resource("test://static-binary", "static-binary", "image/png"),
        resource("test://watched-resource", "watched-resource", "text/plain"),
    ])
}

/// The resources that have a part of their URI in common.
pub(crate) fn templates() -> Value {
    json!([{ "uriTemplate": "test://template/{id}/data", "name": "template", "mimeType": "application/json" }])
}

/// The contents of a resource.
pub(crate) fn resource(uri: &str) -> Option<Value> {
    let content = match uri {
        "test://static-text" => {
            json!({ "uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource." })
        }
        "test://static-binary" => json!({ "uri": uri, "mimeType": "image/png", "blob": PNG }),
        "test://watched-resource" => json!({ "uri": uri, "mimeType": "text/plain", "text": "Watched." }),
        _ => {
            let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
            let data = json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
            json!({ "uri": uri, "mimeType": "application/json", "text": data.to_string() })
        }
    };
    Some(json!({ "contents": [content] }))
}
