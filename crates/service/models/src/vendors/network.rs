//! Network access to vendors: the check of base URLs, and the HTTP client that checks each address it connects to.
//!
//! A key must never go out in plain text past this machine, nor to a cloud's metadata service.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Arc, Once},
    time::Duration,
};

use reqwest::{
    NoProxy, Proxy, Url,
    dns::{Addrs, Name, Resolve, Resolving},
};
use secrecy::{ExposeSecret, SecretString};

use super::{Api, relay::Relay};
use meerkat_words::SessionError;

/// Longest time for making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Metadata services whose addresses are not link-local: Alibaba, Oracle, Azure.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];

/// Metadata services by IPv6: Amazon, Google.
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Completes the base URL: adds the API's version, which the vendor's own tools leave out, and a slash.
///
/// # Errors
/// `CONFIG_INVALID` for `setting` if the URL is not allowed. The message never repeats the URL, which may hold a
/// password.
pub fn base_url(setting: &str, api: Api, text: &str, allows_http: bool) -> Result<String, SessionError> {
    let refused = |why: &str| SessionError::ConfigInvalid { key: setting.to_owned(), message: why.to_owned() };
    let mut url = Url::parse(text.trim()).map_err(|_| refused("This is not a URL."))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let address = host.parse::<IpAddr>().ok();
    let is_local = is_this_machine(&host);
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err(refused("The URL must have no user, password, query or fragment."));
    }
    if url.scheme() != "https" && !(url.scheme() == "http" && (is_local || allows_http)) {
        let or =
            if setting.starts_with("model.compatible.") { ", unless the server has insecure_http = true" } else { "" };
        return Err(refused(&format!("The URL must begin with https://; http:// is for this machine alone{or}.")));
    }
    if address.is_some_and(is_refused) {
        return Err(refused("The address is link-local or a metadata service."));
    }
    let mut path = url.path().trim_end_matches('/').to_owned();
    let version = match api {
        Api::Anthropic => "/v1",
        Api::Gemini => "/v1beta",
        Api::OpenAi | Api::Compatible => "",
    };
    if !path.rsplit('/').next().is_some_and(|last| last.starts_with("v1")) {
        path.push_str(version);
    }
    url.set_path(&format!("{path}/"));
    Ok(url.into())
}

/// Makes the way to all vendors.
///
/// # Errors
/// As [`http`].
pub(super) fn relay(proxy: Option<&SecretString>, no_proxy: Option<&str>) -> Result<Arc<Relay>, SessionError> {
    Ok(Arc::new(Relay::new(http(proxy, no_proxy)?)))
}

/// Makes a client that checks each address it connects to.
///
/// Redirects are not followed: they could carry the key to an address that nobody configured. A proxy connects without
/// our address check, so it is used only if the options name one.
///
/// # Errors
/// `CONFIG_INVALID` for a proxy that is not valid, or if the system has no usable certificates.
pub fn http(proxy: Option<&SecretString>, no_proxy: Option<&str>) -> Result<reqwest::Client, SessionError> {
    let refused = |key: &str, message: String| SessionError::ConfigInvalid { key: key.to_owned(), message };
    let mut builder = builder(GuardedDns { reach: None });
    if let Some(proxy) = proxy {
        let proxy = http_proxy(proxy.expose_secret())
            .ok_or_else(|| refused("model.proxy", "This is not the URL of an HTTP proxy.".to_owned()))?;
        builder = builder.proxy(proxy.no_proxy(no_proxy.and_then(NoProxy::from_string)));
    }
    builder.build().map_err(|error| refused("model", format!("No HTTPS client can be made: {error}.")))
}

fn builder(resolver: GuardedDns) -> reqwest::ClientBuilder {
    static RING: Once = Once::new();
    // The embedding program may have installed a provider before; then that one stays.
    RING.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    reqwest::Client::builder()
        .user_agent(concat!("meerkat/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        // A mebibyte of zeros is a kilobyte on the wire: answers come as they are.
        .no_gzip()
        .dns_resolver(Arc::new(resolver))
        .connect_timeout(CONNECT_TIMEOUT)
}

/// URLs that the documents of a configured server may lead to: they must not make us ask hosts that only we can reach.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Host of the configured server, which a person chose.
    host: String,
    /// True if that is this machine, so that others on it may be named too.
    is_local: bool,
    /// True if a person allowed addresses of private networks.
    allows_private: bool,
}

impl Reach {
    /// Returns the reach of the documents of a configured server.
    #[must_use]
    pub fn of(server: &Url, allows_private: bool) -> Self {
        let host = bare_host(server);
        let is_local = is_this_machine(&host);
        Self { host, is_local, allows_private }
    }

    /// Checks a URL before it is asked; the client of [`Reach::http`] checks the addresses that its name leads to.
    ///
    /// # Errors
    /// Returns the reason, which never repeats the URL.
    pub fn check(&self, url: &Url) -> Result<(), &'static str> {
        let host = bare_host(url);
        let address = host.parse().ok();
        let is_local = is_this_machine(&host);
        if url.scheme() != "https" && !(url.scheme() == "http" && is_local) {
            return Err("it must begin with https://");
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it must have no user and no password");
        }
        if is_local && !self.is_local {
            return Err("it leads to this machine");
        }
        if address.is_some_and(|address| !self.allows(&host, address)) {
            return Err("it leads to a private or reserved address");
        }
        Ok(())
    }

    /// Makes a client that connects to nothing beyond the reach, and follows no redirects.
    ///
    /// # Errors
    /// `CONFIG_INVALID` if the system has no usable certificates.
    pub fn http(&self) -> Result<reqwest::Client, SessionError> {
        builder(GuardedDns { reach: Some(self.clone()) }).build().map_err(|error| SessionError::ConfigInvalid {
            key: "servers".to_owned(),
            message: format!("No HTTPS client can be made: {error}."),
        })
    }

    fn allows(&self, host: &str, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if is_refused(address) {
            false
        } else if address.is_loopback() {
            self.is_local || host == self.host
        } else {
            host == self.host || self.allows_private || !is_private(address)
        }
    }
}

/// Returns a URL's host, without the brackets of an address.
fn bare_host(url: &Url) -> String {
    url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}

/// Checks if an address is of a private network, or of none: addresses that mean another host to each who asks.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            ip.is_private() || a == 0 || a >= 240 || (a == 100 && (64..128).contains(&b)) || (a == 198 && b & 254 == 18)
        }
        IpAddr::V6(ip) => {
            // Ways to IPv4: translated, 6to4, Teredo.
            let [a, b, ..] = ip.segments();
            ip.is_unique_local() || (a == 0x64 && b == 0xff9b) || a == 0x2002 || (a == 0x2001 && b == 0)
        }
    }
}

/// Parses the proxy, whose scheme may be left out. An unusable one would silently be ignored.
fn http_proxy(text: &str) -> Option<Proxy> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())?;
    Proxy::https(url).ok()
}

/// Checks if a URL's host, a name or an address, means this machine.
pub(super) fn is_this_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    address.map_or_else(|_| is_local_name(host), |ip| ip.to_canonical().is_loopback())
}

/// Checks if a name means this machine.
fn is_local_name(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
}

/// Checks if an address must never be connected to.
fn is_refused(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => {
            ip.is_link_local()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast()
                || METADATA_V4.contains(&ip)
        }
        IpAddr::V6(ip) => {
            // Translated addresses (64:ff9b::/96) reach the IPv4 address in their last four bytes.
            let [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] = ip.octets() else {
                return ip.is_unicast_link_local()
                    || ip.is_unspecified()
                    || ip.is_multicast()
                    || METADATA_V6.contains(&ip);
            };
            is_refused(Ipv4Addr::new(a, b, c, d).into())
        }
    }
}

/// Resolver that keeps only addresses that may be connected to.
struct GuardedDns {
    reach: Option<Reach>,
}

impl Resolve for GuardedDns {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.reach.clone();
        Box::pin(async move {
            let is_local = is_local_name(name.as_str());
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let is_within = |address| reach.as_ref().is_none_or(|reach| reach.allows(name.as_str(), address));
            let is_allowed = |address: &SocketAddr| {
                !is_refused(address.ip()) && (!is_local || address.ip().is_loopback()) && is_within(address.ip())
            };
            let allowed: Vec<SocketAddr> = found.filter(is_allowed).collect();
            if allowed.is_empty() {
                return Err(io::Error::other("the name leads only to addresses that are not allowed").into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolve(name: &str) -> Option<Vec<IpAddr>> {
        let found = GuardedDns { reach: None }.resolve(name.parse().unwrap()).await.ok()?;
        Some(found.map(|address| address.ip()).collect())
    }

    /// The resolver gets addresses as names, which every system resolves to themselves without a network.
    #[tokio::test]
    async fn addresses_are_checked_after_resolving() {
        for refused in
            ["169.254.169.254", "100.100.100.200", "0.0.0.0", "fe80::1", "fd00:ec2::254", "::ffff:169.254.1.1"]
        {
            assert_eq!(resolve(refused).await, None, "{refused}");
        }
        for allowed in ["127.0.0.1", "10.0.0.1", "93.184.216.34", "::1", "2606:4700::1111"] {
            assert_eq!(resolve(allowed).await, Some(vec![allowed.parse().unwrap()]), "{allowed}");
        }
        assert!(is_refused("64:ff9b::169.254.169.254".parse().unwrap()));
        assert!(!is_refused("64:ff9b::93.184.216.34".parse().unwrap()));
        assert!(resolve("localhost").await.unwrap().iter().all(IpAddr::is_loopback));
    }
    #[tokio::test]
    async fn a_document_leads_to_no_host_that_only_we_can_reach() {
        let reach = |server: &str, private| Reach::of(&server.parse().unwrap(), private);
        let allowed = |reach: &Reach, url: &str| reach.check(&url.parse().unwrap()).is_ok();
        let (public, private, local) = (
            reach("https://mcp.example.com/mcp", false),
            reach("https://mcp.example.com/mcp", true),
            reach("http://127.0.0.1:1/mcp", false),
        );
        for url in ["https://auth.example.com/a", "https://93.184.216.34/", "https://[2606:4700::1111]/"] {
            assert!([&public, &private, &local].iter().all(|reach| allowed(reach, url)), "{url}");
        }
        for url in [
            "http://auth.example.com/",
            "https://user@auth.example.com/",
            "https://user:word@auth.example.com/",
            "https://169.254.169.254/",
            "http://169.254.169.254/latest",
            "https://[::ffff:169.254.169.254]/",
            "https://[fe80::1]/",
            "https://0.0.0.0/",
            "ftp://auth.example.com/",
            "file:///etc/passwd",
        ] {
            assert!(![&public, &private, &local].iter().any(|reach| allowed(reach, url)), "{url}");
        }
        for url in ["https://10.0.0.1/", "https://192.168.1.1/", "https://100.64.0.1/", "https://[fd12::1]/"] {
            assert_eq!(
                (allowed(&public, url), allowed(&private, url), allowed(&local, url)),
                (false, true, false),
                "{url}"
            );
        }
        for url in ["http://127.0.0.1/", "https://localhost/", "http://a.localhost:1/", "http://[::1]/"] {
            assert_eq!(
                (allowed(&public, url), allowed(&private, url), allowed(&local, url)),
                (false, false, true),
                "{url}"
            );
        }
        // The resolver judges what a name leads to.
        for (name, expected) in [("10.0.0.1", false), ("127.0.0.1", false), ("93.184.216.34", true)] {
            let resolver = GuardedDns { reach: Some(public.clone()) };
            assert_eq!(resolver.resolve(name.parse().unwrap()).await.is_ok(), expected, "{name}");
        }
        let own = GuardedDns { reach: Some(reach("https://10.0.0.1/mcp", false)) };
        assert!(own.resolve("10.0.0.1".parse().unwrap()).await.is_ok());
    }
}
