//! [`EphemeralSessionService`]: the engine over stores in memory. Sessions end with the process.

use super::sessions::Sessions;

/// Sessions that live in memory, and end when nobody has asked them for a while.
pub type EphemeralSessionService = Sessions<Ephemeral>;

/// Memory as the home of sessions.
#[derive(Debug)]
pub enum Ephemeral {}
