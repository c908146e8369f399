//! File tools: `read`, `grep` and `glob`, then `edit` and `write`, all within the session's workspace.
//!
//! No path leads out of the workspace: `path.rs` opens every file from a handle of its folder. A file is replaced
//! whole or not at all (`change.rs`), and never if it changed since the session last read or wrote it (`seen.rs`).

mod common;
mod options;
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

use meerkat_service::{SessionError, tool::Tool};

use change::Changes;
pub use options::{FileAccess, FileOptions};
pub(crate) use path::shown;
pub use restore::{Content, WorkspaceFiles};

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
    let mut tools: Vec<Arc<dyn Tool>> =
        vec![read::tool(options, changes.clone())?, grep::tool(options)?, glob::tool(options)?];
    match options.access {
        FileAccess::Read => {}
        FileAccess::Write => {
            tools.push(Arc::new(edit::tool(changes.clone())?));
            tools.push(Arc::new(write::tool(changes)?));
        }
    }
    Ok(tools)
}
