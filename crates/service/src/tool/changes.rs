//! Log of the files that a call changes. What a change replaces is copied to a blob before the file is touched.
//!
//! A copy is the file to the letter, unredacted. It is named by no text that a model sees, and its mark keeps it from
//! whoever reads blobs, except the owner of the data directory.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use sha2::{Digest as _, Sha256};

use super::ToolError;
use crate::{
    ids::SessionId,
    session::event::{ChangedFile, FileBefore},
    store::{BlobStore, StoreError, hex},
};

/// Beginning of a blob that is a copy of a file. All other blobs are text, and no text begins with this byte.
const COPY_MARK: &[u8] = b"\xffmeerkat: a file before its change\n";
/// Most bytes of a file that is copied.
const COPY_BYTES_MAX: usize = 1024 * 1024;
/// Most changes that one call can note.
const CHANGES_MAX: usize = 100;

/// Files that a call changed so far.
pub struct ChangeLog {
    blobs: Arc<dyn BlobStore>,
    session_id: SessionId,
    /// False if copies would not outlive the process.
    keeps_copies: bool,
    /// Numbers the changes of calls that run together.
    order: Arc<AtomicU64>,
    changes: Mutex<Vec<ChangedFile>>,
}

impl ChangeLog {
    pub(crate) fn new(
        blobs: Arc<dyn BlobStore>,
        session_id: SessionId,
        keeps_copies: bool,
        order: Arc<AtomicU64>,
    ) -> Self {
        Self { blobs, session_id, keeps_copies, order, changes: Mutex::default() }
    }

    fn changes(&self) -> MutexGuard<'_, Vec<ChangedFile>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a file is about to get the content `after`, and keeps a copy of what it has, if there is one. Call it
    /// right before the file is replaced, and [`Self::withdraw`] if it is not.
    ///
    /// # Errors
    /// [`ToolError::Failed`] if the copy cannot be stored; then leave the file as it is.
    pub async fn note(&self, path: &str, before: Option<&[u8]>, after: &[u8]) -> Result<(), ToolError> {
        if self.changes().len() >= CHANGES_MAX {
            return Err(ToolError::Failed(format!("a call can change at most {CHANGES_MAX} files")));
        }
        let mut change = change_of(path, before, after);
        if let (Some(content), Some(kept)) = (before, &mut change.before)
            && kept.copy.is_some()
        {
            kept.copy = self.copy(content).await.map_err(|error| {
                ToolError::Failed(format!("{path} stays as it is: a copy of it could not be stored: {error}"))
            })?;
        }
        change.order = self.order.fetch_add(1, Ordering::Relaxed);
        self.changes().push(change);
        Ok(())
    }

    /// Takes a note back: the file was not changed.
    pub fn withdraw(&self, path: &str) {
        let mut changes = self.changes();
        if let Some(at) = changes.iter().rposition(|change| change.path == path) {
            changes.remove(at);
        }
    }

    pub(crate) fn take(&self) -> Vec<ChangedFile> {
        std::mem::take(&mut self.changes())
    }

    /// Stores a copy; returns its blob.
    async fn copy(&self, content: &[u8]) -> Result<Option<String>, StoreError> {
        if !self.keeps_copies {
            return Ok(None);
        }
        let mut writer = self.blobs.writer(self.session_id);
        writer.write(COPY_MARK).await?;
        writer.write(content).await?;
        Ok(Some(writer.finish().await?.0))
    }
}

/// Describes a change of a file before it happens. A copy of what the file has is named by its hash, and not stored yet;
/// a large file has none.
#[must_use]
pub fn change_of(path: &str, before: Option<&[u8]>, after: &[u8]) -> ChangedFile {
    let before = before.map(|content| {
        let copy = || hex(&Sha256::new_with_prefix(COPY_MARK).chain_update(content).finalize());
        let copy = (content.len() <= COPY_BYTES_MAX).then(copy);
        FileBefore { sha256: sha256(content), bytes: content.len() as u64, copy }
    });
    ChangedFile { path: path.to_owned(), before, after_sha256: sha256(after), order: 0 }
}

/// Returns the file's content of a blob that is a copy of a file.
#[must_use]
pub fn content_of_copy(blob: &[u8]) -> Option<&[u8]> {
    blob.strip_prefix(COPY_MARK)
}

/// Returns true if a blob is a copy of a file.
pub(crate) async fn is_copy(blobs: &dyn BlobStore, session_id: SessionId, blob: &str) -> Result<bool, StoreError> {
    let head = blobs.read(session_id, blob, 0, COPY_MARK.len()).await?;
    Ok(head.is_some_and(|head| head == COPY_MARK))
}

fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}
