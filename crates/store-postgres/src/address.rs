//! The address of the database: a URL without surprises, and how its connections are encrypted.
//!
//! Nothing here repeats a part of the URL in a message: any part of a mistyped one may be the password.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
};

use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_postgres::{
    Config,
    config::{Host, SslMode},
};

/// Options that a URL may have.
const OPTIONS: [&str; 13] = [
    "application_name",
    "channel_binding",
    "connect_timeout",
    "host",
    "hostaddr",
    "keepalives",
    "keepalives_idle",
    "load_balance_hosts",
    "port",
    "sslmode",
    "sslrootcert",
    "target_session_attrs",
    "user",
];

/// Encryption of connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Encryption {
    /// None: the server is on this machine, or the URL says `sslmode=disable`.
    Off,
    /// TLS with a verified certificate, by the system's authorities or by those in a file.
    Verified(Option<PathBuf>),
}

/// Parsed address.
pub(crate) struct Address {
    pub(crate) config: Config,
    pub(crate) encryption: Encryption,
    /// Hosts and database, for messages: no user, no password.
    pub(crate) name: String,
}

impl Address {
    /// Parses a URL; the error is a sentence that repeats nothing of it.
    pub(crate) fn parse(url: &SecretString) -> Result<Self, String> {
        let url = url.expose_secret().trim();
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            return Err("it must begin with postgres://, as in postgres://user@host:5432/database".to_owned());
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (mut mode, mut authorities, mut others) = (None, None, Vec::new());
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !OPTIONS.contains(&name) {
                return Err(format!(
                    "it has an option that is not known; these are: {}. If the password has one of : / ? # @ %, write it \
                     percent-encoded",
                    OPTIONS.join(", ")
                ));
            }
            let decoded = percent_decode_str(value).decode_utf8().map_err(|_| "it is not valid UTF-8".to_owned())?;
            match name {
                "sslmode" => mode = Some(decoded.into_owned()),
                "sslrootcert" => authorities = Some(PathBuf::from(decoded.into_owned())),
                _ => others.push(pair),
            }
        }
        let rest = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        let mut config: Config = rest.parse().map_err(|_| {
            "it is not a URL of a database, as postgres://user:password@host:5432/database is; a password with one of \
             : / ? # @ % must be percent-encoded"
                .to_owned()
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err("it names no host, as postgres://user@host:5432/database does".to_owned());
        }
        // The credentials end at the first @, so that the rest of a password which has one would be part of a name.
        let has_at = |host: &Host| matches!(host, Host::Tcp(host) if host.contains('@'));
        if config.get_hosts().iter().any(has_at) || config.get_dbname().is_some_and(|name| name.contains('@')) {
            return Err("a password with one of : / ? # @ % must be percent-encoded".to_owned());
        }
        let encryption = encryption(mode.as_deref(), authorities.as_deref(), is_here(&config))?;
        config.ssl_mode(if encryption == Encryption::Off { SslMode::Disable } else { SslMode::Require });
        if config.get_application_name().is_none() {
            config.application_name("meerkat");
        }
        let name = name(&config);
        Ok(Self { config, encryption, name })
    }
}

/// Decides the encryption: verified unless every host is this machine, or the URL switches it off by name.
fn encryption(mode: Option<&str>, authorities: Option<&Path>, is_here: bool) -> Result<Encryption, String> {
    let verified = || Encryption::Verified(authorities.map(Path::to_owned));
    match mode {
        Some("disable") if authorities.is_none() => Ok(Encryption::Off),
        Some("disable") => Err("sslmode=disable and sslrootcert exclude each other".to_owned()),
        None | Some("allow" | "prefer") if is_here && authorities.is_none() => Ok(Encryption::Off),
        None | Some("allow" | "prefer" | "require" | "verify-ca" | "verify-full") => Ok(verified()),
        Some(_) => Err("sslmode must be disable or verify-full (require and the others also verify)".to_owned()),
    }
}

/// Returns true if every host is this machine.
fn is_here(config: &Config) -> bool {
    let is_loopback = |address: &IpAddr| address.is_loopback();
    let hosts = config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => name == "localhost" || name.parse().is_ok_and(|address| is_loopback(&address)),
    });
    // What is connected to is the address, whatever the host's name is.
    match config.get_hostaddrs() {
        [] => hosts,
        addresses => addresses.iter().all(is_loopback),
    }
}

/// Describes where the database is.
fn name(config: &Config) -> String {
    let ports = config.get_ports();
    let host = |(at, host): (usize, &Host)| {
        let port = ports.get(at).or_else(|| ports.first()).copied().unwrap_or(5432);
        match host {
            Host::Tcp(host) => format!("{host}:{port}"),
            Host::Unix(folder) => format!("{}:{port}", folder.display()),
        }
    };
    let mut hosts: Vec<String> = config.get_hosts().iter().enumerate().map(host).collect();
    if hosts.is_empty() {
        hosts = config.get_hostaddrs().iter().map(ToString::to_string).collect();
    }
    match config.get_dbname() {
        Some(database) => format!("{}/{database}", hosts.join(",")),
        None => hosts.join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, String> {
        Address::parse(&SecretString::from(url.to_owned()))
    }

    #[test]
    fn tls_is_verified_except_on_this_machine_or_by_name() {
        let verified = Encryption::Verified(None);
        let file = Encryption::Verified(Some(PathBuf::from("/etc/a b.pem")));
        for (url, due) in [
            ("postgres://u@localhost/d", &Encryption::Off),
            ("postgres://u@127.0.0.1:5433/d", &Encryption::Off),
            ("postgres://u@[::1]/d", &Encryption::Off),
            ("postgres:///d?host=/run/postgresql", &Encryption::Off),
            ("postgres://u@localhost/d?sslmode=require", &verified),
            ("postgres://u@db.example/d", &verified),
            ("postgresql://u@10.0.0.1/d?sslmode=prefer", &verified),
            ("postgres://u@localhost,db.example/d", &verified),
            ("postgres://u@localhost/d?hostaddr=10.0.0.1", &verified),
            ("postgres://u@db.example/d?sslmode=disable", &Encryption::Off),
            ("postgres://u@db.example/d?sslrootcert=/etc/a%20b.pem", &file),
        ] {
            assert_eq!(&parse(url).map(|address| address.encryption).unwrap(), due, "{url}");
        }
        assert!(parse("postgres://u@db.example/d?sslmode=disable&sslrootcert=/a").is_err());
    }

    #[test]
    fn no_message_and_no_name_repeats_a_password() {
        for url in [
            "mysql://u:s3cret@h/d",
            "postgres://u:s3cret@h:port/d",
            "postgres://u:pa?s3cret@h/d",
            "postgres://u:pa?x=1&s3cret=2@h/d",
            "postgres://u:s3cret@h/d?sslmode=s3cret",
            "postgres://u:s3cret@h/d?keepalives=s3cret",
            "postgres://u:s3cret@/d",
            "postgres://u:pa@s3cret@h/d",
            "postgres://u:pa@x/s3cret@h/d",
            "u:s3cret@h",
        ] {
            let refusal = parse(url).err().unwrap_or_else(|| panic!("{url} was taken"));
            assert!(!refusal.contains("s3cret"), "{refusal}");
        }
        let address = parse("postgres://u:s3cret@h:1,i:2/d").unwrap();
        assert_eq!(address.name, "h:1,i:2/d");
    }
}
