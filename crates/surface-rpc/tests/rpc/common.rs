//! The three transports, as a client sees them.

use std::{io, net::SocketAddr, sync::Arc};

use futures::{SinkExt as _, StreamExt as _};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use meerkat_service::{AgentBuildConfig, SessionService, service::CreateSession};
use meerkat_surface_rpc::{RpcOptions, RpcService, service};
use serde_json::{Value, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader, DuplexStream,
        Lines,
    },
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message},
};

/// Bytes that a pipe between tests and surface holds.
pub(crate) const PIPE: usize = 64 * 1024;

pub(crate) fn engine() -> Arc<dyn SessionService> {
    AgentBuildConfig::new().build().unwrap().service().clone()
}

pub(crate) fn rpc() -> RpcService {
    service(engine(), RpcOptions::default())
}

pub(crate) async fn session(engine: &Arc<dyn SessionService>) -> String {
    engine.create_session(CreateSession::default()).await.unwrap().session_id.to_string()
}

/// Serves HTTP on one byte stream, like the listener.
pub(crate) async fn serve_http(rpc: RpcService, io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
    let builder = Builder::new(TokioExecutor::new());
    let ended = builder.serve_connection_with_upgrades(TokioIo::new(io), TowerToHyperService::new(rpc)).await;
    // A client may leave at any time.
    ended.ok();
}

/// Serves HTTP on a loopback port.
pub(crate) async fn listen(rpc: RpcService) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve_http(rpc.clone(), socket));
        }
    });
    address
}

/// Sends one HTTP request: its status and its body.
pub(crate) async fn http(address: SocketAddr, method: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let mut socket = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!("{method} /rpc HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{headers}");
    let head = format!("{head}content-length: {length}\r\n\r\n");
    socket.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

pub(crate) async fn post(address: SocketAddr, body: &[u8]) -> (u16, String) {
    http(address, "POST", "content-type: application/json\r\n", body).await
}

/// A WebSocket client.
pub(crate) struct Ws<T>(pub(crate) WebSocketStream<T>);

pub(crate) async fn connect(rpc: &RpcService) -> Ws<TcpStream> {
    let address = listen(rpc.clone()).await;
    let socket = TcpStream::connect(address).await.unwrap();
    Ws(client_async(format!("ws://{address}/rpc"), socket).await.unwrap().0)
}

/// A client of a connection.
pub(crate) trait Client {
    async fn send(&mut self, text: &str);

    /// The next message; `None` at the end of the connection.
    async fn text(&mut self) -> Option<String>;

    async fn request(&mut self, id: u64, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()).await;
    }

    async fn next(&mut self) -> Value {
        serde_json::from_str(&self.text().await.expect("the connection is open")).unwrap()
    }

    /// Reads up to the answer to `id`; returns the messages before it, and the answer.
    async fn answer(&mut self, id: u64) -> (Vec<Value>, Value) {
        let mut before = Vec::new();
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return (before, message);
            }
            before.push(message);
        }
    }

    /// Subscribes to a session's events; returns the subscription's number.
    async fn subscribe(&mut self, session: &str, since_seq: u64) -> u64 {
        self.request(1, "session/subscribe", json!({ "session_id": session, "since_seq": since_seq })).await;
        let answer = self.next().await;
        let number = answer["result"].as_u64().unwrap();
        assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 1, "result": number }));
        number
    }

    /// Reads to the end of the connection: the messages, as text.
    async fn rest(&mut self) -> Vec<String> {
        let mut messages = Vec::new();
        while let Some(message) = self.text().await {
            messages.push(message);
        }
        messages
    }

    /// Reads up to an event of this type.
    async fn event(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next().await["params"]["result"].take();
            if event["type"] == kind {
                return event;
            }
        }
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Client for Ws<T> {
    async fn send(&mut self, text: &str) {
        self.0.send(Message::text(text)).await.unwrap();
    }

    async fn text(&mut self) -> Option<String> {
        loop {
            match self.0.next().await {
                Some(Ok(Message::Text(text))) => return Some(text.to_string()),
                Some(Ok(_)) => {}
                Some(Err(tungstenite::Error::Io(_) | tungstenite::Error::Protocol(_))) | None => return None,
                Some(Err(error)) => panic!("{error}"),
            }
        }
    }
}

/// A client of stdio.
pub(crate) struct Pipes {
    pub(crate) input: DuplexStream,
    output: Lines<BufReader<DuplexStream>>,
    pub(crate) served: JoinHandle<io::Result<()>>,
}

/// Serves stdio with pipes that hold so many bytes.
pub(crate) fn pipes(rpc: &RpcService, bytes: usize) -> Pipes {
    let ((input, reader), (output, writer)) = (tokio::io::duplex(PIPE), tokio::io::duplex(bytes));
    let rpc = rpc.clone();
    let served = tokio::spawn(async move { rpc.serve_stdio(reader, writer).await });
    // A reader without a buffer, or nothing would ever stall.
    Pipes { input, output: BufReader::with_capacity(1, output).lines(), served }
}

impl Client for Pipes {
    async fn send(&mut self, text: &str) {
        self.input.write_all(format!("{text}\n").as_bytes()).await.unwrap();
    }

    async fn text(&mut self) -> Option<String> {
        self.output.next_line().await.unwrap()
    }
}

/// Serves `input` on stdio to its end; the lines of the output.
pub(crate) async fn stdio(rpc: &RpcService, input: &[u8]) -> Vec<String> {
    let (mut output, writer) = tokio::io::duplex(PIPE);
    let mut text = String::new();
    let (served, read) = tokio::join!(rpc.serve_stdio(input, writer), output.read_to_string(&mut text));
    served.unwrap();
    read.unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(str::to_owned).collect()
}
