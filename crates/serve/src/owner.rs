//! The owner's socket: JSON-RPC, as `meerkat rpc` speaks it, for commands that attach to this process.
//!
//! It checks who comes and hands the connection over; what a request means is the surface's business.

use std::{sync::Arc, time::Duration};

use meerkat_errors::ErrorBody;
use meerkat_service::{Operation, SessionService};
use meerkat_surface_rpc::{METHODS, Method, RpcOptions, RpcService};
use serde_json::json;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::UnixStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::{
    attach::{
        socket::{Bound, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, check_peer, read_line},
        wire::{First, HELLO, Readiness, Speaker, Welcome},
    },
    config::Setting,
};

/// The method that follows a session.
pub(crate) const SUBSCRIBE: &str = "session/subscribe";

/// The method that ends a subscription.
pub(crate) const UNSUBSCRIBE: &str = "session/unsubscribe";

/// Commands that are attached at one time. Further ones wait, and give up after their own limit.
const CONNECTIONS_MAX: usize = 256;

/// What an attached `serve` has under way for its own clients goes over one connection.
const CONCURRENT_MAX: usize = 4096;

/// How long a first message may take.
const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// How long connections get to end once they were told to.
const END_LIMIT: Duration = Duration::from_secs(2);

/// A rest after a connection could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Says whether this process's configuration is what an attached command was told.
pub(crate) type Agrees = Arc<dyn Fn(&[Setting]) -> Result<(), ErrorBody> + Send + Sync>;

/// The method of an operation.
pub(crate) fn method(operation: Operation) -> &'static str {
    let row = METHODS.iter().find(|(_, method)| *method == Method::Operation(operation));
    row.map_or("", |(name, _)| name)
}

/// A listening socket.
pub(crate) struct Owner {
    bound: Arc<Bound>,
    rpc: RpcService,
    connections: TaskTracker,
    accepting: AbortOnDropHandle<()>,
}

impl Owner {
    /// Begins to listen.
    pub(crate) fn start(bound: Bound, service: Arc<dyn SessionService>, agrees: Agrees) -> Self {
        let options = RpcOptions {
            message_bytes: MESSAGE_BYTES_MAX,
            concurrent_messages: CONCURRENT_MAX,
            subscriptions: CONCURRENT_MAX,
            is_for_commands: true,
            ..RpcOptions::default()
        };
        let rpc = meerkat_surface_rpc::service(service.clone(), options);
        let (bound, connections) = (Arc::new(bound), TaskTracker::new());
        let accepting =
            tokio::spawn(accept(bound.clone(), Host { service, rpc: rpc.clone(), agrees }, connections.clone()));
        Self { bound, rpc, connections, accepting: AbortOnDropHandle::new(accepting) }
    }

    /// Commands that are attached.
    pub(crate) fn attached(&self) -> usize {
        self.connections.len()
    }

    /// Ends every connection and takes the socket away. The lock is let go after this.
    pub(crate) async fn end(self) {
        self.accepting.abort();
        // Aborted or not, it holds the socket no longer.
        self.accepting.await.ok();
        self.rpc.stop().await;
        self.connections.close();
        if timeout(END_LIMIT, self.connections.wait()).await.is_err() {
            tracing::info!("a command that is attached did not hear of the end");
        }
        let removed = Arc::into_inner(self.bound).map_or(Ok(()), Bound::remove);
        if let Err(error) = removed {
            tracing::warn!(%error, "the socket could not be removed");
        }
    }
}

/// What a command meets that attaches.
#[derive(Clone)]
struct Host {
    service: Arc<dyn SessionService>,
    rpc: RpcService,
    agrees: Agrees,
}

async fn accept(bound: Arc<Bound>, host: Host, connections: TaskTracker) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = room.clone().acquire_owned().await {
        match bound.listener.accept().await {
            Ok((stream, _)) => {
                let host = host.clone();
                connections.spawn(async move {
                    if let Err(error) = serve(stream, &host).await {
                        tracing::info!(%error, "a command that was attached is gone");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a command could not attach");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves one command: hello first, then requests.
async fn serve(stream: UnixStream, host: &Host) -> std::io::Result<()> {
    check_peer(&stream)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let Some(line) = timeout(HELLO_LIMIT, read_line(&mut reader, HELLO_BYTES_MAX)).await?? else { return Ok(()) };
    let First { method, params: hello } = serde_json::from_slice(&line)?;
    if method != HELLO {
        return Err(std::io::Error::other(format!("the first message is {method:?}")));
    }
    let speaker = Speaker::own();
    let refusal = Speaker::refuse(&speaker, &hello.speaker).or_else(|| (host.agrees)(&hello.settings).err());
    let is_refused = refusal.is_some();
    let readiness = match host.service.check_ready().await {
        Ok(is_ready) => Readiness { is_ready, trouble: None },
        Err(error) => Readiness { is_ready: false, trouble: Some(error.body()) },
    };
    let answer = json!({ "jsonrpc": "2.0", "id": 0, "result": Welcome { speaker, refusal, readiness } });
    writer.write_all(format!("{answer}\n").as_bytes()).await?;
    if is_refused { Ok(()) } else { host.rpc.serve_stdio(reader, writer).await }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_has_a_method() {
        for operation in Operation::ALL {
            assert!(method(*operation).contains('/'), "{}", operation.name());
        }
        let is_there = |name| METHODS.iter().any(|(known, _)| *known == name);
        assert!(is_there(SUBSCRIBE) && is_there(UNSUBSCRIBE));
    }
}
