//! A model as sentence-transformers and Hugging Face publish encoders of the BERT family.
//!
//! What can be checked without the weights is checked when it is opened; the weights are read when they are first
//! needed, so that a command which embeds nothing does not wait for them. The model runs on blocking threads only.

mod bert;
mod directory;
mod matrix;
mod tokens;

use std::{
    path::Path,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;

use self::{bert::Bert, directory::Directory};
use super::refused;
use crate::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

/// The setting that names the directory.
const KEY: &str = "local.dir";

/// A model in a local directory.
#[derive(Debug)]
pub struct LocalEmbedder(Arc<Model>);

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
    /// not supported.
    pub fn open(dir: &Path) -> Result<Self, SessionError> {
        let directory = Directory::open(dir).map_err(|why| refused(KEY, why))?;
        Ok(Self(Arc::new(Model { directory, read: OnceLock::new() })))
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
        self.0.read().map_or_else(|_| "local-unreadable".to_owned(), |read| format!("local-1-{}", read.hash))
    }

    async fn embed(&self, texts: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        let mut vectors = Vec::with_capacity(texts.len());
        // One at a time: who no longer waits stops it after the text that it is at.
        for text in texts {
            let (model, text) = (self.0.clone(), text.clone());
            let made = tokio::task::spawn_blocking(move || model.vector(&text)).await;
            let failed = |error| SessionError::MemoryUnavailable { why: format!("the local model failed: {error}") };
            vectors.push(made.map_err(failed)??);
        }
        Ok(vectors)
    }
}
