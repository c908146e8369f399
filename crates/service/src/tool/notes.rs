//! Notes about a session's workspace, which its reminders show to the model.

use std::path::Path;

use async_trait::async_trait;

use crate::{clock::Timestamp, session::reminder::SystemReminderType};

/// Writer of notes about workspaces.
#[async_trait]
pub trait WorkspaceNotes: Send + Sync {
    /// Writes the notes about a folder at the start of a turn. A kind without a text has no reminder.
    ///
    /// It has a few seconds; notes that come later are dropped.
    async fn write(&self, workspace: &Path, now: Timestamp) -> Vec<(SystemReminderType, Option<String>)>;

    /// Returns the system prompt of sessions that have a workspace and none of their own.
    fn system_prompt(&self) -> Option<&str> {
        None
    }
}
