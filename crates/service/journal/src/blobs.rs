//! Blobs: bodies too large for an event, each in a file of its session's directory, named by its hash.
//!
//! A blob is durable under its name before a record can name it. An upload is a blob that no record names yet. It is in a
//! folder of its own, and its name has the time at which it was uploaded.

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
    disk::{Disk, DiskFile, create_anew, ensure_dir, failed, if_there, is_full, is_missing, read_range, write_all},
    executor::on,
    fork::{abandon, has_no_links},
    layout::{BLOBS, NEW, UPLOADS, exists, new_dir, session_dir, with_folders},
    owner_lock::OwnerLock,
};
use meerkat_words::{
    clock::Timestamp,
    ids::SessionId,
    store::{BlobStore, BlobWriter, StoreError, check_uploads, hex},
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

    fn naming(&self, session_id: SessionId) -> Arc<Mutex<Option<SessionId>>> {
        self.naming[session_id.as_uuid().as_bytes()[15] as usize % NAMING_LOCKS].clone()
    }
}

/// Returns true if a text is the name of a blob, so that no path is made of another text of a caller's.
fn is_name(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Upload in its folder.
struct Upload {
    path: PathBuf,
    blob: String,
    time: Timestamp,
}

/// Returns the name of the file of an upload.
fn upload_name(blob: &str, time: Timestamp) -> String {
    format!("{blob}.{}", time.as_millis())
}

/// Lists a session's uploads.
fn uploads(disk: &dyn Disk, id: SessionId) -> io::Result<Vec<Upload>> {
    let dir = session_dir(id).join(UPLOADS);
    let names = if_there(disk.list(&dir))?.unwrap_or_default();
    let parsed = names.iter().filter_map(|name| {
        let (blob, time) = name.split_once('.')?;
        let time = Timestamp::from_millis(time.parse().ok()?);
        is_name(blob).then(|| Upload { path: dir.join(name), blob: blob.to_owned(), time })
    });
    Ok(parsed.collect())
}

#[async_trait]
impl BlobStore for FileBlobs {
    fn writer(&self, session_id: SessionId) -> Box<dyn BlobWriter> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        Box::new(FileBlobWriter {
            session_id,
            context: self.context.clone(),
            _owner: self.owner.clone(),
            naming: self.naming(session_id),
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
        if !is_name(blob) {
            return Ok(None);
        }
        let (context, name) = (self.context.clone(), Path::new(BLOBS).join(blob));
        self.context
            .clone()
            .read(move || {
                for dir in [session_dir(session_id), new_dir(session_id)] {
                    if let Some(piece) = piece(context.disk.as_ref(), &dir.join(&name), offset, limit)? {
                        return Ok(Some(piece));
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

    async fn read_upload(
        &self,
        session_id: SessionId,
        blob: &str,
        since: Timestamp,
        offset: u64,
        limit: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        let (context, blob) = (self.context.clone(), blob.to_owned());
        self.context
            .clone()
            .read(move || {
                let disk = context.disk.as_ref();
                let is_it = |upload: &Upload| upload.blob == blob && upload.time >= since;
                while let Some(upload) = uploads(disk, session_id).map_err(failed)?.into_iter().find(is_it) {
                    if let Some(piece) = piece(disk, &upload.path, offset, limit)? {
                        return Ok(Some(piece));
                    }
                    // Since it was listed it was uploaded once more, kept or deleted.
                }
                Ok(None)
            })
            .await
    }

    async fn keep(&self, session_id: SessionId, blob: &str, since: Timestamp) -> Result<bool, StoreError> {
        if !is_name(blob) {
            return Ok(false);
        }
        let (context, blob) = (self.context.clone(), blob.to_owned());
        // While it is held, the session gets no other upload of this name.
        let mut naming = self.naming(session_id).lock_owned().await;
        on(self.context.executor.as_ref(), move || {
            let disk = context.disk.as_ref();
            let mut uploads = uploads(disk, session_id).map_err(failed)?;
            uploads.retain(|upload| upload.blob == blob && upload.time >= since);
            let dir = session_dir(session_id);
            let is_there = if_there(disk.len(&dir.join(BLOBS).join(&blob))).map_err(failed)?.is_some();
            let Some(upload) = uploads.first() else { return Ok(is_there) };
            context.health.check_writable()?;
            let is_sure = naming.take() == Some(session_id);
            // A name that a killed process has left is synced again.
            let (from, to) = (&upload.path, dir.join(BLOBS).join(&blob));
            let kept = named(disk, &dir, is_sure, |_| if is_there { Ok(()) } else { link_or_move(disk, from, &to) });
            kept.map_err(|error| {
                if !is_there {
                    // A failed sync is never repeated: the next attempt gives the name again.
                    take_back(disk, from, &to);
                }
                context.health.unsure(session_id, error)
            })?;
            *naming = Some(session_id);
            // One that reappears after a power failure is deleted when its time has come.
            uploads.iter().for_each(|upload| drop(disk.remove(&upload.path)));
            Ok(true)
        })
        .await
    }

    async fn uploads(&self, session_id: SessionId) -> Result<Vec<u64>, StoreError> {
        let disk = self.context.disk.clone();
        let lengths = move || {
            let uploads = uploads(disk.as_ref(), session_id).map_err(failed)?;
            // One may be kept or deleted meanwhile.
            uploads.iter().filter_map(|upload| if_there(disk.len(&upload.path)).map_err(failed).transpose()).collect()
        };
        self.context.read(lengths).await
    }

    /// Removes uploads, without a sync: one that reappears after a power failure is removed again.
    async fn expire(&self, session_id: SessionId, before: Timestamp) -> Result<(), StoreError> {
        let disk = self.context.disk.clone();
        // None is deleted that is just being kept.
        let naming = self.naming(session_id).lock_owned().await;
        let expire = move || {
            let _naming = naming;
            let uploads = uploads(disk.as_ref(), session_id).map_err(failed)?;
            let mut expired = uploads.iter().filter(|upload| upload.time < before);
            expired.try_for_each(|upload| if_there(disk.remove(&upload.path)).map(drop).map_err(failed))
        };
        on(self.context.executor.as_ref(), expire).await
    }
}

/// Gives a file a second name, or on a disk without them another one.
fn link_or_move(disk: &dyn Disk, from: &Path, to: &Path) -> io::Result<()> {
    match disk.link(from, to) {
        Err(error) if has_no_links(&error) => disk.rename(from, to),
        linked => linked,
    }
}

/// Takes the name back that a file was given, if it has it.
fn take_back(disk: &dyn Disk, from: &Path, to: &Path) {
    drop(if disk.len(from).is_ok() { disk.remove(to) } else { disk.rename(to, from) });
}

/// Reads a piece of a file, if that exists.
fn piece(disk: &dyn Disk, path: &Path, offset: u64, limit: usize) -> Result<Option<Bytes>, StoreError> {
    let Some(file) = if_there(disk.open(path, false)).map_err(failed)? else { return Ok(None) };
    let len = file.len().map_err(failed)?;
    let end = len.min(offset.saturating_add(limit as u64));
    Ok(Some(read_range(file.as_ref(), offset.min(len), end).map_err(failed)?.into()))
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
    /// Writes the rest and syncs the file; returns it with the blob's name.
    async fn end(&mut self) -> Result<(Arc<Unnamed>, String), StoreError> {
        let file = self.flush().await?;
        let hash = hex(&std::mem::take(&mut self.hash).finalize());
        let (context, synced, id) = (self.context.clone(), file.clone(), self.session_id);
        let sync = move || synced.file.sync().map_err(|error| context.health.unsure(id, error));
        on(self.context.executor.as_ref(), sync).await?;
        Ok((file, hash))
    }

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
        let (file, hash) = self.end().await?;
        let (context, path, name, id) = (self.context.clone(), self.path.clone(), hash.clone(), self.session_id);
        let mut naming = self.naming.clone().lock_owned().await;
        on(self.context.executor.as_ref(), move || {
            // Held until this is done, even if the caller has stopped waiting.
            let is_sure = naming.take() == Some(id);
            place(&context, &path, id, &name, is_sure).map_err(|error| context.health.unsure(id, error))?;
            file.is_named.store(true, Ordering::Relaxed);
            *naming = Some(id);
            Ok(())
        })
        .await?;
        Ok((hash, self.written))
    }

    async fn upload(mut self: Box<Self>, time: Timestamp) -> Result<(String, u64), StoreError> {
        let (file, hash) = self.end().await?;
        let (context, path, blob, id) = (self.context.clone(), self.path.clone(), hash.clone(), self.session_id);
        let bytes = self.written;
        let naming = self.naming.clone().lock_owned().await;
        on(self.context.executor.as_ref(), move || {
            // Held until this is done: two uploads do not pass the limit together.
            let _naming = naming;
            place_upload(&context, &path, id, (&blob, bytes, time))?;
            file.is_named.store(true, Ordering::Relaxed);
            Ok(())
        })
        .await?;
        Ok((hash, bytes))
    }
}

/// Gives an upload its name, if the session has room for it.
fn place_upload(
    context: &Context,
    path: &Path,
    id: SessionId,
    (blob, bytes, time): (&str, u64, Timestamp),
) -> Result<(), StoreError> {
    let (disk, dir) = (context.disk.as_ref(), session_dir(id));
    if !exists(disk, id) {
        return Err(StoreError::NotFound(id));
    }
    let (same, others): (Vec<_>, Vec<_>) =
        uploads(disk, id).map_err(failed)?.into_iter().partition(|upload| upload.blob == blob);
    // One may expire meanwhile.
    let lengths = others.iter().map(|upload| if_there(disk.len(&upload.path)).map(Option::unwrap_or_default));
    let others_bytes = lengths.sum::<io::Result<u64>>().map_err(failed)?;
    check_uploads(others.len(), others_bytes, bytes)?;
    let placed = || -> io::Result<()> {
        let folder = dir.join(UPLOADS);
        // A killed process may have left a folder whose name was not yet synced.
        if ensure_dir(disk, &folder)? || (same.is_empty() && others.is_empty()) {
            disk.sync_dir(&dir).inspect_err(|_| drop(disk.remove(&folder)))?;
        }
        let name = folder.join(upload_name(blob, time));
        disk.rename(path, &name)?;
        disk.sync_dir(&folder)?;
        same.iter().filter(|former| former.path != name).for_each(|former| drop(disk.remove(&former.path)));
        Ok(())
    };
    placed().map_err(|error| match is_missing(&error) {
        // The session was deleted meanwhile.
        true => StoreError::NotFound(id),
        false => context.health.unsure(id, error),
    })
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
    named(disk, &dir, is_sure, |blobs| disk.rename(path, &blobs.join(name)))
}

/// Has a blob named in the folder of a session's directory, durably.
fn named(disk: &dyn Disk, dir: &Path, is_sure: bool, name: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let blobs = dir.join(BLOBS);
    let is_made = ensure_dir(disk, &blobs)?;
    // A killed process may have left an empty folder whose name was not yet synced.
    if (is_made || (!is_sure && disk.list(&blobs)?.is_empty()))
        && let Err(error) = disk.sync_dir(dir)
    {
        // A folder with blobs counts as durable, so remove one that may not be.
        drop(disk.remove(&blobs));
        return Err(error);
    }
    name(&blobs)?;
    disk.sync_dir(&blobs)
}
