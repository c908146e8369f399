//! The engine through the front door of its SDK.
//!
//! Programs of their own are `counts.rs` and `bundle_memory.rs`, which count what the whole program allocates, each with an
//! allocator that sees it.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod bounds;
mod common;
mod examples;
mod images;
mod memory;
mod models;
mod prompts;
mod secrets;
mod stored;
mod survival;
mod trouble;
mod vendors;
