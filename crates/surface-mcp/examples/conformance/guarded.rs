//! A listener with the guard of `meerkat serve` in front of the service.

use std::{convert::Infallible, io, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use http::{Request, Response, StatusCode, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use meerkat_surface_mcp::{MESSAGE_BYTES_MAX, McpHttpService};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;
use tower::{Service as _, service_fn};

use crate::{
    guard::{Guard, Host},
    server::Fixtures,
};

type Answer = BoxBody<Bytes, Infallible>;

/// In a request: breaks the stream of its answer, like a lost connection.
#[derive(Clone)]
pub(crate) struct Cut {
    cut: CancellationToken,
    /// Notified when a client resumes a stream.
    returned: Arc<Notify>,
}

impl Cut {
    /// Breaks the stream, and waits until a client resumes it.
    pub(crate) async fn until_return(&self) {
        self.cut.cancel();
        self.returned.notified().await;
    }
}

/// Serves until the listener breaks.
pub(crate) async fn serve(listener: TcpListener, port: u16, service: McpHttpService<Fixtures>) -> io::Result<()> {
    let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|name| Host::on(name, port)).to_vec();
    let body_bytes_max = MESSAGE_BYTES_MAX as u64;
    let guard = Arc::new(Guard {
        hosts,
        origins: Vec::new(),
        token: None,
        page: None,
        body_bytes_max,
        streamed_bytes_max: Box::new(|_| None),
    });
    let returned = Arc::new(Notify::new());
    loop {
        let (socket, _) = listener.accept().await?;
        let (guard, service, returned) = (guard.clone(), service.clone(), returned.clone());
        let answer = service_fn(move |mut request: Request<Incoming>| {
            let cut = Cut { cut: CancellationToken::new(), returned: returned.clone() };
            request.extensions_mut().insert(cut.clone());
            let is_return = request.headers().contains_key("last-event-id");
            let checked = guard.check(request.uri(), request.headers());
            let mut service = service.clone();
            async move {
                let Err(body) = checked else {
                    let answer = service.call(request).await?;
                    if is_return {
                        cut.returned.notify_one();
                    }
                    return Ok(until(cut.cut, answer));
                };
                let text = serde_json::to_vec(&body).unwrap_or_default();
                let mut refusal = Response::new(Full::from(text));
                *refusal.status_mut() = StatusCode::from_u16(body.code.http_status()).unwrap_or(StatusCode::FORBIDDEN);
                refusal.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
                Ok::<_, Infallible>(refusal.map(BodyExt::boxed))
            }
        });
        tokio::spawn(async move {
            // A client may leave at any time.
            let _ =
                http1::Builder::new().serve_connection(TokioIo::new(socket), TowerToHyperService::new(answer)).await;
        });
    }
}

/// An answer whose stream ends when it is cut.
fn until(cut: CancellationToken, answer: Response<Answer>) -> Response<Answer> {
    answer.map(|body| {
        let data = body.into_data_stream().take_until(cut.cancelled_owned());
        BodyExt::boxed(StreamBody::new(data.map_ok(Frame::data)))
    })
}
