//! The methods: the operations of the service, and what JSON-RPC itself needs.

use meerkat_service::Operation;

/// Meaning of a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Performs an operation of the service.
    Operation(Operation),
    /// Follows a session's events, by notifications of `session/event`.
    Subscribe,
    /// Follows the list of sessions, by the same notifications.
    ListSubscribe,
    /// Ends a subscription.
    Unsubscribe,
    /// Answers with the document that describes all methods.
    Discover,
}

/// Methods that are no operation.
const OTHERS: [(&str, Method); 4] = [
    ("session/subscribe", Method::Subscribe),
    ("session/list_subscribe", Method::ListSubscribe),
    ("session/unsubscribe", Method::Unsubscribe),
    ("rpc.discover", Method::Discover),
];

/// Every method with its name. An operation's is its public name.
pub fn methods() -> impl Iterator<Item = (&'static str, Method)> {
    Operation::ALL.iter().map(|&operation| (operation.public_name(), Method::Operation(operation))).chain(OTHERS)
}

/// The method of the notifications that a subscription sends.
pub(crate) const EVENT: &str = "session/event";

/// The method of this name.
pub(crate) fn find(name: &str) -> Option<Method> {
    methods().find(|(known, _)| *known == name).map(|(_, method)| method)
}
