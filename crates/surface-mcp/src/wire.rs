//! Conversions: arguments to parameters, answers to results, lines to strings, sessions to resources.
//!
//! Structured content is a value tree, which keeps the order of members and every bit of a float; the text besides is the
//! answer's own bytes. JSON that no tree can hold becomes a string in the tree.

use std::fmt;

use meerkat_service::{
    SessionError, SessionId,
    service::{ChangePage, EventPage, FollowSessions, Page, ReadEvents, SessionSummary},
    wire::encode,
};
use rmcp::model::{
    CallToolResult, ContentBlock, JsonObject, ListResourceTemplatesResult, ListResourcesResult, ReadResourceResult,
    Resource, ResourceContents, ResourceTemplate,
};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

/// Beginning of every session's URI.
const SESSIONS: &str = "meerkat://sessions/";
/// The list of sessions.
const LIST: &str = "meerkat://sessions";
/// The media type of lines of JSON.
const LINES: &str = "application/jsonl";

/// A tool's arguments as parameters of an operation.
pub(crate) fn params(arguments: Option<JsonObject>) -> String {
    arguments.map_or_else(String::new, |members| Value::Object(members).to_string())
}

/// An answer's bytes as a tool's result.
pub(crate) fn result(answer: &[u8]) -> Result<CallToolResult, SessionError> {
    let unreadable = |error| SessionError::Internal(format!("an answer is not JSON: {error}"));
    let tree = tree(serde_json::from_slice(answer).map_err(unreadable)?);
    let mut result = CallToolResult::success(vec![ContentBlock::text(line(answer))]);
    result.structured_content = Some(tree);
    Ok(result)
}

/// The value of a JSON text. Models send numbers that no float holds and strings that are no Unicode: each becomes a
/// string with its JSON text.
fn tree(json: &RawValue) -> Value {
    let text = json.get();
    let as_written = || Value::String(text.to_owned());
    serde_json::from_str(text).unwrap_or_else(|_| match text.as_bytes().first() {
        Some(b'[') => serde_json::from_str::<Vec<&RawValue>>(text)
            .map_or_else(|_| as_written(), |items| items.into_iter().map(tree).collect()),
        Some(b'{') => serde_json::from_str::<Members<'_>>(text).map_or_else(
            |_| as_written(),
            |members| members.0.into_iter().map(|(name, it)| (name, tree(it))).collect(),
        ),
        _ => as_written(),
    })
}

/// The members of an object, in their order.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// A line of an event.
pub(crate) fn line(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

/// The sessions of a page as resources.
pub(crate) fn resources(page: Page<SessionSummary>) -> ListResourcesResult {
    let resource = |session: SessionSummary| {
        let id = session.session_id.to_string();
        let title = session.title.unwrap_or_else(|| format!("Session of {}", session.created_at));
        Resource::new(format!("{SESSIONS}{id}"), id).with_title(title).with_mime_type(LINES)
    };
    let mut result = ListResourcesResult::with_all_items(page.items.into_iter().map(resource).collect());
    result.next_cursor = page.next_cursor;
    result
}

/// The templates of the list's URI and of a session's.
pub(crate) fn templates() -> ListResourceTemplatesResult {
    let list = ResourceTemplate::new(format!("{LIST}{{?cursor}}"), "sessions")
        .with_description("The changes of the list of sessions after `cursor`, at first the whole list, in pages.")
        .with_mime_type("application/json");
    let template = ResourceTemplate::new(format!("{SESSIONS}{{session_id}}{{?since_seq}}"), "session")
        .with_description("A page of the session's events after the cursor `since_seq`, one line of JSON each.")
        .with_mime_type(LINES);
    ListResourceTemplatesResult::with_all_items(vec![template, list])
}

/// The page of the list that a URI names, if it is the list's.
pub(crate) fn changes_of(uri: &str) -> Option<FollowSessions> {
    let rest = uri.strip_prefix(LIST)?;
    let cursor = if rest.is_empty() { None } else { Some(rest.strip_prefix("?cursor=")?.to_owned()) };
    Some(FollowSessions { cursor, ..FollowSessions::default() })
}

/// A page of changes as the contents of a resource.
pub(crate) fn list_contents(uri: String, page: &ChangePage) -> Result<ReadResourceResult, SessionError> {
    let text = line(&encode(page)?);
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type("application/json")]))
}

/// The page of events that a URI names.
pub(crate) fn page_of(uri: &str) -> Result<ReadEvents, SessionError> {
    let invalid = || SessionError::invalid("uri", format!("a session is {SESSIONS}<session_id>?since_seq=<seq>"));
    let rest = uri.strip_prefix(SESSIONS).ok_or_else(invalid)?;
    let (id, query) = rest.split_once('?').unwrap_or((rest, "since_seq=0"));
    let session_id: SessionId = id.parse()?;
    let since_seq = query.strip_prefix("since_seq=").and_then(|seq| seq.parse().ok()).ok_or_else(invalid)?;
    Ok(ReadEvents::new(session_id, since_seq))
}

/// A page of events as the contents of a resource.
pub(crate) fn contents(uri: String, page: &EventPage) -> ReadResourceResult {
    let text: String = page.items.iter().map(|item| line(item) + "\n").collect();
    ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type(LINES)])
}
