//! The shapes of parameters, and of what a subscription sends last. Answers and events stay text, so they are handed on to
//! the letter.

use jsonrpsee::types::{
    ErrorObjectOwned, SubscriptionId,
    response::{SubscriptionError, SubscriptionPayloadError},
};
use meerkat_service::{SessionError, SessionId, TurnNumber, wire::decode_params};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{error::Failure, table::EVENT};

/// The parameters of an operation, which must be named.
pub(crate) fn by_name(params: &str) -> Result<&str, SessionError> {
    if params.is_empty() || params.starts_with('{') {
        return Ok(params);
    }
    Err(SessionError::invalid("params", "params must be an object"))
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

/// Returns true if a read may wait for what it answers.
pub(crate) fn waits(params: &str) -> bool {
    #[derive(Deserialize)]
    struct Wait {
        #[serde(default)]
        wait_ms: u64,
        #[serde(default)]
        is_waiting: bool,
    }
    serde_json::from_str::<Wait>(params).is_ok_and(|wait| wait.wait_ms > 0 || wait.is_waiting)
}

/// An answer's or a line's JSON, for the library.
pub(crate) fn raw(json: Vec<u8>) -> Result<Box<RawValue>, SessionError> {
    let text = String::from_utf8(json).map_err(|error| error.to_string());
    let raw = text.and_then(|text| RawValue::from_string(text).map_err(|error| error.to_string()));
    raw.map_err(|error| SessionError::Internal(format!("an answer is not JSON: {error}")))
}

/// Returns true if the answer of a method is `true`.
pub(crate) fn is_true(answer: &str) -> bool {
    #[derive(Deserialize)]
    struct Answer {
        result: bool,
    }
    serde_json::from_str::<Answer>(answer).is_ok_and(|answer| answer.result)
}

/// The notification that ends a subscription.
pub(crate) fn end_of_subscription(
    subscription: SubscriptionId<'_>,
    failure: Failure,
) -> serde_json::Result<Box<RawValue>> {
    let params = SubscriptionPayloadError { subscription, error: ErrorObjectOwned::from(failure) };
    serde_json::value::to_raw_value(&SubscriptionError::new(EVENT.into(), params))
}
