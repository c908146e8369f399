//! A server that its program drops leaves no connection open.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use meerkat_serve::{ServeOptions, Server};
use meerkat_service::AgentBuildConfig;
use meerkat_testkit::in_time;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The listener does not know what has become a WebSocket; it stayed open.
#[tokio::test]
async fn a_dropped_server_ends_its_websockets() {
    let agent = AgentBuildConfig::new().build().unwrap();
    let options = ServeOptions { has_rpc: true, ..ServeOptions::new("127.0.0.1:0".parse().unwrap(), None) };
    let server = Server::listen(agent.service().clone(), options).await.unwrap();
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
    // A reset is an end too. The library may ask for a sign of life at once; a client that says nothing is asked again
    // before it is given up.
    let mut rest = Vec::new();
    drop(in_time("the connection ends", stream.read_to_end(&mut rest)).await);
    let pings = rest.iter().filter(|byte| **byte == 0x89).count();
    assert!(pings <= 1, "it was open for long: {rest:?}");
}
