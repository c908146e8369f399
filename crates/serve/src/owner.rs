//! The owner's socket: JSON-RPC, as `meerkat rpc` speaks it, for commands that attach to this process.
//!
//! It checks the other side and passes the connection on; what a request means is the surface's business.

use std::{sync::Arc, time::Duration};

use meerkat_service::{ErrorBody, SessionService};
use meerkat_surface_rpc::{
    RpcOptions, RpcService,
    owner::{
        Bound, First, HELLO, HELLO_BYTES_MAX, MESSAGE_BYTES_MAX, Readiness, Setting, Speaker, Welcome, check_peer,
        read_line,
    },
};
use serde_json::json;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::UnixStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

/// Most commands that are attached at one time. Further ones wait, up to their own limit.
const CONNECTIONS_MAX: usize = 256;

/// Most requests of one connection: an attached `serve` sends those of all its clients over it.
const CONCURRENT_MAX: usize = 4096;

/// Longest time for the first message.
const HELLO_LIMIT: Duration = Duration::from_secs(2);

/// Longest time for connections to end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Checks that this process's configuration agrees with an attached command's.
pub type Agrees = Arc<dyn Fn(&[Setting]) -> Result<(), ErrorBody> + Send + Sync>;

/// Listening socket of a data directory's owner.
pub struct Owner {
    bound: Arc<Bound>,
    rpc: RpcService,
    connections: TaskTracker,
    accepting: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("bound", &self.bound).finish_non_exhaustive()
    }
}

impl Owner {
    /// Begins to listen.
    #[must_use]
    pub fn start(bound: Bound, service: Arc<dyn SessionService>, agrees: Agrees) -> Self {
        let options = RpcOptions {
            message_bytes: MESSAGE_BYTES_MAX,
            concurrent_requests: CONCURRENT_MAX,
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

    /// Counts the attached commands.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.connections.len()
    }

    /// Ends every connection and removes the socket. The lock is released after this.
    pub async fn end(self) {
        self.accepting.abort();
        // In any case it no longer holds the socket.
        self.accepting.await.ok();
        self.rpc.stop().await;
        self.connections.close();
        if timeout(END_LIMIT, self.connections.wait()).await.is_err() {
            tracing::info!("an attached command was not notified of the end");
        }
        let removed = Arc::into_inner(self.bound).map_or(Ok(()), Bound::remove);
        if let Err(error) = removed {
            tracing::warn!(%error, "the socket could not be removed");
        }
    }
}

/// State that a connection needs.
#[derive(Clone)]
struct Host {
    service: Arc<dyn SessionService>,
    rpc: RpcService,
    agrees: Agrees,
}

async fn accept(bound: Arc<Bound>, host: Host, connections: TaskTracker) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = room.clone().acquire_owned().await {
        match bound.accept().await {
            Ok(stream) => {
                let host = host.clone();
                connections.spawn(async move {
                    if let Err(error) = serve(stream, &host).await {
                        tracing::info!(%error, "an attached command has gone");
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

/// Serves one command: first its hello, then its requests.
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
    if is_refused { Ok(()) } else { host.rpc.serve_command(reader, writer, hello.search_path()).await }
}
