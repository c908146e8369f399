//! The vendors' documented rules. Every request of every test is checked by them.

use serde_json::{Value, json};

use crate::vendors::{KEY, replay::Request};

type Verdict = Result<(), String>;

fn need(holds: bool, rule: &str) -> Verdict {
    if holds { Ok(()) } else { Err(format!("refused: {rule}")) }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn kind(block: &Value) -> &str {
    block["type"].as_str().unwrap_or_default()
}

fn marks(value: &Value) -> usize {
    match value {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| usize::from(name == "cache_control") + marks(value)).sum()
        }
        Value::Array(items) => items.iter().map(marks).sum(),
        _ => 0,
    }
}

/// Checks a tool's name as vendors do in tools, calls and results.
fn name(name: &Value, others: &str) -> Verdict {
    let name = name.as_str().unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    need((1..=64).contains(&name.len()) && name.chars().all(is_allowed), &format!("the name {name:?}"))
}

pub(crate) fn anthropic(request: &Request) -> Verdict {
    let Request { path, headers, body } = request;
    need(path == "/v1/messages", "the path")?;
    need(headers.get("x-api-key").is_some_and(|key| key == KEY), "x-api-key")?;
    need(headers.get("anthropic-version").is_some_and(|version| version == "2023-06-01"), "anthropic-version")?;
    need(body["stream"] == true && body["max_tokens"].as_u64().is_some_and(|most| most > 0), "stream and max_tokens")?;
    items(&body["tools"]).iter().try_for_each(|tool| {
        name(&tool["name"], "_-")?;
        need(tool["input_schema"]["type"] == "object", "a schema is of an object")
    })?;
    need(marks(body) <= 4, "at most four cache marks")?;
    asked_of_anthropic(body)?;
    // The vendor joins adjacent messages of one role.
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in items(&body["messages"]) {
        let role = message["role"].as_str().unwrap_or_default();
        need(["user", "assistant"].contains(&role), "the roles are user and assistant")?;
        let text = message["content"].as_str().map(|text| vec![json!({"type": "text", "text": text})]);
        let blocks = text.unwrap_or_else(|| items(&message["content"]).to_vec());
        need(!blocks.is_empty(), "no message is empty")?;
        match turns.last_mut() {
            Some((last, all)) if *last == role => all.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    need(turns.first().is_some_and(|(role, _)| *role == "user"), "a user speaks first")?;
    need(turns.last().is_some_and(|(role, _)| *role == "user"), "a user speaks last")?;
    let mut open: Vec<&Value> = Vec::new();
    for (role, blocks) in &turns {
        let answered: Vec<&Value> = blocks.iter().take_while(|block| kind(block) == "tool_result").collect();
        let all_answers = blocks.iter().filter(|block| kind(block) == "tool_result").count();
        need(answered.len() == all_answers, "results come first in their message")?;
        let ids: Vec<&Value> = answered.iter().map(|block| &block["tool_use_id"]).collect();
        need(ids == open, "each tool_use has its tool_result in the next message, and no other")?;
        open = blocks.iter().filter(|block| kind(block) == "tool_use").map(|block| &block["id"]).collect();
        need(open.is_empty() || *role == "assistant", "only the assistant calls")?;
        for block in blocks {
            let is_blank = |name: &str| block[name].as_str().is_none_or(|text| text.trim().is_empty());
            match kind(block) {
                "text" => need(!is_blank("text"), "no text is blank")?,
                "image" | "document" => {
                    let source = &block["source"];
                    let is_pdf = source["media_type"] == "application/pdf";
                    need(*role == "user", "only the user shows images and documents")?;
                    need(source["type"] == "base64" && source["data"].is_string(), "a source has its data")?;
                    need(is_pdf == (kind(block) == "document"), "a document is a PDF, and an image is none")?;
                }
                "thinking" => {
                    need(
                        *role == "assistant" && block["thinking"].is_string() && !is_blank("signature"),
                        "thinking is signed",
                    )?;
                    need(block["cache_control"].is_null(), "no mark on thinking")?;
                }
                "redacted_thinking" => need(!is_blank("data"), "redacted thinking has data")?,
                "tool_use" => {
                    let id = block["id"].as_str().unwrap_or_default();
                    let is_id = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
                    need(!id.is_empty() && id.chars().all(is_id), "an id has only letters, digits, _ and -")?;
                    need(block["input"].is_object(), "an input is an object")?;
                    name(&block["name"], "_-")?;
                    need(!items(&body["tools"]).is_empty(), "a request with tool_use defines tools")?;
                }
                "tool_result" => {}
                other => need(false, other)?,
            }
        }
    }
    need(open.is_empty(), "no call stays without its result")
}

/// Checks the options that exclude each other.
fn asked_of_anthropic(body: &Value) -> Verdict {
    let (thinking, temperature) = (&body["thinking"], &body["temperature"]);
    let thinks = ["adaptive", "enabled"].contains(&kind(thinking));
    let model = body["model"].as_str().unwrap_or_default();
    let is_older = ["-4-5", "-4-6"].iter().any(|version| model.contains(version));
    need(body["seed"].is_null(), "there is no seed")?;
    need(temperature.is_null() || body["top_p"].is_null(), "temperature or top_p")?;
    need(is_older || temperature.is_null() && body["top_p"].is_null(), "`temperature` is deprecated for this model.")?;
    need(temperature.as_f64().is_none_or(|number| number <= 1.0), "temperature is at most 1")?;
    need(!thinks || temperature.as_f64().is_none_or(|number| number >= 1.0), "temperature is 1 while it thinks")?;
    if let Some(budget) = thinking["budget_tokens"].as_u64() {
        let is_within = budget >= 1_024 && budget < body["max_tokens"].as_u64().unwrap_or_default();
        need(is_within && model.contains("-4-5"), "a budget is at least 1,024 and less than max_tokens")?;
    }
    let can_be_off = model.contains("claude-opus-5") || model.contains("claude-haiku-5");
    need(kind(thinking) != "disabled" || can_be_off, "\"thinking.type.disabled\" is not supported for this model.")?;
    need(kind(thinking) != "between_tools" || model == "claude-sonnet-5-5", "between_tools is of Sonnet 5.5")
}

fn bearer(request: &Request) -> Verdict {
    let header = request.headers.get("authorization");
    need(header.is_some_and(|value| *value == format!("Bearer {KEY}")), "Authorization")
}

pub(crate) fn chat(request: &Request) -> Verdict {
    bearer(request)?;
    chat_without_key(request)
}

pub(crate) fn chat_without_key(request: &Request) -> Verdict {
    let Request { path, body, .. } = request;
    need(path == "/v1/chat/completions", "the path")?;
    need(body["stream"] == true && body["stream_options"]["include_usage"] == true, "usage is asked for")?;
    let model = body["model"].as_str().unwrap_or_default();
    let effort = body["reasoning_effort"].as_str();
    need(effort.is_none() || !model.starts_with("gpt-4"), "Unrecognized request argument supplied: reasoning_effort")?;
    need(effort.is_none_or(|effort| ["none", "low", "medium", "high"].contains(&effort)), "an effort")?;
    let mut open: Vec<&Value> = Vec::new();
    for message in items(&body["messages"]) {
        if message["role"] == "tool" {
            need(!open.is_empty() && *open.remove(0) == message["tool_call_id"], "each result follows its call")?;
            continue;
        }
        need(open.is_empty(), "every call has its result before anything else")?;
        for call in items(&message["tool_calls"]) {
            need(message["role"] == "assistant" && call["type"] == "function", "only the assistant calls functions")?;
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            need(
                serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()),
                "arguments are an object",
            )?;
            name(&call["function"]["name"], "_-")?;
            open.push(&call["id"]);
        }
    }
    need(open.is_empty(), "no call stays without its result")
}

pub(crate) fn responses(request: &Request) -> Verdict {
    let Request { path, body, .. } = request;
    bearer(request)?;
    need(path == "/v1/responses", "the path")?;
    need(body["stream"] == true && body["store"] == false, "a stream that is not stored")?;
    need(body["include"] == json!(["reasoning.encrypted_content"]), "reasoning is asked for")?;
    need(body["reasoning"]["summary"].is_null(), "summaries need a verified organisation")?;
    need(body["stop"].is_null() && body["seed"].is_null(), "Unknown parameter")?;
    let samples = !body["temperature"].is_null() || !body["top_p"].is_null();
    need(!samples || body["reasoning"]["effort"] == "none", "temperature and top_p only without reasoning")?;
    let mut open: Vec<&Value> = Vec::new();
    for item in items(&body["input"]) {
        match (kind(item), item["role"].as_str()) {
            ("function_call", _) => {
                name(&item["name"], "_-")?;
                open.push(&item["call_id"]);
            }
            ("function_call_output", _) => {
                need(!open.is_empty() && *open.remove(0) == item["call_id"], "each output follows its call")?;
            }
            ("reasoning", _) => {
                need(item["encrypted_content"].is_string() && item["summary"] == json!([]), "reasoning")?
            }
            (_, Some("user")) => need(open.is_empty(), "every call has its output before the user speaks")?,
            ("message", Some("assistant")) => {}
            (other, _) => need(false, other)?,
        }
    }
    need(open.is_empty(), "no call stays without its output")
}

pub(crate) fn gemini(request: &Request) -> Verdict {
    let Request { path, headers, body } = request;
    let model = path.strip_prefix("/v1/models/").and_then(|path| path.strip_suffix(":streamGenerateContent?alt=sse"));
    need(["gemini-3.8-flash", "gemini-2.5-flash"].map(Some).contains(&model), "the path")?;
    let thinking = &body["generationConfig"]["thinkingConfig"];
    let is_by_level = model == Some("gemini-3.8-flash");
    need(thinking[if is_by_level { "thinkingBudget" } else { "thinkingLevel" }].is_null(), "levels since Gemini 3")?;
    need(thinking["thinkingBudget"] != 0 || thinking["includeThoughts"].is_null(), "thoughts of a model that thinks")?;
    need(headers.get("x-goog-api-key").is_some_and(|key| key == KEY), "x-goog-api-key")?;
    need(body["contents"][0]["role"] == "user", "a user speaks first")?;
    let mut open: Vec<&Value> = Vec::new();
    for content in items(&body["contents"]) {
        let parts = items(&content["parts"]);
        need(!parts.is_empty(), "no content is empty")?;
        let answers: Vec<&Value> =
            parts.iter().map(|part| &part["functionResponse"]).filter(|part| part.is_object()).collect();
        let names =
            |all: &[&Value]| all.iter().map(|part| (part["name"].clone(), part["id"].clone())).collect::<Vec<_>>();
        need(names(&answers) == names(&open), "as many responses as calls, in order, right after them")?;
        need(answers.iter().all(|answer| answer["response"].is_object()), "a response is an object")?;
        open = parts.iter().map(|part| &part["functionCall"]).filter(|part| part.is_object()).collect();
        need(open.is_empty() || content["role"] == "model", "only the model calls")?;
        need(open.iter().all(|call| call["args"].is_object()), "arguments are an object")?;
        for call in open.iter().chain(&answers) {
            name(&call["name"], "_-.:")?;
            let begins = call["name"].as_str().and_then(|name| name.chars().next());
            need(begins.is_some_and(|c| c.is_ascii_alphabetic() || c == '_'), "a name begins with a letter or _")?;
        }
        let first = parts.iter().find(|part| part["functionCall"].is_object());
        need(first.is_none_or(|part| part["thoughtSignature"].is_string()), "a step's first call is signed")?;
    }
    need(open.is_empty(), "no call stays without its response")
}
