//! Bytes of requests, answers and events: the one event encoding, and the one way from parameters to an answer.
//!
//! Only stores and surfaces use it; the engine never reads bytes.

pub(crate) mod bounds;
mod budget;
mod call;
mod event;
mod lines;
mod schema;
mod span;

#[cfg(test)]
mod tests;

pub use budget::{Answer, Answers, Room};
pub use call::{
    begin_for_command, begin_resume, begin_turn, call, create_session, decode_create, decode_history, decode_params,
    decode_turn,
};
pub use event::{decode_event, decode_live, encode_event, encode_live, events_encoded, words};
pub(crate) use event::{decode_outline, type_of};
pub use lines::{Line, read_line};
pub use meerkat_words::reply::{Reply, encode, encode_events};
pub use schema::{answer_schema, event_schema, request_schema};
pub use span::{in_span, span_of, within};
