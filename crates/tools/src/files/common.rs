//! What the file tools have in common: options, the form of a tool, and how it works and fails.

use meerkat_service::{SessionError, model::ToolSpec, session::message::RawJson, tool::ToolError};

/// Tools that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// `read`, `grep` and `glob`.
    Read,
    /// Also `edit` and `write`.
    Write,
}

/// Options of the file tools.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    /// Tools that are offered.
    pub access: FileAccess,
    /// Lines of a page that `read` shows.
    pub read_lines: usize,
    /// Bytes of an answer of `read`, `grep` or `glob`. An answer larger than `tools.inline_bytes` would go to a blob.
    pub answer_bytes: usize,
    /// Bytes of a file that `edit` or `write` may leave or find.
    pub file_bytes: u64,
    /// Matches that `grep` shows.
    pub grep_matches: usize,
    /// Files whose last reading or writing by a session is remembered, of all sessions; the oldest are forgotten.
    pub seen_files: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            access: FileAccess::Write,
            read_lines: 2000,
            answer_bytes: 30 * 1024,
            file_bytes: 16 * 1024 * 1024,
            grep_matches: 200,
            seen_files: 10_000,
        }
    }
}

pub(super) fn spec(name: &str, description: &str, schema: &str) -> Result<ToolSpec, SessionError> {
    Ok(ToolSpec { name: name.to_owned(), description: description.to_owned(), schema: RawJson::parse(schema)? })
}

/// Runs blocking work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            // The engine reports a panic of a tool.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ToolError::Cancelled),
        },
    }
}

/// Words for an input or output error at a path.
pub(super) fn io_failed(path: impl std::fmt::Display, error: impl Into<std::io::Error>) -> ToolError {
    ToolError::Failed(format!("{path}: {}", error.into()))
}
