//! What the engine and a memory hand to each other, and the traits that a memory and its embedder keep.
//!
//! Nothing here is a memory: it is always compiled, whatever the build has.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    SessionError,
    answers::{Forgotten, Page, Reindexed, SearchHit},
    clock::Timestamp,
    ids::{Seq, SessionId},
    requests::{ForgetMemory, SearchMemory},
};

/// A message, or a part of a long one, as memory keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// The first event that it comes from.
    pub seq: Seq,
    /// The last event that it comes from.
    pub to_seq: Seq,
    /// Which part of a long message it is, from 0.
    pub part: u32,
    /// Who said it: `user`, `assistant` or `tool_results`.
    pub role: String,
    /// Where it came from, to forget it by: `user`, `assistant` or `tool:<name>`.
    pub source: String,
    /// When.
    pub time: Timestamp,
    /// What was said.
    pub text: String,
}

/// What memory takes in of one session at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intake {
    /// The session.
    pub session_id: SessionId,
    /// The session's labels as they are now.
    pub labels: BTreeMap<String, String>,
    /// What was said, in order. A passage is known by its session, seq and part.
    pub passages: Vec<Passage>,
    /// The session's journal is taken in up to here.
    pub up_to: Seq,
    /// The sessions that it is a fork of, and up to where it has their records: what is forgotten of those records is
    /// forgotten here, too.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inherited: BTreeMap<SessionId, Seq>,
}

/// A store that finds what was said.
#[async_trait]
pub trait MemoryStore: Send + Sync {
    /// Up to where a session is taken in; 0 where it is not known.
    async fn taken_in(&self, session_id: SessionId) -> Result<Seq, SessionError>;

    /// The sessions that it took in from their journals. One whose journal is gone is then said to be [`Self::gone`].
    async fn sessions(&self) -> Result<Vec<SessionId>, SessionError> {
        Ok(Vec::new())
    }

    /// Takes in what was said. It is durable, as a whole, when this answers. A passage that is there already, or was
    /// forgotten, changes nothing.
    async fn add(&self, intakes: Vec<Intake>) -> Result<(), SessionError>;

    /// The best hits, the best first. Where nothing fits, there is none.
    async fn search(&self, request: SearchMemory) -> Result<Page<SearchHit>, SessionError>;

    /// Forgets what was taken in so far, for good, of a session and of its forks: no rebuild brings it back.
    async fn forget(&self, request: ForgetMemory) -> Result<Forgotten, SessionError>;

    /// A session is deleted: nothing is left of it.
    async fn gone(&self, session_id: SessionId) -> Result<(), SessionError>;

    /// Builds what is derived of the texts anew; `progress` is told how many passages are done, of how many.
    async fn reindex(&self, progress: ProgressSink<'_>) -> Result<Reindexed, SessionError>;

    /// Whether it lost what it knew, and every session is to be taken in from its beginning.
    ///
    /// # Errors
    /// Where it cannot say so now; it is to be asked again before it is given anything.
    async fn needs_rebuild(&self) -> Result<bool, SessionError> {
        Ok(false)
    }

    /// Every session was taken in from its beginning, after it was said to be needed.
    async fn rebuilt(&self) -> Result<(), SessionError> {
        Ok(())
    }

    /// Waits until all that was begun is durable, and saves what makes the next start quick.
    async fn close(&self) {}
}

/// Told how many are done, of how many.
pub type ProgressSink<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// A memory that can be shared.
pub type SharedMemory = Arc<dyn MemoryStore>;

/// What a text is turned into a vector for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmbedFor {
    /// To be found.
    Passage,
    /// To find.
    Query,
}

/// Turns texts into vectors, near ones for texts of like meaning.
#[async_trait]
pub trait Embedder: Send + Sync {
    /// Its name and version. Vectors of another one are made anew.
    fn id(&self) -> String;

    /// A vector for each text, all of one length, each of length 1 or all zeros.
    ///
    /// # Errors
    /// `MEMORY_INDEX_UNAVAILABLE` where it cannot be reached or answers what it may not.
    async fn embed(&self, texts: &[String], purpose: EmbedFor) -> Result<Vec<Vec<f32>>, SessionError>;
}

/// What is secret about an embeddings endpoint, or the surroundings' own.
#[derive(Clone, Debug, Default)]
pub struct EndpointAccess {
    /// Its key.
    pub key: Option<secrecy::SecretString>,
    /// The proxy for `https`, which may carry a password.
    pub proxy: Option<secrecy::SecretString>,
    /// Hosts that are reached without the proxy, separated by commas.
    pub no_proxy: Option<String>,
}

/// How a memory is opened.
#[derive(Clone, Default)]
pub struct MemoryOptions {
    /// What makes its vectors; where `None`, what the engine's options say.
    pub embedder: Option<Arc<dyn Embedder>>,
    /// How an embeddings endpoint is reached that the options name.
    pub endpoint: EndpointAccess,
    /// Whether it records what it takes in itself, because no journal outlives the process.
    pub records_intake: bool,
}
