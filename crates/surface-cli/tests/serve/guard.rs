//! Refused requests: without a token, or with a Host or an Origin that is not ours, on every surface.

use std::net::TcpListener;

use meerkat_errors::ErrorCode;
use meerkat_testkit::until;
use serde_json::json;

use crate::drive::{
    NOBODY, TOKEN, meerkat, ran,
    server::{SERVE, Server, read, read_head, refusal, status},
};

/// Lists every path of the surfaces' tables, and a few more.
pub(crate) fn places() -> Vec<(String, String, String)> {
    let mut places: Vec<(String, String, String)> = meerkat_surface_rest::table()
        .iter()
        .map(|route| (route.method.to_string(), filled(&route.full_path(), NOBODY), String::new()))
        .collect();
    for route in meerkat_surface_openai::TABLE {
        places.push((route.method.to_string(), filled(route.path, NOBODY), String::new()));
    }
    for (name, _) in meerkat_surface_rpc::methods() {
        places.push(("POST".into(), "/rpc".into(), format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{name}"}}"#)));
    }
    for tool in meerkat_surface_mcp::tools::all() {
        let call = format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{}","arguments":{{}}}}}}"#,
            tool.name
        );
        places.push(("POST".into(), "/mcp".into(), call));
    }
    for path in
        ["/acp", "/openapi.json", "/metrics", "/console", "/console/", "/index.html", "/v1", "/v1x", "/v2", "/mcp"]
    {
        places.push(("GET".into(), path.into(), String::new()));
    }
    places
}

/// A route's path with an id in place of each parameter.
fn filled(path: &str, id: &str) -> String {
    path.split('/').map(|part| if part.starts_with('{') { id } else { part }).collect::<Vec<_>>().join("/")
}

/// A killed process has left thousands of sessions to look at.
#[test]
fn who_reads_that_the_server_listens_finds_a_store_that_can_be_used() {
    let dir = meerkat_testkit::folder();
    let env = [("MEERKAT_DATA_DIR", "data")];
    drop(Server::run(meerkat(&dir, &SERVE), &env, None));
    let active = dir.path().join("data/active");
    for n in 0..3000 {
        std::fs::write(active.join(format!("01900000-0000-7000-8000-{n:012x}")), "").unwrap();
    }
    let server = Server::run(meerkat(&dir, &SERVE), &env, None);
    assert_eq!(read(server.open("GET", "/readyz", "", "")).status, 200);
    assert_eq!(std::fs::read_dir(active).unwrap().count(), 0, "it has looked at them");
}

#[test]
fn nothing_but_the_health_is_open_without_a_token() {
    let server = Server::start(&[]);
    until("it is ready", || read(server.open("GET", "/readyz", "", "")).status == 200);
    for (path, state) in [("/healthz", "ok"), ("/readyz", "ready")] {
        // A probe knows neither the token nor the name.
        let answer = read(server.open("GET", path, "host: 10.1.2.3\r\n", ""));
        assert_eq!((answer.status, answer.json()), (200, json!({ "state": state })));
    }
    let places = places();
    assert!(places.len() > 80, "the tables were walked: {}", places.len());
    for (method, path, body) in places {
        let answer = server.send(&method, &path, &[], &body);
        assert_eq!(answer.refusal(), refusal(401, "UNAUTHENTICATED"), "{method} {path} {body}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
    }
}

/// Forms by which a page reached a local server or fooled it about its caller: rebinding, look-alike names, other ports,
/// odd spellings, several at once. `PORT` is the listener's.
const HOSTILE: [&str; 50] = [
    "",
    "host:",
    "host: evil.example",
    "host: evil.example:PORT",
    "host: localhost.evil.example:PORT",
    "host: 127.0.0.1.nip.io:PORT",
    "host: localhost",
    "host: 127.0.0.1",
    "host: localhost:1",
    "host: localhost:",
    "host: localhost:+PORT",
    "host: localhost:PORT0",
    "host: :PORT",
    "host: 0.0.0.0:PORT",
    "host: [::]:PORT",
    "host: 127.1:PORT",
    "host: 127.0.0.2:PORT",
    "host: 2130706433:PORT",
    "host: 0x7f.0.0.1:PORT",
    "host: 0177.0.0.1:PORT",
    "host: localhost:PORT:PORT",
    "host: localhost:PORT@evil.example",
    "host: user@localhost:PORT",
    "host: [::1:PORT",
    "host: ::1:PORT",
    "host: [::ffff:127.0.0.1]:PORT",
    "host: localhost.:PORT",
    "host: localhost:PORT/",
    "host: http://localhost:PORT",
    "host: localhost:PORT, evil.example",
    "host: localhost:PORT\r\nhost: evil.example",
    "host: localhost:PORT\r\nhost: localhost:PORT",
    "origin: null",
    "origin:",
    "origin: *",
    "origin: file://",
    "origin: http://evil.example",
    "origin: http://evil.example:PORT",
    "origin: https://localhost:PORT",
    "origin: http://localhost",
    "origin: http://localhost:1",
    "origin: http://localhost:PORT.evil.example",
    "origin: http://localhost:PORT/",
    "origin: http://localhost:PORT http://evil.example",
    "origin: http://localhost:PORT\r\norigin: http://evil.example",
    "origin: chrome-extension://abcdefghijklmnop",
    // Almost the one that is allowed.
    "origin: http://desk.example",
    "origin: https://desk.example.evil",
    "origin: https://DESK.example",
    "origin: https://desk.example:PORT",
];

const GOOD: [&str; 8] = [
    "host: 127.0.0.1:PORT",
    "host: localhost:PORT",
    "host: LOCALHOST:PORT",
    "host: [::1]:PORT",
    "origin: http://127.0.0.1:PORT",
    "origin: http://localhost:PORT",
    "origin: http://[::1]:PORT",
    "origin: https://desk.example",
];

/// Request of a surface: method, target, header lines, body, and the status if it is accepted.
type Listener = (&'static str, String, &'static str, String, u16);

fn listeners(session: &str) -> [Listener; 11] {
    let events = format!("/v1/sessions/{session}/events");
    let rpc = json!({ "jsonrpc": "2.0", "id": 1, "method": "errors/list" });
    let client = json!({ "name": "test", "version": "1" });
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
    let mcp = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params });
    let json = "content-type: application/json\r\n";
    let both = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";
    let websocket = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let response = json!({ "model": "scripted", "input": "@say Hello." });
    [
        ("GET", "/healthz".to_owned(), "", String::new(), 200),
        ("GET", "/v1/models".to_owned(), "", String::new(), 200),
        ("POST", "/v1/responses".to_owned(), json, response.to_string(), 200),
        ("GET", "/v1/capabilities".to_owned(), "", String::new(), 200),
        ("POST", "/v1/sessions".to_owned(), json, "{}".to_owned(), 201),
        ("GET", events, "accept: text/event-stream\r\n", String::new(), 200),
        ("POST", "/rpc".to_owned(), json, rpc.to_string(), 200),
        ("GET", "/rpc".to_owned(), websocket, String::new(), 101),
        ("GET", "/acp".to_owned(), websocket, String::new(), 101),
        ("POST", "/mcp".to_owned(), both, mcp.to_string(), 200),
        // Without a session of the protocol there is nothing to follow.
        ("GET", "/mcp".to_owned(), "accept: text/event-stream\r\n", String::new(), 400),
    ]
}

#[test]
fn hostile_hosts_and_origins_reach_no_surface() {
    let server = Server::start(&[("MEERKAT_SERVE__ALLOWED_ORIGINS", r#"["https://desk.example"]"#)]);
    let session = server.session();
    let own = format!("host: 127.0.0.1:{}\r\nauthorization: Bearer {TOKEN}\r\n", server.port);
    let lines = |form: &str| match form.replace("PORT", &server.port.to_string()) {
        origin if origin.starts_with("origin") => format!("{own}{origin}\r\n"),
        none if none.is_empty() => format!("authorization: Bearer {TOKEN}\r\n"),
        host => format!("{host}\r\nauthorization: Bearer {TOKEN}\r\n"),
    };
    for (method, target, headers, body, welcome) in listeners(&session) {
        let open = |target: &str, form: &str| server.open(method, target, &format!("{}{headers}", lines(form)), &body);
        for form in HOSTILE {
            let answer = read(open(&target, form));
            if target == "/healthz" && !form.starts_with("origin") {
                assert_eq!(answer.status, 200, "{form:?}");
                continue;
            }
            assert_eq!(answer.refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{method} {target} {form:?}");
        }
        let elsewhere = format!("http://evil.example{target}");
        let answer = read(open(&elsewhere, "host: localhost:PORT"));
        if target != "/healthz" {
            assert_eq!(answer.refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{method} {elsewhere}");
        }
        for form in GOOD {
            let head = read_head(&mut std::io::BufReader::new(open(&target, form)));
            assert_eq!(status(&head), welcome, "{method} {target} {form:?}");
        }
    }
}

#[test]
fn a_bind_that_others_can_reach_is_refused_without_a_token() {
    let dir = meerkat_testkit::folder();
    let invalid = ErrorCode::ConfigInvalid;
    let token = ("MEERKAT_TOKEN", TOKEN);
    let server = [
        ("MEERKAT_MODEL__COMPATIBLE__BOX__BASE_URL", "http://127.0.0.1:1/v1"),
        ("MEERKAT_MODEL__COMPATIBLE__BOX__MODEL", "m"),
        ("MEERKAT_TOKEN", "short"),
    ];
    let open = ["--listen", "0.0.0.0:0"];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap().to_string();
    for (args, env, said) in [
        (&["--listen", &taken][..], &[][..], "serve.listen (--listen, or the configuration)"),
        (&["--listen", "0.0.0.0:0", "--no-auth"][..], &[][..], "loopback"),
        (&open, &[("MEERKAT_TOOLS__TEST_DIR", "/nowhere"), token], "test tools"),
        (&open, &[token], "model.name"),
        // The one model of the one server is a choice as well; what is refused then is the token.
        (&open, &server, "16 characters"),
        (&["--listen", "somewhere"], &[], "serve.listen"),
        (&[], &[("MEERKAT_TOKEN", "short")], "16 characters"),
    ] {
        let args = [&["serve", "--rest"], args].concat();
        ran(meerkat(&dir, &args).envs(env.iter().copied())).refused(invalid, said);
    }
    ran(&mut meerkat(&dir, &["serve"])).refused(ErrorCode::InvalidRequest, "say what to serve");
}
