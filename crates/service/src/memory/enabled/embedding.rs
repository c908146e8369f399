//! The vectors of the texts: made in the order of the texts, after these are durable, and made anew where another
//! embedder made them.
//!
//! A text without a vector is found by its terms alone. An embedder that fails is asked again when memory takes in more
//! or is built anew; how far it came is durable, so nothing is made twice.

use std::sync::PoisonError;

use tokio::runtime::Handle;

use super::{
    core::Core,
    file::Trouble,
    intake::put_number,
    opened::Opened,
    tables::{self, decode_vector, encode_vector, meta},
    text::head,
    vector::{Stamp, VectorLane},
};
use crate::{SessionError, memory::EmbedFor};

/// Texts that an embedder is given at once.
const BATCH_DOCS: usize = 64;
/// Bytes of text that an embedder is given at once, but for the last text.
const BATCH_BYTES: usize = 128 * 1024;
/// Bytes of a text that its vector is made of.
const TEXT_BYTES_MAX: usize = 16 * 1024;
/// The share of removed vectors past which the graph is built anew.
const REMOVED_SHARE: f64 = 0.2;

/// Texts that are to get their vectors.
struct Batch {
    docs: Vec<u32>,
    texts: Vec<String>,
    /// The texts before this one have theirs then.
    end: u32,
}

/// Why vectors were not made.
pub(super) enum NoVectors {
    /// The embedder did not make them.
    Embedder(SessionError),
    /// The file failed.
    File(Trouble),
}

impl From<Trouble> for NoVectors {
    fn from(trouble: Trouble) -> Self {
        Self::File(trouble)
    }
}

impl Core {
    /// Makes the vectors that are missing; `progress` is told how many texts have theirs, of how many.
    pub(super) fn embed(&self, runtime: &Handle, progress: &dyn Fn(u64, u64)) -> Result<(), NoVectors> {
        let id = self.embedder.id();
        if self.read(|open| Ok(open.embedder != id))? {
            self.drop_vectors(&id)?;
        }
        while let Some(batch) = self.read(next_batch)? {
            let vectors = if batch.texts.is_empty() {
                Vec::new()
            } else {
                let made = runtime.block_on(self.embedder.embed(&batch.texts, EmbedFor::Passage));
                made.map_err(NoVectors::Embedder)?
            };
            let dimension = self.read(|open| Ok(open.with_lane(|lane| lane.as_ref().map(VectorLane::dimension))))?;
            check(&vectors, batch.docs.len(), dimension)?;
            self.put_vectors(&batch, &vectors)?;
            self.read(|open| {
                progress(u64::from(batch.end), u64::from(open.columns.next_doc()));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Begins the vectors anew, for this embedder.
    pub(super) fn drop_vectors(&self, embedder: &str) -> Result<(), Trouble> {
        let (file, generation) = self.read(|open| Ok((open.file.clone(), open.generation + 1)))?;
        file.write(|transaction| {
            transaction.delete_table(tables::VECTORS)?;
            transaction.open_table(tables::VECTORS)?;
            transaction.open_table(tables::META)?.insert(meta::EMBEDDER, embedder.as_bytes())?;
            put_number(transaction, meta::GENERATION, generation)?;
            put_number(transaction, meta::EMBEDDED_TO, 0)
        })?;
        self.change(&file, |open| {
            embedder.clone_into(&mut open.embedder);
            (open.generation, open.embedded_to) = (generation, 0);
            open.with_lane(|lane| *lane = None);
            Ok(())
        })
    }

    fn put_vectors(&self, batch: &Batch, vectors: &[Vec<f32>]) -> Result<(), Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        file.write(|transaction| {
            let mut table = transaction.open_table(tables::VECTORS)?;
            for (doc, vector) in batch.docs.iter().zip(vectors).filter(|(_, vector)| has_direction(vector)) {
                table.insert(*doc, &*encode_vector(vector))?;
            }
            put_number(transaction, meta::EMBEDDED_TO, u64::from(batch.end))
        })?;
        let lane = self.change(&file, |open| {
            open.embedded_to = batch.end;
            Ok(open.lane.clone())
        })?;
        for (doc, vector) in batch.docs.iter().zip(vectors).filter(|(_, vector)| has_direction(vector)) {
            // One at a time: searches go on in between.
            let mut lane = lane.write().unwrap_or_else(PoisonError::into_inner);
            put(&mut lane, *doc, vector);
        }
        Ok(())
    }

    /// Reads the graph, or builds it from the vectors; what was saved may be older than the file.
    pub(super) fn load_lane(&self) -> Result<(), Trouble> {
        self.read(|open| {
            let saved = self.dir.as_deref().and_then(|dir| VectorLane::load(dir, stamp(open)));
            let mut lane = saved;
            let vectors = open.file.read()?.open_table(tables::VECTORS)?;
            for doc in 0..open.embedded_to {
                let is_in = lane.as_ref().is_some_and(|lane| lane.contains(doc));
                match (open.columns.doc(doc).is_some(), is_in) {
                    (true, false) => {
                        if let Some(row) = vectors.get(doc)? {
                            put(&mut lane, doc, &decode_vector(row.value()));
                        }
                    }
                    (false, true) => drop(lane.as_mut().map(|lane| lane.remove(doc))),
                    _ => {}
                }
            }
            open.with_lane(|slot| *slot = lane);
            Ok(())
        })
    }

    /// Saves the graph for the next start.
    pub(super) fn save_lane(&self) -> Result<(), Trouble> {
        let Some(dir) = &self.dir else { return Ok(()) };
        self.read(|open| {
            let lane = open.lane.read().unwrap_or_else(PoisonError::into_inner);
            let saved = lane.as_ref().map_or(Ok(()), |lane| lane.save(dir, stamp(open)));
            saved.map_err(|error| Trouble::Failed(format!("the graph was not saved: {error}")))
        })
    }

    /// Builds the graph anew where much of it was forgotten. Searches use the old one meanwhile.
    pub(super) fn tidy_lane(&self) -> Result<(), Trouble> {
        let lane = self.read(|open| Ok(open.lane.clone()))?;
        let read = || lane.read().unwrap_or_else(PoisonError::into_inner);
        let anew = read().as_ref().filter(|lane| lane.share_removed() > REMOVED_SHARE).map(VectorLane::rebuilt);
        if let Some(anew) = anew {
            *lane.write().unwrap_or_else(PoisonError::into_inner) = Some(anew);
        }
        Ok(())
    }

    pub(super) fn has_vectors(&self) -> Result<bool, Trouble> {
        self.read(|open| Ok(open.lane.read().unwrap_or_else(PoisonError::into_inner).is_some()))
    }

    /// The vector of a query; `None` where it has none, or the embedder fails.
    pub(super) fn embed_query(&self, runtime: &Handle, query: &str) -> Option<Vec<f32>> {
        let texts = [head(query, TEXT_BYTES_MAX).to_owned()];
        match runtime.block_on(self.embedder.embed(&texts, EmbedFor::Query)) {
            Ok(vectors) => vectors.into_iter().next().filter(|vector| has_direction(vector)),
            Err(error) => {
                tracing::debug!(%error, "the query has no vector; its words alone are looked for");
                None
            }
        }
    }
}

fn next_batch(open: &Opened) -> Result<Option<Batch>, Trouble> {
    let mut batch = Batch { docs: Vec::new(), texts: Vec::new(), end: open.embedded_to };
    let mut bytes = 0;
    while batch.end < open.columns.next_doc() && batch.docs.len() < BATCH_DOCS && bytes < BATCH_BYTES {
        if open.columns.doc(batch.end).is_some() {
            let text = open.snapshot.text(batch.end)?;
            bytes += text.len();
            batch.texts.push(head(&text, TEXT_BYTES_MAX).to_owned());
            batch.docs.push(batch.end);
        }
        batch.end += 1;
    }
    Ok((batch.end > open.embedded_to).then_some(batch))
}

/// An embedder is asked for one vector a text, all of one length, of finite numbers.
fn check(vectors: &[Vec<f32>], wanted: usize, dimension: Option<usize>) -> Result<(), NoVectors> {
    let dimension = dimension.or(vectors.first().map(Vec::len));
    let is_sound = |vector: &Vec<f32>| Some(vector.len()) == dimension && vector.iter().all(|value| value.is_finite());
    if vectors.len() == wanted && vectors.iter().all(is_sound) {
        return Ok(());
    }
    let trouble = Trouble::Failed("the embedder answers vectors that are not as its others".to_owned());
    Err(NoVectors::Embedder(super::file::unavailable(&trouble)))
}

fn has_direction(vector: &[f32]) -> bool {
    vector.iter().all(|value| value.is_finite()) && vector.iter().any(|value| *value != 0.0)
}

fn put(lane: &mut Option<VectorLane>, doc: u32, vector: &[f32]) {
    let lane = lane.get_or_insert_with(|| VectorLane::new(vector.len()));
    if let Err(error) = lane.insert(doc, vector) {
        tracing::debug!(%error, doc, "a text is found by its words alone");
    }
}

fn stamp(open: &Opened) -> Stamp {
    let embedder = open
        .embedder
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    // What was added or forgotten since is made good when it is loaded.
    Stamp { embedder, count: 0, generation: open.generation }
}
