//! Rendering of the next request: its messages, its tail, and whether it fits.

use std::{borrow::Cow, collections::BTreeMap, ops::Range, sync::Arc};

use meerkat_errors::{ErrorBody, ErrorCode};

use super::images::unsent_bytes;
use crate::{
    SessionError,
    compaction::json_bytes,
    model::{ModelRequest, ResolvedModel, ToolSpec},
    options::{EngineOptions, ModelOptions, Overflow},
    prompt::check_attached,
    session::{
        Session,
        event::ContextTokens,
        message::{Body, Message},
        reminder::without_tags,
    },
    tool::{Offer, ToolRegistry},
};

/// Tokens of reasoning beside a summary; at most a sixteenth of the window.
const THINKING_TOKENS_MAX: u64 = 8_192;

/// End of a request whose last message is an answer that was cut off: vendors refuse a request that ends with an answer.
const GO_ON: &str = "[Your last answer was cut off. Go on where it ended, and do not repeat it.]";

/// End of a request behind an answer that did not fit the turn's schema.
const ANSWER_AGAIN: &str = "[Your last answer does not fit the schema that this answer must fit. Answer again, with nothing but \
                            the corrected JSON.]";

/// End of a request in a turn with a schema, whose last message is an answer that was cut off, or never checked.
const ANSWER_WHOLE: &str =
    "[Answer again from the beginning, with nothing but JSON that fits the schema of this answer.]";

/// A request whose bodies may still be in blobs.
pub(crate) struct Rendered {
    pub(crate) request: ModelRequest,
    /// System prompt, perhaps in a blob.
    pub(crate) system: Option<Body>,
}

/// Renders the next request, and says where its tokens go. It walks over the messages that are sent, and no others.
pub(crate) fn render(
    session: &Session,
    model: &ResolvedModel,
    tools: &ToolRegistry,
    options: &EngineOptions,
) -> Result<(Rendered, ContextTokens), ErrorBody> {
    let (tail, pin_bytes) = tail(session);
    let tail: Option<Arc<str>> = tail.map(Arc::from);
    let tail_bytes = tail.as_ref().map_or(0, |tail| tail.len() as u64);
    let tools = Offer::of(session).shown(tools);
    let fixed_bytes = fixed_bytes(session, &tools) + tail_bytes;
    let start = start(session, model, fixed_bytes, options)?;
    let context = &session.context;
    let unsent_bytes = unsent_bytes(session, model, start);
    let result_bytes = context.result_bytes_from(start);
    let tokens = ContextTokens {
        system: session.system_prompt.as_ref().map_or(0, Body::len) / 4,
        tools: (spec_bytes(&tools) + schema_bytes(session)) / 4,
        reminders: (tail_bytes - pin_bytes) / 4,
        pins: pin_bytes / 4,
        history: (context.summary_bytes() + context.bytes_from(start) - result_bytes) / 4,
        tool_results: result_bytes.saturating_sub(unsent_bytes) / 4,
        free: None,
    };
    let asked = session.model_options().clone();
    check_options(&asked, model).and_then(|()| check_shown(session, model)).map_err(|error| error.body())?;
    let asked = ModelOptions { max_output_tokens: options.turn.output_tokens(asked.max_output_tokens), ..asked };
    let end = context.entries().len();
    let summary = context.summary().map(|summary| summary.message.clone());
    let mut rendered = rendered(session, model, tools, (summary, start..end), tail, asked);
    rendered.request.output = session.output().cloned();
    Ok((rendered, tokens.within(model.window_tokens)))
}

/// Checks that a model takes the images and files of the turn that it is to answer. It may have changed while the turn
/// waited.
fn check_shown(session: &Session, model: &ResolvedModel) -> Result<(), SessionError> {
    let (context, turn) = (&session.context, session.open_turn().map(|open| open.turn));
    if context.images_from(0) == 0 {
        return Ok(());
    }
    let of_turn = context.entries().iter().rev().take_while(|entry| Some(entry.turn) == turn);
    of_turn.map(|entry| entry.message.attached()).try_for_each(|blocks| check_attached(blocks, model))
}

/// Returns what follows the messages, and the bytes in it that are pins.
fn tail(session: &Session) -> (Option<String>, u64) {
    let (tail, pin_bytes) = session.tail_with_pins();
    let Some(go_on) = go_on(session) else { return (tail, pin_bytes) };
    (Some(tail.map_or_else(|| go_on.clone().into_owned(), |tail| format!("{tail}\n{go_on}"))), pin_bytes)
}

/// Returns what the model is asked for if its last answer was refused, or the last message is its own.
fn go_on(session: &Session) -> Option<Cow<'static, str>> {
    let open = session.open_turn().filter(|open| open.terms.output.is_some());
    if let Some(open) = open.filter(|open| !open.refused.is_empty()) {
        let lines = open.refused.iter().map(|error| format!("\n- {}", without_tags(&error.to_string())));
        return Some(lines.fold(ANSWER_AGAIN.to_owned(), |text, line| text + &line).into());
    }
    let last = &session.context.entries().last()?.message;
    match (open, &**last) {
        (None, last) if last.is_cut_off() => Some(GO_ON.into()),
        (Some(open), Message::Assistant { .. } | Message::BlockAssistant { .. }) if !open.is_answered => {
            Some(ANSWER_WHOLE.into())
        }
        _ => None,
    }
}

fn tail_bytes(session: &Session) -> u64 {
    tail(session).0.map_or(0, |tail| tail.len() as u64)
}

/// Finds the first message to send if `fixed_bytes` more are sent with it.
fn start(
    session: &Session,
    model: &ResolvedModel,
    fixed_bytes: u64,
    options: &EngineOptions,
) -> Result<usize, ErrorBody> {
    let window = window_tokens(model, session.model_options(), options);
    let room_bytes = bytes_within(window).saturating_sub(fixed_bytes);
    let start = match options.context.overflow {
        Overflow::Fail => 0,
        Overflow::Slide => session.context.start_within(room_bytes),
    };
    let bytes = session.context.bytes_from(start).saturating_sub(unsent_bytes(session, model, start));
    if bytes > room_bytes {
        return Err(overflow((bytes + fixed_bytes) / 4, window, &model.name));
    }
    Ok(start)
}

/// Returns true if the next request fits.
pub(crate) fn fits(session: &Session, model: &ResolvedModel, tools: &ToolRegistry, options: &EngineOptions) -> bool {
    let tail_bytes = tail_bytes(session);
    start(session, model, fixed_bytes(session, &Offer::of(session).shown(tools)) + tail_bytes, options).is_ok()
}

/// Bytes that a text steered into the running turn may have: what every request has and the other texts that wait are
/// sent beside it, and what no compaction can take out.
pub(crate) fn text_room_bytes(
    session: &Session,
    model: &ResolvedModel,
    tools: &ToolRegistry,
    options: &EngineOptions,
    compacts: bool,
) -> u64 {
    let context = &session.context;
    let start = match (compacts, options.context.overflow) {
        (true, _) => context.entries().len(),
        (false, Overflow::Slide) => context.start_within(0),
        (false, Overflow::Fail) => 0,
    };
    let said_bytes = context.bytes_from(start).saturating_sub(unsent_bytes(session, model, start));
    let waiting = session.open_turn().into_iter().flat_map(|open| open.waiting_texts());
    let waiting_bytes: u64 = waiting.filter_map(|text| text.message.as_ref()).map(json_bytes).sum();
    let fixed_bytes = fixed_bytes(session, &Offer::of(session).shown(tools)) + tail_bytes(session);
    let window = window_tokens(model, session.model_options(), options);
    bytes_within(window).saturating_sub(fixed_bytes + said_bytes + waiting_bytes)
}

/// Messages of the context for a summary.
pub(crate) struct Said<'a> {
    /// Summary of the messages before.
    pub(crate) former: Option<Arc<Message>>,
    /// The first of the context's messages.
    pub(crate) from: usize,
    pub(crate) prompt: &'a str,
    pub(crate) max_summary_tokens: u32,
}

/// Renders the request for a summary: the next request with another message at its end and without its tail, so that a
/// vendor's prompt cache stays valid, except in a turn with a schema, which a summary does not have. If it would not fit, the newest messages are left out; returns the index of the
/// first of those, which is `from` if nothing fits.
pub(crate) fn render_summary(
    session: &Session,
    model: &ResolvedModel,
    tools: &ToolRegistry,
    said: Said<'_>,
) -> Result<(Rendered, usize), ErrorBody> {
    let Said { former, from, prompt, max_summary_tokens } = said;
    let tools = Offer::of(session).shown(tools);
    let former_bytes = former.as_deref().map_or(0, json_bytes);
    let system_bytes = session.system_prompt.as_ref().map_or(0, Body::len);
    let fixed_bytes = system_bytes + former_bytes + spec_bytes(&tools) + prompt.len() as u64;
    let thinking_tokens = THINKING_TOKENS_MAX.min(model.window_tokens / 16);
    let window = model.window_tokens.saturating_sub(u64::from(max_summary_tokens)).saturating_sub(thinking_tokens);
    let Some(room_bytes) = bytes_within(window).checked_sub(fixed_bytes) else {
        return Err(overflow((session.context.bytes_from(from) + fixed_bytes) / 4, window, &model.name));
    };
    let end = end_within(session, from, room_bytes);
    let mut asked = ModelOptions { max_output_tokens: Some(max_summary_tokens), ..ModelOptions::default() };
    // A summary is not ended, shortened or varied as an answer is. What the vendor's prompt cache depends on is the same,
    // if it is the same model.
    if session.open_turn().map_or(&session.model, |open| &open.terms.model) == &model.name {
        (asked.effort, asked.cache) = (session.model_options().effort, session.model_options().cache);
    }
    let mut rendered = rendered(session, model, tools, (former, from..end), None, asked);
    rendered.request.messages.push(Arc::new(Message::user(prompt)));
    rendered.request.forbids_tools = true;
    rendered.request.thinking_tokens = u32::try_from(thinking_tokens).unwrap_or(u32::MAX);
    Ok((rendered, end))
}

/// Error for a step of the context that is longer than the model can read.
pub(crate) fn unreadable(model: &ResolvedModel) -> ErrorBody {
    let message = format!("Nothing of the context fits the window of {}, which is to summarise it.", model.name);
    ErrorBody::with_message(ErrorCode::ContextOverflow, message).detail("window_tokens", model.window_tokens)
}

/// Finds the end of the longest part of the context from `from` that has at most `bytes` and no calls without their
/// results.
fn end_within(session: &Session, from: usize, bytes: u64) -> usize {
    let (context, entries) = (&session.context, session.context.entries());
    let whole = context.bytes_from(from);
    let places: Vec<usize> = (from..=entries.len()).collect();
    let fitting = places.partition_point(|end| whole - context.bytes_from(*end) <= bytes);
    let is_end = |end: &&usize| !entries.get(**end).is_some_and(|next| is_results(&next.message));
    places[..fitting].iter().rev().find(is_end).copied().unwrap_or(from)
}

/// Finds the end of the step that begins at `from`: calls stay with their results.
pub(crate) fn step_end(session: &Session, from: usize) -> usize {
    let rest = session.context.entries().get(from + 1..).unwrap_or_default();
    from + 1 + rest.iter().take_while(|entry| is_results(&entry.message)).count()
}

const fn is_results(message: &Message) -> bool {
    matches!(message, Message::ToolResults { .. })
}

/// Bytes of the next request, whole. It walks over no message, unless there are images.
pub(crate) fn request_bytes(session: &Session, model: &ResolvedModel, tools: &ToolRegistry) -> u64 {
    let tail_bytes = tail_bytes(session);
    let said_bytes = session.context.bytes_from(0).saturating_sub(unsent_bytes(session, model, 0));
    fixed_bytes(session, &Offer::of(session).shown(tools)) + tail_bytes + said_bytes
}

/// Bytes of a request's tool specs.
pub(crate) fn tool_bytes(session: &Session, tools: &ToolRegistry) -> u64 {
    spec_bytes(&Offer::of(session).shown(tools))
}

/// Tokens that a request may have, so that its answer has room.
pub(crate) fn window_tokens(model: &ResolvedModel, asked: &ModelOptions, options: &EngineOptions) -> u64 {
    let answer = options.turn.output_tokens(asked.max_output_tokens).unwrap_or(0);
    model.window_tokens.saturating_sub(u64::from(answer))
}

/// Checks that a model has these options: none of them is left out in silence.
pub(crate) fn check_options(options: &ModelOptions, model: &ResolvedModel) -> Result<(), SessionError> {
    options.check()?;
    if let Some(name) = model.client.lacks(&model.vendor_model, options) {
        let message = format!(
            "{} does not take this option, or not as it is asked here: leave it out, also in the session and in a turn that \
             goes on, or use another model",
            model.name
        );
        return Err(SessionError::invalid(format!("options.{name}"), message));
    }
    // The rest is for the request.
    let most = model.window_tokens / 2;
    match options.max_output_tokens {
        Some(tokens) if u64::from(tokens) > most => {
            let message = format!("{} has a window for {most} tokens at most beside a request", model.name);
            Err(SessionError::invalid("options.max_output_tokens", message))
        }
        _ => Ok(()),
    }
}

/// Bytes that make no more than these tokens.
const fn bytes_within(tokens: u64) -> u64 {
    tokens.saturating_mul(4).saturating_add(3)
}

/// Bytes of every request of the session beside its messages and its tail.
fn fixed_bytes(session: &Session, tools: &[ToolSpec]) -> u64 {
    let system_bytes = session.system_prompt.as_ref().map_or(0, Body::len);
    system_bytes + session.context.summary_bytes() + spec_bytes(tools) + schema_bytes(session)
}

/// Bytes of the schema of the running turn's answer, which is sent as a tool's is.
fn schema_bytes(session: &Session) -> u64 {
    session.output().map_or(0, |output| output.schema.as_str().len() as u64)
}

fn spec_bytes(tools: &[ToolSpec]) -> u64 {
    tools.iter().map(ToolSpec::bytes).sum()
}

fn overflow(tokens: u64, window: u64, model: &str) -> ErrorBody {
    let message = format!(
        "The next request has an estimated {tokens} tokens and {model} has a window of {window}; \
         shorten the prompt, use a model with a larger window, or set context.overflow = \"slide\"."
    );
    ErrorBody::with_message(ErrorCode::ContextOverflow, message)
        .detail("estimated_tokens", tokens)
        .detail("window_tokens", window)
}

fn rendered(
    session: &Session,
    model: &ResolvedModel,
    tools: Arc<[ToolSpec]>,
    (summary, said): (Option<Arc<Message>>, Range<usize>),
    tail: Option<Arc<str>>,
    options: ModelOptions,
) -> Rendered {
    let said = session.context.entries().get(said).unwrap_or_default().iter().map(|entry| entry.message.clone());
    let request = ModelRequest {
        model: model.vendor_model.clone(),
        system: None,
        messages: summary.into_iter().chain(said).collect(),
        tail,
        tools,
        forbids_tools: false,
        options,
        thinking_tokens: 0,
        output: None,
        answers_by_tool: false,
        attempt: 0,
        images: Arc::default(),
        images_refused: false,
        files: BTreeMap::new(),
    };
    Rendered { request, system: session.system_prompt.clone() }
}
