//! Span of a request, for logs and traces: its surface, operation, session and outcome.

use serde::Deserialize;
use tracing::{Instrument as _, Span, field::Empty};

use crate::{SessionError, SessionId, operation::Operation};

#[derive(Deserialize)]
struct OfSession {
    session_id: SessionId,
}

/// Performs a request of a surface in a span of its own.
///
/// # Errors
/// Those of the work.
pub async fn in_span<T>(
    surface: &'static str,
    operation: Operation,
    params: &str,
    work: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    within(span_of(surface, operation, params), work).await
}

/// The span of a request, for work that does not keep its parameters.
pub fn span_of(surface: &'static str, operation: Operation, params: &str) -> Span {
    let span = tracing::info_span!("request", surface, operation = operation.name(), session_id = Empty, code = Empty);
    if !span.is_disabled()
        && let Ok(OfSession { session_id }) = serde_json::from_str(params)
    {
        span.record("session_id", tracing::field::display(session_id));
    }
    span
}

/// Performs a request in its span.
///
/// # Errors
/// Those of the work.
pub async fn within<T>(span: Span, work: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
    let done = work.instrument(span.clone()).await;
    span.record("code", done.as_ref().map_or_else(|error| error.code().as_str(), |_| "OK"));
    done
}
