//! A server that speaks chat completions, through the whole program: what people see of its answers and its failures.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use meerkat_errors::ErrorCode;
use tempfile::TempDir;

use super::process::meerkat;

/// An answer as servers stream it: its first frame says nothing.
const ANSWER: &str = r#"data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"1","choices":[{"index":0,"delta":{"content":"Well."},"finish_reason":null}]}

data: {"id":"1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: [DONE]

"#;

/// A server on loopback that gives one answer to everything.
struct Server {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Server {
    fn start(status: u16, kind: &'static str, body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
        let count = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let head = format!("HTTP/1.1 {status} Said\r\ncontent-type: {kind}\r\nconnection: close\r\n");
                let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
                if serve(stream.unwrap(), &answer).is_some() {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { port, asked }
    }

    fn answers(body: &'static str) -> Self {
        Self::start(200, "text/event-stream", body)
    }
}

fn serve(stream: TcpStream, answer: &str) -> Option<()> {
    let mut out = stream.try_clone().unwrap();
    let (mut stream, mut length) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => length = value.parse().unwrap(),
            None if line.trim_end().is_empty() => break,
            _ => {}
        }
    }
    stream.read_exact(&mut vec![0; length]).ok()?;
    out.write_all(answer.as_bytes()).ok()
}

/// Runs a command with a model behind a port of this machine.
#[track_caller]
fn run(port: u16, args: &[&str], env: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let dir = TempDir::new().unwrap();
    let config = format!(
        "[model]\nname = \"local/x\"\n[model.compatible.local]\nbase_url = \
         \"http://127.0.0.1:{port}/v1\"\nwindow_tokens = 32768\n[turn]\nretry_base_ms = 1\n"
    );
    std::fs::write(dir.path().join("config.toml"), config).unwrap();
    let args = [&["--config", "config.toml", "--ephemeral"], args].concat();
    let Output { status, stdout, stderr } = meerkat(&dir, &args).envs(env.iter().copied()).output().unwrap();
    (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Libraries write log lines of their own, of which nobody knows what is in them.
#[test]
fn nothing_but_our_own_messages_is_printed() {
    let server = Server::answers(ANSWER);
    for args in [&["run", "-q", "hi"][..], &["-vvv", "run", "hi"]] {
        let (code, out, err) = run(server.port, args, &[]);
        assert_eq!((code, out.as_str()), (Some(0), "Well.\n"), "{err}");
        assert!(!err.contains("EMPTY CHOICE") && (args[0] == "-vvv" || err.is_empty()), "{args:?}: {err}");
    }
    let (_, _, err) = run(server.port, &["run", "-q", "hi"], &[("MEERKAT_LOG", "genai=trace")]);
    assert!(err.contains("EMPTY CHOICE"), "{err}");
    let (code, _, err) = run(server.port, &["run", "hi"], &[("MEERKAT_LOG", "genai=loud")]);
    assert!(code == Some(ErrorCode::ConfigInvalid.exit_code().into()) && err.contains("MEERKAT_LOG"), "{err}");

    let broken = Server::start(500, "application/json", r#"{"error":{"message":"Boom."}}"#);
    let (code, out, err) = run(broken.port, &["run", "-q", "hi"], &[]);
    assert_eq!((code, out.as_str()), (Some(ErrorCode::ModelOverloaded.exit_code().into()), ""), "{err}");
    assert_eq!(broken.asked.load(Ordering::SeqCst), 4);
    assert!(err.starts_with("error: ") && err.matches("Boom.").count() == 1, "{err}");
    assert!(!err.contains("ERROR") && !err.contains("HttpError"), "{err}");
}

#[test]
fn a_server_that_is_not_there_is_named_with_what_to_do() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (code, out, err) = run(port, &["run", "hi"], &[]);
    assert_eq!((code, out.as_str()), (Some(ErrorCode::ModelTimeout.exit_code().into()), ""), "{err}");
    for part in [format!("http://127.0.0.1:{port} "), "model.compatible.local.base_url".to_owned()] {
        assert!(err.contains(&part), "{part}: {err}");
    }
}

#[test]
fn an_answer_without_the_end_of_its_stream_is_whole_once_its_reason_came() {
    let server = Server::answers(ANSWER.strip_suffix("data: [DONE]\n\n").unwrap());
    let (code, out, err) = run(server.port, &["run", "hi"], &[]);
    assert_eq!((code, out.as_str()), (Some(0), "Well.\n"), "{err}");
}
