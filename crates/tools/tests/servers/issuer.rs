//! A remote server that wants a login, and the issuer that gives it: both on one port of loopback.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use rmcp::transport::{
    StreamableHttpServerConfig, StreamableHttpService, streamable_http_server::session::local::LocalSessionManager,
};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::server::Tested;

/// What a test has the two do, and what they have seen.
#[derive(Default)]
pub(crate) struct Book {
    /// Paths that were asked for, in order.
    pub(crate) asked: Vec<String>,
    /// Values of the header `authorization` that the server saw.
    pub(crate) tokens_seen: BTreeSet<String>,
    /// Access tokens that are accepted.
    pub(crate) access: BTreeSet<String>,
    /// Refresh tokens that are accepted.
    pub(crate) refresh: BTreeSet<String>,
    pub(crate) refreshes: usize,
    /// Seconds that an access token lives, for the client.
    pub(crate) expires_in: Option<u64>,
    /// Answers that a path gives instead of its own: status, header `location`, body.
    pub(crate) instead: BTreeMap<String, (u16, String, Value)>,
    /// Header `www-authenticate`, instead of the good one; an empty one is left out.
    pub(crate) challenge: Option<String>,
    /// Header `www-authenticate` of the answer that forbids every call of a tool; an empty one is left out.
    pub(crate) forbidden: Option<String>,
    /// Parameter `iss` of the way back, instead of the issuer's name.
    pub(crate) iss: Option<String>,
    /// Knows the revision without sessions alone, and else only those with them.
    pub(crate) has_no_sessions: bool,
    challenges: BTreeMap<String, String>,
    made: usize,
}

#[derive(Clone)]
pub(crate) struct Issuer {
    pub(crate) url: String,
    book: Arc<Mutex<Book>>,
    service: StreamableHttpService<Tested, LocalSessionManager>,
}

impl Issuer {
    pub(crate) async fn start(folder: &Path) -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let tested = Tested::new(folder);
        let service = StreamableHttpService::new(
            move || Ok(tested.clone()),
            Arc::default(),
            StreamableHttpServerConfig::default(),
        );
        let issuer = Self { url, book: Arc::default(), service };
        issuer.book().expires_in = Some(3600);
        let router = Router::new().fallback(answer).with_state(issuer.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        issuer
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap()
    }

    pub(crate) fn metadata(&self) -> Value {
        let url = &self.url;
        json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "registration_endpoint": format!("{url}/register"),
            "response_types_supported": ["code"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
        })
    }

    fn tokens(&self) -> Value {
        let mut book = self.book();
        book.made += 1;
        let (access, refresh) = (format!("access-token-{}", book.made), format!("refresh-token-{}", book.made));
        book.access.insert(access.clone());
        book.refresh.insert(refresh.clone());
        json!({
            "access_token": access, "refresh_token": refresh, "token_type": "Bearer", "scope": "tools",
            "expires_in": book.expires_in,
        })
    }

    fn authorize(&self, query: &BTreeMap<String, String>) -> Response {
        assert_eq!(query["code_challenge_method"], "S256");
        assert_eq!(query["resource"], format!("{}/mcp", self.url));
        let mut book = self.book();
        book.challenges.insert("the-code".to_owned(), query["code_challenge"].clone());
        let iss = book.iss.clone().unwrap_or_else(|| self.url.clone());
        let to = format!("{}?code=the-code&state={}&iss={iss}", query["redirect_uri"], query["state"]);
        plain(302, &to, json!(null))
    }

    fn token(&self, form: &BTreeMap<String, String>) -> Response {
        assert_eq!(form["resource"], format!("{}/mcp", self.url));
        let is_good = match form["grant_type"].as_str() {
            "authorization_code" => {
                let challenge = self.book().challenges.remove(&form["code"]);
                challenge == Some(BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(&form["code_verifier"])))
            }
            "refresh_token" => {
                let mut book = self.book();
                book.refreshes += 1;
                book.refresh.remove(&form["refresh_token"])
            }
            _ => false,
        };
        match is_good {
            true => plain(200, "", self.tokens()),
            false => plain(400, "", json!({ "error": "invalid_grant", "error_description": "not \u{1b}[31myours" })),
        }
    }
}

fn plain(status: u16, location: &str, body: Value) -> Response {
    let mut response = Response::builder().status(status).header("content-type", "application/json");
    if !location.is_empty() {
        response = response.header("location", location);
    }
    response.body(Body::from(body.to_string())).unwrap()
}

/// Answer that wants another authorization.
fn refused(status: u16, challenge: &str) -> Response {
    let mut response = Response::builder().status(status);
    if !challenge.is_empty() {
        response = response.header("www-authenticate", challenge);
    }
    response.body(Body::empty()).unwrap()
}

fn pairs(text: &str) -> BTreeMap<String, String> {
    let url = reqwest::Url::parse(&format!("http://x/?{text}")).unwrap();
    url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

async fn answer(State(issuer): State<Issuer>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    issuer.book().asked.push(path.clone());
    if path == "/mcp" {
        let header = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let is_accepted = {
            let mut book = issuer.book();
            book.tokens_seen.extend(header.clone());
            header.is_some_and(|header| book.access.contains(header.trim_start_matches("Bearer ")))
        };
        if !is_accepted {
            let good = format!("Bearer resource_metadata=\"{}/.well-known/oauth-protected-resource/mcp\"", issuer.url);
            let challenge = issuer.book().challenge.clone().unwrap_or(good);
            return refused(401, &challenge);
        }
    }
    if let Some((status, location, body)) = issuer.book().instead.get(&path).cloned() {
        return plain(status, &location, body);
    }
    let query = pairs(request.uri().query().unwrap_or_default());
    match path.as_str() {
        "/mcp" => {
            let (parts, body) = request.into_parts();
            let body = to_bytes(body, 1 << 20).await.unwrap();
            let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
            let unknown = if issuer.book().has_no_sessions { "initialize" } else { "server/discover" };
            if asked["method"] == unknown {
                let error = json!({ "code": -32601, "message": "Method not found" });
                return plain(404, "", json!({ "jsonrpc": "2.0", "id": asked["id"], "error": error }));
            }
            let forbidden = issuer.book().forbidden.clone().filter(|_| asked["method"] == "tools/call");
            if let Some(challenge) = forbidden {
                return refused(403, &challenge);
            }
            let service = issuer.service.clone();
            service.handle(Request::from_parts(parts, Body::from(body))).await.map(Body::new)
        }
        "/.well-known/oauth-protected-resource/mcp" => {
            let resource = format!("{}/mcp", issuer.url);
            let servers = [&issuer.url];
            plain(
                200,
                "",
                json!({ "resource": resource, "authorization_servers": servers, "scopes_supported": ["tools"] }),
            )
        }
        "/.well-known/oauth-authorization-server" => plain(200, "", issuer.metadata()),
        "/authorize" => issuer.authorize(&query),
        "/register" | "/token" => {
            let body = to_bytes(request.into_body(), 1 << 16).await.unwrap();
            let body = String::from_utf8(body.to_vec()).unwrap();
            if path == "/token" {
                return issuer.token(&pairs(&body));
            }
            let asked: Value = serde_json::from_str(&body).unwrap();
            plain(201, "", json!({ "client_id": "a-client", "redirect_uris": asked["redirect_uris"] }))
        }
        _ => plain(404, "", json!({})),
    }
}
