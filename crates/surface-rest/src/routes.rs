//! The table: each operation's name, method and path, and the parameters in its query.
//!
//! All other parameters are in the body. Nothing here knows what an operation does.

use axum::{http::Method, routing::MethodFilter};
use meerkat_service::Operation;

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
            "archived" | "force" | "redact" | "new_ids" | "with_workspace" => Self::Truth,
            "labels" => Self::Labels,
            _ => Self::Text,
        }
    }
}

/// The method and path of an operation.
#[derive(Debug)]
pub struct Route {
    /// Its name in the description, spelt as in JSON-RPC. Generators name their functions after it.
    pub(crate) id: &'static str,
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

    /// Whether it takes an `Idempotency-Key`.
    pub(crate) const fn takes_key(&self) -> bool {
        self.runs_turn() || matches!(self.operation, Operation::CreateSession)
    }

    /// The parameters that its handler fills in: what other surfaces send in pages or pieces is one body here.
    pub(crate) const fn made(&self) -> &'static [&'static str] {
        match self.operation {
            Operation::ExportSession => &["cursor"],
            Operation::ImportBundle => &["upload", "offset", "data", "is_last"],
            _ => &[],
        }
    }

    /// Whether its body is a bundle.
    pub(crate) const fn takes_bundle(&self) -> bool {
        matches!(self.operation, Operation::ImportBundle)
    }

    /// Whether it takes a body.
    pub(crate) fn takes_body(&self) -> bool {
        self.method != Method::GET && self.method != Method::DELETE
    }

    /// Its group in the description.
    pub(crate) fn tag(&self) -> &'static str {
        self.id.split('_').next().unwrap_or_default()
    }

    /// The names in the braces of its path.
    pub(crate) fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

const fn row(
    id: &'static str,
    operation: Operation,
    method: Method,
    path: &'static str,
    query: &'static [&'static str],
) -> Route {
    Route { id, operation, method, path, query, switch: None }
}

const fn switch(mut route: Route, name: &'static str, value: bool) -> Route {
    route.switch = Some((name, value));
    route
}

/// Every operation's route, in the order of the operations.
#[must_use]
pub const fn table() -> &'static [Route] {
    &TABLE
}

static TABLE: [Route; 44] = [
    row("session_create", Op::CreateSession, Method::POST, "/sessions", &[]),
    row("turn_start", Op::StartTurn, Method::POST, "/sessions/{session_id}/turns", &[]),
    row("turn_interrupt", Op::Interrupt, Method::POST, "/sessions/{session_id}/interrupt", &[]),
    row("turn_approve", Op::DecideApproval, Method::POST, "/sessions/{session_id}/approvals/{call_id}", &[]),
    row("turn_queue", Op::Queue, Method::GET, "/sessions/{session_id}/queue", &[]),
    row("turn_cancel", Op::CancelQueued, Method::DELETE, "/sessions/{session_id}/queue/{turn}", &[]),
    row("session_events", Op::Events, Method::GET, "/sessions/{session_id}/events", &["since_seq", "limit", "wait_ms"]),
    row("session_remind", Op::Remind, Method::PUT, "/sessions/{session_id}/reminders/{kind}", &[]),
    row("session_reminders", Op::Reminders, Method::GET, "/sessions/{session_id}/reminders", &[]),
    row("session_clear_reminder", Op::ClearReminder, Method::DELETE, "/sessions/{session_id}/reminders/{kind}", &[]),
    row("session_pin", Op::Pin, Method::POST, "/sessions/{session_id}/pins", &[]),
    row("session_pins", Op::Pins, Method::GET, "/sessions/{session_id}/pins", &[]),
    row("session_unpin", Op::Unpin, Method::DELETE, "/sessions/{session_id}/pins/{pin}", &[]),
    row("session_resume", Op::Resume, Method::POST, "/sessions/{session_id}/resume", &[]),
    row("session_read", Op::Read, Method::GET, "/sessions/{session_id}", &[]),
    row("session_history", Op::History, Method::GET, "/sessions/{session_id}/messages", &["cursor", "limit"]),
    row("session_blob", Op::Blob, Method::GET, "/sessions/{session_id}/blobs/{blob}", &["offset", "limit"]),
    row(
        "session_list",
        Op::List,
        Method::GET,
        "/sessions",
        &["created_after", "updated_after", "labels", "archived", "cursor", "limit"],
    ),
    row("session_update", Op::Update, Method::PATCH, "/sessions/{session_id}", &[]),
    row("session_archive", Op::Archive, Method::POST, "/sessions/{session_id}/archive", &[]),
    row("session_unarchive", Op::Unarchive, Method::POST, "/sessions/{session_id}/unarchive", &[]),
    row("session_delete", Op::Delete, Method::DELETE, "/sessions/{session_id}", &["force"]),
    row("session_fork", Op::Fork, Method::POST, "/sessions/{session_id}/fork", &["turn"]),
    row("session_export", Op::ExportSession, Method::GET, "/sessions/{session_id}/bundle", &["redact"]),
    row("session_import", Op::ImportBundle, Method::POST, "/bundles", &["new_ids"]),
    row("reader_create", Op::CreateReader, Method::POST, "/readers", &[]),
    row("reader_fetch", Op::FetchReader, Method::GET, "/readers/{reader}/records", &["limit", "wait_ms"]),
    row("reader_acknowledge", Op::AcknowledgeReader, Method::PUT, "/readers/{reader}/sessions/{session_id}", &[]),
    row("reader_wait", Op::WaitReader, Method::GET, "/readers/{reader}/sessions/{session_id}", &["seq", "wait_ms"]),
    row("reader_delete", Op::DeleteReader, Method::DELETE, "/readers/{reader}", &[]),
    row("reader_list", Op::ListReaders, Method::GET, "/readers", &[]),
    row("journal_compact", Op::CompactJournal, Method::POST, "/sessions/{session_id}/journal-compactions", &[]),
    row("projection_rebuild", Op::RebuildProjection, Method::POST, "/projection/rebuild", &[]),
    row("session_retain", Op::Retain, Method::POST, "/retention", &[]),
    switch(
        row("session_compact", Op::Compact, Method::POST, "/sessions/{session_id}/compactions", &[]),
        "preview",
        false,
    ),
    switch(
        row("session_compact_preview", Op::PreviewCompaction, Method::POST, "/sessions/{session_id}/compactions", &[]),
        "preview",
        true,
    ),
    row(
        "session_compact_undo",
        Op::UndoCompaction,
        Method::DELETE,
        "/sessions/{session_id}/compactions/{compaction}",
        &[],
    ),
    row(
        "memory_search",
        Op::SearchMemory,
        Method::GET,
        "/memory/search",
        &["query", "scope", "session_id", "role", "labels", "since", "until", "limit"],
    ),
    row("memory_forget", Op::ForgetMemory, Method::POST, "/memory/forget", &[]),
    row("memory_reindex", Op::ReindexMemory, Method::POST, "/memory/reindex", &[]),
    row("tool_list", Op::Tools, Method::GET, "/tools", &["session_id", "with_workspace"]),
    row("tool_servers", Op::ToolServers, Method::GET, "/tool-servers", &[]),
    row("capabilities_get", Op::Capabilities, Method::GET, "/capabilities", &[]),
    row("errors_list", Op::Errors, Method::GET, "/errors", &[]),
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
            let has_room = route.takes_body() && !route.takes_bundle();
            assert!(has_room || rest.is_empty(), "{:?}: {rest:?} stand nowhere", route.operation);
            assert_eq!(route.takes_key(), rest.iter().any(|name| *name == "idempotency_key"), "{:?}", route.operation);
            assert_eq!(route.runs_turn(), rest.iter().any(|name| *name == "wait"), "{:?}", route.operation);
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
