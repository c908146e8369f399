//! The surface over its real transports: a loopback listener for HTTP and WebSocket, pipes in memory for stdio.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that meets an impossible value stops there")]

mod common;

mod framing;
mod interop;
mod limits;
mod section_7;
mod streams;
