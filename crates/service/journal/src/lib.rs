//! The files of a data directory: each session's journal, its blobs, and the marks of the store. It knows
//! bytes, seqs and batches, but no events.
//!
//! In reading order: the disk and its formats; one session's open journal, its writing, recovery and reading; then the
//! whole store.

pub mod disk;
pub mod frame;
pub mod layout;
pub mod segment;

mod commit;
mod log;
mod pass;
mod read;
pub mod recovery;

pub mod check;

mod blobs;
mod fork;
mod import;
mod prune;

pub mod derived;

mod executor;
mod health;
mod marks;
mod opening;
mod owner_lock;

#[cfg(feature = "sim")]
pub mod simulated;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meerkat_words::{
    ids::{Seq, SessionId},
    store::StoreError,
};
use serde::{Deserialize, Serialize};

pub use blobs::FileBlobs;
pub use check::{Checked, Damage, LastRecord, Mended, check, mend};
pub use disk::{Disk, RealDisk, is_unreadable};
pub use executor::{Executor, Pool, READS_MAX, on};
pub use fork::{Trouble, abandon, appear, discard, fork_files, is_gone, set_aside};
pub use frame::Entry;
pub use health::{FREE_FILES_MIN, Health};
pub use import::Import;
pub use layout::{
    bytes_of, check_directory, check_private, exists, is_store, journal_bytes_of, known_store_id, log_unlisted, seal,
    session_dir, sessions_on, store_id,
};
pub use log::Log;
pub use marks::{Found as FoundMarks, Marks, write_marks};
pub use opening::{Prepared, look, prepare};
pub use owner_lock::OwnerLock;
pub use pass::pass;
pub use prune::{Drops, Rewritten, candidates, parts, replace, rewrite};
pub use read::page;
pub use recovery::unreadable;

/// Sizes, which tests reduce.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Length at which a segment is sealed.
    pub segment_bytes: u64,
    /// Bytes of the newest lines that an open journal keeps in memory.
    pub cache_bytes: usize,
    /// Most journals with an open file and a cache.
    pub hot_max: usize,
    /// Bytes reserved for running turns when the disk is full.
    pub reserve_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { segment_bytes: 8 * 1024 * 1024, cache_bytes: 128 * 1024, hot_max: 256, reserve_bytes: 4 * 1024 * 1024 }
    }
}

/// End of a journal; any record missing before it is a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Seq of the last record.
    pub seq: Seq,
    /// Value of the chain after it.
    pub chain: u64,
}

impl End {
    /// Returns true if a journal that ends at `end` lacks durable records up to here.
    pub const fn is_lost_in(&self, end: Self) -> bool {
        end.seq < self.seq || (end.seq == self.seq && end.chain != self.chain)
    }
}

/// Place in a journal's last segment shortly before the end, from which the end is found quickly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Near {
    /// Number of the segment.
    pub number: u64,
    /// Generation of the segment.
    pub generation: u64,
    /// Offset of the next frame.
    pub offset: u64,
    /// Seq before that frame.
    pub seq: Seq,
    /// Batch before that frame.
    pub batch: u64,
    /// Value of the chain before that frame.
    pub chain: u64,
}

/// Known end of a journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEnd {
    /// The end.
    pub end: End,
    /// Place from which it is found quickly.
    pub near: Option<Near>,
}

/// Knowledge outside the journals of how far each of them reached: copies, which may be missing or outdated. It is
/// asked on blocking threads, when a journal is opened, never when one is written.
pub trait Witness: Send + Sync {
    /// Notes that everything of a session up to here is durable.
    fn saw(&self, id: SessionId, end: End, near: Option<Near>);
    /// Returns the known durable end of a session.
    fn end_of(&self, id: SessionId) -> Option<KnownEnd>;
    /// Returns true if a list may show the session after a power failure.
    fn may_list(&self, id: SessionId) -> bool;
    /// Returns true if lists are known to be empty.
    fn lists_none(&self) -> bool;
}

/// State shared by the open journals of one store.
pub struct Context {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Threads for work that blocks on the disk.
    pub executor: Arc<dyn Executor>,
    /// Held by each job that only reads: slow ones leave threads to those that write.
    pub reading: tokio::sync::Semaphore,
    /// Room and failures of the disk.
    pub health: Arc<Health>,
    /// The store's marks.
    pub marks: Arc<Marks>,
    /// Copies of how far each journal reached.
    pub witness: Arc<dyn Witness>,
    /// Sizes.
    pub limits: Limits,
    /// Returns true if this version understands a kind of record.
    pub knows: fn(u16) -> bool,
    /// Sessions whose content on the disk is unknown because a sync failed. A second sync could succeed without meaning
    /// anything, so they stay closed until the store is opened again.
    pub unsure: Mutex<std::collections::HashSet<SessionId>>,
    /// Sessions whose folder a compaction could not sync; their replaced segments stay until the store is opened again.
    pub unsynced: Mutex<std::collections::HashSet<SessionId>>,
    /// Sessions whose deletion failed and was undone, each with the directory in the trash from which it came back.
    pub returned: Mutex<std::collections::HashMap<SessionId, std::path::PathBuf>>,
    /// Damage that readings have found, also of journals that have left memory since: nothing is appended to them.
    pub damaged: Mutex<std::collections::HashMap<SessionId, StoreError>>,
    /// Journals with an open file, oldest first.
    pub hot: Mutex<std::collections::VecDeque<std::sync::Weak<Log>>>,
    /// Number of changes to the set of sessions, and the list of them; a list begun before the latest change is not
    /// kept.
    pub listing: Mutex<(u64, Option<Arc<Vec<SessionId>>>)>,
}

impl Context {
    /// Does work that only reads, on a thread that may block. At most [`READS_MAX`] such jobs run at a time.
    ///
    /// # Errors
    /// Those of the work.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        // It is never closed.
        let _permit = self.reading.acquire().await;
        on(self.executor.as_ref(), work).await
    }

    /// Notes that a session was added or removed.
    fn forget_listing(&self) {
        let mut listing = lock(&self.listing);
        *listing = (listing.0 + 1, None);
    }

    /// Registers a journal that has opened its file; if there are too many, the oldest closes its own.
    fn keep_hot(&self, log: &Arc<Log>) {
        let mut hot = lock(&self.hot);
        hot.push_back(Arc::downgrade(log));
        for _ in self.limits.hot_max..hot.len() {
            let Some(oldest) = hot.pop_front() else { break };
            if let Some(busy) = oldest.upgrade().filter(|log| !log.cool()) {
                hot.push_back(Arc::downgrade(&busy));
            }
        }
    }
}

/// Locks a mutex. Its holders never leave half a change, so poisoning is ignored.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
