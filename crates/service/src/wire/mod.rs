//! Where bytes are made: the one event encoding, and the one way from parameters to an answer.
//!
//! Only the stores and the surfaces come here; the engine never looks at bytes.

mod call;
mod event;

pub use call::{call, decode_params};
pub use event::{decode_event, encode_event, encode_live};
