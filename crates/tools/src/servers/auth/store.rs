//! Logins on disk: one file for each URL, which its owner alone may read, and a lock that all processes know.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use meerkat_service::clock::Clock;
use oauth2::{RefreshToken, TokenResponse as _};
use rmcp::transport::auth::{AuthError, CredentialStore, StoredCredentials};
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{super::config::hex, Account};

/// Bytes of one file.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Pause between two tries to lock.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Longest wait for a lock: another process holds it while it finds the issuer and asks it.
const LOCK_MAX: Duration = Duration::from_secs(90);
/// Seconds before its end when a token is refreshed; less for one that is short-lived.
const MARGIN_S: u64 = 30;

/// Login at a server: its tokens, and all that refreshes them. It is a secret, so nothing shows it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// URL that the tokens go to.
    url: String,
    /// True if a person allowed the issuer to be in a private network.
    pub(super) allows_private: bool,
    pub(super) client_secret: Option<String>,
    /// What the library keeps.
    pub(super) credentials: StoredCredentials,
}

impl Record {
    /// Returns the access token, unless it is `refused` or has nearly expired.
    pub(super) fn token(&self, now_s: u64, refused: Option<&str>) -> Option<String> {
        let tokens = self.credentials.token_response.as_ref()?;
        let lives_s = tokens.expires_in().map(|lives| lives.as_secs());
        let expires_at_s = lives_s
            .zip(self.credentials.token_received_at)
            .map(|(lives, since)| since.saturating_add(lives - MARGIN_S.min(lives / 4)));
        let token = tokens.access_token().secret();
        let is_good = expires_at_s.is_none_or(|at| now_s < at) && refused != Some(token);
        is_good.then(|| token.clone())
    }

    pub(super) fn has_refresh_token(&self) -> bool {
        self.credentials.token_response.as_ref().is_some_and(|tokens| tokens.refresh_token().is_some())
    }

    /// Returns all that no session may show.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        let tokens = self.credentials.token_response.iter();
        let tokens = tokens.flat_map(|tokens| {
            [Some(tokens.access_token().secret()), tokens.refresh_token().map(RefreshToken::secret)]
        });
        tokens.chain([self.client_secret.as_ref()]).flatten().map(String::as_str)
    }
}

/// The library's way to a login. Its user holds the lock: the library's own guard would not tell that another process
/// has refreshed the token already.
pub(super) struct Credentials {
    pub(super) account: Arc<Account>,
    pub(super) client_secret: Option<String>,
    pub(super) allows_private: bool,
}

#[async_trait]
impl CredentialStore for Credentials {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let record = self.account.read().map_err(AuthError::CredentialStoreError)?;
        Ok(record.map(|record| record.credentials))
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        let (url, client_secret) = (self.account.url.clone(), self.client_secret.clone());
        let record = Record { url, allows_private: self.allows_private, client_secret, credentials };
        // Redacted before anything can show it.
        self.account.redact(&record);
        let failed = |error| AuthError::CredentialStoreError(format!("the login could not be kept: {error}"));
        self.account.store.write(&record).map_err(failed)
    }

    async fn clear(&self) -> Result<(), AuthError> {
        self.account.store.delete().map_err(|error| AuthError::CredentialStoreError(error.to_string()))
    }

    /// Keeps the login without the token, which is not offered again.
    async fn on_refresh_token_rejected(&self, credentials: &StoredCredentials) -> Result<(), AuthError> {
        tracing::info!(target: "servers", server = self.account.server, "its login is no longer accepted");
        let mut credentials = credentials.clone();
        if let Some(tokens) = &mut credentials.token_response {
            tokens.set_refresh_token(None);
        }
        self.save(credentials).await
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
        // The lock is held, so no other process writes it.
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
