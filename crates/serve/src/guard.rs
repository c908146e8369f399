//! The one guard in front of every surface on a listener: it checks Host, Origin, token and size, in that order. The
//! console's own files need no token, and REST accepts a browser's sign-in in its place.
//!
//! A web page in the user's browser can reach a loopback port, under a name of its own or through a form; it can
//! neither send a Host and an Origin of this server nor know the token. Nothing here reads a body.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, Uri, header};
use meerkat_service::{ErrorBody, ErrorCode};
use subtle::ConstantTimeEq as _;

/// A page for people, as far as the guard must know it.
pub(crate) trait Page: Send + Sync {
    /// Returns true if a path needs no token.
    fn is_open(&self, path: &str) -> bool;

    /// Returns true if a request shows both secrets of a browser's sign-in.
    fn is_signed_in(&self, headers: &HeaderMap) -> bool;
}

/// Properties of requests that are accepted.
pub(crate) struct Guard {
    /// Accepted Hosts.
    pub(crate) hosts: Vec<Host>,
    /// Accepted Origins, besides those of the listener itself.
    pub(crate) origins: Vec<String>,
    /// The token; `None` if authentication is off.
    pub(crate) token: Option<Token>,
    /// The console, where REST is served.
    pub(crate) page: Option<Arc<dyn Page>>,
    /// Most bytes of a body.
    pub(crate) body_bytes_max: u64,
    /// Most bytes of a body at a path where it is handed on in pieces and never held as a whole; `None` elsewhere.
    pub(crate) streamed_bytes_max: StreamedMax,
}

/// Tells the bound of a path's body, if it has one of its own.
pub(crate) type StreamedMax = Box<dyn Fn(&str) -> Option<u64> + Send + Sync>;

/// Name of this server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    name: String,
    /// Its port; any port if `None`.
    port: Option<u16>,
}

impl Host {
    /// Parses `name[:port]`; the name may be an address, an IPv6 address in brackets.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, port) = split(text);
        let is_name = |name: &str| !name.is_empty() && !name.contains(['/', '@', '*', ' ']);
        let is_bracketed = name.contains(':') == (name.starts_with('[') && name.ends_with(']'));
        let port = port.map(|port| port_of(port).ok_or(())).transpose().ok()?;
        (is_name(name) && is_bracketed).then(|| Self { name: name.to_owned(), port })
    }

    /// Makes a name that is valid with this port only.
    pub(crate) fn on(name: &str, port: u16) -> Self {
        Self { name: name.to_owned(), port: Some(port) }
    }

    fn is(&self, name: &str, port: Option<&str>) -> bool {
        let is_port = match (self.port, port) {
            (None, None) => true,
            (None, Some(port)) => port_of(port).is_some(),
            (Some(own), Some(port)) => port_of(port) == Some(own),
            // A client leaves out the port that its scheme has.
            (Some(own), None) => matches!(own, 80 | 443),
        };
        is_port && self.name.eq_ignore_ascii_case(name)
    }
}

fn port_of(port: &str) -> Option<u16> {
    port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Splits `name[:port]`; colons in brackets belong to an IPv6 address.
fn split(host: &str) -> (&str, Option<&str>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    }
}

/// Bearer token. It is written only to its file, and no log shows it.
#[derive(Clone)]
pub struct Token(pub(crate) String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token([redacted])")
    }
}

/// Most header lines of a request, and most bytes of them and the target.
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Paths that are open to everyone under any name of the server: probes know neither its name nor its token.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// Beginning of the paths that a browser's sign-in opens.
const SIGNED_IN_PATHS: &str = "/v1/";

impl Guard {
    /// Refuses a request that is not accepted.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorBody> {
        let is_open = is_open(uri);
        if !is_open {
            self.check_host(uri, headers)?;
        }
        self.check_origin(headers)?;
        if !is_open && !self.is_page(uri) && !self.is_signed_in(uri, headers) {
            self.check_token(headers)?;
        }
        check_head(uri, headers)?;
        check_size(headers, (self.streamed_bytes_max)(uri.path()).unwrap_or(self.body_bytes_max))
    }

    /// Returns true for a file of the page, or the place where a browser signs in.
    pub(crate) fn is_page(&self, uri: &Uri) -> bool {
        self.page.as_ref().is_some_and(|page| page.is_open(uri.path()))
    }

    /// Returns true for a request to REST of a browser that has signed in. A request with a token is judged by that.
    pub(crate) fn is_signed_in(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        uri.path().starts_with(SIGNED_IN_PATHS)
            && !headers.contains_key(header::AUTHORIZATION)
            && self.page.as_ref().is_some_and(|page| page.is_signed_in(headers))
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ErrorBody> {
        // A request line may name the authority, too; then both must be ours.
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
        let message = "The Host header is not one of this server's names. Behind a proxy, set serve.public_url; \
                       serve.allowed_hosts adds further names.";
        Err(refuse(ErrorCode::ForbiddenOrigin, message).detail("header", "host"))
    }

    /// Returns true if `host[:port]` is one of ours.
    fn is_ours(&self, host: &str) -> bool {
        let (name, port) = split(host);
        self.hosts.iter().any(|known| known.is(name, port))
    }

    /// Returns true if an origin is the listener's own. A host with any port must be the one that was asked.
    fn is_own(&self, origin: &str, headers: &HeaderMap) -> bool {
        let Some(host) = origin.strip_prefix("http://") else { return false };
        let (name, port) = split(host);
        let asked = || headers.get(header::HOST).is_some_and(|asked| asked.as_bytes() == host.as_bytes());
        // Behind a proxy for HTTPS, a page of its plain HTTP is not ours.
        let is_plain = |known: &&Host| known.port != Some(443);
        self.hosts.iter().filter(is_plain).any(|known| known.is(name, port) && (known.port.is_some() || asked()))
    }

    /// Returns true if a web page of a listed origin sends a request to a name of ours.
    pub(crate) fn is_listed(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        origin.is_some_and(|origin| self.origins.iter().any(|listed| listed == origin))
            && self.check_origin(headers).is_ok()
            && (is_open(uri) || self.check_host(uri, headers).is_ok())
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), ErrorBody> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let is_allowed = match (origins.next(), origins.next()) {
            (None, _) => true,
            (Some(origin), None) => origin.to_str().is_ok_and(|origin| {
                self.is_own(origin, headers) || self.origins.iter().any(|allowed| allowed == origin)
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
                "Send the token as `Authorization: Bearer <token>`; `meerkat serve` names its file.",
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

/// Returns true if a request needs neither a Host nor a token.
fn is_open(uri: &Uri) -> bool {
    OPEN_PATHS.contains(&uri.path())
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
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|name| Host::on(name, 7670)).to_vec();
        let token = Some(Token(TOKEN.to_owned()));
        Guard {
            hosts,
            origins: vec!["https://desk.example".to_owned()],
            token,
            page: None,
            body_bytes_max: 1000,
            streamed_bytes_max: Box::new(|path| meerkat_surface_rest::stream_bytes_max(path, 2000)),
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
        for path in ["/healthz", "/readyz"] {
            assert_eq!(check(path, &[host]), Ok(()));
            assert_eq!(check(path, &[("host", "10.1.2.3:80")]), Ok(()), "a probe knows no name");
            assert_eq!(check(path, &[("origin", "http://evil.example")]), Err(ErrorCode::ForbiddenOrigin));
        }
        for path in ["/v1/sessions", "/rpc", "/mcp", "/openapi.json", "/metrics", "/readyz/", "/healthz/", "/"] {
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

    /// A name means itself on any port, a name with a port itself there; and no look-alike of either.
    #[test]
    fn an_allowed_host_means_what_it_says() {
        let mut guard = guard();
        guard.hosts.extend(["desk.example", "box:8080", "[fd00::1]:8080"].map(|host| Host::parse(host).unwrap()));
        let checked = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            headers.extend(origin.map(|origin| (header::ORIGIN, origin.parse().unwrap())));
            let both = guard.check_host(&"/rpc".parse().unwrap(), &headers).and_then(|()| guard.check_origin(&headers));
            both.is_ok()
        };
        for host in ["desk.example", "DESK.example:80", "desk.example:9999", "box:8080", "[fd00::1]:8080"] {
            assert!(checked(host, None), "{host}");
            assert!(checked(host, Some(&format!("http://{host}"))), "{host}");
        }
        for host in ["box", "box:7670", "desk.example:", "desk.example:x", "desk.example.evil", "[fd00::1]", "fd00::1"]
        {
            assert!(!checked(host, None), "{host}");
        }
        assert!(!checked("desk.example:9999", Some("http://desk.example:1")), "another port is another origin");
        for wrong in ["", "*", "a/b", "a:b", "a:99999", "fd00::1", "http://a", "u@a"] {
            assert_eq!(Host::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_refusal_names_the_setting_that_lets_a_name_in() {
        for (headers, settings) in [
            (&[("host", "desk.example")][..], &["serve.public_url", "serve.allowed_hosts"][..]),
            (&[("host", "localhost:7670"), ("origin", "https://desk.elsewhere")], &["serve.allowed_origins"]),
        ] {
            let headers = headers.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            let message = guard().check(&"/rpc".parse().unwrap(), &headers.collect()).unwrap_err().message;
            assert!(settings.iter().all(|setting| message.contains(setting)), "{message}");
        }
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
    fn a_bundle_and_an_upload_may_be_larger() {
        let sent = |path: &str, bytes: &str| {
            let ours = [("host", "localhost:7670"), ("authorization", "Bearer 0123456789abcdef")];
            check(path, &[ours[0], ours[1], ("content-length", bytes)])
        };
        assert_eq!(sent("/v1/bundles?new_ids=true", "2000"), Ok(()));
        assert_eq!(sent("/v1/bundles", "2001"), Err(ErrorCode::PayloadTooLarge));
        assert_eq!(sent("/v1/bundles/x", "1001"), Err(ErrorCode::PayloadTooLarge));
        let most = meerkat_service::store::UPLOADS_BYTES_MAX;
        assert_eq!(sent("/v1/sessions/x/blobs", &most.to_string()), Ok(()));
        assert_eq!(sent("/v1/sessions/x/blobs", &(most + 1).to_string()), Err(ErrorCode::PayloadTooLarge));
        for other in
            ["/v1/sessions/x/blobs/y", "/v1/sessions/x/blobs/", "/v1/sessions//x/blobs", "/v1/sessions/x/turns"]
        {
            assert_eq!(sent(other, "1001"), Err(ErrorCode::PayloadTooLarge), "{other}");
        }
    }

    #[test]
    fn a_page_of_plain_http_is_no_page_of_a_public_name_behind_https() {
        let mut guard = guard();
        guard.hosts.push(Host::on("public.example", 443));
        guard.origins.push("https://public.example".to_owned());
        let check = |origin: &str| {
            let headers =
                [("host", "public.example"), ("origin", origin), ("authorization", "Bearer 0123456789abcdef")];
            let headers = headers.map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
            guard.check(&"/v1/sessions".parse().unwrap(), &HeaderMap::from_iter(headers)).map_err(|body| body.code)
        };
        assert_eq!(check("https://public.example"), Ok(()));
        for origin in ["http://public.example", "http://public.example:443", "http://public.example:80"] {
            assert_eq!(check(origin), Err(ErrorCode::ForbiddenOrigin), "{origin}");
        }
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
