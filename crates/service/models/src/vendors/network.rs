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

use super::{Api, VendorOptions};
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
    let is_local = address.map_or_else(|| is_local_name(&host), |address| address.to_canonical().is_loopback());
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

/// Makes the client for all vendors.
///
/// # Errors
/// As [`http`].
pub(super) fn client(options: &VendorOptions) -> Result<genai::Client, SessionError> {
    let http = http(options.proxy.as_ref(), options.no_proxy.as_deref())?;
    genai::Client::builder().with_reqwest(http).build().map_err(|error| SessionError::Internal(error.to_string()))
}

/// Makes a client that checks each address it connects to.
///
/// Redirects are not followed: they could carry the key to an address that nobody configured. A proxy connects without
/// our address check, so it is used only if the options name one.
///
/// # Errors
/// `CONFIG_INVALID` for a proxy that is not valid, or if the system has no usable certificates.
pub fn http(proxy: Option<&SecretString>, no_proxy: Option<&str>) -> Result<reqwest::Client, SessionError> {
    static RING: Once = Once::new();
    // The embedding program may have installed a provider before; then that one stays.
    RING.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
    let refused = |key: &str, message: String| SessionError::ConfigInvalid { key: key.to_owned(), message };
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("meerkat/", env!("CARGO_PKG_VERSION")))
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .dns_resolver(Arc::new(GuardedDns))
        .connect_timeout(CONNECT_TIMEOUT);
    if let Some(proxy) = proxy {
        let proxy = http_proxy(proxy.expose_secret())
            .ok_or_else(|| refused("model.proxy", "This is not the URL of an HTTP proxy.".to_owned()))?;
        builder = builder.proxy(proxy.no_proxy(no_proxy.and_then(NoProxy::from_string)));
    }
    builder.build().map_err(|error| refused("model", format!("No HTTPS client can be made: {error}.")))
}

/// Parses the proxy, whose scheme may be left out. An unusable one would silently be ignored.
fn http_proxy(text: &str) -> Option<Proxy> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())?;
    Proxy::https(url).ok()
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
struct GuardedDns;

impl Resolve for GuardedDns {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let is_local = is_local_name(name.as_str());
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let is_allowed =
                |address: &SocketAddr| !is_refused(address.ip()) && (!is_local || address.ip().is_loopback());
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
        let found = GuardedDns.resolve(name.parse().unwrap()).await.ok()?;
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
}
