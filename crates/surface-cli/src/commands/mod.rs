//! Commands: one request, one call, one print each. Those that need no service are in [`local`].
//!
//! Each uses only modules above it: `names` resolves short names, `ask` calls the service, `show` prints answers.

mod list;
mod names;

pub(crate) mod ask;

pub(crate) mod show;

pub(crate) mod confirm;
pub(crate) mod files;
mod forms;
mod shown;

pub(crate) mod local;
pub(crate) mod models;

pub(crate) mod compact;
pub(crate) mod console;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod operators;
pub(crate) mod questions;
pub(crate) mod run;
pub(crate) mod servers;
pub(crate) mod store;

pub(crate) mod call;

pub(crate) mod memory;
pub(crate) mod open;
pub(crate) mod sessions;
mod tree;

pub(crate) use names::resolve;
