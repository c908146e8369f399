//! The lane's file, under one checksum. A file with any fault counts as absent.
//!
//! It is written under another name and renamed once it is durable, so that a crash leaves the old or the new file.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use super::{
    VectorLane,
    graph::{Graph, LINKS, LINKS_LOWEST, NONE, level_of},
};

const NAME: &str = "vectors.graph";
const NEW_NAME: &str = "vectors.graph.new";
/// First bytes: kind and format version.
const MAGIC: [u8; 8] = *b"\xFFmkvec\x001";
/// Bytes read or written at a time; a multiple of every number's size.
const CHUNK_BYTES: usize = 256 * 1024;

/// Origin of a file: one of another origin is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Hash of the embedder's id.
    pub embedder: u64,
    /// Number of vectors.
    pub count: u64,
    /// Generation of the vectors.
    pub generation: u64,
}

impl VectorLane {
    /// Writes it into `dir`, durably, replacing the previous file.
    ///
    /// # Errors
    /// The system's; the previous file stays then.
    pub fn save(&self, dir: &Path, stamp: Stamp) -> io::Result<()> {
        let new = dir.join(NEW_NAME);
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        let written = self.write(&file, stamp).and_then(|()| file.sync_all());
        if let Err(error) = written {
            // The next attempt overwrites what is left.
            drop(fs::remove_file(&new));
            return Err(error);
        }
        fs::rename(&new, dir.join(NAME))?;
        File::open(dir)?.sync_all()
    }

    /// Removes the file, and what a killed process left of one.
    ///
    /// # Errors
    /// The system's.
    pub(in super::super) fn discard(dir: &Path) -> io::Result<()> {
        [NAME, NEW_NAME].iter().try_for_each(|name| match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        })
    }

    fn write(&self, file: &File, stamp: Stamp) -> io::Result<()> {
        let Graph { dimension, codes, lowest, upper, upper_at: _, twin, entry } = &self.graph;
        let mut out = Writer { file, crc: 0, chunk: Vec::with_capacity(CHUNK_BYTES) };
        out.put(&MAGIC)?;
        for number in [stamp.embedder, stamp.count, stamp.generation] {
            out.put(&number.to_le_bytes())?;
        }
        for number in [*dimension, self.ids.len(), upper.len(), *entry as usize] {
            out.put(&(number as u64).to_le_bytes())?;
        }
        codes.iter().try_for_each(|code| out.put(&code.to_le_bytes()))?;
        for words in [&self.ids, twin, lowest, upper] {
            words.iter().try_for_each(|word| out.put(&word.to_le_bytes()))?;
        }
        self.is_removed.iter().try_for_each(|&is_removed| out.put(&[u8::from(is_removed)]))?;
        out.end()
    }

    /// Loads the file in `dir`; `None` if there is none with this stamp, or it has a fault.
    #[must_use]
    pub fn load(dir: &Path, stamp: Stamp) -> Option<Self> {
        let mut file = File::open(dir.join(NAME)).ok()?;
        let len = file.metadata().ok()?.len();
        let mut input = Reader { file: &mut file, crc: 0, left: len.checked_sub(4)?, chunk: vec![0; CHUNK_BYTES] };
        if input.array::<8>()? != MAGIC || input.number()? != stamp.embedder {
            return None;
        }
        if (input.number()?, input.number()?) != (stamp.count, stamp.generation) {
            return None;
        }
        let mut size = || usize::try_from(input.number()?).ok();
        let (dimension, nodes, upper, entry) = (size()?, size()?, size()?, size()?);
        let codes = input.many(nodes.checked_mul(dimension)?, i16::from_le_bytes)?;
        let ids = input.many(nodes, u32::from_le_bytes)?;
        let twin = input.many(nodes, u32::from_le_bytes)?;
        let lowest = input.many(nodes.checked_mul(LINKS_LOWEST)?, u32::from_le_bytes)?;
        let upper = input.many(upper, u32::from_le_bytes)?;
        let is_removed = input.many(nodes, |[byte]: [u8; 1]| byte != 0)?;
        input.end()?;
        let entry = u32::try_from(entry).ok()?;
        let mut graph = Graph { dimension, codes, lowest, upper, upper_at: Vec::new(), twin, entry };
        graph.place_upper()?;
        let live = (0..).zip(&ids).zip(&is_removed).filter(|(_, is_removed)| !**is_removed);
        let nodes: HashMap<u32, u32> = live.map(|((node, &id), _)| (id, node)).collect();
        Some(Self { graph, ids, nodes, is_removed })
    }
}

impl Graph {
    /// Finds the offsets of the nodes' upper links, as `insert` placed them; `None` if a link leads to no node.
    fn place_upper(&mut self) -> Option<()> {
        let count = u32::try_from(self.nodes()).ok()?;
        let leads = |&link: &u32| link < count || link == NONE;
        let all = [&self.lowest, &self.upper, &self.twin];
        if !all.iter().all(|links| links.iter().all(leads)) || !leads(&self.entry) || (self.entry == NONE && count > 0)
        {
            return None;
        }
        let mut is_twin = vec![false; self.nodes()];
        for &twin in self.twin.iter().filter(|&&twin| twin != NONE) {
            is_twin[twin as usize] = true;
        }
        let mut at = 0;
        for (node, is_twin) in (0..count).zip(is_twin) {
            let levels = if is_twin { 0 } else { level_of(node) };
            self.upper_at.push(if levels == 0 { NONE } else { u32::try_from(at).ok()? });
            at += levels as usize * LINKS;
        }
        (at == self.upper.len()).then_some(())
    }
}

struct Writer<'a> {
    file: &'a File,
    crc: u32,
    chunk: Vec<u8>,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.chunk.len() + bytes.len() > CHUNK_BYTES {
            self.flush()?;
        }
        self.chunk.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.crc = crc32c::crc32c_append(self.crc, &self.chunk);
        self.file.write_all(&self.chunk)?;
        self.chunk.clear();
        Ok(())
    }

    fn end(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.write_all(&self.crc.to_le_bytes())
    }
}

struct Reader<'a> {
    file: &'a mut File,
    crc: u32,
    /// Unread bytes before the checksum: larger counts are not believed, and get no allocation.
    left: u64,
    chunk: Vec<u8>,
}

impl Reader<'_> {
    fn read(&mut self, len: usize) -> Option<&[u8]> {
        self.left = self.left.checked_sub(len as u64)?;
        let bytes = self.chunk.get_mut(..len)?;
        self.file.read_exact(bytes).ok()?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.read(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads `count` values of `N` bytes each.
    fn many<T, const N: usize>(&mut self, count: usize, value: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
        let bytes = count.checked_mul(N)?;
        if bytes as u64 > self.left {
            return None;
        }
        let mut values = Vec::with_capacity(count);
        let mut left = bytes;
        while left > 0 {
            let chunk = self.read(left.min(CHUNK_BYTES))?;
            left -= chunk.len();
            values.extend(chunk.as_chunks::<N>().0.iter().map(|bytes| value(*bytes)));
        }
        Some(values)
    }

    fn end(self) -> Option<()> {
        let mut crc = [0; 4];
        self.file.read_exact(&mut crc).ok()?;
        (self.left == 0 && u32::from_le_bytes(crc) == self.crc).then_some(())
    }
}
