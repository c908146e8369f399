//! The console's door: which of its paths are open, what a browser opens that has signed in, and what the command
//! `console` shows and to whom.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use meerkat_errors::ErrorCode;
use meerkat_testkit::{PATIENCE, until};
use serde_json::json;
use tempfile::TempDir;

use crate::{
    drive::{
        TOKEN, fake, led, meerkat, ran,
        server::{Server, read, read_head, refusal, status},
    },
    guard::places,
};

const SIGN_IN: &str = "/console/sign-in";

/// The paths that a file of the page names: other files, by addresses from its own folder.
fn named(path: &str, text: &str) -> Vec<String> {
    let folder = path.rsplit_once('/').unwrap().0;
    let marks = ["href=\"console/", "src=\"console/", "from \"./", "from \"../"];
    let after =
        |mark: &'static str| text.split(mark).skip(1).filter_map(move |rest| Some((mark, rest.split('"').next()?)));
    let found = marks.into_iter().flat_map(after);
    found
        .map(|(mark, name)| match mark {
            "from \"./" => format!("{folder}/{name}"),
            "from \"../" => format!("{}/{name}", folder.rsplit_once('/').unwrap().0),
            _ => format!("{folder}/console/{name}"),
        })
        .collect()
}

#[test]
fn the_files_of_the_page_are_open_and_nothing_beside_them() {
    let server = Server::start(&[]);
    let (mut files, mut unread) = (BTreeSet::new(), vec!["/".to_owned()]);
    while let Some(path) = unread.pop() {
        if files.insert(path.clone()) {
            let answer = server.send("GET", &path, &[], "");
            assert_eq!(answer.status, 200, "{path}");
            assert!(answer.head.contains("content-security-policy: default-src 'none'; script-src 'self'"), "{path}");
            assert!(answer.head.contains("x-content-type-options: nosniff"), "{path}");
            unread.extend(named(&path, &answer.body));
        }
    }
    assert!(files.len() > 20, "the page was walked: {files:?}");
    for path in files.iter().map(String::as_str).chain([SIGN_IN]) {
        for hostile in ["host: evil.example", "origin: http://evil.example", "origin: null"] {
            let own = if hostile.starts_with("origin") { server.headers(&[]) } else { String::new() };
            let answer = read(server.open("GET", path, &format!("{own}{hostile}\r\n"), ""));
            assert_eq!(answer.refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{path} {hostile}");
        }
        for method in ["PUT", "PATCH"] {
            let answer = server.send(method, path, &[], "{}");
            assert_eq!(answer.refusal(), refusal(405, "METHOD_NOT_ALLOWED"), "{method} {path}");
        }
        for beside in [format!("{path}/"), format!("{path}%20"), format!("/.{path}"), path.to_uppercase()] {
            if !files.contains(&beside) {
                let answer = server.send("GET", &beside, &[], "");
                assert_eq!(answer.refusal(), refusal(401, "UNAUTHENTICATED"), "{beside}");
            }
        }
    }
}

#[test]
fn a_signed_in_browser_opens_rest_alone_and_only_with_both_secrets() {
    let server = Server::start(&[]);
    let origin = format!("http://127.0.0.1:{}", server.port);
    let sign_in = |nonce: &str| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
        let code = meerkat_serve::console_code(TOKEN, &origin, nonce, u64::try_from(now).unwrap());
        let answer = server.send("POST", SIGN_IN, &[("origin", &origin)], &json!({ "code": code }).to_string());
        assert_eq!(answer.status, 200, "{}", answer.body);
        let cookie = answer.head.split("set-cookie: ").nth(1).unwrap().split(';').next().unwrap().to_owned();
        assert!(answer.head.contains("; httponly; samesite=strict"), "{}", answer.head);
        (cookie, answer.json()["secret"].as_str().unwrap().to_owned())
    };
    let (cookie, secret) = sign_in(&"a".repeat(32));
    let (other_cookie, other_secret) = sign_in(&"b".repeat(32));
    let (cookie, secret) = (("cookie", cookie.as_str()), ("x-meerkat-console", secret.as_str()));
    let others = [("cookie", other_cookie.as_str()), ("x-meerkat-console", other_secret.as_str())];
    let both = [cookie, secret];
    let mut opened = 0;
    for (method, path, body) in places() {
        let answer = server.send(&method, &path, &both, &body);
        if path.starts_with("/v1/") {
            assert_ne!(answer.status, 401, "{method} {path}");
            opened += 1;
            for half in [
                &both[..1],
                &both[1..],
                &[others[0], secret],
                &[cookie, others[1]],
                &[cookie, others[0], secret],
                &[cookie, secret, others[1]],
            ] {
                let answer = server.send(&method, &path, half, &body);
                assert_eq!(answer.refusal(), refusal(401, "UNAUTHENTICATED"), "{method} {path} {half:?}");
            }
        } else {
            assert_eq!(answer.refusal(), refusal(401, "UNAUTHENTICATED"), "{method} {path} {body}");
        }
    }
    assert!(opened > 40, "the routes were walked: {opened}");
    let list = |more: &[(&str, &str)]| server.send("GET", "/v1/sessions", &[&both[..], more].concat(), "");
    for origin in ["http://evil.example", "null", "http://127.0.0.1:1"] {
        assert_eq!(list(&[("origin", origin)]).refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{origin}");
    }
    assert_eq!(list(&[("authorization", "Bearer wrong")]).refusal(), refusal(401, "UNAUTHENTICATED"));
    // What it has asked for, it reads no longer than it is signed in.
    let asks = [cookie, secret, ("accept", "text/event-stream"), ("connection", "close")];
    let mut stream = BufReader::new(server.open("GET", "/v1/sessions", &server.headers(&asks), ""));
    assert_eq!(status(&read_head(&mut stream)), 200);
    assert_eq!(server.send("DELETE", SIGN_IN, &both, "").status, 200);
    assert_eq!(list(&[]).refusal(), refusal(401, "UNAUTHENTICATED"));
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"restarts\":true"), "{rest}");
    assert_eq!(server.send("GET", "/v1/sessions", &others, "").status, 200, "the other browser is still signed in");
}

/// The command, in a folder of a project with this token.
fn command(dir: &TempDir, args: &[&str], token: &str) -> Command {
    let mut command = meerkat(dir, args);
    command.env("MEERKAT_TOKEN", token).stdin(Stdio::null());
    command
}

/// Signs a browser in by the address that the command shows; returns the status of the answer.
fn sign_in(server: &Server, address: &str) -> u16 {
    let (page, code) = address.split_once("/#code=").unwrap();
    server.send("POST", SIGN_IN, &[("origin", page)], &json!({ "code": code }).to_string()).status
}

/// Everybody on the machine can read the arguments of a program.
#[test]
fn a_browser_gets_the_code_in_a_file_that_nobody_else_can_read() {
    let (server, dir) = (Server::start(&[]), meerkat_testkit::folder());
    let (browser, opened) = (dir.path().join("browser"), dir.path().join("opened"));
    fs::write(&browser, format!("#!/bin/sh\nprintf '%s\\n' \"$@\" > '{}'\n", opened.display())).unwrap();
    fs::set_permissions(&browser, PermissionsExt::from_mode(0o700)).unwrap();
    let address = format!("127.0.0.1:{}", server.port);
    let mut console = command(&dir, &["--json", "console", "--listen", &address], TOKEN);
    let shown = ran(console.env("DISPLAY", ":0").env("BROWSER", &browser)).json();
    assert_eq!(shown["opened"], true);
    let args = || fs::read_to_string(&opened).unwrap_or_default();
    until("the page is opened", || args().ends_with('\n'));
    assert!(args().lines().count() == 1 && !args().contains("code"), "{}", args());
    assert_eq!(led(&args()), shown["url"].as_str().unwrap());
    assert_eq!(sign_in(&server, &led(&args())), 200);
    // The next one takes its place.
    let mut again = command(&dir, &["console", "--listen", &address], TOKEN);
    assert_eq!(ran(again.env("DISPLAY", ":0").env("BROWSER", "true")).code, 0);
    assert_ne!(led(&args()), shown["url"].as_str().unwrap());
}

#[test]
fn the_console_of_another_project_or_of_no_meerkat_is_not_shown() {
    let (server, dir) = (Server::start(&[]), meerkat_testkit::folder());
    // Another user's program can say whatever a server says without a token.
    let page = include_str!("../../../console/page/index.html");
    let squatter = fake::serve(move |_| Some((200, "text/html", page.to_owned())));
    for (port, token) in [(server.port, "a-token-of-another-project"), (squatter, TOKEN)] {
        let listen = format!("127.0.0.1:{port}");
        for args in [&["console", "--print", "--listen", &listen][..], &["console", "--listen", &listen]] {
            let ran = ran(&mut command(&dir, args, token));
            ran.refused(ErrorCode::ConfigInvalid, "does not know this project's token");
        }
        let asked = command(&dir, &["token"], token).env("MEERKAT_SERVE__LISTEN", &listen).output().unwrap();
        assert_eq!(String::from_utf8(asked.stdout).unwrap(), format!("{token}\n"));
        let said = String::from_utf8(asked.stderr).unwrap();
        assert!(said.contains(&listen) && said.contains("does not know this project's token"), "{said}");
    }
    let listen = format!("127.0.0.1:{}", server.port);
    let shown = ran(&mut command(&dir, &["console", "--print", "--listen", &listen], TOKEN));
    assert_eq!((shown.code, sign_in(&server, shown.out.trim_end())), (0, 200), "{}", shown.err);
    assert_eq!(ran(command(&dir, &["token"], TOKEN).env("MEERKAT_SERVE__LISTEN", &listen)).err, "");
    // A project without a token has no server that asks for one.
    let mut none = meerkat(&dir, &["console", "--print", "--listen", &listen]);
    ran(&mut none).refused(ErrorCode::ConfigInvalid, "does not know this project's token");
}

/// Time between two bytes of an answer that never ends.
const DROP: Duration = Duration::from_millis(200);

/// Each byte comes in time, and the answer never.
#[test]
fn a_program_that_answers_drop_by_drop_holds_no_command_up() {
    let (listener, dir) = (TcpListener::bind("127.0.0.1:0").unwrap(), meerkat_testkit::folder());
    let listen = listener.local_addr().unwrap().to_string();
    let dripping = std::thread::spawn(move || {
        let (mut stream, began) = (listener.accept().unwrap().0, Instant::now());
        stream.set_read_timeout(Some(DROP)).unwrap();
        let mut head = [0; 1024];
        // A client that has left ends what it sends, or refuses the next byte.
        while began.elapsed() < PATIENCE {
            let has_left = stream.read(&mut head).is_ok_and(|bytes| bytes == 0);
            if has_left || stream.write_all(b"x").is_err() {
                return true;
            }
        }
        false
    });
    let ran = ran(&mut command(&dir, &["console", "--print", "--listen", &listen], TOKEN));
    ran.refused(ErrorCode::ConfigInvalid, "does not know this project's token");
    assert!(dripping.join().unwrap(), "the command waited as long as the program answered");
}
