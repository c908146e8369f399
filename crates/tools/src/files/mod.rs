//! File tools: `read`, `grep` and `glob`, then `edit` and `write`, all within the session's workspace.
//!
//! No path leads out of the workspace: `path.rs` opens every file from a handle of its folder. A file is replaced
//! whole or not at all (`change.rs`), and never if it changed since the session last read or wrote it (`seen.rs`).

mod common;
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
pub(crate) use common::{blocking, spec};
pub(crate) use path::shown;
pub use restore::{Content, WorkspaceFiles};

/// File tools that are offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// `read`, `grep` and `glob`.
    Read,
    /// Also `edit` and `write`.
    Write,
}

/// Makes the file tools.
///
/// # Errors
/// Returns an error if a tool's schema is not valid JSON.
pub fn file_tools(access: FileAccess) -> Result<Vec<Arc<dyn Tool>>, SessionError> {
    let changes = Arc::new(Changes::new());
    let mut tools: Vec<Arc<dyn Tool>> = vec![read::tool(changes.clone())?, grep::tool()?, glob::tool()?];
    match access {
        FileAccess::Read => {}
        FileAccess::Write => {
            tools.push(Arc::new(edit::tool(changes.clone())?));
            tools.push(Arc::new(write::tool(changes)?));
        }
    }
    Ok(tools)
}
