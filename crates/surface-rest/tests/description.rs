//! The description is the committed one, and says of every route what the table says.

#![allow(clippy::unwrap_used, reason = "a test that meets an impossible value stops there")]

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use common::Server;
use meerkat_service::{
    Operation,
    wire::{answer_schema, request_schema},
};
use meerkat_surface_rest::table;
use serde_json::Value;

async fn described() -> (String, Value) {
    let answer = Server::start().await.send("GET /openapi.json", "").await;
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
        assert!(id == route.operation.name() || route.switch.is_some_and(|(_, value)| value), "{id}");
        for (status, response) in operation["responses"].as_object().unwrap() {
            assert!(status.starts_with('2') || response["$ref"].is_string(), "{id} {status}");
        }
    }
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
