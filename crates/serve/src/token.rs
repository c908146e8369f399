//! The bearer token: made at the first start, stored in the data directory, readable by its owner alone.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use crate::guard::Token;

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// Least characters of a token.
const TOKEN_CHARS_MIN: usize = 16;

/// Most bytes of a token's file.
const TOKEN_FILE_BYTES_MAX: u64 = 4096;

impl Token {
    /// Makes a token of the program's own; `None` if it is too short to be a secret, or no header can carry it.
    #[must_use]
    pub fn new(text: String) -> Option<Self> {
        // Blanks at an end are lost on the way.
        let is_sendable = text.trim() == text && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
        (is_sendable && text.len() >= TOKEN_CHARS_MIN).then_some(Self(text))
    }

    /// Makes a token for one run of a program. [`Self::text`] returns it for clients.
    ///
    /// # Errors
    /// If the system gives no randomness.
    pub fn random() -> io::Result<Self> {
        random_digits(TOKEN_BYTES).map(Self)
    }

    /// Returns true if a data directory has a token.
    #[must_use]
    pub fn is_in(data_dir: &Path) -> bool {
        path_in(data_dir).exists()
    }

    /// Reads or makes the token of a data directory; also returns the path of its file.
    ///
    /// # Errors
    /// If the file cannot be read or made, or is open to others.
    pub fn of_dir(data_dir: &Path) -> io::Result<(Self, PathBuf)> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
        let path = path_in(data_dir);
        if !path.exists() {
            make(data_dir, &path)?;
        }
        let token = read(&path)?.trim().to_owned();
        if token.len() < TOKEN_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} holds no token; delete it", path.display()),
            ));
        }
        Ok((Self(token), path))
    }

    /// Returns the secret itself.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

fn path_in(data_dir: &Path) -> PathBuf {
    data_dir.join("token")
}

/// Reads a token that no other user can read or write.
fn read(path: &Path) -> io::Result<String> {
    // Follows no link and waits for no pipe.
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).map_err(io::Error::other)?;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file()
        || metadata.uid() != rustix::process::geteuid().as_raw()
        || metadata.permissions().mode() & 0o077 != 0
    {
        let message =
            format!("{} is not yours alone; delete it, or make it a file of yours of mode 0600", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    let mut token = String::new();
    file.take(TOKEN_FILE_BYTES_MAX).read_to_string(&mut token)?;
    Ok(token)
}

/// Writes a token under a temporary name and links it in place, so that two processes that start at once read the same.
fn make(data_dir: &Path, path: &Path) -> io::Result<()> {
    let (token, suffix) = (random_digits(TOKEN_BYTES)?, random_digits(8)?);
    let temporary = data_dir.join(format!("token.{suffix}.new"));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(token.as_bytes())?;
    file.sync_all()?;
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Makes random hexadecimal digits, two for each byte.
///
/// # Errors
/// If the system gives no randomness.
pub fn random_digits(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("new").join("data");
        let (first, path) = Token::of_dir(&data_dir).unwrap();
        let (second, _) = Token::of_dir(&data_dir).unwrap();
        assert_eq!((first.0.len(), &first.0), (64, &second.0));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&data_dir).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn two_that_start_at_once_read_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<String> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| Token::of_dir(dir.path()).unwrap().0.0)).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| token == &tokens[0]));
    }

    #[test]
    fn a_token_that_others_may_know_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = Token::of_dir(dir.path()).unwrap();
        for mode in [0o644, 0o640, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                Token::of_dir(dir.path()).err().map(|error| error.kind()),
                Some(io::ErrorKind::PermissionDenied)
            );
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::of_dir(dir.path()).is_ok());
        fs::rename(&path, dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("other"), &path).unwrap();
        assert!(Token::of_dir(dir.path()).is_err(), "a link leads anywhere");
    }

    #[test]
    fn a_token_that_no_client_can_send_is_none() {
        let is_one = |text: &str| Token::new(text.to_owned()).is_some();
        assert!(is_one("the token of a test") && !is_one("short"));
        for wrong in ["a token with a line\n", " a token with a blank", "ein Schlüssel mit Umlaut"] {
            assert!(!is_one(wrong), "{wrong}");
        }
    }

    #[test]
    fn an_empty_file_is_no_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::of_dir(dir.path()).is_err());
    }
}
