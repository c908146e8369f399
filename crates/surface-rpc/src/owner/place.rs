//! The place of the owner's socket, and the check of its other end.
//!
//! Only the holder of the data directory's lock may bind.

use std::{
    fs, io,
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
        net::SocketAddr,
    },
    path::{Path, PathBuf},
};

use tokio::net::{UnixListener, UnixStream};

/// The file that names the socket if the data directory's path is too long for one.
const NAME_FILE: &str = "socket.path";

/// The place of a data directory's socket.
#[derive(Clone, Debug)]
pub struct Place {
    data_dir: PathBuf,
    runtime_dir: Option<PathBuf>,
}

/// The owner's end. [`Self::remove`] deletes its files, before the lock is released.
#[derive(Debug)]
pub struct Bound {
    listener: UnixListener,
    place: Place,
    path: PathBuf,
}

impl Place {
    /// The place for a data directory. `runtime_dir` is the user's folder for sockets, if the system has one.
    #[must_use]
    pub fn new(data_dir: PathBuf, runtime_dir: Option<PathBuf>) -> Self {
        Self { data_dir, runtime_dir: runtime_dir.filter(|path| path.is_absolute()) }
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
        let (mut path, name_file) = (self.data_dir.join("socket"), self.data_dir.join(NAME_FILE));
        remove(&name_file)?;
        if is_too_long(&path) {
            path = self.elsewhere()?;
            fs::write(&name_file, path.as_os_str().as_encoded_bytes())?;
        }
        remove(&path)?;
        let listener = UnixListener::bind(&path)?;
        // Only this user can open the folder, so nobody else connected in between.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Bound { listener, place: self.clone(), path })
    }

    /// Connects to the owner, if it listens.
    ///
    /// # Errors
    /// If nobody listens, or the socket is another user's.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let path = match fs::read_to_string(self.data_dir.join(NAME_FILE)) {
            Ok(path) => PathBuf::from(path),
            Err(_) => self.data_dir.join("socket"),
        };
        let stream = UnixStream::connect(path).await?;
        check_peer(&stream)?;
        Ok(stream)
    }

    /// A path in the runtime folder, however long the data directory's path is.
    fn elsewhere(&self) -> io::Result<PathBuf> {
        let name = format!("meerkat-{:016x}.socket", path_hash(&self.data_dir));
        let path = self.runtime_dir.as_ref().map(|folder| folder.join(&name)).filter(|path| !is_too_long(path));
        if let Some(path) = path {
            check_folder(path.parent().unwrap_or(&path))?;
            return Ok(path);
        }
        let folder = PathBuf::from(format!("/tmp/meerkat-{}", own_uid()));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => check_folder(&folder)?,
        }
        Ok(folder.join(name))
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
        remove(&self.path)?;
        remove(&self.place.data_dir.join(NAME_FILE))
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

fn is_too_long(path: &Path) -> bool {
    SocketAddr::from_pathname(path).is_err()
}

/// Checks that only this user can open a folder.
fn check_folder(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    if found.is_dir() && found.uid() == own_uid() && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let message = format!("{} must be a folder that is yours alone (mode 0700)", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, message))
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
