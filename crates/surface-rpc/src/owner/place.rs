//! Where the owner's socket stands, and who may stand at its other end.
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

use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _},
    net::{UnixListener, UnixStream},
};

use crate::output::Surroundings;

/// Bytes of the first message, either way.
pub(crate) const HELLO_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes of a request.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The file that names the socket where the data directory's own path is too long for one.
const NAME_FILE: &str = "socket.path";

/// Where the socket of a data directory stands.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    data_dir: PathBuf,
    runtime_dir: Option<PathBuf>,
}

/// The owner's end. Its files go with [`Self::remove`], before the lock does.
pub(crate) struct Bound {
    pub(crate) listener: UnixListener,
    place: Place,
    path: PathBuf,
}

impl Place {
    pub(crate) fn new(data_dir: PathBuf, around: &Surroundings) -> Self {
        let runtime_dir = around.variable("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        Self { data_dir, runtime_dir }
    }

    pub(crate) fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Binds the socket, in place of one that a former owner left. The caller holds the lock.
    pub(crate) fn bind(&self) -> io::Result<Bound> {
        let (mut path, name_file) = (self.data_dir.join("socket"), self.data_dir.join(NAME_FILE));
        remove(&name_file)?;
        if is_too_long(&path) {
            path = self.elsewhere()?;
            fs::write(&name_file, path.as_os_str().as_encoded_bytes())?;
        }
        remove(&path)?;
        let listener = UnixListener::bind(&path)?;
        // The folder is its owner's alone, so nobody else came in between.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        Ok(Bound { listener, place: self.clone(), path })
    }

    /// Connects to the owner, if it listens.
    pub(crate) async fn connect(&self) -> io::Result<UnixStream> {
        let path = match fs::read_to_string(self.data_dir.join(NAME_FILE)) {
            Ok(path) => PathBuf::from(path),
            Err(_) => self.data_dir.join("socket"),
        };
        let stream = UnixStream::connect(path).await?;
        check_peer(&stream)?;
        Ok(stream)
    }

    /// A path in the runtime folder, of a length that does not depend on the data directory's.
    fn elsewhere(&self) -> io::Result<PathBuf> {
        let name = format!("meerkat-{:016x}.socket", crate::config::path_hash(&self.data_dir));
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
    /// Takes the socket away. Whoever comes now waits for the lock.
    pub(crate) fn remove(self) -> io::Result<()> {
        remove(&self.path)?;
        remove(&self.place.data_dir.join(NAME_FILE))
    }
}

/// The other side must be the same user's.
pub(crate) fn check_peer(stream: &UnixStream) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    if uid == own_uid() {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("the other side of the socket is user {uid}")))
}

/// Reads a line without its end; `None` at the end of what comes.
pub(crate) async fn read_line(reader: &mut (impl AsyncBufRead + Unpin), limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    reader.take(limit + 1).read_until(b'\n', &mut line).await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() as u64 >= limit => Err(io::Error::other(format!("a line has more than {limit} bytes"))),
        Some(_) => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_too_long(path: &Path) -> bool {
    SocketAddr::from_pathname(path).is_err()
}

/// A folder that is ours, and ours alone.
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
