//! The console on a listener: its files, and the sign-in of browsers. What a sign-in opens is the guard's decision.

use axum::body::{Body, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use meerkat_console::{SIGN_IN_SECONDS, SignIns, answer, is_file};
use meerkat_service::{
    ErrorBody, ErrorCode,
    clock::{Clock as _, SystemClock},
};
use serde_json::{Value, json};

use crate::{
    guard::{Page, Token},
    listen::refusal,
    token::random_digits,
};

/// Path at which a browser signs in (POST) and out (DELETE), and a program asks which token this server has (GET).
const SIGN_IN_PATH: &str = "/console/sign-in";

/// Header with the secret that the page keeps, or a program's question. A page of another origin cannot send it without
/// asking first.
const SECRET: HeaderName = HeaderName::from_static("x-meerkat-console");

/// Bytes of a sign-in's body, and of randomness in each of its secrets.
const BODY_BYTES_MAX: usize = 1024;
const SECRET_BYTES: usize = 32;

/// The console of one listener.
pub(crate) struct Console {
    /// `None` if the server asks for no token.
    sign_ins: Option<SignIns>,
    /// Name of the cookie. Servers on other ports of the host have their own, because browsers share cookies among ports.
    cookie: String,
    clock: SystemClock,
}

impl Page for Console {
    fn is_open(&self, path: &str) -> bool {
        is_file(path) || path == SIGN_IN_PATH
    }

    fn is_signed_in(&self, headers: &HeaderMap) -> bool {
        let pair = self.pair(headers);
        let (sign_ins, now) = (self.sign_ins.as_ref(), millis(&self.clock));
        pair.zip(sign_ins).is_some_and(|(pair, sign_ins)| sign_ins.is_signed_in(pair, now))
    }
}

impl Console {
    pub(crate) fn new(token: Option<&Token>, port: u16) -> Self {
        let clock = SystemClock::new();
        let sign_ins = token.map(|token| SignIns::new(token.text(), millis(&clock)));
        Self { sign_ins, cookie: format!("meerkat_{port}"), clock }
    }

    /// The cookie and the secret of a request; `None` if either is missing or there are several.
    fn pair<'a>(&self, headers: &'a HeaderMap) -> Option<(&'a str, &'a str)> {
        let mut secrets = headers.get_all(SECRET).iter();
        let (Some(secret), None) = (secrets.next(), secrets.next()) else { return None };
        let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
        let mut cookies = lines
            .flat_map(|line| line.split(';'))
            .filter_map(|cookie| cookie.trim().strip_prefix(&self.cookie)?.strip_prefix('='));
        let (Some(cookie), None) = (cookies.next(), cookies.next()) else { return None };
        Some((cookie, secret.to_str().ok()?))
    }

    /// Answers a request for one of the open paths.
    pub(crate) async fn answer<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<axum::BoxError>,
    {
        let (parts, body) = request.into_parts();
        let file = answer(parts.uri.path(), &parts.headers);
        let done = match (file, &parts.method) {
            (Some(file), &Method::GET | &Method::HEAD) => return file.map(Body::from),
            (None, &Method::GET) => self.reply(&parts.headers),
            (None, &Method::POST) => self.sign_in(&parts.headers, body).await,
            (None, &Method::DELETE) => self.sign_out(&parts.headers),
            _ => Err(ErrorBody::new(ErrorCode::MethodNotAllowed)),
        };
        let mut response = done.unwrap_or_else(|body| refusal(&body));
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    /// Replies to a question that only a holder of the token can ask, so that the holder knows who listens here.
    fn reply(&self, headers: &HeaderMap) -> Result<Response<Body>, ErrorBody> {
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        let asked = text(SECRET).zip(text(header::HOST)).zip(self.sign_ins.as_ref());
        let reply = asked.and_then(|((question, host), sign_ins)| {
            sign_ins.reply(question, &format!("http://{host}"), millis(&self.clock))
        });
        let refused = || {
            let message = "The question was not made with this server's token.";
            ErrorBody::with_message(ErrorCode::Unauthenticated, message)
        };
        let body = json!({ "reply": reply.ok_or_else(refused)? }).to_string();
        let response = Response::builder().header(header::CONTENT_TYPE, "application/json").body(Body::from(body));
        response.map_err(|error| ErrorBody::with_message(ErrorCode::Internal, error.to_string()))
    }

    async fn sign_in<B>(&self, headers: &HeaderMap, body: B) -> Result<Response<Body>, ErrorBody>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<axum::BoxError>,
    {
        let refused = || {
            let message = "The code was used, is older than a minute, or is for another address. Run `meerkat console` \
                           again in the server's folder.";
            ErrorBody::with_message(ErrorCode::Unauthenticated, message)
        };
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok()).ok_or_else(refused)?;
        let body = Limited::new(body, BODY_BYTES_MAX).collect().await.map_err(|_| refused())?.to_bytes();
        let sent: Value = serde_json::from_slice(&body).map_err(|_| refused())?;
        let (Some(code), Some(sign_ins)) = (sent["code"].as_str(), &self.sign_ins) else { return Err(refused()) };
        let random = || random_digits(SECRET_BYTES).map_err(|error| internal(&error));
        let (cookie, secret, now) = (random()?, random()?, millis(&self.clock));
        if !sign_ins.exchange(code, origin, now, (&cookie, &secret)) {
            return Err(refused());
        }
        let until_ms = now + SIGN_IN_SECONDS * 1000;
        self.respond(
            StatusCode::OK,
            &cookie,
            SIGN_IN_SECONDS,
            origin,
            json!({ "secret": secret, "until_ms": until_ms }),
        )
    }

    fn sign_out(&self, headers: &HeaderMap) -> Result<Response<Body>, ErrorBody> {
        let pair = self.pair(headers).filter(|_| self.is_signed_in(headers));
        let (Some((cookie, _)), Some(sign_ins)) = (pair, &self.sign_ins) else {
            return Err(ErrorBody::with_message(ErrorCode::Unauthenticated, "This browser is not signed in."));
        };
        sign_ins.sign_out(cookie);
        self.respond(StatusCode::OK, "", 0, "", json!({ "signed_in": false }))
    }

    fn respond(
        &self,
        status: StatusCode,
        cookie: &str,
        seconds: u64,
        origin: &str,
        answer: Value,
    ) -> Result<Response<Body>, ErrorBody> {
        let secure = if origin.starts_with("https:") { "; Secure" } else { "" };
        let cookie = format!("{}={cookie}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}", self.cookie);
        let response = Response::builder()
            .status(status)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::SET_COOKIE, cookie)
            .body(Body::from(answer.to_string()));
        response.map_err(|error| ErrorBody::with_message(ErrorCode::Internal, error.to_string()))
    }
}

fn internal(error: &std::io::Error) -> ErrorBody {
    tracing::error!(%error, "a sign-in to the console failed");
    ErrorBody::with_message(ErrorCode::Internal, format!("The system gave no random bytes: {error}"))
}

fn millis(clock: &SystemClock) -> u64 {
    u64::try_from(clock.now().as_millis()).unwrap_or_default()
}
