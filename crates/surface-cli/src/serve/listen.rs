//! The accept loop: one listener, real timeouts, a bound on connections, and an end that waits for answers.
//!
//! It knows no surface: what answers a request is handed in.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use axum::body::Body;
use http::{Request, Response, header};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use meerkat_errors::{ErrorBody, ErrorCode};
use tokio::{
    io::AsyncWriteExt as _,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_util::sync::CancellationToken;

use super::socket::{Patience, Socket};

/// Bytes that a connection's read buffer may grow to, and that may wait to be written before a body is asked for more;
/// hyper's own bound is ten times as much, and the buffer never shrinks. A head that is larger is answered by hyper
/// itself, with 431 and no body: there is no request yet that the guard could look at.
const BUFFER_BYTES_MAX: usize = 32 * 1024;

/// Bounds of a listener.
#[derive(Clone, Copy)]
pub(crate) struct ListenOptions {
    /// Connections at one time.
    pub(crate) connections_max: usize,
    /// How long the head of a request may take, and the answer to a ping of HTTP/2.
    pub(crate) header_timeout: Duration,
    /// How long a peer may take nothing of what is written to it.
    pub(crate) stall_limit: Duration,
    /// How long open answers are waited for at the end.
    pub(crate) linger: Duration,
}

/// Accepts connections until `stop` fires, then waits for open answers.
pub(crate) async fn listen<S, F>(listener: TcpListener, options: ListenOptions, answer: S, stop: CancellationToken)
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(options.header_timeout).max_buf_size(BUFFER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(options.header_timeout))
        .keep_alive_timeout(options.header_timeout)
        .max_concurrent_streams(128)
        .max_header_list_size(BUFFER_BYTES_MAX as u32);
    let builder = Arc::new(builder);
    let patience = Patience { opening: options.header_timeout, stall: options.stall_limit };
    let open = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(options.connections_max));
    loop {
        let stream = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Out of descriptors, most likely: the next moment may have one again.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let Ok(place) = room.clone().try_acquire_owned() else {
            tokio::spawn(refuse_connection(stream, options.connections_max));
            continue;
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection keeps its delay");
        }
        let answer = answer.clone();
        let service = tower::service_fn(move |request| {
            // Boxed, because a connection keeps room for what answers it as long as it is open, and a stream keeps it open.
            let answered = Box::pin(answer(request));
            async move { Ok::<_, Infallible>(answered.await) }
        });
        let connection = builder.serve_connection_with_upgrades(
            TokioIo::new(Socket::new(stream, patience, place)),
            TowerToHyperService::new(service),
        );
        let watched = open.watch(connection.into_owned());
        tokio::spawn(async move {
            if let Err(error) = watched.await {
                tracing::debug!(%error, "a connection ended early");
            }
        });
    }
    drop(listener);
    if tokio::time::timeout(options.linger, open.shutdown()).await.is_err() {
        tracing::warn!("connections were still open at the end and are closed");
    }
}

/// Answers a connection that is one too many, without reading from it.
async fn refuse_connection(mut stream: TcpStream, limit: usize) {
    let body = ErrorBody::new(ErrorCode::TooManyConnections).detail("limit", limit);
    let body = serde_json::to_vec(&body).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {} Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        ErrorCode::TooManyConnections.http_status(),
        body.len()
    );
    let told = async {
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(&body).await?;
        stream.shutdown().await
    };
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(1), told).await {
        tracing::debug!(%error, "a refused connection did not hear why");
    }
}

/// The answer to a request that did not come in.
pub(crate) fn refusal(body: &ErrorBody) -> Response<Body> {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(bytes));
    *response.status_mut() = super::error::status(body.code);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    if body.code == ErrorCode::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, http::HeaderValue::from_static("Bearer"));
    }
    response
}

/// The address that a listener is bound to, as a base URL.
pub(crate) fn base_url(listener: &TcpListener) -> io::Result<String> {
    Ok(format!("http://{}", listener.local_addr()?))
}
