//! Conversion of a request to genai's terms.
//!
//! Two requests of a session must share their prefix: changing parts go into the tail, behind the cache mark.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use genai::{
    adapter::AdapterKind,
    chat::{
        CacheControl, ChatMessage, ChatOptions, ChatRequest, ChatRole, ContentPart, MessageContent, MessageOptions,
        ReasoningEffort, Tool, ToolCall, ToolChoice, ToolName, ToolResponse,
    },
};
use meerkat_errors::ErrorCode;
use serde_json::{Value, json};

use super::{
    Api,
    family::{Cache, Family, Thinking},
    output::Asked,
};
use crate::{ModelError, ModelRequest, ToolSpec, said};
use meerkat_words::{
    message::{Attached, Block, Image, Message, RawJson, ToolCall as Call, ToolResult},
    options::{CacheTime, Effort, ModelOptions},
    tool::{NAME_BYTES_MAX, is_name_char},
};

/// Builds the system prompt, the messages, the tail and the tools.
///
/// # Errors
/// `MODEL_REJECTED` for a tool schema with a number that no wire format can carry.
pub(super) fn chat(
    request: &ModelRequest,
    api: Api,
    vendor: &str,
    returns_reasoning: bool,
) -> Result<ChatRequest, ModelError> {
    let to = Recipient { api, vendor, returns_reasoning };
    let mut shown = Showing::of(request);
    let mut messages = Vec::new();
    let mut system = request.system.as_deref();
    if api == Api::Anthropic {
        messages.extend(system.take().map(|text| ChatMessage::system(text).with_options(mark(request))));
    }
    for message in &request.messages {
        match &**message {
            Message::System { content } => messages.push(ChatMessage::system(content.excerpt().as_ref())),
            Message::User { blocks, .. } if !blocks.is_empty() => {
                let parts = blocks.iter().filter_map(|block| shown_part(block, &mut shown));
                let parts = parts.chain(text_part(&said::text(message, request))).collect::<Vec<_>>();
                messages.push(ChatMessage::user(MessageContent::from_parts(parts)));
            }
            Message::User { content, .. } | Message::SystemReminder { content, .. } | Message::Pin { content, .. } => {
                messages.push(ChatMessage::user(content.excerpt().as_ref()))
            }
            Message::Assistant { content } => {
                push_assistant(&mut messages, text_part(&content.excerpt()).into_iter().collect())
            }
            Message::BlockAssistant { blocks, .. } => push_blocks(&mut messages, blocks, to),
            Message::ToolResults { results } => {
                let images: Vec<Vec<_>> = results.iter().map(|result| shown.images(result)).collect();
                let parts = results.iter().zip(&images).map(|(result, images)| result_part(result, images, api));
                messages.push(ChatMessage::tool(MessageContent::from_parts(parts.collect::<Vec<_>>())));
                if api != Api::Anthropic {
                    messages.extend(seen_after(results, &images));
                }
            }
        }
    }
    // Only a user's or a tool's message can carry the mark; a thinking block cannot.
    let is_markable = |message: &&mut ChatMessage| matches!(message.role, ChatRole::User | ChatRole::Tool);
    if api == Api::Anthropic
        && let Some(last) = messages.iter_mut().rev().find(is_markable)
    {
        last.options = Some(MessageOptions::from(mark(request)));
    }
    messages.extend(request.tail.as_deref().map(ChatMessage::user));
    let mut chat = ChatRequest::from_messages(messages);
    chat.system = system.map(str::to_owned);
    if !request.tools.is_empty() {
        chat.tools = Some(request.tools.iter().map(|spec| tool(spec, api)).collect::<Result<_, _>>()?);
    } else if api == Api::Anthropic {
        // Anthropic refuses calls and results without any tool.
        let called: BTreeSet<Cow<'_, str>> = request
            .messages
            .iter()
            .flat_map(|message| message.tool_calls())
            .map(|call| legal_name(&call.name, api))
            .collect();
        let stub = |name: Cow<'_, str>| {
            Tool::new(ToolName::Custom(name.into_owned()))
                .with_description("Not available any more.")
                .with_schema(json!({ "type": "object" }))
        };
        chat.tools = Some(called.into_iter().map(stub).collect::<Vec<_>>()).filter(|stubs| !stubs.is_empty());
    }
    Ok(chat)
}

/// Builds genai's options for this request, whose family has all of its own.
pub(super) fn options(
    request: &ModelRequest,
    adapter: AdapterKind,
    family: Family,
    thinking_tokens_max: u32,
    output: Option<Asked>,
) -> ChatOptions {
    let model = request.model.as_str();
    let ModelOptions { max_output_tokens, temperature, top_p, stop, seed, effort, cache: _ } = &request.options;
    // Vendors refuse this for models that cannot think.
    let is_thinker = match adapter {
        AdapterKind::Gemini => {
            *effort != Some(Effort::None)
                && !["gemini-1", "gemini-2.0", "gemma"].iter().any(|old| model.starts_with(old))
        }
        AdapterKind::OpenAIResp => !model.contains("-chat"),
        _ => true,
    };
    let mut options = ChatOptions::default()
        .with_capture_usage(true)
        .with_capture_content(true)
        .with_capture_tool_calls(true)
        .with_capture_reasoning_content(is_thinker);
    let has_no_thoughts = !is_thinker || model.starts_with("gpt-") && adapter == AdapterKind::OpenAI;
    let asked_tokens = effort.map_or(0, thinking_tokens).min(thinking_tokens_max);
    let thinking_tokens = if has_no_thoughts { 0 } else { request.thinking_tokens.max(asked_tokens) };
    options.max_tokens = max_output_tokens.map(|tokens| tokens.saturating_add(thinking_tokens));
    options.temperature = *temperature;
    options.top_p = *top_p;
    options.stop_sequences = stop.clone().unwrap_or_default();
    options.seed = seed.map(u64::from);
    if matches!(adapter, AdapterKind::OpenAI | AdapterKind::OpenAIResp) {
        // Without an effort genai strips `-max`, `-high` and the like from a model's name; this budget is never sent.
        options = options
            .with_reasoning_effort(ReasoningEffort::Budget(0))
            .with_cache_control(retention(request.options.cache, family.cache));
    }
    // At Anthropic another choice would invalidate the cache of all messages; there the answer is checked instead.
    let is_free = matches!(adapter, AdapterKind::OpenAI | AdapterKind::OpenAIResp | AdapterKind::Gemini);
    if request.forbids_tools && !request.tools.is_empty() && is_free {
        options = options.with_tool_choice(ToolChoice::None);
    }
    let asked = effort.map(|effort| json!({ "effort": effort }));
    if adapter == AdapterKind::OpenAIResp {
        // genai also asks for summaries of the reasoning, which OpenAI refuses to unverified organisations.
        options = options.with_extra_body(json!({ "reasoning": asked }));
    } else if family.is_router
        && (request.options.set().any(|name| name != "max_output_tokens") || matches!(output, Some(Asked::ByMode(_))))
    {
        let mut body = json!({ "provider": { "require_parameters": true } });
        if let Some(asked) = asked {
            body["reasoning"] = asked;
        }
        options = options.with_extra_body(body);
    } else if let Some(effort) = effort
        && family.thinking != Thinking::Never
    {
        options = options.with_reasoning_effort(reasoning_effort(*effort, adapter, family.thinking));
        if *effort == Effort::None && family.thinking == Thinking::BetweenTools {
            options = options.with_extra_body(json!({ "thinking": { "type": "between_tools" } }));
        }
    }
    match output {
        Some(Asked::ByMode(format)) => format.add_to(options, adapter),
        Some(Asked::ByTool) | None => options,
    }
}

/// Tokens that a model gets for its thoughts: Google's numbers for these efforts.
const fn thinking_tokens(effort: Effort) -> u32 {
    match effort {
        Effort::None => 0,
        Effort::Low => 1_024,
        Effort::Medium => 8_192,
        Effort::High => 24_576,
    }
}

/// Returns the effort in genai's terms.
const fn reasoning_effort(effort: Effort, adapter: AdapterKind, thinking: Thinking) -> ReasoningEffort {
    match (effort, thinking) {
        // genai would leave it out.
        (Effort::None, _) if matches!(adapter, AdapterKind::Gemini) => ReasoningEffort::Budget(0),
        (Effort::None, _) => ReasoningEffort::Zero,
        (effort, Thinking::Tokens) => ReasoningEffort::Budget(thinking_tokens(effort)),
        (Effort::Low, _) => ReasoningEffort::Low,
        (Effort::Medium, _) => ReasoningEffort::Medium,
        (Effort::High, _) => ReasoningEffort::High,
    }
}

/// Returns how long OpenAI is to keep what it has read.
const fn retention(time: Option<CacheTime>, cache: Cache) -> CacheControl {
    match (time, cache) {
        (Some(CacheTime::Short), Cache::MinutesOrDay) => CacheControl::Memory,
        (Some(CacheTime::Long), Cache::MinutesOrDay | Cache::Day) => CacheControl::Ephemeral24h,
        // Never sent here; without a setting genai turns off the newer models' automatic cache.
        (Some(CacheTime::Short | CacheTime::Long) | None, _) => CacheControl::Ephemeral5m,
    }
}

/// Returns the mark up to which Anthropic keeps what it has read.
fn mark(request: &ModelRequest) -> CacheControl {
    match request.options.cache {
        Some(CacheTime::Long) => CacheControl::Ephemeral1h,
        Some(CacheTime::Short) | None => CacheControl::Ephemeral,
    }
}

fn push_assistant(messages: &mut Vec<ChatMessage>, parts: Vec<ContentPart>) {
    if !parts.is_empty() {
        messages.push(ChatMessage::assistant(MessageContent::from_parts(parts)));
    }
}

/// Makes a text part, unless it is blank: vendors refuse blank texts.
fn text_part(text: &str) -> Option<ContentPart> {
    (!text.trim().is_empty()).then(|| ContentPart::from_text(text))
}

/// Recipient of a request.
#[derive(Clone, Copy)]
struct Recipient<'a> {
    api: Api,
    vendor: &'a str,
    returns_reasoning: bool,
}

fn push_blocks(messages: &mut Vec<ChatMessage>, blocks: &[Block], to: Recipient<'_>) {
    let Recipient { api, vendor, returns_reasoning } = to;
    let mut parts = Vec::new();
    let mut was_reasoning = true;
    for block in blocks {
        let is_reasoning = matches!(block, Block::Reasoning { .. });
        if is_reasoning && !was_reasoning {
            // genai puts a message's reasoning first. Anthropic needs it in place, and joins adjacent messages.
            push_assistant(messages, std::mem::take(&mut parts));
        }
        was_reasoning = is_reasoning;
        match block {
            Block::Text { text } => parts.extend(text_part(&text.excerpt())),
            Block::Reasoning { text, opaque: Some(opaque), vendor: from } if from == vendor => {
                parts.extend(reasoning_parts(&text.excerpt(), opaque, api));
            }
            Block::Reasoning { text, opaque: None, vendor: from } if returns_reasoning && from == vendor => {
                parts.push(ContentPart::ReasoningContent(text.excerpt().into_owned()));
            }
            Block::Reasoning { .. } => {}
            Block::ToolCall(call) => parts.push(call_part(call, api)),
        }
    }
    push_assistant(messages, parts);
}

/// Returns a signature with its text, or the vendor's whole block.
fn reasoning_parts(text: &str, opaque: &RawJson, api: Api) -> Vec<ContentPart> {
    match opaque.decode::<Value>() {
        Ok(Value::String(signature)) => {
            let signed = (api == Api::Anthropic).then(|| ContentPart::ReasoningContent(text.to_owned()));
            std::iter::once(ContentPart::ThoughtSignature(signature)).chain(signed).collect()
        }
        Ok(block) => vec![ContentPart::from_custom(block, None)],
        Err(_) => Vec::new(),
    }
}

fn call_part(call: &Call, api: Api) -> ContentPart {
    // Only Gemini's calls carry an opaque part, and only Gemini may get it back.
    let opaque = call.opaque.as_ref().filter(|_| api == Api::Gemini);
    ContentPart::ToolCall(ToolCall {
        call_id: call_id(&call.call_id, api).into_owned(),
        fn_name: legal_name(&call.name, api).into_owned(),
        fn_arguments: arguments(&call.arguments),
        thought_signatures: opaque.and_then(|opaque| opaque.decode().ok()),
    })
}

fn result_part(result: &ToolResult, images: &[(&Image, &Arc<str>)], api: Api) -> ContentPart {
    let id = call_id(&result.call_id, api);
    let content = result.content.excerpt();
    if api == Api::Anthropic && (result.is_error || !images.is_empty()) {
        let text = (!content.trim().is_empty()).then(|| json!({ "type": "text", "text": content }));
        let images = images.iter().map(|(image, data)| {
            let source = json!({ "type": "base64", "media_type": image.media_type, "data": data });
            json!({ "type": "image", "source": source })
        });
        let mut block = json!({ "type": "tool_result", "tool_use_id": id, "is_error": result.is_error });
        block["content"] =
            if result.images.is_empty() { json!(content) } else { text.into_iter().chain(images).collect() };
        return ContentPart::from_custom(block, None);
    }
    ContentPart::ToolResponse(ToolResponse::new(id, content).with_fn_name(legal_name(&result.name, api)))
}

/// The images and PDFs of a request, each of which is sent once: where it is named last.
struct Showing<'a> {
    request: &'a ModelRequest,
    /// Times that each is still to come.
    named: BTreeMap<&'a str, usize>,
}

impl<'a> Showing<'a> {
    fn of(request: &'a ModelRequest) -> Self {
        let mut named = BTreeMap::new();
        for shown in request.messages.iter().flat_map(|message| message.shown()) {
            if request.images.contains_key(shown.blob) {
                *named.entry(shown.blob).or_default() += 1;
            }
        }
        Self { request, named }
    }

    /// Returns the data of the next one in order, if it is sent here.
    fn next(&mut self, blob: &str) -> Option<&'a Arc<str>> {
        let left = self.named.get_mut(blob)?;
        *left -= 1;
        if *left == 0 { self.request.images.get(blob) } else { None }
    }

    /// Lists the images of a result that the model sees here, with their data.
    fn images(&mut self, result: &'a ToolResult) -> Vec<(&'a Image, &'a Arc<str>)> {
        result.images.iter().filter_map(|image| Some((image, self.next(&image.blob)?))).collect()
    }
}

/// Makes the part of an image or a PDF that the model is sent whole.
fn shown_part(block: &Attached, showing: &mut Showing<'_>) -> Option<ContentPart> {
    let shown = block.shown()?;
    let data = showing.next(shown.blob)?.clone();
    let name = if let Attached::File(file) = block { Some(file.name.clone()) } else { None };
    Some(ContentPart::from_binary_base64(shown.media_type, data, name))
}

/// Makes the message with the images of results, for vendors whose results are text only.
fn seen_after(results: &[ToolResult], images: &[Vec<(&Image, &Arc<str>)>]) -> Option<ChatMessage> {
    let mut parts = Vec::new();
    for (result, seen) in results.iter().zip(images) {
        if !seen.is_empty() {
            parts.push(ContentPart::from_text(format!("Images that the tool {} returned:", result.name)));
        }
        let part = |(image, data): &(&Image, &Arc<str>)| {
            ContentPart::from_binary_base64(image.media_type.as_str(), Arc::clone(data), None)
        };
        parts.extend(seen.iter().map(part));
    }
    (!parts.is_empty()).then(|| ChatMessage::user(MessageContent::from_parts(parts)))
}

/// Makes a tool's name valid for every vendor: a model may have invented one, which goes back with its result.
fn legal_name(name: &str, api: Api) -> Cow<'_, str> {
    // Gemini's names begin with a letter or `_`.
    let is_begin = |c: char| api != Api::Gemini || c.is_ascii_alphabetic() || c == '_';
    if (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_name_char) && name.starts_with(is_begin) {
        return name.into();
    }
    let begin = if name.starts_with(is_begin) { "" } else { "_" };
    let rest = name.chars().map(|c| if is_name_char(c) { c } else { '_' });
    begin.chars().chain(rest).take(NAME_BYTES_MAX).collect()
}

/// Makes a call's id valid for Anthropic, since another vendor may have chosen it.
fn call_id(id: &str, api: Api) -> Cow<'_, str> {
    if api != Api::Anthropic || id.chars().all(is_name_char) {
        return id.into();
    }
    id.chars().map(|c| if is_name_char(c) { c } else { '_' }).collect()
}

/// Returns arguments as an object, as vendors require; a malformed text goes inside one.
fn arguments(raw: &RawJson) -> Value {
    match raw.decode() {
        Ok(object @ Value::Object(_)) => object,
        Ok(Value::String(text)) => json!({ "malformed_arguments": text }),
        _ => json!({ "malformed_arguments": raw.as_str() }),
    }
}

fn tool(spec: &ToolSpec, api: Api) -> Result<Tool, ModelError> {
    let schema = spec.schema.decode::<Value>().map_err(|error| {
        ModelError::new(
            ErrorCode::ModelRejected,
            format!("the schema of the tool {:?} cannot be sent: {error}", spec.name),
        )
    })?;
    let mut tool =
        Tool::new(ToolName::Custom(spec.name.clone())).with_description(&spec.description).with_schema(schema);
    // Explicit, because OpenAI's responses format would otherwise rewrite the schema to its strict kind.
    tool.strict = (api == Api::OpenAi).then_some(false);
    Ok(tool)
}
