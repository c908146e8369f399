//! The program of docs/rust.md, killed while its tool runs, with or without its server, and started again.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

use meerkat_testkit::until_some;
use serde_json::{Value, json};

use crate::{
    process::Stage,
    server::{SERVE, Server, ask},
};

/// An image of one pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

/// One address for a server that is started again on another port.
struct Front {
    port: u16,
    server: Arc<AtomicU16>,
}

impl Front {
    /// It listens until the tests end.
    fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let front = Self { port: listener.local_addr().unwrap().port(), server: Arc::default() };
        let server = front.server.clone();
        thread::spawn(move || {
            for client in listener.incoming().map(Result::unwrap) {
                // Where none is, the client's connection is dropped.
                let Ok(server) = TcpStream::connect(("127.0.0.1", server.load(Ordering::SeqCst))) else { continue };
                pass(client.try_clone().unwrap(), server.try_clone().unwrap());
                pass(server, client);
            }
        });
        front
    }

    /// Starts a server behind it.
    fn serve(&self, stage: &Stage) -> Server {
        let mut command = stage.command(&SERVE);
        command.env("MEERKAT_SERVE__ALLOWED_HOSTS", format!("[\"127.0.0.1:{}\"]", self.port));
        let server = Server::start(command);
        self.server.store(server.port(), Ordering::SeqCst);
        server
    }
}

/// Passes on what one end says, until either is gone.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    thread::spawn(move || {
        // Either end may be killed.
        io::copy(&mut from, &mut to).ok();
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    });
}

/// The program of the page.
struct Shop {
    child: Child,
    port: u16,
}

impl Shop {
    fn open(front: &Front, folder: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shop"));
        command.arg("127.0.0.1:0").current_dir(folder).env_clear().stdout(Stdio::piped());
        command.env("MEERKAT_URL", format!("http://127.0.0.1:{}", front.port)).env("MEERKAT_TOKEN", "any");
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim_end().rsplit_once(':').unwrap().1.parse().unwrap();
        Self { child, port }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let (status, answer) = ask(self.port, "POST", path, body).unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The events of a session with this type.
fn events(server: &Server, chat: &str, kind: &str) -> Vec<Value> {
    let (_, page) = server.get(&format!("/v1/sessions/{chat}/events?limit=200"));
    let all = page["items"].as_array().unwrap().iter();
    all.filter(|event| event["type"] == kind).cloned().collect()
}

fn killed_while_its_tool_runs(kills_shop: bool, kills_server: bool) {
    let stage = Stage::made();
    let front = Front::open();
    let mut server = front.serve(&stage);
    let folder = stage.home().join("shop");
    fs::create_dir(&folder).unwrap();
    // The tool reads it, and waits until it has been written.
    let prices = folder.join("prices.json");
    rustix::fs::mkfifoat(rustix::fs::CWD, &prices, 0o600.into()).unwrap();
    let read = || {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        fs::OpenOptions::new().write(true).custom_flags(nonblocking).open(&prices).ok()
    };

    let mut shop = Shop::open(&front, &folder);
    let chat = shop.post("/chats", &Value::Null)["chat"].as_str().unwrap().to_owned();
    let text = r#"@call price {"item":"tea"} @json {"euros":"many"} @step @json {"euros":3.50}"#;
    let (path, message) = (format!("/chats/{chat}/messages"), json!({ "text": text, "picture": PIXEL, "key": "one" }));
    let asked = thread::spawn({
        let (port, path, message) = (shop.port, path.clone(), message.clone());
        move || ask(port, "POST", &path, &message)
    });
    let mut pipe = until_some("the tool runs", read);
    if kills_server {
        server.kill();
        server = front.serve(&stage);
    }
    if kills_shop {
        shop.child.kill().unwrap();
        shop.child.wait().unwrap();
        drop(pipe);
        shop = Shop::open(&front, &folder);
        pipe = until_some("the tool runs again", read);
    }
    pipe.write_all(br#"{ "tea": 3.50 }"#).unwrap();
    drop(pipe);
    let answer = match asked.join().unwrap() {
        Some((status, answer)) => {
            assert!(!kills_shop && status == 200, "{answer}");
            answer
        }
        // Its page sends the message again.
        None => shop.post(&path, &message),
    };
    assert_eq!((&answer["status"], &answer["answer"]["euros"]), (&json!("completed"), &json!(3.50)), "{answer}");
    // And once more.
    assert_eq!(shop.post(&path, &message), answer);

    let of = |kind: &str| events(&server, &chat, kind);
    let kinds = ["turn_started", "call_requested", "call_answered", "tool_finished", "output_refused"];
    let [turn, call, answered, finished, refused] = kinds.map(|kind| {
        let mut events = of(kind);
        assert_eq!(events.len(), 1, "{kind}");
        events.remove(0)
    });
    assert!(turn["blocks"].to_string().contains("image/png"), "{turn}");
    assert_eq!([&call["call_id"], &call["call_id"]], [&answered["call_id"], &finished["call_id"]]);
    assert!(finished["output"].to_string().contains("3.5 euros"), "{finished}");
    assert!(refused.to_string().contains("/euros"), "{refused}");
    assert_eq!(of("turn_completed").len(), 1);
}

#[test]
fn a_shop_that_is_killed_while_its_tool_runs_answers_when_it_is_back() {
    killed_while_its_tool_runs(true, false);
}

#[test]
fn a_shop_whose_server_is_killed_while_its_tool_runs_answers_the_next() {
    killed_while_its_tool_runs(false, true);
}

#[test]
fn a_shop_that_is_killed_with_its_server_answers_when_both_are_back() {
    killed_while_its_tool_runs(true, true);
}
