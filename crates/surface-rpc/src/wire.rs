//! From bytes to requests and back. Nothing becomes a tree of values, so ids and events come back to the letter.

use std::fmt;

use bytes::Bytes;
use meerkat_service::{
    Seq, SessionError, SessionId, TurnNumber,
    wire::{decode_params, encode},
};
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;

use crate::{error::Failure, methods::EVENT, owner::BYE};

/// The id of an answer to a message without one.
pub(crate) const NO_ID: &str = "null";

/// A message as text.
pub(crate) enum Message<'a> {
    One(&'a str),
    Batch(Vec<&'a str>),
}

/// A request. Without an id it is a notification, which is never answered.
pub(crate) struct Call<'a> {
    pub(crate) id: Option<&'a str>,
    pub(crate) method: String,
    /// An object, an array, or empty.
    pub(crate) params: &'a str,
}

/// Splits a message into its requests.
pub(crate) fn read_message(bytes: &[u8], batch_max: usize) -> Result<Message<'_>, Failure> {
    let no_json = |error: serde_json::Error| Failure::not_json(format!("invalid JSON: {error}"));
    let text = std::str::from_utf8(bytes).map_err(|error| Failure::not_json(format!("invalid UTF-8: {error}")))?;
    if !text.trim_start().starts_with('[') {
        let whole: &RawValue = serde_json::from_str(text).map_err(no_json)?;
        return Ok(Message::One(whole.get()));
    }
    let mut decoder = serde_json::Deserializer::from_str(text);
    let (items, count) = decoder.deserialize_seq(Items { max: batch_max }).map_err(no_json)?;
    decoder.end().map_err(no_json)?;
    match count {
        0 => Err(Failure::no_request("a batch has at least one request")),
        _ if count > batch_max => {
            Err(Failure::no_request(format!("the batch has {count} requests; at most {batch_max} are allowed")))
        }
        _ => Ok(Message::Batch(items)),
    }
}

/// Takes the first `max` items of an array and counts the others.
struct Items {
    max: usize,
}

impl<'de> Visitor<'de> for Items {
    type Value = (Vec<&'de str>, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while items.len() < self.max
            && let Some(item) = array.next_element::<&RawValue>()?
        {
            items.push(item.get());
        }
        let mut count = items.len();
        while array.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok((items, count))
    }
}

/// Reads one request. A refusal comes with the id to answer to.
pub(crate) fn read_call(text: &str) -> Result<Call<'_>, (&str, Failure)> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow, default, deserialize_with = "as_it_stands")]
        jsonrpc: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "as_it_stands")]
        id: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "as_it_stands")]
        method: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "as_it_stands")]
        params: Option<&'a RawValue>,
    }

    let refuse = |id, message: &str| Err((id, Failure::no_request(message)));
    if !text.starts_with('{') {
        return refuse(NO_ID, "a request is an object");
    }
    let members: Members<'_> =
        serde_json::from_str(text).map_err(|error| (NO_ID, Failure::no_request(error.to_string())))?;
    let id = members.id.map(RawValue::get);
    if id.is_some_and(|id| id.starts_with(['{', '[', 't', 'f'])) {
        return refuse(NO_ID, "`id` is a string, a number or null");
    }
    let to = id.unwrap_or(NO_ID);
    let string = |member: Option<&RawValue>| serde_json::from_str::<String>(member?.get()).ok();
    if string(members.jsonrpc).as_deref() != Some("2.0") {
        return refuse(to, "`jsonrpc` is \"2.0\"");
    }
    let Some(method) = string(members.method) else {
        return refuse(to, "`method` is a string");
    };
    match members.params.map_or("", RawValue::get) {
        NO_ID => Ok(Call { id, method, params: "" }),
        params if params.is_empty() || params.starts_with(['{', '[']) => Ok(Call { id, method, params }),
        _ => refuse(to, "`params` is an object"),
    }
}

/// A member that is present, even if it is `null`.
fn as_it_stands<'de, D: Deserializer<'de>>(decoder: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(decoder).map(Some)
}

/// The parameters of an operation, which must be named.
pub(crate) fn by_name(params: &str) -> Result<&str, SessionError> {
    if params.starts_with('[') {
        return Err(SessionError::invalid("params", "params must be an object"));
    }
    Ok(params)
}

/// The parameters of `session/subscribe`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subscribe {
    /// The session.
    pub(crate) session_id: SessionId,
    /// The cursor: events after this seq are sent.
    #[serde(default)]
    pub(crate) since_seq: u64,
    /// True to go on behind damage with the next good event.
    #[serde(default)]
    pub(crate) skip_damage: bool,
    /// Turn that an attached command waits for; the command gets an error if the store fails during the turn.
    #[schemars(skip)]
    pub(crate) turn: Option<TurnNumber>,
}

/// The parameters of `session/list_subscribe`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSubscribe {
    /// The cursor of a page before; `null` begins with the whole list.
    #[serde(default)]
    pub(crate) cursor: Option<String>,
}

/// The session of an answer about a turn, and the seq of its last event.
#[derive(Deserialize)]
pub(crate) struct OfTurn {
    pub(crate) session_id: SessionId,
    pub(crate) seq: Seq,
}

/// The parameters of `session/unsubscribe`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Unsubscribe {
    /// The answer of `session/subscribe` or `session/list_subscribe`.
    pub(crate) subscription: u64,
}

impl Unsubscribe {
    /// Client libraries end subscriptions by themselves, and send the number by position.
    pub(crate) fn decode(params: &str) -> Result<Self, SessionError> {
        if !params.starts_with('[') {
            return decode_params(params);
        }
        let [subscription] = decode_params(params)?;
        Ok(Self { subscription })
    }
}

/// The answer to a request.
pub(crate) fn answer(id: &str, result: &Result<Vec<u8>, Failure>) -> Vec<u8> {
    let head = [br#"{"jsonrpc":"2.0","id":"#, id.as_bytes()];
    match result {
        Ok(result) => [head[0], head[1], br#","result":"#, result, b"}"].concat(),
        Err(failure) => [head[0], head[1], br#","error":"#, &object(failure), b"}"].concat(),
    }
}

/// The answers to a batch; `None` if there are none.
pub(crate) fn batch_answer(answers: Vec<Vec<u8>>) -> Option<Vec<u8>> {
    let mut whole = Vec::with_capacity(answers.iter().map(|answer| answer.len() + 1).sum::<usize>() + 1);
    for answer in answers {
        whole.push(if whole.is_empty() { b'[' } else { b',' });
        whole.extend(answer);
    }
    (!whole.is_empty()).then(|| {
        whole.push(b']');
        whole
    })
}

/// The notification that ends a subscription.
pub(crate) fn end_of_subscription(subscription: u64, failure: &Failure) -> Bytes {
    [notification(subscription, "error").as_bytes(), &object(failure), b"}}"].concat().into()
}

fn object(failure: &Failure) -> Vec<u8> {
    encode(&failure.object()).unwrap_or_else(|error| {
        tracing::error!(%error, "an error could not be encoded");
        br#"{"code":-32603,"message":"The error could not be encoded."}"#.to_vec()
    })
}

fn notification(subscription: u64, member: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","method":"{EVENT}","params":{{"subscription":{subscription},"{member}":"#)
}

/// A message to a client. An event's envelope is added when it is written, never before.
pub(crate) enum Outward {
    Answer(Bytes),
    /// Its room is free again when it is written.
    Event {
        subscription: u64,
        line: Bytes,
        _room: OwnedSemaphorePermit,
    },
    Ping,
}

/// The last message to a command whose owner ends. Every request that was begun is answered before.
pub(crate) fn bye() -> Bytes {
    format!(r#"{{"jsonrpc":"2.0","method":"{BYE}"}}"#).into()
}

impl Outward {
    /// The bytes of the message; a ping has none.
    pub(crate) fn into_bytes(self) -> Bytes {
        match self {
            Self::Answer(answer) => answer,
            Self::Event { subscription, line, .. } => {
                [notification(subscription, "result").as_bytes(), &line, b"}}"].concat().into()
            }
            Self::Ping => Bytes::new(),
        }
    }
}
