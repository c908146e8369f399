//! The server for the official conformance suite of the protocol: the surface's own HTTP service, behind the guard of
//! `meerkat serve`, with the fixtures that the suite calls by name instead of meerkat's tools.
//!
//! It prints its URL and serves until its standard input ends. It must never correct the service: every answer besides the
//! fixtures is the product's.

mod fixtures;
mod guarded;
mod rounds;
mod server;

/// The guard of `meerkat serve`, from its own source, because no crate exports it.
#[allow(
    dead_code,
    unreachable_pub,
    reason = "the suite comes from no web page, and its server has no names to configure"
)]
#[path = "../../../serve/src/guard.rs"]
mod guard;

use std::io::{self, Write as _};

use meerkat_surface_mcp::{HttpOptions, McpHttpService};
use tokio::{io::AsyncReadExt as _, net::TcpListener};

use crate::server::{Changes, Fixtures};

#[tokio::main]
async fn main() -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let address = listener.local_addr()?;
    let changes = Changes::default();
    let service = McpHttpService::over(move || Fixtures::new(changes.clone()), HttpOptions::default());
    writeln!(io::stdout(), "http://{address}/mcp")?;
    let mut rest = Vec::new();
    let mut input = tokio::io::stdin();
    tokio::select! {
        ended = guarded::serve(listener, address.port(), service) => ended,
        ended = input.read_to_end(&mut rest) => ended.map(drop),
    }
}
