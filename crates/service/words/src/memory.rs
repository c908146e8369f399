//! Types and traits between the engine, a memory and its embedder.
//!
//! They are always compiled, even in a build without memory.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    SessionError,
    answers::{Page, Reindexed, SearchHit},
    clock::Timestamp,
    ids::{Seq, SessionId},
    requests::{ForgetMemory, SearchMemory},
};

/// Message, or part of a long one, in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// First event of the passage.
    pub seq: Seq,
    /// Last event of the passage.
    pub to_seq: Seq,
    /// Number of the part of a long message, from 0.
    pub part: u32,
    /// Role: `user`, `assistant` or `tool_results`.
    pub role: String,
    /// Source, by which it can be forgotten: `user`, `assistant` or `tool:<name>`.
    pub source: String,
    /// Time of the message.
    pub time: Timestamp,
    /// The text.
    pub text: String,
}

/// Texts of one session for memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intake {
    /// The session.
    pub session_id: SessionId,
    /// The session's current labels.
    pub labels: BTreeMap<String, String>,
    /// Passages, in order. Session, seq and part identify one.
    pub passages: Vec<Passage>,
    /// Last seq that this covers.
    pub up_to: Seq,
    /// Sessions that it is a fork of, each with the last seq of theirs that it has: texts forgotten there are forgotten
    /// here too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inherited: BTreeMap<SessionId, Seq>,
}

/// Store that finds texts again.
#[async_trait]
pub trait MemoryStore: Send + Sync {
    /// Returns the last seq of a session that was added; 0 if unknown.
    async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError>;

    /// Lists the sessions that were added from journals. One whose journal is deleted is then [`Self::gone`].
    async fn sessions(&self) -> Result<Vec<SessionId>, SessionError> {
        Ok(Vec::new())
    }

    /// Adds texts. They are durable, all of them, when this returns. A passage that is already there, or was forgotten,
    /// changes nothing.
    async fn add(&self, intakes: Vec<Intake>) -> Result<(), SessionError>;

    /// Finds the best hits, best first. Equal texts of one role come once: under the oldest session's id if one is a
    /// copy of the other in a fork.
    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError>;

    /// Returns the text beside each hit in its session: the one before it, else the one after it.
    async fn beside(&self, hits: &[SearchHit]) -> Result<Vec<Option<String>>, SessionError> {
        Ok(vec![None; hits.len()])
    }

    /// Decides what a request forgets of what was added so far: for each session a request with all its limits. Nothing
    /// is forgotten yet.
    async fn to_forget(&self, request: ForgetMemory) -> Result<Vec<ForgetMemory>, SessionError>;

    /// Forgets texts of sessions and their forks for good, as it was decided here or at another node: no rebuild restores
    /// them, and those that are not added yet stay out. Forgetting the same again changes nothing. Returns the number of
    /// texts once no search finds them, also after a kill; their bytes may still be in files.
    async fn forget(&self, decided: Vec<ForgetMemory>) -> Result<u64, SessionError>;

    /// Waits until what was forgotten has left every file. It leaves them without that, too, and after a kill at the next
    /// start.
    ///
    /// # Errors
    /// The disk's. What was forgotten is not found all the same.
    async fn erased(&self) -> Result<(), SessionError> {
        Ok(())
    }

    /// Lists what [`Self::forget`] was ever given.
    async fn forgotten(&self) -> Result<Vec<ForgetMemory>, SessionError> {
        Ok(Vec::new())
    }

    /// Removes everything of a deleted session.
    async fn gone(&self, session_id: SessionId) -> Result<(), SessionError>;

    /// Rebuilds derived data from the texts; `progress` gets the passages done, and their number.
    async fn reindex(&self, progress: ProgressSink<'_>) -> Result<Reindexed, SessionError>;

    /// Returns true if texts were lost, so that every session must be added from its beginning.
    ///
    /// # Errors
    /// If this is unknown now; ask again before adding anything.
    async fn needs_rebuild(&self) -> Result<bool, SessionError> {
        Ok(false)
    }

    /// Confirms that every session was added from its beginning after [`Self::needs_rebuild`]. If texts were lost again
    /// meanwhile, it confirms nothing, and another rebuild is needed.
    async fn rebuilt(&self) -> Result<(), SessionError> {
        Ok(())
    }

    /// Waits until everything begun is durable, and saves data for a quick start. From then on others may open its
    /// files.
    async fn close(&self) {}
}

/// Callback with the number done, and the number of all.
pub type ProgressSink<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Shared memory.
pub type SharedMemory = Arc<dyn MemoryStore>;

/// Purpose of a vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedFor {
    /// A passage to find.
    Passage,
    /// A query.
    Query,
}

/// Makes vectors of texts, close ones for texts of similar meaning.
#[async_trait]
pub trait Embedder: Send + Sync {
    /// Returns name and version. Vectors of another one are recomputed.
    fn id(&self) -> String;

    /// Returns true for a table of words' vectors: texts have theirs once they are added, and they count only where words
    /// find little.
    fn is_table(&self) -> bool {
        false
    }

    /// Returns a vector for each text, all of one dimension, each of length 1 or all zeros.
    ///
    /// # Errors
    /// `MEMORY_INDEX_UNAVAILABLE` if it cannot be reached or its answer is not valid.
    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError>;
}

/// Secrets and network settings for an embeddings endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointAccess {
    /// Its key.
    pub key: Option<secrecy::SecretString>,
    /// The proxy for `https`, which may carry a password.
    pub proxy: Option<secrecy::SecretString>,
    /// Hosts to reach without the proxy, separated by commas.
    pub no_proxy: Option<String>,
}

/// Options for opening a memory.
#[derive(Clone)]
pub struct MemoryOptions {
    /// Source of its vectors; as the engine's options say if `None`.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// Vectors from which on a graph finds the nearest; of a service it is what the engine's options say.
    pub graph_from: usize,
    /// Access to the embeddings endpoint that the options name.
    pub endpoint: EndpointAccess,
    /// True if it records added texts itself, because no journal outlives the process.
    pub records_intake: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        let graph_from = crate::options::MemoryConfig::default().graph_from;
        Self { embedder: None, graph_from, endpoint: EndpointAccess::default(), records_intake: false }
    }
}
