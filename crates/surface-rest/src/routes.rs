//! The table: each operation's method and path, and the parameters in its query.
//!
//! All other parameters are in the body. Nothing here knows what an operation does.

use axum::{http::Method, routing::MethodFilter};
use meerkat_service::{Operation, store::UPLOADS_BYTES_MAX};

use Operation as Op;

/// Beginning of every operation's path.
pub(crate) const BASE: &str = "/v1";

/// Type of a parameter in a path or a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Whole,
    Truth,
    /// `labels[name]=value`, once for each label.
    Labels,
}

impl Kind {
    /// The kind of a parameter. It is the same on every route.
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "since_seq" | "seq" | "limit" | "wait_ms" | "offset" | "turn" | "pin" | "compaction" => Self::Whole,
            "archived" | "children" | "force" | "redact" | "new_ids" | "keep_scope" | "with_workspace"
            | "skip_damage" => Self::Truth,
            "labels" => Self::Labels,
            _ => Self::Text,
        }
    }
}

/// The method and path of an operation.
#[derive(Debug)]
pub struct Route {
    /// The operation.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path behind `/v1`, with parameters in braces.
    pub path: &'static str,
    /// The parameters in the query.
    pub query: &'static [&'static str],
    /// If two operations share method and path: the parameter of the query that selects one, and its value for this one.
    pub switch: Option<(&'static str, bool)>,
}

impl Route {
    /// Its method, for a router.
    #[expect(clippy::expect_used, reason = "the table is always the same, and every test makes a router of it")]
    pub(crate) fn method_filter(&self) -> MethodFilter {
        self.method.clone().try_into().expect("a route has a method that axum knows")
    }

    /// The whole path.
    #[must_use]
    pub fn full_path(&self) -> String {
        format!("{BASE}{}", self.path)
    }

    /// Whether it is the one that a router knows; a switch leads to another one.
    pub(crate) const fn is_first(&self) -> bool {
        !matches!(self.switch, Some((_, true)))
    }

    /// The route that a query selects by its switch.
    pub(crate) fn asked(&'static self, query: &[(String, String)]) -> &'static Self {
        let Some((name, _)) = self.switch else { return self };
        let is_on = query.iter().any(|(known, value)| known == name && value == "true");
        let is_it = |other: &&Self| (&other.method, other.path) == (&self.method, self.path);
        let asked = TABLE.iter().filter(is_it).find(|other| other.switch == Some((name, is_on)));
        asked.unwrap_or(self)
    }

    /// Whether it runs a turn. Its caller can wait for the result, stream the events, or do neither.
    pub(crate) const fn runs_turn(&self) -> bool {
        matches!(self.operation, Operation::StartTurn | Operation::Resume)
    }

    /// Whether its body may have a prompt, a history or a call's answer, which are larger than any other body.
    pub(crate) const fn takes_content(&self) -> bool {
        let is_other =
            matches!(self.operation, Operation::EditQueued | Operation::CreateSession | Operation::AnswerCall);
        self.runs_turn() || is_other
    }

    /// Whether its stream follows the list of sessions.
    pub(crate) const fn follows_list(&self) -> bool {
        matches!(self.operation, Operation::List | Operation::Changes)
    }

    /// Whether it takes an `Idempotency-Key`.
    pub(crate) const fn takes_key(&self) -> bool {
        self.runs_turn() || matches!(self.operation, Operation::CreateSession)
    }

    /// The parameters that its handler fills in: what other surfaces send in pages or pieces is one body here.
    pub(crate) const fn made(&self) -> &'static [&'static str] {
        match self.operation {
            Operation::ExportSession => &["cursor"],
            Operation::ImportBundle => &["upload", "offset", "data", "is_last"],
            Operation::PutBlob => &["data"],
            _ => &[],
        }
    }

    /// Bytes of its body if that is handed on in pieces; `None` if it is JSON. A bundle may have as many as are given.
    pub(crate) const fn stream_bytes_max(&self, bundle_bytes_max: u64) -> Option<u64> {
        match self.operation {
            Operation::ImportBundle => Some(bundle_bytes_max),
            Operation::PutBlob => Some(UPLOADS_BYTES_MAX),
            _ => None,
        }
    }

    /// Whether its body is handed on in pieces, and is no JSON.
    pub(crate) const fn takes_stream(&self) -> bool {
        self.stream_bytes_max(0).is_some()
    }

    /// Whether it takes a body.
    pub(crate) fn takes_body(&self) -> bool {
        self.method != Method::GET && self.method != Method::DELETE
    }

    /// Its group in the description.
    pub(crate) fn tag(&self) -> &'static str {
        self.operation.public_name().split('/').next().unwrap_or_default()
    }

    /// The names in the braces of its path.
    pub(crate) fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

const fn row(operation: Operation, method: Method, path: &'static str, query: &'static [&'static str]) -> Route {
    Route { operation, method, path, query, switch: None }
}

const fn switch(mut route: Route, name: &'static str, value: bool) -> Route {
    route.switch = Some((name, value));
    route
}

/// Bytes that a body may have at a path where it is handed on in pieces; `None` at all other paths.
#[must_use]
pub fn stream_bytes_max(path: &str, bundle_bytes_max: u64) -> Option<u64> {
    let path = path.strip_prefix(BASE)?;
    let is_part = |(known, part): (&str, &str)| known == part || (known.starts_with('{') && !part.is_empty());
    let is_here = |route: &&Route| {
        route.path.split('/').count() == path.split('/').count()
            && route.path.split('/').zip(path.split('/')).all(is_part)
    };
    TABLE.iter().filter(|route| route.takes_stream()).find(is_here)?.stream_bytes_max(bundle_bytes_max)
}

/// Every operation's route, in the order of the operations.
#[must_use]
pub const fn table() -> &'static [Route] {
    &TABLE
}

static TABLE: [Route; 53] = [
    row(Op::CreateSession, Method::POST, "/sessions", &[]),
    row(Op::StartTurn, Method::POST, "/sessions/{session_id}/turns", &[]),
    row(Op::Interrupt, Method::POST, "/sessions/{session_id}/interrupt", &[]),
    row(Op::DecideApproval, Method::POST, "/sessions/{session_id}/approvals/{call_id}", &[]),
    row(Op::AnswerCall, Method::POST, "/sessions/{session_id}/calls/{call_id}", &[]),
    row(Op::Calls, Method::GET, "/sessions/{session_id}/calls", &[]),
    row(Op::Queue, Method::GET, "/sessions/{session_id}/queue", &[]),
    row(Op::CancelQueued, Method::DELETE, "/sessions/{session_id}/queue/{turn}", &[]),
    row(Op::EditQueued, Method::PATCH, "/sessions/{session_id}/queue/{turn}", &[]),
    row(Op::Events, Method::GET, "/sessions/{session_id}/events", &["since_seq", "limit", "wait_ms", "skip_damage"]),
    row(Op::Remind, Method::PUT, "/sessions/{session_id}/reminders/{kind}", &[]),
    row(Op::Reminders, Method::GET, "/sessions/{session_id}/reminders", &[]),
    row(Op::ClearReminder, Method::DELETE, "/sessions/{session_id}/reminders/{kind}", &[]),
    row(Op::Pin, Method::POST, "/sessions/{session_id}/pins", &[]),
    row(Op::Pins, Method::GET, "/sessions/{session_id}/pins", &[]),
    row(Op::Unpin, Method::DELETE, "/sessions/{session_id}/pins/{pin}", &[]),
    row(Op::Resume, Method::POST, "/sessions/{session_id}/resume", &[]),
    row(Op::Read, Method::GET, "/sessions/{session_id}", &[]),
    row(Op::History, Method::GET, "/sessions/{session_id}/messages", &["cursor", "limit", "skip_damage"]),
    row(Op::Steps, Method::GET, "/sessions/{session_id}/steps", &["cursor", "limit", "skip_damage"]),
    row(Op::Turns, Method::GET, "/sessions/{session_id}/turns", &["cursor", "limit", "skip_damage"]),
    row(Op::Blob, Method::GET, "/sessions/{session_id}/blobs/{blob}", &["offset", "limit"]),
    row(Op::PutBlob, Method::POST, "/sessions/{session_id}/blobs", &[]),
    row(
        Op::List,
        Method::GET,
        "/sessions",
        &["created_after", "updated_after", "labels", "archived", "children", "cursor", "limit"],
    ),
    row(Op::Changes, Method::GET, "/session-changes", &["cursor", "limit", "wait_ms"]),
    row(Op::Approvals, Method::GET, "/approvals", &["cursor", "limit"]),
    row(Op::Update, Method::PATCH, "/sessions/{session_id}", &[]),
    row(Op::Archive, Method::POST, "/sessions/{session_id}/archive", &[]),
    row(Op::Unarchive, Method::POST, "/sessions/{session_id}/unarchive", &[]),
    row(Op::Delete, Method::DELETE, "/sessions/{session_id}", &["force"]),
    row(Op::Fork, Method::POST, "/sessions/{session_id}/fork", &["turn"]),
    row(Op::ExportSession, Method::GET, "/sessions/{session_id}/bundle", &["redact", "skip_damage"]),
    row(Op::ImportBundle, Method::POST, "/bundles", &["new_ids", "keep_scope"]),
    row(Op::CreateReader, Method::POST, "/readers", &[]),
    row(Op::FetchReader, Method::GET, "/readers/{reader}/records", &["limit", "wait_ms"]),
    row(Op::AcknowledgeReader, Method::PUT, "/readers/{reader}/sessions/{session_id}", &[]),
    row(Op::WaitReader, Method::GET, "/readers/{reader}/sessions/{session_id}", &["seq", "wait_ms"]),
    row(Op::DeleteReader, Method::DELETE, "/readers/{reader}", &[]),
    row(Op::ListReaders, Method::GET, "/readers", &[]),
    row(Op::CompactJournal, Method::POST, "/sessions/{session_id}/journal-compactions", &[]),
    row(Op::RebuildProjection, Method::POST, "/projection/rebuild", &[]),
    row(Op::Diagnose, Method::GET, "/diagnosis", &[]),
    row(Op::Retain, Method::POST, "/retention", &[]),
    switch(row(Op::Compact, Method::POST, "/sessions/{session_id}/compactions", &[]), "preview", false),
    switch(row(Op::PreviewCompaction, Method::POST, "/sessions/{session_id}/compactions", &[]), "preview", true),
    row(Op::UndoCompaction, Method::DELETE, "/sessions/{session_id}/compactions/{compaction}", &[]),
    row(
        Op::SearchMemory,
        Method::GET,
        "/memory/search",
        &["query", "scope", "session_id", "role", "labels", "since", "until", "limit"],
    ),
    row(Op::ForgetMemory, Method::POST, "/memory/forget", &[]),
    row(Op::ReindexMemory, Method::POST, "/memory/reindex", &[]),
    row(Op::Tools, Method::GET, "/tools", &["session_id", "with_workspace"]),
    row(Op::ToolServers, Method::GET, "/tool-servers", &[]),
    row(Op::Capabilities, Method::GET, "/capabilities", &[]),
    row(Op::Errors, Method::GET, "/errors", &["code"]),
];

#[cfg(test)]
mod tests {
    use meerkat_service::wire::request_schema;
    use serde_json::Value;

    use super::*;

    /// The properties of an operation's request, references resolved and `null` left out.
    fn properties(operation: Operation) -> Vec<(String, Value)> {
        let schema = request_schema(operation).to_value();
        let resolve = |property: &Value| {
            let either = property["anyOf"].as_array().and_then(|either| either.first()).unwrap_or(property);
            let name = either["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/"));
            name.map_or(either, |name| &schema["$defs"][name]).clone()
        };
        let properties = schema["properties"].as_object().into_iter().flatten();
        properties.map(|(name, property)| (name.clone(), resolve(property))).collect()
    }

    #[test]
    fn every_parameter_has_its_place_and_is_read_as_its_schema_says() {
        for route in table() {
            let properties = properties(route.operation);
            let placed: Vec<&str> = route.path_params().chain(route.query.iter().copied()).collect();
            for name in &placed {
                let (_, schema) = properties.iter().find(|(known, _)| known == name).expect(name);
                let one_of = schema.get("oneOf").map_or(schema, |each| &each[0]);
                let first = one_of["type"].get(0).unwrap_or(&one_of["type"]);
                let kind = match first.as_str().expect(name) {
                    "integer" => Kind::Whole,
                    "boolean" => Kind::Truth,
                    "object" => Kind::Labels,
                    "string" => Kind::Text,
                    other => panic!("{name}: {other}"),
                };
                assert_eq!(Kind::of(name), kind, "{:?}: {name}", route.operation);
            }
            let known: Vec<&str> = placed.iter().chain(route.made()).copied().collect();
            let rest: Vec<&String> =
                properties.iter().map(|(name, _)| name).filter(|name| !known.contains(&name.as_str())).collect();
            let has_room = route.takes_body() && !route.takes_stream();
            assert!(has_room || rest.is_empty(), "{:?}: {rest:?} stand nowhere", route.operation);
            assert_eq!(route.takes_key(), rest.iter().any(|name| *name == "idempotency_key"), "{:?}", route.operation);
            let waits = route.runs_turn() || matches!(route.operation, Operation::AnswerCall | Operation::ForgetMemory);
            assert_eq!(waits, rest.iter().any(|name| *name == "wait"), "{:?}", route.operation);
        }
    }

    #[test]
    fn a_switch_leads_to_its_operation() {
        let compact = table().iter().find(|route| route.operation == Operation::Compact).unwrap();
        let asked = |value: &str| compact.asked(&[("preview".to_owned(), value.to_owned())]).operation;
        assert_eq!(asked("true"), Operation::PreviewCompaction);
        assert_eq!(asked("false"), Operation::Compact);
        assert_eq!(compact.asked(&[]).operation, Operation::Compact);
    }
}
