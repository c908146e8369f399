//! The console's door: which of its paths are open, and what a browser opens that has signed in.

use std::{
    collections::BTreeSet,
    io::{BufReader, Read as _},
    time::{SystemTime, UNIX_EPOCH},
};

use serde_json::json;

use crate::{
    drive::{
        TOKEN,
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
