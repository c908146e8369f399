//! Listener for the browser that comes back from a login: on this machine, on a port of its own, for one answer.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use meerkat_service::clock::Clock;
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

/// Path that an issuer sends the browser back to.
const PATH: &str = "/callback";
/// Connections at one time; a browser opens a few.
const CONNECTIONS_MAX: usize = 16;
/// Longest time until a connection has sent its request.
const HEADER: Duration = Duration::from_secs(10);
/// Bytes of a request.
const REQUEST_BYTES_MAX: usize = 32 * 1024;
/// Longest time for showing the last page.
const LAST_PAGE: Duration = Duration::from_secs(1);

/// Listener on 127.0.0.1.
pub(super) struct Redirect {
    listener: TcpListener,
    pub(super) uri: String,
}

impl Redirect {
    pub(super) async fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let uri = format!("http://{}{PATH}", listener.local_addr()?);
        Ok(Self { listener, uri })
    }

    /// Waits for a request whose query `judge` takes, and returns what it made of it. A page with the reason answers any
    /// other: any program on this machine may ask.
    pub(super) async fn wait<T: Send + 'static>(
        &self,
        judge: impl Fn(&str) -> Result<T, String> + Send + Sync + 'static,
        clock: &dyn Clock,
    ) -> io::Result<T> {
        let (sender, mut taken) = mpsc::channel(1);
        let mut connections = JoinSet::new();
        let judge = Arc::new(judge);
        let first = loop {
            tokio::select! {
                Some(first) = taken.recv() => break first,
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => {
                    let (judge, sender) = (judge.clone(), sender.clone());
                    let service = service_fn(move |request| {
                        let page = page(&request, &*judge, &sender);
                        async move { Ok::<_, Infallible>(page) }
                    });
                    let connection = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .header_read_timeout(HEADER)
                        .max_buf_size(REQUEST_BYTES_MAX)
                        .keep_alive(false)
                        .serve_connection(TokioIo::new(accepted?.0), service);
                    connections.spawn(async move { drop(connection.await) });
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
            }
        };
        tokio::select! {
            () = async { while connections.join_next().await.is_some() {} } => {}
            () = clock.sleep(LAST_PAGE) => {}
        }
        Ok(first)
    }
}

fn page<T>(
    request: &Request<Incoming>,
    judge: &(dyn Fn(&str) -> Result<T, String> + Send + Sync),
    taken: &mpsc::Sender<T>,
) -> Response<String> {
    let (status, text) = if request.uri().path() != PATH || request.method() != Method::GET {
        (StatusCode::NOT_FOUND, "Not found.".to_owned())
    } else {
        match judge(request.uri().query().unwrap_or_default()) {
            Err(why) => (StatusCode::BAD_REQUEST, why),
            Ok(answer) => match taken.try_send(answer) {
                Ok(()) => (StatusCode::OK, "The login is complete. You may close this page.".to_owned()),
                Err(_) => (StatusCode::BAD_REQUEST, "This login was already completed.".to_owned()),
            },
        }
    };
    let mut page = Response::new(text);
    *page.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        page.headers_mut().insert(name, http::HeaderValue::from_static(value));
    }
    page
}
