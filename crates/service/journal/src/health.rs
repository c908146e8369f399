//! Health of the store's disk: failed writes and syncs, and free space.
//!
//! A failure costs the affected journal its file; a second one within an hour makes the store read-only until it is
//! opened again.

use std::{
    io,
    path::Path,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    disk::{Disk, create_anew, failed, is_displaced, is_full, is_missing, is_out_of_files, write_all},
    layout::RESERVE,
    lock,
};
use meerkat_words::{ids::SessionId, store::StoreError};

/// Time within which a second failure makes the store read-only.
const FAILING: Duration = Duration::from_secs(60 * 60);
/// Least number of files that a running turn may still make: marks, segments and blobs.
pub const FREE_FILES_MIN: u64 = 64;
/// Bytes of the reserve written at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// Health of a store's disk.
pub struct Health {
    last_failure: Mutex<Option<Instant>>,
    read_only: OnceLock<String>,
    is_full: AtomicBool,
    /// Bytes of the reserve; locked while it is made or released.
    reserve_bytes: Mutex<u64>,
}

impl Health {
    /// Starts healthy, with a reserve of this many bytes.
    pub const fn new(reserve_bytes: u64) -> Self {
        Self {
            last_failure: Mutex::new(None),
            read_only: OnceLock::new(),
            is_full: AtomicBool::new(false),
            reserve_bytes: Mutex::new(reserve_bytes),
        }
    }

    /// Fails if the store is read-only.
    pub fn check_writable(&self) -> Result<(), StoreError> {
        let read_only = |why: &String| StoreError::ReadOnly(format!("{why}; check the disk, then restart meerkat"));
        self.read_only.get().map_or(Ok(()), |why| Err(read_only(why)))
    }

    /// Like `failed`, but returns the caller's error. A disk that turns out to be full in a sync is not faulty: only
    /// that file is abandoned.
    pub fn unsure(&self, id: SessionId, error: io::Error) -> StoreError {
        if is_full(&error) {
            return StoreError::Full;
        }
        self.failed(id, &error);
        StoreError::Failed(error.to_string())
    }

    /// Like [`Self::unsure`], for an unsynced name: it may survive, so a full disk does not mean that nothing changed.
    pub(crate) fn unnamed(&self, id: SessionId, error: io::Error) -> StoreError {
        match is_full(&error) {
            true => StoreError::Failed(error.to_string()),
            false => self.unsure(id, error),
        }
    }

    /// Notes a failed write or sync, after which the content of the disk is unknown. In a directory that may belong to
    /// another process by now nothing more is written at all.
    pub(super) fn failed(&self, what: impl std::fmt::Display, error: &io::Error) {
        tracing::error!(%what, %error, "a write to the store failed");
        if is_out_of_files(error) {
            return;
        }
        let before = lock(&self.last_failure).replace(Instant::now());
        if is_displaced(error) || before.is_some_and(|before| before.elapsed() < FAILING) {
            self.end_writing(&format!("{what}: {error}"));
        }
    }

    /// Makes the store read-only.
    pub fn end_writing(&self, why: &str) {
        if self.read_only.set(why.to_owned()).is_ok() {
            tracing::error!(why, "the store is read-only from now on");
        }
    }

    /// Returns true if new work must wait for room.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Releases the reserve for running turns when the disk is full. Returns true if it is free now: another turn may
    /// have released it first.
    pub(super) fn release_reserve(&self, disk: &dyn Disk) -> bool {
        let _held = lock(&self.reserve_bytes);
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!("the disk is full: running turns use the reserve, new ones are refused");
        }
        disk.remove(Path::new(RESERVE)).map_or_else(|error| is_missing(&error), |()| true)
    }

    /// Makes the reserve if it is missing or too short; without room for it the store counts as full.
    ///
    /// # Errors
    /// `Full`, or another error of the disk.
    pub fn make_reserve(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        let bytes = lock(&self.reserve_bytes);
        let path = Path::new(RESERVE);
        if disk.open(path, false).and_then(|file| file.len()).is_ok_and(|len| len >= *bytes) {
            self.is_full.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let made = create_anew(disk, path).and_then(|file| {
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut at = 0;
            while at < *bytes {
                fill(&mut chunk, at);
                let len = chunk.len().min(usize::try_from(*bytes - at).unwrap_or(usize::MAX));
                write_all(file.as_ref(), &chunk[..len], at)?;
                at += len as u64;
            }
            Ok(())
        });
        if let Err(error) = made {
            // A partial reserve is useless; the next attempt overwrites what is left.
            drop(disk.remove(path));
            self.is_full.store(true, Ordering::Relaxed);
            return Err(failed(error));
        }
        self.is_full.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Fails if new work may not begin. A full store checks for room first, and makes the reserve again only if as much
    /// is left for running turns.
    pub fn room(&self, disk: &dyn Disk) -> Result<(), StoreError> {
        self.check_writable()?;
        if !self.is_full() {
            return Ok(());
        }
        let needed = lock(&self.reserve_bytes).saturating_mul(2);
        if disk.free_bytes().map_err(failed)? < needed || disk.free_files().map_err(failed)? < FREE_FILES_MIN {
            return Err(StoreError::Full);
        }
        self.make_reserve(disk)
    }
}

/// Fills bytes with incompressible data: a file system may store zeros without taking any room.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    for word in bytes.chunks_mut(8) {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word.copy_from_slice(&(mixed ^ (mixed >> 31)).to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells of failures so many seconds apart; returns true if the store is read-only then.
    async fn fails(pauses_s: &[u64]) -> bool {
        let health = Health::new(0);
        health.failed("a session", &io::Error::other("an error"));
        for pause in pauses_s {
            tokio::time::advance(Duration::from_secs(*pause)).await;
            health.failed("a session", &io::Error::other("an error"));
        }
        health.check_writable().is_err()
    }

    /// A crowd of connections for a moment kept the store from writing until a restart.
    #[test]
    fn too_many_open_files_end_no_writing() {
        for errno in [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE] {
            let health = Health::new(0);
            for _ in 0..3 {
                health.failed("a session", &errno.into());
            }
            assert_eq!(health.check_writable(), Ok(()), "{errno:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn two_failures_end_writing_only_if_they_lie_within_an_hour() {
        assert!(!fails(&[]).await);
        assert!(fails(&[0]).await);
        assert!(fails(&[3599]).await);
        assert!(!fails(&[3601, 7 * 24 * 3600]).await);
        assert!(fails(&[3601, 3599]).await);
    }
}
