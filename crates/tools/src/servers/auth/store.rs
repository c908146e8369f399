//! Logins on disk: one file for each URL, which its owner alone may read, and a lock that all processes know.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use meerkat_service::clock::Clock;
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::super::config::hex;

/// Bytes of one file.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Pause between two tries to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for a lock: another process holds it for one request.
const LOCK_MAX: Duration = Duration::from_secs(40);
/// Seconds before its end when a token is refreshed; less for one that is short-lived.
const MARGIN_S: u64 = 30;

/// Login at a server: its tokens, and all that refreshes them. It is a secret, so nothing shows it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// URL that the tokens go to.
    pub(super) url: String,
    /// Issuer that made them. They are refreshed and revoked at its endpoints alone.
    pub(super) issuer: String,
    /// Name of the URL that the issuer knows.
    pub(super) resource: String,
    pub(super) token_endpoint: String,
    pub(super) revocation_endpoint: Option<String>,
    pub(super) client_id: String,
    pub(super) client_secret: Option<String>,
    /// True if the client's secret goes in the body of a request.
    pub(super) is_secret_in_body: bool,
    pub(super) scopes: Vec<String>,
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// Seconds since 1970 when the token is to be refreshed.
    pub(super) expires_at_s: Option<u64>,
    /// True if a person allowed the issuer to be in a private network.
    pub(super) allows_private: bool,
}

/// Tokens that an issuer gave.
pub(super) struct Tokens {
    pub(super) access_token: String,
    pub(super) refresh_token: Option<String>,
    /// Seconds that the access token lives.
    pub(super) lives_s: Option<u64>,
    pub(super) scopes: Option<Vec<String>>,
}

impl Record {
    /// Takes other tokens. What the issuer does not give again stays.
    pub(super) fn with(mut self, tokens: Tokens, now_s: u64) -> Self {
        self.access_token = tokens.access_token;
        self.refresh_token = tokens.refresh_token.or(self.refresh_token);
        self.expires_at_s = tokens.lives_s.map(|lives| now_s.saturating_add(lives - MARGIN_S.min(lives / 4)));
        if let Some(scopes) = tokens.scopes {
            self.scopes = scopes;
        }
        self
    }
}

/// Place of the login at one URL.
pub(super) struct Store {
    folder: PathBuf,
    /// Hash of the URL: a server that is renamed keeps its login, one whose URL changes has none.
    name: String,
    url: String,
}

impl Store {
    pub(super) fn new(folder: PathBuf, url: &str) -> Self {
        Self { folder, name: hex(&Sha256::digest(url)), url: url.to_owned() }
    }

    fn path(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.name))
    }

    /// Reads the login, if there is one.
    pub(super) fn read(&self) -> io::Result<Option<Record>> {
        let file = match open(OpenOptions::new().read(true), &self.path("json")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        // The parser's message could show a part of a token.
        let record: Record = serde_json::from_str(&text).map_err(|_| io::Error::other("the file is damaged"))?;
        Ok(Some(record).filter(|record| record.url == self.url))
    }

    /// Replaces the login: another process sees the old one or the new one.
    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        let text = serde_json::to_vec(record)?;
        self.make_folder()?;
        // The lock is held, so nobody else writes it.
        let temporary = self.path("tmp");
        fs::remove_file(&temporary).or_else(missing_is_fine)?;
        let mut file = open(OpenOptions::new().write(true).create_new(true).mode(0o600), &temporary)?;
        file.write_all(&text)?;
        // A token that was used up must not come back after a crash, nor by the old name.
        file.sync_all()?;
        fs::rename(&temporary, self.path("json"))?;
        File::open(&self.folder)?.sync_all()
    }

    /// Deletes the login.
    pub(super) fn delete(&self) -> io::Result<()> {
        fs::remove_file(self.path("json")).or_else(missing_is_fine)
    }

    /// Waits until no other process changes the login. It may be changed while the result is kept.
    pub(super) async fn lock(&self, clock: &dyn Clock) -> io::Result<File> {
        self.make_folder()?;
        let file = open(OpenOptions::new().write(true).create(true).truncate(false).mode(0o600), &self.path("lock"))?;
        let since = clock.elapsed();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) if clock.elapsed().saturating_sub(since) < LOCK_MAX => {
                    clock.sleep(LOCK_PAUSE).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn make_folder(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed()).open(path)
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
