//! A server behind the proxies of docs/deploy.md: their blocks as the page has them, over TLS. Only addresses, paths of
//! files and what a program needs around its block are the test's.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::fd::OwnedFd,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use meerkat_testkit::{needs, until};
use serde_json::json;
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest as _};

use crate::drive::{
    TOKEN,
    server::{MCP_REVISION, Server, ask, read, read_head, refusal, text},
};

const PAGE: &str = include_str!("../../../../docs/deploy.md");
const NAME: &str = "desk.example";

/// A proxy that ends with its test.
struct Proxy {
    child: Child,
    /// Its folder, where it listens at a socket, since a port could be another test's.
    dir: TempDir,
}

impl Proxy {
    /// Starts a proxy with the page's block.
    fn start(program: &str, to: u16) -> Self {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().display().to_string();
        let (language, args) = match program {
            "nginx" => ("nginx", ["-p", ".", "-c"].as_slice()),
            _ => ("caddyfile", ["run", "--adapter", "caddyfile", "--config"].as_slice()),
        };
        let block = PAGE.split(&format!("```{language}\n")).nth(1).unwrap().split("```").next().unwrap();
        let block = replaced(block, "127.0.0.1:7670", &format!("127.0.0.1:{to}"));
        let config = match program {
            "nginx" => {
                make_certificate(dir.path());
                let block = replaced(&block, "listen 443 ssl", &format!("listen unix:{folder}/socket ssl"));
                let block = block.replace("/etc/ssl/desk.example.", &format!("{folder}/desk.example."));
                let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
                let temporary = temporary.map(|name| format!("{name}_temp_path {folder}/{name};\n")).concat();
                format!(
                    "daemon off; master_process off; pid {folder}/pid; error_log stderr;\n\
                     events {{}} http {{ {temporary} access_log off;\n{block} }}\n"
                )
            }
            _ => {
                // A certificate of its own making, since nobody out there knows the name.
                let around = "admin off\nskip_install_trust\nlocal_certs\nauto_https disable_redirects";
                format!("{{\n{around}\ndefault_bind unix/{folder}/socket\nstorage file_system {folder}\n}}\n{block}")
            }
        };
        let file = dir.path().join("config");
        fs::write(&file, config).unwrap();
        let mut command = Command::new(program);
        command.args(args).arg(&file).current_dir(&dir).env("HOME", &folder).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, dir }
    }

    /// Listens for plain connections, each of which openssl takes on to the proxy over TLS.
    fn tunnel(&self) -> u16 {
        let trusted = ["desk.example.pem", "pki/authorities/local/root.crt"].map(|file| self.dir.path().join(file));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), self.dir.path().join("socket"));
        thread::spawn(move || {
            for near in listener.incoming().map(Result::unwrap) {
                let Some(trusted) = trusted.iter().find(|file| file.exists()) else { continue };
                let mut command = Command::new("openssl");
                command.args(["s_client", "-quiet", "-verify_return_error", "-verify_hostname", NAME]);
                command.args(["-servername", NAME, "-CAfile"]).arg(trusted).arg("-unix").arg(&to);
                let [stdin, stdout] = [near.try_clone().unwrap(), near].map(|end| Stdio::from(OwnedFd::from(end)));
                let mut child = command.stdin(stdin).stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
                thread::spawn(move || child.wait());
            }
        });
        port
    }
}

/// Replaces what a block has once.
#[track_caller]
fn replaced(block: &str, what: &str, by: &str) -> String {
    assert_eq!(block.matches(what).count(), 1, "{what} in {block}");
    block.replace(what, by)
}

/// Makes a certificate that is its own authority.
fn make_certificate(folder: &Path) {
    let args = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=desk.example \
                -addext subjectAltName=DNS:desk.example -keyout desk.example.key -out desk.example.pem";
    let made = Command::new("openssl").args(args.split_whitespace()).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn nginx_passes_every_surface_on() {
    needs!("nginx", "openssl");
    check_proxy("nginx");
}

#[test]
fn caddy_passes_every_surface_on() {
    needs!("caddy", "openssl");
    check_proxy("caddy");
}

/// Streams a turn over each surface through the proxy.
fn check_proxy(program: &str) {
    let url = format!("https://{NAME}");
    let mut server = Server::start(&[("MEERKAT_SERVE__PUBLIC_URL", &url)]);
    let proxy = Proxy::start(program, server.port);
    server.port = proxy.tunnel();
    let headers = |more: &str| {
        format!(
            "host: {NAME}\r\norigin: {url}\r\ncontent-type: application/json\r\nauthorization: Bearer {TOKEN}\r\n{more}"
        )
    };
    until("the proxy answers", || {
        let answer = server.try_open("GET", "/readyz", &headers(""), "");
        answer.is_ok_and(|answer| read_head(&mut BufReader::new(answer)).starts_with("http/1.1 200"))
    });

    // REST, and an answer that points to where its client can follow.
    let made = read(server.open("POST", "/v1/sessions", &headers(""), "{}"));
    assert_eq!(made.status, 201, "{}", made.body);
    let session = made.json()["session_id"].as_str().unwrap().to_owned();
    assert!(made.head.contains(&format!("location: {url}/v1/sessions/{session}\r\n")), "{}", made.head);

    // Each text is there before its turn ends, and an interrupt by the next surface ends it.
    let stalled = |name: &str| format!("@say {name}. @stall");
    let turn = json!({ "prompt": stalled("rest") }).to_string();
    let accept = headers("accept: text/event-stream\r\n");
    let stream = BufReader::new(server.open("POST", &format!("/v1/sessions/{session}/turns"), &accept, &turn));
    let has = |line: &str, name: &str| line.contains("text_delta") && line.contains(name);
    assert!(stream.lines().map(Result::unwrap).any(|line| has(&line, "rest.")));

    let mut request = format!("ws://{NAME}/rpc").into_client_request().unwrap();
    for (name, value) in [("authorization", format!("Bearer {TOKEN}")), ("origin", url.clone())] {
        request.headers_mut().insert(name, value.parse().unwrap());
    }
    let (mut socket, _) = tungstenite::client(request, server.connect()).unwrap();
    ask(&mut socket, 1, "turn/interrupt", &json!({ "session_id": session }));
    ask(&mut socket, 2, "session/subscribe", &json!({ "session_id": session, "since_seq": 1 }));
    ask(&mut socket, 3, "turn/start", &json!({ "session_id": session, "prompt": stalled("rpc"), "policy": "queue" }));
    while !has(&text(&mut socket).unwrap(), "rpc.") {}
    ask(&mut socket, 4, "turn/interrupt", &json!({ "session_id": session }));

    let params = json!({
        "name": "turn_start",
        "arguments": { "session_id": session, "prompt": stalled("mcp"), "policy": "queue" },
        "_meta": {
            "progressToken": "t",
            "io.modelcontextprotocol/protocolVersion": MCP_REVISION,
            "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    });
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let headers_of_call = headers(&format!(
        "accept: application/json, text/event-stream\r\nmcp-protocol-version: {MCP_REVISION}\r\n\
         mcp-method: tools/call\r\nmcp-name: turn_start\r\n"
    ));
    let stream = BufReader::new(server.open("POST", "/mcp", &headers_of_call, &call));
    assert!(stream.lines().map(Result::unwrap).any(|line| has(&line, "mcp.")));
}

/// Nobody else's name or page comes in with the public one.
#[test]
fn a_public_name_lets_nobody_elses_in() {
    let url = format!("https://{NAME}");
    let server = Server::start(&[("MEERKAT_SERVE__PUBLIC_URL", &url)]);
    let answer = |host: &str, origin: &str| {
        let headers = format!("host: {host}\r\norigin: {origin}\r\nauthorization: Bearer {TOKEN}\r\n");
        read(server.open("GET", "/v1/sessions", &headers, ""))
    };
    assert_eq!(answer(NAME, &url).status, 200);
    for (host, origin) in
        [("evil.example", url.as_str()), (NAME, "https://evil.example"), (NAME, "http://desk.example:1")]
    {
        assert_eq!(answer(host, origin).refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{host} {origin}");
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
