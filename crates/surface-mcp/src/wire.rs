//! What goes over the wire: arguments to parameters, answers to results, lines to strings, sessions to resources.
//!
//! Structured content is a value tree, which writes numbers its own way; the text beside it is the answer's own
//! bytes. In the tree lines of events are strings, so that they arrive to the letter.

use meerkat_service::{
    SessionError, SessionId,
    service::{EventPage, Page, ReadEvents, SessionSummary},
    wire::encode_events,
};
use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult,
    Resource, ResourceContents, ResourceTemplate,
};
use serde_json::Value;

/// What every session's URI begins with.
const SESSIONS: &str = "meerkat://sessions/";
/// The media type of lines of JSON.
const LINES: &str = "application/jsonl";

/// A tool's arguments as parameters of an operation.
pub(crate) fn params(arguments: Option<JsonObject>) -> String {
    arguments.map_or_else(String::new, |members| Value::Object(members).to_string())
}

/// An answer's bytes as a tool's result.
pub(crate) fn result(answer: &[u8]) -> Result<CallToolResult, SessionError> {
    let unreadable = |error| SessionError::Internal(format!("an answer is no JSON: {error}"));
    let tree = serde_json::from_slice(answer).map_err(unreadable)?;
    Ok(told(answer, tree))
}

fn told(answer: &[u8], tree: Value) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(line(answer))]);
    result.structured_content = Some(tree);
    result
}

/// A line of an event.
pub(crate) fn line(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// A page of events as a tool's result.
pub(crate) fn events(page: &EventPage) -> CallToolResult {
    let items = page.items.iter().map(|item| Value::String(line(item))).collect();
    let tree = [("items", Value::Array(items)), ("next_seq", page.next_seq.into())];
    let tree = JsonObject::from_iter(tree.map(|(name, value)| (name.to_owned(), value)));
    told(&encode_events(page), Value::Object(tree))
}

/// The sessions of a page as resources.
pub(crate) fn resources(page: Page<SessionSummary>) -> ListResourcesResult {
    let resource = |session: SessionSummary| {
        let id = session.session_id.to_string();
        let resource = Resource::new(format!("{SESSIONS}{id}"), id).with_mime_type(LINES);
        match session.title {
            Some(title) => resource.with_title(title),
            None => resource,
        }
    };
    let mut result = ListResourcesResult::with_all_items(page.items.into_iter().map(resource).collect());
    result.next_cursor = page.next_cursor;
    result
}

/// How a session's URI is made.
pub(crate) fn templates() -> ListResourceTemplatesResult {
    let template = ResourceTemplate::new(format!("{SESSIONS}{{session_id}}{{?since_seq}}"), "session")
        .with_description("A page of the session's events after the cursor `since_seq`, one line of JSON each.")
        .with_mime_type(LINES);
    ListResourceTemplatesResult::with_all_items(vec![template])
}

/// The page of events that a URI names.
pub(crate) fn page_of(uri: &str) -> Result<ReadEvents, SessionError> {
    let invalid = || SessionError::invalid("uri", format!("a session is {SESSIONS}<session_id>?since_seq=<seq>"));
    let rest = uri.strip_prefix(SESSIONS).ok_or_else(invalid)?;
    let (id, query) = rest.split_once('?').unwrap_or((rest, "since_seq=0"));
    let session_id: SessionId = id.parse()?;
    let since_seq = query.strip_prefix("since_seq=").and_then(|seq| seq.parse().ok()).ok_or_else(invalid)?;
    Ok(ReadEvents { session_id, since_seq, limit: None, wait_ms: 0 })
}

/// A page of events as what a resource holds.
pub(crate) fn contents(uri: String, page: &EventPage) -> ReadResourceResult {
    let text: String = page.items.iter().map(|item| line(item) + "\n").collect();
    ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type(LINES)])
}
