//! Responses: a request's fields, a response as JSON, and its items.

use std::collections::BTreeMap;

use meerkat_service::{
    SessionError, SessionService,
    model::{StopReason, Usage},
    options::ModelOptions,
    output::OutputSpec,
    service::{ClientTool, PromptBlock},
    session::{event::Event, message::RawJson},
};
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    asked::Asked,
    error,
    ids::{ResponseId, conversation, parse_conversation},
    said::{Said, Transcript},
    unfold::{Ending, Item, Kind, Piece, Records, Unfold, instructions},
    wire::{self, Fields, content, effort, format, is_text, items, texts},
};

/// Decodes the body of `POST /v1/responses`.
pub(crate) fn decode(text: &str) -> Result<Asked, SessionError> {
    let mut body = Fields::body(text)?;
    let mut asked = Asked { model: body.take("model")?, ..Asked::default() };
    wire::common(&mut body, &mut asked)?;
    asked.is_stored = body.take("store")?.unwrap_or(true);
    asked.is_background = body.take("background")?.unwrap_or(false);
    asked.instructions = body.take("instructions")?;
    let previous: Option<String> = body.take("previous_response_id")?;
    asked.previous = previous.as_deref().map(ResponseId::parse).transpose()?;
    let named = body.raw("conversation").map(|raw| match is_text(raw) {
        true => wire::text("conversation", raw),
        false => {
            let mut fields = Fields::of("conversation".to_owned(), raw)?;
            let id = fields.need("id")?;
            fields.finish().map(|()| id)
        }
    });
    asked.conversation = named.transpose()?.as_deref().map(parse_conversation).transpose()?;
    if asked.conversation.is_some() && asked.previous.is_some() {
        return Err(body.wrong("conversation", "send it or previous_response_id, not both"));
    }
    asked.tools = wire::tools(&mut body, false)?;
    asked.options.max_output_tokens = body.take("max_output_tokens")?;
    if let Some(mut reasoning) = body.object("reasoning")? {
        asked.options.effort = effort(&mut reasoning, "effort")?;
        reasoning.hints(&["summary", "generate_summary"])?;
        reasoning.finish()?;
    }
    if let Some(mut text) = body.object("text")? {
        asked.output = text.object("format")?.map(|fields| format(fields, false)).transpose()?.flatten();
        text.allow("verbosity", &[r#""medium""#])?;
        text.finish()?;
    }
    body.allow("parallel_tool_calls", &["true"])?;
    body.allow("truncation", &[r#""disabled""#, r#""auto""#])?;
    body.allow("include", &["[]"])?;
    let input = body.raw("input").ok_or_else(|| body.wrong("input", "it is missing"))?;
    let said = input_said("input", input)?;
    body.finish()?;
    if asked.is_background && !asked.is_stored {
        return Err(SessionError::invalid("background", "a response in the background is stored: leave store out"));
    }
    asked.transcript = Transcript::of(said)?;
    Ok(asked)
}

/// Decodes the body of `POST /v1/conversations`: what was said, and the metadata.
pub(crate) fn decode_conversation(text: &str) -> Result<(Transcript, BTreeMap<String, String>), SessionError> {
    let mut body = Fields::body(text)?;
    let metadata = body.take("metadata")?.unwrap_or_default();
    let said = body.raw("items").map(|items| input_said("items", items)).transpose()?.unwrap_or_default();
    body.finish()?;
    Ok((Transcript::before(said)?, metadata))
}

/// Decodes the body of `POST /v1/conversations/{id}`.
pub(crate) fn decode_metadata(text: &str) -> Result<BTreeMap<String, String>, SessionError> {
    let mut body = Fields::body(text)?;
    let metadata = body.need("metadata")?;
    body.finish()?;
    Ok(metadata)
}

fn input_said(place: &str, input: &RawValue) -> Result<Vec<(String, Said)>, SessionError> {
    if is_text(input) {
        return Ok(vec![(place.to_owned(), Said::User(content(place, input)?))]);
    }
    let mut said = Vec::new();
    for (path, raw) in items(place, input)? {
        let mut item = Fields::of(path.clone(), raw)?;
        let kind: Option<String> = item.take("type")?;
        if kind.as_deref() != Some("item_reference") {
            item.hints(&["id", "status"])?;
        }
        let one = match kind.as_deref() {
            None | Some("message") => {
                let role: String = item.need("role")?;
                item.hints(&["phase"])?;
                let at = item.at("content");
                let raw = item.raw("content").ok_or_else(|| item.wrong("content", "it is missing"))?;
                let parts = content(&at, raw)?;
                message(&item, &role, &at, parts)?
            }
            Some("function_call") => Said::Call {
                call_id: item.need("call_id")?,
                name: item.need("name")?,
                arguments: arguments(&item.at("arguments"), &item.need::<String>("arguments")?)?,
            },
            Some("function_call_output") => {
                let at = item.at("output");
                let call_id = item.need("call_id")?;
                let raw = item.raw("output").ok_or_else(|| item.wrong("output", "it is missing"))?;
                Said::Output { call_id, text: texts(&at, content(&at, raw)?)? }
            }
            Some("item_reference") => {
                let id: String = item.need("id")?;
                item.finish()?;
                // As with reasoning itself, no model is given it again.
                if !id.starts_with("rs_") {
                    said.push((path, Said::Reference(id)));
                }
                continue;
            }
            Some("reasoning") => continue,
            Some(other) => return Err(item.wrong("type", format!("items of the type {other:?} are not supported"))),
        };
        item.finish()?;
        said.push((path, one));
    }
    Ok(said)
}

/// A message by its role; both protocols have the same roles.
pub(crate) fn message(item: &Fields<'_>, role: &str, at: &str, parts: Vec<PromptBlock>) -> Result<Said, SessionError> {
    Ok(match role {
        "user" => Said::User(parts),
        "assistant" => Said::Text(texts(at, parts)?),
        "system" | "developer" => Said::System(texts(at, parts)?),
        other => return Err(item.wrong("role", format!("the role {other:?} is not supported"))),
    })
}

/// The arguments of a call, which are JSON in a text.
pub(crate) fn arguments(path: &str, text: &str) -> Result<RawJson, SessionError> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    RawJson::parse(text).map_err(|_| SessionError::invalid(path, "it is not the JSON of an object"))
}

/// What a response repeats of its request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Echo {
    pub(crate) instructions: Option<String>,
    pub(crate) previous: Option<String>,
    pub(crate) tools: Vec<ClientTool>,
    pub(crate) options: ModelOptions,
    pub(crate) output: Option<OutputSpec>,
    pub(crate) is_stored: bool,
    pub(crate) is_background: bool,
}

impl Echo {
    /// What the records of its session say.
    pub(crate) async fn of_record(
        service: &dyn SessionService,
        unfold: &Unfold,
        is_stored: bool,
    ) -> Result<Self, SessionError> {
        let id = unfold.id;
        let instructions = instructions(service, id.session_id).await?.flatten();
        let mut echo = Self { instructions, is_stored, ..Self::default() };
        let (mut tools, mut has_answered) = (Vec::new(), false);
        let mut records = Records::after(service, id.session_id, 0);
        while let Some(record) = records.next().await?.filter(|record| record.seq < id.seq) {
            let begins = match record.event {
                Event::TurnQueued(_) => true,
                Event::TurnStarted(started) => started.queued.is_none(),
                Event::CallAnswered(_) => std::mem::take(&mut has_answered),
                Event::AssistantMessage(_) => {
                    has_answered = true;
                    false
                }
                Event::ClientToolsChanged(changed) => {
                    tools.extend(changed.tools.map(|tools| (changed.hash, tools)));
                    false
                }
                _ => false,
            };
            if begins {
                // The records that a fork copied name the session that they are from.
                echo.previous = Some(ResponseId { session_id: record.session_id, seq: record.seq }.to_string());
            }
        }
        // In a conversation, the one before is not what was asked for.
        echo.previous = echo.previous.filter(|_| !unfold.own.is_conversation());
        if let Some(terms) = &unfold.terms {
            echo.options = terms.options.clone();
            echo.output = terms.output.as_deref().cloned();
            let named = tools.into_iter().rev().find(|(hash, _)| Some(hash) == terms.client_tools.as_ref());
            echo.tools = named.map(|(_, tools)| tools).unwrap_or_default();
        }
        Ok(echo)
    }
}

/// Usage, by the protocols' names of the tokens that were sent and answered.
pub(crate) fn usage(usage: &Usage, [sent, answered]: [&str; 2]) -> Value {
    json!({
        format!("{sent}_tokens"): usage.input_tokens,
        format!("{sent}_tokens_details"): { "cached_tokens": usage.cached_tokens },
        format!("{answered}_tokens"): usage.output_tokens,
        format!("{answered}_tokens_details"): { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}

/// The status of a response, and what its type of event ends with.
pub(crate) fn status(unfold: &Unfold) -> &'static str {
    match &unfold.ending {
        None if unfold.terms.is_none() => "queued",
        None => "in_progress",
        Some(Ending::Completed(StopReason::MaxTokens | StopReason::ContentFilter)) => "incomplete",
        Some(Ending::Completed(_) | Ending::Waiting) => "completed",
        Some(Ending::Interrupted) => "cancelled",
        Some(Ending::Failed(_)) => "failed",
    }
}

/// A response as JSON. The fields that the protocol requires are there even if they are `null`.
pub(crate) fn response(unfold: &Unfold, echo: &Echo) -> Value {
    let (own, status) = (&unfold.own, status(unfold));
    let failure = match &unfold.ending {
        Some(Ending::Failed(body)) => Some(error::error(body)),
        _ => None,
    };
    let reason = match &unfold.ending {
        Some(Ending::Completed(StopReason::MaxTokens)) => Some("max_output_tokens"),
        Some(Ending::Completed(StopReason::ContentFilter)) => Some("content_filter"),
        _ => None,
    };
    json!({
        "id": unfold.id.to_string(),
        "object": "response",
        "created_at": unfold.begun_at / 1000,
        "conversation": own.is_conversation().then(|| json!({ "id": conversation(unfold.id.session_id) })),
        "completed_at": unfold.ended_at.filter(|_| status == "completed").map(|millis| millis / 1000),
        "status": status,
        "background": echo.is_background,
        "error": failure,
        "incomplete_details": reason.map(|reason| json!({ "reason": reason })),
        "instructions": echo.instructions,
        "max_output_tokens": echo.options.max_output_tokens,
        "max_tool_calls": null,
        "metadata": own.metadata,
        "model": unfold.model(),
        "output": unfold.items.iter().map(|item| self::item(unfold, item)).collect::<Vec<_>>(),
        "parallel_tool_calls": true,
        "previous_response_id": echo.previous,
        "prompt_cache_key": null,
        "reasoning": { "effort": echo.options.effort, "summary": null },
        "safety_identifier": null,
        "service_tier": "default",
        "store": echo.is_stored,
        "temperature": echo.options.temperature.unwrap_or(1.0),
        "text": { "format": format_of(echo.output.as_ref()), "verbosity": "medium" },
        "tool_choice": "auto",
        "tools": echo.tools.iter().map(tool).collect::<Vec<_>>(),
        "top_logprobs": 0,
        "top_p": echo.options.top_p.unwrap_or(1.0),
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "truncation": "disabled",
        "usage": unfold.ending.as_ref().map(|_| usage(&unfold.usage, ["input", "output"])),
        "user": own.user,
    })
}

fn tool(tool: &ClientTool) -> Value {
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": value(&tool.input_schema),
        "strict": true,
    })
}

fn format_of(output: Option<&OutputSpec>) -> Value {
    let Some(output) = output else { return json!({ "type": "text" }) };
    json!({
        "type": "json_schema",
        "name": output.name(),
        "description": null,
        "schema": value(&output.schema),
        "strict": true,
    })
}

fn value(raw: &RawJson) -> Value {
    raw.decode().unwrap_or_default()
}

/// The id of an item.
fn item_id(unfold: &Unfold, item: &Item) -> String {
    let kind = match item.kind {
        Kind::Message => "msg",
        Kind::Reasoning => "rs",
        Kind::Call { .. } => "fc",
    };
    let (step, block) = item.at;
    format!("{kind}_{}_{}_{step}_{block}", unfold.id.session_id, unfold.turn)
}

/// An item of a response's output.
pub(crate) fn item(unfold: &Unfold, item: &Item) -> Value {
    let status = match (item.is_done, &unfold.ending) {
        (_, Some(Ending::Interrupted | Ending::Failed(_))) => "incomplete",
        (true, _) => "completed",
        (false, _) => "in_progress",
    };
    let id = item_id(unfold, item);
    match &item.kind {
        Kind::Message => {
            json!({ "id": id, "type": "message", "role": "assistant", "status": status, "content": [part(&item.kind, &item.text)] })
        }
        Kind::Reasoning => json!({
            "id": id, "type": "reasoning", "status": status, "content": [],
            "summary": [part(&item.kind, &item.text)],
        }),
        Kind::Call { call_id, name } => json!({
            "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
            "arguments": item.text,
        }),
    }
}

/// The part of a text or of reasoning.
fn part(kind: &Kind, text: &str) -> Value {
    match kind {
        Kind::Reasoning => json!({ "type": "summary_text", "text": text }),
        Kind::Message | Kind::Call { .. } => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
    }
}

/// The events of a stream that a piece of the output is: each with its type and its fields.
pub(crate) fn events(unfold: &Unfold, piece: &Piece) -> Vec<(String, Map<String, Value>)> {
    let (Piece::Opened(index) | Piece::More(index, _) | Piece::Closed(index)) = piece;
    let Some(item) = unfold.items.get(*index) else { return Vec::new() };
    // The names of the text, and of its part, if it is in one.
    let (text, in_part) = match item.kind {
        Kind::Message => ("output_text", Some(("content_part", "content_index"))),
        Kind::Reasoning => ("reasoning_summary_text", Some(("reasoning_summary_part", "summary_index"))),
        Kind::Call { .. } => ("function_call_arguments", None),
    };
    let of_item = |change: &str, item: Value| {
        let fields = Map::from_iter([("item".to_owned(), item), ("output_index".to_owned(), json!(index))]);
        (format!("response.output_item.{change}"), fields)
    };
    let event = |name: &str, change: &str, (field, value): (&str, Value)| {
        let id = item_id(unfold, item);
        let mut fields = Map::from_iter([("item_id".to_owned(), id.into()), ("output_index".to_owned(), json!(index))]);
        if let Some((_, place)) = in_part {
            fields.insert(place.to_owned(), 0.into());
        }
        if name == "output_text" {
            fields.insert("logprobs".to_owned(), json!([]));
        }
        fields.insert(field.to_owned(), value);
        (format!("response.{name}.{change}"), fields)
    };
    let of_part =
        |change: &str, text: &str| in_part.map(|(name, _)| event(name, change, ("part", part(&item.kind, text))));
    match piece {
        Piece::Opened(_) => {
            let mut begun = self::item(unfold, &Item { text: String::new(), is_done: false, ..item.clone() });
            match item.kind {
                Kind::Message => begun["content"] = json!([]),
                Kind::Reasoning => begun["summary"] = json!([]),
                Kind::Call { .. } => {}
            }
            begun["status"] = json!("in_progress");
            [of_item("added", begun)].into_iter().chain(of_part("added", "")).collect()
        }
        Piece::More(_, more) => vec![event(text, "delta", ("delta", more.as_str().into()))],
        Piece::Closed(_) => {
            let field = if in_part.is_some() { "text" } else { "arguments" };
            let done = [event(text, "done", (field, item.text.as_str().into()))];
            done.into_iter()
                .chain(of_part("done", &item.text))
                .chain([of_item("done", self::item(unfold, item))])
                .collect()
        }
    }
}
