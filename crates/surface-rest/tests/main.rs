//! The surface over HTTP, without a socket. What counts allocations is a program of its own: `counts.rs`.

mod bundles;
mod common;
mod description;
mod mutations;
mod routes;
mod streams;
