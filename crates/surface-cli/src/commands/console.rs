//! `console`: the page's address with a code for one sign-in. Only who can read the token can make one, and it is shown
//! only for a server that has proved that it knows the token too. Neither the token nor anything else that is secret is
//! sent to the address.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use http::Uri;
use meerkat_serve::{Token, console_code, console_question, console_reply, random_digits};
use meerkat_service::clock::{Clock as _, SystemClock};
use serde_json::json;

use crate::{
    args::ConsoleArgs,
    browser,
    config::Config,
    error::{CliError, refused},
    output::{Environment, Output},
    own_server::{address, find_token, has_token},
};

/// Longest wait for a server to accept, and to have answered.
const PROBE: Duration = Duration::from_secs(5);
const PROBE_BYTES: usize = 16 * 1024;

/// Bytes of randomness in a code or a question.
const NONCE_BYTES: usize = 16;

/// Shows the page of a server that runs. Returns `None` if none runs.
pub(crate) fn of_running(
    out: &Output,
    env: &Environment,
    config: &Config,
    args: &ConsoleArgs,
) -> Result<Option<u8>, CliError> {
    let listen = address(config, args.listen.as_deref())?;
    let there = shown(listen);
    let Some(listener) = listener(config, env, there)? else { return Ok(None) };
    let Listener::Ours(token) = listener else {
        let message = format!(
            "what listens there {FOREIGN}: it is another program, the server of another folder, or one that runs without \
             --rest or with --no-auth. Run this in that server's folder, or choose another address with --listen, such as \
             127.0.0.1:7671"
        );
        return Err(refused("serve.listen", &message, &listen.to_string()).into());
    };
    let base = config.values.serve.public_url.clone().unwrap_or_else(|| format!("http://{there}"));
    show(out, env, config, &base, Some(&token), args.print).map(Some)
}

/// A note for somebody who is given the token, if what listens at the configured address has another one.
pub(crate) fn foreign_listener(config: &Config, env: &Environment) -> Result<Option<String>, CliError> {
    let Ok(listen) = address(config, None) else { return Ok(None) };
    let there = shown(listen);
    let is_foreign = matches!(listener(config, env, there)?, Some(Listener::Foreign));
    Ok(is_foreign.then(|| format!("Warning: what listens at {there} {FOREIGN}. Do not send the token there.")))
}

/// What a program is told about that is no server of this project.
const FOREIGN: &str = "does not know this project's token";

/// A program that listens at an address.
enum Listener {
    /// A server that has this token, which is the project's.
    Ours(Token),
    Foreign,
}

/// Asks what listens at an address whose it is; `None` if nothing does. It learns nothing that it could use.
fn listener(config: &Config, env: &Environment, there: SocketAddr) -> Result<Option<Listener>, CliError> {
    let Ok(mut stream) = TcpStream::connect_timeout(&there, PROBE) else { return Ok(None) };
    if !has_token(config, env)? {
        return Ok(Some(Listener::Foreign));
    }
    let (token, _) = find_token(config, env)?;
    let question = console_question(token.text(), &format!("http://{there}"), &random_digits(NONCE_BYTES)?, now_ms());
    let reply = console_reply(token.text(), &question);
    let head = format!(
        "GET /console/sign-in HTTP/1.1\r\nhost: {there}\r\nx-meerkat-console: {question}\r\nconnection: close\r\n\r\n"
    );
    // A program that does not answer in time is none of ours either.
    let answer = stream.write_all(head.as_bytes()).and_then(|()| answer(&mut stream));
    let is_ours = answer.is_ok_and(|answer| String::from_utf8_lossy(&answer).contains(&reply));
    Ok(Some(if is_ours { Listener::Ours(token) } else { Listener::Foreign }))
}

/// Reads an answer to its end, in [`PROBE`] altogether.
fn answer(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let clock = SystemClock::new();
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while answer.len() < PROBE_BYTES {
        let rest = PROBE.saturating_sub(clock.elapsed());
        if rest.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(rest))?;
        match stream.read(&mut piece)? {
            0 => break,
            bytes => answer.extend_from_slice(&piece[..bytes]),
        }
    }
    Ok(answer)
}

fn now_ms() -> u64 {
    u64::try_from(SystemClock::new().now().as_millis()).unwrap_or_default()
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
    config: &Config,
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
            format!("{base}/#code={}", console_code(token.text(), &origin(&base), &nonce, now_ms()))
        }
    };
    let program = browser::program(env).filter(|_| !is_printed);
    let is_open = match program {
        Some(program) => browser::open(&program, &page, &config.data_dir(env)?),
        None => false,
    };
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
