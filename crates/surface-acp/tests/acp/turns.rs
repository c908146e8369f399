//! Turns: their texts, their calls and their ends.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use meerkat_service::{
    SessionId,
    service::{DecideApproval, Decision, SessionState},
};
use meerkat_testkit::until_asked;
use serde_json::{Value, json};

use super::{Client, agent, prompt, stored, texts};

#[tokio::test]
async fn a_turn_is_shown_as_it_comes_and_each_byte_once() {
    let (mut client, session) = Client::begun(&agent()).await;
    let id = client.prompt(&session, "@chunks 1 @think Hm, so. @say Hello there. @say And more.").await;
    let ended = client.answer(id).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    let updates = client.updates();
    assert_eq!(texts(&updates, "agent_thought_chunk"), "Hm, so.");
    assert_eq!(texts(&updates, "agent_message_chunk"), "Hello there.And more.");
    assert_eq!(texts(&updates, "user_message_chunk"), "");
    let usage = updates.iter().find(|update| update["sessionUpdate"] == "usage_update").unwrap();
    assert!(usage["used"].as_u64().unwrap() < usage["size"].as_u64().unwrap(), "{usage}");
}

/// A client that reads slowly gets the first piece of a thought before the turn ends, and the rest with the message.
#[tokio::test]
async fn a_slow_reader_misses_nothing_of_a_thought() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut client, session) = Client::begun(&agent).await;
    let thought: String = (0..12_000).map(|number| format!("{number:05}")).collect();
    let script = format!("@chunks 1 @think {thought} @say Done.");
    let id = client.prompt(&session, &script).await;
    let first = client.asked("session/update").await;
    let session_id: SessionId = session.parse().unwrap();
    until_asked("the turn has ended", async || {
        agent.service().read(&session_id).await.unwrap().state == SessionState::Idle
    })
    .await;
    client.before.push_back(first);
    client.answer(id).await;
    let updates = client.updates();
    assert!(texts(&updates, "agent_thought_chunk") == thought, "the thought has gaps, or pieces twice");
    assert_eq!(texts(&updates, "agent_message_chunk"), "Done.");
}

/// The turn of a client that reads nothing ends, and another client is shown all of it.
#[tokio::test]
async fn a_turn_that_nobody_reads_ends_and_is_kept() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut client, session) = Client::begun(&agent).await;
    client.prompt(&session, "@long 100000").await;
    client.asked("session/update").await;
    let session_id: SessionId = session.parse().unwrap();
    until_asked("the turn has ended", async || {
        let view = agent.service().read(&session_id).await.unwrap();
        (view.state, view.turn_count) == (SessionState::Idle, 1)
    })
    .await;
    let mut next = Client::of(&agent);
    next.ends("session/load", json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] })).await;
    assert_eq!(texts(&next.updates(), "agent_message_chunk").len(), 100_000);
}

/// A process that must end waits for its turns, and then for what their client has not read of them.
#[tokio::test]
async fn what_a_turn_has_said_before_a_stop_is_still_shown() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut client, session) = Client::begun(&agent).await;
    let id = client.prompt(&session, "@long 200000").await;
    let first = client.asked("session/update").await;
    let session_id: SessionId = session.parse().unwrap();
    until_asked("the turn has ended", async || {
        let view = agent.service().read(&session_id).await.unwrap();
        (view.state, view.turn_count) == (SessionState::Idle, 1)
    })
    .await;
    // From here on no time passes, however slowly the store's threads read, until there is an answer or patience ends.
    tokio::time::pause();
    let (answered, waits) = channel::<()>();
    let held = tokio::task::spawn_blocking(move || waits.recv_timeout(Duration::from_secs(60)));
    client.stop.cancel();
    client.before.push_back(first);
    let ended = client.answer(id).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    assert_eq!(texts(&client.updates(), "agent_message_chunk").len(), 200_000);
    client.server.await.unwrap().unwrap();
    drop(answered);
    assert_eq!(held.await.unwrap(), Err(RecvTimeoutError::Disconnected), "patience has ended");
}

#[tokio::test]
async fn each_end_has_its_reason() {
    let (mut client, session) = Client::begun(&agent()).await;
    for (script, reason) in [
        ("@say A", "end_turn"),
        ("@say A @stop max_tokens", "max_tokens"),
        ("@say A @stop refusal", "refusal"),
        ("@say A @stop content_filter", "refusal"),
    ] {
        let ended = client.ends("session/prompt", prompt(&session, script)).await;
        assert_eq!(ended["stopReason"], reason, "{script}");
    }
    let id = client.prompt(&session, "@fail unauthorized").await;
    let failed = client.answer(id).await;
    assert_eq!(failed["error"]["data"]["code"], "MODEL_UNAUTHORIZED", "{failed}");
}

/// The cancellation is in the same write as the prompt, so no time passes between them.
#[tokio::test]
async fn a_prompt_is_cancelled_even_before_it_has_begun() {
    let (mut client, session) = Client::begun(&agent()).await;
    let params = prompt(&session, "@say Wait @stall");
    let request = json!({ "jsonrpc": "2.0", "id": "p", "method": "session/prompt", "params": params });
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    client.write(&format!("{request}\n{cancel}")).await;
    loop {
        let message = client.read().await;
        if message["id"] == "p" {
            assert_eq!(message["result"]["stopReason"], "cancelled", "{message}");
            break;
        }
    }
}

/// A session has one turn at a time here: a second prompt changes nothing.
#[tokio::test]
async fn a_second_prompt_is_refused_and_the_first_can_be_cancelled() {
    let (mut client, session) = Client::begun(&agent()).await;
    let first = client.prompt(&session, "@say Wait @stall").await;
    client.asked("session/update").await;
    let second = client.prompt(&session, "@say Never.").await;
    let refused = client.answer(second).await;
    assert_eq!(refused["error"]["data"]["code"], "SESSION_BUSY", "{refused}");
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    client.write(&cancel.to_string()).await;
    let ended = client.answer(first).await;
    assert_eq!(ended["result"]["stopReason"], "cancelled", "{ended}");
}

/// The session is loaded while a turn of another client runs, and loaded again.
#[tokio::test]
async fn a_turn_that_runs_is_shown_and_asked_about_once() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut other, session) = Client::begun(&agent).await;
    let others = other.prompt(&session, "@say Before. @call hold {} @say After.").await;
    other.asked("session/request_permission").await;
    let mut client = Client::of(&agent);
    let load = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    client.ends("session/load", load.clone()).await;
    let asked = client.asked("session/request_permission").await;
    client.ends("session/load", load.clone()).await;
    let withdrawn = client.asked("$/cancel_request").await;
    assert_eq!(withdrawn["params"]["requestId"], asked["id"], "{withdrawn}");
    let again = client.asked("session/request_permission").await;
    assert_eq!(again["params"]["toolCall"], asked["params"]["toolCall"]);
    client.before.clear();
    answered(&mut client, &again, "once").await;
    let ended = other.answer(others).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
    client.ends("session/load", load).await;
    let updates = client.updates();
    let said = texts(&updates, "agent_message_chunk");
    // The third load shows all again, behind what was shown of the turn until then.
    let live = said.strip_suffix("Before.After.").unwrap();
    assert!("After.".starts_with(live), "{said}");
}

/// Stop and close are for what this client sees: they leave another client's turn alone.
#[tokio::test]
async fn a_turn_of_another_client_is_not_cancelled() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut other, session) = Client::begun(&agent).await;
    let mut client = Client::of(&agent);
    let load = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    client.ends("session/load", load.clone()).await;
    let others = other.prompt(&session, "@call hold {} @say Done.").await;
    let asked = other.asked("session/request_permission").await;
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    client.write(&cancel.to_string()).await;
    client.ends("session/load", load).await;
    client.ends("session/close", json!({ "sessionId": session })).await;
    answered(&mut other, &asked, "once").await;
    let ended = other.answer(others).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
}

async fn answered(client: &mut Client, asked: &Value, option: &str) {
    let result = json!({ "outcome": { "outcome": "selected", "optionId": option } });
    client.write(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string()).await;
}

#[tokio::test]
async fn a_call_runs_as_the_client_answers() {
    let (mut client, session) = Client::begun(&agent()).await;
    for (option, status, said) in [("once", "completed", "held"), ("reject", "failed", "denied")] {
        let id = client.prompt(&session, "@call hold {} @say Done.").await;
        let asked = client.asked("session/request_permission").await;
        let params = &asked["params"];
        assert_eq!(params["sessionId"], session.as_str(), "{asked}");
        assert!(params["toolCall"]["content"].to_string().contains("It holds."), "{asked}");
        let kinds: Vec<_> = params["options"].as_array().unwrap().iter().map(|option| &option["optionId"]).collect();
        // Without a rule a call can be allowed once only.
        assert_eq!(kinds, ["once", "reject"], "{asked}");
        answered(&mut client, &asked, option).await;
        let ended = client.answer(id).await;
        assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
        let updates = client.updates();
        let last = updates.iter().rfind(|update| update["sessionUpdate"] == "tool_call_update").unwrap();
        assert_eq!(last["status"], status, "{last}");
        assert!(last["content"].to_string().contains(said), "{last}");
    }
}

/// An answer that decides nothing refuses, so that no turn waits for nothing.
#[tokio::test]
async fn an_answer_that_decides_nothing_refuses() {
    let selected = |option: &str| json!({ "result": { "outcome": { "outcome": "selected", "optionId": option } } });
    for (answer, reason) in [
        (json!({ "error": { "code": -32601, "message": "Method not found" } }), "the editor cannot ask its user"),
        (json!({ "error": { "code": "x" } }), "the editor cannot ask its user"),
        (json!({ "result": { "outcome": { "outcome": "cancelled" } } }), "closed without an answer"),
        (json!({ "result": {} }), "cannot be read"),
        (selected("none"), "was not offered"),
        // It has no rule, so it can be allowed once only.
        (selected("always"), "was not offered"),
    ] {
        let (mut client, session) = Client::begun(&agent()).await;
        let id = client.prompt(&session, "@call hold {} @echo last_result").await;
        let asked = client.asked("session/request_permission").await;
        let mut message = answer.clone();
        (message["jsonrpc"], message["id"]) = (json!("2.0"), asked["id"].clone());
        client.write(&message.to_string()).await;
        let ended = client.answer(id).await;
        assert_eq!(ended["result"]["stopReason"], "end_turn", "{answer}: {ended}");
        let said = texts(&client.updates(), "agent_message_chunk");
        assert!(said.contains(reason), "{answer}: {said}");
    }
}

/// Editors write addresses with escapes; the model's tools want the path.
#[tokio::test]
async fn a_link_is_named_by_its_path() {
    let (mut client, session) = Client::begun(&agent()).await;
    let link = json!({ "type": "resource_link", "name": "f", "uri": "file:///home/a/My%20File%60s.rs" });
    let file = json!({ "uri": "file:///home/a/Its%20text.txt", "text": "A text." });
    let blocks = json!([
        { "type": "text", "text": "@echo blocks @say " }, link, { "type": "resource", "resource": file },
    ]);
    client.ends("session/prompt", json!({ "sessionId": session, "prompt": blocks })).await;
    let said = texts(&client.updates(), "agent_message_chunk");
    assert!(said.contains("`` /home/a/My File`s.rs ``"), "{said}");
    assert!(said.contains("Its text.txt") && !said.contains("%20"), "{said}");
}

#[tokio::test]
async fn a_question_that_is_decided_elsewhere_is_withdrawn() {
    let agent = agent();
    let (mut client, session) = Client::begun(&agent).await;
    let id = client.prompt(&session, "@call hold {} @say Done.").await;
    let asked = client.asked("session/request_permission").await;
    let session_id: SessionId = session.parse().unwrap();
    let call_id = asked["params"]["toolCall"]["toolCallId"].as_str().unwrap();
    let decided = DecideApproval::new(session_id, call_id, Decision::Approve);
    agent.service().decide_approval(decided).await.unwrap();
    let withdrawn = client.asked("$/cancel_request").await;
    assert_eq!(withdrawn["params"]["requestId"], asked["id"], "{withdrawn}");
    let ended = client.answer(id).await;
    assert_eq!(ended["result"]["stopReason"], "end_turn", "{ended}");
}
