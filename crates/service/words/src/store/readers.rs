//! Stored data of readers.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// Registered reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    /// Its name.
    pub reader: String,
    /// Time of registration.
    pub created_at: Timestamp,
}
