//! From a session to the next request: which messages go, what stands at the tail, and whether it fits.

use std::sync::Arc;

use meerkat_errors::{ErrorBody, ErrorCode};

use crate::{
    model::{ModelRequest, ResolvedModel, ToolSpec},
    options::{EngineOptions, Overflow},
    session::{Session, message::Body},
    tool::ToolRegistry,
};

/// A request as the session makes it, with bodies that may still stand in blobs.
pub(crate) struct Rendered {
    pub(crate) request: ModelRequest,
    /// The system prompt, which may stand in a blob.
    pub(crate) system: Option<Body>,
}

/// Renders the next request. It walks over what is sent and no further.
pub(crate) fn render(
    session: &Session,
    model: &ResolvedModel,
    tools: &ToolRegistry,
    options: &EngineOptions,
) -> Result<Rendered, ErrorBody> {
    let tail: Option<Arc<str>> = session.tail().map(Arc::from);
    let tools: Arc<[ToolSpec]> = if tools.specs().iter().all(|spec| session.may_use(&spec.name)) {
        tools.specs().clone()
    } else {
        tools.specs().iter().filter(|spec| session.may_use(&spec.name)).cloned().collect()
    };
    let (system, context) = (session.system_prompt().cloned(), session.context());
    let fixed_bytes = system.as_ref().map_or(0, Body::len)
        + context.summary_bytes()
        + tail.as_ref().map_or(0, |tail| tail.len() as u64)
        + tools
            .iter()
            .map(|tool| (tool.name.len() + tool.description.len() + tool.schema.as_str().len()) as u64)
            .sum::<u64>();
    let window = model.window_tokens.saturating_sub(u64::from(options.turn.max_output_tokens));
    let room_bytes = window.saturating_mul(4).saturating_sub(fixed_bytes);
    let start = match options.context.overflow {
        Overflow::Fail => 0,
        Overflow::Slide => context.start_within(room_bytes),
    };
    if context.bytes_from(start) > room_bytes {
        let tokens = (context.bytes_from(start) + fixed_bytes) / 4;
        let message = format!(
            "The next request has an estimated {tokens} tokens and {} has a window of {window}; \
             shorten the prompt, use a model with a larger window, or set context.overflow = \"slide\".",
            model.name
        );
        return Err(ErrorBody::with_message(ErrorCode::ContextOverflow, message)
            .detail("estimated_tokens", tokens)
            .detail("window_tokens", window));
    }
    let summary = context.summary().map(|summary| summary.message.clone());
    let said = context.entries().get(start..).unwrap_or_default().iter().map(|entry| entry.message.clone());
    let messages = summary.into_iter().chain(said).collect();
    let request = ModelRequest {
        model: model.vendor_model.clone(),
        system: None,
        messages,
        tail,
        tools,
        max_output_tokens: (options.turn.max_output_tokens > 0).then_some(options.turn.max_output_tokens),
        attempt: 0,
    };
    Ok(Rendered { request, system })
}
