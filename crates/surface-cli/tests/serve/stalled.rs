//! Subscribers that read nothing while much is written: they are closed, and go on at their cursor.

use std::{
    io::{BufRead as _, BufReader, ErrorKind, Write as _},
    net::TcpStream,
    thread,
    time::Instant,
};

use meerkat_testkit::{PATIENCE, until, until_some};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::json;
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket};

use crate::drive::server::{Server, ask, read_head, status, text};

/// Bytes of a call's arguments, which its event holds unchanged; there is no such tool, so it has no other effect.
const ARGUMENT_BYTES: usize = 62_000;
const CALLS_PER_TURN: usize = 80;
const TURNS: usize = 5;

/// Milliseconds after which one that reads nothing is closed; the one that is awake reads sooner, also on a busy machine.
const STALL_MS: &str = "10000";

/// Requests with so many bytes each, more than any kernel keeps for one connection.
const REQUESTS: usize = 4000;
const REQUEST_BYTES: usize = 64_000;

/// A durable event: its seq and its line.
type Event = (u64, String);

/// Returns the seq of a line; `None` for a live event.
fn seq(line: &str) -> Option<u64> {
    let head = &line[..line.len().min(100)];
    head.split_once(r#""seq":"#)?.1.split_once(',')?.0.parse().ok()
}

/// Lets the kernel keep little of what was not read yet: on some machines its buffers take all that a test writes.
fn keep_little(stream: &TcpStream) {
    set_socket_recv_buffer_size(stream, 64 * 1024).unwrap();
}

/// Follows over SSE. HTTP/1.0 knows no chunks, so what comes are the frames alone. The place of a connection that was just
/// closed may not be free yet.
fn follow(server: &Server, session: &str, cursor: u64) -> BufReader<TcpStream> {
    let cursor = cursor.to_string();
    let headers = server.headers_with_token(&[("accept", "text/event-stream"), ("last-event-id", &cursor)]);
    until_some("a place is free", || {
        let mut stream = server.connect();
        keep_little(&stream);
        stream.write_all(format!("GET /v1/sessions/{session}/events HTTP/1.0\r\n{headers}\r\n").as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        let status = status(&read_head(&mut stream));
        assert!([200, 429].contains(&status), "{status}");
        (status == 200).then_some(stream)
    })
}

/// The events of a stream up to its end, or up to `last`. A frame that is cut off is none.
fn frames(stream: &mut BufReader<TcpStream>, last: u64) -> Vec<Event> {
    frames_until(stream, |(seq, _)| *seq == last)
}

fn frames_until(stream: &mut BufReader<TcpStream>, mut is_last: impl FnMut(&Event) -> bool) -> Vec<Event> {
    let (mut events, mut last_came): (Vec<Event>, _) = (Vec::new(), Instant::now());
    while !events.last().is_some_and(&mut is_last) {
        // Signs of life alone go on for ever.
        assert!(last_came.elapsed() < PATIENCE, "{} events, and no more", events.len());
        let mut frame = String::new();
        // A connection that is reset has ended too.
        while !frame.ends_with("\n\n") && stream.read_line(&mut frame).is_ok_and(|bytes| bytes > 0) {}
        let Some(frame) = frame.strip_suffix("\n\n") else { break };
        if let Some((id, line)) = frame.strip_prefix("id: ").and_then(|frame| frame.split_once("\ndata: ")) {
            assert_eq!(seq(line), id.parse().ok());
            events.push((id.parse().unwrap(), line.to_owned()));
            last_came = Instant::now();
        }
    }
    events
}

fn subscribe(server: &Server, session: &str, cursor: u64) -> WebSocket<TcpStream> {
    let mut socket = server.websocket();
    keep_little(socket.get_ref());
    ask(&mut socket, 1, "session/subscribe", &json!({ "session_id": session, "since_seq": cursor }));
    let answer = text(&mut socket).unwrap();
    assert!(answer.starts_with(r#"{"jsonrpc":"2.0","id":1,"result":"#), "{answer}");
    socket
}

/// The events of a subscription up to the connection's end, or up to `last`.
fn notifications(socket: &mut WebSocket<TcpStream>, last: u64) -> Vec<Event> {
    let (mut events, mut last_came): (Vec<Event>, _) = (Vec::new(), Instant::now());
    while events.last().is_none_or(|(seq, _)| *seq < last) {
        assert!(last_came.elapsed() < PATIENCE, "{} events, and no more", events.len());
        let Some(message) = text(socket) else { break };
        let line = message.split_once(r#""result":"#).and_then(|(_, rest)| rest.strip_suffix("}}"));
        let event = line.and_then(|line| Some((seq(line)?, line.to_owned())));
        last_came = if event.is_some() { Instant::now() } else { last_came };
        events.extend(event);
    }
    events
}

/// Waits until as many connections with the token are served at once as may be: nobody else holds a place.
fn wait_for_every_place(server: &Server, places: usize) {
    let is_served = || {
        let stream = server.open("GET", "/v1/sessions?limit=1", &server.headers_with_token(&[]), "");
        let mut stream = BufReader::new(stream);
        (status(&read_head(&mut stream)), stream)
    };
    let are_served = || (0..places).map(|_| is_served()).collect::<Vec<_>>().iter().all(|(status, _)| *status == 200);
    until("every place is free", are_served);
}

#[test]
fn a_subscriber_that_stalls_is_closed_and_goes_on_where_it_was() {
    let server = Server::start(&[
        ("MEERKAT_SERVE__STALL_MS", STALL_MS),
        ("MEERKAT_SERVE__MAX_CONNECTIONS", "8"),
        ("MEERKAT_EPHEMERAL__SESSION_EVENT_BYTES", "1000000000"),
        ("MEERKAT_CONTEXT__OVERFLOW", "slide"),
        ("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "5000000"),
        ("MEERKAT_TURN__LOOP_REPEATS", "1000"),
    ]);
    let session = server.session();
    // Each reads its first event and then nothing more. An attentive one follows beside them.
    let mut stalled_stream = follow(&server, &session, 0);
    let mut stalled_socket = subscribe(&server, &session, 0);
    let mut over_rest = frames(&mut stalled_stream, 1);
    let mut over_rpc = notifications(&mut stalled_socket, 1);
    let mut awake = follow(&server, &session, 0);
    let text = "y".repeat(ARGUMENT_BYTES);
    let prompt = format!(r#"@repeat {CALLS_PER_TURN} @call none {{"text":"{text}"}} @say Done."#);
    let (last, all) = thread::scope(|scope| {
        let mut ends = 0;
        let is_last = move |(_, line): &Event| {
            ends += usize::from(line[..line.len().min(200)].contains(r#""type":"turn_completed""#));
            ends == TURNS
        };
        let all = scope.spawn(move || frames_until(&mut awake, is_last));
        let turn = json!({ "session_id": session, "prompt": prompt });
        let mut last = 0;
        for _ in 0..TURNS {
            last = server.rpc("turn/start", &turn)["result"]["seq"].as_u64().unwrap();
        }
        (last, all.join().unwrap())
    });
    let bytes: usize = all.iter().map(|(_, line)| line.len()).sum();
    assert!(bytes >= 20_000_000, "{bytes} bytes were written");
    assert!(all.iter().map(|(seq, _)| *seq).eq(1..=last), "the one that is awake misses nothing");

    wait_for_every_place(&server, 8);
    over_rest.extend(frames(&mut stalled_stream, last));
    over_rpc.extend(notifications(&mut stalled_socket, last));
    let cursors = [&over_rest, &over_rpc].map(|events| events.last().unwrap().0);
    assert!(cursors.iter().all(|cursor| *cursor < last / 2), "{cursors:?} of {last}: both were closed long before");
    over_rest.extend(frames(&mut follow(&server, &session, cursors[0]), last));
    assert!(over_rest == all, "over REST the suffix is not exact");
    over_rpc.extend(notifications(&mut subscribe(&server, &session, cursors[1]), last));
    assert!(over_rpc == all, "over RPC the suffix is not exact");
}

/// Its requests would fill the memory: each is kept until its answer is taken.
#[test]
fn a_client_that_sends_and_takes_no_answers_is_not_read_on() {
    let server = Server::start(&[("MEERKAT_SERVE__STALL_MS", STALL_MS)]);
    let mut socket = server.websocket();
    keep_little(socket.get_ref());
    let padding = "x".repeat(REQUEST_BYTES);
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "errors/list", "padding": padding }).to_string();
    socket.get_ref().set_write_timeout(Some(PATIENCE)).unwrap();
    let ended = (0..REQUESTS).find_map(|_| socket.send(Message::text(&request)).err()).expect("all requests were read");
    let Error::Io(ended) = ended else { panic!("{ended}") };
    assert!(matches!(ended.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{ended}");
}
