//! Web pages of other origins: listed ones may ask and read, and their browsers learn that without a token.

use meerkat_errors::ErrorCode;

use crate::drive::{
    TOKEN, meerkat, ran,
    server::{Server, read, refusal},
};

const LISTED: (&str, &str) = ("origin", "https://desk.example");

fn server() -> Server {
    Server::start(&[("MEERKAT_SERVE__ALLOWED_ORIGINS", r#"["https://desk.example"]"#)])
}

#[test]
fn a_listed_origin_is_let_in_and_no_other() {
    let server = server();
    let asks = [("access-control-request-method", "PATCH"), ("access-control-request-headers", "authorization,prefer")];
    for path in ["/v1/sessions", "/rpc", "/mcp", "/nowhere"] {
        let preflight = server.send("OPTIONS", path, &[LISTED, asks[0], asks[1]], "");
        assert_eq!(preflight.status, 200, "{path}: {}", preflight.body);
        for line in [
            "access-control-allow-origin: https://desk.example\r\n",
            "access-control-allow-headers: authorization,prefer\r\n",
        ] {
            assert!(preflight.head.contains(line), "{path}: {}", preflight.head);
        }
        assert!(preflight.head.contains("patch"), "{}", preflight.head);
        for origin in ["http://desk.example", "https://evil.example", "null", "*"] {
            let refused = server.send("OPTIONS", path, &[("origin", origin), asks[0]], "");
            assert_eq!(refused.refusal(), refusal(403, "FORBIDDEN_ORIGIN"), "{path} {origin}");
            assert!(!refused.head.contains("access-control-"), "{}", refused.head);
        }
        // A name that is not ours stays refused, and says nothing to the page.
        let headers = format!("host: evil.example\r\norigin: {}\r\n{}: PATCH\r\n", LISTED.1, asks[0].0);
        let rebound = read(server.open("OPTIONS", path, &headers, ""));
        assert_eq!(rebound.refusal(), refusal(403, "FORBIDDEN_ORIGIN"));
    }
}

#[test]
fn a_listed_origin_reads_answers_and_refusals() {
    let server = server();
    let made = server.send_with_token("POST", "/v1/sessions", &[LISTED], "{}");
    let refused = server.send("POST", "/v1/sessions", &[LISTED], "{}");
    assert_eq!((made.status, refused.status), (201, 401));
    for answer in [made, refused] {
        assert!(answer.head.contains("access-control-allow-origin: https://desk.example\r\n"), "{}", answer.head);
        assert!(answer.head.contains("access-control-expose-headers: location,"), "{}", answer.head);
        assert!(answer.head.contains("vary: origin"), "{}", answer.head);
    }
    let other = server.send_with_token("POST", "/v1/sessions", &[], "{}");
    assert!(!other.head.contains("access-control-"), "{}", other.head);
}

/// However an origin is written in the configuration, browsers write it in one way.
#[test]
fn an_origin_is_listed_however_it_is_written() {
    let listed = r#"["https://Desk.Example:443/", "HTTP://box:80", "https://box:8443/", "app-page://id"]"#;
    let server = Server::start(&[("MEERKAT_SERVE__ALLOWED_ORIGINS", listed)]);
    for origin in ["https://desk.example", "http://box", "https://box:8443", "app-page://id"] {
        let answer = server.send_with_token("GET", "/v1/sessions", &[("origin", origin)], "");
        assert_eq!(answer.status, 200, "{origin}: {}", answer.body);
        assert!(answer.head.contains(&format!("access-control-allow-origin: {origin}\r\n")), "{}", answer.head);
    }
}

#[test]
fn what_names_no_place_is_refused() {
    let dir = meerkat_testkit::folder();
    for (key, value) in [
        ("ALLOWED_ORIGINS", r#"["*"]"#),
        ("ALLOWED_ORIGINS", r#"["null"]"#),
        ("ALLOWED_ORIGINS", r#"["desk.example"]"#),
        ("ALLOWED_ORIGINS", r#"["https://desk.example/console"]"#),
        ("ALLOWED_ORIGINS", r#"["https://u:p@desk.example"]"#),
        ("ALLOWED_ORIGINS", r#"["https://desk.example?"]"#),
        ("ALLOWED_HOSTS", r#"["*"]"#),
        ("ALLOWED_HOSTS", r#"["https://desk.example"]"#),
        ("PUBLIC_URL", "desk.example"),
        ("PUBLIC_URL", "ftp://desk.example"),
        ("PUBLIC_URL", "https://u:p@desk.example"),
    ] {
        let name = format!("MEERKAT_SERVE__{key}");
        let env = [(name.as_str(), value), ("MEERKAT_TOKEN", TOKEN)];
        let mut command = meerkat(&dir, &["serve", "--rest", "--listen", "127.0.0.1:0"]);
        ran(command.envs(env)).refused(ErrorCode::ConfigInvalid, &key.to_lowercase());
    }
}
