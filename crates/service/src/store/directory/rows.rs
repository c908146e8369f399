//! Rows of the index: each with a checksum, and with uncommitted changes over the file's rows.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use bytes::Bytes;
use meerkat_journal::derived::DerivedFile;
use redb::{ReadTransaction, TableDefinition, TableError};
use serde::de::DeserializeOwned;

pub(super) use meerkat_journal::derived::Trouble;

use crate::{ids::SessionId, store::list::Place};

/// Tables of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Table {
    /// `layout`, and `rebuilt` once every stored session is in the file.
    Meta,
    /// Session's id → number of its last change, and its summary.
    Sessions,
    /// Number of a session's last change, then its id → nothing: sessions in the order of their changes.
    Changes,
    /// Scope's id (zeros for the store), then the key → the session or turn that answers.
    Keys,
    /// Session's id, then a reader's name → seq.
    Checkpoints,
    /// Session's id → its snapshot.
    Snapshots,
    /// Session's id → durable length of its journal.
    Lengths,
}

impl Table {
    pub(super) const fn definition(self) -> TableDefinition<'static, &'static [u8], &'static [u8]> {
        TableDefinition::new(match self {
            Self::Meta => "meta",
            Self::Sessions => "sessions",
            Self::Changes => "changes",
            Self::Keys => "keys",
            Self::Checkpoints => "checkpoints",
            Self::Snapshots => "snapshots",
            Self::Lengths => "lengths",
        })
    }
}

/// Rows to put, or to delete if `None`.
pub(super) type Changes = BTreeMap<(Table, Vec<u8>), Option<Bytes>>;

/// Bytes of a row's checksum.
pub(super) const SEAL_BYTES: usize = 4;

/// Adds the checksum of a row's key and value: redb does not check its own when it reads.
pub(super) fn sealed(key: &[u8], value: &[u8]) -> Vec<u8> {
    let sum = crc32c::crc32c_append(crc32c::crc32c(key), value);
    [&sum.to_le_bytes(), value].concat()
}

pub(super) fn unsealed(key: &[u8], row: &[u8]) -> Result<Bytes, Trouble> {
    match row.split_first_chunk::<SEAL_BYTES>() {
        Some((sum, value)) if crc32c::crc32c_append(crc32c::crc32c(key), value) == u32::from_le_bytes(*sum) => {
            Ok(Bytes::copy_from_slice(value))
        }
        _ => Err(Trouble::Damaged("a row is not as it was written".to_owned())),
    }
}

pub(crate) fn decode<T: DeserializeOwned>(row: &[u8]) -> Result<T, Trouble> {
    serde_json::from_slice(row).map_err(|error| Trouble::Damaged(error.to_string()))
}

/// Reads the place of a session from its id and row.
pub(super) fn place(id: &[u8], row: &[u8]) -> Option<Place> {
    let session_id = SessionId::from_uuid(uuid::Uuid::from_bytes(id.try_into().ok()?));
    Some(Place { number: u64::from_be_bytes(*row.first_chunk()?), session_id })
}

/// File at one moment, with the uncommitted changes.
pub(crate) struct View {
    pub(super) file: Option<Arc<DerivedFile>>,
    pub(super) dirty: Arc<Changes>,
    pub(super) committing: Arc<Changes>,
    pub(super) transaction: Option<ReadTransaction>,
}

type ReadTable = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

impl View {
    /// Reads one row.
    pub(crate) fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Trouble> {
        let place = (table, key.to_vec());
        if let Some(changed) = self.dirty.get(&place).or_else(|| self.committing.get(&place)) {
            return Ok(changed.clone());
        }
        self.stored(table, key)
    }

    /// Returns true if a row may exist after a power failure.
    pub(super) fn may_hold(&self, table: Table, key: &[u8]) -> Result<bool, Trouble> {
        let place = (table, key.to_vec());
        let is_put = |changes: &Changes| matches!(changes.get(&place), Some(Some(_)));
        Ok(is_put(&self.dirty) || is_put(&self.committing) || self.stored(table, key)?.is_some())
    }

    fn stored(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, Trouble> {
        let Some(open) = self.open(table)? else { return Ok(None) };
        open.get(key)?.map(|row| unsealed(key, row.value())).transpose()
    }

    /// Reads the rows between two keys, last one first.
    pub(crate) fn rows_back(
        &self,
        table: Table,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<impl Iterator<Item = Result<(Vec<u8>, Bytes), Trouble>>, Trouble> {
        let place = |bound: Bound<&[u8]>| bound.map(|key| (table, key.to_vec()));
        let (first, last) = (place(from), place(to));
        let mut changed: BTreeMap<Vec<u8>, Option<Bytes>> = BTreeMap::new();
        for changes in [&self.committing, &self.dirty] {
            let within = changes.range((first.clone(), last.clone())).filter(|((of, _), _)| *of == table);
            changed.extend(within.map(|((_, key), value)| (key.clone(), value.clone())));
        }
        let mut stored = match self.open(table)? {
            Some(open) => Some(open.range::<&[u8]>((from, to))?.rev()),
            None => None,
        };
        let mut changed = changed.into_iter().rev().peekable();
        let mut next_stored = move || {
            let row = stored.as_mut()?.next()?;
            Some(row.map_err(Trouble::from).and_then(|(key, row)| {
                let key = key.value().to_vec();
                unsealed(&key, row.value()).map(|value| (key, value))
            }))
        };
        let mut waiting = next_stored();
        Ok(std::iter::from_fn(move || {
            loop {
                let is_change = match (&waiting, changed.peek()) {
                    (_, None) | (Some(Err(_)), _) => false,
                    (None, Some(_)) => true,
                    (Some(Ok((stored, _))), Some((changed, _))) => changed >= stored,
                };
                if !is_change {
                    return std::mem::replace(&mut waiting, next_stored());
                }
                let (key, value) = changed.next()?;
                if matches!(&waiting, Some(Ok((stored, _))) if *stored == key) {
                    waiting = next_stored();
                }
                if let Some(value) = value {
                    return Some(Ok((key, value)));
                }
            }
        }))
    }

    fn open(&self, table: Table) -> Result<Option<ReadTable>, Trouble> {
        match self.transaction.as_ref().map(|transaction| transaction.open_table(table.definition())) {
            None | Some(Err(TableError::TableDoesNotExist(_))) => Ok(None),
            Some(Ok(open)) => Ok(Some(open)),
            Some(Err(error)) => Err(error.into()),
        }
    }
}
