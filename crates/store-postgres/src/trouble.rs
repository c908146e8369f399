//! Failures of the database, by what they say about the outcome: nothing happened, or nobody knows.

use std::error::Error as _;

use deadpool_postgres::PoolError;
use meerkat_service::store::StoreError;
use tokio_postgres::{Error, error::SqlState};

/// Code of a server that takes no writes.
const READ_ONLY: &str = "25006";

/// Failure of a statement or transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server refused it: nothing of it happened.
    Refused {
        /// Code of the SQL standard.
        state: String,
        /// Server's message.
        message: String,
    },
    /// No connection could be made, so nothing was sent.
    Unreached(String),
    /// The connection was lost, or the answer did not come in time: it may have happened.
    Lost(String),
    /// The database holds something that this version did not write.
    Unreadable(String),
    /// The store's own answer, such as a session that does not exist: nothing happened.
    Answer(StoreError),
}

impl Trouble {
    /// Returns true if the same statement may succeed soon.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            // Serialization, deadlock, lock not available, cancelled; and while another server takes over: no writes,
            // no connections yet, too many of them.
            Self::Refused { state, .. } => {
                matches!(state.as_str(), "40001" | "40P01" | "55P03" | "57014" | READ_ONLY | "57P03" | "53300")
            }
            Self::Unreached(_) | Self::Lost(_) => true,
            Self::Unreadable(_) | Self::Answer(_) => false,
        }
    }
}

impl Trouble {
    /// Returns true if another connection may do better: this one is broken, or leads to a server that another one
    /// replaces.
    pub(crate) fn is_of_the_connection(&self) -> bool {
        matches!(self, Self::Lost(_)) || matches!(self, Self::Refused { state, .. } if state == READ_ONLY)
    }
}

/// Returns true if an error with this code may come after the commit: the session was ended, the connection failed.
fn is_unsure(state: &SqlState) -> bool {
    let code = state.code();
    code.starts_with("08") || code.starts_with("57P") || code == "40003"
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        match error.as_db_error() {
            Some(refusal) if !is_unsure(refusal.code()) => {
                Self::Refused { state: refusal.code().code().to_owned(), message: refusal.message().to_owned() }
            }
            _ => Self::Lost(chain(&error)),
        }
    }
}

impl From<PoolError> for Trouble {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Backend(error) => Self::Unreached(chain(&error)),
            PoolError::Timeout(_) => Self::Unreached("no connection was free or could be made in time".to_owned()),
            other => Self::Unreached(other.to_string()),
        }
    }
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Answer(error)
    }
}

impl From<Trouble> for StoreError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused { state, .. } if state == "53100" => Self::Full,
            Trouble::Refused { state, .. } if state == READ_ONLY => {
                Self::ReadOnly("the database server takes no writes; it may be a standby".to_owned())
            }
            Trouble::Refused { state, message } => Self::Failed(format!("the database refused: {message} ({state})")),
            Trouble::Unreached(why) => Self::Failed(format!("the database cannot be reached: {why}")),
            Trouble::Lost(why) => Self::Failed(format!("the database did not confirm: {why}")),
            Trouble::Unreadable(why) => Self::Failed(why),
            Trouble::Answer(error) => error,
        }
    }
}

/// Joins an error's messages with those of its causes. The driver's errors hold no password.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = match error.as_db_error() {
        Some(refusal) => return format!("{} ({})", refusal.message(), refusal.code().code()),
        None => error.to_string(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
