//! Bytes that survive: each session's records in files of its own, blobs beside them, and the store's own marks. It knows
//! bytes, seqs and batches, and never what an event means.
//!
//! In reading order: the disk, what stands on it, one session's open journal and how it is written, found again and
//! read; then what belongs to the whole store.

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
mod lock;
mod marks;
mod store_journal;

#[cfg(feature = "sim")]
pub mod simulated;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meerkat_words::ids::{Seq, SessionId};
use serde::{Deserialize, Serialize};

pub use blobs::{FileBlobs, blobs_of, drop_blobs};
pub use check::{Checked, Damage, Mended, check, cut, mend_marks};
pub use disk::{Disk, RealDisk, is_unreadable};
pub use executor::{Executor, Pool, on};
pub use fork::{Trouble, abandon, appear, discard, fork_files, is_gone, set_aside};
pub use frame::Entry;
pub use health::Health;
pub use import::Import;
pub use layout::{
    bytes_of, exists, journal_bytes_of, known_store_id, log_unlisted, prepare, seal, session_dir, sessions_on, store_id,
};
pub use lock::{OwnerLock, check_directory, check_private};
pub use log::Log;
pub use pass::pass;
pub use prune::{Drops, Rewritten, candidates, parts, replace, rewrite};
pub use read::page;
pub use recovery::unreadable;
pub use store_journal::{Marks, Resting, StoreJournal, look};

/// Sizes that tests make small.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A segment is sealed once it is this long.
    pub segment_bytes: u64,
    /// Lines of the newest records that an open journal keeps in memory.
    pub cache_bytes: usize,
    /// Journals with an open file and a cache.
    pub hot_max: usize,
    /// The store journal is written anew once it is this long.
    pub store_journal_bytes: u64,
    /// Bytes kept back for turns that run when the disk is full.
    pub reserve_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            segment_bytes: 8 * 1024 * 1024,
            cache_bytes: 128 * 1024,
            hot_max: 256,
            store_journal_bytes: 1024 * 1024,
            reserve_bytes: 4 * 1024 * 1024,
        }
    }
}

/// Where a journal ends: what is missing up to there is a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The last record's seq.
    pub seq: Seq,
    /// The chain's value behind it.
    pub chain: u64,
}

impl End {
    /// Whether a journal that ends at `end` lacks something of what was durable up to here.
    pub const fn is_lost_in(&self, end: Self) -> bool {
        end.seq < self.seq || (end.seq == self.seq && end.chain != self.chain)
    }
}

/// A place in a journal's last segment, shortly before the journal's end: where to look for the end again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Near {
    /// The segment.
    pub number: u64,
    /// Generation of the segment.
    pub generation: u64,
    /// Where its next frame stands, and what that has to follow.
    pub offset: u64,
    /// Seq before that frame.
    pub seq: Seq,
    /// Batch before that frame.
    pub batch: u64,
    /// Value of the chain before that frame.
    pub chain: u64,
}

/// What is known of where a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownEnd {
    /// The end.
    pub end: End,
    /// Place from which it is soon found again.
    pub near: Option<Near>,
}

/// What knows, beside the journals, how far each of them reached: copies, which may be missing or behind. It is asked
/// on threads that may block, when a journal is opened, and never when one is written.
pub trait Witness: Send + Sync {
    /// Everything of a session up to here is durable.
    fn saw(&self, id: SessionId, end: End, near: Option<Near>);
    /// What was durable, as far as is known.
    fn end_of(&self, id: SessionId) -> Option<KnownEnd>;
    /// Whether a list may show the session after a power failure.
    fn may_list(&self, id: SessionId) -> bool;
    /// Whether a list is known to be empty.
    fn lists_none(&self) -> bool;
}

/// What every open journal of one store shares.
pub struct Context {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Threads for what blocks on the disk.
    pub executor: Arc<dyn Executor>,
    /// Room and failures of the disk.
    pub health: Arc<Health>,
    /// The store's own marks.
    pub store_journal: Arc<StoreJournal>,
    /// Copies of how far each journal reached.
    pub witness: Arc<dyn Witness>,
    /// Sizes.
    pub limits: Limits,
    /// Whether this version understands a kind of record.
    pub knows: fn(u16) -> bool,
    /// Sessions of which nobody knows what the disk holds, because making sure of it failed once. Asking again could
    /// answer well and mean nothing, so they stay closed until the store is opened anew.
    pub unsure: Mutex<std::collections::HashSet<SessionId>>,
    /// Sessions of which a compaction could not make sure that newer segments have their names; the older ones stay until
    /// the store is opened anew.
    pub unsynced: Mutex<std::collections::HashSet<SessionId>>,
    /// Sessions that were to be deleted and are not.
    pub returned: Mutex<std::collections::HashSet<SessionId>>,
    /// The journals that hold an open file, oldest first.
    pub hot: Mutex<std::collections::VecDeque<std::sync::Weak<Log>>>,
    /// The stored sessions, until one comes or goes; and how often one did, so that no list is kept that began before.
    pub listing: Mutex<(u64, Option<Arc<Vec<SessionId>>>)>,
}

impl Context {
    /// A session came or went.
    fn forget_listing(&self) {
        let mut listing = lock(&self.listing);
        *listing = (listing.0 + 1, None);
    }

    /// A journal has opened its file; the one that did so first gives its own back where there are too many.
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

/// A lock whose holder never leaves half a change, so that a panic elsewhere spoils nothing.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
