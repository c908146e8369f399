//! `localhost` is two addresses, and another user may listen at one of them.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use meerkat_serve::{ServeError, ServeOptions, Server, Token};
use meerkat_service::AgentBuildConfig;
use meerkat_testkit::in_time;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// A server that listens at this address, its port, and what ends it when it is dropped.
async fn serve(address: SocketAddr) -> Result<(u16, JoinHandle<()>), ServeError> {
    let agent = AgentBuildConfig::new().build().unwrap();
    let options = ServeOptions { has_rest: true, ..ServeOptions::new(address, Some(Token::random().unwrap())) };
    let server = Server::listen(agent.service().clone(), options).await?;
    let port = server.url().rsplit_once(':').unwrap().1.parse().unwrap();
    Ok((port, tokio::spawn(server.serve_until(std::future::pending()))))
}

/// Status of an answer to a request for this Host, from a page of that Origin.
async fn status(address: SocketAddr, host: &str, origin: &str) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: {host}\r\norigin: {origin}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    in_time("the answer", stream.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_server_of_one_loopback_address_listens_at_the_other_too() {
    for own in
        [Ipv4Addr::LOCALHOST.into(), Ipv4Addr::UNSPECIFIED.into(), SocketAddr::from((Ipv6Addr::LOCALHOST, 0)).ip()]
    {
        let (port, serving) = serve((own, 0).into()).await.unwrap();
        for address in [(Ipv4Addr::LOCALHOST, port).into(), SocketAddr::from((Ipv6Addr::LOCALHOST, port))] {
            for name in ["localhost", "127.0.0.1", "[::1]"] {
                let host = format!("{name}:{port}");
                assert_eq!(status(address, &host, &format!("http://{host}")).await, 200, "{own} {address} {host}");
            }
        }
        serving.abort();
    }
}

/// Whoever has the other address could show a page of the same origin, and get what a browser keeps for it.
#[tokio::test]
async fn localhost_is_refused_if_another_program_has_one_of_its_addresses() {
    let loopback: [SocketAddr; 2] = [(Ipv4Addr::LOCALHOST, 0).into(), (Ipv6Addr::LOCALHOST, 0).into()];
    for (own, other) in [(loopback[0], loopback[1]), (loopback[1], loopback[0])] {
        // The port may be taken at the server's address.
        let (_other, port, serving) = loop {
            let other = TcpListener::bind(other).await.unwrap();
            let port = other.local_addr().unwrap().port();
            if let Ok((_, serving)) = serve((own.ip(), port).into()).await {
                break (other, port, serving);
            }
        };
        let (address, name) =
            (SocketAddr::from((own.ip(), port)), |it: SocketAddr| SocketAddr::from((it.ip(), port)).to_string());
        let origin = |host: &str| format!("http://{host}");
        assert_eq!(status(address, &name(own), &origin(&name(own))).await, 200);
        for host in [name(other), format!("localhost:{port}")] {
            assert_eq!(status(address, &host, &origin(&name(own))).await, 403, "{host}");
            assert_eq!(status(address, &name(own), &origin(&host)).await, 403, "a page of {host}");
        }
        serving.abort();
    }
}
