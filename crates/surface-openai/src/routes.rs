//! The table: each operation's method and path, with parameters in braces.

use axum::http::Method;

/// The operations of the protocols.
pub static TABLE: [(Method, &str); 12] = [
    (Method::GET, "/v1/models"),
    (Method::GET, "/v1/models/{*model}"),
    (Method::POST, "/v1/responses"),
    (Method::GET, "/v1/responses/{response_id}"),
    (Method::DELETE, "/v1/responses/{response_id}"),
    (Method::POST, "/v1/responses/{response_id}/cancel"),
    (Method::GET, "/v1/responses/{response_id}/input_items"),
    (Method::POST, "/v1/conversations"),
    (Method::GET, "/v1/conversations/{conversation_id}"),
    (Method::POST, "/v1/conversations/{conversation_id}"),
    (Method::DELETE, "/v1/conversations/{conversation_id}"),
    (Method::POST, "/v1/chat/completions"),
];

/// Returns true for a path of these protocols, whether there is a route or not.
#[must_use]
pub fn owns(path: &str) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    ["/v1/models", "/v1/responses", "/v1/chat", "/v1/conversations"]
        .iter()
        .any(|base| path.strip_prefix(base).is_some_and(is_below))
}
