//! Messages from the other side: answers and notifications.
//!
//! Results and events stay text, so that they are handed on to the letter.

use std::borrow::Cow;

use meerkat_service::{ErrorBody, Seq};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A message: an answer or a notification.
#[derive(Deserialize)]
pub(crate) struct Incoming<'a> {
    pub(crate) id: Option<u64>,
    #[serde(borrow)]
    pub(crate) method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<Refusal>,
    #[serde(borrow)]
    pub(crate) params: Option<Event<'a>>,
}

/// The parameters of a notification.
#[derive(Deserialize)]
pub(crate) struct Event<'a> {
    pub(crate) subscription: u64,
    #[serde(borrow)]
    pub(crate) result: Option<&'a RawValue>,
    pub(crate) error: Option<Refusal>,
}

/// An error of JSON-RPC. Only its body is read.
#[derive(Deserialize)]
pub(crate) struct Refusal {
    pub(crate) data: ErrorBody,
}

/// The members of an event's line that move a cursor.
#[derive(Deserialize)]
pub(crate) struct Head<'a> {
    pub(crate) seq: Option<Seq>,
    #[serde(rename = "type", borrow)]
    pub(crate) kind: &'a RawValue,
    pub(crate) to: Option<Seq>,
}
