//! A server behind a proxy: another name, another port, HTTPS in front. Debian's nginx where there is one, else a relay as
//! small as the port mapping of a container.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use serde_json::json;
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest as _};

use crate::drive::{
    TOKEN,
    server::{Server, ask, mcp_result, read, read_head, refusal, status},
};

const NGINX: &str = "/usr/sbin/nginx";
const NAME: &str = "desk.example";

/// A proxy that ends with its test.
struct Proxy {
    port: u16,
    nginx: Option<(Child, TempDir)>,
}

impl Proxy {
    fn relay(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for near in listener.incoming().map(Result::unwrap) {
                let far = TcpStream::connect(("127.0.0.1", to)).unwrap();
                let ways = [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))];
                for (from, to) in ways.map(|(from, to)| (from.unwrap(), to.unwrap())) {
                    thread::spawn(move || {
                        // Either end may leave at any time.
                        drop(std::io::copy(&mut &from, &mut &to));
                        drop(to.shutdown(std::net::Shutdown::Write));
                    });
                }
            }
        });
        Self { port, nginx: None }
    }

    /// The name that a client asked for is passed on, as every guide to nginx says.
    fn nginx(to: u16) -> Self {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().display();
        // nginx picks no port of its own; between the two lines another process could take this one.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
        let temporary: String = temporary.iter().map(|name| format!("{name}_temp_path {folder}/{name};\n")).collect();
        let config = format!(
            "daemon off; master_process off; pid {folder}/pid; error_log stderr;\n\
             events {{}}\n\
             http {{ {temporary} access_log off; server {{ listen 127.0.0.1:{port}; location / {{\n\
             proxy_pass http://127.0.0.1:{to}; proxy_http_version 1.1; proxy_buffering off;\n\
             proxy_set_header Host $host; proxy_set_header Upgrade $http_upgrade;\n\
             proxy_set_header Connection $http_connection; }} }} }}\n"
        );
        let file = dir.path().join("nginx.conf");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(NGINX);
        command.arg("-p").arg(dir.path()).arg("-c").arg(&file).stdin(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let proxy = Self { port, nginx: Some((child, dir)) };
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            thread::yield_now();
        }
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.nginx {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

#[test]
fn every_surface_is_reached_through_a_proxy() {
    let url = format!("https://{NAME}");
    let mut server = Server::start(&[("MEERKAT_SERVE__PUBLIC_URL", &url)]);
    let proxy = if Path::new(NGINX).exists() { Proxy::nginx(server.port) } else { Proxy::relay(server.port) };
    let own = std::mem::replace(&mut server.port, proxy.port);
    let page = format!("https://{NAME}");
    let headers = |more: &str| {
        format!(
            "host: {NAME}\r\norigin: {page}\r\ncontent-type: application/json\r\n\
             authorization: Bearer {TOKEN}\r\n{more}"
        )
    };

    // REST, and an answer that points to where its client can follow.
    let made = read(server.open("POST", "/v1/sessions", &headers("connection: close\r\n"), "{}"));
    assert_eq!(made.status, 201, "{}", made.body);
    let session = made.json()["session_id"].as_str().unwrap().to_owned();
    assert!(made.head.contains(&format!("location: {url}/v1/sessions/{session}\r\n")), "{}", made.head);

    // SSE: the event is there before the stream ends.
    let accept = "accept: text/event-stream\r\n";
    let stream = server.open("GET", &format!("/v1/sessions/{session}/events"), &headers(accept), "");
    let mut stream = BufReader::new(stream);
    assert_eq!(status(&read_head(&mut stream)), 200);
    let mut lines = stream.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains(r#""type":"session_created""#)));

    // JSON-RPC over a WebSocket.
    let mut request = format!("ws://{NAME}/rpc").into_client_request().unwrap();
    for (name, value) in [("authorization", format!("Bearer {TOKEN}")), ("origin", page.clone())] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let (mut socket, _) = tungstenite::client(request, server.connect()).unwrap();
    ask(&mut socket, 1, "turn/start", &json!({ "session_id": session, "prompt": "@say Through." }));
    assert!(socket.read().unwrap().to_text().unwrap().contains("Through."));

    // MCP.
    let params =
        json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "t", "version": "1" } });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params }).to_string();
    let both = "accept: application/json, text/event-stream\r\n";
    assert_eq!(mcp_result(server.open("POST", "/mcp", &headers(both), &call))["protocolVersion"], "2025-06-18");

    // Nobody else's name or page came in with it.
    server.port = own;
    for (host, origin) in
        [("evil.example", page.as_str()), (NAME, "https://evil.example"), (NAME, "http://desk.example:1")]
    {
        let headers = format!("host: {host}\r\norigin: {origin}\r\nauthorization: Bearer {TOKEN}\r\n");
        let answer = read(server.open("GET", "/v1/sessions", &headers, ""));
        assert_eq!(answer.refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{host} {origin}");
    }
}

/// The port mapping of a container: its host's name and port reach a server that listens on another one.
#[test]
fn a_host_that_is_allowed_with_its_port_is_let_in() {
    let server = Server::start(&[("MEERKAT_SERVE__ALLOWED_HOSTS", r#"["box", "localhost:8080"]"#)]);
    for (host, expected) in [("box", 200), ("box:81", 200), ("localhost:8080", 200), ("localhost:8081", 403)] {
        let headers = format!("host: {host}\r\nauthorization: Bearer {TOKEN}\r\n");
        assert_eq!(read(server.open("GET", "/v1/capabilities", &headers, "")).status, expected, "{host}");
    }
}
