//! A server that its program drops leaves no connection open.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::time::Duration;

use meerkat_serve::Server;
use meerkat_service::AgentBuildConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The listener does not know what has become a WebSocket; it stayed open.
#[tokio::test]
async fn a_dropped_server_ends_its_websockets() {
    let agent = AgentBuildConfig::new().build().unwrap();
    let builder = Server::builder(agent.service().clone()).rpc().without_token();
    let server = builder.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = server.url().trim_start_matches("http://").to_owned();
    let serving = tokio::spawn(server.serve_until(std::future::pending()));
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = format!(
        "GET /rpc HTTP/1.1\r\nhost: {address}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 101");
    serving.abort();
    // Sooner than a server gives up a client that says nothing. A reset is an end too.
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it is still open");
}
