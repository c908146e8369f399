//! The accept loop: one address, real timeouts, a bound on connections, and an end that waits for answers.
//!
//! It knows no surface: the caller passes the function that answers a request.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response, header};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use meerkat_service::{ErrorBody, ErrorCode};
use rustix::io::Errno;
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::socket::{Received, Socket};

/// Bytes that a connection's read buffer may grow to, and that may wait to be written before a body is asked for more;
/// hyper's own bound is ten times as much, and the buffer never shrinks. A head that is larger is answered by hyper
/// itself, with 431 and no body: there is no request yet that the guard could check.
const BUFFER_BYTES_MAX: usize = 32 * 1024;

/// Refused connections that are being answered at one time.
const REFUSALS_MAX: usize = 32;

/// Limits of a listener.
#[derive(Clone)]
pub(crate) struct ListenOptions {
    /// Connections at one time.
    pub(crate) connections_max: usize,
    /// Longest time for the head of a request, and longest wait for each piece of its body.
    pub(crate) header_timeout: Duration,
    /// Longest time in which a peer reads nothing while data is waiting.
    pub(crate) stall_limit: Duration,
    /// Longest wait for open answers at the end.
    pub(crate) linger: Duration,
}

/// Free ports that are tried for one that is free at both loopback addresses.
const PORT_TRIES: usize = 8;

/// An address that is listened at.
pub(crate) struct Bound {
    /// The one that was asked for, and the other loopback address.
    listeners: Vec<TcpListener>,
    pub(crate) local: SocketAddr,
    /// No other program listens at what `localhost` means.
    pub(crate) has_localhost: bool,
}

impl Bound {
    /// Listens at an address; at a loopback address also at the other one with the same port, because `localhost` is both
    /// of them, and another user of the machine could take it.
    pub(crate) async fn at(address: SocketAddr) -> io::Result<Self> {
        let mut bound = Self::try_at(address).await?;
        for _ in 1..PORT_TRIES {
            if bound.has_localhost || address.port() != 0 {
                break;
            }
            bound = Self::try_at(address).await?;
        }
        Ok(bound)
    }

    async fn try_at(address: SocketAddr) -> io::Result<Self> {
        let first = TcpListener::bind(address).await?;
        let (local, mut listeners) = (first.local_addr()?, vec![first]);
        let other: Option<IpAddr> = match address.ip() {
            IpAddr::V4(ip) if ip == Ipv4Addr::LOCALHOST || ip.is_unspecified() => Some(Ipv6Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip == Ipv6Addr::LOCALHOST => Some(Ipv4Addr::LOCALHOST.into()),
            _ => None,
        };
        let mut has_localhost = true;
        if let Some(other) = other {
            match TcpListener::bind((other, local.port())).await {
                Ok(second) => listeners.push(second),
                // No program can listen at an address that the machine does not have.
                Err(error) => has_localhost = is_absent(&error),
            }
        }
        Ok(Self { listeners, local, has_localhost })
    }

    async fn accept(&self) -> io::Result<TcpStream> {
        let accepted = poll_fn(|context| {
            let mut accepted = self.listeners.iter().map(|listener| listener.poll_accept(context));
            accepted.find(Poll::is_ready).unwrap_or(Poll::Pending)
        });
        Ok(accepted.await?.0)
    }
}

/// Returns true if a machine has no address of a kind.
fn is_absent(error: &io::Error) -> bool {
    let no_such_kind = Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_such_kind)
}

/// Accepts connections until `stop` fires, then waits for open answers. hyper closes a connection whose next head is not
/// complete in time, beginning before its first byte.
///
/// It speaks only HTTP/1. In HTTP/2 a peer can keep an answer for ever without reading it, on a connection that is alive;
/// here a connection has one answer at a time, and reading nothing ends it.
pub(crate) async fn listen<S, F>(listener: Bound, options: ListenOptions, answer: S, stop: CancellationToken)
where
    S: Fn(Request<Received>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(options.header_timeout).max_buf_size(BUFFER_BYTES_MAX);
    let open = TaskTracker::new();
    let room = Arc::new(Semaphore::new(options.connections_max));
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    loop {
        let stream = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Probably out of descriptors: soon there may be one again.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            // Beyond these, even saying why costs too many descriptors.
            if let Ok(refusal) = refusals.clone().try_acquire_owned() {
                tokio::spawn(async move {
                    refuse_connection(stream, options.connections_max).await;
                    drop(refusal);
                });
            }
            continue;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let answer = answer.clone();
        let socket = Socket::new(stream, options.stall_limit, place);
        let is_unfinished = socket.unfinished();
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let request = request.map(|body| Received::new(body, options.header_timeout, is_unfinished.clone()));
            // Boxed, because a connection keeps room for the future while it is open, and a stream keeps it open.
            let answered = Box::pin(answer(request));
            async move { Ok::<_, Infallible>(answered.await) }
        });
        let connection = builder.serve_connection(TokioIo::new(socket), TowerToHyperService::new(service));
        let (connection, stop) = (connection.with_upgrades(), stop.clone());
        // `hyper_util`'s GracefulShutdown takes connections with upgrades only from its builder that speaks HTTP/2 too.
        open.spawn(async move {
            tokio::pin!(connection);
            let ended = tokio::select! {
                ended = &mut connection => ended,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    open.close();
    if tokio::time::timeout(options.linger, open.wait()).await.is_err() {
        tracing::warn!("connections were still open at the end");
    }
}

/// Answers a connection beyond the limit, without reading from it.
async fn refuse_connection(mut stream: TcpStream, limit: usize) {
    let body = ErrorBody::new(ErrorCode::TooManyConnections).detail("limit", limit);
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        ErrorCode::TooManyConnections.http_status(),
        body.len()
    );
    let answered = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.shutdown().await
    };
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), answered).await {
        tracing::debug!(%error, "a refused connection did not read why");
    }
}

/// Makes the answer to a refused request.
pub(crate) fn refusal(body: &ErrorBody) -> Response<Body> {
    challenged(meerkat_surface_rest::refusal(body), body)
}

/// Adds what a caller without a token should send.
pub(crate) fn challenged(mut response: Response<Body>, body: &ErrorBody) -> Response<Body> {
    if body.code == ErrorCode::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
    }
    response
}
