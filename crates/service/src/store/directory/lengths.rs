//! Known lengths of the journals, kept in the index: copies that prove what a journal lost.
//!
//! A length is put only when the journal is durable up to there, so it may be behind a journal and is never ahead of a
//! whole one.

use std::{ops::Bound::Unbounded, sync::Weak};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    file::{IndexFile, REBUILT},
    journal::{End, KnownEnd, Near, Witness},
    rows::{Table, Trouble, View},
};
use crate::ids::{Seq, SessionId};

/// Lengths in the index, as long as it is open.
pub(super) struct Lengths(pub(super) Weak<IndexFile>);

#[derive(Serialize, Deserialize)]
struct Row {
    seq: Seq,
    chain: u64,
    #[serde(default)]
    near: Option<Near>,
}

impl Witness for Lengths {
    fn saw(&self, id: SessionId, End { seq, chain }: End, near: Option<Near>) {
        let (Some(file), Ok(row)) = (self.0.upgrade(), serde_json::to_vec(&Row { seq, chain, near })) else { return };
        file.change([((Table::Lengths, id.as_uuid().as_bytes().to_vec()), Some(Bytes::from(row)))]);
    }

    fn end_of(&self, id: SessionId) -> Option<KnownEnd> {
        let read = self.0.upgrade()?.read_here(|view| {
            let row = view.get(Table::Lengths, id.as_uuid().as_bytes())?;
            row.map(|row| serde_json::from_slice(&row).map_err(|error| Trouble::Damaged(error.to_string()))).transpose()
        });
        let row: Option<Row> = read.unwrap_or_else(|error| {
            tracing::warn!(session_id = %id, %error, "the known length of a journal cannot be read");
            None
        });
        row.map(|Row { seq, chain, near }| KnownEnd { end: End { seq, chain }, near })
    }

    fn may_list(&self, id: SessionId) -> bool {
        let Some(file) = self.0.upgrade() else { return true };
        file.read_here(|view| view.may_hold(Table::Sessions, id.as_uuid().as_bytes())).unwrap_or(true)
    }

    fn lists_none(&self) -> bool {
        let Some(file) = self.0.upgrade() else { return false };
        // One that was just made lists none either.
        let lists_none = |view: &View| {
            let is_complete = view.get(Table::Meta, REBUILT)?.is_some();
            Ok(is_complete && view.rows_back(Table::Sessions, Unbounded, Unbounded)?.next().is_none())
        };
        file.read_here(lists_none).unwrap_or(false)
    }
}
