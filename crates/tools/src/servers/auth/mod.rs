//! Logins at remote servers: the tokens of one server, kept fresh, and what it says when it wants a login.
//!
//! A token goes to the URL that it was made for and to the endpoints of the issuer that made it, and nowhere else. What
//! a server or an issuer says is hostile: each request is bounded in time, bytes and reach.

mod ask;
mod authorized;
mod login;
mod redirect;
mod store;

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use meerkat_service::{clock::Clock, redact::Secrets};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::task::TaskTracker;

pub(super) use authorized::Authorized;
pub(super) use login::log_out;
pub use login::{Login, LoginOptions, Logout};

use super::given::is_ordinary;
use ask::{Asker, Refusal, TokenRequest, clean};
use store::{Record, Store};

/// Tokens of a server that are redacted: the last ones, as an old one may hold for a while.
const REDACTED_MAX: usize = 12;

/// Login at one remote server.
pub(super) struct Account {
    /// Name of the server, for messages.
    server: String,
    url: String,
    store: Store,
    clock: Arc<dyn Clock>,
    /// Tasks that the end of the program waits for: a refresh that is cut could lose the login.
    tasks: TaskTracker,
    /// Held while a token is refreshed.
    refreshing: tokio::sync::Mutex<()>,
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
    pub(super) fn new(server: &str, url: &str, folder: PathBuf, clock: Arc<dyn Clock>, tasks: TaskTracker) -> Self {
        let store = Store::new(folder, url);
        let (server, url) = (server.to_owned(), url.to_owned());
        Self { server, url, store, clock, tasks, refreshing: tokio::sync::Mutex::default(), state: Mutex::default() }
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
        let values = [Some(&record.access_token), record.refresh_token.as_ref(), record.client_secret.as_ref()];
        let is_known = |value: &String| state.tokens.iter().any(|known| known.expose_secret() == value);
        // The server chooses them, and must not blank a word in all sessions.
        let is_new = |value: &&String| !is_known(value) && !is_ordinary(value);
        let new: Vec<&String> = values.into_iter().flatten().filter(is_new).collect();
        if new.is_empty() {
            return;
        }
        state.tokens.extend(new.into_iter().map(|value| SecretString::from(value.as_str())));
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

    /// Returns the token for the next request, a fresh one if the last has expired; none without a login.
    async fn token(self: &Arc<Self>) -> Result<Option<String>, String> {
        match self.read()? {
            Some(record) if record.expires_at_s.is_some_and(|at| at <= self.now_s()) => {
                self.renew(record.access_token).await
            }
            record => Ok(record.map(|record| record.access_token)),
        }
    }

    /// Returns another token than the one that has expired or was refused; none if only a person can get one.
    ///
    /// Of many that ask for it, in this process and others, one refreshes; the others take what it got. A caller that
    /// gives up does not end it.
    async fn renew(self: &Arc<Self>, old: String) -> Result<Option<String>, String> {
        let account = self.clone();
        let renewed = self.tasks.spawn(async move { account.refresh(&old).await });
        renewed.await.unwrap_or_else(|error| Err(format!("its token could not be refreshed: {error}")))
    }

    async fn refresh(&self, old: &str) -> Result<Option<String>, String> {
        let _one = self.refreshing.lock().await;
        let _lock = self.store.lock(&*self.clock).await.map_err(|error| format!("its login is in use: {error}"))?;
        let Some(record) = self.read()? else { return Ok(None) };
        if record.access_token != old {
            return Ok(Some(record.access_token));
        }
        let Some(refresh_token) = record.refresh_token.clone() else { return Ok(None) };
        let asker = Asker::new(&self.url, record.allows_private)?;
        let scope = record.scopes.join(" ");
        let mut form = vec![("grant_type", "refresh_token"), ("refresh_token", refresh_token.as_str())];
        if !scope.is_empty() {
            form.push(("scope", &scope));
        }
        let tokens = match asker.tokens(&TokenRequest::of(&record), &form).await {
            Ok(tokens) => tokens,
            Err(Refusal::Rejected(why)) => {
                tracing::info!(target: "servers", server = self.server, why, "its login is no longer accepted");
                // It is not offered again.
                let record = Record { refresh_token: None, ..record };
                return self.store.write(&record).map(|()| None).map_err(not_kept);
            }
            Err(Refusal::Failed(why)) => return Err(format!("its token could not be refreshed: {why}")),
        };
        let record = record.with(tokens, self.now_s());
        // Redacted before anything can show it.
        self.redact(&record);
        self.store.write(&record).map_err(not_kept)?;
        Ok(Some(record.access_token))
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

fn not_kept(error: std::io::Error) -> String {
    format!("its login could not be kept: {error}")
}

/// Returns true for what a list of scopes is made of; nothing of it ends a quoted word of a shell.
fn is_scope_char(char: char) -> bool {
    char.is_ascii_graphic() && !matches!(char, '\'' | '"' | '\\' | '`') || char == ' '
}
