//! The one encoding of events: a line of JSON with the same head for every kind.
//!
//! `{"v":1,"session_id","seq","turn","time","type", …payload}`; a live event has `after` in place of `seq`. The encoder
//! writes the head and splices the payload's members; it never builds a value tree.

use std::{
    borrow::Cow,
    io::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use serde::Deserialize;

use crate::{
    clock::Timestamp,
    ids::{Seq, SessionId, TurnNumber},
    session::{
        event::{Event, LiveEvent, LiveRecord, Record},
        message::string_bytes,
    },
};

/// The version of the encoding.
const VERSION: u32 = 1;

/// Durable events that this process has encoded.
static ENCODED: AtomicU64 = AtomicU64::new(0);

/// Counts the durable events that this process has encoded: each once, however many followers it has.
#[must_use]
pub fn events_encoded() -> u64 {
    ENCODED.load(Ordering::Relaxed)
}

/// Encodes a durable event, once; every surface sends these bytes.
///
/// # Errors
/// If a payload cannot be written as JSON.
pub fn encode_event(record: &Record) -> Result<Bytes, serde_json::Error> {
    if let Event::Unknown(unknown) = &record.event {
        return Ok(Bytes::copy_from_slice(unknown.line.as_str().as_bytes()));
    }
    ENCODED.fetch_add(1, Ordering::Relaxed);
    let head = Head { place: ("seq", record.seq), session_id: record.session_id, turn: record.turn, time: record.time };
    encode(&head, record.event.type_name(), |out| record.event.encode_payload(out))
}

/// Encodes a live event that follows the durable seq `after`.
///
/// # Errors
/// If a payload cannot be written as JSON.
pub fn encode_live(
    session_id: SessionId,
    after: Seq,
    turn: Option<TurnNumber>,
    time: Timestamp,
    event: &LiveEvent,
) -> Result<Bytes, serde_json::Error> {
    let head = Head { place: ("after", after), session_id, turn, time };
    encode(&head, event.type_name(), |out| event.encode_payload(out))
}

struct Head {
    place: (&'static str, Seq),
    session_id: SessionId,
    turn: Option<TurnNumber>,
    time: Timestamp,
}

fn encode(
    head: &Head,
    type_name: &str,
    payload: impl FnOnce(&mut Vec<u8>) -> Result<(), serde_json::Error>,
) -> Result<Bytes, serde_json::Error> {
    let mut line = Vec::with_capacity(256);
    let (place, seq) = head.place;
    write!(line, r#"{{"v":{VERSION},"session_id":"{}","{place}":{seq},"turn":"#, head.session_id)
        .and_then(|()| match head.turn {
            Some(turn) => write!(line, "{turn}"),
            None => line.write_all(b"null"),
        })
        .and_then(|()| write!(line, r#","time":"{}","type":"{type_name}""#, head.time))
        .map_err(serde_json::Error::io)?;
    let start = line.len();
    payload(&mut line)?;
    // The payload is an object: its opening brace becomes a comma, or is dropped with an empty payload.
    if line.len() == start + 2 {
        line.truncate(start);
        line.push(b'}');
    } else {
        line[start] = b',';
    }
    Ok(Bytes::from(line))
}

/// Decodes a durable event's line: the head, then the payload by its `type`, from the same bytes.
///
/// # Errors
/// If the line cannot be decoded.
pub fn decode_event(line: &str) -> Result<Record, serde_json::Error> {
    #[derive(Deserialize)]
    struct HeadShape<'a> {
        session_id: SessionId,
        seq: Seq,
        turn: Option<TurnNumber>,
        time: Timestamp,
        #[serde(rename = "type", borrow)]
        type_name: Cow<'a, str>,
    }

    let head: HeadShape<'_> = serde_json::from_str(line)?;
    let event = Event::decode(&head.type_name, line)?;
    Ok(Record { session_id: head.session_id, seq: head.seq, turn: head.turn, time: head.time, event })
}

/// Returns the type of an event's line, without decoding the rest.
pub(crate) fn type_of(line: &str) -> Option<&str> {
    #[derive(Deserialize)]
    struct Typed<'a> {
        #[serde(rename = "type", borrow)]
        type_name: &'a str,
    }

    serde_json::from_str(line).ok().map(|Typed { type_name }| type_name)
}

/// An event's line, durable or live, in a few words for people.
#[must_use]
pub fn words(line: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(line).ok()?;
    match decode_live(line) {
        Ok(Some(live)) => Some(live.event.human_line()),
        _ => decode_event(line).ok().map(|record| record.event.human_line()),
    }
}

/// Members with message texts.
const BODIES: [&str; 5] = [r#""text""#, r#""prompt""#, r#""output""#, r#""summary""#, r#""content""#];
/// Bytes of a body that is not worth passing over.
const SHORT_BYTES: usize = 64;

/// Decodes a line without its message texts, except a prompt that is kept: enough to count events, and for the line
/// that a session is listed by.
///
/// # Errors
/// If the line cannot be decoded.
pub(crate) fn decode_outline(line: &str, keeps_prompt: bool) -> Result<Record, serde_json::Error> {
    let outline = without_bodies(line);
    let record = decode_event(&outline)?;
    match record.event {
        Event::HistoryGiven(_) | Event::TurnQueued(_) | Event::TurnEdited(_) | Event::TurnStarted(_)
            if keeps_prompt =>
        {
            decode_event(line)
        }
        Event::HistoryGiven(_)
        | Event::TurnQueued(_)
        | Event::TurnEdited(_)
        | Event::TurnStarted(_)
        | Event::TurnSteered(_)
        | Event::AssistantMessage(_)
        | Event::ToolFinished(_)
        | Event::PartialText(_)
        | Event::ReminderSet(_)
        | Event::Pinned(_)
        | Event::ContextRebuilt(_) => Ok(record),
        // In other events a user may have chosen such a name.
        _ if outline.len() == line.len() => Ok(record),
        _ => decode_event(line),
    }
}

/// A line with empty strings for its long bodies.
fn without_bodies(line: &str) -> String {
    let (mut outline, mut rest, mut name) = (String::with_capacity(512), line, "");
    while let Some(at) = rest.find('"') {
        let (before, string) = rest.split_at(at);
        let (string, after) = string.split_at(string_bytes(string));
        let is_body = before == ":" && string.len() > SHORT_BYTES && BODIES.contains(&name);
        outline.push_str(before);
        outline.push_str(if is_body { r#""""# } else { string });
        (name, rest) = (string, after);
    }
    outline.push_str(rest);
    outline
}

/// Decodes a live event's line; `None` for a kind that this version does not know.
///
/// # Errors
/// If the line cannot be decoded.
pub fn decode_live(line: &str) -> Result<Option<LiveRecord>, serde_json::Error> {
    #[derive(Deserialize)]
    struct HeadShape<'a> {
        session_id: SessionId,
        after: Seq,
        turn: Option<TurnNumber>,
        time: Timestamp,
        #[serde(rename = "type", borrow)]
        type_name: Cow<'a, str>,
    }

    let HeadShape { session_id, after, turn, time, type_name } = serde_json::from_str(line)?;
    Ok(LiveEvent::decode(&type_name, line)?.map(|event| LiveRecord { session_id, after, turn, time, event }))
}
