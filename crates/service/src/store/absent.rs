//! Durable stores in a build without `session-store`: every request is refused with its code.

use std::path::Path;

use meerkat_words::{
    answers::{Page, SessionSummary},
    requests::SessionQuery,
};

use super::Stores;
use crate::{
    Absence, SessionError,
    capability::{Capabilities, Capability},
};

/// Opens the stores in `data_dir`.
///
/// # Errors
/// `SESSION_PERSISTENCE_DISABLED`.
pub fn open_stores(_data_dir: &Path) -> Result<Stores, SessionError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    Err(SessionError::PersistenceDisabled { absence: Absence::NotBuilt })
}

/// Owned data directory; this build has none.
#[derive(Debug)]
pub struct DirectoryOwner;

impl DirectoryOwner {
    /// Returns the directory; this build has none.
    pub(crate) fn data_dir(&self) -> &Path {
        Path::new("")
    }
}

/// Owns `data_dir`.
///
/// # Errors
/// `SESSION_PERSISTENCE_DISABLED`.
pub fn own_directory(_data_dir: &Path) -> Result<DirectoryOwner, SessionError> {
    Err(SessionError::PersistenceDisabled { absence: Absence::NotBuilt })
}

/// Reads a page of the sessions in `data_dir`, which this build cannot.
///
/// # Errors
/// `SESSION_PERSISTENCE_DISABLED`.
pub fn glance(_: &Path, _: &SessionQuery) -> Result<Page<SessionSummary>, SessionError> {
    Err(SessionError::PersistenceDisabled { absence: Absence::NotBuilt })
}

/// Lowers the priority of this thread; this build has no background work.
pub(crate) const fn step_back() {}
