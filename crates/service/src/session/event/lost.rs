//! What the repairs of a journal say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Key;
use crate::{
    clock::Timestamp,
    ids::{Seq, TurnNumber},
};

/// The end of the journal was cut off: it had not been written whole when the process ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LogTailRepaired {
    /// Bytes that were cut off. No event among them was ever acknowledged.
    pub bytes: u64,
    /// The file beneath the data directory that keeps them.
    pub quarantine: String,
}

/// Events were lost to damage. A turn or call that they ended, or in which they began, has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RecordsLost {
    /// The first and the last lost event of each range, in order. Some of them may have been dropped before.
    pub ranges: Vec<(Seq, Seq)>,
    /// True if a lost turn may have had an idempotency key that is not known any more: a request with it runs again.
    pub keys_unknown: bool,
    /// Keys of lost turns that were still known. A request with one of them is answered as interrupted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<LostKey>,
}

/// Idempotency key of a lost turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LostKey {
    /// The key and the hash of its request.
    pub key: Key,
    /// The turn.
    pub turn: TurnNumber,
    /// The lost event that accepted it.
    pub seq: Seq,
    /// Time of its use.
    pub time: Timestamp,
}
