//! What the surfaces and their guard cost: a page of events over REST with all guards on, against a bare axum handler
//! that returns the same bytes, in one interleaved run over kept-alive connections.

#![allow(clippy::unwrap_used, reason = "a benchmark that meets an impossible value stops there")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

const TOKEN: &str = "a-token-for-benchmarks-0123456789";
/// The variable that makes this program the floor, and names the page that it serves.
const BARE: &str = "MEERKAT_BENCH_BARE_PAGE";
const ROUNDS: usize = 5_000;
const WARM_UP: usize = 500;

/// A kept-alive connection.
struct Client {
    stream: BufReader<TcpStream>,
    request: String,
}

impl Client {
    fn new(port: u16, path: &str, token: Option<&str>) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
        let request =
            format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\naccept: application/json\r\n{token}\r\n");
        Self { stream: BufReader::new(stream), request }
    }

    /// One request and its whole answer.
    fn get(&mut self) -> Vec<u8> {
        self.stream.get_mut().write_all(self.request.as_bytes()).unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            if let Some(value) = line.to_lowercase().strip_prefix("content-length: ") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        body
    }

    fn time(&mut self) -> Duration {
        let started = Instant::now();
        self.get();
        started.elapsed()
    }
}

struct Server(Child, u16);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn serve(args: &[&str]) -> Server {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meerkat"));
    command.args(["--json", "serve", "--rest", "--listen", "127.0.0.1:0"]).args(args);
    let mut child =
        command.env_clear().env("MEERKAT_TOKEN", TOKEN).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let port = ready["listening"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    Server(child, port)
}

/// Sends one POST on a connection of its own.
fn post(port: u16, path: &str, body: &str) -> Value {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Serves one page from a bare handler, and prints its port.
fn serve_bare(page: &std::path::Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bytes = bytes::Bytes::from(std::fs::read(page).unwrap());
        let handler = axum::routing::get(move || async move { ([("content-type", "application/json")], bytes) });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap().port());
        axum::serve(listener, axum::Router::new().route("/page", handler)).await.unwrap();
    });
}

fn main() {
    if let Some(page) = std::env::var_os(BARE) {
        return serve_bare(page.as_ref());
    }
    let server = serve(&[]);
    let session = post(server.1, "/v1/sessions", "{}");
    let id = session["session_id"].as_str().unwrap();
    for _ in 0..16 {
        post(server.1, &format!("/v1/sessions/{id}/turns"), r#"{"prompt":"@long 512"}"#);
    }
    let path = format!("/v1/sessions/{id}/events?limit=49");
    let mut guarded = Client::new(server.1, &path, Some(TOKEN));
    let page = guarded.get();

    // The floor: axum as it comes, with the same bytes, in a process of its own as the server is.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &page).unwrap();
    let mut floor = Command::new(std::env::current_exe().unwrap());
    floor.env(BARE, file.path()).stdout(Stdio::piped());
    let mut floor = Server(floor.spawn().unwrap(), 0);
    let mut line = String::new();
    BufReader::new(floor.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let port = line.trim().parse().unwrap();
    let mut bare = Client::new(port, "/page", None);
    assert_eq!(bare.get(), page);

    let (mut works, mut floors) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS + WARM_UP {
        let (work, floor) = (guarded.time(), bare.time());
        if round >= WARM_UP {
            works.push(work);
            floors.push(floor);
        }
    }
    let (work, floor) = (median(&mut works), median(&mut floors));
    println!("a page of {} bytes with 49 events over REST, all guards on: {work:.1?}", page.len());
    println!("the same bytes from a bare axum handler: {floor:.1?}");
    println!("requests per second against the floor: {:.2} x", floor.as_secs_f64() / work.as_secs_f64());
}
