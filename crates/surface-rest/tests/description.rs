//! The description is the committed one, and agrees with the table.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use crate::common::Server;
use meerkat_service::{
    Operation,
    session::event::EventKind,
    wire::{answer_schema, request_schema},
};
use meerkat_surface_rest::table;
use serde_json::{Value, json};

async fn described() -> (String, Value) {
    let answer = Server::start().send("GET /openapi.json", "").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    (String::from_utf8(answer.body.clone()).unwrap(), answer.json())
}

#[tokio::test]
async fn the_committed_description_is_the_one_that_is_served() {
    let (text, _) = described().await;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os("MEERKAT_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, &text).unwrap();
    }
    let committed = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "docs/openapi.json is stale: run `MEERKAT_BLESS=1 cargo test -p meerkat-surface-rest` and commit it"
    );
}

#[tokio::test]
async fn every_route_is_described_and_every_reference_leads_somewhere() {
    let (text, document) = described().await;
    for route in table() {
        let operation = &document["paths"][route.full_path()][route.method.as_str().to_ascii_lowercase()];
        let id = operation["operationId"].as_str().unwrap();
        // Spelt as on the other surfaces.
        let is_spelt = id.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_') && id.contains('_');
        assert!(is_spelt && operation["tags"][0] == id.split('_').next().unwrap(), "{id}");
        let is_its_own = operation["summary"] == route.operation.summary();
        assert!(is_its_own || route.switch.is_some_and(|(_, value)| value), "{id}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(status.starts_with('2') || response["$ref"].is_string(), "{id} {status}");
        }
    }
    // Probes send no token, and a server that settles its sessions answers without a code.
    let readiness = &document["paths"]["/readyz"]["get"]["responses"];
    let statuses: Vec<&String> = readiness.as_object().unwrap().keys().collect();
    assert_eq!(statuses, ["200", "400", "403", "413", "429", "500", "503", "507"]);
    let not_ready = &readiness["503"]["content"]["application/json"]["schema"]["anyOf"];
    assert_eq!(not_ready[0]["properties"]["state"]["const"], "settling");
    let references: BTreeSet<&str> =
        text.split(r##""$ref": "#"##).skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
    assert!(references.len() > 40);
    for reference in references {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
    let turn = &document["paths"]["/v1/sessions/{session_id}/turns"]["post"];
    let schema = |status: &str| &turn["responses"][status]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(schema("200"), "#/components/schemas/TurnResult");
    assert_eq!(schema("202"), "#/components/schemas/TurnAccepted");
}

#[test]
fn a_shape_has_one_name_and_a_name_one_shape() {
    let mut shapes: BTreeMap<String, Value> = BTreeMap::new();
    for &operation in Operation::ALL {
        for schema in [request_schema(operation), answer_schema(operation)] {
            for (name, shape) in schema.to_value()["$defs"].as_object().into_iter().flatten() {
                let known = shapes.entry(name.clone()).or_insert_with(|| shape.clone());
                assert_eq!(known, shape, "{name}, of {}", operation.name());
            }
        }
    }
}

/// The description forbids what every configuration refuses.
#[tokio::test]
async fn the_description_forbids_what_is_always_refused() {
    let (_, document) = described().await;
    let parameter = |path: &str, name: &str| {
        let parameters = document["paths"][path]["get"]["parameters"].as_array().unwrap();
        parameters.iter().find(|parameter| parameter["name"] == name).unwrap()["schema"].clone()
    };
    let query = parameter("/v1/memory/search", "query");
    assert!(query["pattern"].as_str().unwrap().starts_with("[^") && query["maxLength"] == 16 * 1024, "{query}");
    assert_eq!(parameter("/v1/memory/search", "limit")["maximum"], 100);
    assert_eq!(parameter("/v1/memory/search", "role")["enum"], json!(["user", "assistant", "tool_results"]));
    let compaction = &document["components"]["schemas"]["CompactionConfig"]["properties"];
    for field in ["auto_compact_threshold", "recent_turn_budget", "max_summary_tokens", "min_turns_between_compactions"]
    {
        assert_eq!(compaction[field]["minimum"], 1, "{field}");
    }
    assert_eq!(compaction["max_summary_tokens"]["maximum"], 16_384);
    // Without a session there is a source, and there are no seqs.
    let forget =
        &document["paths"]["/v1/memory/forget"]["post"]["requestBody"]["content"]["application/json"]["schema"];
    let forgets = &document["paths"]["/v1/memory/forget"]["post"];
    assert!(forgets["requestBody"]["required"] == true && forgets["responses"]["404"].is_object());
    assert_eq!(forget["if"]["required"], json!(["session_id"]));
    assert_eq!(forget["else"]["required"], json!(["source"]));
    assert_eq!(forget["else"]["properties"]["from_seq"]["type"], "null");
}

/// A stream has the type of its events' data, and nothing is undeclared, unused or without words and an example.
#[tokio::test]
async fn streams_are_typed_and_every_operation_has_its_words_and_an_example() {
    let (text, document) = described().await;
    let schema = |path: &str, method: &str| {
        document["paths"][path][method]["responses"]["200"]["content"]["text/event-stream"]["schema"].clone()
    };
    for (path, method, name) in [
        ("/v1/sessions/{session_id}/events", "get", "SessionStreamData"),
        ("/v1/sessions/{session_id}/turns", "post", "TurnStreamData"),
        ("/v1/sessions/{session_id}/resume", "post", "TurnStreamData"),
        ("/v1/sessions", "get", "ListStreamData"),
        ("/v1/session-changes", "get", "ListStreamData"),
    ] {
        assert_eq!(schema(path, method), json!({ "$ref": format!("#/components/schemas/{name}") }), "{path}");
    }
    let turn = document["components"]["schemas"]["TurnStreamData"]["anyOf"].to_string();
    for name in ["Event", "LiveEvent", "TurnResult", "ErrorBody"] {
        assert!(turn.contains(&format!("#/components/schemas/{name}\"")), "{name}: {turn}");
    }
    for (kind, members) in [("schemas", 40), ("responses", 20)] {
        let components = document["components"][kind].as_object().unwrap();
        assert!(components.len() > members);
        for name in components.keys() {
            assert!(text.contains(&format!("\"#/components/{kind}/{name}\"")), "nothing refers to {kind}/{name}");
        }
    }
    let declared: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    let mut used = BTreeSet::new();
    for operation in document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values())
    {
        let id = operation["operationId"].as_str().unwrap();
        used.insert(operation["tags"][0].as_str().unwrap());
        assert!(operation["description"].as_str().is_some_and(|words| words.len() > 10), "{id}");
        let body = &operation["requestBody"]["content"]["application/json"];
        assert!(body.is_null() || body["example"].is_object(), "{id}");
    }
    assert_eq!(used, declared);
    let example = &document["components"]["schemas"]["TurnCompletedEvent"]["examples"][0];
    assert_eq!(example["type"], "turn_completed");
}

/// An example that is refused would be copied by everybody.
#[tokio::test]
async fn the_server_takes_every_example_of_a_body() {
    let (_, document) = described().await;
    let server = Server::start();
    let session = server.session().await;
    let mut sent = 0;
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let body = &operation["requestBody"]["content"]["application/json"]["example"];
            if body.is_null() {
                continue;
            }
            let filled = [
                ("{session_id}", session.as_str()),
                ("{kind}", "custom:note"),
                ("{reader}", "audit"),
                ("{call_id}", "c1"),
                ("{turn}", "1"),
            ];
            let place = filled.iter().fold(path.clone(), |place, (name, value)| place.replace(name, value));
            let answer = server.send(&format!("{} {place}", method.to_uppercase()), body.to_string()).await;
            let said = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(answer.status != 400 && answer.status != 422, "{method} {place}: {said}");
            sent += 1;
        }
    }
    assert!(sent > 10, "{sent} bodies have an example");
}

/// The document has nothing that generators of clients cannot read.
#[tokio::test]
async fn generators_can_read_every_schema() {
    fn check(node: &Value, place: &str) {
        match node {
            Value::Object(members) => {
                let format = members.get("format").and_then(Value::as_str).unwrap_or_default();
                assert!(!format.starts_with("uint"), "{place} has the format {format}");
                assert!(
                    !members.contains_key("prefixItems") || members["items"].is_object(),
                    "{place} bounds no items"
                );
                for (name, schema) in members.get("properties").and_then(Value::as_object).into_iter().flatten() {
                    assert!(!schema.is_boolean(), "{place}/{name} is a boolean schema");
                }
                members.iter().for_each(|(name, member)| check(member, &format!("{place}/{name}")));
            }
            Value::Array(items) => items.iter().for_each(|item| check(item, place)),
            _ => {}
        }
    }
    let (_, document) = described().await;
    check(&document, "");
    let mut ids = BTreeSet::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{method} {path}");
            assert!(operation["summary"].is_string() && operation["tags"].is_array(), "{method} {path}");
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                assert!(parameter["schema"]["oneOf"].is_null(), "{method} {path} {parameter}");
            }
        }
    }
    assert!(document["servers"][0]["url"].is_string() && ids.contains("session_list"));
    // A program that follows a session gets a type of each kind.
    let schemas = &document["components"]["schemas"];
    let events = &schemas["Event"];
    assert_eq!(events["discriminator"]["mapping"]["turn_completed"], "#/components/schemas/TurnCompletedEvent");
    assert_eq!(schemas["TurnCompletedEvent"]["properties"]["type"], json!({ "const": "turn_completed" }));
    assert_eq!(
        events["oneOf"].as_array().unwrap().len() + schemas["LiveEvent"]["oneOf"].as_array().unwrap().len(),
        EventKind::ALL.len()
    );
}
