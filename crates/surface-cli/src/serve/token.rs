//! The bearer token: made at the first start, kept in the data directory, readable by its owner alone.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::guard::Token;

/// Bytes of randomness in a token.
const TOKEN_BYTES: usize = 32;

/// The token of this data directory, made now where there is none yet, and where it stands.
pub(crate) fn load_or_make(data_dir: &Path) -> io::Result<(Token, PathBuf)> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir)?;
    let path = data_dir.join("token");
    if !path.exists() {
        make(data_dir, &path)?;
    }
    let token = fs::read_to_string(&path)?.trim().to_owned();
    if token.len() < TOKEN_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} holds no token; delete it", path.display()),
        ));
    }
    Ok((Token(token), path))
}

/// Writes a new token under a temporary name and links it in place, so that of two that start at once both read one.
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

/// Random hexadecimal digits, two for each byte.
pub(crate) fn random_digits(bytes: usize) -> io::Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_and_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let data_dir = dir.path().join("new").join("data");
        let (first, path) = load_or_make(&data_dir).unwrap();
        let (second, _) = load_or_make(&data_dir).unwrap();
        assert_eq!((first.0.len(), &first.0), (64, &second.0));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&data_dir).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(&data_dir).unwrap().count(), 1, "nothing else is left behind");
    }

    #[test]
    fn two_that_start_at_once_read_one_token() {
        let dir = tempfile::tempdir().unwrap();
        let tokens: Vec<String> = std::thread::scope(|scope| {
            let starts: Vec<_> = (0..8).map(|_| scope.spawn(|| load_or_make(dir.path()).unwrap().0.0)).collect();
            starts.into_iter().map(|start| start.join().unwrap()).collect()
        });
        assert!(tokens.iter().all(|token| token == &tokens[0]));
    }

    #[test]
    fn an_empty_file_is_no_token() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("token"), "").unwrap();
        assert!(load_or_make(dir.path()).is_err());
    }
}
