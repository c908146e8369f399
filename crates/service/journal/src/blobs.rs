//! Blobs: bodies too large for an event, each in a file of its session's directory, named by its hash.
//!
//! A blob is durable under its name before a record can name it.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::{
    Context,
    disk::{DiskFile, create_anew, ensure_dir, failed, if_there, is_full, read_range, write_all},
    executor::on,
    fork::abandon,
    layout::{BLOBS, NEW, exists, new_dir, session_dir, with_folders},
    owner_lock::OwnerLock,
};
use meerkat_words::{
    ids::SessionId,
    store::{BlobStore, BlobWriter, StoreError, hex},
};

/// Bytes that are buffered before they are written.
const CHUNK_BYTES: usize = 256 * 1024;
/// Number of naming locks; sessions share them by their id.
const NAMING_LOCKS: usize = 64;

/// Blobs of one store.
pub struct FileBlobs {
    context: Arc<Context>,
    /// Lock on the data directory, held while anything may be written.
    owner: Option<Arc<OwnerLock>>,
    /// Numbers the unfinished blobs.
    count: Arc<AtomicU64>,
    /// Locks held while a blob gets its name, because its folder counts as durable once it exists. Each has the session
    /// whose folder was synced last.
    naming: [Arc<Mutex<Option<SessionId>>>; NAMING_LOCKS],
}

impl FileBlobs {
    /// Stores blobs next to the journals.
    pub fn new(context: Arc<Context>, owner: Option<Arc<OwnerLock>>) -> Self {
        Self { context, owner, count: Arc::default(), naming: std::array::from_fn(|_| Arc::default()) }
    }
}

#[async_trait]
impl BlobStore for FileBlobs {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        Box::new(FileBlobWriter {
            session_id,
            context: self.context.clone(),
            _owner: self.owner.clone(),
            naming: self.naming[session_id.as_uuid().as_bytes()[15] as usize % NAMING_LOCKS].clone(),
            path: Path::new(NEW).join(format!("{number}.blob")),
            file: None,
            may_use_reserve: true,
            chunk: Vec::new(),
            written: 0,
            hash: Sha256::new(),
        })
    }

    async fn read(
        &self,
        session_id: SessionId,
        blob: &str,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        // Only a hash is a name, so that no path is made of a caller's text.
        if blob.len() != 64 || !blob.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
            return Ok(None);
        }
        let (context, name) = (self.context.clone(), Path::new(BLOBS).join(blob));
        self.context
            .clone()
            .read(move || {
                for dir in [session_dir(session_id), new_dir(session_id)] {
                    if let Some(file) = if_there(context.disk.open(&dir.join(&name), false)).map_err(failed)? {
                        let len = file.len().map_err(failed)?;
                        let end = len.min(offset.saturating_add(limit as u64));
                        return Ok(Some(read_range(file.as_ref(), offset.min(len), end).map_err(failed)?.into()));
                    }
                }
                Ok(None)
            })
            .await
    }

    async fn list(&self, session_id: SessionId) -> Result<BTreeSet<String>, StoreError> {
        let disk = self.context.disk.clone();
        let list = move || {
            let names = if_there(disk.list(&session_dir(session_id).join(BLOBS))).map_err(failed)?;
            Ok(names.unwrap_or_default().into_iter().collect())
        };
        self.context.read(list).await
    }

    /// Removes blobs, without a sync: one that reappears after a power failure takes room until it is found again.
    async fn remove(&self, session_id: SessionId, names: &BTreeSet<String>) -> Result<(), StoreError> {
        let (disk, names, dir) = (self.context.disk.clone(), names.clone(), session_dir(session_id).join(BLOBS));
        let remove =
            move || names.iter().try_for_each(|name| if_there(disk.remove(&dir.join(name))).map(drop).map_err(failed));
        on(self.context.executor.as_ref(), remove).await
    }

    /// Removes the blobs of a session that was never made; a session's own go with its directory.
    async fn forget(&self, session_id: SessionId) {
        let context = self.context.clone();
        let gone = on(self.context.executor.as_ref(), move || {
            abandon(&context, session_id);
            Ok(())
        });
        // If the executor has ended, the next start removes them.
        drop(gone.await);
    }
}

struct FileBlobWriter {
    session_id: SessionId,
    context: Arc<Context>,
    _owner: Option<Arc<OwnerLock>>,
    naming: Arc<Mutex<Option<SessionId>>>,
    /// Path until it gets its name.
    path: PathBuf,
    file: Option<Arc<Unnamed>>,
    may_use_reserve: bool,
    chunk: Vec<u8>,
    written: u64,
    hash: Sha256,
}

/// File of a blob that has no name yet. Dropped before it has one, also by a job whose caller has left, it is removed.
struct Unnamed {
    context: Arc<Context>,
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    is_named: AtomicBool,
}

impl Unnamed {
    fn create(context: &Arc<Context>, path: &Path) -> io::Result<Arc<Self>> {
        let file = with_folders(context.disk.as_ref(), || create_anew(context.disk.as_ref(), path))?;
        Ok(Arc::new(Self { context: context.clone(), path: path.to_owned(), file, is_named: AtomicBool::new(false) }))
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !*self.is_named.get_mut() {
            let (context, path) = (self.context.clone(), std::mem::take(&mut self.path));
            // The next start removes it if this fails.
            self.context.executor.run(Box::new(move || drop(context.disk.remove(&path))));
        }
    }
}

impl FileBlobWriter {
    async fn flush(&mut self) -> Result<Arc<Unnamed>, StoreError> {
        self.context.health.check_writable()?;
        let (chunk, at) = (std::mem::take(&mut self.chunk), self.written);
        self.written += chunk.len() as u64;
        let (context, path, mut file) = (self.context.clone(), self.path.clone(), self.file.clone());
        let (id, may_use_reserve) = (self.session_id, self.may_use_reserve);
        let file = on(self.context.executor.as_ref(), move || {
            let disk = context.disk.as_ref();
            let mut attempt = || {
                let made = file.clone().map_or_else(|| Unnamed::create(&context, &path), Ok)?;
                write_all(file.insert(made.clone()).file.as_ref(), &chunk, at)?;
                Ok(made)
            };
            let written: io::Result<_> = attempt();
            // A blob of an existing session belongs to a running turn; others can wait for room.
            let may_use_reserve = may_use_reserve && exists(disk, id);
            match written {
                Err(error) if is_full(&error) && may_use_reserve && context.health.release_reserve(disk) => attempt(),
                written => written,
            }
            .map_err(failed)
        })
        .await?;
        self.file = Some(file.clone());
        Ok(file)
    }
}

#[async_trait]
impl BlobWriter for FileBlobWriter {
    fn waits_for_room(&mut self) {
        self.may_use_reserve = false;
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.hash.update(bytes);
        for part in bytes.chunks(CHUNK_BYTES) {
            self.chunk.extend_from_slice(part);
            if self.chunk.len() >= CHUNK_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    async fn finish(mut self: Box<Self>) -> Result<(String, u64), StoreError> {
        let file = self.flush().await?;
        let hash = hex(&std::mem::take(&mut self.hash).finalize());
        let (context, path, name, id) = (self.context.clone(), self.path.clone(), hash.clone(), self.session_id);
        let of = self.context.clone();
        let unsure = move |error: io::Error| of.health.unsure(id, error);
        let (executor, unsynced) = (self.context.executor.as_ref(), unsure.clone());
        let synced = file.clone();
        on(executor, move || synced.file.sync().map_err(unsynced)).await?;
        let mut naming = self.naming.clone().lock_owned().await;
        on(executor, move || {
            // Held until this is done, even if the caller has stopped waiting.
            let is_sure = naming.take() == Some(id);
            place(&context, &path, id, &name, is_sure).map_err(unsure)?;
            file.is_named.store(true, Ordering::Relaxed);
            *naming = Some(id);
            Ok(())
        })
        .await?;
        Ok((hash, self.written))
    }
}

/// Gives a blob its name in its session's directory. With `is_sure`, the blobs' folder is durable if it exists.
fn place(context: &Context, path: &Path, id: SessionId, name: &str, is_sure: bool) -> io::Result<()> {
    let disk = context.disk.as_ref();
    let dir = if if_there(disk.list(&session_dir(id)))?.is_some() {
        session_dir(id)
    } else {
        with_folders(disk, || ensure_dir(disk, &new_dir(id)))?;
        new_dir(id)
    };
    let blobs = dir.join(BLOBS);
    let is_made = ensure_dir(disk, &blobs)?;
    // A killed process may have left an empty folder whose name was not yet synced.
    if (is_made || (!is_sure && disk.list(&blobs)?.is_empty()))
        && let Err(error) = disk.sync_dir(&dir)
    {
        // A folder with blobs counts as durable, so remove one that may not be.
        drop(disk.remove(&blobs));
        return Err(error);
    }
    disk.rename(path, &blobs.join(name))?;
    disk.sync_dir(&blobs)
}
