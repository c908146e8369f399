//! The table: each operation's method and path.

use axum::http::Method;

/// Operation of the protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Lists the models.
    Models,
    /// Shows a model.
    Model,
    /// Makes a response.
    Create,
    /// Shows a response, or streams it again.
    Read,
    /// Deletes a response that is alone in its session.
    Delete,
    /// Interrupts a response.
    Cancel,
    /// Lists what a response was asked.
    InputItems,
    /// Makes a conversation.
    CreateConversation,
    /// Shows a conversation.
    ReadConversation,
    /// Changes a conversation's metadata.
    UpdateConversation,
    /// Deletes a conversation.
    DeleteConversation,
    /// Completes a chat.
    Complete,
}

/// The method and path of an operation.
#[derive(Debug)]
pub struct Route {
    /// The operation.
    pub operation: Operation,
    /// Its method.
    pub method: Method,
    /// Its path, with parameters in braces.
    pub path: &'static str,
}

const fn route(operation: Operation, method: Method, path: &'static str) -> Route {
    Route { operation, method, path }
}

static TABLE: [Route; 12] = [
    route(Operation::Models, Method::GET, "/v1/models"),
    route(Operation::Model, Method::GET, "/v1/models/{*model}"),
    route(Operation::Create, Method::POST, "/v1/responses"),
    route(Operation::Read, Method::GET, "/v1/responses/{response_id}"),
    route(Operation::Delete, Method::DELETE, "/v1/responses/{response_id}"),
    route(Operation::Cancel, Method::POST, "/v1/responses/{response_id}/cancel"),
    route(Operation::InputItems, Method::GET, "/v1/responses/{response_id}/input_items"),
    route(Operation::CreateConversation, Method::POST, "/v1/conversations"),
    route(Operation::ReadConversation, Method::GET, "/v1/conversations/{conversation_id}"),
    route(Operation::UpdateConversation, Method::POST, "/v1/conversations/{conversation_id}"),
    route(Operation::DeleteConversation, Method::DELETE, "/v1/conversations/{conversation_id}"),
    route(Operation::Complete, Method::POST, "/v1/chat/completions"),
];

/// Lists the routes.
#[must_use]
pub fn table() -> &'static [Route] {
    &TABLE
}

/// Returns true for a path of these protocols, whether there is a route or not.
#[must_use]
pub fn owns(path: &str) -> bool {
    let is_below = |rest: &str| rest.is_empty() || rest.starts_with('/');
    ["/v1/models", "/v1/responses", "/v1/chat", "/v1/conversations"]
        .iter()
        .any(|base| path.strip_prefix(base).is_some_and(is_below))
}
