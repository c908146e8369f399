//! Vectors of the texts, made in the background in the texts' order: nothing waits for an embedder.
//!
//! They are kept by embedder and text. An embedder that cannot be read, or another one for a while, deletes none, and
//! equal texts are embedded once. A rebuild makes a second set beside the one that is searched, which is swapped in
//! once it is complete; only then the vectors of other embedders are deleted. Those of another release's built-in table
//! are deleted by the start that finds its own complete.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{Arc, PoisonError, RwLock, Weak, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt as _;
use redb::{ReadTransaction, WriteTransaction};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{
    codes::encode,
    core::Core,
    embed::BUILTIN,
    file::{MemoryFile, Trouble},
    lexical::holding,
    opened::Opened,
    tables::{self, decode_code, encode_code},
    text::head,
    vectors::{Set, Sets, VectorLane},
};
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Intake},
};

/// Texts of one batch.
const BATCH_DOCS: usize = 64;
/// Bytes of text of one batch, except for its last text.
const BATCH_BYTES: usize = 128 * 1024;
/// Texts that one batch passes over because equal ones have vectors.
const BATCH_PASSED: u32 = 4_096;
/// Rows deleted in one transaction.
const DELETED: usize = 16 * 1_024;
/// Longest time that a search waits for its query's vector.
const QUERY_MAX: Duration = Duration::from_secs(1);
/// A word with a capital is a name if at least one text of this many holds it: titles are rarer.
const NAME_SHARE: u64 = 100;
/// Bytes of a text that the embedder gets.
const TEXT_BYTES_MAX: usize = 16 * 1024;

#[derive(Default)]
pub(super) struct Batch {
    /// File whose numbers these are.
    file: Weak<MemoryFile>,
    /// Set that it is for.
    number: Option<u32>,
    /// First text without a vector.
    start: u32,
    /// Hashes of the texts.
    hashes: Vec<u64>,
    texts: Vec<String>,
    /// Texts before this one have vectors once the batch is stored.
    end: u32,
}

impl Batch {
    /// Returns true if its texts are the next ones, and have the same numbers still.
    fn is_next(&self, open: &Opened) -> bool {
        let set = open.vectors.made();
        std::ptr::eq(self.file.as_ptr(), Arc::as_ptr(&open.file))
            && (set.number, set.embedded_to) == (self.number, self.start)
            && self.end > self.start
    }

    /// Returns true if it is for the same texts, which may have other numbers.
    fn is_for(&self, other: &Self) -> bool {
        (self.number, &self.hashes) == (other.number, &other.hashes)
    }
}

impl Core {
    /// Loads the configured embedder's vectors.
    pub(super) fn load_vectors(&self) -> Result<(), Trouble> {
        let Some(embedder) = &self.embedder else { return Ok(()) };
        let id = embedder.id();
        let file = self.read(|open| Ok(open.file.clone()))?;
        let sets = self.read(|open| {
            let transaction = open.file.read()?;
            let numbers = numbers(&transaction, |other| other == id)?;
            let searched = load(open, &transaction, numbers.first().copied(), self.graph_from)?;
            let next = numbers.last().copied().filter(|_| numbers.len() > 1);
            let next = next.map(|number| load(open, &transaction, Some(number), self.graph_from)).transpose()?;
            Ok(Sets { searched, next })
        })?;
        let is_complete = self.change(&file, |open| {
            open.vectors = sets;
            Ok(open.vectors.searched.number.is_some() && has_all_vectors(open))
        })?;
        if is_complete && id.starts_with(BUILTIN) {
            let former = |other: &str| other.starts_with(BUILTIN) && other != id;
            let deleted = numbers(&file.read()?, former)
                .and_then(|numbers| numbers.into_iter().try_for_each(|number| delete_set(&file, number)));
            if let Err(error) = deleted {
                tracing::debug!(?error, "vectors of a former table stay until the next start");
            }
        }
        Ok(())
    }

    /// Takes texts in, and makes their vectors at once if a table makes them and no earlier text lacks one: what was there
    /// before is left to the background, so that no text waits for those of others.
    pub(super) fn add_and_embed(
        &self,
        intakes: Vec<Intake>,
        runtime: &Handle,
        closing: &CancellationToken,
    ) -> Result<(), Trouble> {
        let embeds = self.embedder.as_ref().is_some_and(|embedder| embedder.is_table())
            && self.read(|open| Ok(has_all_vectors(open)))?;
        self.add(intakes)?;
        while embeds && let Some(batch) = self.next_batch()? {
            // A failure is reported by the background, which tries again.
            let Ok(vectors) = self.embed(runtime, &batch, closing) else { break };
            self.put_batch(&batch, &vectors)?;
        }
        Ok(())
    }

    /// Returns the next texts to embed; `None` if all have vectors.
    pub(super) fn next_batch(&self) -> Result<Option<Batch>, Trouble> {
        self.read(|open| if self.embedder.is_some() { next_batch(open) } else { Ok(None) })
    }

    /// Embeds a batch. Takes as long as the embedder does, but ends when the memory closes.
    pub(super) fn embed(
        &self,
        runtime: &Handle,
        batch: &Batch,
        closing: &CancellationToken,
    ) -> Result<Vec<Vec<f32>>, SessionError> {
        let Some(embedder) = self.embedder.as_ref().filter(|_| !batch.texts.is_empty()) else { return Ok(Vec::new()) };
        let embed = embedder.embed(&batch.texts, EmbedFor::Passage);
        let closed = || SessionError::MemoryUnavailable { why: "it is being closed".to_owned() };
        let vectors = runtime.block_on(closing.run_until_cancelled(embed)).ok_or_else(closed)??;
        let dimension = vectors.first().map(Vec::len);
        if vectors.len() != batch.texts.len() || vectors.iter().any(|vector| Some(vector.len()) != dimension) {
            let why = "the embedder did not answer one vector for each text, all of one length".to_owned();
            return Err(SessionError::MemoryUnavailable { why });
        }
        self.fits(dimension, |open| open.vectors.made())?;
        self.is_embedder_failing.store(false, Ordering::Relaxed);
        Ok(vectors)
    }

    /// Returns what is embedded of a query; `None` if there are no vectors to compare with.
    pub(super) fn question(&self, query: &str) -> Result<Option<String>, Trouble> {
        if !self.has_vectors()? {
            return Ok(None);
        }
        self.read(|open| {
            let often = u64::from(open.columns.live) / NAME_SHARE;
            let is_often_said = |word: &str| holding(open, word).map(|count| count >= often.max(1));
            without_names(head(query, TEXT_BYTES_MAX), is_often_said).map(Some)
        })
    }

    /// Embeds a question; `None` if its vector has no direction, or the embedder fails or does not answer in time.
    pub(super) async fn embed_question(&self, question: String) -> Option<Vec<f32>> {
        let embedder = self.embedder.as_ref()?;
        let texts = [question];
        let embedded = AssertUnwindSafe(async { embedder.embed(&texts, EmbedFor::Query).await }).catch_unwind();
        let why = |why: &str| SessionError::MemoryUnavailable { why: why.to_owned() };
        let vector = match tokio::time::timeout(QUERY_MAX, embedded).await {
            Ok(Ok(Ok(vectors))) => {
                let vector = vectors.into_iter().next();
                self.fits(vector.as_ref().map(Vec::len), |open| &open.vectors.searched).map(|()| vector)
            }
            Ok(Ok(Err(error))) => Err(error),
            Ok(Err(_)) => Err(why("the embedder panicked")),
            Err(_) => Err(why("the embedder is silent")),
        };
        match vector {
            Ok(vector) => {
                self.is_embedder_failing.store(false, Ordering::Relaxed);
                vector
            }
            Err(error) => {
                self.embedder_failed(&error);
                None
            }
        }
    }

    /// Checks that vectors are as long as the stored ones: a server may run another model under the same name.
    fn fits(&self, dimension: Option<usize>, of: impl Fn(&Opened) -> &Set) -> Result<(), SessionError> {
        let known = self.read(|open| {
            let lane = of(open).lane.read().unwrap_or_else(PoisonError::into_inner);
            Ok(lane.as_ref().map(VectorLane::dimension))
        });
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
        if self.read(|open| Ok(batch.is_next(open)))? {
            self.put_vectors(batch, vectors)?;
        } else if let Some(next) = self.next_batch()?.filter(|next| next.is_for(batch)) {
            self.put_vectors(&next, vectors)?;
        }
        self.read(|open| Ok((u64::from(open.vectors.made().embedded_to), u64::from(open.columns.next_doc()))))
    }

    fn put_vectors(&self, batch: &Batch, vectors: &[Vec<f32>]) -> Result<(), Trouble> {
        let Some(embedder) = &self.embedder else { return Ok(()) };
        let file = self.read(|open| Ok(open.file.clone()))?;
        let docs = self.read(|open| {
            let live = (batch.start..batch.end).filter_map(|doc| Some((doc, open.columns.doc(doc)?.text)));
            Ok(live.collect::<Vec<_>>())
        })?;
        let live: HashSet<u64> = docs.iter().map(|(_, text)| *text).collect();
        // What has no direction gets an empty row, so that it is not embedded again.
        let code = |vector: &Vec<f32>| encode(vector, vector.len()).ok().flatten().unwrap_or_default();
        let made: Vec<(u64, Vec<i16>)> = batch
            .hashes
            .iter()
            .copied()
            .zip(vectors.iter().map(code))
            .filter(|(text, _)| live.contains(text))
            .collect();
        let mut number = batch.number;
        if !made.is_empty() {
            let store = |transaction: &WriteTransaction| {
                let number = batch.number.map_or_else(|| add_set(transaction, &embedder.id()), Ok)?;
                let mut table = transaction.open_table(tables::VECTORS)?;
                for (text, code) in &made {
                    table.insert((number, *text), &*encode_code(code))?;
                }
                Ok(number)
            };
            // A table makes them again sooner than a disk is synced.
            number = Some(if embedder.is_table() { file.write_lazily(store) } else { file.write(store) }?);
        }
        let lane = self.change(&file, |open| {
            let set = open.vectors.made_mut();
            (set.number, set.embedded_to) = (number, batch.end);
            Ok(set.lane.clone())
        })?;
        let made: std::collections::HashMap<u64, Vec<i16>> = made.into_iter().collect();
        for (doc, text) in docs {
            // One at a time, so that searches run in between.
            let mut lane = lane.write().unwrap_or_else(PoisonError::into_inner);
            match made.get(&text) {
                Some(code) => put(&mut lane, self.graph_from, doc, text, code),
                None => drop(lane.as_mut().map(|lane| lane.share(doc, text))),
            }
        }
        Ok(())
    }

    /// Begins to make all vectors again, beside those that are searched.
    pub(super) fn begin_vectors(&self) -> Result<(), Trouble> {
        let Some(embedder) = &self.embedder else { return Ok(()) };
        let id = embedder.id();
        let file = self.read(|open| Ok(open.file.clone()))?;
        let known = numbers(&file.read()?, |other| other == id)?;
        // What an earlier rebuild left is begun again.
        known.iter().skip(1).try_for_each(|number| delete_set(&file, *number))?;
        if known.is_empty() {
            return Ok(());
        }
        let number = file.write(|transaction| add_set(transaction, &id))?;
        self.change(&file, |open| {
            open.vectors.next = Some(Set { number: Some(number), embedded_to: 0, lane: Arc::default() });
            Ok(())
        })
    }

    /// Does one step of work on what is embedded: swaps in a complete set, or extends the graph. Returns true if more is
    /// left.
    pub(super) fn step(&self) -> Result<bool, Trouble> {
        let (is_complete, is_sparse) = self.read(|open| {
            let lane = open.vectors.searched.lane.read().unwrap_or_else(PoisonError::into_inner);
            let complete = open.vectors.next.as_ref().is_some_and(|set| set.embedded_to == open.columns.next_doc());
            Ok((complete, lane.as_ref().is_some_and(VectorLane::is_sparse)))
        })?;
        if is_complete {
            return self.swap_vectors().map(|()| true);
        }
        if is_sparse {
            return self.load_vectors().map(|()| true);
        }
        let lane = self.read(|open| Ok(open.vectors.searched.lane.clone()))?;
        let mut lane = lane.write().unwrap_or_else(PoisonError::into_inner);
        Ok(lane.as_mut().is_some_and(VectorLane::extend_graph))
    }

    /// Searches the rebuilt set from now on, and deletes all others.
    fn swap_vectors(&self) -> Result<(), Trouble> {
        let file = self.read(|open| Ok(open.file.clone()))?;
        let kept = self.change(&file, |open| {
            if let Some(set) = open.vectors.next.take() {
                open.vectors.searched = set;
            }
            Ok(open.vectors.searched.number)
        })?;
        let all = numbers(&file.read()?, |_| true)?;
        all.into_iter().filter(|number| Some(*number) != kept).try_for_each(|number| delete_set(&file, number))
    }

    fn has_vectors(&self) -> Result<bool, Trouble> {
        let lane = |open: &Opened| open.vectors.searched.lane.clone();
        self.read(|open| Ok(lane(open).read().unwrap_or_else(PoisonError::into_inner).is_some()))
    }

    /// Returns true if texts lack vectors, or the graph lacks some of the vectors.
    pub(super) fn is_behind(&self) -> Result<bool, Trouble> {
        self.read(|open| {
            let lane = open.vectors.searched.lane.read().unwrap_or_else(PoisonError::into_inner);
            Ok(self.embedder.is_some()
                && !(has_all_vectors(open) && lane.as_ref().is_none_or(VectorLane::is_graph_whole)))
        })
    }
}

/// Returns true if no text lacks a vector, and no rebuild is under way.
fn has_all_vectors(open: &Opened) -> bool {
    open.vectors.next.is_none() && open.vectors.searched.embedded_to == open.columns.next_doc()
}

/// Lists the sets of these embedders, the oldest first.
pub(super) fn numbers(transaction: &ReadTransaction, is_of: impl Fn(&str) -> bool) -> Result<Vec<u32>, Trouble> {
    let mut numbers = Vec::new();
    for row in transaction.open_table(tables::EMBEDDERS)?.range::<u32>(..)? {
        let (number, id) = row?;
        if is_of(id.value()) {
            numbers.push(number.value());
        }
    }
    Ok(numbers)
}

/// Adds a set of an embedder, and returns its number.
fn add_set(transaction: &WriteTransaction, embedder: &str) -> Result<u32, Trouble> {
    let mut table = transaction.open_table(tables::EMBEDDERS)?;
    let last = redb::ReadableTable::last(&table)?.map_or(0, |(number, _)| number.value());
    let number = last.saturating_add(1);
    table.insert(number, embedder)?;
    Ok(number)
}

/// Deletes a set, in bounded transactions; its name last, so that a kill leaves nothing without a name.
fn delete_set(file: &MemoryFile, number: u32) -> Result<(), Trouble> {
    loop {
        let is_done = file.write(|transaction| {
            let mut table = transaction.open_table(tables::VECTORS)?;
            let mut left = DELETED;
            table.retain_in((number, 0)..=(number, u64::MAX), |_, _| {
                left = left.saturating_sub(1);
                left == 0
            })?;
            if left > 0 {
                transaction.open_table(tables::EMBEDDERS)?.remove(number)?;
            }
            Ok(left > 0)
        })?;
        if is_done {
            return Ok(());
        }
    }
}

/// Loads a set's vectors from the table.
fn load(open: &Opened, transaction: &ReadTransaction, number: Option<u32>, graph_from: usize) -> Result<Set, Trouble> {
    let end = open.columns.next_doc();
    let Some(of) = number else { return Ok(Set { number, embedded_to: 0, lane: Arc::default() }) };
    let table = transaction.open_table(tables::VECTORS)?;
    let (mut lane, mut embedded_to) = (None::<VectorLane>, end);
    for (doc, row) in open.columns.docs() {
        if lane.as_mut().is_some_and(|lane| lane.share(doc, row.text)) {
            continue;
        }
        match table.get((of, row.text))? {
            Some(code) => put(&mut lane, graph_from, doc, row.text, &decode_code(code.value())),
            None => embedded_to = embedded_to.min(doc),
        }
    }
    Ok(Set { number, embedded_to, lane: Arc::new(RwLock::new(lane)) })
}

fn next_batch(open: &Opened) -> Result<Option<Batch>, Trouble> {
    let set = open.vectors.made();
    let start = set.embedded_to;
    let table = open.file.read()?.open_table(tables::VECTORS)?;
    let is_made =
        |text: u64| set.number.map_or(Ok(false), |number| Ok::<_, Trouble>(table.get((number, text))?.is_some()));
    let mut batch =
        Batch { file: Arc::downgrade(&open.file), number: set.number, start, end: start, ..Batch::default() };
    let mut bytes = 0;
    let is_full = |batch: &Batch, bytes| {
        batch.texts.len() >= BATCH_DOCS || bytes >= BATCH_BYTES || batch.end - batch.start >= BATCH_PASSED
    };
    while batch.end < open.columns.next_doc() && !is_full(&batch, bytes) {
        if let Some(doc) = open.columns.doc(batch.end)
            && !batch.hashes.contains(&doc.text)
            && !is_made(doc.text)?
        {
            let text = open.snapshot.text(batch.end)?;
            bytes += text.len();
            batch.texts.push(head(&text, TEXT_BYTES_MAX).to_owned());
            batch.hashes.push(doc.text);
        }
        batch.end += 1;
    }
    Ok((batch.end > start).then_some(batch))
}

/// Leaves names out of a question, which say who and not what: words with a capital within a sentence that are often
/// said. The question stays as it is if nothing else is in it.
fn without_names(question: &str, is_often_said: impl Fn(&str) -> Result<bool, Trouble>) -> Result<String, Trouble> {
    let mut is_first = true;
    let mut kept: Vec<&str> = Vec::new();
    for word in question.split_whitespace() {
        let letters = word.trim_matches(|letter: char| !letter.is_alphanumeric());
        let own = letters.strip_suffix("'s").or_else(|| letters.strip_suffix("’s")).unwrap_or(letters);
        let mut rest = own.chars();
        let is_name = rest.next().is_some_and(char::is_uppercase) && own.len() > 1 && rest.all(char::is_lowercase);
        if is_first || !is_name || !is_often_said(own)? {
            kept.push(word);
        }
        is_first = word.ends_with(['.', '!', '?', ':']);
    }
    Ok(if kept.len() > 1 { kept.join(" ") } else { question.to_owned() })
}

fn put(lane: &mut Option<VectorLane>, graph_from: usize, doc: u32, text: u64, code: &[i16]) {
    if code.is_empty() {
        return;
    }
    let lane = lane.get_or_insert_with(|| VectorLane::new(code.len(), graph_from));
    if let Err(error) = lane.insert_code(doc, text, code) {
        tracing::debug!(%error, doc, "a text is found by its words alone");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_left_out_of_a_question_and_acronyms_and_rare_words_stay() {
        for (question, expected) in [
            ("When did Caroline join the LGBTQ group?", "When did join the LGBTQ group?"),
            ("What is Anna's dog called?", "What is dog called?"),
            ("Why? Because Ada said so.", "Why? Because said so."),
            ("Postgres", "Postgres"),
            ("What Postgres", "What Postgres"),
            ("When did Anna read Middlemarch?", "When did read Middlemarch?"),
        ] {
            assert_eq!(without_names(question, |word| Ok(word != "Middlemarch")).unwrap(), expected);
        }
    }
}
