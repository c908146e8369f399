//! Logins at remote servers: the way of a person, the life of a token, and what hostile servers and issuers try.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use meerkat_service::{
    model::vendors::network,
    redact::Secrets,
    tool::{ToolError, ToolServerState, ToolSource as _},
};
use meerkat_tools::servers::{Login, LoginOptions, Servers, servers};
use serde_json::{Value, json};

use crate::{
    issuer::Issuer,
    server::noted,
    support::{call, options},
    tests,
};

tests![
    a_person_logs_in_with_a_browser,
    an_address_is_pasted,
    an_answer_of_another_login_is_refused,
    an_expired_token_is_refreshed_once,
    a_refused_token_is_refreshed_once,
    two_processes_refresh_once,
    a_revoked_login_is_needed_again,
    a_token_follows_no_redirect,
    a_token_that_is_a_word_blanks_that_word_nowhere,
    hostile_documents_lead_nowhere,
    a_configured_header_wins,
    a_logout_forgets,
    a_server_without_sessions_is_used,
    a_refusal_without_a_challenge_is_one,
    a_scope_at_the_end_of_a_long_challenge_is_named,
];

fn logins(folder: &Path) -> PathBuf {
    folder.join("logins")
}

/// Lists the files with logins.
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(logins(folder)).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|end| end == "json")).collect()
}

fn pool_with(folder: &Path, keys: Value) -> Arc<Servers> {
    let mut options = options(serde_json::from_value(keys).unwrap());
    options.logins_dir = Some(logins(folder));
    servers(options).unwrap()
}

pub(crate) fn pool(folder: &Path, issuer: &Issuer) -> Arc<Servers> {
    pool_with(folder, json!({ "url": format!("{}/mcp", issuer.url) }))
}

/// Gets a page without following it, and returns its status and where it leads.
async fn get(url: &str) -> (u16, String) {
    let page = network::http(None, None).unwrap().get(url).send().await.unwrap();
    let to = page.headers().get("location").map(|to| to.to_str().unwrap().to_owned());
    (page.status().as_u16(), to.unwrap_or_default())
}

/// Agrees on the page of a login, and returns the address that the browser is sent to.
async fn agree(login: &Login) -> String {
    let (status, to) = get(login.page()).await;
    assert_eq!(status, 302);
    to
}

pub(crate) async fn log_in(pool: &Servers) {
    let login = pool.login("t", LoginOptions::default()).await.unwrap();
    let address = agree(&login).await;
    pool.paste_login("t", login, &address).await.unwrap();
}

async fn refusal(pool: &Servers) -> String {
    pool.login("t", LoginOptions::default()).await.err().unwrap().to_string()
}

async fn a_person_logs_in_with_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    let secrets = Secrets::default();
    pool.redact_with(&secrets);
    let status = pool.check("t").await.unwrap();
    assert_eq!(status.state, ToolServerState::LoginNeeded);
    assert!(status.last_error.as_ref().unwrap().contains("run `meerkat servers login t`"), "{status:?}");

    let login = pool.login("t", LoginOptions::default()).await.unwrap();
    assert_eq!(login.issuer(), issuer.url);
    let address = agree(&login).await;
    let (port, wrong) = (address.split_once('?').unwrap().0, address.replace("&state=", "&state=x"));
    let browser = async {
        // Whatever else asks is answered, and is not the answer.
        assert_eq!(get(&wrong).await.0, 400);
        assert_eq!(get(port).await.0, 400);
        assert_eq!(get(&format!("{port}/favicon.ico?{}", address.split_once('?').unwrap().1)).await.0, 404);
        assert_eq!(get(&address).await.0, 200);
    };
    let (logged_in, ()) = tokio::join!(pool.await_login("t", login), browser);
    logged_in.unwrap();

    // The server is asked again at once.
    assert_eq!(call(&pool, "echo", json!({ "text": "a" })).await.text(), "a");
    assert_eq!(pool.status()[0].connections, 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&logins(folder.path())), 0o700);
    let files: Vec<PathBuf> = fs::read_dir(logins(folder.path())).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.iter().map(|file| mode(file)).collect::<Vec<_>>(), vec![0o600; 2], "{files:?}");
    assert_eq!(secrets.replace("access-token-1 refresh-token-1"), "[redacted] [redacted]");
    pool.shut_down().await;
}

async fn an_address_is_pasted() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    log_in(&pool).await;
    assert_eq!(call(&pool, "echo", json!({ "text": "a" })).await.text(), "a");
    // Another name has the same login, another address has none.
    let mut renamed = options(serde_json::from_value(json!({ "url": format!("{}/mcp", issuer.url) })).unwrap());
    renamed.logins_dir = Some(logins(folder.path()));
    let config = renamed.servers.remove("t").unwrap();
    let mut moved = config.clone();
    moved.url = Some(format!("{}/mcp?a=b", issuer.url));
    renamed.servers = [("other".to_owned(), config), ("moved".to_owned(), moved)].into();
    let others = servers(renamed).unwrap();
    assert_eq!(others.check("other").await.unwrap().connections, 1);
    assert_eq!(others.check("moved").await.unwrap().state, ToolServerState::LoginNeeded);
    let login = others.login("moved", LoginOptions::default()).await.unwrap();
    let address = agree(&login).await;
    others.paste_login("moved", login, &address).await.unwrap();
    assert_eq!(files(folder.path()).len(), 2);
    others.shut_down().await;
    pool.shut_down().await;
}

async fn an_answer_of_another_login_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    let spoil: [(&str, Spoil, &str); 5] = [
        ("state", |address| address.replace("&state=", "&state=x"), "another login"),
        ("origin", |address| address.replace("127.0.0.1", "example.com"), "does not begin with"),
        ("issuer", |address| address.replace("&iss=", "&iss=x"), "issuer mismatch"),
        ("no issuer", |address| address.split("&iss=").next().unwrap().to_owned(), "missing required issuer"),
        (
            "no",
            |address| address.replace("code=the-code", "error=access_denied&error_description=%1b%5b31mno"),
            "the issuer refused: access_denied: [31mno",
        ),
    ];
    for (what, spoil, words) in spoil {
        let login = pool.login("t", LoginOptions::default()).await.unwrap();
        let address = spoil(&agree(&login).await);
        let error = pool.paste_login("t", login, &address).await.unwrap_err().to_string();
        assert!(error.contains(words), "{what}: {error}");
    }
    let login = pool.login("t", LoginOptions::default()).await.unwrap();
    let address = agree(&login).await.replace("code=the-code", "code=a-guess");
    let error = pool.paste_login("t", login, &address).await.unwrap_err().to_string();
    assert!(error.contains("400 Bad Request") && error.contains("invalid_grant"), "{error}");
    assert!(!error.contains('\u{1b}'), "{error}");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    pool.shut_down().await;
}

/// Change of an address.
type Spoil = fn(&str) -> String;

/// Calls a tool twice at once, and returns how often the token was refreshed meanwhile.
async fn refreshes_of_two_calls(issuer: &Issuer, pools: [&Servers; 2]) -> usize {
    let before = issuer.book().refreshes;
    let both =
        tokio::join!(call(pools[0], "echo", json!({ "text": "a" })), call(pools[1], "echo", json!({ "text": "b" })));
    assert_eq!((both.0.text(), both.1.text()), ("a".to_owned(), "b".to_owned()));
    issuer.book().refreshes - before
}

async fn an_expired_token_is_refreshed_once() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    issuer.book().expires_in = Some(0);
    log_in(&pool).await;
    issuer.book().expires_in = Some(3600);
    assert_eq!(refreshes_of_two_calls(&issuer, [&pool, &pool]).await, 1);
    assert!(!issuer.book().tokens_seen.contains("Bearer access-token-1"));
    pool.shut_down().await;
}

async fn a_refused_token_is_refreshed_once() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    let secrets = Secrets::default();
    pool.redact_with(&secrets);
    log_in(&pool).await;
    assert_eq!(call(&pool, "count", json!({})).await.text(), "1");
    issuer.book().access.clear();
    assert_eq!(refreshes_of_two_calls(&issuer, [&pool, &pool]).await, 1);
    assert_eq!(secrets.replace("access-token-1 access-token-2 refresh-token-2"), "[redacted] [redacted] [redacted]");
    // A call that was refused has not run, so it is sent again, and runs once.
    issuer.book().access.clear();
    assert_eq!(call(&pool, "count", json!({})).await.text(), "2");
    assert_eq!(noted(folder.path(), "calls"), 2);
    pool.shut_down().await;
}

async fn two_processes_refresh_once() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pools = [pool(folder.path(), &issuer), pool(folder.path(), &issuer)];
    issuer.book().expires_in = Some(0);
    log_in(&pools[0]).await;
    issuer.book().expires_in = Some(3600);
    assert_eq!(refreshes_of_two_calls(&issuer, [&pools[0], &pools[1]]).await, 1);
    for pool in pools {
        pool.shut_down().await;
    }
}

async fn a_revoked_login_is_needed_again() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    log_in(&pool).await;
    assert_eq!(call(&pool, "count", json!({})).await.text(), "1");
    // An issuer that cannot answer takes no login away.
    issuer.book().access.clear();
    issuer.book().instead.insert("/token".to_owned(), (503, String::new(), json!({})));
    let failed = call(&pool, "count", json!({})).await.result.unwrap_err();
    assert!(
        matches!(&failed, ToolError::Failed(why) if why.contains("did not run the call") && why.contains("503")),
        "{failed:?}"
    );
    issuer.book().instead.clear();
    assert_eq!(call(&pool, "count", json!({})).await.text(), "2");

    issuer.book().access.clear();
    issuer.book().refresh.clear();
    let refused = call(&pool, "count", json!({})).await.result.unwrap_err();
    let ToolError::Failed(why) = &refused else { panic!("{refused:?}") };
    assert!(why.contains("did not run the call") && why.contains("run `meerkat servers login t`"), "{why}");
    assert_eq!(noted(folder.path(), "calls"), 2);
    // The issuer has said no once for all.
    let refreshes = issuer.book().refreshes;
    let status = pool.check("t").await.unwrap();
    assert_eq!(status.state, ToolServerState::LoginNeeded, "{status:?}");
    assert!(status.last_error.as_ref().unwrap().contains("run `meerkat servers login t`"), "{status:?}");
    assert_eq!(issuer.book().refreshes, refreshes);
    log_in(&pool).await;
    assert_eq!(call(&pool, "count", json!({})).await.text(), "3");
    pool.shut_down().await;
}

async fn a_token_follows_no_redirect() {
    let folder = tempfile::tempdir().unwrap();
    let (issuer, thief) = (Issuer::start(folder.path()).await, Issuer::start(folder.path()).await);
    let pool = pool(folder.path(), &issuer);
    log_in(&pool).await;
    for status in [301, 302, 307, 308] {
        let to = (status, format!("{}/mcp", thief.url), json!({}));
        issuer.book().instead.insert("/mcp".to_owned(), to);
        assert_eq!(pool.check("t").await.unwrap().state, ToolServerState::Failed);
    }
    issuer.book().instead.clear();
    for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server", "/register"] {
        let to = (307, format!("{}{path}", thief.url), json!({}));
        issuer.book().instead.insert(path.to_owned(), to);
        refusal(&pool).await;
        issuer.book().instead.clear();
    }
    issuer.book().instead.insert("/token".to_owned(), (307, format!("{}/token", thief.url), json!({})));
    issuer.book().access.clear();
    let status = pool.check("t").await.unwrap();
    assert_eq!(status.state, ToolServerState::Failed);
    assert_eq!(thief.book().asked, Vec::<String>::new());
    pool.shut_down().await;
}

async fn hostile_documents_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    let (resource, metadata) = ("/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server");
    let with = |key: &str, value: Value| {
        let mut document = issuer.metadata();
        document[key] = value;
        (metadata, document)
    };
    let named = |servers: Value| {
        (resource, json!({ "resource": format!("{}/mcp", issuer.url), "authorization_servers": servers }))
    };
    let inside = "http://169.254.169.254/latest";
    // Each is asked for once, and is not there.
    let many: Vec<String> = (0..100).map(|n| format!("{}/.well-known/{n}", issuer.url)).collect();
    for ((path, document), words) in [
        (named(json!([inside])), "none published usable metadata"),
        (named(json!(["https://10.0.0.1/"])), "none published usable metadata"),
        (named(json!(many)), "too many others"),
        (
            (resource, json!({ "resource": "https://example.com/mcp", "authorization_servers": [issuer.url] })),
            "mismatch",
        ),
        (with("token_endpoint", json!(inside)), "endpoint for tokens is refused"),
        (with("registration_endpoint", json!("https://192.168.0.1/register")), "endpoint for registering is refused"),
        (with("authorization_endpoint", json!("file:///etc/passwd")), "login page is refused"),
        (with("authorization_endpoint", json!("javascript:alert(1)")), "login page is refused"),
        (with("issuer", json!("https://example.com")), "issuer mismatch"),
        (with("issuer", Value::Null), "issuer"),
        (with("code_challenge_methods_supported", json!(["plain"])), "S256"),
        (with("code_challenge_methods_supported", Value::Null), "S256"),
        (with("padding", json!("x".repeat(300_000))), "more than"),
        (with("registration_endpoint", Value::Null), "--client-id"),
    ] {
        issuer.book().instead.insert(path.to_owned(), (200, String::new(), document));
        let error = refusal(&pool).await;
        assert!(error.contains(words), "{words}: {error}");
        issuer.book().instead.clear();
    }
    // A pointer to the inside is passed over, and what the server itself has counts.
    issuer.book().challenge = Some(format!("Bearer resource_metadata=\"{inside}\""));
    log_in(&pool).await;
    // A server without documents wants no login.
    issuer.book().challenge = Some("Bearer".to_owned());
    for path in [resource, metadata] {
        issuer.book().instead.insert(path.to_owned(), (404, String::new(), json!({})));
    }
    let error = refusal(&pool).await;
    assert!(error.contains("does not advertise an authorization server"), "{error}");
    pool.shut_down().await;
}

async fn a_configured_header_wins() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let logged_in = pool(folder.path(), &issuer);
    log_in(&logged_in).await;
    logged_in.shut_down().await;
    let keys = json!({ "url": format!("{}/mcp", issuer.url), "headers": { "authorization": "Bearer configured" } });
    let pool = pool_with(folder.path(), keys);
    assert_eq!(pool.check("t").await.unwrap().state, ToolServerState::Failed);
    assert_eq!(issuer.book().tokens_seen, ["Bearer configured".to_owned()].into());
    let error = refusal(&pool).await;
    assert!(error.contains("servers.t.headers has its own Authorization"), "{error}");
    pool.shut_down().await;
}

async fn a_logout_forgets() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    assert!(!pool.log_out("t").await.unwrap());
    log_in(&pool).await;
    assert_eq!(call(&pool, "echo", json!({ "text": "a" })).await.text(), "a");
    assert!(pool.log_out("t").await.unwrap());
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    assert!(!pool.log_out("t").await.unwrap());
    // A connection that was open has no token any more.
    let refused = call(&pool, "echo", json!({ "text": "a" })).await.result.unwrap_err();
    assert!(matches!(&refused, ToolError::Failed(why) if why.contains("meerkat servers login t")), "{refused:?}");
    pool.shut_down().await;
}

async fn a_server_without_sessions_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    issuer.book().has_no_sessions = true;
    let pool = pool(folder.path(), &issuer);
    log_in(&pool).await;
    assert_eq!(call(&pool, "count", json!({})).await.text(), "1");
    assert_eq!(call(&pool, "count", json!({})).await.text(), "2");
    assert_eq!(pool.status()[0].connections, 1);
    pool.shut_down().await;
}

/// Broken once: such a call had an unknown outcome, its token was not refreshed, and no login was asked for.
async fn a_refusal_without_a_challenge_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    log_in(&pool).await;
    assert_eq!(call(&pool, "count", json!({})).await.text(), "1");
    issuer.book().challenge = Some(String::new());
    issuer.book().access.clear();
    assert_eq!(call(&pool, "count", json!({})).await.text(), "2");

    issuer.book().forbidden = Some(String::new());
    let failed = call(&pool, "count", json!({})).await.result.unwrap_err();
    assert!(matches!(&failed, ToolError::Failed(why) if why.contains("did not run the call: HTTP 403")), "{failed:?}");
    issuer.book().forbidden = None;
    assert_eq!(call(&pool, "count", json!({})).await.text(), "3");

    issuer.book().access.clear();
    issuer.book().refresh.clear();
    let failed = call(&pool, "count", json!({})).await.result.unwrap_err();
    assert!(matches!(&failed, ToolError::Failed(why) if why.contains("run `meerkat servers login t`")), "{failed:?}");
    let status = pool.check("t").await.unwrap();
    assert_eq!((status.state, noted(folder.path(), "calls")), (ToolServerState::LoginNeeded, 3));
    pool.shut_down().await;
}

async fn a_scope_at_the_end_of_a_long_challenge_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    log_in(&pool).await;
    let description = "x".repeat(400);
    let challenge =
        format!("Bearer error=\"insufficient_scope\", error_description=\"{description}\", scope=\"tools admin\"");
    issuer.book().forbidden = Some(challenge);
    let failed = call(&pool, "count", json!({})).await.result.unwrap_err();
    let words = "run `meerkat servers login t --scope 'tools admin'`";
    assert!(matches!(&failed, ToolError::Failed(why) if why.contains(words)), "{failed:?}");
    pool.shut_down().await;
}

/// Broken once: a server that gave the token `assistant` blanked that word in every session.
async fn a_token_that_is_a_word_blanks_that_word_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = Issuer::start(folder.path()).await;
    let pool = pool(folder.path(), &issuer);
    let secrets = Secrets::default();
    pool.redact_with(&secrets);
    let long = "the_token_of_an_issuer_that_likes_words";
    let tokens = json!({ "access_token": "assistant", "refresh_token": long, "token_type": "Bearer" });
    issuer.book().instead.insert("/token".to_owned(), (200, String::new(), tokens));
    issuer.book().access.insert("assistant".to_owned());
    log_in(&pool).await;
    assert_eq!(call(&pool, "echo", json!({ "text": "a" })).await.text(), "a");
    assert_eq!(secrets.replace(&format!("the assistant says {long}")), "the assistant says [redacted]");
    pool.shut_down().await;
}
