//! Vectors of the texts, made in the texts' order, and all again after a change of embedder. Those of the built-in
//! embedder are durable together with their texts, others later: nothing waits for an embedder.
//!
//! A text without a vector is found by its terms alone. A failed embedder is asked again when memory takes in more or
//! is rebuilt; progress is durable, so no vector is made twice.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError, Weak, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt as _;
use redb::WriteTransaction;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{
    HashedEmbedder,
    core::Core,
    file::{MemoryFile, Trouble},
    intake::put_number,
    opened::Opened,
    tables::{self, encode_vector, meta},
    text::head,
    vector::VectorLane,
};
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder as _},
};

/// Texts of one batch.
const BATCH_DOCS: usize = 64;
/// Bytes of text of one batch, except for its last text.
const BATCH_BYTES: usize = 128 * 1024;
/// Longest time that a search waits for its query's vector.
const QUERY_MAX: Duration = Duration::from_secs(1);
/// Bytes of a text that the embedder gets.
const TEXT_BYTES_MAX: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Batch {
    /// File whose numbers these are.
    file: Weak<MemoryFile>,
    /// First text without a vector.
    start: u32,
    docs: Vec<u32>,
    texts: Vec<String>,
    /// Texts before this one have vectors once the batch is stored.
    end: u32,
}

impl Batch {
    /// Returns true if its texts are the next ones, and have the same numbers still.
    fn is_next(&self, open: &Opened) -> bool {
        std::ptr::eq(self.file.as_ptr(), Arc::as_ptr(&open.file))
            && open.embedded_to == self.start
            && self.end > self.start
    }
}

/// Vectors of one transaction.
pub(super) struct Vectors {
    embedder: String,
    made: Vec<(u32, Vec<f32>)>,
    /// Texts before this one have vectors once the batch is stored.
    embedded_to: u32,
}

impl Vectors {
    fn new(embedder: String, mut made: Vec<(u32, Vec<f32>)>, embedded_to: u32) -> Self {
        // A vector without a direction finds nothing.
        made.retain(|(_, vector)| has_direction(vector));
        Self { embedder, made, embedded_to }
    }

    pub(super) fn write(&self, transaction: &WriteTransaction) -> Result<(), Trouble> {
        let mut table = transaction.open_table(tables::VECTORS)?;
        for (doc, vector) in &self.made {
            table.insert(*doc, &*encode_vector(vector))?;
        }
        transaction.open_table(tables::META)?.insert(meta::EMBEDDER, self.embedder.as_bytes())?;
        put_number(transaction, meta::EMBEDDED_TO, u64::from(self.embedded_to))
    }
}

impl Core {
    /// Returns the next texts to embed; `None` if all have vectors.
    pub(super) fn next_batch(&self) -> Result<Option<Batch>, Trouble> {
        let id = self.embedder.id();
        self.read(|open| if open.embedder == id { next_batch(open) } else { Ok(Some(Batch::default())) })
    }

    /// Embeds a batch. Takes as long as the embedder does, but ends when the memory closes.
    pub(super) fn embed(
        &self,
        runtime: &Handle,
        batch: &Batch,
        closing: &CancellationToken,
    ) -> Result<Vec<Vec<f32>>, SessionError> {
        if batch.texts.is_empty() {
            return Ok(Vec::new());
        }
        let embed = self.embedder.embed(&batch.texts, EmbedFor::Passage);
        let closed = || SessionError::MemoryUnavailable { why: "it is being closed".to_owned() };
        let vectors = runtime.block_on(closing.run_until_cancelled(embed)).ok_or_else(closed)??;
        let dimension = vectors.first().map(Vec::len);
        if vectors.len() != batch.texts.len() || vectors.iter().any(|vector| Some(vector.len()) != dimension) {
            let why = "the embedder did not answer one vector for each text, all of one length".to_owned();
            return Err(SessionError::MemoryUnavailable { why });
        }
        self.fits(dimension)?;
        self.is_embedder_failing.store(false, Ordering::Relaxed);
        Ok(vectors)
    }

    /// Embeds a query; `None` if its vector has no direction, or the embedder fails or does not answer in time.
    pub(super) async fn embed_query(&self, query: &str) -> Option<Vec<f32>> {
        let texts = [head(query, TEXT_BYTES_MAX).to_owned()];
        let embedded = AssertUnwindSafe(async { self.embedder.embed(&texts, EmbedFor::Query).await }).catch_unwind();
        let why = |why: &str| SessionError::MemoryUnavailable { why: why.to_owned() };
        let vector = match tokio::time::timeout(QUERY_MAX, embedded).await {
            Ok(Ok(Ok(vectors))) => {
                let vector = vectors.into_iter().next();
                self.fits(vector.as_ref().map(Vec::len)).map(|()| vector)
            }
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(why("the embedder panicked")),
            Err(_) => Err(why("the embedder is silent")),
        };
        match vector {
            Ok(vector) => {
                self.is_embedder_failing.store(false, Ordering::Relaxed);
                vector.filter(|vector| has_direction(vector))
            }
            Err(error) => {
                self.embedder_failed(&error);
                None
            }
        }
    }

    /// Checks that vectors are as long as the stored ones: a server may run another model under the same name.
    fn fits(&self, dimension: Option<usize>) -> Result<(), SessionError> {
        let of = |lane: &Option<VectorLane>| lane.as_ref().map(VectorLane::dimension);
        let known = self.read(|open| Ok(of(&open.lane.read().unwrap_or_else(PoisonError::into_inner))));
        match (known.ok().flatten(), dimension) {
            (Some(known), Some(new)) if known != new => Err(SessionError::MemoryUnavailable {
                why: format!(
                    "the embedder answers with {new} components, and the vectors that are there have {known}; \
                     `meerkat memory reindex` makes all of them again"
                ),
            }),
            _ => Ok(()),
        }
    }

    /// Warns once; further failures are logged at debug.
    pub(super) fn embedder_failed(&self, error: &SessionError) {
        if self.is_embedder_failing.swap(true, Ordering::Relaxed) {
            tracing::debug!(%error, "the embedder still fails");
        } else {
            tracing::warn!(%error, "searches use words alone until the embedder answers");
        }
    }

    /// Stores the vectors of a batch if it is still the next one; returns how many texts have vectors, of how many.
    pub(super) fn put_batch(&self, batch: &Batch, vectors: &[Vec<f32>]) -> Result<(u64, u64), Trouble> {
        let id = self.embedder.id();
        if self.read(|open| Ok(open.embedder != id))? {
            self.drop_vectors(&id)?;
        } else if self.read(|open| Ok(batch.is_next(open)))? {
            self.put_vectors(batch, vectors)?;
        }
        self.read(|open| Ok((u64::from(open.embedded_to), u64::from(open.columns.next_doc()))))
    }

    /// Deletes all vectors, and begins with this embedder.
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
            open.building = None;
            Ok(())
        })
    }

    fn put_vectors(&self, batch: &Batch, vectors: &[Vec<f32>]) -> Result<(), Trouble> {
        let id = self.embedder.id();
        let (file, vectors) = self.read(|open| {
            let made = batch.docs.iter().copied().zip(vectors.iter().cloned());
            let live = made.filter(|(doc, _)| open.columns.doc(*doc).is_some()).collect();
            Ok((open.file.clone(), Vectors::new(id, live, batch.end)))
        })?;
        file.write(|transaction| vectors.write(transaction))?;
        self.add_to_lane(&file, vectors)
    }

    /// Makes the vectors of texts about to be stored if the embedder is the built-in one and no earlier vector is
    /// missing: one transaction then holds both.
    pub(super) fn vectors_at_once<'a>(
        &self,
        texts: impl Iterator<Item = (u32, &'a str)>,
        end: u32,
    ) -> Result<Option<Vectors>, Trouble> {
        let id = self.embedder.id();
        let is_next = self.read(|open| {
            let next = open.columns.next_doc();
            Ok(next == 0 || (open.embedder == id && open.embedded_to == next))
        })?;
        let vector = |(doc, text)| (doc, HashedEmbedder::vector(head(text, TEXT_BYTES_MAX)));
        let is_quick = is_next && id == HashedEmbedder.id();
        Ok(is_quick.then(|| Vectors::new(id, texts.map(vector).collect(), end)))
    }

    /// Adds stored vectors to the lane in RAM.
    pub(super) fn add_to_lane(&self, file: &Arc<MemoryFile>, vectors: Vectors) -> Result<(), Trouble> {
        let lane = self.change(file, |open| {
            (open.embedder, open.embedded_to) = (vectors.embedder, vectors.embedded_to);
            Ok(open.lane.clone())
        })?;
        for (doc, vector) in &vectors.made {
            // One at a time, so that searches run in between.
            put(&mut lane.write().unwrap_or_else(PoisonError::into_inner), *doc, vector);
        }
        Ok(())
    }

    pub(super) fn has_vectors(&self) -> Result<bool, Trouble> {
        self.read(|open| Ok(open.lane.read().unwrap_or_else(PoisonError::into_inner).is_some()))
    }

    /// Returns true if texts lack vectors, or the graph lacks some of the vectors.
    pub(super) fn is_behind(&self) -> Result<bool, Trouble> {
        let id = self.embedder.id();
        self.read(|open| {
            let is_whole = open.embedder == id && open.embedded_to == open.columns.next_doc();
            Ok(!is_whole || open.building.is_some())
        })
    }
}

fn next_batch(open: &Opened) -> Result<Option<Batch>, Trouble> {
    let start = open.embedded_to;
    let file = Arc::downgrade(&open.file);
    let mut batch = Batch { file, start, end: start, ..Batch::default() };
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
    Ok((batch.end > start).then_some(batch))
}

pub(super) fn has_direction(vector: &[f32]) -> bool {
    vector.iter().all(|value| value.is_finite()) && vector.iter().any(|value| *value != 0.0)
}

pub(super) fn put(lane: &mut Option<VectorLane>, doc: u32, vector: &[f32]) {
    let lane = lane.get_or_insert_with(|| VectorLane::new(vector.len()));
    if let Err(error) = lane.insert(doc, vector) {
        tracing::debug!(%error, doc, "a text is found by its words alone");
    }
}
