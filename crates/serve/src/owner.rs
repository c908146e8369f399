//! The owner's socket: JSON-RPC, as `meerkat rpc` speaks it, for commands that attach to this process.
//!
//! It checks who comes and hands the connection over; what a request means is the surface's business.

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
pub type Agrees = Arc<dyn Fn(&[Setting]) -> Result<(), ErrorBody> + Send + Sync>;

/// A listening socket.
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
    #[must_use]
    pub fn attached(&self) -> usize {
        self.connections.len()
    }

    /// Ends every connection and takes the socket away. The lock is let go after this.
    pub async fn end(self) {
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
        match bound.accept().await {
            Ok(stream) => {
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
