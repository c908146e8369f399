//! Lists: kept on disk, changed between steps, and accepted by people.

use meerkat_service::{
    redact::Secrets,
    tool::{ToolError, ToolScope, ToolServerState, ToolSource as _},
};
use meerkat_tools::servers::{Servers, ServersOptions, servers};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{
    server::noted,
    support::{Told, call, call_as, config, invocation, names, options, pool, session, step, tool, until},
};

crate::tests!(
    a_listed_server_is_not_started_for_a_list,
    globs_choose_the_tools,
    a_bad_schema_is_put_aside_alone,
    a_new_tool_comes_between_steps,
    a_changed_tool_waits_until_it_is_accepted,
    an_approval_names_the_server_and_the_tool_as_they_are,
    what_a_server_is_given_is_in_nothing_that_it_lists,
    what_a_server_is_given_is_a_secret_if_no_ordinary_text_holds_it,
);

async fn a_listed_server_is_not_started_for_a_list() {
    let (folder, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let told = Told::default();
    let make = || {
        let mut options = options(config(folder.path(), "", json!({})));
        options.cache_dir = Some(lists.path().to_owned());
        let told = told.clone();
        options.tell = std::sync::Arc::new(move |line| told.lock().unwrap().push(line.to_owned()));
        servers(options).unwrap()
    };
    let first = make();
    assert_eq!(first.status()[0].state, ToolServerState::Configured);
    let listed = names(&first).await;
    assert_eq!(listed.len(), 12);
    assert_eq!(*told.lock().unwrap(), ["Listing the tools of the server t."]);
    first.shut_down().await;

    let second = make();
    assert_eq!(names(&second).await, listed);
    let status = &second.status()[0];
    assert_eq!((status.state, noted(folder.path(), "starts")), (ToolServerState::Listed, 1));
    assert!(status.tokens > 0 && status.tokens == status.tools.iter().map(|tool| tool.tokens).sum::<u64>());
    assert_eq!(call(&second, "echo", json!({ "text": "a" })).await.text(), "a");
    assert_eq!(second.status()[0].connections, 1);
    assert_eq!((noted(folder.path(), "starts"), told.lock().unwrap().len()), (2, 1));
    second.shut_down().await;
}

async fn globs_choose_the_tools() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({ "only": ["*o*", "fail"], "without": ["sl*"] })));
    assert_eq!(names(&pool).await, ["count", "echo", "environment", "fail"]);
    pool.shut_down().await;
    let none = crate::support::pool(config(folder.path(), "", json!({ "only": ["*"], "without": ["*"] })));
    assert_eq!(names(&none).await, [""; 0]);
    none.shut_down().await;
}

async fn a_bad_schema_is_put_aside_alone() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "careless", json!({})));
    assert_eq!(names(&pool).await, ["good"]);
    assert_eq!(call(&pool, "good", json!({})).await.text(), "done");
    let status = pool.status().remove(0);
    let put_aside: Vec<bool> = status.tools.iter().map(|tool| tool.quarantined.is_some()).collect();
    assert_eq!(put_aside, [true, false, true]);
    pool.shut_down().await;
}

async fn a_new_tool_comes_between_steps() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(config(folder.path(), "", json!({})));
    let (before, _) = step(&pool).await;
    assert_eq!(step(&pool).await.0, before);
    call(&pool, "add", json!({ "text": "is new" })).await.text();
    until("it is listed", || pool.status()[0].tools.len() == 13).await;
    assert!(step(&pool).await.0 > before);
    assert!(names(&pool).await.contains(&"added".to_owned()));
    pool.shut_down().await;
}

async fn a_changed_tool_waits_until_it_is_accepted() {
    let (folder, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut with_lists = options(config(folder.path(), "", json!({})));
    with_lists.cache_dir = Some(lists.path().to_owned());
    let pool = servers(with_lists).unwrap();
    let old = tool(&pool, "echo").await;
    call(&pool, "change", json!({ "text": "echoes, and mails your keys" })).await.text();
    until("it is put aside", || pool.status()[0].tools.iter().any(|tool| tool.quarantined.is_some())).await;
    assert!(!names(&pool).await.contains(&"echo".to_owned()));
    let set = pool.tools(&ToolScope { session_id: session(), workspace: None });
    let left_out: Vec<&str> = set.left_out().iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((left_out, pool.origin("mcp__t__echo")), (vec!["mcp__t__echo"], "server:t".to_owned()));
    assert!(set.left_out()[0].reason.contains("has changed"), "{:?}", set.left_out());
    let [listed] = &pool.servers()[..] else { panic!("one server is configured") };
    assert_eq!((listed.name.as_str(), listed.state), ("t", ToolServerState::Running));
    // A step that was shown the old one cannot call the new one.
    let cancel = CancellationToken::new();
    let called = call_as(&*old, session(), json!({ "text": "a" }), &cancel).await;
    assert!(
        matches!(&called.result, Err(ToolError::Refused(why)) if why.contains("has changed")),
        "{:?}",
        called.result
    );
    let plan = old.plan(&invocation(session(), json!({}), &cancel)).await;
    assert!(matches!(plan, Err(ToolError::Refused(_))));

    pool.accept("t").unwrap();
    assert_eq!(call(&pool, "echo", json!({ "text": "a" })).await.text(), "a");
    assert!(pool.accept("u").is_err());
    pool.shut_down().await;

    // The process that comes next lists the old text again, which is another change.
    let mut with_lists = options(config(folder.path(), "", json!({})));
    with_lists.cache_dir = Some(lists.path().to_owned());
    let next = servers(with_lists).unwrap();
    assert!(names(&next).await.contains(&"echo".to_owned()));
    next.check("t").await.unwrap();
    assert!(!names(&next).await.contains(&"echo".to_owned()));
    next.shut_down().await;
}

/// Broken once: after a restart an approval held for a server of the same name at another address.
async fn an_approval_names_the_server_and_the_tool_as_they_are() {
    async fn shown(pool: &Servers) -> String {
        let cancel = CancellationToken::new();
        let invocation = invocation(session(), json!({ "text": "a" }), &cancel);
        tool(pool, "echo").await.plan(&invocation).await.unwrap().preview.unwrap()
    }
    let folder = tempfile::tempdir().unwrap();
    let start = |keys| pool(config(folder.path(), "", keys));
    let first = start(json!({}));
    let before = shown(&first).await;
    assert!(before.starts_with("server t (definition ") && before.ends_with("):\n{\"text\":\"a\"}"), "{before}");
    assert_eq!(before.lines().next().unwrap().matches("definition").count(), 2, "{before}");
    let (again, moved) = (start(json!({})), start(json!({ "env": { "DATABASE": "prod" } })));
    assert_eq!(shown(&again).await, before, "nothing has changed");
    assert_ne!(shown(&moved).await, before);

    call(&first, "change", json!({ "text": "drops" })).await.text();
    until("it is put aside", || first.status()[0].tools.iter().any(|tool| tool.quarantined.is_some())).await;
    first.accept("t").unwrap();
    assert_ne!(shown(&first).await, before);
    for pool in [first, again, moved] {
        pool.shut_down().await;
    }
}

/// Variable and literal value that a server is given.
const GIVEN: [&str; 2] = ["planted-variable", "planted-literal"];

fn given(folder: &std::path::Path, lists: Option<&std::path::Path>) -> ServersOptions {
    let env = json!({ "GIVEN_VARIABLE": "${PLANTED}", "GIVEN_LITERAL": GIVEN[1], "MODE": "production" });
    let mut options = options(config(folder, "telling", json!({ "env": env })));
    options.environment.insert("PLANTED".to_owned(), GIVEN[0].to_owned());
    options.cache_dir = lists.map(std::path::Path::to_owned);
    options
}

/// Broken once: a tool's description went with them to the model, to the terminal and into the list on disk.
async fn what_a_server_is_given_is_in_nothing_that_it_lists() {
    let (folder, lists) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pool = servers(given(folder.path(), Some(lists.path()))).unwrap();
    let (_, tools) = step(&pool).await;
    let [tool] = &tools[..] else { panic!("one tool has a usable name") };
    let spec = tool.spec();
    assert_eq!(spec.description, "Uses [redacted] and [redacted] in [redacted].");
    assert!(spec.schema.as_str().contains(r#"["production","elsewhere"]"#), "a value that a call may have stays one");
    let listed = format!("{:?}", pool.status());
    pool.shut_down().await;
    let files = std::fs::read_dir(lists.path()).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()));
    let kept: Vec<String> = files.map(Result::unwrap).collect();
    assert_eq!(kept.len(), 1, "the list is kept");
    for text in [spec.schema.as_str(), &listed, &kept[0]] {
        assert!(text.contains("[redacted]") && !text.contains("planted"), "{text}");
    }
    let pool = servers(given(folder.path(), Some(lists.path()))).unwrap();
    assert_eq!(step(&pool).await.1[0].spec().description, spec.description, "as it was kept");
    pool.shut_down().await;
}

/// In sessions; in what the server itself says all of it is.
async fn what_a_server_is_given_is_a_secret_if_no_ordinary_text_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut options = given(folder.path(), None);
    let env = [
        ("SHORT", "production"),
        ("PATHS", "/home/me/notes/memory-1.json"),
        ("ADDRESS", "https://api.example.com/v1"),
        ("TOKEN", "8f14e45fceea167a"),
        ("DATABASE", "postgres://me:hunter2@example.com/db"),
    ];
    let config = options.servers.get_mut("t").unwrap();
    config.env.extend(env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let remote = json!({ "url": "https://example.com/mcp", "headers": { "Authorization": "Basic bWU6aHVudGVyMg==" } });
    options.servers.insert("u".to_owned(), serde_json::from_value(remote).unwrap());
    let pool = servers(options).unwrap();
    let secrets = Secrets::new(pool.secrets());
    for (_, text) in &env[..3] {
        assert_eq!(secrets.replace(text), *text);
    }
    for secret in ["planted-variable", env[3].1, env[4].1, "Basic bWU6aHVudGVyMg==", "bWU6aHVudGVyMg=="] {
        assert_eq!(secrets.replace(&format!("it is {secret}.")), "it is [redacted].");
    }
    pool.shut_down().await;
}
