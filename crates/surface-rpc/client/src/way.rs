//! The ways to a process that serves: a WebSocket to its URL, or lines on the socket of a data directory's owner.
//!
//! A way only connects. What is sent over a connection, and what happens when it closes, is the client's business.

use std::{
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use jsonrpsee::{
    async_client::PingConfig,
    client_transport::ws::{Url as Target, WsHandshakeError, WsTransportClientBuilder},
    core::client::{ReceivedMessage, TransportReceiverT, TransportSenderT},
};
use meerkat_service::{Capabilities, CapabilitiesView, ErrorBody, ErrorCode, Operation, SessionError, SessionService};
use meerkat_surface_rpc::owner::{
    BYE, HELLO, HELLO_BYTES_MAX, Hello, MESSAGE_BYTES_MAX, Place, Readiness, Setting, Speaker, Welcome, read_line,
};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Instant, sleep, timeout},
};

use crate::{
    connection::{Connection, Failed, Found},
    wire::{limit_of, with_reason},
};

/// Bytes of an answer. The other side is trusted, so this bounds a mistake and no attack.
const ANSWER_BYTES_MAX: u32 = 256 * 1024 * 1024;

/// How long a server may take to start again, and the pause between two attempts to connect.
const FIND_LIMIT: Duration = Duration::from_secs(2);
const FIND_PAUSE: Duration = Duration::from_millis(20);

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that a server takes in one message, unless its `serve.max_body_bytes` was changed.
const SERVER_MESSAGE_BYTES: usize = 32 * 1024 * 1024;

/// How often a server is pinged, and how long it may be silent. It answers pings, unless its machine or the network is
/// gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

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
    target: Target,
    headers: HeaderMap,
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
        let target = Target::parse(&target).map_err(|error| refused(&error.to_string()))?;
        let bearer = HeaderValue::try_from(format!("Bearer {token}"));
        let bearer = bearer.map_err(|_| SessionError::invalid("token", "it must be text without line breaks"))?;
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, bearer)]);
        Ok(Self { host, port, target, headers, text: text.to_owned() })
    }

    async fn open(&self) -> Result<Connection, SessionError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await.map_err(|error| self.unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| self.unreachable(&error))?;
        bound_writes(&stream, SILENCE_LIMIT).map_err(|error| self.unreachable(&error))?;
        // The limit on all of it comes first.
        let builder = WsTransportClientBuilder::default()
            .set_headers(self.headers.clone())
            .connection_timeout(CONNECT_LIMIT * 2)
            .max_request_size(u32::MAX)
            .max_response_size(ANSWER_BYTES_MAX)
            .max_frame_size(ANSWER_BYTES_MAX);
        let opened = builder.build_with_stream(self.target.clone(), stream).await;
        let (sender, receiver) = opened.map_err(|error| self.refusal(&error))?;
        let found = Found {
            capabilities: Capabilities::compiled(),
            readiness: Readiness { is_ready: true, trouble: None },
            is_owner: false,
            message_bytes: Arc::new(SERVER_MESSAGE_BYTES.into()),
            said_goodbye: Arc::default(),
        };
        let ping = PingConfig::new().ping_interval(PING_EVERY).inactive_limit(SILENCE_LIMIT);
        let receiver = WithReasons { receiver, message_bytes: found.message_bytes.clone() };
        let mut connection = Connection::start(sender, receiver, Some(ping), found);
        let view = connection.request(Operation::Capabilities.public_name(), RawValue::NULL.to_owned()).await;
        let view = view.map_err(|failed| match failed {
            Failed::Refused(body) => SessionError::Remote(body),
            Failed::Unasked | Failed::Lost => self.unreachable(&"it closed the connection"),
        })?;
        let view: CapabilitiesView = serde_json::from_slice(&view).map_err(|error| self.unreachable(&error))?;
        connection.found.capabilities = Capabilities::of_view(&view);
        Ok(connection)
    }

    /// The error for a handshake that failed: the server's refusal, by its status.
    fn refusal(&self, error: &WsHandshakeError) -> SessionError {
        let status = match error {
            WsHandshakeError::Rejected { status_code } | WsHandshakeError::Redirected { status_code, .. } => {
                *status_code
            }
            other => return self.unreachable(other),
        };
        let body = match StatusCode::from_u16(status) {
            Ok(StatusCode::UNAUTHORIZED) => ErrorBody::new(ErrorCode::Unauthenticated),
            Ok(StatusCode::FORBIDDEN) => ErrorBody::new(ErrorCode::ForbiddenOrigin),
            Ok(StatusCode::TOO_MANY_REQUESTS) => ErrorBody::new(ErrorCode::TooManyConnections),
            Ok(StatusCode::SERVICE_UNAVAILABLE) => ErrorBody::new(ErrorCode::ShuttingDown),
            _ => {
                let message = format!("{} is not a meerkat server (HTTP status {status}).", self.text);
                ErrorBody::with_message(ErrorCode::UnknownOperation, message)
            }
        };
        SessionError::Remote(Box::new(body))
    }

    fn unreachable(&self, error: &dyn std::fmt::Display) -> SessionError {
        unreachable(&self.text, error)
    }
}

/// Lets the system close a connection whose other side takes nothing for so long. Elsewhere its own limit holds.
fn bound_writes(stream: &TcpStream, limit: Duration) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, limit);
    Ok(())
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
    #[derive(Deserialize)]
    struct Answer {
        result: Option<Welcome>,
    }

    let hello = Hello { speaker: Speaker::own(), settings, search_path };
    let (reader, mut writer) = place.connect().await?.into_split();
    let mut reader = BufReader::new(reader);
    let message = json!({ "jsonrpc": "2.0", "id": 0, "method": HELLO, "params": hello });
    writer.write_all(format!("{message}\n").as_bytes()).await?;
    let line = read_line(&mut reader, HELLO_BYTES_MAX).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    let answer: Answer = serde_json::from_slice(&line)?;
    let welcome = answer.result.ok_or_else(|| io::Error::other("the owner speaks another protocol"))?;
    if let Some(refusal) = Speaker::refuse(&welcome.speaker, &hello.speaker).or(welcome.refusal) {
        return Ok(Err(Box::new(refusal)));
    }
    // The owner is of the same build, and has the store. The system closes the socket of a process that has ended.
    let found = Found {
        capabilities: Capabilities::compiled(),
        readiness: welcome.readiness,
        is_owner: true,
        message_bytes: Arc::new(MESSAGE_BYTES_MAX.into()),
        said_goodbye: Arc::default(),
    };
    let receiver = Lines { reader, said_goodbye: found.said_goodbye.clone() };
    let receiver = WithReasons { receiver, message_bytes: found.message_bytes.clone() };
    Ok(Ok(Connection::start(Written(writer), receiver, None, found)))
}

/// The lines that are written to an owner.
struct Written(OwnedWriteHalf);

impl TransportSenderT for Written {
    type Error = io::Error;

    async fn send(&mut self, mut message: String) -> io::Result<()> {
        message.push('\n');
        if let Err(error) = self.0.write_all(message.as_bytes()).await {
            // The owner has closed the socket. What it said before is still to be read, and then the end.
            tracing::debug!(%error, "the owner of the data directory takes no more requests");
        }
        Ok(())
    }
}

/// The lines that come from an owner. A goodbye is the last one.
struct Lines {
    reader: BufReader<OwnedReadHalf>,
    said_goodbye: Arc<AtomicBool>,
}

impl TransportReceiverT for Lines {
    type Error = io::Error;

    async fn receive(&mut self) -> io::Result<ReceivedMessage> {
        let line = read_line(&mut self.reader, ANSWER_BYTES_MAX.into()).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        if line == BYE.as_bytes() {
            self.said_goodbye.store(true, Ordering::Release);
            return Err(io::Error::other("the owner of the data directory has ended"));
        }
        Ok(ReceivedMessage::Text(String::from_utf8(line).map_err(io::Error::other)?))
    }
}

/// Messages whose subscriptions end with their reasons. One that says how long a message may be is noticed.
struct WithReasons<R> {
    receiver: R,
    message_bytes: Arc<AtomicUsize>,
}

impl<R: TransportReceiverT + Send> TransportReceiverT for WithReasons<R> {
    type Error = R::Error;

    async fn receive(&mut self) -> Result<ReceivedMessage, R::Error> {
        let message = self.receiver.receive().await?;
        if let Some(limit) = limit_of(&message) {
            self.message_bytes.store(limit, Ordering::Relaxed);
        }
        Ok(with_reason(message))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Its pings did not end the connection either: they wait behind what is written.
    #[tokio::test]
    async fn a_server_that_takes_nothing_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let _peer = listener.accept().await.unwrap();
        bound_writes(&stream, Duration::from_millis(100)).unwrap();
        let ended = loop {
            if let Err(error) = stream.write_all(&[0; 65_536]).await {
                break error;
            }
        };
        assert_eq!(ended.kind(), io::ErrorKind::TimedOut);
    }
}
