//! Calls, answers and refusals, in every way and every revision.

use meerkat_service::{
    AgentBuildConfig, Operation, SessionError,
    service::{PinFact, SessionCreated},
};
use meerkat_surface_mcp::tools::{Offer, Toolset};
use rmcp::{
    ServiceError,
    model::{ProtocolVersion, ReadResourceRequestParams, ResourceContents},
};
use serde_json::{Value, json};

use super::{Client, HOLD, Way, agent, everywhere, line_of, lines, soon};

/// An id that no session has.
const NOBODY: &str = "01900000-0000-7000-8000-000000000001";

/// The JSON of a page of events.
fn encoded(lines: &[String], next_seq: &Value) -> String {
    format!(r#"{{"items":[{}],"next_seq":{next_seq}}}"#, lines.join(","))
}

#[tokio::test]
async fn a_session_is_made_and_run_and_what_goes_wrong_is_the_body() {
    for (way, version) in everywhere() {
        let agent = agent();
        let mut client = Client::connect(&agent, way, &version).await;
        let peer = client.running.peer_info().unwrap();
        assert_eq!((&peer.protocol_version, peer.server_info.as_ref().unwrap().name.as_str()), (&version, "meerkat"));
        let capabilities = serde_json::to_value(&peer.capabilities).unwrap();
        assert_eq!(capabilities, json!({ "tools": {}, "resources": {} }), "{way:?} {version}");
        let tools = client.running.list_all_tools().await.unwrap();
        assert_eq!(tools, meerkat_surface_mcp::tools::all());

        let created = client.answer("session_create", json!({})).await;
        let session: SessionCreated = serde_json::from_value(created).unwrap();
        let id = session.session_id;
        let result = client.answer("turn_start", json!({ "session_id": id, "prompt": "@say 1e2." })).await;
        assert_eq!((&result["status"], &result["text"]), (&json!("completed"), &json!("1e2.")), "{way:?} {version}");

        // The turn's events came before its answer, in order, to the letter.
        let mut progress = Vec::new();
        // The library hands each one on by a task of its own.
        while progress.last().is_none_or(|params| !line_of(params).contains(r#""type":"turn_completed""#)) {
            progress.push(soon(client.progress.recv()).await.unwrap());
        }
        assert!(progress.windows(2).all(|pair| pair[0].progress < pair[1].progress), "{way:?} {version}");
        // For people there are words.
        let words: Vec<&str> = progress.iter().map(|params| params.message.as_deref().unwrap()).collect();
        assert!(words[0].starts_with("turn started with scripted: @say 1e2."), "{words:?}");
        assert!(words.iter().all(|words| !words.contains('{')), "{words:?}");
        let sent: Vec<String> = progress.iter().map(line_of).collect();
        let durable: Vec<&String> = sent.iter().filter(|line| line.contains(r#""seq":"#)).collect();
        let stored = lines(&agent, &session, session.seq).await;
        assert_eq!(durable, stored.iter().collect::<Vec<_>>(), "{way:?} {version}");

        let page = client.answer("session_events", json!({ "session_id": id, "since_seq": 1 })).await;
        assert_eq!(page.to_string(), encoded(&stored, &result["seq"]), "{way:?} {version}");

        let none: Value = json!(SessionError::NotFound(NOBODY.parse().unwrap()).body());
        assert_eq!(client.refusal("turn_start", json!({ "session_id": NOBODY, "prompt": "x" })).await, none);
        let stray = client.refusal("session_pin", json!({ "session_id": id, "fact": "x" })).await;
        assert_eq!(stray["code"], "INVALID_REQUEST");
        let absent = client.refusal("session_list", json!({})).await;
        assert_eq!(absent["code"], "SESSION_PERSISTENCE_DISABLED");
        for name in ["forget_memory", "start_turn", ""] {
            let Err(ServiceError::McpError(error)) = client.call(name, json!({})).await else {
                panic!("{name:?} is no tool");
            };
            let data = error.data.unwrap();
            assert_eq!((error.code.0, &data["code"]), (-32602, &json!("UNKNOWN_OPERATION")), "{way:?} {version}");
            assert_eq!(data["details"]["operation"], name);
        }
    }
}

#[tokio::test]
async fn a_long_poll_waits_for_the_first_event_beside_other_calls() {
    for (way, version) in everywhere() {
        let agent = agent();
        let client = Client::connect(&agent, way, &version).await;
        let session = agent.create_session().await.unwrap();
        let id = session.session_id;
        let poll = client.begin("session_events", json!({ "session_id": id, "since_seq": 1, "wait_ms": 60_000 })).await;
        // The poll, which was sent before, blocks no other call.
        assert_eq!(client.answer("session_pins", json!({ "session_id": id })).await["items"], json!([]));
        let pin = PinFact { session_id: id, text: "x".to_owned() };
        agent.service().pin(pin).await.unwrap();
        let page = serde_json::to_value(poll.await_response().await.unwrap()).unwrap();
        let expected = encoded(&lines(&agent, &session, 1).await, &json!(2));
        assert_eq!(page["structuredContent"].to_string(), expected, "{way:?} {version}");
    }
}

#[tokio::test]
async fn a_session_is_a_resource_of_its_lines() {
    for (way, version) in everywhere() {
        let agent = agent();
        let client = Client::connect(&agent, way, &version).await;
        let session = agent.create_session().await.unwrap();
        agent.turn(&session, "@say Hello.").await.unwrap();
        assert_eq!(client.running.list_all_resources().await.unwrap(), []);
        let templates = client.running.list_all_resource_templates().await.unwrap();
        assert_eq!(templates[0].uri_template, "meerkat://sessions/{session_id}{?since_seq}");

        let root = format!("meerkat://sessions/{}", session.session_id);
        for (uri, since_seq) in [(root.clone(), 0), (format!("{root}?since_seq=2"), 2)] {
            let read = client.running.read_resource(ReadResourceRequestParams::new(&uri)).await.unwrap();
            let expected: String =
                lines(&agent, &session, since_seq).await.into_iter().map(|line| line + "\n").collect();
            assert_eq!(read.contents, [ResourceContents::text(expected, &uri).with_mime_type("application/jsonl")]);
        }
        let missing = if version >= ProtocolVersion::V_2026_07_28 { -32602 } else { -32002 };
        let refusals = [
            (format!("meerkat://sessions/{NOBODY}"), missing, "SESSION_NOT_FOUND"),
            (
                format!("{root}?since_seq=99"),
                SessionError::CursorOutOfRange { oldest_seq: 1, last_seq: 4 }.code().rpc_code(),
                "CURSOR_OUT_OF_RANGE",
            ),
            ("meerkat://sessions/../x".to_owned(), -32602, "INVALID_REQUEST"),
            (format!("{root}?limit=1"), -32602, "INVALID_REQUEST"),
            ("file:///etc/hosts".to_owned(), -32602, "INVALID_REQUEST"),
        ];
        for (uri, number, code) in refusals {
            let Err(ServiceError::McpError(error)) =
                client.running.read_resource(ReadResourceRequestParams::new(&uri)).await
            else {
                panic!("{uri} cannot be read");
            };
            let data = error.data.unwrap();
            assert_eq!((error.code.0, &data["code"]), (number, &json!(code)), "{way:?} {version} {uri}");
            assert_eq!(data["uri"], uri, "{way:?} {version}");
        }
    }
}

#[tokio::test]
async fn the_list_of_sessions_is_a_resource_that_goes_on_by_its_cursor() {
    let dir = meerkat_testkit::folder();
    let agent = AgentBuildConfig::new().store(dir.path().to_owned()).build().unwrap();
    let (way, version) = everywhere().next().unwrap();
    let client = Client::connect(&agent, way, &version).await;
    let first = agent.create_session().await.unwrap().session_id;
    let read = async |uri: &str| {
        let read = client.running.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap();
        let contents = serde_json::to_value(&read.contents[0]).unwrap();
        assert_eq!((&contents["mimeType"], &contents["uri"]), (&json!("application/json"), &json!(uri)));
        serde_json::from_str::<Value>(contents["text"].as_str().unwrap()).unwrap()
    };
    let whole = read("meerkat://sessions").await;
    assert_eq!((&whole["restarts"], &whole["items"][0]["session_id"]), (&json!(true), &json!(first)));
    let second = agent.create_session().await.unwrap().session_id;
    let next = read(&format!("meerkat://sessions?cursor={}", whole["next_cursor"].as_str().unwrap())).await;
    assert_eq!((&next["restarts"], next["items"].as_array().unwrap().len()), (&json!(false), 1));
    assert_eq!(next["items"][0]["session"]["session_id"], json!(second));
    let templates = client.running.list_all_resource_templates().await.unwrap();
    assert_eq!(templates[1].uri_template, "meerkat://sessions{?cursor}");
    for wrong in ["meerkat://sessions?cursor=x", "meerkat://sessions?limit=1"] {
        assert!(client.running.read_resource(ReadResourceRequestParams::new(wrong)).await.is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_client_that_left_before_it_began_is_no_error() {
    let agent = agent();
    let client = Client::connect(&agent, Way::Streams, &ProtocolVersion::V_2025_11_25).await;
    client.running.cancel().await.unwrap();
    client.server.unwrap().await.unwrap().unwrap();
    let nothing = (tokio::io::empty(), tokio::io::sink());
    meerkat_surface_mcp::serve_io(agent.service().clone(), Offer::ALL, nothing, 1, Default::default()).await.unwrap();
}

#[tokio::test]
async fn events_are_objects_and_what_no_tree_holds_is_told_as_it_is_written() {
    let dir = meerkat_testkit::folder();
    let agent = super::build().store(dir.path().to_owned()).build().unwrap();
    let client = Client::connect(&agent, Way::Streams, &ProtocolVersion::V_2025_11_25).await;
    let session = agent.create_session().await.unwrap();
    let arguments = r#"{"z":1.8000000715255737,"a":-0.0,"list":[1E400,"\ud800",5e-324],"n":18446744073709551615}"#;
    agent.turn(&session, &format!("@call nobody {arguments} @step @say Done.")).await.unwrap();
    let named = json!({ "session_id": session.session_id });
    for tool in ["session_events", "session_history"] {
        let result = client.call(tool, named.clone()).await.unwrap();
        assert_ne!(result.is_error, Some(true), "{tool}: {result:?}");
        let tree = result.structured_content.unwrap();
        let text = &result.content[0].as_text().unwrap().text;
        assert!(text.contains(arguments), "{text}");
        let told =
            r#"{"z":1.8000000715255737,"a":-0.0,"list":["1E400","\"\\ud800\"",5e-324],"n":18446744073709551615}"#;
        assert!(tree.to_string().contains(told), "{tree}");
        assert!(tree["items"].as_array().unwrap().iter().all(Value::is_object));
    }
}

#[tokio::test]
async fn a_client_has_the_tools_that_it_was_offered_and_no_other() {
    let agent = agent();
    for (set, approve) in [(Toolset::Core, false), (Toolset::Core, true), (Toolset::All, false)] {
        let offer = Offer { set, approve };
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (service, streams) = (agent.service().clone(), tokio::io::split(far));
        tokio::spawn(async move {
            meerkat_surface_mcp::serve_io(service, offer, streams, 1 << 20, Default::default()).await
        });
        let client = rmcp::serve_client((), near).await.unwrap();
        let tools = client.list_all_tools().await.unwrap();
        // A model that may not approve its calls may not allow them beforehand either.
        let takes_rules = |tool: &rmcp::model::Tool| {
            tool.input_schema.get("properties").is_some_and(|members| members.get("allow").is_some())
        };
        assert_eq!(tools.iter().any(takes_rules), approve);
        let session = agent.create_session().await.unwrap();
        let turn = json!({ "session_id": session.session_id, "prompt": HOLD, "allow": ["hold"] });
        let turn =
            rmcp::model::CallToolRequestParams::new("turn_start").with_arguments(turn.as_object().unwrap().clone());
        let answer = client.call_tool(turn).await.unwrap();
        let (text, is_error) = (format!("{answer:?}"), answer.is_error == Some(true));
        assert_eq!((is_error, text.contains("without `--approve`")), (!approve, !approve), "{text}");
        let names: Vec<String> = tools.into_iter().map(|tool| tool.name.into()).collect();
        let core = [
            "session_create",
            "turn_start",
            "session_resume",
            "session_list",
            "session_history",
            "search_project_history",
        ];
        match set {
            Toolset::Core => assert!(
                core.iter().all(|name| names.iter().any(|it| it == name))
                    && names.len() == core.len() + usize::from(approve),
                "{names:?}"
            ),
            Toolset::All => assert_eq!(names.len(), meerkat_surface_mcp::tools::all().len() - 1),
        }
        assert_eq!(names.iter().any(|name| name == "turn_approve"), approve);
        let call = rmcp::model::CallToolRequestParams::new("turn_approve").with_arguments(serde_json::Map::new());
        let answer = client.call_tool(call).await;
        assert_eq!(matches!(answer, Err(ServiceError::McpError(_))), !approve, "{answer:?}");
        assert_eq!(offer.has(Operation::DecideApproval), approve);
    }
}
