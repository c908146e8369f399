//! Sessions that a client opens, and what it may set of them.

use meerkat_service::AgentBuildConfig;
use serde_json::{Value, json};

use super::{Client, agent, prompt, texts};

/// What a person sees, without the pieces that it came in.
fn seen(updates: &[Value]) -> Vec<(String, String)> {
    let mut seen: Vec<(String, String)> = Vec::new();
    for update in updates {
        let kind = update["sessionUpdate"].as_str().unwrap();
        let text = match kind {
            "usage_update" => continue,
            "tool_call" | "tool_call_update" => update.to_string(),
            _ => update["content"]["text"].as_str().unwrap().to_owned(),
        };
        match seen.last_mut() {
            Some((last, before)) if last == kind && kind.ends_with("_chunk") => before.push_str(&text),
            _ => seen.push((kind.to_owned(), text)),
        }
    }
    seen
}

#[tokio::test]
async fn a_session_is_loaded_as_it_was_shown() {
    let folder = meerkat_testkit::folder();
    // The last answer is too long for an event.
    let scripts = ["@think Hm. @say One.", "@say Calls. @call none {} @say Two.", "@long 300000"];
    let (session, shown) = {
        let agent = AgentBuildConfig::new().store(folder.path().to_owned()).build().unwrap();
        let (mut client, session) = Client::begun(&agent).await;
        for script in scripts {
            client.ends("session/prompt", prompt(&session, script)).await;
        }
        let shown = seen(&client.updates());
        drop(client.writer);
        super::soon(client.server).await.unwrap().unwrap();
        agent.service().shut_down(0).await;
        (session, shown)
    };
    let agent = AgentBuildConfig::new().store(folder.path().to_owned()).build().unwrap();
    let mut client = Client::of(&agent);
    client.ends("session/load", json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] })).await;
    let (prompts, rest): (Vec<_>, Vec<_>) =
        client.updates().into_iter().partition(|update| update["sessionUpdate"] == "user_message_chunk");
    assert_eq!(seen(&rest), shown);
    let prompts: Vec<_> = prompts.iter().map(|prompt| prompt["content"]["text"].as_str().unwrap()).collect();
    assert_eq!(prompts, scripts);
    // Opened without what was said, it shows nothing.
    client.ends("session/resume", json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] })).await;
    assert_eq!(seen(&client.updates()), []);
    let listed = client.ends("session/list", json!({})).await;
    assert_eq!(listed["sessions"][0]["sessionId"], session.as_str(), "{listed}");
    client.ends("session/delete", json!({ "sessionId": session })).await;
    assert_eq!(client.ends("session/list", json!({})).await["sessions"], json!([]));
}

#[tokio::test]
async fn a_session_that_is_not_open_takes_no_prompt() {
    let (mut client, session) = Client::begun(&agent()).await;
    client.ends("session/close", json!({ "sessionId": session })).await;
    let id = client.prompt(&session, "@say No.").await;
    let refused = client.answer(id).await;
    assert_eq!(refused["error"]["data"]["code"], "INVALID_REQUEST", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("load or resume"), "{refused}");
}

#[tokio::test]
async fn an_option_goes_with_the_next_turn() {
    let (mut client, session) = Client::begun(&agent()).await;
    let set = |value: &str| json!({ "sessionId": session, "configId": "effort", "value": value });
    let options = client.ends("session/set_config_option", set("low")).await;
    assert_eq!(options["configOptions"][0]["currentValue"], "low", "{options}");
    client.ends("session/prompt", prompt(&session, "@echo options")).await;
    let said = texts(&client.updates(), "agent_message_chunk");
    assert!(said.contains(r#""effort":"low""#), "{said}");
    let id = client.ask("session/set_config_option", set("endless")).await;
    let refused = client.answer(id).await;
    assert_eq!(refused["error"]["data"]["code"], "INVALID_REQUEST", "{refused}");
}

#[tokio::test]
async fn what_is_left_out_is_said() {
    let mut client = Client::of(&agent());
    let notices = json!({ "session": { "notices": {} } });
    client.ends("initialize", json!({ "protocolVersion": 1, "clientCapabilities": notices })).await;
    let server = json!({ "name": "s", "command": "/bin/s", "args": [], "env": [] });
    client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [server] })).await;
    let notice = client.asked("session/update").await;
    assert_eq!(notice["params"]["update"]["sessionUpdate"], "notice", "{notice}");
    for params in [json!({ "cwd": "w", "mcpServers": [] }), json!({ "mcpServers": [] })] {
        let id = client.ask("session/new", params).await;
        let refused = client.answer(id).await;
        assert_eq!(refused["error"]["data"]["code"], "INVALID_REQUEST", "{refused}");
    }
    client.stop.cancel();
    super::soon(client.server).await.unwrap().unwrap();
}
