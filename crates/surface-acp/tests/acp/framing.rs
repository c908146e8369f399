//! Lines that are no message, and messages that the protocol does not have.

use serde_json::json;

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
