//! Requests that are refused before an operation is performed, the headers of responses, and what REST has besides the
//! operations.

use crate::common::Server;
use meerkat_service::AgentBuildConfig;
use meerkat_surface_rest::RestOptions;
use serde_json::json;

#[tokio::test]
async fn every_response_has_its_headers_and_what_no_handler_sees_has_the_same_body() {
    let server = Server::start();
    let unknown = server.send("GET /v1/nosuch", "").await;
    let answered = server.send("GET /v1/errors", "").await;
    for (answer, status) in [(&unknown, 404), (&answered, 200)] {
        let headers = ["content-type", "cache-control", "x-content-type-options"].map(|name| answer.header(name));
        assert_eq!((answer.status, headers), (status, ["application/json", "no-store", "nosniff"]));
    }
    assert_eq!(unknown.json()["details"], json!({ "operation": "nosuch" }));
    assert_eq!(unknown.refusal(), (404, "UNKNOWN_OPERATION".to_owned(), String::new()));
    assert_eq!(server.send("GET /v1/sessions//queue", "").await.refusal(), refused("session_id"));
    assert_eq!(Server::stored().send("GET /v1/sessions/", "").await.refusal(), refused("path"));
    let wrong = server.send("PUT /v1/sessions", "{}").await;
    assert_eq!((wrong.refusal().1.as_str(), wrong.header("allow")), ("METHOD_NOT_ALLOWED", "POST,GET,HEAD"));
    assert_eq!((wrong.status, wrong.header("content-type")), (405, "application/json"));
    for path in ["/healthz", "/readyz", "/openapi.json", "/metrics"] {
        assert_eq!(server.send(&format!("GET {path}"), "").await.status, 200, "{path}");
        assert_eq!(server.send(&format!("POST {path}"), "").await.status, 405, "{path}");
    }
    let options = server
        .send("OPTIONS /v1/capabilities\norigin: http://evil.example\naccess-control-request-method: GET", "")
        .await;
    assert_eq!((options.status, options.header("allow"), options.body.len()), (204, "GET,HEAD", 0));
    assert_eq!(options.header("access-control-allow-origin"), "");
    let head = server.send("HEAD /v1/capabilities", "").await;
    let get = server.send("GET /v1/capabilities", "").await;
    assert_eq!((head.status, head.header("content-length")), (200, get.header("content-length")));
    assert_eq!(head.body, b"");
}

/// A body that has an unknown field is told the known ones; so is a query.
#[tokio::test]
async fn a_query_parameter_that_is_not_known_is_refused_with_those_that_are() {
    let server = Server::stored();
    for (path, known) in [
        ("sessions?q=x", "allowed: created_after, updated_after, labels, archived, children, cursor, limit"),
        ("capabilities?q=x", "none is allowed"),
    ] {
        let answer = server.send(&format!("GET /v1/{path}"), "").await;
        assert_eq!(answer.refusal(), refused("q"));
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(known), "{message}");
    }
}

/// Lines and columns are those of the body, and only fields of the body are suggested.
#[tokio::test]
async fn what_is_said_of_a_body_is_true_of_what_was_sent() {
    let server = Server::start();
    let turns = "POST /v1/sessions/01900000-0000-7000-8000-000000000001/turns";
    for (body, place) in [
        ("\n{\"prompt\": \"x\",\n \"modle\": 1}", "line 3 column 8"),
        ("{ \"prompt\" : 1 }", "line 1 column 14"),
        ("{ \"prompt\" : x }", "line 1 column 14"),
        ("{\"prompt\": \"x\"", "line 1 column 14"),
    ] {
        let refusal = server.send(turns, body).await.json();
        let message = refusal["message"].as_str().unwrap();
        assert!(message.contains(place), "{body}: {message}");
        assert!(!message.contains("session_id") && !message.contains("`wait`"), "{message}");
        assert_eq!(message.contains("`model`"), body.contains("modle"), "{message}");
    }
    let refusal = server.send("POST /v1/sessions", "{\"wait\": true}").await.json();
    let message = refusal["message"].as_str().unwrap();
    assert!(message.contains("unknown field `wait`, expected "), "{message}");
    assert_eq!(message.matches("`wait`").count(), 1, "{message}");
    // What the URL or a header says has no place in the body.
    for (body, field, said) in [
        ("{\"prompt\": \"x\", \"wait\": false}", "wait", "it has the header `Prefer: respond-async`"),
        (
            "{\"prompt\": \"x\", \"session_id\": \"01900000-0000-7000-8000-000000000001\"}",
            "session_id",
            "the path has it",
        ),
        ("{\"prompt\": \"x\", \"prompt\": \"y\"}", "params", "duplicate field `prompt`"),
    ] {
        let answer = server.send(turns, body).await;
        assert_eq!(answer.refusal(), refused(field), "{body}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(said), "{body}: {message}");
    }
}

#[tokio::test]
async fn a_label_that_is_given_twice_is_refused_and_changes_nothing() {
    let server = Server::stored();
    let made = server.send("POST /v1/sessions", r#"{"labels":{"user":"a"}}"#).await.json();
    let session = format!("/v1/sessions/{}", made["session_id"].as_str().unwrap());
    let twice = r#"{"labels":{"user":"b","user":"c"}}"#;
    for line in ["POST /v1/sessions".to_owned(), format!("PATCH {session}")] {
        let answer = server.send(&line, twice).await;
        assert_eq!(answer.refusal().1, "INVALID_REQUEST", "{line}");
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("duplicate label \"user\""), "{line}: {message}");
    }
    assert_eq!(server.send(&format!("GET {session}"), "").await.json()["labels"]["user"], "a");
    let all = server.send("GET /v1/sessions", "").await.json();
    assert_eq!(all["items"].as_array().unwrap().len(), 1);
}

fn refused(field: &str) -> (u16, String, String) {
    (400, "INVALID_REQUEST".to_owned(), field.to_owned())
}

#[tokio::test]
async fn what_cannot_be_decoded_is_refused_before_the_session_is_looked_for() {
    let server = Server::stored();
    let id = "01900000-0000-7000-8000-000000000001";
    let turns = format!("POST /v1/sessions/{id}/turns");
    let events = format!("GET /v1/sessions/{id}/events");
    let check = async |request: String, body: &[u8], field: &str| {
        assert_eq!(
            server.send(&request, body.to_vec()).await.refusal(),
            refused(field),
            "{request} {}",
            String::from_utf8_lossy(body)
        );
    };
    check(turns.clone(), b"{\"prompt\":", "json").await;
    check(turns.clone(), b"{} {}", "json").await;
    check(turns.clone(), b"[]", "body").await;
    check(turns.clone(), b"{\"prompt\":\"\xff\"}", "body").await;
    check(turns.clone(), br#"{"prompt":1}"#, "params").await;
    check(turns.clone(), br#"{"prompt":"x","promt":"x"}"#, "params").await;
    check(turns.clone(), br#"{"prompt":"x","wait":false}"#, "wait").await;
    check(turns.clone(), format!(r#"{{"prompt":"x","session_id":"{id}"}}"#).as_bytes(), "session_id").await;
    check(turns.clone(), format!("{{\"prompt\":{}", "[".repeat(100_000)).as_bytes(), "json").await;
    check(format!("{turns}\ncontent-type: text/plain"), b"{}", "content-type").await;
    check(format!("{turns}?prompt=x"), b"{}", "prompt").await;
    check(format!("{turns}\nidempotency-key: a"), br#"{"prompt":"x","idempotency_key":"b"}"#, "idempotency_key").await;
    check(format!("{turns}\nidempotency-key: a\nidempotency-key: a"), b"{}", "idempotency-key").await;
    check(events.clone(), b"{}", "body").await;
    for query in ["since_seq=-1", "since_seq=01", "since_seq=", "since_seq=1e2", "limit=x"] {
        let field = query.split('=').next().unwrap();
        check(format!("{events}?{query}"), b"", field).await;
    }
    for query in ["limit=%zz", "%ff=1", "limit=%4"] {
        check(format!("{events}?{query}"), b"", "query").await;
    }
    check(format!("{events}?limit=1&limit=2"), b"", "limit").await;
    check(format!("{events}?since_seq=18446744073709551616"), b"", "since_seq").await;
    check(format!("{events}?since_seq=x\nlast-event-id: 1"), b"", "since_seq").await;
    check(format!("{events}\nlast-event-id: x"), b"", "last-event-id").await;
    check("POST /v1/bundles?data=x".to_owned(), b"", "data").await;
    check("POST /v1/bundles?new_ids=1".to_owned(), b"", "new_ids").await;
    check(format!("GET /v1/sessions/{id}/bundle?cursor=x"), b"", "cursor").await;
    check(format!("GET /v1/readers/audit/sessions/{id}"), b"", "params").await;
    check("GET /v1/sessions?labels=x".to_owned(), b"", "labels").await;
    check("GET /v1/sessions?labels[a]=x&labels%5Ba%5D=y".to_owned(), b"", "labels[a]").await;
    check("GET /v1/sessions?labels[a][b]=x".to_owned(), b"", "labels[a][b]").await;
    check("GET /v1/sessions?created_after=2026-01-01".to_owned(), b"", "created_after").await;
    check("GET /v1/sessions?archived=yes".to_owned(), b"", "archived").await;
    check(format!("POST /v1/sessions/{id}/compactions?preview=maybe"), b"{}", "preview").await;
    check(format!("POST /v1/sessions/{id}/compactions?preview=true&preview=false"), b"{}", "preview").await;
    for naughty in [
        "x",
        "..%2f..%2fetc",
        "%00",
        "01900000000070008000000000000001",
        "%7B01900000-0000-7000-8000-000000000001%7D",
        "'%20OR%201=1",
        "%F0%9F%92%A9",
    ] {
        check(format!("GET /v1/sessions/{naughty}/queue"), b"", "session_id").await;
    }
    check("GET /v1/sessions/%ff/queue".to_owned(), b"", "path").await;
    // A valid request gets as far as the session.
    assert_eq!(server.send(&turns, r#"{"prompt":"x"}"#).await.refusal().1, "SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_key_in_the_header_is_a_key() {
    let server = Server::start();
    let first = server.send("POST /v1/sessions\nidempotency-key: one", "").await.ok();
    assert_eq!(server.send("POST /v1/sessions\nIdempotency-Key: one", "{}").await.ok(), first);
    assert_eq!(server.send("POST /v1/sessions", r#"{"idempotency_key":"one"}"#).await.ok(), first);
    assert_eq!(
        server.send("POST /v1/sessions\nidempotency-key: one", r#"{"idempotency_key":"one"}"#).await.ok(),
        first
    );
    let other = server.send("POST /v1/sessions\nidempotency-key: one", r#"{"labels":{"a":"b"}}"#).await;
    assert_eq!((other.status, other.refusal().1.as_str()), (409, "IDEMPOTENCY_CONFLICT"));
}

#[tokio::test]
async fn a_turn_may_be_left_to_its_events() {
    let server = Server::start();
    let session = server.session().await;
    server.turn(&session, "@say Before.").await;
    let request = format!("POST /v1/sessions/{session}/turns\nprefer: handling=lenient, Respond-Async; x=1");
    let answer = server.send(&request, r#"{"prompt":"@say Later."}"#).await;
    assert_eq!((answer.status, answer.header("preference-applied")), (202, "respond-async"));
    assert_eq!(answer.json(), json!({ "session_id": session, "turn": 1, "seq": 5 }));
    assert_eq!(answer.header("location"), format!("/v1/sessions/{session}/events?since_seq=4"));
    let mut events = server.follow(&format!("GET {}", answer.header("location")), "").await;
    assert_eq!(events.until("turn_completed").await[0].id.as_deref(), Some("5"));
}

#[tokio::test]
async fn readiness_ends_with_the_service_and_health_does_not() {
    let options = RestOptions::default();
    let server = Server::with(AgentBuildConfig::new().build().unwrap(), options.clone());
    assert_eq!(server.send("GET /readyz", "").await.ok(), json!({ "state": "ready" }));
    options.draining.cancel();
    assert_eq!(server.send("GET /readyz", "").await.refusal(), (503, "SHUTTING_DOWN".to_owned(), String::new()));
    assert_eq!(server.send("GET /healthz", "").await.ok(), json!({ "state": "ok" }));
}

#[tokio::test]
async fn requests_and_events_are_counted() {
    let server = Server::start();
    let session = server.session().await;
    server.send("POST /v1/sessions", "[]").await;
    // Any answer to a preview is counted as one of a preview.
    let previewed = server.send(&format!("POST /v1/sessions/{session}/compactions?preview=true"), "{}").await;
    let code = if previewed.status == 200 { "OK".to_owned() } else { previewed.refusal().1 };
    let counted = server.send("GET /metrics", "").await;
    assert_eq!(counted.header("content-type"), "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = String::from_utf8(counted.body).unwrap();
    let line = |line: &str| assert!(text.lines().any(|known| known == line), "{line} is not in {text}");
    line(r#"meerkat_rest_requests_total{operation="create_session",code="OK"} 1"#);
    line(r#"meerkat_rest_requests_total{operation="create_session",code="INVALID_REQUEST"} 1"#);
    line(&format!(r#"meerkat_rest_requests_total{{operation="preview_compaction",code="{code}"}} 1"#));
    line("meerkat_rest_streams_open 0");
    let encoded = text.lines().find_map(|line| line.strip_prefix("meerkat_events_encoded_total ")).unwrap();
    assert!(encoded.parse::<u64>().unwrap() >= 1);
    assert!(!text.contains(&session));
}

/// A client that reads decimals gets those that the model wrote.
#[tokio::test]
async fn the_output_of_a_turn_comes_as_it_was_written() {
    let server = Server::start();
    let session = server.session().await;
    let written = r#"{"a":1.0,"b":1e2,"c":123456789012345678901234567890,"d":[0.10,-0]}"#;
    let body = json!({ "prompt": format!("@json {written}"), "output": { "schema": { "type": "object" } } });
    let answer = server.send(&format!("POST /v1/sessions/{session}/turns"), body.to_string()).await;
    let text = String::from_utf8(answer.body).unwrap();
    assert!(text.contains(&format!(r#""output":{written},"#)), "{text}");
}
