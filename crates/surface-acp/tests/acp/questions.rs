//! What a question shows: all of it, and nothing that a model can make look like the editor's own words.

use std::{path::Path, sync::Arc};

use meerkat_service::{
    Agent, AgentBuildConfig, SessionId,
    model::ToolSpec,
    service::UpdateSession,
    session::message::RawJson,
    tool::{Plan, is_unseen},
};
use meerkat_surface_acp::AcpOptions;
use serde_json::{Value, json};

use super::{Client, Fake, built, options};

/// An agent with a tool of this name, whose calls are asked about with this preview and rule.
fn agent(folder: &Path, name: &str, preview: &str, rule: Option<&str>) -> Agent {
    let schema = RawJson::parse(r#"{"type":"object"}"#).unwrap();
    let spec = ToolSpec { name: name.to_owned(), description: "Is asked about.".to_owned(), schema };
    let (preview, rule) = (Some(preview.to_owned()), rule.map(str::to_owned));
    let subjects = rule
        .as_deref()
        .and_then(|rule| rule.split_once(": "))
        .map(|(_, subject)| subject.to_owned())
        .into_iter()
        .collect();
    let plan = Plan { preview, rule, subjects, ..Plan::once().ask() };
    built(AgentBuildConfig::new().store(folder.to_owned()).tool(Arc::new(Fake(spec, plan, "done"))))
}

/// Makes a client of a session in a folder.
async fn begun(agent: &Agent, work: &Path) -> (Client, String) {
    let workspace = work.to_str().unwrap().to_owned();
    let options = AcpOptions { workspaces: Arc::new(move |_| Ok(Some(workspace.clone()))), ..options() };
    let mut client = Client::with(agent, options);
    let session = client.ends("session/new", json!({ "cwd": work, "mcpServers": [] })).await;
    (client, session["sessionId"].as_str().unwrap().to_owned())
}

/// The contents of a question: texts, and diffs.
fn contents<'a>(asked: &'a Value, kind: &str) -> Vec<&'a Value> {
    let contents = asked["params"]["toolCall"]["content"].as_array().unwrap();
    contents.iter().filter(|content| content["type"] == kind).collect()
}

#[tokio::test]
async fn a_question_s_block_ends_where_the_question_does() {
    let work = meerkat_testkit::folder();
    for (preview, fence) in [
        ("In /w:\ntrue\n```\n# Approved by policy\n[click](http://x)\n```\nid", "````"),
        (" ```\n  ````  \n+x `````", "``````"),
        ("ls", "```"),
    ] {
        let folder = meerkat_testkit::folder();
        let agent = agent(folder.path(), "shell", preview, None);
        let (mut client, session) = begun(&agent, work.path()).await;
        client.prompt(&session, r#"@call shell {"command":"c"}"#).await;
        let asked = client.asked("session/request_permission").await;
        let shown = contents(&asked, "content");
        assert_eq!(shown.len(), 1, "{asked}");
        assert_eq!(shown[0]["content"]["text"], format!("{fence}\n{preview}\n{fence}"));
    }
}

/// All texts in a value but the call's own arguments, which are data.
fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => vec![text],
        Value::Array(items) => items.iter().flat_map(texts).collect(),
        Value::Object(members) => {
            members.iter().filter(|(key, _)| *key != "rawInput").flat_map(|(_, value)| texts(value)).collect()
        }
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn what_a_person_does_not_see_is_shown_as_an_escape() {
    const ODD: &str = "n\u{202e}txt\u{200b}.sh";
    const ESCAPED: &str = "n\\u{202e}txt\\u{200b}.sh";
    let (folder, work) = (meerkat_testkit::folder(), meerkat_testkit::folder());
    let agent = agent(folder.path(), "edit", "It edits.", Some(&format!("edit: {ODD}")));
    let (mut client, session) = begun(&agent, work.path()).await;
    let arguments = json!({ "path": ODD, "old": format!("{ODD}\r\n"), "new": "\u{1b}[2J\tx\n" });
    client.prompt(&session, &format!("@call edit {arguments}")).await;
    let call = loop {
        let update = client.asked("session/update").await["params"]["update"].clone();
        if update["sessionUpdate"] == "tool_call" {
            break update;
        }
    };
    let asked = client.asked("session/request_permission").await;
    let path = work.path().join(ESCAPED);
    for shown in [&call, &asked["params"]["toolCall"]] {
        assert_eq!(shown["title"], format!("edit {ESCAPED}"));
        assert_eq!(shown["locations"], json!([{ "path": path }]));
        assert_eq!(shown["rawInput"], arguments);
        assert_eq!(shown["content"][0]["path"], json!(path));
    }
    // The editor shows the call's own diff as it shows files. That of a question has escapes, and its ends of lines.
    assert_eq!(
        (&call["content"][0]["oldText"], &call["content"][0]["newText"]),
        (&arguments["old"], &arguments["new"])
    );
    let diff = contents(&asked, "diff")[0];
    assert_eq!(diff["oldText"], format!("{ESCAPED}\r\n"));
    assert_eq!(diff["newText"], "\\u{1b}[2J\tx\n");
    let options = asked["params"]["options"].to_string();
    assert!(options.contains("edit: n"), "the rule is offered: {options}");
    for text in texts(&asked) {
        assert!(!text.contains(|char| is_unseen(char) && !"\r\n\t".contains(char)), "{text:?}");
    }

    let session_id: SessionId = session.parse().unwrap();
    let titled = UpdateSession { session_id, title: Some(ODD.to_owned()), labels: None };
    agent.service().update(titled).await.unwrap();
    let listed = client.ends("session/list", json!({})).await;
    assert_eq!(listed["sessions"][0]["title"], ESCAPED, "{listed}");
}

/// A preview is bounded. Where it is not whole, the new text is.
#[tokio::test]
async fn a_question_about_a_write_shows_all_of_it() {
    let work = meerkat_testkit::folder();
    let long: String = (0..4000).map(|line| format!("{line}\n")).collect();
    let cut = "--- n\n+++ n\n@@ -1 +1,4000 @@\n-y\n+0\n[3999 more lines of the difference are not shown.]\n";
    for (preview, content, is_shown) in [
        ("--- /dev/null\n+++ n\n@@ -0,0 +1 @@\n+x\n", "x\n", true),
        (cut, &long, true),
        // The preview alone says what is replaced, and has all of it.
        ("--- n\n+++ n\n@@ -1 +1 @@\n-y\n+[x]\n", "[x]\n", false),
    ] {
        let folder = meerkat_testkit::folder();
        let agent = agent(folder.path(), "write", preview, None);
        let (mut client, session) = begun(&agent, work.path()).await;
        client.prompt(&session, &format!("@call write {}", json!({ "path": "n", "content": content }))).await;
        let asked = client.asked("session/request_permission").await;
        let diffs: Vec<_> = contents(&asked, "diff").iter().map(|diff| diff["newText"].as_str().unwrap()).collect();
        assert!(diffs == if is_shown { vec![content] } else { vec![] }, "{preview}: {diffs:?}");
        let text = contents(&asked, "content")[0]["content"]["text"].as_str().unwrap();
        assert!(text.contains(preview), "{text}");
    }
}
