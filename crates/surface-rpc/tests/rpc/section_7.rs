//! The examples of the JSON-RPC 2.0 specification's section 7, with methods that exist here, on every transport; and
//! its other rules for requests. Over HTTP and on a WebSocket jsonrpsee reads the messages, and refuses those that are no
//! request without our body; on stdio there are no batches.

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::common::{Client as _, connect, listen, post, rpc, stdio};

/// Each row: a title, the request, and the answer as `digest` shows it, over the network and on stdio.
const EXAMPLES: &[(&str, &str, [&str; 2])] = &[
    (
        "call with positional parameters",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "params": [42, 23], "id": 1}"#,
        ["1: -32602 INVALID_REQUEST"; 2],
    ),
    (
        "call with named parameters",
        r#"{"jsonrpc": "2.0", "method": "session/pin", "params": {"session_id": "01900000-0000-7000-8000-000000000001", "text": "x"}, "id": 3}"#,
        ["3: -32033 SESSION_NOT_FOUND"; 2],
    ),
    (
        "call with named parameters in another order",
        r#"{"jsonrpc": "2.0", "method": "session/pin", "params": {"text": "x", "session_id": "01900000-0000-7000-8000-000000000001"}, "id": 4}"#,
        ["4: -32033 SESSION_NOT_FOUND"; 2],
    ),
    ("call without parameters", r#"{"jsonrpc": "2.0", "method": "capabilities/get", "id": 5}"#, ["5: ok"; 2]),
    ("a notification", r#"{"jsonrpc": "2.0", "method": "errors/list", "params": [1,2,3,4,5]}"#, [""; 2]),
    ("a notification of an unknown method", r#"{"jsonrpc": "2.0", "method": "foobar"}"#, [""; 2]),
    (
        "call of a non-existent method",
        r#"{"jsonrpc": "2.0", "method": "foobar", "id": "1"}"#,
        [r#""1": -32601 UNKNOWN_OPERATION"#; 2],
    ),
    (
        "call with invalid JSON",
        r#"{"jsonrpc": "2.0", "method": "foobar, "params": "bar", "baz]"#,
        ["null: -32700", "null: -32700 INVALID_REQUEST"],
    ),
    (
        "call with an invalid request object",
        r#"{"jsonrpc": "2.0", "method": 1, "params": "bar"}"#,
        ["null: -32700", "null: -32600 INVALID_REQUEST"],
    ),
    (
        "batch, invalid JSON",
        r#"[{"jsonrpc": "2.0", "method": "errors/list", "params": {}, "id": "1"},{"jsonrpc": "2.0", "method"]"#,
        ["null: -32700", "null: -32700 INVALID_REQUEST"],
    ),
    ("empty batch", "[]", ["null: -32600 INVALID_REQUEST"; 2]),
    ("invalid batch, but not empty", "[1]", ["[null: -32600 INVALID_REQUEST]", "null: -32600 INVALID_REQUEST"]),
    (
        "invalid batch",
        "[1,2,3]",
        [
            "[null: -32600 INVALID_REQUEST, null: -32600 INVALID_REQUEST, null: -32600 INVALID_REQUEST]",
            "null: -32600 INVALID_REQUEST",
        ],
    ),
    (
        "batch",
        r#"[{"jsonrpc": "2.0", "method": "capabilities/get", "id": "1"},
            {"jsonrpc": "2.0", "method": "errors/list", "params": {}},
            {"jsonrpc": "2.0", "method": "errors/list", "params": {}, "id": "2"},
            {"foo": "boo"},
            {"jsonrpc": "2.0", "method": "foo.get", "params": {"name": "myself"}, "id": "5"},
            {"jsonrpc": "2.0", "method": "capabilities/get", "id": "9"}]"#,
        [
            r#"["1": ok, "2": ok, null: -32600 INVALID_REQUEST, "5": -32601 UNKNOWN_OPERATION, "9": ok]"#,
            "null: -32600 INVALID_REQUEST",
        ],
    ),
    (
        "batch of notifications",
        r#"[{"jsonrpc": "2.0", "method": "errors/list"}, {"jsonrpc": "2.0", "method": "foobar", "params": [7]}]"#,
        ["", "null: -32600 INVALID_REQUEST"],
    ),
    // Section 4, on each member.
    ("an id of null", r#"{"jsonrpc": "2.0", "method": "errors/list", "id": null}"#, ["null: ok"; 2]),
    ("an id that is a string", r#"{"jsonrpc": "2.0", "method": "errors/list", "id": "\u00e9\n"}"#, ["\"é\\n\": ok"; 2]),
    // The library takes these for requests without an id, and does not answer them.
    (
        "an id below zero",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "id": -7}"#,
        ["", "null: -32600 INVALID_REQUEST"],
    ),
    (
        "an id with a fraction",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "id": 1.50}"#,
        ["", "null: -32600 INVALID_REQUEST"],
    ),
    (
        "an id of another type",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "id": {}}"#,
        ["", "null: -32600 INVALID_REQUEST"],
    ),
    (
        "two ids",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "id": 1, "id": 2}"#,
        ["", "null: -32600 INVALID_REQUEST"],
    ),
    ("no version", r#"{"method": "errors/list", "id": 1}"#, ["1: -32600", "1: -32600 INVALID_REQUEST"]),
    ("no version and no id", r#"{"method": "errors/list"}"#, ["null: -32700", "null: -32600 INVALID_REQUEST"]),
    (
        "another version",
        r#"{"jsonrpc": "1.0", "method": "errors/list", "id": 1}"#,
        ["1: -32600", "1: -32600 INVALID_REQUEST"],
    ),
    ("no method", r#"{"jsonrpc": "2.0", "id": 1}"#, ["1: -32600", "1: -32600 INVALID_REQUEST"]),
    (
        "parameters of no structure",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "params": "bar", "id": 1}"#,
        ["1: -32602 INVALID_REQUEST"; 2],
    ),
    ("parameters of null", r#"{"jsonrpc": "2.0", "method": "errors/list", "params": null, "id": 1}"#, ["1: ok"; 2]),
    (
        "an unknown parameter",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "params": {"all": 1}, "id": 1}"#,
        ["1: -32602 INVALID_REQUEST"; 2],
    ),
    ("a member of its own", r#"{"jsonrpc": "2.0", "method": "errors/list", "id": 1, "meta": [{}]}"#, ["1: ok"; 2]),
    (
        "two messages in one",
        r#"{"jsonrpc": "2.0", "method": "errors/list", "id": 1} {}"#,
        ["null: -32700", "null: -32700 INVALID_REQUEST"],
    ),
    ("two batches in one", "[1] [2]", ["null: -32700", "null: -32700 INVALID_REQUEST"]),
    ("the document", r#"{"jsonrpc": "2.0", "method": "rpc.discover", "id": 1}"#, ["1: ok"; 2]),
];

/// An answer, in short. It must be valid by the specification.
pub(crate) fn digest(answer: &str) -> String {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Answer<'a> {
        jsonrpc: &'a str,
        #[serde(borrow)]
        id: &'a RawValue,
        #[serde(borrow)]
        result: Option<&'a RawValue>,
        error: Option<Failure>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Failure {
        code: i64,
        message: String,
        data: Option<Value>,
    }
    if answer.starts_with('[') {
        let answers: Vec<&RawValue> = serde_json::from_str(answer).unwrap();
        assert!(!answers.is_empty());
        let answers: Vec<_> = answers.into_iter().map(|answer| digest(answer.get())).collect();
        return format!("[{}]", answers.join(", "));
    }
    let Answer { jsonrpc, id, result, error } = serde_json::from_str(answer).unwrap();
    assert_eq!(jsonrpc, "2.0");
    match (result, error) {
        (Some(_), None) => format!("{id}: ok"),
        (None, Some(Failure { code, message, data })) => {
            // The library's own refusals have no body of an error.
            let body = data.and_then(|data| serde_json::from_value::<meerkat_service::ErrorBody>(data).ok());
            let Some(body) = body else { return format!("{id}: {code}") };
            assert_eq!(message, body.message);
            assert!(matches!(code, -32700 | -32600) || code == i64::from(body.code.rpc_code()), "{answer}");
            format!("{id}: {code} {}", body.code)
        }
        _ => panic!("neither a result nor an error, or both: {answer}"),
    }
}

fn check(transport: &str, answers: &[String], what: &str, expected: &str) {
    let answers: Vec<_> = answers.iter().map(|answer| digest(answer)).collect();
    assert_eq!(answers.join("\n"), expected, "{transport}: {what}");
}

#[tokio::test]
async fn over_http() {
    let address = listen(rpc()).await;
    for (what, request, [expected, _]) in EXAMPLES {
        let (status, body) = post(address, request.as_bytes()).await;
        assert_eq!(status, if body.is_empty() { 204 } else { 200 }, "{what}");
        check("HTTP", &Vec::from_iter((!body.is_empty()).then_some(body)), what, expected);
    }
    // Neither an object nor an array.
    let (status, body) = post(address, b"null").await;
    assert_eq!((status, digest(&body).as_str()), (400, "null: -32700"));
}

#[tokio::test]
async fn over_websocket() {
    for (what, request, [expected, _]) in EXAMPLES {
        let rpc = rpc();
        let mut client = connect(&rpc).await;
        client.send(request).await;
        // When this one is answered the former one has been read, and `stop` waits for its answer.
        client.request(999, "errors/list", serde_json::json!({})).await;
        let mut answers = Vec::new();
        let mut stopping = None;
        while let Some(answer) = client.text().await {
            if answer.contains(r#""id":999"#) {
                let rpc = rpc.clone();
                stopping = Some(tokio::spawn(async move { rpc.stop().await }));
            } else {
                answers.push(answer);
            }
        }
        stopping.expect("the last request was answered").await.unwrap();
        check("WebSocket", &answers, what, expected);
    }
}

#[tokio::test]
async fn over_stdio() {
    for (what, request, [_, expected]) in EXAMPLES {
        let line = request.replace('\n', " ") + "\n";
        check("stdio", &stdio(&rpc(), line.as_bytes()).await, what, expected);
    }
    assert_eq!(digest(&stdio(&rpc(), b"null").await[0]), "null: -32600 INVALID_REQUEST");
}

#[tokio::test]
async fn a_notification_is_performed() {
    let engine = crate::common::engine();
    let session_id = crate::common::session(&engine).await;
    let rpc = meerkat_surface_rpc::service(engine.clone(), Default::default());
    let pin = serde_json::json!({ "session_id": session_id, "text": "a fact" });
    let notification = serde_json::json!({ "jsonrpc": "2.0", "method": "session/pin", "params": pin }).to_string();
    assert!(stdio(&rpc, notification.as_bytes()).await.is_empty());
    assert_eq!(post(listen(rpc).await, notification.as_bytes()).await, (204, String::new()));
    assert_eq!(engine.pins(&session_id.parse().unwrap()).await.unwrap().items.len(), 2);
}
