//! A response as JSON: its items, what it repeats of its request, and the events of a stream.

use meerkat_errors::ErrorBody;
use meerkat_service::{
    SessionError,
    model::{StopReason, Usage},
    options::ModelOptions,
    output::OutputSpec,
    service::ClientTool,
    session::message::RawJson,
};
use serde_json::{Value, json};

use crate::{
    error,
    ids::conversation,
    past::Past,
    unfold::{Ending, Item, Kind, Piece, Unfold},
};

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
    pub(crate) fn of(unfold: &Unfold, past: &Past, is_stored: bool) -> Self {
        // In a conversation, the one before is not what was asked for.
        let previous = past.previous(unfold.id).filter(|_| !unfold.own.is_conversation);
        let (instructions, previous) = (unfold.own.system.clone().flatten(), previous.map(|id| id.to_string()));
        let echo = Self { instructions, previous, is_stored, ..Self::default() };
        let Some(terms) = &unfold.terms else { return echo };
        let output = terms.output.as_deref().cloned();
        Self { tools: past.tools(terms), options: terms.options.clone(), output, ..echo }
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens },
        "total_tokens": usage.input_tokens.saturating_add(usage.output_tokens),
    })
}

/// The error of a response that has no answer.
pub(crate) fn failure(unfold: &Unfold) -> Option<Box<ErrorBody>> {
    match &unfold.ending {
        Some(Ending::Failed(body)) => Some(body.clone()),
        Some(Ending::Interrupted) => Some(Box::new(SessionError::Interrupted { turn: unfold.turn }.body())),
        _ => None,
    }
}

/// The status of a response, and what its type of event ends with.
pub(crate) fn status(unfold: &Unfold) -> &'static str {
    match &unfold.ending {
        None if unfold.terms.is_none() => "queued",
        None => "in_progress",
        Some(Ending::Completed(reason)) if cut_off(*reason).is_some() => "incomplete",
        Some(Ending::Completed(_) | Ending::Waiting) => "completed",
        Some(Ending::Interrupted) => "cancelled",
        Some(Ending::Failed(_)) => "failed",
    }
}

/// Why an answer is not whole.
const fn cut_off(reason: StopReason) -> Option<&'static str> {
    match reason {
        StopReason::MaxTokens => Some("max_output_tokens"),
        StopReason::ContentFilter | StopReason::Refusal => Some("content_filter"),
        _ => None,
    }
}

/// A response as JSON. The fields that the protocol requires are there even if they are `null`.
pub(crate) fn response(unfold: &Unfold, echo: &Echo) -> Value {
    let (own, status) = (&unfold.own, status(unfold));
    let (failure, reason) = match &unfold.ending {
        Some(Ending::Failed(body)) => (Some(error::error(body)), None),
        Some(Ending::Completed(reason)) => (None, cut_off(*reason)),
        _ => (None, None),
    };
    json!({
        "id": unfold.id.to_string(),
        "object": "response",
        "created_at": unfold.begun_at / 1000,
        "conversation": own.is_conversation.then(|| json!({ "id": conversation(unfold.id.session_id) })),
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
        "usage": unfold.ending.as_ref().map(|_| usage(&unfold.usage)),
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

fn item_id(unfold: &Unfold, item: &Item) -> String {
    let kind = match item.kind {
        Kind::Message => "msg",
        Kind::Reasoning => "rs",
        Kind::Call { .. } => "fc",
    };
    let (step, block) = item.at;
    format!("{kind}_{}_{}_{step}_{block}", unfold.id.session_id, unfold.turn)
}

pub(crate) fn item(unfold: &Unfold, item: &Item) -> Value {
    let status = match (item.is_done, &unfold.ending) {
        (_, Some(Ending::Interrupted | Ending::Failed(_))) => "incomplete",
        (true, _) => "completed",
        (false, _) => "in_progress",
    };
    let id = item_id(unfold, item);
    match &item.kind {
        Kind::Message => json!({
            "id": id, "type": "message", "role": "assistant", "status": status,
            "content": [part(&item.kind, &item.text)],
        }),
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

fn part(kind: &Kind, text: &str) -> Value {
    match kind {
        Kind::Reasoning => json!({ "type": "summary_text", "text": text }),
        Kind::Message | Kind::Call { .. } => {
            json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
        }
    }
}

/// The events of a stream that a piece of the output is.
pub(crate) fn events(unfold: &Unfold, piece: &Piece) -> Vec<Value> {
    let (Piece::Opened(index) | Piece::More(index, _) | Piece::Closed(index)) = piece;
    let Some(item) = unfold.items.get(*index) else { return Vec::new() };
    // The names of the text, and of its part, if it is in one.
    let (text, in_part) = match item.kind {
        Kind::Message => ("output_text", Some(("content_part", "content_index"))),
        Kind::Reasoning => ("reasoning_summary_text", Some(("reasoning_summary_part", "summary_index"))),
        Kind::Call { .. } => ("function_call_arguments", None),
    };
    let of_item = |change: &str, item: Value| {
        let kind = format!("response.output_item.{change}");
        json!({ "type": kind, "item": item, "output_index": index })
    };
    let event = |name: &str, change: &str, (field, value): (&str, Value)| {
        let kind = format!("response.{name}.{change}");
        let mut event = json!({ "type": kind, "item_id": item_id(unfold, item), "output_index": index, field: value });
        if let Some((_, place)) = in_part {
            event[place] = 0.into();
        }
        if name == "output_text" {
            event["logprobs"] = json!([]);
        }
        event
    };
    let of_part =
        |change: &str, text: &str| in_part.map(|(name, _)| event(name, change, ("part", part(&item.kind, text))));
    match piece {
        Piece::Opened(_) => {
            let mut begun = self::item(unfold, &Item { text: String::new(), is_done: false, ..item.clone() });
            if in_part.is_some() {
                begun[if item.kind == Kind::Message { "content" } else { "summary" }] = json!([]);
            }
            begun["status"] = json!("in_progress");
            [of_item("added", begun)].into_iter().chain(of_part("added", "")).collect()
        }
        Piece::More(_, more) => vec![event(text, "delta", ("delta", more.as_str().into()))],
        Piece::Closed(_) => {
            let field = if in_part.is_some() { "text" } else { "arguments" };
            let done = [event(text, "done", (field, item.text.as_str().into()))].into_iter();
            done.chain(of_part("done", &item.text)).chain([of_item("done", self::item(unfold, item))]).collect()
        }
    }
}
