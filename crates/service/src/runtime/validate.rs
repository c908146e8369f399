//! Checks of a request's values beyond its schema: one function per fact.

use std::collections::{BTreeMap, BTreeSet};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use meerkat_words::calls::{
    CLIENT_TIMEOUT_MS_MAX, CLIENT_TOOLS_BYTES_MAX, CLIENT_TOOLS_MAX, CONTENT_PARTS_MAX, CallContent, ClientTool,
};
use sha2::{Digest, Sha256};

use crate::{
    SessionError,
    compaction::CompactionConfig,
    ids::Seq,
    options::Limits,
    output::OutputSpec,
    service::{ForgetMemory, SearchMemory, SearchScope, StartTurn},
    store::hex,
    tool::{IMAGES_MAX, Picture, Toolbox, check_answer_schema, check_name, check_schema, patterns_of},
    wire::bounds::{BLOB_PIECE_BYTES_MAX, HITS_MAX, MODEL_BYTES_MAX, QUERY_BYTES_MAX, ROLES},
};

/// Default number of hits of a search.
const HITS: usize = 10;
/// Patterns of the schemas of a caller's tools, of all together: each takes milliseconds to compile.
const CLIENT_PATTERNS_MAX: usize = 256;
/// Rules that a turn may allow.
const TURN_RULES_MAX: usize = 64;
/// Default number of items of a page.
const PAGE_ITEMS: usize = 100;

/// Checks the name of a request's model, if there is one.
pub(crate) fn model(name: Option<&str>) -> Result<(), SessionError> {
    name.map_or(Ok(()), |name| model_name(name).map_err(|message| SessionError::invalid("model", message)))
}

/// Checks a model's name; the error describes a valid one.
pub(crate) fn model_name(name: &str) -> Result<(), String> {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@+~-".contains(&byte);
    if name.len() <= MODEL_BYTES_MAX && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(format!("a model's name has at most {MODEL_BYTES_MAX} letters, digits, or any of ._:/@+~-"))
}

/// Hashes a decoded request. Requests with equal hashes are the same request. If a caller's JSON is in it, that counts by
/// its values, because a client or a protocol may write them in another way: `1.10` as `1.1`.
pub(crate) fn request_hash<T: serde::Serialize>(request: &T, has_json: bool) -> Result<String, SessionError> {
    let failed = |error: serde_json::Error| SessionError::Internal(error.to_string());
    let mut bytes = serde_json::to_vec(request).map_err(failed)?;
    // A number that is too large for a value counts as it is written.
    if let (true, Ok(values)) = (has_json, serde_json::from_slice::<serde_json::Value>(&bytes)) {
        bytes = serde_json::to_vec(&values).map_err(failed)?;
    }
    Ok(hex(&Sha256::digest(bytes)))
}

/// Hashes a turn's request without its key, the way its answer is delivered, and who attends it. A continuation of an interrupted turn never equals a turn with a prompt.
pub(crate) fn turn_hash(request: &StartTurn, is_continuation: bool) -> Result<String, SessionError> {
    let mut request = StartTurn { idempotency_key: None, wait: true, attended: false, ..request.clone() };
    request.prompt = std::mem::take(&mut request.prompt).hashed(|bytes| hex(&Sha256::digest(bytes)));
    let has_json = request.client_tools.is_some() || request.output.is_some();
    match is_continuation {
        true => request_hash(&(request, "continues"), has_json),
        false => request_hash(&request, has_json),
    }
}

/// Parses the cursor of a page of seqs.
pub(crate) fn seq_cursor(cursor: Option<&str>) -> Result<Seq, SessionError> {
    let refusal = || SessionError::invalid("cursor", "use the next_cursor of the page before, or none");
    let is_one = |cursor: &&str| (1..=18).contains(&cursor.len()) && cursor.bytes().all(|byte| byte.is_ascii_digit());
    cursor
        .map_or(Ok(0), |cursor| Some(cursor).filter(is_one).and_then(|cursor| cursor.parse().ok()).ok_or_else(refusal))
}

/// Checks a blob's name, the SHA-256 of its bytes.
pub(crate) fn blob_hash(hash: &str) -> Result<(), SessionError> {
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if is_hash { Ok(()) } else { Err(SessionError::invalid("blob", "a blob is named by 64 hexadecimal digits")) }
}

/// Checks a limit, from 1 to `max`; `contents` and `unit` are for the message.
fn limited(
    limit: Option<usize>,
    (max, default): (usize, usize),
    contents: &str,
    unit: &str,
) -> Result<usize, SessionError> {
    match limit {
        Some(0) => Err(SessionError::invalid("limit", format!("{contents} at least one {unit}"))),
        Some(limit) if limit > max => Err(SessionError::invalid("limit", format!("{contents} at most {max} {unit}s"))),
        limit => Ok(limit.unwrap_or(default)),
    }
}

/// Checks the bytes of a piece of a blob.
pub(crate) fn blob_limit(limit: Option<usize>) -> Result<usize, SessionError> {
    limited(limit, (BLOB_PIECE_BYTES_MAX, BLOB_PIECE_BYTES_MAX), "a piece has", "byte")
}

/// Checks the number of hits.
pub(crate) fn hits(limit: Option<usize>) -> Result<usize, SessionError> {
    limited(limit, (HITS_MAX, HITS), "a search answers", "hit")
}

/// Checks the number of items of a page.
pub(crate) fn page_limit(limit: Option<usize>, limits: &Limits) -> Result<usize, SessionError> {
    limited(limit, (limits.page_items, limits.page_items.min(PAGE_ITEMS)), "a page has", "item")
}

/// Checks a reader's name, which is part of paths and keys.
pub(crate) fn reader(name: &str) -> Result<(), SessionError> {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
    if (1..=64).contains(&name.len()) && name.bytes().all(is_allowed) {
        return Ok(());
    }
    Err(SessionError::invalid("reader", "a reader is named by 1 to 64 small letters, digits, `.`, `_` or `-`"))
}

/// Checks a title, which is one line; an empty one removes the title.
pub(crate) fn title(title: &str, limits: &Limits) -> Result<(), SessionError> {
    if title.len() as u64 > limits.label_bytes || title.chars().any(char::is_control) {
        let message = format!("a title has at most {} bytes and no control characters", limits.label_bytes);
        return Err(SessionError::invalid("title", message));
    }
    Ok(())
}

pub(crate) fn size(what: &'static str, text: &str, limit: u64) -> Result<(), SessionError> {
    let bytes = text.len() as u64;
    if bytes > limit { Err(SessionError::PayloadTooLarge { what, bytes, limit }) } else { Ok(()) }
}

pub(crate) fn not_empty(field: &'static str, text: &str, hint: &str) -> Result<(), SessionError> {
    if text.trim().is_empty() { Err(SessionError::invalid(field, format!("it is empty; {hint}"))) } else { Ok(()) }
}

pub(crate) fn idempotency_key(key: Option<&str>, limits: &Limits) -> Result<(), SessionError> {
    let Some(key) = key else { return Ok(()) };
    not_empty("idempotency_key", key, "use a new random text for each request")?;
    if key.len() as u64 > limits.label_bytes || key.chars().any(char::is_control) {
        let message = format!("it has at most {} bytes and no control characters", limits.label_bytes);
        return Err(SessionError::invalid("idempotency_key", message));
    }
    Ok(())
}

/// Checks the tools that a caller runs. Their schemas are compiled, which may take a while.
pub(crate) fn client_tools(tools: &[ClientTool], toolbox: &Toolbox) -> Result<(), SessionError> {
    let refused = |message| Err(SessionError::invalid("client_tools", message));
    if tools.len() > CLIENT_TOOLS_MAX {
        return refused(format!("there are {} tools; at most {CLIENT_TOOLS_MAX} are allowed", tools.len()));
    }
    let of = |tool: &ClientTool| tool.name.len() + tool.description.len() + tool.input_schema.as_str().len();
    let bytes: usize = tools.iter().map(of).sum();
    if bytes > CLIENT_TOOLS_BYTES_MAX {
        return refused(format!("they have {bytes} bytes; at most {CLIENT_TOOLS_BYTES_MAX} are allowed"));
    }
    let mut names = BTreeSet::new();
    let mut patterns = 0;
    for ClientTool { name, input_schema, timeout_ms, .. } in tools {
        if let Err(why) = check_name(name) {
            return refused(why);
        }
        if toolbox.is_taken(name) {
            return refused(format!("there is another tool named {name}; give yours another name"));
        }
        if !names.insert(name) {
            return refused(format!("two tools are named {name}"));
        }
        if timeout_ms.is_some_and(|timeout_ms| !(1..=CLIENT_TIMEOUT_MS_MAX).contains(&timeout_ms)) {
            return refused(format!("timeout_ms of {name} is not from 1 to {CLIENT_TIMEOUT_MS_MAX} (30 days)"));
        }
        let is_object = input_schema.decode::<serde_json::Value>().is_ok_and(|schema| schema["type"] == "object");
        if !is_object {
            return refused(format!("input_schema of {name} is not of an object: it needs \"type\": \"object\""));
        }
        patterns += patterns_of(input_schema);
        if patterns > CLIENT_PATTERNS_MAX {
            return refused(format!("their schemas have more than {CLIENT_PATTERNS_MAX} patterns"));
        }
        if let Err(why) = check_schema(input_schema) {
            return refused(format!("tool {name}: {why}"));
        }
    }
    Ok(())
}

/// Checks the answer to a call. An image must be what it says.
pub(crate) fn call_content(content: &[CallContent], limit: u64) -> Result<(), SessionError> {
    let refused = |message| Err(SessionError::invalid("content", message));
    if content.len() > CONTENT_PARTS_MAX {
        return refused(format!("it has {} parts; at most {CONTENT_PARTS_MAX} are allowed", content.len()));
    }
    let (mut bytes, mut images) = (0, 0);
    for part in content {
        let (media_type, data) = match part {
            CallContent::Text(text) => {
                bytes += text.len() as u64;
                continue;
            }
            CallContent::Json(value) => {
                bytes += value.as_str().len() as u64;
                continue;
            }
            CallContent::Image { media_type, data } => (media_type, data),
        };
        images += 1;
        let Ok(image) = BASE64_STANDARD.decode(data) else { return refused("an image is not in base64".to_owned()) };
        match Picture::of(&image) {
            Ok(picture) if picture.media_type == media_type => {}
            Ok(picture) => return refused(format!("an image is not {media_type:?}, but {}", picture.media_type)),
            Err(why) => return refused(format!("an image cannot be used: {why}")),
        }
    }
    if images > IMAGES_MAX {
        return refused(format!("it has {images} images; at most {IMAGES_MAX} are allowed"));
    }
    if bytes > limit { Err(SessionError::PayloadTooLarge { what: "answer", bytes, limit }) } else { Ok(()) }
}

/// Checks the rules that a turn allows.
pub(crate) fn allow(rules: &[String], tools: &Toolbox) -> Result<(), SessionError> {
    if rules.len() > TURN_RULES_MAX {
        let message = format!("there are {} rules; at most {TURN_RULES_MAX} are allowed", rules.len());
        return Err(SessionError::invalid("allow", message));
    }
    rules.iter().try_for_each(|rule| tools.check_rule(rule).map_err(|why| SessionError::invalid("allow", why)))
}

pub(crate) fn labels(labels: &BTreeMap<String, String>, limits: &Limits) -> Result<(), SessionError> {
    if labels.len() > limits.labels {
        return Err(SessionError::invalid(
            "labels",
            format!("there are {}; at most {} are allowed", labels.len(), limits.labels),
        ));
    }
    for (name, value) in labels {
        let is_long = (name.len() + value.len()) as u64 > limits.label_bytes;
        if name.is_empty() || is_long || name.chars().chain(value.chars()).any(char::is_control) {
            let message = format!(
                "the label {name:?} is empty, has control characters, or has more than {} bytes with its value",
                limits.label_bytes
            );
            return Err(SessionError::invalid("labels", message));
        }
    }
    Ok(())
}

/// Checks a search of memory, except the number of hits.
pub(crate) fn search(request: &SearchMemory, limits: &Limits) -> Result<(), SessionError> {
    let SearchMemory { query, scope, session_id, role, labels: wanted, since, until, .. } = request;
    not_empty("query", query, "say what to look for")?;
    if query.len() > QUERY_BYTES_MAX {
        let message = format!("it has {} bytes; at most {QUERY_BYTES_MAX} are allowed", query.len());
        return Err(SessionError::invalid("query", message));
    }
    match (scope, session_id) {
        (SearchScope::Session, None) => {
            return Err(SessionError::invalid("session_id", "name the session where the scope is `session`"));
        }
        (SearchScope::Project, Some(_)) => {
            return Err(SessionError::invalid("session_id", "it needs the scope `session`"));
        }
        (SearchScope::Session, Some(_)) | (SearchScope::Project, None) => {}
    }
    if let Some(role) = role
        && !ROLES.contains(&role.as_str())
    {
        return Err(SessionError::invalid("role", format!("a role is one of {}", ROLES.join(", "))));
    }
    labels(wanted, limits)?;
    if let (Some(since), Some(until)) = (since, until)
        && since > until
    {
        return Err(SessionError::invalid("since", "it is later than `until`"));
    }
    Ok(())
}

/// Checks a request to forget: it names something, and seqs only with their session.
pub(crate) fn forget(request: &ForgetMemory, limits: &Limits) -> Result<(), SessionError> {
    let ForgetMemory { session_id, from_seq, to_seq, source, wait: _ } = request;
    if session_id.is_none() && (from_seq.is_some() || to_seq.is_some()) {
        return Err(SessionError::invalid("session_id", "name the session whose seqs these are"));
    }
    if session_id.is_none() && source.is_none() {
        return Err(SessionError::invalid("session_id", "say what to forget: a session, seqs of one, or a source"));
    }
    if let (Some(from), Some(to)) = (from_seq, to_seq)
        && from > to
    {
        return Err(SessionError::invalid("from_seq", "it is greater than `to_seq`"));
    }
    if let Some(source) = source {
        not_empty("source", source, "name a source: user, assistant or tool:<name>")?;
        if source.len() as u64 > limits.label_bytes {
            let message = format!("it has at most {} bytes", limits.label_bytes);
            return Err(SessionError::invalid("source", message));
        }
    }
    Ok(())
}

/// Checks the schema that a turn's answer must fit.
pub(crate) fn output(output: Option<&OutputSpec>) -> Result<(), SessionError> {
    let Some(output) = output else { return Ok(()) };
    output.check()?;
    check_answer_schema(&output.schema).map_err(|why| SessionError::invalid("output.schema", why))
}

/// Checks a compaction config without a model's window.
pub(crate) fn compaction(config: Option<CompactionConfig>) -> Result<(), SessionError> {
    config.map_or(Ok(()), |config| config.check(0))
}
