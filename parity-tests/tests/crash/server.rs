//! The program as a server, and a client of it over HTTP.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

use crate::{process::Stage, shim::Shim};

/// Arguments of a server with REST and RPC on a port of its own.
pub(crate) const SERVE: [&str; 7] = ["serve", "--rest", "--rpc", "--no-auth", "--listen", "127.0.0.1:0", "--json"];

/// A server that runs.
pub(crate) struct Server {
    child: Child,
    port: u16,
}

/// Makes the body of a call over RPC.
pub(crate) fn call(method: &str, params: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params })
}

impl Stage {
    /// REST and RPC on a port of their own.
    pub(crate) fn serve(&self, shim: Option<&Shim>) -> Server {
        let mut command = self.command(&SERVE);
        if let Some(shim) = shim {
            shim.attach(&mut command);
        }
        Server::start(command)
    }
}

impl Server {
    /// Starts a command with the arguments [`SERVE`].
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let port = ready["listening"].as_str().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { child, port }
    }

    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// Asks; `None` where the server is gone before it has answered.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        ask(self.port, method, path, body)
    }

    /// Sends a part of a request, as a client that is killed.
    pub(crate) fn send(&self, method: &str, path: &str, body: &Value, part: f64) -> Option<TcpStream> {
        send(self.port, method, path, body, part)
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, &Value::Null).unwrap()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, body).unwrap()
    }

    pub(crate) fn create(&self) -> String {
        self.post("/v1/sessions", &json!({})).1["session_id"].as_str().unwrap().to_owned()
    }

    /// A call over RPC: its result, or its error's code.
    pub(crate) fn rpc(&self, method: &str, params: &Value) -> Option<Result<Value, String>> {
        let (_, mut answer) = self.ask("POST", "/rpc", &call(method, params))?;
        Some(match answer["error"]["data"]["code"].as_str() {
            Some(code) => Err(code.to_owned()),
            None => Ok(answer["result"].take()),
        })
    }

    /// Where the system tells of its process.
    pub(crate) fn process(&self) -> std::path::PathBuf {
        std::path::PathBuf::from(format!("/proc/{}", self.child.id()))
    }

    pub(crate) fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// Ends it as a service manager does; its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

/// Asks a server; `None` where it is gone before it has answered.
pub(crate) fn ask(port: u16, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let mut stream = send(port, method, path, body, 1.0)?;
    stream.set_read_timeout(Some(Duration::from_secs(100))).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, serde_json::from_str(body).ok()?))
}

fn send(port: u16, method: &str, path: &str, body: &Value, part: f64) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!("{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n");
    let length = body.len();
    let headers = format!("content-type: application/json\r\naccept: application/json\r\ncontent-length: {length}");
    let request = format!("{head}{headers}\r\n\r\n{body}");
    stream.write_all(&request.as_bytes()[..(request.len() as f64 * part) as usize]).ok()?;
    Some(stream)
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
