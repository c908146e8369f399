//! A person's login at a server: the documents that lead to its issuer, the page where the person agrees, and the tokens
//! that follow.
//!
//! The library finds the documents, registers us and makes the page's URL; it checks that each document is about the URL
//! and the issuer that it was asked for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderName, HeaderValue, Request, header};
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, OAuthClientConfig, StateStore, StoredAuthorizationState,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;

use super::{
    Account,
    ask::{Asker, Refusal, TokenRequest, clean},
    redirect::Redirect,
    store::Record,
};

/// Longest time for finding the issuer and registering with it.
const PREPARE: Duration = Duration::from_secs(60);
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
    asker: Arc<Asker>,
    redirect: Redirect,
    page: String,
    /// State and secrets of this login, which the library made.
    stored: StoredAuthorizationState,
    /// Record to be, without tokens.
    record: Record,
}

/// Parameters with which the browser comes back.
struct Returned {
    code: String,
}

/// Outcome of ending a login.
#[derive(Debug, PartialEq, Eq)]
pub enum Logout {
    /// There was none.
    WasNone,
    /// The tokens are deleted here, and the issuer was told.
    Revoked,
    /// The tokens are deleted here. The issuer was not told, for this reason, and may accept them until they expire.
    Forgotten(String),
}

impl Login {
    /// Finds the issuer of a server and registers with it.
    pub(in super::super) async fn begin(
        account: Arc<Account>,
        headers: &HashMap<HeaderName, HeaderValue>,
        options: LoginOptions,
    ) -> Result<Self, String> {
        let clock = account.clock.clone();
        tokio::select! {
            login = prepare(account, headers, options) => login,
            () = clock.sleep(PREPARE) => Err(format!("its issuer did not answer within {} s", PREPARE.as_secs())),
        }
    }

    /// Returns the URL of the page where a person agrees.
    #[must_use]
    pub fn page(&self) -> &str {
        &self.page
    }

    /// Returns the name of the issuer.
    #[must_use]
    pub fn issuer(&self) -> &str {
        &self.record.issuer
    }

    /// Waits until the browser comes back, and keeps the tokens.
    pub(in super::super) async fn wait(self) -> Result<(), String> {
        let stored = self.stored.clone();
        let clock = self.account.clock.clone();
        let returned = tokio::select! {
            returned = self.redirect.wait(move |query| take(query, &stored), &*clock) => {
                returned.map_err(|error| format!("no browser can come back: {error}"))?
            }
            () = clock.sleep(PERSON) => return Err(format!("the login was not completed within {} minutes", PERSON.as_secs() / 60)),
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
        let returned = take(query.split('#').next().unwrap_or_default(), &self.stored)??;
        self.finish(returned).await
    }

    async fn finish(self, returned: Returned) -> Result<(), String> {
        let form = [
            ("grant_type", "authorization_code"),
            ("code", &returned.code),
            ("redirect_uri", &self.redirect.uri),
            ("code_verifier", &self.stored.pkce_verifier),
        ];
        let tokens = self.asker.tokens(&TokenRequest::of(&self.record), &form).await;
        let tokens = tokens.map_err(|refusal| match refusal {
            Refusal::Rejected(why) | Refusal::Failed(why) => why,
        })?;
        let account = self.account;
        let record = self.record.with(tokens, account.now_s());
        account.redact(&record);
        let kept = async {
            let _lock = account.store.lock(&*account.clock).await?;
            account.store.write(&record)
        };
        kept.await.map_err(|error| format!("the tokens could not be kept: {error}"))?;
        account.accept();
        Ok(())
    }
}

/// Ends the login at a server.
pub(in super::super) async fn log_out(account: &Account) -> Result<Logout, String> {
    let locked = account.store.lock(&*account.clock).await;
    let lock = locked.map_err(|error| format!("its login is in use: {error}"))?;
    // A damaged one is deleted too.
    let record = account.store.read();
    account.store.delete().map_err(|error| format!("its login could not be deleted: {error}"))?;
    drop(lock);
    let record = match record {
        Ok(None) => return Ok(Logout::WasNone),
        Ok(Some(record)) => record,
        Err(error) => return Ok(Logout::Forgotten(error.to_string())),
    };
    let Some(endpoint) = &record.revocation_endpoint else {
        return Ok(Logout::Forgotten("the issuer names no way to tell it".to_owned()));
    };
    let asker = Asker::new(&account.url, record.allows_private)?;
    let client = TokenRequest::of(&record);
    for token in record.refresh_token.iter().chain([&record.access_token]) {
        if let Err(why) = asker.revoke(&client, endpoint, token).await {
            return Ok(Logout::Forgotten(why));
        }
    }
    Ok(Logout::Revoked)
}

async fn prepare(
    account: Arc<Account>,
    headers: &HashMap<HeaderName, HeaderValue>,
    options: LoginOptions,
) -> Result<Login, String> {
    let asker = Arc::new(Asker::new(&account.url, options.allows_private)?);
    let challenge = challenge(&asker, &account.url, headers).await?;
    let mut base = Url::parse(&account.url).map_err(|_| "its url is not valid".to_owned())?;
    // A query may hold a key, which is no business of an issuer's.
    base.set_query(None);
    base.set_fragment(None);
    let manager = AuthorizationManager::new_with_oauth_http_client(base, asker.clone()).await;
    let mut manager = manager.map_err(told)?;
    let made = Made::default();
    manager.set_state_store(made.clone());
    let found = manager.resolve_metadata_from_challenge(challenge.as_deref()).await.map_err(told)?;
    if !found.source.is_discovered() {
        return Err(
            "it does not advertise an authorization server, so no login that meerkat supports is possible".to_owned()
        );
    }
    let methods = found.metadata.code_challenge_methods_supported.iter().flatten();
    if !methods.into_iter().any(|method| method == "S256") {
        return Err(
            "its issuer does not say that it checks codes by S256 (PKCE), without which a code could be stolen"
                .to_owned(),
        );
    }
    let issuer = found.metadata.issuer.clone().ok_or("the authorization server's metadata has no `issuer`")?;
    let revocation_endpoint = text(&found.metadata, "revocation_endpoint");
    for (what, url) in [
        ("login page", Some(&found.metadata.authorization_endpoint)),
        ("endpoint for tokens", Some(&found.metadata.token_endpoint)),
        ("endpoint for registering", found.metadata.registration_endpoint.as_ref()),
        ("endpoint for revoking", revocation_endpoint.as_ref()),
    ] {
        url.map_or(Ok(()), |url| asker.check(what, url))?;
    }
    let is_secret_in_body = is_secret_in_body(&found.metadata);
    let (token_endpoint, can_register) =
        (found.metadata.token_endpoint.clone(), found.metadata.registration_endpoint.is_some());
    manager.set_metadata(found.metadata);
    let before = account.read().ok().flatten().filter(|record| record.issuer == issuer);
    let mut scopes = manager.select_initial_scopes(&[]).await;
    for scope in options.scopes.into_iter().chain(before.map(|record| record.scopes).unwrap_or_default()) {
        if !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    let scope_refs: Vec<&str> = scopes.iter().map(String::as_str).collect();
    let redirect = Redirect::bind().await.map_err(|error| format!("no port for the browser: {error}"))?;
    let client = match options.client_id {
        Some(id) => {
            let config = OAuthClientConfig::new(id, redirect.uri.clone());
            manager.configure_client(config.clone()).map_err(told)?;
            match options.client_secret {
                Some(secret) => config.with_client_secret(secret.expose_secret()),
                None => config,
            }
        }
        None if can_register => manager.register_client("meerkat", &redirect.uri, &scope_refs).await.map_err(told)?,
        None => {
            return Err("its issuer registers no programs by itself: register one and give its --client-id".to_owned());
        }
    };
    let page = manager.get_authorization_url(&scope_refs).await.map_err(told)?;
    let stored = made.take().ok_or("the library made no state")?;
    let resource = Url::parse(&page)
        .ok()
        .and_then(|page| page.query_pairs().find(|(name, _)| name == "resource").map(|(_, value)| value.into_owned()))
        .ok_or("the library named no resource")?;
    let record = Record {
        url: account.url.clone(),
        issuer,
        resource,
        token_endpoint,
        revocation_endpoint,
        client_id: client.client_id,
        client_secret: client.client_secret,
        is_secret_in_body,
        scopes,
        access_token: String::new(),
        refresh_token: None,
        expires_at_s: None,
        allows_private: options.allows_private,
    };
    Ok(Login { account, asker, redirect, page, stored, record })
}

/// Asks the server for nothing, without a token, and returns the header by which it says who gives one.
async fn challenge(
    asker: &Asker,
    url: &str,
    headers: &HashMap<HeaderName, HeaderValue>,
) -> Result<Option<String>, String> {
    let mut request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream")
        .body(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string().into_bytes())
        .map_err(|_| "its url is not valid".to_owned())?;
    request.headers_mut().extend(headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let answer = asker.send(request).await?;
    Ok(answer.headers().get(header::WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).map(str::to_owned))
}

/// Reads the query with which a browser came back. One that does not belong to this login is an error; the inner error
/// is the issuer's no.
fn take(query: &str, stored: &StoredAuthorizationState) -> Result<Result<Returned, String>, String> {
    let url = Url::parse(&format!("http://127.0.0.1/?{query}")).map_err(|_| "This is not a URL.".to_owned())?;
    let part = |wanted: &str| url.query_pairs().find(|(name, _)| name == wanted).map(|(_, value)| value.into_owned());
    if part("state").as_deref() != Some(stored.csrf_token.as_str()) {
        return Err("This answer belongs to another login; its state is not the one of this.".to_owned());
    }
    match (part("iss"), &stored.expected_issuer) {
        (Some(issuer), Some(expected)) if issuer == *expected => {}
        (None, _) if !stored.require_issuer => {}
        _ => return Err("This answer comes from another issuer.".to_owned()),
    }
    if let Some(error) = part("error") {
        let more = part("error_description").map(|text| format!(": {}", clean(&text))).unwrap_or_default();
        return Ok(Err(format!("the issuer refused: {}{more}", clean(&error))));
    }
    let code = part("code").ok_or("This answer has no code.")?;
    Ok(Ok(Returned { code }))
}

fn text(metadata: &AuthorizationMetadata, name: &str) -> Option<String> {
    metadata.additional_fields.get(name)?.as_str().map(str::to_owned)
}

/// Returns true if the issuer takes a client's secret in the body alone.
fn is_secret_in_body(metadata: &AuthorizationMetadata) -> bool {
    let methods = metadata.additional_fields.get("token_endpoint_auth_methods_supported");
    let has = |method: &str| {
        methods.and_then(|methods| methods.as_array()).is_some_and(|methods| methods.iter().any(|one| one == method))
    };
    has("client_secret_post") && !has("client_secret_basic")
}

/// Returns the library's reason, of which a hostile server may have written a part.
fn told(error: AuthError) -> String {
    clean(&error.to_string())
}

/// State that the library makes with the page's URL.
#[derive(Clone, Default)]
struct Made(Arc<Mutex<Option<StoredAuthorizationState>>>);

impl Made {
    fn take(&self) -> Option<StoredAuthorizationState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[async_trait]
impl StateStore for Made {
    async fn save(&self, _: &str, state: StoredAuthorizationState) -> Result<(), AuthError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        Ok(())
    }

    async fn load(&self, _: &str) -> Result<Option<StoredAuthorizationState>, AuthError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn delete(&self, _: &str) -> Result<(), AuthError> {
        drop(self.take());
        Ok(())
    }
}
