//! meerkat over the network, for programs in Rust: [`Client`] is a `SessionService` that another process performs.
//!
//! ```no_run
//! use meerkat_client::Client;
//! use meerkat_service::{SessionService as _, service::{CreateSession, StartTurn}};
//!
//! # async fn example() -> Result<(), meerkat_service::SessionError> {
//! let client = Client::connect("http://127.0.0.1:7670", "the token").await?;
//! let session = client.create_session(CreateSession::default()).await?;
//! let result = client.start_turn(StartTurn::new(session.session_id, "Hello.")).await?;
//! println!("{}", result.text);
//! # Ok(())
//! # }
//! ```
//!
//! In reading order: [`client`](Client) forwards the operations, `way` connects, `connection` matches answers with
//! requests, `following` continues over the next connection, `tools` answers calls, `wire` has the shapes of messages. Nothing here decides about
//! a session: every refusal is the server's.

mod client;
mod way;

mod connection;
mod following;
mod service;
mod tools;

mod wire;

pub use client::{Client, Defaults};
pub use connection::Connection;
pub use meerkat_surface_rpc::owner::{Hello, Place, Setting, Speaker, path_hash};
pub use way::{Server, Way, attach};

/// Programs of the pages for Rust, which `cargo test` compiles and runs as they stand.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../../docs/rust.md")]
    struct Rust;
}
