//! The configured names of a server, and the origins that it accepts.

use std::net::SocketAddr;

use crate::{ServeError, guard::Host};

/// Configured address.
pub(crate) struct Public {
    /// As browsers write it.
    pub(crate) origin: String,
    pub(crate) host: Host,
}

impl Public {
    fn read(url: &str) -> Option<Self> {
        let uri: http::Uri = url.parse().ok()?;
        let (scheme, authority) = (uri.scheme_str()?, uri.authority()?.as_str().to_ascii_lowercase());
        let default = match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        };
        let host = Host::parse(&authority).filter(|_| uri.query().is_none())?;
        let (host, authority) = match (default, uri.port_u16()) {
            (Some(default), port) if port.is_none_or(|port| port == default) => {
                let name = authority.strip_suffix(&format!(":{default}")).unwrap_or(&authority).to_owned();
                (Host::on(&name, default), name)
            }
            _ => (host, authority),
        };
        Some(Self { origin: format!("{scheme}://{authority}"), host })
    }
}

/// Reads the address at which clients reach the server.
pub(crate) fn public_url(url: &str) -> Result<Public, ServeError> {
    let is_web = |public: &Public| public.origin.starts_with("http:") || public.origin.starts_with("https:");
    Public::read(url).filter(is_web).ok_or_else(|| ServeError::PublicUrl(url.to_owned()))
}

/// Lists the accepted Hosts: loopback's names and the address with the listener's port, and the configured ones. If
/// `localhost` may lead to another program, it is not one of them, nor is that program's address: its pages would be
/// of an origin of ours.
pub(crate) fn hosts(
    address: SocketAddr,
    has_localhost: bool,
    allowed: &[String],
    public: Option<&Public>,
) -> Result<Vec<Host>, ServeError> {
    let own = match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    let loopback: &[&str] = match (has_localhost, address) {
        (true, _) => &["127.0.0.1", "localhost", "[::1]"],
        (false, SocketAddr::V4(_)) => &["127.0.0.1"],
        (false, SocketAddr::V6(_)) => &["[::1]"],
    };
    let own = loopback.iter().copied().chain([own.as_str()]).map(|name| Host::on(name, address.port()));
    let mut hosts: Vec<Host> = own.chain(public.map(|public| public.host.clone())).collect();
    for host in allowed {
        hosts.push(Host::parse(host).ok_or_else(|| ServeError::AllowedHost(host.clone()))?);
    }
    Ok(hosts)
}

/// Lists the accepted origins besides the listener's own, as browsers write them. There is no wildcard.
pub(crate) fn origins(allowed: &[String]) -> Result<Vec<String>, ServeError> {
    let read = |origin: &String| {
        let listed = Public::read(origin).filter(|_| origin.trim_end_matches('/').matches('/').count() == 2);
        listed.map(|listed| listed.origin).ok_or_else(|| ServeError::AllowedOrigin(origin.clone()))
    };
    allowed.iter().map(read).collect()
}
