//! A client of another library works.

use jsonrpsee::{
    async_client::Client,
    client_transport::ws::{Url, WsTransportClientBuilder},
    core::{
        ClientError,
        client::{ClientT as _, Subscription, SubscriptionClientT as _},
        params::{BatchRequestBuilder, ObjectParams},
    },
};
use meerkat_service::{ErrorBody, service::SessionCreated};
use meerkat_surface_rpc::{RpcOptions, service};
use serde_json::{Value, json};

use crate::common::{engine, listen, post, rpc, session};

fn params(members: &[(&str, &str)]) -> ObjectParams {
    let mut params = ObjectParams::new();
    for (name, value) in members {
        params.insert(name, value).unwrap();
    }
    params
}

#[tokio::test]
async fn jsonrpsees_client_calls_subscribes_and_unsubscribes() {
    let address = listen(rpc()).await;
    let url = Url::parse(&format!("ws://{address}/rpc")).unwrap();
    let (sender, receiver) = WsTransportClientBuilder::default().build(url).await.unwrap();
    let client: Client = Client::builder().build_with_tokio(sender, receiver);

    let made: SessionCreated = client.request("session/create", ObjectParams::new()).await.unwrap();
    let session_id = made.session_id.to_string();
    let of_session = || params(&[("session_id", &session_id)]);
    let mut events: Subscription<Value> =
        client.subscribe("session/subscribe", of_session(), "session/unsubscribe").await.unwrap();
    assert_eq!(events.next().await.unwrap().unwrap()["type"], "session_created");

    let prompt = params(&[("session_id", &session_id), ("prompt", "@say Hello.")]);
    let result: Value = client.request("turn/start", prompt).await.unwrap();
    assert_eq!(result["text"], "Hello.");
    while events.next().await.unwrap().unwrap()["type"] != "turn_completed" {}
    events.unsubscribe().await.unwrap();

    let mut batch = BatchRequestBuilder::new();
    batch.insert("session/pins", of_session()).unwrap();
    batch.insert("nosuch", ObjectParams::new()).unwrap();
    let answers = client.batch_request::<Value>(batch).await.unwrap();
    assert_eq!((answers.num_successful_calls(), answers.num_failed_calls()), (1, 1));

    let failed: Result<Value, _> = client.request("turn/interrupt", of_session()).await;
    let ClientError::Call(error) = failed.unwrap_err() else { panic!("no answer") };
    let body: ErrorBody = serde_json::from_str(error.data().unwrap().get()).unwrap();
    assert_eq!((error.code(), body.code.as_str()), (-32035, "SESSION_NOT_RUNNING"));
}

/// A client that reads decimals gets those that the model wrote.
#[tokio::test]
async fn the_output_of_a_turn_comes_as_it_was_written() {
    let engine = engine();
    let session_id = session(&engine).await;
    let address = listen(service(engine, RpcOptions::default())).await;
    let written = r#"{"a":1.0,"b":1e2,"c":123456789012345678901234567890,"d":[0.10,-0]}"#;
    let output = json!({ "schema": { "type": "object" } });
    let params = json!({ "session_id": session_id, "prompt": format!("@json {written}"), "output": output });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "turn/start", "params": params });
    let (status, answer) = post(address, request.to_string().as_bytes()).await;
    assert!(status == 200 && answer.contains(&format!(r#""output":{written},"#)), "{status} {answer}");
}
