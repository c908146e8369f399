//! File tools: `read`, `grep` and `glob`, then `edit` and `write`, all within the session's workspace.
//!
//! No path leads out of the workspace: `path.rs` opens every file from a handle of its folder. A file is replaced
//! whole or not at all (`change.rs`), and never if it changed since the session last read or wrote it (`seen.rs`).

mod path;
mod walk;

mod read;

mod grep;
mod search;

mod glob;

mod edit;
mod write;

mod change;
mod diff;
mod marks;
mod nearest;
mod replace;
mod restore;
mod seen;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use meerkat_service::{
    SessionError,
    model::ToolSpec,
    session::message::RawJson,
    tool::{Tool, ToolError},
};

use change::Changes;
pub use restore::{Content, WorkspaceFiles};

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

/// Least of [`FileOptions::answer_bytes`]: one long line and the notes fit.
const ANSWER_BYTES_MIN: usize = 4 * 1024;

/// Makes the file tools.
///
/// # Errors
/// `INVALID_REQUEST` for a limit that is too small.
pub fn file_tools(options: FileOptions) -> Result<Vec<Arc<dyn Tool>>, SessionError> {
    for (field, is_enough, least) in [
        ("read_lines", options.read_lines > 0, 1),
        ("answer_bytes", options.answer_bytes >= ANSWER_BYTES_MIN, ANSWER_BYTES_MIN),
        ("file_bytes", options.file_bytes > 0, 1),
        ("grep_matches", options.grep_matches > 0, 1),
        ("seen_files", options.seen_files > 0, 1),
    ] {
        if !is_enough {
            return Err(SessionError::invalid(field, format!("must be at least {least}")));
        }
    }
    let changes = Arc::new(Changes::new(options));
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(read::Read::new(options, changes.clone())?),
        Arc::new(grep::Grep::new(options)?),
        Arc::new(glob::Glob::new(options)?),
    ];
    match options.access {
        FileAccess::Read => {}
        FileAccess::Write => {
            tools.push(Arc::new(edit::Edit::new(changes.clone())?));
            tools.push(Arc::new(write::Write::new(changes)?));
        }
    }
    Ok(tools)
}

fn spec(name: &str, description: &str, schema: &str) -> Result<ToolSpec, SessionError> {
    Ok(ToolSpec { name: name.to_owned(), description: description.to_owned(), schema: RawJson::parse(schema)? })
}

/// Runs blocking work off the async threads.
async fn blocking<T: Send + 'static>(
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
fn io_failed(path: impl std::fmt::Display, error: impl Into<std::io::Error>) -> ToolError {
    ToolError::Failed(format!("{path}: {}", error.into()))
}
