//! [`LocalEmbedder`] in a build without `local-embeddings`: refused, with the feature that is missing.

use std::path::Path;

use async_trait::async_trait;

use meerkat_words::{
    SessionError,
    memory::{EmbedFor, Embedder},
};

/// Embedder that this build lacks.
#[derive(Debug)]
pub enum LocalEmbedder {}

impl LocalEmbedder {
    /// Refuses the model of a directory.
    ///
    /// # Errors
    /// `CONFIG_INVALID`.
    pub fn open(_dir: &Path) -> Result<Self, SessionError> {
        let message = "This build cannot read a local model; take one with the feature `local-embeddings`, or set \
                       memory.embedder to builtin or endpoint.";
        Err(SessionError::ConfigInvalid { key: "memory.embedder".to_owned(), message: message.to_owned() })
    }
}

#[async_trait]
impl Embedder for LocalEmbedder {
    fn id(&self) -> String {
        match *self {}
    }

    async fn embed(&self, _: &[String], _: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_feature_that_is_missing() {
        let refused = LocalEmbedder::open(Path::new("any")).unwrap_err();
        assert_eq!(refused.code(), meerkat_errors::ErrorCode::ConfigInvalid);
        let SessionError::ConfigInvalid { key, message } = refused else { panic!("{refused:?}") };
        assert_eq!(key, "memory.embedder");
        assert!(message.contains("with the feature `local-embeddings`"), "{message}");
    }
}
