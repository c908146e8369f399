//! What the benchmarks of the surfaces share: a served binary with a page of events to ask for, a bare floor in a
//! process of its own, and one interleaved run of both over kept-alive connections.
//!
//! One client asks both sides alike, by hand, so that no client library is measured.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

const TOKEN: &str = "a-token-for-benchmarks-0123456789";
/// The variable that makes a benchmark's program one of its floors, by name.
const FLOOR: &str = "MEERKAT_BENCH_FLOOR";
const ROUNDS: usize = 2_000;
const WARM_UP: usize = 200;

/// A server in a process of its own, ended with this.
pub(crate) struct Server {
    process: Child,
    /// Where it listens.
    pub(crate) port: u16,
    /// Its data directory, where it has one of its own.
    data_dir: Option<TempDir>,
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Server {
    /// Tells it to end, and waits until it has.
    pub(crate) fn end(mut self) {
        assert!(Command::new("kill").arg(self.process.id().to_string()).status().unwrap().success());
        assert!(self.process.wait().unwrap().success());
    }

    /// The process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Bytes of memory that are the process's own: what lies in the kernel's socket buffers is not among them.
    pub(crate) fn memory(&self) -> u64 {
        self.bytes_of("Anonymous:")
    }

    /// Bytes of memory that are resident, the program's own pages among them.
    pub(crate) fn resident(&self) -> u64 {
        self.bytes_of("Rss:")
    }

    fn bytes_of(&self, name: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

/// The binary that lies beside this program's folder: the one that users get, not one that was built for benchmarks.
pub(crate) fn binary() -> PathBuf {
    let path = std::env::current_exe().unwrap().parent().unwrap().with_file_name("meerkat");
    assert!(path.is_file(), "there is no {}: run `cargo build --release` first", path.display());
    path
}

/// A folder in memory, so that no disk is measured.
pub(crate) fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// `meerkat serve` with all surfaces and all guards, over a data directory of its own that is in memory.
pub(crate) fn meerkat(variables: &[(&str, &str)]) -> Server {
    let data_dir = in_memory();
    let mut server = meerkat_over(data_dir.path(), variables);
    server.data_dir = Some(data_dir);
    server
}

/// The same over this data directory.
pub(crate) fn meerkat_over(data_dir: &Path, variables: &[(&str, &str)]) -> Server {
    let mut command = Command::new(binary());
    command.args(["--json", "serve", "--rest", "--rpc", "--mcp", "--listen", "127.0.0.1:0"]);
    command.env_clear().env("MEERKAT_DATA_DIR", data_dir).env("MEERKAT_TOKEN", TOKEN).envs(variables.iter().copied());
    command.env("MEERKAT_PROJECTION__DIR", data_dir.join("rkat"));
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let ready: Value = serde_json::from_str(&first_line(&mut process)).unwrap();
    let port = ready["listening"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    Server { process, port, data_dir: None }
}

fn first_line(process: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

/// The floor of that name, with the bytes that it answers.
pub(crate) fn floor(name: &str, bytes: &[u8]) -> Server {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(FLOOR, name).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    process.stdin.take().unwrap().write_all(bytes).unwrap();
    let port = first_line(&mut process).trim().parse().unwrap();
    Server { process, port, data_dir: None }
}

/// Which floor this process is to be, and its bytes; `None` in the benchmark itself.
pub(crate) fn is_floor() -> Option<(String, Vec<u8>)> {
    let name = std::env::var(FLOOR).ok()?;
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes).unwrap();
    Some((name, bytes))
}

/// The runtime that every server runs on, the measured one and the floors.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap()
}

/// An answer: its head in lower case, and its body.
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A kept-alive connection, and the bytes that ask on it.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    request: Vec<u8>,
    is_websocket: bool,
}

fn http(port: u16, line: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nauthorization: Bearer {TOKEN}\r\n{headers}");
    format!("{head}content-length: {length}\r\n\r\n{body}").into_bytes()
}

impl Client {
    fn new(port: u16, request: Vec<u8>) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream), request, is_websocket: false }
    }

    /// A client that sends one HTTP request over and over.
    pub(crate) fn http(port: u16, line: &str, headers: &str, body: &str) -> Self {
        Self::new(port, http(port, line, headers, body))
    }

    /// Sends another HTTP request over the same connection, and reads its answer.
    pub(crate) fn ask_for(&mut self, line: &str, headers: &str, body: &str) -> Answer {
        self.request = http(self.stream.get_ref().peer_addr().unwrap().port(), line, headers, body);
        self.ask()
    }

    /// A client that sends one message over and over on a WebSocket.
    pub(crate) fn websocket(port: u16, path: &str, message: &str) -> Self {
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
            sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        let mut client = Self::http(port, &format!("GET {path}"), upgrade, "");
        let answer = client.ask();
        assert!(answer.head.starts_with("http/1.1 101"), "{}", answer.head);
        // One text frame, masked with zeros as every client's frame is masked with something.
        let length = u16::try_from(message.len()).unwrap().to_be_bytes();
        client.request = [&[0x81, 0x80 | 126, length[0], length[1], 0, 0, 0, 0], message.as_bytes()].concat();
        client.is_websocket = true;
        client
    }

    /// The socket on which an answer was asked for that never ends.
    pub(crate) fn follow(mut self) -> BufReader<TcpStream> {
        self.send();
        self.stream
    }

    /// One request and its whole answer.
    pub(crate) fn ask(&mut self) -> Answer {
        self.send();
        self.receive()
    }

    fn send(&mut self) {
        self.stream.get_mut().write_all(&self.request).unwrap();
    }

    fn receive(&mut self) -> Answer {
        if self.is_websocket { Answer { head: String::new(), body: self.message() } } else { self.answer() }
    }

    fn answer(&mut self) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(self.stream.read_line(&mut head).unwrap(), 0, "closed after {head}");
        }
        head.make_ascii_lowercase();
        let mut body = Vec::new();
        if let Some((_, rest)) = head.split_once("content-length: ") {
            self.take(rest.split_once('\r').unwrap().0.parse().unwrap(), &mut body);
        } else if head.contains("transfer-encoding: chunked") {
            loop {
                let mut size = String::new();
                self.stream.read_line(&mut size).unwrap();
                let size = usize::from_str_radix(size.trim(), 16).unwrap();
                self.take(size, &mut body);
                self.take(2, &mut Vec::new());
                if size == 0 {
                    break;
                }
            }
        }
        Answer { head, body }
    }

    fn take(&mut self, bytes: usize, into: &mut Vec<u8>) {
        let at = into.len();
        into.resize(at + bytes, 0);
        self.stream.read_exact(&mut into[at..]).unwrap();
    }

    /// One message of a WebSocket, which may come in more than one frame.
    fn message(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let mut head = [0; 2];
            self.stream.read_exact(&mut head).unwrap();
            let mut length = Vec::new();
            self.take(
                match head[1] {
                    126 => 2,
                    127 => 8,
                    _ => 0,
                },
                &mut length,
            );
            let long = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            self.take(if length.is_empty() { usize::from(head[1]) } else { long }, &mut body);
            if head[0] & 0x80 != 0 {
                return body;
            }
        }
    }
}

/// Sends one POST and reads its answer.
pub(crate) fn post(port: u16, path: &str, body: &str) -> Value {
    let answer = Client::http(port, &format!("POST {path}"), "content-type: application/json\r\n", body).ask();
    serde_json::from_slice(&answer.body).unwrap()
}

/// Makes a session whose first page of 49 events has some 22 KB, and says its id.
pub(crate) fn session(port: u16) -> String {
    let id = post(port, "/v1/sessions", "{}")["session_id"].as_str().unwrap().to_owned();
    for _ in 0..16 {
        post(port, &format!("/v1/sessions/{id}/turns"), r#"{"prompt":"@long 512"}"#);
    }
    id
}

/// Runs both sides in turn, once with one connection each and once with sixteen that ask at the same time, and prints
/// the medians for one request. Sixteen keep a server busy: what one connection waits for is, for the most part, that the
/// other side's core wakes up.
pub(crate) fn compare(what: &str, work: impl Fn() -> Client, against: &str, floor: impl Fn() -> Client) {
    for width in [1, 16] {
        let side = |open: &dyn Fn() -> Client| -> Vec<Client> { (0..width).map(|_| open()).collect() };
        let (mut work, mut floor) = (side(&work), side(&floor));
        let (mut works, mut floors) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + ROUNDS {
            let (work, floor) = (time(&mut work), time(&mut floor));
            if round >= WARM_UP {
                works.push(work);
                floors.push(floor);
            }
        }
        let (work, floor) = (median(&mut works), median(&mut floors));
        let ratio = floor.as_secs_f64() / work.as_secs_f64();
        println!("{what}, {width} at once: {work:.1?}; {against}: {floor:.1?}; {ratio:.2} x its requests per second");
    }
}

/// What each of the clients' requests takes, all of them under way at once.
fn time(clients: &mut [Client]) -> Duration {
    let started = Instant::now();
    ask_all(clients);
    started.elapsed() / u32::try_from(clients.len()).unwrap()
}

/// All requests at once, and their answers.
pub(crate) fn ask_all(clients: &mut [Client]) -> Vec<Answer> {
    clients.iter_mut().for_each(Client::send);
    clients.iter_mut().map(Client::receive).collect()
}

pub(crate) fn median<T: Ord + Copy>(times: &mut [T]) -> T {
    times.sort_unstable();
    times[times.len() / 2]
}
