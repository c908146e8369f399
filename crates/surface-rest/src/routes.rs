//! The table: each operation's method and path, and which of its parameters stand in the query.
//!
//! What a request takes besides stands in its body. Nothing here knows what an operation does.

use std::{collections::BTreeMap, sync::LazyLock};

use axum::http::Method;
use meerkat_service::Operation;

use Operation as Op;

/// Where all operations stand.
pub(crate) const BASE: &str = "/v1";

/// How a parameter of a path or a query is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Whole,
    Truth,
    /// `labels[name]=value`, once for each label.
    Labels,
}

impl Kind {
    /// A parameter is read in the same way wherever it stands.
    pub(crate) fn of(name: &str) -> Self {
        match name {
            "since_seq" | "seq" | "limit" | "wait_ms" | "offset" | "turn" | "pin" | "compaction" => Self::Whole,
            "archived" | "force" | "redact" | "new_ids" => Self::Truth,
            "labels" => Self::Labels,
            _ => Self::Text,
        }
    }
}

/// One operation's place.
#[derive(Debug)]
pub struct Route {
    /// What it does.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path behind `/v1`; parameters stand in braces.
    pub path: &'static str,
    /// The parameters that stand in the query.
    pub query: &'static [&'static str],
    /// Where two operations share method and path: the query's parameter that tells them apart, and its value here.
    pub switch: Option<(&'static str, bool)>,
}

impl Route {
    /// The whole path.
    #[must_use]
    pub fn full_path(&self) -> String {
        format!("{BASE}{}", self.path)
    }

    /// Whether it stands for its method and path; what a switch leads to stands behind it.
    pub(crate) const fn is_first(&self) -> bool {
        !matches!(self.switch, Some((_, true)))
    }

    /// The route with the same method and path where the switch has this value.
    pub(crate) fn switched(&'static self, value: bool) -> &'static Self {
        let is_it = |other: &&Self| {
            (&other.method, other.path) == (&self.method, self.path) && other.switch.is_some_and(|(_, at)| at == value)
        };
        TABLE.iter().find(is_it).unwrap_or(self)
    }

    /// Whether it runs a turn, whose answer can be waited for, streamed or left to its events.
    pub(crate) const fn runs_turn(&self) -> bool {
        matches!(self.operation, Operation::StartTurn | Operation::Resume)
    }

    /// Whether it takes an `Idempotency-Key`.
    pub(crate) const fn takes_key(&self) -> bool {
        self.runs_turn() || matches!(self.operation, Operation::CreateSession)
    }

    /// The parameters that its handler makes: what is pages or pieces elsewhere is one body here.
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

    /// The names in the braces of its path.
    pub(crate) fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
    }
}

/// What can be asked for at a path.
pub(crate) enum Place {
    /// Something beside the operations; it is only read.
    Beside(Beside),
    /// The routes of operations, one for each method.
    Operations(Vec<&'static Route>),
}

/// What stands beside the operations.
#[derive(Clone, Copy)]
pub(crate) enum Beside {
    Health,
    Readiness,
    Metrics,
    Description,
}

impl Place {
    /// The methods that it knows.
    pub(crate) fn methods(&self) -> String {
        let names: Vec<&str> = match self {
            Self::Beside(_) => vec!["GET"],
            Self::Operations(routes) => routes.iter().map(|route| route.method.as_str()).collect(),
        };
        names.join(",").replace("GET", "GET,HEAD")
    }
}

/// What stands at a path, and what its braces hold, as it was sent.
pub(crate) fn find(path: &str) -> Option<matchit::Match<'static, '_, &'static Place>> {
    static PLACES: LazyLock<matchit::Router<Place>> = LazyLock::new(places);
    PLACES.at(path).ok()
}

#[expect(clippy::expect_used, reason = "the table is always the same, and every test looks something up in it")]
fn places() -> matchit::Router<Place> {
    let mut by_path = BTreeMap::from(
        [
            ("/healthz", Beside::Health),
            ("/readyz", Beside::Readiness),
            ("/metrics", Beside::Metrics),
            ("/openapi.json", Beside::Description),
        ]
        .map(|(path, beside)| (path.to_owned(), Place::Beside(beside))),
    );
    for route in TABLE.iter().filter(|route| route.is_first()) {
        match by_path.entry(route.full_path()).or_insert_with(|| Place::Operations(Vec::new())) {
            Place::Operations(routes) => routes.push(route),
            Place::Beside(_) => {}
        }
    }
    let mut places = matchit::Router::new();
    for (path, place) in by_path {
        places.insert(path, place).expect("no two paths are alike");
    }
    places
}

const fn row(operation: Operation, method: Method, path: &'static str, query: &'static [&'static str]) -> Route {
    Route { operation, method, path, query, switch: None }
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

static TABLE: [Route; 42] = [
    row(Op::CreateSession, Method::POST, "/sessions", &[]),
    row(Op::StartTurn, Method::POST, "/sessions/{session_id}/turns", &[]),
    row(Op::Interrupt, Method::POST, "/sessions/{session_id}/interrupt", &[]),
    row(Op::DecideApproval, Method::POST, "/sessions/{session_id}/approvals/{call_id}", &[]),
    row(Op::Queue, Method::GET, "/sessions/{session_id}/queue", &[]),
    row(Op::CancelQueued, Method::DELETE, "/sessions/{session_id}/queue/{turn}", &[]),
    row(Op::Events, Method::GET, "/sessions/{session_id}/events", &["since_seq", "limit", "wait_ms"]),
    row(Op::Remind, Method::PUT, "/sessions/{session_id}/reminders/{kind}", &[]),
    row(Op::Reminders, Method::GET, "/sessions/{session_id}/reminders", &[]),
    row(Op::ClearReminder, Method::DELETE, "/sessions/{session_id}/reminders/{kind}", &[]),
    row(Op::Pin, Method::POST, "/sessions/{session_id}/pins", &[]),
    row(Op::Pins, Method::GET, "/sessions/{session_id}/pins", &[]),
    row(Op::Unpin, Method::DELETE, "/sessions/{session_id}/pins/{pin}", &[]),
    row(Op::Resume, Method::POST, "/sessions/{session_id}/resume", &[]),
    row(Op::Read, Method::GET, "/sessions/{session_id}", &[]),
    row(Op::History, Method::GET, "/sessions/{session_id}/messages", &["cursor", "limit"]),
    row(Op::Blob, Method::GET, "/sessions/{session_id}/blobs/{blob}", &["offset", "limit"]),
    row(
        Op::List,
        Method::GET,
        "/sessions",
        &["created_after", "updated_after", "labels", "archived", "cursor", "limit"],
    ),
    row(Op::Update, Method::PATCH, "/sessions/{session_id}", &[]),
    row(Op::Archive, Method::POST, "/sessions/{session_id}/archive", &[]),
    row(Op::Unarchive, Method::POST, "/sessions/{session_id}/unarchive", &[]),
    row(Op::Delete, Method::DELETE, "/sessions/{session_id}", &["force"]),
    row(Op::Fork, Method::POST, "/sessions/{session_id}/fork", &["turn"]),
    row(Op::ExportSession, Method::GET, "/sessions/{session_id}/bundle", &["redact"]),
    row(Op::ImportBundle, Method::POST, "/bundles", &["new_ids"]),
    row(Op::CreateReader, Method::POST, "/readers", &[]),
    row(Op::FetchReader, Method::GET, "/readers/{reader}/records", &["limit", "wait_ms"]),
    row(Op::AcknowledgeReader, Method::PUT, "/readers/{reader}/sessions/{session_id}", &[]),
    row(Op::WaitReader, Method::GET, "/readers/{reader}/sessions/{session_id}", &["seq", "wait_ms"]),
    row(Op::DeleteReader, Method::DELETE, "/readers/{reader}", &[]),
    row(Op::ListReaders, Method::GET, "/readers", &[]),
    row(Op::CompactJournal, Method::POST, "/sessions/{session_id}/journal-compactions", &[]),
    row(Op::RebuildProjection, Method::POST, "/projection/rebuild", &[]),
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
    row(Op::Capabilities, Method::GET, "/capabilities", &[]),
    row(Op::Errors, Method::GET, "/errors", &[]),
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
    fn every_operation_has_its_route() {
        let names = |operations: &mut dyn Iterator<Item = Operation>| {
            let mut names: Vec<_> = operations.map(Operation::name).collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&mut table().iter().map(|route| route.operation)), names(&mut Operation::ALL.iter().copied()));
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
        assert_eq!(compact.switched(true).operation, Operation::PreviewCompaction);
        assert_eq!(compact.switched(false).operation, Operation::Compact);
    }
}
