//! Messages from the other side. Results and events stay text, so that they are handed on to the letter.

use jsonrpsee::{
    core::{client::ReceivedMessage, traits::ToRpcParams},
    types::{ErrorObjectOwned, error::OVERSIZED_REQUEST_CODE},
};
use meerkat_service::{ErrorBody, ErrorCode, Seq};
use meerkat_surface_rpc::OVERSIZE_READ;
use serde::Deserialize;
use serde_json::value::RawValue;

/// Parameters as JSON.
pub(crate) struct Params(pub(crate) Box<RawValue>);

impl ToRpcParams for Params {
    fn to_rpc_params(self) -> serde_json::Result<Option<Box<RawValue>>> {
        Ok(Some(self.0))
    }
}

/// The body of an error. jsonrpsee's own errors have none.
pub(crate) fn body_of(error: &ErrorObjectOwned) -> Box<ErrorBody> {
    let body = error.data().and_then(|data| serde_json::from_str(data.get()).ok());
    let unknown = || ErrorBody::with_message(ErrorCode::Internal, format!("{} ({})", error.message(), error.code()));
    Box::new(body.unwrap_or_else(unknown))
}

/// The beginning of a subscription's messages.
const EVENT: &str = r#"{"jsonrpc":"2.0","method":"session/event","params":{"subscription":"#;

/// Makes the last message of a subscription one of its lines: jsonrpsee's client ends the subscription with it and drops
/// the reason.
pub(crate) fn with_reason(message: ReceivedMessage) -> ReceivedMessage {
    let ReceivedMessage::Text(text) = &message else { return message };
    let rest = text.strip_prefix(EVENT).map(|rest| rest.trim_start_matches(|digit: char| digit.is_ascii_digit()));
    let Some(error) = rest.and_then(|rest| rest.strip_prefix(r#","error":"#)) else { return message };
    let head = text.len() - error.len() - r#""error":"#.len();
    ReceivedMessage::Text(format!(r#"{}"result":{error}"#, &text[..head]))
}

/// The beginning of an answer to a message that could not be read.
const UNREAD: &str = r#"{"jsonrpc":"2.0","id":null,"error":"#;

/// Bytes that a server takes in one message, if it says that one had far more. It does not say which one, so jsonrpsee's
/// client closes the connection.
pub(crate) fn limit_of(message: &ReceivedMessage) -> Option<usize> {
    let ReceivedMessage::Text(text) = message else { return None };
    let error = text.strip_prefix(UNREAD)?.strip_suffix('}')?;
    let error: ErrorObjectOwned = serde_json::from_str(error).ok()?;
    let text: String =
        serde_json::from_str(error.data().filter(|_| error.code() == OVERSIZED_REQUEST_CODE)?.get()).ok()?;
    let read: usize = text.rsplit(' ').next()?.parse().ok()?;
    Some(read / OVERSIZE_READ)
}

/// The reason for the end of a subscription, if the line is one.
pub(crate) fn reason_of(line: &str) -> Option<Box<ErrorBody>> {
    let error = serde_json::from_str::<ErrorObjectOwned>(Some(line).filter(|line| line.starts_with(r#"{"code":"#))?);
    error.ok().map(|error| body_of(&error))
}

/// The members of an event's line that move a cursor.
#[derive(Deserialize)]
pub(crate) struct Head<'a> {
    pub(crate) seq: Option<Seq>,
    #[serde(rename = "type", borrow)]
    pub(crate) kind: &'a RawValue,
    pub(crate) to: Option<Seq>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_message_of_a_subscription_becomes_a_line_with_its_reason() {
        let message = |member: &str, value: &str| ReceivedMessage::Text(format!(r#"{EVENT}17,"{member}":{value}}}}}"#));
        let text = |message| match message {
            ReceivedMessage::Text(text) => text,
            other => panic!("{other:?}"),
        };
        let body = serde_json::to_string(&ErrorBody::new(ErrorCode::SubscriberLagged)).unwrap();
        let error = format!(r#"{{"code":-1,"message":"x","data":{body}}}"#);
        assert_eq!(text(with_reason(message("error", &error))), text(message("result", &error)));
        assert_eq!(reason_of(&error).unwrap().code, ErrorCode::SubscriberLagged);
        let event = r#"{"v":1,"text":",\"error\":"}"#;
        assert_eq!(text(with_reason(message("result", event))), text(message("result", event)));
        assert!(reason_of(event).is_none());
    }
}
