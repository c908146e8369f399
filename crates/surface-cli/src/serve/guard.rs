//! The one guard in front of every surface on a listener: Host, Origin, token, size, in that order.
//!
//! A web page in the user's browser can reach a loopback port, under a name of its own or through a form; it can
//! neither send a Host and Origin that are ours nor know the token. Nothing here looks at a body.

use http::{HeaderMap, HeaderName, Uri, header};
use meerkat_errors::{ErrorBody, ErrorCode};
use subtle::ConstantTimeEq as _;

/// What is let through.
pub(crate) struct Guard {
    /// Names that a Host may have, in lower case, without port.
    pub(crate) hosts: Vec<String>,
    /// Origins that are let through besides those of the listener itself.
    pub(crate) origins: Vec<String>,
    /// The port that is listened on.
    pub(crate) port: u16,
    /// The token; none where authentication is off.
    pub(crate) token: Option<Token>,
    /// Bytes that a body may have.
    pub(crate) body_bytes_max: u64,
    /// Bytes that a bundle may have.
    pub(crate) bundle_bytes_max: u64,
}

/// The bearer token. It is neither shown nor written anywhere but into its file.
pub(crate) struct Token(pub(crate) String);

/// Header lines that a request may have, and bytes of them together with the target.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// The one path that is open without a token.
const OPEN_PATH: &str = "/healthz";

/// Where bundles come in. They are larger than any other body, and are never held whole.
const BUNDLES_PATH: &str = "/v1/bundles";

impl Guard {
    /// Refuses a request that may not come in.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorBody> {
        self.check_host(uri, headers)?;
        self.check_origin(headers)?;
        if uri.path() != OPEN_PATH {
            self.check_token(headers)?;
        }
        check_head(uri, headers)?;
        let limit = if uri.path() == BUNDLES_PATH { self.bundle_bytes_max } else { self.body_bytes_max };
        check_size(headers, limit)
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorBody> {
        // In HTTP/2 the authority stands in the request line; where both are there, both must be ours.
        let mut named = headers.get_all(header::HOST).iter();
        let authority = uri.authority().map(|authority| self.is_ours(authority.as_str()));
        let is_ours = match (named.next(), named.next()) {
            (Some(host), None) => authority.unwrap_or(true) && host.to_str().is_ok_and(|host| self.is_ours(host)),
            (None, _) => authority.unwrap_or(false),
            (Some(_), Some(_)) => false,
        };
        if is_ours {
            return Ok(());
        }
        Err(refuse(ErrorCode::ForbiddenOrigin, "The Host header names no host that this server answers for.")
            .detail("header", "host"))
    }

    /// Whether `host[:port]` is one of ours, on the port that is listened on.
    fn is_ours(&self, host: &str) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            // The colons inside of brackets belong to an IPv6 address.
            Some((name, port)) if !port.contains(']') => (name, Some(port)),
            _ => (host, None),
        };
        let is_port = match port {
            Some(port) => port.parse() == Ok(self.port) && port.bytes().all(|byte| byte.is_ascii_digit()),
            None => self.port == 80,
        };
        is_port && self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ErrorBody> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let is_allowed = match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => origin.to_str().is_ok_and(|origin| {
                let own = origin.strip_prefix("http://").is_some_and(|host| self.is_ours(host));
                own || self.origins.iter().any(|allowed| allowed == origin)
            }),
            (Some(_), Some(_)) => false,
        };
        if is_allowed {
            return Ok(());
        }
        Err(refuse(ErrorCode::ForbiddenOrigin, "Requests from this Origin are not allowed; see serve.allowed_origins.")
            .detail("header", "origin"))
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), ErrorBody> {
        let Some(token) = &self.token else { return Ok(()) };
        let refusal = || {
            refuse(
                ErrorCode::Unauthenticated,
                "Send the token as `Authorization: Bearer <token>`; `meerkat serve` says where it stands.",
            )
        };
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(value), None) = (given.next(), given.next()) else { return Err(refusal()) };
        let value = value.to_str().map_err(|_| refusal())?;
        let (scheme, sent) = value.split_once(' ').ok_or_else(refusal)?;
        let is_right =
            scheme.eq_ignore_ascii_case("bearer") && bool::from(sent.trim().as_bytes().ct_eq(token.0.as_bytes()));
        if is_right { Ok(()) } else { Err(refusal()) }
    }
}

fn check_size(headers: &HeaderMap, limit: u64) -> Result<(), ErrorBody> {
    let length = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    match length(header::CONTENT_LENGTH) {
        Some(bytes) if bytes > limit => {
            let message = format!("The body has {bytes} bytes; at most {limit} are allowed.");
            let refusal = refuse(ErrorCode::PayloadTooLarge, &message).detail("what", "body");
            Err(refusal.detail("bytes", bytes).detail("limit", limit))
        }
        _ => Ok(()),
    }
}

fn check_head(uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorBody> {
    if headers.len() > HEADERS_MAX {
        let message = format!("The request has {} headers; at most {HEADERS_MAX} are allowed.", headers.len());
        let refusal = refuse(ErrorCode::PayloadTooLarge, &message).detail("what", "headers");
        return Err(refusal.detail("limit", HEADERS_MAX));
    }
    let target = uri.path_and_query().map_or(0, |target| target.as_str().len());
    let bytes = headers.iter().fold(target, |bytes, (name, value)| bytes + name.as_str().len() + value.len());
    if bytes <= HEAD_BYTES_MAX {
        return Ok(());
    }
    let message = format!("The request's head has {bytes} bytes; at most {HEAD_BYTES_MAX} are allowed.");
    let refusal = refuse(ErrorCode::PayloadTooLarge, &message).detail("what", "head").detail("bytes", bytes);
    Err(refusal.detail("limit", HEAD_BYTES_MAX))
}

fn refuse(code: ErrorCode, message: &str) -> ErrorBody {
    ErrorBody::with_message(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn guard() -> Guard {
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(str::to_owned).to_vec();
        let token = Some(Token(TOKEN.to_owned()));
        Guard {
            hosts,
            origins: vec!["https://desk.example".to_owned()],
            port: 7670,
            token,
            body_bytes_max: 1000,
            bundle_bytes_max: 2000,
        }
    }

    fn check(path: &str, headers: &[(&'static str, &str)]) -> Result<(), ErrorCode> {
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        guard().check(&path.parse().unwrap(), &headers).map_err(|body| body.code)
    }

    #[test]
    fn a_token_is_needed_but_for_the_health() {
        let host = ("host", "localhost:7670");
        assert_eq!(check("/healthz", &[host]), Ok(()));
        for path in ["/v1/sessions", "/rpc", "/mcp", "/openapi.json", "/metrics", "/readyz", "/healthz/", "/"] {
            assert_eq!(check(path, &[host]), Err(ErrorCode::Unauthenticated), "{path}");
        }
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Basic 0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            TOKEN,
        ] {
            assert_eq!(check("/rpc", &[host, ("authorization", value)]), Err(ErrorCode::Unauthenticated), "{value:?}");
        }
        let in_url = format!("/rpc?token={TOKEN}&access_token={TOKEN}");
        assert_eq!(check(&in_url, &[host]), Err(ErrorCode::Unauthenticated), "a token is never taken from a URL");
    }

    #[test]
    fn a_head_has_a_limit() {
        let ours = [("host", "localhost:7670"), ("authorization", "Bearer 0123456789abcdef")];
        let head: usize = ours.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() + "/rpc".len();
        let padded = |bytes: usize| check("/rpc", &[ours[0], ours[1], ("x", &"y".repeat(bytes - head - 1))]);
        assert_eq!(padded(HEAD_BYTES_MAX), Ok(()));
        assert_eq!(padded(HEAD_BYTES_MAX + 1), Err(ErrorCode::PayloadTooLarge));
        let long = format!("/rpc?{}", "y".repeat(HEAD_BYTES_MAX));
        assert_eq!(check(&long, &ours), Err(ErrorCode::PayloadTooLarge));
        for (more, expected) in [(HEADERS_MAX - 1, Ok(())), (HEADERS_MAX, Err(ErrorCode::PayloadTooLarge))] {
            let mut headers: HeaderMap =
                ours.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
            for _ in 1..more {
                headers.append("x", "y".parse().unwrap());
            }
            assert_eq!(guard().check(&"/rpc".parse().unwrap(), &headers).map_err(|body| body.code), expected);
        }
    }

    #[test]
    fn a_bundle_may_be_larger() {
        let sent = |path: &str, bytes: &str| {
            let ours = [("host", "localhost:7670"), ("authorization", "Bearer 0123456789abcdef")];
            check(path, &[ours[0], ours[1], ("content-length", bytes)])
        };
        assert_eq!(sent("/v1/bundles?new_ids=true", "2000"), Ok(()));
        assert_eq!(sent("/v1/bundles", "2001"), Err(ErrorCode::PayloadTooLarge));
        assert_eq!(sent("/v1/bundles/x", "1001"), Err(ErrorCode::PayloadTooLarge));
        let routes = meerkat_surface_rest::table().iter();
        let takes_bundle = |path: &String| path == BUNDLES_PATH;
        assert_eq!(routes.map(meerkat_surface_rest::Route::full_path).filter(takes_bundle).count(), 1);
    }

    #[test]
    fn the_order_is_host_origin_token_size() {
        let long = ("content-length", "1001");
        assert_eq!(check("/rpc", &[long, ("origin", "null")]), Err(ErrorCode::ForbiddenOrigin));
        assert_eq!(check("/rpc", &[("host", "localhost:7670"), long]), Err(ErrorCode::Unauthenticated));
        let right = ("authorization", "Bearer 0123456789abcdef");
        assert_eq!(check("/rpc", &[("host", "localhost:7670"), right, long]), Err(ErrorCode::PayloadTooLarge));
    }
}
