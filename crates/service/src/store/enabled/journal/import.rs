//! A journal that is made at once from records that were written elsewhere. Nothing of it is seen before [`appear`].
//!
//! [`appear`]: super::appear

use std::{io, sync::Arc};

use super::{
    Context,
    disk::{DiskFile, create_anew, ensure_dir, write_all},
    frame::{BATCH_END, Entry, encode, footer},
    layout::{BLOBS, new_dir, segment_name},
    recovery::{Found, failed},
    segment::Header,
    store_journal::Resting,
};
use crate::{ids::SessionId, store::StoreError};

/// A journal in the making.
pub(crate) struct Import {
    context: Arc<Context>,
    id: SessionId,
    place: super::frame::Place,
    /// The segment that is written; the next one where the last is sealed.
    number: u64,
    /// Its file and how long that is.
    file: Option<(Arc<dyn DiskFile>, u64)>,
    /// Where the records of the segment before end.
    previous_end: u64,
}

impl Import {
    /// Begins with nothing but the blobs that were written for the session.
    pub(crate) fn begin(context: Arc<Context>, id: SessionId) -> Result<Self, StoreError> {
        let disk = context.disk.as_ref();
        context.health.room(disk)?;
        let cleared = || -> io::Result<()> {
            let dir = new_dir(id);
            if !ensure_dir(disk, &dir)? {
                let names = disk.list(&dir)?;
                // What an attempt that failed has left is no part of this one.
                names.iter().filter(|name| *name != BLOBS).try_for_each(|name| disk.remove(&dir.join(name)))?;
            }
            Ok(())
        };
        cleared().map_err(failed)?;
        let place = Found::nothing(id).place;
        Ok(Self { context, id, place, number: 1, file: None, previous_end: 0 })
    }

    /// Writes some records as one batch.
    pub(crate) fn add(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let follows = entries.iter().zip(self.place.seq + 1..).all(|(entry, seq)| entry.seq == seq);
        if !follows {
            return Err(StoreError::Fenced);
        }
        self.write(entries).map_err(failed)
    }

    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut out = Vec::new();
        let (file, at) = match self.file.take() {
            Some(open) => open,
            None => {
                let header = Header {
                    session_id: self.id,
                    number: self.number,
                    generation: 1,
                    base_seq: self.place.seq + 1,
                    base_batch: self.place.batch + 1,
                    chain: self.place.chain,
                    previous_end: self.previous_end,
                };
                out = header.encode();
                (create_anew(self.context.disk.as_ref(), &new_dir(self.id).join(segment_name(self.number, 1)))?, 0)
            }
        };
        let batch = self.place.batch + 1;
        for (entry, left) in entries.iter().zip((0..entries.len()).rev()) {
            encode(&mut out, &mut self.place, batch, if left == 0 { BATCH_END } else { 0 }, entry);
        }
        write_all(file.as_ref(), &out, at)?;
        let end = at + out.len() as u64;
        if end < self.context.limits.segment_bytes {
            self.file = Some((file, end));
            return Ok(());
        }
        write_all(file.as_ref(), &footer(self.place), end)?;
        file.sync()?;
        (self.number, self.previous_end) = (self.number + 1, end);
        Ok(())
    }

    /// Makes all of it durable; answers where it ends.
    pub(crate) fn end(self) -> Result<Resting, StoreError> {
        if self.place.seq == 0 {
            return Err(StoreError::Failed("there is nothing to import".to_owned()));
        }
        let synced = self.file.map_or(Ok(()), |(file, _)| file.sync());
        synced
            .and_then(|()| self.context.disk.sync_dir(&new_dir(self.id)))
            .map_err(|error| self.context.health.unsure(self.id, error))?;
        let (seq, chain) = (self.place.seq, self.place.chain);
        Ok(Resting { session_id: self.id, seq, chain })
    }
}
