//! `console`: the page's address with a code for one sign-in. Only who can read the token can make one; neither the token
//! nor anything else that is secret is sent to the address.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use http::Uri;
use meerkat_serve::{Token, console_code, random_digits};
use meerkat_service::{
    SessionError,
    clock::{Clock as _, SystemClock},
};
use serde_json::json;

use crate::{
    args::ConsoleArgs,
    browser,
    config::Config,
    error::{CliError, refused},
    output::{Environment, Output},
    own_server::{address, find_token, has_token, sign_ins},
};

/// Longest wait for a server to answer.
const PROBE: Duration = Duration::from_secs(2);
const PROBE_BYTES: u64 = 16 * 1024;

/// Text that the page has and no other page.
const MARK: &str = "<meta name=\"application-name\" content=\"meerkat console\">";

/// Bytes of randomness in a code.
const NONCE_BYTES: usize = 16;

/// Performs what needs no new server: signs all browsers out, or shows the page of a server that runs. Returns `None` if
/// none runs.
pub(crate) fn of_running(
    out: &Output,
    env: &Environment,
    config: &Config,
    args: &ConsoleArgs,
) -> Result<Option<u8>, CliError> {
    if args.sign_out {
        return sign_out(out, env, config).map(Some);
    }
    let listen = address(config, args.listen.as_deref())?;
    let shown = shown(listen);
    let Ok(mut stream) = TcpStream::connect_timeout(&shown, PROBE) else { return Ok(None) };
    let mut page = Vec::new();
    let head = format!("GET / HTTP/1.1\r\nhost: {shown}\r\nconnection: close\r\n\r\n");
    let asked = stream.set_read_timeout(Some(PROBE)).and_then(|()| stream.write_all(head.as_bytes()));
    // A program that does not answer in time is none of ours either.
    if asked.and_then(|()| stream.take(PROBE_BYTES).read_to_end(&mut page)).is_err()
        || !String::from_utf8_lossy(&page).contains(MARK)
    {
        let message = "something there answers that is no console: another program, or a server without --rest. Choose \
                       another address with --listen, such as 127.0.0.1:7671";
        return Err(refused("serve.listen", message, &listen.to_string()).into());
    }
    if !has_token(config, env)? {
        let message = format!(
            "at {listen} runs a server of another folder, as this project has no token yet. Run this in its folder, or \
             choose another address with --listen, such as 127.0.0.1:7671"
        );
        return Err(SessionError::invalid("console", message).into());
    }
    let (token, _) = find_token(config, env)?;
    let base = config.values.serve.public_url.clone().unwrap_or_else(|| format!("http://{shown}"));
    show(out, env, &base, Some(&token), args.print).map(Some)
}

/// The address at which a browser of this machine reaches a listener.
fn shown(listen: SocketAddr) -> SocketAddr {
    if !listen.ip().is_unspecified() {
        return listen;
    }
    let own = if listen.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() };
    SocketAddr::new(own, listen.port())
}

/// Prints the address of the page, and opens it unless it shall only be printed.
pub(crate) fn show(
    out: &Output,
    env: &Environment,
    base: &str,
    token: Option<&Token>,
    is_printed: bool,
) -> Result<u8, CliError> {
    let base = base.trim_end_matches('/');
    let base = base.replacen("//0.0.0.0:", "//127.0.0.1:", 1).replacen("//[::]:", "//[::1]:", 1);
    let page = match token {
        None => format!("{base}/"),
        Some(token) => {
            let nonce = random_digits(NONCE_BYTES)?;
            let now = u64::try_from(SystemClock::new().now().as_millis()).unwrap_or_default();
            format!("{base}/#code={}", console_code(token.text(), &origin(&base), &nonce, now))
        }
    };
    let program = browser::program(env).filter(|_| !is_printed);
    let is_open = program.is_some_and(|program| browser::open(&program, &page));
    if out.is_json {
        out.document(json!({ "url": page, "opened": is_open }).to_string().as_bytes())?;
        return Ok(0);
    }
    if is_open {
        out.note("The console is open in your browser. If it is not, use this address:");
    } else if token.is_some() {
        out.note("Open this address in a browser within a minute; it works once:");
    }
    out.text(&format!("{page}\n"))?;
    Ok(0)
}

/// The origin of an address, as browsers write it.
fn origin(base: &str) -> String {
    let Ok(uri) = base.parse::<Uri>() else { return base.to_owned() };
    let (scheme, authority) =
        (uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |place| place.as_str()));
    let port = if scheme == "https" { ":443" } else { ":80" };
    format!("{scheme}://{}", authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase())
}

fn sign_out(out: &Output, env: &Environment, config: &Config) -> Result<u8, CliError> {
    if let Some(file) = sign_ins(config, env)?
        && let Err(error) = std::fs::remove_file(&file)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(SessionError::invalid("file", format!("{} cannot be removed: {error}", file.display())).into());
    }
    match out.is_json {
        true => out.document(json!({ "signed_out": true }).to_string().as_bytes())?,
        false => out.text("Every browser is signed out of this project's servers.\n")?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_as_browsers_write_it() {
        for (base, expected) in [
            ("http://127.0.0.1:7670", "http://127.0.0.1:7670"),
            ("https://Desk.Example:443/meerkat", "https://desk.example"),
            ("http://desk.example:80", "http://desk.example"),
            ("http://[::1]:7670", "http://[::1]:7670"),
        ] {
            assert_eq!(origin(base), expected, "{base}");
        }
    }

    #[test]
    fn a_browser_is_sent_to_an_address_that_it_can_open() {
        for (listen, expected) in
            [("0.0.0.0:7670", "127.0.0.1:7670"), ("[::]:7670", "[::1]:7670"), ("127.0.0.1:1", "127.0.0.1:1")]
        {
            assert_eq!(shown(listen.parse().unwrap()).to_string(), expected);
        }
    }
}
