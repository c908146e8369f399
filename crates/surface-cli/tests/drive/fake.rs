//! Fake servers of models, embeddings and traces, on loopback.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

/// Request that a server got.
pub(crate) struct Asked {
    /// Its first line.
    pub(crate) line: String,
    /// The bearer token, or nothing.
    pub(crate) key: String,
    pub(crate) body: Vec<u8>,
}

/// Starts a server and returns its port. `answer` returns the status, the media type and the body; `None` says nothing
/// until the client leaves.
pub(crate) fn serve(answer: impl Fn(Asked) -> Option<(u16, &'static str, String)> + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            std::thread::spawn(move || converse(stream.unwrap(), answer));
        }
    });
    port
}

/// Answers one connection until its client leaves it.
fn converse(mut out: TcpStream, answer: impl Fn(Asked) -> Option<(u16, &'static str, String)>) -> Option<()> {
    let mut stream = BufReader::new(out.try_clone().unwrap());
    loop {
        let asked = read(&mut stream)?;
        let Some((status, kind, body)) = answer(asked) else {
            stream.read_to_end(&mut Vec::new()).ok()?;
            return None;
        };
        let head = format!("HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\nretry-after: 0\r\n");
        out.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()?;
    }
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Asked> {
    let (mut first, mut key, mut length) = (String::new(), String::new(), 0);
    stream.read_line(&mut first).ok().filter(|read| *read > 0)?;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ").map(|(name, value)| (name.to_lowercase(), value)) {
            Some((name, value)) if name == "content-length" => length = value.parse().unwrap(),
            Some((name, value)) if name == "authorization" => key = value.trim_start_matches("Bearer ").to_owned(),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Asked { line: first.trim_end().to_owned(), key, body })
}
