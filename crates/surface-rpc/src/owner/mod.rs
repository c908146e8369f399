//! The owner's socket, between a process that owns a data directory and one that attaches to it: its place, and the
//! greeting before JSON-RPC. Both sides use it; it decides nothing about sessions.

mod hello;
mod place;

pub use hello::{
    BYE, First, HELLO, HELLO_BYTES_MAX, Hello, MESSAGE_BYTES_MAX, Readiness, Setting, Speaker, Welcome, read_line,
};
pub use place::{Bound, Place, check_peer, path_hash};
