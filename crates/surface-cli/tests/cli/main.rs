//! The command line with a terminal of the test's own, and a few times as a process.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

#[path = "../drive/mod.rs"]
mod drive;

mod advised;
mod agents;
mod asked;
mod call;
mod chat;
mod compact;
mod config;
mod confined;
mod dist;
mod documented;
mod endpoint;
mod files;
mod login;
mod memory;
mod model;
mod models;
mod moved;
mod page;
mod process;
mod run;
mod screens;
mod sources;
mod store;
mod trust;
mod typed;
mod words;
