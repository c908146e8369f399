//! The meerkat engine and its Rust SDK: sessions that run turns against a language model, record every
//! event durably, and can be followed, interrupted, resumed and forked.
//!
//! ```
//! use meerkat_service::prelude::*;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), SessionError> {
//!     let agent = AgentBuildConfig::new().build()?;
//!     let session = agent.create_session().await?;
//!     let result = agent.turn(&session, "@say Hello there.").await?;
//!     assert_eq!(result.text, "Hello there.");
//!     Ok(())
//! }
//! ```
//!
//! This ran the scripted model, in memory. [`AgentBuildConfig`] takes a vendor's model, a data directory, tools of
//! your own, compaction and memory; [`SessionService`] has every operation. [`prelude`] has the names that most
//! programs need. The examples in `crates/service/examples` follow a turn as it comes and approve a tool's call.
//!
//! In reading order: [`service`] is the contract, [`session`] what a session is and how it changes, the engine
//! (`agent`) decides, performs and records, [`follow`] shows events to followers, [`model`] and [`tool`] are the
//! seams to the outside, [`store`] the seams to storage, and [`wire`] makes the bytes that every surface sends.
//!
//! Nothing here knows a surface: no HTTP, no JSON-RPC, no command line.

pub mod prelude;

pub mod service;

pub mod capability;
pub mod session;

pub mod follow;

mod agent;

mod prompt;
mod uploads;

pub mod compaction;
pub mod memory;
pub mod store;
pub mod tool;

pub mod folder;

mod consumers;

pub mod wire;

mod engine;
pub mod runtime;

mod upkeep;

mod factory;

pub use meerkat_errors::{ErrorBody, ErrorCode};
pub use meerkat_models as model;
pub(crate) use meerkat_words::ids;
pub use meerkat_words::{
    Operation, SessionError, clock, cost, given, operation, operations, options, output, redact, request_of,
};

pub use capability::{Absence, Capabilities, CapabilitiesView, Capability};
pub use factory::{Agent, AgentBuildConfig};
pub use ids::{Seq, SessionId, TurnNumber};
pub use service::SessionService;
pub use session::Session;
pub use upkeep::{copy, doctor};
