//! The surface over HTTP, without a socket. What counts allocations is a program of its own: `counts.rs`.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod bundles;
mod common;
mod damaged;
mod description;
mod mutations;
mod routes;
mod streams;
