//! A server of models that sends without end, through the whole program: its turn fails, and nobody else waits for it.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use meerkat_testkit::{can_run, until, until_some};
use serde_json::json;

use crate::drive::{
    meerkat,
    server::{SERVE, Server, read},
};

/// Most memory of the whole server, in KiB.
const PEAK_KIB: u64 = 250_000;

/// A call with a number so high that a list up to it fills the memory.
const FAR: &str = r#"data: {"choices":[{"delta":{"tool_calls":[{"index":2147483648,"id":"c","function":{"name":"f","arguments":"{}"}}]}}]}

"#;

/// Returns 256 MiB of zeros as gzip has them, which is a part in two hundred.
fn packed() -> Vec<u8> {
    let zeros = "head -c 268435456 /dev/zero | gzip -1";
    Command::new("sh").args(["-c", zeros]).stderr(Stdio::null()).output().unwrap().stdout
}

/// Starts such a server, which sends what the model's name says; returns its port, and the number of its requests.
fn endless() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, asked) = (listener.local_addr().unwrap().port(), Arc::<AtomicUsize>::default());
    let counted = asked.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let counted = counted.clone();
            std::thread::spawn(move || drop(send(stream.unwrap(), &counted)));
        }
    });
    (port, asked)
}

/// Reads a request and answers until its client has enough.
fn send(mut out: TcpStream, asked: &AtomicUsize) -> std::io::Result<()> {
    let mut stream = BufReader::new(out.try_clone()?);
    let (mut length, mut line) = (0, String::new());
    while stream.read_line(&mut line)? > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    asked.fetch_add(1, Ordering::SeqCst);
    let asks_for = |model: &str| String::from_utf8_lossy(&body).contains(&format!(r#""model":"{model}""#));
    let (more, piece) = match () {
        () if asks_for("line") => ("", "a".repeat(64 * 1024).into_bytes()),
        () if asks_for("number") => ("", FAR.as_bytes().to_vec()),
        () if asks_for("comments") => ("", b": a\n\n".repeat(8 * 1024)),
        () => ("content-encoding: gzip\r\n", packed()),
    };
    out.write_all(format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{more}\r\n").as_bytes())?;
    loop {
        out.write_all(&piece)?;
    }
}

/// Returns the most memory that a process ever had, in KiB.
fn peak(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Broken once: the first number ended the whole server, and packed bytes without the end of a line kept every thread,
/// so that nothing was answered and no signal heard.
#[test]
fn an_answer_without_end_costs_its_turn_alone() {
    let dir = meerkat_testkit::folder();
    let folder = dir.path().join(".config/meerkat");
    fs::create_dir_all(&folder).unwrap();
    let (port, asked) = endless();
    let base_url = format!("http://127.0.0.1:{port}/v1");
    let config = format!(
        "[model]\nname = \"scripted\"\n[model.compatible.far]\nbase_url = \"{base_url}\"\nwindow_tokens = 32768\n"
    );
    fs::write(folder.join("meerkat.toml"), config).unwrap();
    let mut server = Server::run(meerkat(&dir, &SERVE), &[], None);
    let turn = |model: &str| {
        let headers = server.headers_with_token(&[]);
        let body = json!({ "model": format!("far/{model}"), "prompt": "Hello." }).to_string();
        server.open("POST", &format!("/v1/sessions/{}/turns", server.session()), &headers, &body)
    };
    let others = || {
        let answer = server.send("GET", "/healthz", &[], "");
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    let packed = can_run("gzip", meerkat_testkit::has_program("gzip")).then_some(("packed", "passed 4194304 bytes"));
    let bounds = [
        ("line", "passed 4194304 bytes"),
        ("number", "numbers its calls past 256"),
        ("comments", "passed 33554432 bytes"),
    ];
    for (model, bound) in bounds.into_iter().chain(packed) {
        let answer = turn(model);
        (0..20).for_each(|_| others());
        let result = read(answer).json();
        assert_eq!(
            (&result["status"], &result["error"]["code"]),
            (&json!("failed"), &json!("MODEL_REJECTED")),
            "{result}"
        );
        assert!(result["error"].to_string().contains(bound), "{model}: {result}");
        others();
        assert!(peak(&server.child) < PEAK_KIB, "{model}: {} KiB", peak(&server.child));
    }
    // Signals are heard meanwhile.
    let before = asked.load(Ordering::SeqCst);
    let _running = ["comments", "line"].map(turn);
    until("both turns run", || asked.load(Ordering::SeqCst) == before + 2);
    server.terminate();
    assert_eq!(until_some("it ends", || server.child.try_wait().unwrap()).code(), Some(0));
}
