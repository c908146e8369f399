//! The issuer of a server, and requests to it and for the documents that lead to it: bounded in number, time, bytes and
//! reach, and never redirected.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::StreamExt as _;
use http::{Method, Request, Response, header};
use meerkat_service::model::vendors::network::Reach;
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRequest,
};
use serde_json::json;

use super::Account;

/// Longest time for finding the issuer.
const FIND: Duration = Duration::from_secs(60);
/// Longest time for one request.
const REQUEST: Duration = Duration::from_secs(15);
/// Requests of one login, or one refresh: a document may name any number of others.
const REQUESTS_MAX: usize = 40;
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Issuer of a server's tokens, as the server names it now.
pub(super) struct Issuer {
    pub(super) manager: AuthorizationManager,
    pub(super) name: String,
    /// True if programs can register themselves.
    pub(super) can_register: bool,
    asker: Arc<Asker>,
}

impl Issuer {
    /// Finds the issuer. The library checks that each document is about the URL and the issuer that it was asked for.
    pub(super) async fn find(account: &Account, allows_private: bool) -> Result<Self, String> {
        tokio::select! {
            found = find(account, allows_private) => found,
            () = account.clock.sleep(FIND) => Err(format!("its issuer did not answer within {} s", FIND.as_secs())),
        }
    }

    /// Returns the reason of a failed request for tokens; the library's error does not have it.
    pub(super) fn explain(&self, error: &AuthError) -> String {
        let failure = self.asker.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        failure.unwrap_or_else(|| clean(&error.to_string()))
    }
}

async fn find(account: &Account, allows_private: bool) -> Result<Issuer, String> {
    let mut base = Url::parse(&account.url).map_err(|_| "its url is not valid".to_owned())?;
    let asker = Arc::new(Asker::new(&base, allows_private)?);
    let challenge = challenge(&asker, account).await?;
    // A query may hold a key, which the issuer must not get.
    base.set_query(None);
    base.set_fragment(None);
    let quoted = |error: AuthError| clean(&error.to_string());
    let manager = AuthorizationManager::new_with_oauth_http_client(base, asker.clone()).await;
    let mut manager = manager.map_err(quoted)?;
    let found = manager.resolve_metadata_from_challenge(challenge.as_deref()).await.map_err(quoted)?;
    if !found.source.is_discovered() {
        return Err(
            "it does not advertise an authorization server, so no login that meerkat supports is possible".to_owned()
        );
    }
    let metadata = found.metadata;
    if !metadata.code_challenge_methods_supported.iter().flatten().any(|method| method == "S256") {
        return Err(
            "its issuer does not say that it checks codes by S256 (PKCE), without which a code could be stolen"
                .to_owned(),
        );
    }
    let name = metadata.issuer.clone().ok_or("the authorization server's metadata has no `issuer`")?;
    for (what, url) in [
        ("login page", Some(&metadata.authorization_endpoint)),
        ("endpoint for tokens", Some(&metadata.token_endpoint)),
        ("endpoint for registering", metadata.registration_endpoint.as_ref()),
    ] {
        url.map_or(Ok(()), |url| asker.check(what, url))?;
    }
    let can_register = metadata.registration_endpoint.is_some();
    manager.set_metadata(metadata);
    Ok(Issuer { manager, name, can_register, asker })
}

/// Asks the server for nothing, without a token, and returns the header by which it says who gives one.
async fn challenge(asker: &Asker, account: &Account) -> Result<Option<String>, String> {
    let mut request = Request::post(&account.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json, text/event-stream")
        .body(json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string().into_bytes())
        .map_err(|_| "its url is not valid".to_owned())?;
    request.headers_mut().extend(account.headers.iter().map(|(name, value)| (name.clone(), value.clone())));
    let answer = asker.send(request).await?;
    Ok(answer.headers().get(header::WWW_AUTHENTICATE).and_then(|value| value.to_str().ok()).map(str::to_owned))
}

/// Client for the documents and endpoints that belong to a server's login.
struct Asker {
    http: reqwest::Client,
    reach: Reach,
    left: AtomicUsize,
    /// Reason that the last request to an endpoint failed.
    failure: Mutex<Option<String>>,
}

impl Asker {
    fn new(server: &Url, allows_private: bool) -> Result<Self, String> {
        let reach = Reach::of(server, allows_private);
        let http = reach.http().map_err(|error| error.to_string())?;
        Ok(Self { http, reach, left: AtomicUsize::new(REQUESTS_MAX), failure: Mutex::default() })
    }

    /// Checks an endpoint that a document names.
    fn check(&self, what: &str, url: &str) -> Result<(), String> {
        let parsed = Url::parse(url).map_err(|_| format!("its {what} is not a URL"))?;
        self.reach.check(&parsed).map_err(|why| format!("its {what} is refused: {why}"))
    }

    /// Sends one request.
    async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, String> {
        let host = request.uri().host().map(clean).unwrap_or_default();
        let failed = |why: &str| format!("{host} was not asked: {why}");
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
            return Err(failed("the documents name too many others"));
        }
        let mut request = reqwest::Request::try_from(request).map_err(|_| failed("its URL is not valid"))?;
        self.reach.check(request.url()).map_err(failed)?;
        *request.timeout_mut() = Some(REQUEST);
        let answer = self.http.execute(request).await.map_err(|error| {
            // The error's own text would show the URL, which may hold a code.
            format!("{host} did not answer: {}", clean(&innermost(&error.without_url())))
        })?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let (mut body, mut chunks) = (Vec::new(), answer.bytes_stream());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| format!("{host} did not answer to the end"))?;
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(format!("{host} answered with more than {ANSWER_BYTES_MAX} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        let mut whole = Response::new(body);
        (*whole.status_mut(), *whole.headers_mut()) = (status, headers);
        Ok(whole)
    }
}

impl OAuthHttpClient for Asker {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let is_post = request.request.method() == Method::POST;
            let answer = self.send(request.request).await;
            let failure = match &answer {
                Err(why) => Some(why.clone()),
                Ok(answer) if is_post && !answer.status().is_success() => {
                    let body = clean(&String::from_utf8_lossy(answer.body()));
                    Some(format!("the issuer answered {}: {body}", answer.status()))
                }
                Ok(_) => None,
            };
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
            answer.map_err(Into::into)
        })
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// Returns a short text that a server or an issuer wrote, for a message, without control characters.
pub(super) fn clean(text: &str) -> String {
    const CHARS_MAX: usize = 400;
    text.chars().filter(|char| !char.is_control()).take(CHARS_MAX).collect()
}
