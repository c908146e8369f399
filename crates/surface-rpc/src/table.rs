//! The table: the name of each method, and what it means.

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

const SUBSCRIBE: &str = "session/subscribe";
const LIST_SUBSCRIBE: &str = "session/list_subscribe";
pub(crate) const UNSUBSCRIBE: &str = "session/unsubscribe";
const DISCOVER: &str = "rpc.discover";

/// Methods that are no operation.
const OTHERS: [(&str, Method); 4] = [
    (SUBSCRIBE, Method::Subscribe),
    (LIST_SUBSCRIBE, Method::ListSubscribe),
    (UNSUBSCRIBE, Method::Unsubscribe),
    (DISCOVER, Method::Discover),
];

/// Every method with its name. An operation's is its public name.
pub fn methods() -> impl Iterator<Item = (&'static str, Method)> {
    Operation::ALL.iter().map(|&operation| (operation.public_name(), Method::Operation(operation))).chain(OTHERS)
}

/// The method of the notifications that a subscription sends.
pub(crate) const EVENT: &str = "session/event";

/// The meaning of the method of this name.
pub(crate) fn find(name: &str) -> Option<Method> {
    methods().find(|(known, _)| *known == name).map(|(_, method)| method)
}
