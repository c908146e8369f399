//! OpenAI's protocols are not built in.

use std::sync::Arc;

use axum::{Router, response::Response};
use meerkat_service::{ErrorBody, SessionService};

use super::{OpenAi, Places};

/// True if the protocols are built in.
pub(crate) const IS_BUILT: bool = false;

/// Returns false: no path is theirs.
pub(crate) const fn owns(_: &str) -> bool {
    false
}

/// Makes the answer to a refused request.
pub(crate) fn refusal(body: &ErrorBody) -> Response {
    meerkat_surface_rest::refusal(body)
}

/// Makes no routes.
pub(crate) fn router(_: Arc<dyn SessionService>, _: OpenAi, _: (u64, Places)) -> Option<Router> {
    None
}
