//! The journal: each session's records in files of its own, and the store's own marks. It knows bytes, seqs and batches,
//! and never what an event means.
//!
//! In reading order: the disk, what stands on it, one session's open journal and how it is written, found again and
//! read; then what belongs to the whole store.

pub(crate) mod disk;
pub(crate) mod frame;
pub(crate) mod layout;
pub(crate) mod segment;

mod commit;
mod log;
mod pass;
mod read;
pub(crate) mod recovery;

pub(crate) mod check;

mod blobs;
mod fork;
mod import;
mod prune;

mod executor;
mod health;
mod lock;
mod marks;
mod store_journal;

#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

pub(crate) use blobs::{FileBlobs, blobs_of, drop_blobs};
pub(crate) use check::{Checked, Damage, Mended, check, cut, mend_marks};
pub(crate) use disk::{Disk, RealDisk, is_unreadable};
pub(crate) use executor::{Executor, Pool, on};
pub(crate) use fork::{abandon, appear, discard, fork_files, is_gone, set_aside};
pub(crate) use frame::Entry;
pub(crate) use health::Health;
pub(crate) use import::Import;
pub(crate) use layout::{
    bytes_of, exists, journal_bytes_of, known_store_id, log_unlisted, prepare, seal, session_dir, sessions_on, store_id,
};
pub(crate) use lock::{OwnerLock, check_directory, check_private};
pub(crate) use log::Log;
pub(crate) use pass::pass;
pub(crate) use prune::{Drops, candidates, parts, replace, rewrite};
pub(crate) use read::page;
pub(crate) use recovery::unreadable;
pub(crate) use store_journal::{Marks, Resting, StoreJournal, look};

use crate::ids::{Seq, SessionId};

/// Sizes that tests make small.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// A segment is sealed once it is this long.
    pub(crate) segment_bytes: u64,
    /// Lines of the newest records that an open journal keeps in memory.
    pub(crate) cache_bytes: usize,
    /// Journals with an open file and a cache.
    pub(crate) hot_max: usize,
    /// The store journal is written anew once it is this long.
    pub(crate) store_journal_bytes: u64,
    /// Bytes kept back for turns that run when the disk is full.
    pub(crate) reserve_bytes: u64,
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
pub(crate) struct End {
    /// The last record's seq.
    pub(crate) seq: Seq,
    /// The chain's value behind it.
    pub(crate) chain: u64,
}

impl End {
    /// Whether a journal that ends at `end` lacks something of what was durable up to here.
    pub(crate) const fn is_lost_in(&self, end: Self) -> bool {
        end.seq < self.seq || (end.seq == self.seq && end.chain != self.chain)
    }
}

/// A place in a journal's last segment, shortly before the journal's end: where to look for the end again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Near {
    /// The segment.
    pub(crate) number: u64,
    pub(crate) generation: u64,
    /// Where its next frame stands, and what that has to follow.
    pub(crate) offset: u64,
    pub(crate) seq: Seq,
    pub(crate) batch: u64,
    pub(crate) chain: u64,
}

/// What is known of where a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownEnd {
    pub(crate) end: End,
    pub(crate) near: Option<Near>,
}

/// What knows, beside the journals, how far each of them reached: copies, which may be missing or behind. It is asked
/// on threads that may block, when a journal is opened, and never when one is written.
pub(crate) trait Witness: Send + Sync {
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
pub(crate) struct Context {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) executor: Arc<dyn Executor>,
    pub(crate) health: Arc<Health>,
    pub(crate) store_journal: Arc<StoreJournal>,
    pub(crate) witness: Arc<dyn Witness>,
    pub(crate) limits: Limits,
    /// Whether this version understands a kind of record.
    pub(crate) knows: fn(u16) -> bool,
    /// Sessions of which nobody knows what the disk holds, because making sure of it failed once. Asking again could
    /// answer well and mean nothing, so they stay closed until the store is opened anew.
    pub(crate) unsure: Mutex<std::collections::HashSet<SessionId>>,
    /// Sessions of which a compaction could not make sure that newer segments have their names; the older ones stay until
    /// the store is opened anew.
    pub(crate) unsynced: Mutex<std::collections::HashSet<SessionId>>,
    /// Sessions that were to be deleted and are not.
    pub(crate) returned: Mutex<std::collections::HashSet<SessionId>>,
    /// The journals that hold an open file, oldest first.
    pub(crate) hot: Mutex<std::collections::VecDeque<std::sync::Weak<Log>>>,
    /// The stored sessions, until one comes or goes; and how often one did, so that no list is kept that began before.
    pub(crate) listing: Mutex<(u64, Option<Arc<Vec<SessionId>>>)>,
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
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
