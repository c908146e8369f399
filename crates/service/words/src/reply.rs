//! [`Reply`]: how an operation's answer is written, read and described.

use bytes::Bytes;
use schemars::{JsonSchema, Schema, generate::SchemaSettings, json_schema};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use crate::{
    SessionError,
    answers::{EventPage, TurnAccepted, TurnHandle, TurnResult},
    operators::{ReaderRecord, RecordPage},
};

/// An operation's answer.
pub trait Reply: Sized {
    /// Writes it as JSON.
    ///
    /// # Errors
    /// If it cannot be written.
    fn write(&self) -> Result<Vec<u8>, SessionError>;

    /// Reads it from JSON.
    ///
    /// # Errors
    /// If the JSON is not such an answer.
    fn read(json: &Bytes) -> Result<Self, SessionError>;

    /// The schema of its JSON.
    fn schema() -> Schema;
}

impl<T: Serialize + DeserializeOwned + JsonSchema> Reply for T {
    fn write(&self) -> Result<Vec<u8>, SessionError> {
        encode(self)
    }

    fn read(json: &Bytes) -> Result<Self, SessionError> {
        decode(json)
    }

    fn schema() -> Schema {
        written::<Self>()
    }
}

/// Keeps events as the lines that the journal holds.
impl Reply for EventPage {
    fn write(&self) -> Result<Vec<u8>, SessionError> {
        Ok(encode_events(self))
    }

    fn read(json: &Bytes) -> Result<Self, SessionError> {
        #[derive(Deserialize)]
        struct Lines<'a> {
            #[serde(borrow)]
            items: Vec<&'a RawValue>,
            next_seq: crate::ids::Seq,
        }
        let Lines { items, next_seq } = decode(json)?;
        let items = items.into_iter().map(|line| json.slice_ref(line.get().as_bytes())).collect();
        Ok(Self { items, next_seq })
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "object",
            "description": "A page of events, each as its line in the journal.",
            "properties": {
                "items": { "type": "array", "items": { "type": "object" } },
                "next_seq": { "type": "integer", "minimum": 0 },
            },
            "required": ["items", "next_seq"],
        })
    }
}

/// Keeps records as the lines that the journal holds.
impl Reply for RecordPage {
    fn write(&self) -> Result<Vec<u8>, SessionError> {
        let mut out = Vec::with_capacity(64 + self.items.iter().map(|record| record.line.len() + 100).sum::<usize>());
        out.extend_from_slice(br#"{"items":["#);
        for (index, record) in self.items.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            let key = record.idempotency_key();
            out.extend_from_slice(format!(r#"{{"idempotency_key":"{key}","event":"#).as_bytes());
            out.extend_from_slice(&record.line);
            out.push(b'}');
        }
        out.extend_from_slice(b"]}");
        Ok(out)
    }

    fn read(json: &Bytes) -> Result<Self, SessionError> {
        #[derive(Deserialize)]
        struct Record<'a> {
            idempotency_key: &'a str,
            #[serde(borrow)]
            event: &'a RawValue,
        }
        #[derive(Deserialize)]
        struct Records<'a> {
            #[serde(borrow)]
            items: Vec<Record<'a>>,
        }
        let record = |Record { idempotency_key, event }: Record<'_>| {
            let (session_id, seq) = idempotency_key.split_once(':')?;
            let line = json.slice_ref(event.get().as_bytes());
            Some(ReaderRecord { session_id: session_id.parse().ok()?, seq: seq.parse().ok()?, line })
        };
        let unreadable = || SessionError::Internal("a record has no idempotency key".to_owned());
        let items = decode::<Records<'_>>(json)?.items.into_iter().map(record).collect::<Option<_>>();
        Ok(Self { items: items.ok_or_else(unreadable)? })
    }

    fn schema() -> Schema {
        json_schema!({
            "type": "object",
            "description": "Records that the reader has not handled, each session's in order.",
            "properties": {
                "items": { "type": "array", "items": {
                    "type": "object",
                    "properties": {
                        "idempotency_key": { "type": "string", "description": "The session and the seq." },
                        "event": { "type": "object", "description": "The event, as its line in the journal." },
                    },
                    "required": ["idempotency_key", "event"],
                } },
            },
            "required": ["items"],
        })
    }
}

impl TurnHandle {
    /// Encodes the answer as JSON.
    ///
    /// # Errors
    /// If the turn left the queue unstarted.
    pub async fn answer(self) -> Result<Vec<u8>, SessionError> {
        if self.wait { encode(&self.result.await?) } else { encode(&self.accepted) }
    }
}

/// Schema of a turn's answer; the request's `wait` decides which of the two is sent.
#[must_use]
pub fn turn_schema() -> Schema {
    let mut generator = SchemaSettings::default().for_serialize().into_generator();
    let either = [generator.subschema_for::<TurnResult>(), generator.subschema_for::<TurnAccepted>()];
    json_schema!({ "anyOf": either, "$defs": generator.take_definitions(true) })
}

fn decode<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, SessionError> {
    serde_json::from_slice(json)
        .map_err(|error| SessionError::Internal(format!("the owner's answer could not be read: {error}")))
}

/// Encodes a page of events, their lines unchanged.
#[must_use]
pub fn encode_events(page: &EventPage) -> Vec<u8> {
    let mut out = Vec::with_capacity(64 + page.items.iter().map(|line| line.len() + 1).sum::<usize>());
    out.extend_from_slice(br#"{"items":["#);
    for (index, line) in page.items.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(line);
    }
    out.extend_from_slice(format!(r#"],"next_seq":{}}}"#, page.next_seq).as_bytes());
    out
}

/// Encodes an answer as JSON.
///
/// # Errors
/// If it cannot be encoded.
pub fn encode<T: Serialize>(answer: &T) -> Result<Vec<u8>, SessionError> {
    serde_json::to_vec(answer)
        .map_err(|error| SessionError::Internal(format!("the answer could not be encoded: {error}")))
}

/// Schema of a type as it is written.
#[must_use]
pub fn written<T: JsonSchema>() -> Schema {
    SchemaSettings::default().for_serialize().into_generator().into_root_schema_for::<T>()
}
