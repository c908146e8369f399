//! As much of HTTP/1.1 as a caller needs: one connection for each request, bodies by length or in chunks, and event
//! streams. Any departure from the protocol is an error.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    time::Instant,
};

use crate::driver::PATIENCE;

/// Address of a server, and the token for it.
#[derive(Clone)]
pub(super) struct Client {
    /// `host:port`.
    pub(super) address: String,
    /// The header of that name.
    pub(super) authorization: String,
}

/// A request.
#[derive(Default)]
pub(super) struct Request {
    pub(super) method: String,
    /// Path and query, encoded.
    pub(super) target: String,
    pub(super) headers: Vec<(&'static str, String)>,
    /// A body, of JSON unless a header says otherwise.
    pub(super) body: Option<Vec<u8>>,
}

/// An event of a stream.
pub(super) struct Event {
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) data: String,
}

/// A response whose body has not been read.
pub(super) struct Response {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    body: Box<dyn BufRead>,
    began: Instant,
}

impl Client {
    /// Sends a request, and reads the response's head.
    pub(super) fn send(&self, request: &Request) -> Result<Response, String> {
        self.exchange(request).map_err(|error| format!("{} {}: {error}", request.method, request.target))
    }

    fn exchange(&self, request: &Request) -> io::Result<Response> {
        let Request { method, target, headers, body } = request;
        let mut head = format!(
            "{method} {target} HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nConnection: close\r\n",
            self.address, self.authorization
        );
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            if !headers.iter().any(|(name, _)| *name == "Content-Type") {
                head.push_str("Content-Type: application/json\r\n");
            }
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&[head.as_bytes(), b"\r\n", body.as_deref().unwrap_or_default()].concat())?;
        Response::read(BufReader::new(stream))
    }
}

impl Response {
    fn read(mut stream: BufReader<TcpStream>) -> io::Result<Self> {
        let line = line_of(&mut stream)?;
        let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        let status = status.ok_or_else(|| broken(&line))?;
        let mut headers = Vec::new();
        loop {
            let line = line_of(&mut stream)?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or_else(|| broken(&line))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Self { status, headers, body: Box::new(io::empty()), began: now() };
        response.body = match (response.header("transfer-encoding"), response.header("content-length")) {
            (Some("chunked"), _) => Box::new(BufReader::new(Chunks { stream, left: 0, is_first: true })),
            (None, Some(length)) => Box::new(stream.take(length.parse().map_err(|_| broken(length))?)),
            (None, None) => Box::new(stream),
            (Some(other), _) => return Err(broken(other)),
        };
        Ok(response)
    }

    /// A header by its name in lower case.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Whether the body is of this media type.
    pub(super) fn is(&self, media_type: &str) -> bool {
        self.header("content-type").is_some_and(|value| value.split(';').next() == Some(media_type))
    }

    /// The whole body.
    pub(super) fn bytes(mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        self.body.read_to_end(&mut bytes).map_err(|error| format!("a body: {error}"))?;
        Ok(bytes)
    }

    /// The whole body, which is text.
    pub(super) fn text(self) -> Result<String, String> {
        String::from_utf8(self.bytes()?).map_err(|error| error.to_string())
    }

    /// The next event of a stream. `None` at the stream's end.
    pub(super) fn event(&mut self) -> Result<Option<Event>, String> {
        let (mut id, mut name, mut data) = (None, None, None::<String>);
        loop {
            // Signs of life alone are no event.
            if self.began.elapsed() > PATIENCE {
                return Err(format!("an event stream does not end within {} s", PATIENCE.as_secs()));
            }
            let mut line = String::new();
            if self.body.read_line(&mut line).map_err(|error| format!("an event stream: {error}"))? == 0 {
                return Ok(None);
            }
            let line = line.strip_suffix('\n').ok_or("an event stream ends within a line")?;
            match (line.trim_end_matches('\r').split_once(": "), &mut data) {
                (Some(("id", value)), _) => id = Some(value.to_owned()),
                (Some(("event", value)), _) => name = Some(value.to_owned()),
                (Some(("data", value)), None) => data = Some(value.to_owned()),
                (Some(("data", value)), Some(data)) => data.extend(["\n", value]),
                (None, Some(_)) if line.trim_end_matches('\r').is_empty() => {
                    return Ok(data.map(|data| Event { id, name, data }));
                }
                // Comments, and an event without data, which is none.
                _ => {}
            }
        }
    }
}

/// A body in chunks.
struct Chunks {
    stream: BufReader<TcpStream>,
    /// Bytes of the chunk that are still to come.
    left: usize,
    is_first: bool,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            if !self.is_first && !line_of(&mut self.stream)?.is_empty() {
                return Err(broken("a chunk is longer than it says"));
            }
            self.is_first = false;
            let size = line_of(&mut self.stream)?;
            self.left = usize::from_str_radix(&size, 16).map_err(|_| broken(&size))?;
            if self.left == 0 {
                // The chunk of no bytes is the last one; only an empty line follows.
                self.is_first = true;
                return Ok(0);
            }
        }
        let most = buffer.len().min(self.left);
        let count = self.stream.read(&mut buffer[..most])?;
        if count == 0 {
            return Err(broken("the body ends within a chunk"));
        }
        self.left -= count;
        Ok(count)
    }
}

#[expect(clippy::disallowed_methods, reason = "patience is with the machine, and no part of what is tested")]
fn now() -> Instant {
    Instant::now()
}

fn line_of(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    line.strip_suffix("\r\n").map(str::to_owned).ok_or_else(|| broken(&line))
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not as HTTP says: {what:?}"))
}

/// Text in a path or a query.
pub(super) fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(encode).collect()
}
