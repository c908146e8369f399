//! Notes about a session's workspace, which its reminders show to the model.

use std::path::Path;

use async_trait::async_trait;

use crate::{
    clock::Timestamp,
    session::{event::Agent, reminder::SystemReminderType},
};

/// Agent of a file, with what the model reads of it before it calls one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFile {
    /// What it is for: one line.
    pub description: String,
    /// The agent. It may name tools that its caller may not use, and models that are not configured.
    pub agent: Agent,
}

/// Writer of notes about workspaces.
#[async_trait]
pub trait WorkspaceNotes: Send + Sync {
    /// Writes the notes about a folder at the start of a turn. A kind without a text has no reminder.
    ///
    /// It has a few seconds; notes that come later are dropped.
    async fn write(&self, workspace: &Path, now: Timestamp) -> Vec<(SystemReminderType, Option<String>)>;

    /// Reads the agents that sub-agents of a session may be, each name once.
    ///
    /// It has a few seconds; agents that come later are not known.
    async fn agents(&self, _workspace: Option<&Path>) -> Vec<AgentFile> {
        Vec::new()
    }

    /// Returns the system prompt of sessions that have a workspace and none of their own.
    fn system_prompt(&self) -> Option<&str> {
        None
    }
}
