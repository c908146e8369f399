//! Lines that are no message, and messages that the protocol does not have.

use std::{io::ErrorKind, time::Duration};

use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::{Client, MESSAGE_BYTES, agent};

#[tokio::test]
async fn bad_input_is_answered_in_the_protocols_shape() {
    let mut client = Client::of(&agent());
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(MESSAGE_BYTES));
    for (line, id, number, code) in [
        ("{", json!(null), -32700, "INVALID_REQUEST"),
        ("[]", json!(null), -32600, "INVALID_REQUEST"),
        (r#"{"jsonrpc":"1.0","id":1,"method":"initialize"}"#, json!(null), -32600, "INVALID_REQUEST"),
        (r#"{"jsonrpc":"2.0"}"#, json!(null), -32600, "INVALID_REQUEST"),
        (r#"{"jsonrpc":"2.0","id":"a","method":"session/none"}"#, json!("a"), -32601, "UNKNOWN_OPERATION"),
        (r#"{"jsonrpc":"2.0","id":7,"method":"initialize"}"#, json!(7), -32602, "INVALID_REQUEST"),
        (r#"{"jsonrpc":"2.0","id":8,"method":"session/prompt","params":{}}"#, json!(8), -32602, "INVALID_REQUEST"),
        (&long, json!(null), -32054, "PAYLOAD_TOO_LARGE"),
    ] {
        client.write(line).await;
        let answer = client.read().await;
        let error = &answer["error"];
        assert_eq!((&answer["id"], &error["data"]["code"]), (&id, &json!(code)), "{line}: {answer}");
        assert_eq!(error["code"], number, "{line}: {answer}");
        assert_eq!(error["message"], error["data"]["message"], "{line}: {answer}");
    }
    // Unknown notifications and answers to nothing are ignored, and the connection goes on.
    client.write(r#"{"jsonrpc":"2.0","method":"_later/thing"}"#).await;
    client.write(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#).await;
    let met = client.ends("initialize", json!({ "protocolVersion": 7 })).await;
    assert_eq!(met["protocolVersion"], 1, "{met}");
}

#[tokio::test]
async fn the_end_of_the_input_ends_the_connection() {
    let agent = agent();
    let (mut client, session) = Client::begun(&agent).await;
    client.prompt(&session, "@call hold {}").await;
    client.asked("session/request_permission").await;
    drop(client.writer);
    super::soon(client.server).await.unwrap().unwrap();
}

/// Long prompts that wait hold their bytes; a refusal is an answer, and short requests and cancellations go on.
#[tokio::test]
async fn requests_have_a_bound_and_its_refusal_is_an_answer() {
    let mut client = Client::of(&agent());
    let mut waiting = Vec::new();
    let file = |session: &str| {
        let text = "x".repeat(MESSAGE_BYTES - 1024);
        let blocks = json!([
            { "type": "text", "text": "@say Wait @stall @note " },
            { "type": "resource", "resource": { "uri": "file:///long.txt", "text": text } },
        ]);
        json!({ "sessionId": session, "prompt": blocks })
    };
    let new = json!({ "cwd": "/w", "mcpServers": [] });
    for _ in 0..4 {
        let session = client.ends("session/new", new.clone()).await["sessionId"].as_str().unwrap().to_owned();
        let id = client.ask("session/prompt", file(&session)).await;
        waiting.push((session, id));
    }
    let more = client.ends("session/new", new).await["sessionId"].as_str().unwrap().to_owned();
    let id = client.ask("session/prompt", file(&more)).await;
    let refused = client.answer(id).await;
    assert_eq!(refused["error"]["data"]["code"], "TOO_MANY_CONNECTIONS", "{refused}");
    for (session, id) in waiting {
        let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
        client.write(&cancel.to_string()).await;
        assert_eq!(client.answer(id).await["result"]["stopReason"], "cancelled");
    }
    let id = client.ask("session/prompt", file(&more)).await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": more } });
    client.write(&cancel.to_string()).await;
    assert_eq!(client.answer(id).await["result"]["stopReason"], "cancelled");
}

/// A client that takes nothing keeps neither its refusals in memory nor the process alive.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_left() {
    for is_stopped in [true, false] {
        let client = Client::of(&agent());
        let (mut writer, server) = (client.writer, client.server);
        let line = format!("{}\n", "{".repeat(64));
        let flood = tokio::spawn(async move { while writer.write_all(line.as_bytes()).await.is_ok() {} });
        // The clock is paused: it moves only when every task waits.
        tokio::time::advance(Duration::from_secs(1)).await;
        if is_stopped {
            client.stop.cancel();
        }
        let ended = server.await.unwrap();
        assert_eq!(ended.map_err(|error| error.kind()), if is_stopped { Ok(()) } else { Err(ErrorKind::TimedOut) });
        flood.await.unwrap();
    }
}

/// A client that reads nothing of a turn is left after a while.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_of_a_turn_is_left() {
    let (mut client, session) = Client::begun(&agent()).await;
    client.prompt(&session, "@long 100000").await;
    client.asked("session/update").await;
    // The clock is paused: it moves only when every task waits.
    let ended = tokio::time::timeout(Duration::from_secs(600), client.server).await.expect("it is left").unwrap();
    assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
}

/// The last answers wait for a client that reads slowly.
#[tokio::test(start_paused = true)]
async fn what_was_asked_is_answered_behind_the_end_of_the_input() {
    let mut client = Client::of(&agent());
    let mut asked = Vec::new();
    for _ in 0..200 {
        asked.push(client.ask("initialize", json!({ "protocolVersion": 1 })).await);
    }
    client.writer.shutdown().await.unwrap();
    // Each step lets the server go on, so it has met the end of the input long before the last one.
    for _ in 0..30 {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let mut answered = Vec::new();
    for _ in &asked {
        answered.push(client.read().await["id"].as_u64().unwrap());
    }
    answered.sort_unstable();
    assert_eq!(answered, asked);
    client.server.await.unwrap().unwrap();
}
