//! A model as sentence-transformers and Hugging Face publish encoders of the BERT family.
//!
//! What can be checked without the weights is checked when it is opened; the weights are read when they are first
//! needed, so that a command which embeds nothing does not wait for them. The model runs in one thread of its own: it
//! never takes a thread that others wait for, nor more than one processor from the turns.

mod bert;
mod directory;
mod matrix;
mod tokens;

use std::{
    path::Path,
    sync::{Arc, OnceLock, mpsc},
    thread,
};

use async_trait::async_trait;
use tokio::sync::oneshot;

use self::{bert::Bert, directory::Directory};
use super::refused;
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

/// The setting that names the directory.
const KEY: &str = "local.dir";

/// A model in a local directory.
#[derive(Debug)]
pub struct LocalEmbedder {
    model: Arc<Model>,
    /// Where the model's thread takes its work from; the thread ends with it.
    jobs: mpsc::Sender<Job>,
}

/// A text that waits for its vector.
struct Job {
    text: String,
    answer: oneshot::Sender<Result<Vec<f32>, SessionError>>,
}

#[derive(Debug)]
struct Model {
    directory: Directory,
    read: OnceLock<Result<Read, String>>,
}

/// The weights, and the hash of all that a vector depends on.
#[derive(Debug)]
struct Read {
    bert: Bert,
    hash: String,
}

impl LocalEmbedder {
    /// The model of a directory. Its weights are not read yet.
    ///
    /// # Errors
    /// `CONFIG_INVALID` where the directory or a file of it is missing, cannot be read, or is of a kind of model that is
    /// not supported; `MEMORY_INDEX_UNAVAILABLE` where no thread can be had for it.
    pub fn open(dir: &Path) -> Result<Self, SessionError> {
        let directory = Directory::open(dir).map_err(|why| refused(KEY, why))?;
        let model = Arc::new(Model { directory, read: OnceLock::new() });
        let (jobs, taken) = mpsc::channel();
        let thread = thread::Builder::new().name("embedder".to_owned());
        let working = model.clone();
        thread.spawn(move || working.work(&taken)).map_err(|error| failed(&error))?;
        Ok(Self { model, jobs })
    }
}

impl Model {
    fn read(&self) -> Result<&Read, SessionError> {
        let read = self.read.get_or_init(|| {
            let (bert, hash) = self.directory.read()?;
            Ok(Read { bert, hash })
        });
        read.as_ref().map_err(|why| SessionError::MemoryUnavailable { why: why.clone() })
    }

    fn work(&self, jobs: &mpsc::Receiver<Job>) {
        for Job { text, answer } in jobs {
            // Who no longer waits costs nothing.
            if !answer.is_closed() {
                let _ = answer.send(self.vector(&text));
            }
        }
    }

    fn vector(&self, text: &str) -> Result<Vec<f32>, SessionError> {
        let bert = &self.read()?.bert;
        let mut vector = bert.vector(&self.directory.vocabulary.tokens(text, self.directory.tokens_max));
        super::super::normalise(&mut vector);
        Ok(vector)
    }
}

#[async_trait]
impl Embedder for LocalEmbedder {
    /// The first time it reads the weights.
    fn id(&self) -> String {
        // A model that has become unreadable has a name of its own: its vectors are made anew when it is readable again.
        self.model.read().map_or_else(|_| "local-unreadable".to_owned(), |read| format!("local-1-{}", read.hash))
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let (query, passage) = &self.model.directory.prompts;
        let prompt = match purpose {
            EmbedFor::Query => query,
            EmbedFor::Passage => passage,
        };
        let mut vectors = Vec::with_capacity(texts.len());
        // One at a time, so that a query waits for no more than one text of many.
        for text in texts {
            let (answer, made) = oneshot::channel();
            self.jobs.send(Job { text: format!("{prompt}{text}"), answer }).map_err(|error| failed(&error))?;
            vectors.push(made.await.map_err(|error| failed(&error))??);
        }
        Ok(vectors)
    }
}

/// The model's thread is not there.
fn failed(error: &dyn std::fmt::Display) -> SessionError {
    SessionError::MemoryUnavailable { why: format!("the local model does not work: {error}; start anew") }
}
