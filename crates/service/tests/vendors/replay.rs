//! Vendor's server on loopback, over HTTP/1.1: passes each request to the test and plays its reply.

use std::{collections::BTreeMap, sync::Arc};

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

/// Received request.
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Value,
}

/// End of a stream.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Ends {
    Cleanly,
    /// The connection closes in the middle of the body.
    Abruptly,
    /// Nothing more comes; the server waits until the client leaves.
    Never,
}

/// Answer of the server.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of one chunk of the body.
    pub(crate) chunk: usize,
    pub(crate) ends: Ends,
}

impl Reply {
    pub(crate) fn stream(body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type", "text/event-stream".to_owned())];
        Self { status: 200, headers, body: body.into(), chunk: usize::MAX, ends: Ends::Cleanly }
    }

    pub(crate) fn refusal(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: body.into(), chunk: usize::MAX, ends: Ends::Cleanly }
    }
}

type Play = dyn Fn(Request) -> Reply + Send + Sync;

/// Server, which ends with the test's runtime.
pub(crate) struct Server {
    pub(crate) url: String,
    /// Receives a message each time that a client leaves an endless stream.
    pub(crate) left: mpsc::UnboundedReceiver<()>,
}

impl Server {
    pub(crate) async fn start(play: impl Fn(Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let (leaves, left) = mpsc::unbounded_channel();
        let play: Arc<Play> = Arc::new(play);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                stream.set_nodelay(true).unwrap();
                let (play, leaves) = (play.clone(), leaves.clone());
                tokio::spawn(async move { serve(BufReader::new(stream), &*play, leaves).await });
            }
        });
        Self { url, left }
    }
}

/// Serves one connection until the client or a reply closes it.
async fn serve(mut stream: BufReader<TcpStream>, play: &Play, leaves: mpsc::UnboundedSender<()>) -> Option<()> {
    loop {
        let reply = play(read(&mut stream).await?);
        let mut head = format!("HTTP/1.1 {} Said\r\ntransfer-encoding: chunked\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).await.ok()?;
        for chunk in reply.body.chunks(reply.chunk) {
            let framed = [format!("{:x}\r\n", chunk.len()).as_bytes(), chunk, b"\r\n"].concat();
            stream.write_all(&framed).await.ok()?;
            stream.flush().await.ok()?;
        }
        match reply.ends {
            Ends::Cleanly => stream.write_all(b"0\r\n\r\n").await.ok()?,
            Ends::Abruptly => return None,
            Ends::Never => {
                let left = stream.read_u8().await.is_err();
                return left.then(|| leaves.send(()).unwrap());
            }
        }
        stream.flush().await.ok()?;
    }
}

async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()));
    let headers: BTreeMap<String, String> = lines.filter_map(header).collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { path, headers, body: serde_json::from_slice(&body).unwrap() })
}
