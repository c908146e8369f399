//! The ways to a process that serves: its URL, or the socket of a data directory's owner.
//!
//! A way only connects. What is sent over a connection, and what happens when it closes, is the client's business.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _, TryStreamExt as _, sink, stream};
use http::{HeaderValue, Request, StatusCode, Uri, header};
use meerkat_service::{Capabilities, CapabilitiesView, ErrorBody, ErrorCode, Operation, SessionError, SessionService};
use meerkat_surface_rpc::owner::{
    HELLO, HELLO_BYTES_MAX, Hello, MESSAGE_BYTES_MAX, Place, Readiness, Setting, Speaker, Welcome, read_line,
};
use serde_json::json;
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{TcpStream, UnixStream},
    time::{Instant, sleep, timeout},
};
use tokio_tungstenite::{
    client_async_with_config,
    tungstenite::{Error, Message, client::IntoClientRequest as _, protocol::WebSocketConfig},
};

use crate::{
    connection::{Connection, Failed, Found},
    wire::Incoming,
};

/// Bytes of an answer. The other side is trusted, so this bounds a mistake and no attack.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// How long a server may take to start again, and the pause between two attempts to connect.
const FIND_LIMIT: Duration = Duration::from_secs(2);
const FIND_PAUSE: Duration = Duration::from_millis(20);

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that a server takes in one message, unless its `serve.max_body_bytes` was changed.
const SERVER_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// How long a server may be silent. It answers pings, unless its machine or the network is gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

/// The process that serves.
#[derive(Clone)]
pub enum Server {
    /// Another process.
    There(Arc<Connection>),
    /// This process, which has taken its place.
    Here(Arc<dyn SessionService>),
}

/// A way to a process that serves.
#[async_trait]
pub trait Way: Send + Sync {
    /// Connects.
    ///
    /// # Errors
    /// The reason why nobody can be reached, or the refusal of the other side.
    async fn connect(&self) -> Result<Connection, SessionError>;

    /// Finds the process that serves after the former one has closed the connection. It may be starting again.
    ///
    /// # Errors
    /// The reason why nobody can be reached, or the refusal of the other side.
    async fn find(&self) -> Result<Server, SessionError> {
        let until = Instant::now() + FIND_LIMIT;
        loop {
            match self.connect().await {
                Err(error) if error.code() == ErrorCode::ShuttingDown && Instant::now() < until => {
                    sleep(FIND_PAUSE).await;
                }
                connected => return connected.map(|connection| Server::There(Arc::new(connection))),
            }
        }
    }
}

/// A server's URL.
pub(crate) struct Url {
    host: String,
    port: u16,
    request: Request<()>,
    /// The caller's spelling.
    text: String,
}

impl Url {
    /// Reads `http://host[:port][/path]`, and the token that the server asks for. The host must be this machine, unless the
    /// token may be sent elsewhere unencrypted.
    pub(crate) fn read(text: &str, token: &str, leaves_machine: bool) -> Result<Self, SessionError> {
        let refused = |message: &str| SessionError::invalid("url", message);
        let uri: Uri = text.parse().map_err(|_| refused("it must be such as http://127.0.0.1:7670"))?;
        match uri.scheme_str() {
            Some("http" | "ws") => {}
            Some("https" | "wss") => {
                return Err(refused(
                    "https:// is not supported; connect to the server directly, or through an SSH tunnel",
                ));
            }
            _ => return Err(refused("it must begin with http://")),
        }
        let (host, port) = (uri.host().unwrap_or_default().to_owned(), uri.port_u16().unwrap_or(80));
        if !leaves_machine && !is_this_machine(&host) {
            return Err(refused(
                "over http, others on the way to another machine could read the token; use a tunnel, such as `ssh -L \
                 7670:127.0.0.1:7670 HOST`, or `Client::connect_unencrypted`",
            ));
        }
        let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
        let target = format!("ws://{authority}{}/rpc", uri.path().trim_end_matches('/'));
        let mut request = target.into_client_request().map_err(|error| refused(&error.to_string()))?;
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let bearer = bearer.map_err(|_| SessionError::invalid("token", "it must be text without line breaks"))?;
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
        Ok(Self { host, port, request, text: text.to_owned() })
    }

    /// The error for a handshake that failed: the server's refusal, if it sent one.
    fn refusal(&self, error: Error) -> SessionError {
        let response = match error {
            Error::Http(response) => response,
            other => return self.unreachable(&other),
        };
        let body = response.body().as_deref().and_then(|body| serde_json::from_slice::<ErrorBody>(body).ok());
        let body = body.unwrap_or_else(|| match response.status() {
            // The body may come too late to be read.
            StatusCode::UNAUTHORIZED => ErrorBody::new(ErrorCode::Unauthenticated),
            StatusCode::FORBIDDEN => ErrorBody::new(ErrorCode::ForbiddenOrigin),
            StatusCode::TOO_MANY_REQUESTS => ErrorBody::new(ErrorCode::TooManyConnections),
            StatusCode::SERVICE_UNAVAILABLE => ErrorBody::new(ErrorCode::ShuttingDown),
            status => {
                let message = format!("{} is not a meerkat server (HTTP status {status}).", self.text);
                ErrorBody::with_message(ErrorCode::UnknownOperation, message)
            }
        });
        SessionError::Remote(Box::new(body))
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> SessionError {
        unreachable(&self.text, error)
    }
}

/// Returns true for a host whose messages do not leave this machine.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

/// The error if nobody answers.
fn unreachable(place: &str, error: &dyn std::fmt::Display) -> SessionError {
    let message = format!("No meerkat server can be reached at {place}: {error}.");
    SessionError::Remote(Box::new(ErrorBody::with_message(ErrorCode::ShuttingDown, message)))
}

#[async_trait]
impl Way for Url {
    async fn connect(&self) -> Result<Connection, SessionError> {
        timeout(CONNECT_LIMIT, self.open()).await.unwrap_or_else(|_| Err(self.unreachable(&"it does not answer")))
    }
}

impl Url {
    async fn open(&self) -> Result<Connection, SessionError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await.map_err(|error| self.unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| self.unreachable(&error))?;
        let config =
            WebSocketConfig::default().max_message_size(Some(ANSWER_BYTES_MAX)).max_frame_size(Some(ANSWER_BYTES_MAX));
        let opened = client_async_with_config(self.request.clone(), stream, Some(config)).await;
        let (outlet, inlet) = opened.map_err(|error| self.refusal(error))?.0.split();
        let outlet = outlet.with(|line: String| async move {
            Ok::<_, Error>(if line.is_empty() { Message::Ping(Bytes::new()) } else { Message::text(line) })
        });
        let outlet = outlet.sink_map_err(io::Error::other);
        let inlet = inlet.map_err(io::Error::other).map_ok(|message| match message {
            Message::Text(text) => Bytes::from(text),
            Message::Binary(bytes) => bytes,
            // The library answers pings; after a close the stream ends.
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) | Message::Frame(_) => Bytes::new(),
        });
        let found = Found {
            capabilities: Capabilities::compiled(),
            readiness: Readiness { is_ready: true, trouble: None },
            is_owner: false,
            message_bytes: SERVER_MESSAGE_BYTES,
            silence: SILENCE_LIMIT,
        };
        let mut connection = Connection::start(Box::pin(inlet), Box::pin(outlet), found);
        let view = connection.request(Operation::Capabilities.public_name(), "{}").await;
        let view = view.map_err(|failed| match failed {
            Failed::Refused(body) => SessionError::Remote(body),
            Failed::Unasked | Failed::Lost => self.unreachable(&"it closed the connection"),
        })?;
        let view: CapabilitiesView = serde_json::from_slice(&view).map_err(|error| self.unreachable(&error))?;
        connection.found.capabilities = Capabilities::of_view(&view);
        Ok(connection)
    }
}

/// The socket of a data directory's owner.
#[async_trait]
impl Way for Place {
    async fn connect(&self) -> Result<Connection, SessionError> {
        let unreachable = |error: &dyn std::fmt::Display| unreachable(&self.data_dir().display().to_string(), error);
        match timeout(CONNECT_LIMIT, attach(self, Vec::new(), None)).await {
            Ok(Ok(attached)) => attached.map_err(SessionError::Remote),
            Ok(Err(error)) => Err(unreachable(&error)),
            Err(_) => Err(unreachable(&"it does not answer")),
        }
    }
}

/// Connects to the owner of a data directory, whose commands look for programs in `search_path`. Its refusal is the inner
/// error.
///
/// # Errors
/// If nobody listens, or what listens speaks another protocol.
pub async fn attach(
    place: &Place,
    settings: Vec<Setting>,
    search_path: Option<String>,
) -> io::Result<Result<Connection, Box<ErrorBody>>> {
    let stream = place.connect().await?;
    greet(stream, &Hello { speaker: Speaker::own(), settings, search_path }).await
}

async fn greet(stream: UnixStream, hello: &Hello) -> io::Result<Result<Connection, Box<ErrorBody>>> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let message = json!({ "jsonrpc": "2.0", "id": 0, "method": HELLO, "params": hello });
    writer.write_all(format!("{message}\n").as_bytes()).await?;
    let line = read_line(&mut reader, HELLO_BYTES_MAX).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let answer: Incoming<'_> = serde_json::from_slice(&line)?;
    let welcome = answer.result.ok_or_else(|| io::Error::other("the owner speaks another protocol"))?;
    let welcome: Welcome = serde_json::from_str(welcome.get())?;
    if let Some(refusal) = Speaker::refuse(&welcome.speaker, &hello.speaker).or(welcome.refusal) {
        return Ok(Err(Box::new(refusal)));
    }
    let inlet = stream::try_unfold(reader, |mut reader| async move {
        let line = read_line(&mut reader, ANSWER_BYTES_MAX as u64).await?;
        io::Result::Ok(line.map(|line| (Bytes::from(line), reader)))
    });
    let outlet = sink::unfold(writer, |mut writer, mut line: String| async move {
        line.push('\n');
        writer.write_all(line.as_bytes()).await?;
        Ok::<_, io::Error>(writer)
    });
    // The owner is of the same build, and has the store. The system closes the socket of a process that has ended.
    let found = Found {
        capabilities: Capabilities::compiled(),
        readiness: welcome.readiness,
        is_owner: true,
        message_bytes: MESSAGE_BYTES_MAX,
        silence: Duration::MAX,
    };
    Ok(Ok(Connection::start(Box::pin(inlet), Box::pin(outlet), found)))
}
