//! OpenAI's protocols, built in.

use std::sync::Arc;

use axum::{Router, response::Response};
use meerkat_service::{ErrorBody, SessionService};
use meerkat_surface_openai::OpenAiOptions;

use super::{OpenAi, Places};

pub(crate) use meerkat_surface_openai::owns;

/// True if the protocols are built in.
pub(crate) const IS_BUILT: bool = true;

/// Makes the answer to a refused request.
pub(crate) fn refusal(body: &ErrorBody) -> Response {
    meerkat_surface_openai::refusal(body)
}

/// Makes the routes.
pub(crate) fn router(
    service: Arc<dyn SessionService>,
    openai: OpenAi,
    (body_bytes_max, places): (u64, Places),
) -> Option<Router> {
    let OpenAi { passing, models, scope_label, call_time } = openai;
    let options = OpenAiOptions { passing, models, scope_label, call_time, body_bytes_max, places };
    Some(meerkat_surface_openai::router(service, options))
}
