//! The durable stores where the build lacks `session-store`: every request for them is answered with its code.

use std::path::Path;

use super::Stores;
use crate::{
    SessionError,
    capability::{Capabilities, Capability},
};

/// The stores in `data_dir`.
///
/// # Errors
/// `SESSION_PERSISTENCE_DISABLED`.
pub fn open_stores(_data_dir: &Path) -> Result<Stores, SessionError> {
    Capabilities::compiled().require(Capability::SessionStore)?;
    Err(SessionError::PersistenceDisabled { configured: false })
}
