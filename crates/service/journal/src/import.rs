//! Importing a journal from records that were written elsewhere. It is invisible until [`appear`].
//!
//! [`appear`]: super::appear

use std::{io, sync::Arc};

use super::{
    Context, End,
    disk::{DiskFile, create_anew, ensure_dir, failed, write_all},
    frame::{Entry, Place, encode_batch, footer},
    layout::{BLOBS, new_dir, segment_name, with_folders},
    recovery::Found,
    segment::{Compacted, Header},
};
use meerkat_words::{ids::SessionId, store::StoreError};

/// Journal under construction.
pub struct Import {
    context: Arc<Context>,
    id: SessionId,
    place: Place,
    /// Number of the current or next segment.
    number: u64,
    segment: Option<Begun>,
    /// End of the previous segment's records.
    previous_end: u64,
}

struct Begun {
    file: Arc<dyn DiskFile>,
    header: Header,
    /// End of its records, and their number.
    end: u64,
    count: u64,
    /// True if records are missing, because journal compaction dropped them at their origin.
    has_gap: bool,
}

impl Begun {
    /// Writes the header or footer before the segment is synced.
    fn close(&self, after: Place, is_sealed: bool) -> io::Result<()> {
        if self.has_gap {
            let compacted = Some(Compacted { after, count: self.count, end: self.end });
            return write_all(self.file.as_ref(), &Header { compacted, ..self.header }.encode(), 0);
        }
        if is_sealed { write_all(self.file.as_ref(), &footer(after), self.end) } else { Ok(()) }
    }
}

impl Import {
    /// Begins an import; only the session's blobs may exist already.
    pub fn begin(context: Arc<Context>, id: SessionId) -> Result<Self, StoreError> {
        let disk = context.disk.as_ref();
        context.health.room(disk)?;
        let cleared = || -> io::Result<()> {
            let dir = new_dir(id);
            if !with_folders(disk, || ensure_dir(disk, &dir))? {
                let names = disk.list(&dir)?;
                // Removes the files of a failed attempt.
                names.iter().filter(|name| *name != BLOBS).try_for_each(|name| disk.remove(&dir.join(name)))?;
            }
            Ok(())
        };
        cleared().map_err(failed)?;
        let place = Found::nothing(id).place;
        Ok(Self { context, id, place, number: 1, segment: None, previous_end: 0 })
    }

    /// Writes records as one batch. Seqs rise, and may skip: of a damaged session the first ones may be lost.
    pub fn add(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let mut before = self.place.seq;
        let rises = entries.iter().all(|entry| entry.seq > std::mem::replace(&mut before, entry.seq));
        if !rises {
            return Err(StoreError::OutOfOrder);
        }
        self.write(entries).map_err(failed)
    }

    fn write(&mut self, entries: &[Entry]) -> io::Result<()> {
        let mut out = Vec::new();
        let mut segment = match self.segment.take() {
            Some(segment) => segment,
            None => {
                let header = Header::after(self.id, self.number, self.place, self.previous_end);
                out = header.encode();
                let path = new_dir(self.id).join(segment_name(self.number, 1));
                let file = create_anew(self.context.disk.as_ref(), &path)?;
                Begun { file, header, end: 0, count: 0, has_gap: false }
            }
        };
        let batch = self.place.batch + 1;
        let seqs = entries.iter().map(|entry| entry.seq);
        segment.has_gap |= !seqs.zip(self.place.seq + 1..).all(|(seq, next)| seq == next);
        encode_batch(&mut out, &mut self.place, batch, entries);
        write_all(segment.file.as_ref(), &out, segment.end)?;
        segment.end += out.len() as u64;
        segment.count += entries.len() as u64;
        if segment.end < self.context.limits.segment_bytes {
            self.segment = Some(segment);
            return Ok(());
        }
        segment.close(self.place, true)?;
        segment.file.sync()?;
        (self.number, self.previous_end) = (self.number + 1, segment.end);
        Ok(())
    }

    /// Makes the journal durable; returns its end.
    pub fn end(self) -> Result<End, StoreError> {
        if self.place.seq == 0 {
            return Err(StoreError::Failed("there is nothing to import".to_owned()));
        }
        let end = |segment: Begun| segment.close(self.place, false).and_then(|()| segment.file.sync());
        let synced = self.segment.map_or(Ok(()), end);
        synced
            .and_then(|()| self.context.disk.sync_dir(&new_dir(self.id)))
            .map_err(|error| self.context.health.unsure(self.id, error))?;
        let (seq, chain) = (self.place.seq, self.place.chain);
        Ok(End { seq, chain })
    }
}
