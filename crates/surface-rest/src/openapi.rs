//! The description of the routes as OpenAPI 3.1, generated from the table, the types and the error table.
//!
//! Nothing depends on it. The committed copy is `docs/openapi.json`.

use std::{collections::BTreeMap, sync::LazyLock};

use meerkat_errors::{ErrorBody, ErrorCode};
use meerkat_service::{
    Capability, Operation,
    operation::OperationEffect,
    options::Limits,
    session::event::EventKind,
    wire::{answer_schema, event_schema, request_schema},
};
use schemars::{
    Schema,
    generate::SchemaSettings,
    transform::{RecursiveTransform, Transform as _},
};
use serde_json::{Map, Value, json};

use crate::{
    metrics,
    routes::{Route, table},
};

/// Pattern of a key in a header.
const KEY: &str = "^[ -~]*[!-~][ -~]*$";
/// Pattern of a label's name in the brackets of a query.
const QUERY_LABEL_NAME: &str = r"^(?!.*\]\[)[^\u0000-\u001f\u007f-\u009f]+$";

/// The document.
pub(crate) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let mut document = Document::default().whole();
        // Whether a value tree keeps the order of insertion depends on the build.
        document.sort_all_objects();
        format!("{document:#}\n")
    });
    &TEXT
}

#[derive(Default)]
struct Document {
    /// Shapes with names.
    schemas: Map<String, Value>,
    /// Responses of refusals.
    refusals: Map<String, Value>,
}

impl Document {
    fn whole(mut self) -> Value {
        let body = SchemaSettings::default().into_generator().into_root_schema_for::<ErrorBody>();
        let body = self.adopt(body);
        self.schemas.insert("ErrorBody".to_owned(), body);
        self.add_events();
        let mut paths = Map::new();
        for route in table().iter().filter(|route| route.is_first()) {
            let path = paths.entry(route.full_path()).or_insert_with(|| json!({}));
            path[route.method.as_str().to_ascii_lowercase()] = self.operation(route);
        }
        self.add_streams();
        let state = |state: &str| json!({ "type": "object", "properties": { "state": { "const": state } }, "required": ["state"] });
        let plain = [
            ("healthz", "application/json", state("ok"), "Says whether the process answers."),
            ("readyz", "application/json", state("ready"), "Says whether new work is taken."),
            ("metrics", metrics::CONTENT_TYPE, json!({ "type": "string" }), "Counts requests, streams and events."),
            ("openapi.json", "application/json", json!({ "type": "object" }), "Shows this description."),
        ];
        for (name, content_type, schema, summary) in plain {
            let content = json!({ content_type: { "schema": schema } });
            let mut responses = json!({ "200": { "description": "The answer.", "content": content } });
            let is_readiness = name == "readyz";
            self.add_errors(&mut responses, if is_readiness { &NOT_READY } else { &[] });
            if is_readiness {
                let settling = json!({ "anyOf": [state("settling"), { "$ref": "#/components/schemas/ErrorBody" }] });
                responses["503"] = json!({
                    "description": "Stored sessions are still being settled after the start, or the server is ending.",
                    "content": { "application/json": { "schema": settling } },
                });
            }
            let mut operation = json!({
                "operationId": name.replace('.', "_"), "tags": ["server"], "summary": summary, "responses": responses,
                "description": "Served beside the operations, under the same address.",
            });
            if matches!(name, "healthz" | "readyz") {
                // Open to everyone.
                operation["security"] = json!([]);
                if let Some(responses) = operation["responses"].as_object_mut() {
                    responses.remove("401");
                }
            }
            paths.insert(format!("/{name}"), json!({ "get": operation }));
        }
        // Linters warn of what is never used, such as the refusals of a route that answers them in another way.
        let used = Value::Object(paths.clone()).to_string();
        self.refusals.retain(|name, _| used.contains(&format!("#/components/responses/{name}\"")));
        let tags = TAGS.map(|(name, description)| json!({ "name": name, "description": description }));
        json!({
            "openapi": "3.1.0",
            "tags": tags,
            "info": {
                "title": "meerkat",
                "version": env!("CARGO_PKG_VERSION"),
                "description": "Agent sessions: their turns, and every event of them. Limits are shown at their defaults.",
                "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
            },
            "servers": [{ "url": "/", "description": "The server that this comes from." }],
            "paths": paths,
            "components": {
                "schemas": self.schemas,
                "responses": self.refusals,
                "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
            },
            "security": [{ "token": [] }],
        })
    }

    /// Adds the kinds of events, and two unions of them: those in the journal, and those that only streams have.
    fn add_events(&mut self) {
        let mut unions = [("Event", Vec::new(), Map::new()), ("LiveEvent", Vec::new(), Map::new())];
        for &kind in EventKind::ALL {
            let mut schema = self.adopt(event_schema(kind));
            if let Some(example) = example_of(kind) {
                schema["examples"] = json!([example]);
            }
            let words = kind.name().split('_').map(|word| {
                let (first, rest) = word.split_at(word.len().min(1));
                first.to_ascii_uppercase() + rest
            });
            let name = words.collect::<String>() + "Event";
            let reference = format!("#/components/schemas/{name}");
            self.schemas.insert(name, schema);
            let (_, kinds, mapping) = &mut unions[usize::from(!kind.is_durable())];
            kinds.push(json!({ "$ref": reference }));
            mapping.insert(kind.name().to_owned(), reference.into());
        }
        for (name, kinds, mapping) in unions {
            let discriminator = json!({ "propertyName": "type", "mapping": mapping });
            self.schemas.insert(name.to_owned(), json!({ "oneOf": kinds, "discriminator": discriminator }));
        }
    }

    /// Adds what the `data` of a stream's event is. OpenAPI 3.1 has no place for the schema of one event, so generators of
    /// clients look for it where they look for that of a body.
    fn add_streams(&mut self) {
        let page = self.adopt(answer_schema(Operation::Changes));
        self.schemas.insert("ChangePage".to_owned(), page);
        let any = |description: &str, names: &[&str]| {
            let each = names.iter().map(|name| json!({ "$ref": format!("#/components/schemas/{name}") }));
            json!({ "description": description, "anyOf": each.collect::<Vec<_>>() })
        };
        let session = "The `data` of one event of the stream: an event of the session, or after `event: failure` the \
                       error that ends the stream.";
        let turn = "The `data` of one event of the stream: an event of the session, then after `event: result` the turn's \
                    result, or after `event: failure` the error that ends the stream.";
        let list = "The `data` of one event of the stream: a page of changes, or after `event: failure` the error that \
                    ends the stream.";
        for (name, description, names) in [
            ("SessionStreamData", session, &["Event", "LiveEvent", "ErrorBody"][..]),
            ("TurnStreamData", turn, &["Event", "LiveEvent", "TurnResult", "ErrorBody"]),
            ("ListStreamData", list, &["ChangePage", "ErrorBody"]),
        ] {
            self.schemas.insert(name.to_owned(), any(description, names));
        }
    }

    fn operation(&mut self, route: &'static Route) -> Value {
        let mut request = self.adopt(limited(request_schema(route.operation)));
        let mut properties = match request["properties"].take() {
            Value::Object(properties) => properties,
            _ => Map::new(),
        };
        route.made().iter().for_each(|name| drop(properties.remove(*name)));
        let required: Vec<Value> = request["required"].as_array().cloned().unwrap_or_default();
        let mut parameters: Vec<Value> = Vec::new();
        for name in route.path_params() {
            parameters.push(parameter("path", name, properties.remove(name), true));
        }
        for name in route.query {
            let is_required = required.iter().any(|known| known == name);
            parameters.push(parameter("query", name, properties.remove(*name), is_required));
        }
        let mut optional = |place: &str, name: &str, description: &str, mut schema: Value| {
            schema["description"] = description.into();
            parameters.push(parameter(place, name, Some(schema), false));
        };
        if let Some((name, _)) = route.switch {
            optional("query", name, "Only shows what would happen.", json!({ "type": "boolean", "default": false }));
        }
        if route.operation == Operation::Events {
            optional(
                "header",
                "Last-Event-ID",
                "Resume after this cursor; it overrides `since_seq`. An empty value is ignored.",
                json!({ "type": "string", "pattern": "^(?:0|[1-9][0-9]{0,18})?$" }),
            );
        }
        if route.follows_list() {
            let cursor = json!({ "type": "string" });
            optional("header", "Last-Event-ID", "Resume after this cursor. An empty value is ignored.", cursor);
        }
        if properties.remove("idempotency_key").is_some() {
            let key = json!({ "type": "string", "pattern": KEY });
            optional(
                "header",
                "Idempotency-Key",
                "The same key with the same request is the same session or turn.",
                key,
            );
        }
        if route.runs_turn() {
            properties.remove("wait");
            let prefer = json!({ "type": "string" });
            optional("header", "Prefer", "With `respond-async` the answer comes when the turn is accepted.", prefer);
        }
        let mut operation = json!({
            // Generators name their functions after it.
            "operationId": route.operation.public_name().replace('/', "_"),
            "tags": [route.tag()],
            "summary": route.operation.summary(),
            "description": description(route),
            "parameters": parameters,
            "responses": self.responses(route),
        });
        if !properties.is_empty() {
            let required: Vec<Value> = required
                .into_iter()
                .filter(|name| name.as_str().is_some_and(|name| properties.contains_key(name)))
                .collect();
            // Members that a condition requires must be sent as well.
            let is_required = !required.is_empty() || request["else"].is_object();
            let mut schema = json!({
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            });
            for condition in ["if", "else"] {
                if let Some(condition_schema) = request.get_mut(condition) {
                    schema[condition] = condition_schema.take();
                }
            }
            let content = json!({ "schema": schema, "example": example(route.operation) });
            operation["requestBody"] = json!({ "required": is_required, "content": { "application/json": content } });
        }
        if route.takes_stream() {
            // Any type is accepted: the bytes say what they are.
            let description =
                if route.operation == Operation::PutBlob { "The bytes of an image or a file." } else { "A bundle." };
            operation["requestBody"] = json!({
                "required": true, "description": description, "content": { "application/octet-stream": {} },
            });
        }
        operation
    }

    fn responses(&mut self, route: &Route) -> Value {
        let mut answer = self.adopt(answer_schema(route.operation));
        let event = json!({ "$ref": "#/components/schemas/Event" });
        match route.operation {
            Operation::Events => answer["properties"]["items"]["items"] = event,
            Operation::FetchReader => answer["properties"]["items"]["items"]["properties"]["event"] = event,
            _ => {}
        }
        let stream = |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
        let mut responses = json!({});
        let mut answered = |status: &str, description: &str, schema: &Value| {
            responses[status] =
                json!({ "description": description, "content": { "application/json": { "schema": schema } } });
        };
        if route.runs_turn() {
            answered("200", "The turn has ended.", &answer["anyOf"][0]);
            answered("202", "The turn was accepted and goes on.", &answer["anyOf"][1]);
            let location = json!({ "description": "The turn's events.", "schema": { "type": "string" } });
            responses["202"]["headers"] = json!({ "Location": location });
        } else if route.operation == Operation::CreateSession {
            answered("201", "The session was made.", &answer);
            let location = json!({ "description": "The session.", "schema": { "type": "string" } });
            responses["201"]["headers"] = json!({ "Location": location });
        } else {
            answered("200", "The answer.", &answer);
        }
        match route.operation {
            Operation::StartTurn | Operation::Resume => {
                responses["200"]["content"]["text/event-stream"] = stream("TurnStreamData");
            }
            Operation::Events => responses["200"]["content"]["text/event-stream"] = stream("SessionStreamData"),
            Operation::List | Operation::Changes => {
                responses["200"]["content"]["text/event-stream"] = stream("ListStreamData");
            }
            Operation::Blob => {
                let offset = json!({ "description": "Where the next piece begins.", "schema": { "type": "integer" } });
                responses["200"]["content"] = json!({
                    "application/octet-stream": {},
                    "image/gif": {},
                    "image/jpeg": {},
                    "image/png": {},
                    "image/webp": {},
                });
                responses["200"]["headers"] = json!({ "Next-Offset": offset });
            }
            Operation::ExportSession => responses["200"]["content"] = json!({ "application/x-tar": {} }),
            _ => {}
        }
        self.add_errors(&mut responses, &codes(route));
        responses
    }

    /// Adds the responses of these codes and of those that every route has, by status. Equal ones are shared.
    fn add_errors(&mut self, responses: &mut Value, codes: &[ErrorCode]) {
        let mut by_status: BTreeMap<u16, Vec<ErrorCode>> = BTreeMap::new();
        for code in EVERYWHERE.iter().chain(codes) {
            by_status.entry(code.http_status()).or_default().push(*code);
        }
        for (status, codes) in by_status {
            let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
            let described: Vec<String> = codes.iter().map(|code| format!("`{code}`: {}", code.message())).collect();
            let body = json!({
                "allOf": [{ "$ref": "#/components/schemas/ErrorBody" }],
                "properties": { "code": { "enum": names } },
            });
            let response =
                json!({ "description": described.join(" "), "content": { "application/json": { "schema": body } } });
            self.refusals.insert(names.join("."), response);
            responses[status.to_string()] = json!({ "$ref": format!("#/components/responses/{}", names.join(".")) });
        }
    }

    /// Moves a schema's definitions to the document, and points its references there.
    fn adopt(&mut self, mut schema: Schema) -> Value {
        RecursiveTransform(in_document).transform(&mut schema);
        let mut schema = schema.to_value();
        if let Some(Value::Object(definitions)) = schema.as_object_mut().and_then(|schema| schema.remove("$defs")) {
            self.schemas.extend(definitions);
        }
        schema
    }
}

/// Groups of operations.
const TAGS: [(&str, &str); 11] = [
    ("capabilities", "What this server can do."),
    ("errors", "The error codes and their pages."),
    ("journal", "The journals that sessions are stored in."),
    ("memory", "The search in what was said, and forgetting."),
    ("projection", "The files that show sessions as Markdown."),
    ("reader", "Named positions from which programs receive every event."),
    ("server", "Whether the server answers, and how much it does."),
    ("session", "Sessions: making, reading, changing, forking, compacting and moving them."),
    ("store", "The data directory or the database."),
    ("tool", "The tools that sessions have, and the servers they come from."),
    ("turn", "Turns: starting, waiting, deciding and interrupting."),
];

/// Says how an operation is called elsewhere, what it needs, and how its answer can be had as a stream.
fn description(route: &Route) -> String {
    let operation = route.operation;
    let mut text = format!("`{}` over JSON-RPC, `{}` in Rust.", operation.public_name(), operation.name());
    if let Some(capability) = operation.needs() {
        text += &format!(" Needs the capability `{}`.", feature(capability));
    }
    if route.runs_turn() {
        text += " With `Accept: text/event-stream` the answer is a stream: the session's events from the turn's acceptance \
                 on, and at last the turn's result. With `Prefer: respond-async` it comes when the turn is accepted. \
                 Otherwise it comes when the turn has ended. The turn goes on if the client goes.";
    } else if matches!(operation, Operation::Events | Operation::List | Operation::Changes) {
        text +=
            " With `Accept: text/event-stream` the answer is a stream that does not end; `Last-Event-ID` resumes it.";
    }
    text
}

const fn feature(capability: Capability) -> &'static str {
    match capability {
        Capability::SessionStore => "session-store",
        Capability::MemoryStore => "memory-store",
        Capability::SessionCompaction => "session-compaction",
    }
}

/// The example of an event in its page.
fn example_of(kind: EventKind) -> Option<Value> {
    let (_, rest) = kind.page().split_once("```json\n")?;
    serde_json::from_str(rest.split_once("\n```")?.0).ok()
}

/// An example of a request's body.
fn example(operation: Operation) -> Value {
    match operation {
        Operation::CreateSession => json!({ "title": "Shopping", "labels": { "app": "tour" } }),
        Operation::StartTurn => json!({ "prompt": "What is a meerkat?" }),
        Operation::Resume => json!({ "budgets": { "steps": 10 } }),
        Operation::Interrupt => json!({ "turn": 0 }),
        Operation::DecideApproval => json!({ "decision": "deny", "reason": "Use the copy instead." }),
        Operation::AnswerCall => json!({
            "outcome": "succeeded", "content": [{ "type": "json", "value": { "celsius": 21 } }],
        }),
        Operation::EditQueued => json!({ "prompt": "And in Italian?", "position": 0 }),
        Operation::Remind => json!({ "text": "The deadline is on Friday." }),
        Operation::Pin => json!({ "text": "Never deploy on Fridays." }),
        Operation::Update => json!({ "title": "Shopping for the party" }),
        Operation::CreateReader => json!({ "reader": "audit" }),
        Operation::AcknowledgeReader => json!({ "seq": 12 }),
        Operation::CompactJournal | Operation::Retain => json!({ "dry_run": true }),
        Operation::ForgetMemory => json!({ "source": "notes" }),
        _ => json!({}),
    }
}

/// The codes of a server that takes no new work.
const NOT_READY: [ErrorCode; 3] = [ErrorCode::ShuttingDown, ErrorCode::StoreFull, ErrorCode::StoreFailed];

/// The codes that every route can answer, including the guard's.
const EVERYWHERE: [ErrorCode; 6] = [
    ErrorCode::InvalidRequest,
    ErrorCode::Unauthenticated,
    ErrorCode::ForbiddenOrigin,
    ErrorCode::PayloadTooLarge,
    ErrorCode::TooManyConnections,
    ErrorCode::Internal,
];

/// The other codes that an operation can answer.
fn codes(route: &Route) -> Vec<ErrorCode> {
    use ErrorCode as Code;
    let mut codes = Vec::new();
    if route.path_params().any(|name| name == "session_id") {
        codes.extend([Code::SessionNotFound, Code::SessionCorrupted, Code::SessionFormatNewer, Code::StoreFailed]);
    }
    if route.operation.effect() != OperationEffect::Reads {
        codes.extend([Code::StoreFailed, Code::StoreFull, Code::StoreNotWritable, Code::ShuttingDown]);
    }
    codes.extend(route.operation.needs().map(|capability| match capability {
        Capability::SessionStore => Code::SessionPersistenceDisabled,
        Capability::MemoryStore => Code::MemoryStoreDisabled,
        Capability::SessionCompaction => Code::SessionCompactionDisabled,
    }));
    codes.extend_from_slice(route.operation.refusals());
    codes.sort_unstable();
    codes.dedup();
    codes
}

/// A parameter outside a body. It is never `null`, and in a path it is never empty.
fn parameter(place: &str, name: &str, schema: Option<Value>, is_required: bool) -> Value {
    let mut schema = schema.unwrap_or_else(|| json!({}));
    let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
    if let Some(either) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        either.retain(|one| one["type"] != "null");
        schema = either.pop().unwrap_or_default();
    }
    if let Some(types) = schema.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|one| one != "null");
        schema["type"] = types.pop().unwrap_or(Value::Null);
    }
    if let Some(values) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        values.retain(|one| !one.is_null());
    }
    if let Some(schema) = schema.as_object_mut().filter(|schema| schema.get("default").is_some_and(Value::is_null)) {
        schema.remove("default");
    }
    if place == "path" && schema["type"] == "string" {
        schema["minLength"] = 1.into();
    }
    let is_object = schema["type"] == "object";
    let mut parameter = json!({ "in": place, "name": name, "required": is_required, "schema": schema });
    if let Some(description) = description {
        parameter["description"] = description;
    }
    if is_object {
        parameter["schema"]["propertyNames"]["pattern"] = QUERY_LABEL_NAME.into();
        parameter["style"] = "deepObject".into();
        parameter["explode"] = true.into();
    }
    parameter
}

/// Adds the limits that are configurable, at their defaults.
fn limited(mut schema: Schema) -> Schema {
    let limits = Limits::default();
    for (name, property) in schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        match name.as_str() {
            "limit" if property["maximum"].as_u64().is_none_or(|most| most == u64::MAX) => {
                property["maximum"] = limits.page_items.into();
            }
            "labels" => property["maxProperties"] = limits.labels.into(),
            _ => {}
        }
    }
    schema
}

/// Points a schema's reference into the document, and rewrites what generators of clients cannot read: a schema that allows
/// everything as an empty object, alternative constants as one list.
fn in_document(schema: &mut Schema) {
    let Some(node) = schema.as_object_mut() else { return };
    node.remove("$schema");
    if let Some(Value::String(reference)) = node.get_mut("$ref") {
        *reference = reference.replace("#/$defs/", "#/components/schemas/");
    }
    for property in node.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if *property == Value::Bool(true) {
            *property = json!({});
        }
    }
    if node.contains_key("prefixItems") {
        // Linters want it, and the number of items is bounded beside it.
        node.entry("items").or_insert_with(|| json!({}));
    }
    let names = node.get("oneOf").and_then(Value::as_array).map(|either| {
        let of = |member: &'static str| move |one: &Value| one[member].as_str().map(str::to_owned);
        let names: Option<Vec<String>> = either.iter().map(of("const")).collect();
        let described = either
            .iter()
            .filter_map(|one| Some(format!("`{}`: {}", one["const"].as_str()?, one["description"].as_str()?)));
        (names, described.collect::<Vec<_>>())
    });
    if let Some((Some(names), described)) = names {
        node.remove("oneOf");
        node.insert("type".to_owned(), "string".into());
        node.insert("enum".to_owned(), names.into());
        let about = node.get("description").and_then(Value::as_str).map(str::to_owned);
        let about: Vec<String> = about.into_iter().chain(described).collect();
        node.insert("description".to_owned(), about.join(" ").into());
    }
}
