//! OpenAI's protocols over the binary: what the specification requires, and two servers over one database.

use std::thread;

use meerkat_testkit::can_run;
use serde_json::{Value, json};
use tempfile::TempDir;

use self::compliance::{complies, text_of};
use crate::drive::{
    meerkat,
    server::{Answer, SERVE, Server, read},
};

#[allow(dead_code, reason = "the tests share one module and need different parts of it")]
#[path = "../../../store-postgres/src/tests/cluster.rs"]
mod cluster;
#[path = "../../../surface-openai/tests/compliance.rs"]
mod compliance;

/// The text of a body that came in chunks.
fn whole(answer: Answer) -> String {
    if !answer.head.contains("transfer-encoding: chunked") {
        return answer.body;
    }
    let (mut text, mut rest) = (String::new(), answer.body.as_str());
    loop {
        let (size, chunk) = rest.split_once("\r\n").unwrap();
        match usize::from_str_radix(size, 16).unwrap() {
            0 => return text,
            size => {
                text.push_str(&chunk[..size]);
                rest = &chunk[size + 2..];
            }
        }
    }
}

fn respond(server: &Server, key: Option<&str>, body: &str) -> (u16, String) {
    let mut headers = vec![("connection", "close")];
    headers.extend(key.map(|key| ("idempotency-key", key)));
    let answer = read(server.open("POST", "/v1/responses", &server.headers_with_token(&headers), body));
    (answer.status, whole(answer))
}

fn made(server: &Server, key: Option<&str>, body: &Value) -> Value {
    let (status, text) = respond(server, key, &body.to_string());
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

#[test]
fn each_case_has_the_fields_of_the_specification() {
    let server = Server::start(&[]);
    complies(|body| respond(&server, None, body));
}

/// Two servers over one database, and their folders.
fn nodes() -> Option<[(Server, TempDir); 2]> {
    if !can_run(cluster::NEEDED, cluster::is_here()) {
        return None;
    }
    let database = cluster::own("off");
    let url = database.cluster.url("meerkat", "postgres");
    Some([(); 2].map(|()| {
        let dir = meerkat_testkit::folder();
        (Server::run(meerkat(&dir, &SERVE), &[("MEERKAT_STORE__URL", &url)], None), dir)
    }))
}

#[test]
fn a_request_that_comes_again_over_another_server_is_the_same_response() {
    let Some([(a, _a), (b, _b)]) = nodes() else { return };
    let first = json!({ "model": "scripted", "input": "@say One." });
    let one = made(&a, Some("one"), &first);
    assert_eq!(made(&b, Some("one"), &first)["id"], one["id"]);
    let next = json!({ "model": "scripted", "input": "@say Two.", "previous_response_id": one["id"] });
    let two = made(&b, Some("two"), &next);
    assert_eq!(made(&a, Some("two"), &next)["id"], two["id"]);
    assert_eq!((text_of(&two), &two["previous_response_id"]), ("Two.".to_owned(), &one["id"]));
    // A fork too, which is made because the session has gone on.
    let other = made(&a, Some("three"), &next);
    assert_ne!(other["id"], two["id"]);
    assert_eq!(made(&b, Some("three"), &next)["id"], other["id"]);
}

#[test]
fn two_that_continue_a_response_at_once_over_two_servers_do_not_see_each_other() {
    let Some(nodes) = nodes() else { return };
    for _ in 0..20 {
        let one = made(&nodes[0].0, None, &json!({ "model": "scripted", "input": "@say One." }));
        let next = |name: &str| {
            let input = format!("@echo messages @note {name}");
            json!({ "model": "scripted", "input": input, "previous_response_id": one["id"] })
        };
        let answers = thread::scope(|scope| {
            let asking = [("anna", 0), ("bert", 1)].map(|(name, node)| {
                let (server, body) = (&nodes[node].0, next(name));
                scope.spawn(move || made(server, None, &body))
            });
            asking.map(|asking| asking.join().unwrap())
        });
        for answer in &answers {
            assert_eq!(text_of(answer), "messages: 3", "the turn before and its own prompt: {answers:?}");
        }
    }
}
