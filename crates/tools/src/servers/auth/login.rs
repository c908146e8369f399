//! A person's login at a server: the page where the person agrees, and the way back from it.

use std::{sync::Arc, time::Duration};

use reqwest::Url;
use rmcp::transport::auth::{AuthorizationCallback, OAuthClientConfig};
use secrecy::{ExposeSecret as _, SecretString};

use super::{
    Account,
    ask::{Issuer, clean},
    redirect::Redirect,
    store::Credentials,
};

/// Longest wait for a person.
const PERSON: Duration = Duration::from_secs(600);
/// Bytes of a URL that is pasted.
const PASTED_BYTES_MAX: usize = 16 * 1024;

/// Options of a login.
#[derive(Default)]
pub struct LoginOptions {
    /// Permissions to ask for, besides those that the server names.
    pub scopes: Vec<String>,
    /// Client that a person registered with the issuer; without one this program registers itself.
    pub client_id: Option<String>,
    /// Secret of that client, if it has one.
    pub client_secret: Option<SecretString>,
    /// Allows an issuer in a private network.
    pub allows_private: bool,
}

/// Login that waits for a person.
pub struct Login {
    account: Arc<Account>,
    issuer: Issuer,
    redirect: Redirect,
    page: String,
    /// Secret of this login, with which the browser comes back.
    state: String,
}

impl Login {
    /// Finds the issuer of a server and registers with it.
    pub(in super::super) async fn begin(account: Arc<Account>, options: LoginOptions) -> Result<Self, String> {
        let mut issuer = Issuer::find(&account, options.allows_private).await?;
        let manager = &mut issuer.manager;
        let before = account.read().ok().flatten().map(|record| record.credentials);
        let before = before.filter(|before| before.issuer.as_ref() == Some(&issuer.name));
        let mut scopes = manager.select_initial_scopes(&[]).await;
        for scope in options.scopes.into_iter().chain(before.map(|before| before.granted_scopes).unwrap_or_default()) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let redirect = Redirect::bind().await.map_err(|error| format!("no port for the browser: {error}"))?;
        let quoted = |error: rmcp::transport::auth::AuthError| clean(&error.to_string());
        let client_secret = match options.client_id {
            Some(id) => {
                let mut client = OAuthClientConfig::new(id, redirect.uri.clone());
                client.client_secret = options.client_secret.map(|secret| secret.expose_secret().to_owned());
                let secret = client.client_secret.clone();
                manager.configure_client(client).map(|()| secret)
            }
            None if issuer.can_register => {
                let registered = manager.register_client("meerkat", &redirect.uri, &scopes).await;
                registered.map(|client| client.client_secret)
            }
            None => {
                return Err("programs cannot register themselves at its issuer: register one and give its --client-id"
                    .to_owned());
            }
        };
        let (client_secret, allows_private) = (client_secret.map_err(quoted)?, options.allows_private);
        manager.set_credential_store(Credentials { account: account.clone(), client_secret, allows_private });
        let page = manager.get_authorization_url(&scopes).await.map_err(quoted)?;
        let state =
            Url::parse(&page).ok().and_then(|page| part(&page, "state")).ok_or("its login page has no state")?;
        Ok(Self { account, issuer, redirect, page, state })
    }

    /// Returns the URL of the page where a person agrees.
    #[must_use]
    pub fn page(&self) -> &str {
        &self.page
    }

    /// Returns the name of the issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.issuer.name
    }

    /// Waits until the browser comes back, and keeps the tokens.
    pub(in super::super) async fn wait(self) -> Result<(), String> {
        let (state, clock) = (self.state.clone(), self.account.clock.clone());
        let returned = tokio::select! {
            returned = self.redirect.wait(move |query| take(query, &state), &*clock) => {
                returned.map_err(|error| format!("no browser can come back: {error}"))?
            }
            () = clock.sleep(PERSON) => {
                return Err(format!("the login was not completed within {} minutes", PERSON.as_secs() / 60));
            }
        };
        self.finish(returned?).await
    }

    /// Takes the URL to which the browser was sent back, and keeps the tokens.
    pub(in super::super) async fn paste(self, url: &str) -> Result<(), String> {
        let url = url.trim();
        if url.len() > PASTED_BYTES_MAX {
            return Err(format!("what was pasted has more than {PASTED_BYTES_MAX} bytes"));
        }
        let query = url.strip_prefix(&self.redirect.uri).and_then(|rest| rest.strip_prefix('?'));
        let query = query.ok_or_else(|| {
            format!("what was pasted does not begin with {}?; paste the whole address", self.redirect.uri)
        })?;
        let returned = take(query.split('#').next().unwrap_or_default(), &self.state)??;
        self.finish(returned).await
    }

    async fn finish(self, returned: AuthorizationCallback) -> Result<(), String> {
        let (store, clock) = (&self.account.store, &*self.account.clock);
        let _lock = store.lock(clock).await.map_err(|error| format!("its login is in use: {error}"))?;
        let AuthorizationCallback { code, csrf_token, issuer, .. } = returned;
        let exchanged = self.issuer.manager.exchange_code_for_token_with_issuer(&code, &csrf_token, issuer.as_deref());
        exchanged.await.map_err(|error| self.issuer.explain(&error))?;
        self.account.accept();
        Ok(())
    }
}

/// Reads the query with which a browser came back. One that does not belong to this login is an error; the inner error
/// is the issuer's no.
fn take(query: &str, state: &str) -> Result<Result<AuthorizationCallback, String>, String> {
    let url = Url::parse(&format!("http://127.0.0.1/?{query}")).map_err(|_| "This is not a URL.".to_owned())?;
    if part(&url, "state").as_deref() != Some(state) {
        return Err("This answer belongs to another login; its state is not the one of this.".to_owned());
    }
    if let Some(error) = part(&url, "error") {
        let more = part(&url, "error_description").map(|text| format!(": {}", clean(&text))).unwrap_or_default();
        return Ok(Err(format!("the issuer refused: {}{more}", clean(&error))));
    }
    AuthorizationCallback::from_redirect_url(url.as_str()).map(Ok).map_err(|_| "This answer has no code.".to_owned())
}

fn part(url: &Url, wanted: &str) -> Option<String> {
    url.query_pairs().find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned())
}
