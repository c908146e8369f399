//! The place of the owner's socket, and the check of its other end.
//!
//! Only the holder of the data directory's lock may bind.

use std::{
    fs, io,
    os::{
        fd::AsRawFd as _,
        unix::{fs::PermissionsExt as _, net::SocketAddr},
    },
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

/// Name of the socket.
const SOCKET: &str = "socket";

/// The place of a data directory's socket.
#[derive(Clone, Debug)]
pub struct Place {
    data_dir: PathBuf,
}

/// The owner's end. [`Self::remove`] deletes its files, before the lock is released.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    path: PathBuf,
}

impl Place {
    /// The place for a data directory.
    #[must_use]
    pub const fn new(data_dir: PathBuf) -> Self {
        Self { data_dir }
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Binds the socket, and replaces one that a former owner left. The caller holds the lock.
    ///
    /// # Errors
    /// If it cannot be created, or would be open to other users.
    pub fn bind(&self) -> io::Result<Bound> {
        let path = self.data_dir.join(SOCKET);
        remove(&path)?;
        let listener = UnixListener::bind(&self.path()?.0)?;
        // Only this user can open the folder, so nobody else connected in between.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Bound { listener, path })
    }

    /// Connects to the owner, if it listens.
    ///
    /// # Errors
    /// If nobody listens, or the socket is another user's.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let (path, _folder) = self.path()?;
        let stream = UnixStream::connect(path).await?;
        check_peer(&stream)?;
        Ok(stream)
    }

    /// The socket's path, and what must be open while it is used. A socket's path has at most 108 bytes: a longer one
    /// goes by way of the folder's descriptor. So the socket is in the data directory, where only this user can make one.
    fn path(&self) -> io::Result<(PathBuf, Option<fs::File>)> {
        let path = self.data_dir.join(SOCKET);
        match SocketAddr::from_pathname(&path) {
            Ok(_) => Ok((path, None)),
            Err(_) if cfg!(target_os = "linux") => {
                let folder = fs::File::open(&self.data_dir)?;
                let alias = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
                Ok((alias.into(), Some(folder)))
            }
            Err(error) => Err(error),
        }
    }
}

impl Bound {
    /// Waits for a command.
    ///
    /// # Errors
    /// If none can be accepted.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }

    /// Deletes the socket. Commands that come now wait for the lock.
    ///
    /// # Errors
    /// If a file cannot be deleted.
    pub fn remove(self) -> io::Result<()> {
        remove(&self.path)
    }
}

/// Checks that the other side is the same user's.
///
/// # Errors
/// If it is not.
pub fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    if uid == own_uid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the other side of the socket is user {uid}")))
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// FNV-1a over a path, the same in every version.
#[must_use]
pub fn path_hash(path: &Path) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    path.as_os_str().as_encoded_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fold)
}
