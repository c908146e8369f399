//! Failures of vendors, classed by code.
//!
//! A message never holds the key. The vendor's text is not trusted, and is cut only after the engine has replaced every
//! secret in it: otherwise part of a secret could remain.

use std::{error::Error as StdError, sync::Arc, time::Duration};

use genai::Error;
use jiff::fmt::rfc2822;
use meerkat_errors::ErrorCode;
use reqwest::header::HeaderMap;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use crate::ModelError;

/// Vendors' texts for a request that does not fit the window, in lower case.
const CONTEXT_PHRASES: &[&str] = &[
    "context_length_exceeded",
    "exceed_context_size_error",
    "request_too_large",
    "prompt is too long",
    "exceed context limit",
    "maximum context length",
    "exceeds the context window",
    "exceeds the maximum number of tokens",
    "exceeds the available context size",
];

/// Vendors' texts for a wrong key whose status does not say so, in lower case.
const KEY_PHRASES: &[&str] = &["api key not valid", "api_key_invalid"];

/// Vendors' texts for a used-up quota, as opposed to a rate limit, in lower case.
const QUOTA_PHRASES: &[&str] = &["insufficient_quota", "billing_hard_limit_reached", "exceeded your current quota"];

/// Classes of errors inside a stream, by the vendor's own name.
const KINDS: &[(&str, ErrorCode)] = &[
    ("authentication_error", ErrorCode::ModelUnauthorized),
    ("permission_error", ErrorCode::ModelUnauthorized),
    ("invalid_api_key", ErrorCode::ModelUnauthorized),
    ("PERMISSION_DENIED", ErrorCode::ModelUnauthorized),
    ("UNAUTHENTICATED", ErrorCode::ModelUnauthorized),
    ("rate_limit_error", ErrorCode::ModelRateLimited),
    ("rate_limit_exceeded", ErrorCode::ModelRateLimited),
    ("RESOURCE_EXHAUSTED", ErrorCode::ModelRateLimited),
    ("invalid_request_error", ErrorCode::ModelRejected),
    ("invalid_prompt", ErrorCode::ModelRejected),
    ("not_found_error", ErrorCode::ModelRejected),
    ("INVALID_ARGUMENT", ErrorCode::ModelRejected),
];

/// Classes the failures of one vendor.
#[derive(Clone)]
pub(super) struct Failures {
    /// The vendor's name, which begins each message.
    pub(super) vendor: Arc<str>,
    /// The key, which is removed from each message.
    pub(super) key: Option<SecretString>,
    /// Setting of the vendor's base URL.
    pub(super) setting: Arc<str>,
}

impl Failures {
    /// Classes a failure; `frame` is the last frame of the stream.
    pub(super) fn class(&self, error: &Error, frame: &str) -> ModelError {
        match error {
            Error::HttpError { status, body, headers, .. } => self.answered(status.as_u16(), body, headers),
            Error::WebStream { error, .. } => {
                if let Some(error) = error.downcast_ref::<Error>() {
                    self.class(error, frame)
                } else {
                    self.broken(error.as_ref())
                }
            }
            Error::ChatResponse { body, .. } => self.in_stream(&body.to_string()),
            // genai gives only a text if OpenAI's responses fail, so the frame itself is read.
            Error::StreamParse { .. } if serde_json::from_str::<Value>(frame).is_ok() => self.in_stream(frame),
            Error::StreamParse { .. } => self.cut(frame),
            other => self.failure(ErrorCode::ModelRejected, &other.to_string()),
        }
    }

    /// Makes the failure of a stream that ended before its answer; `frame` is the last one.
    pub(super) fn cut(&self, frame: &str) -> ModelError {
        // A web page in place of the interface also has status 200.
        let what = match frame.is_empty() {
            true => format!("the server sent no part of an answer; check {}", self.setting),
            false => "the answer was cut off".to_owned(),
        };
        self.failure(ErrorCode::ModelStreamIncomplete, &what)
    }

    /// Makes a failure of this class.
    pub(super) fn failure(&self, code: ErrorCode, what: &str) -> ModelError {
        let mut message = format!("{}: {what}", self.vendor);
        if let Some(key) = self.key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty()) {
            message = message.replace(key, "[redacted]");
        }
        ModelError::new(code, message)
    }

    /// Classes an answer with an error status.
    fn answered(&self, status: u16, body: &str, headers: &HeaderMap) -> ModelError {
        let reported = ReportedError::read(body);
        let code = reported.code_by_text().unwrap_or_else(|| code_by_status(status));
        let place = headers.get("location").and_then(|place| place.to_str().ok()).filter(|_| status / 100 == 3);
        let what = match (place, reported.message.as_str()) {
            (Some(place), _) => format!("status {status}: it points to {place}; check {}", self.setting),
            (None, "") => format!("status {status}"),
            (None, message) => format!("status {status}: {message}"),
        };
        let mut error = self.failure(code, &what);
        error.status = Some(status);
        error.retry_after = retry_after(headers).or(reported.retry_after);
        error.is_lasting = is_used_up(&error, body);
        error
    }

    /// Classes an error that was reported after an answer had begun.
    fn in_stream(&self, body: &str) -> ModelError {
        let reported = ReportedError::read(body);
        let by_kind =
            || KINDS.iter().find(|(kind, _)| reported.kinds.iter().any(|name| name == kind)).map(|(_, code)| *code);
        let by_number = || reported.number.map(code_by_status);
        // Unknown names are the vendor's fault: it had already accepted the request.
        let code = reported.code_by_text().or_else(by_kind).or_else(by_number).unwrap_or(ErrorCode::ModelOverloaded);
        let mut error = self.failure(code, &reported.message);
        error.retry_after = reported.retry_after;
        error.is_lasting = is_used_up(&error, body);
        error
    }

    /// Classes a connection that could not be made, or broke.
    pub(super) fn broken(&self, error: &(dyn StdError + Send + Sync + 'static)) -> ModelError {
        let mut what = String::from("the connection failed");
        let mut source: Option<&(dyn StdError + 'static)> = error.source();
        let mut is_refused = false;
        while let Some(error) = source {
            what = format!("{what}: {error}");
            let io = error.downcast_ref::<std::io::Error>();
            is_refused |= io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused);
            source = error.source();
        }
        let code = match error.downcast_ref::<reqwest::Error>() {
            Some(error) if error.is_builder() => ErrorCode::ModelRejected,
            Some(error) if error.is_connect() => return self.unreachable(error, &what, is_refused),
            Some(error) if error.is_request() => ErrorCode::ModelOverloaded,
            _ => ErrorCode::ModelStreamIncomplete,
        };
        self.failure(code, &what)
    }

    /// Classes a connection that was not made. If nothing listens at the address, the user must act, so it is not
    /// retried; a failed name lookup or handshake may pass.
    fn unreachable(&self, error: &reqwest::Error, what: &str, is_lasting: bool) -> ModelError {
        let address = error.url().map_or_else(String::new, |url| url.origin().ascii_serialization());
        let what = format!(
            "the server at {address} cannot be reached ({what}). Start it, check the network, or set {}",
            self.setting
        );
        ModelError { is_lasting, ..self.failure(ErrorCode::ModelTimeout, &what) }
    }
}

/// Checks if the quota is used up. Gemini reports a minute's quota the same way, but with a wait.
fn is_used_up(error: &ModelError, body: &str) -> bool {
    let text = body.to_lowercase();
    error.code == ErrorCode::ModelRateLimited
        && error.retry_after.is_none()
        && QUOTA_PHRASES.iter().any(|phrase| text.contains(phrase))
}

/// Classes an error status.
pub const fn code_by_status(status: u16) -> ErrorCode {
    match status {
        401 | 403 => ErrorCode::ModelUnauthorized,
        413 => ErrorCode::ModelContextExceeded,
        429 => ErrorCode::ModelRateLimited,
        408 | 500.. => ErrorCode::ModelOverloaded,
        _ => ErrorCode::ModelRejected,
    }
}

/// Error as reported in a body, whichever vendor wrote it.
struct ReportedError {
    message: String,
    /// The vendor's names for the error.
    kinds: Vec<String>,
    /// Status in the body.
    number: Option<u16>,
    retry_after: Option<Duration>,
}

impl ReportedError {
    fn read(body: &str) -> Self {
        let root: Value = serde_json::from_str(body).unwrap_or_else(|_| Value::from(words(body)));
        let root = root.get(0).unwrap_or(&root);
        let nested = ["/error", "/response/error"].iter().find_map(|path| root.pointer(path));
        let error = nested.filter(|error| !error.is_null()).unwrap_or(root);
        let text = |name: &str| error.get(name).and_then(Value::as_str);
        let message = text("message").or_else(|| error.as_str()).map_or_else(|| error.to_string(), str::to_owned);
        let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
        let delay = details.filter_map(|detail| detail.get("retryDelay")?.as_str()).next();
        Self {
            message,
            kinds: ["type", "code", "status"].iter().filter_map(|name| text(name)).map(str::to_owned).collect(),
            number: error.get("code").and_then(Value::as_u64).and_then(|code| code.try_into().ok()),
            retry_after: delay.and_then(|delay| seconds(delay.strip_suffix('s')?)),
        }
    }

    /// Finds the code by the text, if only that tells.
    fn code_by_text(&self) -> Option<ErrorCode> {
        let text = format!("{} {}", self.kinds.join(" "), self.message).to_lowercase();
        let says = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
        if says(CONTEXT_PHRASES) {
            Some(ErrorCode::ModelContextExceeded)
        } else {
            says(KEY_PHRASES).then_some(ErrorCode::ModelUnauthorized)
        }
    }
}

/// Returns the text of a body that is no JSON. Of a web page, as proxies send it, that is the title.
fn words(body: &str) -> String {
    let body = body.trim();
    if !body.starts_with('<') {
        return body.to_owned();
    }
    let begin = body.to_ascii_lowercase().find("<title>").map(|at| at + "<title>".len());
    let title = begin.and_then(|begin| body[begin..].split('<').next()).unwrap_or_default();
    let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
    if title.is_empty() { "a web page".to_owned() } else { format!("a web page with the title {title:?}") }
}

/// Reads the wait that the vendor asks for: in milliseconds, in seconds, or until a date by its own clock.
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text: &str| rfc2822::DateTimeParser::new().parse_timestamp(text).ok();
    if let Some(wait) = header("retry-after-ms").and_then(seconds) {
        return Some(wait / 1000);
    }
    let asked = header("retry-after")?;
    seconds(asked).or_else(|| {
        let wait = date(asked)?.duration_since(date(header("date")?)?);
        Some(wait.try_into().unwrap_or(Duration::ZERO))
    })
}

fn seconds(text: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}
