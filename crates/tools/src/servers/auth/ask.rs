//! Requests to the endpoints of an issuer, and for the documents that lead to them: bounded in number, time, bytes and
//! reach, and never redirected.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use futures::StreamExt as _;
use http::{Request, Response, StatusCode, header};
use meerkat_service::model::vendors::network::Reach;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::Url;
use rmcp::transport::auth::{OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRequest};
use serde_json::Value;

use super::store::{Record, Tokens};

/// Longest time for one request.
const REQUEST: Duration = Duration::from_secs(15);
/// Requests of one login, or one refresh: a document may name any number of others.
const REQUESTS_MAX: usize = 40;
/// Bytes of one answer.
const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// Bytes of one token.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Characters that a form escapes.
const ESCAPED: AsciiSet = NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// Errors of an issuer after which only another login helps.
const FINAL: [&str; 3] = ["invalid_grant", "invalid_client", "unauthorized_client"];

/// Client for the documents and endpoints that belong to a server's login.
pub(super) struct Asker {
    http: reqwest::Client,
    reach: Reach,
    left: AtomicUsize,
}

/// Client of an issuer, and its endpoint for tokens.
pub(super) struct TokenRequest<'a> {
    pub(super) endpoint: &'a str,
    pub(super) resource: &'a str,
    pub(super) client_id: &'a str,
    pub(super) client_secret: Option<&'a str>,
    pub(super) is_secret_in_body: bool,
}

impl<'a> TokenRequest<'a> {
    pub(super) fn of(record: &'a Record) -> Self {
        Self {
            endpoint: &record.token_endpoint,
            resource: &record.resource,
            client_id: &record.client_id,
            client_secret: record.client_secret.as_deref(),
            is_secret_in_body: record.is_secret_in_body,
        }
    }
}

/// Failure of a request for tokens, with its reason.
pub(super) enum Refusal {
    /// The issuer no longer accepts the login.
    Rejected(String),
    /// It may work another time.
    Failed(String),
}

impl Asker {
    pub(super) fn new(server: &str, allows_private: bool) -> Result<Self, String> {
        let url = Url::parse(server).map_err(|_| "its url is not valid".to_owned())?;
        let reach = Reach::of(&url, allows_private);
        let http = reach.http().map_err(|error| error.to_string())?;
        Ok(Self { http, reach, left: AtomicUsize::new(REQUESTS_MAX) })
    }

    /// Checks an endpoint that a document names.
    pub(super) fn check(&self, what: &str, url: &str) -> Result<(), String> {
        let parsed = Url::parse(url).map_err(|_| format!("its {what} is not a URL"))?;
        self.reach.check(&parsed).map_err(|why| format!("its {what} is refused: {why}"))
    }

    /// Sends one request.
    pub(super) async fn send(&self, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, String> {
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

    async fn post(&self, client: &TokenRequest<'_>, url: &str, form: &[(&str, &str)]) -> Result<Answer, String> {
        let mut pairs: Vec<(&str, &str)> = form.to_vec();
        let mut request = Request::post(url)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json");
        match client.client_secret {
            Some(secret) if !client.is_secret_in_body => {
                let both = format!("{}:{}", encode(client.client_id), encode(secret));
                request = request.header(header::AUTHORIZATION, format!("Basic {}", BASE64_STANDARD.encode(both)));
            }
            secret => {
                pairs.push(("client_id", client.client_id));
                pairs.extend(secret.map(|secret| ("client_secret", secret)));
            }
        }
        let body: Vec<String> = pairs.iter().map(|(name, value)| format!("{name}={}", encode(value))).collect();
        let request = request.body(body.join("&").into_bytes()).map_err(|_| "its endpoint is not a URL".to_owned())?;
        let answer = self.send(request).await?;
        Ok(Answer { status: answer.status(), body: serde_json::from_slice(answer.body()).unwrap_or_default() })
    }

    /// Asks for tokens.
    pub(super) async fn tokens(&self, client: &TokenRequest<'_>, form: &[(&str, &str)]) -> Result<Tokens, Refusal> {
        let mut form = form.to_vec();
        form.push(("resource", client.resource));
        let answer = self.post(client, client.endpoint, &form).await.map_err(Refusal::Failed)?;
        if answer.status != StatusCode::OK {
            let why = answer.why();
            let is_final = answer.body["error"].as_str().is_some_and(|error| FINAL.contains(&error));
            return Err(if is_final { Refusal::Rejected(why) } else { Refusal::Failed(why) });
        }
        read_tokens(&answer.body).map_err(|why| Refusal::Failed(why.to_owned()))
    }

    /// Asks the issuer to forget a token.
    pub(super) async fn revoke(&self, client: &TokenRequest<'_>, url: &str, token: &str) -> Result<(), String> {
        let answer = self.post(client, url, &[("token", token)]).await?;
        if answer.status.is_success() { Ok(()) } else { Err(answer.why()) }
    }
}

impl OAuthHttpClient for Asker {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move { self.send(request.request).await.map_err(Into::into) })
    }
}

struct Answer {
    status: StatusCode,
    /// Null if it is no JSON.
    body: Value,
}

impl Answer {
    fn why(&self) -> String {
        let part = |name: &str| self.body[name].as_str().map(clean).filter(|text| !text.is_empty());
        let parts: Vec<String> = [part("error"), part("error_description")].into_iter().flatten().collect();
        format!("the issuer answered {}{}{}", self.status, if parts.is_empty() { "" } else { ": " }, parts.join(", "))
    }
}

fn read_tokens(answer: &Value) -> Result<Tokens, &'static str> {
    let token = |name: &str| {
        let text = answer[name].as_str().filter(|text| !text.is_empty());
        match text {
            Some(text) if text.len() > TOKEN_BYTES_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Err("the issuer gave a token that cannot be used")
            }
            text => Ok(text.map(str::to_owned)),
        }
    };
    if !answer["token_type"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
        return Err("the issuer gave no bearer token");
    }
    Ok(Tokens {
        access_token: token("access_token")?.ok_or("the issuer gave no token")?,
        refresh_token: token("refresh_token")?,
        lives_s: answer["expires_in"].as_u64(),
        scopes: answer["scope"].as_str().map(|scopes| scopes.split_whitespace().map(str::to_owned).collect()),
    })
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, &ESCAPED).to_string()
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}

/// Returns a short text of somebody else for a message, without control characters.
pub(super) fn clean(text: &str) -> String {
    const CHARS_MAX: usize = 400;
    text.chars().filter(|char| !char.is_control()).take(CHARS_MAX).collect()
}
