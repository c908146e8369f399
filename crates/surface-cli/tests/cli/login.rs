//! Logins at remote servers by the program itself: with a browser, and with a pasted address.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    process::{Child, Stdio},
    sync::{Arc, OnceLock},
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::until;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    drive::{
        Ran,
        fake::{self, Asked},
        led, meerkat, ran,
    },
    typed::Typed,
};

const TOKEN: &str = "token-of-the-fake-issuer";

/// Starts a server that wants a login, which is its own issuer too. Returns its address.
fn server() -> String {
    let own: Arc<OnceLock<String>> = Arc::default();
    let answers = own.clone();
    let port = fake::serve(move |asked| Some(answer(&asked, answers.get().unwrap())));
    own.get_or_init(|| format!("http://127.0.0.1:{port}")).clone()
}

fn answer(asked: &Asked, url: &str) -> (u16, &'static str, String) {
    let path = asked.line.split(' ').nth(1).unwrap();
    let is_post = asked.line.starts_with("POST ");
    let document = match path {
        "/mcp" if asked.key != TOKEN => return (401, "text/plain\r\nwww-authenticate: Bearer", String::new()),
        "/mcp" if !is_post => return (405, "text/plain", String::new()),
        "/mcp" => {
            let request: Value = serde_json::from_slice(&asked.body).unwrap();
            let result = match request["method"].as_str().unwrap() {
                "initialize" => json!({
                    "protocolVersion": "2025-06-18", "capabilities": { "tools": {} },
                    "serverInfo": { "name": "fake", "version": "1" },
                }),
                "tools/list" => json!({ "tools": [{ "name": "greet", "inputSchema": { "type": "object" } }] }),
                _ if request["id"].is_null() => return (202, "text/plain", String::new()),
                _ => {
                    let error = json!({ "code": -32601, "message": "there is no such method" });
                    let answer = json!({ "jsonrpc": "2.0", "id": request["id"], "error": error });
                    return (200, "application/json", answer.to_string());
                }
            };
            json!({ "jsonrpc": "2.0", "id": request["id"], "result": result })
        }
        "/.well-known/oauth-protected-resource/mcp" => {
            json!({ "resource": format!("{url}/mcp"), "authorization_servers": [url] })
        }
        "/.well-known/oauth-authorization-server" => json!({
            "issuer": url,
            "authorization_endpoint": format!("{url}/authorize"),
            "token_endpoint": format!("{url}/token"),
            "registration_endpoint": format!("{url}/register"),
            "code_challenge_methods_supported": ["S256"],
        }),
        "/register" => json!({ "client_id": "a-client", "redirect_uris": ["http://127.0.0.1/callback"] }),
        "/token" => {
            let form = String::from_utf8_lossy(&asked.body).into_owned();
            if !form.contains("code=the-code&") || !form.contains("code_verifier=") {
                return (400, "application/json", json!({ "error": "invalid_grant" }).to_string());
            }
            json!({ "access_token": TOKEN, "token_type": "bearer", "expires_in": 3600 })
        }
        _ => return (404, "text/plain", String::new()),
    };
    (200, "application/json", document.to_string())
}

/// Makes a folder whose user has configured the server.
fn home() -> TempDir {
    let home = meerkat_testkit::folder();
    fs::create_dir_all(home.path().join(".config/meerkat")).unwrap();
    let file = format!("[servers.fake]\nurl = \"{}/mcp\"\n", server());
    fs::write(home.path().join(".config/meerkat/meerkat.toml"), file).unwrap();
    home
}

/// Starts a login, and returns it with the address at which a browser would end that agreed.
fn begin(home: &TempDir, args: &[&str]) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut command = meerkat(home, args);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let page = loop {
        let mut line = String::new();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it ended without a page");
        if line.starts_with("http") {
            break line.trim_end().to_owned();
        }
    };
    let part = |name: &str| page.split(['?', '&']).find_map(|part| part.strip_prefix(&format!("{name}="))).unwrap();
    let redirect = part("redirect_uri").replace("%3A", ":").replace("%2F", "/");
    let address = format!("{redirect}?code=the-code&state={}", part("state"));
    (child, said, address)
}

fn end(mut child: Child, mut said: BufReader<std::process::ChildStderr>) -> Ran {
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    said.read_to_string(&mut err).unwrap();
    let code = child.wait().unwrap().code().and_then(|code| code.try_into().ok());
    Ran { code: code.unwrap_or(u8::MAX), out, err }
}

fn state(home: &TempDir) -> Value {
    ran(&mut meerkat(home, &["--json", "servers", "check", "fake"])).json()["state"].clone()
}

#[test]
fn a_browser_brings_the_login() {
    let home = home();
    assert_eq!(state(&home), "login needed");
    let (child, said, address) = begin(&home, &["--json", "servers", "login", "fake"]);
    let host = address.trim_start_matches("http://").split('/').next().unwrap();
    let mut browser = TcpStream::connect(host).unwrap();
    let target = address.split_once(host).unwrap().1;
    write!(browser, "GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    let mut page = String::new();
    browser.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 ") && page.contains("You may close this page"), "{page}");
    let ran_to_end = end(child, said);
    assert_eq!((ran_to_end.code, &ran_to_end.json()["state"]), (0, &json!("running")), "{}", ran_to_end.err);
    assert!(ran_to_end.err.contains("You are logged in to fake."), "{}", ran_to_end.err);
    assert!(!ran_to_end.err.contains(TOKEN) && !ran_to_end.out.contains(TOKEN));
    assert_eq!(state(&home), "running");
    let out = ran(&mut meerkat(&home, &["--json", "servers", "logout", "fake"])).json();
    assert_eq!(out, json!({ "server": "fake", "had_login": true }));
    assert_eq!(state(&home), "login needed");
}

#[test]
fn a_pasted_address_brings_the_login() {
    let home = home();
    let (mut child, said, address) = begin(&home, &["--json", "servers", "login", "fake", "--paste"]);
    writeln!(child.stdin.take().unwrap(), "{address}").unwrap();
    let ran_to_end = end(child, said);
    assert_eq!((ran_to_end.code, &ran_to_end.json()["tools"][0]["name"]), (0, &json!("mcp__fake__greet")));
    let (mut child, said, address) = begin(&home, &["servers", "login", "fake", "--paste"]);
    writeln!(child.stdin.take().unwrap(), "{}", address.replace("state=", "state=x")).unwrap();
    end(child, said).refused(ErrorCode::InvalidRequest, "another login");
    // The login from before is as it was.
    assert_eq!(state(&home), "running");
}

#[test]
fn at_a_display_the_page_is_opened_and_an_interrupt_ends_the_wait() {
    let home = home();
    let (browser, opened) = (home.path().join("browser"), home.path().join("opened"));
    fs::write(&browser, format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > '{}'\n", opened.display())).unwrap();
    fs::set_permissions(&browser, PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = meerkat(&home, &["servers", "login", "fake"]);
    command.env("DISPLAY", ":0").env("BROWSER", &browser);
    let mut typed = Typed::begin(command, home);
    typed.wait("Open this page");
    typed.wait("/authorize?");
    typed.wait("\n");
    let args = || fs::read_to_string(&opened).unwrap_or_default();
    until("the page is opened", || args().ends_with('\n'));
    // Every user of the machine can read them. Who knows the state and the port can end this login with one of their own.
    assert!(args().lines().count() == 1 && !args().contains("state") && !args().contains("127.0.0.1"), "{}", args());
    let leads_to = led(&args());
    assert!(leads_to.contains("state=") && typed.screen().contains(&leads_to), "{leads_to}");
    assert_eq!(state(&typed.interrupted()), "login needed");
}
