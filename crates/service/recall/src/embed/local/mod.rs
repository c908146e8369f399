//! An embedder that is a model in a local directory: an encoder of the BERT family, as sentence-transformers and Hugging
//! Face publish it, or a table of model2vec. No server, no download, and no text leaves the process.
//!
//! Opening it checks everything but the weights. They are read when they are first needed, so that a command that embeds
//! nothing does not wait for them. The model runs in a thread of its own: it never blocks a thread that others wait for,
//! and takes at most one processor from the turns.

mod directory;
mod encoder;
mod tokens;

use std::{
    path::Path,
    sync::{Arc, OnceLock, mpsc},
};

use async_trait::async_trait;
use rayon::ThreadPoolBuilder;
use tokio::sync::oneshot;

use self::{directory::Directory, encoder::Encoder};
use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

/// Embedder over a model in a local directory.
#[derive(Debug)]
pub struct LocalEmbedder {
    model: Arc<Model>,
    /// Queue of the model's thread, which ends when this is dropped.
    jobs: mpsc::Sender<Job>,
}

struct Job {
    text: String,
    answer: oneshot::Sender<Result<Vec<f32>, SessionError>>,
}

#[derive(Debug)]
struct Model {
    directory: Directory,
    read: OnceLock<Result<Read, String>>,
}

/// Weights, and the hash of all files that a vector depends on.
#[derive(Debug)]
struct Read {
    encoder: Encoder,
    hash: String,
}

impl LocalEmbedder {
    /// Opens the model in a directory, without reading its weights.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if the directory or one of its files is missing, unreadable or of an unsupported kind of model;
    /// `MEMORY_INDEX_UNAVAILABLE` if no thread can be started for it.
    pub fn open(dir: &Path) -> Result<Self, SessionError> {
        let refused = |message| SessionError::ConfigInvalid { key: "memory.local.dir".to_owned(), message };
        let directory = Directory::open(dir).map_err(refused)?;
        let model = Arc::new(Model { directory, read: OnceLock::new() });
        let (jobs, taken) = mpsc::channel();
        // Its crates take all threads of the pool that they run in. After a panic the queue has no end to read it.
        let pool = ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "embedder".to_owned()).panic_handler(drop);
        let working = model.clone();
        pool.build().map_err(|error| failed(&error))?.spawn(move || working.work(&taken));
        Ok(Self { model, jobs })
    }
}

impl Model {
    fn read(&self) -> Result<&Read, SessionError> {
        let read = self.read.get_or_init(|| {
            let (encoder, hash) = self.directory.read()?;
            Ok(Read { encoder, hash })
        });
        read.as_ref().map_err(|why| SessionError::MemoryUnavailable { why: why.clone() })
    }

    fn work(&self, jobs: &mpsc::Receiver<Job>) {
        for Job { text, answer } in jobs {
            // A caller that no longer waits costs nothing.
            if !answer.is_closed() {
                let _ = answer.send(self.vector(&text));
            }
        }
    }

    fn vector(&self, text: &str) -> Result<Vec<f32>, SessionError> {
        let encoder = &self.read()?.encoder;
        let tokens = self.directory.vocabulary.tokens(text).map_err(|error| failed(&error))?;
        let mut vector = encoder.vector(&tokens).map_err(|error| failed(&error))?;
        super::normalise(&mut vector);
        Ok(vector)
    }
}

#[async_trait]
impl Embedder for LocalEmbedder {
    /// Reads the weights the first time.
    fn id(&self) -> String {
        // An unreadable model has an id of its own, so that all vectors are made again once it is readable.
        self.model.read().map_or_else(|_| "local-unreadable".to_owned(), |read| format!("local-1-{}", read.hash))
    }

    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let (query, passage) = &self.model.directory.prompts;
        let prompt = match purpose {
            EmbedFor::Query => query,
            EmbedFor::Passage => passage,
        };
        let mut vectors = Vec::with_capacity(texts.len());
        // One at a time, so that a query waits for one text at most.
        for text in texts {
            let (answer, made) = oneshot::channel();
            self.jobs.send(Job { text: format!("{prompt}{text}"), answer }).map_err(|error| failed(&error))?;
            vectors.push(made.await.map_err(|error| failed(&error))??);
        }
        Ok(vectors)
    }
}

fn failed(error: &dyn std::fmt::Display) -> SessionError {
    SessionError::MemoryUnavailable { why: format!("the local model does not work: {error}; restart meerkat") }
}
