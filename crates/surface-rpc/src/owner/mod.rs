//! The owner's socket: where a process that owns a data directory and one that attaches to it meet, and what they say
//! before they speak JSON-RPC. Both sides are made of it; it decides nothing about sessions.

mod hello;
mod place;

pub use hello::{
    First, HELLO, HELLO_BYTES_MAX, Hello, MESSAGE_BYTES_MAX, Readiness, Setting, Speaker, Welcome, read_line,
};
pub use place::{Bound, Place, check_peer, path_hash};
