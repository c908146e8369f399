//! What a client may set of a session: its mode, its model, and how long that thinks.

use meerkat_service::{
    service::StartTurn,
    tool::{Access, TurnAccess},
};
use meerkat_surface_acp::AcpOptions;
use serde_json::{Value, json};

use super::{Client, agent, options, prompt, stored, texts};

/// A call that may change something, and runs without a question.
const CHANGE: &str = "@call change {} @echo last_result";

fn with(access: Access, has_full: bool) -> AcpOptions {
    AcpOptions { access, has_full, ..options() }
}

fn current<'a>(options: &'a Value, id: &str) -> &'a Value {
    let all = options["configOptions"].as_array().unwrap();
    &all.iter().find(|option| option["id"] == id).unwrap_or_else(|| panic!("no {id}: {options}"))["currentValue"]
}

async fn refused(client: &mut Client, method: &str, params: Value, field: &str) {
    let id = client.ask(method, params).await;
    let refused = client.answer(id).await;
    assert_eq!(refused["error"]["data"]["code"], "INVALID_REQUEST", "{refused}");
    assert_eq!(refused["error"]["data"]["details"]["field"], field, "{refused}");
}

#[tokio::test]
async fn the_modes_are_those_that_the_configuration_allows() {
    for (access, has_full, expected, other) in [
        (Access::Read, true, &["read"][..], "edit"),
        (Access::Write, false, &["read", "edit"], "full"),
        (Access::Write, true, &["read", "edit", "full"], "all"),
    ] {
        let mut client = Client::with(&agent(), with(access, has_full));
        let opened = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
        let modes = opened["modes"]["availableModes"].as_array().unwrap();
        let ids: Vec<&str> = modes.iter().map(|mode| mode["id"].as_str().unwrap()).collect();
        assert_eq!(ids, expected, "{access:?} {has_full}");
        // A new session has the last one, which is the configuration's.
        assert_eq!(opened["modes"]["currentModeId"], *expected.last().unwrap());
        assert_eq!(current(&opened, "mode"), expected.last().unwrap());
        let session = &opened["sessionId"];
        refused(&mut client, "session/set_mode", json!({ "sessionId": session, "modeId": other }), "modeId").await;
        let option = json!({ "sessionId": session, "configId": "mode", "value": other });
        refused(&mut client, "session/set_config_option", option, "value").await;
    }
    let mut client = Client::with(&agent(), with(Access::Off, false));
    let opened = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
    assert!(opened.get("modes").is_none(), "{opened}");
    assert!(!opened["configOptions"].to_string().contains(r#""mode""#), "{opened}");
}

/// The tool asks nothing, as with `tools.ask = "never"`: each mode but the last one does less.
#[tokio::test]
async fn a_mode_goes_with_the_next_turn() {
    let mut client = Client::with(&agent(), with(Access::Write, true));
    let session = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await["sessionId"].clone();
    let session = session.as_str().unwrap();
    client.ends("session/prompt", prompt(session, CHANGE)).await;
    assert!(texts(&client.updates(), "agent_message_chunk").contains("changed"));

    // A client that knows modes alone, and one that knows options alone, hear of each other's way.
    assert_eq!(client.ends("session/set_mode", json!({ "sessionId": session, "modeId": "read" })).await, json!({}));
    let update = client.asked("session/update").await["params"]["update"].clone();
    assert_eq!((&update["sessionUpdate"], current(&update, "mode")), (&json!("config_option_update"), &json!("read")));
    client.ends("session/prompt", prompt(session, CHANGE)).await;
    let said = texts(&client.updates(), "agent_message_chunk");
    assert!(said.contains("This turn may change nothing"), "{said}");

    let edit = json!({ "sessionId": session, "configId": "mode", "value": "edit" });
    assert_eq!(current(&client.ends("session/set_config_option", edit.clone()).await, "mode"), "edit");
    let update = client.asked("session/update").await["params"]["update"].clone();
    assert_eq!(update, json!({ "sessionUpdate": "current_mode_update", "currentModeId": "edit" }));
    // Nothing is changed, so nothing is said: behind the answer comes that of the next request.
    client.ends("session/set_config_option", edit).await;
    let low = json!({ "sessionId": session, "configId": "effort", "value": "low" });
    client.ends("session/set_config_option", low).await;
    assert_eq!(client.updates(), [] as [Value; 0]);
    let id = client.prompt(session, CHANGE).await;
    let asked = client.asked("session/request_permission").await;
    let result = json!({ "outcome": { "outcome": "selected", "optionId": "once" } });
    client.write(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string()).await;
    client.answer(id).await;
    assert!(texts(&client.updates(), "agent_message_chunk").contains("changed"));
}

/// The tool asks nothing, as at an owner with `tools.ask = "never"`: the mode of this client holds there too.
#[tokio::test]
async fn the_mode_that_is_shown_is_that_of_the_turn() {
    let mut client = Client::with(&agent(), with(Access::Read, true));
    let session = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await["sessionId"].clone();
    client.ends("session/prompt", prompt(session.as_str().unwrap(), CHANGE)).await;
    let said = texts(&client.updates(), "agent_message_chunk");
    assert!(said.contains("This turn may change nothing"), "{said}");

    // Tools of servers do not go by the access, so without any mode they ask, too.
    for access in [Access::Write, Access::Off] {
        let mut client = Client::with(&agent(), with(access, false));
        let session = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await["sessionId"].clone();
        let id = client.prompt(session.as_str().unwrap(), CHANGE).await;
        let asked = client.asked("session/request_permission").await;
        let result = json!({ "outcome": { "outcome": "selected", "optionId": "reject" } });
        client.write(&json!({ "jsonrpc": "2.0", "id": asked["id"], "result": result }).to_string()).await;
        client.answer(id).await;
        assert!(!texts(&client.updates(), "agent_message_chunk").contains("changed"), "{access:?}");
    }
}

#[tokio::test]
async fn a_loaded_session_has_what_its_newest_turn_had() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut client, session) = Client::begun(&agent).await;
    client.ends("session/set_mode", json!({ "sessionId": session, "modeId": "read" })).await;
    for (option, value) in [("effort", "low"), ("model", "other")] {
        let set = json!({ "sessionId": session, "configId": option, "value": value });
        assert_eq!(current(&client.ends("session/set_config_option", set).await, option), value);
    }
    client.ends("session/prompt", prompt(&session, "@echo options")).await;
    let said = texts(&client.updates(), "agent_message_chunk");
    assert!(said.contains(r#""effort":"low""#), "{said}");
    let mut client = Client::of(&agent);
    for method in ["session/load", "session/resume"] {
        let loaded = client.ends(method, json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] })).await;
        for (option, value) in [("effort", "low"), ("model", "other"), ("mode", "read")] {
            assert_eq!(current(&loaded, option), value, "{method}");
        }
        assert_eq!(loaded["modes"]["currentModeId"], "read", "{method}");
    }
    client.ends("session/prompt", prompt(&session, CHANGE)).await;
    assert!(texts(&client.updates(), "agent_message_chunk").contains("This turn may change nothing"));
}

/// What was set here and not used yet is not lost when the same client opens the session again.
#[tokio::test]
async fn a_session_that_is_opened_again_keeps_what_was_set() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut client, session) = Client::begun(&agent).await;
    client.ends("session/prompt", prompt(&session, "@say First.")).await;
    client.ends("session/set_mode", json!({ "sessionId": session, "modeId": "read" })).await;
    let low = json!({ "sessionId": session, "configId": "effort", "value": "low" });
    client.ends("session/set_config_option", low).await;
    let again = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    for method in ["session/load", "session/resume"] {
        let opened = client.ends(method, again.clone()).await;
        assert_eq!((current(&opened, "mode"), current(&opened, "effort")), (&json!("read"), &json!("low")), "{method}");
    }
    client.before.clear();
    client.ends("session/prompt", prompt(&session, CHANGE)).await;
    let said = texts(&client.updates(), "agent_message_chunk");
    assert!(said.contains("This turn may change nothing"), "{said}");
    // A session that was closed is as its newest turn was.
    client.ends("session/set_mode", json!({ "sessionId": session, "modeId": "edit" })).await;
    client.ends("session/close", json!({ "sessionId": session })).await;
    let opened = client.ends("session/load", again).await;
    assert_eq!(current(&opened, "mode"), "read", "{opened}");
}

/// Another program's turn had another mode meanwhile.
#[tokio::test]
async fn a_session_that_is_opened_again_has_what_its_newest_turn_had_if_nothing_was_set_since() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let (mut client, session) = Client::begun(&agent).await;
    client.ends("session/set_mode", json!({ "sessionId": session, "modeId": "edit" })).await;
    client.ends("session/prompt", prompt(&session, "@say First.")).await;
    let session_id = session.parse().unwrap();
    let turn = StartTurn { access: Some(TurnAccess::Read), ..StartTurn::new(session_id, "@say Second.") };
    agent.service().start_turn(turn).await.unwrap();
    let again = json!({ "sessionId": session, "cwd": "/w", "mcpServers": [] });
    let opened = client.ends("session/load", again).await;
    assert_eq!(current(&opened, "mode"), "read", "{opened}");
    client.ends("session/prompt", prompt(&session, CHANGE)).await;
    assert!(texts(&client.updates(), "agent_message_chunk").contains("This turn may change nothing"));
}

/// The session's own model is what its service says, also if the client's list begins with another one.
#[tokio::test]
async fn a_new_session_shows_its_own_model() {
    let folder = meerkat_testkit::folder();
    let models = vec!["other".to_owned(), "scripted".to_owned()];
    let mut client = Client::with(&stored(folder.path()), AcpOptions { models, ..options() });
    let opened = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
    assert_eq!(current(&opened, "model"), "scripted", "{opened}");
}

#[tokio::test]
async fn a_model_is_chosen_among_those_that_there_are() {
    let (mut client, session) = Client::begun(&agent()).await;
    let set = |value: &str| json!({ "sessionId": session, "configId": "model", "value": value });
    refused(&mut client, "session/set_config_option", set("none"), "value").await;
    let options = client.ends("session/set_config_option", set("other")).await;
    let model = options["configOptions"].as_array().unwrap().iter().find(|option| option["id"] == "model").unwrap();
    let values: Vec<_> =
        model["options"].as_array().unwrap().iter().map(|value| value["value"].as_str().unwrap()).collect();
    assert_eq!((model["category"].as_str(), values), (Some("model"), vec!["scripted", "other"]), "{model}");
    client.ends("session/set_config_option", set("scripted")).await;
    let unknown = json!({ "sessionId": session, "configId": "speed", "value": "x" });
    refused(&mut client, "session/set_config_option", unknown, "configId").await;
    let mut client = Client::with(&agent(), AcpOptions { models: Vec::new(), ..super::options() });
    let opened = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
    assert!(!opened["configOptions"].to_string().contains("model\""), "{opened}");
}

#[tokio::test]
async fn the_context_is_compacted_on_command() {
    let folder = meerkat_testkit::folder();
    let agent = stored(folder.path());
    let mut client = Client::of(&agent);
    let opened = client.ends("session/new", json!({ "cwd": "/w", "mcpServers": [] })).await;
    let session = opened["sessionId"].as_str().unwrap();
    let commands = client.asked("session/update").await["params"]["update"].clone();
    assert_eq!(commands["availableCommands"][0]["name"], "compact", "{commands}");
    for _ in 0..6 {
        client.ends("session/prompt", prompt(session, "@long 4000")).await;
    }
    client.before.clear();
    let ended = client.ends("session/prompt", prompt(session, " /compact ")).await;
    assert_eq!(ended["stopReason"], "end_turn", "{ended}");
    assert!(texts(&client.updates(), "agent_message_chunk").contains("compacted"));
    let session_id = session.parse().unwrap();
    let view = agent.service().read(&session_id).await.unwrap();
    assert_eq!(view.turn_count, 6, "the command is no turn");
    assert!(view.context.messages < view.message_count, "{view:?}");
}
