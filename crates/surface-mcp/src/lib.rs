//! meerkat over the Model Context Protocol: every operation for agents as a tool, sessions as resources, over
//! stdio and streamable HTTP, in every protocol revision that the library speaks.
//!
//! In reading order: [`tools`] is the table of spellings, `handlers` decodes, calls and encodes, `wire` makes
//! results, `error` is the one place where a code becomes an error of the protocol, `stream` follows a turn until it
//! ends or its client cancels it, `questions` asks the client about its calls by requests, `rounds` by the answer,
//! `http` is the service that a listener mounts, `head` the beginning of its slow answers, `lines` the framing of stdio.
//!
//! It must never decide what the service decides, look inside an event that is not about a call, guard a listener (its
//! owner does), or write anything but the protocol to standard output.

pub mod tools;

mod error;
mod handlers;
mod head;
mod http;
mod lines;
mod questions;
mod rounds;
mod stream;
mod wire;

use std::{io, sync::Arc};

use meerkat_service::{SessionService, wire::Answers};
use rmcp::service::{ServerInitializeError, serve_server_with_ct};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

pub use http::{HttpOptions, McpHttpService};
pub use rounds::StateKey;

use crate::{lines::Lines, stream::Cancellations, tools::Offer};

/// Bytes of a message by default: more than the longest prompt, which is a part of one.
pub const MESSAGE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// A server for one client. The ids of requests are the client's own, so clients must not share it.
pub struct McpServer {
    service: Arc<dyn SessionService>,
    offer: Offer,
    answers: Answers,
    cancellations: Cancellations,
    state_key: StateKey,
    /// Cancelled when the server ends, which cancels no request.
    ending: CancellationToken,
}

impl McpServer {
    /// Makes a server with these tools and this room for its answers.
    #[must_use]
    pub fn new(service: Arc<dyn SessionService>, offer: Offer, answers: Answers) -> Self {
        Self::within(service, offer, answers, StateKey::default(), CancellationToken::new())
    }

    /// Makes one of a server that ends with `ending`.
    fn within(
        service: Arc<dyn SessionService>,
        offer: Offer,
        answers: Answers,
        state_key: StateKey,
        ending: CancellationToken,
    ) -> Self {
        Self { service, offer, answers, cancellations: Cancellations::default(), state_key, ending }
    }
}

/// Serves one client on standard input and output until the input ends or `shutdown` is cancelled.
///
/// Its end interrupts no turn. A message of more than `max_message_bytes` is refused.
///
/// # Errors
/// If the client does not begin as the protocol asks.
pub async fn serve_stdio(
    service: Arc<dyn SessionService>,
    offer: Offer,
    max_message_bytes: usize,
    shutdown: CancellationToken,
) -> io::Result<()> {
    serve_io(service, offer, rmcp::transport::stdio_pipes(), max_message_bytes, shutdown).await
}

/// Like [`serve_stdio`], on any pair of streams.
///
/// # Errors
/// If the client does not begin as the protocol asks.
pub async fn serve_io<R, W>(
    service: Arc<dyn SessionService>,
    offer: Offer,
    (read, write): (R, W),
    max_message_bytes: usize,
    shutdown: CancellationToken,
) -> io::Result<()>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let transport = Lines::new(read, write, max_message_bytes);
    match Box::pin(serve_server_with_ct(McpServer::new(service, offer, Answers::default()), transport, shutdown)).await
    {
        Ok(running) => running.waiting().await.map(drop).map_err(io::Error::other),
        // A client may leave before it begins.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => Ok(()),
        Err(error) => Err(io::Error::other(error)),
    }
}
