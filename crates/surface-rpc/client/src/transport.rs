//! What jsonrpsee's client speaks over: a WebSocket to a server's URL, or lines on the socket of a data directory's owner.

use std::{io, net::IpAddr, time::Duration};

use http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use jsonrpsee::{
    async_client::PingConfig,
    client_transport::ws::{Url as Target, WsHandshakeError, WsTransportClientBuilder},
    core::client::{ReceivedMessage, TransportReceiverT, TransportSenderT},
};
use meerkat_service::{Capabilities, CapabilitiesView, ErrorBody, ErrorCode, Operation, SessionError};
use meerkat_surface_rpc::owner::{
    HELLO, HELLO_BYTES_MAX, Hello, MESSAGE_BYTES_MAX, Place, Readiness, Speaker, Welcome, read_line,
};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::{
    io::{AsyncWriteExt as _, BufReader},
    net::{
        TcpStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::{
    connection::{Connection, Failed, Found},
    wire::with_reason,
};

/// Bytes of an answer. The other side is trusted, so this bounds a mistake and no attack.
const ANSWER_BYTES_MAX: u32 = 256 * 1024 * 1024;

/// How long one attempt to connect may take.
pub(crate) const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Bytes that a server takes in one message, unless its `serve.max_body_bytes` was changed.
const SERVER_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// How often a server is pinged, and how long it may be silent. It answers pings, unless its machine or the network is
/// gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const SILENCE_LIMIT: Duration = Duration::from_secs(60);

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

    pub(crate) async fn connect(&self) -> Result<Connection, SessionError> {
        timeout(CONNECT_LIMIT, self.open()).await.unwrap_or_else(|_| Err(self.unreachable(&"it does not answer")))
    }

    async fn open(&self) -> Result<Connection, SessionError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await.map_err(|error| self.unreachable(&error))?;
        stream.set_nodelay(true).map_err(|error| self.unreachable(&error))?;
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
            message_bytes: SERVER_MESSAGE_BYTES,
        };
        let ping = PingConfig::new().ping_interval(PING_EVERY).inactive_limit(SILENCE_LIMIT);
        let mut connection = Connection::start(sender, WithReasons(receiver), Some(ping), found);
        let view = connection.request(Operation::Capabilities.public_name(), RawValue::NULL.to_owned()).await;
        let view = view.map_err(|failed| match failed {
            Failed::Refused(body) => SessionError::Remote(body),
            Failed::Lost => self.unreachable(&"it closed the connection"),
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

    /// The error of a request whose connection was closed before its answer came.
    pub(crate) fn lost(&self) -> SessionError {
        let message = format!(
            "{} closed the connection before it answered, so the request may or may not have been performed; look at \
             the session's events, then repeat it.",
            self.text
        );
        SessionError::Remote(Box::new(ErrorBody::with_message(ErrorCode::StoreFailed, message)))
    }
}

/// Returns true for a host whose messages do not leave this machine.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    address.map_or_else(|_| host.eq_ignore_ascii_case("localhost"), |address| address.is_loopback())
}

/// The error if nobody answers.
pub(crate) fn unreachable(place: &str, error: &dyn std::fmt::Display) -> SessionError {
    let message = format!("No meerkat server can be reached at {place}: {error}.");
    SessionError::Remote(Box::new(ErrorBody::with_message(ErrorCode::ShuttingDown, message)))
}

/// Connects to the owner of a data directory. Its refusal is the inner error.
pub(crate) async fn greet(place: &Place, hello: &Hello) -> io::Result<Result<Connection, Box<ErrorBody>>> {
    #[derive(Deserialize)]
    struct Answer {
        result: Option<Welcome>,
    }

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
        message_bytes: MESSAGE_BYTES_MAX,
    };
    Ok(Ok(Connection::start(Written(writer), WithReasons(Lines(reader)), None, found)))
}

/// The lines that are written to an owner.
struct Written(OwnedWriteHalf);

impl TransportSenderT for Written {
    type Error = io::Error;

    async fn send(&mut self, mut message: String) -> io::Result<()> {
        message.push('\n');
        self.0.write_all(message.as_bytes()).await
    }
}

/// The lines that come from an owner.
struct Lines(BufReader<OwnedReadHalf>);

impl TransportReceiverT for Lines {
    type Error = io::Error;

    async fn receive(&mut self) -> io::Result<ReceivedMessage> {
        let line = read_line(&mut self.0, ANSWER_BYTES_MAX.into()).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(ReceivedMessage::Text(String::from_utf8(line).map_err(io::Error::other)?))
    }
}

/// Messages whose subscriptions end with their reasons.
struct WithReasons<R>(R);

impl<R: TransportReceiverT + Send> TransportReceiverT for WithReasons<R> {
    type Error = R::Error;

    async fn receive(&mut self) -> Result<ReceivedMessage, R::Error> {
        self.0.receive().await.map(with_reason)
    }
}
