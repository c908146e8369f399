//! Logins at remote servers: the tokens of one server, kept fresh, and what it says when it wants a login.
//!
//! The library finds the issuer, registers us, asks for tokens and refreshes them; here is when, where they are kept, and
//! how far its requests reach. A token goes to the URL that it was made for and to the issuer that made it, and nowhere
//! else. What a server or an issuer says is hostile: each request is bounded in time, bytes and reach.

mod ask;
mod authorized;
mod login;
mod redirect;
mod store;

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{HeaderName, HeaderValue};
use meerkat_service::{clock::Clock, redact::Secrets};
use oauth2::TokenResponse as _;
use rmcp::transport::auth::{AuthError, OAuthClientConfig};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::task::TaskTracker;

pub(super) use authorized::Authorized;
pub use login::{Login, LoginOptions};

use super::given::is_ordinary;
use ask::{Issuer, clean};
use store::{Credentials, Record, Store};

/// Tokens of a server that are redacted: the last ones, as an old one may hold for a while.
const REDACTED_MAX: usize = 12;

/// Login at one remote server.
pub(super) struct Account {
    /// Name of the server, for messages.
    server: String,
    url: String,
    /// Headers of each request to the server.
    headers: HashMap<HeaderName, HeaderValue>,
    store: Store,
    clock: Arc<dyn Clock>,
    /// Tasks that the end of the program waits for: a refresh that is cut could lose the login.
    tasks: TaskTracker,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Reason that the server refused the last request.
    refused: Option<String>,
    /// The last tokens.
    tokens: VecDeque<SecretString>,
    /// Lists of secrets that learn of each token.
    redacting: Vec<Secrets>,
}

impl Account {
    /// Makes the login of a server, whose tokens are kept in `folder`.
    pub(super) fn new(
        server: &str,
        url: &str,
        headers: HashMap<HeaderName, HeaderValue>,
        folder: PathBuf,
        clock: Arc<dyn Clock>,
        tasks: TaskTracker,
    ) -> Self {
        let store = Store::new(folder, url);
        let (server, url) = (server.to_owned(), url.to_owned());
        Self { server, url, headers, store, clock, tasks, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the tokens to a list of secrets, those of now and of later.
    pub(super) fn redact_with(&self, secrets: &Secrets) {
        let mut state = self.state();
        secrets.learn(&self.url, state.tokens.iter().cloned().collect());
        state.redacting.push(secrets.clone());
        drop(state);
        if let Ok(Some(record)) = self.store.read() {
            self.redact(&record);
        }
    }

    fn redact(&self, record: &Record) {
        let mut state = self.state();
        let is_known = |value: &str| state.tokens.iter().any(|known| known.expose_secret() == value);
        // The server chooses them, and must not blank a word in all sessions.
        let is_new = |value: &&str| !is_known(value) && !is_ordinary(value);
        let new: Vec<SecretString> = record.secrets().filter(is_new).map(SecretString::from).collect();
        if new.is_empty() {
            return;
        }
        state.tokens.extend(new);
        let surplus = state.tokens.len().saturating_sub(REDACTED_MAX);
        state.tokens.drain(..surplus);
        let values: Vec<SecretString> = state.tokens.iter().cloned().collect();
        for secrets in &state.redacting {
            secrets.learn(&self.url, values.clone());
        }
    }

    /// Reads the login.
    fn read(&self) -> Result<Option<Record>, String> {
        let record = self.store.read().map_err(|error| {
            format!("its login cannot be read: {error}; `meerkat servers login {}` makes another", self.server)
        })?;
        if let Some(record) = &record {
            self.redact(record);
        }
        Ok(record)
    }

    fn now_s(&self) -> u64 {
        u64::try_from(self.clock.now().as_millis() / 1000).unwrap_or(0)
    }

    /// Returns the token for the next request, another one than `refused`; none if only a person can get one.
    ///
    /// Of many that need a fresh one, in this process and others, one refreshes; the others take what it got. A caller
    /// that gives up does not end it. (The library's own `AuthClient` does neither.)
    async fn token(self: &Arc<Self>, refused: Option<String>) -> Result<Option<String>, String> {
        let Some(record) = self.read()? else { return Ok(None) };
        if let Some(token) = record.token(self.now_s(), refused.as_deref()) {
            return Ok(Some(token));
        }
        let account = self.clone();
        let refreshed = self.tasks.spawn(async move { account.refresh(refused.as_deref()).await });
        refreshed.await.unwrap_or_else(|error| Err(format!("its token could not be refreshed: {error}")))
    }

    async fn refresh(self: Arc<Self>, refused: Option<&str>) -> Result<Option<String>, String> {
        let _lock = self.store.lock(&*self.clock).await.map_err(|error| format!("its login is in use: {error}"))?;
        let Some(record) = self.read()? else { return Ok(None) };
        if let Some(token) = record.token(self.now_s(), refused) {
            return Ok(Some(token));
        }
        if !record.has_refresh_token() {
            return Ok(None);
        }
        let failed = |why: String| format!("its token could not be refreshed: {why}");
        let mut issuer = Issuer::find(&self, record.allows_private).await.map_err(failed)?;
        // The library would offer the token to any issuer that the server names now.
        if record.credentials.issuer.as_ref() != Some(&issuer.name) {
            return Err(failed(format!("its issuer is now {}; log in again", clean(&issuer.name))));
        }
        let mut client = OAuthClientConfig::new(record.credentials.client_id, self.url.as_str());
        client.client_secret.clone_from(&record.client_secret);
        issuer.manager.configure_client(client).map_err(|error| failed(clean(&error.to_string())))?;
        let (client_secret, allows_private) = (record.client_secret, record.allows_private);
        issuer.manager.set_credential_store(Credentials { account: self.clone(), client_secret, allows_private });
        match issuer.manager.refresh_token().await {
            Ok(tokens) => Ok(Some(tokens.access_token().secret().clone())),
            Err(AuthError::AuthorizationRequired | AuthError::TokenRefreshRejected(_)) => Ok(None),
            Err(error) => Err(failed(issuer.explain(&error))),
        }
    }

    /// Deletes the login. Returns true if there was one.
    pub(super) async fn log_out(&self) -> Result<bool, String> {
        let locked = self.store.lock(&*self.clock).await;
        let _lock = locked.map_err(|error| format!("its login is in use: {error}"))?;
        // A damaged one is deleted too.
        let had_login = !matches!(self.store.read(), Ok(None));
        self.store.delete().map_err(|error| format!("its login could not be deleted: {error}"))?;
        Ok(had_login)
    }

    /// Says what the server wants: a login, or one with the scopes that it names.
    pub(super) fn wanted(&self, scope: Option<&str>) -> String {
        let scope = scope.filter(|scope| !scope.is_empty() && scope.chars().all(is_scope_char));
        match scope.map(clean) {
            None => format!("it wants a login: run `meerkat servers login {}`", self.server),
            Some(scope) => {
                let option = format!("--scope '{scope}'");
                format!("its login lacks a permission: run `meerkat servers login {} {option}`", self.server)
            }
        }
    }

    /// Notes what the server wants. Another request may be accepted at any time.
    fn refuse(&self, scope: Option<&str>) {
        self.state().refused = Some(self.wanted(scope));
    }

    fn accept(&self) {
        self.state().refused = None;
    }

    /// Returns the reason if the server has refused the last request for want of a login.
    pub(super) fn refused(&self) -> Option<String> {
        self.state().refused.clone()
    }
}

/// Returns true for what a list of scopes is made of; nothing of it ends a quoted word of a shell.
fn is_scope_char(char: char) -> bool {
    char.is_ascii_graphic() && !matches!(char, '\'' | '"' | '\\' | '`') || char == ' '
}
