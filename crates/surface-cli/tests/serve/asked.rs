//! Calls over MCP in the revision without sessions, whose person is asked by the answer.

use std::io::{BufRead as _, BufReader};

use meerkat_testkit::until;
use serde_json::{Value, json};

use crate::drive::{
    meerkat,
    server::{MCP_REVISION, SERVE, Server, mcp_result, read_head},
};

const PROMPT: &str = r#"@call test_ask {"name":"asked","line":"x"} @step @say Done."#;

/// Calls `turn_start` as a client that shows forms; `more` has what a repeated call adds.
fn turn(server: &Server, session: &str, more: &Value) -> Value {
    let arguments = json!({ "session_id": session, "prompt": PROMPT, "attended": true });
    let mut params = json!({ "name": "turn_start", "arguments": arguments, "_meta": {
        "io.modelcontextprotocol/protocolVersion": MCP_REVISION,
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": { "form": {} } },
    } });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let call = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let headers = server.headers_with_token(&[
        ("accept", "application/json, text/event-stream"),
        ("mcp-protocol-version", MCP_REVISION),
        ("mcp-method", "tools/call"),
        ("mcp-name", "turn_start"),
    ]);
    mcp_result(server.open("POST", "/mcp", &headers, &call))
}

/// The server is killed while its question is open. The state is signed with the token, which is the same afterwards.
#[test]
fn a_question_outlives_its_server() {
    let dir = meerkat_testkit::folder();
    let env = [("MEERKAT_TOOLS__TEST_DIR", ".")];
    let server = Server::run(meerkat(&dir, &SERVE), &env, None);
    let session = server.session();
    let asked = turn(&server, &session, &json!({}));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let (call, question) = asked["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert!(question["params"]["message"].as_str().unwrap().contains("test_ask"), "{question}");
    drop(server);

    let server = Server::run(meerkat(&dir, &SERVE), &env, None);
    let approve = json!({ "action": "accept", "content": { "decision": "approve" } });
    let more = json!({ "inputResponses": { call: approve }, "requestState": asked["requestState"] });
    let done = turn(&server, &session, &more);
    assert_eq!(done["structuredContent"]["text"], "Done.", "{done}");
    let turns = server.send_with_token("GET", &format!("/v1/sessions/{session}/turns"), &[], "").json();
    assert_eq!(turns["items"].as_array().map(Vec::len), Some(1), "{turns}");
}

#[test]
fn a_client_that_closes_its_stream_interrupts_its_turn() {
    let server = Server::start(&[]);
    let session = server.session();
    let call = server.open_mcp("turn_start", &json!({ "session_id": session, "prompt": "@say Wait @stall" }));
    let mut call = BufReader::new(call);
    assert!(read_head(&mut call).starts_with("http/1.1 200 "), "the head comes while the turn runs");
    let state = || server.send_with_token("GET", &format!("/v1/sessions/{session}"), &[], "").json()["state"].clone();
    until("the turn runs", || state() == "running");
    drop(call);
    let lines = server.follow(&session, 1).lines();
    let ends =
        lines.map(Result::unwrap).find(|line| line.contains(r#""type":"turn_"#) && !line.contains("turn_started"));
    assert!(ends.as_ref().is_some_and(|line| line.contains(r#""type":"turn_interrupted""#)), "{ends:?}");
}
