//! Limits of one caller, and the codes of refusals beyond them, on every surface that has them.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::Stdio,
};

use meerkat_testkit::until;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::drive::{
    NOBODY, meerkat,
    server::{Answer, Server, ask, mcp_result, read, read_head, refusal, status, text},
};

const SURFACES: [&str; 3] = ["/v1/sessions", "/rpc", "/mcp"];

fn too_large() -> (u16, String) {
    refusal(413, "PAYLOAD_TOO_LARGE")
}

/// Sends a body that does not say how long it is.
fn send_chunked(server: &Server, path: &str, bytes: usize) -> Answer {
    let mut stream = server.connect();
    let accept = ("accept", "application/json, text/event-stream");
    let head =
        format!("POST {path} HTTP/1.1\r\n{}transfer-encoding: chunked\r\n", server.headers_with_token(&[accept]));
    let body = " ".repeat(bytes);
    stream.write_all(format!("{head}\r\n{bytes:x}\r\n{body}\r\n0\r\n\r\n").as_bytes()).unwrap();
    read(stream)
}

/// The code of a message over a WebSocket that is an error.
fn rpc_code(message: &str) -> (i64, String) {
    let message: Value = serde_json::from_str(message).unwrap();
    let error = &message["error"];
    (error["code"].as_i64().unwrap(), error["data"]["code"].as_str().unwrap().to_owned())
}

#[test]
fn bodies_have_a_limit() {
    let server = Server::start(&[("MEERKAT_SERVE__MAX_BODY_BYTES", "1000")]);
    // Without a body a session has the defaults; the protocols need a message.
    let of_nothing = [refusal(201, ""), refusal(400, ""), refusal(400, "INVALID_REQUEST")];
    for (path, of_nothing) in SURFACES.into_iter().zip(of_nothing) {
        let long = server.send_with_token("POST", path, &[], &" ".repeat(1001));
        assert_eq!(long.refusal(), too_large(), "{path}");
        assert_eq!(send_chunked(&server, path, 1001).refusal(), too_large(), "{path}, chunked");
        // A body of the largest size is read; it is empty.
        assert_eq!(send_chunked(&server, path, 1000).refusal(), of_nothing, "{path}");
    }
    let mut socket = server.websocket();
    ask(&mut socket, 1, "session/pin", &json!({ "text": "x".repeat(1000) }));
    assert_eq!(rpc_code(&text(&mut socket).unwrap()), (-32054, "PAYLOAD_TOO_LARGE".to_owned()));
}

#[test]
fn heads_have_a_limit() {
    let server = Server::start(&[]);
    for path in SURFACES {
        let value = "x".repeat(16 * 1024);
        assert_eq!(server.send_with_token("POST", path, &[("x", &value)], "{}").refusal(), too_large(), "{path}");
        let many = vec![("x", "y"); 64];
        assert_eq!(server.send_with_token("POST", path, &many, "{}").refusal(), too_large(), "{path}");
        let target = format!("{path}?{value}");
        assert_eq!(server.send_with_token("GET", &target, &[], "").refusal(), too_large(), "{path}");
        // A larger head is answered before there is a request: with a status and nothing more.
        let value = "x".repeat(40 * 1024);
        let answer = server.send_with_token("POST", path, &[("x", &value)], "");
        // If it came in one piece, it is refused like any other.
        assert!(
            (answer.status, answer.body.as_str()) == (431, "") || answer.status == 413,
            "{path}: {}",
            answer.status
        );
        let many = vec![("x", "y"); 200];
        assert_eq!(server.send_with_token("POST", path, &many, "").status, 431, "{path}");
    }
}

#[test]
fn batches_have_a_limit() {
    let server = Server::start(&[]);
    let batch = |count: usize| json!(vec![json!({ "jsonrpc": "2.0", "id": 1, "method": "errors/list" }); count]);
    let send = |count: usize| server.send_with_token("POST", "/rpc", &[], &batch(count).to_string());
    assert_eq!(send(100).json().as_array().unwrap().len(), 100);
    // The protocol has its own errors inside of a success.
    assert_eq!(send(101).refusal(), refusal(200, "INVALID_REQUEST"));
    let mut socket = server.websocket();
    socket.send(Message::text(batch(101).to_string())).unwrap();
    assert_eq!(rpc_code(&text(&mut socket).unwrap()), (-32600, "INVALID_REQUEST".to_owned()));
    // MCP has no batches.
    let accept = [("accept", "application/json, text/event-stream")];
    let answer = server.send_with_token("POST", "/mcp", &accept, &batch(1).to_string());
    assert_eq!(answer.refusal(), refusal(400, "INVALID_REQUEST"));
}

#[test]
fn connections_have_a_limit() {
    // No connection was made before these two, so none can still hold its place. One becomes a WebSocket and keeps it.
    let server = Server::start(&[("MEERKAT_SERVE__MAX_CONNECTIONS", "2")]);
    let mut socket = server.websocket();
    let mut kept = BufReader::new(server.open("GET", "/metrics", &server.headers_with_token(&[]), ""));
    assert_eq!(status(&read_head(&mut kept)), 200);
    let refused = read(server.connect());
    assert_eq!(refused.refusal(), refusal(429, "TOO_MANY_CONNECTIONS"));
    assert!(refused.head.contains("retry-after: 1"), "{}", refused.head);
    ask(&mut socket, 1, "errors/list", &json!({}));
    assert!(text(&mut socket).unwrap().contains(r#""result""#));
}

#[test]
fn event_streams_have_a_limit() {
    let server = Server::start(&[("MEERKAT_SERVE__MAX_STREAMS", "2")]);
    let session = server.session();
    let follow = || {
        let mut stream = server.follow(&session, 0);
        (status(&read_head(&mut stream)), stream)
    };
    let kept = [follow(), follow()];
    assert_eq!(kept.each_ref().map(|(status, _)| *status), [200, 200]);
    let too_many = refusal(429, "TOO_MANY_CONNECTIONS");
    let stream = [("accept", "text/event-stream")];
    let events = format!("/v1/sessions/{session}/events");
    let refused = server.send_with_token("GET", &events, &stream, "");
    assert_eq!(refused.refusal(), too_many);
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    assert_eq!(server.send_with_token("GET", "/mcp", &stream, "").refusal(), too_many);
    let turns = format!("/v1/sessions/{session}/turns");
    assert_eq!(server.send_with_token("POST", &turns, &stream, r#"{"prompt":"Hi."}"#).refusal(), too_many);
    // A request that asks for no stream is answered; and no turn was begun.
    let page = server.mcp("session_events", &json!({ "session_id": session }));
    assert_eq!(page["structuredContent"]["next_seq"], 1);
    drop(kept);
    until("the server sees that they are closed", || follow().0 == 200);
}

/// Over OpenAI's protocols a body or a query asks for a stream.
#[test]
fn a_stream_of_a_response_takes_one_place() {
    let server = Server::start(&[("MEERKAT_SERVE__MAX_STREAMS", "1"), ("MEERKAT_TURN__MODEL_IDLE_TIMEOUT_MS", "0")]);
    let ask = |prompt: &str, is_stream: bool| json!({ "model": "scripted", "input": prompt, "stream": is_stream });
    let open = |body: &Value| {
        let headers = server.headers_with_token(&[("content-type", "application/json")]);
        let mut stream = BufReader::new(server.open("POST", "/v1/responses", &headers, &body.to_string()));
        (status(&read_head(&mut stream)), stream)
    };
    // Its turn does not end while the test runs.
    let (kept, stream) = open(&ask("@stall @say Late.", true));
    assert_eq!(kept, 200);
    let send = |method, path: &str, body: &str| server.send_with_token(method, path, &[], body);
    let refused = send("POST", "/v1/responses", &ask("@say One.", true).to_string());
    assert_eq!(refused.refusal(), refusal(429, "TOO_MANY_CONNECTIONS"));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert!(refused.head.contains("retry-after: "), "{}", refused.head);
    let whole = send("POST", "/v1/responses", &ask("@say One.", false).to_string());
    assert_eq!(whole.status, 200, "an answer takes no place");
    let path = format!("/v1/responses/{}", whole.json()["id"].as_str().unwrap());
    assert_eq!(send("GET", &path, "").status, 200);
    assert_eq!(send("GET", &format!("{path}?stream=true"), "").status, 429);
    assert_eq!(send("GET", "/v1/sessions", "").json()["items"].as_array().unwrap().len(), 2, "no turn was begun");
    drop(stream);
    until("the server sees that it is closed", || send("GET", &format!("{path}?stream=true"), "").status == 200);
}

#[test]
fn json_nests_and_has_keys_up_to_a_limit() {
    let server = Server::start(&[]);
    let nested = format!("{}{}", "[".repeat(64), "]".repeat(64));
    let keys: String = (0..10_000).map(|key| format!(r#""{key}":"","#)).collect();
    for (params, why) in [
        (format!(r#"{{"session_id":"{NOBODY}","labels":{nested}}}"#), "nests deeper"),
        (format!(r#"{{"session_id":"{NOBODY}",{keys}"labels":{{}}}}"#), "more than 10000 keys"),
    ] {
        let rest = server.send_with_token("PATCH", &format!("/v1/sessions/{NOBODY}"), &[], &params);
        assert_eq!(rest.refusal(), refusal(400, "INVALID_REQUEST"));
        assert!(rest.body.contains(why), "{}", rest.body);
        let call = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/update","params":{params}}}"#);
        let rpc = server.send_with_token("POST", "/rpc", &[], &call);
        assert_eq!(rpc.refusal(), refusal(200, "INVALID_REQUEST"));
        assert!(rpc.body.contains(why), "{}", rpc.body);
        let arguments: Value = serde_json::from_str(&params).unwrap();
        let mcp = mcp_result(server.open_mcp("session_update", &arguments));
        assert_eq!(mcp["structuredContent"]["code"], "INVALID_REQUEST");
        assert!(mcp.to_string().contains(why), "{mcp}");
    }
    // Brackets in a million are refused as quickly.
    let deep = "[".repeat(1_000_000);
    let accept = [("accept", "application/json, text/event-stream")];
    let (refused, by_library) = (refusal(400, "INVALID_REQUEST"), refusal(200, ""));
    for (path, expected) in [("/v1/sessions", &refused), ("/rpc", &by_library), ("/mcp", &refused)] {
        let answer = server.send_with_token("POST", path, &accept, &deep);
        assert_eq!(answer.refusal(), *expected, "{path}");
    }
}

/// Requests that wait for their turns to end leave room for those that end them.
#[test]
fn waiting_turns_make_no_connection_deaf() {
    const TURNS: u64 = 256;
    let server = Server::start(&[]);
    let mut socket = server.websocket();
    let sessions: Vec<String> = (0..TURNS).map(|_| server.session()).collect();
    for (session, id) in sessions.iter().zip(1..) {
        ask(&mut socket, id, "turn/start", &json!({ "session_id": session, "prompt": "@say Wait @stall" }));
    }
    // What one connection asks is done side by side.
    let runs = |session: &String| {
        let path = format!("/v1/sessions/{session}");
        server.send_with_token("GET", &path, &[], "").json()["state"] == "running"
    };
    until("all of them wait", || sessions.iter().all(runs));
    ask(&mut socket, TURNS + 1, "turn/interrupt", &json!({ "session_id": sessions[0] }));
    let mut ids = [0, 0].map(|_: u64| {
        let answer: Value = serde_json::from_str(&text(&mut socket).unwrap()).unwrap();
        assert!(answer["result"].is_object(), "{answer}");
        answer["id"].as_u64().unwrap()
    });
    ids.sort_unstable();
    assert_eq!(ids, [1, TURNS + 1]);
}

#[test]
fn only_one_type_makes_a_body_json() {
    let server = Server::start(&[]);
    let send = |value: &str| {
        let headers = server.headers_with_token(&[]).replace("application/json", value);
        read(server.open("POST", "/v1/sessions", &headers, "{}"))
    };
    for value in ["text/plain;a=,application/json", "text/plain, application/json", "application/json, text/plain", ""]
    {
        assert_eq!(send(value).refusal(), refusal(400, "INVALID_REQUEST"), "{value:?}");
    }
    let made = send("Application/JSON; charset=utf-8");
    assert_eq!(made.status, 201, "{}", made.body);
    let location = format!("location: /v1/sessions/{}", made.json()["session_id"].as_str().unwrap());
    assert!(made.head.contains(&location), "{}", made.head);
}

/// Sends lines to a command on standard input, and reads the last of as many answers.
fn over_pipes(command: &str, env: &[(&str, &str)], lines: &[Value]) -> Value {
    let dir = meerkat_testkit::folder();
    let mut command = meerkat(&dir, &[command]);
    command.envs(env.iter().copied()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (mut stdin, mut answers) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()).lines());
    let mut last = Value::Null;
    for line in lines {
        // What was made before is named by `$`.
        let made = last["result"]["structuredContent"]["session_id"].as_str().unwrap_or("$").to_owned();
        writeln!(stdin, "{}", line.to_string().replace('$', &made)).unwrap();
        while line.get("id").is_some() {
            last = serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
            if last["id"] == line["id"] || last["id"].is_null() && last.get("method").is_none() {
                break;
            }
        }
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    last
}

#[test]
fn a_prompt_of_the_largest_size_fits_a_message_on_a_pipe() {
    let call = |id: u64, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let client = json!({ "name": "t", "version": "1" });
    let begin = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client });
    let prompt = format!("@say Fits.{}", " ".repeat(4 * 1024 * 1024 - 10));
    let lines = [
        call(1, "initialize", begin),
        json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }),
        call(2, "tools/call", json!({ "name": "session_create", "arguments": {} })),
        call(3, "tools/call", json!({ "name": "turn_start", "arguments": { "session_id": "$", "prompt": prompt } })),
    ];
    let env = [("MEERKAT_MODEL__SCRIPTED_WINDOW_TOKENS", "5000000")];
    let turn = over_pipes("mcp", &env, &lines);
    assert_eq!(turn["result"]["structuredContent"]["text"], "Fits.", "{turn}");
}

#[test]
fn messages_on_pipes_have_the_limit_of_bodies() {
    let env = [("MEERKAT_SERVE__MAX_BODY_BYTES", "1000")];
    let long = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "x": "y".repeat(1000) } });
    for command in ["rpc", "mcp"] {
        let answer = over_pipes(command, &env, std::slice::from_ref(&long));
        assert_eq!(answer["error"]["data"]["code"], "PAYLOAD_TOO_LARGE", "{command}: {answer}");
    }
}

/// A moment without free descriptors kept the store from writing until a restart: it counted as a failing disk.
#[test]
fn a_server_that_could_open_no_files_for_a_while_works_again() {
    let server = Server::start(&[]);
    let (session, mut socket) = (server.session(), server.websocket());
    let limits = |current| {
        let limit = Rlimit { current, maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(Some(Pid::from_child(&server.child)), Resource::Nofile, limit).unwrap().current
    };
    // What is open stays so.
    let before = limits(Some(3));
    for id in 1..=4 {
        ask(&mut socket, id, "session/create", &json!({}));
        assert_eq!(rpc_code(&text(&mut socket).unwrap()).1, "STORE_FAILED");
    }
    limits(before);
    let other = server.session();
    for (id, text) in [(&session, "Later here."), (&other, "Later there.")] {
        let answer = server.rpc("turn/start", &json!({ "session_id": id, "prompt": format!("@say {text}") }));
        assert_eq!(answer["result"]["text"], text, "{answer}");
    }
    until("memory has both", || {
        let found = server.send_with_token("GET", "/v1/memory/search?query=later&role=assistant", &[], "");
        found.status == 200 && found.json()["items"].as_array().unwrap().len() == 2
    });
    assert_eq!(server.send_with_token("GET", "/readyz", &[], "").status, 200);
}
